"""The parts of intervals as dense arrays: a row per interval, a column per cause; and which intervals stand for many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSES, SHORTER_WITH_HOST
from nsysalign.model import Evidence


def parts_matrix(analysis: Evidence, column: str = "ns") -> np.ndarray:
    """A column of `parts` as an int64 array (intervals, causes): one row per row of `intervals`, one
    column per cause of `CAUSES`.  Rows of other intervals, and of unknown causes, are left out."""
    intervals, parts = analysis.intervals, analysis.parts
    place, causes = positions(intervals, parts), parts["cause"].astype("category").cat
    ns, codes = parts[column].to_numpy(), causes.codes.to_numpy()
    matrix = np.zeros((len(intervals), len(CAUSES)), dtype=np.int64)
    for code, cause in enumerate(causes.categories.tolist()):
        if cause in CAUSES:  # one by one: a million intervals have many parts
            rows = np.flatnonzero((codes == code) & (place >= 0))
            np.add.at(matrix[:, CAUSES.index(cause)], place[rows], ns[rows])
    return matrix


def staging(details: pd.DataFrame) -> pd.DataFrame:
    """Rows of `details` that tell of pageable memory which the CPU stages for a copy: no device runs
    meanwhile.  A program's own range may have that name, too, so the cause is asked."""
    return details[(details["cause"] == "memcpy") & (details["detail"] == "staging")]


def positions(intervals: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Which row of `intervals` each row of a table of intervals belongs to, -1 for none."""
    numbers, wanted = intervals["interval"].to_numpy(), table["interval"].to_numpy()
    if np.array_equal(numbers, np.arange(len(numbers))):  # numbered in order: nothing to look up
        return np.where((wanted >= 0) & (wanted < len(numbers)), wanted, -1)
    return pd.Index(numbers).get_indexer(wanted)


def scale_budget(parts: np.ndarray, predicted_ns: int) -> np.ndarray:
    """The parts (ns, in the order of CAUSES) of an interval that takes `predicted_ns` instead:
    int64, >= 0, exact sum.

    An excess is removed from the profiler's own work, then from the host's part, in proportion,
    then from everything.  Missing time was spent waiting: it is `queued`.
    """
    out = parts.astype(np.int64).copy()
    tiers = [("profiler",), SHORTER_WITH_HOST, CAUSES]
    for tier in tiers:
        excess = int(out.sum()) - predicted_ns
        if excess <= 0:
            break
        columns = np.array([CAUSES.index(c) for c in tier])
        have = out[columns]
        out[columns] = have - apportion(min(excess, int(have.sum())), have)
    out[CAUSES.index("queued")] += predicted_ns - int(out.sum())
    return out


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """`total` split in proportion to whole weights, exactly (largest remainders); never more than a
    weight if total <= sum(weights)."""
    whole = int(weights.sum())
    if not whole:
        return np.zeros_like(weights)
    products = [int(w) * total for w in weights]  # Python integers: no overflow
    out = np.array([p // whole for p in products], dtype=np.int64)
    remainder = np.array([p % whole for p in products], dtype=np.float64)
    out[np.argsort(-remainder, kind="stable")[: total - int(out.sum())]] += 1
    return out


class Roles(NamedTuple):
    """Numbers of intervals of one label."""

    median: int
    slowest: int  # but for the first, which is often a first call; the first if there is no other
    first: int  # the earliest on the trace's clock


def roles(evidence: Evidence) -> dict[str, Roles]:
    """Per label, in the order of `evidence.labels`."""
    labels = evidence.labels
    intervals = evidence.intervals.set_index("interval")
    names = labels["label"].tolist()
    first = intervals.groupby("label", sort=False)["start_ns"].idxmin()
    later = intervals.drop(first)
    slowest = later.groupby("label", sort=False)["elapsed_ns"].idxmax()
    slowest = slowest.reindex(names).fillna(first)
    columns = (labels["row_interval"], slowest, first.reindex(names))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {str(name): Roles(*map(int, row)) for name, row in zip(names, rows, strict=True)}
