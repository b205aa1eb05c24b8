"""Runs one worker and watches it: time, memory, exit.  The parent never opens CUDA."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysalign.addons.measure.plan import Options
from nsysalign.errors import NsysAlignError
from nsysalign.rundir import CLOCKS, DATABASE, PAGE

#: Share of the GPU's free memory that a search may take.
FREE_SHARE = 0.9
#: Variables that a worker must not have: profilers inject themselves through them, and the first
#: starts the probe.
_REMOVED = ("NSYSALIGN_DIR", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYSALIGN_CONFIRM")
WORKER = [sys.executable, "-m", "nsysalign.addons.measure.worker"]
_KINDS = {"oom": "out of memory", "wrong": "it cannot be measured as it is"}


@dataclass(frozen=True)
class Job:
    """One process: a target at one batch, or at several in the process of a search."""

    number: int
    target: int
    batches: tuple[int | None, ...]
    role: str  # time, probe, profile
    modes: tuple[str, ...]
    l2: tuple[str, ...]
    seconds: float
    limit_s: float = 0.0
    batches_s: float = 0.0  # no further batch is begun after this long

    def specified(self, options: Options, folder: Path) -> tuple[Path, Path]:
        """(the file that tells the worker what to do, the file for its facts)."""
        path, out = (folder / f"{self.role}-{self.number:04d}.{end}" for end in ("json", "jsonl"))
        target, rough = options.targets[self.target], options.quick or self.role != "time"
        spec = {
            "target": target.spec, "path": target.path, "batches": self.batches,
            "batches_s": self.batches_s, "modes": self.modes, "l2": self.l2, "role": self.role,
            "seconds": max(0.05, self.seconds), "limit_s": self.limit_s, "rough": rough,
            "warm_up_s": min(10.0, max(0.3, self.seconds * (1 if rough else 2))),
            "free_share": FREE_SHARE if options.search else None,
            "backend": options.backend, "out": str(out),
        }  # fmt: skip
        path.write_text(json.dumps(spec), encoding="utf-8")
        return path, out


@dataclass(frozen=True)
class Failure:
    """Why a worker failed: oom, wrong (no other batch can mend it), hang, budget, died, interrupted
    or error; and in a sentence."""

    kind: str
    text: str
    stage: str = ""


@dataclass(frozen=True)
class Outcome:
    """A worker's result: facts in order, the failure or None, how long it took."""

    job: Job
    facts: list[dict[str, Any]]
    failure: Failure | None
    wall_s: float

    def all(self, kind: str) -> list[dict[str, Any]]:
        """All facts of a type."""
        return [f for f in self.facts if f["type"] == kind]


def run(job: Job, options: Options, folder: Path) -> Outcome:
    """Start a worker, wait for it, and end it if necessary."""
    spec, out = job.specified(options, folder)
    began, ended = time.monotonic(), ""
    log = folder / f"worker-{job.number:04d}.log"
    environ = {k: v for k, v in os.environ.items() if k not in _REMOVED}
    if re.search("nsys|ToolsInjection", environ.get("LD_PRELOAD", ""), re.IGNORECASE):
        del environ["LD_PRELOAD"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*WORKER, str(spec), str(os.getpid())], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, env=environ, start_new_session=True,
        )  # fmt: skip
    try:
        process.wait(job.limit_s)
    except subprocess.TimeoutExpired:
        ended = "hang"
    except KeyboardInterrupt:  # what it has measured so far is kept, too
        ended = "interrupted"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # with everything that it started
        process.wait()
    facts = list(lines_of(out))
    text = log.read_text(encoding="utf-8", errors="replace")
    failure = _failure(process.returncode, facts, ended, text, job.limit_s)
    return Outcome(job, facts, failure, time.monotonic() - began)


def lines_of(path: Path) -> Iterator[Any]:
    """The lines of JSON that were written completely."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _failure(
    status: int, facts: list[dict[str, Any]], ended: str, log: str, limit_s: float
) -> Failure | None:
    stage = next((f["stage"] for f in reversed(facts) if f["type"] == "stage"), "starting")
    if ended == "interrupted":
        return Failure("interrupted", "interrupted by Ctrl-C or a signal", stage)
    for fact in facts:
        if fact["type"] == "failed":
            where = f" ({fact['where']})" if fact["where"] else ""
            what = _KINDS.get(fact["kind"], "an exception")
            text = f"{what} while {stage}{where}: {fact['message']}"
            return Failure(fact["kind"], text, stage)
    if ended == "hang":
        # the innermost line outside our code that faulthandler wrote
        stack = log[log.rfind("most recent call first") :]
        lines = re.findall(r'File "([^"]+)", line (\d+) in ', stack)
        own = os.path.dirname(__file__) + os.sep
        places = [f" ({os.path.basename(p)}:{n})" for p, n in lines if not p.startswith((own, "<"))]
        text = f"it did not finish within {limit_s:.0f} s, while {stage}{''.join(places[:1])}"
        return Failure("hang", text, stage)
    if any(f["type"] == "done" for f in facts):
        return None  # how it ended after that does not matter
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = next((f" ({x.strip()[:200]})" for x in reversed(log.splitlines()) if x.strip()), "")
    return Failure("died", f"the process died while {stage}: {name}{last}", stage)


def profile(
    job: Job, options: Options, run_folder: Path, work: Path
) -> tuple[Mapping[str, float], str]:
    """Run the job under nsys and analyse it: (how long operations of the call ran, ns, by the state
    of the L2; why there is none)."""
    # with all that converts and analyses a trace: seldom needed
    from nsysalign.engine import analyze
    from nsysalign.record.session import CollectOptions, collect
    from nsysalign.show import html
    from nsysalign.store import database

    spec, out = job.specified(options, work)
    how = CollectOptions(
        nsys=options.nsys, output=run_folder, host_timers=False, timeout_s=job.limit_s,
        stdout_to_stderr=True,
    )  # fmt: skip
    try:
        result = collect([*WORKER, str(spec)], how)
        facts = {fact["type"]: fact for fact in lines_of(out)}
        if "failed" in facts:
            return {}, f"under nsys the worker failed: {facts['failed']['message']}"
        if "profiled" not in facts:
            return {}, f"under nsys the worker did not finish (status {result.exit_status})"
        clocks = run_folder / CLOCKS
        analysis = analyze(
            result.sqlite, list(result.event_logs), clocks=clocks if clocks.is_file() else None
        )
        database.write(analysis, run_folder / DATABASE)
        html.write(analysis, run_folder / PAGE)
    except NsysAlignError as error:
        return {}, error.message
    parts = analysis.parts[analysis.parts["cause"].isin(["kernel", "graph", "memcpy", "memset"])]
    sums = parts.groupby("interval")["ns"].sum()
    labels = analysis.intervals.set_index("interval")["label"].reindex(sums.index)
    gpu_ns = {l2: float(sums[labels == l2].median()) for l2 in job.l2 if (labels == l2).any()}
    return gpu_ns, "" if gpu_ns else "the profile has no interval of the call"
