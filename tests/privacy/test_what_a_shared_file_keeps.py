"""Redaction, key by key and row by row: what is kept, what is shortened, what is left behind."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tiny_export import write_export

from nsysalign import files as module
from nsysalign.errors import TraceError, UsageError
from nsysalign.files import new_file
from nsysalign.trace.redaction import pseudonyms, redact, redact_log


def shared(*lines: dict | str, folder: Path, rename=None) -> list:
    log, out = folder / "events-7.jsonl", folder / "out.jsonl"
    log.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    redact_log(log, out, rename=rename)
    return [json.loads(line) if line else "" for line in out.read_text().splitlines()]


def test_a_key_that_nobody_reads_is_left_out_whatever_it_holds(tmp_path):
    line = {"type": "record", "seq": 3, "t0_ns": 1, "t1_ns": 2}
    values = ["text", 7, 0.5, None, True, ["text"], [7], {"a_ns": 7}, {"a": "b"}]
    lines = [{**line, "password": value} for value in values]
    assert shared(*lines, folder=tmp_path) == [line] * len(values)


@pytest.mark.parametrize(("key", "value", "kept"), [
    ("seq", 3, 3), ("seq", None, None), ("seq", True, True), ("seq", 0.5, 0.5),
    ("seq", "3", "left out"), ("seq", [3], "left out"), ("seq", {"a": 3}, "left out"),
    ("region", "step#0", "step#0"), ("region", 7, "left out"), ("region", ["step"], "left out"), ("region", None, "left out"),
    ("site", "/home/me/a/b/c.py:3", "b/c.py:3"), ("site", "c.py:3", "c.py:3"),
    ("callers", ["/home/me/a/b/c.py:3", "d.py:4"], ["b/c.py:3", "d.py:4"]), ("callers", [7], ["7"]),
    ("callers", "c.py:3", "left out"), ("callers", {"a": "b"}, "left out"),
])  # fmt: skip
def test_a_key_of_a_record(tmp_path, key, value, kept):
    (found,) = shared({"type": "record", key: value}, folder=tmp_path)
    assert found == {"type": "record"} | ({} if kept == "left out" else {key: kept})


def test_other_names_reach_every_text_and_keep_what_is_no_name(tmp_path):
    """Regions, files, functions and variables; what was said may name anything."""
    found = shared(
        {"type": "record", "region": "step#3", "site": "a.py:1", "callers": ["b/c.py:22"]},
        {
            "type": "clock_site",
            "function": "a.py:1:f",
            "stores": ["a.py:1:t"],
            "subtracts": [".t0"],
        },
        {"type": "note", "text": "said of secret.py"},
        {"type": "header", "device_name": "GPU", "torch": "2.11"},
        folder=tmp_path,
        rename=str.upper,
    )
    assert found == [
        {"type": "record", "region": "STEP#3", "site": "A.PY:1", "callers": ["B/C.PY:22"]},
        {
            "type": "clock_site",
            "function": "A.PY:1:F",
            "stores": ["A.PY:1:T"],
            "subtracts": [".T0"],
        },
        {"type": "note", "text": ""},
        {"type": "header", "device_name": "GPU", "torch": "2.11"},
    ]


def test_pseudonyms():
    rename = pseudonyms()
    assert rename("") == "" and rename("nsysalign:sync") == "nsysalign:sync"
    step = rename("step")
    assert (
        step.startswith("name-") and len(step) == 15 and rename("step") == step != rename("other")
    )
    assert rename("step#12") == step + "#12" and rename("#3").endswith("#3")
    for other in ("step#", "step#x", "step#1x"):
        assert "#" not in rename(other) and rename(other) != step
    assert rename("\udcff").startswith("name-")


# --- files
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False])
def test_what_came_in_the_meantime_is_not_replaced(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(
            module.os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "no links"))
        )
    with (
        pytest.raises(UsageError, match="already exists and is never overwritten"),
        new_file(tmp_path / "out") as partial,
    ):
        partial.write_text("mine")
        (tmp_path / "out").write_text("theirs")
    assert (tmp_path / "out").read_text() == "theirs" and os.listdir(tmp_path) == ["out"]


def test_a_block_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "out") as partial:
        partial.write_text(str(1 // 0))
    assert os.listdir(tmp_path) == []


# --- traces
# --------------------------------------------------------------------------------------------------------


def rows(path: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def changed(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def test_listed_tables_are_copied_whole_but_for_texts_that_are_no_names(tmp_path):
    """So that nsys opens the copy; what a text of another column says is not known."""
    trace = changed(
        write_export(tmp_path / "trace.sqlite"),
        "insert into NVTX_EVENTS (start, eventType, text, int64Value) values (1, 34, 'mine', 9), (2, 33, 'x', 1)",
        "alter table NVTX_EVENTS add column jsonText text",
        "update NVTX_EVENTS set jsonText = 'secret'",
        "create table ENUM_NSYS_EVENT_TYPE (id integer, name text, label text)",
        "insert into ENUM_NSYS_EVENT_TYPE values (59, 'NvtxPushPopRange', 'NVTX Push/Pop Range')",
        "create table SOMETHING_NEW (name text)",
        "create table ENUM_COMPUTED (id integer, name as (id + 1))",
    )
    out = tmp_path / "out.sqlite"
    redact(trace, out)
    for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "ENUM_NSYS_EVENT_TYPE"):
        names = [row[1] for row in rows(trace, f'pragma table_info("{table}")')]
        query = ", ".join(f'"{name}"' for name in names if name != "jsonText")
        query = f'select rowid, {query} from "{table}"'
        assert rows(out, query) == rows(trace, query) != []
        assert [row[1] for row in rows(out, f'pragma table_info("{table}")')] == names
    assert {row for row in rows(out, "select jsonText from NVTX_EVENTS")} == {(None,)}
    there = {name for (name,) in rows(out, "select name from sqlite_master")}
    assert not there & {"SOMETHING_NEW", "ENUM_COMPUTED"}


def test_what_a_call_is_called_stays_also_where_a_range_is_called_so(tmp_path):
    """`rename` is for kernels and ranges: the text of an API call says what it does."""
    trace = changed(
        write_export(tmp_path / "trace.sqlite"),
        "update NVTX_EVENTS set textId = 2 where textId = 9",
    )
    redact(trace, tmp_path / "out.sqlite", rename=str.upper)
    kept = dict(rows(tmp_path / "out.sqlite", "select id, value from StringIds"))
    assert (kept[2], kept[7]) == ("cudaLaunchKernel_v7000", "ADD(FLOAT*)")


@pytest.mark.parametrize("value", ["'text'", "x'00'"])
def test_a_number_column_with_one_value_that_is_none(tmp_path, value):
    """In one row of several: the others are numbers."""
    trace = changed(
        write_export(tmp_path / "trace.sqlite"),
        f"update CUPTI_ACTIVITY_KIND_RUNTIME set correlationId = {value} where rowid = 2",
    )
    with pytest.raises(TraceError, match="a column of numbers holds something else"):
        redact(trace, tmp_path / "out.sqlite")
    assert os.listdir(tmp_path) == ["trace.sqlite"]
