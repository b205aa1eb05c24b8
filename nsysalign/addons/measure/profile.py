"""`--clocks`: one more worker, under nsys with the probe: what nsys says of the call's kernels.

The profiled loop is that of modes `event` and `device`, in regions named after the batch.  Its run
directory, with report and budget, is one like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nsysalign.addons.measure import runner
from nsysalign.addons.measure.modes import L2, profiled
from nsysalign.addons.measure.plan import Job, Options
from nsysalign.errors import NsysAlignError
from nsysalign.rundir import CLOCKS, DATABASE, PAGE

if TYPE_CHECKING:
    from nsysalign.model import Analysis

#: The causes that are work of the stream.
OPERATIONS = ("kernel", "graph", "memcpy", "memset")


@dataclass(frozen=True)
class Profile:
    """The result of one batch's profiled worker; `run`: its run directory inside the measurement's;
    `gpu_ns`, by L2: "sum" of its operations and, where a delay was possible and there are gaps
    between them, their "span" behind one.  `problem`: why there is none."""

    target: int
    batch: int | None
    run: str
    gpu_ns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    problem: str = ""


def profile(job: Job, options: Options, folder: Path) -> Profile:
    """Run the job under nsys and analyse it."""
    # with all that converts and analyses a trace: seldom needed
    from nsysalign.engine import analyze
    from nsysalign.record.session import CollectOptions, collect
    from nsysalign.show import html
    from nsysalign.store import database

    (batch,) = job.batches
    name = f"profile-{'default' if batch is None else batch}"
    name += f"-{'AB'[job.target]}" if len(options.targets) > 1 else ""
    run, clocks, problem, gpu_ns = folder / name, folder / name / CLOCKS, "", {}
    command, out = runner.command(job, options, folder / "workers")
    how = CollectOptions(
        nsys=options.nsys, output=run, host_timers=False, timeout_s=job.limit_s,
        stdout_to_stderr=True,
    )  # fmt: skip
    try:
        result = collect(command, how)
        facts = {fact["type"]: fact for fact in runner.read(out)}
        if "failed" in facts:
            problem = f"under nsys the worker failed: {facts['failed']['message']}"
        elif "profiled" not in facts:
            problem = f"under nsys the worker did not finish (status {result.exit_status})"
        else:
            analysis = analyze(
                result.sqlite,
                events=list(result.event_logs),
                clocks=clocks if clocks.is_file() else None,
            )
            database.write(analysis, run / DATABASE)
            html.write(analysis, run / PAGE)
            label = facts["profiled"]["label"]
            gpu_ns = {l2: _gpu_ns(analysis, label, l2) for l2 in L2}
            problem = "" if any(gpu_ns.values()) else "the profile has no interval of the call"
    except NsysAlignError as error:
        problem = error.message
    return Profile(job.target, batch, name, gpu_ns, problem)


def _gpu_ns(analysis: Analysis, call: str, l2: str) -> dict[str, float]:
    """`Profile.gpu_ns` of one state of the L2: of the interval with the median span."""
    for label in (profiled(call, l2, "device"), profiled(call, l2)):
        named = analysis.intervals.loc[analysis.intervals["label"] == label, "interval"]
        pieces = analysis.segments[analysis.segments["interval"].isin(named)]
        pieces = pieces[pieces["cause"].isin(OPERATIONS)]
        if pieces.empty:
            continue
        pieces = pieces.assign(ns=pieces["end_ns"] - pieces["start_ns"])
        table = pieces.groupby("interval").agg(
            start=("start_ns", "min"), end=("end_ns", "max"), sum=("ns", "sum")
        )
        table["span"] = table["end"] - table["start"]
        row = table.sort_values("span").iloc[(len(table) - 1) // 2]
        gaps = label == profiled(call, l2, "device") and row["span"] > row["sum"]
        return {way: float(row[way]) for way in (("span", "sum") if gaps else ("sum",))}
    return {}
