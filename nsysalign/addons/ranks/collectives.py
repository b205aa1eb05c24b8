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

from collections.abc import Mapping, Sequence
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
    """The collectives of one name on one stream of one rank, times on a coarse common clock."""

    rank: int  # position among the summaries
    trace: int
    name: str
    rows: np.ndarray  # positions in the rank's collectives
    start: np.ndarray
    end: np.ndarray


class Fit(NamedTuple):
    """How the clock of a stream stands against its reference's: later by offset + drift * (t -
    origin), with t and origin on the reference's coarse clock."""

    offset_ns: int
    drift: float
    origin_ns: int
    scatter_ns: int


class Group(NamedTuple):
    """A communicator: streams of several ranks that ran the same collectives, the first of which
    is the reference (its own fit is zero)."""

    streams: list[Stream]
    fits: list[Fit]


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
    firsts = [next(rank for rank in ranks if rank.source == name) for name in names]
    starts = [rank.session_start_ns for rank in firsts]
    root = next((n for n, start in enumerate(starts) if start is not None), 0)
    # a difference of nanoseconds since 1970: small, and 0 if nothing is known
    coarse = [0 if s is None or starts[root] is None else s - starts[root] for s in starts]
    hosts = [None if s is None else rank.host for s, rank in zip(starts, firsts, strict=True)]
    groups, refused = _groups(_streams(ranks, names, coarse), hosts)
    edges = [
        (group.streams[0], stream, fit)
        for group in groups
        for stream, fit in zip(group.streams[1:], group.fits[1:], strict=True)
    ]
    clocks: dict[int, Clock] = {}
    for n in dict.fromkeys([root, *range(len(names))]) if names else ():
        if n in clocks:  # collectives join it to an earlier one
            continue
        reason, method = "", "none" if starts[n] is None else "session start"
        if n == root:
            method = "reference"
        elif not any(len(r.collectives) for r in ranks if r.source == names[n]):
            reason = "it has no collectives"
        else:
            shares = f"it shares no collectives with {names[root]}, or fewer than {FEWEST}"
            reason = refused.get(n, shares)
        clocks[n] = Clock(names[n], method, coarse[n], root=names[n], reason=reason)
        # those that collectives connect to the known ones, best fit first
        while leading := [e for e in edges if (e[0].trace in clocks) != (e[1].trace in clocks)]:
            edge = min(leading, key=lambda e: (e[2].scatter_ns, -len(e[0].rows)))
            new = edge[1] if edge[0].trace in clocks else edge[0]
            clocks[new.trace] = _corrected(clocks, edge, coarse, names)
    return Joined(tuple(clocks[n] for n in range(len(names))), tuple(groups))


def _corrected(
    clocks: Mapping[int, Clock],
    edge: tuple[Stream, Stream, Fit],
    coarse: Sequence[int],
    names: Sequence[str],
) -> Clock:
    """The clock of the trace at one end of an edge, from that of the other, which is known.  The
    second is later than the first: the correction is taken off it, or added to the first."""
    first, other, fit = edge
    ahead = first.trace in clocks
    known, new, sign = (first, other, -1) if ahead else (other, first, 1)
    base = clocks[known.trace]
    correction = sign * fit.offset_ns + base.correction_ns
    correction += round(base.drift * (fit.origin_ns - coarse[known.trace] - base.origin_ns))
    return Clock(
        names[new.trace],
        "collectives",
        offset_ns=coarse[new.trace] + correction,
        root=base.root,
        drift=sign * fit.drift + base.drift,
        origin_ns=fit.origin_ns + (fit.offset_ns if ahead else 0) - coarse[new.trace],
        correction_ns=correction,
        error_ns=fit.scatter_ns + (base.error_ns or 0),
        collectives=len(first.rows),
    )


