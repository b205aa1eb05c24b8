"""`compare(a, b)`: two analyses, label by label."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np

from nsysalign.causes import CAUSES
from nsysalign.compare.bootstrap import change
from nsysalign.model import Analysis
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


@dataclass(frozen=True)
class LabelChange:
    label: str
    label_after: str  # another one if its lines moved: it is the same code
    kind: str
    site: str
    count_before: int
    count_after: int
    total: Change
    parts: dict[str, Change]  # causes that are not zero on both sides
    kernel_only: Change
    verdict: str  # slower, faster, unclear, same; different: the runs were not recorded alike
    reason: str  # one of REASONS if it is unclear, else ''
    library: bool


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
    matter; `anyway`: judge the labels of runs that were recorded differently as well."""
    a, b = _runs(before), _runs(after)
    same_code = matching(before, after)
    confounders, remarks = _differences(before, after, names)
    labels = []
    for row in before.labels.itertuples(index=False):
        if (other := same_code.get(row.label)) is None:
            continue
        # a label's random numbers depend on its name only: other labels do not change its answer
        seed = zlib.crc32(row.label.encode("utf-8", "replace"))
        changes = change(a[row.label], b[other], seed)
        total, kernel_only, *causes = [Change(*map(float, values)) for values in changes]
        verdict, reason = judge(total, len(a[row.label]), len(b[other]), threshold)
        if confounders and not anyway:
            verdict, reason = "different", reason if reason == "too few" else ""
        parts = zip(CAUSES, causes, strict=True)
        labels.append(
            LabelChange(
                row.label, other, row.kind, row.site, len(a[row.label]), len(b[other]), total,
                {cause: part for cause, part in parts if part.before_ns or part.after_ns},
                kernel_only, verdict, reason, row.library,
            )
        )  # fmt: skip
    if moved := [f"{x} is {y}" for x, y in same_code.items() if x != y]:
        remarks.append(f"matched by their code, as lines moved (A is B): {', '.join(moved)}")
    library = dict(before.labels[["label", "library"]].itertuples(index=False))
    only_before = tuple(label for label in a if label not in same_code)
    return Comparison(
        *names,
        labels=tuple(labels),
        only_before=only_before,
        only_after=tuple(label for label in b if label not in same_code.values()),
        threshold=threshold,
        confounders=tuple(confounders),
        remarks=tuple(remarks),
        missing=tuple(label for label in only_before if not library[label]),
    )


def matching(before: Analysis, after: Analysis) -> dict[str, str]:
    """Which label of `after` each label of `before` is; labels of one side are absent.

    A region is known by its name.  A label made of call sites is known by its code, the text of its
    lines, because lines move; the k-th of several with the same code is the k-th on the other side.
    Where their numbers differ, or the text is not known, names decide; different code is never the
    same label.

        A   bench.py:10  start.record()         B   bench.py:12  start.record()
            bench.py:20  start.record()             bench.py:22  start.record()
    """
    first, second = _codes(before), _codes(after)
    found: dict[str, str] = {}
    for code in {*first.values()} - {None}:
        one, two = ([x for x, own in side.items() if own == code] for side in (first, second))
        if len(one) == len(two):
            found |= dict(zip(one, two, strict=True))
    rest = {*second} - {*found.values()}
    for label, code in first.items():
        same = None in (code, second.get(label)) or code == second[label]
        if label not in found and label in rest and same:
            found[label] = label
    return {label: found[label] for label in before.labels["label"] if label in found}


def _codes(analysis: Analysis) -> dict[str, tuple | None]:
    """What the labels are known by, in order of their lines: (kind, name without numbers of lines,
    text of the lines); None where they are not made of call sites, or the text is not known."""
    text = dict(analysis.source_lines[["site", "text"]].itertuples(index=False))
    codes: list[tuple[int, str, tuple | None]] = []
    for label, kind, site in analysis.labels[["label", "kind", "site"]].itertuples(index=False):
        file, _, line = site.rpartition(":")
        place = re.search(re.escape(site.rpartition("/")[2]) + r"(?:-(\d+))?(?!\d)", label)
        if not (site in text and place and line.isdigit()):
            codes.append((0, label, None))
            continue
        end = text.get(f"{file}:{place[1]}", "") if place[1] else ""
        name = re.sub(r":\d+(-\d+)?", ":", label)
        codes.append((int(line), label, (kind, name, text[site], end)))
    return {label: code for _, label, code in sorted(codes, key=lambda one: one[:2])}


def _runs(analysis: Analysis) -> dict[str, np.ndarray]:
    """Per label one row per run: measured time, kernel-only time, then the causes in the order of
    CAUSES."""
    intervals = analysis.intervals
    whole = intervals[["elapsed_ns", "kernel_only_ns"]].to_numpy(np.int64)
    matrix = np.hstack([whole, parts_matrix(analysis)])
    groups = intervals.groupby("label", sort=False).indices
    return {label: matrix[groups[label]] for label in analysis.labels["label"]}


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


def _traits(analysis: Analysis) -> dict[str, str]:
    """Under which conditions a run was recorded, '' for what is unknown."""
    return {
        "GPU": ", ".join(dict.fromkeys(analysis.trace.devices)),
        "recorder": analysis.trace.by.title,
        "nsys": analysis.trace.nsys_version or "",
        "event tracing": "on" if (analysis.intervals["method"] == "event-trace").any() else "off",
        "driver": analysis.trace.driver_version or "",
        "torch": analysis.known.torch,
    }


def _clock_mhz(analysis: Analysis) -> float:
    """The median SM clock of the samples between the first interval and the last, 0 without any."""
    clocks, intervals = analysis.gpu_clocks, analysis.measured
    near = clocks[
        (clocks["end_ns"] >= intervals["start_ns"].min())
        & (clocks["start_ns"] <= intervals["end_ns"].max())
    ]
    values = near["sm_max_mhz"].repeat(near["samples"])
    return float(values.median()) if len(values) else 0.0


def _differences(
    before: Analysis, after: Analysis, names: tuple[str, str]
) -> tuple[list[str], list[str]]:
    """(what alone changes times, what else differs): a change of time may then not be due to the
    program."""
    sides = (before, after)
    confounders, remarks = [], []
    first, second = map(_traits, sides)
    for what, x in first.items():
        y = second[what]
        text = f"{what} differs: {names[0]} {x or 'unknown'}, {names[1]} {y or 'unknown'}"
        if x != y:
            judged = x and y and what not in ("driver", "torch")
            (confounders if judged else remarks).append(text)
    x, y = map(_clock_mhz, sides)
    if 0 < min(x, y) < (1 - CLOCK_SHARE) * max(x, y):
        confounders.append(f"SM clock differs: {names[0]} {x:.0f} MHz, {names[1]} {y:.0f} MHz")
    for side, name in zip(sides, names, strict=True):
        disturbed = sum("profiler-disturbed" in flags for flags in side.intervals["flags"])
        if disturbed:
            remarks.append(f"intervals of {name} disturbed by the profiler's own work: {disturbed}")
        if lost := len(side.unaligned):
            remarks.append(
                f"intervals of {name} that could not be placed and are not compared: {lost}"
            )
    return confounders, remarks
