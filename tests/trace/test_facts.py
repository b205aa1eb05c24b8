"""Small facts of a trace: what proves that a record is over, which GPU worked, which row stands for
a label, what counts for a window."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from handmade import build
from tiny_export import PROCESS, US, P, call, tiny, work, write_export, write_lines

import nsysalign
from nsysalign.errors import NoCudaWork
from nsysalign.split.labels import label_table
from nsysalign.trace.read import read_trace

CALLS = {"device": "cudaDeviceSynchronize_v3020", "stream": "cudaStreamSynchronize_v3020",
         "event": "cudaEventSynchronize_v3020", "query": "cudaEventQuery_v3020"}  # fmt: skip
NOT_READY, LAUNCH_FAILURE = 600, 719


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The interval of the tiny export as it is."""
    folder = tmp_path_factory.mktemp("place")
    trace = write_export(folder / "trace.sqlite")
    (row,) = nsysalign.analyze(
        trace, [write_lines(folder / "events-7.jsonl")]
    ).measured.itertuples()
    return row


@pytest.mark.parametrize("what", CALLS)
def test_a_call_that_failed_or_was_not_ready_proves_nothing(export, log, what, place):
    """
    thread 7   |rec| |launch|   ... |rec|  |call|  |        stream synchronise         |
    stream 7                                             kernel, copy, memset  | end record |graph
    us         5  10             65    70  76  78  80                         180          182   200

    A call that had waited for the end record would have returned after 180.
    """
    row = {
        "start": 76 * US,
        "end": 78 * US,
        "globalPid": PROCESS,
        "contextId": 1,
        "correlationId": 8,
    }
    row |= {"streamId": 7 if what == "stream" else -1}
    row |= {"eventId": 2 if what in ("event", "query") else -1}
    for status in (NOT_READY if what == "query" else LAUNCH_FAILURE, 0):
        tables = tiny()
        tables["StringIds"].append({"id": 30, "value": CALLS[what]})
        tables[P + "RUNTIME"].append(call(8, 30, 76, 78) | {"returnValue": status})
        tables[P + "SYNCHRONIZATION"].append(row)
        analysis = nsysalign.analyze(export(tables), [log])
        if status == 0:  # it contradicts the trace
            assert analysis.measured.empty and len(analysis.unaligned) == 1
        else:
            (found,) = analysis.measured.itertuples()
            assert (found.start_lower_ns, found.start_upper_ns) == (
                place.start_lower_ns,
                place.start_upper_ns,
            )
            assert found.end_ns >= 180 * US, "behind the memset"


SYNC, FREE, ILLEGAL_ADDRESS, NOT_SUPPORTED, CONTEXT_IS_DESTROYED = "cuCtxSynchronize", "cudaFree", 700, 801, 709  # fmt: skip


@pytest.mark.parametrize(
    ("returned", "others", "failed"),
    [
        # a kernel broke the context: whatever is called then fails, the synchronisation first
        ([(SYNC, ILLEGAL_ADDRESS), (FREE, ILLEGAL_ADDRESS), (FREE, ILLEGAL_ADDRESS)], True,
         ((SYNC, ILLEGAL_ADDRESS, 1), (FREE, ILLEGAL_ADDRESS, 2))),
        ([(FREE, NOT_SUPPORTED)], True, ()),
        # the program's end, unless it is all that the trace has
        ([(SYNC, CONTEXT_IS_DESTROYED)], True, ()),
        ([(SYNC, CONTEXT_IS_DESTROYED)], False, ((SYNC, CONTEXT_IS_DESTROYED, 1),)),
    ],
)  # fmt: skip
def test_calls_that_failed(export, returned, others, failed):
    tables = tiny()
    names = {FREE: 30, SYNC: 31}
    tables["StringIds"] += [{"id": number, "value": name} for name, number in names.items()]
    calls = [call(9 + k, names[name], 300 + 10 * k, 305 + 10 * k) | {"returnValue": code} for k, (name, code) in enumerate(returned)]  # fmt: skip
    tables[P + "RUNTIME"] = [*(tables[P + "RUNTIME"] if others else ()), *calls]
    assert read_trace(export(tables)).info.failed_calls == failed


def test_what_nsys_says_is_said_in_sentences(export):
    texts = ("CUDA trace will be collected using libraries for driver version 12.0", "Not all CUDA events might have been collected.")  # fmt: skip
    rows = [{"severity": 2, "text": text} for text in texts]
    tables = {"StringIds": tiny()["StringIds"], "DIAGNOSTIC_EVENT": rows}
    with pytest.raises(
        NoCudaWork, match=r"driver version 12\.0\..*|been collected\. CUDA trace .* 12\.0\."
    ):
        read_trace(export(tables))


