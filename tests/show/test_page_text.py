"""The page as text: nothing foreign can leave its data block; and what a cause looks like."""

import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
from rich.console import Console

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.causes import CAUSE_OF_CALL, CAUSE_TABLE, CAUSES, COLUMNS, DISPLAY
from nsysalign.model import CALL_KINDS
from nsysalign.parts import roles
from nsysalign.show import html, markdown, screen
from nsysalign.show import payload as payload_module
from nsysalign.show.notebook import fragment
from nsysalign.show.payload import payload
from nsysalign.show.timeline_rows import packed, timelines


def test_the_page_asks_for_nothing(analysis):
    page = html.page(analysis)
    language = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^\s\"']+", page)) <= language
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "default-src 'none'" in page


def test_the_title_is_the_run_and_no_other_folder(analysis, tmp_path):
    """A folder that is no run directory may be called after somebody."""
    began = {"path": "trace.sqlite", "session_start_utc_ns": 1_795_229_115 * 10**9}
    plain = replace(analysis, trace=replace(analysis.trace, **began))
    for folder, title in (
        ("train-001", "train-001, 21 Nov 2026 02:45 UTC"),
        ("alice", "trace, 21 Nov 2026 02:45 UTC"),
    ):
        (tmp_path / folder).mkdir()
        html.write(plain, tmp_path / folder / "report.html")
        page = (tmp_path / folder / "report.html").read_text("utf-8")
        assert f"<title>{title} – nsysalign</title>" in page and "alice" not in page


def test_the_recorder_is_named_once(analysis):
    def by(recorder, version):
        trace = replace(analysis.trace, recorder=recorder, nsys_version=version)
        return payload_module.gpu_and_recorder(replace(analysis, trace=trace)).partition(", ")[2]

    assert by("cupti", "(CUPTI 13.0.1)") == "CUPTI 13.0.1"
    assert by("cupti", None) == "CUPTI"
    assert by("nsys", "2024.2.3") == "nsys 2024.2.3"


def test_a_notebook_fragment_has_the_time_without_nsys(analysis):
    row = int(analysis.labels["row_interval"].iloc[0])
    predicted = frames.of_rows([(row, 200_000, 180_000, 221_000, "")], frames.UNPROFILED)
    shown = fragment(replace(analysis, unprofiled=predicted))
    assert "<th>unprofiled us</th>" in shown and ">200 ±21</td>" in shown and ">none</td>" in shown
    assert "unprofiled us" not in fragment(analysis)


def test_timelines_stop_at_their_size_and_say_so(analysis):
    assert timelines(analysis, [0, 0, 1]).left_out == 0
    small = timelines(analysis, [2], max_bytes=1)
    assert list(small.intervals) == ["2"] and small.left_out == 5
    data = payload(analysis)
    assert data["holds"][0].startswith("This page holds the timeline of 6 of 6 intervals: ")


def test_an_operation_points_at_its_call(analysis):
    picture = timelines(analysis, [0]).intervals["0"]
    stream = next(lane for lane in picture["lanes"] if lane["kind"] == "stream")
    host = picture["lanes"][stream["al"][0]]
    assert host["kind"] == "host" and stream["ax"][0] == host["x"][0] == 178_490


def test_every_cause_has_its_own_look():
    assert tuple(CAUSE_OF_CALL) == CALL_KINDS and {*CAUSE_OF_CALL.values()} <= {*CAUSES}
    assert {cause.column for cause in CAUSE_TABLE.values()} == {*COLUMNS}
    assert len({(cause.colour, cause.pattern) for cause in CAUSE_TABLE.values()}) == len(CAUSES)
    assert len({*DISPLAY.values()}) == len(CAUSES)


def test_a_word_means_the_same_sum_on_every_screen(builder):
    """CPU is time outside of CUDA, not calls, and not the profiler's own work: in the terminal's table, in the
    page's parts, and in Markdown.  A column of one part has its name, others have a name of their own."""
    causes_of = {
        column: [DISPLAY[name] for name, cause in CAUSE_TABLE.items() if cause.column == column]
        for column in COLUMNS
    }
    for column, causes in causes_of.items():
        assert causes == [column] if len(causes) == 1 else column not in DISPLAY.values()
    pieces = {
        "host": 40_000,
        "api": 30_000,
        "profiler": 20_000,
        "api_launch": 15_000,
        "kernel": 25_000,
    }
    runs = [[(cause, ns, "x") for cause, ns in pieces.items()]]
    analysis = builder([("t", "event", "t.py:1", False, runs)])
    (row,) = answer(analysis).labels
    words = {"CPU": 40, "calls": 30, "profiler": 20, "launch": 15, "kernels": 25}
    assert {name: ns / 1e3 for name, ns in row.columns_ns.items() if ns} == words
    shown = Console(file=io.StringIO(), width=100, color_system=None)
    screen.render(answer(analysis), shown)
    assert "time = kernels + launch + calls + CPU + profiler" in shown.file.getvalue()
    table = markdown.interval(analysis, answer(analysis), 0)
    (parts,) = (label["parts"] for label in payload(analysis)["labels"])
    for cause, ns in pieces.items():
        assert f"| {DISPLAY[cause]} | {ns / 1e3:.3f} |" in table and parts[cause] == ns


