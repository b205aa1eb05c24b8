"""Which intervals stand for many: a label's median, slowest and first one."""

from __future__ import annotations

from typing import NamedTuple

from nsysalign.model import Analysis


class Roles(NamedTuple):
    """Numbers of intervals of one label."""

    median: int
    slowest: int
    first: int  # the earliest on the trace's clock


def roles(analysis: Analysis) -> dict[str, Roles]:
    """Per label, in the order of `analysis.labels`."""
    found = {}
    groups = dict(iter(analysis.intervals.groupby("label", sort=False)))
    for label, median in zip(
        analysis.labels["label"], analysis.labels["row_interval"], strict=True
    ):
        number, elapsed, start = (
            groups[label][c].to_numpy() for c in ("interval", "elapsed_ns", "start_ns")
        )
        found[str(label)] = Roles(
            int(median), int(number[elapsed.argmax()]), int(number[start.argmin()])
        )
    return found
