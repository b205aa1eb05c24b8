"""Real exports from public repositories, 2021 to 2026: analysed to the nanosecond, or said why
not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

import nsysalign

FOLDER = Path(
    os.environ.get(
        "NSYSALIGN_EXPORTS", Path(__file__).resolve().parents[3] / "shared" / "data" / "exports"
    )
)
#: file -> the nsys version that it names (2021.2 had no table for it)
EXPORTS = {
    "mordred_report1.sqlite": "",
    "nsys-ai_h100_2gpu_1s.sqlite": "2026.2.1",
    "nsys-ai_mock.sqlite": "2026.1.1",
}


@pytest.mark.parametrize("name", EXPORTS)
def test_it_is_analysed_and_every_budget_is_exact(name):
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not here")
    before = hashlib.sha256(path.read_bytes()).digest()
    analysis = nsysalign.analyze(path)
    intervals, segments = analysis.intervals.set_index("interval"), analysis.segments
    assert (analysis.trace.nsys_version or "").startswith(EXPORTS[name])
    assert (analysis.parts["ns"] >= 0).all()
    parts = analysis.parts.groupby("interval")["ns"].sum()
    elapsed = intervals["elapsed_ns"]
    assert (parts.reindex(elapsed.index, fill_value=0) == elapsed).all()
    assert (intervals["end_ns"] - intervals["start_ns"] == elapsed).all()
    for number, pieces in segments.groupby("interval"):
        edges = [intervals.loc[number, "start_ns"], *pieces["end_ns"]]
        assert pieces["start_ns"].tolist() == edges[:-1]
        assert edges[-1] == intervals.loc[number, "end_ns"]
    assert hashlib.sha256(path.read_bytes()).digest() == before
