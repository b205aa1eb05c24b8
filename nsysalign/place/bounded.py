"""Stage 3, bounded: what surrounds each record on its stream, and between which times it must lie
whatever the latencies are.

lane        the number of a stream in this analysis; -1 for not known
operation   a kernel, copy or other piece of work on the GPU, issued (launched) by a call of the host
record      one call of `event.record()`
pair        two records that the program compared by `elapsed_time`
bounds      the earliest (`lower`) and latest (`upper`) time at which a record can lie
around      a table of what was issued on a record's lane before and after it (`neighbours`)

    issued (host)    [op A]   [record R]      [op B]
    runs (stream)             AAAAAAAA  R     BBBBBBB
                                     ^ previous end  ^ next start

Bounds must never be wrong.  So an operation whose call overlaps the record's call counts neither as
before nor as after it.  Work that waits for R would bound it as well, but hardly ever more narrowly: it
moved no place and no error bar of 15,757 pairs.  A pair is subject to the bounds of both its records,
because t(end) - t(start) = elapsed, within the clocks' slack.

This stage finds which pairs can be placed, and why the others cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, Columns, any_between, distinct, pick, positions
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
    """What bounds records and pairs.  "Per record" means per row of `Matched.records`."""

    around: pd.DataFrame  # per record, its `neighbours`
    lower: np.ndarray  # per record, the earliest possible time in ns; 0: not bounded
    upper: np.ndarray  # per record, the latest possible time in ns; FAR: not bounded
    stamped: np.ndarray  # bool, per record: whether it has a time stamp of CUPTI's
    pairs: pd.DataFrame  # the rows of `Matched.pairs` that can be placed
    unaligned: pd.DataFrame  # pairs that cannot be placed, with name, site and reason


def bound(
    trace: Trace, matched: Matched, streams: Streams, *, on_clock: bool, logged: bool
) -> Bounded:
    """Return between which times each record (a call of `event.record()`) must have executed on the GPU, which pairs of
    records can be placed on the trace's clock, and why the others cannot.

    on_clock: whether an event clock places records
    logged: whether there is a log.  Without one, the order that CUDA keeps between the legacy default stream
        and blocking streams bounds records, too; with one, the lengths by elapsed_time make that needless
    """
    records = matched.records
    pairs = matched.pairs
    lane = records["lane"].to_numpy()
    per_lane = streams.per_lane
    if not logged:
        per_lane = in_legacy_order(trace, streams, np.unique(lane[lane >= 0]))
    around = neighbours(trace, per_lane, records)
    # an elapsed_time that succeeded proves that both records were done, as a wait of the host does
    done_by_wait = known_done_ns_of(trace, streams.lanes, records)
    known_done = np.minimum(matched.compared_ns, done_by_wait)
    lower, upper = _bounds(records, around, known_done, on_clock=on_clock)
    reason = _reasons(records, pairs, lower, upper)
    # pairs of our own calibration are placed like all others, but nobody is told of one that cannot be
    of_program = ~pairs["calibration"].to_numpy(dtype=bool)
    refused = pairs.assign(reason=reason)[(reason != "") & of_program]
    refused = pd.concat([matched.unaligned, refused])
    return Bounded(
        around=around,
        lower=lower,
        upper=upper,
        stamped=records["timestamp_ns"].to_numpy() > 0,
        pairs=frames.taken(pairs, reason == ""),
        unaligned=_with_names_and_sites(refused, records),
    )


def _bounds(
    records: pd.DataFrame, around: pd.DataFrame, known_done: np.ndarray, *, on_clock: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the (earliest, latest) time at which each record (call of `event.record()`) can have executed on the GPU, in ns;
    0 and FAR for a record without a call.

    around: per record, its `neighbours`
    known_done: per record, when the host knew that it was done (ns)
    on_clock: whether an event clock places records

    A record executes after its call began and after what was issued to its stream before it had ended; and
    before what was issued after it started, and before the host knew that it was done.

    CUPTI stamps a record when it executes or later.  So a stamp is always a latest time, and it replaces the
    others.  Without an event clock nothing places the record better than its stamp: then it is the place itself,
    to a tick, and the earliest time, too.
    """
    has_call = records["call"].to_numpy() >= 0
    call_start = records["call_start_ns"].to_numpy()
    lower = np.maximum(call_start, around["safe_previous_end_ns"].to_numpy())
    lower = np.where(has_call, lower, 0)
    upper = np.minimum(around["safe_next_start_ns"].to_numpy(), known_done)
    upper = np.where(has_call, upper, FAR)
    stamp = records["timestamp_ns"].to_numpy()
    stamped = stamp > 0
    if not on_clock:
        lower = np.where(stamped, stamp - TICK_NS, lower)
    upper = np.where(stamped, stamp + TICK_NS, upper)
    return lower, upper


