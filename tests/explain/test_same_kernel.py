"""A kernel that takes far longer in one place than the same kernel elsewhere in the run is not called GPU-bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysalign.answer import answer
from nsysalign.model import Known
from nsysalign.show.screen import shortened

from .drawing import analysis, diagnose, interval, issued_table, piece, repeat

AXPY = "__main__::axpy[abi:v1][abi:cw51cXTLSUwv1sDUa](float, Array<float, 1, C, mutable, aligned>)"


def told(*drawn, issued, managed=0):
    """The answer of a drawing whose groups issue these kernels, (name, count, blocks, us) each."""
    told = analysis(*drawn)
    rows = [
        (group, "kernel", name, count, 0, blocks, round(1_000 * us))
        for group, (name, count, blocks, us) in enumerate(issued)
    ]
    known = Known(python="3.12", managed_allocations=managed)
    return answer(diagnose(replace(told, issued=issued_table(rows), known=known)))


def axpy_of(fresh_us, here_blocks=131_072, there_blocks=131_072, name=AXPY, managed=2):
    """h14: the same kernel on managed memory that the host has written, and on memory that is on the GPU."""
    fresh = repeat(8, "fresh", ("host", 2), ("kernel", fresh_us))
    again = repeat(20, "again", ("host", 5), ("kernel", 126))
    issued = [(name, 1, here_blocks, fresh_us), (name, 1, there_blocks, 126)]
    return told(fresh, again, issued=issued, managed=managed)


@pytest.mark.parametrize("managed", [0, 2])
def test_the_same_kernel_far_quicker_elsewhere_is_no_green(managed):
    """Why is said only where the run allocates managed memory."""
    found = axpy_of(39_600, managed=managed)
    row = next(row for row in found.labels if row.label == "fresh")
    assert (row.verdict, row.words) == ("mixed", "kernel 314 x as long")
    assert "axpy takes 39.6 ms" in row.sentence and "126 us in again" in row.sentence
    assert "ncu" not in row.sentence
    assert ("managed memory" in row.sentence) == bool(managed)
    assert any("cudaMemPrefetchAsync" in fix.sentence for fix in found.fixes) == bool(managed)
    assert ("not in the recording" in row.sentence) != bool(managed)
    assert 316_000_000 > row.saving_ns > 310_000_000


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"fresh_us": 1_000}, "eight times as long: sizes, caches and clocks do that"),
        ({"there_blocks": 65_536}, "another grid is other work"),
        ({"name": "spin_kernel(long)"}, "waits for as long as it is asked to"),
        ({"here_blocks": 132, "there_blocks": 132, "managed": 0}, "a grid that fits the GPU"),
        ({"here_blocks": -1, "there_blocks": -1}, "the grid is not known"),
    ],
)
def test_nothing_is_said_where_the_work_may_be_other_work(more, why):
    found = axpy_of(**{"fresh_us": 39_600, **more})
    row = next(row for row in found.labels if row.label == "fresh")
    assert row.verdict == "gpu_bound" and "same kernel" not in row.sentence, why


def test_it_is_not_quicker_where_half_of_the_timings_take_as_long():
    """q03: 4 of 9 backward passes of line 45 add duplicates for as long as that of line 39."""
    fresh = repeat(8, "fresh", ("host", 2), ("kernel", 39_600))
    quick = [interval("some", ("host", us), ("kernel", 126)) for us in (470, 2_900, 600, 1_500, 3_000)]  # fmt: skip
    some = quick + repeat(4, "some", ("host", 400), ("kernel", 39_600))
    found = told(fresh, some, issued=[(AXPY, 1, 131_072, 39_600), (AXPY, 1, 131_072, 126)])
    assert all("same kernel" not in row.sentence for row in found.labels)


def test_one_call_site_for_both_has_a_row_without_the_green_sign():
    """A helper times fresh memory and memory that is on the GPU."""
    drawn = [interval("x", ("host", 2), ("kernel", us)) for us in [9_000, 90, 90, 90] * 8]
    found = told(drawn, issued=[(AXPY, 1, 131_072, 9_000), (AXPY, 1, 131_072, 90)], managed=1)
    (label,) = found.labels
    assert [row.words for row in label.groups] == ["kernel 100 x as long", "98 % kernels"]
    assert [row.verdict for row in label.groups] == ["mixed", "gpu_bound"]
    assert "in others of its timings" in label.sentence


@pytest.mark.parametrize(
    ("first_at", "later_at", "later_us", "later_blocks", "words"),
    [
        ("a.py:24 (a.py:16-18)", "a.py:25 (a.py:16-18)", 190, 131_072, "first call"),
        ("a.py:24 (a.py:16-18)", "a.py:25 (a.py:16-18)", 90_000, 131_072, "GPU idle"),
        # j15: the call that compiles has lines of its own, before the loop
        ("a.py:24-26", "a.py:30-32", 190, 131_072, "first call"),
        ("a.py:24-26", "a.py:30-32", 190, 65_536, "GPU idle"),  # other work
    ],
)  # fmt: skip
def test_one_timing_of_work_that_is_quick_later_is_a_first_call(
    first_at, later_at, later_us, later_blocks, words
):
    """h14: numba compiles for 700 ms in the one call of line 24, and hardly loads; the lines' other callers take 190 us."""
    load = piece("api", 50, "cuLibraryLoadData")
    first = interval(first_at, ("host", 703_000), load, ("kernel", 126))
    later = repeat(20, later_at, ("host", later_us - 126), ("kernel", 126))
    found = told(first, later, issued=[(AXPY, 1, 131_072, 126), (AXPY, 1, later_blocks, 126)])
    row = next(row for row in found.labels if row.label == first_at)
    assert words in row.words


