"""Labels side by side, and who waited for whom."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

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
from nsysalign.causes import CAUSES
from nsysalign.explain.sentences import kind_names
from nsysalign.label import Label
from nsysalign.model import Analysis, pid_of
from nsysalign.parts import parts_matrix
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
#: A collective as one of its ranks sees it: its start on the trace's clock, how long the rank waited
#: there (0 if the clocks cannot tell), the rank that arrived last, and whether that is this one,
#: later by more than the clocks' error.
_NO_MEETINGS = pd.DataFrame(
    columns=["rank", "start_ns", "wait_ns", "waits_for", "last"], dtype="int64"
)


def summaries(analysis: Analysis, shared: Shared, source: str) -> tuple[RankSummary, ...]:
    """The processes of a trace that measured something or took part in collectives, ordered by
    device and pid; one empty rank where there is none.  What libraries time is left out."""
    pids = pid_of(shared.collectives["process"].to_numpy())
    measured = analysis.measured[~analysis.measured["library"]]
    seen = sorted({*measured["pid"].tolist(), *pids.tolist()})
    ranks = []
    for pid in seen or [0]:
        collectives = shared.collectives[pids == pid].reset_index(drop=True)
        intervals = measured[measured["pid"] == pid]
        intervals = intervals.sort_values(["start_ns", "end_ns", "interval"], ignore_index=True)
        parts = parts_matrix(replace(analysis, intervals=intervals))
        measuring = set(intervals["label"])
        labels = [
            times
            for label in analysis.grouped
            if label.name in measuring
            for times in _times_of(label, int(pid), intervals, parts)
        ]
        devices = [*intervals["device"].tolist(), *collectives["device"].tolist()]
        ranks.append(
            RankSummary(
                source=source, pid=int(pid),
                device=min((int(d) for d in devices if d >= 0), default=-1),
                session_start_ns=analysis.trace.session_start_utc_ns, host=shared.host,
                launcher_rank=shared.rank if len(seen) == 1 else None,
                labels=tuple(labels),
                collectives=collectives,
            )
        )  # fmt: skip
    return tuple(sorted(ranks, key=lambda rank: (rank.device, rank.pid)))


def _times_of(
    label: Label, pid: int, intervals: pd.DataFrame, parts: np.ndarray
) -> Iterator[LabelTimes]:
    """What a process measured under a label, one for each kind of its work.  `intervals`: of the
    process, by start; `parts`: nanoseconds of each by cause."""
    mine = [kind for kind in label.kinds if kind[0].pid in (-1, pid)]
    names = kind_names(tuple(kind[0] for kind in mine), "") if len(mine) > 1 else {}
    windows, number = intervals[["start_ns", "end_ns"]].to_numpy(np.int64), intervals["interval"]
    known = {group.kind for kind in mine for group in kind}
    for place, kind in enumerate(mine):
        # first calls that did something else are repetitions of the kind with most time, too
        first = [
            group
            for group in label.first
            if group.pid in (-1, pid)
            and (group.kind == kind[0].kind or (not place and group.kind not in known))
        ]
        members = np.concatenate([group.intervals for group in (*kind, *first)])
        rows = np.flatnonzero(np.isin(number, members))
        if not len(rows):  # of another process
            continue
        opening = [group.intervals for group in first] or [members[:0]]
        name = names.get(kind[0].number, "")
        times = LabelTimes(
            f"{label.name} ({name})" if name else label.name,
            windows[rows],
            {},
            np.isin(number.iloc[rows], np.concatenate(opening)),
        )
        means = parts[rows][times.steady].mean(axis=0).tolist()
        named = {cause: ns for cause, ns in zip(CAUSES, means, strict=True) if ns}
        yield replace(times, parts_mean_ns=named)


def compare(results: Sequence[SourceResult]) -> RankComparison:
    """The whole comparison, whatever the order in which the results came."""
    results = sorted(results, key=lambda r: natural(r.source))
    reports = {r.source: r.report for r in results}
    ranks = number_ranks([rank for r in results for rank in r.ranks])
    clocks, groups = join(list(ranks.values()))
    meetings = pd.concat([_NO_MEETINGS, *(_meetings(group, ranks, clocks) for group in groups)])
    waits = meetings[meetings["wait_ns"] > 0].groupby(["rank", "waits_for"])["wait_ns"]
    waits = waits.agg(["size", "sum"]).sort_values("sum", ascending=False, kind="stable")
    names = dict.fromkeys(times.label for rank in ranks.values() for times in rank.labels)
    return RankComparison(
        ranks=tuple(
            Rank(number, rank.source, rank.pid, rank.device, reports[rank.source])
            for number, rank in ranks.items()
        ),
        clocks=clocks,
        labels=tuple(_label(name, ranks, meetings) for name in names),
        waits=tuple(
            Wait(*pair, *row)
            for pair, row in zip(waits.index, waits.to_numpy().tolist(), strict=True)
        ),
        failures=tuple(r for r in results if r.failure),
    )


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
) -> pd.DataFrame:
    """Who waited for whom in every collective of a communicator: a row per collective and rank.

    rank 0   ....[#####=======]      wait #####
    rank 1   .........[=======]      last
    """
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
    for member, (number, stream) in enumerate(zip(numbers, group, strict=True)):
        early = np.clip(np.minimum(latest, stream.end) - stream.start, 0, None)
        columns = {
            "rank": number,
            "start_ns": ranks[number].collectives["start_ns"].to_numpy()[stream.rows],
            # a wait shorter than the possible difference of the two clocks may not be one
            "wait_ns": np.where(early > np.maximum(errors[member], errors[last]), early, 0),
            "waits_for": numbers[last],
            "last": clear & (last == member),
        }
        meetings.append(pd.DataFrame(columns).astype("int64"))
    return pd.concat(meetings)


def _label(name: str, ranks: Mapping[int, RankSummary], meetings: pd.DataFrame) -> LabelComparison:
    having = {n: t for n, rank in ranks.items() for t in rank.labels if t.label == name}
    shared = min(len(times.windows) for times in having.values())
    elapsed = np.stack([np.diff(times.windows[:shared])[:, 0] for times in having.values()])
    steady = np.stack([times.steady[:shared] for times in having.values()]).all(axis=0)
    if steady.any():  # a first call of any rank tells nothing of the others
        elapsed = elapsed[:, steady]
    repetitions = elapsed.shape[1]
    slowest_in = np.bincount(elapsed.argmax(axis=0), minlength=len(having)).tolist()
    rows = [
        _rank_label(number, times, meetings[meetings["rank"] == number], slowest)
        for (number, times), slowest in zip(having.items(), slowest_in, strict=True)
    ]
    together = max(row.collectives for row in rows)
    longest = max(rows, key=lambda row: row.median_ns)
    waits = max(rows, key=lambda row: row.wait_median_ns)
    least = min(row.median_ns for row in rows)
    spread = longest.median_ns - least
    often = repetitions >= FEWEST_REPETITIONS and longest.slowest_in >= CLEAR_SHARE * repetitions
    even = spread <= max(EVEN_SHARE * least, RESOLUTION_NS)
    slow = waiting = None
    if len(rows) == 1:
        verdict = "alone"
    elif waits.waits_for_ns and waits.wait_median_ns > WAIT_MATTERS * waits.median_ns:
        # who meets in collectives measures the time of the slowest: what counts is who arrives last
        verdict, waiting = "waits", waits.rank
        late, most = next(iter(waits.waits_for_ns.items()))
        slow = late if most >= CLEAR_SHARE * sum(waits.waits_for_ns.values()) else None
    elif even:
        verdict = "even"
    elif not often or (
        # a rank that waits inside its kernels takes longest, and it is not known which rank waits
        not together and any(_in_collectives(ranks[n], times) for n, times in having.items())
    ):
        verdict = "unclear"
    else:
        verdict, slow = "slowest", longest.rank
    return LabelComparison(name, verdict, slow, waiting, spread, repetitions, together, tuple(rows))


def _interval_of(windows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The interval in which each time lies, -1 for none."""
    place = np.searchsorted(windows[:, 0], times, side="right") - 1
    return np.where((place >= 0) & (times < windows[place, 1]), place, -1)


def _rank_label(
    number: int, times: LabelTimes, meetings: pd.DataFrame, slowest_in: int
) -> RankLabel:
    interval = _interval_of(times.windows, meetings["start_ns"].to_numpy())
    inside = meetings[interval >= 0]
    waited = np.zeros(len(times.windows), dtype=np.int64)
    np.add.at(waited, interval[interval >= 0], inside["wait_ns"].to_numpy())
    waits_for = inside[inside["wait_ns"] > 0].groupby("waits_for")["wait_ns"].sum()
    elapsed = np.diff(times.windows)[times.steady, 0]
    return RankLabel(
        rank=number,
        count=len(elapsed),
        median_ns=float(np.median(elapsed)),
        mean_ns=float(elapsed.mean()),
        parts_mean_ns=times.parts_mean_ns,
        collectives=len(inside),
        wait_ns=int(waited.sum()),
        wait_median_ns=int(np.median(waited[times.steady])),
        waits_for_ns=waits_for.sort_values(ascending=False, kind="stable").to_dict(),
        arrived_last=int(inside["last"].sum()),
        slowest_in=slowest_in,
    )


def _in_collectives(rank: RankSummary, times: LabelTimes) -> bool:
    """Whether NCCL's kernels, which wait for others, take a share of a rank's intervals that
    matters."""
    start, end = (rank.collectives[c].to_numpy() for c in ("start_ns", "end_ns"))
    inside = _interval_of(times.windows, start) >= 0
    return int((end - start)[inside].sum()) > WAIT_MATTERS * int(np.diff(times.windows).sum())
