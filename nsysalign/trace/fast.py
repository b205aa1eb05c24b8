"""Columns of integers of a big table, straight from the pages of the file: SQLite hands out one value at a time.

    leaf page   | type, number of cells | where each cell lies (u16) | ...    cell  cell  cell |
    cell        | payload's length | row number | header's length | type, type, ... | value, value, ... |

Types say how many bytes each value has (https://sqlite.org/fileformat2.html, sections 1.6 and 2.1); numbers are big-endian.

Only for plain tables that `Source.plain_table` has looked at, in a file of which SQLite holds the lock meanwhile.  None is
always an answer: whatever is not as it should be (a text where a number belongs, a row that goes on in another page, a
damaged page, more rows than a file of this size has room for) is read again, and explained, by the ordinary reader;
both fill the same `Gathered`, so that results do not depend on who read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nsysalign.trace.gathered import Gathered
from nsysalign.untrusted import open_regular

#: Bytes of pages at once: what is made of them stays in the processor's cache.
_AT_ONCE = 1 << 21
#: No row of an nsys table is shorter; more rows than that are pages that point at each other.
_BYTES_PER_ROW = 8
_ROLLBACK_JOURNAL = b"\x01\x01"  # bytes 18 and 19 of the header; 2 is WAL
_INTERIOR, _LEAF = 5, 13
_MOST_LEVELS = 20
_WORD = 8  # bytes behind the last page, so that a word can be read anywhere
#: By type: bytes of a value, and the number of bits by which a word that begins with it is shifted.
_SIZE = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((n - 12) // 2 for n in range(12, 128))], np.int64)
_SHIFT = np.clip(64 - 8 * _SIZE, 0, 63)
_NULL, _REAL, _ZERO, _ONE = 0, 7, 8, 9
_LAST_NUMBER = 9

Runs = Sequence[tuple[int, int]]


class Column(NamedTuple):
    """Which of the table's columns (from 0), and what stands for NULL."""

    place: int
    default: int


class _Odd(Exception):
    """Something is not as this reader knows it."""


def readable(path: Path) -> bool:
    """Whether all of the database is in this file."""
    try:
        with open_regular(path) as file:
            head = file.read(20)
    except OSError:
        return False
    beside = (path.with_name(path.name + end) for end in ("-journal", "-wal"))
    return head[18:20] == _ROLLBACK_JOURNAL and not any(p.exists() for p in beside)


def most_rows(path: Path) -> int:
    """More rows than the file has room for."""
    return path.stat().st_size // _BYTES_PER_ROW


def gather(
    path: Path, root: int, columns: Sequence[Column], runs: Runs, row: Gathered, into: Sequence[Gathered]
) -> bool:
    """Read the rows whose numbers are in `runs` (sorted, disjoint, both ends included) of the table whose tree begins at page `root`: their
    numbers into `row`, their columns, one per `into`.  False, with both to be thrown away, where that cannot be done.
    """
    left = most_rows(path)
    try:
        with open_regular(path) as file:
            pages = _Pages(file, path.stat().st_size)
            for data, base in pages.lots(_leaves(pages, root, runs)):
                left -= _rows(data, base, pages.usable, columns, runs, row, into)
                if left < 0:
                    return False
    except (_Odd, IndexError, OSError):
        return False
    return True


