"""A redacted trace gives the same analysis, and holds nothing else."""

from __future__ import annotations

import dataclasses
import json
import lzma
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from tiny_export import write_export

import nsysalign
from nsysalign import frames
from nsysalign.cli import cli
from nsysalign.errors import EventLogError, UsageError
from nsysalign.model import EventLog, Trace
from nsysalign.store import document
from nsysalign.trace.eventlog import TEXT_KEYS, read_event_logs
from nsysalign.trace.read import read_trace
from nsysalign.trace.redaction import pseudonyms, redact, redact_log

from .conftest import TESTS, leaks

RECORDINGS = ("graph_loop_h100", "threads_h200", "reference_clock")
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


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name.removesuffix(".xz")
    path.write_bytes(lzma.decompress((TESTS / "data" / name).read_bytes()))
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
    assert a.notes == b.notes
    assert all(
        left.items() >= right.items() for left, right in zip(a.headers, b.headers, strict=True)
    )


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recording_reads_the_same_afterwards(name, tmp_path):
    trace, log = (
        unpacked(f"{name}.{suffix}.xz", tmp_path) for suffix in ("sqlite", "events.jsonl")
    )
    before = trace.read_bytes()
    redact(trace, tmp_path / "shared.sqlite")
    redact_log(log, tmp_path / "shared.jsonl")
    same_trace(read_trace(trace), read_trace(tmp_path / "shared.sqlite"))
    same_log(read_event_logs([log]), read_event_logs([tmp_path / "shared.jsonl"]))
    assert trace.read_bytes() == before


def test_the_analysis_is_equal_to_the_letter(tmp_path):
    """A run directory, through the command line; only the trace's file name may differ."""
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    unpacked("truth_linears.sqlite.xz", run).rename(run / "trace.sqlite")
    unpacked("truth_linears.events.jsonl.xz", run).rename(run / "events-7.jsonl")
    done = CliRunner().invoke(cli, ["redact", str(run), str(out)], catch_exceptions=False)
    assert done.exit_code == 0 and "gives the same analysis" in done.output
    assert sorted(p.name for p in out.iterdir()) == ["events-7.jsonl", "trace.sqlite"]
    assert out.stat().st_mode & 0o777 == 0o700
    analyses = [
        document.dumps(nsysalign.analyze(d / "trace.sqlite", [d / "events-7.jsonl"]))
        for d in (run, out)
    ]
    assert sum(i["kind"] == "event" for i in json.loads(analyses[0])["intervals"]) == 60
    assert analyses[0] == analyses[1]
    with closing(sqlite3.connect(out / "trace.sqlite")) as db:
        assert db.execute("pragma freelist_count").fetchone() == (0,)
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


# --- planted
# ---------------------------------------------------------------------------------------------------


def planted(path: Path) -> Path:
    """An export with a secret in every place that nsys has for one, and a few more."""
    write_export(path)
    s = SECRETS
    with closing(sqlite3.connect(path)) as db:
        for table, columns in {
            "META_DATA_CAPTURE": "name text, value text",
            "ProcessStreams": "globalPid integer, filenameId integer, contentId integer",
            "PROCESSES": "globalPid integer, pid integer, name text",
            "TARGET_INFO_SYSTEM_ENV_2031": "name text, value text",
            "THREAD_NAMES": "nameId integer, priority integer, globalTid integer",
            "ANALYSIS_FILE": "filename text",
        }.items():
            db.execute(f"create table {table} ({columns})")
        texts = dict(enumerate(s.values(), start=500))
        db.executemany("insert into StringIds values (?, ?)", texts.items())
        db.executemany("insert into ProcessStreams values (1, ?, ?)", [(k, k) for k in texts])
        db.executemany("insert into THREAD_NAMES values (?, 0, 1)", [(k,) for k in texts])
        for table in (
            "META_DATA_CAPTURE",
            "TARGET_INFO_SYSTEM_ENV",
            "TARGET_INFO_SYSTEM_ENV_2031",
            "META_DATA_EXPORT",
        ):
            db.executemany(
                f"insert into {table} (name, value) values (?, ?)",
                [(f"ENV:{k}", v) for k, v in s.items()],
            )
            db.executemany(
                f"insert into {table} (name, value) values (?, 'x')", [(v,) for v in s.values()]
            )
        db.executemany("insert into PROCESSES values (1, 7, ?)", [(v,) for v in s.values()])
        db.executemany("insert into ANALYSIS_FILE values (?)", [(v,) for v in s.values()])
        everything = " ".join(s.values())
        for table in (
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "NVTX_EVENTS",
            "TARGET_INFO_GPU",
        ):
            db.execute(f"alter table {table} add column jsonText text")
            db.execute(f"update {table} set jsonText = ?", (everything,))
        # what the program's author wrote into NVTX stays, but for paths
        db.executemany(
            "insert into NVTX_EVENTS (start, eventType, text) values (1, ?, ?)",
            [(kind, f"open {s['home']}/x") for kind in (34, 75)],
        )
        db.execute("insert into DIAGNOSTIC_EVENT values (1, ?)", (everything,))
        db.execute(
            "insert into DIAGNOSTIC_EVENT values (2, ?)",
            (f"Events were lost, see '{s['home']}/a b.log' there",),
        )
        db.execute("create table gone (text text)")
        db.executemany("insert into gone values (?)", [(v * 100,) for v in s.values()])
        db.execute("drop table gone")  # stays in the file's free pages
        db.commit()
    assert {line.split(": ")[1] for line in leaks(path.parent, s)} == set(s), (
        "all are in the export"
    )
    return path


