"""Clock samples on the trace's clock."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.place.clocks import ClockMap, place_samples
from nsysalign.trace.samples import read_clock_samples

MS = 1_000_000


def table(*clocks, device=0, reasons=None):
    """One sample every 25 ms, from monotonic 1 s on."""
    n = len(clocks)
    frame = pd.DataFrame(
        {
            "monotonic_ns": 1_000 * MS + 25 * MS * np.arange(n),
            "realtime_ns": 501_000 * MS + 25 * MS * np.arange(n),
            "device": device,
            "sm_mhz": clocks,
            "mem_mhz": 2619,
            "reasons": reasons or [0] * n,
        }
    )
    return frames.check(frame, frames.CLOCK_SAMPLES)


def shifted(offset_ns, width=1_000):
    return ClockMap(np.array([0]), np.array([offset_ns]), width)


def test_equal_samples_are_one_stretch_on_the_traces_clock():
    #            0     25    50  | 75    100 | 125
    samples = table(1980, 1980, 1980, 1755, 1755, 1980)
    placed, notes = place_samples(
        samples, {0: shifted(-999 * MS, 50_000), 1: shifted(-1_000 * MS)}, None
    )
    assert notes == []  # the sharper map of the two processes is used
    assert placed[["start_ns", "end_ns", "samples"]].to_numpy().tolist() == [
        [0, 50 * MS, 3],
        [75 * MS, 100 * MS, 2],
        [125 * MS, 125 * MS, 1],
    ]
    assert placed["sm_max_mhz"].tolist() == [1980, 1755, 1980]


def test_a_reason_a_pause_and_a_second_end_a_stretch():
    reasons = table(1980, 1980, 1980, reasons=[0, 4, 4])
    assert place_samples(reasons, {0: shifted(0)}, None)[0]["reasons"].tolist() == [0, 4]
    pause = table(*[1980] * 10).drop(index=range(1, 9))  # 225 ms without a sample
    assert (
        len(place_samples(frames.check(pause, frames.CLOCK_SAMPLES), {0: shifted(0)}, None)[0]) == 2
    )
    long = place_samples(table(*[1980] * 81), {0: shifted(0)}, None)[0]  # two seconds
    assert long["samples"].tolist() == [40, 40, 1]


def test_without_a_log_the_sessions_start_places_them():
    placed, _ = place_samples(table(1980), {}, 500_000 * MS)
    assert placed["start_ns"].tolist() == [1_000 * MS]
    placed, notes = place_samples(table(1980), {}, None)
    assert placed.empty and "nothing connects" in notes[0]


def test_whose_gpu_it_was_is_doubted_where_it_cannot_be_known():
    both = frames.check(pd.concat([table(1980), table(1980, device=1)]), frames.CLOCK_SAMPLES)
    notes = place_samples(both, {0: shifted(0)}, None, shared=True)[1]
    assert len(notes) == 1 and "may be another GPU's" in notes[0]
    assert place_samples(both, {0: shifted(0)}, None)[1] == []
    assert place_samples(table(1980), {0: shifted(0)}, None, shared=True)[1] == []


def test_unknown_clocks_are_left_out_and_bad_lines_are_said(tmp_path):
    path = tmp_path / "clocks.jsonl"
    header = {
        "format": "nsysalign-clocks",
        "version": 1,
        "columns": ["monotonic_ns", "device", "sm_mhz", "later"],
    }
    lines = [[5, 0, 1980, "x"], [6, 0, None, 1], [7, 0, 345, 1]]
    path.write_text(
        "\n".join(map(json.dumps, [header, *lines])) + '\n[8, 0, 19\nnot json\n{"a": 1}'
    )
    samples, notes = read_clock_samples(path)
    assert samples["sm_mhz"].tolist() == [1980, -1, 345] and (samples["mem_mhz"] == -1).all()
    assert notes == ["clocks.jsonl: 3 lines could not be used (cut or malformed)"]
    placed, _ = place_samples(samples, {0: shifted(0)}, None)
    assert placed["sm_max_mhz"].tolist() == [1980, 345]
    path.write_text("something else")
    samples, notes = read_clock_samples(path)
    assert samples.empty and "no clock samples" in notes[0]
