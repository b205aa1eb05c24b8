"""Reading exports of every shape: what is absent, NULL, impossible or damaged."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from click.testing import CliRunner
from thorough import part
from tiny_export import OFFSET, PROCESS, US, P, call, tiny, work

import nsysalign
from nsysalign.cli import cli
from nsysalign.errors import TraceError
from nsysalign.model import CALL, KIND
from nsysalign.trace import schema
from nsysalign.trace.read import read_trace
from nsysalign.trace.sqlite import opened

OTHER = (1 << 56) | (8 << 24)


def check_budgets(analysis: nsysalign.Analysis) -> None:
    """Whatever is missing: every interval's parts add up, and nothing disappears in silence."""
    sums = analysis.parts.groupby("interval")["ns"].sum()
    assert (sums == analysis.intervals.set_index("interval")["elapsed_ns"]).all()
    assert (analysis.parts["ns"] >= 0).all()
    assert len(analysis.measured) + len(analysis.unaligned) == 1


def test_the_tiny_export_reads_as_it_is_drawn(export, log):
    trace = read_trace(export(tiny()))
    assert [trace.names[n] for n in trace.calls["name_id"]] == [
        "cudaEventRecord", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord",
        "cudaGraphLaunch", "cudaStreamSynchronize",
    ]  # fmt: skip
    assert trace.operations["kind"].tolist() == [
        KIND[k] for k in ("kernel", "memcpy", "memset", "graph")
    ]
    assert trace.operations["call"].tolist() == [1, 2, 3, 5] and trace.syncs["call"].tolist() == [6]
    assert trace.syncs["event"].tolist() == [-1], "the sentinel for no event"
    assert trace.ranges["text"].tolist() == ["work", "open"], "via textId and inline"
    assert trace.ranges["end_ns"].tolist() == [75 * US, 75 * US], "an open range lasts to the end"
    assert trace.marks["payload"].tolist() == [OFFSET + 3 * US]
    assert trace.info.nsys_version == "2024.2.3" and trace.info.driver_version == "580.1"
    assert trace.info.devices == ("GPU of the test",) and trace.info.missing == ()
    assert trace.info.notes == ("Not all events might have been collected.",)
    analysis = nsysalign.analyze(export(tiny()), [log])
    check_budgets(analysis)
    assert len(analysis.measured) == 1 and analysis.unaligned.empty
    own = analysis.parts["interval"].isin(analysis.measured["interval"])
    parts = analysis.parts[own].set_index("cause")["ns"]
    assert parts["kernel"] == 40 * US and parts["memcpy"] >= 20 * US and parts["memset"] == 5 * US


DISPENSABLE = sorted(tiny().keys() - {P + "RUNTIME", "StringIds"})
#: Tables of operations, calls and ranges: from the others come names, clocks and notes.
OF_TIMES = [
    name for name in DISPENSABLE if name.startswith(P) or name.endswith(("_EVENTS", "OSRT_API"))
]


@pytest.mark.parametrize("table", DISPENSABLE)
def test_an_absent_table_costs_one_feature(export, table):
    path = export({name: rows for name, rows in tiny().items() if name != table})
    assert (table in " ".join(read_trace(path).info.missing)) == (table in schema.COST)


@pytest.mark.parametrize(
    "absent",
    [{name} for name in part([P + "KERNEL", P + "SYNCHRONIZATION", "NVTX_EVENTS"], DISPENSABLE)]
    + [{P + "GRAPH_TRACE", P + "MEMCPY", P + "MEMSET"}, {*DISPENSABLE} - {*OF_TIMES}],
    ids=len,
)
def test_without_tables_everything_still_adds_up(export, log, absent):
    tables = {name: rows for name, rows in tiny().items() if name not in absent}
    check_budgets(nsysalign.analyze(export(tables), [log]))


def test_columns_that_hold_nothing_cost_no_more(export, log):
    """NULL in each column that can be done without."""
    needed = {f.candidates for t in schema.TABLES for f in t.fields if f.default is None}
    needed = {name for names in needed for name in names}
    tables = {
        table: [{k: v if k in needed else None for k, v in row.items()} for row in rows]
        for table, rows in tiny().items()
    }
    check_budgets(nsysalign.analyze(export(tables), [log]))


@pytest.mark.parametrize(
    ("table", "column"), [(t, f) for t in schema.TABLES for f in t.fields], ids=lambda x: x.name
)
def test_an_absent_column_is_its_default_or_named(export, table, column):
    tables = tiny() | {schema.UNTRACED.name: [{"start": 1, "end": 2, "globalPid": 3, "plain": 1}]}
    tables[table.name] = [
        {k: v for k, v in row.items() if k not in column.candidates} for row in tables[table.name]
    ]
    with opened(export(tables)) as source:
        if column.default is None:
            with pytest.raises(
                TraceError, match=f"{table.name} has no column .*{column.candidates[0]}"
            ):
                source.read(table)
        elif table.where == "" or column.name != "kind":
            assert (source.read(table)[column.name] == column.default).all()


