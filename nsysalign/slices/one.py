"""One slice of a trace, or all of a short one: read, aligned, attributed.  Runs in this process or in another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign.effort import trim_memory
from nsysalign.errors import NsysAlignError
from nsysalign.model import ORIGIN, Alignment, EventLog, PartialResult, Trace
from nsysalign.place.context import Seen, TraceContext, look
from nsysalign.place.inferred import Marks, pairs_in
from nsysalign.place.solve import align
from nsysalign.place.streams import build_lanes, busy_lanes
from nsysalign.slices.far import blind, is_far, ranges_in, too_narrow, with_parts
from nsysalign.slices.timed_log import Stretch
from nsysalign.split.budget import Budgets, attribute
from nsysalign.split.partial import partial_result
from nsysalign.split.run_windows import with_runs
from nsysalign.trace import fast
from nsysalign.trace.index import FOREVER, Blocks, Excerpt
from nsysalign.trace.read import read_trace


@dataclass(frozen=True)
class Job:
    """A slice: the excerpt that shows it, the log's lines, and what is known of the whole trace."""

    path: Path
    excerpt: Excerpt
    stretch: Stretch
    context: TraceContext
    latency: dict[int, int]
    slice: tuple[int, int]  # begin and end of the time it is responsible for
    far: pd.DataFrame  # windows (WINDOWS) of which it splits what lies in it
    segments: bool = False  # whether those of all its intervals are wanted


@dataclass(frozen=True)
class Edges:
    """Of one slice.  `numbers`: process -> least and greatest number (correlation id) of the calls made in it; `late`: process,
    correlation and start_ns of operations that begin in it and were issued before it; `marks` of the records in it; `pairs`
    (PAIRED) that begin in it, as far as the slice knows; `doubtful`: threads of which it saw a record, but no work before or after
    it, which says on which stream it is."""

    numbers: dict[int, tuple[int, int]]
    late: pd.DataFrame
    marks: Marks
    pairs: pd.DataFrame
    doubtful: frozenset[int]


@dataclass(frozen=True)
class Done:
    """The results of a slice, and the processes and streams in it."""

    portion: PartialResult
    busy: np.ndarray  # on which of the given lanes work ran
    lost: dict[str, int]
    blocks: Mapping[str, Blocks]  # where the rows that the slice is responsible for really lie
    seen: Seen
    ranges: pd.DataFrame  # `far.ranges_in`
    edges: Edges | None = None  # without a log


@dataclass(frozen=True)
class Narrow:
    """The excerpt does not show all that its intervals depend on: something was issued before, or ends after it.  `of_part`: only
    one that is too long to be read misses something."""

    blocks: Mapping[str, Blocks]
    of_part: bool = False


@dataclass(frozen=True)
class Unseen:
    """Streams or processes that were not known before."""

    lanes: pd.DataFrame
    blocks: Mapping[str, Blocks]
    seen: Seen


def read_ahead(path: Path, excerpt: Excerpt) -> None:
    """Read in advance what this process will probably need first, while it has nothing else to do."""
    fast.available()
    with suppress(NsysAlignError):  # the error is reported when the data is needed
        _read[_key(path, excerpt)] = read_trace(path, excerpt)


_read: dict[tuple, Trace] = {}


def _key(path: Path, excerpt: Excerpt) -> tuple:
    return (str(path), excerpt.spans, tuple(sorted(excerpt.runs.items())))


@dataclass(frozen=True)
class InMemory:
    """The data of a trace that is one slice, kept in memory: pictures are drawn from it."""

    portion: PartialResult
    alignment: Alignment
    budgets: Budgets


def whole_trace(trace: Trace, log: EventLog | None, placed: Callable[[], None]) -> InMemory:
    """Place and split all intervals of a trace that is one slice: what a survey would provide is determined on the fly.
    `placed` is called when alignment is done."""
    alignment = align(trace, log)
    trim_memory()
    placed()
    alignment = with_runs(trace, alignment)
    budgets = attribute(trace, alignment)
    trim_memory()
    return InMemory(partial_result(trace, alignment, budgets, log), alignment, budgets)