def test_planted_secrets_stay_behind(tmp_path):
    (tmp_path / "in").mkdir()
    trace = planted(tmp_path / "in" / "trace.sqlite")
    (tmp_path / "out").mkdir()
    assert redact(trace, tmp_path / "out" / "shared.sqlite") >= len(SECRETS)
    assert leaks(tmp_path / "out", SECRETS) == []
    trace, shared = read_trace(trace), read_trace(tmp_path / "out" / "shared.sqlite")
    same_trace(trace, shared)
    assert "Events were lost, see 'a b.log' there" in shared.info.notes


def test_planted_secrets_reach_no_output_of_an_analysis(tmp_path, log):
    (tmp_path / "in").mkdir()
    trace, out = planted(tmp_path / "in" / "trace.sqlite"), tmp_path / "out"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0] |= {
        "hostname": SECRETS["host"],
        "argv": [SECRETS["argument"]],
        "environ": {"T": SECRETS["token"]},
    }
    lines[1] |= {
        "site": f"{SECRETS['home']}/train.py:3",
        "callers": [f"{SECRETS['home']}/main.py:9"],
    }
    lines[3] |= {"site": f"{SECRETS['home']}/train.py:5"}
    lines.append({"type": "note", "text": f"could not open {SECRETS['home']}/x: denied"})
    lines.append(
        {
            "type": "elapsed",
            "start": 0,
            "end": 1,
            "ms": None,
            "error": f"in {SECRETS['home']}/lib.py",
        }
    )
    lines.append({"type": "source", "site": "a.py:1", "text": f"load('{SECRETS['home']}/x')"})
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with closing(sqlite3.connect(trace)) as db:
        named = f"read {SECRETS['home']}/data.pt"
        db.execute("update NVTX_EVENTS set text = ? where eventType in (59, 60)", (named,))
        db.execute("update StringIds set value = ? where id = 7", (f"k<{SECRETS['home']}/a.cu>",))
        db.commit()
    for arguments in (
        [
            "analyze",
            str(trace),
            "--events",
            str(log),
            "-o",
            str(out),
            "--json",
            str(out / "copy.json"),
        ],
        ["report", str(out), "-o", str(out / "again.html")],
        *(["export", str(out), "--format", form] for form in ("perfetto", "csv")),
        ["export", str(out), "--format", "perfetto", "-o", str(out / "p.json.gz")],
        ["show", str(out), "--label", "train.py:3"],
        ["diff", str(out), str(out), "-o", str(out / "diff.html")],
    ):
        out.mkdir(exist_ok=True)
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        (out / f"printed-{arguments[0]}-{len(os.listdir(out))}").write_text(done.output)
    assert len(os.listdir(out)) >= 14
    assert leaks(out, SECRETS) == []
    assert "project/train.py:3" in (out / "copy.json").read_text()


