"""A cause and its advice fit what the timing does: each drawing is of a program whose first screen was wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.explain.runs.caches import AfterFill
from nsysalign.explain.runs.threads import LaunchesOfThreads
from nsysalign.explain.sentences import few_letters
from nsysalign.model import NO_THREAD, OTHER_THREAD, Known
from nsysalign.split.captures import CapturedLaunches

from .drawing import analysis, diagnose, facts, interval, issued_table, piece, repeat


def said(*drawn, issued=(), waits=0, late=(), **more):
    """The answer of a drawing whose first group issued these operations: (kind, name, count).  late: of each group
    in the order of the drawing, how many timings ended before their work."""
    told = analysis(*drawn, **more)
    rows = [(0, kind, name, count, 1 << 20, -1) for kind, name, count in issued]
    table = issued_table(rows)
    groups = told.groups.assign(waits=waits)
    if late:
        first = groups["group"].map(told.intervals.groupby("group")["interval"].min())
        groups["late"] = np.array(late)[first.rank().astype(int) - 1]
    told = replace(told, issued=table, groups=groups)
    return answer(diagnose(replace(told, known=Known(torch="2.11", python="3.12"))))


@pytest.mark.parametrize(("host_us", "rule"), [(80, "host-gap"), (10, "sync-inside")])
def test_waits_are_no_cause_where_the_program_works_between_them(host_us, rule):
    """cleanrl#20: 200 waits in 90 ms of Python environments, whose removal would save 4 %."""
    calls = [p for _ in range(24) for p in (("host", host_us), ("api_launch", 5), ("kernel", 3))]
    told = said(repeat(20, "x", *calls, ("sync", 4), ("event", 5)), waits=8)
    assert told.labels[0].findings == (rule,)


@pytest.mark.parametrize("memory", ["pageable", "pinned"])
def test_a_call_that_a_copy_holds_up_is_not_called_launching(memory):
    """apex#304: 10 of 11 ms "launching" were one cudaMemcpyAsync of pageable memory."""
    held = [piece("api_launch", 900, "cudaMemcpyAsync"), ("api_launch", 60), ("kernel", 90)]
    told = said(repeat(20, "x", *held), issued=[("memcpy", f"H2D {memory}", 1), ("kernel", "k", 9)])
    assert ("pageable" in told.sentence) == (memory == "pageable")
    assert any("pin_memory" in fix.code for fix in told.fixes) == (memory == "pageable")


def test_copies_among_the_kernels_cannot_be_made_before_the_start():
    """accelerate#4175: backward copies back what forward saved."""
    copy, kernel = (
        piece("memcpy", 300, direction="H2D", memory="pinned", bytes=1 << 24),
        ("kernel", 60),
    )
    before, among = (
        said(repeat(20, "x", *pieces)).fixes
        for pieces in ((copy, copy, kernel), (copy, kernel, copy))
    )
    assert any("Copy before" in fix.sentence for fix in before)
    assert not any("Copy before" in fix.sentence for fix in among)


def test_a_typical_timing_does_not_stand_for_others_of_its_length():
    """kornia-rs#903: 1,000 tokens of 3.8 ms, of which kernels take 1.0 to 3.6 ms."""
    late = [interval("x", ("host", 700 + k), ("kernel", 300)) for k in (-3, -2, -1, 1, 2, 3)]
    told = said(late, repeat(1, "x", ("host", 50), ("kernel", 950)))
    (row,) = told.labels
    assert row.verdict == "mixed" and "39 % of the time is GPU work" in told.sentence
    (row,) = said(repeat(7, "x", ("host", 50), ("kernel", 950))).labels
    assert row.verdict == "gpu_bound"


def test_a_pair_that_the_trace_contradicts_is_not_the_programs_fault():
    """spikingjelly#740: a copy's wrong end left 67 correct pairs no place."""
    right = repeat(8, "x", ("host", 5), ("kernel", 90))
    contradicted = said(
        right, unaligned=[("y", "elapsed_time contradicts the trace: no place for it")]
    )
    again = said(right, unaligned=[("y", "its event was recorded again")])
    assert not contradicted.wrong and [wrong.label for wrong in again.wrong] == ["y"]


@pytest.mark.parametrize("kernel", ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "add"])
def test_the_end_of_a_collective_waits_by_its_work(kernel):
    """torch's user never sees the stream that NCCL works on."""
    drawn = repeat(8, "x", ("host", 100), ("event", 5), other={17: 90}, ordered=False)
    told = said(drawn, issued=[("kernel", kernel, 1)])
    assert told.verdict == "wrong"
    assert ("work.wait()" in told.fixes[0].code) == kernel.startswith("nccl")


def test_unequal_timings_are_told_by_the_shortest_and_the_longest():
    """A median, so many times, is not what they take together."""
    drawn = [
        interval("x", ("host", us), ("kernel", 10)) for us in [20] * 40 + [400, 400, 900, 2400]
    ]
    sentence = said(drawn).sentence
    assert "410 us to 2.41 ms each" in sentence


def test_what_is_left_over_is_counted():
    """The counts of a sentence add up to the timings of its label."""
    counts = [1] * 30 + [9] * 20 + [40]
    told = said([interval("x", ("host", 50), *[("kernel", 2)] * count) for count in counts])
    assert "The others: 20 x 68.0 us" in told.sentence and "and 1 more" in told.sentence


def test_wrong_timings_have_each_their_own_fix():
    """m02: the events around a collective and the host timer beside them are wrong for two reasons."""
    late = repeat(8, "event", ("host", 100), ("event", 5), other={17: 90}, ordered=False)
    host = repeat(8, "clock", ("host", 50), kind="host", issued=90, outside=90, operations=1)
    told = said(late, host, issued=[("kernel", "ncclDevKernel_AllReduce", 1)], late=[0, 8])
    assert {wrong.label for wrong in told.wrong} == {"event", "clock"}
    first, second = told.fixes
    assert "work.wait()" in first.code and "synchronize" in second.code
    assert second.sentence.startswith("clock: ")


def test_a_wait_before_both_readings_stands_for_one_before_the_first():
    """l03: only the weaker one was on the first screen, and the wrong labels beside it need the stronger one."""
    more = {"kind": "host", "issued": 10, "outside": 0, "earlier": 900, "operations": 1}
    waits = repeat(8, "copy", piece("queued", 900, "earlier-work"), ("kernel", 10), **more)
    launches = repeat(8, "step", ("host", 50), kind="host", issued=90, outside=90, operations=1)
    (alone,) = said(waits).fixes
    assert alone.sentence == "Synchronise before the first reading as well"
    told = said(waits, launches, late=[0, 8])
    assert [wrong.label for wrong in told.wrong] == ["step"] and "copy" in told.sentence
    (both,) = told.fixes
    assert both.sentence == "Synchronise before both readings of the clock"
    assert both.code.endswith("# at both ends")


def test_a_timer_that_waits_for_few_of_its_timings_is_wrong_in_the_others():
    """19 of 26 loops ended before their work: the 7 slow ones do not speak for them."""
    short = repeat(19, "x", ("host", 50), kind="host", issued=900, outside=900, operations=1)
    waits = repeat(7, "x", ("host", 50), ("kernel", 900), ("sync", 5), kind="host")
    told = said(short, waits, late=[19, 0])
    (wrong,) = told.wrong
    assert "19 of 26" in wrong.reason


def test_pauses_of_five_milliseconds_may_be_those_of_a_program_that_sleeps():
    """A thread that computes in Python lets the launching one go on once in 5 ms; so does time.sleep(0.005)."""
    launch = ("api_launch", 5), ("kernel", 3)
    told = said(repeat(8, "x", *[p for _ in range(6) for p in (("host", 5_060), *launch)]))
    assert "interpreter" not in told.sentence and "6 pieces" in told.sentence
    assert "it computes, or waits" in told.fixes[0].sentence


def test_a_loop_that_reads_the_loss_of_the_step_before_is_right_on_average():
    """It waits inside for the GPU, for half of its time and more, though not for the work that it launches."""
    step = ("host", 300), ("sync", 650), ("api_launch", 50)
    more = {"kind": "host", "issued": 900, "outside": 900, "earlier": 640, "operations": 9}
    told = said(repeat(20, "x", *step, **more), late=[20], waits=1)
    assert not told.wrong and told.labels[0].words == "waits for earlier work"
    (wrong,) = said(repeat(20, "x", *step, **more), late=[20]).wrong
    assert "measures only launching" in wrong.reason


@pytest.mark.parametrize(("waits", "words"), [(3, "waits for earlier work"), (0, "wrong: enqueue")])
def test_a_label_that_is_mostly_a_wait_does_not_measure_launching(waits, words):
    """p01: scaler.step() waits 11.3 of 13.4 ms for the backward pass; as its kernels ended later, it was "launching"."""
    more = {"kind": "host", "issued": 900, "outside": 500, "operations": 44}
    slow = repeat(9, "x", ("host", 2_000), piece("queued", 11_300, "earlier-work"), **more)
    quick = repeat(9, "x", ("host", 1_200), kind="host", issued=900, outside=900, operations=16)
    told = said(slow, quick, late=[2, 9], waits=waits)
    assert told.labels[0].words.startswith(words) and bool(told.wrong) == (not waits)
    assert ("waits for earlier work for 102 of 130 ms" in told.sentence) == bool(waits)


@pytest.mark.parametrize(("kernels", "is_wrong"), [(1, False), (2, True)])
def test_launching_that_is_timed_beside_the_events_of_the_same_work_is_meant(kernels, is_wrong):
    """p03: "call returns after 0.05 ms" stands beside "upload 0.42 ms (events)": the program means both."""
    pair = repeat(8, "pair", ("kernel", 400), ("event", 5))
    call = repeat(8, "call", ("host", 50), kind="host", issued=400, outside=400, operations=1)
    drawn = analysis(pair, call)
    issued = issued_table([(0, "kernel", "k", 1, 0, -1), (1, "kernel", "k", kernels, 0, -1)])
    groups = drawn.groups.assign(late=[0, 8])
    told = answer(diagnose(replace(drawn, issued=issued, groups=groups)))
    assert [wrong.label for wrong in told.wrong] == ["call"] * is_wrong
    words = {row.label: row.words for row in told.labels}
    assert words["call"] == ("wrong: enqueue only" if is_wrong else "launching alone")


