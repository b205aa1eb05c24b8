"""The whole measurement: processes in random order, the search, the profiles, the time budget."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from nsysalign.addons.measure import profile, runner, search
from nsysalign.addons.measure.failures import Failure
from nsysalign.addons.measure.gpu import Clocks, in_use
from nsysalign.addons.measure.plan import CURVE_MODES, Job, Options
from nsysalign.addons.measure.result import Block, Key, Measure, Run
from nsysalign.addons.measure.runner import Outcome
from nsysalign.addons.measure.stored import MEASUREMENT
from nsysalign.errors import NsysAlignError
from nsysalign.paths import without_paths
from nsysalign.record.clock_sampler import sampling
from nsysalign.record.lock import locked
from nsysalign.rundir import make_run_dir
from nsysalign.text import plural

#: Seconds that a process of a search measures a batch, that modes may take in a quick look and
#: each in a full one, and that a profiled process measures.
PROBE_S, QUICK_S, MODE_S, PROFILED_S = 1.0, 1.5, 10.0, 1.0
#: Time to start a process and its CUDA, until one has been measured; for a profiled one with its
#: analysis; and the least that is worth measuring.
STARTING_S, PROFILING_S, LEAST_S = 8.0, 16.0, 0.3
#: Share of the budget after which a search, once it has started, begins no further batch.
CLIMBING = 0.4
#: Characters of a failure that a note shows.
SHOWN = 300
#: Failures of the function itself, which no other batch can mend.
WRONG = ("usage", "no-work")
NS = 1e9
ZEROS = (
    "the inputs are all zeros: kernels draw less power then, and can run more than a tenth faster "
    "than with data"
)

Tell = Callable[[str, int], None]


class Pair(NamedTuple):
    """What a process measures: a target's number and a batch."""

    target: int
    batch: int | None


class MeasureError(NsysAlignError):
    """Nothing could be measured."""


