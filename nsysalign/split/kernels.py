"""What ran in the windows, by name: how often, how long, and how long its stream had been idle
before.

An operation belongs, with its whole duration, to the windows in which it begins (for host windows:
in which it was issued).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import covered, disjoint, group, ragged
from nsysalign.model import OPERATION_KINDS, Alignment, Trace
from nsysalign.place.own_work import own_ranges
from nsysalign.split.busy import Streams
from nsysalign.split.describe import call_names, operation_names
from nsysalign.split.gaps import faulting_threads

#: Pairs of a window and an operation in it that are held at once.
_AT_ONCE = 1 << 21
#: Durations are counted this many at a time: one table of all would be the largest thing in memory.
_COUNTED_AT_ONCE = 1 << 17
#: An outer range holds the work of all ranges nested in it.  If the windows of a stream together
#: hold more operations than this, and this many times more than exist, they are not counted one by
#: one: their labels are left out.
_MANY, _TIMES = 1 << 22, 8
#: What held up an operation of which the trace has no launch.
NOT_KNOWN = "the trace does not say what the host did"
#: Idle stretches kept per run.
MOST_GAPS = 20


class Ran:
    """The operations of a trace by name and by lane; each is worked out once, and kept."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace, self.alignment = trace, alignment
        self._streams = Streams(trace, alignment)
        self._lanes: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @cached_property
    def codes(self) -> tuple[np.ndarray, np.ndarray]:
        """(number of each operation's name, one operation per name)."""
        return operation_codes(self.trace.operations)

    def of_lane(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        """(operations of a lane, by start; how long it had been idle before each, 0 before the
        first)."""
        if lane not in self._lanes:
            mine = self._streams.positions(lane)
            start, end = (self.trace.operations[c].to_numpy()[mine] for c in ("start_ns", "end_ns"))
            idle = np.zeros(len(mine), np.int64)
            np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0, out=idle[1:])
            self._lanes[lane] = mine, idle
        return self._lanes[lane]


