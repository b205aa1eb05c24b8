"""A sentence about a run in three lines keeps its cause, whatever the one about its set-up is: numbers of public exports."""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap

import pandas as pd
import pytest

from nsysalign.explain.clauses import Clause, Cut, ever_shorter, fits, in_three_lines, until
from nsysalign.explain.runs.blocks import SmallLaunches
from nsysalign.explain.runs.gaps import Crowd, FirstRuns, IdleTime
from nsysalign.explain.runs.idle import _crowd_in_words
from nsysalign.explain.runs.pages import PageMigrations
from nsysalign.explain.runs.ranges import InRange
from nsysalign.explain.runs.set_up import Calls, SetUp

from .drawing import analysis, diagnose, interval, piece

MS, NO_CALLS = 1_000_000, Calls(0, "cudaFree", 0)
SET_UPS = {
    "by one call": SetUp(1, 0, 890 * MS, 52_000, 608 * MS, 0, Calls(608 * MS, "cudaFree", 607 * MS), NO_CALLS, InRange()),
    "by several calls": SetUp(1, 0, 200 * MS, 4_730_000, 174 * MS, 0, Calls(174 * MS, "cudaMalloc", 147 * MS), NO_CALLS, InRange()),
    "before": SetUp(1, 0, 702 * MS, 1_340_000, 422 * MS, 0, Calls(6_430_000, "cudaMalloc", 6 * MS), NO_CALLS, InRange()),
    "on both sides": SetUp(1, 0, 1_790 * MS, 40 * MS, 687 * MS, 254 * MS, NO_CALLS, NO_CALLS, InRange()),
}  # fmt: skip
_FIRST = FirstRuns(175 * MS, 1, "CudaCodeGen::kernel1(float*)", 175 * MS)
_CROWD = Crowd(997, 103 * MS, 102_000, "CudaCodeGen::kernel1(float*)", 1_310)
_ROWS = ("ns", "next", "call", "call_ns", "interval", "start_ns")
#: What a sentence is about -> its rule, what is known, what the GPU did (us), its longest gaps, what of it stays.
RUNS = {
    "one pause": (
        "whole-run", IdleTime(1, 0, crowd=Crowd(98, 2_310_000, 23_200, "memset", 1_410)), [("host", 28_600)],
        [(24_200_000, "copy D2H pinned", "cuMemHostAlloc", 24 * MS)],
        ("24.2 ms of that is one pause before copy D2H pinned", "98 gaps"),
    ),
    "several pauses": (
        "whole-run", IdleTime(1, 0), [("host", 241_000)],
        [(165 * MS, "copy H2D pageable", "", 0), (41_300_000, "computeOffsetsKernel", "cudaFree", 2 * MS),
         (18_200_000, "_5x_cudnn_volta_scudnn_128x64_relu_medium_nn_v1", "cudaLaunchKernel", 18 * MS)],
        ("3 pauses: 165 ms before copy H2D pageable (the CPU outside of CUDA)",),
    ),
    "first launches": (
        "whole-run", IdleTime(1, 0, _FIRST, crowd=_CROWD, in_ranges=InRange(240 * MS, "nvFusion0", 240 * MS)), [("host", 278_000)],
        [], ("175 ms of that it waited for the first run of kernel1", "997 gaps of some 102 us"),
    ),
    "calls": (
        "whole-run", IdleTime(1, 0), [("host", 2_050), ("api", 1_560, "cuLibraryLoadData"), ("api", 1_000, "cudaMalloc")],
        [(1_860_000, "rns_mult_montgomery_kernel", "cuLibraryLoadData", 1_800_000)],
        # in all CUDA calls it was longer
        ("2.56 ms of that the CPU was inside CUDA calls that launch nothing",),
    ),
    "pages": (
        "page-migrations", PageMigrations(1, 0, 24, 10_900_000, False, 0, 24, 4_190_000, 349_000), [("host", 10_900)], [],
        ("the CPU touched managed memory",),
    ),
    "one block": (
        "few-blocks", SmallLaunches(1, 0, "few_blocks", 4_680_000, 4_680_000, "check_Rk(int)", 1, 1, 82, 4, 1_540_000),
        [("kernel", 13_300)], [], ("at least half of the GPU had nothing to do: check_Rk was launched with 1 block of 1 thread",),
    ),
    "copies": ("whole-run", IdleTime(1, 0), [("memcpy", 14_200)], [], ("Copies take 14.2 of",)),
}  # fmt: skip