def test_kernels_beside_the_time_are_the_same_on_every_screen(builder):
    """Of a host timer what ran while its thread did something else, of two events what ran on other streams:
    of every interval, not of the typical one alone."""
    timer = [[("host", ns, ""), ("kernel", 2_000, "gemm")] for ns in (30_000, 40_000, 50_000)]
    analysis = builder(
        [
            ("h", "host", "h.py:1", False, timer),
            ("e", "event", "e.py:1", False, [[("host", 9_000, "")]]),
        ]
    )
    ran = analysis.intervals["kernel_only_upper_ns"].to_numpy().copy()
    ran[:3] = (2_000, 12_000, 22_000)
    streams = frames.of_rows([(3, 13, 5_000, False)], frames.OTHER_STREAMS)
    analysis = replace(
        analysis,
        intervals=analysis.intervals.assign(kernel_only_upper_ns=ran),
        other_streams=streams,
    )
    said = answer(analysis)
    assert {row.label: row.beside_ns for row in said.labels} == {"h": 12_000, "e": 5_000}
    data = payload(analysis)
    assert {label["label"]: runs["beside"] for label, runs in zip(data["labels"], data["runs"], strict=True)} == {
        "h": [0, 12_000, 22_000], "e": [5_000]
    }  # fmt: skip
    shown = Console(file=io.StringIO(), width=100, color_system=None)
    screen.render(said, shown)
    assert "2.0 (12.0)" in shown.file.getvalue() and " (5.0)" in shown.file.getvalue()


def test_columns_of_numbers_are_packed_where_that_is_shorter():
    assert packed([0, 63, 64, *[0] * 20]).startswith("2AAA/BA")
    assert packed([0] * 25) == "1" + "A" * 25
    assert packed(range(5)) == [0, 1, 2, 3, 4]  # short ones can be read
    assert packed([-1] * 25) == [-1] * 25 and packed([1 << 50] * 25) == [1 << 50] * 25
    assert packed([(1 << 48) - 1] * 25) == "8" + "/" * 200


def test_25_000_intervals_with_everything_in_them_stay_below_4_megabytes(builder, monkeypatch):
    """Every cause in every run, times of seven digits: the runs take so much each, the timelines
    what is left."""
    runs = [
        [(cause, 1_000_003 * (k + r + 1) % 9_999_991, "x") for k, cause in enumerate(CAUSES)]
        for r in range(125)
    ]
    analysis = builder(
        [(f"block_{k}.py:{k}", "event", "", False, runs) for k in range(8)], timeline=False
    )
    runs = json.dumps(payload(analysis)["runs"], separators=(",", ":"))
    each = len(runs) / len(analysis.intervals)
    words = len(html.page(builder([]))) + 100_000  # style and script; cards and labels
    largest = max(payload_module.MAX_BYTES, 25_000 * each + payload_module.LEAST_TIMELINES)
    assert words + largest < 4e6
    assert words + payload_module.MAX_BYTES < 2e6  # what does not hold all causes 25,000 times
    item = ("host", "thread 1", "launch", "cudaLaunchKernel", 0, 5, "api", 1, -1, {})
    first = analysis.intervals["interval"].tolist()[::125]
    rows = [(number, *item) for number in first for _ in range(600)]
    large = replace(analysis, timeline=frames.of_rows(rows, frames.TIMELINE))
    assert len(payload(large)["timelines"]) == 1_000  # all can be opened
    monkeypatch.setattr(payload_module, "MAX_BYTES", 100_000)
    monkeypatch.setattr(payload_module, "LEAST_TIMELINES", 25_000)
    data = payload(large)
    assert 1 <= len(data["timelines"]) < 1_000
    assert "more timelines did not fit" in " ".join(data["holds"])


def test_the_slowest_repetition_is_one_of_the_later_ones():
    """A label's first call is a button of its own; a label of one repetition has nothing else."""
    intervals = pd.DataFrame({
        "interval": [0, 1, 2, 3], "label": ["a", "a", "a", "b"],
        "elapsed_ns": [900, 100, 120, 50], "start_ns": [0, 1000, 2000, 5000],
    })  # fmt: skip
    labels = pd.DataFrame({"label": ["b", "a"], "row_interval": [3, 1]})
    assert roles(SimpleNamespace(intervals=intervals, labels=labels)) == {
        "b": (3, 3, 3), "a": (1, 2, 0)
    }  # fmt: skip
