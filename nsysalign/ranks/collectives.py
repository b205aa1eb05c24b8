"""Which NCCL kernels of different ranks are the same collective.

An all-reduce, all-gather or reduce-scatter cannot end anywhere before every rank has begun it, and ends
nearly together everywhere:

    rank 0   ......[=========================]        arrived early, waits
    rank 1   ...................[============]        arrived last: the wait of rank 0 ends here
                                ^ start 1 <= end 0 : holds for the true clocks, whatever they are

So two streams run the same collectives when, for one distance of their clocks (and a slow drift), all their
ends agree and no collective ends on one before it begins on the other.  Nothing else is assumed: the k-th
collective of one name is the k-th of the other, unless one trace began later, which the sizes and the clocks
tell.  Sends and receives (pipelines; all-to-all, which NCCL before 2.28 calls SendRecv) bind those who exchange
something: streams whose ends agree met, too, and the one that began early waited there.  Broadcast and reduce let the
sender go on and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from nsysalign.ranks.results import Clock, Communicator, Member, RankSummary

#: Collectives in which every rank needs something of every other.
TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
#: Those in which some do: believed where the ends agree, and for clocks only where nothing better joins two traces.
PAIRWISE = ("SendRecv",)
#: Fewer matched collectives prove nothing: two can agree by chance.
FEWEST = 3
#: Ends that agree worse than this (95 %) are not ends of the same collectives, or cannot improve a clock.
MOST_SCATTER_NS = 50_000
#: CUPTI corrects its clock now and then: GPU times of one machine are good to 3-5 us at worst.
CLOCK_SLACK_NS = 10_000
#: Share of collectives that may contradict (rows that the profiler damaged).
MOST_CONTRADICTIONS = 0.02
#: Clocks of one machine agree far better than this: realtime is read once per session, within tens of us.
SAME_HOST_NS = 1_000_000
#: Farther apart than this, on one machine, none but the straight pairing is believed.
CERTAIN_NS = 100_000
#: A pairing this many times worse than the best one is not considered.
MUCH_WORSE = 4
#: Traces that began at different times differ by at most this many collectives at their start.
MOST_LAG = 64
#: From here on a drift can be told from scatter.
FEWEST_FOR_DRIFT = 12
MOST_DRIFT = 1e-3


class Trust(Enum):
    """How well the coarse clocks of two streams agree before anything is fitted."""

    SAME_CLOCK = "one trace"
    SAME_HOST = "two traces of one machine"
    REALTIME = "two machines, or not known"
    NONE = "a trace that does not say when it began"


class Stream(NamedTuple):
    """The collectives of one name on one stream of one rank, times on a coarse common clock."""

    rank: int
    trace: int
    stream: int
    name: str
    operation: str
    rows: np.ndarray
    start: np.ndarray
    end: np.ndarray
    signature: np.ndarray


class Fit(NamedTuple):
    """How the clock of a stream stands against its reference's: later by offset + drift * (t - origin)."""

    lag: int
    offset_ns: int
    drift: float
    origin_ns: int  # on the reference's coarse clock
    scatter_ns: int
    low_ns: int  # the offset cannot be less ...
    high_ns: int  # ... or more
    count: int


class Group(NamedTuple):
    reference: Stream
    members: list[tuple[Stream, Fit]]


class Refusal(NamedTuple):
    rank: int
    trace: int
    reason: str


def sequences(
    ranks: Sequence[RankSummary], traces: Sequence[int], shifts: Sequence[int]
) -> Iterator[Stream]:
    """Streams of collectives, rank by rank.

    `traces`: number of every rank's trace, `shifts`: the correction to the coarse common clock.
    """
    for position, rank in enumerate(ranks):
        table = rank.collectives
        bound = table["operation"].isin([*TOGETHER, *PAIRWISE]).to_numpy()
        columns = {c: table[c].to_numpy() for c in ("start_ns", "end_ns", "signature")}
        groups = table[bound].groupby(["stream", "name"], sort=True).indices
        kept = np.flatnonzero(bound)
        for (stream, name), inside in groups.items():
            rows = kept[inside]
            yield Stream(
                position,
                traces[position],
                int(stream),
                str(name),
                str(table["operation"].iloc[rows[0]]),
                rows,
                columns["start_ns"][rows] + shifts[position],
                columns["end_ns"][rows] + shifts[position],
                columns["signature"][rows],
            )


