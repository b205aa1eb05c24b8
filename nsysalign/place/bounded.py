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
from nsysalign.place.streams import LaneOperations, LaneTimes, Streams, in_legacy_order, stream_lane

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
    """`around`: the neighbours of `Matched.records` on their streams; `lower`, `upper`: the bounds of
    each record by itself; `stamped`: which have a CUPTI timestamp; `pairs`: rows of `Matched.pairs` that
    can be placed; `unaligned`: all other rows, with name, site and reason."""

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
    stamp = records["timestamp_ns"].to_numpy()
    begun = records["call_start_ns"].to_numpy()
    lower = np.maximum(begun, around["safe_previous_end_ns"].to_numpy())
    lower = np.where(known, lower, 0)
    upper = np.minimum(around["safe_next_start_ns"].to_numpy(), matched.asked_ns)
    upper = np.minimum(upper, waited_for(trace, streams.lanes, records))
    upper = np.where(known, upper, FAR)
    stamped = stamp > 0
    if not on_clock:
        lower = np.where(stamped, stamp - TICK_NS, lower)
    upper = np.where(stamped, stamp + TICK_NS, upper)
    reason = _reasons(records, pairs, lower, upper)
    placeable = frames.taken(pairs, reason == "")
    told = (reason != "") & ~pairs["calibration"].to_numpy(dtype=bool)
    refused = pd.concat([matched.unaligned, pairs[told].assign(reason=reason[told])])
    return Bounded(around, lower, upper, stamped, placeable, _named(refused, records))


