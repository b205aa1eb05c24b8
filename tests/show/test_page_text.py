"""The page as text: nothing foreign can leave its data block; and what a cause looks like."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd

from nsysalign import frames
from nsysalign.causes import CAUSE_OF_CALL, CAUSE_TABLE, CAUSES, COLUMNS, DISPLAY
from nsysalign.model import CALL_KINDS
from nsysalign.parts import roles
from nsysalign.show import html
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