def test_rows_without_a_possible_time_are_left_out_and_counted(export):
    tables = tiny()
    kernel, called = work(2, 100, 140), call(9, 2, 300, 310)
    tables[P + "KERNEL"] += [kernel | {"start": None}, work(2, 0, 0), work(2, 140, 100)]
    tables[P + "RUNTIME"] += [called | {"end": None}, called | {"start": None}, call(11, 2, 50, 40)]
    trace = read_trace(export(tables))
    assert len(trace.operations) == 4 and len(trace.calls) == 7
    notes = [n for n in trace.info.notes if "with impossible times (absent, zero, reversed" in n]
    assert [n.partition(" with")[0] for n in notes] == ["3 CUDA API calls", "3 operations"]


@pytest.mark.parametrize("table", ["KERNEL", "MEMCPY", "MEMSET"])
def test_a_copy_does_not_end_after_the_next_work_of_its_stream(export, table):
    """As of the copy before a graph's first launch.  Kernels and nodes of a graph may overlap."""
    tables = tiny()
    tables[P + table][0]["end"] = 350 * US
    assert len(read_trace(export(tables)).operations) == (4 if table == "KERNEL" else 3)
    tables[P + table][0]["graphNodeId"] = 5
    assert len(read_trace(export(tables)).operations) == 4
    tables[P + table][0] |= {"graphNodeId": None, "streamId": 8}
    assert len(read_trace(export(tables)).operations) == 4


def test_before_global_pid_one_process_is_joined_and_two_are_not(export):
    tables = tiny()
    del tables[P + "KERNEL"][0]["globalPid"]
    trace = read_trace(export(tables))
    assert set(trace.operations["process"]) == {PROCESS} and trace.operations["call"][0] == 1
    tables[P + "RUNTIME"].append(call(2, 2, 21, 39, OTHER, 8))
    trace = read_trace(export(tables))
    assert trace.operations[["process", "call"]].values.tolist()[0] == [-1, -1]


def test_no_cuda_activity_is_an_error_with_the_next_step(export):
    with pytest.raises(TraceError, match="no CUDA activity") as error:
        read_trace(export({"NVTX_EVENTS": tiny()["NVTX_EVENTS"][2:]}))
    assert "-t cuda" in error.value.next_step


def test_ranges_alone_are_an_answer(export):
    """What they took, that there is no GPU work, and what to record."""
    path = export({name: tiny()[name] for name in ("NVTX_EVENTS", "StringIds")})
    analysis = nsysalign.analyze(path)
    assert analysis.intervals.empty and analysis.findings.empty
    columns = ["label", "count", "host_ns", "with_work"]
    assert analysis.host_ranges[columns].values.tolist() == [
        ["work", 1, 60 * US, 0], ["open", 1, 59 * US, 0],
    ]  # fmt: skip
    done = CliRunner().invoke(cli, ["analyze", str(path)], catch_exceptions=False)
    assert done.exit_code == 0 and done.output.startswith("2 NVTX ranges and no GPU work")
    assert "-t cuda,nvtx" in done.output and "60.0 us" in done.output


def test_a_driver_call_inside_a_runtime_call_counts_once(export):
    tables = tiny()
    tables[P + "RUNTIME"] += [call(20, 8, 25, 35), call(21, 8, 36, 40)]
    tables[P + "KERNEL"][0]["correlationId"] = 20
    trace = read_trace(export(tables))
    start = trace.calls["start_ns"].tolist()
    outer = np.arange(len(start)) - trace.calls["nested"].to_numpy()
    runtime = start.index(20 * US)
    assert [outer[start.index(us * US)] for us in (20, 25, 36)] == [runtime] * 3
    assert trace.operations["call"][0] == runtime, "although CUPTI names the driver's"
    tables = tiny()
    tables[P + "RUNTIME"] += [call(20, 8, 25, 35, tid=9)]
    assert read_trace(export(tables)).outermost.all(), "calls of other threads do not nest"


def test_correlation_ids_belong_to_a_process(export):
    tables = tiny()
    tables[P + "RUNTIME"].append(call(2, 2, 22, 30, OTHER, 8))
    tables[P + "KERNEL"].append(work(2, 110, 120, OTHER, demangledName=7, shortName=7))
    trace = read_trace(export(tables))
    kernels = trace.operations[trace.operations["kind"] == KIND["kernel"]]
    issued = trace.calls["process"].to_numpy()[kernels["call"].to_numpy()]
    assert (issued == kernels["process"].to_numpy()).all() and len(set(issued)) == 2


