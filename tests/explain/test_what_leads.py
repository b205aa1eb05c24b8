"""What leads a screen, and is advised on first: each drawing is of a program whose first screen had something else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nsysalign.answer import answer
from nsysalign.label import FIRST
from nsysalign.model import OTHER_THREAD, Known

from .drawing import analysis, diagnose, interval, piece, repeat
from .test_causes_that_fit import GRAPH_CALL, XLA_PASS, issuing, launched_by, of_jax, said

TORCH = Known(torch="2.11", python="3.12")


@pytest.mark.parametrize("clears", [400, 2])
def test_a_search_leads_with_all_that_it_costs(clears):
    """k07: five searches of 520 ms in 59 timings, some with the green sign, stood behind 210 ms of another label."""
    trials = [p for _ in range(400) for p in (("host", 20), ("kernel", 130))]
    usual = [("host", 15), ("kernel", 90)]
    slow = repeat(3, "y", ("host", 60_000), ("kernel", 4_000), kind="host")
    gate = repeat(5, "x", *trials, kind="host"), repeat(54, "x", *usual, kind="host")
    drawn = analysis(*gate, slow, repeat(57, "y", ("kernel", 4_000), kind="host"))
    long = int(drawn.groups.set_index("group")["operations"].idxmax())
    issued = [[("kernel", "gate", 1)] for _ in range(len(drawn.groups))]
    issued[long] = [("kernel", "gate", 400), ("kernel", "at::native::FillFunctor", clears)]
    waits = np.where(drawn.groups["group"] == long, 40, 0)
    told = answer(diagnose(issuing(drawn, *issued, waits=waits)))
    searched = clears == 400
    assert (told.labels[0].label == "x") == searched
    assert told.sentence.startswith("x:" if searched else "y:")
    row = next(row for row in told.labels if row.label == "x")
    assert ("gpu_bound" not in {group.verdict for group in row.groups[:1]}) == searched
    assert (row.groups[0].words == "a search") == searched
    assert any("cache_results" in fix.code for fix in told.fixes) == searched


@pytest.mark.parametrize("compiles_us", [1_400_000, 50])
def test_first_calls_that_are_left_out_are_not_advised_on(compiles_us):
    """k01: "Find what the CPU does in 68 pieces" was the compilation in the first of 3,000 launches."""
    times = [("host", 700_000), ("api_launch", 5)] * 2
    outer = interval("loop", *times, ("sync", 600_000), kind="host", issued=550_000, start=0)
    inner, at = [interval("step", ("host", compiles_us), kind="host", start=0)], compiles_us
    for k in range(20):
        inner.append(interval("step", ("host", 50), kind="host", start=at + 100 * k + 10))
    told = said(outer, inner, issued=[("kernel", "at::native::add", 2)])
    row = next(row for row in told.labels if row.label == "loop")
    left_out = compiles_us > 50
    assert ("In the first call of step the GPU had nothing to do" in row.sentence) == left_out
    assert (not row.saving_ns) == left_out
    assert (not any("Find" in fix.sentence for fix in told.fixes)) == left_out


def test_measuring_right_comes_before_making_faster():
    """k01: the fix of the only wrong timing had no room below that of the sentence."""
    slow = repeat(8, "x", ("host", 9_000), ("kernel", 5))
    wrong = repeat(8, "clock", ("host", 50), kind="host", issued=90, outside=90, operations=1)
    told = said(slow, wrong, issued=[("kernel", "at::native::add", 1)], late=[0, 8])
    assert told.sentence.startswith("x") and [wrong.label for wrong in told.wrong] == ["clock"]
    purposes = [fix.purpose for fix in told.fixes]
    assert purposes == ["measure it right", "make it faster"]


@pytest.mark.parametrize("name", [OTHER_THREAD, ""])
def test_a_thread_that_waits_for_another_one_is_in_no_function(name):
    """k13: for 111 ms in one piece the saver's thread held the interpreter; autograd's launched the rest."""
    pieces = piece("host", 111_000, name), ("api_launch", 5), ("kernel", 3), piece("host", 900, "")
    drawn = analysis(repeat(8, "x", *pieces, kind="host", operations=134))
    drawn = launched_by(drawn, 2, *range(111_100, 111_900, 12))
    told = answer(diagnose(replace(drawn, known=TORCH)))
    sentences = [fix.sentence for fix in told.fixes]
    assert any("Python's interpreter" in text for text in sentences) == bool(name)
    assert any("function" in text for text in sentences) == (not name)


@pytest.mark.parametrize("call", ["cuLibraryLoadData", "cudaGetDevice"])
def test_a_piece_that_ends_where_code_is_loaded_is_a_library_s(call):
    """k17: cuDNN builds an attention kernel for each new length of the cache, 38 ms before it loads it."""
    pieces = ("host", 38_000), piece("api", 20, call), ("api_launch", 5), ("kernel", 900)
    told = said(repeat(12, "x", *pieces, kind="host"), issued=[("kernel", "fmha", 1)])
    (fix,) = (fix for fix in told.fixes if fix.purpose == "make it faster")
    loads = call == "cuLibraryLoadData"
    assert ("before cuLibraryLoadData" in fix.sentence) == ("pad(x, n)" in fix.code) == loads
    assert ("function" in fix.sentence) == (not loads)


@pytest.mark.parametrize("often", [1, 2])
def test_a_second_call_that_compiles_is_asked_why(often):
    """k05: a Python number at first, an array from the second call on."""
    more = {"kind": "host", "operations": 600}
    work = GRAPH_CALL, ("api_launch", 600), ("kernel", 900)
    compiling = repeat(often, "x", XLA_PASS, *work, **more)
    told = of_jax(compiling, repeat(5, "x", ("host", 3_000), *work, **more))
    assert any("CACHE_MISSES" in fix.code for fix in told.fixes) == (often == 2)


@pytest.mark.parametrize(("later_us", "leads"), [(17_000, False), (900_000, True)])
def test_one_timing_of_lines_that_are_timed_again_elsewhere_does_not_lead(later_us, leads):
    """l07: numba's compilation, timed once on purpose, stood before 40 copies of 17 ms."""
    first = interval("a.py:32 (a.py:26-29)", ("host", 1_300_000), ("kernel", 9), start=0)
    again = [
        interval(
            "a.py:33 (a.py:26-29)", ("host", later_us), ("kernel", 9), start=1_400_000 + k * 10**6
        )
        for k in range(8)
    ]
    told = said(first, again, issued=[("kernel", "adds", 1)])
    row = next(row for row in told.labels if row.label.startswith("a.py:32"))
    assert (row.saving_ns > 0) == leads


