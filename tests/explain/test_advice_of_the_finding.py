"""Shares, times and advice are of what the finding is about: each drawing is of a program whose first screen was false or
led elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.text import percent

from .drawing import analysis, diagnose, interval, piece, repeat
from .test_true_words import TORCH, codes, copy, told


@pytest.mark.parametrize(("back_us", "named"), [(400, True), (20, False)])
def test_copies_in_both_directions_share_their_time(back_us, named):
    """m05: 90 % was weights that go up and down, and the sentence named those that come back."""
    drawn = repeat(8, "x", copy(500, "H2D", "pageable"), copy(back_us, "D2H", "pageable"))
    sentence = told(drawn).sentence
    both = "1.05 MB H2D from pageable memory and 1.05 MB D2H to pageable memory"
    assert (both in sentence) == named and "1.05 MB H2D from pageable memory" in sentence


def test_bytes_and_rate_are_of_the_timing_that_is_told():
    """n07: '816 ms' was one timing, its '3.02 GB at 7.74 GB/s' the mean of five, the last of which copied less."""
    usual = repeat(4, "x", copy(500, "H2D", "pageable", 4_000_000))
    last = interval("x", copy(500, "H2D", "pageable", 3_000_000))
    assert "4.00 MB H2D from pageable memory at 8 GB/s." in told(usual, last).sentence


@pytest.mark.parametrize(("back", "advised"), [(24, True), (2, False)])
def test_what_does_not_change_on_the_gpu_need_not_come_back(back, advised):
    pieces = copy(500, "H2D", "pageable"), ("kernel", 20), copy(400, "D2H", "pageable")
    issued = [("memcpy", "copy H2D pageable", 24), ("memcpy", "copy D2H pageable", back)]
    said = told(repeat(8, "x", *pieces, kind="host"), issued=issued)
    assert ("need not come back" in codes(said)) == advised


MALLOC, FREE = (piece("api", 60, f"cuda{call}") for call in ("Malloc", "Free"))
STEP = [p for _ in range(20) for p in (("host", 150), ("api_launch", 5), ("kernel", 20))]


def test_what_a_search_allocates_is_no_memory_of_the_program():
    """m07: 54 of 862 ms of cuDNN's search were cudaMalloc and cudaFree, and the advice was about empty_cache()."""
    reads_time = piece("api", 9, "cudaEventElapsedTime")
    tries = [p for n in range(12) for p in (("host", 600), MALLOC, FREE, reads_time, ("sync", 9))]
    issued = [("kernel", f"cudnn::implicit_convolve_{n}", 30) for n in range(4)]
    said = told(repeat(13, "x", *tries, ("kernel", 90), kind="host"), issued=issued, waits=30)
    assert "benchmark = False" in codes(said) and "empty_cache" not in codes(said)
    assert "search" in said.sentence and "cudaMalloc" not in said.sentence


@pytest.mark.parametrize(("steps", "named"), [(6, True), (1, False)])
def test_memory_that_is_given_back_in_each_round_of_a_loop(steps, named):
    """m04: one timing of 60 steps, 28 % of which was a call without a name."""
    step = [*[MALLOC] * 9, *STEP, *[FREE] * 9]
    said = told(interval("x", *step * steps, kind="host"), issued=[("kernel", "at::add", 120)])
    assert ("in turns: memory is given back and taken again." in said.sentence) == named
    assert bool(re.search(r"of the [\d.]+ ms \(\d+ %\), in turns", said.sentence)) == named
    assert ("empty_cache" in codes(said)) == named


def test_shares_of_slow_timings_are_of_all_of_them():
    """m10: what 67 timings spent their time on was said of 131."""
    record = piece("api", 40, "cudaGraphInstantiate")
    drawn = [
        *repeat(30, "x", FREE, MALLOC, record, ("host", 9_000), *STEP, kind="host"),
        *repeat(25, "x", record, ("host", 4_000), *[MALLOC] * 80, *STEP[:30], kind="host"),
        *repeat(60, "x", ("host", 200), ("kernel", 80), kind="host"),
    ]
    host_ns, whole_ns = 30 * 12_000 + 25 * 5_500, 30 * 12_660 + 25 * 10_590
    share = f"CPU outside CUDA {percent(host_ns / whole_ns)}"
    assert share in told(drawn).sentence


@pytest.mark.parametrize(("replay_us", "leads"), [(200, True), (5_000, False)])
def test_timings_that_record_graphs_lead_together(replay_us, leads):
    """m10: half of the requests recorded a graph for a new batch size, and freed memory for it."""
    record = [piece("api", 40, "cudaGraphInstantiate"), ("host", 2_000)]
    drawn = [
        *repeat(30, "x", FREE, MALLOC, *record, *STEP, kind="host"),
        *repeat(25, "x", *record, *STEP[:30], kind="host"),
        *repeat(60, "x", ("host", replay_us), ("kernel", 80), kind="host"),
    ]
    sentence = told(drawn).sentence
    assert ("is the first 55" in sentence and "in each of which a CUDA graph" in sentence) == leads
    assert "cudaFree" not in sentence


