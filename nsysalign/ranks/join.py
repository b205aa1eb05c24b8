"""Traces on one clock.

Every trace counts nanoseconds from its own session start, and says when that was by the machine's clock.  Machines' clocks
differ by up to milliseconds; collectives tell by how much: see `collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsysalign.ranks.collectives import FEWEST, PAIRWISE, Fit, Group, Refusal, Trust, group, sequences
from nsysalign.ranks.results import Clock, RankSummary


class Joined(NamedTuple):
    clocks: tuple[Clock, ...]  # one per trace, in the order of `traces`
    groups: tuple[Group, ...]  # matching collectives
    refusals: tuple[Refusal, ...]


class Edge(NamedTuple):
    """Trace b's coarse clock is later than a's by the fit."""

    a: int
    b: int
    fit: Fit
    pairwise: bool  # from sends and receives: only used if nothing else joins the two


def join(ranks: Sequence[RankSummary]) -> Joined:
    """Clocks of all traces, in the order in which their first ranks come; the first trace with a session start is the
    reference."""
    names = list(dict.fromkeys(rank.source for rank in ranks))
    number = {name: n for n, name in enumerate(names)}
    traces = [number[rank.source] for rank in ranks]
    firsts = [ranks[traces.index(n)] for n in range(len(names))]
    hosts = [rank.host for rank in firsts]
    starts = [rank.info.session_start_utc_ns for rank in firsts]
    root = next((n for n, s in enumerate(starts) if s is not None), 0)
    # a difference of nanoseconds since 1970: small, and 0 if nothing is known
    coarse = [0 if s is None or starts[root] is None else s - starts[root] for s in starts]

    def trust(a: int, b: int) -> Trust:
        if a == b:
            return Trust.SAME_CLOCK
        if starts[a] is None or starts[b] is None:
            return Trust.NONE
        return Trust.SAME_HOST if hosts[a] is not None and hosts[a] == hosts[b] else Trust.REALTIME

    groups, refusals = group(list(sequences(ranks, traces, [coarse[t] for t in traces])), trust)
    reasons = {r.trace: r.reason for r in refusals}
    edges = [
        Edge(g.reference.trace, s.trace, f, g.reference.operation in PAIRWISE)
        for g in groups
        for s, f in g.members
        if s.trace != g.reference.trace
    ]
    clocks: dict[int, Clock] = {}
    order = [root, *(n for n in range(len(names)) if n != root)] if names else []
    for n in order:  # a trace that cannot be joined to the reference may still be joined to others
        if n in clocks:
            continue
        method = "none" if trust(root, n) is Trust.NONE else "reference" if n == root else "session start"
        reason = "" if n == root else reasons.get(n, "") or _why(ranks, traces, n, names[root])
        clocks[n] = Clock(names[n], method, coarse[n], root=names[n], reason=reason)
        _spread(clocks, edges, coarse, names)
    return Joined(tuple(clocks[n] for n in range(len(names))), tuple(groups), tuple(refusals))


def _why(ranks: Sequence[RankSummary], traces: Sequence[int], trace: int, root: str) -> str:
    """Why nothing joins a trace to the reference, if no match was rejected."""
    counts = [len(rank.collectives) for rank, t in zip(ranks, traces, strict=True) if t == trace]
    if not any(counts):
        return "it has no collectives"
    return f"it shares no collectives with {root}, or fewer than {FEWEST}"


def _spread(clocks: dict[int, Clock], edges: list[Edge], coarse: list[int], names: list[str]) -> None:
    """Starting from the known clocks, determine those that collectives connect to them, best edge first (Prim)."""
    while True:
        open_edges = [e for e in edges if (e.a in clocks) != (e.b in clocks)]
        if not open_edges:
            return
        a, b, fit, _ = min(open_edges, key=lambda e: (e.pairwise, e.fit.scatter_ns, -e.fit.count))
        known, new, sign = (a, b, -1) if a in clocks else (b, a, 1)
        base = clocks[known]
        # b is later than a by offset + drift * (t - origin): taken off b, or added to a
        correction = sign * fit.offset_ns + base.correction_ns
        correction += round(base.drift * (fit.origin_ns - coarse[known] - base.origin_ns))
        clocks[new] = Clock(
            names[new],
            "collectives",
            offset_ns=coarse[new] + correction,
            root=base.root,
            drift=sign * fit.drift + base.drift,
            origin_ns=fit.origin_ns + (fit.offset_ns if new == b else 0) - coarse[new],
            correction_ns=correction,
            error_ns=fit.scatter_ns + (base.error_ns or 0),
            bound_ns=max(fit.high_ns - fit.offset_ns, fit.offset_ns - fit.low_ns, 0) + (base.bound_ns or 0),
            collectives=fit.count,
        )


def common(clock: Clock, times: np.ndarray) -> np.ndarray:
    """Times of a trace (int64 array) on the common clock."""
    if not clock.drift:
        return times + clock.offset_ns
    return times + clock.offset_ns + np.rint(clock.drift * (times - clock.origin_ns)).astype(np.int64)
