"""Names of marks, from the texts that contain them: a mark itself carries only the hash of its
name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

from nsysalign.addons.marks.layout import name_hash
from nsysalign.errors import UsageError

_CALL = re.compile(
    r"NSYSALIGN_(?:RANGE|MARK|MARK_AFTER|COUNT|COUNT_WARPS|LATENCY)\s*\(\s*[\w.>\-]+\s*,\s*"
    r'"((?:[^"\\\n]|\\.){1,200})"'
)
_TRITON = re.compile(r"""\b(?:mark|begin|end)\s*\([^()\n]*?["']([^"'\\\n]{1,200})["']""")
_SOURCES = (".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".cxx")
_MOST_FILES, _LARGEST_FILE = 400, 4 << 20


def _script() -> str | None:
    """The program's script; None in a shell."""
    found = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(found) if isinstance(found, str) else None


#: Kept from the import on: Python takes __main__.__file__ away before the functions of atexit run,
#: which ask for names.
_SCRIPT = _script()


def found_in(text: str) -> set[str]:
    """The literals of marks in a source text."""
    names = set(_CALL.findall(text))
    if "nsysalign" in text:
        names.update(_TRITON.findall(text))
    return {name for name in names if "\\" not in name}


def by_hash(names: Iterable[str]) -> dict[int, str]:
    """Hash -> name.  Raises UsageError if two names have the same hash: their marks could not be
    told apart."""
    known: dict[int, str] = {}
    for name in sorted(set(names)):
        other = known.setdefault(name_hash(name), name)
        if other != name:
            raise UsageError(
                f"the marks {other!r} and {name!r} cannot be told apart: their hashes are the same",
                "rename one of them",
            )
    return known


def of_program() -> set[str]:
    """The literals in the program's own sources: files next to its script and in the current
    directory, and modules below them."""
    main = _script() or _SCRIPT
    homes = list(dict.fromkeys([*([os.path.dirname(main)] if main else []), os.getcwd()]))
    files: dict[str, None] = dict.fromkeys([main] if main else [])
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if (
            isinstance(path, str)
            and path.endswith(".py")
            and not name.startswith("nsysalign")
            and _own(path, homes)
        ):
            files.setdefault(path)
    sources: dict[str, None] = {}
    for folder in list(
        dict.fromkeys([*homes, *(os.path.dirname(os.path.abspath(f)) for f in files)])
    ):
        try:
            with os.scandir(folder) as entries:
                sources.update((e.path, None) for e in entries if e.name.endswith(_SOURCES))
        except OSError:
            continue
    names: set[str] = set()
    for path in [*list(sources)[:_MOST_FILES], *list(files)[:_MOST_FILES]]:
        names |= of_file(path)
    return names


def of_file(path: str) -> set[str]:
    """The literals in one file, none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return found_in(file.read(_LARGEST_FILE))
    except OSError:
        return set()


def _own(path: str, homes: list[str]) -> bool:
    path = os.path.abspath(path)
    inside = any(path.startswith(home.rstrip(os.sep) + os.sep) for home in homes)
    return inside and not {"site-packages", "dist-packages"} & set(path.split(os.sep))
