"""Run a function just before or right after a named module is imported, without importing it.

The finder delegates to the other finders and sets `exec_module` on the loader *instance*; the
attribute removes itself when it is called, so `__loader__` and `__spec__.loader` are what they are
without us.
"""

from __future__ import annotations

import sys

from .rawtime import Untraced


class _Finder:
    def __init__(self, before: dict, after: dict) -> None:
        self.before, self.after = before, after

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name in self.before:
            _call(self.before[name], name)
        if name not in self.after:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    _call(_after_exec, spec.loader, self.after[name])
                return spec
        return None


def _after_exec(loader: object, callback: object) -> None:
    def exec_module(module: object) -> None:
        loader.__dict__.pop("exec_module", None)
        loader.exec_module(module)
        _call(callback, module)

    loader.exec_module = exec_module  # a loader without __dict__: its module stays unwrapped


def _call(function: object, *arguments: object) -> None:
    try:
        with Untraced():
            function(*arguments)
    except Exception as error:
        from . import failed

        failed(error)


def install(before: dict[str, object], after: dict[str, object]) -> None:
    """Arm the hook.  `before` is called with the name, `after` with the module, at once for modules
    that are already imported."""
    for name in [n for n in after if n in sys.modules]:
        _call(after[name], sys.modules[name])
    sys.meta_path.insert(0, _Finder(before, after))


def remove() -> None:
    """Disarm the hook."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
