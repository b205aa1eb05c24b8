"""Which line of the user's code made a call, or read a clock: walking frames, cheaply.

A *context* is a call's stack as far as measuring is concerned.  Contexts are numbered; the number
is found again through a trie whose keys are (code object, last instruction), about 0.1 us per
frame, without touching names or line numbers.
"""

from __future__ import annotations

import itertools
import os
import sys
from itertools import islice
from types import CodeType, FrameType

from .blame import OURS
from .rawtime import Untraced

#: What a frame can be.  TRANSPARENT ones, torch's own plumbing between the user and `record` and
#: ours, are skipped.
USER, LIBRARY, TRANSPARENT, STDLIB = range(4)
#: A frame's key is id(code) + instruction * UNIT.  From 3.11 on the instructions lie inside the
#: code object, so that the sum is unique by itself.  END: the stack ends here.
UNIT = 1 if sys.version_info >= (3, 11) else 1 << 47
END = -1
#: Of a clock's trie, which no context has.
IGNORED = -1
#: User frames above the innermost that belong to a context, of a call and of a reading.
_CALLERS, _CLOCK_CALLERS = 3, 1
_MAX_FRAMES = 48
#: Frames and readings' contexts remembered: a program that keeps creating code must not grow
#: without limit.
_MAX_ALIVE, _MAX_CLOCKS = 100_000, 4096
#: torch's plumbing: `Stream.record_event` calls `Event.record`; dynamo runs streams::record_event
#: from its own file.
_TRANSPARENT = ("torch/cuda/streams.py", "torch/_dynamo/variables/streams.py")
#: The clock of torch.utils.benchmark.Timer: the frames above it are what timeit generates, timeit's and torch's.
_BENCHMARK = "torch/utils/benchmark/utils/timer.py"
_COROUTINE = 0x80 | 0x200  # CO_COROUTINE, CO_ASYNC_GENERATOR


class Sites:
    """Numbers contexts; `add(number, value)` is called once for each new one.  A context is the
    innermost user frame, up to three user frames above it, and whether the immediate caller is a
    library.  `trie`: a frame's key -> a context's number, or the next frame's trie."""

    def __init__(self, start_cwd: str, add: object) -> None:
        self._start_cwd, self._add = start_cwd, add
        self.trie: dict = {}
        self._kinds: dict[str, int] = {}
        self._numbers: dict[tuple, int] = {}
        self._count = itertools.count(1)
        #: An id in the trie must not be used again by another code object.
        self._alive: list[CodeType] = []
        probe = os.path.dirname(os.path.abspath(__spec__.origin))
        self._region = os.path.join(os.path.dirname(probe), "region.py")
        paths = {path(os.__file__) for path in (os.path.abspath, os.path.realpath)}
        self._stdlib = tuple(os.path.dirname(path) + os.sep for path in paths)
        #: number -> ((absolute file, line), ...), the innermost first
        self.places: dict[int, tuple] = {0: ()}

    def context(self, frame: FrameType | None) -> int:
        """The number of the context that begins at this frame."""
        node, step = self.trie, frame
        while step is not None:
            node = node.get(id(step.f_code) + step.f_lasti * UNIT)
            if node.__class__ is not dict:
                break
            step = step.f_back
        else:
            node = node.get(END)
        return self.learn(frame) if node is None else node

    def clear(self) -> None:
        """Forget the numbers (after fork: the new process writes its own files)."""
        self._forget()
        self._numbers, self._count = {}, itertools.count(1)

    def _forget(self) -> None:
        self.trie.clear()  # in place: readers hold a reference to it
        self._alive = []

    def learn(self, frame: FrameType | None) -> int:
        """The number of a context, remembered for the next time."""
        if len(self._alive) > _MAX_ALIVE:
            self._forget()
        number, path = self._number(frame)
        node, *_, last = self.trie, *path
        for step in path[:-1]:
            self._alive.append(step.f_code)
            below = node.get(key := _key(step))
            if below.__class__ is not dict:
                below = node[key] = {}
            node = below
        if last is not None:
            self._alive.append(last.f_code)
        node[_key(last)] = number
        return number

    def _walk(self, frame: FrameType | None, callers: int) -> tuple[list, list[FrameType]]:
        """(the frames to look at, None for the stack's end; those of them that are the user's)."""
        path, users, step = [], [], frame
        while len(path) < _MAX_FRAMES:
            path.append(step)
            if step is None:
                break
            if self._kind(step.f_code) == USER:
                users.append(step)
                if len(users) > callers:
                    break
            step = step.f_back
        return path, users

    def _number(self, frame: FrameType | None) -> tuple[int, list]:
        """(number of the context that begins at this frame, the path to it)."""
        path, users = self._walk(frame, _CALLERS)
        kinds = [(self._kind(step.f_code), step) for step in path if step is not None]
        # no generators that end early: what is thrown into one that is being closed is lost
        named = [kind for kind, _ in kinds if kind != TRANSPARENT]
        immediate = named[0] if named else USER
        # a program that lives in site-packages: the innermost frame that is not torch's or triton's
        if not users:
            libraries = [s for kind, s in kinds if kind == LIBRARY]
            users = [s for s in libraries if not self._is_framework(s.f_code.co_filename)][:1]
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
        return number, path

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
            return TRANSPARENT
        if name.startswith("<"):
            return USER  # <stdin>, <string>, an exec'd cell
        path = self._absolute(name)
        if path.endswith(_TRANSPARENT) or path == self._region:
            return TRANSPARENT
        folders = ("/site-packages/", "/dist-packages/", "/torchinductor_")
        if self._is_framework(path) or [folder for folder in folders if folder in path]:
            return LIBRARY
        return STDLIB if path.startswith(self._stdlib) else USER

    def _is_framework(self, name: str) -> bool:
        for package in ("torch", "triton"):
            file = getattr(sys.modules.get(package), "__file__", None)
            folder = file and os.path.dirname(os.path.abspath(file)) + os.sep
            if folder and self._absolute(name).startswith(folder):
                return True
        return False

    def _absolute(self, name: str) -> str:
        if name.startswith("<"):
            return name
        return os.path.normpath(os.path.join(self._start_cwd, name))


