"""For other tools: trace events that nest, tables that round-trip, text that stays text in a
spreadsheet."""

import csv
import gzip
import itertools
import json
import sys
from collections import defaultdict

import pandas as pd
import pytest
from chrome_format import check
from click.testing import CliRunner
from handmade import build
from recordings import unpack

from nsysalign.cli import cli
from nsysalign.commandline.present import present
from nsysalign.errors import UsageError
from nsysalign.files import file_name
from nsysalign.model import CAUSES
from nsysalign.show import perfetto
from nsysalign.show.timeline_rows import nested_rows
from nsysalign.store import document


def exported(analysis, path):
    perfetto.write(analysis, analysis.timeline, path)
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
    assert (
        whole["name"] == "t1" and whole["args"]["interval"] == "t1#0"
    )  # names add up, numbers are arguments
    assert whole["args"]["host_ns"] == 174_490 and whole["args"]["elapsed_ns"] == 234_720
    named = ["event overhead", "CPU", "launch call", "kernel", "event overhead"]
    assert [p["name"] for p in pieces] == named
    assert sum(p["dur"] for p in pieces) == pytest.approx(whole["dur"])
    assert {"stream 7", "thread 484"} <= set(tracks.values())
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event["ph"])
    assert arrows and all(ends == ["s", "f"] for ends in arrows.values())


def test_the_streams_of_two_processes_are_two_tracks(analysis, tmp_path):
    analysis.intervals["pid"] = 484 + analysis.intervals["interval"] % 2
    events = exported(analysis, tmp_path / "a.json")
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"stream 7 (pid 484)", "stream 7 (pid 485)"} <= tracks and "stream 7" not in tracks


@pytest.mark.parametrize("which", ["by hand", "hostile", "a recording"])
def test_the_file_is_what_the_format_allows(analysis, hostile_analysis, tmp_path, which):
    if which == "a recording":
        unpack("demo", tmp_path)
        present(tmp_path, quiet=True)
        done = CliRunner().invoke(cli, ["export", str(tmp_path), "-o", str(tmp_path / "a.json")])
        assert done.exit_code == 0
    else:
        exported(analysis if which == "by hand" else hostile_analysis, tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text("ascii"))
    check(document)
    assert {e["ph"] for e in document["traceEvents"]} == set("MXisf")


def test_rows_for_items_that_overlap():
    #        0123456789
    #  a     |--------|      c inside a, b partly outside, d after all
    #  b          |-----|
    #  c      |-|
    starts, ends = [0, 1, 5, 12], [9, 3, 11, 13]
    assert nested_rows(starts, ends, nest=True) == [0, 0, 1, 0]
    assert nested_rows(starts, ends, nest=False) == [0, 1, 1, 0]


def test_csv_holds_every_table_and_adds_up(analysis, tmp_path):
    assert document.write_tables(analysis, tmp_path, "csv") == len([*tmp_path.iterdir()]) > 10
    with (tmp_path / "budgets.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    sums = sum(int(first[f"{cause}_ns"]) for cause in CAUSES)
    assert sums == int(first["elapsed_ns"]) == 234_720


FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1", "|x"]


def test_no_cell_is_a_formula_or_drives_a_terminal(hostile_analysis, tmp_path):
    assert all(document.cell(text).startswith("'") for text in FORMULAS)
    assert document.cell("gemm<512, 1>") == "gemm<512, 1>"
    texts = itertools.cycle(FORMULAS)
    document.write_tables(build(name=lambda _: next(texts)), tmp_path, "csv")
    for path in tmp_path.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                assert not any(cell.lstrip()[:1] in tuple("=+@＝") for cell in row), path
    document.write_tables(hostile_analysis, tmp_path, "csv")
    assert not set("\x1b\u202e\u2028\r") & set((tmp_path / "intervals.csv").read_text("utf-8"))


def test_parquet_comes_back(analysis, tmp_path):
    pytest.importorskip("pyarrow")

    document.write_tables(analysis, tmp_path, "parquet")
    back = pd.read_parquet(tmp_path / "intervals.parquet")
    assert back["elapsed_ns"].tolist() == analysis.intervals["elapsed_ns"].tolist()
    assert json.loads(back["callers"][0]) == ["train.py:88"]


def test_parquet_names_what_is_missing(analysis, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow"):
        document.write_tables(analysis, tmp_path, "parquet")


NAMES = [
    *("../../etc/passwd", "/abs", "con", "NUL.txt", "-rf", "", ".", "..", "a b", "x" * 300),
    *("é", "a/b", "a:b", "\x00", "\ud800"),
]


def test_labels_become_file_names_that_are_only_names(tmp_path):
    made = [file_name(name) for name in NAMES]
    assert len(set(made)) == len(NAMES)
    for name in made:
        assert name[0] not in ".-" and len(name) <= 100 and not set(name) & set("/\\:\x00 ")
        (tmp_path / name).touch()
    assert file_name("h2d_t1") == "h2d_t1"


def test_a_run_without_nvtx_ranges_is_exported_whole(tmp_path):
    """A table without a row has columns without a type: the export ended with status 70."""
    (tmp_path / "run").mkdir()
    unpack("positions_h100", tmp_path / "run")
    run, out = str(tmp_path / "run"), tmp_path / "run.json"
    assert CliRunner().invoke(cli, ["analyze", "-q", run]).exit_code == 0
    result = CliRunner().invoke(cli, ["export", "-f", "perfetto", "-o", str(out), run])
    assert result.exit_code == 0, result.output
    assert len(json.loads(out.read_bytes())["traceEvents"]) > 1_000
