"""Intervals too long for a slice: their ends are placed first, then every slice splits what lies in it.

    slices        |        1        |        2        |        3        |
    interval          [--------------------------------------)
    placed from   [ its begin ]                    [ its end ]            two short stretches, read together
    split in          [ part 1      |     part 2      | part )            added up in `attribute.put_together`

The ends of an NVTX range are those of its first and last operation, wherever these ran: what its own two ends show is a guess,
which the slices confirm, or correct and are then asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.issue import FAR
from nsysalign.model import ORIGIN, Alignment, PartialResult, Trace
from nsysalign.place.context import FromTrace, TraceContext
from nsysalign.place.projected_ranges import on_stream
from nsysalign.place.solve import align
from nsysalign.slices.pool import WorkerPool
from nsysalign.slices.survey import Survey
from nsysalign.slices.timed_log import Far, Stretch
from nsysalign.split.run_windows import extent
from nsysalign.trace.index import FOREVER, Excerpt, Index
from nsysalign.trace.read import read_trace

#: Blocks of calls around each end, attempt by attempt.
_MARGINS = (1, 4, 16, 64)
#: An interval that ends closer than this to the end of what was read could have been cut.
_GUARD_NS = 100_000
#: Ends are placed together as long as that reads about this many blocks of calls.
_BLOCKS = 64


@dataclass(frozen=True)
class Placed:
    """Windows (WINDOWS) of what is far, whole; those without a place, with the reason; see `ranges_in`."""

    windows: pd.DataFrame
    unaligned: pd.DataFrame
    ranges: pd.DataFrame


@dataclass(frozen=True)
class _Ends:
    path: Path
    excerpt: Excerpt
    stretch: Stretch
    context: TraceContext


def place(path: Path, index: Index, known: Survey, pool: WorkerPool) -> Placed | None:
    """The windows of what is far.  None if the neighbourhood of their ends does not tell where these lie."""
    far = known.timed.far
    spans = known.timed.spans(far)
    left = np.arange(len(spans))
    found: list[Placed] = []
    for margin in _MARGINS:
        lots = _lots(index, spans, left, margin)
        jobs = [_ends(path, index, known, spans[lot], margin) for lot in lots]
        results = pool.map(_placed, [partial(_Ends, *job) for job in jobs], _silent)
        found += [result for result in results if result is not None]
        left = np.concatenate(
            [lot for lot, r in zip(lots, results, strict=True) if r is None] or [left[:0]]
        )
        if not len(left):
            break
    if len(left):
        return None
    windows = pd.concat([f.windows for f in found], ignore_index=True)
    windows = windows.drop_duplicates(["origin", "source", "thread", "end_lane", "open_ns"])
    unaligned = pd.concat([f.unaligned for f in found], ignore_index=True)
    unaligned = unaligned.drop_duplicates(["origin", "source"])
    ranges = pd.concat([f.ranges for f in found], ignore_index=True)
    placed = Placed(windows.reset_index(drop=True), unaligned.reset_index(drop=True), ranges)
    return placed if _complete(known, far, placed) else None


def _silent(done: int) -> None:
    """Nobody is told: this takes no time."""


def _complete(known: Survey, far: Far, placed: Placed) -> bool:
    """Whether everything has a window, or a reason to have none."""
    log = known.timed.log
    pairs = far.pairs[~log.elapsed["calibration"].to_numpy(dtype=bool)[far.pairs]]
    wanted = [
        *((ORIGIN["pair"], n) for n in log.elapsed.index.to_numpy()[pairs].tolist()),
        *((ORIGIN["timer"], n) for n in known.timed.timers.candidates.number[far.timed].tolist()),
    ]
    have = {
        (origin, source)
        for table in (placed.windows, placed.unaligned)
        for origin, source in zip(table["origin"].tolist(), table["source"].tolist(), strict=True)
    }
    hosts = log.hosts.index.to_numpy()[far.hosts].tolist()
    return (
        all(one in have for one in wanted)
        and all((ORIGIN["host"], n) in have or (ORIGIN["region"], n) in have for n in hosts)
        and (log.hosts["tid"].to_numpy()[far.hosts] >= 0).all()  # else it is the busiest thread's
        and int((placed.windows["origin"] == ORIGIN["records"]).sum()) == len(far.paired)
    )


def _lots(index: Index, spans: np.ndarray, which: np.ndarray, margin: int) -> list[np.ndarray]:
    """What is placed together: as many as share few blocks of calls."""
    lots: list[np.ndarray] = []
    blocks: set[int] = set()
    first = 0
    order = which[np.lexsort((spans[which, 0], spans[which, 1]))]
    for n, at in enumerate(np.searchsorted(index.call_starts, spans[order]).tolist()):
        more = {block + k for block in at for k in range(-margin - 2, margin + 3)}
        if n > first and len(blocks | more) > _BLOCKS:
            lots.append(order[first:n])
            first, blocks = n, set()
        blocks |= more
    return [*lots, order[first:]] if len(order) else lots


def _ends(path: Path, index: Index, known: Survey, spans: np.ndarray, margin: int) -> tuple:
    """What _Ends holds."""
    around = [(index.before(t, margin), index.after(t, margin)) for t in spans.ravel().tolist()]
    excerpt = index.excerpt(around)
    stretch, context = known.timed.stretch(excerpt, 0, 0), known.context
    if stretch.log is not None:
        context = context.about(stretch.log)
    if known.timed.ranges is not None:
        context = replace(context, from_trace=FromTrace((0, 0), known.timed.far.paired))
    return path, excerpt, stretch, context


def _placed(job: _Ends) -> Placed | None:
    """Places what has both ends in an excerpt; None if the excerpt is too narrow."""
    trace = read_trace(job.path, job.excerpt)
    alignment = align(trace, job.stretch.log, job.context, job.stretch.timers)
    far, excerpt = job.stretch.far, job.excerpt
    windows = alignment.windows[is_far(alignment.windows, far)].reset_index(drop=True)
    inside = excerpt.touches(windows["open_ns"].to_numpy(), windows["open_ns"].to_numpy())
    inside &= excerpt.touches(windows["close_ns"].to_numpy(), windows["close_ns"].to_numpy())
    windows = windows[inside].reset_index(drop=True)
    measured = windows[(windows["origin"] != ORIGIN["range"]).to_numpy()]
    opened, start, closed, end = (
        measured[c].to_numpy() for c in ("open_ns", "start_ns", "close_ns", "end_ns")
    )
    for made, at in ((opened, start), (closed, end)):
        if too_narrow(trace, excerpt, made, np.minimum(made, at), np.maximum(made, at)):
            return None
    unaligned = alignment.unaligned
    return Placed(
        windows[(windows["origin"] != ORIGIN["range"]).to_numpy()],
        unaligned[is_far(unaligned, far)],
        ranges_in(trace, alignment.windows, far),
    )


def is_far(table: pd.DataFrame, far: Far) -> np.ndarray:
    """Which windows (or rows without a place) are of what is far."""
    origin, source = table["origin"].to_numpy(), table["source"].to_numpy()
    out = np.zeros(len(table), dtype=bool)
    for names, numbers in (
        (("pair",), far.pairs),
        (("host", "region"), far.hosts),
        (("timer",), far.timed),
        (("range",), far.ranges),
    ):
        out |= np.isin(origin, [ORIGIN[name] for name in names]) & np.isin(source, numbers)
    if "thread" in table and len(far.paired):
        keys = ["thread", "open_ns", "close_ns"]
        paired = pd.MultiIndex.from_frame(table[keys].astype(np.int64)).isin(
            pd.MultiIndex.from_frame(far.paired[keys].astype(np.int64))
        )
        out |= (origin == ORIGIN["records"]) & paired
    return out


def ranges_in(trace: Trace, windows: pd.DataFrame, far: Far) -> pd.DataFrame:
    """What an excerpt shows of ranges that are far: windows as far as their work is seen, and the ranges' `text`."""
    mine = windows[
        (windows["origin"] == ORIGIN["range"]).to_numpy() & np.isin(windows["source"], far.ranges)
    ]
    text = trace.ranges.set_index("row")["text"].reindex(mine["source"]).to_numpy(dtype=object)
    return mine.assign(text=text)


