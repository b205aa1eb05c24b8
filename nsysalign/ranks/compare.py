"""Labels side by side, and who waited for whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsysalign.ranks.collectives import Group, Joined, common, communicators, join, span
from nsysalign.ranks.results import (
    Clock,
    LabelComparison,
    Rank,
    RankComparison,
    RankExample,
    RankLabel,
    RankSummary,
    SourceResult,
    Wait,
)
from nsysalign.ranks.summary import same_trace
from nsysalign.text import natural

#: Medians closer than this share (or than the event clock's resolution) are the same.
EVEN_SHARE = 0.02
RESOLUTION_NS = 500
#: A rank is called the slowest if it is so in this share of the repetitions.
CLEAR_SHARE = 0.6
#: ... of at least this many.
FEWEST_REPETITIONS = 3
#: Waiting for others matters from this share of the measured time on.
WAIT_MATTERS = 0.05
#: Two GPUs of one trace: the timestamps of each agree with the trace's clock to 0.5 us (95 %).
GPU_CLOCK_NS = 1_000


class Meeting(NamedTuple):
    """The collectives of one communicator: who arrived when.  Arrays are (members, collectives)."""

    ranks: tuple[int, ...]  # positions of the summaries
    own_start: np.ndarray  # on each rank's own clock
    wait: np.ndarray  # nanoseconds before the last one arrived, 0 if the clocks cannot tell
    error_ns: int  # how well the clocks agree
    last: np.ndarray  # (collectives,): the member that arrived last
    clear: np.ndarray  # (collectives,): whether it was later by more than the clocks' error


def compare(results: Sequence[SourceResult]) -> RankComparison:
    """The whole comparison, whatever the order in which the results came.

    Ranks are numbered as by the launcher, else by the one number in which the traces' names differ, else in the order of names,
    devices and process ids.
    """
    results = sorted(results, key=lambda r: natural(r.source))
    failures = tuple(r for r in results if r.failure)
    numbered = number_ranks([rank for r in results for rank in r.ranks])
    ranks = [rank for _, rank in numbered]
    numbers = [number for number, _ in numbered]
    joined = join(ranks)
    meetings = meet(ranks, joined)
    labels = _labels(ranks, numbers, meetings, joined)
    notes = [f"{r.source}: {note}" for r in results for note in r.notes]
    notes += [
        f"rank {numbers[a]} and rank {numbers[b]} are copies of one trace, so comparing them means nothing"
        for a, b in same_trace(ranks)
    ]
    return RankComparison(
        ranks=tuple(_rank(n, rank) for n, rank in numbered),
        clocks=joined.clocks,
        communicators=communicators(joined.groups),
        labels=labels,
        waits=_waits(meetings, numbers),
        failures=failures,
        reports={r.source: r.report for r in results if r.report},
        notes=tuple(dict.fromkeys(notes)),
    )


# --- numbers ---


def number_ranks(ranks: Sequence[RankSummary]) -> list[tuple[int, RankSummary]]:
    """(number, summary), sorted by number."""
    launched = [rank.launcher_rank for rank in ranks]
    numbers = launched if _distinct(launched) else _from_names([rank.source for rank in ranks])
    if numbers is None:
        return list(enumerate(sorted(ranks, key=lambda r: (natural(r.source), r.device, r.pid))))
    return sorted(zip(numbers, ranks, strict=True), key=lambda pair: pair[0])


def _distinct(numbers: Sequence[int | None]) -> bool:
    return None not in numbers and len(set(numbers)) == len(numbers)


def _from_names(names: Sequence[str]) -> list[int] | None:
    """`report_rank3` -> 3; else the only number in which otherwise equal names differ; None if neither is clear."""
    said = [re.search(r"rank[-_.]?(\d+)", name, re.IGNORECASE) for name in names]
    found = [int(m[1]) if m else None for m in said]
    if _distinct(found):
        return found
    pieces = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(p[::2]) for p in pieces}) != 1:
        return None
    columns = [[int(p[at]) for p in pieces] for at in range(1, len(pieces[0]), 2)]
    varied = [column for column in columns if len(set(column)) > 1]
    return varied[0] if len(varied) == 1 and _distinct(varied[0]) else None


def _rank(number: int, rank: RankSummary) -> Rank:
    return Rank(
        number=number,
        source=rank.source,
        pid=rank.pid,
        device=rank.device,
        intervals=len(rank.windows),
        unplaced=rank.unplaced,
        collectives=len(rank.collectives),
        warnings=rank.warnings,
    )


# --- collectives ---


def meet(ranks: Sequence[RankSummary], joined: Joined) -> list[Meeting]:
    """Who waited for whom in every collective that all ranks of a communicator took part in.

    rank 0   ....[#####=======]      wait #####
    rank 1   .........[=======]      last
    """
    clocks = {clock.source: clock for clock in joined.clocks}
    meetings = []
    for group in joined.groups:
        begin, end = span(group.reference, group.members)
        if begin == end:
            continue
        members = [(group.reference, 0), *((stream, fit.lag) for stream, fit in group.members)]
        start, stop, own = [], [], []
        for stream, lag in members:
            rows = stream.rows[begin + lag : end + lag]
            table, clock = ranks[stream.rank].collectives, clocks[ranks[stream.rank].source]
            own.append(table["start_ns"].to_numpy()[rows])
            start.append(common(clock, own[-1]))
            stop.append(common(clock, table["end_ns"].to_numpy()[rows]))
        errors = _errors(group, clocks, ranks)
        meetings.append(
            _meeting([s.rank for s, _ in members], *map(np.stack, (own, start, stop)), errors)
        )
    return meetings


def _errors(group: Group, clocks: Mapping[str, Clock], ranks: Sequence[RankSummary]) -> np.ndarray:
    """Per member: how well its clock agrees with those of the other members."""
    streams = [group.reference, *(s for s, _ in group.members)]
    if len({s.trace for s in streams}) == 1:
        return np.full(len(streams), GPU_CLOCK_NS, dtype=np.int64)
    worst = max((fit.scatter_ns for _, fit in group.members), default=0)
    errors = [clocks[ranks[s.rank].source].error_ns or worst for s in streams]
    return np.maximum(np.array(errors, dtype=np.int64), GPU_CLOCK_NS)


def _meeting(
    ranks: list[int],
    own: np.ndarray,
    start: np.ndarray,
    stop: np.ndarray,
    errors: np.ndarray,
) -> Meeting:
    last = start.argmax(axis=0)
    latest = start.max(axis=0)
    second = np.sort(start, axis=0)[-2]
    early = np.clip(np.minimum(latest, stop) - start, 0, None)
    # a wait shorter than the possible difference of the two clocks may not be one
    error = np.maximum(errors[:, None], errors[last][None, :])
    wait = np.where(early > error, early, 0)
    clear = latest - second > errors[last]
    return Meeting(tuple(ranks), own, wait, int(errors.max()), last, clear)


def _waits(meetings: Sequence[Meeting], numbers: Sequence[int]) -> tuple[Wait, ...]:
    total: dict[tuple[int, int], list[int]] = {}
    for meeting in meetings:
        for row, rank in enumerate(meeting.ranks):
            waited = meeting.wait[row] > 0
            for member, other in enumerate(meeting.ranks):
                mine = waited & (meeting.last == member)
                if mine.any():
                    sums = total.setdefault((numbers[rank], numbers[other]), [0, 0])
                    sums[0] += int(mine.sum())
                    sums[1] += int(meeting.wait[row][mine].sum())
    waits = (Wait(rank, other, count, ns) for (rank, other), (count, ns) in total.items())
    return tuple(sorted(waits, key=lambda w: (-w.wait_ns, w.rank, w.waits_for)))


# --- labels ---


def _labels(
    ranks: Sequence[RankSummary],
    numbers: Sequence[int],
    meetings: Sequence[Meeting],
    joined: Joined,
) -> tuple[LabelComparison, ...]:
    names = list(dict.fromkeys(times.label for rank in ranks for times in rank.labels))
    windows = [_windows(rank) for rank in ranks]
    clocks = {clock.source: clock for clock in joined.clocks}
    return tuple(_label(name, ranks, numbers, windows, meetings, clocks) for name in names)


def _windows(rank: RankSummary) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Label -> (starts, ends), sorted by start."""
    table = rank.windows
    code, start, end = (table[c].to_numpy() for c in ("label", "start_ns", "end_ns"))
    edges = np.searchsorted(code, np.arange(len(rank.labels) + 1))
    return {
        times.label: (start[edges[n] : edges[n + 1]], end[edges[n] : edges[n + 1]])
        for n, times in enumerate(rank.labels)
    }


def _label(
    name: str,
    ranks: Sequence[RankSummary],
    numbers: Sequence[int],
    windows: Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]],
    meetings: Sequence[Meeting],
    clocks: Mapping[str, Clock],
) -> LabelComparison:
    having = [n for n in range(len(ranks)) if name in windows[n]]
    repetitions = min(len(windows[n][name][0]) for n in having)
    elapsed = np.stack([(windows[n][name][1] - windows[n][name][0])[:repetitions] for n in having])
    longest = np.bincount(elapsed.argmax(axis=0), minlength=len(having))
    inside = {n: _Inside(len(windows[n][name][0])) for n in having}
    together = 0
    for meeting in meetings:
        together += _count(meeting, numbers, name, windows, inside)
    rows = []
    for at, n in enumerate(having):
        times = next(times for times in ranks[n].labels if times.label == name)
        found = inside[n]
        rows.append(
            RankLabel(
                rank=numbers[n],
                times=times,
                collectives=found.collectives,
                wait_ns=int(found.wait.sum()),
                wait_median_ns=int(np.median(found.wait)),
                waits_for=dict(sorted(found.waits_for.items(), key=lambda item: -item[1])),
                last=found.last,
                slowest=int(longest[at]),
            )
        )
    medians = [row.times.median_ns for row in rows]
    spread = max(medians) - min(medians)
    verdict, slowest, waiting = _verdict(rows, spread, repetitions, together)
    if (
        verdict == "slowest"
        and not together
        and any(_unmet(ranks[n], windows[n][name]) for n in having)
    ):
        verdict, slowest = (
            "unclear",
            None,
        )  # a rank that waits inside its kernels takes longest, and it is not known which rank waits
    first = rows[0].times
    return LabelComparison(
        label=name,
        kind=first.kind,
        site=first.site,
        library=first.library,
        ranks=tuple(rows),
        verdict=verdict,
        slowest=slowest,
        waiting=waiting,
        spread_ns=spread,
        repetitions=repetitions,
        collectives=together,
        example=_example(name, having, elapsed, ranks, numbers, windows, meetings, clocks),
    )


