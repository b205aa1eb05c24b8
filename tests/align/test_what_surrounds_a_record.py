"""What says how long a record took: the operation behind it, copies of other streams, waits; and
error bars of what a program does not show."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nsysalign.intervals import FAR
from nsysalign.model import CALL, KIND
from nsysalign.place.bounded import Surroundings, surroundings
from nsysalign.place.event_clock import Frames, fit_line
from nsysalign.place.latency import PARAMETERS, assumed, place_pairs

NEAR = ("before", "previous_end_ns", "previous_kind", "previous_position", "next_start_ns",
        "next_issued_ns", "next_kind")  # fmt: skip


def evidence(records, operations=(), *, devices=(0, 0, 1), near=None, waits=(), hosted=()):
    """`records`: (start and end of the call, lane, -1 for unknown, end of the operation before);
    `operations`: (kind, start, end, lane), issued one after the other at 0, 1, 2 ...; `waits`:
    (when issued, lane); `hosted`: when host functions were."""
    table = pd.DataFrame(
        records, columns=["call_start_ns", "call_end_ns", "lane", "previous_end_ns"], dtype="int64"
    )
    table["timestamp_ns"], table["process"] = 0, 7
    around = pd.DataFrame({name: np.full(len(table), -1) for name in NEAR})
    around["previous_end_ns"] = table["previous_end_ns"]
    for name, value in (near or {}).items():
        around[name] = value
    ops = pd.DataFrame(operations, columns=["kind", "start_ns", "end_ns", "lane"])
    ops["kind"] = ops["kind"].map(KIND).astype("int64")
    ops["copy_kind"], ops["graph_node"] = 1, -1
    issued = [*range(len(ops)), *(at for at, _ in waits), *hosted]
    kind = [CALL["launch"]] * (len(issued) - len(hosted)) + [CALL["host_function"]] * len(hosted)
    trace = SimpleNamespace(
        operations=ops.assign(call=np.arange(len(ops))).sort_values("start_ns"),
        calls=pd.DataFrame({"start_ns": issued, "kind": kind, "process": 7}, dtype="int64"),
    )
    asked = pd.DataFrame(
        {"call": len(ops) + np.arange(len(waits)), "lane": [lane for _, lane in waits]},
        dtype="int64",
    )
    streams = SimpleNamespace(
        lanes=pd.DataFrame({"device": devices}),
        operation_lane=trace.operations["lane"].to_numpy(dtype="int64"),
    )
    return surroundings(trace, streams, SimpleNamespace(records=table, waits=asked), around)


OWN = ("kernel", 10, 20, 0)


@pytest.mark.parametrize(("other", "copying"), [
    (("memcpy", 5, 25, 1), True),
    (("memcpy", 5, 12, 1), False),  # ended as the record's call began
    (("memcpy", 5, 25, 0), False),  # of the same stream
    (("memcpy", 5, 25, 2), False),  # of another device
    (("kernel", 5, 25, 1), False),
])  # fmt: skip
def test_copies_of_other_streams_while_the_record_is_made(other, copying):
    """
    lane 0   #10----20|R
    lane 1   #5-------25
    """
    early = ("memcpy", 3, 4, 1)  # so that every stream copies at some time
    operations = sorted([OWN, other, early], key=lambda o: o[1])
    assert evidence([(12, 14, 0, 20)], operations).copying.tolist() == [copying]


def test_copies_behind_and_kernels_ahead():
    near = {"previous_kind": [KIND["memcpy"], KIND["memset"], KIND["kernel"], -1],
            "next_kind": [KIND["memcpy"], KIND["kernel"], KIND["graph"], -1]}  # fmt: skip
    found = evidence([(0, 1, 0, 9)] * 4, near=near)
    assert found.previous_is_copy.tolist() == [True, True, False, False]
    assert found.next_is_kernel.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("wait", "lane", "seen"), [(5, 0, True), (15, 0, False), (5, 1, False), (0, 0, False)]
)
def test_a_wait_between_the_operation_before_and_the_record(wait, lane, seen):
    """
    host   [op 0]  [wait 5]  [record 12]  [wait 15]  [op 20]
    """
    near = {"previous_position": 0, "next_issued_ns": 20}
    found = evidence([(12, 14, 0, 20)], [OWN], near=near, waits=[(wait, lane)])
    assert found.wait_before.tolist() == [seen]
    assert found.wait_after.tolist() == [wait == 15], "between the record and the operation after"


@pytest.mark.parametrize(("issued", "seen"), [(5, True), (15, False), (0, False)])
def test_a_host_function_holds_a_record_for_as_long_as_it_runs(issued, seen):
    """simpleCallback: the end lay 87 us after its place, behind callbacks of which no row tells.
    One after the record holds up the kernel behind it as long."""
    near = {"previous_position": 0, "next_issued_ns": 20}
    found = evidence([(12, 14, 0, 20)], [OWN], near=near, hosted=[issued])
    assert found.wait_before.tolist() == [seen]
    assert found.wait_after.tolist() == [issued == 15]


BUSY, AHEAD, EACH_NS = 925, 1_540, 1_000_000


def queued(gaps, **more):
    """Records, all queued long before, one between two kernels each: `gaps` apart (ns), at every
    millisecond."""
    gaps = np.asarray(gaps)
    ends = EACH_NS * (1 + np.arange(len(gaps)))
    none = np.zeros(len(gaps), np.int64)
    known = {"call_start": ends - 900_000, "call_end": ends - 898_000, "previous_end": ends,
             "next_start": ends + gaps, "next_issued": ends - 800_000, "next_is_kernel": none == 0}  # fmt: skip
    known |= dict.fromkeys(("records_before", "records_after", "stamp"), none) | more
    columns = Surroundings.__dataclass_fields__
    return Surroundings(**{c: known.get(c, none.astype(bool)) for c in columns})


@pytest.mark.parametrize(("scatter", "shown"), [(100, True), (3_000, False)])
def test_gaps_tell_how_long_a_record_takes_where_they_crowd(scatter, shown):
    """A floor at 4 us is a record of 2.84 us, long gaps of all sizes are nothing."""
    met = queued(4_000 + np.linspace(0, scatter, 40).astype(np.int64))
    spacing = assumed("off", met).vector[PARAMETERS.index("spacing_ns")]
    assert spacing == pytest.approx(4_000 - AHEAD + 380 if shown else 1_295, abs=30)
    assert assumed("on", met).unshown == (not shown)


def placed(s, tracing="off"):
    """(start after the end of the operation before, error bar) of the pair of the last two
    records."""
    pairs = pd.DataFrame({"start": [20], "end": [21], "elapsed_ns": [EACH_NS]})
    start, error = place_pairs(pairs, assumed(tracing, s).likely(s))
    return int(start[0] - s.previous_end[20]), int(error[0])


def test_bars_grow_with_what_is_not_known():
    tight = queued([2_465] * 22)
    after, bar = placed(tight)
    assert after == pytest.approx(BUSY, abs=30) and bar == pytest.approx(2_500, abs=50)
    none = np.zeros(22, dtype=bool)
    for unknown, more in (("copying", 5_500), ("previous_is_node", 2_500)):
        assert placed(replace(tight, **{unknown: ~none}))[1] == bar + more
    # nothing queued behind: no gap shows how long a record takes, and it may have been traced
    unshown = replace(tight, next_is_kernel=none)
    assert placed(unshown)[1] == bar and placed(unshown, "on")[1] == bar + 2_500


def test_the_record_that_is_known_better_decides():
    tight = queued([2_465] * 22)
    late, last = np.zeros(22, np.int64), np.arange(22) == 21
    late[21] = 10_000
    held_up = replace(tight, previous_end=tight.previous_end + late)
    assert placed(held_up)[0] > BUSY + 1_000, "of two known alike the later one"
    assert placed(replace(held_up, wait_before=last))[0] == pytest.approx(BUSY, abs=30)


def test_a_kernel_queued_behind_limits_how_late_a_record_is():
    tight = queued([2_465] * 20 + [1_600, 1_600])
    assert placed(tight)[0] == pytest.approx((BUSY + 1_600 - AHEAD) // 2, abs=30)


def test_calls_on_idle_streams_may_be_slow_together():
    """400 records do not know the line 20 times better than one does."""
    at = np.arange(400) * 10_000_000
    none = np.zeros(400, np.int64)
    slow = np.random.default_rng(5).exponential(500, 400).astype(np.int64)
    far, calls = none + FAR, {"call_start": at - 4_000 - slow, "call_end": at - 2_500}
    s = queued(far, **calls, next_start=far, next_issued=far, previous_end=none)
    alone = Frames(*np.array([[0], [0], [-1], [0], [0], [0]]))
    spread = fit_line(s, none, at, "off", alone).place(at, none)[1]
    assert spread.min() > 200