@pytest.mark.parametrize(
    ("sort_us", "copied_us", "says"),
    [
        (900, 0, "The 1.00 ms between 1.01 ms and 2.01 ms are mostly sort (900 us)."),
        (450, 0, "The 1.00 ms between 1.01 ms and 2.01 ms are kernels, of these scan 550 us and sort 450 us."),
        (0, 0, ""),
        (200, 700, "The 1.00 ms between 1.01 ms and 2.01 ms are mostly copies (700 us)."),
    ],
)  # fmt: skip
def test_what_makes_the_difference_between_two_kinds_is_named(sort_us, copied_us, says):
    """h16: top-p takes 1.13 ms more than greedy decoding: the kernels of a sort."""
    rest_us = 1_000 - sort_us - copied_us
    kernels = (0, "host") if not sort_us else (rest_us, "kernel")
    copy = piece("memcpy", copied_us, direction="H2D", memory="pinned", bytes=1 << 24)
    other = ("kernel", rest_us) if kernels[0] and not copied_us else ("host", rest_us)
    top_p = [("host", 10), ("kernel", 1_000), ("kernel", sort_us), other, copy]
    greedy = [("host", 10), ("kernel", 1_000)]
    issued = [
        (0, "kernel", "gemm", 1, 0, 132, 1_000_000),
        (0, "kernel", "sort", 4, 0, 132, 1_000 * sort_us),
        (0, "kernel", "scan", 1, 0, 132, 1_000 * rest_us * (other[0] == "kernel")),
        (1, "kernel", "gemm", 1, 0, 132, 1_000_000),
    ]
    drawn = analysis(repeat(20, "x", *top_p), repeat(20, "x", *greedy))
    told = answer(diagnose(replace(drawn, issued=issued_table(issued))))
    (label,) = told.labels
    assert (says in label.sentence) if says else ("between" not in label.sentence)


def test_rows_say_which_timings_they_hold_where_these_follow_each_other():
    """h05: one helper times three lengths, each 15 times: one loop of the program calls it."""
    loop = [repeat(15, "x", ("host", 2), ("kernel", us)) for us in (130, 380, 1_300)]
    (label,) = answer(diagnose(analysis(*loop))).labels
    assert [row.name for row in label.groups] == [
        "×15: no. 31-45, slowest",
        "×15: no. 16-30, medium",
        "×15: no. 1-15, fastest",
    ]
    turns = [interval("x", ("host", 2), ("kernel", us)) for us in (130, 1_300) * 15]
    (label,) = answer(diagnose(analysis(turns))).labels
    assert [row.name for row in label.groups] == ["×15: slower", "×15: faster"]


def test_a_short_name_keeps_which_timings_it_holds():
    name = "  ×15: no. 31-45, 6,582,514 blocks"
    assert shortened(name, 34) == name
    assert shortened(name, 29) == "  no. 31-45, 6,582,514 blocks"
    assert shortened(name, 20) == "  no. 31-45"
    assert shortened("  ×25: 1,794 to 2,739 operations", 20) == "  1,794 to …erations"
