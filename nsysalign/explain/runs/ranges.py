"""What do the program's own NVTX ranges say of idle time, and how many of them give the GPU no work?"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Finding, Findings
from nsysalign.intervals import covered, largest, union
from nsysalign.model import OURS, Trace
from nsysalign.place.ranges import of_library
from nsysalign.text import plural, safe_text, subject

#: Names of ranges that are looked at, those that were open for longest; gaps by which one is chosen.
_MOST_NAMES, _MOST_GAPS = 50, 1_000
#: Of several names that hold this much of what one of them does, the shortest range says most.
_ALIKE = 0.8
#: How torch calls the range in which a DataLoader gets the next batch; behind it stands who does so.
_NEXT_BATCH = re.compile(r"enumerate\(DataLoader\)")
#: Ranges in which a library makes what its other calls use, once.
_SETS_UP = re.compile(
    r"ncclComm(Init|Split)|cu(dnn|blas|blasLt|sparse|solver\w*|fft)(Create|Init)",
    re.IGNORECASE,
)
#: So many ranges of a name, and this share of them without work, are worth saying.
_FEWEST, _WITHOUT = 3, 0.2


class InRange(NamedTuple):
    """How much of some stretches lies in ranges of the program; the innermost name that holds most
    of that, and how much it holds."""

    ns: int = 0
    name: str = ""
    name_ns: int = 0


def in_ranges(trace: Trace, process: int, start: np.ndarray, end: np.ndarray) -> InRange:
    """Return how much of some stretches lies in ranges of the program itself, not of libraries or of the tool, and the
    innermost name that holds most of that.

    start, end: the stretches (ns), in the order of time and disjoint

    Here that name is "load": it holds nearly as much of the stretches as "train", and lies within it.

    train       [                                        ]
      load        [     ]          [     ]
    stretches      |---|            |---|     |-|
    """
    ranges = _ranges_of_program(trace, process)
    if ranges.empty or not len(start):
        return InRange()
    ns = _held_ns(ranges, start, end)
    # to choose a name, the longest stretches are enough
    chosen = np.sort(largest(end - start, _MOST_GAPS))
    name = _innermost_name(ranges, start[chosen], end[chosen])
    if not ns or not name:
        return InRange(ns=ns)
    of_name = ranges[ranges["text"] == name]
    return InRange(ns=ns, name=name, name_ns=_held_ns(of_name, start, end))


def _ranges_of_program(trace: Trace, process: int) -> pd.DataFrame:
    """Return the ranges of a process that its program made itself."""
    # this mask leaves out what no program wrote; libraries, such as torch, make ranges as a program does
    of_process = trace.program_ranges & (trace.ranges["process"] == process).to_numpy()
    ranges = trace.ranges[of_process]
    names = pd.unique(ranges["text"]).tolist()
    of_program = [name for name in names if not (name.startswith(OURS) or of_library(name))]
    return ranges[ranges["text"].isin(of_program)]


def _innermost_name(ranges: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> str:
    """Return, of the names of ranges that hold about as much of the stretches as the name that holds most, the one
    whose ranges are open for the shortest time; '' if no range holds any.

    start, end: the stretches (ns), in the order of time and disjoint
    """
    open_ns = (ranges["end_ns"] - ranges["start_ns"]).groupby(ranges["text"]).sum()  # by name
    open_longest = open_ns.sort_values(ascending=False, kind="stable").index[:_MOST_NAMES].tolist()
    ranges_of = dict(iter(ranges[ranges["text"].isin(open_longest)].groupby("text")))
    held_ns = {name: _held_ns(ranges_of[name], start, end) for name in open_longest}
    most_ns = max(held_ns.values())
    if not most_ns:
        return ""
    hold_most = [name for name, ns in held_ns.items() if ns >= _ALIKE * most_ns]
    return str(min(hold_most, key=lambda name: open_ns[name]))


def in_data_loader(trace: Trace, process: int, start: np.ndarray, end: np.ndarray) -> InRange:
    """Return how much of some stretches lies in ranges in which torch's DataLoader gets the next batch, and
    which of their names holds most.

    start, end: the stretches (ns), in the order of time and disjoint
    """
    return _in_ranges_of(trace, process, start, end, _NEXT_BATCH)


def in_set_up(trace: Trace, process: int, start: np.ndarray, end: np.ndarray) -> InRange:
    """Return how much of some stretches lies in ranges in which a library sets itself up, and which of their names
    holds most.

    start, end: the stretches (ns), in the order of time and disjoint
    """
    return _in_ranges_of(trace, process, start, end, _SETS_UP)


def _in_ranges_of(
    trace: Trace, process: int, start: np.ndarray, end: np.ndarray, names: re.Pattern[str]
) -> InRange:
    """Return how much of the stretches lies in ranges of these names, and which name holds most."""
    ranges = trace.ranges[trace.ranges["process"] == process]
    ranges = ranges[ranges["text"].str.match(names).to_numpy(dtype=bool)]
    if ranges.empty or not len(start):
        return InRange()
    held = {name: _held_ns(named, start, end) for name, named in ranges.groupby("text")}
    name = max(held, key=lambda name: held[name])
    return InRange(ns=_held_ns(ranges, start, end), name=str(name), name_ns=held[name])


def _held_ns(ranges: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> int:
    """Return how long (ns) at least one of the ranges is open within the stretches."""
    opened, closed = union(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy())
    in_stretches = covered(opened, closed, end) - covered(opened, closed, start)
    return int(in_stretches.sum())


def ranges_without_work(facts: Facts) -> Findings:
    """Yield a finding on each name (label) of which at least three ranges exist and a fifth or more of them give
    the GPU no work.

    It says how many give none: everything else that is reported under the name is about the other ranges.
    """
    labels = {label.name: label for label in facts.labels if label.kind == "nvtx"}
    for row in facts.analysis.host_ranges.itertuples(index=False):
        without = row.count - row.with_work
        label = labels.get(row.label)  # None if no range of this name has work
        if label is None or label.library:
            continue
        if without < _WITHOUT * row.count or row.count < _FEWEST:
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
