"""Which NCCL kernels of different ranks are the same collective, and what that says about the
clocks.

An all-reduce, all-gather or reduce-scatter cannot end anywhere before every rank has begun it, and
ends nearly together everywhere:

    rank 0   ......[=========================]        arrived early, waits
    rank 1   ...................[============]        arrived last: the wait of rank 0 ends here
                                ^ start 1 <= end 0 : holds for the true clocks, whatever they are

So two streams run the same collectives when, for one distance of their clocks (and a slow drift),
all their ends agree and no collective ends on one before it begins on the other.  Nothing else is
assumed: the k-th collective of one name is the k-th of the other; where one trace has fewer, it
lacks the first or the last ones, which the sizes and the clocks tell.  Sends and receives
(pipelines; all-to-all, which NCCL before 2.28 calls SendRecv) bind those who exchange something:
streams whose ends agree met, too, and the one that began early waited there.  Broadcast and reduce
let the sender go on and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from nsysalign.addons.ranks.results import Clock, RankSummary

#: Collectives in which every rank needs something of every other.
TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
#: Those in which some do: believed where the ends agree, and for clocks only where nothing better
#: joins two traces.
PAIRWISE = ("SendRecv",)
#: Fewer matched collectives prove nothing: two can agree by chance.
FEWEST = 3
#: Ends that agree worse than this (95 %) are not ends of the same collectives, or cannot improve a
#: clock.
MOST_SCATTER_NS = 50_000
#: CUPTI corrects its clock now and then: GPU times of one machine are good to 3-5 us at worst.
CLOCK_SLACK_NS = 10_000
#: Share of collectives that may contradict (rows that the profiler damaged).
MOST_CONTRADICTIONS = 0.02
#: Clocks of one machine agree far better than this: realtime is read once per session, within tens
#: of us.
SAME_HOST_NS = 1_000_000
#: Farther apart than this, on one machine, none but the straight pairing is believed.
CERTAIN_NS = 100_000
#: A pairing this many times worse than the best one is not considered.
MUCH_WORSE = 4
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

    rank: int  # position among the summaries
    trace: int
    stream: int
    name: str
    operation: str
    rows: np.ndarray  # positions in the rank's collectives
    start: np.ndarray
    end: np.ndarray
    signature: np.ndarray


class Fit(NamedTuple):
    """How the clock of a stream stands against its reference's: later by offset + drift * (t -
    origin)."""

    lag: int  # collective i of the reference is i + lag here
    offset_ns: int
    drift: float
    origin_ns: int  # on the reference's coarse clock
    scatter_ns: int
    count: int


class Group(NamedTuple):
    """A communicator: streams of several ranks that ran the same collectives."""

    reference: Stream
    members: list[tuple[Stream, Fit]]

    def shared(self) -> tuple[list[Stream], list[np.ndarray]]:
        """All streams, and for each the rows of the collectives that every one took part in, in
        order."""
        begin = max([0, *(-fit.lag for _, fit in self.members)])
        ends = [len(stream.rows) - fit.lag for stream, fit in self.members]
        end = max(begin, min([len(self.reference.rows), *ends]))
        streams = [self.reference, *(stream for stream, _ in self.members)]
        lags = [0, *(fit.lag for _, fit in self.members)]
        rows = [s.rows[begin + lag : end + lag] for s, lag in zip(streams, lags, strict=True)]
        return streams, rows


class Joined(NamedTuple):
    clocks: tuple[Clock, ...]  # one per trace, in the order in which their first ranks come
    groups: tuple[Group, ...]


def join(ranks: Sequence[RankSummary]) -> Joined:
    """Clocks of all traces, and what joins them; the first trace with a session start is the
    reference.

    Every trace counts nanoseconds from its own session start, and says when that was by the
    machine's clock.  Machines' clocks differ by up to milliseconds; collectives tell by how much.
    """
    names = list(dict.fromkeys(rank.source for rank in ranks))
    traces = [names.index(rank.source) for rank in ranks]
    firsts = [ranks[traces.index(n)] for n in range(len(names))]
    starts = [rank.info.session_start_utc_ns for rank in firsts]
    root = next((n for n, s in enumerate(starts) if s is not None), 0)
    # a difference of nanoseconds since 1970: small, and 0 if nothing is known
    coarse = [0 if s is None or starts[root] is None else s - starts[root] for s in starts]

    def trust(a: int, b: int) -> Trust:
        if a == b:
            return Trust.SAME_CLOCK
        if starts[a] is None or starts[b] is None:
            return Trust.NONE
        same = firsts[a].host is not None and firsts[a].host == firsts[b].host
        return Trust.SAME_HOST if same else Trust.REALTIME

    groups, refusals = group(list(streams_of(ranks, traces, coarse)), trust)
    clocks: dict[int, Clock] = {}
    for n in dict.fromkeys([root, *range(len(names))]) if names else ():
        if n in clocks:  # collectives join it to an earlier one
            continue
        reason = ""
        if n != root:
            own = any(len(r.collectives) for r, t in zip(ranks, traces, strict=True) if t == n)
            shares = f"it shares no collectives with {names[root]}, or fewer than {FEWEST}"
            reason = refusals.get(n) or (shares if own else "it has no collectives")
        method = "reference" if n == root else "session start"
        method = "none" if trust(root, n) is Trust.NONE else method
        clocks[n] = Clock(names[n], method, coarse[n], root=names[n], reason=reason)
        _join_others(clocks, groups, coarse, names)
    return Joined(tuple(clocks[n] for n in range(len(names))), tuple(groups))


def streams_of(
    ranks: Sequence[RankSummary], traces: Sequence[int], coarse: Sequence[int]
) -> Iterator[Stream]:
    """Streams of collectives, rank by rank; `coarse`: what is added to the times of each trace."""
    for position, (rank, trace) in enumerate(zip(ranks, traces, strict=True)):
        table = rank.collectives
        bound = np.flatnonzero(table["operation"].isin([*TOGETHER, *PAIRWISE]))
        for (stream, name), inside in (
            table.iloc[bound].groupby(["stream", "name"], sort=True).indices.items()
        ):
            rows = bound[inside]
            start, end, signature = (
                table[c].to_numpy()[rows] for c in ("start_ns", "end_ns", "signature")
            )
            operation = str(table["operation"].iloc[rows[0]])
            yield Stream(
                position, trace, int(stream), str(name), operation, rows,
                start + coarse[trace], end + coarse[trace], signature,
            )  # fmt: skip


def group(
    streams: Sequence[Stream], trust: Callable[[int, int], Trust]
) -> tuple[list[Group], dict[int, str]]:
    """Streams that run the same collectives, and why traces could not join any: each joins the
    group that it fits best, or begins one.  `trust(trace, trace)`: how well their coarse clocks are
    known to agree."""
    groups: list[Group] = []
    refused: dict[int, str] = {}
    joined: set[int] = set()
    for stream in sorted(streams, key=lambda s: (s.name, s.rank, s.start[0])):
        best: tuple[Fit, Group] | None = None
        for candidate in groups:
            first = candidate.reference
            taken = {first.rank, *(member.rank for member, _ in candidate.members)}
            if first.name != stream.name or stream.rank in taken:
                continue
            fitted = fit(first, stream, trust(first.trace, stream.trace))
            if isinstance(fitted, str):
                refused.setdefault(stream.trace, fitted)
            elif best is None or fitted.scatter_ns < best[0].scatter_ns:
                best = fitted, candidate
        if best:
            best[1].members.append((stream, best[0]))
            joined.add(stream.trace)
        else:
            groups.append(Group(stream, []))
    return [g for g in groups if g.members], {t: r for t, r in refused.items() if t not in joined}


def fit(first: Stream, other: Stream, trust: Trust) -> Fit | str:
    """How `other` fits onto `first`, or in words why it does not.

    Streams that are equally long are paired straight, whatever the sizes say: their times decide.
    Else the shorter one lacks the first or the last collectives; the ends, then the clocks, decide
    between the two.
    """
    n, m = len(first.rows), len(other.rows)
    fits, reasons = [], []
    for lag in dict.fromkeys((0, m - n)):
        begin, end = max(0, -lag), min(n, m - lag)
        sizes = first.signature[begin:end], other.signature[begin + lag : end + lag]
        few = end - begin < max(FEWEST, (min(n, m) + 1) // 2)
        if few or (n != m and not np.array_equal(*sizes)):
            continue
        tried = _paired(first, other, lag, trust is Trust.SAME_CLOCK)
        (reasons if isinstance(tried, str) else fits).append(tried)
    if not fits:
        return reasons[0] if reasons else "their sizes and order differ"
    least = min(fitted.scatter_ns for fitted in fits)
    fits = [fitted for fitted in fits if fitted.scatter_ns <= MUCH_WORSE * least + 1_000]
    fits.sort(key=lambda fitted: abs(fitted.offset_ns))
    apart = abs(fits[0].offset_ns)
    if trust in (Trust.SAME_CLOCK, Trust.SAME_HOST):
        if apart > (SAME_HOST_NS if fits[0].lag == 0 else CERTAIN_NS):
            return (
                f"they are of one machine and yet end {apart / 1e6:.1f} ms apart: not the same "
                "collectives"
            )
    elif len(fits) > 1:
        if trust is Trust.NONE:
            return (
                "one trace began later, and without its session start it is not known how much "
                "later"
            )
        if abs(fits[1].offset_ns) < MUCH_WORSE * apart:
            return (
                "one trace began later or ended earlier, and both ways to pair their collectives "
                "are equally good"
            )
    return fits[0]


def _paired(first: Stream, other: Stream, lag: int, same_clock: bool) -> Fit | str:
    """The clocks' distance for one pairing, or why it cannot be the true one."""
    begin, end = max(0, -lag), min(len(first.rows), len(other.rows) - lag)
    ours, theirs = slice(begin, end), slice(begin + lag, end + lag)
    start_a, end_a = first.start[ours], first.end[ours]
    start_b, end_b = other.start[theirs], other.end[theirs]
    distance, origin = end_b - end_a, int(end_a[0])
    offset, drift = (0, 0.0) if same_clock else _line(end_a - origin, distance)
    drifted = np.rint(drift * (end_a - origin)).astype(np.int64)
    scatter = int(np.percentile(np.abs(distance - drifted - offset), 95))
    against = offset < start_b - drifted - end_a - CLOCK_SLACK_NS
    against |= offset > end_b - drifted - start_a + CLOCK_SLACK_NS
    count = end - begin
    if against.sum() > MOST_CONTRADICTIONS * count:
        return (
            f"{int(against.sum())} of {count} collectives would end on one rank before they began "
            "on the other: not the same collectives"
        )
    if scatter > MOST_SCATTER_NS:
        return (
            f"their ends scatter by {scatter / 1e3:.0f} us (95 %), {MOST_SCATTER_NS / 1e3:.0f} us "
            "at most were expected"
        )
    return Fit(lag, offset, drift, origin, scatter, count)