def test_the_timings_in_which_the_work_of_others_is_waited_for_say_whose_it_is():
    """j01: half of the scheduler's timings wait for the denoiser, whose timings launch only."""
    drawn = []
    late, other = {"issued": 9, "outside": 9, "operations": 5}, {"kind": "host", "operations": 42}
    for k in range(40):
        own = {"issued": 9, "earlier": 7_700, "operations": 5} if k < 20 else late
        pieces = [("host", 200), ("queued", 7_700)] if k < 20 else [("host", 300)]
        outside = 7_800 if k < 20 else 7_000
        drawn.append(
            interval(
                "bench.py:4-5",
                ("host", 300),
                start=20_000 * k,
                issued=outside,
                outside=outside,
                **other,
            )
        )
        drawn.append(interval("bench.py:5-6", *pieces, kind="host", start=20_000 * k + 301, **own))
    told = said(drawn, late=[40, 0, 20])
    reason = next(wrong.reason for wrong in told.wrong if wrong.label == "bench.py:5-6")
    assert "154 ms of the 158 ms that 20 others take is work launched in 4-5" in reason


def test_threads_that_are_timed_at_once():
    """Four threads time the same lines: only one of them runs Python."""
    drawn = [
        interval("x", ("host", 400), ("kernel", 9), start=100 * k, tid=k % 4) for k in range(16)
    ]
    told = said(drawn)
    assert "4 threads" in told.sentence and "nprocs=4" in told.fixes[0].code
    assert "free-threaded" not in told.sentence  # of Python 3.12
    drawn = [interval("x", ("host", 400), ("kernel", 9), tid=k % 4) for k in range(16)]
    assert "threads" not in said(drawn).sentence


def test_pinning_saves_what_pinned_copies_of_the_run_leave():
    """b18: 107 ms of pageable copies, which take 18 ms pinned."""
    size = 1 << 26
    copy = {"direction": "H2D", "bytes": size}
    pageable = repeat(10, "x", piece("memcpy", 7_000, memory="pageable", **copy), ("kernel", 9))
    pinned = repeat(10, "y", piece("memcpy", 1_200, memory="pinned", **copy), ("kernel", 9))
    for drawn, saved_us in (((pageable, pinned), 58_000), ((pageable,), 70_000 - 10 * size / 64e3)):
        row = next(row for row in said(*drawn).labels if row.label == "x")
        assert row.saving_ns == pytest.approx(1_000 * saved_us, rel=0.001)


ADAM = [("kernel", "void at::native::elementwise_kernel<addcdiv_cuda_kernel>", 40)]
FOREACH = [("kernel", "void at::native::multi_tensor_apply_kernel<PointwiseOpScalarList>", 40)]
FUSED = [("kernel", "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", 40)]
CLIP = [("kernel", "void at::native::multi_tensor_apply_kernel<LpNormFunctor>", 40)]
GELU = [("kernel", "void at::native::vectorized_elementwise_kernel<GeluCUDAKernel>", 40)]


GEMM = ("kernel", "gemm", 1)
EMBEDDING = ("kernel", "void at::native::sum_and_scatter<float, long>(long const*)", 1)


@pytest.mark.parametrize(
    ("lists", "more", "code"),
    [
        (FOREACH, (), "AdamW"),
        (FOREACH, [EMBEDDING], "sparse=True"),
        (FUSED, (), ""),
        (CLIP, (), ""),
    ],
)
@pytest.mark.parametrize("kind", ["host", "event"])
def test_most_of_the_kernel_time_is_the_optimizer(kind, lists, more, code):
    """RecBole#558: Adam over 320 million parameters, of which a step looks up 12,000 rows."""
    pieces = [("host", 20), ("sync", 980)] if kind == "host" else [("kernel", 1_000)]
    of_host = {"issued": 950, "operations": 42} if kind == "host" else {}
    drawn = analysis(repeat(8, "x", *pieces, kind=kind, **of_host))
    rows = [
        (0, *each, 0, -1, 800_000 if each in lists else 90_000) for each in (*lists, *more, GEMM)
    ]
    known = Known(torch="2.11", python="3.12")
    told = answer(diagnose(replace(drawn, issued=issued_table(rows), known=known)))
    assert "for lists of tensors, as an optimizer's" in told.sentence
    assert "".join(fix.code for fix in told.fixes).count(code) == 1 if code else not told.fixes


@pytest.mark.parametrize(
    ("issued", "fused"), [(ADAM, 1), (FOREACH, 1), (FUSED, 0), (CLIP, 0), (GELU, 0)]
)
def test_an_optimizer_that_is_not_fused(issued, fused):
    calls = [p for _ in range(40) for p in (("host", 12), ("api_launch", 6), ("kernel", 3))]
    told = said(repeat(20, "x", *calls), issued=issued)
    assert any("fused=True" in fix.code for fix in told.fixes) == bool(fused)


def test_a_label_is_compared_with_one_that_is_timed_about_as_often():
    """Three warm-up calls are no measure of the loop, nor the loop of them."""
    issued = [("kernel", "k", 1)]
    slow, quick = (
        lambda count, line, us=us: repeat(
            count, f"a.py:{line} (a.py:3-5)", ("host", us), ("kernel", 50)
        )
        for us in (400, 40)
    )
    for count, compared in ((20, True), (3, False)):
        told = diagnose(issuing(analysis(slow(count, 10), quick(20, 20)), issued, issued))
        title = told.findings["title"]
        assert title.str.contains("Line 20 does the same").any() == compared


@pytest.mark.parametrize("late", [0, 20])
def test_a_label_is_not_compared_with_one_that_does_not_wait(late):
    place = "a.py:{} (a.py:3-5)".format
    slow = repeat(20, place(10), ("host", 400), ("kernel", 50), kind="host")
    quick = repeat(20, place(20), ("host", 40), ("kernel", 50), kind="host", outside=2.5 * late)
    issued = [("kernel", "k", 1)]
    told = diagnose(issuing(analysis(slow, quick), issued, issued, late=[0, late]))
    assert told.findings["title"].str.contains("does the same").any() == (not late)


def issuing(drawn, *issued, **columns):
    """A drawing whose groups issue these operations, (kind, name, count) each, with these columns of groups."""
    rows = [
        (group, kind, name, count, 1 << 20, 132)
        for group, operations in enumerate(issued)
        for kind, name, count in operations
    ]
    table = issued_table(rows)
    known = Known(torch="2.11", python="3.12")
    return replace(drawn, issued=table, groups=drawn.groups.assign(**columns), known=known)


_MUL, _ADD = (
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}>(int)"
    for functor in ("AUnaryFunctor<float>", "CUDAFunctor_add<float>")
)


@pytest.mark.parametrize(
    ("issued", "advised"),
    [
        ([("kernel", _MUL, 80), ("kernel", _ADD, 40)], True),
        ([("kernel", _MUL, 80), ("kernel", "gemm", 40)], False),
        ([("kernel", _MUL, 66), ("kernel", _ADD, 66)], False),  # 2 blocks each: of one tensor
    ],
)
@pytest.mark.parametrize("leads", [True, False])
def test_tensors_that_are_treated_one_after_the_other(issued, advised, leads):
    """ultralytics#25315: an average of each parameter of a model, in the middle of a step."""
    count = sum(operations for _, _, operations in issued)
    calls = [p for _ in range(count) for p in (("host", 15), ("api_launch", 5), ("kernel", 2))]
    ema = repeat(20, "x", *calls, operations=count)
    backward = repeat(15, "x", *calls * 2, operations=2 * count)
    drawn, kinds = analysis(ema), [issued]
    if not leads:
        drawn = analysis(ema, backward)
        by_first = drawn.groups.sort_values("typical_ns")["group"].tolist()
        kinds = [[issued, [("kernel", "gemm", 2 * count)]][n] for n in np.argsort(by_first)]
    told = answer(diagnose(issuing(drawn, *kinds)))
    assert any("_foreach_" in fix.code for fix in told.fixes) == advised


def test_what_waits_cost_is_told_beside_the_same_work_without_them():
    """b14: 200 waits, and nearly the same kernels elsewhere without any."""
    calls = [p for _ in range(20) for p in (("host", 40), ("api_launch", 6), ("kernel", 3))]
    drawn = analysis(repeat(8, "x", *calls, ("sync", 200)), repeat(8, "y", *calls))
    same = [("kernel", "k", 18)]
    copies = [*same, ("memcpy", "D2H pinned", 20)]
    told = diagnose(issuing(drawn, copies, [*same, ("kernel", "l", 2)], waits=[20, 0]))
    (title,) = told.findings.loc[told.findings["label"] == "x", "title"]
    assert "y, with nearly the same kernels" in title
    told = diagnose(issuing(drawn, copies, [("kernel", "l", 20)], waits=[20, 0]))
    assert not told.findings["title"].str.contains("nearly the same").any()


def test_what_all_kinds_of_timings_share_is_said_once():
    """b13: two graphs, each at two paces, beneath the same work of the CPU."""
    drawn = [
        repeat(10, "x", ("host", 1_000 * n), *[("kernel", 5)] * n, kind="host") for n in (1, 3, 9)
    ]
    sentence = said(*drawn).sentence
    assert sentence.count("CPU outside CUDA") == 1 and sentence.count("10 x") == 3


@pytest.mark.parametrize("second", ["void gemm_kernel<float>(int)", "void fold_kernel<float>(int)"])
def test_kinds_that_differ_in_their_blocks_are_named_by_their_kernel(second):
    """h18: nobody knows how many blocks a library launches, and more of them are not slower."""
    drawn = analysis(
        repeat(10, "x", ("kernel", 30)), repeat(10, "x", ("kernel", 90), ("kernel", 1))
    )
    issued = [[("kernel", name, 1)] for name in (second, "void gemm_kernel<float>(int)")]
    told = issuing(drawn, *issued, work=["64 blocks", "132 blocks"], operations=1)
    told = answer(diagnose(told))
    names = {row.name for row in told.labels[0].groups}
    assert "blocks" not in told.sentence
    assert names == (
        {"×10: gemm_kernel", "×10: fold_kernel"}
        if "fold" in second
        else {"×10: no. 1-10", "×10: no. 11-20"}
    )


def test_a_kernel_of_some_kinds_does_not_tell_all_apart():
    """g08: two of three kinds were called by a kernel, the third, in which it varies, by its place."""
    drawn = analysis(
        repeat(10, "x", ("kernel", 30)), repeat(10, "x", ("kernel", 90), ("kernel", 1))
    )
    issued = [[("kernel", name, 1)] for name in ("void fold<float>(int)", "void gemm<float>(int)")]
    columns = {"work": ["64 blocks", "132 blocks"], "operations": 1, "mains": [2, 1]}
    columns["main"] = [rows[0][1] for rows in issued]
    (row,) = answer(diagnose(issuing(drawn, *issued, **columns))).labels
    assert {group.name for group in row.groups} == {"×10: no. 1-10", "×10: no. 11-20"}


