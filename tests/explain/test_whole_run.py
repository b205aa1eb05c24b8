"""What is said of a run as a whole: calls that failed, and where its time went if the program
measured little of it."""

from __future__ import annotations

import sqlite3
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from simulator import export
from simulator.world import BLOCKING, D2H, LEGACY, NON_BLOCKING, Range, World

from nsysalign import analyze, frames
from nsysalign.answer import answer
from nsysalign.explain.clauses import Cut
from nsysalign.explain.runs.blocks import SmallLaunches, small_launches
from nsysalign.explain.runs.gaps import Crowd, FirstRuns, IdleTime, RoundTrips
from nsysalign.explain.runs.no_work import CallsWithoutWork
from nsysalign.explain.runs.pages import PageMigrations
from nsysalign.explain.runs.ranges import InRange
from nsysalign.explain.runs.rounds import Rounds
from nsysalign.model import Gpu, Known
from nsysalign.store import database
from nsysalign.trace.read import read_trace

from .drawing import analysis, diagnose, interval, piece, repeat

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from check_claims import check

RUN = (("kernel", 100), ("host", 700), ("api_launch", 50), ("kernel", 150))


def rules(drawn):
    return {f.rule: f for f in diagnose(drawn).findings.itertuples(index=False)}


def test_a_run_in_which_nothing_was_measured_waits_for_the_host():
    found = rules(analysis(interval("run", *RUN, kind="run")))["whole-run"]
    assert found.severity == "warning" and found.loss_ns == 700_000 and found.interval == 0
    assert found.title == (
        "Between its first and its last work the GPU ran nothing for 0.75 of 1 ms; for 700 us of that the CPU was outside of CUDA "
        "and had not launched the next work."
    )
    assert not found.faster and not found.advice  # nothing tells what would help


@pytest.mark.parametrize(("median_us", "is_told"), [(60, True), (90, False)])
def test_times_of_the_largest_kernel_that_lie_far_apart(median_us, is_told):
    """pytorch#194078: additions to one row of a tensor take ten times as long as to many, in the same kernel."""
    ran = {"label": "run", "kernel": "index_add", "kind": "kernel", "count": 100}
    row = (
        dict.fromkeys(frames.KERNELS.names, 0)
        | ran
        | {"total_ns": 10_000_000, "median_ns": 1_000 * median_us}
    )
    drawn = analysis(interval("run", ("kernel", 10_000), kind="run"))
    kernels = frames.check(pd.DataFrame([row]), frames.KERNELS)
    told = answer(diagnose(replace(drawn, kernels=kernels)))
    assert ("(half of 100 take 60.0 us or less, the mean is 100 us)" in told.sentence) == is_told


@pytest.mark.parametrize(("cat_ms", "is_told"), [(8, True), (4, False)])
def test_a_cache_that_torch_cat_makes_longer(cat_ms, is_told):
    """GPT-SoVITS#2836: the first sentence loads code; all others copy the keys and values of each layer for each token."""
    ran = {"CatArrayBatchedCopy": cat_ms, "attention": 10 - cat_ms}
    rows = [
        dict.fromkeys(frames.KERNELS.names, 0)
        | {"label": "run", "kernel": name, "kind": "kernel", "count": 9, "total_ns": ms * 1_000_000}
        for name, ms in ran.items()
    ]
    kernels = frames.check(pd.DataFrame(rows), frames.KERNELS)
    for rest in ([("host", 9_000)], []):
        drawn = analysis(interval("run", ("kernel", 5_000), *rest, ("kernel", 5_000), kind="run"))
        told = answer(diagnose(replace(drawn, kernels=kernels)))
        text = " ".join([told.sentence, *(fix.sentence for fix in told.fixes)])
        assert ("memory that is allocated once" in text) == is_told


@pytest.mark.parametrize(("pid", "several"), [(1, False), (2, True)])
def test_beside_other_processes_the_gpu_may_have_worked(pid, several):
    """A server and its clients on one GPU: the trace of one says nothing of the others' work."""
    drawn = [interval("run", *RUN, kind="run"), interval("run", *RUN, kind="run", pid=pid)]
    title = rules(analysis(*drawn))["whole-run"].title
    assert ("the GPU ran nothing of this process for" in title) == several


def test_what_the_tool_did_itself_is_not_idle():
    ours = piece("profiler", 200, "nsysalign:calibration")
    drawn = analysis(
        interval("run", ("kernel", 100), ours, ("host", 600), ("kernel", 100), kind="run")
    )
    assert "ran nothing for 0.60 of 1 ms" in rules(drawn)["whole-run"].title


IDLE = IdleTime(1, 0, sync_call="cudaStreamSynchronize", sync_count=40, operations=3)
SINGLE = InRange(620_000, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 620_000)
ROUNDS = Rounds(90, ("cuMemAlloc", "cuLaunchKernel", "cuMemcpyHtoDAsync", "cuStreamSynchronize"), 9_000, 500_000)  # fmt: skip
CROWD = Crowd(count=288, ns=700_000, gap_ns=2_400, before="add(int)", runs_ns=900)


@pytest.mark.parametrize(
    ("cause", "known", "gaps", "evidence", "advice", "loss_ns"),
    [
        ("api_launch", {"first": FirstRuns(500_000, 3)}, [800],
         {"before_first_launches_ns": 500_000, "kernels": 3, "without_it_ns": 500_000}, "Warm up", 500_000),
        # the one that takes most of it is named
        ("api_launch", {"first": FirstRuns(500_000, 3, "mul(int)", 300_000)}, [800],
         {"longest_first_launch_ns": 300_000}, "Warm up", 500_000),
        ("host", {"first": FirstRuns(390_000, 3)}, [10], {"idle_for_this_ns": 800_000}, "", 800_000),
        ("host", {"back": RoundTrips(640_000, 9, 0)}, [10], {"between_copies_ns": 640_000, "count": 9}, "pipeline", 640_000),
        ("host", {"back": RoundTrips(790_000, 39, 0)}, [500], {"pauses": 1, "pause_1_ns": 500_000}, "", 500_000),
        ("host", {"loading_ns": 640_000, "loading_count": 6, "loads": 80, "load_calls_ns": 500_000}, [10],
         {"loading_gaps_ns": 640_000, "count": 6, "calls": 80}, "Warm up", 640_000),
        # code is loaded in gaps that something else takes most of: in many of them that is told, behind what is one pause
        ("host", {"loading_ns": 640_000, "loading_count": 16, "loads": 80, "load_calls_ns": 9_000}, [10],
         {"loading_gaps_ns": 640_000, "load_calls_ns": 9_000}, "If code is compiled", 640_000),
        ("host", {"loading_ns": 640_000, "loading_count": 6, "loads": 80, "load_calls_ns": 9_000}, [10], {"idle_for_this_ns": 800_000}, "", 800_000),
        ("host", {"loading_ns": 640_000, "loading_count": 16, "loads": 80, "load_calls_ns": 9_000}, [600], {"pauses": 1}, "", 600_000),
        # kernels ran for the first time behind gaps of which loading took little: who knows what the CPU did
        ("host", {"before_first": FirstRuns(500_000, 3, "mul(int)", 300_000, 9_000)}, [500],
         {"before_first_launches_ns": 500_000, "load_calls_ns": 9_000}, "If code is compiled there", 500_000),
        ("host", {"before_first": FirstRuns(500_000, 3), "in_data_loader": SINGLE}, [500], {"in_data_loader_ns": 620_000}, "workers", 620_000),
        # all along the run, for kernels that have run before: warming up ends nothing
        ("host", {"loading_ns": 640_000, "loading_count": 16, "loads": 80, "load_calls_in_least_quarter_ns": 1_000, "load_calls_ns": 9_000}, [10],
         {"loading_gaps_ns": 640_000, "load_calls_ns": 9_000}, "Load each module once", 640_000),
        # the range says more than what lies before and behind the gap
        ("host", {"back": RoundTrips(640_000, 9, 0), "in_data_loader": SINGLE}, [500],
         {"in_data_loader_ns": 620_000}, "workers prepare", 620_000),
        ("host", {"in_data_loader": SINGLE._replace(name="_MultiProcessingDataLoaderIter")}, [500],
         {"in_data_loader_ns": 620_000}, "more workers", 620_000),
        ("host", {"back": RoundTrips(640_000, 9, 0), "in_data_loader": SINGLE._replace(ns=300_000)}, [10],
         {"between_copies_ns": 640_000, "count": 9}, "pipeline", 640_000),
        ("host", {}, [700], {"pauses": 1, "pauses_ns": 700_000, "otherwise_idle_ns": 100_000}, "", 700_000),
        ("host", {}, [400, 300, 9], {"pauses": 2, "pauses_ns": 700_000}, "", 700_000),
        ("host", {}, [300, 200, 100], {"pause_1_ns": 300_000, "pause_3_ns": 100_000}, "", 800_000),
        # what a library's set-up allocates is nothing to allocate once
        ("api", {"in_set_up": InRange(600_000, "ncclCommInitRank", 600_000)}, [9],
         {"in_set_up_ns": 600_000, "range": "ncclCommInitRank"}, "", 600_000),
        ("api", {"in_set_up": InRange(300_000, "ncclCommInitRank", 300_000)}, [9], {"idle_for_this_ns": 800_000}, "Call", 800_000),
        # named gaps are a part of it: the others are told
        ("host", {"crowd": CROWD}, [9], {"gaps": 288, "gaps_ns": 700_000, "gap_ns": 2_400, "operation_ns": 900}, "", 800_000),
        ("host", {"crowd": CROWD._replace(gap_ns=20)}, [9], {"gaps": 288, "gaps_ns": 700_000}, "", 800_000),
        ("sync", {}, [9], {"calls": 40}, "Drop the synchronisation", 800_000),
        ("api_launch", {}, [9], {"idle_for_this_ns": 800_000}, "", 800_000),
        ("api_launch", {"operations": 30}, [9], {"idle_for_this_ns": 800_000}, "fuse", 800_000),
        # the same calls again and again say more than one of them
        ("api_launch", {"rounds": ROUNDS}, [9], {"rounds": 90, "round_ns": 9_000, "idle_in_rounds_ns": 500_000},
         "allocate once, copy all of it at once and wait only where the CPU needs", 500_000),
        ("api_launch", {"rounds": ROUNDS._replace(calls=("cuMemcpyDtoH",))}, [9], {"rounds": 90}, "read results back once", 500_000),
        ("host", {"rounds": ROUNDS}, [9], {"idle_for_this_ns": 800_000}, "", 800_000),
    ],
)  # fmt: skip
def test_which_gap_it_is(cause, known, gaps, evidence, advice, loss_ns):
    what = "cudaStreamSynchronize" if cause == "sync" else None
    pieces = [("kernel", 100), piece(cause, 800, what), ("kernel", 100)]
    drawn = analysis(interval("run", *pieces, kind="run"))
    rows = [
        {"interval": 0, "start_ns": 100_000, "ns": us * 1000, "next": "add(int)",
         "call": "cudaMalloc", "call_ns": us * 600}
        for us in gaps
    ]  # fmt: skip
    drawn = replace(drawn, gaps=pd.DataFrame(rows), of_runs=(IDLE._replace(**known),))
    found = rules(drawn)["whole-run"]
    assert evidence.items() <= found.evidence.items()
    assert advice in found.faster and bool(advice) == bool(found.faster)
    assert found.loss_ns == loss_ns
    assert ("gap_ns" in found.evidence) == ("gap_ns" in evidence), "a median that tells nothing"