def work(job: Job) -> Done | Narrow | Unseen:
    """Place and split the intervals of a slice."""
    trace = _read.pop(_key(job.path, job.excerpt), None)
    if trace is None:
        _read.clear()  # what was read but not needed
        trace = read_trace(job.path, job.excerpt)
    lanes, operation_lane = build_lanes(trace, job.context.lanes)
    if (operation_lane < 0).any():
        return Unseen(build_lanes(trace)[0], trace.blocks, look(trace))
    every = align(trace, job.stretch.log, job.context, job.stretch.timers)
    alignment = own(every, job.stretch, job.slice)
    if narrow(trace, alignment, job.excerpt):
        return Narrow(trace.blocks)
    edges = None
    if job.context.from_trace is not None:
        edges = _edges(trace, alignment, job.slice, job.excerpt.spans[0])
    alignment = with_parts(alignment, job.far, job.slice)
    if blind(trace, alignment, job.excerpt):
        return Narrow(trace.blocks, of_part=True)
    alignment = with_runs(trace, alignment, job.slice)
    budgets = attribute(trace, alignment, job.latency)
    found = partial_result(trace, alignment, budgets, job.stretch.log, job.slice)
    if job.segments:
        found = replace(found, segments=budgets.segments(np.arange(len(alignment.windows))))
    busy, ranges = (
        busy_lanes(lanes, operation_lane),
        ranges_in(trace, every.windows, job.stretch.far),
    )
    return Done(found, busy, dict(trace.lost), trace.blocks, look(trace), ranges, edges)


def _edges(
    trace: Trace, alignment: Alignment, slice_: tuple[int, int], read: tuple[int, int]
) -> Edges:
    """Of a slice [begin, end), whose own windows are those of the alignment, and around which this much was `read`."""
    begin, end = slice_
    calls, operations = trace.calls, trace.operations
    made, number = calls["start_ns"].to_numpy(), calls["correlation"].to_numpy()
    here = calls.loc[(made >= begin) & (made < end) & (number > 0), ["process", "correlation"]]
    numbers = here.groupby("process")["correlation"].agg(["min", "max"])
    start, call = operations["start_ns"].to_numpy(), operations["call"].to_numpy()
    late = (start >= begin) & (start < end) & ((call < 0) | (np.append(made, 0)[call] < begin))
    return Edges(
        {int(process): (int(low), int(high)) for process, low, high in numbers.itertuples()},
        operations.loc[late, ["process", "correlation", "start_ns"]],
        alignment.marks,
        by_thread(pairs_in(alignment.windows)),
        _doubtful(trace, alignment, slice_, read),
    )


def _doubtful(
    trace: Trace, alignment: Alignment, slice_: tuple[int, int], read: tuple[int, int]
) -> frozenset[int]:
    calls, records = trace.calls, alignment.records
    call = trace.operations["call"].to_numpy()
    issuing = call[call >= 0]
    issued = pd.Series(calls["start_ns"].to_numpy()[issuing]).groupby(
        calls["thread"].to_numpy()[issuing]
    )
    at, thread = records["call_start_ns"].to_numpy(), records["thread"].to_numpy()
    mine = (at >= slice_[0]) & (at < slice_[1])
    first, last = (bound.reindex(thread[mine]).to_numpy() for bound in (issued.min(), issued.max()))
    # nothing at all is NaN, which is neither before nor after
    doubt = ~(first < at[mine]) & (read[0] > -FOREVER) | ~(last > at[mine]) & (read[1] < FOREVER)
    return frozenset(thread[mine][doubt].tolist())


def by_thread(pairs: pd.DataFrame) -> pd.DataFrame:
    """Pairs in an order in which they can be compared."""
    return pairs.sort_values(["thread", "lane", "open_ns"], ignore_index=True)


def own(alignment: Alignment, stretch: Stretch, slice_: tuple[int, int]) -> Alignment:
    """Sets aside the windows at the edges, which belong to other slices and serve for reference only."""

    def mine(table: pd.DataFrame) -> np.ndarray:
        origin, source = table["origin"].to_numpy(), table["source"].to_numpy()
        keep = (origin == ORIGIN["pair"]) & np.isin(source, stretch.pairs)
        keep |= (origin == ORIGIN["timer"]) & np.isin(source, stretch.timed)
        return keep | (
            np.isin(origin, [ORIGIN["host"], ORIGIN["region"]]) & np.isin(source, stretch.hosts)
        )

    windows, unaligned = alignment.windows, alignment.unaligned
    own_windows, opened = mine(windows), windows["open_ns"].to_numpy()
    of_trace = np.isin(windows["origin"].to_numpy(), [ORIGIN["records"], ORIGIN["range"]])
    own_windows |= (
        of_trace & (opened >= slice_[0]) & (opened < slice_[1]) & ~is_far(windows, stretch.far)
    )
    return replace(
        alignment,
        windows=windows[own_windows].reset_index(drop=True),
        around=windows[~own_windows].reset_index(drop=True),
        unaligned=unaligned[mine(unaligned)].reset_index(drop=True),
    )


def narrow(trace: Trace, alignment: Alignment, excerpt: Excerpt) -> bool:
    """Whether an interval reaches the end of the excerpt, or an operation in one was issued before its beginning."""
    return too_narrow(
        trace,
        excerpt,
        *(alignment.windows[c].to_numpy() for c in ("open_ns", "start_ns", "end_ns")),
    )
