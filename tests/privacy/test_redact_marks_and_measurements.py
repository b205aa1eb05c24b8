"""What `redact` makes of dumps of marks and of measurements: the numbers stay, private words do not."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import nsysalign
from nsysalign.cli import cli
from nsysalign.marks import dump, layout
from nsysalign.marks.layout import name_hash
from nsysalign.marks.redaction import redact_dump
from nsysalign.measure.result import load
from nsysalign.trace.redaction import pseudonyms

from .conftest import TESTS, leaks

SECRET = "planted private phase"
TABLES = (
    "marked_kernels",
    "marks",
    "kernel_phases",
    "sm_time",
    "sm_spans",
    "path_counts",
    "latencies",
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A run directory with a run of its own for the marks, recorded on an H100; in its dump a name that no mark has."""
    run = tmp_path_factory.mktemp("marks") / "run"
    (run / "marked").mkdir(parents=True)
    data = TESTS / "data" / "marks"
    for name, to in (
        ("plain.sqlite", "trace.sqlite"),
        ("marked.sqlite", "marked/trace.sqlite"),
        ("nsam", "marked/marks-7-0.nsam"),
    ):
        (run / to).write_bytes(lzma.decompress((data / f"example_h100.{name}.xz").read_bytes()))
    path = run / "marked" / "marks-7-0.nsam"
    content = path.read_bytes()
    length = int.from_bytes(content[20:24], "little")
    about = json.loads(content[24 : 24 + length])
    about |= {"names": [*about["names"], SECRET], "cwd": SECRET}
    text = json.dumps(about).encode()
    fixed = bytearray(content[24 + length :])
    fixed[40 : 40 + len(SECRET)] = SECRET.encode()  # in the header's unused bytes
    path.write_bytes(content[:20] + len(text).to_bytes(4, "little") + text + fixed)
    return run


def redacted(*arguments: object):
    done = CliRunner().invoke(cli, ["redact", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done


def test_a_run_with_marks_gives_the_same_analysis(recorded, tmp_path):
    redacted(recorded, tmp_path / "out")
    assert not leaks(tmp_path / "out", {"name": SECRET, "folder": str(tmp_path)})
    before, after = nsysalign.analyze(recorded), nsysalign.analyze(tmp_path / "out")
    assert len(after.marked_kernels) and len(after.kernel_phases)
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(before, table), getattr(after, table))


def test_marks_are_called_otherwise_and_nobody_can_look_for_a_name(recorded, tmp_path):
    redacted(recorded, tmp_path / "out", "--hash-names")
    was = dump.read(recorded / "marked" / "marks-7-0.nsam")
    now = dump.read(tmp_path / "out" / "marked" / "marks-7-0.nsam")
    used = {int(n) >> 2 for n in was.id} - {0}
    names = {was.names[n] for n in used if n in was.names}
    assert len(names) >= 3 and all(n.startswith("name-") for n in now.names.values())
    content = (tmp_path / "out" / "marked" / "marks-7-0.nsam").read_bytes()
    assert not [name for name in names if name.encode() in content]
    assert not {int(n) >> 2 for n in now.id} & {name_hash(n) for n in names}
    for field in ("time", "clock", "of"):
        assert np.array_equal(getattr(was, field), getattr(now, field))
    assert np.array_equal(was.id & 3, now.id & 3)
    before, after = nsysalign.analyze(recorded), nsysalign.analyze(tmp_path / "out")
    kept = ["kernel", "ns"]
    for a, b in ((before, after),):
        assert (
            a.sm_time.groupby("kernel")["ns"].sum().equals(b.sm_time.groupby("kernel")["ns"].sum())
        )
        assert sorted(a.sm_time[kept].values.tolist()) == sorted(b.sm_time[kept].values.tolist())
    assert set(after.kernel_phases["phase"]) <= {*now.names.values(), ""}


def test_numbers_of_triggers_and_marks_without_a_name_stay_what_they_are(tmp_path):
    fixed = bytearray(layout.TABLE)
    fixed[: layout.LINE] = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, 0, 8_000, 400, 1024)
    counters = np.zeros(4, dump.SLOT)
    counters["tag"], counters["id"] = (
        1,
        np.array([layout.TRIGGER + 5, 0, name_hash("a"), name_hash("b")]) * 4,
    )
    counts = np.zeros(layout.COUNTS, "<u4")
    counts[0], counts[5] = len(counters), 77
    text = json.dumps({"pid": 7, "device": 0, "sms": 2, "names": ["a"]}).encode()
    path, out = tmp_path / "x.nsam", tmp_path / "out.nsam"
    head = layout.FILE_MAGIC + np.array([layout.FILE_VERSION, len(text)], "<u4").tobytes()
    path.write_bytes(head + text + fixed + counts.tobytes() + counters.tobytes())
    redact_dump(path, out, pseudonyms())
    found = dump.read(out)
    trigger, nothing, a, b = (found.counters["id"] >> 2).tolist()
    assert (trigger, nothing) == (layout.TRIGGER + 5, 0)
    assert {a, b} == set(found.names) and not {a, b} & {name_hash("a"), name_hash("b")}
    redact_dump(path, tmp_path / "same.nsam", lambda name: "one")
    assert sorted(dump.read(tmp_path / "same.nsam").names.values()) == ["one", "one'"]


