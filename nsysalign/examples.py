"""Which intervals stand for many: a label's median, slowest and first one."""

from __future__ import annotations

from typing import NamedTuple

from nsysalign.model import Evidence


class Roles(NamedTuple):
    """Numbers of intervals of one label."""

    median: int
    slowest: int
    first: int  # the earliest on the trace's clock


def roles(evidence: Evidence) -> dict[str, Roles]:
    """Per label, in the order of `evidence.labels`."""
    labels = evidence.labels
    of_label = evidence.intervals.set_index("interval").groupby("label", sort=False)
    slowest, first = of_label["elapsed_ns"].idxmax(), of_label["start_ns"].idxmin()
    names = labels["label"].tolist()
    columns = (labels["row_interval"], slowest.reindex(names), first.reindex(names))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {str(name): Roles(*map(int, row)) for name, row in zip(names, rows, strict=True)}