def kernel_table(ran: Ran, intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.KERNELS`: labels in the order of their intervals, each with its most expensive names
    first.  `intervals`: the windows of the alignment, with labels."""
    trace, operations = ran.trace, ran.trace.operations
    code, example = ran.codes
    length = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    number, labels = pd.factorize(intervals["label"])  # in the order in which they appear
    tables = []
    for which, op, idle in inside(ran):
        for begin in range(0, len(op), _COUNTED_AT_ONCE):
            lot = slice(begin, begin + _COUNTED_AT_ONCE)
            name = number[which[lot]] * len(example) + code[op[lot]]
            tables.append(_counted(name, length[op[lot]], idle[lot]))
    if not tables:
        return frames.empty(frames.KERNELS)
    # equal names of different kinds of operations, or of different copies, are one name
    kind = operations["kind"].to_numpy()[example]
    texts = pd.DataFrame({"kernel": operation_names(trace, example), "kind": kind})
    same = texts.groupby(["kernel", "kind"], sort=True).ngroup().to_numpy()
    rows = pd.concat(tables, ignore_index=True)
    rows = rows.assign(
        place=rows["name"] // len(example), text=same[rows["name"] % len(example)]
    ).sort_values(["place", "text", "ns"], ignore_index=True)
    groups = rows.assign(total_ns=rows["ns"] * rows["count"]).groupby(["place", "text"], sort=True)
    out = groups[["count", "total_ns", "idle"]].sum().reset_index()
    # lower median: the first duration up to which half of them lie
    half = (groups["count"].transform("sum") + 1) // 2
    reached = rows[groups["count"].cumsum() >= half]
    out["median_ns"] = reached.groupby(["place", "text"], sort=True)["ns"].first().to_numpy()
    first = np.unique(same, return_index=True)[1]
    out["kernel"] = texts["kernel"].to_numpy()[first[out["text"]]]
    out["kind"] = np.array(OPERATION_KINDS, dtype=object)[kind[first[out["text"]]]]
    out["label"] = np.asarray(labels, dtype=object)[out["place"]]
    measured = intervals["elapsed_ns"].groupby(number).sum().to_numpy()
    out["share"] = out["total_ns"] / np.maximum(measured[out["place"]], 1)
    out = out.rename(columns={"idle": "idle_before_ns"}).sort_values(
        ["place", "total_ns", "kernel"], ascending=[True, False, True], ignore_index=True
    )
    return frames.check(out, frames.KERNELS)


def _counted(name: np.ndarray, ns: np.ndarray, idle: np.ndarray) -> pd.DataFrame:
    """How often each duration occurs under each name (a number), and the idle time before."""
    numbers, lengths = pd.factorize(ns)
    code, keys = pd.factorize(name * len(lengths) + numbers)
    before = np.zeros(len(keys), np.int64)
    np.add.at(before, code, idle)
    return pd.DataFrame(
        {
            "name": keys // len(lengths),
            "ns": lengths[keys % len(lengths)],
            "count": np.bincount(code),
            "idle": before,
        }
    )


def gaps(ran: Ran) -> pd.DataFrame:
    """`frames.GAPS`: the longest idle stretches of every run, with what ended them and the call
    that held it up.  Those that the tool made itself are left out."""
    trace, w = ran.trace, ran.alignment.windows
    opened, closed, lane = (w[c].to_numpy() for c in ("start_ns", "end_ns", "end_lane"))
    begin = trace.operations["start_ns"].to_numpy()
    ours = own_ranges(trace)
    own = disjoint(ours["start_ns"].to_numpy(), ours["end_ns"].to_numpy())[1:]
    found = [(np.empty(0, np.int64),) * 3]
    for at in np.flatnonzero((w["kind"] == "run").to_numpy()).tolist():
        mine, idle = ran.of_lane(int(lane[at]))
        start = begin[mine]
        there = np.flatnonzero((start >= opened[at]) & (start < closed[at]) & (idle > 0))
        there = there[
            2 * (covered(*own, start[there]) - covered(*own, (start - idle)[there])) < idle[there]
        ]
        if len(there) > MOST_GAPS:  # stretches that cannot be among the longest need not be sorted
            least = np.partition(idle[there], -MOST_GAPS)[-MOST_GAPS]
            there = there[idle[there] >= least]
        longest = there[np.argsort(-idle[there], kind="stable")[:MOST_GAPS]]
        found.append((np.full(len(longest), at), mine[longest], idle[longest]))
    interval, op, idle = (np.concatenate(c) for c in zip(*found, strict=True))
    end, call = begin[op], trace.operations["call"].to_numpy()[op]
    issuing = np.append(trace.calls["thread"].to_numpy(), -1)[call]
    issuing = np.where(call >= 0, issuing, faulting_threads(trace)[op])
    held = _held(trace, issuing.tolist(), (end - idle).tolist(), end.tolist())
    table = pd.DataFrame(
        {
            "interval": interval,
            "start_ns": end - idle,
            "ns": idle,
            "next": operation_names(trace, op),
            "call": [name for name, _ in held],
            "call_ns": [ns for _, ns in held],
        }
    )
    return frames.check(table, frames.GAPS)


def _held(
    trace: Trace, issuing: list[int], start: list[int], end: list[int]
) -> list[tuple[str, int]]:
    """Per idle time [start, end): which call of the thread that issued the operation behind it
    covers most of it, and how much; ('', 0) where that thread was outside of CUDA, (NOT_KNOWN, 0)
    where it is not known (-1)."""
    begin, over, thread, outer = (
        trace.calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread", "outer")
    )
    found = []
    for mine, low, high in zip(issuing, start, end, strict=True):
        if mine < 0:
            found.append((NOT_KNOWN, 0))
            continue
        last = int(np.searchsorted(begin, high))
        near = np.arange(max(0, last - 20_000), last)
        near = near[over[near] > low]
        near = near[(thread[near] == mine) & (outer[near] == near)]
        if not len(near):
            found.append(("", 0))
            continue
        ns = np.minimum(over[near], high) - np.maximum(begin[near], low)
        best = int(ns.argmax())
        found.append((str(call_names(trace, near[[best]])[0]), int(ns[best])))
    return found


def operation_codes(operations: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(number of each operation's name, one operation per name)."""
    code = np.zeros(len(operations), np.int64)
    for column in ("kind", "name_id", "copy_kind", "src_kind", "dst_kind"):
        given = operations[column].to_numpy()
        if len(given) and (given == given[0]).all():  # does not distinguish anything
            continue
        numbers, values = pd.factorize(given)
        code = pd.factorize(code * len(values) + numbers)[0]
    # numbers are given in order of appearance: a name's first operation is where the number exceeds
    # all before it
    return code, np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))


_Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


def inside(ran: Ran, runs: bool = True) -> Iterator[_Batch]:
    """(window, operation, idle time before it in the window), batch by batch, a whole window in one
    batch: runs first (if wanted), then measured windows."""
    some: list[_Batch] = []
    held = 0
    for batch in _inside(ran, runs):
        some.append(batch)
        held += len(batch[0])
        if held >= _COUNTED_AT_ONCE:
            yield _together(some)
            some, held = [], 0
    if some:
        yield _together(some)


def _together(some: list[_Batch]) -> _Batch:
    window, operation, idle = (np.concatenate(c) for c in zip(*some, strict=True))
    return some[0] if len(some) == 1 else (window, operation, idle)


def _inside(ran: Ran, runs: bool) -> Iterator[_Batch]:
    """The same lane by lane."""
    trace, w, operations = ran.trace, ran.alignment.windows, ran.trace.operations
    start = operations["start_ns"].to_numpy()
    kind, lane = w["kind"].to_numpy(dtype=object), w["end_lane"].to_numpy()
    opened, closed = w["start_ns"].to_numpy(), w["end_ns"].to_numpy()
    for of_run in (True, False) if runs else (False,):
        there = ((kind == "run") == of_run) & (kind != "host")
        for number, which in group(lane[there], np.flatnonzero(there)).items():
            mine, idle = ran.of_lane(number)
            for at, place in _lots(which, start[mine], opened, closed):
                before = idle[place]
                first = np.flatnonzero(np.diff(at, prepend=-1))
                before[first] = np.minimum(
                    before[first], start[mine[place[first]]] - opened[at[first]]
                )
                yield at, mine[place], before
    hosts = np.flatnonzero(kind == "host")
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    issue = (
        trace.calls["start_ns"].to_numpy()[operations["call"].to_numpy()[issued]]
        if len(issued)
        else issued
    )
    process = operations["process"].to_numpy()[issued]
    for number in np.unique(w["process"].to_numpy()[hosts]).tolist():
        which = hosts[w["process"].to_numpy()[hosts] == number]
        mine = np.flatnonzero(process == number)
        mine = mine[np.argsort(issue[mine], kind="stable")]
        for at, place in _lots(which, issue[mine], opened, closed):
            yield at, issued[mine[place]], np.zeros(len(at), np.int64)


def _lots(
    which: np.ndarray, times: np.ndarray, opened: np.ndarray, closed: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(window, place in the sorted `times`) of all times in windows, a few million at a time."""
    first, last = np.searchsorted(times, opened[which]), np.searchsorted(times, closed[which])
    count = np.maximum(last - first, 0)
    if count.sum() > max(_MANY, _TIMES * len(times)):
        return
    lot = (np.cumsum(count) - count) // _AT_ONCE
    for number in np.unique(lot[count > 0]).tolist():
        some = np.flatnonzero((lot == number) & (count > 0))
        owner, place = ragged(first[some], count[some])
        yield which[some][owner], place