def _unmet(rank: RankSummary, windows: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether NCCL's kernels, which wait for others, take a share of a rank's intervals that matters."""
    start, end = windows
    begun, over = (rank.collectives[c].to_numpy() for c in ("start_ns", "end_ns"))
    at = np.searchsorted(start, begun, side="right") - 1
    inside = (
        (at >= 0) & (begun < end[np.maximum(at, 0)]) if len(start) else np.zeros(len(begun), bool)
    )
    return int((over - begun)[inside].sum()) > WAIT_MATTERS * int((end - start).sum())


def _example(
    name: str,
    having: Sequence[int],
    elapsed: np.ndarray,
    ranks: Sequence[RankSummary],
    numbers: Sequence[int],
    windows: Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]],
    meetings: Sequence[Meeting],
    clocks: Mapping[str, Clock],
) -> tuple[RankExample, ...]:
    """The repetition whose longest time is the lower median of all, with its collectives."""
    own = {n: clocks[ranks[n].source] for n in having}
    if len(having) < 2 or (
        len(clocks) > 1 and any(clock.method == "none" for clock in own.values())
    ):
        return ()
    longest = elapsed.max(axis=0)
    k = int(np.argsort(longest, kind="stable")[(len(longest) - 1) // 2])
    found = []
    for n in having:
        edges = np.array([edge[k] for edge in windows[n][name]])
        table = ranks[n].collectives
        start, end = (table[c].to_numpy() for c in ("start_ns", "end_ns"))
        inside = np.flatnonzero((start >= edges[0]) & (start < edges[1]))
        waits = {
            int(at): int(wait)
            for meeting in meetings
            for row, rank in enumerate(meeting.ranks)
            if rank == n
            for at, wait in zip(meeting.own_start[row], meeting.wait[row], strict=True)
            if edges[0] <= at < edges[1]
        }
        found.append(
            (
                numbers[n],
                common(own[n], edges),
                common(own[n], start[inside]),
                common(own[n], end[inside]),
                [waits.get(at, 0) for at in start[inside].tolist()],
            )
        )
    origin = min(int(edges[0]) for _, edges, *_ in found)
    return tuple(
        RankExample(
            rank,
            int(edges[0]) - origin,
            int(edges[1]) - origin,
            tuple(zip((begin - origin).tolist(), (stop - origin).tolist(), waits, strict=True)),
        )
        for rank, edges, begin, stop, waits in found
    )


class _Inside:
    """Totals of the collectives inside one rank's intervals of one label."""

    def __init__(self, intervals: int) -> None:
        self.wait = np.zeros(intervals, dtype=np.int64)
        self.collectives = 0
        self.last = 0
        self.waits_for: dict[int, int] = {}


def _count(
    meeting: Meeting,
    numbers: Sequence[int],
    name: str,
    windows: Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]],
    inside: Mapping[int, _Inside],
) -> int:
    """Add a communicator's collectives to the intervals of a label in which they began; returns the largest count of any
    rank."""
    most = 0
    for row, rank in enumerate(meeting.ranks):
        if rank not in inside:
            continue
        start, end = windows[rank][name]
        at = np.searchsorted(start, meeting.own_start[row], side="right") - 1
        within = (at >= 0) & (meeting.own_start[row] < end[np.maximum(at, 0)])
        found, wait = inside[rank], meeting.wait[row]
        np.add.at(found.wait, at[within], wait[within])
        found.collectives += int(within.sum())
        found.last += int((within & meeting.clear & (meeting.last == row)).sum())
        for member, other in enumerate(meeting.ranks):
            ns = int(wait[within & (meeting.last == member)].sum())
            if ns:
                found.waits_for[numbers[other]] = found.waits_for.get(numbers[other], 0) + ns
        most = max(most, int(within.sum()))
    return most


def _verdict(
    rows: Sequence[RankLabel], spread: float, repetitions: int, collectives: int
) -> tuple[str, int | None, int | None]:
    """(one of results.VERDICTS, slowest rank, rank that waits most).

    If ranks meet in collectives, all of them measure the time of the slowest: then the rank that arrives last matters, not the
    one with the longest time.
    """
    if len(rows) == 1:
        return "alone", None, None
    medians = [row.times.median_ns for row in rows]
    longest = rows[int(np.argmax(medians))]
    even = spread <= max(EVEN_SHARE * min(medians), RESOLUTION_NS)
    unclear = not even and (
        repetitions < FEWEST_REPETITIONS or longest.slowest < CLEAR_SHARE * repetitions
    )
    slowest = None if even or unclear else longest.rank
    waits = max(rows, key=lambda row: row.wait_median_ns)
    if (
        collectives
        and waits.waits_for
        and waits.wait_median_ns > WAIT_MATTERS * waits.times.median_ns
    ):
        return "waits", slowest, waits.rank
    return "even" if even else "unclear" if unclear else "slowest", slowest, None