@pytest.mark.parametrize(("gpus", "said"), [
    ([("T400", 1, 4), ("H200", 0, 132)], ("H200",)),                   # the one that worked
    ([("H200", 0, 132), ("H200", 0, 132)], ("H200",)),                 # some exports say 0 of every GPU
    ([("H200", 0, 132), ("T400", 0, 4)], ("H200", "T400")),
    ([("H200", 0, 132), ("Intel(R) Iris(R)", 0, 0)], ("H200",)),
])  # fmt: skip
def test_the_gpu_named_is_the_one_that_worked(export, gpus, said):
    rows = [dict(zip(("name", "cuDevice", "smCount"), gpu, strict=True)) for gpu in gpus]
    context = [{"processId": 7, "contextId": 1, "deviceId": 0}]
    tables = tiny() | {"TARGET_INFO_GPU": rows, "TARGET_INFO_CUDA_CONTEXT_INFO": context}
    assert read_trace(export(tables)).info.devices == said


@pytest.mark.parametrize(
    ("lengths", "row"),
    [((40, 10, 30, 20), 3), ((30, 10, 20), 2), ((20, 10), 1), ((5,), 0), ((7, 7, 7, 7), 1)],
)
def test_the_row_of_a_label_is_its_lower_median(lengths, row):
    """Of an even number of runs the shorter of the two in the middle, of equal ones the earlier."""
    runs = [[("kernel", 1_000 * length, "gemm")] for length in lengths]
    intervals = build([("a", "event", "a.py:1", False, runs)]).intervals
    (found,) = label_table(intervals).itertuples()
    assert (found.row_interval, found.row) == (row, f"a#{row}")


def test_work_of_other_streams_counts_if_it_was_issued_inside(export, log):
    """Before the start record, inside, inside but executed after the end, and after the end
    record."""
    tables = tiny()
    more = [(3, 4, 250, 251), (44, 45, 142, 144), (46, 47, 220, 240), (76, 77, 145, 149)]
    for number, (begin, end, start, stop) in enumerate(more, 21):
        tables[P + "RUNTIME"].append(call(number, 2, begin, end))
        extra = {"demangledName": 7, "shortName": 7, "graphNodeId": None, "streamId": 13}
        tables[P + "KERNEL"].append(work(number, start, stop) | extra)
    others = nsysalign.analyze(export(tables), [log]).other_streams
    assert others["stream"].tolist() == [13] and others["ns"].tolist() == [22 * US]


def test_streams_that_two_contexts_number_alike_share_a_row(export, log):
    tables = tiny()
    for number, context in ((21, 1), (22, 2)):
        tables[P + "RUNTIME"].append(call(number, 2, 44 + number - 21, 45 + number - 21))
        extra = {"demangledName": 7, "shortName": 7, "graphNodeId": None, "streamId": 13}
        ran = work(number, 142 + 4 * (context - 1), 144 + 4 * (context - 1)) | extra
        tables[P + "KERNEL"].append(ran | {"contextId": context})
    analysis = nsysalign.analyze(export(tables), [log])
    assert analysis.other_streams["stream"].tolist() == [13]
    assert analysis.other_streams["ns"].tolist() == [4 * US]


def test_grids_of_kernels_that_lie_far_apart_in_the_table(export):
    """More stretches than an expression may have levels: EfficientNet's overview on an H200."""
    path = export(tiny())
    names = [what + axis for what in ("grid", "block") for axis in "XYZ"]
    with closing(sqlite3.connect(path)) as db:
        for value, name in enumerate(names, 1):
            db.execute(f"alter table {P}KERNEL add {name} integer default {value}")
        db.execute(
            f"insert into {P}KERNEL with recursive n(i) as (select 1 union all select i + 1 from n where i < 90000) "
            f"select k.* from {P}KERNEL k, n where k.rowid = 1"
        )
        db.commit()
    rows = np.arange(1, 90_001, 300)
    assert (read_trace(path).shapes(rows)[:, :6] == [1, 2, 3, 4, 5, 6]).all() and len(rows) == 300


def test_an_interval_is_disturbed_by_what_overlaps_its_window(export, log):
    """The profiler's work while the host is ahead, before the GPU begins, disturbs nothing that is
    measured."""
    start = int(nsysalign.analyze(export(tiny()), [log]).measured["start_ns"].iloc[0])
    (row,) = tiny()["PROFILER_OVERHEAD"]
    for begin, disturbed in ((start - 900, False), (start - 100, True)):
        path = export(tiny() | {"PROFILER_OVERHEAD": [row | {"start": begin, "end": begin + 200}]})
        (flags,) = nsysalign.analyze(path, [log]).measured["flags"]
        assert ("profiler-disturbed" in flags) == disturbed
