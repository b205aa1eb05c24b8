"""Where the rows of a stretch of time lie in the big tables of an export.

    block        rows          from ... to
      0        1 ..  8192      [-----------------------------------)     a thread that waits until the end
      1     8193 .. 16384          [------)
      2    16385 .. 24576                 [-----)
    stretch                            [--)                        -> blocks 0 and 1

nsys writes rows mostly in the order of their times, but buffers can be late, and a call can last as long as the program.
Scanning all rows would take a tenth of an analysis.  So a block's position is first estimated from its first row (`sampled`);
whoever reads the block reports its true extent (`Excerpt.observe`), and afterwards it is known whether rows were missed
(`Index.corrected`, `Index.misses`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nsysalign.issue import FAR
from nsysalign.tiles import Columns
from nsysalign.trace import schema
from nsysalign.trace.sqlite import Source, open_readonly, possible

BLOCK_ROWS = 1 << 13
#: Later than anything: the end of ranges that were never closed, or that last to the trace's end.
FOREVER = int(FAR)
#: Tables with fewer rows are read whole.
_FEW_ROWS = 1 << 12
_LEAST = 64
_TABLES = (
    schema.RUNTIME,
    *schema.OPERATION_TABLES,
    schema.SYNCHRONIZATION,
    schema.NVTX,
    schema.OSRT,
)
Runs = tuple[tuple[int, int], ...]  # row numbers, both ends included


@dataclass(frozen=True)
class Blocks(Columns):
    """Arrays of equal length, one row per block: its row numbers (both ends included), the start of its first row in
    the file, and its first start and last end (ns)."""

    first: np.ndarray
    last: np.ndarray
    filed: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def runs(self, which: np.ndarray) -> Runs:
        """Row numbers of some blocks (a mask), with neighbouring blocks joined."""
        at = np.flatnonzero(which)
        if not len(at):
            return ()
        begins = np.flatnonzero(np.concatenate([[True], np.diff(at) > 1]))
        ends = np.append(begins[1:], len(at)) - 1
        return tuple(
            zip(self.first[at[begins]].tolist(), self.last[at[ends]].tolist(), strict=True)
        )


@dataclass(frozen=True)
class Excerpt:
    """Stretches of a trace: `spans` are their (begin, end) in ns, sorted and disjoint; `runs` the row numbers, table by
    table, among which their rows lie (a table that is not named is read whole); `last_range_ns`: end of ranges that were
    never closed.  `home`: the blocks that this excerpt, and no other of the same set, is responsible for."""

    spans: tuple[tuple[int, int], ...]
    runs: Mapping[str, Runs]
    last_range_ns: int = 0
    home: Mapping[str, Blocks] = field(default_factory=dict)

    def touches(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Which of some intervals (ns; an end before the start means that it never ended) lie in a span, or reach into one."""
        begin, over = (np.array(edge, dtype=np.int64) for edge in zip(*self.spans, strict=True))
        if len(begin) == 1:
            return (start <= over[0]) & ((end >= begin[0]) | (end < start))
        at = np.searchsorted(over, start)
        reach = np.where(end < start, FOREVER, end)
        return (at < len(begin)) & (begin[np.minimum(at, len(begin) - 1)] <= reach)

    def observe(
        self, table: str, row: np.ndarray, start: np.ndarray, end: np.ndarray
    ) -> tuple[Blocks, int]:
        """From all rows of the home blocks of a table (and others; by ascending number): where these blocks really lie, and how
        many of their rows have impossible times."""
        home, good = self.home[table], possible(start, end)
        at, stop = np.searchsorted(row, home.first), np.searchsorted(row, home.last, side="right")
        bad = np.flatnonzero(~good)
        if len(bad):
            start, end = np.where(good, start, FOREVER), np.where(good, end, -FOREVER)
        first, last = home.start.copy(), home.end.copy()
        for n, (a, b) in enumerate(zip(at.tolist(), stop.tolist(), strict=True)):
            if b > a:
                first[n], last[n] = start[a:b].min(), end[a:b].max()
        lost = int((np.searchsorted(bad, stop) - np.searchsorted(bad, at)).sum())
        return replace(home, start=first, end=last), lost


