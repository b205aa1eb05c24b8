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


def test_the_gpu_named_is_the_one_that_worked(export):
    path = changed(
        export(tiny()),
        "drop table if exists TARGET_INFO_GPU",
        "create table TARGET_INFO_GPU (id integer, name text, cuDevice integer)",
        "insert into TARGET_INFO_GPU values (0, 'NVIDIA T400', 1), (1, 'NVIDIA H200', 0)",
        "drop table if exists TARGET_INFO_CUDA_CONTEXT_INFO",
        "create table TARGET_INFO_CUDA_CONTEXT_INFO (processId integer, contextId integer, deviceId integer, nullStreamId integer)",
        "insert into TARGET_INFO_CUDA_CONTEXT_INFO values (7, 1, 0, 7)",
    )
    assert read_trace(path).info.devices == ("NVIDIA H200",)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("NVIDIA H200", "NVIDIA H200"), ("NVIDIA H200",)),
        (("NVIDIA H200", "NVIDIA T400"), ("NVIDIA H200", "NVIDIA T400")),
        (("NVIDIA H200", "Intel(R) Iris(R)"), ("NVIDIA H200",)),
    ],
)
def test_where_every_gpu_says_device_0_none_is_picked(export, names, said):
    path = changed(
        export(tiny()),
        "drop table if exists TARGET_INFO_GPU",
        "create table TARGET_INFO_GPU (id integer, name text, cuDevice integer, smCount integer)",
        *(
            f"insert into TARGET_INFO_GPU values ({n}, '{name}', 0, {132 * name.startswith('NVIDIA')})"
            for n, name in enumerate(names)
        ),
    )
    assert read_trace(path).info.devices == said


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


def test_names_that_no_answer_uses_are_not_missed(export):
    path = changed(export(tiny()), f"insert into StringIds values (99999, '{'x' * 20_000}')")
    assert not [n for n in read_trace(path).info.notes if "were cut short" in n]
    changed(path, f"update StringIds set value = '{'k' * 20_000}' where id in (select shortName from CUPTI_ACTIVITY_KIND_KERNEL)"
            f" or id in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)")  # fmt: skip
    assert [n for n in read_trace(path).info.notes if "were cut short" in n]


@pytest.mark.parametrize("old", [False, True])
def test_what_an_old_export_cannot_have_was_not_switched_off(export, old):
    tables = tiny()
    for name in ("META_DATA_EXPORT", "TARGET_INFO_CUDA_STREAM"):
        if old or name == "TARGET_INFO_CUDA_STREAM":
            tables.pop(name, None)
    missing = [
        m
        for m in read_trace(export(tables)).info.missing
        if m.startswith("TARGET_INFO_CUDA_STREAM")
    ]
    assert missing and ("before 2022.4" in missing[0]) == (
        old or read_trace(export(tables)).info.schema_version is None
    )


def test_an_interval_is_disturbed_by_what_overlaps_its_window(export, log):
    """The profiler's work while the host is ahead, before the GPU begins, disturbs nothing that is
    measured."""
    analysis = nsysalign.analyze(export(tiny()), [log])
    start = int(analysis.measured["start_ns"].iloc[0])
    calls = read_trace(export(tiny())).calls
    thread = int(calls["thread"].iloc[0])
    for begin, end, disturbed in (
        (start - 900, start - 100, False),
        (start - 100, start + 100, True),
    ):
        path = changed(
            export(tiny()),
            "drop table if exists PROFILER_OVERHEAD",
            "create table PROFILER_OVERHEAD (start integer, end integer, globalTid integer, nameId integer)",
            f"insert into PROFILER_OVERHEAD values ({begin}, {end}, {thread}, 1)",
        )
        flags = nsysalign.analyze(path, [log]).measured["flags"].iloc[0]
        assert ("profiler-disturbed" in flags) == disturbed
