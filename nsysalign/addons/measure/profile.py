"""One more worker, under nsys with the probe: the budget that explains the numbers, and the proof
that it is theirs.

The profiled loop is that of mode `event`, in regions named after the batch.  Its run directory is
one like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsysalign.addons.measure import runner
from nsysalign.addons.measure.modes import EMPTY, L2, profiled
from nsysalign.addons.measure.plan import Job, Options
from nsysalign.errors import NsysAlignError
from nsysalign.rundir import CLOCKS, DATABASE, PAGE

if TYPE_CHECKING:
    from nsysalign.model import Analysis

#: The profile proves a number if it predicts it within this share.
PROVEN = 0.10
#: The causes that are work of the stream.
OPERATIONS = ("kernel", "graph", "memcpy", "memset")


@dataclass(frozen=True)
class Profile:
    """The result of one batch's profiled worker.  Times in ns, of the label's median interval under
    nsys; `run`: its run directory inside the measurement's."""

    target: int
    batch: int | None
    run: str
    elapsed_ns: float = 0.0
    parts_ns: Mapping[str, float] = field(default_factory=dict)
    predicted_ns: float = math.nan
    measured_ns: float = math.nan
    problem: str = ""
    #: By L2: "sum" of its operations and, where a delay was possible, "queued", their span behind
    #: one (of the interval with the median span); "graph", the span of a replay's.  Of pairs on an
    #: idle GPU around the call and around a replay: "event" and "replay", predicted without nsys;
    #: "event_read" and "replay_read", as they were measured under it; "event_host" and
    #: "replay_host", what the host needed for them there.
    gpu_ns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    #: The median SM clock meanwhile, by L2.
    mhz: Mapping[str, float] = field(default_factory=dict)
    #: An empty kernel in the trace; NaN without --clocks.
    empty_kernel_ns: float = math.nan

    @property
    def error(self) -> float:
        """The prediction relative to the measurement; NaN if one of them is missing."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns > 0 else math.nan

    @property
    def proven(self) -> bool:
        """Whether the prediction is close enough to the measurement."""
        return abs(self.error) <= PROVEN

    def idle_share(self) -> float:
        """The share of the interval in which the GPU did nothing."""
        whole = sum(self.parts_ns.values())
        busy = sum(self.parts_ns.get(c, 0.0) for c in (*OPERATIONS, "queued"))
        return 1 - busy / whole if whole else math.nan


def profile(job: Job, options: Options, folder: Path, measured_ns: float) -> Profile:
    """Run the job under nsys and analyse it.  `measured_ns`: what the timed workers' event pairs
    read.  A failure becomes the profile's `problem`."""
    # with all that converts and analyses a trace: seldom needed
    from nsysalign.engine import analyze
    from nsysalign.record.session import CollectOptions, collect
    from nsysalign.show import html
    from nsysalign.store import database

    (batch,) = job.batches
    name = f"profile-{'default' if batch is None else batch}"
    name += f"-{'AB'[job.target]}" if len(options.targets) > 1 else ""
    run = folder / name
    command, out = runner.command(job, options, folder / "workers")
    empty = Profile(job.target, batch, name)
    how = CollectOptions(
        nsys=options.nsys, output=run, host_timers=False, timeout_s=job.limit_s,
        stdout_to_stderr=True,
    )  # fmt: skip
    try:
        result = collect(command, how)
        facts = {fact["type"]: fact for fact in runner.read(out)}
        if "failed" in facts:
            problem = f"under nsys the worker failed: {facts['failed']['message']}"
            return replace(empty, problem=problem)
        if "profiled" not in facts:
            problem = f"under nsys the worker did not finish (status {result.exit_status})"
            return replace(empty, problem=problem)
        label, known = facts["profiled"]["label"], facts["profiled"].get("facts", {})
        clocks = run / CLOCKS
        analysis = analyze(
            result.sqlite,
            events=list(result.event_logs),
            clocks=clocks if clocks.is_file() else None,
        )
    except NsysAlignError as error:
        return replace(empty, problem=error.message)
    database.write(analysis, run / DATABASE)
    html.write(analysis, run / PAGE)
    labels = analysis.labels.set_index("label")
    if label not in labels.index:
        return replace(empty, problem="the profile has no interval of the call")
    row = analysis.intervals.set_index("name").loc[labels.loc[label, "row"]]
    parts = analysis.parts[analysis.parts["interval"] == row["interval"]]
    expected = _predicted(analysis, label)
    return replace(
        empty,
        elapsed_ns=float(row["elapsed_ns"]),
        parts_ns={k: float(v) for k, v in zip(parts["cause"], parts["ns"], strict=True) if v},
        predicted_ns=expected,
        gpu_ns={l2: _clocks(analysis, label, l2, known) for l2 in L2},
        mhz={l2: _mhz(analysis, label, l2) for l2 in L2},
        empty_kernel_ns=_spans(analysis, EMPTY).get("sum", math.nan),
        measured_ns=measured_ns,
    )


