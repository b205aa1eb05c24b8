"""For other tools: trace events that nest, and file names that are only names."""

import gzip
import json
from collections import defaultdict

import pytest
from chrome_format import check
from click.testing import CliRunner
from recordings import unpack

from nsysalign.cli import cli
from nsysalign.commandline.present import present
from nsysalign.files import file_name
from nsysalign.show import perfetto
from nsysalign.show.timeline_rows import nested_rows

pytestmark = pytest.mark.usefixtures("remembered")


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
    named = ["event overhead", "CPU", "launch", "kernel", "event overhead"]
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