def test_a_timer_that_is_shorter_than_timing_costs():
    short = repeat(20, "x", ("host", 9), ("sync", 3), kind="host", issued=2, operations=1)
    kernel = [("kernel", "at::native::add", 1)]
    assert any("range(100)" in fix.code for fix in said(short, issued=kernel).fixes)


@pytest.mark.parametrize(("copies", "waits", "fits"), [(1, 1, True), (1, 2, False), (0, 1, False)])
def test_the_wait_of_a_pageable_copy_does_not_keep_from_compiling(copies, waits, fits):
    """A step copies its batch and launches 54 small kernels: torch waits for that copy alone."""
    calls = [p for _ in range(54) for p in (("host", 20), ("api_launch", 5), ("kernel", 3))]
    issued = [("kernel", "at::native::add", 54), ("memcpy", "copy H2D pageable", copies)]
    told = said(repeat(8, "x", *calls), issued=issued, waits=waits)
    assert any("torch.compile" in fix.code for fix in told.fixes) == fits


PRODUCTS = {
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8": True,
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(T1::Params)": True,
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64": False,
    "void implicit_convolve_sgemm<float, float, 1024>": False,
    "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT": False,
}


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_products_in_float32_are_known_by_their_names(kernel):
    drawn = analysis(repeat(8, "x", ("host", 5), piece("kernel", 900, kernel)))
    ledger = drawn.ledger.assign(
        what=drawn.ledger["what"].where(drawn.ledger["cause"] != "kernel", kernel)
    )
    known = Known(torch="2.11", python="3.12")
    fixes = answer(diagnose(replace(drawn, ledger=ledger, known=known))).fixes
    assert any("matmul_precision" in fix.code for fix in fixes) == PRODUCTS[kernel]


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_a_kind_in_float32_is_advised_on_beside_others(kernel):
    """h17: six types in one helper, of which one is float32 without TF32."""
    drawn = [repeat(8, "x", piece("kernel", us), ("event", 3)) for us in (900, 400)]
    drawn = analysis(*drawn, repeat(8, "x", *[("kernel", 700)] * 3))
    first = (drawn.ledger["group"] == 0) & (drawn.ledger["cause"] == "kernel")
    ledger = drawn.ledger.assign(what=drawn.ledger["what"].where(~first, kernel))
    told = diagnose(replace(drawn, ledger=ledger, known=Known(torch="2.11", python="3.12")))
    fixes = answer(told).fixes
    assert any("matmul_precision" in fix.code for fix in fixes) == PRODUCTS[kernel]
    assert all(fix.sentence.startswith("Those of ") for fix in fixes)


LIBRARIES = [
    ("cupy_add__float32_float32_float32", "cupy", "cupy.fuse"),
    ("wrapped_add", "jax", ""),
    ("loop_multiply_fusion_3", "jax", ""),
    ("_ZN6cudapy8__main__5scaleB2v1", "numba", ""),
    ("__main__::scale[abi:v1][abi:cw51cXTLSUwv1sDUa](Array<float, 1, C, mutable>)", "numba", ""),
    ("_ZN8__main__5scaleB2v1B94cw51cXTLSUwv1sDUa", "numba", ""),
    ("void saxpy(int, float*)", "", ""),
    ("sm90_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16", "", ""),  # cupy#2226
]


@pytest.mark.parametrize("torch", ["", "2.11"])
@pytest.mark.parametrize(("kernel", "library", "code"), LIBRARIES)
def test_other_libraries_are_known_by_their_kernels(kernel, library, code, torch):
    """Advice in torch's words is none for them, also where they import torch."""
    calls = [p for _ in range(40) for p in (("host", 12), ("api_launch", 6), ("kernel", 3))]
    drawn = issuing(
        analysis(repeat(20, "x", *calls)), [("kernel", kernel, 20), ("kernel", f"{kernel}_", 20)]
    )
    row = dict.fromkeys(frames.KERNELS.names, 0) | {
        "label": "x",
        "kernel": kernel,
        "kind": "kernel",
    }
    table = frames.check(pd.DataFrame([row]), frames.KERNELS)
    drawn = replace(drawn, kernels=table, known=Known(torch=torch, python="3.12"))
    assert facts(drawn).library == library
    codes = [fix.code for fix in answer(diagnose(drawn)).fixes]
    assert not any("torch" in text for text in codes)
    assert any(code in text for text in codes) if code else not codes


def allocating(calls: int):
    """A step that launches, and takes and gives back memory so many times."""
    taken = [piece("api", 60, "cudaMalloc") for _ in range(calls)]
    given = [piece("api", 50, "cudaFree") for _ in range(calls)]
    launches = [p for _ in range(40) for p in (("host", 150), ("api_launch", 5), ("kernel", 20))]
    return [*taken, *launches, *given]


@pytest.mark.parametrize(("order", "advised"), [("", True), ("Async", False)])
def test_memory_of_a_pool_is_not_given_back(order, advised):
    """cudaFreeAsync gives memory to a pool, which keeps it."""
    pieces = [piece("api", 900, f"cuda{call}{order}") for call in ("Malloc", "Free")] * 8
    told = said(repeat(8, "x", *pieces, ("kernel", 20)), issued=[("kernel", "at::native::add", 1)])
    assert any("empty_cache" in fix.code for fix in told.fixes) == advised


@pytest.mark.parametrize(
    ("often", "calls", "named"), [(20, 8, True), (12, 8, True), (4, 20, False), (20, 1, False)]
)
def test_memory_that_is_taken_and_given_back_again_and_again(often, calls, named):
    """transformers#31372: empty_cache() in the loop, 41 cudaMalloc and 42 cudaFree in each step."""
    drawn = [interval("x", *allocating(calls if k % 20 < often else 0)) for k in range(20)]
    told = said(drawn, issued=[("kernel", "at::native::add", 40)])
    assert ("cudaMalloc" in told.sentence and "cudaFree" in told.sentence) == named
    assert any("empty_cache" in fix.code for fix in told.fixes) == named
    assert "GPU idle" in told.labels[0].words  # what takes most of the time


@pytest.mark.parametrize("calls", [0, 8])
def test_what_the_cpu_does_in_one_piece_comes_before_allocations(calls):
    drawn = repeat(20, "x", ("host", 9_000), *allocating(calls))
    fixes = said(drawn, issued=[("kernel", "at::native::add", 40)]).fixes
    assert any("--sample-python" in fix.code for fix in fixes)


def launched_by(drawn, tid, *times_us):
    """The drawing, in which this thread and the timing one (1) launch at these times, from the beginning of each
    interval."""
    at = [s + round(1_000 * t) for s in drawn.intervals["start_ns"].tolist() for t in times_us]
    times, threads = np.array([0, *at]), np.array([1] + [tid] * len(at), np.int32)
    return replace(drawn, of_runs=(LaunchesOfThreads(1, threads, times),))


@pytest.mark.parametrize(("tid", "held"), [(1, True), (2, False)])
def test_a_piece_in_which_another_thread_launches_is_no_function(tid, held):
    """transformers#31372: in 18 ms outside CUDA of the timing thread autograd's launches 573 operations."""
    step = repeat(
        8, "x", ("host", 18_000), ("api_launch", 5), kind="host", issued=500, operations=61
    )
    drawn = launched_by(analysis(step), tid, *range(200, 18_000, 300))
    told = answer(diagnose(issuing(drawn, [("kernel", "at::native::add", 61)])))
    assert any("--sample-python" in fix.code for fix in told.fixes) == held
    assert ("another thread launched 60 of its 61 operations" in told.sentence) == (not held)


@pytest.mark.parametrize("library", [True, False])
def test_a_library_times_on_the_thread_of_autograd(library):
    """p13: CUB's ranges lie there, so that "another thread" seemed to be one of the program's."""
    more = {"kind": "host", "issued": 500, "operations": 61}
    step = repeat(8, "x", ("host", 18_000), ("api_launch", 5), **more)
    drawn = analysis(step, interval("cub::Sort", ("kernel", 5), kind="nvtx", tid=2))
    drawn = launched_by(drawn, 2, *range(200, 18_000, 300))
    of_library = (drawn.intervals["kind"] == "nvtx") & library
    drawn = replace(drawn, intervals=drawn.intervals.assign(library=of_library))
    told = answer(diagnose(issuing(drawn, [("kernel", "at::native::add", 61)])))
    row = next(row for row in told.labels if row.label == "x")
    assert ("as autograd does in loss.backward()" in row.sentence) == library


@pytest.mark.parametrize(
    ("pieces_us", "in_one", "named"),
    [
        ([9_000, 3_000], True, ""),
        ([2_500] * 12, False, "12 pieces of a millisecond and more outside CUDA take 30.0 ms"),
        ([80] * 120, False, "spends 80.0 us outside CUDA for each of its 120 operations"),
    ],
)
def test_one_function_is_looked_for_only_where_one_piece_is_a_third(pieces_us, in_one, named):
    """transformers#43089: 406 ms in one piece of 6.9 s."""
    calls = [p for us in pieces_us for p in (("host", us), ("api_launch", 4), ("kernel", 3))]
    issued = [("kernel", "k", len(pieces_us))]
    told = said(repeat(8, "x", *calls), issued=issued, waits=2)
    assert any("Find the function" in fix.sentence for fix in told.fixes) == in_one
    assert named in told.sentence and ("pieces" in told.sentence) == ("pieces" in named)


def test_a_range_that_begins_does_not_interrupt_the_cpu():
    """A public simulation of layers: 623 ms in pieces were told as 596, as its ranges cut them."""
    calls = [("host", 600), ("host", 700), ("api_launch", 4), ("kernel", 3)] * 12
    told = said(repeat(8, "x", *calls), issued=[("kernel", "k", 12)], waits=2)
    assert "12 pieces of a millisecond and more outside CUDA take 15.6 ms" in told.sentence


@pytest.mark.parametrize(("tid", "named"), [(1, ""), (2, ", without a launch,")])
def test_pieces_end_where_another_thread_launches(tid, named):
    """m13: 180 pieces outside CUDA were called 120: in 60 of them autograd's thread launched."""
    step = ("host", 2_500), ("api_launch", 5), ("host", 9_000), ("api_launch", 5)
    drawn = repeat(3, "x", *step * 12, kind="host", issued=500, operations=24)
    launches = [11_510 * n + us for n in range(12) for us in (700, 1_400, 2_100)]
    made = launched_by(analysis(drawn), tid, *launches)
    sentence = answer(diagnose(issuing(made, [("kernel", "at::native::add", 24)]))).sentence
    count = 24 if tid == 1 else 12
    assert f"{count} pieces of a millisecond and more outside CUDA{named} take" in sentence


