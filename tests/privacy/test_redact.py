"""A redacted trace gives the same analysis, and holds nothing else: key by key, table by table, to
the letter."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from recordings import unpack
from tiny_export import write_export

import nsysalign
from nsysalign import frames
from nsysalign.cli import cli
from nsysalign.errors import EventLogError, TraceError, UsageError
from nsysalign.model import EventLog, Trace
from nsysalign.store import document
from nsysalign.trace.eventlog import TEXT_KEYS, read_event_logs
from nsysalign.trace.read import read_trace
from nsysalign.trace.redaction import pseudonyms, redact, redact_lines
from nsysalign.trace.samples import read_stacks

from .conftest import leaks

SECRETS = {
    "token": "ghp_s3cr3tT0ken/with+signs",
    "home": "/home/alice.planted/project",
    "host": "planted-host-17.example.org",
    "user": "alice.planted",
    "argument": "--password=hunter2planted",
    "process": "planted_process_name",
    "output": "printed: planted customer 4711",
    "unused": "string that no kept row needs (planted)",
}
#: Every type of line, with every key that is read.
EVERY_LINE = [
    {"type": "header", "format": "nsysalign-events", "version": 1, "pid": 7, "baseline": True, "exit_status": 0,
     "profiled_exit_status": 3, "stopped": True},
    {"type": "record", "seq": 0, "tid": 7, "t0_ns": 10, "t1_ns": 20, "intervened": True, "region": "r#0", "site": "a.py:1"},
    {"type": "wait", "seq": 1, "record": 0, "tid": 7, "t0_ns": 30, "t1_ns": 40},
    {"type": "elapsed", "start": 0, "end": 0, "ms": 0.5},
    {"type": "host", "t0_ns": 1, "t1_ns": 2, "tid": 7, "region": "h#0", "implicit": True},
    {"type": "clock_site", "number": 4, "site": "a.py:4", "callers": ["b.py:9"], "function": "a.py:1:f", "position": 5,
     "use": "difference", "stores": ["a.py:1:t"], "subtracts": ["a.py:1:t0"], "interleaved": True},
    {"type": "clock_reading", "site": 4, "clock": "time", "t_ns": 70, "value_ns": 99, "tid": 7, "region": "h#0", "count": 5},
    {"type": "clock", "monotonic_ns": 1, "realtime_ns": 2, "trace_ns": 3},
    {"type": "sync", "payload": 1, "before_ns": 2, "after_ns": 3},
    {"type": "note", "text": "said"},
]  # fmt: skip


def write_lines(path: Path, *lines: object) -> Path:
    """JSON lines; a text stays as it is."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts))
    return path


def shared(folder: Path, *lines: object, rename=None) -> list:
    """What the redacted copy of a log of these lines holds."""
    out = folder / "out.jsonl"
    out.unlink(missing_ok=True)
    redact_lines(write_lines(folder / "events-7.jsonl", *lines), out, rename=rename)
    return [json.loads(line) if line else "" for line in out.read_text().splitlines()]