class ClockSites(Sites):
    """The same for readings of clocks, where the walk is only as long as pairing needs: a reading
    counts when its immediate caller is the user's own file, and its context is that frame and the
    next user frame above it (a helper `now()`, a `Timer` class).  IGNORED: never any.

    A reading of torch.utils.benchmark.Timer counts, too: its context is the user's call of `timeit` or
    `blocked_autorange`, and which of the two readings around the loop it is.  0 for its warm-up, and
    for the empty and the growing loops by which it finds out how often to run."""

    def __init__(self, start_cwd: str, add: object) -> None:
        super().__init__(start_cwd, add)
        #: id of a code object -> the first instruction in it that read a clock
        self._codes: dict[int, int] = {}

    def _forget(self) -> None:
        super()._forget()
        self._codes.clear()

    def _classify(self, name: str) -> int:
        # what timeit generates; it times an empty loop, too
        return STDLIB if name == "<timeit-src>" else super()._classify(name)

    def _number(self, frame: FrameType) -> tuple[int, list]:
        if self._kind(frame.f_code) != USER:
            if _is_clock_of_benchmark(frame.f_code):
                return self._number_of_benchmark(frame)
            return IGNORED, [frame]
        # its first reading shows who called the function; later ones need not walk that far
        first = self._codes.setdefault(id(frame.f_code), frame.f_lasti) == frame.f_lasti
        module = frame.f_code.co_name == "<module>"
        path, users = self._walk(frame, _CLOCK_CALLERS if first and not module else 0)
        return self._number_of(users), path

    def _number_of_benchmark(self, frame: FrameType) -> tuple[int, list]:
        path, users = self._walk(frame, _CLOCK_CALLERS)
        if not users or not _is_measured(path):
            return 0, path
        is_end = "_t0" in frame.f_back.f_locals  # type: ignore[union-attr]
        return self._number_of(users, timed="end" if is_end else "begin"), path

    def _number_of(self, users: list[FrameType], **known: str) -> int:
        """The number of a context with these frames of the user's; `known` is said of it."""
        codes = [(f.f_code.co_filename, f.f_code.co_firstlineno) for f in users]
        places = (*codes, *((f.f_lasti, f.f_lineno) for f in users), *known.values())
        number = self._numbers.get(places)
        if number is None:
            if len(self._numbers) >= _MAX_CLOCKS:
                return IGNORED
            number = next(self._count)
            self._add(number, {"frames": [self._describe(f) for f in users], **known})
            self._numbers[places] = number
        return number

    def _describe(self, frame: FrameType) -> list:
        """[file, line, column, function, its first line, instruction, whether it is a coroutine];
        column -1 if Python does not know it."""
        code, column = frame.f_code, -1
        if hasattr(code, "co_positions"):  # 3.11
            _, _, first, _ = next(islice(code.co_positions(), frame.f_lasti // 2, None))
            column = -1 if first is None else first
        place = [self._absolute(code.co_filename), frame.f_lineno, column]
        coroutine = bool(code.co_flags & _COROUTINE)
        return [*place, code.co_name, code.co_firstlineno, frame.f_lasti, coroutine]


def _is_clock_of_benchmark(code: CodeType) -> bool:
    return code.co_name == "timer" and code.co_filename.endswith(_BENCHMARK)


def _is_measured(path: list) -> bool:
    """Whether torch.utils.benchmark reports what is timed in these frames, the innermost first: its clock, the
    loop, `timeit.Timer.timeit`, torch's."""
    names = [step.f_code.co_name for step in path[:3] if step is not None]
    if names != ["timer", "inner", "timeit"]:
        return False
    for step in path[3:]:
        if step is None or not step.f_code.co_filename.endswith(_BENCHMARK):
            continue
        if step.f_code.co_name == "_estimate_block_size":
            return False
        if step.f_code.co_name == "timeit":  # it warms up with a hundredth of what it is asked for
            return step.f_locals.get("number") == path[2].f_locals.get("number")
    return True


def _key(step: FrameType | None) -> int:
    return END if step is None else id(step.f_code) + step.f_lasti * UNIT