def group(
    streams: Sequence[Stream], trust: Callable[[int, int], Trust]
) -> tuple[list[Group], list[Refusal]]:
    """Streams that run the same collectives.  A stream joins the group that it fits best, or begins one.

    `trust(trace, trace)`: how well the streams' coarse clocks are known to agree.
    """
    groups: list[Group] = []
    refused: dict[int, Refusal] = {}
    for stream in sorted(streams, key=lambda s: (s.name, s.rank, s.start[0])):
        best: tuple[Fit, Group] | None = None
        reason = ""
        for candidate in groups:
            first = candidate.reference
            taken = {first.rank, *(member.rank for member, _ in candidate.members)}
            if first.name != stream.name or stream.rank in taken:
                continue
            fitted = fit(first, stream, trust(first.trace, stream.trace))
            if isinstance(fitted, str):
                reason = reason or fitted
            elif best is None or fitted.scatter_ns < best[0].scatter_ns:
                best = fitted, candidate
        if best:
            best[1].members.append((stream, best[0]))
            refused.pop(stream.rank, None)
        else:
            groups.append(Group(stream, []))
            if reason and not any(stream.rank == m.rank for g in groups for m, _ in g.members):
                refused[stream.rank] = Refusal(stream.rank, stream.trace, reason)
    return [g for g in groups if g.members], list(refused.values())


def fit(first: Stream, other: Stream, trust: Trust) -> Fit | str:
    """How `other` fits onto `first`, or in words why it does not.

    The k-th collective is the k-th of the other where both streams are equally long.  Where one trace began later, the
    shift is the one with which the ends agree best; the clocks decide between equally good ones.
    """
    near = trust in (Trust.SAME_CLOCK, Trust.SAME_HOST)
    fits, reasons = [], []
    for lag in _lags(first.signature, other.signature):
        tried = _at(first, other, lag, trust is Trust.SAME_CLOCK)
        (reasons if isinstance(tried, str) else fits).append(tried)
    if not fits:
        return reasons[0] if reasons else "their sizes and order differ"
    least = min(fitted.scatter_ns for fitted in fits)
    fits = [fitted for fitted in fits if fitted.scatter_ns <= MUCH_WORSE * least + 1_000]
    fits.sort(key=lambda fitted: abs(fitted.offset_ns))
    apart = abs(fits[0].offset_ns)
    if near and apart > (SAME_HOST_NS if fits[0].lag == 0 else CERTAIN_NS):
        return f"they are of one machine and yet end {apart / 1e6:.1f} ms apart: not the same collectives"
    if len(fits) > 1 and not near:
        if trust is Trust.NONE:
            return "one trace began later, and without its session start it is not known how much later"
        if abs(fits[1].offset_ns) < MUCH_WORSE * apart:
            return f"one trace began later, and {len(fits)} ways to pair their collectives are equally good"
    return fits[0]