def rows(path: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def changed(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def same_trace(a: Trace, b: Trace) -> None:
    """Everything that analysis sees is equal; names only as far as somebody is called so."""
    for field in dataclasses.fields(Trace):
        if isinstance(table := getattr(a, field.name), pd.DataFrame):
            assert table.equals(getattr(b, field.name)), field.name
    assert dataclasses.replace(a.info, path="") == dataclasses.replace(b.info, path="")
    for table in (a.operations, a.calls, a.overhead, a.os_calls):
        for name in table["name_id"].unique().tolist():
            assert a.names.get(name) == b.names.get(name)


def same_log(a: EventLog, b: EventLog) -> None:
    for spec in frames.LOG_SPECS:
        assert getattr(a, spec.name).equals(getattr(b, spec.name)), spec.name
    said = [[note.rpartition(".jsonl: ")[2] for note in log.notes] for log in (a, b)]
    assert said[0] == said[1]
    for left, right in zip(a.headers, b.headers, strict=True):
        assert left.items() >= right.items()


@pytest.mark.parametrize("name", ["truth_linears", "threads_h200", "reference_clock"])
def test_the_analysis_is_equal_to_the_letter(name, tmp_path):
    """A run directory, through the command line; only the trace's file name may differ."""
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    trace, log = unpack(name, run)
    trace, log = trace.rename(run / "trace.sqlite"), log.rename(run / "events-1.jsonl")
    before = trace.read_bytes()
    done = CliRunner().invoke(cli, ["redact", str(run), str(out)], catch_exceptions=False)
    assert done.exit_code == 0 and "gives the same analysis" in done.output
    assert sorted(p.name for p in out.iterdir()) == [log.name, trace.name]
    assert out.stat().st_mode & 0o777 == 0o700 and trace.read_bytes() == before
    one, other = (
        b"".join(document.pieces(nsysalign.analyze(folder / trace.name, [folder / log.name])))
        for folder in (run, out)
    )
    assert one == other and json.loads(one)["intervals"]
    assert rows(out / "trace.sqlite", "pragma freelist_count") == [(0,)]


def planted(path: Path) -> Path:
    """An export with a secret in every place that nsys has for one, and a few more."""
    write_export(path)
    every = SECRETS.values()
    named = "META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV_2031"
    with closing(sqlite3.connect(path)) as db:
        for table, columns in {
            "META_DATA_CAPTURE": "name text, value text",
            "ProcessStreams": "globalPid integer, filenameId integer, contentId integer",
            "PROCESSES": "globalPid integer, pid integer, name text",
            "TARGET_INFO_SYSTEM_ENV_2031": "name text, value text",
            "THREAD_NAMES": "nameId integer, priority integer, globalTid integer",
            "ANALYSIS_FILE": "filename text",
            "gone": "text text",
        }.items():
            db.execute(f"create table {table} ({columns})")
        for number, secret in enumerate(every, start=500):
            db.execute("insert into StringIds values (?, ?)", (number, secret))
            db.execute("insert into ProcessStreams values (1, ?, ?)", (number, number))
            db.execute("insert into THREAD_NAMES values (?, 0, 1)", (number,))
            for table in named:
                for pair in ((f"ENV:{number}", secret), (secret, "x")):
                    db.execute(f"insert into {table} (name, value) values (?, ?)", pair)
            db.execute("insert into PROCESSES values (1, 7, ?)", (secret,))
            db.execute("insert into ANALYSIS_FILE values (?)", (secret,))
            db.execute("insert into gone values (?)", (secret * 100,))
        everything = " ".join(every)
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "TARGET_INFO_GPU"):
            db.execute(f"alter table {table} add column jsonText text")
            db.execute(f"update {table} set jsonText = ?", (everything,))
        # what the program's author wrote into NVTX stays, but for paths
        mark = "insert into NVTX_EVENTS (start, eventType, text) values (1, 34, ?)"
        db.execute(mark, (f"open {SECRETS['home']}/x",))
        lost = f"Events were lost, see '{SECRETS['home']}/a b.log' there"
        db.executemany("insert into DIAGNOSTIC_EVENT values (?, ?)", [(1, everything), (2, lost)])
        db.execute("drop table gone")  # stays in the file's free pages
        db.commit()
    assert {line.split(": ")[1] for line in leaks(path.parent, SECRETS)} == set(SECRETS)
    return path


def test_planted_secrets_stay_behind(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    trace, out = planted(tmp_path / "in" / "trace.sqlite"), tmp_path / "out" / "shared.sqlite"
    assert redact(trace, out) >= len(SECRETS)
    assert leaks(out.parent, SECRETS) == []
    same_trace(read_trace(trace), read_trace(out))
    assert "Events were lost, see 'a b.log' there" in read_trace(out).info.notes


def test_planted_secrets_reach_no_output_of_an_analysis(tmp_path, log):
    (tmp_path / "in").mkdir()
    trace, out, home = planted(tmp_path / "in" / "trace.sqlite"), tmp_path / "out", SECRETS["home"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0] |= {"hostname": SECRETS["host"], "argv": [SECRETS["argument"]], "environ": SECRETS}
    lines[1] |= {"site": f"{home}/train.py:3", "callers": [f"{home}/main.py:9"]}
    lines[3] |= {"site": f"{home}/train.py:5"}
    lines.append({"type": "note", "text": f"could not open {home}/x: denied"})
    failed = {"type": "elapsed", "start": 0, "end": 1, "ms": None}
    lines.append(failed | {"error": f"in {home}/lib.py"})
    lines.append({"type": "source", "site": "a.py:1", "text": f"load('{home}/x')"})
    write_lines(log, *lines)
    changed(
        trace,
        f"update NVTX_EVENTS set text = 'read {home}/data.pt' where eventType in (59, 60)",
        f"update StringIds set value = 'k<{home}/a.cu>' where id = 7",
    )
    for arguments in (
        f"analyze {trace} --events {log} -o {out} --json {out}/copy.json", f"report {out} -o {out}/again.html",
        f"export {out} --format json", f"export {out} --format perfetto -o {out}/p.json.gz",
        f"show {out} --label train.py:3", f"diff {out} {out} --json {out}/diff.json",
    ):  # fmt: skip
        out.mkdir(exist_ok=True)
        done = CliRunner().invoke(cli, arguments.split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        (out / f"printed-{len(os.listdir(out))}").write_text(done.output)
    assert len(os.listdir(out)) >= 12
    assert leaks(out, SECRETS) == []
    assert "project/train.py:3" in (out / "copy.json").read_text()


def test_planted_secrets_stay_out_of_every_text_of_a_shared_log(tmp_path):
    """Of each type of line: regions are the user's own names and stay."""
    lines = []
    for line in EVERY_LINE:
        more = {
            key: f"{SECRETS['home']}/{key}.py:3"
            for key in TEXT_KEYS[line["type"]] - {"format", "region"}
        }
        if line["type"] in ("record", "clock_site"):
            places = ("callers", "stores", "subtracts")
            more |= {key: [f"{SECRETS['home']}/{key}.py:3"] for key in places}
        clock = {"host_ns": SECRETS["home"], "name": SECRETS["home"]}
        lines.append({**line, **more, "clock": clock, "secret": SECRETS["token"]})
    kept = shared(tmp_path, *lines)
    (tmp_path / "events-7.jsonl").unlink()
    assert leaks(tmp_path, SECRETS) == []
    for line, was in zip(kept, lines, strict=True):
        assert TEXT_KEYS[line["type"]] & was.keys() <= line.keys(), "shortened, not left out"
        assert "clock" not in line or line["type"] == "clock_reading" or line["clock"] == {}


def test_stacks_are_shared_without_paths_and_what_is_no_number(tmp_path):
    """What a run with --sample-python holds besides: the copy gives the same answers."""
    frames_of = [["resize", SECRETS["home"] + "/transforms.py", 41, 1], [SECRETS["token"]], 7]
    samples = {"process": 7 << 24, "thread": 1, "main": True, "t_ns": [5, SECRETS["user"]]}
    log, out = tmp_path / "stacks.jsonl", tmp_path / "shared.jsonl"
    write_lines(
        log,
        {"format": "nsysalign-stacks", "version": 1, "frequency_hz": 1000, "host": SECRETS["host"]},
        {"stack": 0, "frames": frames_of},
        samples | {"stack_of": [0, 0]},
        {"process": SECRETS["user"], "t_ns": [5], "stack_of": [0], "main": True},
    )
    redact_lines(log, out)
    assert not [text for text in SECRETS.values() if text in out.read_text()]
    (before, _), (after, _) = read_stacks(log), read_stacks(out)
    assert after.t_ns.tolist() == before.t_ns.tolist() == [5]
    assert after.frames == before.frames and before.frames[0][0].file == "project/transforms.py"
    redact_lines(log, tmp_path / "hashed.jsonl", rename=pseudonyms())
    assert "resize" not in (tmp_path / "hashed.jsonl").read_text()


def test_every_line_of_a_log_keeps_what_analysis_reads(tmp_path):
    shared(tmp_path, *EVERY_LINE)
    logs = [read_event_logs([tmp_path / n]) for n in ("events-7.jsonl", "out.jsonl")]
    same_log(*logs)
    assert logs[0].headers == logs[1].headers
    flags = ("implicit", "library", "captured", "calibration", "interleaved")
    for value in ("0", "yes", [1], {"a": 1}, 1, 0, 0.5, True, None):
        shared(tmp_path, *(line | dict.fromkeys(flags, value) for line in EVERY_LINE))
        same_log(*(read_event_logs([tmp_path / n]) for n in ("events-7.jsonl", "out.jsonl")))


def test_a_key_of_a_record(tmp_path):
    for key, value, kept in (
        ("seq", 3, 3), ("seq", None, None), ("seq", True, True), ("seq", 0.5, 0.5),
        ("seq", "3", "left out"), ("seq", [3], "left out"), ("seq", {"a": 3}, "left out"),
        ("region", "step#0", "step#0"), ("region", 7, "left out"), ("region", ["step"], "left out"), ("region", None, "left out"),
        ("site", "/home/me/a/b/c.py:3", "b/c.py:3"), ("site", "c.py:3", "c.py:3"),
        ("callers", ["/home/me/a/b/c.py:3", "d.py:4"], ["b/c.py:3", "d.py:4"]), ("callers", [7], ["7"]),
        ("callers", "c.py:3", "left out"), ("callers", {"a": "b"}, "left out"),
        ("nobody reads it", "text", "left out"), ("nobody reads it", 7, "left out"), ("nobody reads it", {"a_ns": 7}, "left out"),
    ):  # fmt: skip
        (found,) = shared(tmp_path, {"type": "record", key: value})
        assert found == {"type": "record"} | ({} if kept == "left out" else {key: kept})


@pytest.mark.parametrize("place", [0, 1])
def test_a_line_that_cannot_be_used_is_the_same_to_a_shared_log(tmp_path, place):
    """Before the header it is an error, of both files; after it a note, if anything."""
    for line in ('{"type": null}', '{"type": "secret"}', "[7]", "null", "cut {", ""):
        shared(tmp_path, *EVERY_LINE[:place], line, *EVERY_LINE[place:])
        log, out = tmp_path / "events-7.jsonl", tmp_path / "out.jsonl"
        assert "secret" not in out.read_text() and "cut" not in out.read_text()
        if place or not line:
            same_log(read_event_logs([log]), read_event_logs([out]))
            continue
        messages = []
        for path in (log, out):
            with pytest.raises(EventLogError) as caught:
                read_event_logs([path])
            messages.append(caught.value.message.replace(path.name, ""))
        assert messages[0] == messages[1]


def test_a_run_directory_keeps_its_clock_samples_and_its_run_without_nsys(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    (run / "baseline").mkdir(parents=True)
    write_export(run / "trace.sqlite")
    for folder in (run, run / "baseline"):
        write_lines(folder / "events-7.jsonl", EVERY_LINE[0])
    columns = ["monotonic_ns", "device"]
    header = {"type": "header", "format": "nsysalign-clocks", "version": 1, "columns": columns}
    lines = [{**header, "host": SECRETS["host"]}, [5, 0], [9, None], [SECRETS["token"], 0], "cut"]
    write_lines(run / "clocks.jsonl", *lines)
    assert CliRunner().invoke(cli, ["redact", "-q", str(run), str(out)]).exit_code == 0
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*.*")) == [
        "baseline/events-7.jsonl", "clocks.jsonl", "events-7.jsonl", "trace.sqlite"
    ]  # fmt: skip
    kept = [json.loads(line) for line in (out / "clocks.jsonl").read_text().splitlines()]
    assert kept == [header, [5, 0], [9, None], [None, 0], None]


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


def test_a_number_column_with_one_value_that_is_none(tmp_path):
    """In one row of several: the others are numbers."""
    said = "update CUPTI_ACTIVITY_KIND_RUNTIME set correlationId = 'text' where rowid = 2"
    trace = changed(write_export(tmp_path / "trace.sqlite"), said)
    with pytest.raises(TraceError, match="a column of numbers holds something else"):
        redact(trace, tmp_path / "out.sqlite")
    assert os.listdir(tmp_path) == ["trace.sqlite"]


def test_other_names_reach_every_text_and_keep_what_is_no_name(tmp_path):
    """Regions, files, functions and variables; what was said may name anything."""
    record = {"type": "record", "region": "step#3", "site": "a.py:1", "callers": ["b/c.py:22"]}
    site = {"type": "clock_site", "function": "a.py:1:f", "stores": ["a.py:1:t"]}
    header = {"type": "header", "device_name": "GPU", "torch": "2.11"}
    note = {"type": "note", "text": "said of secret.py"}
    found = shared(tmp_path, record, site | {"subtracts": [".t0"]}, note, header, rename=str.upper)
    assert found == [
        {"type": "record", "region": "STEP#3", "site": "A.PY:1", "callers": ["B/C.PY:22"]},
        {"type": "clock_site", "function": "A.PY:1:F", "stores": ["A.PY:1:T"], "subtracts": [".T0"]},
        {"type": "note", "text": ""},
        header,
    ]  # fmt: skip


def test_pseudonyms(tmp_path, log):
    """Always the same ones, which nobody can try out; numbers stay, and so does every answer."""
    rename = pseudonyms()
    step = rename("step")
    assert rename("") == "" and rename("nsysalign:sync") == "nsysalign:sync"
    assert step.startswith("name-") and len(step) == 15 and rename("step") == step
    assert rename("other") != step != pseudonyms()("step")
    assert rename("step#12") == step + "#12" and rename("#3").endswith("#3")
    assert not any("#" in rename(other) for other in ("step#", "step#x", "step#1x"))
    assert rename("\udcff").startswith("name-")
    trace = changed(
        write_export(tmp_path / "trace.sqlite"),
        "update PROFILER_OVERHEAD set nameId = 10",
        "update NVTX_EVENTS set textId = 2 where textId = 9",  # called as an API call is
        "update NVTX_EVENTS set text = 'load customer 4711' where text = 'open'",
    )
    with log.open("a") as file:
        for number in (3, 4):
            host = {"type": "host", "region": f"forward_of_4711#{number}", "t0_ns": 1, "t1_ns": 2}
            file.write(json.dumps(host) + "\n")
    redact(trace, tmp_path / "a.sqlite", rename=rename)
    redact_lines(log, tmp_path / "a.jsonl", rename=rename)
    plain, other = read_trace(trace), read_trace(tmp_path / "a.sqlite")
    assert plain.names[7] == "add(float*)" and other.names[7].startswith("name-")
    assert [text[:5] for text in other.ranges["text"]] == ["cudaL", "name-"]
    assert other.marks["payload"].tolist() == plain.marks["payload"].tolist() != []
    assert other.calls.equals(plain.calls), "API calls are what they were, and called so"
    assert other.names[2] == plain.names[2] == "cudaLaunchKernel"
    before = nsysalign.analyze(trace, [log])
    after = nsysalign.analyze(tmp_path / "a.sqlite", [tmp_path / "a.jsonl"])
    assert after.parts.equals(before.parts)
    assert after.segments["start_ns"].equals(before.segments["start_ns"])
    secrets = {"kernel": "add(float*)", "range": "load customer 4711", "region": "forward_of_4711"}
    assert [line for line in leaks(tmp_path, secrets) if line.startswith("a.")] == []


def test_nothing_is_overwritten(tmp_path, monkeypatch):
    """Nor what came in the meantime; a copy that fails leaves nothing."""
    trace, link, out = (tmp_path / name for name in ("trace.sqlite", "link.sqlite", "out"))
    write_export(trace)
    link.symlink_to(tmp_path / "elsewhere.sqlite")

    def refused(target):
        done = CliRunner().invoke(cli, ["redact", str(trace), str(target)])
        assert isinstance(done.exception, UsageError)
        assert "already exists and is never overwritten" in done.exception.message

    def meanwhile(*arguments, **named):
        out.write_text("theirs")
        return redact(*arguments, **named)

    for target in (link, trace):
        refused(target)
    monkeypatch.setattr("nsysalign.trace.redaction.redact", meanwhile)
    refused(out)
    assert out.read_text() == "theirs"
    out.unlink()
    monkeypatch.setattr("nsysalign.trace.redaction.redact", lambda *a, **k: 1 / 0)
    done = CliRunner().invoke(cli, ["redact", str(trace), str(out)])
    assert isinstance(done.exception, ZeroDivisionError)
    assert sorted(os.listdir(tmp_path)) == ["link.sqlite", "trace.sqlite"]
