"""What every rank would have measured without nsys, from all of them together.

    rank 0   under nsys   [ host        ][#######====]      waits ####### for rank 1
    rank 1                [ host               ][====]
    rank 0   without      [ host   ][#####====]             what it measures is decided by how much sooner rank 1 arrives
    rank 1                [ host         ][====]

Every rank's replay says when it arrives if the others let it go on (attribute.coupled); here a collective ends when the last of
them has arrived, plus what it took from there.  The k-th repetition of a label on one rank is replayed with the k-th on the others;
where a rank that it meets was not replayed as well, there is a reason instead of a number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsysalign.model import CAUSES, OPERATION_KINDS, UNBOUNDED_NS
from nsysalign.parts import apportion, scale_budget
from nsysalign.ranks.collectives import common
from nsysalign.ranks.results import Predicted

if TYPE_CHECKING:
    from nsysalign.model import Arrivals, Coupling
    from nsysalign.ranks.compare import Meeting
    from nsysalign.ranks.results import Clock, RankSummary

#: Shares by which a prediction may be off besides what the replays are varied by.  Of the hosts' part it is more than for one rank
#: (attribute.overhead): ranks on one host do not slow down alike under nsys (docs/ranks.md).
HOST_ERROR, WORK_ERROR = 0.28, 0.03
#: Two ticks of the event clock.
_TICKS_NS = 64
#: What NCCL's own calls cost under nsys is known less well than that of others: per collective (scripts/score_ranks.py).
COLLECTIVE_ERROR_NS = 10_000
#: NCCL's kernels that no other rank is known to share may take this share of an interval; in more of it others may have mattered.
MOST_UNMATCHED = 0.05
#: Ranks may be replayed from times that lie apart by this share of the interval: before, they are taken to run as they did.
MOST_APART = 0.5

Node = tuple[int, int]  # number of a meeting, and of a collective in it


class _One(NamedTuple):
    """A repetition on one rank.  Per collective: what it is in the meetings, how long before its last rank this one arrived (ns),
    and whether it began inside the interval."""

    rank: int
    coupling: Coupling
    begin_ns: int  # on the common clock: from here on it was replayed
    nodes: list[Node | None]
    late: np.ndarray
    inside: np.ndarray

    @property
    def elapsed_ns(self) -> int:
        return self.coupling.end_ns - self.coupling.start_ns

    @property
    def busy(self) -> float:
        """Share of the interval in which the GPU works, waits inside collectives not counted."""
        working = sum(int(self.coupling.parts_ns[CAUSES.index(c)]) for c in OPERATION_KINDS)
        ns = max(working - int(self.late[self.inside].sum()), 0)
        return min(ns / max(self.elapsed_ns, 1), 1.0)


class _Found(NamedTuple):
    """The prediction for one repetition on one rank, ns, and its budget in the order of CAUSES."""

    predicted_ns: int
    lower_ns: int
    upper_ns: int
    budget: np.ndarray


class _Changed(NamedTuple):
    """What becomes of a repetition on one rank, ns: by how much it is shorter, and its waits in collectives longer."""

    shorter: int
    waits: int


def predict(
    ranks: Sequence[RankSummary],
    numbers: Sequence[int],
    meetings: Sequence[Meeting],
    clocks: Mapping[str, Clock],
) -> dict[tuple[int, str], Predicted]:
    """(position of the rank, label) -> its prediction.  `numbers`: what ranks are called."""
    repetitions: dict[tuple[str, int], list[_One]] = {}
    for n, rank in enumerate(ranks):
        known = _nodes(n, meetings)
        begins = common(
            clocks[rank.source], np.array([c.begin_ns for c in rank.couplings], dtype=np.int64)
        )
        for coupling, begin in zip(rank.couplings, begins.tolist(), strict=True):
            one = _one(n, rank, coupling, begin, known)
            repetitions.setdefault((coupling.label, coupling.repetition), []).append(one)
    solved: dict[tuple[int, str], list[tuple[int, _Found]]] = {}
    reasons: dict[tuple[int, str], list[str]] = {}
    for (label, _), members in repetitions.items():
        good, why = _replayed(members, ranks, numbers, meetings)
        for one, found in zip(good, _solved(good, meetings), strict=True):
            solved.setdefault((one.rank, label), []).append((one.elapsed_ns, found))
        for n, reason in why.items():
            reasons.setdefault((n, label), []).append(reason)
    out = {}
    for n, rank in enumerate(ranks):
        for times in rank.labels:
            key = n, times.label
            said = reasons.get(key, ["it was not replayed"])
            out[key] = (
                _of_label(times.median_ns, solved[key])
                if key in solved
                else Predicted(reason=max(said, key=said.count))
            )
    return out


def _of_label(median_ns: float, solved: Sequence[tuple[int, _Found]]) -> Predicted:
    """The label's prediction: what its replayed repetitions lose in the median, taken off the median of all.  Its budget is that of
    those repetitions, in proportion."""
    lost = np.median([[elapsed - ns for ns in found[:3]] for elapsed, found in solved], axis=0)
    middle, lower, upper = (max(round(median_ns - ns), 0) for ns in lost.tolist())
    budget = apportion(middle, np.sum([found.budget for _, found in solved], axis=0))
    parts = {cause: int(ns) for cause, ns in zip(CAUSES, budget, strict=True) if ns}
    return Predicted(middle, lower, upper, len(solved), "", parts)


def _nodes(rank: int, meetings: Sequence[Meeting]) -> dict[int, tuple[Node, int]]:
    """Position in the rank's collectives -> what it is in the meetings, and how long before the last rank this one arrived, ns."""
    return {
        row: ((m, k), late)
        for m, meeting in enumerate(meetings)
        for place, member in enumerate(meeting.ranks)
        if member == rank
        for k, (row, late) in enumerate(
            zip(meeting.rows[place].tolist(), meeting.early[place].tolist(), strict=True)
        )
    }