def _lags(first: np.ndarray, other: np.ndarray) -> Iterator[int]:
    """Shifts k with other[i + k] of the size of first[i] wherever both exist, over at least half of the shorter
    one.  Equally long streams are tried without a shift, whatever the sizes say: their times decide."""
    n, m = len(first), len(other)
    least = max(FEWEST, (min(n, m) + 1) // 2)
    if n == m:
        if n >= least:
            yield 0
        return
    ends = {m - n}  # both end together
    for lag in sorted({*range(-MOST_LAG, MOST_LAG + 1), *ends}, key=abs):
        begin, end = max(0, -lag), min(n, m - lag)
        if end - begin >= least and np.array_equal(
            first[begin:end], other[begin + lag : end + lag]
        ):
            yield lag


def _at(first: Stream, other: Stream, lag: int, same_clock: bool) -> Fit | str:
    begin, end = max(0, -lag), min(len(first.rows), len(other.rows) - lag)
    mine, theirs = slice(begin, end), slice(begin + lag, end + lag)
    start_a, end_a = first.start[mine], first.end[mine]
    start_b, end_b = other.start[theirs], other.end[theirs]
    distance, origin = end_b - end_a, int(end_a[0])
    if same_clock:
        offset, drift, drifted = 0, 0.0, np.zeros(len(distance), dtype=np.int64)
    else:
        offset, drift = _line(end_a - origin, distance)
        drifted = np.rint(drift * (end_a - origin)).astype(np.int64)
    scatter = int(np.percentile(np.abs(distance - drifted - offset), 95))
    low = start_b - drifted - end_a
    high = end_b - drifted - start_a
    against = (offset < low - CLOCK_SLACK_NS) | (offset > high + CLOCK_SLACK_NS)
    count = end - begin
    if against.sum() > MOST_CONTRADICTIONS * count:
        return (
            f"{int(against.sum())} of {count} collectives would end on one rank before they began on the other: "
            "not the same collectives"
        )
    if scatter > MOST_SCATTER_NS:
        return f"their ends scatter by {scatter / 1e3:.0f} us (95 %), {MOST_SCATTER_NS / 1e3:.0f} us at most were expected"
    sound = ~against
    return Fit(
        lag, offset, drift, origin, scatter, int(low[sound].max()), int(high[sound].min()), count
    )


def _line(x: np.ndarray, y: np.ndarray) -> tuple[int, float]:
    """(offset, drift) of y over x, resistant to outliers: the median; with a slope through the medians of the outer
    thirds (Tukey's resistant line) where that halves the scatter.  Machines' clocks drift by some 10 us a second.
    """
    flat = int(np.median(y))
    third = len(x) // 3
    if len(x) < FEWEST_FOR_DRIFT or np.median(x[-third:]) <= np.median(x[:third]):
        return flat, 0.0
    run = float(np.median(x[-third:]) - np.median(x[:third]))
    slope = float(np.median(y[-third:] - flat) - np.median(y[:third] - flat)) / run
    if abs(slope) > MOST_DRIFT:
        return flat, 0.0
    rest = (y - flat) - slope * x
    shift = float(np.median(rest))
    if np.percentile(np.abs(rest - shift), 95) < 0.5 * np.percentile(np.abs(y - flat), 95):
        return flat + round(shift), slope
    return flat, 0.0


def communicators(groups: Sequence[Group]) -> tuple[Communicator, ...]:
    """The groups as they are reported."""
    found = []
    for first, members in groups:
        begin, end = span(first, members)
        found.append(
            Communicator(
                first.name,
                first.operation,
                (
                    Member(first.rank, first.stream, first.rows, 0),
                    *(Member(s.rank, s.stream, s.rows, f.lag) for s, f in members),
                ),
                max(0, end - begin),
                max(f.scatter_ns for _, f in members),
            )
        )
    return tuple(found)


def span(first: Stream, members: Sequence[tuple[Stream, Fit]]) -> tuple[int, int]:
    """The reference's collectives [begin, end) that every member took part in."""
    begin = max([0, *(-fit.lag for _, fit in members)])
    end = min([len(first.rows), *(len(s.rows) - fit.lag for s, fit in members)])
    return begin, max(begin, end)


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
    reference.

    Every trace counts nanoseconds from its own session start, and says when that was by the machine's clock.  Machines'
    clocks differ by up to milliseconds; collectives tell by how much.
    """
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
        method = (
            "none"
            if trust(root, n) is Trust.NONE
            else "reference"
            if n == root
            else "session start"
        )
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


def _spread(
    clocks: dict[int, Clock], edges: list[Edge], coarse: list[int], names: list[str]
) -> None:
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
            bound_ns=max(fit.high_ns - fit.offset_ns, fit.offset_ns - fit.low_ns, 0)
            + (base.bound_ns or 0),
            collectives=fit.count,
        )


def common(clock: Clock, times: np.ndarray) -> np.ndarray:
    """Times of a trace (int64 array) on the common clock."""
    if not clock.drift:
        return times + clock.offset_ns
    return (
        times + clock.offset_ns + np.rint(clock.drift * (times - clock.origin_ns)).astype(np.int64)
    )