class Index:
    """Blocks of an export's big tables."""

    def __init__(self, tables: Mapping[str, Blocks], last_range_ns: int = 0) -> None:
        self.tables, self.last_range_ns = tables, last_range_ns
        calls = tables.get(schema.RUNTIME.name)
        none = np.empty(0, np.int64)
        filed = calls.filed if calls is not None else none
        order = np.argsort(filed, kind="stable")
        # by the first rows as stored in the file: a long call does not extend a block
        until = np.append(np.maximum(filed[1:], filed[:-1]), FOREVER) if len(filed) else none
        self._call_start, self._call_until = filed[order], until[order]
        self._calls_before = (
            np.cumsum((calls.last - calls.first + 1)[order]) if calls is not None else none
        )

    @property
    def calls(self) -> int:
        return int(self._calls_before[-1]) if len(self._calls_before) else 0

    @property
    def call_starts(self) -> np.ndarray:
        """When the first call of each block of calls began, sorted."""
        return self._call_start

    @property
    def first_ns(self) -> int:
        return min(int(b.start.min(initial=FOREVER)) for b in self.tables.values())

    @property
    def last_ns(self) -> int:
        """Approximately: the last block may extend further."""
        ends = (np.where(b.end < FOREVER, b.end, b.start) for b in self.tables.values())
        return max(int(e.max(initial=0)) for e in ends)

    def cuts(self, count: int) -> list[int]:
        """Times that divide the calls into `count` stretches with about equally many calls."""
        if not self.calls:
            return []
        at = np.searchsorted(self._calls_before, [self.calls * k // count for k in range(1, count)])
        return [int(t) for t in np.unique(self._call_start[at]) if t > self._call_start[0]]

    def calls_at(self, times: np.ndarray) -> np.ndarray:
        """Approximate number of calls that began before each time."""
        before = np.append(0, self._calls_before)
        return before[np.searchsorted(self._call_start, times)]

    def _at(self, time: int) -> tuple[np.ndarray, int]:
        """(which blocks of calls contain a time, their number, at least 1)."""
        here = (self._call_start <= time) & (self._call_until > time)
        return here, max(int(here.sum()), 1)

    def before(self, time: int, blocks: int) -> int:
        """The time by which about this many fewer blocks of calls had been made; -FOREVER before the first of them.  Processes
        may be stored one after the other in a table: this many blocks fewer for each process active at the time.
        """
        here, width = self._at(time)
        last = int(np.searchsorted(self._call_start, time, side="right")) - 1
        begin = int(np.flatnonzero(here).min(initial=last))
        at = max(begin, last - 2 * width) - blocks * width
        return int(self._call_start[at]) if at > 0 else -FOREVER

    def after(self, time: int, blocks: int) -> int:
        """The time by which about this many more blocks of calls had been made; FOREVER after the last of them."""
        here, width = self._at(time)
        following = int(np.searchsorted(self._call_start, time))
        end = int(np.searchsorted(self._call_start, self._call_until[here].max(initial=time)))
        at = min(end, following + 2 * width) + blocks * width + 1
        return int(self._call_start[at]) if at < len(self._call_start) else FOREVER

    def excerpt(
        self, spans: Sequence[tuple[int, int]], home: tuple[int, int] | None = None
    ) -> Excerpt:
        """The rows of some stretches of time (begin, end), which may overlap.  `home`: the excerpt answers for the blocks
        whose first rows lie in this stretch; a set of excerpts has homes that are disjoint and together hold all times.
        """
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(spans):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        found = Excerpt(tuple(merged), {})
        runs, mine = {}, {}
        for name, b in self.tables.items():
            at_home = (
                (b.filed >= home[0]) & (b.filed < home[1])
                if home
                else np.zeros(len(b.filed), dtype=bool)
            )
            runs[name] = b.runs(found.touches(b.start, b.end) | at_home)
            if home:
                mine[name] = b.take(at_home)
        return replace(found, runs=runs, home=mine, last_range_ns=self.last_range_ns)

    def corrected(self, observed: Sequence[Mapping[str, Blocks]]) -> Index:
        """The index with the true extents of the blocks that have been read."""
        tables = {}
        for name, blocks in self.tables.items():
            start, end = blocks.start.copy(), blocks.end.copy()
            for found in (o[name] for o in observed if name in o):
                at = np.searchsorted(blocks.first, found.first)
                start[at], end[at] = found.start, found.end
            tables[name] = replace(blocks, start=start, end=end)
        return Index(tables, self.last_range_ns)

    def misses(self, excerpt: Excerpt) -> bool:
        """Whether rows of the excerpt's spans lie in blocks that it does not include."""
        for name, b in self.tables.items():
            read = np.zeros(len(b.first) + 1, np.int64)
            for low, high in excerpt.runs[name]:
                read[np.searchsorted(b.first, low)] += 1
                read[np.searchsorted(b.first, high, side="right")] -= 1
            if (excerpt.touches(b.start, b.end) & (np.cumsum(read)[:-1] == 0)).any():
                return True
        return False


def rows_at_most(path: Path) -> int:
    """Upper bound on an export's calls and operations, from the greatest row numbers: reads one page per table."""
    with open_readonly(path) as connection:
        source = Source(connection, path)
        ends = [source.row_numbers(t) for t in (schema.RUNTIME, *schema.OPERATION_TABLES)]
    return sum(last - first + 1 for first, last in ends)


def sampled(path: Path, block_rows: int = BLOCK_ROWS) -> Index:
    """Reads the first row of every block (for NVTX ranges, which nest, all rows).  `block_rows`: of the calls; other
    tables are cut into about as many blocks."""
    with open_readonly(path) as connection:
        source = Source(connection, path)
        first, last = source.row_numbers(schema.RUNTIME)
        count = -(-(last - first + 1) // block_rows)
        found = {table.name: _blocks(source, table, count, block_rows) for table in _TABLES}
        last_range_ns = _last_range(source)
    return Index(
        {name: blocks for name, blocks in found.items() if blocks is not None}, last_range_ns
    )


def _last_range(source: Source) -> int:
    """When the last range begins or ends, which is where ranges end that were never closed; 0 if there is none."""
    table = schema.NVTX
    if table.name not in source.tables:
        return 0
    times = [
        f'max("{column}")'
        for name in ("start_ns", "end_ns")
        if (column := source.column(table, name))
    ]
    row = source.connection.execute(
        f'select {", ".join(times)} from "{table.name}" where {table.where}'
    ).fetchone()
    return max((t for t in row if isinstance(t, int)), default=0)


class RangeEnds:
    """When NVTX ranges begin and end; those that were never closed end with the last one."""

    def __init__(self, path: Path, index: Index) -> None:
        with open_readonly(path) as connection:
            found = Source(connection, path).read(_RANGE_TIMES)
        self._row, self._start, end = (
            found[c].to_numpy() if found is not None else np.empty(0, np.int64)
            for c in ("row", "start_ns", "end_ns")
        )
        self._end = np.where(end < self._start, index.last_range_ns, end)

    def until(self, begin: int, end: int, but: np.ndarray) -> int:
        """When the last range that begins in [begin, end) has ended, `but` for some (rowids); -FOREVER if there is none."""
        here = (self._start >= begin) & (self._start < end)
        if len(but):
            here &= ~np.isin(self._row, but)
        return int(self._end[here].max(initial=-FOREVER))

    def longer(self, longer: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Rowids of the ranges that `longer` finds (positions, from starts and ends)."""
        return self._row[longer(self._start, self._end)]

    def spans(self, rows: np.ndarray) -> np.ndarray:
        """(start, end) of ranges by rowid (ascending): int64 array (ranges, 2)."""
        here = np.isin(self._row, rows)
        return np.stack([self._start[here], self._end[here]], axis=1)


_RANGE_TIMES = schema.NVTX._replace(
    fields=tuple(f for f in schema.NVTX.fields if f.name.endswith("_ns"))
)


def _blocks(source: Source, table: schema.Table, count: int, most: int) -> Blocks | None:
    """The blocks of a table; None if it is absent or small."""
    first, last = source.row_numbers(table)
    if last - first + 1 < min(_FEW_ROWS, 2 * most):
        return None
    block_rows = int(np.clip((last - first + 1) // max(count, 1), min(_LEAST, most), most))
    start, end = (f'"{source.column(table, name)}"' for name in ("start_ns", "end_ns"))
    low = np.arange(first, last + 1, block_rows, dtype=np.int64)
    high = np.append(low[1:] - 1, last)
    nested = table is schema.NVTX
    look = f"min({start}), max(coalesce({end}, {FOREVER}))" if nested else f"{start}, {end}"
    where = f" and {table.where}" if table.where else ""
    one = "" if nested else " order by rowid limit 1"
    sql = f'select {look} from "{table.name}" where rowid between ? and ?{where}{one}'
    rows = [
        source.connection.execute(sql, pair).fetchone() or (None, None)
        for pair in zip(low.tolist(), high.tolist(), strict=True)
    ]
    there = np.array([isinstance(row[0], int) for row in rows], dtype=bool)
    begin = np.array([row[0] for row, ok in zip(rows, there, strict=True) if ok], dtype=np.int64)
    if nested:
        over = np.array([row[1] for row, ok in zip(rows, there, strict=True) if ok], dtype=np.int64)
    else:  # until the next block begins; the last one may extend further
        over = np.append(np.maximum(begin[1:], begin[:-1]), FOREVER)
    return Blocks(low[there], high[there], begin, begin, over)
