"""What is said of several timings of one line must be true of each of them: which end too early, launch nothing,
search, are first calls, or have the length that is said."""

from __future__ import annotations

import pytest

from nsysalign.answer import answer

from .drawing import analysis, diagnose, interval, piece, repeat
from .test_causes_that_fit import XLA_PASS, issuing, said

LOAD = piece("api", 500, "cuLibraryLoadData")


@pytest.mark.parametrize(
    ("cpu_us", "outside", "earlier", "words"),
    [
        (12_000, 9_000, 0, "wrong: ends early"),  # n02: the forward, 45 % of which ran later
        (12_000, 11_000, 0, "wrong: ends early"),  # nothing changes at half of the work
        (12_000, 9_000, 9_000, None),  # one step ahead: as much of the step before ran in it
        (12_000, 1_500, 0, None),  # a short tail
        (90_000, 9_000, 0, None),  # the CPU's time, whatever runs behind it
    ],
)
def test_a_timing_that_ends_before_a_good_part_of_its_work(cpu_us, outside, earlier, words):
    more = {"issued": 20_000, "outside": outside, "earlier": earlier, "operations": 300}
    drawn = repeat(9, "x", ("host", cpu_us - 500), ("api_launch", 500), kind="host", **more)
    (row,) = said(drawn, issued=[("kernel", "gemm", 300)]).labels
    assert (row.words == words) if words else row.verdict != "wrong"


def test_how_much_ran_later_is_said():
    """n02: the frame's forward had the green sign."""
    more = {"issued": 22_000, "outside": 10_000, "operations": 300}
    told = said(repeat(9, "x", ("host", 12_100), kind="host", **more))
    assert "ends before its work: 10 of 22 ms of kernels ran later." in told.sentence


@pytest.mark.parametrize(
    ("count", "kind", "flags", "told"),
    [
        (20, "event", (), True),  # n15: the second implementation keeps its results
        (2, "event", (), False),  # a floor that was measured twice
        (20, "host", ("synchronised-after",), True),
        (20, "host", (), False),  # a function that runs on the CPU
    ],
)
def test_timings_that_launch_nothing_beside_others_that_work(count, kind, flags, told):
    more = {"kind": kind, "flags": flags}
    cause = "event" if kind == "event" else "host"
    works = repeat(20, "x", ("kernel", 240), (cause, 5), operations=4, **more)
    empty = repeat(count, "x", (cause, 3), operations=0, **more)
    answered = said(works, empty, issued=[("kernel", "gemm", 4)])
    text = f"x launches nothing in {count} of {20 + count} timings, 3.00 us each"
    assert answered.sentence.startswith(text) == told
    assert ("Most of the others take 245 us." in answered.sentence) == told
    assert (answered.labels[0].words == f"{count} launch nothing") == told
    assert any("keep no results" in fix.sentence for fix in answered.fixes) == told
    assert answered.labels[0].words != "event cost only"


def test_a_search_that_is_shorter_is_one_as_well():
    """n12: the one whose last layers had been searched before was 'loads code', for 0.5 ms of 320."""
    times = [piece("api", 1, "cudaEventElapsedTime") for _ in range(20)]
    work = ("host", 300_000), LOAD, ("api_launch", 700), ("kernel", 3_000)
    long = repeat(11, "x", *times, *work, ("host", 100_000), kind="host", operations=880)
    short = interval("x", *times, *work, kind="host", operations=579)
    drawn = analysis(long, short)
    kernels = [("kernel", f"implicit_gemm_{n}", 28) for n in range(9)]
    told = answer(diagnose(issuing(drawn, kernels, kernels, waits=200)))
    assert "all of them search for the fastest way" in told.sentence
    assert [row.words for row in told.labels[0].groups] == ["a search", "a search"]


def test_the_first_call_is_the_first_one():
    """n08: the second and third timings of four were, each with half a millisecond of loading."""
    lengths = {5_000_000: 10, 1_500_000: 40, 2_700_000: 90, 4_800_000: 10}
    work = LOAD, ("api_launch", 5), ("kernel", 30)
    drawn = [
        interval("x", ("host", us), *work, kind="host", operations=count)
        for us, count in lengths.items()
    ]
    groups = said(*drawn).labels[0].groups
    assert groups and "first call" not in {row.words for row in groups}


def test_two_lengths_that_differ_are_both_said():
    """n08: '2 of them, 4.72 s each' were 4.72 and 5.71 s; m08: '8.03 ms' was that of 5 of 38."""
    pair = [
        interval("x", ("host", us), ("kernel", 300), kind="host", operations=1)
        for us in (570_000, 480_000)
    ]
    others = repeat(2, "x", ("host", 90_000), ("kernel", 300), kind="host", operations=1)
    assert "480 ms to 570 ms each" in said(*pair, *others).sentence


def test_the_row_of_all_timings_is_about_all_of_them():
    """m14: 'GPU idle 100 %', of one timing of 312 ms among 57 in which it was idle for 93 %."""
    slow = interval("x", ("host", 312_000), ("kernel", 700), operations=229)
    usual = repeat(10, "x", ("host", 5_000), ("kernel", 1_500), operations=340)
    (row,) = said(usual, slow, usual).labels
    assert (row.words, row.groups[0].words) == ("GPU idle 93 %", "GPU idle 100 %")


def test_a_row_and_its_sentence_say_the_same_of_idle_time():
    """m06: 'GPU idle 33 %' of 39.2 us, of which its sentence said that it was idle for 17.7."""
    pieces = ("kernel", 19), ("launch_latency", 18), piece("event", 3, "")
    told = said(repeat(15, "x", *pieces, operations=15), issued=[("kernel", "fill", 15)])
    assert "idle for 18.0 us of it" in told.sentence
    assert told.labels[0].words == "GPU idle 45 %"


def test_a_loop_in_which_timings_compile_is_no_first_call():
    """n04: 16 of 22 steps compile; the loop around them was a 'first call'."""
    step = [XLA_PASS, ("api_launch", 600), ("kernel", 20)]
    inner = [
        interval("step", *step, kind="host", start=3_000_000 * n, operations=1) for n in range(4)
    ]
    loop = [("host", 2_000_000), LOAD, ("host", 9_999_000), ("kernel", 20)]
    drawn = analysis(interval("loop", *loop, kind="host", start=0, operations=8), *inner)
    told = answer(diagnose(issuing(drawn, *[[("kernel", "fusion", 1)]] * len(drawn.groups))))
    words = {row.label: row.words for row in told.labels}
    assert words["loop"] == "compiles, 4 inside"