def _one(
    n: int,
    rank: RankSummary,
    coupling: Coupling,
    begin: int,
    known: Mapping[int, tuple[Node, int]],
) -> _One:
    rows = coupling.rows.tolist()
    nodes = [known[row][0] if row in known else None for row in rows]
    late = np.array([known[row][1] if row in known else 0 for row in rows], dtype=np.int64)
    begun = rank.collectives["start_ns"].to_numpy()[coupling.rows]
    return _One(
        n, coupling, begin, nodes, late, (begun >= coupling.start_ns) & (begun < coupling.end_ns)
    )


def _replayed(
    members: Sequence[_One],
    ranks: Sequence[RankSummary],
    numbers: Sequence[int],
    meetings: Sequence[Meeting],
) -> tuple[list[_One], dict[int, str]]:
    """The ranks of a repetition that can be predicted together, and why the others cannot: because of themselves, or because of a
    rank that they meet."""
    why = {}
    for one in members:
        reason = one.coupling.reason or _unmatched(one, ranks[one.rank])
        if reason:
            why[one.rank] = reason
    good = [one for one in members if one.rank not in why]
    while True:
        there = {one.rank: {*one.nodes} for one in good}
        begins = {one.rank: one.begin_ns for one in good}
        shared = Counter(node for one in good for node in one.nodes)
        before = len(good)
        for one in good:
            met = {
                n
                for n, i in zip(one.nodes, one.inside.tolist(), strict=True)
                if i and n is not None
            }
            lacking = next((n for n in sorted(met) if shared[n] < len(meetings[n[0]].ranks)), None)
            others = {rank for m in {m for m, _ in met} for rank in meetings[m].ranks} & {*begins}
            if lacking is not None:
                absent = next(
                    r for r in meetings[lacking[0]].ranks if lacking not in there.get(r, ())
                )
                reason = why.get(absent, "it was not replayed there")
                if not reason.startswith("rank "):
                    reason = f"rank {numbers[absent]}, which it meets: {reason}"
                why[one.rank] = reason
            elif any(abs(begins[o] - one.begin_ns) > MOST_APART * one.elapsed_ns for o in others):
                why[one.rank] = (
                    "the ranks it meets had not waited for anything at about the same time before it"
                )
        good = [one for one in good if one.rank not in why]
        if len(good) == before:
            return good, why


