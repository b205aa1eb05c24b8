"""Readings to pairs: small programs by hand, and what must hold for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysalign.place.host_timers import (
    Site,
    callers_of_pairs,
    callers_of_readings,
    differences,
    stages,
    stamps_of,
)


def site(
    line: int, use: str = "", stores: str = "", subtracts: str = "", caller: str = "f.py:90"
) -> Site:
    def names(text: str) -> tuple[str, ...]:
        return tuple(f"f.py:{'' if n.startswith('.') else '1:'}{n}" for n in text.split())

    return Site(f"f.py:{line}", (caller,), "f.py:1:f", line, use, names(stores), names(subtracts))


def pairs(program: str, sites: dict[str, Site]) -> list[str]:
    """`program`: site keys in order; the result as "A0-B1" with positions."""
    order = program.split()
    found = differences(np.zeros(len(order)), [sites[k] for k in order])
    return [f"{order[a]}{a}-{order[b]}{b}" for a, b in found.tolist()]


PLAIN = {"A": site(3, "start", "t0"), "B": site(5, "difference", "t1", "t0")}


ROLLING = {"A": site(3, "start", "last"), "B": site(5, "difference", "now last", "last")}
TIMER = {"A": site(3, "start", ".t"), "B": site(5, "difference", "", ".t")}
NESTED = TIMER | {
    "C": TIMER["A"]._replace(callers=("f.py:12",)), "D": TIMER["B"]._replace(callers=("f.py:12",))
}  # fmt: skip
INTERLEAVED = {key: own._replace(interleaved=True) for key, own in PLAIN.items()}
DEADLINE = {"A": site(3, "start", "t0"), "B": site(4, "compared"), "C": site(9, "unused")}


@pytest.mark.parametrize(
    ("program", "sites", "found"),
    [
        ("A B A B A B", PLAIN, "A0-B1 A2-B3 A4-B5"),  # what lies between end and start is none
        ("A A B B", PLAIN, "A1-B2"),  # the latest start, once per difference
        ("B A B", PLAIN, "A1-B2"),
        ("A B C A B C", PLAIN | {"C": site(7, "difference", "", "t0")}, "A0-B1 A0-C2 A3-B4 A3-C5"),
        ("A B B B", ROLLING, "A0-B1 B1-B2 B2-B3"),
        ("A C D B", NESTED, "A0-B3 C1-D2"),
        ("A A A B B", TIMER, "A2-B3"),  # reset() three times: an abandoned start is not dug up
        ("A A B B A B", INTERLEAVED, ""),  # coroutines take turns: who ended first?
        ("A B B B B C", DEADLINE, ""),
        ("A B A B", {"A": site(3), "B": site(5)}, ""),  # nothing is guessed
        ("A A", {"A": site(3, "kept")}, ""),
    ],
)
def test_pairs(program, sites, found):
    assert " ".join(pairs(program, sites)) == found


def test_another_thread_or_clock_is_another():
    a, b = PLAIN["A"], PLAIN["B"]
    assert differences(np.array([1, 2, 1, 2]), [a, a, b, b]).tolist() == [[0, 2], [1, 3]]
    assert not len(differences(np.array([1, 2]), [a, b]))


USES = st.sampled_from(["", "start", "difference", "compared", "kept", "unused"])
NAMES = st.sampled_from(["", "a", "b", "a b", ".x", ".x a"])
SITES = st.lists(st.builds(site, st.integers(1, 9), USES, NAMES, NAMES), min_size=1, max_size=5)


@given(SITES, st.data())
def test_what_holds_for_all_programs(sites, data):
    n = data.draw(st.integers(0, 40))

    def column(most: int) -> np.ndarray:
        return np.array(
            data.draw(st.lists(st.integers(0, most), min_size=n, max_size=n)), dtype=np.int64
        )

    thread, place = column(2), column(len(sites) - 1)
    found = differences(thread, [sites[n] for n in place])
    a, b = found.T
    assert (a < b).all() and (thread[a] == thread[b]).all()
    assert len({(i, j) for i, j in zip(a.tolist(), b.tolist(), strict=True)}) == len(a)
    told = [
        (int(i), sites[place[j]].position, sites[place[j]].use) for i, j in zip(a, b, strict=True)
    ]
    # a start serves each variable of each difference once
    assert all(told.count(t) <= max(len(sites[place[t[0]]].stores), 1) for t in told)
    for i, j in zip(a.tolist(), b.tolist(), strict=True):
        start, end = sites[place[i]], sites[place[j]]
        assert start.use == end.use == "loop" or set(start.stores) & set(end.subtracts)


STAMPS = {key: site(line, "kept") for key, line in zip("ABC", (3, 5, 7), strict=True)}
MARKS = {
    key: site(3, "kept", caller=f"f.py:{line}")
    for key, line in zip("ABC", (40, 42, 44), strict=True)
}


@pytest.mark.parametrize(
    ("program", "sites", "found"),
    [
        ("A B C A B C", STAMPS, "A0-B1 A3-B4 B1-C2 B4-C5"),  # nothing from C to A
        ("A B C A B", STAMPS, "A0-B1 A3-B4"),  # B-C once: it does not come again
        ("A B C A C A B C A C", STAMPS, "A0-B1 A3-C4 A5-B6 A8-C9 B1-C2 B6-C7"),  # B is optional
        ("A A B B A A B B", STAMPS, ""),  # two loops, one after the other
        ("A B C B C A B C B C", STAMPS, "B1-C2 B3-C4 B6-C7 B8-C9"),  # A is of the outer loop
        ("A B A B", {key: s._replace(interleaved=True) for key, s in STAMPS.items()}, ""),
        ("A B A B", {key: s._replace(use="") for key, s in STAMPS.items()}, ""),
        ("A B A B", {key: s._replace(function=key) for key, s in STAMPS.items()}, ""),
        ("A B C A B C", MARKS, "A0-B1 A3-B4 B1-C2 B4-C5"),
        ("B A B A B", MARKS, ""),  # the loop may begin at B
        # start() and stop() of two timers: from one start to the next nobody measures
        ("A X B X A X B X", MARKS | {"X": site(9, "difference")._replace(function="stop")}, ""),
    ],
)
def test_stages(program, sites, found):
    order = program.split()
    stamps = stamps_of(np.zeros(len(order)), [sites[k] for k in order], np.zeros(len(order), bool))
    pairs = stages(stamps).tolist()
    assert " ".join(sorted(f"{order[a]}{a}-{order[b]}{b}" for a, b in pairs)) == found


def test_the_stages_of_a_helper_are_at_its_callers_lines():
    program = [MARKS[key] for key in "ABAB"]
    stamps = stamps_of(np.zeros(4), program, np.zeros(4, bool))
    assert [stamps[n].site.site for n in range(4)] == ["f.py:40", "f.py:42"] * 2


def test_what_is_in_a_timer_is_in_no_stage():
    in_timer = np.array([True, False, False] * 2)
    stamps = stamps_of(np.zeros(6), [STAMPS[key] for key in "ABCABC"], in_timer)
    assert stages(stamps).tolist() == [[1, 2], [4, 5]]


LAPS = {
    "S": site(28, "compared", ".t", caller="f.py:48"),
    "F": site(31, "difference", ".t now", ".t", caller="f.py:52"),
    "B": site(31, "difference", ".t now", ".t", caller="f.py:54"),
}


def test_a_lap_is_told_by_the_call_that_ends_it():
    """p01: the lap from lap("update") to lap("log") had the line of the former."""
    order = [LAPS[key] for key in "SFBSFB"]
    starts, ends = differences(np.zeros(6), order).T
    called = callers_of_pairs([order[n] for n in starts], [order[n] for n in ends], [()] * 4)
    assert called == [("f.py:52",), ("f.py:54",)] * 2
    timer = [TIMER["A"]], [TIMER["B"]._replace(callers=("f.py:99",))]
    assert callers_of_pairs(*timer, [()]) == [("f.py:90",)]  # no lap: the one that starts it


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("A x y x y B x y", "88 88 88 88 88 89 89 89"),  # p13: 69-77 of three runs was one row
        ("x A x", " 88 88"),
        ("M x A x", "88  88 88"),  # M stands behind the first reading: whose x is, is not known
    ],
)
def test_who_called_a_function_holds_for_its_later_readings(program, told):
    def reading(line: int, caller: str = "") -> Site:
        return site(line)._replace(callers=(caller,) if caller else ())

    sites = {"A": reading(67, "88"), "B": reading(67, "89"), "M": reading(80, "88")}
    sites |= {"x": reading(69), "y": reading(77)}
    order = [sites[key] for key in program.split()]
    found = callers_of_readings(np.zeros(len(order)), order)
    assert " ".join("".join(callers) for callers in found) == told
