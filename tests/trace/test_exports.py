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
    "mordred_report1.sqlite": None,
    "nsys-ai_h100_2gpu_1s.sqlite": "2026.2.1",
    "nsys-ai_mock.sqlite": "2026.1.1",
}


@pytest.fixture(params=list(EXPORTS))
def export(request) -> Path:
    path = FOLDER / request.param
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    return path


def test_it_is_analysed_and_every_budget_is_exact(export):
    before = hashlib.sha256(export.read_bytes()).digest()
    analysis = nsysalign.analyze(export)
    intervals, parts, segments = analysis.intervals, analysis.parts, analysis.segments
    version = analysis.trace.nsys_version
    assert (version or "").startswith(EXPORTS[export.name] or "") and bool(version) == bool(
        EXPORTS[export.name]
    )
    assert (parts["ns"] >= 0).all()
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    assert (
        parts.groupby("interval")["ns"].sum().reindex(elapsed.index, fill_value=0) == elapsed
    ).all()
    assert (intervals["end_ns"] - intervals["start_ns"] == intervals["elapsed_ns"]).all()
    for number, pieces in segments.groupby("interval"):
        window = intervals.set_index("interval").loc[number]
        edges = [window["start_ns"], *pieces["end_ns"]]
        assert pieces["start_ns"].tolist() == edges[:-1] and edges[-1] == window["end_ns"]
    assert hashlib.sha256(export.read_bytes()).digest() == before
