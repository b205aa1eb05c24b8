"""Stage 3, bounded: what surrounds a record on its stream, and between what it must lie whatever the
latencies are.

    issued (host)    [op A]   [record R]      [op B]
    runs (stream)             AAAAAAAA  R     BBBBBBB
                                     ^ previous end  ^ next start

For bounds that can never be wrong, calls of other threads that overlap the record's call are on
neither side.  What is ordered after a wait on R bounds it as well, but hardly ever more narrowly: it
moved no place and no error bar of 15,757 pairs.  A compared pair is subject to the bounds of both
records: t(end) - t(start) = elapsed, within the clocks' slack.

After it is known which pairs can be placed, and why the others can not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, Columns, any_between, distinct, pick
from nsysalign.model import CALL, KIND, Trace
from nsysalign.place.matched import Matched
from nsysalign.place.streams import LaneOperations, Streams, in_legacy_order, stream_lane

TICK_NS = 32  # the event clock of an H200 ticks every 32 ns
#: CUPTI corrects its clock from time to time: in the recordings, GPU timestamps and elapsed_time
#: differ by up to 6 us.
CLOCK_STEP_NS = 8_000
#: elapsed_time counts ticks of the GPU's own clock, the trace those of the host: their rates differ
#: by parts per million.
CLOCK_RATE = 20e-6
#: Bounds that cross by less than this are the two clocks' disagreement, not a contradiction.
CROSSING_NS = 2_000
#: CUDA_MEMCPY_KIND: host to device, and back.
_HOST_COPIES = (1, 2)


@dataclass(frozen=True)
class Bounded:
    """`around`: the neighbours of `Matched.records` on their streams; `lower`, `upper`: their own
    bounds; `stamped`: which have a CUPTI timestamp; `pairs`: rows of `Matched.pairs` that can be
    placed; `unaligned`: the others, with name, site and reason."""

    around: pd.DataFrame
    lower: np.ndarray
    upper: np.ndarray
    stamped: np.ndarray
    pairs: pd.DataFrame
    unaligned: pd.DataFrame


def bound(
    trace: Trace, matched: Matched, streams: Streams, *, on_clock: bool, logged: bool
) -> Bounded:
    """Bounds of every record.  `on_clock`: the events' own stamps are known, so CUPTI's, which may
    be late, are not used as lower bounds.  Records that were not `logged` are in the order of the
    legacy default stream, too (lengths that elapsed_time told need no such help)."""
    records, pairs = matched.records, matched.pairs
    lane = records["lane"].to_numpy()
    per_lane = streams.per_lane
    if not logged:
        per_lane = in_legacy_order(trace, streams, np.unique(lane[lane >= 0]))
    around = neighbours(trace, per_lane, records)
    known = records["call"].to_numpy() >= 0
    begun, stamp = records["call_start_ns"].to_numpy(), records["timestamp_ns"].to_numpy()
    lower = np.maximum(begun, around["safe_previous_end_ns"].to_numpy())
    lower = np.where((stamp > 0) & (not on_clock), stamp - TICK_NS, np.where(known, lower, 0))
    upper = np.minimum(around["safe_next_start_ns"].to_numpy(), matched.asked_ns)
    upper = np.minimum(upper, waited_for(trace, streams.lanes, records))
    upper = np.where(stamp > 0, stamp + TICK_NS, np.where(known, upper, FAR))

    problem = records["problem"].to_numpy(dtype=object)
    start, end = (pairs[c].to_numpy() for c in ("start", "end"))
    reason = np.where(problem[start] != "", problem[start], problem[end])
    nowhere = (reason == "") & ((lane[start] < 0) | (lane[end] < 0))
    reason[nowhere] = "the trace does not say which stream it is on"
    low, high = of_starts(lower, upper, pairs)
    reason[(reason == "") & (low > high + CROSSING_NS)] = (
        "elapsed_time contradicts the trace: its neighbours leave no place for it (a wrong stream, rows dropped, "
        "or a log of another run)"
    )
    told = (reason != "") & ~pairs["calibration"].to_numpy(dtype=bool)
    refused = pd.concat([matched.unaligned, pairs[told].assign(reason=reason[told])])
    site = np.append(records["site"].to_numpy(dtype=object), "")  # -1: a record that was not seen
    seen = np.where(refused["start"] >= 0, refused["start"], refused["end"])
    refused["site"] = np.where(seen >= 0, site[seen], refused["site"])
    refused["name"] = [row.region or row.site or "unnamed" for row in refused.itertuples()]
    placeable = frames.taken(pairs, reason == "")
    return Bounded(around, lower, upper, stamp > 0, placeable, refused)


def of_starts(
    lower: np.ndarray, upper: np.ndarray, pairs: pd.DataFrame, slack: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the starts of pairs from those of both records.  `slack`: how far their distance on
    the trace may be from elapsed_time; one tick, a float32 ulp and clock corrections if not given."""
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    if slack is None:
        ulp = np.spacing((np.maximum(elapsed, 1) / 1e6).astype(np.float32)).astype(float) * 1e6
        slack = np.ceil(TICK_NS + ulp + CLOCK_STEP_NS + CLOCK_RATE * elapsed).astype(np.int64)
    low = np.maximum(lower[start], lower[end] - elapsed - slack)
    return low, np.minimum(upper[start], np.minimum(upper[end], FAR) - elapsed + slack)


