"""The whole measurement: worker processes in random order, the search, the profile, the budget."""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from nsysalign.addons.measure import search, workers
from nsysalign.addons.measure.plan import Options
from nsysalign.addons.measure.result import Block, Measure, Run
from nsysalign.addons.measure.stored import MEASUREMENT
from nsysalign.addons.measure.workers import Job, Outcome
from nsysalign.errors import NsysAlignError
from nsysalign.paths import without_paths
from nsysalign.record.clock_sampler import sampling, start_nvml, visible
from nsysalign.record.lock import locked
from nsysalign.rundir import make_run_dir
from nsysalign.text import gibibytes, plural

#: Seconds that a process of a search measures a batch, a quick look, each mode in a full one, and a
#: profiled process.
PROBE_S, QUICK_S, MODE_S, PROFILED_S = 0.2, 1.5, 10.0, 1.0
#: Time to start a process and its CUDA, until one has been measured; for a profiled one with its
#: analysis; and the least that is worth measuring.
STARTING_S, PROFILING_S, LEAST_S = 8.0, 16.0, 0.3
#: Share of the budget after which a search, once its CUDA has started, begins no further batch.
CLIMBING = 0.5
#: If more memory than this is in use, or more work than this is done, before the first worker
#: starts, there are other processes.
IDLE_BYTES, IDLE_PERCENT = 1 << 30, 5
ZEROS = (
    "the inputs are all zeros: kernels draw less power then, and can run more than a tenth faster "
    "than with data"
)
#: What to do about a failure of this kind.
_NEXT = {
    "wrong": "see: nsysalign measure --help",
    "oom": "a smaller --batch",
    "hang": "does the call return at all? if it is only slow, a longer --budget helps",
}


class MeasureError(NsysAlignError):
    """Nothing could be measured."""