@pytest.mark.parametrize("torch", ["", "2.11"])
def test_code_for_torch_is_for_programs_that_use_it(torch):
    """An OpenACC program was told to compile it with torch."""
    pieces = (("kernel", 100), ("api_launch", 800), ("kernel", 100))
    drawn = analysis(interval("run", *pieces, kind="run"))
    many = (IDLE._replace(operations=30),)
    found = rules(replace(drawn, of_runs=many, known=Known(torch=torch)))["whole-run"]
    assert found.faster.startswith("Launch less")
    assert ("torch.compile" in found.faster) == bool(torch)


def test_rounds_of_the_same_calls(tmp_path):
    """A public program uploads an array row by row: 1,934 times it allocates, launches, copies and waits.

    thread 0  [cuMemAlloc][launch][copy][wait]    us 0 .. 10, 12 .. 16, 20 .. 24, 26 .. 40 of each round of 42
    device                   KK     CC
    """

    def draw(w):
        for at in range(0, 60 * 42_000, 42_000):
            w.call("other", at, at + 10_000, name="cuMemAlloc_v2")
            w.kernel(at + 16_000, at + 18_000, w.call("launch", at + 12_000, at + 16_000))
            copy = w.call("memcpy", at + 20_000, at + 24_000)
            w.copy(at + 25_000, at + 26_000, copy, pageable=False)
            w.call("sync_stream", at + 26_000, at + 40_000, name="cuStreamSynchronize")

    made = recorded(tmp_path, draw, until=60 * 42_000)
    found = rules(made)["whole-run"]
    assert (found.evidence["rounds"], found.evidence["round_ns"]) == (
        57,
        42_000,
    )  # but for both ends
    made_in_each = "cuMemAlloc, cudaLaunchKernel, cudaMemcpyAsync and cuStreamSynchronize"
    assert f"lie in 57 rounds of {made_in_each}, some 42 us each." in found.title


def test_the_rest_of_a_run_with_one_long_pause_is_told_for_itself(tmp_path):
    """KC (OpenACC): 24 of 33 ms are one cuMemHostAlloc; behind it come 100 rounds of 53 us, the GPU 25 % busy.

    H    [ cuMemHostAlloc 6 ms ]  then 60 times  [memset][wait] [launch][wait] [copy back][record][wait] [wait for event]
    """

    def draw(w):
        w.kernel(5_000, 6_000, w.call("launch", 0, 4_000), name="before")
        w.call("other", 10_000, 6_000_000, name="cuMemHostAlloc")
        for at in range(6_000_000, 6_000_000 + 60 * 50_000, 50_000):
            w.op("memset", at + 4_000, at + 5_000, w.call("memset", at, at + 2_000))
            w.call("sync_stream", at + 3_000, at + 8_000, name="cuStreamSynchronize")
            w.kernel(at + 14_000, at + 18_000, w.call("launch", at + 9_000, at + 12_000))
            w.call("sync_stream", at + 13_000, at + 25_000, name="cuStreamSynchronize")
            copy = w.call("memcpy", at + 26_000, at + 28_000, name="cuMemcpyDtoHAsync_v2")
            w.copy(at + 30_000, at + 32_000, copy, pageable=False, kind=D2H)
            w.call("record", at + 29_000, at + 30_000, name="cuEventRecord")
            w.call("sync_stream", at + 31_000, at + 40_000, name="cuStreamSynchronize")
            w.call("sync_event", at + 41_000, at + 42_000, name="cuEventSynchronize")

    found = rules(recorded(tmp_path, draw, until=10_000_000))["whole-run"]
    assert (found.evidence["pauses"], found.evidence["rounds"]) == (1, 59)
    assert found.faster.startswith("Do in one round what many do: read results back once")
    assert "59 rounds of some 50 us." in found.shorter[Cut.THIRD_CLAUSE - 1]
    assert found.loss_ns == found.evidence["idle_in_rounds_ns"], "what the advice is about"


@pytest.mark.parametrize(
    ("pause_us", "copy_us", "is_told"), [(0, 40, True), (7_000, 40, True), (0, 5, False)]
)
@pytest.mark.parametrize("comes_back", [True, False])
def test_copies_and_the_idle_time_before_them(tmp_path, comes_back, pause_us, copy_us, is_told):
    """Openacc_LB: 41 copies take 355 us, 440 us pass before them, 20 kernels take 64 us; and a particle code that reads its
    input for 5.8 s before that.

    G    D2H    H2D    K     each copy behind 60 us in which the CPU is outside of CUDA
    """

    def draw(w):
        at = 0
        for step in range(20):
            for kind in (D2H if comes_back else 1, 1):
                call = w.call("memcpy", at, at + 4_000)
                w.copy(at + 5_000, at + 5_000 + copy_us * 1_000, call, pageable=False, kind=kind)
                at += copy_us * 1_000 + 65_000
            at -= 60_000
            w.kernel(at + 5_000, at + 15_000, w.call("launch", at, at + 4_000))
            at += 76_000 + (1_000 * pause_us if step == 3 else 0)

    made = recorded(tmp_path, draw, until=30_000_000)
    found = rules(made)["whole-run"]
    is_told = is_told and comes_back
    assert ("before_copies_ns" in found.evidence) == is_told
    assert found.faster.startswith("Keep the data on the GPU") == is_told
    if is_told:
        assert len(made.findings) == 1, "the copies are told once"
        assert found.evidence["kernels_ns"] == 200_000 and found.evidence["copying_ns"] == 1_600_000
        assert found.loss_ns == found.evidence["before_copies_ns"] + 1_600_000


def test_copies_on_both_sides_of_the_kernels_may_be_needed(tmp_path):
    """What Openacc_LB recorded: one step, its arrays up, 20 kernels, its arrays back, in a data region already."""

    def draw(w):
        for k in range(60):
            at = 100_000 * k
            if 20 <= k < 40:
                w.kernel(at + 5_000, at + 15_000, w.call("launch", at, at + 4_000))
            else:
                call = w.call("memcpy", at, at + 4_000)
                kind = 1 if k < 20 else D2H
                w.copy(at + 5_000, at + 45_000, call, pageable=False, kind=kind)

    found = rules(recorded(tmp_path, draw, until=10_000_000))["whole-run"]
    assert "before_copies_ns" in found.evidence and not found.faster


@pytest.mark.parametrize(
    ("calls", "advice"),
    [
        ({"cudaHostAlloc": 500, "cudaMalloc": 250, "cudaGetDevice": 50}, "Allocate once"),
        ({"cudaHostAlloc": 300, "cudaGetDevice": 500}, "Call cudaGetDevice and cudaHostAlloc once"),
        ({"cuLibraryLoadData": 500, "cudaMalloc": 300}, "Load the code and allocate before"),
        ({"cuLibraryLoadData": 800}, "Warm up"),
    ],
)
def test_idle_time_in_calls_that_allocate(calls, advice):
    pieces = [piece("api", us, name) for name, us in calls.items()]
    drawn = analysis(interval("run", ("kernel", 100), *pieces, ("kernel", 100), kind="run"))
    found = rules(replace(drawn, of_runs=(IDLE,)))["whole-run"]
    assert found.evidence["idle_for_this_ns"] == 800_000 and found.faster.startswith(advice)


@pytest.mark.parametrize("call", ["cudaDeviceReset", "cudaStreamQuery"])
def test_a_call_that_makes_nothing_is_not_made_once_instead(call):
    pieces = piece("api", 500, call), piece("api", 300, "cudaHostAlloc")
    drawn = analysis(interval("run", ("kernel", 100), *pieces, ("kernel", 100), kind="run"))
    found = rules(replace(drawn, of_runs=(IDLE,)))["whole-run"]
    assert f"most of it in {call}" in found.title and not found.faster