def _reasons(
    records: pd.DataFrame, pairs: pd.DataFrame, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Return, for each pair, why it cannot be placed; "" if it can.

    lower, upper: per record, its bounds in ns
    """
    lane = records["lane"].to_numpy()
    problem = records["problem"].to_numpy(dtype=object)
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    reason = np.where(problem[start] != "", problem[start], problem[end])
    nowhere = (reason == "") & ((lane[start] < 0) | (lane[end] < 0))
    reason[nowhere] = "the trace does not say which stream it is on"
    low, high = limits_of_starts(lower, upper, pairs)
    reason[(reason == "") & (low > high + CROSSING_NS)] = (
        "elapsed_time contradicts the trace: its neighbours leave no place for it (a wrong stream, rows dropped, "
        "or a log of another run)"
    )
    return reason


def _with_names_and_sites(refused: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs that cannot be placed, with a name, and with the site of the start record (of the end
    record if the log does not have the start).

    refused: pairs; start and end are positions in `records`, -1 for a record that the log does not have
    """
    site_of_record = np.append(records["site"].to_numpy(dtype=object), "")  # the last one: for -1
    logged = np.where(refused["start"] >= 0, refused["start"], refused["end"])
    refused["site"] = np.where(logged >= 0, site_of_record[logged], refused["site"])
    refused["name"] = [
        row.region or row.site or "unnamed" for row in frames.rows_of(refused, "region", "site")
    ]
    return refused


def limits_of_starts(
    lower: np.ndarray, upper: np.ndarray, pairs: pd.DataFrame, slack: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return (earliest, latest) possible start in ns of each pair (two records that the program compared by elapsed_time),
    by the bounds of both records: the start lies within the start record's bounds, and also `elapsed_ns` before a time
    within the end record's bounds.

    lower, upper: per record, its bounds in ns
    pairs: columns start and end (positions of records) and elapsed_ns
    slack: per pair, by how many ns its length on the trace may differ from elapsed_time; None: `_usual_slack`

    Start record from 1,000 to 3,000 ns, end record from 6,000 to 7,000, elapsed 5,000, slack 100: the end allows a start
    from 900 to 2,100, so that both allow one from 1,000 to 2,100.

    The earliest is later than the latest where the bounds of the two records contradict each other.
    """
    start = pairs["start"].to_numpy()
    end = pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    if slack is None:
        slack = _usual_slack(elapsed)
    low = np.maximum(lower[start], lower[end] - elapsed - slack)
    high = np.minimum(upper[start], upper[end] - elapsed + slack)
    return low, high


def _usual_slack(elapsed_ns: np.ndarray) -> np.ndarray:
    """Return, for each length by elapsed_time, by how many ns the trace's may differ: by one tick, the rounding of a
    float32 (elapsed_time is one, in ms), and the corrections and rates of the clocks."""
    elapsed_ms = (np.maximum(elapsed_ns, 1) / 1e6).astype(np.float32)
    rounding_ns = np.spacing(elapsed_ms).astype(float) * 1e6
    slack = TICK_NS + rounding_ns + CLOCK_STEP_NS + CLOCK_RATE * elapsed_ns
    return np.ceil(slack).astype(np.int64)


def known_done_ns_of(trace: Trace, lanes: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Return, for each record of an event, when the host knew that the GPU had executed it (ns); FAR if it never knew.
    That is the end of the first successful wait for the device, for the record's stream or for its event that began
    after the record's call had returned.  A query of the event counts as a wait; once the event is recorded again,
    waits for it no longer count.

    host   [record]   [wait for another stream]   [wait for the record's event]
                                                                              ^ known to be done

    lanes: frames.LANES
    records: a table with columns call, call_end_ns, process, lane and event, its rows numbered from 0

    Which records a wait is for: one for the device, for all of its process; one for a stream, for those of the same
    lane; one for an event, for those of the same event.
    """
    waits = _successful_waits(trace, lanes)
    done = np.full(len(records), FAR)
    if waits.empty:
        return done
    records_by_time = records[["process", "lane", "event"]].assign(time=records["call_end_ns"])
    # sorted, but each row keeps its number in `records` as its index
    records_by_time = records_by_time[records["call"] >= 0].astype("int64")
    records_by_time = records_by_time.sort_values("time", kind="stable")
    call_start = trace.calls["start_ns"].to_numpy()
    call_end = trace.calls["end_ns"].to_numpy()
    # process by process, because joining by two columns takes much memory
    for process in distinct(waits["process"].to_numpy()).tolist():
        records_of_process = records_by_time[records_by_time["process"] == process]
        for column in (None, "lane", "event"):
            is_for = _is_for_records_of_same(column, waits) & (waits["process"] == process)
            if not is_for.any():
                continue
            record, call = _first_waits(records_of_process, waits[is_for], column, call_start)
            done[record] = np.minimum(done[record], call_end[call])
    return done


#: The column in which a wait and the records that it is for agree -> kinds of the call; None: the wait is for all
#: records of the process.
_WAITS_FOR_SAME: Mapping[str | None, tuple[str, ...]] = {
    None: ("sync_device",),
    "lane": ("sync_stream",),
    "event": ("sync_event", "query_event"),
}


def _is_for_records_of_same(column: str | None, waits: pd.DataFrame) -> pd.Series:
    """Return, for each wait, whether it is for the records that have its value in a column ("lane" or "event"); with None,
    whether it is for all records of its process."""
    kinds = [CALL[name] for name in _WAITS_FOR_SAME[column]]
    is_for = waits["kind"].isin(kinds)
    return is_for if column is None else is_for & (waits[column] >= 0)


def _successful_waits(trace: Trace, lanes: pd.DataFrame) -> pd.DataFrame:
    """Return the host's waits that succeeded, in the order of their beginning.  Columns: call (its position in the trace's
    calls), the kind and process of the call, event and lane for which it waits (-1: none), and time, its beginning in ns."""
    calls = trace.calls
    syncs = trace.syncs
    device_calls = np.flatnonzero(calls["kind"].to_numpy() == CALL["sync_device"])
    device_waits = pd.DataFrame({"call": device_calls, "event": -1, "lane": -1})
    named_waits = syncs[["call", "event"]].assign(lane=stream_lane(lanes, syncs))
    waits = pd.concat([device_waits, named_waits]).astype("int64")
    waits = waits[calls["return_value"].to_numpy()[waits["call"]] == 0]
    of_call = {name: calls[name].to_numpy()[waits["call"]] for name in ("kind", "process")}
    begun = calls["start_ns"].to_numpy()[waits["call"]]
    return waits.assign(**of_call, time=begun).sort_values("time", kind="stable")


def _first_waits(
    records: pd.DataFrame, waits: pd.DataFrame, column: str | None, call_start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (record, call): the call of the first wait for each record that began after the record's call had returned.  A
    record without such a wait is left out; the others are numbered as the index of `records` has it.

    records: records of one process, with the `time` (ns) at which their calls returned, sorted by it
    waits: waits of that process for such records, with the `time` (ns) at which they began, sorted by it
    column: "lane" or "event": wait and record must agree in it; None: every wait is for every record
    call_start: per call of the trace, its start in ns
    """
    if column:
        records = records[records[column] >= 0]
    number, time = records.index.to_numpy(), records["time"].to_numpy()
    wait_time = waits["time"].to_numpy()
    if column is None:
        first = np.searchsorted(wait_time, time)
        first[first == len(waits)] = -1
    else:
        key = records[column].to_numpy()
        first = _first_of_same(key, time, waits[column].to_numpy(), wait_time)
    has_wait = first >= 0
    call = waits["call"].to_numpy()[first[has_wait]]
    if column == "event":
        # a wait that began when the event had been recorded again says nothing of this record
        recorded_again = records.groupby("event")["time"].shift(-1, fill_value=FAR).to_numpy()
        began_before = call_start[call] < recorded_again[has_wait]
        return number[has_wait][began_before], call[began_before]
    return number[has_wait], call


def _first_of_same(
    key: np.ndarray, time: np.ndarray, wait_key: np.ndarray, wait_time: np.ndarray
) -> np.ndarray:
    """Return, for each key and time, the position of the first wait with this key at that time or later; -1 for none.

    wait_key, wait_time: per wait, sorted by time

    key 5 at 20; waits: key 5 at 10, key 6 at 30, key 5 at 40:      2
    """
    keys = distinct(wait_key)
    place_of_key = positions(key, keys)  # -1: no wait has it
    # key and time in one number: times by how many waits begin earlier
    size = len(wait_time) + 1
    of_wait = np.searchsorted(keys, wait_key) * size + np.searchsorted(wait_time, wait_time)
    wanted = place_of_key * size + np.searchsorted(wait_time, time)
    in_order = np.argsort(of_wait, kind="stable")
    place = np.searchsorted(of_wait[in_order], wanted)
    first = in_order[np.minimum(place, len(in_order) - 1)]
    is_found = (place_of_key >= 0) & (place < len(in_order)) & (wait_key[first] == key)
    return np.where(is_found, first, -1)


def neighbours(
    trace: Trace, per_lane: dict[int, LaneOperations], records: pd.DataFrame
) -> pd.DataFrame:
    """Return a row per record (call of `event.record()`) that says which operations were issued to its lane (its stream)
    before and after it:

    previous_end_ns       of the operations issued before, the latest end (0: there are none)
    previous_kind         the kind of the operation that ends then (-1: none)
    previous_position     the position of that operation in `operations` (-1: none)
    safe_previous_end_ns  like previous_end_ns, but only of operations whose call had returned before the
                          record's call began
    next_start_ns         of the operations issued after, the earliest start (FAR: there are none)
    safe_next_start_ns    like next_start_ns, but only of operations whose call began after the record's
                          call had returned
    next_issued_ns        the end of the call of the operation issued next (FAR: none)
    next_kind             the kind of that operation (-1: none)
    before                how many operations were issued before

    per_lane: lane -> its operations in the order of issue
    records: a table with columns lane and call
    """
    lane, call = records["lane"].to_numpy(), records["call"].to_numpy()
    defaults = {"previous_end_ns": 0, "previous_kind": -1, "previous_position": -1,
             "safe_previous_end_ns": 0, "next_start_ns": FAR, "safe_next_start_ns": FAR,
             "next_issued_ns": FAR, "next_kind": -1, "before": 0}  # fmt: skip
    out = {name: np.full(len(records), value, np.int64) for name, value in defaults.items()}
    kind = trace.operations["kind"].to_numpy()
    for number, ops in per_lane.items():
        rows = np.flatnonzero((lane == number) & (call >= 0))
        if len(rows):
            record_calls = call[rows]
            call_start = trace.calls["start_ns"].to_numpy()[record_calls]
            call_end = trace.calls["end_ns"].to_numpy()[record_calls]
            columns = _issued_around(ops, kind, call_start)
            columns |= _safely_around(ops.times, call_start, call_end)
            for name, values in columns.items():
                out[name][rows] = values
    lean = {name: frames.narrow(values, name) for name, values in out.items()}
    return pd.DataFrame(lean, index=range(len(records)), copy=False)


def _issued_around(
    ops: LaneOperations, kind: np.ndarray, record_call_start: np.ndarray
) -> dict[str, np.ndarray]:
    """Return, for records of one lane (stream), which operations were issued to it before and after each: all columns of
    `neighbours` but the safe ones, an array per name.

    calls            [A]   [B]   [record R]   [C]
    lane     AAAAAAAAAAAAAAAAAAAAAA  BBB     R   CCC     before R: 2 operations, of which B ends last; after it: C

    ops: the operations of the lane, in the order of issue; at least one
    kind: the kind of every operation of the trace
    record_call_start: per record, when its call began (ns)
    """
    times = ops.times
    before = np.searchsorted(times.call_start_ns, record_call_start)  # so many operations
    previous_end = pick(times.reach_ns, before - 1, 0)
    # the operation that ends last is the first one whose `reach_ns` has that value
    ends_last = np.searchsorted(times.reach_ns, previous_end)
    ends_last = np.where(before > 0, ends_last, -1)
    previous = pick(ops.position, ends_last, -1)
    # the first operation that was issued after the record, -1 for none
    following = np.where(before < len(ops.position), before, -1)
    return {
        "before": before,
        "previous_end_ns": previous_end,
        "previous_position": previous,
        "previous_kind": pick(kind, previous, -1),
        "next_start_ns": pick(_earliest_from(times), following, FAR),
        "next_issued_ns": pick(times.call_end_ns, following, FAR),
        "next_kind": pick(kind, pick(ops.position, following, -1), -1),
    }


def _safely_around(
    times: LaneTimes, record_call_start: np.ndarray, record_call_end: np.ndarray
) -> dict[str, np.ndarray]:
    """Return, for records of one lane (stream), when at the latest all work before each has ended, and when the first work
    after it starts (ns); the safe columns of `neighbours`, an array per name.  Only operations count whose order with the
    record is certain, because their calls do not overlap the record's call.

    calls   [op A]  [op B   ]
                       [record R]  [op C]      A is safely before R, C safely after it; B is neither

    times: the times of the lane's operations, at least one
    record_call_start, record_call_end: per record, when its call began and ended (ns)
    """
    # how many calls of operations had ended before the record's call began, in the order of these ends
    by_call_end = np.argsort(times.call_end_ns, kind="stable")
    count = np.searchsorted(times.call_end_ns[by_call_end], record_call_start, side="right")
    latest_end = np.maximum.accumulate(times.end_ns[by_call_end])
    # the first operation whose call began after the record's call had ended, -1 for none
    following = np.searchsorted(times.call_start_ns, record_call_end)
    following = np.where(following < len(times.start_ns), following, -1)
    return {
        "safe_previous_end_ns": pick(latest_end, count - 1, 0),
        "safe_next_start_ns": pick(_earliest_from(times), following, FAR),
    }


def _earliest_from(times: LaneTimes) -> np.ndarray:
    """Return, for each operation, the earliest start (ns) among it and all that were issued after it."""
    backwards = times.start_ns[::-1]
    earliest_backwards = np.minimum.accumulate(backwards)
    return earliest_backwards[::-1]


@dataclass(frozen=True)
class Surroundings(Columns):
    """What lies around each record on its stream: arrays with a value per record.  The previous operation is the one
    that ends last of those issued before the record, the next one the first that was issued after it.  Times are in
    trace ns; where there is no operation, a previous time is 0 and a next time is FAR."""

    call_start: np.ndarray  # when the record's call began
    call_end: np.ndarray  # when it ended
    previous_end: np.ndarray  # when the previous operation ended
    previous_is_copy: np.ndarray  # bool: it is a copy or memset
    previous_is_graph: np.ndarray  # bool: it is a CUDA graph, traced as one operation
    previous_is_node: np.ndarray  # bool: it is a node of a CUDA graph that was traced node by node
    copying: np.ndarray  # bool: a copy to or from the host is under way on another stream
    records_before: np.ndarray  # how many records lie between the previous operation and this one
    next_start: np.ndarray  # when the next operation started
    next_issued: np.ndarray  # when the call ended that issued it
    next_is_kernel: np.ndarray  # bool
    records_after: np.ndarray  # how many records lie between this one and the next operation
    # bool: a stream wait or host function lies between the previous operation and this record
    wait_before: np.ndarray
    wait_after: np.ndarray  # bool: one lies between this record and the next operation
    stamp: np.ndarray  # CUPTI's time stamp; 0: none


def surroundings(
    trace: Trace, streams: Streams, matched: Matched, around: pd.DataFrame
) -> Surroundings:
    """Return what lies around every record on its stream: the operations before and after it, and whatever else may
    hold it up.

    around: per record, its `neighbours`
    """
    records = matched.records
    lane = records["lane"].to_numpy()
    call_start = records["call_start_ns"].to_numpy()
    previous = around["previous_position"].to_numpy()
    previous_kind = around["previous_kind"].to_numpy()
    next_issued = around["next_issued_ns"].to_numpy()
    operations_before = around["before"].to_numpy()
    records_before, records_after = _records_beside(lane, operations_before, call_start)
    # when the call began that issued the previous operation
    previous_call = pick(trace.operations["call"].to_numpy(), previous, -1)
    previous_issue = pick(trace.calls["start_ns"].to_numpy(), previous_call, -1)

    def is_wait_between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return, for each record, whether a stream wait or host function was issued between two times (ns)."""
        by_event = _has_wait_between(trace, matched.waits, lane, low, high)
        process = records["process"].to_numpy()
        return by_event | _has_host_function_between(trace, process, low, high)

    return Surroundings(
        call_start=call_start,
        call_end=records["call_end_ns"].to_numpy(),
        previous_end=around["previous_end_ns"].to_numpy(),
        previous_is_copy=np.isin(previous_kind, [KIND["memcpy"], KIND["memset"]]),
        previous_is_graph=previous_kind == KIND["graph"],
        previous_is_node=pick(trace.operations["graph_node"].to_numpy(), previous, -1) >= 0,
        copying=_is_copying(trace, streams, lane, call_start),
        records_before=records_before,
        next_start=around["next_start_ns"].to_numpy(),
        next_issued=next_issued,
        next_is_kernel=around["next_kind"].to_numpy() == KIND["kernel"],
        records_after=records_after,
        wait_before=is_wait_between(previous_issue, call_start),
        wait_after=is_wait_between(call_start, next_issued),
        stamp=records["timestamp_ns"].to_numpy(),
    )


def _has_wait_between(
    trace: Trace, waits: pd.DataFrame, lane: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return, per row, whether a wait for an event was issued to a lane between two times.

    waits: `Matched.waits` with the column lane
    lane, low, high: per row, the lane and the two times (ns)
    """
    waits = waits[waits["lane"] >= 0]
    issue = trace.calls["start_ns"].to_numpy()[waits["call"].to_numpy()]
    return any_between(waits["lane"].to_numpy(), issue, lane, low, high)


def _has_host_function_between(
    trace: Trace, process: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return, per row, whether a process issued a host function between two times, to whichever stream: the trace does
    not name it.

    process, low, high: per row, the process and the two times (ns)
    """
    calls = trace.calls
    functions = np.flatnonzero(calls["kind"].to_numpy() == CALL["host_function"])
    process_of_function = calls["process"].to_numpy()[functions]
    issue = calls["start_ns"].to_numpy()[functions]
    return any_between(process_of_function, issue, process, low, high)


def _records_beside(
    lane: np.ndarray, operations_before: np.ndarray, call_start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each record, (how many records of its stream lie between the previous operation and it, how many between
    it and the next operation); 0 where its stream is not known.

    operation A   R1  R2  R3   operation B        R1: 0 before, 2 after; R2: 1 and 1; R3: 2 and 0

    lane, operations_before, call_start: per record, its lane (-1: not known), how many operations were issued to it
        before the record, and when the record's call began (ns)
    """
    before, after = np.zeros((2, len(lane)), np.int64)
    if not len(lane):
        return before, after
    in_order = np.lexsort((call_start, operations_before, lane))
    # records between the same two operations have the same number of operations before them
    is_apart = np.diff(lane[in_order]) != 0
    is_apart |= np.diff(operations_before[in_order]) != 0
    first = np.flatnonzero(np.append(True, is_apart))  # of those between two operations
    count = np.diff(first, append=len(lane))
    before[in_order] = np.arange(len(lane)) - np.repeat(first, count)
    after[in_order] = np.repeat(count, count) - 1 - before[in_order]
    return np.where(lane >= 0, before, 0), np.where(lane >= 0, after, 0)


def _is_copying(
    trace: Trace, streams: Streams, lane: np.ndarray, time_ns: np.ndarray
) -> np.ndarray:
    """Return, for each record, whether a copy to or from the host was under way on another stream of the same
    device when its call began: more copies are under way on the device than on the stream itself.  Records take
    longer then, by up to 6 us.

    lane: per record, its lane (-1: not known)
    time_ns: per record, when its call began (ns)
    """
    operations = trace.operations
    call = operations["call"].to_numpy()
    with_host = np.isin(operations["copy_kind"], _HOST_COPIES)
    with_host &= operations["kind"].to_numpy() == KIND["memcpy"]
    copies = np.flatnonzero(with_host & (call >= 0))
    # a copy counts from its call on, so that one which waits in its queue counts as well
    begin = trace.calls["start_ns"].to_numpy()[call[copies]]
    end = operations["end_ns"].to_numpy()[copies]
    lane_of_copy = streams.operation_lane[copies]
    device = streams.lanes["device"].to_numpy()
    on_device = _copies_under_way(
        begin=begin,
        end=end,
        owner_of_copy=device[lane_of_copy],
        owner=pick(
            device, lane, -2
        ),  # no device has this number; -1 is one that the trace does not tell
        time_ns=time_ns,
    )
    on_stream = _copies_under_way(
        begin=begin, end=end, owner_of_copy=lane_of_copy, owner=lane, time_ns=time_ns
    )
    return on_device > on_stream


def _copies_under_way(
    *,
    begin: np.ndarray,
    end: np.ndarray,
    owner_of_copy: np.ndarray,
    owner: np.ndarray,
    time_ns: np.ndarray,
) -> np.ndarray:
    """Return, for each time, how many copies of one owner (a stream or a device) had begun and not ended.

    begin, end, owner_of_copy: per copy, when it began and ended (ns), and its owner
    owner, time_ns: per time, the owner whose copies count, and the time (ns)
    """
    count = np.zeros(len(owner), dtype=np.int64)
    for number in np.intersect1d(owner_of_copy, owner):
        copies = owner_of_copy == number
        rows = np.flatnonzero(owner == number)
        begun = np.searchsorted(np.sort(begin[copies]), time_ns[rows], side="right")
        ended = np.searchsorted(np.sort(end[copies]), time_ns[rows], side="right")
        count[rows] = begun - ended
    return count
