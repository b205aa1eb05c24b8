"""Every puzzle, as recorded on an H200 (scripts/confusion.py): it gets what its first lines
promise, and nothing that they do not foresee is said as an error or a warning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from simulator.check import ledger

import nsysalign

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from check_claims import check, unpacked  # noqa: E402
from confusion import DATA, PUZZLES, named  # noqa: E402

RECORDED = sorted(p.name.removesuffix(".tar.xz") for p in DATA.glob("*.tar.xz"))


@pytest.mark.parametrize("name", RECORDED)
def test_puzzle(name, tmp_path):
    """And what its findings say is true, as test_claims.py has it."""
    trace, logs = unpacked(DATA / f"{name}.tar.xz", tmp_path)
    clocks = tmp_path / "clocks.jsonl"
    clocks = clocks if clocks.exists() else None
    analysis = nsysalign.analyze(trace, logs, clocks=clocks, all_segments=True)
    claims = check(analysis, trace)
    assert not claims.false and not claims.unknown
    puzzle = PUZZLES / f"{name}.py"
    must, may = named(puzzle), named(puzzle, "beside")
    rules, loud = analysis.findings["rule"], analysis.findings["severity"] != "info"
    assert must <= set(rules)
    assert set(rules[loud]) <= must | may
    parts = analysis.parts.groupby("interval")["ns"].sum()
    assert (
        parts.reindex(analysis.intervals["interval"]).to_numpy() == analysis.intervals["elapsed_ns"]
    ).all()
    ledger(analysis)
    if name in (
        "item",
        "nonzero",
        "synchronise",
    ):  # nobody can capture a graph around a synchronisation
        assert not analysis.findings["advice"].str.contains("cuda.graph").any()


def test_every_puzzle_says_what_it_expects_and_nearly_all_are_recorded():
    puzzles = {p.stem for p in PUZZLES.glob("*.py")}
    assert all(
        "# expects: " in (PUZZLES / f"{n}.py").read_text() for n in puzzles - {"ddp_slow_rank"}
    )
    assert set(RECORDED) <= puzzles and puzzles - set(RECORDED) <= {
        "ddp",
        "ddp_slow_rank",
        "effnet",
    }