def _unmatched(one: _One, rank: RankSummary) -> str:
    """Why the other ranks of its collectives are not known, '' if they are."""
    table, c = rank.collectives, one.coupling
    start, end = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
    matched = np.zeros(len(table), dtype=bool)
    matched[
        [row for row, node in zip(c.rows.tolist(), one.nodes, strict=True) if node is not None]
    ] = True
    left = (start < c.end_ns) & (end > c.start_ns) & ~matched
    ns = (np.minimum(end, c.end_ns) - np.maximum(start, c.start_ns))[left].sum()
    if ns > MOST_UNMATCHED * one.elapsed_ns:
        return "it waits in NCCL's kernels for ranks that are not known"
    return ""


def _solved(good: Sequence[_One], meetings: Sequence[Meeting]) -> list[_Found]:
    """The predictions of ranks that can be predicted together, in their order."""
    variants = [
        _changed(good, meetings, v)
        for v in range(max((len(o.coupling.arrivals) for o in good), default=0))
    ]
    met = [one for one in good if one.inside.any()]
    out = []
    for at, one in enumerate(good):
        c = one.coupling
        if not c.arrivals:
            out.append(_Found(*c.alone_ns, scale_budget(c.parts_ns, c.alone_ns[0])))
            continue
        middle, *others = (max(one.elapsed_ns - changed[at].shorter, 0) for changed in variants)
        # the rank that waits least decides how long it takes, and is as uncertain as its host is
        decides = min(met, key=lambda o: int(o.late[o.inside].sum())) if one.inside.any() else one
        work = middle * decides.busy
        clocks = max([0, *(meetings[node[0]].error_ns for node in one.nodes if node is not None)])
        bar = _TICKS_NS + round(
            math.hypot(
                *(other - middle for other in others),
                HOST_ERROR * (middle - work),
                WORK_ERROR * work,
                COLLECTIVE_ERROR_NS * int(one.inside.sum()),
                clocks,
            )
        )
        parts = c.parts_ns.copy()
        parts[CAUSES.index(c.meets)] += max(
            variants[0][at].waits, -int(parts[CAUSES.index(c.meets)])
        )
        out.append(_Found(middle, max(middle - bar, 0), middle + bar, scale_budget(parts, middle)))
    return out


def _changed(good: Sequence[_One], meetings: Sequence[Meeting], variant: int) -> list[_Changed]:
    """What becomes of every rank's interval with one of the variants of their arrivals."""
    number: dict[tuple[int, ...], int] = {}
    places = []
    for one in good:
        # a collective that no other rank is known to share takes as long as it did
        keys = [
            node if node is not None else (one.rank, row, -1)
            for node, row in zip(one.nodes, one.coupling.rows.tolist(), strict=True)
        ]
        places.append(
            np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
        )
    present = np.bincount(np.concatenate([*places, np.empty(0, np.int64)]), minlength=len(number))
    expected = np.array([len(meetings[key[0]].ranks) if len(key) == 2 else 1 for key in number])
    # of one before the interval, whose other ranks may not have been replayed, this rank is taken to be the last
    late = [
        np.where(present[place] < expected[place], 0, one.late)
        for one, place in zip(good, places, strict=True)
    ]
    ends = np.full(len(number), UNBOUNDED_NS)
    while True:
        rows = [
            _least(one.coupling.arrivals[variant], ends[place])
            if len(place)
            else np.zeros(2, np.int64)
            for one, place in zip(good, places, strict=True)
        ]
        new = np.full(len(number), UNBOUNDED_NS)
        for place, row, more in zip(places, rows, late, strict=True):
            np.minimum.at(new, place, row[:-2] + more)
        if (new == ends).all():
            break
        ends = new
    return [
        _Changed(int(row[-1] - row[-2]), int((row[:-2] - ends[place])[one.inside].sum()))
        for one, place, row in zip(good, places, rows, strict=True)
    ]


def _least(arrivals: Arrivals, ends: np.ndarray) -> np.ndarray:
    """The rows of minima for these shifts of the ends of the rank's collectives."""
    out = arrivals.own.copy()
    np.minimum.at(out, arrivals.at, ends[arrivals.behind] + arrivals.slack)
    return out
