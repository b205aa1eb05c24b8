"""Labels side by side, and who waited for whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsysalign.addons.ranks.collectives import Group, common, join
from nsysalign.addons.ranks.records import (
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
from nsysalign.model import CAUSES, Analysis, pid_of
from nsysalign.parts import matrices
from nsysalign.text import natural

if TYPE_CHECKING:
    from nsysalign.trace.nccl import Shared

#: Medians closer than this share (or than the event clock's resolution) are the same.
EVEN_SHARE, RESOLUTION_NS = 0.02, 500
#: A rank is called the slowest if it is so in this share of the repetitions, of at least so many.
CLEAR_SHARE, FEWEST_REPETITIONS = 0.6, 3
#: Waiting for others matters from this share of the measured time on.
WAIT_MATTERS = 0.05
#: Two GPUs of one trace: the timestamps of each agree with the trace's clock to 0.5 us (95 %).
GPU_CLOCK_NS = 1_000


def summaries(analysis: Analysis, shared: Shared, source: str) -> tuple[RankSummary, ...]:
    """The processes of a trace that measured something or took part in collectives, ordered by
    device and pid; one empty rank where there is none."""
    pids = pid_of(shared.collectives["process"].to_numpy())
    seen = sorted({*analysis.measured["pid"].tolist(), *pids.tolist()})
    ranks = []
    for pid in seen or [0]:
        collectives = shared.collectives[pids == pid].reset_index(drop=True)
        intervals = analysis.measured[analysis.measured["pid"] == pid]
        intervals = intervals.sort_values(["start_ns", "end_ns", "interval"], ignore_index=True)
        (parts,) = matrices(intervals[["interval"]], analysis.parts, ["ns"])
        labels = []
        for label, own in intervals.groupby("label", sort=False).indices.items():
            windows = intervals[["start_ns", "end_ns"]].to_numpy(np.int64)[own]
            means = zip(CAUSES, parts[own].mean(axis=0).tolist(), parts[own].T, strict=True)
            means_ns = {cause: mean for cause, mean, ns in means if ns.any()}
            labels.append(LabelTimes(label, bool(intervals["library"][own[0]]), windows, means_ns))
        order = {label: n for n, label in enumerate(analysis.labels["label"])}
        devices = [*intervals["device"].tolist(), *collectives["device"].tolist()]
        ranks.append(
            RankSummary(
                source=source, pid=int(pid),
                device=min((int(d) for d in devices if d >= 0), default=-1),
                session_start_ns=analysis.trace.session_start_utc_ns, host=shared.host,
                launcher_rank=shared.rank if len(seen) == 1 else None,
                labels=tuple(sorted(labels, key=lambda times: order[times.label])),
                collectives=collectives,
            )
        )  # fmt: skip
    return tuple(sorted(ranks, key=lambda rank: (rank.device, rank.pid)))


@dataclass(frozen=True)
class Meeting:
    """The collectives of one communicator: who arrived when.  Arrays are (members, collectives)."""

    ranks: list[int]  # positions of the summaries
    own_start: np.ndarray  # on each rank's own clock
    wait: np.ndarray  # nanoseconds before the last one arrived, 0 if the clocks cannot tell
    last: np.ndarray  # (collectives,): the member that arrived last
    clear: np.ndarray  # (collectives,): whether it was later by more than the clocks' error


def compare(results: Sequence[SourceResult]) -> RankComparison:
    """The whole comparison, whatever the order in which the results came."""
    results = sorted(results, key=lambda r: natural(r.source))
    numbered = number_ranks([rank for r in results for rank in r.ranks])
    numbers, ranks = list(numbered), list(numbered.values())
    joined = join(ranks)
    clocks = {clock.source: clock for clock in joined.clocks}
    meetings = [_meeting(group, ranks, clocks) for group in joined.groups]
    names = dict.fromkeys(label.label for rank in ranks for label in rank.labels)
    reports = {r.source: r.report for r in results}
    count: Counter = Counter()
    total: Counter = Counter()
    for meeting in meetings:
        for rank, wait in zip(meeting.ranks, meeting.wait, strict=True):
            for member, other in enumerate(meeting.ranks):
                for_it = wait[(wait > 0) & (meeting.last == member)]
                count[numbers[rank], numbers[other]] += len(for_it)
                total[numbers[rank], numbers[other]] += int(for_it.sum())
    waits = [Wait(*pair, number, total[pair]) for pair, number in count.items() if number]
    return RankComparison(
        ranks=tuple(
            Rank(
                number, rank.source, rank.pid, rank.device,
                sum(len(t.windows) for t in rank.labels), len(rank.collectives),
                reports[rank.source],
            )
            for number, rank in numbered.items()
        ),
        clocks=joined.clocks,
        labels=tuple(_label(name, ranks, numbers, meetings) for name in names),
        waits=tuple(sorted(waits, key=lambda w: (-w.wait_ns, w.rank, w.waits_for))),
        failures=tuple(r for r in results if r.failure),
    )  # fmt: skip


def number_ranks(ranks: Sequence[RankSummary]) -> dict[int, RankSummary]:
    """Ranks by number, in order: as by the launcher, else by the traces' names (report_rank3), else
    in the order of names, devices and process ids."""
    named = [re.search(r"rank[-_.]?(\d+)", rank.source, re.IGNORECASE) for rank in ranks]
    candidates = (
        [rank.launcher_rank for rank in ranks],
        [int(match[1]) if match else None for match in named],
    )
    for numbers in candidates:
        if None not in numbers and len(set(numbers)) == len(numbers):
            return dict(sorted(zip(numbers, ranks, strict=True), key=lambda pair: pair[0]))
    return dict(enumerate(sorted(ranks, key=lambda r: (natural(r.source), r.device, r.pid))))


def _meeting(group: Group, ranks: Sequence[RankSummary], clocks: Mapping[str, Clock]) -> Meeting:
    """Who waited for whom in every collective of a communicator.

    rank 0   ....[#####=======]      wait #####
    rank 1   .........[=======]      last
    """
    streams = group.streams
    of_streams = [clocks[ranks[s.rank].source] for s in streams]
    own_start, own_end = (
        np.stack([ranks[s.rank].collectives[column].to_numpy()[s.rows] for s in streams])
        for column in ("start_ns", "end_ns")
    )
    start, end = (
        np.stack([common(clock, own) for clock, own in zip(of_streams, times, strict=True)])
        for times in (own_start, own_end)
    )
    errors = np.full(len(streams), GPU_CLOCK_NS)
    if len({s.trace for s in streams}) > 1:
        worst = max(fit.scatter_ns for fit in group.fits)
        errors = np.maximum([clock.error_ns or worst for clock in of_streams], GPU_CLOCK_NS)
    last, latest = start.argmax(axis=0), start.max(axis=0)
    early = np.clip(np.minimum(latest, end) - start, 0, None)
    # a wait shorter than the possible difference of the two clocks may not be one
    wait = np.where(early > np.maximum(errors[:, None], errors[last][None, :]), early, 0)
    clear = latest - np.sort(start, axis=0)[-2] > errors[last]
    return Meeting([s.rank for s in streams], own_start, wait, last, clear)


def _label(
    name: str, ranks: Sequence[RankSummary], numbers: Sequence[int], meetings: Sequence[Meeting]
) -> LabelComparison:
    having = {n: t for n, rank in enumerate(ranks) for t in rank.labels if t.label == name}
    repetitions = min(len(times.windows) for times in having.values())
    elapsed = np.stack([np.diff(times.windows[:repetitions])[:, 0] for times in having.values()])
    slowest_in = np.bincount(elapsed.argmax(axis=0), minlength=len(having)).tolist()
    rows = [
        _rank_label(n, times, numbers, meetings, slowest)
        for (n, times), slowest in zip(having.items(), slowest_in, strict=True)
    ]
    together = max(row.collectives for row in rows)
    medians = [row.median_ns for row in rows]
    spread = max(medians) - min(medians)
    longest = rows[int(np.argmax(medians))]
    waits = max(rows, key=lambda row: row.wait_median_ns)
    even = spread <= max(EVEN_SHARE * min(medians), RESOLUTION_NS)
    often = repetitions >= FEWEST_REPETITIONS and longest.slowest_in >= CLEAR_SHARE * repetitions
    slowest = longest.rank if often and not even and len(rows) > 1 else None
    waiting = None
    if len(rows) == 1:
        verdict = "alone"
    elif waits.waits_for_ns and waits.wait_median_ns > WAIT_MATTERS * waits.median_ns:
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
    library = next(iter(having.values())).library
    return LabelComparison(
        name, library, verdict, slowest, waiting, spread, repetitions, together, tuple(rows)
    )


def _interval_of(windows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The interval in which each time lies, -1 for none."""
    place = np.searchsorted(windows[:, 0], times, side="right") - 1
    return np.where((place >= 0) & (times < windows[place, 1]), place, -1)


def _rank_label(
    n: int, times: LabelTimes, numbers: Sequence[int], meetings: Sequence[Meeting], slowest_in: int
) -> RankLabel:
    waited = np.zeros(len(times.windows), dtype=np.int64)
    collectives = arrived_last = 0
    waits_for: Counter = Counter()
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
            waits_for[numbers[other]] += int(wait[inside & (meeting.last == member)].sum())
    elapsed = np.diff(times.windows)[:, 0]
    return RankLabel(
        rank=numbers[n],
        count=len(elapsed),
        median_ns=float(np.median(elapsed)),
        mean_ns=float(elapsed.mean()),
        parts_mean_ns=times.parts_mean_ns,
        collectives=collectives,
        wait_ns=int(waited.sum()),
        wait_median_ns=int(np.median(waited)),
        waits_for_ns={rank: ns for rank, ns in waits_for.most_common() if ns},
        arrived_last=arrived_last,
        slowest_in=slowest_in,
    )


def _in_collectives(rank: RankSummary, times: LabelTimes) -> bool:
    """Whether NCCL's kernels, which wait for others, take a share of a rank's intervals that
    matters."""
    start, end = (rank.collectives[c].to_numpy() for c in ("start_ns", "end_ns"))
    inside = _interval_of(times.windows, start) >= 0
    return int((end - start)[inside].sum()) > WAIT_MATTERS * int(np.diff(times.windows).sum())
