"""Which line of the user's code read a clock: like `sites`, but the walk is only as long as pairing
needs.

A reading counts when its immediate caller is the user's own file.  Its context is that frame and
the next user frame above it (a helper `now()`, a `Timer` class).
"""

from __future__ import annotations

import sys
from itertools import islice
from types import CodeType, FrameType

from .sites import _MAX_ALIVE, _MAX_FRAMES, END, STDLIB, USER, Sites

#: Nodes of the trie that are not numbers of contexts.
IGNORED, _SILENT = -1, -2
#: A frame's key is id(code) + instruction * UNIT.  From 3.11 on the instructions lie inside the
#: code object, so that the sum is unique by itself.
UNIT = 1 if sys.version_info >= (3, 11) else 1 << 47
_CALLERS = 1
_LOOP = "<timeit-src>"  # what timeit generates; it times an empty loop, too
_COROUTINE = 0x80 | 0x200  # CO_COROUTINE, CO_ASYNC_GENERATOR
_KEEP = 4096  # limit on sites per program; generated code could produce them for ever


class ClockSites(Sites):
    """`trie`: (code, instruction) of each frame -> a negative number, a context's number, or the
    next frame's trie."""

    def __init__(self, start_cwd: str, add: object) -> None:
        super().__init__(start_cwd, add)
        # id of a code object -> the first instruction in it that read a clock
        self._codes: dict[int, int] = {}

    @property
    def trie(self) -> dict:
        return self._trie

    def _forget(self) -> None:
        self._trie.clear()  # in place: the readers hold a reference to it
        self._codes.clear()
        self._alive = []

    def find(self, frame: FrameType) -> int | None:
        """The node for a reading in this frame, None if it is not known yet."""
        step: FrameType | None = frame
        node: object = self._trie
        while node.__class__ is dict:
            node = node.get(END if step is None else _key(step.f_code, step.f_lasti))
            step = step and step.f_back
        return node

    def silence(self, number: int) -> None:
        """Readings of this context are no longer wanted."""

        def visit(node: dict) -> None:
            for key, below in node.items():
                if below == number:
                    node[key] = _SILENT
                elif below.__class__ is dict:
                    visit(below)

        visit(self._trie)

    def learn(self, frame: FrameType) -> int:
        """The node for a reading in this frame, remembered for the next time."""
        if len(self._alive) > _MAX_ALIVE:
            self._forget()
        node, path = IGNORED, [(frame.f_code, frame.f_lasti)]
        if self._kind(frame.f_code) == USER:
            node, path = self._number(frame)
        self._remember(path, node)
        return node

    def _classify(self, name: str) -> int:
        return STDLIB if name == _LOOP else super()._classify(name)

    def _remember(self, path: list, number: int) -> None:
        node = self._trie
        for item in path[:-1]:
            self._alive.append(item[0])
            below = node.get(key := _key(*item))
            if below.__class__ is not dict:
                below = node[key] = {}
            node = below
        if path[-1] is None:
            node[END] = number
        else:
            self._alive.append(path[-1][0])
            node[_key(*path[-1])] = number

    def _number(self, frame: FrameType) -> tuple[int, list]:
        """(number of the context that begins at this frame, the path to it)."""
        path: list = [(frame.f_code, frame.f_lasti)]
        # its first reading shows who called the function; later ones need not walk that far
        first = self._codes.setdefault(id(frame.f_code), frame.f_lasti) == frame.f_lasti
        callers = _CALLERS if first else 0
        users, step = [], frame
        while step is not None and len(path) <= _MAX_FRAMES:
            if step is not frame:
                path.append((step.f_code, step.f_lasti))
            if self._kind(step.f_code) == USER:
                users.append(step)
                if len(users) > callers or step.f_code.co_name == "<module>":
                    break
            step = step.f_back
        else:
            if step is None:
                path.append(None)
        return self._context_number(users), path

    def _context_number(self, users: list[FrameType]) -> int:
        places = tuple(
            (f.f_code.co_filename, f.f_code.co_firstlineno, f.f_lasti, f.f_lineno) for f in users
        )
        number = self._numbers.get(places)
        if number is None:
            if len(self._numbers) >= _KEEP:
                return IGNORED
            number = next(self._count)
            self._add(number, {"frames": [self._describe(f) for f in users]})
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


def _key(code: CodeType, instruction: int) -> int:
    return id(code) + instruction * UNIT
