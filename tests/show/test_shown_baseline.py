"""The run without nsys in the terminal, on the page, in JSON and in the database."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pandas as pd
import pytest

from nsysalign import engine, frames
from nsysalign.errors import AnalysisError
from nsysalign.show import baseline
from nsysalign.store import database, document


@pytest.fixture
def both_runs(analysis):
    """The fixture's analysis with a run without nsys: its first label 1.5 times shorter, another
    one there only."""
    label = analysis.labels.iloc[0]
    parts = analysis.parts[
        (analysis.parts["interval"] == label["row_interval"]) & (analysis.parts["ns"] > 0)
    ]
    empty = dict.fromkeys(frames.BASELINE.names, float("nan"))
    row = empty | {
        "label": label["label"], "kind": "event", "site": "bench.py:7", "profiled_count": 5, "baseline_count": 4,
        "profiled_ns": 300_000.0, "baseline_ns": 200_000.0, "inflation": 1.5, "predicted_ns": 190_000.0,
        "predicted_lower_ns": 180_000.0, "predicted_upper_ns": 199_000.0, "predicted_from": 5, "error": -0.05,
        "remark": "5 intervals under nsys, 4 without", "profiled_verdict": "cpu_bound", "baseline_verdict": "gpu_bound",
    }  # fmt: skip
    only = empty | {
        "label": "<script>alert(1)</script>\x1b[31m", "kind": "event", "site": "", "profiled_count": 0,
        "baseline_count": 3, "baseline_ns": 7_000.0, "predicted_from": 0, "remark": "measured without nsys only",
        "profiled_verdict": "", "baseline_verdict": "cpu_bound",
    }  # fmt: skip
    unprofiled = pd.DataFrame(
        [
            (label["row_interval"], int(parts["ns"].sum()), 1, 2**40, ""),
            (1, pd.NA, pd.NA, pd.NA, "too long"),
        ],
        columns=frames.UNPROFILED.names,
    )
    return replace(
        analysis,
        baseline=frames.check(pd.DataFrame([row, only]), frames.BASELINE),
        unprofiled=frames.check(unprofiled, frames.UNPROFILED),
        unprofiled_parts=frames.check(parts, frames.UNPROFILED_PARTS).reset_index(drop=True),
    )


def test_the_page_has_both_numbers_the_prediction_and_its_error(both_runs):
    first, only = baseline.page_table(both_runs)["rows"]
    assert first[1:7] == ["5/4", "300.00", "200.00", "1.50", "190 ±10", "-5 % !"]
    assert first[7] == (
        "profiled: CPU-bound; unprofiled: GPU-bound; 5 intervals under nsys, 4 without"
    )
    assert "\x1b" not in only[0] and only[7] == "measured without nsys only"


def test_json_names_the_parts_of_every_replayed_interval(both_runs):
    written = json.loads(b"".join(document.pieces(both_runs)))
    first, second = written["unprofiled"]
    assert sum(first["parts_ns"].values()) == first["predicted_ns"]
    assert second == {
        "interval": 1, "predicted_ns": None, "lower_ns": None, "upper_ns": None, "reason": "too long", "parts_ns": {},
    }  # fmt: skip
    assert written["baseline"]["labels"][1]["profiled_ns"] is None


@pytest.mark.parametrize(
    "change", ["drop table baseline", "alter table baseline drop column inflation"]
)
def test_an_analysis_of_another_version_is_refused_with_what_to_do(both_runs, tmp_path, change):
    path = tmp_path / "analysis.db"
    database.write(both_runs, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(AnalysisError, match="baseline: no ") as error:
        engine.load(path)
    assert "analyze it again" in error.value.next_step