def test_an_id_that_was_used_again_joins_nothing(export):
    """The only call with the kernel's id came 50 ms after the kernel."""
    tables = tiny()
    tables[P + "RUNTIME"] = [r for r in tables[P + "RUNTIME"] if r["correlationId"] != 2]
    tables[P + "RUNTIME"].append(call(2, 2, 50_000, 50_010))
    assert read_trace(export(tables)).operations["call"].tolist()[0] == -1


def test_prefetches_and_library_calls_issue_work_too(export):
    tables = tiny()
    tables["StringIds"].append({"id": 30, "value": "cudaSomethingNew_v13000"})
    tables[P + "RUNTIME"][1]["nameId"] = 30
    trace = read_trace(export(tables))
    assert trace.calls["kind"][1] == CALL["other"] and trace.operations["call"][0] == 1


@pytest.mark.parametrize(
    "value", [b"\xff\xfe\xed\xa0\x80", b"", 12, 1.5, "\udcff", "a\0b", "x" * 100_000]
)
def test_any_value_can_stand_where_a_text_is_expected(export, log, value):
    path = export(tiny())
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    as_text = "cast(? as text)" if isinstance(value, str) else "?"
    with closing(sqlite3.connect(path)) as db:
        for table, column in (
            ("StringIds", "value"),
            ("TARGET_INFO_GPU", "name"),
            ("META_DATA_EXPORT", "value"),
            ("DIAGNOSTIC_EVENT", "text"),
            ("NVTX_EVENTS", "text"),
        ):
            db.execute(
                f"update {table} set {column} = {as_text} where {column} is not null", (raw,)
            )
        db.commit()
    trace = read_trace(path)
    texts = [*trace.names.values(), *trace.ranges["text"], *trace.info.devices, *trace.info.notes]
    assert all(isinstance(t, str) and t.encode() is not None for t in texts)
    if value in part((b"", "\udcff"), (value,)):  # all are texts from here on
        check_budgets(nsysalign.analyze(path, [log]))


def test_a_null_in_a_column_that_is_declared_to_have_none(export):
    """Damaged, or edited: SQLite itself believes the declaration, `is not null` is always true."""
    path = export(tiny())
    with closing(sqlite3.connect(path)) as db:
        db.execute("update StringIds set value = null where id in (2, 7)")
        db.execute("pragma writable_schema = on")
        text = '"value" TEXT NOT NULL'
        db.execute("update sqlite_master set sql = replace(sql, '\"value\" TEXT', ?)", (text,))
        db.commit()
    trace = read_trace(path)
    assert {2, 7} & trace.names.keys() == set() and len(trace.calls) == 7


def test_a_session_start_that_is_no_time_is_not_known(export, log):
    for value in ("soon", 1e308, -5, 2**63 - 1, b"x", None):
        path = export(tiny() | {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": value}]})
        assert read_trace(path).info.session_start_utc_ns is None, value
    check_budgets(nsysalign.analyze(path, [log]))


def test_a_text_where_a_number_is_needed_is_named(export):
    tables = tiny()
    tables[P + "KERNEL"][0]["streamId"] = "seven"
    with pytest.raises(TraceError, match="KERNEL: a column of numbers holds something else"):
        read_trace(export(tables))


def test_what_is_no_file_is_said(tmp_path):
    """Nobody waits for a pipe."""
    os.mkfifo(tmp_path / "pipe.sqlite")
    for name, said in (
        ("absent", "no such file"),
        ("", "is a folder"),
        ("pipe.sqlite", "not a file"),
    ):
        with pytest.raises(TraceError, match=said):
            read_trace(tmp_path / name)


def test_a_record_on_a_threads_own_default_stream_bears_the_number_of_the_legacy_one(export):
    """Of programs compiled with a default stream per thread: thread 7 copies on stream 20 and
    records, thread 8 only records."""
    tables = tiny()
    tables["StringIds"][0]["value"] = "cudaEventRecord_ptsz"
    tables["StringIds"] += [{"id": 31, "value": "cudaMemcpy_v3020_ptds"}]
    tables[P + "RUNTIME"] += [call(20, 31, 202, 210), call(21, 1, 212, 214, tid=8)]
    tables[P + "MEMCPY"].append(work(20, 204, 206) | {"streamId": 20})
    tables[P + "CUDA_EVENT"] += [{**tables[P + "CUDA_EVENT"][0], "correlationId": 21}]
    rows = read_trace(export(tables)).event_rows
    assert rows.sort_values("call")["stream"].tolist() == [20, 20, 7]