def test_a_dump_that_nobody_can_read_is_left_out_and_said(recorded, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "trace.sqlite").write_bytes((recorded / "trace.sqlite").read_bytes())
    (run / "marks-1-0.nsam").write_bytes(b"NSYSALIGN-MARKS\n" + SECRET.encode())
    done = redacted(run, tmp_path / "out", "-q")
    assert "left out: marks-1-0.nsam" in done.output
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["trace.sqlite"]


# --- measurements -------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path) -> Path:
    """The file of a measurement, with a secret at every place where a word can stand."""
    run = {
        "number": 0, "target": 0, "batch": 4, "replicate": 0, "role": "time", "wall_s": 1.5, "outputs": 4.0,
        "memory": {"peak_allocated": 9, "x": SECRET}, "clean": {"found": [SECRET], "libraries": 3},
        "refused": {"graph": SECRET}, "facts": {"event": {"late": 0, "x": SECRET}}, "unsettled": SECRET, "settled": False,
    }  # fmt: skip
    failed = {**run, "number": 1, "failure": "error", "message": SECRET}
    document = {
        "format": "nsysalign-measure", "version": 1, "targets": ["/home/alice.planted/calls.py:make"],
        "options": {"modes": ["event"], "l2": ["warm"], "batches": [4], "at": 50.0, "precision": 0.005, "x": SECRET},
        "environment": {"device": "simulated device", "torch": "2.11", "sms": 132, "hostname": SECRET},
        "search": {"largest": 4, "limited": SECRET, "trials": [{"batch": 4, "failure": SECRET}, {"batch": 8, "failure": "memory"}]},
        "notes": [SECRET], "complete": True, "runs": [run, failed],
        "profiles": [
            {"target": 0, "batch": 4, "run": "profile-4", "problem": "", "elapsed_ns": 100.0, "parts_ns": {"kernel": 90.0, "idle": 10.0}},
            {"target": 0, "batch": 8, "run": f"../{SECRET}", "problem": SECRET},
        ],
        "blocks": [{"run": 0, "mode": "event", "l2": "warm", "t0": 0, "t1": 9, "sm_mhz": None, "ns": [5, 6, 7]}],
    }  # fmt: skip
    path = tmp_path / "measured" / "measure.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document))
    return path.parent


@pytest.mark.parametrize("names", [(), ("--hash-names",)])
def test_of_a_measurement_the_numbers_stay(measured, tmp_path, names):
    secrets = {"word": SECRET, "user": "alice.planted"} | (
        {"function": "calls.py"} if names else {}
    )
    for path, out in ((measured, tmp_path / "one"), (measured / "measure.json", tmp_path / "two")):
        redacted(path, out, *names)
        assert not leaks(out, secrets)
        before, after = load(measured), load(out)
        assert before.samples.drop(columns="target").equals(after.samples.drop(columns="target"))
        assert after.targets == ("calls.py:make",) or names
        assert [r.memory for r in after.runs] == [{"peak_allocated": 9}] * 2
        assert after.options == {
            "modes": ["event"],
            "l2": ["warm"],
            "batches": [4],
            "at": 50.0,
            "precision": 0.005,
        }
        assert (
            after.profiles[0].parts_ns == before.profiles[0].parts_ns
            and after.profiles[1].run == ""
        )
        assert after.search["trials"] == [{"batch": 4}, {"batch": 8, "failure": "memory"}]
    again = CliRunner().invoke(cli, ["redact", str(measured), str(tmp_path / "one")])
    assert again.exit_code != 0 and "already exists" in str(again.exception)


def test_profiles_of_a_measurement_are_redacted_as_runs(measured, tmp_path, recorded):
    profile = measured / "profile-4"
    profile.mkdir()
    (profile / "trace.sqlite").write_bytes((recorded / "trace.sqlite").read_bytes())
    (profile / "nsys.log").write_text(SECRET)
    redacted(measured, tmp_path / "out")
    assert not leaks(tmp_path / "out", {"word": SECRET})
    assert sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")
    ) == [
        "measure.json",
        "profile-4/trace.sqlite",
    ]
