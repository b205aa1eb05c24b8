"""For other tools: trace events that nest, tables that round-trip, text that stays text in a spreadsheet."""

import csv
import gzip
import json
import sys
from collections import defaultdict

import pytest
from handmade import build

from nsysalign.errors import UsageError
from nsysalign.report import flat, trace_events
from nsysalign.report.files import file_name


def exported(analysis, path):
    trace_events.write(analysis, analysis.timeline, path)
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(content)["traceEvents"]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_budgets_are_tracks_over_the_operations(analysis, tmp_path, name):
    events = exported(analysis, tmp_path / name)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    t1 = [e for e in events if e["ph"] == "X" and tracks[e["pid"], e["tid"]] == "t1"]
    assert groups[t1[0]["pid"]] == "nsysalign budgets"
    whole, *pieces = t1[:6]
    assert whole["name"] == "t1#0 235 us" and whole["args"]["host_ns"] == 174_490
    assert [p["name"] for p in pieces] == ["event", "host", "launch", "kernel", "event"]
    assert sum(p["dur"] for p in pieces) == pytest.approx(whole["dur"])
    assert {"stream 7", "thread 484"} <= set(tracks.values())
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event["ph"])
    assert arrows and all(ends == ["s", "f"] for ends in arrows.values())


def test_the_streams_of_two_processes_are_two_tracks(analysis, tmp_path):
    analysis.intervals["pid"] = [484 if number % 2 else 485 for number in analysis.intervals["interval"]]
    tracks = {
        e["args"]["name"] for e in exported(analysis, tmp_path / "a.json") if e["name"] == "thread_name"
    }
    assert {"stream 7 (pid 484)", "stream 7 (pid 485)"} <= tracks and "stream 7" not in tracks


def test_slices_of_a_track_nest(analysis, tmp_path):
    tracks = defaultdict(list)
    for event in exported(analysis, tmp_path / "a.json"):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(
                (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
            )
    for slices in tracks.values():
        stack = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)


def test_rows_for_items_that_overlap():
    #        0123456789
    #  a     |--------|      c inside a, b partly outside, d after all
    #  b          |-----|
    #  c      |-|
    starts, ends = [0, 1, 5, 12], [9, 3, 11, 13]
    assert trace_events.nested_rows(starts, ends, nest=True) == [0, 0, 1, 0]
    assert trace_events.nested_rows(starts, ends, nest=False) == [0, 1, 1, 0]


def test_csv_holds_every_table_and_adds_up(analysis, tmp_path):
    written = flat.write_csv(analysis, tmp_path)
    assert {p.stem for p in written} >= {"budgets", "intervals", "parts", "segments", "labels"}
    with (tmp_path / "budgets.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    causes = [
        key
        for key in first
        if key.endswith("_ns")
        and key not in ("elapsed_ns", "kernel_only_ns", "error_ns", "start_ns", "end_ns")
    ]
    assert sum(int(first[key]) for key in causes) == int(first["elapsed_ns"]) == 234_720


FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1", "|x"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text, tmp_path):
    assert flat.cell(text).startswith("'")
    flat.write_csv(build(name=lambda _: text), tmp_path)
    for path in tmp_path.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                assert not any(cell.lstrip()[:1] in tuple("=+@＝") for cell in row), path


def test_a_hostile_cell_is_one_line_without_control_characters(hostile_analysis, tmp_path):
    flat.write_csv(hostile_analysis, tmp_path)
    text = (tmp_path / "intervals.csv").read_text("utf-8")
    assert not set("\x1b\u202e\u2028\r") & set(text)
    assert flat.cell("gemm<512, 1>") == "gemm<512, 1>"


def test_hostile_names_in_trace_events(hostile_analysis, tmp_path):
    events = exported(hostile_analysis, tmp_path / "a.json")
    texts = json.dumps(events)
    assert "\\u001b" not in texts and "\\u202e" not in texts and "onerror" in texts
    assert (tmp_path / "a.json").read_bytes().isascii()


def test_parquet_comes_back(analysis, tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    flat.write_parquet(analysis, tmp_path)
    back = pd.read_parquet(tmp_path / "intervals.parquet")
    assert back["elapsed_ns"].tolist() == analysis.intervals["elapsed_ns"].tolist()
    assert json.loads(back["callers"][0]) == ["train.py:88"]


def test_parquet_names_what_is_missing(analysis, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow"):
        flat.write_parquet(analysis, tmp_path)


NAMES = [
    "../../etc/passwd",
    "/abs",
    "con",
    "NUL.txt",
    "-rf",
    "",
    ".",
    "..",
    "a b",
    "x" * 300,
    "é",
    "a/b",
    "a:b",
    "\x00",
    "\ud800",
]


def test_labels_become_file_names_that_are_only_names(tmp_path):
    made = [file_name(name) for name in NAMES]
    assert len(set(made)) == len(NAMES)
    for name in made:
        assert name and len(name) <= 100 and name[0] not in ".-" and not set(name) & set("/\\:\x00 ")
        (tmp_path / name).touch()
    assert file_name("h2d_t1") == "h2d_t1"
