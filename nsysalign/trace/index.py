"""Where in the big tables of an export the rows of a stretch of time lie.

nsys writes rows nearly in the order of their times, but not always (buffers come late), and a call can last as long as
the program.  So every table is looked through once, in blocks of row numbers, for the first start and the last end of
each block: whatever touches a stretch of time lies in the blocks that touch it.

    block        rows          from ... to
      0        1 ..  8192      [-----------------------------------)     a thread that waits until the end
      1     8193 .. 16384          [------)
      2    16385 .. 24576                 [-----)
    stretch                            [--)                        -> blocks 0 and 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nsysalign.trace import schema
from nsysalign.trace.sqlite import Source, open_readonly

BLOCK_ROWS = 1 << 13
#: Ends of ranges that were never closed.
OPEN = 1 << 62
#: Tables with fewer rows are read whole.
_FEW_ROWS = 1 << 12
_TABLES = (schema.RUNTIME, *schema.OPERATION_TABLES, schema.SYNCHRONIZATION, schema.NVTX, schema.OSRT)


Runs = tuple[tuple[int, int], ...]  # row numbers, both ends included


@dataclass(frozen=True)
class Blocks:
    """Arrays of equal length, one row per block: its row numbers (both ends included), how many rows it has, its first
    start and its last end (ns)."""

    first: np.ndarray
    last: np.ndarray
    rows: np.ndarray
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class Excerpt:
    """Stretches of a trace: `spans` are their (begin, end) in ns, sorted and disjoint; `runs` the row numbers, table by
    table, among which their rows lie (a table that is not named is read whole); `last_ns` is where the trace ends.
    `home`: row numbers whose losses this excerpt counts, and no other one of the same set."""

    spans: tuple[tuple[int, int], ...]
    runs: Mapping[str, Runs]
    last_ns: int
    home: Mapping[str, Runs] = field(default_factory=dict)

    def touches(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Which of some intervals (ns; an end before the start is one that never came) lie in a span, or reach into
        one."""
        begin, over = (np.array(edge, dtype=np.int64) for edge in zip(*self.spans, strict=True))
        if len(begin) == 1:
            return (start <= over[0]) & ((end >= begin[0]) | (end < start))
        end = np.where(end < start, OPEN, end)
        at = np.searchsorted(over, start)
        return (at < len(begin)) & (begin[np.minimum(at, len(begin) - 1)] <= end)

    def at_home(self, table: str, rows: np.ndarray) -> int:
        """How many of these rows of a table this excerpt counts."""
        return sum(int(((rows >= a) & (rows <= b)).sum()) for a, b in self.home.get(table, ()))


class Index:
    """Blocks of an export's big tables."""

    def __init__(self, tables: Mapping[str, Blocks]) -> None:
        self.tables = tables
        calls = tables.get(schema.RUNTIME.name)
        order = np.argsort(calls.start, kind="stable") if calls is not None else np.empty(0, np.int64)
        self._call_start = calls.start[order] if calls is not None else order
        self._calls_before = np.cumsum(calls.rows[order]) if calls is not None else order

    @property
    def rows(self) -> int:
        """Calls and operations."""
        return sum(
            int(self.tables[t.name].rows.sum())
            for t in (schema.RUNTIME, *schema.OPERATION_TABLES)
            if t.name in self.tables
        )

    @property
    def calls(self) -> int:
        return int(self._calls_before[-1]) if len(self._calls_before) else 0

    @property
    def first_ns(self) -> int:
        return min(int(b.start.min()) for b in self.tables.values())

    @property
    def last_ns(self) -> int:
        return max(int(b.end[b.end < OPEN].max(initial=0)) for b in self.tables.values())

    def cuts(self, count: int) -> list[int]:
        """Times that part the calls into `count` stretches of about as many calls each."""
        at = np.searchsorted(self._calls_before, [self.calls * k // count for k in range(1, count)])
        times = np.unique(self._call_start[at])
        return [int(t) for t in times if t > self._call_start[0]]

    def calls_at(self, times: np.ndarray) -> np.ndarray:
        """About how many calls began before each time."""
        before = np.append(0, self._calls_before)
        return before[np.searchsorted(self._call_start, times)]

    def before(self, time: int, blocks: int) -> int:
        """The time by which about so many blocks of calls less had been made."""
        at = int(np.searchsorted(self._call_start, time, side="right")) - 1 - blocks
        return int(self._call_start[at]) if at >= 0 else min(time, self.first_ns)

    def after(self, time: int, blocks: int) -> int:
        """The time by which about so many blocks of calls more had been made."""
        at = int(np.searchsorted(self._call_start, time, side="left")) + 1 + blocks
        return int(self._call_start[at]) if at < len(self._call_start) else max(time, self.last_ns)

    def excerpt(self, spans: Sequence[tuple[int, int]], home: tuple[int, int] | None = None) -> Excerpt:
        """The rows of some stretches of time (begin, end), which may overlap.  `home`: the stretch whose losses are
        counted; a set of excerpts has homes that are disjoint and together hold all times."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(spans):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        whole = Excerpt(tuple(merged), {}, self.last_ns)
        runs = {name: _runs(b, whole.touches(b.start, b.end)) for name, b in self.tables.items()}
        counted = {
            name: _runs(b, (b.start >= home[0]) & (b.start < home[1]))
            for name, b in self.tables.items()
            if home
        }
        return Excerpt(whole.spans, runs, whole.last_ns, counted)


def _runs(blocks: Blocks, wanted: np.ndarray) -> Runs:
    """Row numbers of the wanted blocks, neighbours together."""
    at = np.flatnonzero(wanted)
    if not len(at):
        return ()
    begins = np.flatnonzero(np.concatenate([[True], np.diff(at) > 1]))
    ends = np.append(begins[1:], len(at)) - 1
    return tuple(zip(blocks.first[at[begins]].tolist(), blocks.last[at[ends]].tolist(), strict=True))


def rows_at_most(path: Path) -> int:
    """Calls and operations that an export can hold, by their greatest row numbers: a look at one page per table."""
    with open_readonly(path) as connection:
        source = Source(connection, path)
        ends = [source.row_numbers(t) for t in (schema.RUNTIME, *schema.OPERATION_TABLES)]
    return sum(last - first + 1 for first, last in ends)


def build_index(path: Path, block_rows: int = BLOCK_ROWS) -> Index:
    """Look through the tables of an export, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda table: _blocks(path, table, block_rows), _TABLES))
    return Index({t.name: b for t, b in zip(_TABLES, found, strict=True) if b is not None})


def _blocks(path: Path, table: schema.Table, block_rows: int) -> Blocks | None:
    """None for a table that is absent, or small."""
    with open_readonly(path) as connection:
        source = Source(connection, path)
        first, last = source.row_numbers(table)
        if last - first + 1 < min(_FEW_ROWS, 2 * block_rows):
            return None
        start, end = (f'"{source.column(table, name)}"' for name in ("start_ns", "end_ns"))
        last_end = (
            f"coalesce({end}, {OPEN})" if table is schema.NVTX else end
        )  # a range that was never closed
        sql = f'select count(*), coalesce(min({start}), 0), coalesce(max({last_end}), 0) from "{table.name}"'
        rows = [
            (low, min(low + block_rows - 1, last), *found)
            for low in range(first, last + 1, block_rows)
            for found in connection.execute(
                f"{sql} where rowid between ? and ?", (low, min(low + block_rows - 1, last))
            )
            if found[0]
        ]
    return Blocks(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))