@pytest.mark.parametrize(("start_us", "first"), [(0, "step"), (9_000_000, "read model")])
def test_what_is_done_once_before_all_else_leads_only_if_it_costs(start_us, first):
    """A public export: 84 ms of copies of a model led; a benchmark of 2.4 s had no sentence."""
    copies = piece("memcpy", 800, direction="H2D", memory="pageable", bytes=1 << 20)
    once = interval("read model", copies, ("kernel", 100), kind="nvtx", start=start_us)
    steps = [interval("step", ("kernel", 10_000), kind="nvtx", start=2_000 + 11_000 * k) for k in range(8)]  # fmt: skip
    assert said(once, steps).labels[0].label == first


def test_savings_of_all_processes_are_not_of_one_run():
    """A public export: collectives of two GPUs, 6 % of one of them, led a run that flash attention fills."""

    waits = [("kernel", 120), ("host", 40)]
    drawn = [interval("exchange", *waits, kind="nvtx", pid=pid, start=0) for pid in (1, 2)]
    drawn += [interval("work", ("kernel", 840), kind="nvtx", pid=pid, start=160) for pid in (1, 2)]
    whole = [("kernel", 960), ("host", 40)]
    drawn += [interval(f"run (process {pid})", *whole, kind="run", pid=pid, start=0) for pid in (1, 2)]  # fmt: skip
    assert answer(diagnose(analysis(drawn))).sentence.startswith("Run: its GPU work spans")


@pytest.mark.parametrize(
    ("kernel", "asked", "padded"), [("triton_per_fused_add_0", True, False), ("gemm", False, True)]
)
def test_code_for_one_late_timing_needs_no_warm_up(kernel, asked, padded):
    """p10: the last batch of an epoch, for which torch.compile compiles 960 ms, was left out as a first call."""
    usual = repeat(40, "x", ("host", 150), ("api_launch", 5), ("kernel", 40), kind="host")
    load = piece("api", 300, "cuModuleLoad")
    pieces = ("host", 900_000), load, ("api_launch", 5), ("kernel", 30)
    told = said(
        usual, interval("x", *pieces, kind="host"), usual[:5], issued=[("kernel", kernel, 1)]
    )
    assert "is timing 41, 900 ms" in told.sentence
    texts = [fix.sentence for fix in told.fixes]
    assert any("compiles in timing 41" in text for text in texts) == asked
    assert any("leave the odd one out" in text for text in texts) == padded
    assert not any("run each once" in text or "first calls" in text for text in texts)
    assert not told.remarks


