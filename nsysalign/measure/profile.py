"""One more worker, under nsys with the probe: the budget that explains the numbers, and the proof that it is theirs.

The profiled loop is that of mode `event`, in regions named after the batch.  What the timed workers measured is written
beside it as the event log of a run without nsys, so the run directory is one like any other: its page shows both, and the
prediction from the profile alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from nsysalign.errors import NsysAlignError
from nsysalign.measure import runner
from nsysalign.measure.plan import Job, Options
from nsysalign.rundir import BASELINE, CLOCKS, DATABASE, DOCUMENT, PAGE

MOST_SAMPLES = 500
#: The profile proves a number if it predicts it within this share.
PROVEN = 0.10
#: The host ran at another speed if its fixed loop took this much longer or shorter.
SAME_HOST = 0.10


@dataclass(frozen=True)
class Profile:
    """The result of one batch's profiled worker.  Times in ns, of the label's median interval under nsys."""

    target: int
    batch: int | None
    run: str
    elapsed_ns: float = 0.0
    parts_ns: dict[str, float] = field(default_factory=dict)
    kernel_ns: float = 0.0
    kernel_cold_ns: float = 0.0
    predicted_ns: float = float("nan")
    measured_ns: float = float("nan")
    operations: int = 0
    problem: str = ""
    #: How many times as long the host's fixed loop took in the profiled process as in the timed ones.
    host_ratio: float = float("nan")

    @property
    def error(self) -> float:
        """The prediction relative to the measurement; NaN if one of them is missing."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns > 0 else float("nan")

    @property
    def proven(self) -> bool:
        """Whether the prediction is close enough to the measurement."""
        return abs(self.error) <= PROVEN

    @property
    def other_host(self) -> bool:
        """Whether the host ran at another speed in the profiled process; False if it was not measured."""
        return abs(self.host_ratio - 1) > SAME_HOST

    def idle_share(self) -> float:
        """The share of the interval in which the GPU did nothing."""
        busy = sum(
            self.parts_ns.get(c, 0.0) for c in ("kernel", "graph", "memcpy", "memset", "queued")
        )
        whole = sum(self.parts_ns.values())
        return 1 - busy / whole if whole else float("nan")


def profile(
    job: Job, options: Options, folder: Path, timed: dict[str, Sequence[int]], environment: dict[str, Any],
    host_ns: Sequence[int] = (),
) -> Profile:  # fmt: skip
    """Run the job under nsys and analyse it.  `timed`: samples of mode event by L2; `host_ns`: what the host's fixed loop took
    in the timed processes.  A failure becomes the profile's `problem`."""
    from nsysalign.record.session import (
        CollectOptions,
        collect,
    )  # with all that converts a trace: seldom needed

    name = f"profile-{'default' if job.batch is None else job.batch}" + (
        f"-{'AB'[job.target]}" if len(options.targets) > 1 else ""
    )
    run = folder / name
    command, out = runner.command(job, options, folder / "workers")
    nothing = Profile(job.target, job.batch, name)
    try:
        result = collect(
            command,
            CollectOptions(
                nsys=options.nsys, output=run, host_timers=False, timeout_s=job.limit_s, stdout_to_stderr=True,
                environment=dict(options.environment),
            ),
        )  # fmt: skip
        facts = list(runner.read(out))
        failed = next((f for f in facts if f["type"] == "failed"), None)
        if failed:
            return replace(nothing, problem=f"under nsys the worker failed: {failed['message']}")
        if not any(f["type"] == "profiled" for f in facts):
            return replace(
                nothing,
                problem=f"under nsys the worker did not finish (status {result.exit_status})",
            )
        base = next(f["label"] for f in facts if f["type"] == "profiled")
        logs = [without_nsys(run, base, timed, environment)] if any(timed.values()) else []
        beside = [f["ns"] for f in facts if f["type"] == "host"]
        ratio = median(beside) / median(host_ns) if beside and host_ns else float("nan")
        return replace(_analysed(result, logs, base, nothing), host_ratio=ratio)
    except NsysAlignError as error:
        return replace(nothing, problem=error.message)


def without_nsys(
    run: Path, label: str, timed: dict[str, Sequence[int]], environment: dict[str, Any]
) -> Path:
    """The timed workers' event pairs as the event log of a run without nsys (docs/design.md)."""
    from nsysalign.record.without_nsys import MARK

    folder = run / BASELINE
    folder.mkdir(mode=0o700, exist_ok=True)
    header = {
        "type": "header", "format": "nsysalign-events", "version": 1, "pid": 0, **MARK,
        "device_name": environment.get("device", ""), "torch": environment.get("torch", ""), "exit_status": 0,
        "profiled_exit_status": 0,
    }  # fmt: skip
    lines, seq, at = [header], 0, 0
    for l2, values in timed.items():
        name = label if l2 == "warm" else f"{label} {l2}"
        for k, ns in enumerate(_spread(values)):
            for offset in (0, ns):
                t = at + offset
                lines.append(
                    {
                        "type": "record",
                        "seq": seq,
                        "tid": 0,
                        "device": 0,
                        "t0_ns": t,
                        "t1_ns": t,
                        "region": f"{name}#{k}",
                    }
                )
                seq += 1
            lines.append(
                {
                    "type": "elapsed",
                    "start": seq - 2,
                    "end": seq - 1,
                    "ms": ns / 1e6,
                    "region": f"{name}#{k}",
                }
            )
            at += ns + 1
    path = folder / "events-0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _spread(values: Sequence[int]) -> Sequence[int]:
    """At most MOST_SAMPLES of them, from all processes: evenly over the whole."""
    many = min(len(values), MOST_SAMPLES)
    return [values[k * len(values) // many] for k in range(many)]


def _analysed(result: Any, baseline: list[Path], label: str, nothing: Profile) -> Profile:
    from nsysalign.engine import analyze
    from nsysalign.report import html
    from nsysalign.store import database, document

    run = result.run_dir
    clocks = run / CLOCKS
    analysis = analyze(
        result.sqlite,
        events=list(result.event_logs),
        clocks=clocks if clocks.is_file() else None,
        baseline=baseline,
    )
    document.write(analysis, run / DOCUMENT)
    database.write(analysis, run / DATABASE)
    html.write(analysis, run / PAGE)
    labels = analysis.labels.set_index("label")
    if label not in labels.index:
        return replace(nothing, problem="the profile has no interval of the call")
    row = analysis.intervals.set_index("name").loc[labels.loc[label, "row"]]
    parts = (
        analysis.parts[analysis.parts["interval"] == row["interval"]]
        .set_index("cause")["ns"]
        .to_dict()
    )
    beside = analysis.baseline.set_index("label")
    measured = predicted = float("nan")
    if label in beside.index:
        measured, predicted = (
            float(beside.loc[label, "baseline_ns"]),
            float(beside.loc[label, "predicted_ns"]),
        )
    return Profile(
        nothing.target, nothing.batch, nothing.run, float(row["elapsed_ns"]), {k: float(v) for k, v in parts.items() if v},
        _kernel(analysis, label), _kernel(analysis, f"{label} cold"), predicted, measured, int(row["operations"]),
    )  # fmt: skip


def _kernel(analysis: Any, label: str) -> float:
    """The median kernel time of a label's intervals; 0 where there is none."""
    found = analysis.intervals.loc[analysis.intervals["label"] == label, "kernel_only_ns"]
    return float(found.median()) if len(found) else 0.0