class Session:
    """One measurement in progress.  `tell(step, percent)` is called when a step begins."""

    def __init__(self, options: Options, tell: Callable[[str, int], None] | None = None) -> None:
        self.options = options.checked()
        self._tell = tell or (lambda step, percent: None)
        self._began = time.monotonic()
        self._starting: list[float] = []  # seconds that processes took besides measuring
        self.folder = make_run_dir("measure", self.options.output)
        self._work = self.folder / "workers"
        self._work.mkdir(mode=0o700, exist_ok=True)
        self.outcomes: list[Outcome] = []
        self._runs: list[Run] = []
        self._blocks: list[Block] = []
        self._notes: list[str] = []
        self._search: dict[str, Any] = {}
        self._missing: list[str] = []  # what there was no time for
        self._complete = False
        self._random = random.Random(self.options.seed or None)

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
                    self._profiled(batches)
            self._notes += unsampled
            self._complete = True
        except KeyboardInterrupt:
            self._notes.append("interrupted: these are the results until then")
        finally:
            if self._missing and self._runs:
                what = ", ".join(dict.fromkeys(self._missing))
                self._notes.append(
                    f"the budget of {o.budget_s:g} s ran out: a longer --budget would add {what}"
                )
            measure = self.result()
            failure = next((x.failure for x in self.outcomes if x.failure), None)
            if measure.blocks:
                measure.write(self.folder / MEASUREMENT)
                if self._complete and not failure:
                    shutil.rmtree(self._work, ignore_errors=True)  # the file has everything now
        if measure.blocks:
            return measure
        if failure is None:
            longer = "a longer --budget: starting a process and its CUDA takes several seconds"
            raise MeasureError("nothing was measured", longer)
        usual = f"its output and traceback: {self.folder}/workers/*.log"
        if failure.stage == "starting CUDA":
            usual = "nvidia-smi, and: nsysalign doctor"
        kind = "hang" if failure.kind == "budget" else failure.kind
        raise MeasureError(f"nothing was measured: {failure.text}", _NEXT.get(kind, usual))

    def result(self) -> Measure:
        """What is known by now."""
        o = self.options
        named = ("batches", "search", "modes", "processes", "budget_s", "quick", "clocks")
        hello = next((fact for x in self.outcomes for fact in x.all("hello")), {})
        return Measure(
            targets=tuple(t.name for t in o.targets),
            options={name: getattr(o, name) for name in named},
            environment={k: v for k, v in hello.items() if k not in ("type", "pid")},
            runs=tuple(self._runs),
            blocks=tuple(self._blocks),
            search=self._search,
            notes=tuple(dict.fromkeys([*self._notes, *_caveats(self._runs)])),
            complete=self._complete,
            folder=self.folder,
        )

    def _searched(self) -> list[int]:
        """Find the batches to report: one process climbs until the memory or its share of the
        budget ends."""
        o = self.options
        climbing_s = max(2.0, CLIMBING * o.budget_s - (time.monotonic() - self._began))
        batches, modes = search.climb(o.most_batch), ("latency", "steady")
        job = Job(0, 0, batches, "probe", modes, ("warm",), PROBE_S, batches_s=climbing_s)
        outcome = self._worker(job, 2)
        failure, begun = outcome.failure, [f["batch"] for f in outcome.all("batch")]
        if failure and failure.kind == "wrong":
            self._failed(outcome)
        failed = begun[-1] if failure and failure.kind == "oom" and begun else None
        rates = self.result().rates()
        largest = max(rates, default=0)
        if failure and failure.kind not in ("oom", "budget"):
            where = f" at batch {begun[-1]:,}" if begun else ""
            self._notes.append(f"the search ended{where}: {without_paths(failure.text)[:300]}")
        elif not failed and begun and largest < batches[-1]:
            self._missing.append(f"batches above {begun[-1]:,} to the search")
        self._search = {"largest": largest, "failed_at": failed}
        return search.reported(rates) if rates else []

    def _timed(self, batches: Sequence[int | None]) -> None:
        """Rounds of one process per target and batch, each in an order of its own."""
        o = self.options
        pairs = [(target, batch) for batch in batches for target in range(len(o.targets))]
        jobs = [p for _ in range(o.processes) for p in self._random.sample(pairs, len(pairs))]
        while jobs:
            seconds = self._share_s(len(jobs))
            if seconds is None:
                named = sorted({batch for _, batch in jobs if batch is not None})
                of = f" of batch {', '.join(f'{b:,}' for b in named)}" if named else ""
                words = "process" if len(jobs) == 1 else "processes"
                self._missing.append(f"{len(jobs)} {words}{of}")
                return
            target, batch = pair = jobs.pop(0)
            job = Job(len(self.outcomes), target, (batch,), "time", o.modes, o.l2, seconds)
            outcome = self._worker(job, len(jobs) + 1)
            if outcome.failure and outcome.failure.kind != "budget":
                jobs = [other for other in jobs if other != pair]
                self._failed(outcome)

    def _profiled(self, batches: Sequence[int | None]) -> None:
        """One more worker per batch, under nsys.  A profile that fails is a note."""
        o, points = self.options, [p for p in self.result().points if p.batch in batches]
        for done, p in enumerate(points):
            if self._left_s < 0.5 * PROFILING_S:
                self._missing.append(plural(len(points) - done, "profile"))
                return
            name = f"profile-{'default' if p.batch is None else p.batch}"
            name += f"-{'AB'[p.target]}" if len(o.targets) > 1 else ""
            self._tell(name, 92)
            number, limit_s = len(self._runs), min(120.0, max(10.0, self._left_s))
            job = Job(
                number, p.target, (p.batch,), "profile", ("device",), o.l2, PROFILED_S, limit_s
            )
            gpu_ns, problem = workers.profile(job, o, self.folder / name, self._work)
            run = Run(number, p.target, p.batch, "profile", message=problem, gpu_ns=gpu_ns)
            self._runs.append(run)
            self._notes += [f"no {name}: {problem}"] if problem else []
            if "no nsys" in problem.lower():
                return

    @property
    def _left_s(self) -> float:
        """Seconds of the budget; infinite without one."""
        whole = self.options.budget_s
        return math.inf if whole is None else whole - (time.monotonic() - self._began)

    def _share_s(self, jobs: int) -> float | None:
        """Seconds that one of this many processes may measure, None where there is no time for it:
        for the first there is."""
        o, left = self.options, self._left_s - 0.3
        usual = QUICK_S if o.quick else MODE_S * len(o.modes) * len(o.l2)
        if o.budget_s is None:
            return usual
        if o.clocks:  # for a profile, which comes last
            left -= min(PROFILING_S, o.budget_s / 2)
        # the first process found nothing in caches: the last ones say how long one takes to start
        starting_s = 1.1 * median(self._starting[-5:]) if self._starting else STARTING_S
        share = left / jobs - starting_s
        if share >= LEAST_S:
            return min(usual, share)
        # fewer processes are better than none
        return LEAST_S if not self.outcomes or left - starting_s >= LEAST_S else None

    def _worker(self, job: Job, jobs: int) -> Outcome:
        """One process; `jobs`: with how many to come, itself included."""
        o, batch = self.options, job.batches[0]
        named = "" if batch is None else f" batch {batch:,}"
        self._tell(
            f"measuring{named} (process {job.number + 1})", 90 * job.number // (job.number + jobs)
        )
        limit_s = min(o.job_limit_s, max(2.0, self._left_s + 0.05 * (o.budget_s or 0.0)))
        outcome = workers.run(replace(job, limit_s=limit_s), o, self._work)
        if outcome.failure and outcome.failure.kind == "hang" and limit_s < o.job_limit_s:
            outcome = replace(outcome, failure=replace(outcome.failure, kind="budget"))
        self.outcomes.append(outcome)
        self._keep(outcome)
        if outcome.failure and outcome.failure.kind == "interrupted":
            raise KeyboardInterrupt
        blocks = outcome.all("block")
        if blocks and not outcome.failure:
            measuring_ns = blocks[-1]["t1"] - blocks[0]["t0"] if o.backend == "cuda" else 0
            self._starting.append(max(0.1, outcome.wall_s - measuring_ns / 1e9))
        return outcome

    def _keep(self, outcome: Outcome) -> None:
        """The outcome as runs, one for each batch that the process began, and their blocks; how it
        ended is told of its last batch."""
        job, failure, clocks = outcome.job, outcome.failure, Clocks(self._work / "clocks.jsonl")
        begun = outcome.all("batch")
        run = Run(len(self._runs), job.target, job.batches[0], job.role)
        for fact in outcome.facts:
            kind, known = fact["type"], {k: v for k, v in fact.items() if k != "type"}
            if kind == "batch":
                if fact is not begun[0]:
                    self._runs.append(run)
                run = Run(len(self._runs), job.target, fact["batch"], job.role)
            elif kind == "known":
                run = replace(run, **known)
            elif kind == "refused":
                mode = fact["mode"] + ", cold L2" * (fact["l2"] == "cold")
                run = replace(run, refused={**run.refused, mode: fact["reason"]})
            elif kind == "block" and fact["ns"]:
                mhz = clocks.between(fact["t0"], fact["t1"])
                known["ns"] = tuple(fact["ns"])
                self._blocks.append(Block(run=run.number, sm_mhz=mhz, **known))
        if failure:
            run = replace(run, failure=failure.kind, message=without_paths(failure.text))
        self._runs.append(run)

    def _failed(self, outcome: Outcome) -> None:
        """A failure becomes a note; what is wrong with the function itself is an error."""
        job, failure = outcome.job, outcome.failure
        name = self.options.targets[job.target].name
        begun = [f["batch"] for f in outcome.all("batch")] or list(job.batches)
        which = name if begun[-1] is None else f"{name}, batch {begun[-1]:,}"
        self._notes.append(f"{which}: {without_paths(failure.text)[:300]}")
        if failure.kind == "wrong":
            raise MeasureError(f"{which}: {failure.text}", _NEXT["wrong"])


