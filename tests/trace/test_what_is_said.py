"""What the analysis says of a trace is of this trace: the GPU that worked, names that are used,
what an old export cannot have."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from tiny_export import tiny

import nsysalign
from nsysalign.trace.read import read_trace


def changed(path, *statements: str):
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


CONTEXT = [{"processId": 7, "contextId": 1, "deviceId": 0}]


@pytest.mark.parametrize(("gpus", "said"), [
    ([("T400", 1, 4), ("H200", 0, 132)], ("H200",)),                   # the one that worked
    ([("H200", 0, 132), ("H200", 0, 132)], ("H200",)),                 # some exports say 0 of every GPU
    ([("H200", 0, 132), ("T400", 0, 4)], ("H200", "T400")),
    ([("H200", 0, 132), ("Intel(R) Iris(R)", 0, 0)], ("H200",)),
])  # fmt: skip
def test_the_gpu_named_is_the_one_that_worked(export, gpus, said):
    rows = [dict(zip(("name", "cuDevice", "smCount"), gpu, strict=True)) for gpu in gpus]
    tables = tiny() | {"TARGET_INFO_GPU": rows, "TARGET_INFO_CUDA_CONTEXT_INFO": CONTEXT}
    assert read_trace(export(tables)).info.devices == said


def test_grids_of_kernels_that_lie_far_apart_in_the_table(export):
    """More stretches than an expression may have levels: EfficientNet's overview on an H200."""
    path = changed(
        export(tiny()),
        *(
            f"alter table CUPTI_ACTIVITY_KIND_KERNEL add {what}{axis} integer default {value}"
            for value, (what, axis) in enumerate(
                ((w, a) for w in ("grid", "block") for a in "XYZ"), 1
            )
        ),
        "insert into CUPTI_ACTIVITY_KIND_KERNEL with recursive n(i) as "
        "(select 1 union all select i + 1 from n where i < 90000) "
        "select k.* from CUPTI_ACTIVITY_KIND_KERNEL k, n where k.rowid = 1",
    )
    rows = np.arange(1, 90_001, 300)
    assert (read_trace(path).shapes(rows)[:, :6] == [1, 2, 3, 4, 5, 6]).all() and len(rows) == 300


def test_an_interval_is_disturbed_by_what_overlaps_its_window(export, log):
    """The profiler's work while the host is ahead, before the GPU begins, disturbs nothing that is
    measured."""
    start = int(nsysalign.analyze(export(tiny()), [log]).measured["start_ns"].iloc[0])
    for begin, disturbed in ((start - 900, False), (start - 100, True)):
        (row,) = tiny()["PROFILER_OVERHEAD"]
        path = export(tiny() | {"PROFILER_OVERHEAD": [row | {"start": begin, "end": begin + 200}]})
        (flags,) = nsysalign.analyze(path, [log]).measured["flags"]
        assert ("profiler-disturbed" in flags) == disturbed
