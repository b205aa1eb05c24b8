"""show, diff, export and report as a user calls them."""

import io
import json
import re
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from click.testing import CliRunner
from handmade import build
from recordings import unpack
from rich.console import Console

from nsysalign import frames
from nsysalign.cli import cli
from nsysalign.errors import UsageError
from nsysalign.show import waterfall
from nsysalign.store import database

pytestmark = pytest.mark.usefixtures("remembered")


@pytest.fixture
def run_dir(analysis, tmp_path):
    database.write(analysis, tmp_path / "analysis.db")
    return tmp_path


def call(*arguments, width="100", **more):
    result = CliRunner(env={"COLUMNS": width, "NO_COLOR": "1"}).invoke(
        cli, [str(a) for a in arguments], **more
    )
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize("command", cli.list_commands(None))
def test_every_help_has_an_example_and_fits(command):
    text = call(command, "--help").output
    assert f"Example:  nsysalign {command}" in text


def test_the_waterfall_of_an_interval(run_dir):
    text = call("show", run_dir, "--label", "t1").output
    lines = text.splitlines()
    assert (
        lines[0]
        == "t1#0  puzzle.py:14   235 us, kernel 24.8 us, timestamp uncertainty ±800 ns (bounds)"
    )
    pieces = [re.split(r"\s{2,}", x.strip())[:3] for x in lines if re.match(r" *\d+\.\d\d ", x)]
    assert pieces == [
        ["0.00", "4.00", "event overhead"], ["4.00", "174.49", "CPU"], ["178.49", "28.31", "launch"],
        ["206.80", "24.77", "kernel"], ["231.57", "3.15", "event overhead"],
    ]  # fmt: skip
    assert lines[-2:] == [
        "= 235 us: kernel 24.8 us (11 %) + launch 28.3 us (12 %) + event overhead 7.15 us (3 %) + CPU 174 us ",
        "(74 %)",
    ]
    assert max(map(len, lines)) <= 100 and "\x1b" not in text


def test_an_interval_is_chosen_by_its_label_or_name(run_dir):
    assert call("show", run_dir, "-l", "t2").output.startswith("t2#")
    assert call("show", run_dir, "--interval", "t2#0").output.startswith("t2#0")
    assert call("show", run_dir).output.startswith("t1#0")  # what the first verdict is about
    for option, what in (("-l", "label is"), ("--interval", "interval is named")):
        with pytest.raises(UsageError, match=f"no {what} t9") as error:
            call("show", run_dir, option, "t9")
        assert "t1" in error.value.next_step


def test_a_finding_about_the_whole_run_is_not_a_label_to_show(builder, finding, tmp_path):
    """`show` without a label took the first finding's, and a run is no label."""
    found = builder(findings=[finding | {"label": "run", "severity": "error", "rule": "whole-run"}])
    database.write(found, tmp_path / "analysis.db")
    assert call("show", tmp_path).output.startswith("t1#0")


def test_a_waterfall_of_many_pieces_leaves_nothing_out():
    pieces = [("host", 900, "python"), ("kernel", 100, "gemm")] * 500
    analysis = build([("many", "event", "a.py:1", False, [pieces])])
    lines = waterfall.lines(analysis, 0)
    assert len(lines) <= 2 * waterfall.MOST_LINES + 1 and sum(x.count for x in lines) == 1000
    assert all(a.start_ns + a.ns == b.start_ns for a, b in pairwise(lines))
    assert lines[-1].what.startswith("9") and "CPU 90 %, kernel 10 %" in lines[-1].what


def test_every_piece_of_a_long_interval_is_drawn_without_looking_at_all_others():
    """Each line took 12 ms: the width of a column was that of all its rows, asked for in each."""
    pieces = [("host", 900, "python"), ("kernel", 100, "gemm")] * 5_000
    analysis = build([("many", "event", "a.py:1", False, [pieces])])
    began, out = time.process_time(), io.StringIO()
    waterfall.render(analysis, 0, Console(file=out, width=100), most=None)
    assert out.getvalue().count("\n") > 10_000 and time.process_time() - began < 20


def test_an_analysis_without_pieces_says_so(analysis, tmp_path):
    database.write(
        replace(analysis, segments=frames.empty(frames.SEGMENTS)), tmp_path / "analysis.db"
    )
    assert "are not stored here" in call("show", tmp_path / "analysis.db", "-l", "t1").output


def steady(host_us):
    pieces = [("host", host_us * 1000, "python"), ("kernel", 50_000, "gemm")]
    return build([("step", "event", "a.py:1", False, [pieces] * 8)])


def test_diff_fails_a_build_on_what_it_was_asked_for(tmp_path):
    database.write(steady(100), tmp_path / "a.db")
    database.write(steady(150), tmp_path / "b.db")
    a, b = tmp_path / "a.db", tmp_path / "b.db"
    assert call("diff", a, b).exit_code == 0
    assert call("diff", a, b, "--fail-on", "slower", "-q").output == ""
    assert call("diff", a, b, "--fail-on", "slower").exit_code == 1
    assert call("diff", a, b, "--fail-on", "faster").exit_code == 0
    assert call("diff", b, a, "--fail-on", "slower", "--fail-on", "faster").exit_code == 1
    assert call("diff", a, b, "--fail-on", "slower", "--threshold", "60").exit_code == 0
    done = call("diff", a, b, "-o", tmp_path / "d.html")
    assert done.exit_code == 0 and "d.html" in done.output and (tmp_path / "d.html").is_file()


def test_a_report_of_an_interval_that_was_not_drawn(analysis, tmp_path):
    from dataclasses import replace

    kept = analysis.timeline[analysis.timeline["interval"] != 2]
    database.write(replace(analysis, timeline=kept), tmp_path / "analysis.db")
    result = call("report", tmp_path, "--interval", "t1#2")
    assert "report-t1_2_" in result.output and "drawn from its stored pieces" in result.output
    (page,) = tmp_path.glob("report-*.html")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S).group(1))
    assert data["focus"] == 2 and data["timelines"]["2"]["strip"]


def test_analyze_writes_the_document_to_stdout_and_nothing_else(tmp_path):
    unpack("demo", tmp_path)
    done = call("analyze", tmp_path, "--json", "-")
    document = json.loads(done.stdout)
    assert document["format"] == "nsysalign-analysis" and len(document["labels"]) >= 5
    assert {"report.html", "analysis.db"} <= {p.name for p in tmp_path.iterdir()}
