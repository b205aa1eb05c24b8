"""Shares, times and advice are of what the finding is about: each drawing is of a program whose first screen was false or
led elsewhere."""

from __future__ import annotations

import pytest

from .drawing import piece, repeat
from .test_true_words import codes, copy, told


@pytest.mark.parametrize(("back_us", "named"), [(400, True), (20, False)])
def test_copies_in_both_directions_share_their_time(back_us, named):
    """m05: 90 % was weights that go up and down, and the sentence named those that come back."""
    drawn = repeat(8, "x", copy(500, "H2D", "pageable"), copy(back_us, "D2H", "pageable"))
    sentence = told(drawn).sentence
    both = "1.05 MB H2D from pageable memory and 1.05 MB D2H to pageable memory"
    assert (both in sentence) == named and "1.05 MB H2D from pageable memory" in sentence


@pytest.mark.parametrize(("back", "advised"), [(24, True), (2, False)])
def test_what_does_not_change_on_the_gpu_need_not_come_back(back, advised):
    pieces = copy(500, "H2D", "pageable"), ("kernel", 20), copy(400, "D2H", "pageable")
    issued = [("memcpy", "copy H2D pageable", 24), ("memcpy", "copy D2H pageable", back)]
    said = told(repeat(8, "x", *pieces, kind="host"), issued=issued)
    assert ("need not come back" in codes(said)) == advised
