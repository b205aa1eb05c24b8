"""Plain rows from an Analysis, shared by terminal, page and notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsysalign.model import CAUSES, Analysis
from nsysalign.parts import parts_matrix
from nsysalign.text import plural

if TYPE_CHECKING:
    import pandas as pd


#: What a row takes from `frames.LABELS` as it is.
OF_LABELS = (
    "label", "kind", "count", "site", "median_ns", "std_ns", "min_ns", "max_ns", "p05_ns", "p95_ns", "library",
)  # fmt: skip


@dataclass(frozen=True)
class LabelRow:
    """A label with the budget of one real interval, so that the parts add up to `elapsed_ns`."""

    label: str
    kind: str
    count: int
    site: str
    interval: int  # number of the interval shown
    name: str  # its name
    elapsed_ns: int
    error_ns: int
    kernel_only_ns: int
    kernel_only_upper_ns: int
    parts_ns: dict[str, int]  # every cause, zero included
    median_ns: float
    std_ns: float
    min_ns: int
    max_ns: int
    p05_ns: float
    p95_ns: float
    library: bool
    findings: tuple[str, ...]  # rules that concern the label
    flagged: bool  # one of them is a warning or an error
    callers: tuple[str, ...]
    unprofiled_ns: tuple[int, int, int] | None = None  # predicted without nsys, and its bounds
    no_prediction: str = ""  # why there is none: "word: sentence"
    #: For host timers: how long kernels issued inside ran before the second reading; None for all
    #: others.
    meanwhile_ns: int | None = None

    @property
    def kernel_ns(self) -> int:
        """Of its own time: kernels, and CUDA graphs traced as one row."""
        return self.parts_ns["kernel"] + self.parts_ns["graph"]


def label_rows(analysis: Analysis) -> list[LabelRow]:
    """One row per label in the analysis' order, labels timed by libraries after the user's own."""
    import pandas as pd

    labels, intervals = analysis.labels, analysis.intervals
    positions = pd.Index(intervals["interval"]).get_indexer(labels["row_interval"])
    matrix = parts_matrix(analysis)
    rules = _rules(analysis.findings)
    serious = set(
        analysis.findings.loc[analysis.findings["severity"] != "info", "label"].astype(str)
    )
    chosen = intervals.iloc[positions]
    predicted = unprofiled(analysis)
    rows = [
        LabelRow(
            **{name: getattr(label, name) for name in OF_LABELS},
            **of_interval(interval, matrix[position]),
            findings=rules.get(str(label.label), ()),
            flagged=str(label.label) in serious,
            callers=tuple(interval.callers),
            **predicted.get(int(interval.interval), {}),
        )
        for label, interval, position in zip(
            labels.itertuples(index=False),
            chosen.itertuples(index=False, name="Interval"),
            positions,
            strict=True,
        )
    ]
    return sorted(rows, key=lambda row: row.library)


def unprofiled(analysis: Analysis) -> dict[int, dict]:
    """By interval: what it would have measured without nsys, or why that is unknown."""
    found = {}
    for u in analysis.unprofiled.itertuples(index=False):
        bounds = None if u.reason else (int(u.predicted_ns), int(u.lower_ns), int(u.upper_ns))
        found[int(u.interval)] = {"unprofiled_ns": bounds, "no_prediction": str(u.reason)}
    return found


def in_a_word(no_prediction: str) -> str:
    """What a cell has room for instead of a prediction: the reason's word; "none" for one of an
    older version."""
    word, colon, _ = no_prediction.partition(": ")
    return word if colon and " " not in word else "none"


def of_interval(interval, parts: np.ndarray) -> dict:  # a named tuple of frames.INTERVALS
    """What a row shows of one interval, and of its parts."""
    return {
        "interval": int(interval.interval),
        "name": str(interval.name),
        "elapsed_ns": int(interval.elapsed_ns),
        "error_ns": int(interval.error_ns),
        "kernel_only_ns": int(interval.kernel_only_ns),
        "kernel_only_upper_ns": int(interval.kernel_only_upper_ns),
        "parts_ns": dict(zip(CAUSES, parts.tolist(), strict=True)),
        "meanwhile_ns": _meanwhile(interval),
    }


def _meanwhile(interval) -> int | None:
    """How long kernels that a host timer issued ran before its second reading, if that is not part
    of its budget."""
    if interval.kind != "host" or not interval.kernel_only_ns:
        return None
    return int(interval.kernel_only_ns) - int(interval.kernel_outside_ns)


def _rules(findings: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    rules: dict[str, tuple[str, ...]] = {}
    for label, rule in zip(findings["label"], findings["rule"], strict=True):
        rules[str(label)] = (*rules.get(str(label), ()), str(rule))
    return rules


def causes_present(rows: list[LabelRow]) -> list[str]:
    """The causes that are not zero in every row, in the order of `model.CAUSES`."""
    return [cause for cause in CAUSES if any(row.parts_ns[cause] for row in rows)]


def counted(analysis: Analysis) -> str:
    """ "144 intervals in 24 labels, 57 more that the program did not time itself"."""
    library = analysis.measured["library"].to_numpy(bool)
    if library.all():  # the program asked a library to time: these are its own
        library = library & (analysis.measured["method"] == "inferred").to_numpy(bool)
    own = len(set(analysis.measured["label"][~library]))
    text = f"{plural(int((~library).sum()), 'interval')} in {plural(own, 'label')}"
    more = f", {library.sum():,} more that the program did not time itself"
    return text + (more if library.any() else "")


def placed_within_ns(analysis: Analysis) -> float | None:
    """95th percentile of `error_ns` over event intervals, None if there are none."""
    events = analysis.intervals.loc[analysis.intervals["kind"] == "event", "error_ns"]
    return float(np.percentile(events.to_numpy(), 95)) if len(events) else None


def unaligned_reasons(analysis: Analysis) -> list[tuple[str, int, list[str]]]:
    """Why intervals could not be placed: reason, how many, up to three different names and "…"; the
    most frequent first."""
    groups = analysis.unaligned.groupby("reason", sort=False)["name"]
    reasons = []
    for reason, names in groups:
        different = [str(n) for n in names.unique()]
        reasons.append((str(reason), len(names), different[:3] + ["…"] * (len(different) > 3)))
    return sorted(reasons, key=lambda reason: -reason[1])
