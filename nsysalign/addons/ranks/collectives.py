"""Which NCCL kernels of different ranks are the same collective, and what that says about the
clocks.

An all-reduce, all-gather or reduce-scatter cannot end anywhere before every rank has begun it, and
ends nearly together everywhere:

    rank 0   ......[=========================]        arrived early, waits
    rank 1   ...................[============]        arrived last: the wait of rank 0 ends here
                                ^ start 1 <= end 0 : holds for the true clocks, whatever they are

So two streams with equally many collectives of one name run the same ones when, for one distance of
their clocks (and a slow drift), all their ends agree and no collective ends on one before it begins
on the other.  Broadcast and reduce let the sender go on and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsysalign.addons.ranks.records import Clock, RankSummary

#: In which a rank needs something of others (NCCL before 2.28 calls all-to-all SendRecv).
TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "SendRecv")
#: Fewer matched collectives prove nothing: two can agree by chance.
FEWEST = 3
#: Ends that agree worse than this (95 %) are not ends of the same collectives.
MOST_SCATTER_NS = 50_000
#: CUPTI corrects its clock now and then: GPU times of one machine are good to 3-5 us at worst.
CLOCK_SLACK_NS = 10_000
#: Share of collectives that may contradict (rows that the profiler damaged).
MOST_CONTRADICTIONS = 0.02
#: Clocks of one machine agree far better than this: realtime is read once per session, within tens
#: of us.
SAME_HOST_NS = 1_000_000
#: From here on a drift (machines' clocks: some 10 us a second) can be told from scatter.
FEWEST_FOR_DRIFT, MOST_DRIFT = 12, 1e-3


class Stream(NamedTuple):
    """The collectives of one name on one stream of one rank."""

    rank: int  # position among the summaries
    source: str
    host: str | None
    name: str
    rows: np.ndarray  # positions in the rank's collectives
    start: np.ndarray  # on the common clock, as far as that is known
    end: np.ndarray
    correction_ns: int = 0  # of its clock
    error_ns: int = 0


class Fit(NamedTuple):
    """A clock is ahead of the common one by offset + drift * (t - origin)."""

    first: Stream  # on the common clock
    origin_ns: int
    offset_ns: int
    drift: float = 0.0
    scatter_ns: int = 0

    def corrected(self, stream: Stream) -> Stream:
        start, end = (
            times - self.offset_ns - np.rint(self.drift * (times - self.origin_ns)).astype(np.int64)
            for times in (stream.start, stream.end)
        )
        return stream._replace(
            start=start, end=end, correction_ns=-self.offset_ns, error_ns=self.error_ns
        )

    @property
    def error_ns(self) -> int:
        return self.first.error_ns + self.scatter_ns


def join(ranks: Sequence[RankSummary]) -> tuple[tuple[Clock, ...], list[list[Stream]]]:
    """Clocks of the traces, in the order in which their first ranks come; and the communicators:
    streams of several ranks that ran the same collectives.

    Every trace counts nanoseconds from its own session start, and says when that was by the
    machine's clock.  Machines' clocks differ by up to milliseconds; collectives tell by how much.
    The reference is the first trace with a session start.  A trace that fits no known one keeps its
    session start, and others may fit it.
    """
    starts = {rank.source: rank.session_start_ns for rank in ranks}
    reference = min(starts, key=lambda name: starts[name] is None, default="")
    # differences of nanoseconds since 1970: small, and 0 if nothing is known
    coarse = {n: 0 if start is None else start - starts[reference] for n, start in starts.items()}
    streams = {name: _streams(ranks, name, coarse[name]) for name in starts}
    clocks: dict[str, Clock] = {}
    groups: list[list[Stream]] = []
    waiting = sorted(starts, key=lambda name: name != reference)
    while waiting:
        for name in [*waiting, waiting[0]]:  # if none fits, the first one, and why it does not
            fit = _best(streams[name], [group[0] for group in groups])
            if isinstance(fit, Fit):
                break
        waiting.remove(name)
        if isinstance(fit, Fit):
            clocks[name] = Clock(
                name, "collectives", coarse[name] - fit.offset_ns, -fit.drift,
                fit.origin_ns - coarse[name], -fit.offset_ns, fit.error_ns, len(fit.first.rows),
            )  # fmt: skip
            streams[name] = [*map(fit.corrected, streams[name])]
        elif name == reference:
            clocks[name] = Clock(name, "reference")
        else:
            method = "none" if starts[name] is None else "session start"
            clocks[name] = Clock(name, method, coarse[name], reason=fit)
        for stream in streams[name]:
            _add(stream, groups)
    return tuple(map(clocks.__getitem__, starts)), [group for group in groups if len(group) > 1]


def _streams(ranks: Sequence[RankSummary], source: str, coarse: int) -> list[Stream]:
    """The streams of collectives of a trace; `coarse` is added to its times."""
    streams = []
    for position, rank in enumerate(ranks):
        if rank.source != source:
            continue
        bound = np.flatnonzero(rank.collectives["operation"].isin(TOGETHER))
        together = rank.collectives.iloc[bound]
        host = rank.host if rank.session_start_ns is not None else None
        for (_, name), inside in together.groupby(["stream", "name"]).indices.items():
            start, end = (together[c].to_numpy()[inside] + coarse for c in ("start_ns", "end_ns"))
            streams.append(Stream(position, source, host, str(name), bound[inside], start, end))
    return streams


def _best(streams: Sequence[Stream], placed: Sequence[Stream]) -> Fit | str:
    """How a trace fits best onto those whose clocks are known, or in words why it does not."""
    fits = [_fit(p, stream) for stream in streams for p in placed if p.name == stream.name]
    if good := [fit for fit in fits if isinstance(fit, Fit)]:
        return min(good, key=lambda fit: fit.error_ns)
    if not streams:
        return "it has no collectives"
    return str(fits[0]) if fits else "it shares no collectives with other traces"


def _fit(first: Stream, other: Stream, free: bool = True) -> Fit | str:
    """How `other` fits onto `first`, the k-th collective paired with the k-th, or in words why it
    does not; not `free`: its clock is known.  A drift goes through the medians of the outer thirds
    (Tukey's resistant line)."""
    count, third = len(first.rows), len(first.rows) // 3
    if count != len(other.rows):
        return f"it has {len(other.rows)} collectives where another has {count}"
    if count < FEWEST:
        return f"{count} collectives are fewer than {FEWEST}"
    fit = Fit(first, int(other.end[0]), 0)
    if free:
        distance, since = other.end - first.end, other.end - fit.origin_ns
        fit = fit._replace(offset_ns=int(np.median(distance)))
        run = np.median(since[-third:]) - np.median(since[:third])
        if count >= FEWEST_FOR_DRIFT and run > 0:
            drift = float(np.median(distance[-third:]) - np.median(distance[:third])) / run
            offset = round(np.median(distance - drift * since))
            drifting = fit._replace(offset_ns=offset, drift=drift)
            if abs(drift) <= MOST_DRIFT and _scatter(drifting, other) < _scatter(fit, other) / 2:
                fit = drifting
    fit = fit._replace(scatter_ns=_scatter(fit, other))
    placed = fit.corrected(other)
    against = placed.start > first.end + CLOCK_SLACK_NS
    against |= placed.end < first.start - CLOCK_SLACK_NS
    if against.sum() > MOST_CONTRADICTIONS * count:
        return (
            f"{int(against.sum())} of {count} collectives would end on one rank before they began "
            "on the other: not the same collectives"
        )
    if fit.scatter_ns > MOST_SCATTER_NS:
        scatter = f"{fit.scatter_ns / 1e3:.0f} us (95 %)"
        return f"their ends scatter by {scatter}, 50 us at most were expected"
    apart = abs(fit.offset_ns + first.correction_ns)
    if free and first.host is not None and first.host == other.host and apart > SAME_HOST_NS:
        return (
            f"they are of one machine and yet end {apart / 1e6:.1f} ms apart: not the same "
            "collectives"
        )
    return fit


def _scatter(fit: Fit, other: Stream) -> int:
    """How well ends agree, in 95 % of the collectives."""
    return int(np.percentile(np.abs(fit.corrected(other).end - fit.first.end), 95))


def _add(stream: Stream, groups: list[list[Stream]]) -> None:
    """Add a stream on the common clock to the communicator of other ranks that it fits best, or to
    one of its own."""
    others = [group for group in groups if all(s.rank != stream.rank for s in group)]
    fits = [_fit(group[0], stream, free=False) for group in others if group[0].name == stream.name]
    best = min((f for f in fits if isinstance(f, Fit)), key=lambda f: f.scatter_ns, default=None)
    if best:
        next(group for group in others if group[0] is best.first).append(stream)
    else:
        groups.append([stream])