@pytest.mark.parametrize(
    ("count", "launch_us", "full"), [(900, 110, True), (90, 110, False), (900, 20, False)]
)
def test_launch_calls_that_wait_for_a_place_in_the_queue(count, launch_us, full):
    """numba#4390: after a thousand launches each takes as long as the kernel, 137 us."""
    work = {"kind": "host", "issued": 137, "outside": 137, "operations": 1}
    free = repeat(count, "x", ("host", 25), ("api_launch", 6), **work)
    held = repeat(2 * count, "x", ("host", 135 - launch_us), ("api_launch", launch_us), **work)
    kernel = [("kernel", "_ZN6cudapy8__main__5scaleB2v1", 1)]
    told = said(free, held, issued=kernel, late=[count, 2 * count])
    assert ("the queue was full" in told.sentence) == full
    # nothing waits before the first of them, which may take as long
    told = said(held[:1], free, held, issued=kernel, late=[2 * count + 1, count])
    assert (f"In {2 * count:,} of them" in told.sentence) == full


@pytest.mark.parametrize(
    "kernel", [k for k, library, _ in LIBRARIES if library in ("cupy", "numba")]
)
def test_who_has_torch_loaded_need_not_use_it(kernel):
    """numba#4390 imports no torch, and was told torch.cuda.synchronize()."""
    late = repeat(8, "x", ("host", 50), kind="host", issued=900, outside=900, operations=1)
    drawn = issuing(analysis(late), [("kernel", kernel, 1)], late=8)
    row = dict.fromkeys(frames.KERNELS.names, 0) | {
        "label": "x",
        "kernel": kernel,
        "kind": "kernel",
    }
    drawn = replace(drawn, kernels=frames.check(pd.DataFrame([row]), frames.KERNELS))
    (code,) = [fix.code for fix in answer(diagnose(drawn)).fixes]
    assert "torch" not in code and "ynchronize()" in code


GRAPH_CALL = piece("api", 114, "cuGraphInstantiateWithFlags")
XLA_PASS = piece("host", 2_000_000, "XlaPass:#name=config-assigner,module=jit_f#")


TRIAL_OF_XLA = "stream_executor::gpu::(anonymous namespace)::DelayKernel(int volatile*)"


