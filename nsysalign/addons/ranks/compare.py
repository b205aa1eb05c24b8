"""Labels side by side, and who waited for whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsysalign.addons.ranks.collectives import Stream, join
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
    order = {label: n for n, label in enumerate(analysis.labels["label"])}
    ranks = []
    for pid in seen or [0]:
        collectives = shared.collectives[pids == pid].reset_index(drop=True)
        intervals = analysis.measured[analysis.measured["pid"] == pid]
        intervals = intervals.sort_values(["start_ns", "end_ns", "interval"], ignore_index=True)
        (parts,) = matrices(intervals[["interval"]], analysis.parts, ["ns"])
        labels = []
        for label, own in intervals.groupby("label", sort=False).indices.items():
            windows = intervals[["start_ns", "end_ns"]].to_numpy(np.int64)[own]
            means = dict(zip(CAUSES, parts[own].mean(axis=0).tolist(), strict=True))
            means = {cause: ns for cause, ns in means.items() if ns}
            labels.append(LabelTimes(label, bool(intervals["library"][own[0]]), windows, means))
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


class Meeting(NamedTuple):
    """The collectives of one communicator as one of its ranks sees them; arrays have one element
    per collective.

    rank 0   ....[#####=======]      wait #####
    rank 1   .........[=======]      last
    """

    rank: int
    start: np.ndarray  # on its trace's clock
    wait: np.ndarray  # nanoseconds before the last one arrived, 0 if the clocks cannot tell
    waits_for: np.ndarray  # the rank that arrived last
    last: np.ndarray  # whether that is this one, later by more than the clocks' error


def compare(results: Sequence[SourceResult]) -> RankComparison:
    """The whole comparison, whatever the order in which the results came."""
    results = sorted(results, key=lambda r: natural(r.source))
    ranks = number_ranks([rank for r in results for rank in r.ranks])
    clocks, groups = join(list(ranks.values()))
    meetings = [m for group in groups for m in _meetings(group, ranks, clocks)]
    waits = []
    for rank in ranks:
        own = [m for m in meetings if m.rank == rank]
        for other in ranks:
            waited = [m.wait[(m.waits_for == other) & (m.wait > 0)] for m in own]
            if number := sum(map(len, waited)):
                waits.append(Wait(rank, other, number, int(sum(w.sum() for w in waited))))
    reports = {r.source: r.report for r in results}
    names = dict.fromkeys(times.label for rank in ranks.values() for times in rank.labels)
    return RankComparison(
        ranks=tuple(
            Rank(
                number, rank.source, rank.pid, rank.device,
                sum(len(t.windows) for t in rank.labels), len(rank.collectives),
                reports[rank.source],
            )
            for number, rank in ranks.items()
        ),
        clocks=clocks,
        labels=tuple(_label(name, ranks, meetings) for name in names),
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


def _meetings(
    group: Sequence[Stream], ranks: Mapping[int, RankSummary], clocks: Sequence[Clock]
) -> list[Meeting]:
    """Who waited for whom in every collective of a communicator."""
    numbers = np.array(list(ranks))[[stream.rank for stream in group]]
    errors = np.full(len(group), GPU_CLOCK_NS)
    if len({stream.source for stream in group}) > 1:
        known = {clock.source: clock.error_ns for clock in clocks}
        worst = max(known[stream.source] or 0 for stream in group)
        errors = np.maximum([known[stream.source] or worst for stream in group], GPU_CLOCK_NS)
    start = np.stack([stream.start for stream in group])
    latest, last = start.max(axis=0), start.argmax(axis=0)
    clear = latest - np.sort(start, axis=0)[-2] > errors[last]
    meetings = []
    for member, stream in enumerate(group):
        early = np.clip(np.minimum(latest, stream.end) - stream.start, 0, None)
        # a wait shorter than the possible difference of the two clocks may not be one
        wait = np.where(early > np.maximum(errors[member], errors[last]), early, 0)
        own = ranks[numbers[member]].collectives["start_ns"].to_numpy()[stream.rows]
        meetings.append(
            Meeting(numbers[member], own, wait, numbers[last], clear & (last == member))
        )
    return meetings


def _label(
    name: str, ranks: Mapping[int, RankSummary], meetings: Sequence[Meeting]
) -> LabelComparison:
    having = {n: t for n, rank in ranks.items() for t in rank.labels if t.label == name}
    repetitions = min(len(times.windows) for times in having.values())
    elapsed = np.stack([np.diff(times.windows[:repetitions])[:, 0] for times in having.values()])
    slowest_in = np.bincount(elapsed.argmax(axis=0), minlength=len(having)).tolist()
    rows = [
        _rank_label(number, times, [m for m in meetings if m.rank == number], slowest)
        for (number, times), slowest in zip(having.items(), slowest_in, strict=True)
    ]
    together = max(row.collectives for row in rows)
    longest, waits = (
        max(rows, key=key) for key in (lambda r: r.median_ns, lambda r: r.wait_median_ns)
    )
    least = min(row.median_ns for row in rows)
    spread = longest.median_ns - least
    often = repetitions >= FEWEST_REPETITIONS and longest.slowest_in >= CLEAR_SHARE * repetitions
    even = spread <= max(EVEN_SHARE * least, RESOLUTION_NS)
    slowest = longest.rank if often and not even and len(rows) > 1 else None
    waiting = None
    if len(rows) == 1:
        verdict = "alone"
    elif waits.waits_for_ns and waits.wait_median_ns > WAIT_MATTERS * waits.median_ns:
        # who meets in collectives measures the time of the slowest: what counts is who arrives last
        verdict, waiting = "waits", waits.rank
    elif even:
        verdict = "even"
    elif slowest is None or (
        # a rank that waits inside its kernels takes longest, and it is not known which rank waits
        not together and any(_in_collectives(ranks[n], times) for n, times in having.items())
    ):
        verdict, slowest = "unclear", None
    else:
        verdict = "slowest"
    return LabelComparison(
        name, next(iter(having.values())).library, verdict, slowest, waiting, spread, repetitions,
        together, tuple(rows),
    )  # fmt: skip


def _interval_of(windows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The interval in which each time lies, -1 for none."""
    place = np.searchsorted(windows[:, 0], times, side="right") - 1
    return np.where((place >= 0) & (times < windows[place, 1]), place, -1)


def _rank_label(
    number: int, times: LabelTimes, meetings: Sequence[Meeting], slowest_in: int
) -> RankLabel:
    waited = np.zeros(len(times.windows), dtype=np.int64)
    collectives = arrived_last = 0
    waits_for: Counter = Counter()
    for meeting in meetings:
        interval = _interval_of(times.windows, meeting.start)
        inside = interval >= 0
        wait, whom = meeting.wait[inside], meeting.waits_for[inside]
        np.add.at(waited, interval[inside], wait)
        collectives += len(wait)
        arrived_last += int(meeting.last[inside].sum())
        for other in np.unique(whom[wait > 0]).tolist():
            waits_for[other] += int(wait[whom == other].sum())
    elapsed = np.diff(times.windows)[:, 0]
    return RankLabel(
        rank=number,
        count=len(elapsed),
        median_ns=float(np.median(elapsed)),
        mean_ns=float(elapsed.mean()),
        parts_mean_ns=times.parts_mean_ns,
        collectives=collectives,
        wait_ns=int(waited.sum()),
        wait_median_ns=int(np.median(waited)),
        waits_for_ns=dict(waits_for.most_common()),
        arrived_last=arrived_last,
        slowest_in=slowest_in,
    )


def _in_collectives(rank: RankSummary, times: LabelTimes) -> bool:
    """Whether NCCL's kernels, which wait for others, take a share of a rank's intervals that
    matters."""
    start, end = (rank.collectives[c].to_numpy() for c in ("start_ns", "end_ns"))
    inside = _interval_of(times.windows, start) >= 0
    return int((end - start)[inside].sum()) > WAIT_MATTERS * int(np.diff(times.windows).sum())
