"""Every puzzle, as recorded on an H200 (scripts/confusion.py): its flaw is named where one looks first,
nothing else is called wrong, and all ways to ask say the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from recordings import DATA, PUZZLES
from simulator.check import ledger
from verdicts import agrees, judged

from nsysalign import brief
from nsysalign.answer import answer
from nsysalign.commandline.options import closed
from nsysalign.errors import TraceError
from nsysalign.explain.verdict import SIGNS
from nsysalign.rundir import Inputs
from nsysalign.show.payload import payload

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from check_claims import check, unpacked  # noqa: E402
from confusion import PUZZLES as SCRIPTS  # noqa: E402
from confusion import named  # noqa: E402

#: Puzzle -> (what its sentence or its label's lines must name, the rule; labels that are wrong).
#: None: nothing is wrong with it.
EXPECTED: dict[str, tuple[str, str, int] | None] = {
    "allocation": ("cudaMalloc", "allocation-inside", 0),
    "captured": ("captured into a CUDA graph", "captured-events", 1),
    "clean": None,
    "clocks": ("slowed|two clocks", "throttled", 0),
    "cold_l2": ("cold L2", "cold-l2", 0),
    "contention": ("stream 13 kept the GPU busy", "queued", 0),
    "copy_pageable": ("copying: .*pageable", "copy-inside", 0),
    "copy_pinned": ("copying: .*pinned", "copy-inside", 0),
    "different_streams": ("starts on stream 7 and ends on stream 13", "different-streams", 0),
    "dobench": None,
    "few_samples": None,
    "first_call": ("first call", "module-load", 0),
    "first_call_region": ("CPU outside CUDA|GPU idle", "host-gap", 0),
    "flush_inside": ("contains a fill", "fill-inside", 0),
    "full_queue": ("launch queue was full", "queued", 0),
    "graph": ("CUDA graph", "graph-opaque", 0),
    "host_timers": ("earlier work", "queued", 4),
    "item": ("waits for the GPU 3 times", "sync-inside", 0),
    "launch_blocking": ("CUDA_LAUNCH_BLOCKING", "launch-blocking", 0),
    "linears_device": None,
    "linears_flush": None,
    "linears_h2d": ("sat idle", "host-gap", 0),
    "mixed_work": ("30 of them.*10 x", "several-kinds", 0),
    "nonzero": ("waits once for a few bytes", "sync-inside", 0),
    "other_stream": ("waited for work of stream 13", "queued", 0),
    "outliers": ("4 of them", "host-gap", 0),
    "overlapping": None,
    "recorded_again": ("compares the wrong records", "no-result", 1),
    "small_launches": ("50 operations one by one", "many-tiny-kernels", 0),
    "synchronise": ("waits for the GPU 2 times", "sync-inside", 0),
    "tiny_kernel": ("event pair's own cost", "launch-latency", 0),
    "too_early": ("elapsed_time was asked before the end", "no-result", 1),
    "two_modes": ("30 of them", "several-kinds", 0),
    "variance": ("varies", "high-variance", 0),
    "warm_up": ("launch calls", "api-launch", 0),
    "wrong_stream": ("does not wait for its work on stream 13", "wrong-stream", 1),
}
#: What `check` says beside what findings do.
ESCAPED = {"wrong_stream": {("escaped-work", "wrong_stream.py:13-16")}}
#: Nobody can capture a graph around what they do.
SYNCHRONISED = ("item", "nonzero", "synchronise", "graph")


@pytest.mark.parametrize("puzzle", PUZZLES, indirect=True)
def test_puzzle(puzzle):
    name, folder, analysis = puzzle
    trace, logs = folder / "trace.sqlite", sorted(folder.glob("events*.jsonl"))
    claims = check(analysis, trace)
    assert not claims.false and not claims.unknown
    said = answer(analysis)
    expected = EXPECTED[name]
    screen = payload(analysis, said)["screen"]
    short = json.loads(brief.of_answer(said, "analyze", str(folder)))
    if expected is None:
        loud = analysis.findings["severity"] != "info"
        assert not loud.any() and not said.wrong
    else:
        flaw, rule, wrong = expected
        assert any(re.fullmatch(rule, found) for found in analysis.findings["rule"])
        # the screen, the page and the brief say the same sentence
        lines = [said.sentence, *(row.words for row in said.labels)]
        assert any(re.search(flaw, text) for text in lines)
        assert screen["sentence"] == said.sentence
        assert short["sentence"] == said.sentence or short["sentence"].endswith("…")
        assert len(said.wrong) == wrong
        # no label whose flaw this is has the green sign
        flawed = {f.label for f in analysis.findings.itertuples() if re.fullmatch(rule, f.rule)}
        signs = {row.label: SIGNS[row.verdict] for row in said.labels}
        assert not any(signs.get(label) == "✓" for label in flawed)
    if name in SYNCHRONISED:
        advice = analysis.findings["advice"] + analysis.findings["faster"]
        assert not advice.str.contains("reduce-overhead").any()
    parts = analysis.parts.groupby("interval")["ns"].sum()
    ledger(analysis)
    elapsed = analysis.intervals["elapsed_ns"].to_numpy()
    assert (parts.reindex(analysis.intervals["interval"]).to_numpy() == elapsed).all()
    agree(name, analysis, said, screen, short, Inputs(trace, tuple(logs)))


def agree(name, analysis, said, screen, short, inputs):
    """Sign, `wrong` of page and brief, `check`, `--fail-on` and so the exit status."""
    wrong = {one.label for one in said.wrong}
    rows = {row.label for row in said.labels}
    assert {row.label for row in said.labels if SIGNS[row.verdict] == "✖"} == wrong & rows
    assert {one["label"] for one in screen["wrong"]} == wrong
    assert {one["label"] for one in short["wrong"]} == wrong or short["omitted"]["wrong"]
    assert closed(analysis, ("error",), quiet=True) == bool(wrong)
    try:
        verdict = judged(inputs, analysis)
    except TraceError as error:  # its host timers alone
        assert name == "full_queue" and re.match(
            "there is nothing to check: no pair of events", str(error)
        )
        return
    assert {doubt.label for doubt in verdict.found} == wrong
    agrees(verdict, analysis, ESCAPED.get(name, set()))


def test_the_exit_status_is_that_of_the_wrong_timings(tmp_path):
    from nsysalign.cli import cli

    trace, logs = unpacked(DATA / "puzzles" / "wrong_stream.tar.xz", tmp_path)
    command = ["analyze", "-q", "--fail-on", "error", "-o", str(tmp_path / "out"), str(trace)]
    command += [text for log in logs for text in ("--events", str(log))]
    assert CliRunner().invoke(cli, command).exit_code == 1
    asked = ["check", str(trace), *(text for log in logs for text in ("--events", str(log)))]
    assert CliRunner().invoke(cli, asked).exit_code == 1


def test_every_puzzle_says_what_it_expects_and_nearly_all_are_recorded():
    puzzles = {p.stem for p in SCRIPTS.glob("*.py")}
    assert all(
        "# expects: " in (SCRIPTS / f"{n}.py").read_text() for n in puzzles - {"ddp_slow_rank"}
    )
    assert set(PUZZLES) <= puzzles and puzzles - set(PUZZLES) <= {
        "ddp",
        "ddp_slow_rank",
        "effnet",
    }
    assert set(EXPECTED) == set(PUZZLES)
    assert all(bool(named(SCRIPTS / f"{n}.py")) == (EXPECTED[n] is not None) for n in PUZZLES)