def _caveats(runs: Sequence[Run]) -> list[str]:
    """What a reader of the numbers must know."""
    timed, notes = [r for r in runs if not r.failure and r.role == "time"], []
    if unsettled := [r for r in timed if r.unsettled]:
        of = (
            f"{unsettled[0].warm_ns / 1e9:.1f} s in {len(unsettled)} of {plural(len(timed), 'run')}"
        )
        notes.append(f"not warm after {of}: {unsettled[0].unsettled}")
    refused = dict.fromkeys((mode, why) for r in runs for mode, why in r.refused.items())
    notes += [f"mode {mode} is not measured: {why}" for mode, why in refused]
    return notes + [ZEROS] * any(r.zero for r in runs)


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
    what = f"{gibibytes(used)} of its memory were in use, it was {busy} % busy"
    return [f"another process uses this GPU: before the first measurement {what}"]


class Clocks:
    """The SM clock of the first device, as clock_sampler wrote it until now."""

    def __init__(self, path: Path) -> None:
        rows = [row for row in workers.lines_of(path) if isinstance(row, list)]
        known = [row for row in rows if not row[3] and row[4]]
        self._times_ns, self._mhz = [row[0] for row in known], [row[4] for row in known]

    def between(self, start_ns: int, end_ns: int) -> float:
        """The median clock in a stretch of time, MHz (the nearest sample if it contains none); NaN
        if unknown."""
        if not self._mhz:
            return math.nan
        low, high = (bisect(self._times_ns, t) for t in (start_ns, end_ns))
        return float(median(self._mhz[low:high] or self._mhz[: low + 1][-1:]))
