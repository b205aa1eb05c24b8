"""Labels side by side, and who waited for whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsysalign.addons.ranks.collectives import Group, common, join
from nsysalign.addons.ranks.results import (
    Clock,
    LabelComparison,
    LabelTimes,
    Rank,
    RankComparison,
    RankLabel,
    RankSummary,
    SourceResult,
    Wait,
)
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

    ranks: list[int]  # positions of the summaries
    own_start: np.ndarray  # on each rank's own clock
    wait: np.ndarray  # nanoseconds before the last one arrived, 0 if the clocks cannot tell
    last: np.ndarray  # (collectives,): the member that arrived last
    clear: np.ndarray  # (collectives,): whether it was later by more than the clocks' error


def compare(results: Sequence[SourceResult]) -> RankComparison:
    """The whole comparison, whatever the order in which the results came.

    Ranks are numbered as by the launcher, else by the one number in which the traces' names differ,
    else in the order of names, devices and process ids.
    """
    results = sorted(results, key=lambda r: natural(r.source))
    numbered = number_ranks([rank for r in results for rank in r.ranks])
    ranks, numbers = [rank for _, rank in numbered], [number for number, _ in numbered]
    joined = join(ranks)
    clocks = {clock.source: clock for clock in joined.clocks}
    meetings = [_meeting(group, ranks, clocks) for group in joined.groups]
    notes = [f"{r.source}: {note}" for r in results for note in r.notes]
    copies: dict[tuple, int] = {}
    for number, rank in numbered:
        times = [label.windows for label in rank.labels]
        times.append(rank.collectives[["start_ns", "end_ns"]].to_numpy())
        key = rank.info.session_start_utc_ns, rank.pid, rank.host, *(t.tobytes() for t in times)
        if any(map(len, times)) and copies.setdefault(key, number) != number:
            notes.append(
                f"rank {copies[key]} and rank {number} are copies of one trace, so comparing them "
                "means nothing"
            )
    names = dict.fromkeys(label.label for rank in ranks for label in rank.labels)
    reports = {r.source: r.report for r in results}
    return RankComparison(
        ranks=tuple(
            Rank(
                number, rank.source, rank.pid, rank.device,
                sum(len(t.windows) for t in rank.labels), rank.unplaced, len(rank.collectives),
                rank.warnings, reports[rank.source],
            )
            for number, rank in numbered
        ),
        clocks=joined.clocks,
        labels=tuple(_label(name, ranks, numbers, meetings) for name in names),
        waits=_waits(meetings, numbers),
        failures=tuple(r for r in results if r.failure),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def number_ranks(ranks: Sequence[RankSummary]) -> list[tuple[int, RankSummary]]:
    """(number, summary), sorted by number."""
    names = [rank.source for rank in ranks]
    named = [re.search(r"rank[-_.]?(\d+)", name, re.IGNORECASE) for name in names]
    candidates = [
        [rank.launcher_rank for rank in ranks],
        [int(match[1]) if match else None for match in named],  # report_rank3
    ]
    pieces = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(p[::2]) for p in pieces}) == 1:  # names that differ in numbers only: in one?
        columns = zip(*(map(int, p[1::2]) for p in pieces), strict=True)
        varied = [list(column) for column in columns if len(set(column)) > 1]
        candidates += varied if len(varied) == 1 else []
    for numbers in candidates:
        if None not in numbers and len(set(numbers)) == len(numbers):
            return sorted(zip(numbers, ranks, strict=True), key=lambda pair: pair[0])
    return list(enumerate(sorted(ranks, key=lambda r: (natural(r.source), r.device, r.pid))))


def _meeting(group: Group, ranks: Sequence[RankSummary], clocks: Mapping[str, Clock]) -> Meeting:
    """Who waited for whom in every collective of a communicator.

    rank 0   ....[#####=======]      wait #####
    rank 1   .........[=======]      last
    """
    streams = group.streams
    of_streams = [clocks[ranks[s.rank].source] for s in streams]

    def times(column: str) -> list[np.ndarray]:
        return [ranks[s.rank].collectives[column].to_numpy()[s.rows] for s in streams]

    own_start = times("start_ns")
    start, end = (
        np.stack([common(clock, own) for clock, own in zip(of_streams, column, strict=True)])
        for column in (own_start, times("end_ns"))
    )
    if len({s.trace for s in streams}) == 1:
        errors = np.full(len(streams), GPU_CLOCK_NS)
    else:
        worst = max(fit.scatter_ns for fit in group.fits)
        errors = np.maximum([clock.error_ns or worst for clock in of_streams], GPU_CLOCK_NS)
    last, latest = start.argmax(axis=0), start.max(axis=0)
    early = np.clip(np.minimum(latest, end) - start, 0, None)
    # a wait shorter than the possible difference of the two clocks may not be one
    wait = np.where(early > np.maximum(errors[:, None], errors[last][None, :]), early, 0)
    clear = latest - np.sort(start, axis=0)[-2] > errors[last]
    return Meeting([s.rank for s in streams], np.stack(own_start), wait, last, clear)


def _waits(meetings: Sequence[Meeting], numbers: Sequence[int]) -> tuple[Wait, ...]:
    total: dict[tuple[int, int], np.ndarray] = {}
    for meeting in meetings:
        for rank, wait in zip(meeting.ranks, meeting.wait, strict=True):
            for member, other in enumerate(meeting.ranks):
                for_it = wait[(wait > 0) & (meeting.last == member)]
                if len(for_it):
                    key = numbers[rank], numbers[other]
                    sums = np.array([len(for_it), for_it.sum()])
                    total[key] = total.get(key, 0) + sums
    waits = [Wait(*pair, *sums.tolist()) for pair, sums in total.items()]
    return tuple(sorted(waits, key=lambda w: (-w.wait_ns, w.rank, w.waits_for)))


def _label(
    name: str,
    ranks: Sequence[RankSummary],
    numbers: Sequence[int],
    meetings: Sequence[Meeting],
) -> LabelComparison:
    having = {
        n: times for n, rank in enumerate(ranks) for times in rank.labels if times.label == name
    }
    repetitions = min(len(times.windows) for times in having.values())
    elapsed = np.stack([np.diff(times.windows[:repetitions])[:, 0] for times in having.values()])
    slowest_in = np.bincount(elapsed.argmax(axis=0), minlength=len(having)).tolist()
    rows = [
        _rank_label(n, times, numbers, meetings, slowest)
        for (n, times), slowest in zip(having.items(), slowest_in, strict=True)
    ]
    together = max(row.collectives for row in rows)
    medians = [row.elapsed["median_ns"] for row in rows]
    spread = max(medians) - min(medians)
    longest = rows[int(np.argmax(medians))]
    waits = max(rows, key=lambda row: row.wait_median_ns)
    even = spread <= max(EVEN_SHARE * min(medians), RESOLUTION_NS)
    often = repetitions >= FEWEST_REPETITIONS and longest.slowest_in >= CLEAR_SHARE * repetitions
    slowest = longest.rank if often and not even and len(rows) > 1 else None
    waiting = None
    if len(rows) == 1:
        verdict = "alone"
    elif waits.waits_for_ns and waits.wait_median_ns > WAIT_MATTERS * waits.elapsed["median_ns"]:
        # who meets in collectives measures the time of the slowest: what counts is who arrives last
        verdict, waiting = "waits", waits.rank
    elif even:
        verdict = "even"
    elif slowest is None:
        verdict = "unclear"
    elif not together and any(_in_collectives(ranks[n], times) for n, times in having.items()):
        # a rank that waits inside its kernels takes longest, and it is not known which rank waits
        verdict, slowest = "unclear", None
    else:
        verdict = "slowest"
    first = next(iter(having.values()))
    return LabelComparison(
        name, first.kind, first.site, first.library, verdict, slowest, waiting, spread, repetitions,
        together, tuple(rows),
    )  # fmt: skip


def _interval_of(windows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The interval in which each time lies, -1 for none."""
    place = np.searchsorted(windows[:, 0], times, side="right") - 1
    return np.where((place >= 0) & (times < windows[place, 1]), place, -1)


def _rank_label(
    n: int, times: LabelTimes, numbers: Sequence[int], meetings: Sequence[Meeting], slowest_in: int
) -> RankLabel:
    waited = np.zeros(len(times.windows), dtype=np.int64)
    collectives = arrived_last = 0
    waits_for: dict[int, int] = {}
    for meeting in meetings:
        if n not in meeting.ranks:
            continue
        row = meeting.ranks.index(n)
        interval = _interval_of(times.windows, meeting.own_start[row])
        inside, wait = interval >= 0, meeting.wait[row]
        np.add.at(waited, interval[inside], wait[inside])
        collectives += int(inside.sum())
        arrived_last += int((inside & meeting.clear & (meeting.last == row)).sum())
        for member, other in enumerate(meeting.ranks):
            ns = int(wait[inside & (meeting.last == member)].sum())
            if ns:
                waits_for[numbers[other]] = waits_for.get(numbers[other], 0) + ns
    elapsed = np.diff(times.windows)[:, 0]
    p05, median, p95 = np.percentile(elapsed, [5, 50, 95]).tolist()
    return RankLabel(
        rank=numbers[n],
        count=len(elapsed),
        elapsed={
            "median_ns": median, "mean_ns": float(elapsed.mean()), "min_ns": int(elapsed.min()),
            "max_ns": int(elapsed.max()), "p05_ns": p05, "p95_ns": p95,
        },
        parts_mean_ns=times.parts_mean_ns,
        collectives=collectives,
        wait_ns=int(waited.sum()),
        wait_median_ns=int(np.median(waited)),
        waits_for_ns=dict(sorted(waits_for.items(), key=lambda item: -item[1])),
        arrived_last=arrived_last,
        slowest_in=slowest_in,
    )  # fmt: skip


def _in_collectives(rank: RankSummary, times: LabelTimes) -> bool:
    """Whether NCCL's kernels, which wait for others, take a share of a rank's intervals that
    matters."""
    start, end = (rank.collectives[c].to_numpy() for c in ("start_ns", "end_ns"))
    inside = _interval_of(times.windows, start) >= 0
    return int((end - start)[inside].sum()) > WAIT_MATTERS * int(np.diff(times.windows).sum())
