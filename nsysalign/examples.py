"""Which intervals stand for many: a label's median, slowest and first one, and the one that shows a finding best."""

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


def of_findings(analysis: Analysis) -> list[int]:
    """Per finding: the label's median run if the rule marked that one, else the slowest run that it marked,
    else the label's median run; -1 for a finding about no label."""
    intervals, labels = analysis.intervals, analysis.labels
    medians = dict(zip(labels["label"].tolist(), labels["row_interval"].tolist(), strict=True))
    marked: dict[tuple[str, str], list[tuple[int, int]]] = {}
    columns = ("label", "findings", "elapsed_ns", "interval")
    for label, rules, elapsed, number in zip(
        *(intervals[c].tolist() for c in columns), strict=True
    ):
        for rule in rules:
            marked.setdefault((label, rule), []).append((elapsed, number))
    best = []
    for label, rule in zip(
        analysis.findings["label"].tolist(), analysis.findings["rule"].tolist(), strict=True
    ):
        middle = medians.get(label, -1)
        runs = marked.get((label, rule), [])
        best.append(middle if not runs or any(n == middle for _, n in runs) else max(runs)[1])
    return best
