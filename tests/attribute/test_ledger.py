"""The ledger of every group adds up to what its intervals measured, on every recording.

Puzzles: `explain/test_puzzles.py`; recordings of one trace: `explain/test_claims.py`; drawings and simulated programs: `simulator.check.invariants`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from recordings import DATA
from simulator.check import ledger

import nsysalign
from nsysalign.store import database

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from same_numbers import inputs, recordings  # noqa: E402

#: Beside the project, where they are: recordings that are not in the repository.
SHARED = ROOT.parent / "shared" / "data"
ELSEWHERE = [*DATA.glob("puzzles/*"), *DATA.glob("*.sqlite.xz")]
OURS = [path for path in recordings(DATA) if path not in ELSEWHERE]


@pytest.mark.parametrize("path", [*OURS, *recordings(SHARED)], ids=lambda path: path.name)
def test_recording(path, tmp_path):
    for _, trace, logs, _, clocks in inputs(path, tmp_path):
        ledger(nsysalign.analyze(trace, logs, clocks=clocks))


def test_a_stored_analysis_has_the_same_groups(recorded, tmp_path):
    fresh = recorded("positions_h100").analysis
    database.write(fresh, tmp_path / "analysis.db")
    stored = nsysalign.load(tmp_path / "analysis.db")
    assert repr(stored.grouped) == repr(fresh.grouped) and len(fresh.grouped) > 3