def waited_for(trace: Trace, lanes: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Per record when the host knew that it was done: the end of the first successful wait for the
    device, its stream, or its event (or query of that, before it is recorded again) that began after
    its call had returned; FAR for none.  `records`: columns call, call_end_ns, process, lane, event."""
    calls, syncs = trace.calls, trace.syncs
    kind, begun, ended = (calls[c].to_numpy() for c in ("kind", "start_ns", "end_ns"))
    device = np.flatnonzero(kind == CALL["sync_device"])
    of_device = pd.DataFrame({"call": device, "event": -1, "lane": -1})
    of_row = syncs[["call", "event"]].assign(lane=stream_lane(lanes, syncs))
    waits = pd.concat([of_device, of_row]).astype("int64")
    waits = waits[calls["return_value"].to_numpy()[waits["call"]] == 0]
    waits = waits.assign(time=begun[waits["call"]]).sort_values("time", kind="stable")
    asked = records[["lane", "event"]].assign(time=records["call_end_ns"])
    asked = asked[records["call"] >= 0].astype("int64").sort_values("time", kind="stable")
    process = calls["process"].to_numpy()[waits["call"]]
    out = np.full(len(records), FAR)
    for number in distinct(
        process
    ).tolist():  # each by itself: keys of two columns take much memory
        own, made = waits[process == number], asked[records["process"][asked.index] == number]
        for kinds, by in (
            (["sync_device"], None),
            (["sync_stream"], "lane"),
            (["sync_event", "query_event"], "event"),
        ):
            left, right = made, own[np.isin(kind[own["call"]], [CALL[k] for k in kinds])]
            if by:
                left, right = (rows[rows[by] >= 0] for rows in (left, right))
            columns = ["time", by] if by else ["time"]
            first = pd.merge_asof(
                left[columns], right[[*columns, "call"]], on="time", by=by, direction="forward"
            )["call"]
            first = first.set_axis(left.index).dropna().astype("int64")
            if by == "event":  # once recorded again, it says nothing of this record
                again = left.groupby("event")["time"].shift(-1, fill_value=FAR)
                first = first[begun[first] < again[first.index]]
            out[first.index] = np.minimum(out[first.index], ended[first])
    return out


def neighbours(
    trace: Trace, per_lane: dict[int, LaneOperations], records: pd.DataFrame
) -> pd.DataFrame:
    """For records with columns lane and call; one row each:

    previous_end_ns, previous_kind   end and kind of the last-ending operation issued before (0 / -1)
    previous_position                its position in `operations`, -1 for none
    safe_previous_end_ns             the same, over operations whose call had returned before the
                                     record's call
    next_start_ns                    first start among the operations issued after (FAR: none)
    safe_next_start_ns               the same, over operations whose call began after the record's call
                                     had returned
    next_issued_ns, next_kind        end of the call and kind of the operation issued next (FAR / -1)
    before                           operations of the lane issued before
    """
    lane, call = records["lane"].to_numpy(), records["call"].to_numpy()
    none = {"previous_end_ns": 0, "previous_kind": -1, "previous_position": -1,
            "safe_previous_end_ns": 0, "next_start_ns": FAR, "safe_next_start_ns": FAR,
            "next_issued_ns": FAR, "next_kind": -1, "before": 0}  # fmt: skip
    out = {name: np.full(len(records), value, np.int64) for name, value in none.items()}
    kind = trace.operations["kind"].to_numpy()
    call_start, call_end = trace.calls["start_ns"].to_numpy(), trace.calls["end_ns"].to_numpy()
    for number, ops in per_lane.items():
        here = np.flatnonzero((lane == number) & (call >= 0))
        if not len(here):
            continue
        begin, end = call_start[call[here]], call_end[call[here]]
        times, reach = ops.times, ops.times.reach_ns
        before = np.searchsorted(times.issue_ns, begin)
        out["before"][here] = before
        some, last = here[before > 0], before[before > 0] - 1
        farthest = ops.position[np.searchsorted(reach, reach[last])]
        out["previous_end_ns"][some] = reach[last]
        out["previous_position"][some] = farthest
        out["previous_kind"][some] = kind[farthest]
        first = np.minimum.accumulate(times.start_ns[::-1])[::-1]
        some, after = here[before < len(first)], before[before < len(first)]
        out["next_start_ns"][some] = first[after]
        out["next_issued_ns"][some] = times.issued_ns[after]
        out["next_kind"][some] = kind[ops.position[after]]
        order = np.argsort(times.issued_ns, kind="stable")
        safe = np.searchsorted(times.issued_ns[order], begin, side="right")
        reach = np.maximum.accumulate(times.end_ns[order])
        out["safe_previous_end_ns"][here[safe > 0]] = reach[safe[safe > 0] - 1]
        safe = np.searchsorted(times.issue_ns, end)
        some = safe < len(first)
        out["safe_next_start_ns"][here[some]] = first[safe[some]]
    lean = {name: frames.narrow(values, name) for name, values in out.items()}
    return pd.DataFrame(lean, index=range(len(records)), copy=False)


@dataclass(frozen=True)
class Surroundings(Columns):
    """Per record (arrays of equal length); times in trace ns, 0 / FAR if there is none."""

    call_start: np.ndarray
    call_end: np.ndarray
    previous_end: np.ndarray
    previous_is_copy: np.ndarray
    previous_is_graph: np.ndarray
    previous_is_node: np.ndarray  # of a graph that was traced node by node
    copying: np.ndarray  # a copy to or from the host is under way on another stream
    behind: np.ndarray  # records of this stream between the previous operation and this one
    next_start: np.ndarray
    next_issued: np.ndarray
    next_is_kernel: np.ndarray
    ahead: np.ndarray  # records of this stream between this one and the next operation
    waits: np.ndarray  # a wait or host function lies between the previous operation and the record
    held: np.ndarray  # a stream wait lies between the record and the next operation
    stamp: np.ndarray  # CUPTI's timestamp


def surroundings(
    trace: Trace, streams: Streams, matched: Matched, around: pd.DataFrame
) -> Surroundings:
    """Surroundings of every record."""
    records, waits = matched.records, matched.waits
    call_start, lane = records["call_start_ns"].to_numpy(), records["lane"].to_numpy()
    next_issued = around["next_issued_ns"].to_numpy()
    key = pd.DataFrame({"lane": lane, "before": around["before"], "issued": call_start})
    places = key.sort_values([*key], kind="stable").groupby(["lane", "before"], sort=False)
    behind, ahead = (
        places.cumcount(ascending=way).reindex(key.index).to_numpy() for way in (True, False)
    )
    previous_kind = around["previous_kind"].to_numpy()
    previous = around["previous_position"].to_numpy()
    issue, operation_call = trace.calls["start_ns"].to_numpy(), trace.operations["call"].to_numpy()
    since = pick(issue, pick(operation_call, previous, -1), -1)
    waits = waits[waits["lane"] >= 0]
    of_wait, waiting = waits["lane"].to_numpy(), issue[waits["call"].to_numpy()]
    # of a host function the trace names no stream: it may hold any record of its process
    hosted = np.flatnonzero(trace.calls["kind"].to_numpy() == CALL["host_function"])
    hosting, process = trace.calls["process"].to_numpy()[hosted], records["process"].to_numpy()
    waited = any_between(of_wait, waiting, lane, since, call_start)
    waited |= any_between(hosting, issue[hosted], process, since, call_start)
    return Surroundings(
        call_start=call_start,
        call_end=records["call_end_ns"].to_numpy(),
        previous_end=around["previous_end_ns"].to_numpy(),
        previous_is_copy=np.isin(previous_kind, [KIND["memcpy"], KIND["memset"]]),
        previous_is_graph=previous_kind == KIND["graph"],
        previous_is_node=pick(trace.operations["graph_node"].to_numpy(), previous, -1) >= 0,
        copying=_copying(trace, streams, lane, call_start),
        behind=np.where(lane >= 0, behind, 0),
        next_start=around["next_start_ns"].to_numpy(),
        next_issued=next_issued,
        next_is_kernel=around["next_kind"].to_numpy() == KIND["kernel"],
        ahead=np.where(lane >= 0, ahead, 0),
        waits=waited,
        held=any_between(of_wait, waiting, lane, call_start, next_issued),
        stamp=records["timestamp_ns"].to_numpy(),
    )


def _copying(trace: Trace, streams: Streams, lane: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
    """Whether a copy to or from the host on another stream of the device was issued before a time
    and had not ended: those of the device, less those of its own stream."""
    operations, issue = trace.operations, trace.calls["start_ns"].to_numpy()
    host = (operations["kind"].to_numpy() == KIND["memcpy"]) & (
        np.isin(operations["copy_kind"], _HOST_COPIES)
    )
    copy = np.flatnonzero(host & (operations["call"].to_numpy() >= 0))
    on, device = streams.operation_lane[copy], streams.lanes["device"].to_numpy()
    begin, end = issue[operations["call"].to_numpy()[copy]], operations["end_ns"].to_numpy()[copy]
    out = np.zeros(len(lane), dtype=np.int64)
    of_record = pick(device, lane, -2)
    for copies, records, sign in ((device[on], of_record, 1), (on, lane, -1)):
        for number in np.intersect1d(copies, records):
            these, here = copies == number, np.flatnonzero(records == number)
            begun = np.searchsorted(np.sort(begin[these]), time_ns[here], side="right")
            ended = np.searchsorted(np.sort(end[these]), time_ns[here], side="right")
            out[here] += sign * (begun - ended)
    return out > 0
