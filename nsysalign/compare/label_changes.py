"""`compare(a, b)`: two analyses, label by label."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsysalign.compare.bootstrap import change
from nsysalign.model import CAUSES, Analysis
from nsysalign.parts import parts_matrix

#: Fewer runs on a side say nothing about a difference.
FEWEST_RUNS = 5
#: Differences below this are due to the event clock: it ticks every 32 ns, and a pair has two ends.
RESOLUTION_NS = 64
#: Clocks that differ by more than this are not the same conditions.
CLOCK_SHARE = 0.03
#: Why a change is unclear.
REASONS = {
    "too few": f"fewer than {FEWEST_RUNS} intervals on a side, or so few that the bounds are wider "
    "than the time itself",
    "varies": "the intervals vary too much to tell; more of them would help",
    "small": "there is a change, but it may be too small to matter",
}


@dataclass(frozen=True)
class Change:
    """A time before and after, and bounds that contain the true change with the stated
    confidence."""

    before_ns: float
    after_ns: float
    change_ns: float
    low_ns: float
    high_ns: float

    @property
    def clear(self) -> bool:
        """The bounds exclude zero."""
        return self.low_ns > 0 or self.high_ns < 0


class Predicted(NamedTuple):
    """What an interval would take without nsys, ns, and its bounds."""

    ns: int
    lower_ns: int
    upper_ns: int


@dataclass(frozen=True)
class LabelChange:
    label: str
    label_after: str  # another one if its lines moved: it is the same code
    kind: str
    site: str
    before_count: int
    after_count: int
    total: Change
    parts: dict[str, Change]  # causes that are not zero on both sides
    kernel_only: Change
    verdict: str  # slower, faster, unclear, same; different: the runs were not recorded alike
    reason: str  # one of REASONS if it is unclear, else ''
    library: bool
    #: Of each side's median interval: what it would take without nsys, ns; None where that was not
    #: predicted.
    unprofiled: tuple[Predicted | None, Predicted | None] = (None, None)


@dataclass(frozen=True)
class Comparison:
    before: str  # what the sides are called
    after: str
    labels: tuple[LabelChange, ...]  # in the order of the first analysis
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    threshold: float
    confounders: tuple[str, ...]  # differences of the recordings that alone change times
    remarks: tuple[str, ...]  # what else differs
    missing: tuple[str, ...] = ()  # those of `only_before` that the user's own code measured

    def count(self, verdict: str) -> int:
        return sum(label.verdict == verdict for label in self.labels)


def compare(
    before: Analysis,
    after: Analysis,
    *,
    names: tuple[str, str] = ("A", "B"),
    threshold: float = 0.02,
    anyway: bool = False,
) -> Comparison:
    """Every label of both sides.  `threshold`: the share of the time below which a change does not
    matter.

    `anyway`: judge the labels of runs that were recorded differently as well.
    """
    a, b = _runs(before), _runs(after)
    predicted = _unprofiled(before), _unprofiled(after)
    first = before.labels.set_index("label")
    same_code = matching(before, after)
    confounders, remarks = _differences(before, after, names)
    labels = []
    for label, other in same_code.items():
        # a label's random numbers depend on its name only: other labels do not change its answer
        number = zlib.crc32(label.encode("utf-8", "replace"))
        rows = change(a[label], b[other], number)
        total, kernel_only, *causes = [Change(*map(float, row)) for row in rows]
        verdict, reason = judge(total, len(a[label]), len(b[other]), threshold)
        if confounders and not anyway:
            verdict, reason = "different", reason if reason == "too few" else ""
        row, parts = first.loc[label], zip(CAUSES, causes, strict=True)
        labels.append(
            LabelChange(
                label, other, str(row["kind"]), str(row["site"]), len(a[label]), len(b[other]), total,
                {cause: part for cause, part in parts if part.before_ns or part.after_ns},
                kernel_only, verdict, reason, bool(row["library"]),
                (predicted[0].get(label), predicted[1].get(other)),
            )
        )  # fmt: skip
    moved = [f"{x} is {y}" for x, y in same_code.items() if x != y]
    if moved:
        remarks.append(f"matched by their code, as lines moved (A is B): {', '.join(moved)}")
    only_before = tuple(label for label in a if label not in same_code)
    only_after = tuple(label for label in b if label not in same_code.values())
    missing = tuple(label for label in only_before if not first.loc[label, "library"])
    return Comparison(
        *names, tuple(labels), only_before, only_after, threshold, tuple(confounders), tuple(remarks), missing,
    )  # fmt: skip


def matching(before: Analysis, after: Analysis) -> dict[str, str]:
    """Which label of `after` each label of `before` is, in the order of `before`; labels of one
    side are absent.

    A region is known by its name.  A label made of call sites is known by its code, the text of its
    lines, because lines move; the k-th of several with the same code is the k-th on the other side.
    Where their numbers differ, or the text is not known, names decide; different code is never the
    same label.

        A   bench.py:10  start.record()         B   bench.py:12  start.record()
            bench.py:20  start.record()             bench.py:22  start.record()
    """
    sides = [_by_code(analysis) for analysis in (before, after)]
    found = {}
    for code, labels in sides[0].items():
        others = sides[1].get(code, [])
        if len(labels) == len(others):
            found |= dict(zip(labels, others, strict=True))
    codes = [{x: code for code, labels in side.items() for x in labels} for side in sides]
    rest = set(after.labels["label"]) - set(found.values())
    for label in before.labels["label"]:
        known = codes[0].get(label), codes[1].get(label)
        if label not in found and label in rest and (None in known or known[0] == known[1]):
            found[label] = label
    return {label: found[label] for label in before.labels["label"] if label in found}


def _by_code(analysis: Analysis) -> Mapping[tuple, list[str]]:
    """The labels made of call sites whose lines are known, by (kind, name without numbers of lines,
    text), each in order."""
    text = dict(analysis.source_lines[["site", "text"]].itertuples(index=False))
    codes: dict[tuple, list[tuple[int, str]]] = {}
    for row in analysis.labels[["label", "kind", "site"]].itertuples(index=False):
        file, _, line = row.site.rpartition(":")
        place = re.search(re.escape(row.site.rpartition("/")[2]) + r"(?:-(\d+))?(?!\d)", row.label)
        if row.site in text and place and line.isdigit():
            end = text.get(f"{file}:{place[1]}", "") if place[1] else ""
            name = re.sub(r":\d+(-\d+)?", ":", row.label)
            code = row.kind, name, text[row.site], end
            codes.setdefault(code, []).append((int(line), row.label))
    return {code: [label for _, label in sorted(labels)] for code, labels in codes.items()}


def _runs(analysis: Analysis) -> dict[str, np.ndarray]:
    """Per label one row per run: measured time, kernel-only time, then the causes in the order of
    CAUSES."""
    intervals = analysis.intervals
    whole = intervals[["elapsed_ns", "kernel_only_ns"]].to_numpy(np.int64)
    matrix = np.hstack([whole, parts_matrix(analysis)])
    groups = intervals.groupby("label", sort=False).indices
    return {str(label): matrix[groups[label]] for label in analysis.labels["label"]}


def _unprofiled(analysis: Analysis) -> dict[str, Predicted]:
    """Label -> what its median interval would take without nsys, where that was predicted."""
    columns = ["predicted_ns", "lower_ns", "upper_ns"]
    known = (
        analysis.unprofiled.dropna(subset=columns).set_index("interval")[columns].astype("int64")
    )
    row = analysis.labels.set_index("label")["row_interval"]
    return {
        str(label): Predicted(*known.loc[number].tolist())
        for label, number in row.items()
        if number in known.index
    }


def judge(total: Change, before_count: int, after_count: int, threshold: float) -> tuple[str, str]:
    """(verdict, reason).  A change counts if its bounds exclude zero and it is larger than what
    matters; "same" is said only if the bounds exclude any change that matters.

              -matters      0      +matters
        ---------|----------+---------|----------
                 |     <--------->    |               same
                 |          |    <--------*------->   slower
                 |   <------------*-------->          cannot say
    """
    matters = max(threshold * total.before_ns, RESOLUTION_NS)
    if min(before_count, after_count) < FEWEST_RUNS:
        return "unclear", "too few"
    if -matters < total.low_ns and total.high_ns < matters:
        return "same", ""
    if total.low_ns > 0 and total.change_ns >= matters:
        return "slower", ""
    if total.high_ns < 0 and total.change_ns <= -matters:
        return "faster", ""
    if total.clear and abs(total.change_ns) < matters:
        return "unclear", "small"
    # no time falls by more than all of it
    return "unclear", "too few" if total.low_ns < -total.before_ns else "varies"


def _clock_mhz(analysis: Analysis) -> float | None:
    """The median SM clock of the samples between the first interval and the last, None without
    any."""
    clocks, intervals = analysis.gpu_clocks, analysis.measured
    if clocks.empty or intervals.empty:
        return None
    near = clocks[
        (clocks["end_ns"] >= intervals["start_ns"].min())
        & (clocks["start_ns"] <= intervals["end_ns"].max())
    ]
    values = np.repeat(near["sm_max_mhz"].to_numpy(), near["samples"].to_numpy())
    return float(np.median(values)) if len(values) else None


def _differences(
    before: Analysis, after: Analysis, names: tuple[str, str]
) -> tuple[list[str], list[str]]:
    """(what alone changes times, what else differs): a change of time may then not be due to the
    program."""
    sides = (before, after)
    confounding = {
        "GPU": [", ".join(dict.fromkeys(side.trace.devices)) for side in sides],
        "nsys": [side.trace.nsys_version or "" for side in sides],
        "event tracing": [
            "on" if (side.intervals["method"] == "event-trace").any() else "off" for side in sides
        ],
    }
    other = {
        "driver": [side.trace.driver_version or "" for side in sides],
        "torch": [side.known.torch for side in sides],
    }
    clocks = [_clock_mhz(side) for side in sides]
    if all(clocks) and min(clocks) < (1 - CLOCK_SHARE) * max(clocks):
        confounding["SM clock"] = [f"{mhz:.0f} MHz" for mhz in clocks]
    confounders, remarks = [], []
    for traits, known in ((confounding, confounders), (other, remarks)):
        for what, (x, y) in traits.items():
            if x != y:
                text = f"{what} differs: {names[0]} {x or 'unknown'}, {names[1]} {y or 'unknown'}"
                (known if x and y else remarks).append(text)
    for side, name in zip(sides, names, strict=True):
        disturbed = sum("profiler-disturbed" in flags for flags in side.intervals["flags"])
        if disturbed:
            remarks.append(f"intervals of {name} disturbed by the profiler's own work: {disturbed}")
        if len(side.unaligned):
            remarks.append(
                f"intervals of {name} that could not be placed and are not compared: "
                f"{len(side.unaligned)}"
            )
    return confounders, remarks
