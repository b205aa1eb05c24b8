"""From a trace and an event log to windows: the four stages, and what else was measured.

matched        which process, call and wait of the trace is which line of the log
on streams     the stream of each record: by event rows, else as the log numbers it, else by the work around it
bounded        what it met there, and between what it must lie; pairs that contradict this are refused
placed         each pair by the best that is known of it: its clock, its time stamps, the table of latencies
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.memory import trim_memory
from nsysalign.model import ORIGIN, Alignment, EventLog, Trace
from nsysalign.place.bounded import bound
from nsysalign.place.event_clock import event_clock
from nsysalign.place.host_timers import host_timers
from nsysalign.place.matched import match
from nsysalign.place.pairs import windows_of_pairs
from nsysalign.place.placed import place
from nsysalign.place.ranges import nvtx_windows
from nsysalign.place.streams import on_streams, streams_of


def align(trace: Trace, log: EventLog | None) -> Alignment:
    """Return everything that was measured, on the trace's clock: `windows` has a row for each measured interval (a pair
    of events, a host timer, an NVTX range), and `unaligned` what could not be placed, with the reason.

    log: what the probe wrote in the program; None if there is no log

    Without a log, or with one that does not say what the intervals are (it has no events, or those that only order streams and
    no timing by the host's clock), there are also the windows that the trace itself shows: NVTX ranges, and pairs of events that the program certainly compared.
    """
    known = log or EventLog.empty()
    logged = known.has_timings
    clock = event_clock(known)
    streams = streams_of(trace)
    # the pairs of the log: find its lines in the trace, then their streams, bounds and places
    knows_streams = logged or len(known.records) > 0  # those on which events were recorded
    matched = on_streams(trace, match(trace, known), streams, logged=knows_streams)
    bounded = bound(trace, matched, streams, on_clock=clock is not None, logged=logged)
    trim_memory()  # what the stages so far have freed
    placed = place(trace, known, matched, streams, bounded, clock)
    # what the log timed on the host's clock: a log without events may have that, too
    timers = host_timers(trace, known, matched)
    windows = [placed.windows, timers.windows]
    notes = [*matched.notes, *placed.notes, *timers.notes]
    # ranges around the timings of a host timer would say the same twice
    logged = logged or (knows_streams and len(timers.windows) > 0)
    lanes = streams.lanes
    stream_sets: Mapping[
        int, np.ndarray
    ] = {}  # lane -> the lanes of the streams that it stands for
    if not logged:
        # what the trace itself measured
        of_ranges = nvtx_windows(trace, streams.operation_lane, lanes)
        lanes = of_ranges.lanes
        stream_sets = of_ranges.stream_sets
        pairs, notes_on_pairs = windows_of_pairs(trace, matched.records, bounded, placed)
        # a region of the log is an NVTX range of the trace as well: one window for it is enough
        timed_regions = set(timers.windows["region"]) - {""}
        is_timed = of_ranges.windows["region"].isin(list(timed_regions))
        windows += [pairs, of_ranges.windows[~is_timed]]
        notes += [*of_ranges.notes, *notes_on_pairs]
    # each set of streams is one more lane, behind those of streams: no operation runs on the set itself
    busy = np.append(streams.busy, np.zeros(len(stream_sets), bool))
    unaligned = _joined([bounded.unaligned.assign(origin=ORIGIN["pair"]), timers.unplaced])
    return Alignment(
        records=placed.records,
        lanes=lanes,
        operation_lane=streams.operation_lane,
        wait_calls=matched.waits[["call", "lane", "record", "inferred"]],
        windows=_joined(windows),
        unaligned=frames.check(unaligned.reset_index(drop=True), frames.UNPLACED),
        notes=tuple(notes),
        clock_maps=matched.clocks,
        processes=matched.processes,
        clock=clock,
        busy=busy,
        stream_sets=stream_sets,
        logged=logged,
    )


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all tables in one.  Empty ones are left out, because pandas 2 warns of them."""
    filled = [table for table in tables if len(table)] or tables[:1]
    return pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]