@pytest.mark.parametrize("late", [True, False])
def test_a_range_around_a_late_timing_is_no_first_call(late):
    """p10: "compiled epoch 1: first call", for its last batch; its label tells of that one."""
    load = piece("api", 300, "cuModuleLoad")
    pieces = ("host", 900_000), load, ("api_launch", 5), ("kernel", 30)
    usual = [
        interval("x", ("host", 150), ("kernel", 40), kind="host", start=200 * k) for k in range(40)
    ]
    around = interval("epoch", ("host", 6_000), *pieces, ("kernel", 9), kind="nvtx", start=2_000)
    slow = [interval("x", *pieces, kind="host", start=8_000)] if late else []
    told = said(usual, around, slow, issued=[("kernel", "gemm", 1)])
    row = next(row for row in told.labels if row.label == "epoch")
    assert (row.words == "first call") == (not late)
    assert told.labels[0].label == "x" or not late


@pytest.mark.parametrize(("collects_us", "named"), [(9_000, True), (1_000, False)])
def test_garbage_collection_is_named_from_a_twentieth_on(collects_us, named):
    """p05: one collection of 282 ms was 26 % of what was printed, and had no word."""
    usual = repeat(
        8, "x", *[p for _ in range(50) for p in (("host", 90), ("kernel", 2))], kind="host"
    )
    calls = [p for _ in range(500) for p in (("host", 90), ("kernel", 2))]
    long = interval("x", piece("host", collects_us, "garbage collection"), *calls, kind="host")
    told = said(usual, long)
    assert ("CUDA 98 % (garbage collection 16 %)" in told.sentence) == named
    alone = said(long)
    assert ("Garbage collection takes" in alone.sentence) == named
    assert any("gc.freeze" in fix.code for fix in told.fixes) == named


@pytest.mark.parametrize("line", [73, 50])
def test_timings_of_a_warm_up_are_not_told_of(line):
    """p05: "run each once before", for the lengths of a call whose result is dropped: the program does that."""
    begin, drawn = 0, []
    for warm_up in (True, False) * 2:
        us = 30_000 if warm_up and not drawn else 4_000
        call = "cuLibraryLoadData" if us > 4_000 else "cuCtxGetCurrent"
        work = ("host", us), piece("api", 20, call), ("kernel", 90)
        name = f"a.py:{73 if warm_up else 74} (a.py:{line if warm_up else 50}-66)"
        drawn.append(interval(name, ("host", 9 * us), ("kernel", 9), kind="host", start=begin))
        drawn += [
            interval("step", *work, kind="host", start=begin + 5 + (us + 200) * k) for k in range(7)
        ]
        begin += 10 * us
    told = said(drawn, issued=[("kernel", "at::native::add", 1)])
    row = next(row for row in told.labels if row.label == "step")
    is_warm_up = line == 50
    assert ("% of it is 21 of them, 4.11 ms each" in row.sentence) == is_warm_up
    assert ("% of it is 7 of them, 30.1 ms each" in row.sentence) == (not is_warm_up)
    findings = [f for group in told.groups for f in group.findings if f.label == "step"]
    texts = [fix.sentence for finding in findings for fix in finding.advice]
    assert any("run each once" in text for text in texts) == (not is_warm_up)


def test_a_first_call_leads_by_what_it_takes_beyond_the_timing_behind_it():
    """Two epochs of 1.81 and 1.34 s, both waiting for NumPy: the first one led, "code is loaded in it"."""
    epoch = [p for _ in range(60) for p in (("host", 16_000), ("kernel", 500))]
    cold = [piece("api", 450_000, "cuLibraryLoadData"), *epoch, *[("kernel", 50)] * 40]
    first, second = (interval("x", *pieces, kind="host") for pieces in (cold, epoch))
    drawn = analysis(first, second)
    is_longer = (
        drawn.groups["typical"].map(drawn.intervals.set_index("interval")["elapsed_ns"]) > 1e9
    )
    drawn = replace(drawn, groups=drawn.groups.assign(role=np.where(is_longer, FIRST, "")))
    told = answer(diagnose(drawn))
    assert told.sentence.startswith("x measured 990 ms")
    assert "1.44 s" in told.labels[0].first
