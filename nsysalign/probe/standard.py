"""Imports of the standard library, by the probe, from its own folder: a `json.py` beside the user's
script is the program's, and not what we mean.  The program does not see ours either.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

_FOLDER = os.path.dirname(os.path.abspath(os.__file__))
_PLACES = [_FOLDER, os.path.join(_FOLDER, "lib-dynload")]
_OTHERS = ("site-packages", "dist-packages")


def _is_standard(spec: object) -> bool:
    """Whether a spec is of the standard library."""
    origin = getattr(spec, "origin", None)
    if origin in ("built-in", "frozen"):
        return True
    path = os.path.abspath(origin) if isinstance(origin, str) else ""
    return path.startswith(_FOLDER + os.sep) and not any(word in path for word in _OTHERS)


class _Finder:
    """Finds the standard library's modules for one thread while it imports for us."""

    def __init__(self, path_finder: object) -> None:
        self.thread, self.find = get_ident(), path_finder.find_spec

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        mine = path is None and get_ident() == self.thread
        return self.find(name, _PLACES) if mine else None


class Importer:
    """Stands for `__import__` in the probe's own modules; `plain`: the built-in one."""

    def __init__(self, plain: object) -> None:
        from _frozen_importlib_external import PathFinder

        self.plain, self.path_finder = plain, PathFinder
        self.kept: dict[tuple, object] = {}

    def __call__(self, name, globals=None, locals=None, fromlist=(), level=0):
        first = name.partition(".")[0]
        if level or first not in sys.stdlib_module_names:
            return self.plain(name, globals, locals, fromlist, level)
        key = (name, tuple(fromlist or ()))
        if key in self.kept:
            return self.kept[key]
        loaded = [sys.modules.get(module_name) for module_name in {first, name}]
        if all(_is_standard(getattr(module, "__spec__", None)) for module in loaded):
            return self.plain(name, globals, locals, fromlist, 0)
        return self._load(name, key)

    def _load(self, name: str, key: tuple) -> object:
        """Import it, and take out of `sys.modules` what the program would find elsewhere."""
        standard = sys.stdlib_module_names - {"__main__", "sitecustomize", "usercustomize"}
        foreign = {
            n: module for n, module in list(sys.modules.items())
            if n.partition(".")[0] in standard and not self._ours(n)
        }  # fmt: skip
        for module_name in foreign:
            sys.modules.pop(module_name, None)
        before, finder = set(sys.modules), _Finder(self.path_finder)
        sys.meta_path.insert(0, finder)
        try:
            module = self.plain(name, None, None, key[1], 0)
        finally:
            sys.meta_path.remove(finder)
            hidden = {}
            for module_name in [n for n in list(sys.modules) if n not in before]:
                first = module_name.partition(".")[0]
                if first not in hidden:
                    spec = self.path_finder.find_spec(first) if first in standard else None
                    hidden[first] = spec is not None and not _is_standard(spec)
                if hidden[first] or module_name in foreign:
                    sys.modules.pop(module_name, None)
            sys.modules.update(foreign)
        if foreign or any(hidden.values()):
            self.kept[key] = module
        return module

    def _ours(self, name: str) -> bool:
        """Whether a loaded module of that name is the standard library's, or cannot be told."""
        spec = getattr(sys.modules.get(name), "__spec__", None)
        return spec is None or getattr(spec, "origin", None) is None or _is_standard(spec)