@pytest.mark.parametrize(
    ("memory", "busy_us", "named"),
    [("pageable", 950, True), ("pinned", 950, False), ("pageable", 820, False)],
)
def test_copies_of_pageable_memory_without_a_kernel_beside_them_are_no_work(memory, busy_us, named):
    """n07: "95 % GPU work" was half copies for which CPU and kernels waited, in spite of a stream of their own."""
    pieces = ("host", 500), copy(400, "H2D", memory), ("kernel", 100)
    drawn = analysis(repeat(8, "x", *pieces, kind="host", issued=700, operations=9))
    busy = replace(drawn, intervals=drawn.intervals.assign(gpu_busy_ns=1_000 * busy_us))
    said = answer(diagnose(replace(busy, known=TORCH)))
    assert ("of it is copying" in said.sentence) == named
    assert ("GPU work" in said.labels[0].words) == (not named)


def test_copies_are_no_cause_of_a_range_that_is_mostly_the_cpus():
    """m13: 10 ms of GPU work, 69 % copies, of a range in which the CPU draws random numbers for 90 ms."""
    drawn = [
        interval("step", piece("host", 90_000, "noise"), ("kernel", 900), kind="host", start=at)
        for at in range(0, 800_000, 100_000)
    ]
    work = repeat(8, "noise", copy(900, "H2D", "pageable"), ("kernel", 100), kind="nvtx")
    for last_us, words in ((90_000, "range: > 90.0 ms"), (1_500, "copies, 90 %")):
        for one in drawn:
            one["pieces"][0]["ns"] = 1_000 * last_us
        rows = {row.label: row.words for row in told(drawn, work).labels}
        assert rows["noise"] == words


@pytest.mark.parametrize(
    ("behind", "kernel", "code"),
    [
        (copy(500, "H2D", "pageable") | {"what": "copy H2D pageable"}, "k", "device='cuda'"),
        (piece("api", 50, "cuLibraryLoadData"), "k", "pad(x, n)"),
        (
            piece("api", 50, "cuLibraryLoadData"),
            "cudnn_generated_fort_native_sdpa_f",
            "enable_cudnn_sdp",
        ),
        (piece("api", 50, "cudaEventQuery"), "k", "--sample-python"),
    ],
)
def test_what_follows_long_pieces_says_what_they_are_for(behind, kernel, code):
    """m13 draws random numbers and copies them; n08 plans an attention for each new length."""
    rounds = [
        p for _ in range(20) for p in (("host", 9_000), behind, ("api_launch", 9), ("kernel", 20))
    ]
    said = told(repeat(2, "x", *rounds, kind="host"), issued=[("kernel", kernel, 20)])
    assert code in codes(said)
    # of lengths it says nothing: several pieces may be of one
    if "sdpa" in kernel:
        assert "code is loaded behind 20 pieces" in said.fixes[0].sentence


@pytest.mark.parametrize(
    ("kernel", "told_so"), [("indexing_backward_kernel", True), ("sort", False)]
)
def test_a_kernel_that_adds_duplicates_one_after_the_other(kernel, told_so):
    """m06: nobody finds deterministic algorithms with ncu."""
    drawn = repeat(8, "x", piece("kernel", 990, kernel), ("host", 5))
    said = told(drawn, issued=[("kernel", kernel, 1)])
    assert ("index_select" in codes(said)) == told_so
    assert ("ncu" in said.sentence) == (not told_so)


@pytest.mark.parametrize(("kernels", "once"), [(90, True), (900, False)])
def test_inputs_that_are_copied_for_each_kernel_can_be_copied_once(kernels, once):
    """n13: timeit around `(x.cuda() @ y.cuda()).cpu()`: no stream of its own lets that run beside it."""
    drawn = analysis(interval("run", copy(900, "H2D", "pageable"), ("kernel", 50), kind="run"))
    row = dict.fromkeys(frames.KERNELS.names, 0) | {"label": "run"}
    ran = [
        row | {"kind": "memcpy", "kernel": "copy H2D pageable", "count": 180},
        row | {"kind": "kernel", "kernel": "gemm", "count": kernels},
    ]
    table = frames.check(pd.DataFrame(ran), frames.KERNELS)
    (first,) = answer(diagnose(replace(drawn, kernels=table))).fixes
    assert ("before the repetitions" in first.sentence) == once
