"""A sentence about a run in three lines keeps its cause: what public exports said in full."""

from __future__ import annotations

from textwrap import wrap

import pytest

from nsysalign.explain.run_sentences import if_room, in_three_lines, says_why
from nsysalign.explain.runs.gaps import Crowd
from nsysalign.explain.runs.idle import _crowd_in_words

#: The sentence about set-up, the one behind it, what must stay.
FULL = {
    "one pause": (
        "",
        "Between its first and its last work the GPU ran nothing for 28.6 of 29.8 ms; 24.2 ms of that is one pause: 24.2 ms at "
        "75.5 us before copy D2H pinned (the CPU in cuMemHostAlloc); without it the GPU idles for 4.42 ms, of which 98 gaps of "
        "some 23.2 us before memset of 1.41 us take 2.31 ms.",
        ("28.6 of 29.8 ms", "24.2 ms of that is one pause", "the CPU in cuMemHostAlloc", "98 gaps"),
    ),
    "several pauses": (
        "",
        "Between its first and its last work the GPU ran nothing for 241 of 344 ms; 224 ms of that is 3 pauses: 165 ms at 53.7 ms "
        "before copy H2D pageable (the CPU outside of CUDA), 41.3 ms at 232 ms before computeOffsetsKernel (no CUDA call took "
        "half of it), 18.2 ms at 273 ms before _5x_cudnn_volta_scudnn_128x64_relu_medium_nn_v1 (the CPU in cudaLaunchKernel); "
        "without them the GPU idles for 17.4 ms.",
        ("3 pauses: 165 ms", "the CPU outside of CUDA", "41.3 ms before computeOffsetsKernel"),
    ),
    "first launch": (
        "422 of 702 ms since the first CUDA call pass before the GPU's first work, 6.43 ms of them in CUDA calls; the GPU works "
        "for 1.34 ms.",
        "Between its first and its last work the GPU ran nothing for 278 of 280 ms (240 ms in the range nvFusion0); for 175 ms of "
        "that it waited for CudaCodeGen::kernel1 to run for the first time (when code is compiled, loaded or set up); the rest "
        "of the run takes 105 ms, of which 997 gaps of some 102 us before CudaCodeGen::kernel1 of 1.31 us take 103 ms.",
        ("422 of 702 ms", "278 of 280 ms", "175 ms", "first run of kernel1", "997 gaps of some 102 us"),
    ),
    "pages": (
        "74.6 of 98.9 ms pass in CUDA calls before the GPU's first work (cudaMallocManaged 74.4 ms): set-up; the GPU works for "
        "2.22 ms.",
        "For 10.9 of 13.1 ms the GPU ran nothing while the CPU touched managed memory: its pages came back from the GPU in 24 "
        "migrations, one after the other; 4.19 MB moved to the host in 349 us.",
        ("74.4 of 98.9 ms are cudaMallocManaged", "10.9 of 13.1 ms", "the CPU touched managed memory"),
    ),
    "one block": (
        "174 of 200 ms pass in CUDA calls before the GPU's first work (cudaMalloc 147 ms): set-up; the GPU works for 4.73 ms.",
        "For 4.68 of 13.3 ms at least half of the GPU had nothing to do: check_Rk (of 4 such kernels the one that runs longest: "
        "1.54 ms) was launched with 1 block of 1 thread, and the GPU has 82 multiprocessors.",
        ("cudaMalloc 147 ms", "at least half of the GPU", "check_Rk was launched with 1 block of 1 thread"),
    ),
    "one thread": (
        "383 of 520 ms pass in CUDA calls before the GPU's first work (cudaMallocManaged 383 ms): set-up; the GPU works for 109 ms.",
        "For 109 of 109 ms at least half of the GPU had nothing to do: add was launched with 1 block of 1 thread, and the GPU has "
        "20 multiprocessors.",
        ("383 of 520 ms are cudaMallocManaged", "add was launched with 1 block of 1 thread"),
    ),
    "calls": (
        "322 of 358 ms pass in CUDA calls before the GPU's first work (cudaStreamCreate 319 ms): set-up; the GPU works for 743 us.",
        "Between its first and its last work the GPU ran nothing for 4.61 of 5.35 ms; for 2.56 ms of that the CPU was inside "
        "CUDA calls that launch nothing, most of it in cuLibraryLoadData and cudaMalloc; the longest gap: 1.86 ms at 84.1 us "
        "before rns_mult_montgomery_kernel (the CPU in cuLibraryLoadData).",
        # in all CUDA calls it was 4.45 ms
        ("319 of 358 ms are cudaStreamCreate", "2.56 ms of that", "in CUDA calls that launch nothing, mostly cuLibraryLoadData and cudaMalloc"),
    ),
    "on both sides": (
        "All work on the GPU lies within 849 ms of the 1.79 s from the first CUDA call to the last: 687 ms before it, 254 ms "
        "after it.",
        "Between its first and its last work the GPU ran nothing for 764 of 849 ms; for 571 ms of that it waited for 29 kernels "
        "to run for the first time (when code is compiled, loaded or set up); the rest of the run takes 279 ms.",
        ("849 ms of the 1.79 s", "764 of 849 ms", "571 ms of that it waited for the first run of 29 kernels"),
    ),
    "several processes": (
        "Run (process 60666, GPU 0): 608 of 890 ms pass in CUDA calls before the GPU's first work (cudaFree 607 ms): set-up; the "
        "GPU works for 52.0 us.",
        "Between its first and its last work the GPU ran nothing of this process for 74.0 of 74.0 ms; 66.8 ms of that is 2 pauses: "
        "57.4 ms at 84.1 us before copy D2H pinned (the CPU in cuMemHostRegister), 9.40 ms at 58.2 ms before kernel (the CPU in "
        "cuMemHostAlloc); without them the GPU idles for 7.20 ms.",
        ("Process 60666: 607 of 890 ms are cudaFree", "of this process", "the CPU in cuMemHostRegister"),
    ),
    "a named run": (
        "",
        "Run (process 60666, GPU 0): for 4.68 of 13.3 ms at least half of the GPU had nothing to do: a_kernel_with_a_name_that_is_as_"
        "long_as_this (the one that is launched most often, and that runs longest) was launched with 1 block of 1 thread.",
        ("Run (process 60666, GPU 0): for 4.68 of 13.3 ms", "was launched with 1 block"),
    ),
    "copies": (
        "570 of 610 ms since the first CUDA call pass before the GPU's first work, 1.18 ms of them in CUDA calls; the GPU works "
        "for 14.9 ms.",
        "Copies of pageable memory take 14.2 of 15.5 ms between the first and the last work of the GPU; its kernels take 680 us, "
        "the CPU's own code before and between them 16.1 us.",
        ("570 of 610 ms", "pageable memory take 14.2 of 15.5 ms", "kernels take 680 us"),
    ),
}  # fmt: skip