class Session:
    """One measurement in progress.  `tell(step, percent)` is called when a step begins."""

    def __init__(self, options: Options, tell: Tell | None = None) -> None:
        self.options = options.checked()
        self._tell = tell or (lambda step, percent: None)
        self._began = time.monotonic()
        self._starting: list[float] = []  # seconds that processes took besides measuring
        self._profiling_s = PROFILING_S
        self.folder = make_run_dir("measure", self.options.output)
        self._work = self.folder / "workers"
        self._work.mkdir(mode=0o700, exist_ok=True)
        self._clocks = self._work / "clocks.jsonl"
        self.outcomes: list[Outcome] = []
        self._runs: list[Run] = []
        self._blocks: list[Block] = []
        self._profiles: list[profile.Profile] = []
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
                sampling(self._clocks, wanted=cuda, flush_s=0.1) as unsampled,
            ):
                self._notes += conditions
                batches = self._searched() if o.search else o.batches or (None,)
                self._timed(batches)
                if o.clocks and o.profile:
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
            if measure.blocks:
                measure.write(self.folder / MEASUREMENT)
                if self._complete and not any(o.failure for o in self.outcomes):
                    shutil.rmtree(self._work, ignore_errors=True)  # the file has everything now
        if not measure.blocks:
            failure = next((o.failure for o in self.outcomes if o.failure), None)
            if failure is None:
                raise MeasureError(
                    "nothing was measured",
                    "a longer --budget: starting a process and its CUDA takes several seconds",
                )
            reason = f"nothing was measured: {failure.sentence()}"
            raise MeasureError(reason, _next_step(failure, self.folder))
        return measure

    def result(self) -> Measure:
        """What is known by now."""
        o = self.options
        options = {
            "batches": list(o.batches), "search": o.search, "modes": list(o.modes),
            "l2": list(o.l2), "precision": o.precision, "processes": o.processes,
            "budget_s": o.budget_s, "quick": o.quick, "clocks": o.clocks,
        }  # fmt: skip
        hello = next((x.first("hello") for x in self.outcomes if x.first("hello")), {})
        return Measure(
            targets=tuple(t.name for t in o.targets),
            options=options,
            environment={k: v for k, v in hello.items() if k not in ("type", "pid", "clean")},
            runs=tuple(self._runs),
            blocks=tuple(self._blocks),
            profiles=tuple(self._profiles),
            search=self._search,
            notes=tuple(dict.fromkeys([*self._notes, *caveats(self._runs)])),
            complete=self._complete,
            folder=self.folder,
        )

    # --- time ---

    @property
    def _left_s(self) -> float:
        """Seconds of the budget; infinite without one."""
        whole = self.options.budget_s
        return math.inf if whole is None else whole - (time.monotonic() - self._began)

    @property
    def _starting_s(self) -> float:
        """Time to start a process, from the last ones: the first found nothing in caches."""
        return 1.1 * median(self._starting[-5:]) if self._starting else STARTING_S

    def _share_s(self, jobs: int, *, planned: bool) -> float | None:
        """Seconds that one of this many processes may measure, None where there is no time for it:
        for a `planned` one there is, as long as it can start."""
        o, left = self.options, self._left_s - 0.3
        usual = QUICK_S if o.quick else MODE_S * len(o.modes) * len(o.l2)
        if o.budget_s is None:
            return usual
        if o.clocks and o.profile:  # for a profile, which comes last
            left -= min(self._profiling_s, o.budget_s / 2)
        share = left / jobs - self._starting_s
        if share >= LEAST_S:
            return min(usual, share)
        # fewer processes are better than none
        if planned and (not self.outcomes or left - self._starting_s >= LEAST_S):
            return min(usual, LEAST_S)
        return None

    # --- the parts ---

    def _searched(self) -> tuple[int, ...]:
        """Find the batches to report: one process climbs until the memory or its share of the budget
        ends."""
        o = self.options
        climbing_s = max(1.0, CLIMBING * o.budget_s - (time.monotonic() - self._began))
        job = Job(
            number=len(self.outcomes), target=0, batches=search.climb(o.most_batch), role="probe",
            modes=CURVE_MODES, l2=("warm",), seconds=PROBE_S, limit_s=0.0, batches_s=climbing_s,
        )  # fmt: skip
        outcome = self._worker(job, 2)
        failure, begun = outcome.failure, [f["batch"] for f in outcome.all("batch")]
        if failure and failure.kind in WRONG:
            self._failed(outcome)
        failed = begun[-1] if failure and failure.kind == "oom" and begun else None
        refused = [why for run in self._runs for why in run.refused.values()]
        trials = self.result().trials()
        largest, limited = max((t.batch for t in trials), default=0), ""
        if failure and not failure.expected:
            limited = _short(failure)
        elif refused and not trials:
            limited = f"its throughput cannot be measured: {refused[0]}"
        elif largest >= search.LARGEST:
            limited = f"memory does not limit the search: batch {largest:,} still fits"
        elif not failed and largest < (o.most_batch or search.LARGEST):
            self._missing.append(f"batches above {begun[-1]:,} to the search")
        if limited:
            where = f" at batch {begun[-1]:,}" if begun else ""
            self._notes.append(f"the search ended{where}: {limited}")
        self._search = {"largest": largest, "failed_at": failed, "limited": limited}
        return search.reported(trials, failed) if trials else ()

    def _timed(self, batches: Sequence[int | None]) -> None:
        """Rounds of one process per target and batch, each in an order of its own.

        If processes may differ, seven of each.  This is decided once: checking after each process
        and stopping when the result looks good would favour lucky results (92 instead of 95 % of
        the intervals held the truth)."""
        o = self.options
        pairs = [Pair(t, b) for b in batches for t in range(len(o.targets))]
        jobs = [pair for _ in range(o.processes) for pair in self._shuffled(pairs)]
        left = self._rounds(jobs, planned=True)
        if o.processes > 1 and not left:
            now = self.result()
            unsure = {pair.batch for pair in pairs if self._unsure(now, pair)}
            again = [pair for pair in pairs if pair.batch in unsure]
            rest = range(o.processes, o.most_processes)
            jobs = [pair for _ in rest for pair in self._shuffled(again)]
            left = self._rounds(jobs, planned=False)
        if left:
            named = sorted({pair.batch for pair in left if pair.batch is not None})
            of = f" of batch {', '.join(f'{b:,}' for b in named)}" if named else ""
            words = "process" if len(left) == 1 else "processes"
            self._missing.append(f"{len(left)} {words}{of}")

    def _rounds(self, jobs: list[Pair], *, planned: bool) -> list[Pair]:
        """Run one process after the other; those for which there was no time."""
        o, failed = self.options, set()
        for done, pair in enumerate(jobs):
            if pair in failed:
                continue
            rest = [p for p in jobs[done:] if p not in failed]
            seconds = self._share_s(len(rest), planned=planned)
            if seconds is None:
                return rest
            number = len(self.outcomes)
            job = Job(number, pair.target, (pair.batch,), "time", o.modes, o.l2, seconds, 0.0)
            outcome = self._worker(job, len(rest))
            if outcome.failure and outcome.failure.kind != "budget":
                failed.add(pair)
                if not (o.search and outcome.failure.kind == "oom"):
                    self._failed(outcome)
                elif pair.batch > self._search["largest"]:
                    self._search["failed_at"] = min(pair.batch, self._search["failed_at"])
            elif o.search and not outcome.failure:
                self._search["largest"] = max(self._search["largest"], pair.batch)
        return []

    def _unsure(self, now: Measure, pair: Pair) -> bool:
        """Whether the processes may differ, in what the curve shows or else in any mode."""
        of = {k: e for k, e in now.estimates.items() if (k.target, k.batch) == pair}
        curve = [of.get(Key(*pair, mode, "warm")) for mode in CURVE_MODES]
        return any(e.unsure for e in ([e for e in curve if e] or of.values()))

    def _profiled(self, batches: Sequence[int | None]) -> None:
        """One more worker per batch, under nsys.  A profile that fails is a note."""
        o, there = self.options, {(p.target, p.batch) for p in self.result().points}
        pairs = [(t, b) for b in batches for t in range(len(o.targets)) if (t, b) in there]
        for done, (target, batch) in enumerate(pairs):
            if self._left_s < 0.8 * self._profiling_s:
                self._missing.append(plural(len(pairs) - done, "profile"))
                return
            self._say(f"profiling batch {batch:,}" if batch is not None else "profiling", 92)
            began = time.monotonic()
            number = len(self.outcomes) + len(self._profiles)
            limit_s = min(120.0, max(10.0, self._left_s))
            job = Job(number, target, (batch,), "profile", ("event",), o.l2, PROFILED_S, limit_s)
            profiled = profile.profile(job, o, self.folder)
            self._profiles.append(profiled)
            self._profiling_s = time.monotonic() - began
            if profiled.problem:
                of = "" if batch is None else f" of batch {batch:,}"
                self._notes.append(f"no profile{of}: {profiled.problem}")
                if "no nsys" in profiled.problem.lower():
                    return

    # --- workers ---

    def _worker(self, job: Job, jobs: int) -> Outcome:
        """One process; `jobs`: with how many to come, itself included."""
        o, first, last = self.options, job.batches[0], job.batches[-1]
        named = "" if first is None else f" batch {first:,}"
        named = f" batches {first} to {last}" if len(job.batches) > 1 else named
        percent = min(90, 90 * job.number // (job.number + jobs))
        self._say(f"measuring{named} (process {job.number + 1})", percent)
        usual_s = job.seconds * 3 + 4 * self._starting_s + 30 + 2 * job.batches_s
        most_s = min(o.job_limit_s, usual_s)
        limit_s = min(most_s, max(2.0, self._left_s + 0.05 * (o.budget_s or 0.0)))
        outcome = runner.run(replace(job, limit_s=limit_s), o, self._work)
        if outcome.failure and outcome.failure.kind == "hang" and limit_s < most_s:
            outcome = replace(outcome, failure=replace(outcome.failure, kind="budget"))
        self.outcomes.append(outcome)
        self._keep(outcome)
        if outcome.failure and outcome.failure.kind == "interrupted":
            raise KeyboardInterrupt
        blocks = outcome.all("block")
        if blocks and not outcome.failure:
            measuring_ns = blocks[-1]["t1"] - blocks[0]["t0"] if o.backend == "cuda" else 0
            self._starting.append(max(0.1, outcome.wall_s - measuring_ns / NS))
        return outcome

    def _keep(self, outcome: Outcome) -> None:
        """The outcome as runs, one for each batch that the process began, and their blocks."""
        facts, clocks = outcome.facts, Clocks(self._clocks)
        starts = [k for k, fact in enumerate(facts) if fact["type"] == "batch"]
        shared = facts[: starts[0]] if starts else facts
        for start, end in zip(starts or [len(facts)], [*starts[1:], len(facts)], strict=True):
            batch = facts[start]["batch"] if starts else outcome.job.batches[0]
            part = replace(outcome, facts=[*shared, *facts[start:end]])
            if end < len(facts):  # how the process ended is told of its last batch
                part = replace(part, failure=None, wall_s=0.0)
            number = len(self._runs)
            self._runs.append(_run(part, number, batch))
            for b in part.all("block"):
                t0, t1 = b["t0"], b["t1"]
                mhz, ns = clocks.between(t0, t1), tuple(b["ns"])
                self._blocks += [Block(number, b["mode"], b["l2"], t0, t1, mhz, ns)] if ns else []

    def _failed(self, outcome: Outcome) -> None:
        """A failure becomes a note; what is wrong with the function itself is an error."""
        job, failure = outcome.job, outcome.failure
        name = self.options.targets[job.target].name
        begun = [f["batch"] for f in outcome.all("batch")]
        if len(job.batches) == 1:
            begun = list(job.batches)
        which = f"{name}, batch {begun[-1]:,}" if begun and begun[-1] is not None else name
        self._notes.append(f"{which}: {_short(failure)}")
        if failure.kind in WRONG:
            reason = failure.message.partition(": ")[2] or failure.message
            raise MeasureError(f"{which}: {reason}")

    def _say(self, step: str, percent: int) -> None:
        if whole := self.options.budget_s:
            percent = min(99, max(0, int(100 * (1 - self._left_s / whole))))
        self._tell(step, percent)

    def _shuffled(self, values: Iterable[Any]) -> list[Any]:
        out = list(values)
        self._random.shuffle(out)
        return out


def _run(outcome: Outcome, number: int, batch: int | None) -> Run:
    def by_mode(kind: str) -> dict[str, dict[str, Any]]:
        named = [(f["mode"] + f"/{f['l2']}" * (f["l2"] != "warm"), f) for f in outcome.all(kind)]
        own = ("type", "mode", "l2")
        return {name: {k: v for k, v in f.items() if k not in own} for name, f in named}

    failure, warm, made = outcome.failure, outcome.first("warm"), outcome.first("made")
    return Run(
        number=number,
        target=outcome.job.target,
        batch=batch,
        role=outcome.job.role,
        wall_s=round(outcome.wall_s, 2),
        failure=failure.kind if failure else "",
        message=without_paths(failure.sentence()) if failure else "",
        first_ns=warm.get("first_ns", 0),
        warm_ns=warm.get("ns", 0),
        warm_calls=warm.get("calls", 0),
        settled=warm.get("settled", False),
        unsettled=warm.get("why", ""),
        outputs=made.get("outputs", 1.0),
        zero=made.get("zero", False),
        memory={k: v for k, v in outcome.first("memory").items() if k != "type"},
        clean=outcome.first("hello").get("clean", {}),
        refused={mode: fact["reason"] for mode, fact in by_mode("refused").items()},
        facts=by_mode("mode"),
    )


def caveats(runs: Sequence[Run]) -> list[str]:
    """What a reader of the numbers must know."""
    notes, good = [], [r for r in runs if not r.failure]
    unsettled = [r for r in good if not r.settled and r.warm_calls and r.role == "time"]
    if unsettled:
        of = f"{unsettled[0].warm_ns / NS:.1f} s in {len(unsettled)} of {plural(len(good), 'run')}"
        notes.append(f"not warm after {of}: {unsettled[0].unsettled}")
    refused = dict.fromkeys((mode, why) for r in runs for mode, why in r.refused.items())
    notes += [f"mode {mode} is not measured: {why}" for mode, why in refused]
    notes += [ZEROS] * any(r.zero for r in runs)
    if signs := sorted({name for r in runs for name in r.clean.get("found", ())}):
        there = f"a profiler or hook is in the timed processes ({', '.join(signs[:4])})"
        notes.append(f"{there}: the numbers include its cost")
    if tight := max((r.batch or 0 for r in good if r.memory.get("retries")), default=0):
        again = "torch had to free its cache and allocate again: it barely fits"
        notes.append(f"at batch {tight:,} {again}")
    return notes


def _short(failure: Failure) -> str:
    """In words; torch's message may be a page long, and measure.json has all of it."""
    words = without_paths(failure.sentence())
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}…"


def _next_step(failure: Failure, folder: Path) -> str:
    if failure.kind in WRONG:
        return "see: nsysalign measure --help"
    if failure.kind in ("hang", "budget"):
        return "does the call return at all? if it is only slow, a longer --budget helps"
    if failure.kind == "oom":
        return "a smaller --batch"
    if failure.stage == "starting CUDA":
        return "nvidia-smi, and: nsysalign doctor"
    return f"its output and traceback: {folder}/workers/*.log"