def _streams(
    ranks: Sequence[RankSummary], names: Sequence[str], coarse: Sequence[int]
) -> list[Stream]:
    """Streams of collectives; `coarse`: what is added to the times of each trace."""
    streams = []
    for position, rank in enumerate(ranks):
        table, trace = rank.collectives, names.index(rank.source)
        bound = np.flatnonzero(table["operation"].isin(TOGETHER))
        by_stream = table.iloc[bound].groupby(["stream", "name"], sort=True).indices
        for (_, name), inside in by_stream.items():
            rows = bound[inside]
            start, end = (table[c].to_numpy()[rows] + coarse[trace] for c in ("start_ns", "end_ns"))
            streams.append(Stream(position, trace, str(name), rows, start, end))
    return sorted(streams, key=lambda s: (s.name, s.rank, s.start[0]))


def _groups(
    streams: Sequence[Stream], hosts: Sequence[str | None]
) -> tuple[list[Group], Mapping[int, str]]:
    """Streams that run the same collectives, and why traces could not join any: each joins the
    group that it fits best, or begins one."""
    groups: list[Group] = []
    refused: dict[int, str] = {}
    for stream in streams:
        fits: list[tuple[Fit, Group]] = []
        for group in groups:
            first = group.streams[0]
            if first.name != stream.name or stream.rank in {s.rank for s in group.streams}:
                continue
            host = hosts[first.trace]
            fit = _fit(first, stream, host is not None and host == hosts[stream.trace])
            if isinstance(fit, str):
                refused.setdefault(stream.trace, fit)
            else:
                fits.append((fit, group))
        if fits:
            fit, group = min(fits, key=lambda pair: pair[0].scatter_ns)
            group.streams.append(stream)
            group.fits.append(fit)
        else:
            groups.append(Group([stream], [Fit(0, 0.0, int(stream.end[0]), 0)]))
    return [group for group in groups if len(group.streams) > 1], refused


def _fit(first: Stream, other: Stream, same_host: bool) -> Fit | str:
    """How `other` fits onto `first`, the k-th collective paired with the k-th; or in words why it
    does not.  A slope goes through the medians of the outer thirds (Tukey's resistant line)."""
    count, third = len(first.rows), len(first.rows) // 3
    if count != len(other.rows):
        return f"it has {len(other.rows)} collectives where another has {count}"
    if count < FEWEST:
        return f"{count} collectives are fewer than {FEWEST}"
    origin, distance = int(first.end[0]), other.end - first.end
    since, offset, drift = first.end - origin, 0, 0.0
    if first.trace != other.trace:
        offset = int(np.median(distance))
        run = float(np.median(since[-third:]) - np.median(since[:third]))
        if count >= FEWEST_FOR_DRIFT and run > 0:
            rest = distance - offset
            slope = float(np.median(rest[-third:]) - np.median(rest[:third])) / run
            turned = rest - slope * since
            shift = float(np.median(turned))
            scatters = [np.percentile(np.abs(left), 95) for left in (turned - shift, rest)]
            if abs(slope) <= MOST_DRIFT and scatters[0] < 0.5 * scatters[1]:
                offset, drift = offset + round(shift), slope
    drifted = np.rint(drift * since).astype(np.int64)
    scatter = int(np.percentile(np.abs(distance - drifted - offset), 95))
    against = offset < other.start - drifted - first.end - CLOCK_SLACK_NS
    against |= offset > other.end - drifted - first.start + CLOCK_SLACK_NS
    if against.sum() > MOST_CONTRADICTIONS * count:
        return (
            f"{int(against.sum())} of {count} collectives would end on one rank before they began "
            "on the other: not the same collectives"
        )
    if scatter > MOST_SCATTER_NS:
        return f"their ends scatter by {scatter / 1e3:.0f} us (95 %), 50 us at most were expected"
    if same_host and abs(offset) > SAME_HOST_NS:
        return (
            f"they are of one machine and yet end {abs(offset) / 1e6:.1f} ms apart: not the same "
            "collectives"
        )
    return Fit(offset, drift, origin, scatter)


def common(clock: Clock, times: np.ndarray) -> np.ndarray:
    """Times of a trace (int64 array) on the common clock."""
    drifted = np.rint(clock.drift * (times - clock.origin_ns)).astype(np.int64)
    return times + clock.offset_ns + drifted