def _reasons(
    records: pd.DataFrame, pairs: pd.DataFrame, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Why pairs cannot be placed, "" for those that can.  `lower`, `upper`: bounds of the records."""
    lane = records["lane"].to_numpy()
    problem = records["problem"].to_numpy(dtype=object)
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    reason = np.where(problem[start] != "", problem[start], problem[end])
    nowhere = (reason == "") & ((lane[start] < 0) | (lane[end] < 0))
    reason[nowhere] = "the trace does not say which stream it is on"
    low, high = of_starts(lower, upper, pairs)
    reason[(reason == "") & (low > high + CROSSING_NS)] = (
        "elapsed_time contradicts the trace: its neighbours leave no place for it (a wrong stream, rows dropped, "
        "or a log of another run)"
    )
    return reason


def _named(refused: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Pairs that have no place, with the site of the record that was seen, and a name."""
    site = np.append(records["site"].to_numpy(dtype=object), "")  # -1: a record that was not seen
    seen = np.where(refused["start"] >= 0, refused["start"], refused["end"])
    refused["site"] = np.where(seen >= 0, site[seen], refused["site"])
    refused["name"] = [row.region or row.site or "unnamed" for row in refused.itertuples()]
    return refused


def of_starts(
    lower: np.ndarray, upper: np.ndarray, pairs: pd.DataFrame, slack: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the starts of pairs from those of both records.  `slack`: how far their distance on
    the trace may be from elapsed_time; one tick, a float32 ulp and clock corrections if not given."""
    start = pairs["start"].to_numpy()
    end = pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    if slack is None:
        ulp = np.spacing((np.maximum(elapsed, 1) / 1e6).astype(np.float32)).astype(float) * 1e6
        slack = np.ceil(TICK_NS + ulp + CLOCK_STEP_NS + CLOCK_RATE * elapsed).astype(np.int64)
    low = np.maximum(lower[start], lower[end] - elapsed - slack)
    high = np.minimum(upper[start], np.minimum(upper[end], FAR) - elapsed + slack)
    return low, high


def waited_for(trace: Trace, lanes: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Per record when the host knew that it was done: the end of the first successful wait for the
    device, its stream, or its event (or query of that, before it is recorded again) that began after
    its call had returned; FAR for none.  `records`: columns call, call_end_ns, process, lane, event."""
    waits = _successful_waits(trace, lanes)
    begun = trace.calls["start_ns"].to_numpy()
    kind = trace.calls["kind"].to_numpy()[waits["call"]]
    process = trace.calls["process"].to_numpy()[waits["call"]]
    asked = records[["lane", "event"]].assign(time=records["call_end_ns"])
    asked = asked[records["call"] >= 0].astype("int64").sort_values("time", kind="stable")
    done = np.full(len(records), FAR)
    # process by process: keys of two columns take much memory
    for number in distinct(process).tolist():
        asked_there = asked[records["process"][asked.index] == number]
        for kinds, key in _COVERS:
            of_kinds = np.isin(kind, [CALL[name] for name in kinds])
            covering = waits[(process == number) & of_kinds]
            first = _first_waits(asked_there, covering, key, begun)
            returned = trace.calls["end_ns"].to_numpy()[first]
            done[first.index] = np.minimum(done[first.index], returned)
    return done


#: Kinds of waits, and the column by which they cover a record (None: they cover all of the process).
_COVERS = (
    (("sync_device",), None),
    (("sync_stream",), "lane"),
    (("sync_event", "query_event"), "event"),
)


def _successful_waits(trace: Trace, lanes: pd.DataFrame) -> pd.DataFrame:
    """Waits of the host, by their begin (`time`): call, event, lane (-1: none)."""
    calls, syncs = trace.calls, trace.syncs
    device = np.flatnonzero(calls["kind"].to_numpy() == CALL["sync_device"])
    of_device = pd.DataFrame({"call": device, "event": -1, "lane": -1})
    of_row = syncs[["call", "event"]].assign(lane=stream_lane(lanes, syncs))
    waits = pd.concat([of_device, of_row]).astype("int64")
    waits = waits[calls["return_value"].to_numpy()[waits["call"]] == 0]
    begun = calls["start_ns"].to_numpy()[waits["call"]]
    return waits.assign(time=begun).sort_values("time", kind="stable")


def _first_waits(
    asked: pd.DataFrame, waits: pd.DataFrame, key: str | None, begun: np.ndarray
) -> pd.Series:
    """The call of the first wait behind each record that has one with the same `key`, by the index of
    `asked`.  `begun`: the starts of all calls."""
    columns = ["time", key] if key else ["time"]
    if key:
        asked = asked[asked[key] >= 0]
        waits = waits[waits[key] >= 0]
    waits = waits[[*columns, "call"]]
    joined = pd.merge_asof(asked[columns], waits, on="time", by=key, direction="forward")
    first = joined["call"].set_axis(asked.index).dropna().astype("int64")
    if key == "event":  # once recorded again, it says nothing of this record
        again = asked.groupby("event")["time"].shift(-1, fill_value=FAR)
        first = first[begun[first] < again[first.index]]
    return first


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
    alone = {"previous_end_ns": 0, "previous_kind": -1, "previous_position": -1,
             "safe_previous_end_ns": 0, "next_start_ns": FAR, "safe_next_start_ns": FAR,
             "next_issued_ns": FAR, "next_kind": -1, "before": 0}  # fmt: skip
    out = {name: np.full(len(records), value, np.int64) for name, value in alone.items()}
    kind = trace.operations["kind"].to_numpy()
    for number, ops in per_lane.items():
        rows = np.flatnonzero((lane == number) & (call >= 0))
        if len(rows):
            begin = trace.calls["start_ns"].to_numpy()[call[rows]]
            end = trace.calls["end_ns"].to_numpy()[call[rows]]
            _put_issued_around(out, rows, ops, kind, begin)
            _put_safe(out, rows, ops.times, begin, end)
    lean = {name: frames.narrow(values, name) for name, values in out.items()}
    return pd.DataFrame(lean, index=range(len(records)), copy=False)


def _put_issued_around(
    out: dict[str, np.ndarray],
    rows: np.ndarray,
    ops: LaneOperations,
    kind: np.ndarray,
    begin: np.ndarray,
) -> None:
    """What was issued to a lane before and after records whose calls begin at `begin`: columns of
    `neighbours`, at `rows`.  `kind`: of all operations."""
    times = ops.times
    before = np.searchsorted(times.issue_ns, begin)
    out["before"][rows] = before
    with_previous = before > 0
    reach = times.reach_ns[before[with_previous] - 1]
    farthest = ops.position[np.searchsorted(times.reach_ns, reach)]
    out["previous_end_ns"][rows[with_previous]] = reach
    out["previous_position"][rows[with_previous]] = farthest
    out["previous_kind"][rows[with_previous]] = kind[farthest]
    with_next = before < len(times.start_ns)
    following = before[with_next]
    out["next_start_ns"][rows[with_next]] = _earliest_from(times)[following]
    out["next_issued_ns"][rows[with_next]] = times.issued_ns[following]
    out["next_kind"][rows[with_next]] = kind[ops.position[following]]


def _put_safe(
    out: dict[str, np.ndarray],
    rows: np.ndarray,
    times: LaneTimes,
    begin: np.ndarray,
    end: np.ndarray,
) -> None:
    """The same over operations whose calls do not overlap the calls of the records."""
    order = np.argsort(times.issued_ns, kind="stable")
    before = np.searchsorted(times.issued_ns[order], begin, side="right")
    reach = np.maximum.accumulate(times.end_ns[order])
    with_previous = before > 0
    previous_end = reach[before[with_previous] - 1]
    out["safe_previous_end_ns"][rows[with_previous]] = previous_end
    following = np.searchsorted(times.issue_ns, end)
    with_next = following < len(times.start_ns)
    next_start = _earliest_from(times)[following[with_next]]
    out["safe_next_start_ns"][rows[with_next]] = next_start


def _earliest_from(times: LaneTimes) -> np.ndarray:
    """The first start among each operation and all that were issued behind it."""
    return np.minimum.accumulate(times.start_ns[::-1])[::-1]


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
    records = matched.records
    call_start = records["call_start_ns"].to_numpy()
    lane = records["lane"].to_numpy()
    next_issued = around["next_issued_ns"].to_numpy()
    previous = around["previous_position"].to_numpy()
    previous_kind = around["previous_kind"].to_numpy()
    key = pd.DataFrame({"lane": lane, "before": around["before"], "issued": call_start})
    places = key.sort_values([*key], kind="stable").groupby(["lane", "before"], sort=False)
    behind = places.cumcount().reindex(key.index).to_numpy()
    ahead = places.cumcount(ascending=False).reindex(key.index).to_numpy()
    issue = trace.calls["start_ns"].to_numpy()
    previous_call = pick(trace.operations["call"].to_numpy(), previous, -1)
    since = pick(issue, previous_call, -1)
    waits = matched.waits[matched.waits["lane"] >= 0]
    waiting_lane = waits["lane"].to_numpy()
    waiting = issue[waits["call"].to_numpy()]
    # of a host function the trace names no stream: it may hold any record of its process
    hosted = np.flatnonzero(trace.calls["kind"].to_numpy() == CALL["host_function"])
    hosting = trace.calls["process"].to_numpy()[hosted]
    process = records["process"].to_numpy()
    waited = any_between(waiting_lane, waiting, lane, since, call_start)
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
        held=any_between(waiting_lane, waiting, lane, call_start, next_issued),
        stamp=records["timestamp_ns"].to_numpy(),
    )


def _copying(trace: Trace, streams: Streams, lane: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
    """Whether a copy to or from the host on another stream of the device was issued before a time
    and had not ended: there are more on the device than on the stream itself."""
    operations = trace.operations
    call = operations["call"].to_numpy()
    with_host = np.isin(operations["copy_kind"], _HOST_COPIES)
    with_host &= operations["kind"].to_numpy() == KIND["memcpy"]
    copies = np.flatnonzero(with_host & (call >= 0))
    issue = trace.calls["start_ns"].to_numpy()[call[copies]]
    end = operations["end_ns"].to_numpy()[copies]
    copy_lane = streams.operation_lane[copies]
    device = streams.lanes["device"].to_numpy()
    on_device = _under_way(issue, end, device[copy_lane], pick(device, lane, -2), time_ns)
    on_stream = _under_way(issue, end, copy_lane, lane, time_ns)
    return on_device > on_stream


def _under_way(
    issue: np.ndarray, end: np.ndarray, key: np.ndarray, asked: np.ndarray, time_ns: np.ndarray
) -> np.ndarray:
    """How many copies (arrays `issue`, `end` and `key`) with the key `asked` were issued before each time
    and had not ended."""
    count = np.zeros(len(asked), dtype=np.int64)
    for number in np.intersect1d(key, asked):
        copies = key == number
        rows = np.flatnonzero(asked == number)
        begun = np.searchsorted(np.sort(issue[copies]), time_ns[rows], side="right")
        ended = np.searchsorted(np.sort(end[copies]), time_ns[rows], side="right")
        count[rows] = begun - ended
    return count
