"""Words that a condition lets through must be true of every program that meets it: for each drawing what may be said
of it, and what may not."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.model import OTHERS_WORKED, Known

from .drawing import analysis, diagnose, interval, piece, repeat
from .test_causes_that_fit import issuing

TORCH = Known(torch="2.11", python="3.12")
LAUNCH = ("api_launch", 5), ("kernel", 20)


def copy(us, direction, memory="", size=1 << 20):
    return piece("memcpy", us, direction=direction, memory=memory, bytes=size)


def told(*drawn, issued=(), known=TORCH, waits=0, gpu="NVIDIA H200", kernels=()):
    """The answer of a drawing, each group of which issued these operations, (kind, name, count) each, and whose ledger
    names these kernels."""
    made = analysis(*drawn)
    if issued:
        made = issuing(made, *[list(issued)] * len(made.groups), waits=waits)
    if kernels:
        is_kernel = made.ledger["cause"] == "kernel"
        rows = [made.ledger[is_kernel].assign(what=n, ns=ns) for n, ns in kernels]
        ledger = pd.concat([*rows, made.ledger[~is_kernel]], ignore_index=True)
        made = replace(made, ledger=ledger)
    row = dict.fromkeys(frames.KERNELS.names, 0) | {"label": "x", "kind": "kernel"}
    ran = [row | {"kernel": name} for kind, name, _ in issued if kind == "kernel"]
    ran += [row | {"kernel": "at::fill"}] if known.torch else []  # as each program of torch's
    table = frames.check(pd.DataFrame(ran, columns=frames.KERNELS.names), frames.KERNELS)
    trace = replace(made.trace, devices=(gpu,))
    return answer(diagnose(replace(made, known=known, trace=trace, kernels=table)))


def codes(said):
    return " | ".join(f"{fix.sentence}: {fix.code}" for fix in said.fixes)


def test_work_of_the_gpu_that_is_no_kernel_is_not_zero_percent_kernels():
    """y.copy_(x) on the device, whose bandwidth somebody measures, and a buffer that is cleared."""
    copied = told(repeat(8, "x", copy(1_000, "D2D"), ("event", 2))).sentence
    assert "100 % copies on the device" in copied and "kernels" not in copied
    cleared = told(repeat(8, "x", piece("memset", 1_000), ("event", 2))).sentence
    assert "100 % memsets" in cleared and "kernels" not in cleared
    both = told(repeat(8, "x", copy(300, "D2D"), ("kernel", 700))).sentence
    assert "70 % kernels, 30 % copies on the device" in both


def test_a_buffer_that_is_cleared_is_not_called_a_copy_of_a_flag():
    said = told(repeat(8, "x", ("host", 300), piece("memset", 700), copy(2, "D2H", "pageable", 4)))
    assert "memsets" in said.sentence and "4 B" not in said.sentence
    assert said.labels[0].words == "memsets, 70 %"


@pytest.mark.parametrize(
    ("waited_us", "words"), [(1_100, "B is at least 53 % of its kernel time"), (900, "")]
)
def test_a_kernel_beside_the_cpu_counts_in_what_another_one_is_of_all(waited_us, words):
    """A ran while the CPU prepared B, and has no piece of its own in a host timer."""
    pieces = ("api_launch", 10), ("host", 980), piece("kernel", waited_us, "B"), ("sync", 5)
    drawn = repeat(8, "x", *pieces, kind="host", issued=990 + waited_us, operations=2)
    sentence = told(drawn).sentence
    assert words in sentence and ("of its kernel time" in sentence) == bool(words)


def test_only_a_pair_of_events_has_a_cost_of_events():
    pieces = ("kernel", 1), ("launch_latency", 5), ("kernel", 1)
    assert "event pair" in told(repeat(8, "x", *pieces)).sentence
    assert "event pair" not in told(repeat(8, "x", *pieces, kind="nvtx")).sentence


def test_pieces_of_the_cpu_are_no_part_of_calls():
    """'in cudaMalloc for 5 ms. 1.5 ms of that are 1 pieces': the pieces are outside CUDA."""
    calls = piece("api", 5_000, "cudaMalloc"), ("host", 1_500), piece("api", 100, "cudaFree")
    sentence = told(repeat(8, "x", *calls, ("host", 400), *LAUNCH)).sentence
    assert "1 piece of a millisecond and more outside CUDA takes 1.50 ms." in sentence


def test_a_wait_does_not_keep_all_else_from_being_launched_ahead():
    """One wait in 500 operations, most of which were launched while others ran."""
    drawn = repeat(8, "x", *[("host", 9), *LAUNCH] * 30, ("sync", 300))
    sentence = told(drawn, issued=[("kernel", "k", 500)], waits=1).sentence
    assert "waits for the GPU once in it, and launches nothing meanwhile." in sentence


def test_the_gpu_is_not_idle_where_other_streams_work():
    for flags, idler in (((OTHERS_WORKED,), "Its stream sat idle"), ((), "The GPU sat idle")):
        assert idler in told(repeat(8, "x", ("host", 500), *LAUNCH, flags=flags)).sentence


def test_the_largest_part_is_named_also_where_the_trace_does_not_know_it():
    drawn = repeat(8, "x", ("kernel", 500), ("unknown", 400), copy(70, "H2D", "pinned"))
    said = told(drawn)
    assert "kernels 52 %, not in the trace 41 %" in said.sentence and "copying" not in said.sentence
    assert said.labels[0].words == "kernels 52 %, rest 41 %"


@pytest.mark.parametrize(("largest_us", "named"), [(1_300, True), (300, False)])
def test_a_call_is_most_of_the_calls_only_where_it_takes_half(largest_us, named):
    calls = [piece("api", 280, f"cudaCall{n}") for n in range(4)]
    drawn = repeat(8, "x", *calls, piece("api", largest_us, "cudaHostUnregister"), *LAUNCH)
    assert ("most in cudaHostUnregister" in told(drawn).sentence) == named


@pytest.mark.parametrize(("largest_us", "named"), [(300, False), (450, True)])
def test_mostly_is_two_thirds(largest_us, named):
    """Of 49.3 ms outside CUDA 25.0 were in one of two ranges: "mostly pass 1 size 224"."""
    pieces = piece("host", largest_us, "load"), piece("host", 200, "augment"), *LAUNCH
    drawn = [*repeat(20, "x", *pieces), *repeat(20, "x", ("kernel", 90), ("kernel", 90))]
    assert ("(mostly load)" in told(drawn).sentence) == named


def test_a_first_call_is_in_the_calls_that_launch_as_well():
    """17.6 ms, of which 'it is a first call' named 20 us and 0.9 ms: the launch loaded the code."""
    load = piece("api", 9_000, "cuLibraryLoadData")
    sentence = told(interval("x", load, ("api_launch", 16_000), ("kernel", 100))).sentence
    assert "25.0 ms in CUDA calls, most in cudaLaunchKernel." in sentence


def test_timings_of_all_lengths_are_not_so_long_each():
    """1 to 3 ms, whose median and mean are 2 ms."""
    all_lengths = [interval("x", ("host", us), ("kernel", 20)) for us in range(1_000, 3_000, 20)]
    sentence = told(all_lengths, repeat(20, "x", ("kernel", 900), ("kernel", 300))).sentence
    assert "1.02 ms to 3.00 ms each" in sentence
    short = [interval("x", ("kernel", us), ("kernel", us)) for us in range(10, 60)]
    assert "50 of mostly " in told(all_lengths, short).sentence


@pytest.mark.parametrize(
    ("kernel", "dtype", "code"),
    [
        ("float16_copy_kernel_cuda", "float16", "torch.float16"),
        ("bfloat16_copy_kernel_cuda", "bfloat16", "torch.bfloat16"),
        ("bfloat16tofloat32_copy_kernel_cuda", "float32", ""),
        ("float16tofloat32_copy_kernel_cuda", "float32", ""),
    ],
)
def test_a_conversion_is_to_the_type_that_it_makes(kernel, dtype, code):
    """Of half to float 'converts to float16' was said, with model.half() as its mend."""
    said = told(repeat(8, "x", piece("kernel", 700, kernel), piece("kernel", 200, "gemm")))
    assert f"converts to {dtype} " in said.sentence
    assert (f"model.to({code})" in codes(said)) == bool(code)


# --- advice ---


@pytest.mark.parametrize(("memory", "delayed"), [("pinned", True), ("pageable", False)])
def test_no_delay_hides_a_copy_of_pageable_memory(memory, delayed):
    """The call waits for the delay kernel, and the CPU is as late behind it as before."""
    pieces = ("host", 160), copy(10, "H2D", memory), ("host", 160), *LAUNCH
    issued = [("memcpy", f"H2D {memory}", 1), ("kernel", "k", 1)]
    assert ("_sleep" in codes(told(repeat(8, "x", *pieces), issued=issued))) == delayed


@pytest.mark.parametrize(("waits", "itself"), [(4, False), (9, True)])
def test_waits_of_copies_are_no_synchronisations_of_the_program(waits, itself):
    pieces = [p for _ in range(4) for p in (copy(3, "H2D", "pageable"), ("sync", 40), *LAUNCH)]
    issued = [("memcpy", "H2D pageable", 4), ("kernel", "k", 4)]
    said = told(repeat(8, "x", *pieces), issued=issued, waits=waits)
    assert ("synchronize()" in codes(said)) == itself


def test_who_times_an_empty_pair_has_no_calls_to_repeat():
    assert "range(20)" not in codes(told(repeat(8, "x", ("event", 6))))


def test_a_fill_is_moved_only_if_it_need_not_be_there():
    names = [("scatter", 1_600_000), ("at::native::FillFunctor<float>", 800_000)]
    said = told(repeat(8, "x", ("kernel", 100), ("kernel", 200)), kernels=names)
    assert said.fixes[0].sentence.startswith("If it flushes")


@pytest.mark.parametrize(
    ("gpu", "advised"),
    [
        ("NVIDIA H200", True),
        ("NVIDIA RTX A6000", True),
        ("NVIDIA RTX 6000 Ada Generation", True),
        ("NVIDIA GeForce RTX 3080", True),
        ("Tesla V100-SXM2-16GB", False),
        ("Tesla T4", False),
        ("NVIDIA GeForce RTX 2080 Ti", False),
    ],
)
def test_tf32_is_for_gpus_that_have_it(gpu, advised):
    names = [("ampere_sgemm_128x64_tn", 5_600_000)]
    said = told(repeat(8, "x", ("kernel", 700)), kernels=names, gpu=gpu)
    assert ("matmul_precision" in codes(said)) == advised


CUPY = {"add": True, "sin": True, "take": False, "sum": False, "copy": False}


@pytest.mark.parametrize("operation", CUPY)
def test_cupy_fuses_arithmetic_only(operation):
    calls = [p for _ in range(40) for p in (("host", 12), ("api_launch", 6), ("kernel", 3))]
    names = [f"cupy_{operation}__float32_float32", "cupy_multiply__float32_float32"]
    issued = [("kernel", names[0], 30), ("kernel", names[1], 10)]
    said = told(repeat(8, "x", *calls), issued=issued, known=Known(python="3.12"))
    assert ("cupy.fuse" in codes(said)) == CUPY[operation]


@pytest.mark.parametrize(
    ("kernel", "advised"), [("steqr_kernel", True), ("LSTM_elementWise_fp", False)]
)
def test_steps_that_need_the_one_before_are_no_batch(kernel, advised):
    calls = [p for _ in range(400) for p in (("host", 2), ("api_launch", 6), ("kernel", 3))]
    said = told(repeat(8, "x", *calls), issued=[("kernel", kernel, 400)])
    assert ("whole batch at once" in codes(said)) == advised


def test_no_sentence_is_about_a_wait_of_zero():
    """'For 0 ns of it work was launched and waited; for what is not in the trace': the end event came late."""
    drawn = repeat(8, "x", ("kernel", 12), ("event", 40))
    sentence = told(drawn).sentence
    assert "0 ns" not in sentence and "its end waited, and the trace does not say" in sentence
    typical_does_not = [repeat(4, "x", ("kernel", 900), ("event", 3))]
    typical_does_not += [repeat(4, "x", ("kernel", 540), piece("queued", 363, "contention"))]
    assert "For 0 ns" not in told(*typical_does_not).sentence
