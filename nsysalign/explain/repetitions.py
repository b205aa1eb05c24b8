"""The repetitions of one label as a set: which are comparable, which are warm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.explain import thresholds
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import About


@dataclass(frozen=True, kw_only=True)
class Repetitions(About):
    """Positions, in time.  `comparable` do the same work; `cold` are the slow first ones, those
    before them included whose work is another and that idle for long (what compiles, or captures a
    graph); `warm` are the comparable ones without them."""

    of_row = False
    row: int
    comparable: np.ndarray
    different: np.ndarray
    cold: np.ndarray
    warm: np.ndarray


def repetitions(facts: Facts) -> list[Repetitions]:
    """One entry per label with at least two intervals."""
    return facts.remember(
        "repetitions",
        lambda f: [_split(f, int(code)) for code in np.flatnonzero(f.label_count >= 2)],
    )


def _split(facts: Facts, code: int) -> Repetitions:
    at = facts.repetitions(code)
    told = facts.most_common_work(str(facts.labels[code]))
    if len(told):  # kinds of work differ in more than their number of operations
        same = np.isin(at, told)
    else:
        same = (
            np.ones(len(at), dtype=bool)
            if facts.is_host[at[0]]
            else _same_work(facts.operations[at])
        )
    comparable = at[same]
    cold = np.zeros(len(at), dtype=bool)
    for process in np.unique(facts.pid[at]):  # every rank warms up by itself
        mine = np.flatnonzero((facts.pid[at] == process) & same)
        slow = _slow_first(facts.elapsed[at[mine]])
        cold[mine[:slow]] = True
        if slow < len(mine):
            usual = float(np.median(facts.elapsed[at[mine[slow:]]]))
            before = np.flatnonzero((facts.pid[at] == process) & ~same)
            before = before[before < mine[slow]]
            idle = facts.elapsed[at[before]] - facts.work[at[before]]
            cold[before[idle > thresholds.WARMUP_FACTOR * usual]] = True
    return Repetitions(
        *facts.about(code),
        at,
        row=int(facts.row[code]),
        comparable=comparable,
        different=at[~same],
        cold=at[cold],
        warm=at[same & ~cold],
    )


def _slow_first(elapsed: np.ndarray) -> int:
    """How many of the first values are warm-up.  The very first may always be; several only up to a
    share of all: if most of the set is slow, that is two modes, not warm-up."""
    if len(elapsed) < 3:
        return 0
    most = max(1, thresholds.WARMUP_SHARE * len(elapsed))
    is_slow = elapsed > thresholds.WARMUP_FACTOR * float(np.median(elapsed[1:]))
    slow = int(np.argmin(is_slow)) if not is_slow.all() else 0
    if slow > most:  # the very first is one all the same if it stands out from the others
        slow = int(elapsed[0] > thresholds.WARMUP_FACTOR * elapsed[1:slow].max())
    while slow < len(
        elapsed
    ):  # an upper mode that consists of just the next first ones is warm-up, too
        rest = np.argsort(elapsed[slow:], kind="stable")
        lower = split(elapsed[slow:][rest])
        upper = len(rest) - lower
        if not lower or rest[lower:].max() >= upper or slow + upper > most:
            break
        slow += upper
    return slow


def split(values: np.ndarray) -> int:
    """How many of the sorted values belong to the lower of two modes, 0 if there is only one.

    ||| ||            || ||||        the gap is wide against both groups' own spread
    """
    n = len(values)
    least = max(2, int(np.ceil(thresholds.MODE_SIZE_SHARE * n)))
    if n < thresholds.SPREAD_SAMPLES or n < 2 * least:
        return 0
    gaps = np.diff(values)[least - 1 : n - least]
    at = least + int(gaps.argmax())
    gap = float(values[at] - values[at - 1])
    own = max(_spread(values[:at]), _spread(values[at:]), 1.0)
    median = float(np.median(values))
    return (
        at
        if gap > thresholds.MODE_GAP_FACTOR * own and gap > thresholds.MODE_GAP_SHARE * median
        else 0
    )


def _spread(values: np.ndarray) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def _same_work(operations: np.ndarray) -> np.ndarray:
    """Whether an interval holds about as many operations as the most common interval of its
    label."""
    values, counts = np.unique(operations, return_counts=True)
    usual = int(values[counts.argmax()])
    if usual == 0:
        return operations == 0
    return (
        (operations <= thresholds.MIXED_FACTOR * usual + 1 - 1e-9 * usual)
        & (operations >= usual / thresholds.MIXED_FACTOR - 1 + 1e-9)
        & (operations > 0)
    )