class _Pages:
    """The pages of an open file, numbered from 1."""

    def __init__(self, file: BufferedReader, size: int) -> None:
        head = file.read(100)
        if len(head) < 100:
            raise _Odd
        self.file, self.size = file, int.from_bytes(head[16:18], "big")
        self.size = 1 << 16 if self.size == 1 else self.size
        self.usable = self.size - head[20]
        if self.size < 512 or self.size & (self.size - 1) or self.usable < 480:
            raise _Odd
        self.count = size // self.size

    def lots(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(bytes, where each page begins in them) of the pages with these numbers, some at a time; good until the next."""
        if len(numbers) and not 1 < numbers.min() <= numbers.max() <= self.count:
            raise _Odd
        most = max(_AT_ONCE // self.size, 1)
        data = np.zeros(min(most, len(numbers)) * self.size + _WORD, np.uint8)
        for first in range(0, len(numbers), most):
            some = numbers[first : first + most]
            cuts = [0, *(np.flatnonzero(np.diff(some) != 1) + 1).tolist(), len(some)]
            for a, b in pairwise(cuts):
                self.file.seek((int(some[a]) - 1) * self.size)
                part = data[a * self.size : b * self.size]
                if self.file.readinto(part.data) != len(part):
                    raise _Odd
            yield data, np.arange(len(some), dtype=np.int64) * self.size


def _leaves(pages: _Pages, root: int, runs: Runs) -> np.ndarray:
    """Numbers of the pages that hold the rows of these runs, in the order of the rows."""
    if not runs:
        return np.empty(0, np.int64)
    begins, ends = (np.array(edge, dtype=np.int64) for edge in zip(*runs, strict=True))
    level, last = np.array([root], np.int64), np.array([np.iinfo(np.int64).max])
    seen = 0
    for _ in range(_MOST_LEVELS):
        children: list[np.ndarray] = []
        keys: list[np.ndarray] = []
        for data, base in pages.lots(level):
            if not keys and data[0] == _LEAF:
                return level
            seen += len(base)
            if seen > pages.count:  # pages that point at each other
                raise _Odd
            for begin in base.tolist():
                child, key = _children(data[begin : begin + pages.size + _WORD], pages.usable)
                children.append(child)
                keys.append(np.append(key, last[len(keys)]))
        level, last = np.concatenate(children), np.concatenate(keys)
        # of each page the greatest number that may be in it; the least is one more than that of the page before
        before = np.append(np.iinfo(np.int64).min, last[:-1])
        at = np.searchsorted(ends, before, side="right")
        wanted = np.append(begins, np.iinfo(np.int64).max)[at] <= last
        level, last = level[wanted], last[wanted]
        if not len(level):
            return level
    raise _Odd


def _children(data: np.ndarray, usable: int) -> tuple[np.ndarray, np.ndarray]:
    """(page numbers, greatest row number in each but the last) of a page inside the tree."""
    if data[0] != _INTERIOR:
        raise _Odd
    cells = 12 + 2 * np.arange(int(data[3]) << 8 | int(data[4]))
    at = _big(data, cells, 2)
    if len(at) and at.max() > usable - 5:
        raise _Odd
    child = np.append(_big(data, at, 4), _big(data, np.array([8]), 4))
    return child, _varint(data, at + 4)


def _big(data: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    """Unsigned numbers of so many bytes."""
    out = np.zeros(len(at), np.int64)
    for n in range(size):
        out = out << 8 | data[at + n]
    return out


def _varint(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Numbers of 1 to 9 bytes: seven bits each, and one that says whether there is more; the ninth has eight."""
    out, going, at = np.zeros(len(at), np.int64), np.ones(len(at), dtype=bool), at.copy()
    for _ in range(8):
        byte = data[at]
        out = np.where(going, out << 7 | byte & 0x7F, out)
        going = going & (byte >= 0x80)
        at += going
        if not going.any():
            return out
    return np.where(going, out << 8 | data[at], out)


def _behind(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Where each of these numbers of 1 to 9 bytes ends."""
    at, going = at.copy(), np.ones(len(at), dtype=bool)
    for _ in range(8):
        going &= data[at] >= 0x80
        if not going.any():
            break
        at += going
    return at + 1


def _rows(
    data: np.ndarray,
    base: np.ndarray,
    usable: int,
    columns: Sequence[Column],
    runs: Runs,
    row: Gathered,
    into: Sequence[Gathered],
) -> int:
    """Gather the rows of some leaf pages; how many there were."""
    if (data[base] != _LEAF).any():
        raise _Odd
    count = _big(data, base + 3, 2)
    if (8 + 2 * count > usable).any():
        raise _Odd
    page, where = _pointers(base, count)
    cell = base[page] + _big(data, where, 2)
    over = base[page] + usable
    number_at = _behind(data, cell)
    number = _numbers(data, number_at, count)
    inside = _inside(number, runs)
    payload = data[cell].astype(np.int64)
    long = np.flatnonzero(number_at != cell + 1)
    if len(long):
        if (number_at[long] > cell[long] + 2).any():
            raise _Odd
        payload[long] = (payload[long] & 0x7F) << 7 | data[cell[long] + 1]
    head = _behind(data, number_at)
    ends = head + payload
    if (ends > over).any():  # also of a row that goes on in another page
        raise _Odd
    if not inside.all():
        number, head, ends = number[inside], head[inside], ends[inside]
    if len(number):
        row.add(number)
        _values(data, head, ends, columns, into)
    return len(cell)


def _pointers(base: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(which page, where its pointer lies) of each cell."""
    page = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    return page, 2 * np.arange(len(page)) + (base + 8 - 2 * before)[page]


def _numbers(data: np.ndarray, at: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The cells' row numbers: in each page they rise, mostly one by one, which the first and the last of it show."""
    some = count > 0
    first = np.cumsum(count)[some] - count[some]
    low, high = _varint(data, at[first]), _varint(data, at[first + count[some] - 1])
    if (high - low == count[some] - 1).all():
        return np.repeat(low - first, count[some]) + np.arange(len(at))
    return _varint(data, at)


def _inside(number: np.ndarray, runs: Runs) -> np.ndarray:
    """Which of some row numbers are wanted."""
    if len(runs) == 1:
        return (number >= runs[0][0]) & (number <= runs[0][1])
    begins, ends = (np.array(edge, dtype=np.int64) for edge in zip(*runs, strict=True))
    at = np.minimum(np.searchsorted(ends, number), len(ends) - 1)
    return (begins[at] <= number) & (number <= ends[at])


def _values(
    data: np.ndarray, head: np.ndarray, ends: np.ndarray, columns: Sequence[Column], into: Sequence[Gathered]
) -> None:
    """Gather the columns of rows whose records begin at `head` and end at `ends`."""
    words = np.ndarray((len(data) - _WORD + 1,), f"V{_WORD}", data, strides=(1,))
    last = max(c.place for c in columns)
    length = data[head]
    if not last + 2 <= length.min() <= length.max() < 0x80:
        raise _Odd
    at = head + length
    for place in range(last + 1):
        kind = data[head + place + 1]
        least, most = int(kind.min()), int(kind.max())
        if most >= 0x80:
            raise _Odd
        one = least == most
        size = _SIZE[least] if one else _SIZE[kind]
        for column, out in zip(columns, into, strict=True):
            if column.place == place:
                if most > _LAST_NUMBER or (kind == _REAL).any() or (at + size > ends).any():
                    raise _Odd
                out.add(_decoded(words, at, kind, one, column.default))
        at = at + size


def _decoded(words: np.ndarray, at: np.ndarray, kind: np.ndarray, one: bool, default: int) -> np.ndarray:
    """The integers at these places, of these types (one of them, if `one`)."""
    small = {_NULL: default, _ZERO: 0, _ONE: 1}
    if one and int(kind[0]) in small:
        return np.broadcast_to(np.int64(small[int(kind[0])]), len(at))
    out = words[at].view(">i8").astype(np.int64)
    out >>= _SHIFT[kind[0]] if one else _SHIFT[kind]
    if not one:
        for code, value in small.items():
            out[kind == code] = value
    return out
