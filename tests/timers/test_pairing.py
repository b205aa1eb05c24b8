"""Readings to pairs: small programs by hand, and what must hold for all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nsysalign.place.host_timers import Site, differences


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


def test_a_loop_of_two_lines():
    assert pairs("A B A B A B", PLAIN) == ["A0-B1", "A2-B3", "A4-B5"]


def test_what_lies_between_end_and_start_is_no_interval():
    assert "B1-A2" not in pairs("A B A B", PLAIN)


def test_the_latest_start_counts_and_each_only_once_per_difference():
    assert pairs("A A B B", PLAIN) == ["A1-B2"]
    assert pairs("B A B", PLAIN) == ["A1-B2"]


def test_a_lap_and_a_total_share_their_start():
    sites = PLAIN | {"C": site(7, "difference", "", "t0")}
    assert pairs("A B C A B C", sites) == ["A0-B1", "A0-C2", "A3-B4", "A3-C5"]


def test_rolling():
    sites = {"A": site(3, "start", "last"), "B": site(5, "difference", "now last", "last")}
    assert pairs("A B B B", sites) == ["A0-B1", "B1-B2", "B2-B3"]


def test_objects_end_inside_out():
    def timer(caller):
        return site(3, "start", ".t", caller=caller), site(5, "difference", "", ".t", caller=caller)

    (a, b), (c, d) = timer("f.py:10"), timer("f.py:12")
    assert pairs("A C D B", {"A": a, "B": b, "C": c, "D": d}) == ["A0-B3", "C1-D2"]


def test_an_abandoned_start_is_not_dug_up():
    """reset() three times, then two laps: the second lap has no start of its own."""
    sites = {"A": site(3, "start", ".t"), "B": site(5, "difference", "", ".t")}
    assert pairs("A A A B B", sites) == ["A2-B3"]


def test_coroutines_take_turns_and_nothing_is_guessed():
    sites = {k: s._replace(interleaved=True) for k, s in PLAIN.items()}
    assert pairs("A A B B A B", sites) == [], "who ended first?"


def test_deadlines_and_what_is_thrown_away_are_no_intervals():
    sites = {"A": site(3, "start", "t0"), "B": site(4, "compared"), "C": site(9, "unused")}
    assert pairs("A B B B B C", sites) == []


def test_nothing_is_guessed():
    assert pairs("A B A B", {"A": site(3), "B": site(5)}) == []
    assert pairs("A A", {"A": site(3, "kept")}) == []


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
