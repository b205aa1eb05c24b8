"""`compare(a, b)`: two analyses, label by label."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nsysalign.compare.bootstrap import change
from nsysalign.model import CAUSES, Analysis
from nsysalign.parts import parts_matrix

#: Fewer runs on a side say nothing about a difference.
FEWEST_RUNS = 5
#: Differences below this are due to the event clock: it ticks every 32 ns, and a pair has two ends.
RESOLUTION_NS = 64


@dataclass(frozen=True)
class Change:
    """A time before and after, and bounds that contain the true change with the stated confidence."""

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
    kind: str
    site: str
    before_count: int
    after_count: int
    total: Change
    parts: dict[str, Change]  # causes that are not zero on both sides
    kernel_only: Change
    verdict: str  # slower, faster, unclear, same
    reason: str  # why it cannot be said; '' otherwise
    library: bool
    #: Of each side's median interval: what it would take without nsys, and its bounds, ns; None where that was not predicted.
    unprofiled: tuple[Predicted | None, Predicted | None] = (None, None)


@dataclass(frozen=True)
class Comparison:
    before: str  # what the sides are called
    after: str
    labels: tuple[LabelChange, ...]  # in the order of the first analysis
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    confidence: float
    threshold: float
    remarks: tuple[str, ...]  # differences between the two machines and tools
    missing: tuple[str, ...] = ()  # those of `only_before` that the user's own code measured

    def count(self, verdict: str) -> int:
        return sum(label.verdict == verdict for label in self.labels)


#: Clocks that differ by more than this are not the same conditions.
CLOCK_SHARE = 0.03


def compare(
    before: Analysis,
    after: Analysis,
    *,
    names: tuple[str, str] = ("A", "B"),
    confidence: float = 0.95,
    threshold: float = 0.02,
    seed: int = 0,
) -> Comparison:
    """Every label of both sides.  `threshold`: the share of the time below which a change does not matter."""
    a, b = _runs(before), _runs(after)
    without = [_unprofiled(side) for side in (before, after)]
    first = before.labels.set_index("label")
    labels = []
    for label in first.index:
        if label not in b:
            continue
        # a label's random numbers depend on its name only: other labels do not change its answer
        number = seed + zlib.crc32(label.encode("utf-8", "replace"))
        row = first.loc[label]
        found = _label(
            label,
            str(row["kind"]),
            str(row["site"]),
            bool(row["library"]),
            a[label],
            b[label],
            confidence,
            threshold,
            number,
        )
        labels.append(replace(found, unprofiled=(without[0].get(label), without[1].get(label))))
    return Comparison(
        before=names[0],
        after=names[1],
        labels=tuple(labels),
        only_before=tuple(label for label in a if label not in b),
        only_after=tuple(label for label in b if label not in a),
        confidence=confidence,
        threshold=threshold,
        remarks=tuple(_remarks(before, after, names)),
        missing=tuple(label for label in a if label not in b and not first.loc[label, "library"]),
    )


def _runs(analysis: Analysis) -> dict[str, np.ndarray]:
    """Per label one row per run: measured time, kernel-only time, then the causes in the order of CAUSES."""
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


def _label(
    label: str,
    kind: str,
    site: str,
    library: bool,
    before: np.ndarray,
    after: np.ndarray,
    confidence: float,
    threshold: float,
    seed: int,
) -> LabelChange:
    values = [Change(*map(float, row)) for row in change(before, after, confidence, seed)]
    total, kernel_only, *causes = values
    verdict, reason = judge(total, len(before), len(after), threshold)
    parts = {c: v for c, v in zip(CAUSES, causes, strict=True) if v.before_ns or v.after_ns}
    return LabelChange(
        label,
        kind,
        site,
        len(before),
        len(after),
        total,
        parts,
        kernel_only,
        verdict,
        reason,
        library,
    )


def judge(total: Change, before_count: int, after_count: int, threshold: float) -> tuple[str, str]:
    """(verdict, reason).  A change counts if its bounds exclude zero and it is larger than what matters; "same" is said only if
    the bounds exclude any change that matters.

              -matters      0      +matters
        ---------|----------+---------|----------
                 |     <--------->    |               same
                 |          |    <--------*------->   slower
                 |   <------------*-------->          cannot say
    """
    if min(before_count, after_count) < FEWEST_RUNS:
        return (
            "unclear",
            f"{before_count} and {after_count} intervals: at least {FEWEST_RUNS} on each side are needed",
        )
    matters = max(threshold * total.before_ns, RESOLUTION_NS)
    if -matters < total.low_ns and total.high_ns < matters:
        return "same", ""
    if total.low_ns > 0 and total.change_ns >= matters:
        return "slower", ""
    if total.high_ns < 0 and total.change_ns <= -matters:
        return "faster", ""
    if total.clear and abs(total.change_ns) < matters:
        return "unclear", "a small change: it may or may not matter"
    return "unclear", "the intervals vary too much to tell; more of them would help"


def _clock_mhz(analysis: Analysis) -> float | None:
    """The median SM clock of the samples between the first interval and the last, None without any."""
    clocks, intervals = analysis.gpu_clocks, analysis.measured
    if clocks.empty or intervals.empty:
        return None
    near = clocks[
        (clocks["end_ns"] >= intervals["start_ns"].min())
        & (clocks["start_ns"] <= intervals["end_ns"].max())
    ]
    values = np.repeat(near["sm_max_mhz"].to_numpy(), near["samples"].to_numpy())
    return float(np.median(values)) if len(values) else None


def _remarks(before: Analysis, after: Analysis, names: tuple[str, str]) -> list[str]:
    """Notes on what else differs, since then a change of time may not be due to the program."""
    sides = (before, after)
    traits = {
        "GPU": [", ".join(dict.fromkeys(side.trace.devices)) or "unknown" for side in sides],
        "driver": [side.trace.driver_version or "unknown" for side in sides],
        "nsys": [side.trace.nsys_version or "unknown" for side in sides],
        "torch": [side.collected_with("torch") or "unknown" for side in sides],
        "event tracing": [
            "on" if (side.intervals["method"] == "event-trace").any() else "off" for side in sides
        ],
    }
    clocks = [_clock_mhz(side) for side in sides]
    if all(clocks) and min(clocks) < (1 - CLOCK_SHARE) * max(clocks):
        traits["SM clock"] = [f"{mhz:.0f} MHz" for mhz in clocks]
    found = [
        f"{what} differs: {names[0]} {x}, {names[1]} {y}"
        for what, (x, y) in traits.items()
        if x != y
    ]
    for side, name in zip(sides, names, strict=True):
        disturbed = sum("profiler-disturbed" in flags for flags in side.intervals["flags"])
        if disturbed:
            found.append(f"intervals of {name} disturbed by the profiler's own work: {disturbed}")
        if len(side.unaligned):
            found.append(
                f"intervals of {name} that could not be placed and are not compared: {len(side.unaligned)}"
            )
    return found