def of_jax(*drawn, kernels=("loop_multiply_fusion_3", TRIAL_OF_XLA)):
    """The answer about a program of JAX's, whose first group waits 541 times in 600 operations.

    kernels: what the timings run that compile
    """
    told = analysis(*drawn)
    told = issuing(told, [("kernel", name, 600 // len(kernels)) for name in kernels])
    row = dict.fromkeys(frames.KERNELS.names, 0) | {
        "label": "x",
        "kernel": "wrapped_add",
        "kind": "kernel",
    }
    table = frames.check(pd.DataFrame([row]), frames.KERNELS)
    groups = told.groups.assign(
        waits=np.where(told.groups["typical"] == told.groups["typical"].min(), 541, 0)
    )
    return answer(diagnose(replace(told, groups=groups, kernels=table, known=Known(python="3.12"))))


@pytest.mark.parametrize("is_xla", [True, False])
def test_what_takes_the_time_is_the_verdict(is_xla):
    """jax#15412: 4 of 7 calls compile for 2.7 s; waits and a graph that is recorded, too, in all of them cost 1 ms."""
    pass_ = XLA_PASS if is_xla else piece("host", 2_000_000, "")
    more = {"kind": "host", "operations": 600}
    slow = repeat(4, "x", pass_, GRAPH_CALL, ("api_launch", 600), ("kernel", 900), **more)
    quick = repeat(
        3, "x", ("host", 3_000), GRAPH_CALL, ("api_launch", 600), ("kernel", 900), **more
    )
    told = of_jax(slow[:3], quick[:1], slow[3:], quick[1:])
    (row,) = told.labels
    assert ("XLA compiles in each" in told.sentence) == is_xla
    assert (row.words == "compiles, 4 of 7") == is_xla
    assert not any("graph" in group.words for group in row.groups) and "graph" not in told.sentence
    assert any("pad" in fix.code for fix in told.fixes) == is_xla


@pytest.mark.parametrize("tried", [[True, False], [False, False], [True, True]])
def test_xla_tries_kernels_once_for_a_shape(tried):
    """jax#9288: a function that is jitted anew in each epoch; CUDA graphs do not say which blocks they run."""
    more = {"kind": "host", "operations": 200}
    first = interval("x", XLA_PASS, XLA_PASS, ("graph", 900), kind="host", operations=600)
    drawn = analysis(first, repeat(5, "x", XLA_PASS, ("graph", 900), **more))
    trials = [("kernel", TRIAL_OF_XLA, 100)]
    graphs = [("graph", "CUDA graph", 200)]
    by_first = np.argsort(drawn.groups["typical"])
    issued = [graphs + trials * tried[n] for n in np.argsort(by_first)]
    row = dict.fromkeys(frames.KERNELS.names, 0) | {
        "label": "x",
        "kernel": "wrapped_add",
        "kind": "kernel",
    }
    drawn = replace(
        issuing(drawn, *issued), kernels=frames.check(pd.DataFrame([row]), frames.KERNELS)
    )
    told = answer(diagnose(replace(drawn, known=Known(python="3.12"))))
    assert "XLA compiles in each of its 6 timings" in told.sentence
    assert any("jit it once" in fix.sentence for fix in told.fixes) == (tried == [True, False])


@pytest.mark.parametrize(
    ("often", "kernel", "again"),
    [(7, "triton_poi_fused_add_0", True), (1, "triton_poi_fused_add_0", False), (7, "add", False)],
)
def test_code_that_is_compiled_again_and_again(often, kernel, again):
    """pytorch#128319: an int attribute that counts calls; 8 of 40 calls compile, then the eager kernels run."""
    load = piece("api", 500, "cuModuleLoad")
    first = interval(
        "x", ("host", 3_500_000), load, *[("kernel", 30)] * 63, kind="host", operations=63
    )
    compiling = repeat(
        often, "x", ("host", 750_000), load, *[("kernel", 30)] * 62, kind="host", operations=62
    )
    eager = repeat(32, "x", ("host", 150), *[("kernel", 30)] * 9, kind="host", operations=9)
    drawn = analysis(first, compiling, eager)
    made = [("kernel", kernel, 60)]
    by_first = sorted(
        drawn.groups.itertuples(),
        key=lambda g: drawn.intervals.index[drawn.intervals["group"] == g.group].min(),
    )
    issued = {
        g.group: made if n < 2 else [("kernel", "at::native::add", 9)]
        for n, g in enumerate(by_first)
    }
    told = answer(diagnose(issuing(drawn, *[issued[n] for n in sorted(issued)])))
    assert any("TORCH_LOGS=recompiles" in fix.code for fix in told.fixes) == again
    assert ("torch.compile compiles" in told.sentence) == kernel.startswith("triton")


@pytest.mark.parametrize(
    ("waits", "call", "searched"),
    [
        (230, "cudaEventElapsedTime", True),
        (0, "cudaEventElapsedTime", False),
        (230, "cudaMemGetInfo", False),
    ],
)
def test_a_search_in_each_timing(waits, call, searched):
    """pytorch#2759: cudnn.benchmark, and every image has another size."""
    times = [piece("api", 1, call) for _ in range(20)]
    pieces = [
        p for _ in range(11) for p in (("host", 46_000), ("api_launch", 700), ("kernel", 3_000))
    ]
    drawn = repeat(5, "x", *times, *pieces, kind="host", operations=998)
    kernels = [("kernel", f"implicit_gemm_{n}", 28) for n in range(35)]
    told = said(drawn, issued=kernels, waits=waits)
    assert (told.labels[0].words == "a search") == searched
    assert any("benchmark = False" in fix.code for fix in told.fixes) == searched


@pytest.mark.parametrize(
    ("often", "load_us", "again"), [(12, 900, True), (12, 20, False), (3, 900, False)]
)
def test_code_that_is_loaded_in_each_timing(often, load_us, again):
    """Each length is new, and has kernels of its own: no first call is behind it."""
    work = [("host", 4_000), ("api_launch", 5), ("kernel", 30)]
    load = piece("api", load_us, "cuLibraryLoadData")
    drawn = [interval("x", *([load] if k >= 12 - often else []), *work) for k in range(12)]
    told = said(drawn, issued=[("kernel", "regular_fft", 1)])
    assert ("code is loaded" in told.sentence) == again and "new" not in told.sentence
    assert any("pad(x, n)" in fix.code for fix in told.fixes) == again
    assert "first call" not in told.labels[0].words


@pytest.mark.parametrize(
    ("issued", "earlier", "verdict", "words"),
    [
        (0, 960, "mixed", "earlier work, 96 %"),  # g02: the kernels of the backward pass
        (270, 690, "mixed", "earlier work, 69 %"),
        (500, 100, "cpu_bound", "GPU idle 40 %"),
        (0, 30, "cpu_bound", "GPU idle 97 %"),
    ],
)
def test_the_gpu_is_not_idle_while_it_runs_earlier_work(issued, earlier, verdict, words):
    timings = {"issued": issued, "earlier": earlier, "operations": 3}
    told = said(repeat(20, "x", ("host", 1_000), kind="host", **timings))
    (row,) = told.labels
    assert (row.verdict, row.words) == (verdict, words)
    assert row.saving_ns == (0 if verdict == "mixed" else 20_000 * (1_000 - issued - earlier))
    assert ("launched before" in told.sentence) == (earlier >= 100)


def test_copies_that_run_while_the_cpu_goes_on_are_gpu_work():
    """g14: 11 ms of pinned copies and 4 of kernels in 16 ms, of which the CPU waits for 9."""
    drawn = interval("x", ("host", 600), ("kernel", 100), ("memcpy", 300), kind="host")
    told = analysis([drawn] * 20)
    busy = replace(told, intervals=told.intervals.assign(gpu_busy_ns=960_000))
    (row,) = answer(diagnose(busy)).labels
    assert (row.verdict, row.words, row.saving_ns) == ("mixed", "96 % GPU work", 0)


def test_timings_with_different_counts_are_no_average():
    """Neither 525 operations of 420 and 630, nor the count of one of them for all."""
    calls = [interval("x", ("host", 50), *[("kernel", 1)] * n) for n in range(40, 60)]
    told = said(calls, repeat(20, "x", ("host", 5), ("kernel", 500)))
    group = max(told.labels[0].groups, key=lambda row: row.parts_ns["host"])
    assert "41 to 58 kernels" in group.name


def test_the_kernel_names_what_one_helper_times():
    """g11: one helper times qr, svd and a Cholesky decomposition."""
    drawn = analysis(
        repeat(20, "x", *[("api_launch", 50), ("kernel", 5)] * 40),
        repeat(20, "x", ("host", 5), ("kernel", 90)),
    )
    rows = [(0, "kernel", "larft", 40, 0, -1), (1, "kernel", "potrf", 1, 0, -1)]
    issued = issued_table(rows)

    def sentence(*main):
        groups = drawn.groups.assign(main=list(main))
        return answer(diagnose(replace(drawn, issued=issued, groups=groups))).sentence

    assert "larft, 40 kernels" in sentence("larft", "potrf")
    assert "larft" not in sentence("larft", "larft")


def test_first_calls_that_are_rows_are_not_summed_below_them():
    """g05: 'first calls: 203 us once' stood below a row of 839 ms, 'first call'."""
    usual = repeat(10, "a", ("host", 50), ("kernel", 9))
    loads = [piece("api", 700, "cuLibraryLoadData"), ("host", 200), *[("kernel", 2)] * 9]
    first = [interval("b", ("host", 900), ("kernel", 9)), *repeat(10, "b", ("kernel", 20))]

    def remarks(*drawn):
        return [text for text in said(*drawn, first).remarks if "first calls" in text]

    assert [text.split(":")[0] for text in remarks(usual)] == ["first calls, left out"]
    rows = remarks(usual[:2], [interval("a", *loads)], usual)
    assert [text.split(":")[0] for text in rows] == ["other first calls, left out"]


@pytest.mark.parametrize(
    ("more", "often", "searched"),
    [
        ("fprop_{}", 1, True),  # trial kernels, none of which the usual timing runs
        (
            "at::native::add_{}",
            1,
            False,
        ),  # h06: int8 steps beside those of float16, twice as many kernels each
        (
            "at::native::FillFunctor_{}",
            4,
            True,
        ),  # Triton's autotuning clears the cache between its trials
        ("at::native::FillFunctor_{}", 1, False),  # what is cleared for the program's own kernels
    ],
)
def test_more_operations_are_no_search(more, often, searched):
    """h06: 80 steps of int8 with 792 operations each were 'in a search for the fastest way', beside 80 with 96."""
    calls = [p for _ in range(96) for p in (("host", 15), ("api_launch", 3), ("kernel", 3))]
    larger = [p for _ in range(792) for p in (("host", 10), ("api_launch", 3), ("kernel", 3))]
    drawn = analysis(repeat(10, "x", *larger, kind="host"), repeat(12, "x", *calls, kind="host"))
    long = int(drawn.groups.set_index("group")["operations"].idxmax())
    usual = [("kernel", "gemm", 48), ("kernel", "relu", 48)]
    trials = [("kernel", name, count * often) for _, name, count in usual]
    trials += [("kernel", more.format(n), 100) for n in range(4)]
    issued = [trials if group == long else usual for group in sorted(drawn.groups["group"])]
    waits = np.where(drawn.groups["group"] == long, 48, 0)
    told = answer(diagnose(issuing(drawn, *issued, waits=waits)))
    assert (told.labels[0].words == "a search") == searched
    assert ("search" in told.sentence) == searched
    assert any("configs=" in fix.code or "benchmark" in fix.code for fix in told.fixes) == searched


@pytest.mark.parametrize(
    ("kernels", "busy_us", "code"),
    [
        (
            ("loop_add_fusion",),
            20,
            "jax.jit(f)",
        ),  # h03: one shape, a new jitted lambda in each step
        (("loop_add_fusion", TRIAL_OF_XLA), 20, "pad(x, n)"),  # XLA tries a shape's kernels once
        (("loop_add_fusion",), 40, ""),  # neither is known: nothing is advised
    ],
)
def test_padding_helps_only_where_shapes_differ(kernels, busy_us, code):
    more = {"kind": "host", "operations": 600}
    drawn = repeat(8, "x", XLA_PASS, ("api_launch", 600), ("kernel", 20), **more)
    drawn += repeat(8, "x", XLA_PASS, ("api_launch", 600), ("kernel", busy_us), **more)
    codes = [fix.code for fix in of_jax(drawn, kernels=kernels).fixes]
    assert [code in text for text in codes] == ([True] if code else [])


@pytest.mark.parametrize(
    ("kernel", "often", "code"),
    [
        ("void vector_fft<2944u>(int)", 30, "set_size(n)"),
        ("void gemm<2>(int)", 30, ""),
        ("void vector_fft<2944u>(int)", 1, "f(x)"),  # a first call warms up
    ],
)
def test_what_never_warms_up_is_not_run_once_before(kernel, often, code):
    """h10: 24 lengths, each run before, and a cache of 16 plans: 'Run the code once before timing it'."""
    load = piece("api", 900, "cuModuleLoadData")
    work = [("host", 150), ("api_launch", 5), ("kernel", 7)]
    drawn = [interval("x", *([load] if k < often else []), *work) for k in range(40)]
    drawn = drawn[::-1] if often > 1 else drawn[:1]
    told = issuing(analysis(drawn), [("kernel", kernel, 1)], [("kernel", kernel, 1)])
    row = dict.fromkeys(frames.KERNELS.names, 0) | {"label": "x", "kind": "kernel"}
    ran = [row | {"kernel": name} for name in (kernel, "at::fill")]
    table = frames.check(pd.DataFrame(ran), frames.KERNELS)
    told = answer(diagnose(replace(told, kernels=table)))
    assert ("Run the code once" in str(told.fixes)) == (often == 1)
    is_known = code == "set_size(n)"  # of the other kernel the blocks are the same: no other size
    assert ("loaded in 30 of 40 timings, as cuFFT" in str(told.fixes)) == is_known
    assert ("not in its source" in str(told.fixes)) == (often > 1 and not is_known)
    assert any(code in fix.code for fix in told.fixes)
    assert any("set_size" in fix.code for fix in told.fixes) == is_known


@pytest.mark.parametrize(
    ("cpu_us", "rule", "words"),
    [
        # h07: 3 of 7 train on the GPU, for most of the time
        (626_000, "host-gap", "GPU idle 97 %"),
        (2_626_000, "no-gpu-work-inside", "often no GPU work"),
    ],
)
def test_a_part_without_gpu_work_does_not_stand_for_all(cpu_us, rule, words):
    """h07: "nothing of the GPU" of 7 timings, 3 of which run 33,843 operations."""
    trains = [p for _ in range(30) for p in (("host", 42_000), ("kernel", 1_820))]
    drawn = repeat(3, "x", *trains, kind="host", operations=33_843)
    told = diagnose(analysis(drawn, repeat(4, "x", ("host", cpu_us), kind="host", operations=0)))
    (finding,) = told.findings.itertuples()
    assert (finding.rule, finding.words) == (rule, words)
    assert ("4 of 7 timings" in finding.title) == (rule != "host-gap")


@pytest.mark.parametrize(("sync_us", "launches"), [(4, True), (40, False)])
def test_the_larger_part_is_advised_on_first(sync_us, launches):
    """h11: 1,000 waits cost 53 of 185 ms, and launching nearly all the rest."""
    calls = (("host", 11), ("api_launch", 7), ("kernel", 2), ("sync", sync_us))
    drawn = analysis(repeat(6, "x", *calls * 200))
    issued = [("kernel", "at::native::add", 200), ("memcpy", "D2H pinned", 300)]
    fix = answer(diagnose(issuing(drawn, issued, waits=[200]))).fixes[-1]
    assert fix.sentence.startswith("Launch less") == launches
    assert ("its 200 waits" in fix.sentence) == launches


@pytest.mark.parametrize(("host_us", "waits"), [(12, False), (2, True)])
def test_waits_that_the_same_work_hardly_needs_are_not_told(host_us, waits):
    """j14: with 12 waits instead of 1,201 the solver takes 118 of 139 ms."""
    checks = (("host", 11), ("api_launch", 7), ("kernel", 2)) * 200
    quiet = (("host", host_us), ("api_launch", 7), ("kernel", 2)) * 170
    drawn = analysis(repeat(6, "x", *checks), repeat(6, "x", *quiet))
    often = drawn.groups["operations"] == 200
    back = [("kernel", "at::native::add", 170), ("memcpy", "D2H pinned", 300)]
    issued = [back if is_often else back[:1] for is_often in often]
    told = answer(diagnose(issuing(drawn, *issued, waits=np.where(often, 200, 2))))
    text = told.sentence + told.fixes[-1].sentence
    assert ("wait" in text or "reading back" in text) == waits


def test_a_host_timer_that_is_shown_has_the_waits_that_are_told():
    """j05: 9 waits were said of a timing with the one that ends it."""
    step = repeat(8, "x", *[("host", 20), ("api_launch", 7)] * 40, ("sync", 3), kind="host")
    drawn = analysis([{**timing, "operations": 40, "issued": 80} for timing in step])
    issued = [("kernel", "at::native::add", 40)]
    (fix,) = answer(diagnose(issuing(drawn, issued, waits=[9]))).fixes
    assert "reduce-overhead" in fix.code and "wait" not in fix.sentence


@pytest.mark.parametrize(("longest_us", "one_shape"), [(3, True), (9, False)])
def test_a_graph_is_for_one_shape(longest_us, one_shape):
    """j08: batches of many lengths, 7 to 40 ms of kernels for the same operations."""
    times_us = np.linspace(3, longest_us, 24)
    drawn = [
        interval("x", *(("host", 12), ("api_launch", 6), ("kernel", us)) * 200) for us in times_us
    ]
    fix = said(drawn, issued=[("kernel", "at::native::add", 200)]).fixes[-1]
    assert ("reduce-overhead" in fix.code) == one_shape
    assert fix.sentence.startswith("Launch less") != one_shape


@pytest.mark.parametrize(("tid", "advised"), [(1, False), (2, True)])
def test_launches_of_another_thread_are_no_code_between_them(tid, advised):
    """j08: autograd launched 447 of 646 operations, and 58 us for each looked like the program's own code."""
    step = repeat(8, "x", ("host", 12_000), ("api_launch", 5), kind="host", issued=500)
    drawn = analysis([{**timing, "operations": 150} for timing in step])
    drawn = launched_by(drawn, tid, *range(50, 12_000, 100))
    told = answer(diagnose(issuing(drawn, [("kernel", "at::native::add", 150)])))
    assert any("reduce-overhead" in fix.code for fix in told.fixes) == advised


@pytest.mark.parametrize(("back", "advised"), [(1, True), (0, False)])
def test_arrays_that_numba_copies_there_and_back(back, advised):
    """j15: 224 MB of pageable memory each way at each call of a kernel of 105 us."""
    way = {"memory": "pageable", "bytes": 1 << 20}
    copies = [piece("memcpy", 900, direction=d, **way) for d in ("H2D", "D2H")[: 1 + back]]
    kernel = "_ZN6cudapy8__main__5scaleB2v1"
    issued = [("kernel", kernel, 1), ("memcpy", "copy H2D pageable", 1)]
    issued += [("memcpy", "copy D2H pageable", 1)] * back
    drawn = issuing(analysis(repeat(8, "x", *copies, ("kernel", 9))), issued)
    row = dict.fromkeys(frames.KERNELS.names, 0) | {"label": "x", "kind": "kernel"}
    table = frames.check(pd.DataFrame([row | {"kernel": kernel}]), frames.KERNELS)
    fixes = answer(diagnose(replace(drawn, kernels=table, known=Known(python="3.12")))).fixes
    assert any("to_device" in fix.code for fix in fixes) == advised


@pytest.mark.parametrize(
    ("call", "kernel", "code"),
    [
        ("cudaMemcpyAsync", "at::native::add", "pin_memory"),
        ("cuMemcpyHtoDAsync_v2", "at::native::add", ""),
        ("cudaMemcpyAsync", "_ZN6cudapy8__main__5scaleB2v1", "to_device"),
        ("cuMemcpyHtoDAsync_v2", "_ZN6cudapy8__main__5scaleB2v1", "to_device"),
    ],
)
def test_only_what_torch_copies_can_be_pinned(call, kernel, code):
    """In a program of torch's, NumPy's arrays went to a kernel of Numba's: "x = x.pin_memory(); x.cuda(non_blocking=True)"."""
    copies = [("memcpy", f"{way} pageable", 3) for way in ("H2D", "D2H")]
    held = (piece("api_launch", 900, call), ("api_launch", 60), ("kernel", 90))
    drawn = repeat(20, "x", *held)
    told = issuing(analysis(drawn), [("kernel", kernel, 1), *copies])
    table = frames.check(
        pd.DataFrame(
            [
                dict.fromkeys(frames.KERNELS.names, 0)
                | {"label": "x", "kind": "kernel", "kernel": name}
                for name in (kernel, "at::native::fill")
            ]
        ),
        frames.KERNELS,
    )
    codes = "".join(fix.code for fix in answer(diagnose(replace(told, kernels=table))).fixes)
    assert code in codes and ("pin_memory" in codes) == (code == "pin_memory")


KERNELS_IN_LOOPS = [
    ("loop_multiply_fusion_3", "unroll"),
    ("_ZN6cudapy8__main__5scaleB2v1", "as_cuda_array"),
    ("void saxpy(int, float*)", ""),
]


@pytest.mark.parametrize(("kernel", "code"), KERNELS_IN_LOOPS)
def test_launching_is_advised_on_in_the_words_of_the_library(kernel, code):
    """j16: 80,000 kernels of a loop inside one program of XLA's; i13: 3,000 launches from Python."""
    calls = (("host", 12), ("api_launch", 6), ("kernel", 3)) * 200
    drawn = issuing(analysis(repeat(8, "x", *calls)), [("kernel", kernel, 200)])
    row = dict.fromkeys(frames.KERNELS.names, 0) | {"label": "x", "kind": "kernel"}
    table = frames.check(pd.DataFrame([row | {"kernel": kernel}]), frames.KERNELS)
    (fix,) = answer(diagnose(replace(drawn, kernels=table, known=Known(python="3.12")))).fixes
    assert code in fix.code if code else fix.sentence.startswith("Launch less") and not fix.code


@pytest.mark.parametrize(("sync_us", "rule"), [(0.3, "host-gap"), (4, "sync-inside")])
def test_waits_are_no_cause_where_the_cpu_works_all_the_time(sync_us, rule):
    """h06: 48 waits are 2 % of a step of 792 small operations, between which the CPU takes 11 us each."""
    layer = [("host", 11), ("api_launch", 6), ("sync", sync_us)] * 48
    drawn = repeat(20, "x", *layer, ("sync", 1), kind="host", issued=2, operations=400)
    issued = [("kernel", "at::native::add", 376), ("memcpy", "D2H pageable", 24)]
    told = said(drawn, issued=issued, waits=48)
    (fix,) = told.fixes
    assert told.labels[0].findings == (rule,)
    assert "larger batches" in fix.sentence and "its 48 waits" in fix.sentence
    assert "waits for the GPU 48 times" in told.sentence and "reduce-overhead" not in fix.code


@pytest.mark.parametrize(("allocating_us", "waits_lead"), [(20, False), (1, True)])
def test_waits_for_kernels_that_run_do_not_make_the_gpu_idle(allocating_us, waits_lead):
    """A public program of cuDF: 143 waits, 0.88 of 21.0 ms idle in them, 7.45 ms in cudaMalloc and cudaFree."""
    calls = [piece("api", allocating_us, name) for name in ("cudaMalloc", "cudaFree")]
    column = [*calls, ("host", 30), ("api_launch", 5), ("kernel", 60), ("sync", 0.5)]
    drawn = repeat(8, "x", *column * 8, kind="nvtx")
    told = said(drawn, issued=[("kernel", "k", 8)], waits=8)
    assert ("The CPU waits for the GPU 8 times" in told.sentence) == waits_lead
    assert ("8 cudaMalloc and 8 cudaFree" in told.sentence) != waits_lead


@pytest.mark.parametrize(
    ("copied_us", "memory", "second"),
    [
        (9_000, "pageable", True),
        (700, "pageable", False),  # a hundredth of it
        (9_000, "pinned", False),
    ],
)
def test_copies_of_pageable_memory_are_a_second_lever(copied_us, memory, second):
    """g05: the step waits for Python first, and then for the batch's copy."""
    step = repeat(20, "step", *[("host", 25), ("api_launch", 5), ("kernel", 20)] * 60)
    copy = piece("memcpy", copied_us / 20, direction="H2D", memory=memory, bytes=1 << 20)
    load = repeat(20, "load", copy, ("event", 3))
    told = said(step, load, issued=[("kernel", "at::native::add", 60)])
    assert told.sentence.startswith("step ")
    assert any(fix.sentence.startswith("load: Pin the memory") for fix in told.fixes) == second


@pytest.mark.parametrize(
    ("piece_us", "code"), [(3_000, "--sample-python"), (20, "reduce-overhead")]
)
def test_no_graph_where_the_cpu_does_other_things(piece_us, code):
    """g06: another thread pickles, and the launching one waits for the interpreter in 558 pieces of a millisecond."""
    calls = [p for _ in range(256) for p in (("host", piece_us), ("api_launch", 5), ("kernel", 3))]
    told = said(repeat(2, "x", *calls), issued=[("kernel", "at::native::add", 256)])
    codes = [fix.code for fix in told.fixes if fix.purpose == "make it faster"]
    assert len(codes) == 1 and code in codes[0]
    assert ("256 pieces" in told.fixes[-1].sentence) == (piece_us == 3_000)


@pytest.mark.parametrize(("kernels", "named"), [(1, True), (3, False)])
def test_no_kernel_is_named_where_the_cpu_is_held_up_before_any_of_them(kernels, named):
    """j06: a thread that publishes images holds the interpreter, wherever the policy's launches are."""
    names = [f"at::native::k{n}" for n in range(3)]
    drawn = []
    for k in range(9):
        late = names[k % kernels]
        calls = [
            (("host", 9_000 if name == late else 20), ("api_launch", 5), piece("kernel", 3, name))
            for name in names
        ]
        drawn.append(interval("x", *[p for pieces in calls for p in pieces]))
    told = said(drawn, issued=[("kernel", name, 1) for name in names])
    (fix,) = [fix for fix in told.fixes if fix.purpose == "make it faster"]
    assert ("before it launches k0" in fix.sentence) == named
    assert ("holds Python's interpreter" in fix.sentence) != named


@pytest.mark.parametrize(
    ("name", "count", "sentence", "code"),
    [
        (OTHER_THREAD, 9, "others of the process did: one may hold Python's", "multiprocessing"),
        (OTHER_THREAD, 1, "others of the process did.", "multiprocessing"),
        (NO_THREAD, 9, "it waited outside of CUDA", "--sample-python"),
        ("step", 9, "", "--sample-python"),
    ],
)
def test_a_thread_that_did_not_run(name, count, sentence, code):
    """g06: a thread that pickles holds the interpreter, and calls nothing of CUDA."""
    calls = [("host", 9_000), ("api_launch", 5), ("kernel", 3)] * count
    calls = [piece(cause, us, name) if cause == "host" else (cause, us) for cause, us in calls]
    told = said(repeat(8, "x", *calls), issued=[("kernel", "at::native::add", count)])
    (fix,) = [fix for fix in told.fixes if fix.purpose == "make it faster"]
    assert sentence in told.sentence and ("hardly ran" in told.sentence) == bool(sentence)
    assert code in fix.code and ("the thread waits" in fix.sentence) == (name == NO_THREAD)


def test_garbage_is_not_collected_in_the_loop():
    """o05: the program calls gc.collect() itself, at the end of each step: between the steps is where it is."""
    collects = piece("host", 9_000, "garbage collection")
    told = said(repeat(8, "x", collects, ("api_launch", 5), ("kernel", 3)))
    (fix,) = [fix for fix in told.fixes if fix.purpose == "make it faster"]
    assert "take gc.collect() out of it" in fix.sentence and "before the loop" in fix.code


def test_kinds_without_a_row_are_counted():
    """o10: 3 kinds of 1,586 timings have a row, and 115 timings are of another one."""
    kinds = [
        repeat(count, "x", *[("kernel", 400), ("host", 1)] * number)
        for count, number in ((40, 1), (40, 5), (2, 2))
    ]
    (row,) = said(*kinds).labels
    assert len(row.groups) == 2 and row.words == "3 kinds of timings"


def test_no_bracket_is_left_alone_in_a_shortened_name():
    assert few_letters("vectorized_elementwise_kernel (BinaryFunctor)") == "vectorized_e…aryFunctor"


@pytest.mark.parametrize(
    ("latency_us", "says"), [(400, "launching and latency 81 %"), (4, "launching 71 %")]
)
def test_latency_is_named_beside_launching(latency_us, says):
    """o12: launching takes 36 % of a timing, the latency of what is launched another 16 %."""
    late = ("api_launch", 500), ("launch_latency", latency_us), ("host", 100), ("kernel", 100)
    told = said(repeat(20, "x", *late), repeat(20, "x", ("kernel", 5_000)))
    assert says in told.sentence


@pytest.mark.parametrize(
    ("count", "launches_us", "says"),
    [
        (1, 0, "another thread launched 60 of its 61 operations, as autograd"),
        (2, 0, "2 other threads launched 60 of its 61 operations."),
        (4, 0, "4 other threads launched all of its 61 operations."),
        (4, 5, "4 other threads launched 119 times."),
    ],
)
def test_how_many_threads_launch_and_no_more_than_there_is(count, launches_us, says):
    """o09: 8 threads launch 47,600 operations by 49,808 calls, some of which give the GPU nothing."""
    calls = ("host", 18_000), ("api_launch", launches_us), ("kernel", 3)
    drawn = analysis(repeat(8, "x", *calls, kind="host", issued=500, operations=61))
    drawn = launched_by(drawn, 2, *range(200, 18_200, 300 if count < 4 else 150))
    (record,) = drawn.of_runs
    tids = np.where(record.tid > 1, 2 + np.arange(len(record.tid)) % count, 1)
    drawn = replace(drawn, of_runs=(record._replace(tid=tids),))
    told = answer(diagnose(issuing(drawn, [("kernel", "at::native::add", 61)])))
    assert says in told.sentence


@pytest.mark.parametrize(("ran_us", "part"), [(300, False), (4_000, True)])
def test_a_thread_that_ran_for_a_part_of_it(ran_us, part):
    """o15: a first batch is waited for in 12.0 of 21.0 s outside CUDA."""
    waits = piece("host", 6_000, NO_THREAD)
    told = said(repeat(8, "x", waits, ("api_launch", 5), ("kernel", 3), ("host", ran_us)))
    assert ("For 6.00 ms of that its thread hardly ran, nor" in told.sentence) == part
    assert ("hardly ran meanwhile" in told.sentence) != part
    assert ("(waiting outside CUDA)" in told.sentence) != part


@pytest.mark.parametrize(
    ("other_us", "says"),
    [
        (10, "10.0 ms (collection)"),
        (4_000, "14.0 ms (10.0 ms of it collection)"),
        (11_000, "21.0 ms."),
    ],
)
def test_a_name_beside_a_time_is_of_all_of_it(other_us, says):
    """o05: garbage collection is 2.50 of 4.42 s outside CUDA."""
    drawn = [piece("host", 10_000, "collection"), ("kernel", 3), ("host", other_us), ("kernel", 3)]
    assert f"outside CUDA for {says}" in said(repeat(8, "x", *drawn)).sentence


@pytest.mark.parametrize(
    ("works", "says", "fix"),
    [
        (
            ["frees memory", "keeps memory"],
            "give memory back to the driver and take it again",
            True,
        ),
        (["10 operations", "11 operations"], "", False),
    ],
)
def test_timings_that_give_memory_back_are_told_beside_those_that_keep_it(works, says, fix):
    """h08: empty_cache() in each of the first 30 steps; the calls themselves take 2 % of them."""
    launch = ("api_launch", 6), ("kernel", 9)
    free = [piece("api", 8, "cudaFree"), piece("api", 9, "cudaMalloc")]
    with_calls = [*free, *[p for _ in range(10) for p in (("host", 75), *launch)]]
    without = [p for _ in range(11) for p in (("host", 55), *launch)]
    drawn = analysis(repeat(30, "x", *with_calls), repeat(30, "x", *without))
    groups = drawn.groups.sort_values("typical").assign(work=works).sort_index()
    known = Known(torch="2.11", python="3.12")
    told = answer(diagnose(replace(drawn, groups=groups, known=known)))
    assert ("917 us" in told.sentence) and says in told.sentence
    assert ("(cudaFree, cudaMalloc); 30 that" in told.sentence) == fix
    assert any("empty_cache" in one.code for one in told.fixes) == fix


LOAD, LAUNCH = piece("api", 200, "cuLibraryLoadData"), ("api_launch", 5)


@pytest.mark.parametrize(
    ("name", "loads", "turns", "is_first"),
    [
        ("x", (0,), 60, True),  # compiled once, for a good part of the time
        ("x", range(30), 30, False),  # i11: in each of 30 turns, for the same kernel
        ("x", (0,), 900, False),  # once, and a long loop behind it
        ("XlaCompile:#module=jit_f#", range(30), 30, True),  # g17: XLA tries kernels meanwhile
    ],
)
def test_a_loop_that_loads_code_is_no_first_call(name, loads, turns, is_first):
    """i11: 300 tokens of 105 ms: "leave the first calls out of what is timed"."""
    turn = [("host", 100), LAUNCH, ("kernel", 2)]
    pieces = [p for k in range(turns) for p in ([("host", 3_000), LOAD] * (k in loads) + turn)]
    drawn = [interval(name, *pieces), interval(name, *turn * (turns // 3))]
    told = said(drawn, issued=[("kernel", "k", turns)])
    (row,) = told.labels
    slowest = max(row.groups, key=lambda group: group.total_ns)
    assert [each.words == "first call" for each in (row, slowest)] == [is_first, is_first]
    often = "code is loaded 30 times in it" in told.sentence
    assert often == (len(loads) > 1 and not is_first)


@pytest.mark.parametrize(("shift", "delayed"), [(0, True), (1, False)])
def test_no_delay_in_front_of_marks_that_are_chained(shift, delayed):
    """i05: marks[i + 1] ends one step and begins the next, which a delay before it would lengthen."""
    told = analysis(repeat(8, "x", ("host", 300), LAUNCH, ("kernel", 90)))
    starts = told.intervals["end_record"].shift(1, fill_value=-9).astype("int64")
    intervals = told.intervals.assign(start_record=starts) if shift else told.intervals
    told = replace(told, intervals=intervals, known=Known(torch="2.11", python="3.12"))
    assert any("_sleep" in fix.code for fix in answer(diagnose(told)).fixes) == delayed


@pytest.mark.parametrize(("kernel", "own"), [("syevbj_batch", False), ("at::native::add", True)])
def test_the_waits_of_a_library_are_not_the_programs(kernel, own):
    """i07: cuSOLVER's own waits: "decide on the GPU instead of reading back"."""
    calls = [p for _ in range(120) for p in (("host", 1), LAUNCH, ("kernel", 3))]
    drawn = repeat(8, "x", *calls, ("sync", 90), ("launch_latency", 400))
    copies = ("memcpy", "copy D2H pageable", 20)
    table = [(0, "kernel", kernel, 120, 0, -1), (0, *copies, 80, -1)]
    told = issuing(analysis(drawn), *[[(k, n, c) for _, k, n, c, *_ in table]])
    told = replace(told, groups=told.groups.assign(waits=20))
    told = answer(diagnose(replace(told, known=Known(torch="2.11", python="3.12"))))
    assert told.labels[0].findings == (("sync-inside",) if own else ("many-tiny-kernels",))
    assert any("whole batch at once" in fix.sentence for fix in told.fixes) != own


@pytest.mark.parametrize(("mains", "named"), [(1, True), (3, False)])
def test_a_kernel_that_some_timings_run_is_not_the_name_of_all(mains, named):
    """i09: "6 of them, 8.93 ms to 65.9 ms each: sm90_xmma_fprop…f16": the longest runs no such kernel."""
    drawn = [*repeat(6, "x", *[("kernel", 90)] * 9), *repeat(6, "x", *[("kernel", 9)] * 3)]
    kernels = [("kernel", "gemm", 9)], [("kernel", "conv", 3)]
    told = issuing(analysis(drawn), *kernels)
    groups = told.groups.assign(mains=mains, main=["gemm", "conv"])
    assert ("each: gemm" in answer(diagnose(replace(told, groups=groups))).sentence) == named


@pytest.mark.parametrize("kernel", ["at::native::add", "masked_crop[abi:v1][abi:cw51c]"])
def test_torch_compile_is_not_for_kernels_of_numba(kernel):
    """i13: 3,000 launches of a kernel of numba's in a program that makes its data with torch."""
    drawn = repeat(8, "x", *[("host", 20), LAUNCH, ("kernel", 3)] * 20)
    told = said(drawn, issued=[("kernel", kernel, 20)])
    assert any("torch.compile" in fix.code for fix in told.fixes) == ("abi" not in kernel)


@pytest.mark.parametrize(("last_us", "unchanged"), [(30, True), (90, False)])
def test_code_that_is_loaded_for_the_same_kernels_is_not_for_another_size(last_us, unchanged):
    """i15: 8 thresholds in the source of one kernel of one size: "keep to fewer different sizes"."""
    load = piece("api", 400, "cuLibraryLoadData")
    drawn = [
        interval("x", load, ("host", 4_000), LAUNCH, ("kernel", last_us if k > 9 else 30))
        for k in range(12)
    ]
    told = analysis([interval("x", ("host", 90), ("kernel", 30)) for _ in range(2)], drawn)
    rows = [(n, "kernel", "shrink", 1, 0, 64) for n in told.groups["group"]]
    told = replace(told, issued=issued_table(rows), known=Known(torch="2.11", python="3.12"))
    told = answer(diagnose(told))
    assert any("not in its source" in fix.sentence for fix in told.fixes) == unchanged
    assert any("pad(x, n)" in fix.code for fix in told.fixes) != unchanged


def test_a_timing_that_waited_for_nothing_does_not_wait():
    """i12: "For 0 ns of it work was launched and waited; for what is not in the trace."."""
    drawn = [
        *repeat(3, "x", ("host", 10), ("kernel", 990), kind="host", operations=9),
        *repeat(2, "x", ("host", 10), ("queued", 500), ("kernel", 500), kind="host", operations=9),
    ]
    assert "For 0 ns" not in said(drawn).sentence


def test_a_graph_that_is_recorded_is_said_whatever_its_part():
    """b17: launches are captured one by one, and the call that makes the graph comes behind them."""
    makes = piece("api", 20, "cudaGraphInstantiate")
    captures = [*[("host", 200), LAUNCH] * 15, makes, ("host", 5), LAUNCH, ("kernel", 9)]
    replays = [("host", 20), LAUNCH, ("kernel", 300), *[("kernel", 2)] * 30]
    drawn = [*repeat(8, "x", *replays), *repeat(8, "x", *captures)]
    assert "a CUDA graph is recorded in each" in said(drawn).sentence


@pytest.mark.parametrize(("late", "words"), [(19, "work ended later"), (0, "91 % kernels")])
def test_a_kind_whose_work_ended_later_is_not_right_because_the_gpu_worked(late, words):
    """k16 under nsys: 40 of 84 timings launch only, while the steps before them run."""
    waits = repeat(20, "x", ("kernel", 1_700), ("sync", 100), kind="host", operations=9)
    launches = repeat(19, "x", ("kernel", 910), ("host", 90), kind="host", operations=9)
    told = said(waits, launches, late=[0, late])
    rows = {row.count: row for row in told.labels[0].groups}
    assert rows[19].words == words and (rows[19].verdict == "gpu_bound") == (not late)
    assert rows[20].verdict == "gpu_bound"


@pytest.mark.parametrize(("launches", "copies"), [(2, 8), (2, 7), (1, 1)])
def test_copies_that_come_with_each_graph_launch_are_counted(launches, copies):
    """pytorch#114860: the inputs of a graph are copied before each replay, which takes twice as long as the graph."""
    copied = piece("memcpy", 240, direction="D2D", memory="device", bytes=copies << 20)
    issued = [(0, "graph", "CUDA graph", launches, 0, -1)]
    issued += [(0, "memcpy", "copy D2D device", copies, copies << 20, -1)]
    told = analysis(*repeat(20, "x", copied, ("graph", 120), ("event", 5)))
    groups = told.groups.assign(graphs=launches)
    told = answer(diagnose(replace(told, issued=issued_table(issued), groups=groups)))
    each = {
        8: "Each of its 2 graph launches comes with 4 copies",
        1: "Its graph launch comes with 1 copy",
    }
    assert each.get(copies, "") in told.sentence
    assert (
        ("graph launch" in told.sentence)
        == any("captured with" in f.sentence for f in told.fixes)
        == (copies != 7)
    )


@pytest.mark.parametrize("captured", [700, 5, 0])
def test_of_a_graph_of_many_launches_the_time_of_each_is_said(captured):
    """triton's do_bench_cudagraph prints the time of one launch, and times a graph of hundreds."""
    told = analysis(*repeat(20, "x", ("graph", 2100), ("event", 5)))
    known = CapturedLaunches({int(told.groups["typical"].iloc[0]): captured} if captured else {})
    groups = told.groups.assign(graphs=1)
    told = answer(diagnose(replace(told, of_runs=(known,), groups=groups)))
    assert ("(3.00 us for each of the 700 launches that it replays)" in told.sentence) == (
        captured == 700
    )
    assert ("each of" in told.sentence) == (captured == 700)


def test_of_a_graph_whose_kernels_are_in_the_trace_no_mean_is_said():
    told = analysis(*repeat(20, "x", ("kernel", 2100), ("event", 5)))
    known = CapturedLaunches({int(told.groups["typical"].iloc[0]): 700})
    groups = told.groups.assign(graphs=1)
    assert (
        "each of" not in answer(diagnose(replace(told, of_runs=(known,), groups=groups))).sentence
    )


@pytest.mark.parametrize(("written", "words"), [
    ([False, True], "cold L2: 100 % slower"),
    ([True, True], "99 % kernels"),   # another size of the same kernel
    ([False, False], "99 % kernels"),
    ([], "99 % kernels"),             # the size of the L2 is not known
])  # fmt: skip
def test_a_kernel_takes_twice_as_long_where_the_l2_is_cleared_before_each_timing(written, words):
    """triton's do_bench writes 256 MB before each timing, do_bench_cudagraph nothing."""
    warm, cold = (repeat(20, name, ("kernel", us), ("event", 1)) for name, us in (("warm", 50), ("cold", 100)))  # fmt: skip
    told = analysis(*warm, *cold)
    issued = issued_table([(n, "kernel", "add", 1, 0, 768) for n in (0, 1)])
    is_cold = (told.intervals["label"] == "cold").to_numpy()
    known = (AfterFill(np.where(is_cold, *reversed(written))),) if written else ()
    told = answer(diagnose(replace(told, issued=issued, of_runs=known)))
    assert next(row for row in told.labels if row.label == "cold").words == words


@pytest.mark.parametrize(("torch", "advised"), [("2.11", True), (None, False)])
def test_memory_that_torch_frees_was_given_back_though_no_call_that_takes_it_is_named(
    torch, advised
):
    """transformers#31372 on an H200: 20 cudaFree take 42 of 415 ms, as many cudaMalloc next to nothing."""
    calls = [p for _ in range(4) for p in (("host", 300), piece("api", 400, "cudaFree"))]
    drawn = analysis(repeat(6, "x", *calls, ("kernel", 300)))
    told = answer(diagnose(replace(drawn, known=Known(torch=torch, python="3.12"))))
    assert any("empty_cache" in fix.code for fix in told.fixes) == advised


def lasting(*counts):
    """Three timings each with so many kernels of a millisecond."""
    kernel = ("kernel", 1_000)
    return [repeat(3, "x", ("host", 5_000), *[kernel] * count) for count in counts]


def test_timings_that_get_longer_are_told_from_the_first_third_to_the_last():
    """torchmetrics#1823: a metric over all that was seen so far, 90 ms the first epochs, 130 ms the last."""
    told = said(*lasting(20, 26, 33, 43))
    assert "get longer as the run goes on: 25.0 ms in the first third" in told.sentence
    assert "48.0 ms in the last" in told.sentence
    assert "So do their kernels: 20.0 ms and 43.0 ms" in told.sentence
    assert told.labels[0].words == "25.0 ms, later 48.0 ms"


@pytest.mark.parametrize("counts", [(43, 33, 26, 20), (20, 43, 26, 33), (20, 20, 43, 43)], ids=str)
def test_timings_that_get_shorter_change_to_and_fro_or_are_of_two_kinds_do_not_grow(counts):
    assert "longer as the run goes on" not in said(*lasting(*counts)).sentence


@pytest.mark.parametrize("in_steps", [True, False])
def test_timings_that_spread_because_their_work_changes_are_told_from_chance(in_steps):
    """tritonbench#519: ten replays each of 15 CUDA graphs, 2.5 to 19 ms."""
    times_us = [2_000 + 300 * (k // 10) for k in range(100)]
    if not in_steps:
        times_us = [times_us[37 * k % 100] for k in range(100)]
    (row,) = (told := said([interval("x", ("kernel", us)) for us in times_us])).labels
    assert ("in steps" in told.sentence) == in_steps == (row.verdict == "mixed")
    assert ("varies" in told.sentence) != in_steps


@pytest.mark.parametrize(("earlier", "whose"), [(60, "its kernels"), (0, "kernels")])
def test_kernels_beside_earlier_work_are_its_own(earlier, whose):
    """Of 31.3 ms of kernels other threads had launched 4: "the GPU ran kernels for 27.3 ms" was false."""
    drawn = repeat(6, "x", ("host", 400), ("kernel", 600), kind="host", earlier=earlier)
    assert f"the GPU ran {whose} for 600 us of it" in said(drawn).sentence


def in_a_row(
    warm, *, launches, written=(False, True), cold_us=100, blocks=768, name="add", captured=0
):
    """The finding of one launch behind a fill, beside a label that launches it several times in a row, or replays a graph.

    warm: the pieces of a timing of that label
    """
    cold = repeat(20, "cold", ("kernel", cold_us), ("event", 1))
    told = analysis(*repeat(20, "warm", *warm, ("event", 1)), *cold)
    rows = [(0, "kernel", name, launches, 0, blocks * launches)] * (not captured)
    issued = issued_table([*rows, (1, "kernel", "add", 1, 0, 768)])
    is_cold = (told.intervals["label"] == "cold").to_numpy()
    known = [AfterFill(np.where(is_cold, *reversed(written)))]
    if captured:
        known.append(CapturedLaunches({int(told.groups["typical"].iloc[0]): captured}))
        told = replace(told, groups=told.groups.assign(graphs=[1, 0]))
    told = answer(diagnose(replace(told, issued=issued, of_runs=tuple(known))))
    return next(row for row in told.labels if row.label == "cold")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "cold L2: 100 % slower"),
        ({"written": (True, True)}, "cold L2: 100 % slower"),  # before the first of twenty
        ({"written": (False, False)}, "99 % kernels"),  # a lone launch is slower for other reasons
        ({"blocks": 384}, "99 % kernels"),  # another grid is other work
        ({"name": "mul"}, "99 % kernels"),
        ({"cold_us": 52}, "98 % kernels"),
        ({"launches": 2, "warm": [("kernel", 100)], "written": (True, True)}, "99 % kernels"),
    ],
)
def test_launched_in_a_row_a_kernel_finds_its_data_in_the_l2(more, words):
    """`[f() for _ in range(20)]` between two events, beside a loop that writes 256 MB before each timing of one f()."""
    cold = in_a_row(**{"warm": [("kernel", 1_000)], "launches": 20, **more})
    assert cold.words == words
    if "cold L2" in words:
        assert "(100 us against 50.0 us for each of 20 launches in a row)" in cold.sentence
        assert "cold here and warm there" in cold.sentence


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, True),
        ({"captured": 0}, False),  # how many it replays is not known
        ({"captured": 25}, False),  # 40 us: more than a cold L2 costs, as of other kernels
        ({"written": (False, False)}, False),
    ],
)
def test_a_replayed_graph_finds_its_data_in_the_l2(more, told):
    """A graph of 20 launches takes 1 ms; one launch takes 190 us behind a fill as large as the L2."""
    cold = in_a_row(**{"warm": [("graph", 1_000)], "launches": 1, "captured": 20, "cold_us": 190, **more})  # fmt: skip
    assert ("cold L2?" in cold.words) == told
    if told:
        text = "if the graph of warm replays that one, it is 280 % slower here (190 us against 50.0 us for each of 20 launches in a row)"
        assert text in cold.sentence


def test_of_a_run_with_several_kernels_it_is_not_known_which_a_graph_replays():
    drawn = analysis(
        *repeat(20, "warm", ("graph", 1_000), ("event", 1)),
        *repeat(20, "cold", ("kernel", 100), ("event", 1)),
        *repeat(20, "x", ("kernel", 30), ("event", 1)),
    )
    issued = issued_table([(1, "kernel", "add", 1, 0, 768), (2, "kernel", "mul", 1, 0, 768)])
    captured = CapturedLaunches({int(drawn.groups["typical"].iloc[0]): 20})
    filled = AfterFill((drawn.intervals["label"] == "cold").to_numpy())
    groups = drawn.groups.assign(graphs=[1, 0, 0])
    told = answer(
        diagnose(replace(drawn, issued=issued, groups=groups, of_runs=(filled, captured)))
    )
    assert not any("L2" in row.words for row in told.labels)
