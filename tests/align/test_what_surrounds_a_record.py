"""What says how long a record took: the operation behind it, copies of other streams, waits.
Everything in microseconds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nsysalign.model import CALL, KIND
from nsysalign.place.bounded import surroundings

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
    assert found.waits.tolist() == [seen]
    assert found.held.tolist() == [wait == 15], "between the record and the operation after"


@pytest.mark.parametrize(("issued", "seen"), [(5, True), (15, False), (0, False)])
def test_a_host_function_holds_a_record_for_as_long_as_it_runs(issued, seen):
    """simpleCallback: the end lay 87 us after its place, behind callbacks of which no row tells."""
    found = evidence([(12, 14, 0, 20)], [OWN], near={"previous_position": 0}, hosted=[issued])
    assert found.waits.tolist() == [seen]
