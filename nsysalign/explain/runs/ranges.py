"""What do the program's own NVTX ranges say of idle time, and how many of them give the GPU no work?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Finding, Findings
from nsysalign.intervals import covered, group, union
from nsysalign.model import OURS, Trace
from nsysalign.place.ranges import of_library
from nsysalign.text import plural, safe_text, subject

#: Names of ranges that are looked at, those that were open for longest; gaps by which one is chosen.
_MOST_NAMES, _MOST_GAPS = 50, 1_000
#: Of several names that hold this much of what one of them does, the shortest range says most.
_ALIKE = 0.8
#: How torch calls the range in which a DataLoader gets the next batch; behind it stands who does so.
_NEXT_BATCH = "enumerate(DataLoader)"
#: So many ranges of a name, and this share of them without work, are worth saying.
_FEWEST, _WITHOUT = 3, 0.2


class InRange(NamedTuple):
    """How much of some stretches lies in ranges of the program; the innermost name that holds most
    of that, and how much it holds."""

    ns: int = 0
    name: str = ""
    name_ns: int = 0


def in_ranges(trace: Trace, process: int, start: np.ndarray, end: np.ndarray) -> InRange:
    """Return how much of these stretches lies in ranges of the program itself, not of libraries or
    of the tool.

    start, end: ns, in order of time and disjoint
    """
    ranges = trace.ranges[trace.program_ranges & (trace.ranges["process"] == process).to_numpy()]
    number, names = pd.factorize(ranges["text"], sort=True)
    of_program = np.array([not (n.startswith(OURS) or of_library(n)) for n in names], bool)
    if not of_program.any() or not len(start):
        return InRange()
    kept = of_program[number]
    number = number[kept]
    opened, closed = (ranges[column].to_numpy()[kept] for column in ("start_ns", "end_ns"))
    ns = _covered_ns(opened, closed, start, end)
    lengths = np.zeros(len(names), np.int64)
    np.add.at(lengths, number, closed - opened)
    longest = np.sort(np.argsort(start - end, kind="stable")[:_MOST_GAPS])
    rows_of = group(number, np.arange(len(number)))
    held = {}
    for name in np.argsort(-lengths, kind="stable").tolist():
        if name in rows_of and len(held) < _MOST_NAMES:
            rows = rows_of[name]
            held[name] = _covered_ns(opened[rows], closed[rows], start[longest], end[longest])
    largest = max(held.values())
    if not ns or not largest:
        return InRange(ns)
    alike = [name for name, held_ns in held.items() if held_ns >= _ALIKE * largest]
    chosen = min(alike, key=lambda name: lengths[name])
    rows = rows_of[chosen]
    return InRange(ns, str(names[chosen]), _covered_ns(opened[rows], closed[rows], start, end))


def in_data_loader(trace: Trace, process: int, start: np.ndarray, end: np.ndarray) -> InRange:
    """The same of the ranges in which torch's DataLoader gets the next batch."""
    ranges = trace.ranges[trace.ranges["process"] == process]
    ranges = ranges[ranges["text"].str.startswith(_NEXT_BATCH).to_numpy(dtype=bool)]
    if ranges.empty or not len(start):
        return InRange()
    held = {name: _held_ns(named, start, end) for name, named in ranges.groupby("text")}
    name = max(held, key=lambda name: held[name])
    return InRange(_held_ns(ranges, start, end), str(name), held[name])


def _held_ns(ranges: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> int:
    return _covered_ns(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), start, end)


def _covered_ns(opened: np.ndarray, closed: np.ndarray, start: np.ndarray, end: np.ndarray) -> int:
    """How long at least one of the ranges is open within the stretches."""
    blocks = union(opened, closed)
    return int((covered(*blocks, end) - covered(*blocks, start)).sum())


def ranges_without_work(facts: Facts) -> Findings:
    """Yield findings on names of which some ranges give the GPU work and others give it none.

    They say how many give none; what else is reported under the name is about the other ranges.
    """
    labels = {label.name: label for label in facts.labels if label.kind == "nvtx"}
    for row in facts.analysis.host_ranges.itertuples(index=False):
        without = row.count - row.with_work
        label = labels.get(row.label)
        if label is None or without < _WITHOUT * row.count or row.count < _FEWEST:
            continue
        if label.library:
            continue
        evidence = {
            "ranges": row.count,
            "ranges_without_work": without,
            "ranges_with_work": row.with_work,
        }
        title = (
            f"{without:,} of its {plural(row.count, 'range')} give the GPU no work; what is said of "
            f"{safe_text(subject(label.name))} is said of the other {row.with_work:,}."
        )
        yield Finding("warning", label.name, title, evidence, site=label.site)