def test_planted_secrets_stay_out_of_every_text_of_a_shared_log(tmp_path):
    """Of each type of line: regions are the user's own names and stay."""
    home = {"home": SECRETS["home"]}
    log, out = tmp_path / "in" / "events-7.jsonl", tmp_path / "out" / "events-7.jsonl"
    log.parent.mkdir()
    out.parent.mkdir()
    lines = []
    for line in EVERY_LINE:
        texts = TEXT_KEYS[line["type"]] - {"format", "region"}
        more = {key: f"{SECRETS['home']}/{key}.py:3" for key in texts}
        if line["type"] in ("record", "clock_site"):
            more |= {
                key: [f"{SECRETS['home']}/{key}.py:3"] for key in ("callers", "stores", "subtracts")
            }
        lines.append(
            {**line, **more, "clock": {"host_ns": SECRETS["home"], "name": SECRETS["home"]}}
        )
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(leaks(log.parent, home)) == 1
    redact_log(log, out)
    assert leaks(out.parent, home) == []
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    for line, was in zip(kept, lines, strict=True):
        assert TEXT_KEYS[line["type"]] & was.keys() <= line.keys(), "shortened, not left out"
        assert "clock" not in line or line["type"] == "clock_reading" or line["clock"] == {}


# --- names
# -----------------------------------------------------------------------------------------------------


def test_names_can_be_exchanged(tmp_path, log):
    trace = write_export(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(trace)) as db:
        db.execute("update PROFILER_OVERHEAD set nameId = 10")  # 9 is the range's
        db.execute("update NVTX_EVENTS set text = 'load customer 4711' where text = 'open'")
        db.commit()
    with log.open("a") as file:
        file.write(
            json.dumps({"type": "host", "region": "forward_of_4711#3", "t0_ns": 1, "t1_ns": 2})
            + "\n"
        )
        file.write(
            json.dumps({"type": "host", "region": "forward_of_4711#4", "t0_ns": 1, "t1_ns": 2})
            + "\n"
        )
    rename = pseudonyms()
    redact(trace, tmp_path / "a.sqlite", rename=rename)
    redact_log(log, tmp_path / "a.jsonl", rename=rename)
    plain, other = read_trace(trace), read_trace(tmp_path / "a.sqlite")
    assert plain.names[7] == "add(float*)" and other.names[7].startswith("name-")
    assert plain.ranges["text"].tolist() == ["work", "load customer 4711"]
    assert all(t.startswith("name-") for t in other.ranges["text"])
    assert other.marks["payload"].tolist() == plain.marks["payload"].tolist() != [], (
        "the harness's own stay"
    )
    assert other.calls.equals(plain.calls), "API calls are what they were"
    a, b = read_event_logs([tmp_path / "a.jsonl"]).hosts["region"]
    assert a.startswith("name-") and a.endswith("#3") and a[:-1] == b[:-1]
    before = nsysalign.analyze(trace, [log])
    after = nsysalign.analyze(tmp_path / "a.sqlite", [tmp_path / "a.jsonl"])
    assert after.parts.equals(before.parts) and after.segments["start_ns"].equals(
        before.segments["start_ns"]
    )
    secrets = {"kernel": "add(float*)", "range": "load customer 4711", "region": "forward_of_4711"}
    assert [line for line in leaks(tmp_path, secrets) if line.startswith("a.")] == []
    assert pseudonyms()("x") != rename("x"), "another key each time: no list of names can be tried"


# --- what is refused
# -------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path):
    trace, out = write_export(tmp_path / "trace.sqlite"), tmp_path / "out.sqlite"
    out.write_text("mine")
    link = tmp_path / "link.sqlite"
    link.symlink_to(tmp_path / "elsewhere.sqlite")
    for target in (out, link, trace):
        with pytest.raises(UsageError, match="already exists and is never overwritten"):
            redact(trace, target)
    done = CliRunner().invoke(cli, ["redact", str(trace), str(out)])
    assert isinstance(done.exception, UsageError)
    with pytest.raises(UsageError, match="cannot be written"):
        redact(trace, tmp_path / "absent" / "out.sqlite")
    assert out.read_text() == "mine" and not (tmp_path / "elsewhere.sqlite").exists()
    assert sorted(os.listdir(tmp_path)) == ["link.sqlite", "out.sqlite", "trace.sqlite"]


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


def test_every_line_of_a_log_keeps_what_analysis_reads(tmp_path):
    log, out = tmp_path / "events-7.jsonl", tmp_path / "out.jsonl"
    log.write_text(
        "".join(json.dumps({**line, "secret": SECRETS["token"]}) + "\n" for line in EVERY_LINE)
    )
    redact_log(log, out)
    same_log(read_event_logs([log]), read_event_logs([out]))
    before, after = (read_event_logs([path]).headers[0] for path in (log, out))
    assert {k: v for k, v in before.items() if k != "secret"} == after


