"""What began the work that a program repeats, from the order of its marks (`probe.turns`)."""

from __future__ import annotations

import pytest

from nsysalign.probe.turns import Leaders

#: Marks in the order in which they come, and the level of those that lead.
PROGRAMS = {
    "pairs": ("SE" * 5, {"S": 0}),
    "two pairs, one after the other": ("SEse" * 5, {"S": 0}),
    "a clock around each pair": ("tSEu" * 5, {"t": 0}),
    "a clock around several": ("tSESESEu" * 5, {"S": 0, "t": 1}),
    "a chain": ("A" * 9, {"A": 0}),
    "laps": ("tABC" + "ABC" * 5, {"A": 0}),
    "one phase after another": ("SE" * 5 + "se" * 5, {"S": 0, "s": 0}),
    "a clock of the whole program": ("t" + "SE" * 9, {"S": 0}),
    "pair in pair": ("abcd" * 5, {"a": 0}),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_leaders(program):
    marks, level = PROGRAMS[program]
    leaders = Leaders()
    for mark in marks:
        leaders.came(mark)
    assert leaders.level == level


def test_what_is_remembered_is_bounded():
    leaders = Leaders()
    for n in range(1000):
        leaders.came(n)
        leaders.came(n)
    assert len(leaders.level) <= 64
