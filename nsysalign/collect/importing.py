"""How far nsys has got with its report, which can take longer than the script did.

nsys prints it in its own messages, `[1/1] [=====30%      ] trace.nsys-rep`, which are not shown otherwise.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_EVERY_S = 0.5
_TAIL = 400
_PERCENT = re.compile(rb"\[[= ]*(\d{1,3})%[= ]*\]")


@contextlib.contextmanager
def following(log: Path, tell: Callable[[int], None] | None) -> Iterator[None]:
    """While the block runs, `tell` every new percentage that nsys prints; nothing before the script's end."""
    if tell is None:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(log, tell, stop), name="nsysalign-import", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(log: Path, tell: Callable[[int], None], stop: threading.Event) -> None:
    said = -1
    while not stop.wait(_EVERY_S):
        with contextlib.suppress(OSError):
            percent = said_percent(log)
            if percent is not None and percent != said:
                said = percent
                tell(percent)


def said_percent(log: Path) -> int | None:
    """The last percentage in nsys's messages, 0 when it has only begun, None before."""
    with open(log, "rb") as file:
        head = file.read(4096)
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _TAIL))
        tail = file.read()
    found = _PERCENT.findall(tail)
    if found:
        return min(int(found[-1]), 100)
    return 0 if b"Generating" in head else None