def _line(x: np.ndarray, y: np.ndarray) -> tuple[int, float]:
    """(offset, drift) of y over x, resistant to outliers: the median; with a slope through the
    medians of the outer thirds (Tukey's resistant line) where that halves the scatter.  Machines'
    clocks drift by some 10 us a second.
    """
    flat = int(np.median(y))
    third = len(x) // 3
    run = float(np.median(x[-third:]) - np.median(x[:third])) if third else 0.0
    if len(x) < FEWEST_FOR_DRIFT or run <= 0:
        return flat, 0.0
    slope = float(np.median(y[-third:] - flat) - np.median(y[:third] - flat)) / run
    rest = (y - flat) - slope * x
    shift = float(np.median(rest))
    scatter = [np.percentile(np.abs(left), 95) for left in (rest - shift, y - flat)]
    if abs(slope) <= MOST_DRIFT and scatter[0] < 0.5 * scatter[1]:
        return flat + round(shift), slope
    return flat, 0.0


def _join_others(
    clocks: dict[int, Clock], groups: Sequence[Group], coarse: Sequence[int], names: Sequence[str]
) -> None:
    """Starting from the known clocks, determine those that collectives connect to them, best fit
    first (Prim)."""
    edges = [(g.reference, s, f) for g in groups for s, f in g.members]
    while True:
        leading = [e for e in edges if (e[0].trace in clocks) != (e[1].trace in clocks)]
        if not leading:
            return
        first, other, fitted = min(
            leading, key=lambda e: (e[0].operation in PAIRWISE, e[2].scatter_ns, -e[2].count)
        )
        # `other` is later than `first` by offset + drift * (t - origin): taken off it, or added to
        # the first
        ahead = first.trace in clocks
        known, new = (first, other) if ahead else (other, first)
        base, sign = clocks[known.trace], -1 if ahead else 1
        correction = sign * fitted.offset_ns + base.correction_ns
        correction += round(base.drift * (fitted.origin_ns - coarse[known.trace] - base.origin_ns))
        origin = fitted.origin_ns + (fitted.offset_ns if ahead else 0) - coarse[new.trace]
        clocks[new.trace] = Clock(
            names[new.trace],
            "collectives",
            offset_ns=coarse[new.trace] + correction,
            root=base.root,
            drift=sign * fitted.drift + base.drift,
            origin_ns=origin,
            correction_ns=correction,
            error_ns=fitted.scatter_ns + (base.error_ns or 0),
            collectives=fitted.count,
        )


def common(clock: Clock, times: np.ndarray) -> np.ndarray:
    """Times of a trace (int64 array) on the common clock."""
    drifted = np.rint(clock.drift * (times - clock.origin_ns)).astype(np.int64)
    return times + clock.offset_ns + drifted
