"""Run a function right after a named module was imported, without importing it.

The finder delegates to the other finders and sets `exec_module` on the loader *instance*; the attribute
removes itself when it is called, so `__loader__` and `__spec__.loader` are what they are without us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class _Finder:
    def __init__(self, callbacks: dict[str, Callable[[Any], None]]) -> None:
        self.callbacks = callbacks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.callbacks:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _after_exec(spec.loader, self.callbacks[name])
                return spec
        return None

    def invalidate_caches(self) -> None:
        """Part of the finder protocol; nothing is cached."""


def _after_exec(loader: Any, callback: Callable[[Any], None]) -> None:
    def exec_module(module: Any) -> None:
        loader.__dict__.pop("exec_module", None)
        loader.exec_module(module)
        _call(callback, module)

    try:
        loader.exec_module = exec_module
    except AttributeError as error:  # a loader without __dict__: its module stays unwrapped
        from . import failed

        failed(error)


def _call(callback: Callable[[Any], None], module: Any) -> None:
    try:
        callback(module)
    except Exception as error:
        from . import failed

        failed(error)


def install(callbacks: dict[str, Callable[[Any], None]]) -> None:
    """Arm the hook; for modules that are already imported the function runs at once."""
    for name in [n for n in callbacks if n in sys.modules]:
        _call(callbacks[name], sys.modules[name])
    sys.meta_path.insert(0, _Finder(callbacks))
