"""Where a long trace is cut, and what is known about it as a whole.

    calls    |.......:.......|.......:.......|.......      cuts, about as many calls in each slice
    slice 2          [.. own ................. ]           its own intervals begin between two cuts
              [ margin ][                       ][ margin ]    what is read: some thousand calls more on either side, and to
                                                           the end of its longest interval

What an interval depends on lies near it: the operations before and after it on its streams, the calls that issued them
(a stream takes about a thousand launches before the host must wait), the records between.  Whether a slice saw enough is
checked afterwards (`one.narrow`), and if not it is read again with a larger margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import EventLog, TraceInfo
from nsysalign.place.context import Seen, TraceContext, look, together
from nsysalign.place.event_clock import event_clock
from nsysalign.place.host_clock import FROM_MARKS, ClockMap
from nsysalign.place.match import match_processes, process_clock
from nsysalign.place.solve import align, no_log, untold
from nsysalign.slices.timed_log import NOTHING_FAR, Far, TimedLog
from nsysalign.split.gaps import launch_latency
from nsysalign.trace.index import FOREVER, Index, RangeEnds
from nsysalign.trace.read import read_header, read_trace

#: Calls and operations of one slice: enough that the fixed cost of a slice does not matter, few enough that several fit into a
#: small machine.
SLICE_ROWS = 1_300_000
#: Blocks of calls that are read on either side of a slice, at first.
MARGIN_BLOCKS = 1
#: Intervals can be so long that slices overlap; the trace is read at most this many times over.
_MOST_READ = 1.5
#: How long records take is learned from this many stretches, spread over the run, with about this many pairs each, and at most
#: this many calls together.
_STRETCHES, _PAIRS_EACH, _SURVEYED = 5, 100, 1_300_000


@dataclass(frozen=True)
class Survey:
    """What is known about a trace as a whole."""

    info: TraceInfo
    context: TraceContext
    latency: dict[int, int]
    timed: TimedLog
    seen: Seen
    calibration: dict[str, Any]
    clock_maps: Mapping[int, ClockMap]
    notes: tuple[str, ...]  # on processes


def survey(
    path: Path, given: EventLog | None, index: Index, most_calls: int = _SURVEYED
) -> Survey | None:
    """Examine some stretches of a trace: its processes and streams, how its clocks relate, how long records and launches take.
    None if nothing connects its clock with the log's."""
    whole = (index.first_ns, index.last_ns)
    log = given if given is not None else no_log()
    ranges = RangeEnds(path, index) if untold(given) else None
    info, marks = read_header(path)
    rough = {}
    for number in range(len(log.headers)):
        clock = process_clock(log, number, marks, info)
        if clock is None:
            return None
        rough[number] = clock
    timed = TimedLog(given, {}, rough, whole, ranges)
    excerpt = index.excerpt(_spread(timed, index, most_calls // _STRETCHES))
    trace = read_trace(path, excerpt)
    seen = together([look(trace), Seen(frozenset(), frozenset(), *whole)])
    processes, notes = match_processes(seen, info.session_start_utc_ns, log)
    of_events = event_clock(log)
    alignment = align(
        trace, timed.stretch(excerpt, 0, 0).log, TraceContext(processes, {}, event_clock=of_events)
    )
    clocks = rough | dict(alignment.clock_maps)
    context = TraceContext(
        processes,
        {
            n: c
            for n, c in clocks.items()
            if n in processes and c.source == rough[n].source == FROM_MARKS
        },
        alignment.lanes,
        alignment.busy,
        alignment.model,
        of_events,
        alignment.event_lines,
    )
    timed = TimedLog(given, processes, clocks, whole, ranges)
    calibration, latency = dict(alignment.calibration), launch_latency(trace)
    return Survey(
        info, context, latency, timed, seen, calibration, alignment.clock_maps, tuple(notes)
    )


def amended(
    known: Survey, lanes: Sequence[pd.DataFrame], busy: np.ndarray | None, seen: Sequence[Seen]
) -> Survey:
    """The survey with streams and processes that only the slices revealed."""
    keys = ["process", "context", "stream"]
    every = pd.concat([known.context.lanes, *lanes], ignore_index=True)
    table = every.drop_duplicates(keys).sort_values(keys, ignore_index=True)
    assert known.context.lanes is not None  # the survey found them
    before = known.context.lanes.assign(busy=known.context.busy if busy is None else busy)
    was = table[keys].merge(before[[*keys, "busy"]], on=keys, how="left")["busy"]
    everybody = together([known.seen, *seen])
    processes, notes = match_processes(everybody, known.info.session_start_utc_ns, known.timed.log)
    context = replace(
        known.context,
        processes=processes,
        lanes=frames.check(table, frames.LANES),
        # streams that were not known before were seen because work ran on them
        busy=was.astype(object).where(was.notna(), True).to_numpy(dtype=bool),
    )
    timed = known.timed
    if processes != known.context.processes:
        timed = TimedLog(timed.given, processes, timed.clocks, timed.whole, timed.ranges)
    return replace(known, context=context, seen=everybody, timed=timed, notes=tuple(notes))


def parted(index: Index, count: int) -> list[tuple[int, int]]:
    """(begin, end) of about `count` slices, which together hold all times."""
    return list(pairwise([-FOREVER, *index.cuts(count), FOREVER]))


def cuts(timed: TimedLog, index: Index, count: int) -> tuple[list[tuple[int, int]], Far] | None:
    """The slices, and what is too long for them: if each of them would hold much of the trace, all that is longer than a quarter of
    one.  None if they would even without that."""
    slices = parted(index, count)
    if not too_much(index, _read(timed, index, slices)):
        return slices, NOTHING_FAR
    far = timed.longer_than(longest(index, slices), index)
    return None if too_much(index, _read(timed.without(far), index, slices)) else (slices, far)


def longest(index: Index, slices: Sequence[tuple[int, int]]) -> int:
    """While so many calls are made, an interval may last that is read with its slice, where some are too long.  Longer ones last much
    longer than pairs whose records are placed together (`align.fit`), so each is placed by itself in the whole as well."""
    return index.calls // (4 * len(slices))


def _read(
    timed: TimedLog, index: Index, slices: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    return [
        around(index, begin, timed.longest_until(begin, end), MARGIN_BLOCKS)
        for begin, end in slices
    ]


def too_much(index: Index, read: Sequence[tuple[int, int]]) -> bool:
    """Whether slices that read this much overlap so far that they are no slices any more."""
    calls = index.calls_at(np.array(read)).reshape(-1, 2)
    return bool((calls[:, 1] - calls[:, 0]).sum() > _MOST_READ * index.calls)


def around(index: Index, begin: int, end: int, margin: int) -> tuple[int, int]:
    """What is read for a slice whose longest interval ends at `end`: `margin` blocks of calls more on either side."""
    return index.before(max(begin, index.first_ns), margin), index.after(
        min(end, index.last_ns), margin
    )


def _spread(timed: TimedLog, index: Index, most_calls: int) -> list[tuple[int, int]]:
    """Stretches, evenly spread over the pairs that the program compared, or over the calls if there are none."""
    pairs = timed.pairs
    if not len(pairs):
        edges = [index.first_ns, *index.cuts(_STRETCHES)]
        return [(index.before(t, 0), index.after(t, 0)) for t in edges]
    spans = []
    firsts = np.unique(np.arange(_STRETCHES) * len(pairs) // _STRETCHES)
    for first, stop in zip(firsts.tolist(), [*firsts[1:].tolist(), len(pairs)], strict=True):
        mine = pairs[first : min(stop, first + _PAIRS_EACH)]
        begin, reach = int(timed.open_ns[mine[0]]), np.maximum.accumulate(timed.close_ns[mine])
        fit = index.calls_at(reach) - index.calls_at(np.array([begin])) <= most_calls
        spans.append(
            (index.before(begin, 0), index.after(int(reach[max(int(fit.sum()) - 1, 0)]), 0))
        )
    return spans
