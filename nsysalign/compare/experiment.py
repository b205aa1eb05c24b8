"""Which single intervention tests a label's cause, and what it must show if the cause is right.

    delay         a delay kernel before the start record: the host runs ahead, GPU time remains
    synchronize   the device is idle before the start record: nothing is left to queue behind
    flush         the L2 is overwritten before the start record of the label that ran the same kernels faster
    warm          a function marked @nsysalign.region is called once more before each call

`plan` designs the experiment; one that could not give an answer is refused there, with the reason, before anything runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.compare.prediction import parts_of
from nsysalign.model import Analysis

#: intervention -> the rules whose findings it settles.
SETTLES: Mapping[str, tuple[str, ...]] = {
    "delay": ("host-gap", "many-tiny-kernels", "api-launch", "allocation-inside"),
    "synchronize": ("queued-dependency", "queued-contention"),
    "flush": ("cold-l2",),
    "warm": ("warm-up", "module-load"),
}
#: Causes that a delay hides: what the host does while the stream waits.
HOST = ("host", "api_launch", "api", "launch_latency", "event", "profiler")
#: Fewer intervals on a side say nothing about a spread.
FEWEST = 3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Refusal:
    """Why no re-run can answer."""

    label: str
    intervention: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """One experiment: what is done where, and what it must show.  Nanoseconds."""

    label: str
    intervention: str
    target: str  # the label at whose start records (or calls) it is done
    rules: tuple[str, ...]
    metric: str  # elapsed, kernel, first run
    before_ns: float
    before_bounds_ns: tuple[float, float]
    predicted_ns: float  # NaN: nothing can be predicted
    predicted_bounds_ns: tuple[float, float]
    count: int  # intervals before
    operations: int  # of the typical interval
    delay_ns: int = 0
    machine: tuple[
        str, ...
    ] = ()  # what the re-run must share: the GPUs, and whether events were traced
    region: str = ""  # the target's label if a region named it
    starts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (site, callers) of its start records


def rows_of(analysis: Analysis, label: str) -> np.ndarray:
    """Positions of a label's intervals in `analysis.intervals`, in time."""
    at = np.flatnonzero((analysis.intervals["label"] == label).to_numpy())
    return at[np.argsort(analysis.intervals["start_ns"].to_numpy()[at], kind="stable")]


def findings_of(analysis: Analysis, label: str) -> list[Any]:
    """Findings about a label, the most important first."""
    f = analysis.findings
    return list(f[f["label"] == label].itertuples(index=False))


def confirmable(analysis: Analysis) -> list[str]:
    """Labels with a warning that a re-run could settle, the most important first; a cold L2 stays a remark until one does."""
    rules = {rule for settled in SETTLES.values() for rule in settled}
    f = analysis.findings
    worth = f[f["rule"].isin(rules) & ((f["severity"] != "info") | (f["rule"] == "cold-l2"))]
    library = set(analysis.labels.loc[analysis.labels["library"], "label"])
    return [label for label in dict.fromkeys(worth["label"].tolist()) if label not in library]


def choose(analysis: Analysis, label: str, decorated: frozenset[str] = frozenset()) -> str:
    """The intervention that fits the label's cause: its first finding that one settles, else its largest idle part."""
    for finding in findings_of(analysis, label):
        for intervention, rules in SETTLES.items():
            if finding.rule in rules and (intervention != "warm" or label in decorated):
                return intervention
    rows = rows_of(analysis, label)
    queued = float(np.median(parts_of(analysis, rows, "queued"))) if len(rows) else 0.0
    return "synchronize" if queued > np.median(parts_of(analysis, rows, *HOST)) else "delay"


def first_runs(intervals: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(elapsed of each process's first interval, elapsed of all others), of intervals in time."""
    first = ~intervals["pid"].duplicated().to_numpy()
    elapsed = intervals["elapsed_ns"].to_numpy(dtype=np.float64)
    return elapsed[first], elapsed[~first]


def machine(analysis: Analysis) -> tuple[str, ...]:
    """What would make two runs incomparable: another GPU, or event tracing in only one of them."""
    traced = (analysis.intervals["method"] == "event-trace").any()
    return (*dict.fromkeys(analysis.trace.devices), *(["event tracing"] if traced else []))


def settled(analysis: Analysis, label: str, intervention: str) -> tuple[str, ...]:
    rules = [f.rule for f in findings_of(analysis, label) if f.rule in SETTLES[intervention]]
    return tuple(dict.fromkeys(rules))


def where(analysis: Analysis, label: str) -> dict[str, Any]:
    """`region` and `starts` (start sites with their callers) of a label.  A label made from call sites holds the start's file and
    line; any other name is a region's.  Callers count if another label has the same site (a Timer class)."""
    i = analysis.intervals
    mine = i[i["label"] == label]
    shared = set(i.loc[i["label"] != label, "site"])
    starts = {
        (site, tuple(callers) if site in shared else ())
        for site, callers in zip(mine["site"].tolist(), mine["callers"].tolist(), strict=True)
        if site
    }
    by_site = any(site.rpartition("/")[2] in label for site, _ in starts)
    return {"region": "" if by_site else label, "starts": tuple(sorted(starts))}
