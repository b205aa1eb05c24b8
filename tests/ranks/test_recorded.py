"""Two ranks of scripts/puzzles/ddp_slow_rank.py as recorded on two H200s, one trace each: rank 1
sleeps 5 ms a step."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import nsysalign
from nsysalign.cli import cli

DATA = Path(__file__).resolve().parents[1] / "data" / "ddp_slow_rank.tar.xz"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ddp")
    with tarfile.open(DATA) as packed:
        packed.extractall(folder, filter="data") if hasattr(
            tarfile, "data_filter"
        ) else packed.extractall(folder)
    return sorted(folder.iterdir())


def test_the_wait_for_a_bucket_s_all_reduce_is_no_launch_latency(runs):
    """DDP's reducer records an event per bucket and then waits for each: the last record before a
    wait is another's."""
    analysis = nsysalign.analyze(runs[0] / "trace.sqlite", sorted(runs[0].glob("events-*.jsonl")))
    parts = analysis.parts.pivot(index="interval", columns="cause", values="ns").fillna(0)
    own = analysis.measured[~analysis.measured["library"]]
    parts = parts.loc[own["interval"]]
    assert len(parts) == 30 and (parts.sum(axis=1) == own["elapsed_ns"]).all()
    assert parts["launch_latency"].max() < 300_000
    assert parts["queued"].median() > 4_000_000
    assert "queued" in set(analysis.findings["rule"])


def test_rank_0_waits_for_rank_1(runs, tmp_path):
    done = CliRunner().invoke(
        cli, ["analyze", "-q", *map(str, runs), "-o", str(tmp_path / "out"), "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "out" / "ranks.json").read_text())
    (wait,) = document["waits"]
    assert wait["collectives"] > 100 and wait["wait_ns"] > 200_000_000
    clock = document["clocks"][1]
    assert (
        clock["method"] == "collectives"
        and clock["error_ns"] < 20_000
        and abs(clock["correction_ns"]) < 100_000
    )
