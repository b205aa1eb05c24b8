"""`check` accuses of nothing else, and what findings say is true: every number that they print comes out again when the segments of
their intervals are added up by code that shares nothing with the rules (scripts/check_claims.py),
in every recording."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from simulator import export, machine
from simulator.check import ledger
from simulator.program import Launch, Program, Sync
from simulator.world import LEGACY, NON_BLOCKING, World
from verdicts import agrees, judged

import nsysalign
from nsysalign.rundir import Inputs

from .drawing import analysis, diagnose, repeat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from check_claims import check  # noqa: E402

DATA = ROOT / "tests" / "data"
RECORDINGS = sorted(DATA.glob("*.sqlite.xz"))  # the puzzles: see test_puzzles.py
_WRONG = {("escaped-work", "wrongstream"), ("escaped-work", "contended")}
#: What `check` finds in recordings of programs that measure wrongly on purpose, beside findings.
ESCAPED = {"probe": _WRONG, "truth_event_timestamps": _WRONG}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_a_recording(path, recorded):
    _, trace, logs, analysis = recorded(path.name.split(".")[0])
    result = check(analysis, trace, logs)
    assert not result.false and not result.unknown
    ledger(analysis)
    name = path.name.partition(".")[0]
    agrees(judged(Inputs(trace, tuple(logs)), analysis), analysis, ESCAPED.get(name, set()))


def test_a_launch_that_returns_after_its_kernel_is_counted_up_to_it(tmp_path):
    long = Launch(1_000, cost=10_000_000, latency=-4_000)
    simulated = Program({1: [Launch(9_000), long, Launch(9_000), Sync()]})
    trace, _ = export.write(machine.run(simulated), tmp_path)
    told = nsysalign.analyze(trace, all_segments=True)
    assert "pauses_ns" in told.findings.at[0, "evidence"]
    assert check(told, trace).false == []


def test_a_program_that_measures_nothing(tmp_path):
    """
    H    copy of pageable memory        own code                launch
    7    [------------600 us------]                   400 us    [400 us: 64 blocks of one thread]
    13                                                          [ 50 us: 4 blocks of 8 ]
    """
    world = World(streams={7: LEGACY, 13: NON_BLOCKING})
    call = world.call("memcpy", 0, 610_000)
    world.copy(5_000, 605_000, call, pageable=True, nbytes=6 << 20)
    world.kernel(1_005_000, 1_405_000, world.call("launch", 1_000_000, 1_004_000), grid=64, block=1)
    beside = world.call("launch", 1_006_000, 1_010_000)
    world.kernel(1_020_000, 1_070_000, beside, 13, grid=4, block=8)
    world.end = 1_500_000
    trace, _ = export.write(world, tmp_path)
    analysis = nsysalign.analyze(trace, all_segments=True)
    result = check(analysis, trace)
    assert not result.false and not result.unknown
    rules = analysis.findings.groupby("rule")["title"].agg(list)
    assert "64 blocks of 1 thread" in rules["few-blocks"][0]
    assert "Copies of pageable memory" in rules["whole-run"][0]


def test_the_check_finds_what_is_false():

    late = repeat(6, "late", ("host", 164), ("api_launch", 31), ("kernel", 25), ("event", 8))
    told = diagnose(analysis(late))
    assert check(told).false == [] and check(told).numbers > 2
    (first,) = told.findings.index[told.findings["rule"] == "host-gap"]

    def changed(**values):
        table = told.findings.copy()
        for column, value in values.items():
            table.at[first, column] = value
        return check(replace(told, findings=table)).false

    evidence = told.findings.at[first, "evidence"]
    assert evidence["typical_ns"] == 228_000 and evidence["launched_after_ns"] == 164_000
    wrong = {**evidence, "typical_gpu_ns": 26_000}
    assert any("typical_gpu_ns is 26000" in text for text in changed(evidence=wrong))
    assert any("170" in text for text in changed(title="late reads 170 us."))
    assert any("a loss of" in text for text in changed(loss_ns=6 * 240_000))