def findings(about, set_up, name="run"):
    """The finding about a run, and that about its set-up."""
    rule, known, pieces, gaps, _ = RUNS[about]
    done = [piece(*one) for one in pieces]
    drawn = analysis(interval(name, ("kernel", 700), *done, ("kernel", 700), kind="run", pid=1))
    rows = [(*gap, 0, 75 * MS * number) for number, gap in enumerate(gaps, 1)]
    drawn = replace(drawn, gaps=pd.DataFrame(rows, columns=_ROWS), of_runs=(known, SET_UPS[set_up]))
    of_rule = {f.rule: f for f in diagnose(drawn).findings.itertuples(index=False)}
    return of_rule[rule], of_rule["set-up"]


def lines(text):
    """As a screen breaks them: the first sentence has lines of its own."""
    head, stop, tail = text.partition(". ")
    return len(wrap(head + stop, 80)) + len(wrap(tail, 80))


@pytest.mark.parametrize("set_up", SET_UPS)
@pytest.mark.parametrize("about", RUNS)
def test_three_lines_keep_the_cause(about, set_up):
    """Of each text `drawing.diagnose` checks that it says no number that the full one has not."""
    found, before = findings(about, set_up)
    said, is_cause_told = in_three_lines(found.behind, before.shorter)
    assert lines(f"{before.title} {found.title}") > 3 >= lines(said) and is_cause_told
    cause, *others = RUNS[about][-1]
    assert cause in said
    alone, _ = in_three_lines(found.shorter)
    assert lines(alone) <= 3 and all(part in alone for part in others)


def test_the_name_of_a_run_is_said_once():
    name = "run (process 60666, GPU 0)"
    found, before = findings("several pauses", "by one call", name)
    said, _ = in_three_lines(found.behind, before.shorter)
    assert said.startswith("Process 60666, GPU 0: 607 of 890 ms are set-up before the GPU's")
    assert said.count("60666") == 1 and ". Then the GPU ran nothing for" in said
    assert all("rocess 60666" in text for text in found.shorter)


def test_each_clause_goes_when_it_is_its_turn():
    of_pauses = until(Cut.SECOND_PAUSE, Clause(", 2 ms"), Clause(" at 3 ms", {Cut.PLACE: ""}))
    total = Clause("; without them 4 ms", {Cut.TOTAL: "; 4 ms"})
    texts = ever_shorter(Clause("it waited for 1 ms"), *of_pauses, total)
    assert len(texts) == len(Cut) and list(dict.fromkeys(texts)) == [
        "It waited for 1 ms, 2 ms at 3 ms; without them 4 ms.",
        "It waited for 1 ms, 2 ms at 3 ms; 4 ms.",
        "It waited for 1 ms, 2 ms; 4 ms.",
        "It waited for 1 ms; 4 ms.",
    ]


def test_a_sentence_without_room_for_a_cause_says_none():
    cause = Clause("; for 1 ms it waited" + " for so long" * 9, {Cut.CAUSE: ""})
    run = ever_shorter(Clause("the GPU ran nothing for 1 of 2 ms"), cause)
    call = Clause(f" ({'a' * 40})", {Cut.CALL: "", Cut.CAUSE: f" ({'a' * 40})"})
    set_up = ever_shorter(Clause("all work on the GPU lies where no line has room for more"), call)
    assert in_three_lines(run, set_up) == (f"{set_up[0]} The GPU ran nothing for 1 of 2 ms.", False)
    assert in_three_lines(run) == (run[0], True), "what fits is not cut"
    long = ever_shorter(Clause("no line has room for this " * 12))
    assert in_three_lines(run, long) == (long[0], False) and in_three_lines(long)[0] == long[0]


def test_what_fits_behind_a_sentence():
    set_up = "All work lies within 2 ms of the 3 s since the first CUDA call."
    assert fits(set_up, "x" * 80) and not fits(set_up, "x " * 81)


def test_a_number_stays_with_its_unit():
    """Else a sentence that was cut to three lines has four on the screen."""
    line = "x" * 77
    assert fits("", f"{line} {line} {line}") and not fits("", f"{line} 5 s {line} {line}")
    assert fits("", f"{line} of {line} {line}")


@pytest.mark.parametrize(("ns", "told"), [(1_580_000_000, True), (1_420_000_000, False)])
def test_the_median_of_many_gaps_is_said_where_it_stands_for_all(ns, told):
    """A public export with 1,536 gaps of 916 us and 200 of 5 us: so many times their median is more than the run takes."""
    (words, *_) = ever_shorter(*_crowd_in_words(Crowd(1_733, ns, 916_000, "copy H2D pageable")))
    assert words.startswith("1,733 gaps") and ("of some 916 us" in words) == told