def whole_ranges(seen: Sequence[pd.DataFrame], lanes: pd.DataFrame) -> pd.DataFrame:
    """Windows of far ranges, from what every excerpt showed of them."""
    table = pd.concat(seen, ignore_index=True)
    if table.empty:
        return frames.empty(frames.WINDOWS)
    groups = table.groupby(["source", "end_lane"], sort=True)
    out = groups.first().reset_index()
    start, end = groups["start_ns"].min().to_numpy(), groups["end_ns"].max().to_numpy()
    several = out.groupby("source")["end_lane"].transform("size").to_numpy() > 1
    stream = lanes["stream"].to_numpy()[out["end_lane"]].tolist()
    names = [on_stream(t, s, n) for t, s, n in zip(out["text"], several, stream, strict=True)]
    out = out.assign(
        start_ns=start,
        end_ns=end,
        start_lower_ns=start,
        start_upper_ns=start,
        elapsed_ns=end - start,
        region=names,
    )
    return frames.check(out, frames.WINDOWS)


def with_parts(alignment: Alignment, windows: pd.DataFrame, slice_: tuple[int, int]) -> Alignment:
    """The alignment of a slice with what it splits of far windows."""
    if windows.empty:
        return alignment
    records = alignment.records
    known = np.flatnonzero(records["call"].to_numpy() >= 0)
    keys = pd.MultiIndex.from_arrays(
        [records[c].to_numpy()[known] for c in ("thread", "call_start_ns")]
    )
    once = ~keys.duplicated()
    known, keys = np.append(known[once], -1), keys[once]
    event = (windows["kind"] == "event").to_numpy()
    ends = {
        end: np.where(
            event,
            known[keys.get_indexer(pd.MultiIndex.from_arrays([windows[c].to_numpy() for c in at]))],
            -1,
        )
        for end, at in (("start", ("thread", "open_ns")), ("end", ("end_thread", "close_ns")))
    }
    every = pd.concat([alignment.windows, windows.assign(**ends)], ignore_index=True)
    part = np.append(
        np.zeros(len(alignment.windows), dtype=bool), np.ones(len(windows), dtype=bool)
    )
    return replace(
        alignment, windows=frames.check(every, frames.WINDOWS), part=part, stretch=slice_
    )


