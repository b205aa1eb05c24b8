"""Every puzzle, as recorded on an H200 (scripts/confusion.py): it gets what its first lines
promise, and nothing that they do not foresee is said as an error or a warning."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

import nsysalign

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from confusion import DATA, PUZZLES, named  # noqa: E402

RECORDED = sorted(p.name.removesuffix(".tar.xz") for p in DATA.glob("*.tar.xz"))


def analysed(name: str, folder: Path) -> nsysalign.Analysis:
    with tarfile.open(DATA / f"{name}.tar.xz") as packed:
        packed.extractall(folder, filter="data") if hasattr(
            tarfile, "data_filter"
        ) else packed.extractall(folder)
    clocks = folder / "clocks.jsonl"
    return nsysalign.analyze(
        folder / "trace.sqlite",
        sorted(folder.glob("events-*.jsonl")),
        clocks=clocks if clocks.exists() else None,
    )


@pytest.mark.parametrize("name", RECORDED)
def test_puzzle(name, tmp_path):
    analysis = analysed(name, tmp_path)
    puzzle = PUZZLES / f"{name}.py"
    must, may = named(puzzle), named(puzzle, "beside")
    rules, loud = analysis.findings["rule"], analysis.findings["severity"] != "info"
    assert must <= set(rules)
    assert set(rules[loud]) <= must | may
    parts = analysis.parts.groupby("interval")["ns"].sum()
    assert (
        parts.reindex(analysis.intervals["interval"]).to_numpy() == analysis.intervals["elapsed_ns"]
    ).all()
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
