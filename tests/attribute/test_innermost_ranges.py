"""Which of nested or overlapping ranges has the word: the innermost, the one that began last."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysalign.split import busy


def pieces(*ranges) -> list[tuple[int, int, int]]:
    """(start, end, name) of the pieces; a range is named by its number."""
    order = sorted(range(len(ranges)), key=lambda n: (ranges[n][0], -ranges[n][1]))
    start, end = (np.array([ranges[n][k] for n in order], dtype=np.int64) for k in (0, 1))
    found = busy.innermost(start, end, np.array(order, dtype=np.int64))
    rows = list(zip(*(column.tolist() for column in found), strict=True))
    return [row for row in rows if row[1] > row[0]]


@st.composite
def nests(draw) -> list[tuple[int, int]]:
    """Properly nested ranges."""
    out: list[tuple[int, int]] = []

    def inside(low: int, high: int, depth: int) -> None:
        at = low
        for _ in range(draw(st.integers(0, 3))):
            if high - at < 1:
                return
            start = draw(st.integers(at, high - 1))
            end = draw(st.integers(start + 1, high))
            out.append((start, end))
            if depth:
                inside(start, end, depth - 1)
            at = end

    inside(0, 60, 3)
    return out


@settings(max_examples=150)
@given(
    st.one_of(
        nests(),
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), max_size=12),
    )
)
def test_every_instant_has_the_name_of_the_open_range_that_began_last(ranges):
    found = pieces(*ranges)
    assert all(a[1] <= b[0] for a, b in pairwise(found)), "disjoint, in order"
    for t in range(61):
        open_ = [n for n, (start, end) in enumerate(ranges) if start <= t < end]
        wanted = max(open_, key=lambda n: (ranges[n][0], -ranges[n][1], n), default=None)
        assert next((name for start, end, name in found if start <= t < end), None) == wanted
