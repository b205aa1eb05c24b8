"""The lines of code that call sites name: the text of "bench.py:31", for reports.

They are read after the program has ended, in another process: one line per place in the user's own code, never a whole file,
and none from a file that was changed since the program began.
"""

from __future__ import annotations

import os
import stat
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: Longest line kept, in characters; most lines of one process; largest file that is read.
LONGEST, MOST_LINES, LARGEST_BYTES = 200, 2_000, 4 << 20
_LIBRARIES = ("site-packages", "dist-packages")


def source_lines(
    contexts: Iterable[Mapping[str, Any]], shorten: Callable[[str], str], began_ns: int
) -> Iterator[dict[str, Any]]:
    """Log lines of type `source`.  `contexts`: with `frames`, a list of (file, line number, ...), where clock readings say
    more than events do; `began_ns`: when the program began, realtime."""
    wanted: dict[str, dict[int, None]] = {}
    for context in contexts:
        for file, number, *_ in context.get("frames", ()):
            if not file.startswith("<") and not any(f"/{name}/" in file for name in _LIBRARIES):
                wanted.setdefault(file, {})[number] = None
    left = MOST_LINES
    for file, numbers in wanted.items():
        for number, text in _lines(file, numbers, began_ns):
            if left:
                left -= 1
                yield {"type": "source", "site": f"{shorten(file)}:{number}", "text": text}


def _lines(file: str, numbers: Mapping[int, None], began_ns: int) -> Iterator[tuple[int, str]]:
    """(number, text) of some lines; nothing if the file cannot be read, or is no longer the one that ran."""
    try:
        found = os.stat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_BYTES or found.st_mtime_ns > began_ns:
            return
        with tokenize.open(file) as text:
            lines = text.read().splitlines()
    except (OSError, SyntaxError, ValueError):  # gone, not readable, not UTF-8
        return
    for number in numbers:
        if 0 < number <= len(lines) and (line := lines[number - 1].strip()):
            yield number, line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
