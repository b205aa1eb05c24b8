"""What does a thread do again and again, waiting for the GPU at the end of each round?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.clauses import Clause, Cut
from nsysalign.explain.facts import ALLOCATES
from nsysalign.intervals import covered
from nsysalign.model import CALL, SYNC_CALLS, Trace
from nsysalign.text import span

#: Fewer rounds are none; this share of all must make the same calls; of more different calls no sentence can tell.
_FEWEST, _ALIKE, _MOST_CALLS = 50, 0.8, 5
_LAUNCHES = (CALL["launch"], CALL["graph_launch"])
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
    """Return what a thread does again and again, waiting for the GPU at the end of each round: the rounds of the thread
    that launches most.  There are none if the rounds differ.

    start, end: the stretches (ns) in which the device ran nothing, in the order of time and disjoint; at least one

    thread   [alloc][launch][copy][wait]  [alloc][launch][copy][wait]      two rounds of alloc, launch, copy and wait:
             |---------- 0 ------------||------------ 1 ------------|      waits end a round in which there is a launch

    Round n has the calls behind the wait that ends round n - 1, and lasts from that wait's end to the end of its own.
    Round 0 may have begun before the first stretch, and is left out.
    """
    calls = _calls_of_launcher(trace, process, int(start[0]), int(end[-1]))
    last = _last_calls(trace, calls)  # per round, the position of the wait that ends it
    if len(last) <= _FEWEST:
        return Rounds()
    alike = _rounds_alike(calls["name_id"].to_numpy(), last)  # their numbers, never 0
    whole_rounds = len(last) - 1
    if len(alike) < max(_FEWEST, _ALIKE * whole_rounds):
        return Rounds()
    # all of them make the same calls, but the first ones may make them in another order: so one in the middle
    middle = int(alike[len(alike) // 2])
    typical_calls = calls.iloc[last[middle - 1] + 1 : last[middle] + 1]
    typical_calls = typical_calls[typical_calls["kind"] != CALL["record"]]  # nothing waits for one
    texts = [trace.names.get(number, "") for number in typical_calls["name_id"].tolist()]
    names = tuple(dict.fromkeys(texts))
    if len(names) > _MOST_CALLS:
        return Rounds()
    end_of_round = calls["end_ns"].to_numpy()[last]
    begin = end_of_round[alike - 1]
    stop = end_of_round[alike]
    idle_ns = covered(begin, stop, end) - covered(begin, stop, start)  # per stretch
    return Rounds(
        count=len(alike),
        calls=names,
        ns=_lower_median(stop - begin),
        idle_ns=int(idle_ns.sum()),
    )


def _lower_median(values: np.ndarray) -> int:
    return int(np.sort(values)[(len(values) - 1) // 2])


def _calls_of_launcher(trace: Trace, process: int, low: int, high: int) -> pd.DataFrame:
    """Return the outermost calls, by start, of the thread of a process that launches most between two times (ns);
    none if no thread does: their columns kind, name_id and end_ns."""
    calls = trace.calls  # sorted by start
    chosen = (calls["process"] == process) & trace.outermost
    chosen &= (calls["end_ns"] > low) & (calls["start_ns"] < high)
    launching_threads = calls["thread"][chosen & calls["kind"].isin(_LAUNCHES)]
    columns = calls[["kind", "name_id", "end_ns"]]
    if launching_threads.empty:
        return columns[:0]
    return columns[chosen & (calls["thread"] == launching_threads.mode().iloc[0])]


def _last_calls(trace: Trace, calls: pd.DataFrame) -> np.ndarray:
    """Return the positions in `calls` at which a round ends: the last of several waits in a row, behind a launch."""
    kind, name = calls["kind"].to_numpy(), calls["name_id"].to_numpy()
    returns_early = [number for number, text in trace.names.items() if _IN_TIME.search(text)]
    waits = np.isin(kind, [CALL[sync] for sync in SYNC_CALLS])
    waits |= (kind == CALL["memcpy"]) & ~np.isin(name, returns_early)
    launched = np.cumsum(np.isin(kind, _LAUNCHES))
    last = np.flatnonzero(waits & ~np.append(waits[1:], False))
    return last[np.diff(launched[last], prepend=0) > 0]


def _rounds_alike(name: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return which rounds make the calls that most of them make: their numbers, without the first one, which may have
    begun before.

    name: per call, the number of its name
    last: per round, the position of its last call

    Rounds of {alloc, launch}, {launch}, {alloc, launch}, {launch, alloc}: 2 and 3
    """
    names = [frozenset[int]()]
    for before, until in pairwise(last.tolist()):
        names.append(frozenset(name[before + 1 : until + 1].tolist()))
    ((usual, _),) = Counter(names[1:]).most_common(1)
    return np.array([number for number, calls in enumerate(names) if number and calls == usual])


def in_words(rounds: Rounds, cut: Cut) -> tuple[Clause, ...]:
    """Return what is said of rounds behind how much idle time lies in them; from a cut on without their calls."""
    return (
        Clause(f" lie in {rounds.count:,} rounds of "),
        Clause(f"{listed(rounds.calls)}, ", {cut: ""}),
        Clause(f"some {span(rounds.ns)}"),
        Clause(" each", {cut: ""}),
    )


def evidence_of(rounds: Rounds) -> dict[str, int]:
    """Return the numbers of that."""
    return {
        "rounds": rounds.count,
        "round_ns": rounds.ns,
        "idle_in_rounds_ns": rounds.idle_ns,
    }


def in_one_round(rounds: Rounds) -> str:
    """Return what makes rounds faster, by what each of them does."""
    does = []
    if any(ALLOCATES.match(call) for call in rounds.calls):
        does.append("allocate once")
    copies = [call for call in rounds.calls if _COPY.match(call)]
    if any(not _BACK.search(call) for call in copies):
        does.append("copy all of it at once")
    if any(_BACK.search(call) for call in copies):
        does.append("read results back once for many of them, or decide on the GPU")
    if any(_WAIT.search(call) for call in rounds.calls):
        does.append("wait only where the CPU needs a result")
    return f"Do in one round what many do: {listed(does)}"


def listed(texts: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
