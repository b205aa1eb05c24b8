"""The whole measurement: worker processes in random order, the search, the profile, the budget.
The parent never opens CUDA."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from nsysalign.addons.measure.command import Options
from nsysalign.addons.measure.result import MEASUREMENT, Block, Measure, Run, advised
from nsysalign.errors import NsysAlignError
from nsysalign.model import OPERATION_KINDS
from nsysalign.paths import without_paths
from nsysalign.record.clock_sampler import COLUMNS, sampling, start_nvml, visible
from nsysalign.record.lock import locked
from nsysalign.rundir import make_run_dir
from nsysalign.text import gibibytes, plural

#: Seconds that a process of a search measures a batch, and a profiled process.
PROBE_S, PROFILED_S = 0.2, 1.0
#: Of a budget, what starting a process and its CUDA takes; and the least that one measures.
STARTING_S, LEAST_S = 8.0, 0.3
#: Share of the budget after which a search ends; share of the GPU's free memory that it may take;
#: how often it doubles the batch.
CLIMBING, FREE_SHARE, MOST_DOUBLINGS = 0.5, 0.9, 23
#: If more memory than this is in use, or more work than this is done, before the first worker
#: starts, there are other processes.
IDLE_BYTES, IDLE_PERCENT = 1 << 30, 5
#: Variables that a worker must not have: profilers inject themselves through them, and the first
#: starts the probe.
_REMOVED = ("NSYSALIGN_DIR", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYSALIGN_CONFIRM")
WORKER = [sys.executable, "-m", "nsysalign.addons.measure.worker"]
ZEROS = (
    "the inputs are all zeros: kernels draw less power then, and can run more than a tenth faster "
    "than with data"
)
_KINDS = {"oom": "out of memory", "wrong": "it cannot be measured as it is"}
#: What to do about a failure of this kind.
_NEXT = {
    "wrong": "see: nsysalign measure --help",
    "oom": "a smaller --batch",
    "hang": "does the call return at all? if it is only slow, a longer --budget helps",
    "budget": "a longer --budget",
}


class MeasureError(NsysAlignError):
    """Nothing could be measured."""


@dataclass(frozen=True)
class Outcome:
    """What one process was told, its facts in order.  `failure`: "" for none, oom, wrong (no other
    batch can mend it), hang, budget, died, interrupted or error; `text`: in words."""

    spec: Mapping[str, Any]
    facts: list[dict[str, Any]]
    failure: str = ""
    text: str = ""

    def all(self, kind: str) -> list[dict[str, Any]]:
        """All facts of a type."""
        return [f for f in self.facts if f["type"] == kind]

    @property
    def batch(self) -> int | None:
        """The last one that it began."""
        return [*self.spec["batches"][:1], *(f["batch"] for f in self.all("batch"))][-1]


class Session:
    """One measurement in progress.  `tell(step, percent)` is called when a step begins."""

    def __init__(self, options: Options, tell: Callable[[str, int], None] | None = None) -> None:
        self.options = options
        self._tell = tell or (lambda step, percent: None)
        self._began = time.monotonic()
        self.folder = make_run_dir("measure", options.output)
        self._work = self.folder / "workers"
        self._work.mkdir(mode=0o700, exist_ok=True)
        self.outcomes: list[Outcome] = []
        self._runs: list[Run] = []
        self._blocks: list[Block] = []
        self._notes: list[str] = []
        self._search: dict[str, Any] = {}
        self._complete = False

    def run(self) -> Measure:
        """Measure.  If it ends early, what was measured so far is in the folder.  Raises
        MeasureError if nothing was."""
        o, cuda = self.options, self.options.backend == "cuda"
        self._notes += in_use() if cuda else []
        try:
            with (
                locked(o.lock_clocks) as conditions,
                sampling(self._work / "clocks.jsonl", wanted=cuda, flush_s=0.1) as unsampled,
            ):
                self._notes += conditions
                batches = self._searched() if o.search else o.batches or (None,)
                self._timed(batches)
                if o.clocks:
                    self._profiled()
            self._notes += unsampled
            self._complete = True
        except KeyboardInterrupt:
            self._notes.append("interrupted: these are the results until then")
        finally:
            measure = self.result()
            failed = next((x for x in self.outcomes if x.failure), None)
            if measure.blocks:
                measure.write(self.folder / MEASUREMENT)
                if self._complete and not failed:
                    shutil.rmtree(self._work, ignore_errors=True)  # the file has everything now
        if measure.blocks:
            return measure
        if failed is None:
            raise MeasureError("nothing was measured", _NEXT["budget"])
        usual = f"its output and traceback: {self.folder}/workers/*.log, and: nsysalign doctor"
        raise MeasureError(f"nothing was measured: {failed.text}", _NEXT.get(failed.failure, usual))

    def result(self) -> Measure:
        """What is known by now, with what a reader of the numbers must know."""
        o, runs, notes = self.options, self._runs, [*self._notes]
        named = ("batches", "search", "modes", "processes", "budget_s", "clocks")
        hello = next((fact for x in self.outcomes for fact in x.all("hello")), {})
        if unsettled := [r for r in runs if r.unsettled and r.role == "time"]:
            warm_s, why = unsettled[0].warm_ns / 1e9, unsettled[0].unsettled
            notes.append(f"not warm after {warm_s:.1f} s in {plural(len(unsettled), 'run')}: {why}")
        for run in runs:
            notes += [f"mode {mode} is not measured: {why}" for mode, why in run.refused.items()]
        notes += [ZEROS] * any(r.zero for r in runs)
        return Measure(
            targets=tuple(t.name for t in o.targets),
            options={name: getattr(o, name) for name in named},
            environment={k: v for k, v in hello.items() if k != "type"},
            runs=tuple(runs),
            blocks=tuple(self._blocks),
            search=self._search,
            notes=tuple(dict.fromkeys(notes)),
            complete=self._complete,
            folder=self.folder,
        )

    def _searched(self) -> list[int]:
        """Find the batches to report: one process climbs by powers of two until the memory or its
        share of the budget ends."""
        batches = [1 << k for k in range(MOST_DOUBLINGS)]
        spec = self.spec("probe", 0, batches, ("latency", "steady"), PROBE_S)
        spec["limit_s"] = CLIMBING * self._left_s
        outcome = self._worker(spec, 2)
        rates = self.result().rates()
        if outcome.failure not in ("", "oom"):
            where = f"the search ended at batch {outcome.batch:,}"
            self._notes.append(f"{where}: {without_paths(outcome.text)[:300]}")
        failed, largest = outcome.failure == "oom", max(rates, default=0)
        self._search = {"largest": largest, "failed_at": outcome.batch if failed else None}
        if not rates:
            return []
        return sorted({advised(rates), max(rates, key=rates.__getitem__), min(rates), largest})

    def _timed(self, batches: Sequence[int | None]) -> None:
        """Rounds of one process per target and batch, each in an order of its own; all share what
        is left of the budget."""
        o = self.options
        pairs = [(target, batch) for batch in batches for target in range(len(o.targets))]
        jobs = [p for _ in range(o.processes) for p in random.sample(pairs, len(pairs))]
        count = len(jobs)
        while jobs and self._in_time(f"{len(jobs)} of {count} processes"):
            share = max(LEAST_S, self._left_s / len(jobs) - STARTING_S)
            pair = jobs.pop(0)
            spec = self.spec("time", pair[0], pair[1:], o.modes, share)
            outcome = self._worker(spec, len(jobs) + 1)
            if (
                outcome.failure == "budget"
            ):  # the one that the end of the budget cut short is left out as well
                self._tell_of_budget(f"{len(jobs) + 1} of {count} processes")
                return
            if outcome.failure:
                jobs = [job for job in jobs if job != pair]
                words = self._which(outcome)
                self._notes.append(f"{words}: {without_paths(outcome.text)[:300]}")

    def _profiled(self) -> None:
        """One more worker per batch, under nsys.  A profile that fails is a note."""
        points = self.result().points
        for done, p in enumerate(points):
            if not self._in_time(f"{len(points) - done} of {len(points)} profiles"):
                return
            name = f"profile-{'default' if p.batch is None else p.batch}"
            name += f"-{'AB'[p.target]}" if len(self.options.targets) > 1 else ""
            self._tell(name, 92)
            spec = self.spec("profile", p.target, (p.batch,), (), PROFILED_S)
            spec["limit_s"] = min(120.0, max(10.0, self._left_s))
            gpu_ns, problem = profile(spec, self.options.nsys, self.folder / name, self._work)
            run = Run(spec["number"], p.target, p.batch, "profile", message=problem, gpu_ns=gpu_ns)
            self._runs.append(run)
            self._notes += [f"no {name}: {problem}"] if problem else []

    @property
    def _left_s(self) -> float:
        """Seconds of the budget; infinite without one."""
        whole = self.options.budget_s
        return math.inf if whole is None else whole - (time.monotonic() - self._began)

    def _in_time(self, missing: str) -> bool:
        """Whether there is time left; a note if not."""
        if self._left_s > 0:
            return True
        self._tell_of_budget(missing)
        return False

    def _tell_of_budget(self, missing: str) -> None:
        self._notes.append(f"the budget of {self.options.budget_s:g} s ran out: {missing} left out")

    def spec(
        self,
        role: str,
        target: int,
        batches: Sequence[int | None],
        modes: Sequence[str],
        seconds: float,
    ) -> dict[str, Any]:
        """What a process is told: a target at one batch, or at several in that of a search."""
        o = self.options
        return {
            "number": len(self._runs), "side": target, "target": o.targets[target].spec,
            "path": o.targets[target].path, "role": role, "batches": batches, "modes": modes,
            "l2": ("warm",) if role == "probe" else o.l2, "seconds": seconds,
            "warm_up_s": min(10.0, max(0.3, 2 * seconds)), "backend": o.backend,
            "free_share": FREE_SHARE if o.search else None,
            "limit_s": min(o.job_limit_s, self._left_s),
        }  # fmt: skip

    def _worker(self, spec: dict[str, Any], jobs: int) -> Outcome:
        """One process; `jobs`: with how many to come, itself included.  What it measured is kept as
        runs, one for each batch that it began, and their blocks."""
        o, batch, number = self.options, spec["batches"][0], len(self.outcomes)
        named = "" if batch is None else f" batch {batch:,}"
        self._tell(f"measuring{named} (process {number + 1})", 90 * number // (number + jobs))
        outcome = run_worker(spec, self._work)
        if outcome.failure == "hang" and spec["limit_s"] < o.job_limit_s:
            outcome = replace(outcome, failure="budget")
        self.outcomes.append(outcome)
        # the SM clock of the first device, as clock_sampler wrote it until now: (ns, MHz)
        lines = lines_of(self._work / "clocks.jsonl")
        rows = [dict(zip(COLUMNS, r, strict=False)) for r in lines if isinstance(r, list)]
        clock = [(r["monotonic_ns"], r["sm_mhz"]) for r in rows if not r["device"] and r["sm_mhz"]]
        empty = Run(spec["number"], spec["side"], batch, spec["role"])
        runs: list[Run] = []
        for fact in outcome.facts:
            known = {k: v for k, v in fact.items() if k != "type"}
            if fact["type"] == "batch":
                runs.append(replace(empty, number=empty.number + len(runs), **known))
            elif fact["type"] == "known":
                runs[-1] = replace(runs[-1], **known)
            elif fact["type"] == "block" and known["ns"]:
                low, high = (bisect(clock, known[t], key=lambda c: c[0]) for t in ("t0", "t1"))
                near = clock[low:high] or clock[: low + 1][-1:]  # the nearest if it contains none
                known["ns"] = tuple(known["ns"])
                mhz = float(median(mhz for _, mhz in near)) if near else math.nan
                self._blocks.append(Block(run=runs[-1].number, sm_mhz=mhz, **known))
        last, message = (runs or [empty])[-1], without_paths(outcome.text)
        self._runs += [*runs[:-1], replace(last, failure=outcome.failure, message=message)]
        if outcome.failure == "interrupted":
            raise KeyboardInterrupt
        if outcome.failure == "wrong":
            raise MeasureError(f"{self._which(outcome)}: {outcome.text}", _NEXT["wrong"])
        return outcome

    def _which(self, outcome: Outcome) -> str:
        name = self.options.targets[outcome.spec["side"]].name
        return name if outcome.batch is None else f"{name}, batch {outcome.batch:,}"


def in_use() -> list[str]:
    """Before the first worker starts: a note if somebody else uses the first GPU that CUDA will
    see."""
    try:
        nvml = start_nvml()
        handle = visible(nvml, os.environ)[0][0]
        used = nvml.nvmlDeviceGetMemoryInfo(handle).used
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except Exception:
        return ["NVML does not answer, so it is not known who else uses the GPU"]
    if used <= IDLE_BYTES and busy <= IDLE_PERCENT:
        return []
    use = f"{gibibytes(used)} of its memory were in use, it was {busy} % busy"
    return [f"another process uses this GPU: before the first measurement {use}"]


# --- one worker ---


def _told(spec: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """(the file that tells a worker what to do, the file for its facts)."""
    name = f"{spec['role']}-{spec['number']:04d}"
    path, out = folder / f"{name}.json", folder / f"{name}.jsonl"
    path.write_text(json.dumps({**spec, "out": str(out)}), encoding="utf-8")
    return path, out


def run_worker(spec: Mapping[str, Any], folder: Path) -> Outcome:
    """Start a worker, wait for it, and end it if necessary."""
    path, out = _told(spec, folder)
    failure, log = "", path.with_suffix(".log")
    environ = {k: v for k, v in os.environ.items() if k not in _REMOVED}
    if re.search("nsys|ToolsInjection", environ.get("LD_PRELOAD", ""), re.IGNORECASE):
        del environ["LD_PRELOAD"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*WORKER, str(path), str(os.getpid())], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, env=environ, start_new_session=True,
        )  # fmt: skip
    try:
        process.wait(spec["limit_s"])
    except subprocess.TimeoutExpired:
        failure = "hang"
    except KeyboardInterrupt:  # what it has measured so far is kept, too
        failure = "interrupted"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # with everything that it started
        process.wait()
    last: dict[str, dict[str, Any]] = {"stage": {"stage": "starting"}}
    facts = list(lines_of(out))
    last |= {fact["type"]: fact for fact in facts}
    stage, text = last["stage"]["stage"], ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if failure == "interrupted":
        text = "interrupted by Ctrl-C or a signal"
    elif "failed" in last:
        told = last["failed"]
        failure, kind = told["kind"], _KINDS.get(told["kind"], "an exception")
        text = f"{kind} while {stage}{told['where']}: {told['message']}"
    elif failure == "hang":
        # the innermost line outside our code that faulthandler wrote
        our_folder = os.path.dirname(__file__) + os.sep
        places = [re.search(r'File "([^"<]+)", line (\d+) in ', line) for line in lines]
        its = (
            f" ({os.path.basename(p[1])}:{p[2]})" for p in places if p and our_folder not in p[1]
        )
        text = f"it did not finish within {spec['limit_s']:.0f} s, while {stage}{next(its, '')}"
    elif "done" not in last:  # how it ended after that does not matter
        status = process.returncode
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        written = next((f" ({line.strip()[:200]})" for line in lines[::-1] if line.strip()), "")
        failure, text = "died", f"the process died while {stage}: {name}{written}"
    return Outcome(spec, facts, failure, text)


def lines_of(path: Path) -> Iterator[Any]:
    """The lines of JSON that were written completely."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def profile(
    spec: Mapping[str, Any], nsys: str | None, run_folder: Path, work: Path
) -> tuple[Mapping[str, float], str]:
    """Run a worker under nsys and analyse it: (how long operations of the call ran, ns, by the
    state of the L2; why there is none)."""
    # with all that converts and analyses a trace: seldom needed
    from nsysalign.commandline.present import store
    from nsysalign.engine import analyze
    from nsysalign.record.session import CollectOptions, collect

    path, out = _told(spec, work)
    how = CollectOptions(
        nsys=nsys, output=run_folder, host_timers=False, timeout_s=spec["limit_s"],
        stdout_to_stderr=True,
    )  # fmt: skip
    try:
        result = collect([*WORKER, str(path)], how)
        facts = {fact["type"]: fact for fact in lines_of(out)}
        if "done" not in facts:
            why = facts.get("failed", {"message": f"it ended with status {result.exit_status}"})
            return {}, f"under nsys the worker failed: {why['message']}"
        analysis = analyze(run_folder)
        store(analysis, run_folder)
    except NsysAlignError as error:
        return {}, error.message
    gpu_ns = gpu_time(analysis)
    return gpu_ns, "" if gpu_ns else "the profile has no interval of the call"


def gpu_time(analysis: Any) -> dict[str, float]:
    """Per state of the L2, the median of what operations take in its intervals, ns."""
    parts = analysis.parts[analysis.parts["cause"].isin(OPERATION_KINDS)]
    sums = parts.groupby("interval")["ns"].sum()
    labels = analysis.intervals.set_index("interval")["label"].reindex(sums.index)
    return sums.groupby(labels).median().filter(["warm", "cold"]).to_dict()
