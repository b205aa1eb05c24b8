"""Student's quantile against a printed table, and against scipy where that is installed."""

from __future__ import annotations

import itertools
import math

import pytest

from nsysalign.student import t95

#: Degrees of freedom -> 97.5 % quantile, as every table of statistics prints it.
TABLE = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
    10: 2.228, 11: 2.201, 12: 2.179, 15: 2.131, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021,
    60: 2.000, 120: 1.980, math.inf: 1.960,
}  # fmt: skip


@pytest.mark.parametrize("freedom", TABLE)
def test_it_is_what_tables_print(freedom):
    assert round(t95(freedom), 3) == TABLE[freedom]


def test_it_has_a_closed_form_for_one_and_two():
    assert t95(1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-12)
    assert t95(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-12)


def test_it_equals_scipys():
    special = pytest.importorskip("scipy.special")
    freedoms = [1 + k / 7 for k in range(700)] + [10**k for k in range(2, 10)] + [24_999, 999_999]
    for freedom in freedoms:
        assert t95(freedom) == pytest.approx(float(special.stdtrit(freedom, 0.975)), rel=1e-9)


def test_it_only_falls():
    steps = [t95(1 + k / 3) for k in range(2000)]
    assert all(b < a for a, b in itertools.pairwise(steps))
    assert t95(999_999) >= t95(1_000_001) > t95(math.inf)


@pytest.mark.parametrize("freedom", [0, 0.5, -1, math.nan])
def test_below_one_there_is_no_interval(freedom):
    with pytest.raises(ValueError, match="degrees of freedom"):
        t95(freedom)