@pytest.mark.parametrize("value", ["0", "yes", [1], {"a": 1}, 1, 0, 0.5, True, None])
def test_a_flag_of_any_type_is_the_same_to_a_shared_log(tmp_path, value):
    log, out = tmp_path / "events-7.jsonl", tmp_path / "out.jsonl"
    flags = ("implicit", "intervened", "library", "captured", "calibration", "interleaved")
    log.write_text(
        "".join(json.dumps(line | dict.fromkeys(flags, value)) + "\n" for line in EVERY_LINE)
    )
    redact_log(log, out)
    same_log(read_event_logs([log]), read_event_logs([out]))


UNUSABLE = ['{"type": null}', '{"type": "secret"}', "[7]", "null", "cut {", ""]


@pytest.mark.parametrize("line", UNUSABLE)
@pytest.mark.parametrize("at", [0, 1])
def test_a_line_that_cannot_be_used_is_the_same_to_a_shared_log(tmp_path, line, at):
    """Before the header it is an error, of both files; after it a note, if anything."""
    lines = [json.dumps(item) for item in EVERY_LINE]
    log, out = tmp_path / "events-7.jsonl", tmp_path / "shared" / "events-7.jsonl"
    out.parent.mkdir()
    log.write_text("\n".join([*lines[:at], line, *lines[at:]]) + "\n")
    redact_log(log, out)
    assert "secret" not in out.read_text() and "cut" not in out.read_text()
    if at or not line:
        same_log(read_event_logs([log]), read_event_logs([out]))
        return
    messages = []
    for path in (log, out):
        with pytest.raises(EventLogError) as caught:
            read_event_logs([path])
        messages.append(caught.value.message)
    assert messages[0] == messages[1]


def test_a_run_directory_keeps_its_clock_samples_and_its_run_without_nsys(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    (run / "baseline").mkdir(parents=True)
    write_export(run / "trace.sqlite")
    for folder in (run, run / "baseline"):
        (folder / "events-7.jsonl").write_text(json.dumps(EVERY_LINE[0]) + "\n")
    header = {
        "type": "header",
        "format": "nsysalign-clocks",
        "version": 1,
        "columns": ["monotonic_ns", "device"],
    }
    lines = [{**header, "host": SECRETS["host"]}, [5, 0], [9, None], [SECRETS["token"], 0], "cut"]
    (run / "clocks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert CliRunner().invoke(cli, ["redact", "-q", str(run), str(out)]).exit_code == 0
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*.*")) == [
        "baseline/events-7.jsonl", "clocks.jsonl", "events-7.jsonl", "trace.sqlite"
    ]  # fmt: skip
    assert [json.loads(line) for line in (out / "clocks.jsonl").read_text().splitlines()] == [
        header, [5, 0], [9, None], [None, 0], None,
    ]  # fmt: skip


def test_stacks_are_shared_without_paths_and_what_is_no_number(tmp_path):
    """What a run with --sample-python holds besides: the copy gives the same answers."""
    from nsysalign.trace.redaction import redact_stacks
    from nsysalign.trace.stacks import read_stacks

    log, out = tmp_path / "stacks.jsonl", tmp_path / "shared.jsonl"
    lines = [
        {"format": "nsysalign-stacks", "version": 1, "frequency_hz": 1000, "host": SECRETS["host"]},
        {
            "stack": 0,
            "frames": [
                ["resize", SECRETS["home"] + "/transforms.py", 41, 1],
                [SECRETS["token"]],
                7,
            ],
        },
        {
            "process": 7 << 24,
            "thread": 1,
            "main": True,
            "t_ns": [5, SECRETS["user"]],
            "stack_of": [0, 0],
        },
        {"process": SECRETS["user"], "t_ns": [5], "stack_of": [0], "main": True},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    redact_stacks(log, out)
    assert not [text for text in SECRETS.values() if text in out.read_text()]
    (before, _), (after, _) = read_stacks(log), read_stacks(out)
    assert after.t_ns.tolist() == before.t_ns.tolist() == [5]
    assert after.frames == before.frames and before.frames[0][0].file == "project/transforms.py"
    redact_stacks(log, tmp_path / "hashed.jsonl", rename=pseudonyms())
    assert "resize" not in (tmp_path / "hashed.jsonl").read_text()
