"""Which line of the user's code made a call: walking frames, cheaply.

A *context* is a call's stack as far as measuring is concerned: the site (innermost user frame), up
to three user frames above it, and whether the immediate caller is a library.  Contexts are
numbered; the number is found again through a trie whose keys are (code object, last instruction),
about 0.1 us per frame, without touching names or line numbers.
"""

from __future__ import annotations

import itertools
import os
import sys
from types import CodeType, FrameType

from .blame import OURS
from .rawtime import Untraced

#: What a frame can be.  TRANSPARENT frames are torch's own plumbing between the user and `record`:
#: they are skipped.
USER, LIBRARY, TRANSPARENT, STDLIB, INTERNAL = range(5)

_CALLERS = 3
_MAX_FRAMES = 48
END = -1
_SHIFT = 1 << 24  # more than any f_lasti
_MAX_ALIVE = (
    100_000  # frames remembered: a program that keeps creating code must not grow without limit
)

#: torch's plumbing: `Stream.record_event` calls `Event.record`; dynamo runs streams::record_event
#: from its own file.
_TRANSPARENT = ("torch/cuda/streams.py", "torch/_dynamo/variables/streams.py")


class Sites:
    """Numbers contexts; `add(number, value)` is called once for each new one."""

    def __init__(self, start_cwd: str, add: object) -> None:
        self._start_cwd = start_cwd
        self._add = add
        self._trie: dict = {}
        self._kinds: dict[str, int] = {}
        self._numbers: dict[tuple, int] = {}
        self._count = itertools.count(1)
        self._alive: list[
            CodeType
        ] = []  # an id in the trie must not be reused by another code object
        self._roots = _roots()
        self.places: dict[int, tuple] = {
            0: ()
        }  # number -> ((absolute file, line), ...), the innermost first

    def context(self, frame: FrameType | None) -> int:
        """The number of the context that begins at this frame, 0 for none."""
        node: object = self._trie
        step = frame
        while step is not None:
            node = node.get(id(step.f_code) * _SHIFT + step.f_lasti)
            if node is None:
                return self._learn(frame)
            if node.__class__ is int:
                return node
            step = step.f_back
        return node[END] if END in node else self._learn(frame)

    def clear(self) -> None:
        """Forget the numbers (after fork: the new process writes its own files)."""
        self._forget()
        self._numbers, self._count = {}, itertools.count(1)

    def _forget(self) -> None:
        self._trie = {}
        self._alive = []

    def _learn(self, frame: FrameType | None) -> int:
        if len(self._alive) > _MAX_ALIVE:
            self._forget()
        frames, path, user = [], [], 0
        step = frame
        while step is not None and len(path) < _MAX_FRAMES:
            kind = self._kind(step.f_code)
            frames.append((kind, step))
            path.append((step.f_code, step.f_lasti))
            user += kind == USER
            step = step.f_back
            if user > _CALLERS:
                break
        else:
            if (
                step is None
            ):  # the stack ended here; deeper stacks with the same beginning are other contexts
                path.append(None)
        number = self._number(frames)
        self._remember(path, number)
        return number

    def _number(self, frames: list[tuple[int, FrameType]]) -> int:
        users = [f for kind, f in frames if kind == USER]
        immediate = next((kind for kind, _ in frames if kind not in (TRANSPARENT, INTERNAL)), USER)
        # a program that lives in site-packages: the innermost frame that is not torch's or triton's
        if not users:
            users = [
                f for kind, f in frames if kind == LIBRARY and not self._is_framework(f.f_code)
            ][:1]
        users = users[: _CALLERS + 1]
        places = tuple((self._absolute(f.f_code.co_filename), f.f_lineno) for f in users)
        library = immediate != USER
        # two calls in one line are two contexts: a start and an end must not be confused
        key = (places, tuple(f.f_lasti for f in users), library)
        number = self._numbers.get(key)
        if number is None:
            number = next(self._count)
            self.places[number] = places
            self._add(number, {"frames": [list(p) for p in places], "library": library})
            self._numbers[key] = number  # last: an exception of the user's may arrive in between
        return number

    def _remember(self, path: list, number: int) -> None:
        node = self._trie
        for position, item in enumerate(path):
            last = position == len(path) - 1
            if item is None:
                node[END] = number
                return
            code, lasti = item
            self._alive.append(code)
            key = id(code) * _SHIFT + lasti
            if last:
                node[key] = number
                return
            below = node.get(key)
            if below.__class__ is not dict:
                below = node[key] = {}
            node = below

    def _kind(self, code: CodeType) -> int:
        name = code.co_filename
        kind = self._kinds.get(name)
        if kind is None:
            with Untraced():
                kind = self._kinds[name] = self._classify(name)
        return kind

    def _classify(self, name: str) -> int:
        if name.startswith("<frozen"):
            return STDLIB
        if name.startswith(OURS):
            return INTERNAL
        if name.startswith("<"):
            return USER  # <stdin>, <string>, an exec'd cell
        path = self._absolute(name)
        slashed = path.replace(os.sep, "/")
        if slashed.endswith(_TRANSPARENT):
            return TRANSPARENT
        if path.startswith(self._roots["internal"]):
            return INTERNAL
        if (
            self._is_framework_path(path)
            or "/site-packages/" in slashed
            or "/dist-packages/" in slashed
        ):
            return LIBRARY
        if path.startswith(self._roots["stdlib"]):
            return STDLIB
        return LIBRARY if "/torchinductor_" in slashed else USER

    def _is_framework(self, code: CodeType) -> bool:
        return self._is_framework_path(self._absolute(code.co_filename))

    def _is_framework_path(self, path: str) -> bool:
        for package in ("torch", "triton"):
            file = getattr(sys.modules.get(package), "__file__", None)
            if file and path.startswith(os.path.dirname(os.path.abspath(file)) + os.sep):
                return True
        return False

    def _absolute(self, name: str) -> str:
        if name.startswith("<"):
            return name
        return os.path.normpath(os.path.join(self._start_cwd, name))


def _roots() -> dict[str, tuple[str, ...]]:
    """Folders whose code is never the user's: the standard library, and nsysalign's own harness."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__spec__.origin))))
    internal = (os.path.join(package, "probe") + os.sep, os.path.join(package, "region.py"))
    stdlib = {
        os.path.dirname(os.path.abspath(os.__file__)),
        os.path.dirname(os.path.realpath(os.__file__)),
    }
    return {"internal": internal, "stdlib": tuple(p + os.sep for p in stdlib)}