def lines(text: str) -> int:
    """As a screen breaks them: the first sentence has lines of its own."""
    head, stop, tail = text.partition(". ")
    return len(wrap(head + stop, 80)) + len(wrap(tail, 80))


@pytest.mark.parametrize("name", FULL)
def test_three_lines_keep_the_cause(name):
    set_up, full, stays = FULL[name]
    said = in_three_lines(full, behind=set_up)
    assert lines(f"{set_up} {full}".strip()) > 3 >= lines(said)
    assert [part for part in stays if part not in said] == []


def test_a_sentence_without_room_for_a_cause_says_none():
    set_up = f"{'All work on the GPU lies where no line has room for more ' * 2}here."
    said = in_three_lines(
        "The GPU ran nothing for 1 of 2 ms; " + "for 1 ms it waited " * 8, behind=set_up
    )
    assert said == f"{set_up} The GPU ran nothing for 1 of 2 ms." and not says_why(said)
    assert says_why("The GPU ran nothing for 1 of 2 ms; for 1 ms it waited.") and says_why(
        "It took 1 ms."
    )


def test_what_fits_is_not_cut():
    text = "The GPU ran nothing for 1 of 2 ms; without it the GPU idles for 1 us."
    assert in_three_lines(text) == text


def test_behind_set_up_the_length_of_a_run_says_nothing_alone():
    set_up = (
        "202 of 289 ms since the first CUDA call pass before the GPU's first work, 141 ms of them in CUDA calls; the GPU works "
        "for 34.6 us."
    )
    long = (
        "From its first to its last GPU work the run takes 34.6 us; the GPU worked for 34.6 us of it (100 %). add is 100 % of its "
        "kernel time: look at it with ncu."
    )
    assert if_room(long, behind=set_up) == set_up
    assert if_room("The run takes 1 us.", behind="Set-up.") == "Set-up. The run takes 1 us."


@pytest.mark.parametrize(("ns", "told"), [(1_580_000_000, True), (1_420_000_000, False)])
def test_the_median_of_many_gaps_is_said_where_it_stands_for_all(ns, told):
    """A public export with 1,536 gaps of 916 us and 200 of 5 us: so many times their median is more than the run takes."""
    words = _crowd_in_words(Crowd(1_733, ns, 916_000, "copy H2D pageable"))
    assert words.startswith("1,733 gaps") and ("of some 916 us" in words) == told