@pytest.mark.parametrize(
    ("first_us", "allocate_us", "advice"),
    [(0, 180, "Launch less"), (110, 300, "Allocate once"), (120, 96, "Warm up")],
)
def test_first_launches_are_not_made_fewer(tmp_path, first_us, allocate_us, advice):
    """ECE213-Phylogenetic-Tree-Using-Mash: of 3.2 ms in launches 2.2 are the first ones of two kernels; each step allocates.

    H    [ launch A ] [ launch B ]  then 12 times  [ cudaMalloc ][ launch A, 17 us ]
    """

    def draw(w):
        w.kernel(5_000, 6_000, w.call("launch", 0, 4_000), name="before")
        at = 10_000
        for name in ("A", "B"):
            w.kernel(at + 1_000 * first_us + 6_000, at + 1_000 * first_us + 7_000,
                     w.call("launch", at, at + 1_000 * first_us + 4_000), name=name)  # fmt: skip
            at += 1_000 * first_us + 10_000
        for _ in range(12):
            w.call("other", at, at + 1_000 * allocate_us // 12, name="cudaMalloc")
            at += 1_000 * allocate_us // 12
            w.kernel(at + 18_000, at + 20_000, w.call("launch", at, at + 17_000), name="A")
            at += 20_000

    found = rules(recorded(tmp_path, draw, until=2_000_000))["whole-run"]
    assert found.faster.startswith(advice)


def test_idle_time_inside_the_programs_own_range_is_no_set_up():
    """OpenMP: 102 of 115 s idle lay inside the program's own ranges, and were called set-up."""
    run = interval("run", ("kernel", 10), ("host", 9_000), ("kernel", 90), kind="run", start=0)
    inside = interval("inference", ("kernel", 90), kind="nvtx", start=9_010)
    drawn = analysis(inside, run)
    outside = rules(
        replace(drawn, of_runs=(IDLE._replace(in_ranges=InRange(4_000_000, "Steps", 4_000_000)),))
    )
    assert (outside["whole-run"].severity, outside["whole-run"].loss_ns) == ("info", 0)
    steps = InRange(8_000_000, "Steps", 7_500_000)
    found = rules(replace(drawn, of_runs=(IDLE._replace(in_ranges=steps),)))["whole-run"]
    assert found.severity == "warning" and found.loss_ns == 9_000_000
    assert found.evidence["idle_in_range_ns"] == 7_500_000 and found.evidence["range"] == "Steps"


@pytest.mark.parametrize(
    ("count", "with_work", "told"), [(28, 13, True), (28, 27, False), (2, 1, False)]
)
def test_a_label_says_how_many_of_its_ranges_launch_nothing(count, with_work, told):
    steps = repeat(with_work, "Steps", ("kernel", 99), ("host", 1), kind="nvtx")
    drawn = analysis(steps)
    row = dict.fromkeys(frames.HOST_RANGES.names, 0) | {
        "label": "Steps",
        "count": count,
        "with_work": with_work,
    }
    found = rules(replace(drawn, host_ranges=pd.DataFrame([row]))).get("ranges-without-work")
    assert bool(found) == told
    if told:
        assert found.evidence == {"ranges": 28, "ranges_without_work": 15, "ranges_with_work": 13}


@pytest.mark.parametrize(("start_us", "beside"), [(2_000, 3), (500_000, 2)])
def test_gpus_that_work_beside_the_one_that_is_told_of(start_us, beside):
    """cumat: four GPUs compute and wait together, and one of them was shown as if it were alone."""
    runs = [
        interval(f"run (GPU {device})", ("kernel", 300_000), ("host", 600_000), kind="run", start=start)
        for device, start in enumerate((0, 1_000, 2_000, start_us))
    ]  # fmt: skip
    drawn = analysis(*runs)
    drawn = replace(drawn, intervals=drawn.intervals.assign(device=range(4)))
    found = diagnose(drawn).findings
    (told,) = found[found["label"] == "run (GPU 0)"].itertuples(index=False)
    assert told.evidence["runs_beside"] == beside
    assert told.title.startswith(f"Run (GPU 0), beside {beside} others: between its first")
    short = told.shorter[Cut.CALLS_TIME - 1]
    assert short.startswith(
        f"GPU 0, beside {beside} others: the GPU ran nothing for 600 of 900 ms;"
    )


def test_copies_alone_are_no_cuda_graph(tmp_path):
    """Virus-Signature-Matcher: for 3,000 cudaMemcpy of 7 kB it was told to replay a CUDA graph."""

    def draw(w):
        for at in range(0, 20 * 20_000, 20_000):
            w.copy(at + 18_000, at + 19_000, w.call("memcpy", at, at + 17_000), pageable=False)

    found = rules(recorded(tmp_path, draw, until=500_000))["whole-run"]
    assert found.faster.startswith("Copy in fewer, larger pieces")


@pytest.mark.parametrize(("kernels", "told"), [(1, "(120 copies to the GPU, 1 kernel) "), (2, "")])
def test_a_run_with_next_to_no_kernel_says_so(tmp_path, kernels, told):
    """darknet: 3,112 copies to the GPU and one kernel that fills memory; 2,708 gaps before copies took 2.29 s, and the three
    longest of them, which were not told of, 0.32."""

    def draw(w):
        for k in range(120):
            at = k * 100_000 + (k >= 60) * 3_000_000
            w.copy(at + 10_000, at + 20_000, w.call("memcpy", at, at + 5_000), pageable=False)
        for k in range(kernels):
            at = 15_100_000 + k * 100_000
            w.kernel(at + 10_000, at + 20_000, w.call("launch", at, at + 4_000))

    found = rules(recorded(tmp_path, draw, until=16_000_000))["whole-run"]
    assert found.title.startswith(f"Between its first and its last work {told}the GPU ran nothing")
    assert (found.evidence["gaps"], found.evidence["gaps_ns"]) == (119, 119 * 90_000 + 3_000_000)


def test_a_run_that_only_copies_has_no_kernels_to_speak_of():
    drawn = analysis(interval("run", copying(500), ("host", 100), copying(400), kind="run"))
    ran = [("run", "copy H2D pinned", "memcpy", 112, 900_000, 8_035, 1.0, 0)]
    kernels = frames.check(pd.DataFrame(ran, columns=frames.KERNELS.names), frames.KERNELS)
    found = rules(replace(drawn, kernels=kernels))["whole-run"]
    assert found.evidence["copies"] == 112 and "kernels_ns" not in found.evidence
    assert "while kernels run" not in found.faster


def test_idle_time_of_which_no_cause_is_a_fifth_is_told_by_its_largest():
    causes = [(c, 150) for c in ("host", "launch_latency", "sync", "api")]
    drawn = analysis(interval("run", ("kernel", 200), *causes, ("kernel", 200), kind="run"))
    drawn = replace(drawn, of_runs=(IDLE,))
    found = rules(drawn)["whole-run"]
    assert (
        "for 150 us the CPU was outside of CUDA and had not launched the next work;" in found.title
    )
    assert "cudaStreamSynchronize was called 40 times." in found.title
    assert found.loss_ns == 0 and not found.faster


def test_a_pause_in_which_no_call_took_long_names_none():
    drawn = analysis(interval("run", ("kernel", 100), ("host", 800), ("kernel", 100), kind="run"))
    row = {"interval": 0, "start_ns": 100_000, "ns": 800_000, "next": "add(int)"}
    gap = pd.DataFrame([{**row, "call": "cudaLaunchKernel", "call_ns": 50_000}])
    assert "no CUDA call took half of it" in rules(replace(drawn, gaps=gap))["whole-run"].title


def test_idle_time_in_which_a_library_sets_itself_up(tmp_path):
    """NCCL allocates for a communicator, once: a public program was told to allocate once."""

    def draw(w):
        w.ranges.append(Range("ncclCommInitRank", 0, 9_000_000, 0))
        for at in range(0, 9_000_000, 1_000_000):
            w.call("other", at + 10_000, at + 900_000, name="cudaHostAlloc_v3020")
            w.kernel(at + 910_000, at + 920_000, w.call("launch", at + 900_000, at + 905_000))

    found = rules(recorded(tmp_path, draw, until=10_000_000))["whole-run"]
    assert "of that the CPU was in ncclCommInitRank, mostly in cudaHostAlloc" in found.title
    assert not found.faster


@pytest.mark.parametrize(
    ("table", "column", "call"),
    [("OSRT_API", "nameId", "getc"), ("MPI_OTHER_EVENTS", "textId", "MPI_Waitall"),
     ("CUDNN_EVENTS", "nameId", "cudnnCreate")],
)  # fmt: skip
def test_the_call_outside_of_cuda_that_a_pause_is_spent_in_is_named(table, column, call, tmp_path):
    """A program that waits for the keyboard: 4.66 s of "the CPU outside of CUDA", all of it in getc; one that multiplies
    matrices on two nodes (DongHun1995/cumat): three pauses of 67 ms, in MPI_Waitall.

    thread 0   launch | call 1 .. 8 ms          | launch      another thread sleeps all the time
    """

    world = World(streams={7: LEGACY})
    world.kernel(10_000, 110_000, world.call("launch", 0, 5_000))
    world.kernel(9_010_000, 9_110_000, world.call("launch", 9_000_000, 9_005_000))
    world.end = 10_000_000
    trace, _ = export.write(world, tmp_path)
    with closing(sqlite3.connect(trace)) as db:
        (thread,) = db.execute("select globalTid from CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
        calls = [(call, 1_000_000, 8_000_000, thread), ("nanosleep", 0, 9_500_000, thread + 1)]
        db.execute(
            f"create table {table} (start integer, end integer, globalTid integer, {column} integer)"
        )
        for number, (name, start, end, of) in enumerate(calls, 90_000):
            db.execute("insert into StringIds (id, value) values (?, ?)", (number, name))
            db.execute(f"insert into {table} values (?, ?, ?, ?)", (start, end, of, number))
        db.commit()
    assert f"(the CPU in {call})" in rules(analyze(trace))["whole-run"].title


def copying(us: float, memory: str = "pinned", size: int = 1 << 20, what: str = "copy"):
    return piece("memcpy", us, what, direction="H2D", memory=memory, bytes=size)


@pytest.mark.parametrize(
    ("pieces", "title", "severity", "loss_us", "pinned"),
    [
        ((copying(600), copying(100, "pageable", what="staging"), ("kernel", 300)), "Copies take 0.60 of 1 ms", "warning", 300, False),
        # a public program lost 2.0 of 2.5 s when its 13 GB came from pinned memory
        ((copying(900, "pageable", 6_400_000), ("kernel", 10)), "Copies of pageable memory take 900 of 910 us", "warning", 810, True),
        ((copying(600, "pageable"), ("kernel", 300)), "Copies of pageable memory take 600 of 900 us", "warning", 600, True),
        ((copying(300, "pageable"), ("kernel", 700)), "Copies of pageable memory take 300 us of 1 ms", "info", 300, True),
        # EdVince/TopK: 146 ms of copies, 9 of kernels, 52 of the CPU's own code, which was named first
        ((copying(1_460, "pageable", 1 << 30), ("host", 520), ("kernel", 90)), "Copies of pageable memory take 1.46 of 2.07 ms", "warning", 610, True),
        ((copying(1_460, size=1 << 30), ("host", 520), ("kernel", 90)), "Copies take 1.46 of 2.07 ms", "warning", 90, False),
    ],
)  # fmt: skip
def test_copies_of_a_run(pieces, title, severity, loss_us, pinned):
    first = diagnose(analysis(interval("run", *pieces, kind="run"))).findings.iloc[0]
    assert first["title"].startswith(title) and ("pinned" in first["faster"]) == pinned
    assert (first["severity"], first["loss_ns"]) == (severity, loss_us * 1_000)


def test_copies_of_a_gpu_that_is_hardly_idle_are_told_with_their_sizes(tmp_path):
    """lavaMD: 86 % of the run are copies, every stream copies all arrays: "look at it with ncu" was said of the kernel.

    G    H2D 2.7 H2D 13.1 K D2H    four times
    """

    def draw(w):
        at = 0
        for _ in range(4):
            for size, kind in ((2_700_000, 1), (13_100_000, 1), (None, 0), (13_100_000, D2H)):
                if size is None:
                    w.kernel(at + 5_000, at + 1_000_000, w.call("launch", at, at + 4_000))
                    at += 996_000
                    continue
                call = w.call("memcpy", at, at + 4_000)
                w.copy(at + 5_000, at + size // 10, call, pageable=False, kind=kind, nbytes=size)
                at += size // 10 - 4_000

    made = recorded(tmp_path, draw, until=30_000_000)
    told = answer(made)
    assert told.sentence.startswith("Copies take ") and "ncu" not in told.sentence
    assert "its 8 H2D copies repeat the sizes of the first 2." in told.sentence
    assert "GB/s" in told.sentence and "copy them once" in told.fixes[0].sentence


def test_a_kernel_is_not_worth_a_look_where_copies_take_longer():
    def told(copy_us):
        drawn = analysis(interval("run", copying(copy_us), ("kernel", 300), kind="run"))
        took_us = {("add", "kernel"): 300, ("copy H2D pinned", "memcpy"): copy_us}
        rows = [
            dict.fromkeys(frames.KERNELS.names, 0)
            | {"label": "run", "kernel": name, "kind": kind, "count": 1, "total_ns": 1_000 * us}
            for (name, kind), us in took_us.items()
        ]
        kernels = frames.check(pd.DataFrame(rows), frames.KERNELS)
        # nothing else is said of a run in which launches failed
        made = failing(replace(drawn, kernels=kernels), ("cudaLaunchKernel", 701, 1))
        return answer(made).runs[0].sentence

    assert "Copies are 67 % of that work." in told(600) and "ncu" not in told(600)
    assert "add is 100 % of its kernel time: look at it with ncu." in told(200)


def test_a_kernel_of_a_small_part_is_named_without_a_tool_for_it():
    """densenet: the largest of its many kernels, PyTorch's ReLU, is 17 % of their time."""

    def told(kernels_us):
        drawn = analysis(interval("run", ("kernel", sum(kernels_us)), kind="run"))
        rows = [
            dict.fromkeys(frames.KERNELS.names, 0)
            | {
                "label": "run",
                "kernel": f"k{n}",
                "kind": "kernel",
                "count": 1,
                "total_ns": 1_000 * us,
            }
            for n, us in enumerate(kernels_us)
        ]
        kernels = frames.check(pd.DataFrame(rows), frames.KERNELS)
        made = failing(replace(drawn, kernels=kernels), ("cudaLaunchKernel", 701, 1))
        return answer(made).runs[0].sentence

    assert "k0 is 30 % of its kernel time." in told([300, 280, 220, 200])
    assert "k0 is 40 % of its kernel time: look at it with ncu." in told([400, 300, 300])


def test_a_range_named_staging_is_no_copy():
    def told(name):
        called = piece("host", 600, name)
        pieces = (("kernel", 100), called, copying(100, "pageable", what="staging"))
        drawn = analysis(interval("work", *pieces), interval("run", *pieces, kind="run"))
        whole = answer(diagnose(drawn))
        rows = [*whole.labels, *whole.runs]
        return whole.headline.text, [(row.warm, row.cold, row.words) for row in rows]

    assert told("staging") == told("loading")
    assert "GPU busy 12 %" in told("staging")[0] and "staging of copies 12 %" in told("staging")[0]


def test_a_copy_of_a_microsecond_is_no_warning():
    tiny = interval("run", copying(0.99, "pageable", 4), ("kernel", 1), kind="run")
    assert "whole-run" not in rules(analysis(tiny))


def failing(drawn, *calls):
    """The same analysis of a run in which calls failed: (name, error, how often)."""
    return diagnose(replace(drawn, trace=replace(drawn.trace, failed_calls=calls)))


def test_failed_calls_come_first_and_nothing_is_said_of_what_the_run_waited_for():
    drawn = analysis(repeat(6, "late", ("host", 300), ("kernel", 100)))
    calls = ("cudaLaunchKernel", 701, 21), ("cudaMemcpy", 77, 1)
    first = failing(drawn, *calls).findings.iloc[0]
    assert (first["rule"], first["severity"]) == ("failed-calls", "error")
    assert first["title"] == (
        "22 CUDA calls failed: first cudaLaunchKernel 21 times with error 701 (cudaErrorLaunchOutOfResources), then cudaMemcpy "
        "once with error 77."
    )
    # the driver is gone when the program ends; there was no context yet
    ended = failing(drawn, ("cuCtxSynchronize", 4, 1), ("cuCtxSynchronize", 201, 1))
    assert "failed-calls" not in set(ended.findings["rule"])
    run = analysis(interval("run", *RUN, kind="run"))
    assert set(failing(run, *calls).findings["rule"]) == {"failed-calls"}


def test_behind_copies_that_failed_it_is_told_where_the_time_went():
    """Two public programs: the last stream's copies failed, 108 launches did not; "a failed launch does nothing"."""
    told = answer(failing(analysis(interval("run", *RUN, kind="run")), ("cudaMemcpyAsync", 1, 16)))
    assert told.sentence == (
        "16 calls of cudaMemcpyAsync failed with error 1 (cudaErrorInvalidValue). The GPU ran nothing for 0.75 of 1 ms; for 700 us "
        "of that the CPU was outside of CUDA and had not launched the next work."
    )
    assert "the bytes of a failed copy never arrived" in told.fixes[0].sentence
    for call, code in (("cudaMemcpyAsync", 700), ("cudaLaunchKernel", 1)):
        others = failing(analysis(interval("run", *RUN, kind="run")), (call, code, 16))
        assert "GPU ran nothing" not in answer(others).sentence


@pytest.mark.parametrize(
    ("name", "other", "where"),
    [
        ("x", {}, "in x"),
        ("x\x1b[2J", {}, "in x"),  # a sentence is safe to print
        ("x", {23: 2}, "on the stream of x"),
    ],
)
def test_failed_launches_are_the_answer_also_of_what_was_timed(name, other, where):
    """A public program timed 20 launches that all failed: "launch latency and the event pair's cost"."""
    drawn = analysis(repeat(6, name, ("host", 9), ("api_launch", 5), other=other))
    text = "21 CUDA calls failed: cudaLaunchKernel 21 times with error 222 (cudaErrorUnsupportedPtxVersion). "
    told = answer(failing(drawn, ("cudaLaunchKernel", 222, 21)))
    assert told.sentence == f"{text}No kernel ran {where}."


@pytest.mark.parametrize(
    ("issuing", "reasons", "texts"),
    [
        (0, (), ("9 CUDA calls (cudaMalloc, called 3 times, takes 5 of 9 us)", "check that the program reached")),
        (4, (), ("4 of which give work to the GPU", "usual reasons are WSL2")),
        (4, ("Please try updating the CUDA driver.",), ("no row of the GPU's work; nsys says: Please try", "9 CUDA calls")),
    ],
)  # fmt: skip
def test_calls_without_a_row_of_gpu_work(issuing, reasons, texts):
    """The reason that nsys itself recorded comes first."""
    made = CallsWithoutWork(9, issuing, 9_000, "cudaMalloc", 5_000, 3)
    drawn = analysis()
    drawn = replace(drawn, of_runs=(made,), trace=replace(drawn.trace, reasons=reasons))
    result = diagnose(drawn)
    places = [result.notes[0].find(text) for text in texts]
    assert -1 not in places and places == sorted(places) and result.findings.empty
    assert result.notes[0].startswith("the trace holds ")


def test_an_export_with_calls_is_not_said_to_hold_none():
    """82,141 CUDA calls, ranges, and no GPU rows: the headline said that it held no CUDA calls."""
    row = dict.fromkeys(frames.HOST_RANGES.names, 0) | {"label": "step", "count": 7}
    drawn = replace(analysis(), host_ranges=pd.DataFrame([row]))
    silent, calling = (
        answer(diagnose(replace(drawn, known=Known(calls_without_work=calls)))).headline.text
        for calls in (0, 82_141)
    )
    assert "holds no CUDA calls" in silent and "82,141 CUDA calls" in calling
    assert "holds no CUDA calls" not in calling


def test_a_run_of_which_half_was_measured_is_left_alone():
    run = interval("run", ("kernel", 10), ("host", 9_000), ("kernel", 90), kind="run", start=0)
    few = repeat(3, "x", ("launch_latency", 1.6), ("kernel", 200), ("event", 2.3))
    assert "whole-run" not in rules(analysis(few, run)), "the program measured what it wanted"
    half = interval("x", ("host", 5_000), ("kernel", 90), kind="nvtx", start=4_010)
    assert "whole-run" not in rules(analysis(half, run))
    library = analysis(half, run)
    library = replace(library, intervals=library.intervals.assign(library=True))
    assert "whole-run" in rules(library)
    # around the range that holds the kernels it is set-up
    inside = interval("inference", ("kernel", 90), kind="nvtx", start=9_010)
    found = rules(analysis(inside, run))["whole-run"]
    assert (found.severity, found.loss_ns, found.faster) == ("info", 0, "")
    busy = interval("run", ("kernel", 70), ("host", 30), ("kernel", 10), kind="run")
    assert rules(analysis(busy))["whole-run"].severity == "info", "idle for a third at most"


FEW = SmallLaunches(
    1,
    0,
    "",
    0,
    unused_ns=290_000,
    kernel="add(int)",
    blocks=1,
    threads_per_block=256,
    multiprocessors=108,
)
GPU = "add was launched with 1 block of 256 threads, and the GPU has 108 multiprocessors."


@pytest.mark.parametrize(
    ("what", "ns", "more", "title"),
    [
        ("few_blocks", 300_000, {}, f"For 300 us of 1 ms at least half of the GPU had nothing to do: {GPU}"),
        ("few_blocks", 300_000, {"kinds": 2, "longest_ns": 190_000}, "add (of 2 such kernels the one that runs longest: 190 us) was launched"),
        ("few_blocks", 200_000, {}, ""),  # a fifth of the run
        ("fewer_blocks", 600_000, {}, "For 0.60 of 1 ms at least a third of the GPU had nothing to do"),
        ("few_threads", 320_000, {"blocks": 4096, "threads_per_block": 1},
         "For 320 us of 1 ms nothing ran but blocks of fewer threads than a warp: add was launched with 4,096 blocks of 1 thread, and a warp has 32."),
    ],
)  # fmt: skip
def test_kernels_with_few_blocks(what, ns, more, title):
    drawn = analysis(interval("run", *RUN, kind="run"))
    drawn = replace(drawn, of_runs=(FEW._replace(lack=what, ns=ns, **more),))
    told = rules(drawn).get("few-blocks")
    assert bool(told) == bool(title)
    if told:
        assert title in told.title and (told.severity, told.loss_ns) == ("warning", 290_000)
    # MPAS_Ocean_Julia: 790 ms of 4 and 12 blocks behind 12.9 s in which code was compiled
    compiled = IDLE._replace(before_first=FirstRuns(600_000, 5))
    assert "few-blocks" in rules(replace(drawn, of_runs=(*drawn.of_runs, compiled)))
    # a kernel that takes no longer than its launch gains nothing: 10,000 times 3.7 us in a public trace
    ran = [("run", "add(int)", "kernel", 81, 300_000, 3_703.7, 1.0, 0)]
    kernels = frames.check(pd.DataFrame(ran, columns=frames.KERNELS.names), frames.KERNELS)
    assert "few-blocks" not in rules(replace(drawn, kernels=kernels))


@pytest.mark.parametrize(
    ("flag", "late_ns", "between", "said", "advised"),
    [
        (BLOCKING, 0, 7, "4 streams took turns, as work on the default stream lies between", "Create the streams with cudaStreamNonBlocking"),
        # what else keeps them apart is not known: no more than that they are in use
        (NON_BLOCKING, 0, 7, "was launched with 1 block", "Give each launch more blocks"),
        (BLOCKING, 42_000, 7, "was launched with 1 block", "Give each launch more blocks"),  # launched too late to overlap
        (BLOCKING, 0, 13, "was launched with 1 block", "Give each launch more blocks"),
    ],
)  # fmt: skip
def test_streams_that_the_default_stream_keeps_apart(
    tmp_path, flag, late_ns, between, said, advised
):
    """A public program launches on nine streams, and each time on the default stream as well.

    stream 13   [ 1 block ]
    default                [K]
    stream 14                 [ 1 block ]
    """
    world = World(streams={7: LEGACY} | dict.fromkeys(range(13, 17), flag))
    for k in range(4):
        at = 200_000 * k
        call = at + late_ns if late_ns else 30_000 * k
        world.kernel(
            at + 60_000, at + 240_000, world.call("launch", call, call + 4_000), 13 + k, block=64
        )
        call += 10_000
        world.kernel(
            at + 245_000, at + 250_000, world.call("launch", call, call + 4_000), between, name="f"
        )
    world.end = 1_000_000
    trace, _ = export.write(world, tmp_path)
    few, *_ = small_launches(read_trace(trace), {0: Gpu(108, 0, 0)})
    drawn = analysis(interval("run", *RUN, kind="run"))
    found = rules(replace(drawn, of_runs=(few._replace(pid=1),)))["few-blocks"]
    assert said in found.title and found.faster.startswith(advised)
    assert "other streams" not in found.faster or flag == BLOCKING


def test_the_warm_up_does_not_lead():
    drawn = [repeat(6, name, ("host", 300), ("kernel", 100)) for name in ("Warm-up", "step")]
    found = diagnose(analysis(*drawn)).findings
    severity = dict(zip(found["label"], found["severity"], strict=True))
    assert severity["step"] == "warning" and severity["Warm-up"] == "info"


def recorded(tmp_path, *programs, until=70_000_000):
    """The analysis of worlds that a function draws, and what is false in it."""
    world = World(streams={7: LEGACY, 13: NON_BLOCKING})
    for draw in programs:
        draw(world)
    world.end = until
    trace, _ = export.write(world, tmp_path)
    made = analyze(trace, all_segments=True)
    assert check(made, trace).false == []
    return made


@pytest.mark.parametrize(
    ("loading", "said", "advice"),
    [
        (range(1, 13), "was linked or loaded (12 times, for 11.9 ms)", "Warm up"),
        (range(1, 96, 8), "was linked or loaded, all along the run (12 times", "Load each module once"),
    ],
)  # fmt: skip
def test_loading_ends_with_the_first_iterations(tmp_path, loading, said, advice):
    """A public program's first frame took 3.2 of 4.7 s, and 12 % of the operations; no code was loaded behind it.

    H   [load 1 ms][launch]     in 12 of 96 rounds, the first ones or each eighth; in all others the launch alone
    G                      K
    """

    def draw(w):
        at = 0
        for number in range(96):
            if number in loading:
                w.call("other", at + 10_000, at + 1_000_000, name="cuLibraryLoadData")
                at += 1_000_000
            w.kernel(at + 6_000, at + 16_000, w.call("launch", at + 1_000, at + 5_000))
            at += 20_000

    found = rules(diagnose(recorded(tmp_path, draw, until=20_000_000)))["whole-run"]
    assert said in found.title and found.faster.startswith(advice)


def test_set_up_is_said_first_where_little_else_happens(tmp_path):
    """
    H    cudaMalloc [0--------------60 ms]    launch   cudaFree [1 ms]
    G                                          [ 0.1 ms ]
    """

    def draw(w):
        w.call("other", 0, 60_000_000)
        w.call("other", 1_000_000, 59_000_000, 1)  # another thread, at once
        w.kernel(60_010_000, 60_110_000, w.call("launch", 60_000_000, 60_004_000))
        w.kernel(60_200_000, 60_210_000, w.call("launch", 60_190_000, 60_194_000))
        w.call("other", 60_300_000, 61_300_000, name="cudaFree_v3020")

    made = recorded(tmp_path, draw)
    sentence = answer(made).sentence
    first = "60 of 61.3 ms are set-up before the GPU's first work (cudaMalloc)."
    assert sentence.startswith(first) and len(sentence) > len(first)


@pytest.mark.parametrize(("set_up_ms", "is_first"), [(60, True), (6, False)])
def test_set_up_is_said_first_where_ranges_lead_too(tmp_path, set_up_ms, is_first):
    """A public program: 2.03 of 2.26 s lie in the first call of a range, whose work on the GPU takes 2 ms.

    range   [ cudaMalloc                [launch] ]   [ [launch] ]
    G                                      [K]           [K]
    """

    def draw(w):
        begin = set_up_ms * 1_000_000
        w.call("other", 0, begin)
        for k in range(5):
            at = begin + 10_000_000 * k
            w.ranges.append(Range("step", at if k else 0, at + 9_000_000, 500))
            w.kernel(at + 20_000, at + 120_000, w.call("launch", at + 10_000, at + 14_000))
            w.kernel(
                at + 8_010_000, at + 8_110_000, w.call("launch", at + 8_000_000, at + 8_004_000)
            )

    sentence = answer(recorded(tmp_path, draw, until=120_000_000)).sentence
    assert sentence.startswith("60 of ") == is_first
    assert "step: its GPU work spans" in sentence


def test_set_up_without_calls(tmp_path):
    """OpenMP's: the context is created outside of what nsys records."""

    def draw(w):
        w.call("other", 0, 3_000_000)
        w.kernel(75_010_000, 75_110_000, w.call("launch", 75_000_000, 75_004_000))
        w.kernel(75_200_000, 75_210_000, w.call("launch", 75_190_000, 75_194_000))

    made = recorded(tmp_path, draw, until=76_000_000)
    found = rules(made)["set-up"]
    assert answer(made).sentence.startswith(found.title.partition(",")[0])
    assert found.evidence["first_call_to_first_work_ns"] == 75_010_000
    assert found.evidence["whole_ns"] == 75_210_000
    assert found.evidence["before_first_work_ns"] == 3_004_000


def test_time_before_the_first_work_is_told_whatever_the_gpu_does_later(tmp_path):
    """lavaMD: 35.6 of 44.3 s pass before the first copy, 27 s of them outside of CUDA; the GPU works for a fifth."""

    def draw(w):
        w.call("other", 0, 8_000_000)
        w.kernel(36_010_000, 44_000_000, w.call("launch", 36_000_000, 36_004_000))

    told = answer(recorded(tmp_path, draw)).sentence
    assert told.startswith(
        "36.0 of 44 ms since the first CUDA call pass before the GPU's first work"
    )


def test_set_up_and_what_follows_it_fit_into_three_lines(tmp_path):
    """A context is created, the first kernel's code is compiled, the second one's for longer."""

    def draw(w):
        w.call("other", 0, 3_000_000)
        time = 200_000_000
        for name in ("first", "second", "first", "second"):
            w.kernel(time + 10_000, time + 110_000, w.call("launch", time, time + 4_000), name=name)
            time += 30_000_000

    made = recorded(tmp_path, draw, until=300_000_000)
    first, then = made.findings["title"].tolist()[:2]
    sentence = answer(made).sentence
    head, _, tail = sentence.partition(". ")
    whole, kept = (
        textwrap.wrap(one, 80) + textwrap.wrap(other, 80)
        for one, other in ((first, then), (head, tail))
    )
    assert len(whole) > 3 >= len(kept)
    assert head.startswith(first.partition(";")[0].partition(",")[0])
    assert "3 pauses: 29.9 ms before second" in tail and "…." not in tail
    database.write(made, tmp_path / "analysis.db")
    assert answer(database.load(tmp_path / "analysis.db")).sentence == sentence


def test_a_first_step_that_makes_no_call(tmp_path):
    """
    G    K1  K2    40 ms    K1  K2   1 ms   K1  K2  ...      which kernels run for the first time
             ^ 30 ms before it, later 0.01: its code is compiled, or the allocator grows
    """

    def draw(w):
        time = 0
        for step in range(6):
            for name, first, later in (("K1", 0, 1_000_000), ("K2", 30_000_000, 10_000)):
                time += later if step else first
                call = w.call("launch", time, time + 4_000)
                w.kernel(time + 10_000, time + 110_000, call, name=name)
                time += 110_000

    found = rules(recorded(tmp_path, draw))["whole-run"]
    assert found.evidence["before_first_launches_ns"] == 29_990_000
    assert "30.0 ms of that passed before K2 ran for the first time." in found.title
    assert found.faster.startswith("If code is compiled there, warm up")


@pytest.mark.parametrize(
    ("call", "call_ms", "told", "advice"),
    [
        ("cudaFree", 40, "for 40 ms of that the CPU was in cudaFree (called 2 times), before K2 ran for the first time", "A cudaFree"),
        ("cudaHostAlloc", 40, "for 40 ms of that the CPU was in cudaHostAlloc (called 2 times)", "Allocate once"),
        ("cudaFree", 10, "50.0 ms of that passed before K2 ran for the first time", "If code is compiled"),
    ],
)  # fmt: skip
def test_the_call_that_takes_the_time_before_a_first_run_is_named(
    tmp_path, call, call_ms, told, advice
):
    """A public program makes handles of cuBLAS and cuSPARSE, 855 of 866 ms in three cudaFree: "if code is compiled there"."""

    def draw(w):
        w.kernel(10_000, 110_000, w.call("launch", 0, 4_000), name="K1")
        for half in range(2):
            at = 200_000 + 500_000 * call_ms * half
            w.call("other", at, at + 500_000 * call_ms, name=call)
        at = 50_110_000
        for name in ("K2", "K3", "K2", "K3", "K2", "K3"):
            w.kernel(at, at + 100_000, w.call("launch", at - 10_000, at - 6_000), name=name)
            at += 115_000

    found = rules(recorded(tmp_path, draw))["whole-run"]
    assert told in found.title and found.faster.startswith(advice)


def test_one_first_run_that_is_all_of_it_is_named_alone():
    drawn = analysis(interval("run", ("kernel", 100), ("host", 800), ("kernel", 100), kind="run"))
    for longest_ns, counted in ((499_000, False), (300_000, True)):
        first = FirstRuns(500_000, 3, "mul(int)", longest_ns)
        idle = IDLE._replace(before_first=first)
        title = rules(replace(drawn, of_runs=(idle,)))["whole-run"].title
        assert ("3 kernels" in title) == counted and "mul" in title


@pytest.mark.parametrize(
    ("load_us", "told", "advice"),
    [
        (1_000, "50.1 ms of that passed before K2 ran for the first time; calls that load code take 1 ms of it", "If"),
        (49_000, "for 50.1 ms of that it waited for K2 to run for the first time", "Warm up"),
    ],
)  # fmt: skip
def test_a_gap_in_which_little_code_is_loaded_is_not_told_as_loading(
    tmp_path, load_us, told, advice
):
    """A program reads its data for 50 ms; the first launch behind that loads its kernel."""

    def draw(w):
        w.kernel(10_000, 110_000, w.call("launch", 0, 4_000), name="K1")
        end = 50_200_000
        w.call("other", end - load_us * 1_000, end, name="cuLibraryLoadData")
        w.kernel(end + 10_000, end + 110_000, w.call("launch", end, end + 4_000), name="K2")

    found = rules(recorded(tmp_path, draw))["whole-run"]
    assert told in found.title and found.faster.startswith(advice)


def test_records_that_were_lost_come_before_all_else(tmp_path):
    """A matcher reads its result before its only kernel is done; a T4's trace ends before its ranges."""

    def launches(w):
        for k in range(3):
            at = 1_000_000 * k
            call = w.call("launch" if k == 2 else "memset", at, at + 4_000)
            if k < 2:
                w.op("memset", at + 10_000, at + 110_000, call)

    said = answer(recorded(tmp_path, launches, until=3_000_000))
    assert said.sentence.startswith("1 kernel launch has no kernel that begins later in this trace")

    def ranges(w):
        for k in range(9):
            at = 1_000_000 * k
            w.ranges.append(Range("step", at, at + 900_000, w.pid))
            if k < 5:
                w.kernel(at + 10_000, at + 110_000, w.call("launch", at + 100, at + 4_000))

    (tmp_path / "ranges").mkdir()
    said = answer(recorded(tmp_path / "ranges", ranges, until=10_000_000))
    assert said.sentence.startswith("Ranges that call CUDA (step) go on for 4.90 ms after the last")


@pytest.mark.parametrize("count", [2, 3])
def test_a_first_call_that_a_row_shows_is_not_left_out(tmp_path, count):
    """llm-community's row showed 138 ms, of which the line beneath it said that they were left out."""

    w = World()
    for k in range(count):
        at = 1_000_000 * k
        w.ranges.append(Range("step", at, at + 950_000, w.pid))
        for begin in (10_000, 50_000 if k else 900_000):
            call = w.call("launch", at + begin, at + begin + 4_000)
            w.kernel(at + begin + 6_000, at + begin + 36_000, call)
    w.end = 5_000_000
    trace, _ = export.write(w, tmp_path)
    said = answer(analyze(trace, all_segments=True))
    (row,) = said.labels
    assert (row.elapsed_ns > 900_000) == (count == 2)
    assert any("left out" in remark for remark in said.remarks) == (count == 3)


@pytest.mark.parametrize(("calls_until", "shown"), [(7, 3), (12, 12)])
def test_ranges_that_lack_the_work_of_a_thread_are_not_whole(tmp_path, calls_until, shown):
    """amlRoofline: autograd's rows end in the 33rd of 96 iterations, all rows in the 66th.  The others had 158 launches instead
    of 357, and "unexplained wait, 67 %".  Without a loss a thread may do less at the end, as in a validation.

    ranges        [step ][step ][step ][step ][step ][step ][step ][step ] ...
    main thread     f      f      f      f      f      f      f
    autograd's        bb     bb     bb     b
    """

    def draw(w):
        for k in range(12):
            at = 1_000_000 * k
            w.ranges.append(Range("step", at, at + 900_000, w.pid))
            if k < calls_until:
                w.kernel(at + 10_000, at + 110_000, w.call("launch", at + 100, at + 4_000))
            for begin in (200_000, 500_000)[: 2 if k < 3 else k == 3]:
                call = w.call("launch", at + begin, at + begin + 4_000, thread=w.pid + 1)
                w.kernel(at + begin + 10_000, at + begin + 210_000, call)

    (label,) = (made := recorded(tmp_path, draw, until=13_000_000)).grouped
    assert label.count == shown
    remarks = "".join(answer(made).remarks)
    assert ("3 of 12 ranges step are whole" in remarks) == (shown == 3)


def test_ranges_whose_work_threads_take_in_turn_miss_none_of_them(tmp_path):
    """Rows were lost, but of no thread most ranges hold calls: those with work stay as they are."""

    def draw(w):
        for k in range(12):
            at = 1_000_000 * k
            w.ranges.append(Range("step", at, at + 900_000, w.pid))
            if k < 8:
                call = w.call("launch", at + 100, at + 4_000, thread=w.pid + k % 4)
                w.kernel(at + 10_000, at + 110_000, call)

    made = recorded(tmp_path, draw, until=13_000_000)
    assert not any("are whole" in remark for remark in answer(made).remarks)


@pytest.mark.parametrize(
    ("until_us", "lasts"), [(47_700, 47_700_000), (38_000, None), (30_000, None)]
)
def test_what_a_range_lasts_beside_its_work(tmp_path, until_us, lasts):
    """Darknet-53 by TensorFlow: 35.4 ms of GPU work, "kernels 52 %", in a range of 47.7 ms whose thread waited for it.

    thread   [ CPU     launch  launch  ][wait]     12 ms before the first work; or it goes on before that is done
    GPU                   [KKK    KKKKKK]
    """

    def draw(w):
        for at in (1_000_000, 100_000_000):
            w.ranges.append(Range("Model", at, at + 1_000 * until_us, w.pid))
            for begin, until in ((12_000_000, 20_000_000), (37_000_000, 47_400_000)):
                launch = at + min(begin - 10_000, 25_000_000)
                w.kernel(at + begin, at + until, w.call("launch", launch, launch + 4_000))
            w.sync(at + 25_010_000, at + 47_405_000)

    told = rules(recorded(tmp_path, draw, until=200_000_000))
    evidence = {name: value for found in told.values() for name, value in found.evidence.items()}
    assert evidence.get("longer_range_ns") == lasts
    if lasts:
        assert evidence["longer_range_kernels_share"] == pytest.approx(18.4 / 47.7, abs=1e-4)


def test_work_that_fills_little_of_the_time_of_its_process(tmp_path):
    def draw(w):
        w.call("other", 0, 1_000_000)
        w.kernel(10_010_000, 10_110_000, w.call("launch", 10_000_000, 10_004_000))
        w.kernel(11_010_000, 11_110_000, w.call("launch", 11_000_000, 11_004_000))
        w.call("other", 30_000_000, 30_100_000)

    said = answer(recorded(tmp_path, draw))
    (found,) = (f for group in said.groups for f in group.findings if f.rule == "set-up")
    assert said.sentence.startswith(found.title)
    assert {"30.1 ms", "10.0 ms", "19.0 ms", "1.10 ms"} <= {value for _, value in found.evidence}


def test_results_in_between(tmp_path):
    """
    H    launch  copy back   the CPU works: 9 ms   copy in  launch ...
    G    K  D2H                                    H2D K               ten times
    """

    def draw(w):
        for k in range(10):
            at = 10_000_000 * k
            w.copy(at + 5_000, at + 100_000, w.call("memcpy", at, at + 101_000), pageable=False)
            w.kernel(at + 110_000, at + 1_800_000, w.call("launch", at + 102_000, at + 106_000))
            back = w.call("memcpy", at + 107_000, at + 1_901_000)
            w.copy(at + 1_801_000, at + 1_900_000, back, pageable=False, kind=D2H)

    found = rules(recorded(tmp_path, draw, until=101_000_000))["whole-run"]
    assert (
        "of that lie between a copy to the host and the next one to the device (9 times)"
        in found.title
    )
    assert "pipeline" in found.faster


def test_calls_between_results_are_no_time_outside_of_cuda(tmp_path):
    """
    H    copy back   own code 8.4 ms   cudaHostRegister 1.5 ms   copy in
    G    D2H                                                     H2D       ten times
    """

    def draw(w):
        for k in range(10):
            at = 10_000_000 * k
            up = w.call("memcpy", at, at + 21_000)
            w.copy(at + 5_000, at + 20_000, up, pageable=False)
            back = w.call("memcpy", at + 101_000, at + 121_000)
            w.copy(at + 105_000, at + 120_000, back, pageable=False, kind=D2H)
            w.call("other", at + 5_000_000, at + 6_500_000, name="cudaHostRegister_v4000")

    found = rules(recorded(tmp_path, draw, until=101_000_000))["whole-run"]
    assert "(9 times), the CPU mostly outside of CUDA (75.4 ms); the rest mostly in" in found.title
    assert "cudaHostRegister" in found.title.rpartition("mostly in")[2]


def test_copies_of_different_threads_are_no_round_trip(tmp_path):
    """
    H1   copy back            |                        one thread's copy back, another's copy up, which
    H2       [ cudaHostAlloc  7 ms ] copy in           allocates in between: a public program was told to pipeline
    G        D2H                     H2D  K            ten times
    """

    def draw(other):
        def steps(w):
            for k in range(10):
                at = 10_000_000 * k
                w.call("other", at + 3_000_000, at + 9_990_000, other, name="cudaHostAlloc_v3020")
                up = w.call("memcpy", at + 9_991_000, at + 9_999_000, other)
                w.copy(at + 9_995_000, at + 9_998_000, up, pageable=False)
                back = w.call("memcpy", at + 1_000, at + 1_901_000)
                w.copy(at + 1_801_000, at + 1_900_000, back, pageable=False, kind=D2H)

        return steps

    for thread in (0, 1):  # in a thread of its own; in the same, which is inside a call
        (tmp_path / str(thread)).mkdir()
        made = recorded(tmp_path / str(thread), draw(thread), until=101_000_000)
        (known,) = made.of_runs_by(IdleTime)
        assert known.back is None
        found = rules(made)["whole-run"]
        assert "between_copies_ns" not in found.evidence and found.faster.startswith("Allocate")


def test_a_gap_of_one_stream_is_no_idle_time_of_its_gpu(tmp_path):
    """
    stream 7    KKKKK         KKKKK      the GPU is never idle, so that nothing is known of gaps
    stream 13      KKKKKKKKKKKK
    """

    def draw(w):
        launches = [w.call("launch", at, at + 1_000) for at in (0, 2_000, 4_000)]
        w.kernel(10_000, 110_000, launches[0])
        w.kernel(100_000, 310_000, launches[1], 13)
        w.kernel(300_000, 400_000, launches[2])

    made = recorded(tmp_path, draw)
    assert made.of_runs_by(IdleTime) == [] and made.gaps.empty


def test_idle_time_in_ranges_is_known_by_the_innermost(tmp_path):
    def draw(w):
        w.ranges.append(Range("all", 0, 60_000_000, 0))
        w.ranges.append(Range("Steps", 1_000_000, 50_000_000, 0))
        w.ranges.append(Range("aten::add", 1_000_000, 50_000_000, 0))
        w.ranges.append(Range("small", 2_000_000, 3_000_000, 0))
        for at in (0, 40_000_000, 52_000_000):
            w.kernel(at + 10_000, at + 110_000, w.call("launch", at, at + 4_000))

    (known,) = recorded(tmp_path, draw).of_runs_by(IdleTime)
    idle = 39_900_000 + 11_900_000
    assert known.in_ranges == InRange(idle, "Steps", 39_010_000 + 9_890_000)


def test_the_run_leads_where_its_labels_are_records_of_a_stream_that_did_nothing(tmp_path):
    """Records on a quiet stream around work on another: a public trace was said to be "sync 92 %"."""

    def draw(w):
        for k in range(8):
            at = 5_000_000 * k
            start = w.record(at + 1_000, at, at + 1_000, 7)
            w.kernel(at + 20_000, at + 120_000, w.call("launch", at + 2_000, at + 6_000), 13)
            w.sync(at + 7_000, at + 125_000)
            end = w.record(at + 127_000, at + 126_000, at + 127_000, 7)
            w.sync(at + 128_000, at + 130_000, record=end)
            assert start is not end

    made = recorded(tmp_path, draw, until=41_000_000)
    assert answer(made).sentence.startswith("Between its first and its last work")


@pytest.mark.parametrize(
    ("method", "leads"), [("inferred", "From its first"), ("clock", "x: 3 timings")]
)
def test_the_run_leads_where_pairs_of_a_trace_timed_different_things(method, leads):
    """A public trace: pairs of 0.1, 1.4 and 1,000 ms, and the one of 1.4 was all that was said."""
    pairs = [interval("x", ("kernel", 100 * 30**k), method=method, start=k) for k in range(3)]
    run = interval("run", ("kernel", 93_100), kind="run", start=0)
    assert answer(diagnose(analysis(pairs, run))).sentence.startswith(leads)


def test_ranges_that_overlap_do_not_lead(tmp_path):
    """1,000 ranges that stay open until the end of a loop: each is the rest of the loop."""

    def draw(w):
        w.ranges.append(Range("loop", 0, 10_000_000, 0))
        for k in range(10):
            at = 1_000_000 * k
            w.ranges.append(Range("test", at, 10_000_000 - 1_000 * k, 0))
            w.kernel(at + 20_000, at + 40_000, w.call("launch", at + 2_000, at + 6_000))

    made = recorded(tmp_path, draw, until=10_100_000)
    assert answer(made).sentence.startswith("loop: its GPU work spans")


def managed(moving_ns: int, alone_ns: int, **more):
    """A run of 1 ms with pages that moved both ways, and a touch of theirs by the CPU."""
    drawn = analysis(interval("run", ("kernel", 500), ("host", 400), ("memcpy", 100), kind="run"))
    run = drawn.intervals.iloc[0]
    moved = {"to_device_count": 40, "to_host_count": 8, "to_host_bytes": 1 << 16} | more
    moved |= {"moving_ns": moving_ns, "alone_ns": alone_ns}
    record = PageMigrations(int(run["pid"]), int(run["device"]), **moved)
    return rules(replace(drawn, of_runs=(record,)))


def test_pages_that_move_when_they_are_touched():
    found = managed(300_000, 100_000)["page-migrations"]
    assert (found.severity, found.loss_ns) == ("warning", 300_000)
    assert found.title == (
        "Managed memory moved page by page when it was touched: 48 migrations to and from the GPU. Pages moved for 200 us "
        "while kernels ran, and for 100 us while none did; how long the page faults themselves took is not in the trace."
    )
    assert "cudaMemPrefetchAsync" in found.faster
    assert "page-migrations" not in managed(90_000, 50_000), "less than a tenth of the run"


def test_pages_that_the_host_touches_lead_where_they_take_longest():
    """Public programs lost 3.55 of 4.95 s to them and were told of 1.06 s of few blocks, or of a pause.  At most:
    CUDA_practice had 109 ms before pages, most of them the CPU's own loop; prefetching saved 3."""
    touched = {
        "touched_count": 4,
        "touched_ns": 350_000,
        "to_host_ns": 20_000,
        "kernels_ns": 500_000,
    }
    found = managed(0, 0, **touched, asked=True)["page-migrations"]
    assert found.loss_ns == 350_000 and "moved to the host for 20 us (65.5 kB in 8" in found.title
    assert "page-migrations" not in managed(300_000, 0, asked=True)
    assert "prefetch to the GPU" not in found.faster
    # aws_gpu (softmax): what was prefetched came back for the CPU, and up again for 25.6 of the 35.6 ms of its kernel
    undone = managed(0, 0, **touched, to_device_in_kernels_ns=300_000, asked=True)[
        "page-migrations"
    ]
    assert undone.evidence["moving_to_the_gpu_in_kernels_ns"] == 300_000
    assert "prefetch to the GPU" in undone.faster
    # a program that asked for none is told what mends both
    both = managed(300_000, 100_000, **touched)["page-migrations"]
    assert both.loss_ns == 350_000  # rules() keeps the last: the smaller


def test_a_kernel_is_not_named_beside_an_interval_in_which_it_never_ran():
    usual = repeat(5, "x", ("kernel", 10), kind="nvtx")
    drawn = diagnose(analysis(usual))
    ran = [
        ("x", "other(int)", "kernel", 3, 900_000, 300_000, 1.0, 0),
        ("x", "kernel", "kernel", 5, 50_000, 10_000, 1.0, 0),
    ]
    kernels = frames.check(pd.DataFrame(ran, columns=frames.KERNELS.names), frames.KERNELS)
    told = answer(replace(drawn, kernels=kernels)).sentence
    assert "other" not in told and "ncu" in told
    mine = [(name, "kernel", *rest) for name, _, *rest in ran[:1]]
    kernels = frames.check(pd.DataFrame(mine, columns=frames.KERNELS.names), frames.KERNELS)
    assert "ncu" in answer(replace(drawn, kernels=kernels)).sentence


def test_pairs_of_a_trace_without_a_row_of_gpu_work_say_nothing(tmp_path):
    """A public trace with 238 launches and copies and no row of them: "event cost only", and a DataLoader."""
    pairs = repeat(6, "records", ("host", 9), ("api_launch", 84), method="inferred")
    made = CallsWithoutWork(2_307, 238, 13_700_000_000, "cudaEventSynchronize", 9_150_000_000, 32)
    drawn = replace(
        analysis(pairs),
        of_runs=(made,),
        known=Known(calls_without_work=2_307, issuing_without_work=238),
    )
    told = answer(diagnose(drawn))
    assert told.sentence.startswith("the trace holds 2,307 CUDA calls") and not told.fixes
    assert [row.verdict for row in told.labels] == ["cannot_tell"] and not told.groups


def test_a_failed_call_is_said_once():
    told = answer(failing(analysis(), ("cudaLaunchKernel", 222, 1)))
    assert told.sentence.count("failed") == 1
    assert [fix.purpose for fix in told.fixes] == [
        "measure it right"
    ]  # nothing says that the GPU is


def test_a_trace_whose_only_call_failed_says_what_is_known_besides():
    lost = CallsWithoutWork(1, 0, 1_410, "cuCtxSynchronize", 1_410, 1)
    drawn = replace(analysis(), of_runs=(lost,), known=Known(calls_without_work=1))
    reasons = ("Not all CUDA events might have been collected.",)
    drawn = replace(drawn, trace=replace(drawn.trace, reasons=reasons))
    assert answer(failing(drawn, ("cuCtxSynchronize", 709, 1))).sentence == (
        "1 CUDA call failed: cuCtxSynchronize once with error 709 (cudaErrorContextIsDestroyed). No call in the trace gives work "
        "to the GPU; nsys says: Not all CUDA events might have been collected."
    )
    told = answer(failing(analysis(), ("cuCtxSynchronize", 700, 1), ("cudaFree", 700, 2)))
    assert told.sentence == (
        "3 CUDA calls failed: first cuCtxSynchronize once with error 700 (cudaErrorIllegalAddress), then cudaFree 2 times with "
        "error 700."
    )
    assert told.fixes[0].code == "compute-sanitizer ./PROGRAM"


@pytest.mark.parametrize("of_range", ["", "set_up " * 40])
def test_what_follows_set_up_can_be_changed(tmp_path, of_range):
    """Where a range's name leaves no room for what follows, its fix would be read as one for the set-up."""

    def draw(w):
        w.call("other", 0, 900_000_000)
        if of_range:
            w.ranges.append(Range(of_range, 0, 900_500_000, 0))
        for k in range(9):
            at = 901_000_000 + 10_000_000 * k
            w.call("other", at + 1_000_000, at + 9_000_000, name="cudaMalloc_v3020")
            w.kernel(at + 10_000, at + 110_000, w.call("launch", at, at + 4_000))

    told = answer(recorded(tmp_path, draw, until=1_000_000_000))
    assert "the GPU's first work" in told.sentence
    assert [fix.sentence[:13] for fix in told.fixes] == ([] if of_range else ["Allocate once"])


def test_time_in_which_a_data_loader_gets_the_next_batch(tmp_path):
    """A copy to the host before each gap and one to the device behind it are no pipeline's matter."""

    def draw(w):
        for at in (0, 10_000_000, 20_000_000):
            w.copy(at, at + 100_000, w.call("memcpy", at, at + 4_000), pageable=False)
            back = w.call("memcpy", at + 100_000, at + 400_000)
            w.copy(at + 200_000, at + 300_000, back, pageable=False, kind=2)
            w.ranges.append(Range(SINGLE.name, at + 500_000, at + 9_500_000, 0))

    made = recorded(tmp_path, draw, until=30_000_000)
    found = rules(made)["whole-run"]
    assert found.evidence["in_data_loader_ns"] == 18_000_000 == found.loss_ns
    assert found.faster.startswith("Let workers")
    busy = analysis(
        interval("run", ("kernel", 700), piece("host", 250, None), ("kernel", 50), kind="run")
    )
    known = IDLE._replace(in_data_loader=SINGLE._replace(ns=230_000))
    found = rules(replace(busy, of_runs=(known,)))["whole-run"]
    assert found.severity == "warning", "what to do is known"
    assert rules(replace(busy, of_runs=(IDLE,)))["whole-run"].severity == "info"


@pytest.mark.parametrize(
    ("operations", "title", "faster"),
    [
        (3, "for 800 us of that launched work did not begin, and the trace does not say why.", ""),
        (30, "for 800 us of that the CPU was inside calls that launch work, or", "Launch less"),
    ],
)
def test_work_that_begins_late_is_not_launched_less(operations, title, faster):
    """A public export: 97 memsets began 1.6 ms after their calls, on an idle stream; a graph was advised."""
    pieces = ("kernel", 5), ("launch_latency", 800), ("kernel", 5)
    drawn = analysis(interval("run", *pieces, kind="run"))
    known = IDLE._replace(operations=operations)
    found = rules(replace(drawn, of_runs=(known,)))["whole-run"]
    assert title in found.title and found.faster.startswith(faster)
    assert bool(found.faster) == bool(faster)


@pytest.mark.parametrize(("unused_us", "leads"), [(300, "cudaMalloc"), (600, "1 block")])
def test_what_loses_most_leads(unused_us, leads):
    """A public export: kernels of 16 blocks lost 1.60 s and led; allocating again and again lost 1.91 s."""
    pieces = ("kernel", 1_200), piece("api", 500, "cudaMalloc"), ("kernel", 300)
    drawn = analysis(interval("run", *pieces, kind="run"))
    few = FEW._replace(lack="few_blocks", ns=1_000_000, unused_ns=unused_us * 1_000)
    told = answer(diagnose(replace(drawn, of_runs=(few, IDLE))))
    assert leads in told.sentence


def test_what_is_said_behind_set_up_is_of_the_same_process(tmp_path):
    """
    H  cudaFree [ 50 ms ]  launch   cudaHostRegister [ 9 ms ]  launch       two processes, each with a GPU of its own
    G                      [K]                                 [K]
    """

    worlds = [World(pid=500 + n, device=n, streams={7: LEGACY}) for n in range(2)]
    for w in worlds:
        w.call("other", 0, 50_000_000, name="cudaFree_v3020")
        w.kernel(50_010_000, 50_020_000, w.call("launch", 50_001_000, 50_006_000))
        w.call("other", 51_000_000, 60_000_000, name="cudaHostRegister_v4000")
        w.kernel(60_010_000, 60_020_000, w.call("launch", 60_001_000, 60_006_000))
        w.end = 70_000_000
    trace, _ = export.write(worlds, tmp_path)
    sentence = answer(analyze(trace)).sentence
    assert sentence.startswith("Process 50") and sentence.count("before the GPU's first work") == 1
    assert "the GPU ran nothing of this process" in sentence and "cudaHostRegister" in sentence


@pytest.mark.parametrize(("kernels_us", "severity"), [(550, "warning"), (150, "info")])
def test_a_warm_up_is_not_what_the_program_measures(kernels_us, severity):
    """A public export: 6 of 12 s idle while torch.compile warmed up, in a range of its own; the screen praised a step."""
    warm_up = interval("warm up", ("host", 800), ("kernel", 100), kind="nvtx", start=0)
    first = interval("step", ("host", 300), ("kernel", 10), kind="nvtx", start=50)
    later = [interval("step", ("kernel", 10), kind="nvtx", start=1_000 + 20 * k) for k in range(10)]
    whole = interval("run", ("host", 850), ("kernel", kernels_us), kind="run", start=0)
    known = IDLE._replace(in_ranges=InRange(800_000, "warm up", 800_000))
    drawn = replace(analysis(warm_up, first, later, whole), of_runs=(known,))
    # where most kernels run in what is measured, the warm-up is set-up
    assert rules(drawn)["whole-run"].severity == severity


def test_round_trips_of_a_fifth_of_a_run_are_told():
    """A public trace: 22 gaps between a copy back and the next one in, 28 % of the run, one cause."""
    busy = analysis(
        interval("run", ("kernel", 700), piece("host", 250, None), ("kernel", 50), kind="run")
    )
    known = IDLE._replace(back=RoundTrips(230_000, 22, 0))
    found = rules(replace(busy, of_runs=(known,)))["whole-run"]
    assert found.severity == "warning" and "22 times" in found.title


def test_set_up_of_most_of_the_time_is_told_whatever_the_gpu_does(tmp_path):
    """A public trace: 119 of 136 ms in cuMemAllocAsync, and a kernel of 14 ms."""

    def draw(w):
        w.call("other", 0, 119_000_000, name="cuMemAllocAsync")
        w.kernel(122_000_000, 136_000_000, w.call("launch", 121_000_000, 121_004_000))

    made = recorded(tmp_path, draw, until=137_000_000)
    assert "cuMemAllocAsync 119 ms" in answer(made).sentence

    def short(w):
        w.call("other", 0, 9_000_000, name="cuMemAllocAsync")
        w.kernel(12_000_000, 26_000_000, w.call("launch", 11_000_000, 11_004_000))

    assert "cuMemAllocAsync" not in answer(recorded(tmp_path, short, until=27_000_000)).sentence


@pytest.mark.parametrize(("second_us", "told"), [(12_200, True), (5_000, False)])
def test_gpus_that_work_side_by_side_are_counted(second_us, told):
    """A public trace: two GPUs with one kernel each, and a sentence about one of them."""
    both = [
        interval("run (GPU 0)", ("kernel", 12_300), kind="run", start=0),
        interval("run (GPU 1)", ("kernel", second_us), kind="run", start=40),
    ]
    drawn = analysis(both)
    drawn = diagnose(replace(drawn, intervals=drawn.intervals.assign(device=[0, 1])))
    sentence = answer(drawn).sentence
    assert ("each of 2 GPUs worked for 12.2 ms" in sentence) is told
    assert ("GPU 0 worked for 100 % of it." in sentence) is not told


@pytest.mark.parametrize(
    ("pids", "devices", "told"),
    [
        ([1, 1], [0, 1], "GPU 0 worked for 100 % of it, GPU 1 for 50 %."),
        ([1, 2], [0, 0], "the GPU of process 1 worked for 100 % of it, the GPU of process 2 for 50 %."),
    ],
)  # fmt: skip
def test_figures_of_one_gpu_are_not_said_of_all(pids, devices, told):
    """A public export: "the GPU worked for 71 %" was of GPU 1; GPU 0 worked for 56 %."""
    first = interval("run (first)", ("kernel", 900), kind="run", start=0)
    second = interval("run (other)", ("kernel", 450), ("host", 450), kind="run", start=5)
    drawn = analysis(first, second)
    drawn = replace(drawn, intervals=drawn.intervals.assign(device=devices, pid=pids))
    ran = [("run (first)", "add(int)", "kernel", 9, 900_000, 100_000.0, 1.0, 0)]
    kernels = frames.check(pd.DataFrame(ran, columns=frames.KERNELS.names), frames.KERNELS)
    (row, _) = answer(replace(drawn, kernels=kernels)).runs
    assert row.sentence.startswith(f"Run: its GPU work spans 900 us; {told}")
    assert f"100 % of the kernel time of {told.partition(' worked')[0]}:" in row.sentence


@pytest.mark.parametrize(
    ("recorder", "torch", "told"),
    [("cupti", "", True), ("cupti", "2.11", False), ("nsys", "", False)],
)
def test_a_program_of_which_nothing_was_logged_is_told_so(recorder, torch, told):
    """CuPy alone: its clock readings are not there, and nothing said so."""
    drawn = analysis(interval("run", ("kernel", 500), kind="run"))
    trace = replace(drawn.trace, recorder=recorder)
    drawn = replace(drawn, trace=trace, known=Known(torch=torch))
    remarks = answer(diagnose(drawn)).remarks
    assert any("no timing was seen" in text for text in remarks) is told


@pytest.mark.parametrize(
    ("kernel", "told", "warms_up"),
    [
        ("void at::native::reduce_kernel<512>()", "timeit", False),
        ("add", "CuPy", True),
    ],
)
def test_what_a_library_of_torchs_times_is_not_seen_and_nothing_is_advised(kernel, told, warms_up):
    """torch.utils.benchmark warms up by itself; "once torch.cuda is imported" was false: it was."""
    drawn = analysis(interval("run", *RUN, kind="run"))
    kernels = KERNELS.assign(kernel=kernel, label="run", count=1, total_ns=250_000)
    known = IDLE._replace(first=FirstRuns(500_000, 3))
    trace = replace(drawn.trace, recorder="cupti")
    drawn = diagnose(replace(drawn, trace=trace, kernels=kernels, of_runs=(known,)))
    assert any(told in text for text in answer(drawn).remarks)
    assert bool(rules(drawn)["whole-run"].faster) == warms_up


KERNELS = pd.DataFrame({"label": ["x"], "kernel": ["gemm"], "kind": ["kernel"]})


@pytest.mark.parametrize(
    ("status", "ended"), [(1, "status 1."), (143, "status 143 (SIGTERM)"), (-9, "(SIGKILL)")]
)
def test_a_script_that_failed_is_told_of_before_all_else(status, ended):
    """Advice to copy less was given where a script had failed before it launched anything."""
    copied = interval(
        "x", piece("memcpy", 2_500, direction="H2D", memory="pageable", bytes=1 << 24)
    )
    launched = interval("x", ("host", 100), ("kernel", 2_500))
    early, late = (
        answer(replace(diagnose(drawn), kernels=ran, known=Known(exit_status=status)))
        for drawn, ran in ((analysis(copied), KERNELS[:0]), (analysis(launched), KERNELS))
    )
    assert early.verdict == "cannot_tell" and not early.fixes
    assert ended.rstrip(".") in early.sentence and "before it launched" in early.sentence
    assert ended.rstrip(".") in late.remarks[0] and late.verdict == "gpu_bound"