def blind(trace: Trace, alignment: Alignment, excerpt: Excerpt) -> bool:
    """Whether the excerpt lacks what a part's idle time at the slice's edges depends on: the operation before, and what follows."""
    if alignment.part is None:
        return False
    w, (start, end) = alignment.windows, extent(alignment)
    low, high = excerpt.spans[0][0], excerpt.spans[-1][1]
    on = alignment.part & (start < end)
    if too_narrow(trace, excerpt, start[on], start[on], end[on]):
        return True
    opened, closed, lane, close, record, kind = (
        w[c].to_numpy() for c in ("start_ns", "end_ns", "end_lane", "close_ns", "end", "kind")
    )
    begun, over, call = (trace.operations[c].to_numpy() for c in ("start_ns", "end_ns", "call"))
    issue = np.append(trace.calls["start_ns"].to_numpy(), -FAR)[call]
    for number in np.unique(lane[on & (kind != "host")]).tolist():
        mine = np.flatnonzero(alignment.operation_lane == number)
        for at in np.flatnonzero(on & (kind != "host") & (lane == number)).tolist():
            if start[at] > opened[at] and low > -FOREVER and not (begun[mine] < start[at]).any():
                return True
            after = mine[over[mine] > end[at]]
            if end[at] < closed[at] and not len(after) and high < FOREVER:
                return True
            # without work that was issued before the end record, that record is what the stream waits for
            if kind[at] == "event" and record[at] < 0 and not (issue[after] < close[at]).any():
                return True
    return False


def far_intervals(p: PartialResult) -> np.ndarray:
    """Intervals too long to be read again: what is known of them was added up from slices."""
    return np.flatnonzero(
        p.rows["part"].to_numpy(dtype=bool) & (p.rows["kind"] != "run").to_numpy()
    )


def too_long(count: int) -> str:
    """A note on so many of them."""
    many = "1 interval is" if count == 1 else f"{count:,} intervals are"
    return (
        f"{many} too long to be read at once: sums, bounds and details are exact; a single call that takes most of one is not "
        "told from many; segments and a picture are made only if they are asked for (nsysalign report --interval NAME), with all "
        "of the interval in memory"
    )


def too_narrow(
    trace: Trace, excerpt: Excerpt, opened: np.ndarray, start: np.ndarray, end: np.ndarray
) -> bool:
    """Whether one of some intervals reaches the end of the excerpt, or an operation in one was issued before its beginning."""
    if not len(start):
        return False
    begins, ends = (np.array(edge, dtype=np.int64) for edge in zip(*excerpt.spans, strict=True))
    span = np.minimum(np.searchsorted(ends, opened), len(ends) - 1)
    if (end + _GUARD_NS > ends[span]).any():
        return True
    at = _issued_before(trace, begins, ends)
    if not len(at[0]):
        return False
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    before = np.searchsorted(start[order], at[1], side="right") - 1
    return bool(((before >= 0) & (reach[np.maximum(before, 0)] > at[0])).any())


def _issued_before(
    trace: Trace, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(start, end) of operations whose call is not there, and was made before their span: calls of a process are
    numbered as they are made."""
    operations, calls = trace.operations, trace.calls
    lost = np.flatnonzero(
        (operations["call"].to_numpy() < 0) & (operations["correlation"].to_numpy() >= 0)
    )
    start, end, process, number = (
        operations[c].to_numpy()[lost] for c in ("start_ns", "end_ns", "process", "correlation")
    )
    span = np.minimum(np.searchsorted(ends, start), len(ends) - 1)
    earlier = np.zeros(len(lost), dtype=bool)
    for one in np.unique(process):
        mine = np.flatnonzero(calls["process"].to_numpy() == one)
        made, numbers = (calls[c].to_numpy()[mine] for c in ("start_ns", "correlation"))
        first = np.searchsorted(made, begins)
        least = np.append(numbers, np.iinfo(np.int64).max)[first]  # of the first call in each span
        here = process == one
        earlier[here] = number[here] <= least[span[here]]
    earlier &= begins[span] > -FOREVER
    return start[earlier], end[earlier]
