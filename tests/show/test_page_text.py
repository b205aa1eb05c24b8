"""The page as text: nothing foreign can leave its data block; and the palette's promise."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.model import CAUSES
from nsysalign.show import html
from nsysalign.show import payload as payload_module
from nsysalign.show.notebook import fragment, shown
from nsysalign.show.pack import packed
from nsysalign.show.palette import CALL_LOOK, LOOKS
from nsysalign.show.payload import payload
from nsysalign.show.timeline_rows import timelines


def test_the_page_asks_for_nothing(analysis):
    page = html.page(analysis)
    assert set(re.findall(r"https?://[^\s\"']+", page)) <= {
        "http://www.w3.org/2000/svg"
    }  # the name of a language
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "default-src 'none'" in page


def test_the_title_is_the_run_and_no_other_folder(analysis, tmp_path):
    """A folder that is no run directory may be called after somebody."""
    plain = replace(
        analysis,
        trace=replace(
            analysis.trace, path="trace.sqlite", session_start_utc_ns=1_795_229_115 * 10**9
        ),
    )
    for folder, title in (
        ("train-001", "train-001, 21 Nov 2026 02:45 UTC"),
        ("alice", "trace, 21 Nov 2026 02:45 UTC"),
    ):
        (tmp_path / folder).mkdir()
        html.write(plain, tmp_path / folder / "report.html")
        page = (tmp_path / folder / "report.html").read_text("utf-8")
        assert f"<title>{title} – nsysalign</title>" in page and "alice" not in page


def test_a_notebook_shows_the_fragment(analysis):
    assert ">234.72</td>" in fragment(analysis)
    assert shown(analysis)._repr_html_() == fragment(analysis)


def test_a_notebook_fragment_has_the_time_without_nsys(analysis):
    row = int(analysis.labels["row_interval"].iloc[0])
    predicted = frames.of_rows([(row, 200_000, 180_000, 221_000, "")], frames.UNPROFILED)
    shown = fragment(replace(analysis, unprofiled=predicted))
    assert "<th>unprofiled us</th>" in shown and ">200 ±21</td>" in shown and ">none</td>" in shown
    assert "unprofiled us" not in fragment(
        replace(analysis, unprofiled=frames.empty(frames.UNPROFILED))
    )


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
    assert tuple(LOOKS) == CAUSES and set(CALL_LOOK.values()) <= set(CAUSES)
    assert len({(look.colour, look.pattern) for look in LOOKS.values()}) == len(CAUSES)
    assert len({look.short for look in LOOKS.values()}) == len(CAUSES)


# Machado, Oliveira, Fernandes 2009, severity 1.0: https://doi.org/10.1109/TVCG.2009.113
VISION = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ np.clip(rgb, 0, 1)
    f = np.cbrt(xyz / [0.9505, 1, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_causes_of_one_pattern_differ_in_colour_for_everybody(vision):
    seen = {
        cause: lab(np.array(VISION[vision]) @ linear(look.colour)) for cause, look in LOOKS.items()
    }
    for a, b in itertools.combinations(CAUSES, 2):
        if LOOKS[a].pattern == LOOKS[b].pattern:
            assert np.linalg.norm(seen[a] - seen[b]) > 15, (a, b)


def test_text_on_a_piece_is_readable():
    for cause, look in LOOKS.items():
        light, dark = sorted(
            (float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (look.colour, look.ink)),
            reverse=True,
        )
        assert (light + 0.05) / (dark + 0.05) >= 4.5, cause


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
    item = {
        "lane_kind": "host",
        "lane": "thread 1",
        "kind": "launch",
        "name": "cudaLaunchKernel",
        "start_ns": 0,
    }
    item |= {"end_ns": 5, "ref_kind": "api", "ref_id": 1, "link": -1}
    first = analysis.intervals["interval"].to_numpy()[::125]
    timeline = pd.DataFrame([{"interval": number, **item} for number in first for _ in range(600)])
    timeline["detail"] = pd.Series([{}] * len(timeline), dtype=object)
    large = replace(analysis, timeline=frames.check(timeline, frames.TIMELINE))
    assert len(payload(large)["timelines"]) == 1_000  # all can be opened
    monkeypatch.setattr(payload_module, "MAX_BYTES", 100_000)
    monkeypatch.setattr(payload_module, "LEAST_TIMELINES", 25_000)
    data = payload(large)
    assert 1 <= len(data["timelines"]) < 1_000 and "more timelines did not fit" in " ".join(
        data["holds"]
    )