def _predicted(analysis: Analysis, label: str) -> float:
    """The median prediction of a label's intervals without nsys; NaN without any."""
    of_label = analysis.intervals.loc[analysis.intervals["label"] == label, "interval"]
    table = analysis.unprofiled
    predicted = table.loc[table["interval"].isin(of_label), "predicted_ns"].dropna()
    return float(predicted.median()) if len(predicted) else math.nan


def _read(analysis: Analysis, label: str) -> float:
    """The median of a label's intervals under nsys; NaN without any."""
    of_label = analysis.intervals.loc[analysis.intervals["label"] == label, "elapsed_ns"]
    return float(of_label.median()) if len(of_label) else math.nan


def _clocks(analysis: Analysis, call: str, l2: str, facts: Mapping[str, float]) -> dict[str, float]:
    """`Profile.gpu_ns` of one state of the L2, without what was not seen; `facts`: the profiled
    worker's."""
    queued = _spans(analysis, profiled(call, l2, "device"))
    found = queued or _spans(analysis, profiled(call, l2))
    graph = _spans(analysis, profiled(call, l2, "graph"))
    numbers = {
        "sum": found.get("sum"), "queued": queued.get("span"), "graph": graph.get("span"),
        "replay": _predicted(analysis, profiled(call, l2, "graph")),
        "event": _predicted(analysis, profiled(call, l2)),
        "replay_read": _read(analysis, profiled(call, l2, "graph")),
        "event_read": _read(analysis, profiled(call, l2)),
        "replay_host": facts.get(f"graph_{l2}_host_ns"),
        "event_host": facts.get(f"event_{l2}_host_ns"),
    }  # fmt: skip
    return {name: ns for name, ns in numbers.items() if ns is not None and ns == ns}


def _mhz(analysis: Analysis, call: str, l2: str) -> float:
    """The median SM clock while the intervals ran whose kernels `_clocks` adds up; NaN if unknown."""
    table, clocks = analysis.intervals, analysis.gpu_clocks
    for label in (profiled(call, l2, "device"), profiled(call, l2)):
        named = table[table["label"] == label]
        if len(named):
            since, until = named["start_ns"].min(), named["end_ns"].max()
            near = clocks[(clocks["end_ns"] >= since) & (clocks["start_ns"] <= until)]
            return float(near["sm_max_mhz"].median())
    return math.nan


def _spans(analysis: Analysis, label: str) -> dict[str, float]:
    """From the first operation's start to the last one's end, and the time with any, in the
    interval whose span is the median; {} where there is no operation."""
    named = analysis.intervals.loc[analysis.intervals["label"] == label, "interval"]
    pieces = analysis.segments[analysis.segments["interval"].isin(named)]
    pieces = pieces[pieces["cause"].isin(OPERATIONS)]
    if pieces.empty:
        return {}
    pieces = pieces.assign(ns=pieces["end_ns"] - pieces["start_ns"])
    by = pieces.groupby("interval")
    table = by.agg(start=("start_ns", "min"), end=("end_ns", "max"), sum=("ns", "sum"))
    table["span"] = table["end"] - table["start"]
    row = table.sort_values("span").iloc[(len(table) - 1) // 2]
    return {name: float(row[name]) for name in ("span", "sum")}
