"""What does a thread do again and again, waiting for the GPU at the end of each round?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsysalign.explain.facts import ALLOCATION_CALLS
from nsysalign.intervals import covered
from nsysalign.model import CALL, SYNC_CALLS, Trace
from nsysalign.text import span

#: Fewer rounds are none; this share of all must make the same calls, so many at most.
_FEWEST, _ALIKE, _MOST_CALLS = 50, 0.8, 5
#: Copies that return while they run.
_IN_TIME = re.compile(r"Async|Prefetch")
_BACK = re.compile(r"DtoH|FromSymbol")
_WAIT = re.compile(r"Synchronize")
_COPY = re.compile(r"^cu(da)?Memcpy")


class Rounds(NamedTuple):
    """Rounds of the same calls, one after the other."""

    count: int = 0
    calls: tuple[str, ...] = ()  # what each makes, by name, in the order in which it does
    ns: int = 0  # the lower median of how long one takes
    idle_ns: int = 0  # the device ran nothing in them


def rounds_of(trace: Trace, process: int, start: np.ndarray, end: np.ndarray) -> Rounds:
    """Return the rounds of the thread that launches most; none if they differ.

    start, end: the stretches (ns) in which the device ran nothing, in the order of time and disjoint

    thread   [alloc][launch][copy][wait]  [alloc][launch][copy][wait]      two rounds of alloc, launch, copy and wait:
             |---------- one ----------||---------- two ------------|      waits end a round in which there is a launch
    """
    calls = trace.calls[(trace.calls["process"] == process) & trace.outermost]
    calls = calls[(calls["end_ns"] > start[0]) & (calls["start_ns"] < end[-1])]
    launches = calls["kind"].isin([CALL["launch"], CALL["graph_launch"]])
    if not launches.any():
        return Rounds()
    calls = calls[calls["thread"] == calls.loc[launches, "thread"].mode().iloc[0]]
    calls = calls.sort_values("start_ns", kind="stable")
    kind, name = calls["kind"].to_numpy(), calls["name_id"].to_numpy()
    in_time = [number for number, text in trace.names.items() if _IN_TIME.search(text)]
    waits = np.isin(kind, [CALL[each] for each in SYNC_CALLS])
    waits |= (kind == CALL["memcpy"]) & ~np.isin(name, in_time)
    launched = np.cumsum(np.isin(kind, [CALL["launch"], CALL["graph_launch"]]))
    last = np.flatnonzero(waits & ~np.append(waits[1:], False))  # of several waits in a row
    last = last[np.diff(launched[last], prepend=0) > 0]
    if len(last) <= _FEWEST:
        return Rounds()
    # the first one may have begun before
    number = np.searchsorted(last, np.arange(last[-1] + 1))
    pairs = np.unique(np.stack([number, name[: last[-1] + 1]]), axis=1)
    mixed = pairs[1].astype(np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    )  # sums tell sets of names apart
    made = np.zeros(len(last), np.uint64)
    np.add.at(made, pairs[0], mixed ^ (mixed >> np.uint64(29)))
    kinds, count = np.unique(made[1:], return_counts=True)
    alike = np.flatnonzero(made[1:] == kinds[count.argmax()]) + 1
    if len(alike) < max(_FEWEST, _ALIKE * (len(last) - 1)):
        return Rounds()
    middle = alike[len(alike) // 2]  # the first ones may differ in their order
    one = calls.iloc[last[middle - 1] + 1 : last[middle] + 1]
    names = tuple(dict.fromkeys(trace.names.get(number, "") for number in one["name_id"].tolist()))
    if len(names) > _MOST_CALLS:
        return Rounds()
    ends = calls["end_ns"].to_numpy()[last]
    begin, stop = ends[alike - 1], ends[alike]
    idle_ns = covered(begin, stop, end) - covered(begin, stop, start)
    length = np.sort(stop - begin)
    return Rounds(len(alike), names, int(length[(len(length) - 1) // 2]), int(idle_ns.sum()))


def in_words(rounds: Rounds) -> str:
    """Return what is said of rounds that are most of the idle time."""
    *first, last = rounds.calls
    made = f"{', '.join(first)} and {last}" if first else last
    return f"{span(rounds.idle_ns)} of that lie in {rounds.count:,} rounds of {made}, some {span(rounds.ns)} each"


def in_one_round(rounds: Rounds) -> str:
    """Return what makes rounds faster, by what each of them does."""
    does = []
    if any(re.match(ALLOCATION_CALLS, call) for call in rounds.calls):
        does.append("allocate once")
    copies = [call for call in rounds.calls if _COPY.match(call)]
    if any(not _BACK.search(call) for call in copies):
        does.append("copy all of it at once")
    if any(_BACK.search(call) for call in copies):
        does.append("read results back once for many of them, or decide on the GPU")
    if any(_WAIT.search(call) for call in rounds.calls):
        does.append("wait once")
    return f"Do in one round what many do: {_listed(does)}"


def _listed(texts: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
