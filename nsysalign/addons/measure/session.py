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
from typing import Any

from nsysalign.addons.measure import profile as proof
from nsysalign.addons.measure import runner, search
from nsysalign.addons.measure.failures import Failure
from nsysalign.addons.measure.gpu import Clocks, Gpu
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

PROBE_S, QUICK_S, PROFILED_S = 1.0, 1.5, 1.0
#: Time to start a process and its CUDA, until one has been measured; for a profiled one with its
#: analysis; and the least that is worth measuring.
STARTING_S, PROFILING_S, LEAST_S = 8.0, 16.0, 0.3
#: Share of the budget that a search leaves for what follows it, and that its first process takes.
AFTER_SEARCH, CLIMBING = 0.45, 0.4
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
#: A target's number and a batch.
Pair = tuple[int, int | None]


class MeasureError(NsysAlignError):
    """Nothing could be measured."""


class OutOfTime(Exception):
    """The budget is too small for another process."""


class Session:
    """One measurement in progress.  `tell(step, percent)` is called when a step begins."""

    def __init__(self, options: Options, tell: Tell | None = None) -> None:
        self.options = options.checked()
        self._tell = tell or (lambda step, percent: None)
        self._began = time.monotonic()
        self._starting: list[float] = []  # seconds that processes took besides measuring
        self._profiling: list[float] = []
        self.folder = make_run_dir("measure", self.options.output)
        self._work = self.folder / "workers"
        self._work.mkdir(mode=0o700, exist_ok=True)
        self._clocks = self._work / "clocks.jsonl"
        self.gpu = Gpu()
        self.outcomes: list[Outcome] = []
        self._runs: list[Run] = []
        self._blocks: list[Block] = []
        self._profiles: list[proof.Profile] = []
        self._notes: list[str] = []
        self._search: dict[str, Any] = {}
        self._missing: list[tuple[float, str]] = []  # seconds that something would take, and what
        self._complete = False
        self._random = random.Random(self.options.seed or None)

    def run(self) -> Measure:
        """Measure.  If it ends early, what was measured so far is in the folder.  Raises
        MeasureError if nothing was."""
        o, cuda = self.options, self.options.backend == "cuda"
        self._notes += self.gpu.caveats() if cuda else []
        try:
            with (
                locked(o.lock_clocks) as conditions,
                sampling(self._clocks, wanted=cuda, flush_s=0.1) as unsampled,
            ):
                self._notes += conditions
                batches: Sequence[int | None] = o.batches or (None,)
                if o.search:
                    batches = self._searched()
                self._timed(batches)
                if o.profile:
                    self._profiled(batches)
            self._notes += unsampled
            self._complete = True
        except KeyboardInterrupt:
            self._notes.append("interrupted: these are the results until then")
        finally:
            if cuda:
                self._notes += self.gpu.newcomers()
            self._note_missing()
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
            "latency_below_ns": o.latency_below_s * NS if o.latency_below_s else None,
        }  # fmt: skip
        hello = next((x.first("hello") for x in self.outcomes if x.first("hello")), {})
        environment = {k: v for k, v in hello.items() if k not in ("type", "pid", "clean")}
        notes = dict.fromkeys([*self._notes, *caveats(self._runs)])
        return Measure(
            tuple(t.name for t in o.targets), options, environment, tuple(self._runs),
            tuple(self._blocks), tuple(self._profiles), self._search, tuple(notes),
            self._complete, self.folder,
        )  # fmt: skip

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

    @property
    def _profiling_s(self) -> float:
        return max(self._profiling, default=PROFILING_S)

    def _share_s(self, jobs: int, profiles: int, *, first: bool = True) -> float:
        """Seconds that one of this many processes may measure.  `first`: they come before this many
        profiles if there is no time for both: without them nobody knows how far numbers hold, and a
        profile only explains them.  Raises OutOfTime if too little is left, except for the
        first."""
        o = self.options
        usual = QUICK_S if o.quick else 10.0 * len(o.modes) * len(o.l2)
        whole = o.budget_s
        if whole is None:
            return usual
        left, reserve = self._left_s - 0.3, 0.0
        if o.profile:  # for one, or a fifth of the budget, and never more than a third of it
            most = max(self._profiling_s, whole / 5)
            reserve = min(self._profiling_s * profiles, most, whole / 3)
        if not first or left - reserve >= jobs * (self._starting_s + LEAST_S):
            left -= reserve
        share = left / max(1, jobs) - self._starting_s
        if share < LEAST_S:  # fewer processes are better than none
            share = min(left - self._starting_s, LEAST_S)
        if share < LEAST_S and self.outcomes:
            raise OutOfTime
        return max(0.1, min(usual, share))

    def _note_missing(self) -> None:
        """What did not fit into the budget, and what it would take."""
        budget = self.options.budget_s
        if budget is None or not self._missing or not self._runs:
            return
        more = 5 * math.ceil(sum(seconds for seconds, _ in self._missing) / 5)
        what = ", and ".join(dict.fromkeys(words for _, words in self._missing))
        self._notes.append(
            f"the budget of {budget:g} s ran out: about {more} s more (--budget "
            f"{math.ceil(budget) + more}s) would add {what}"
        )

    # --- the parts ---

    def _searched(self) -> tuple[int, ...]:
        """Find the batches to report: the climb, the refinement."""
        o = self.options
        limit_ns = o.latency_below_s * NS if o.latency_below_s else None
        outcome = self._probe(search.climb(o.most_batch), CLIMBING)
        if outcome.failure and outcome.failure.kind in WRONG:
            self._failed(outcome)
        begun = [f["batch"] for f in outcome.all("batch")]
        failed, limited = self._failed_at(outcome), ""
        refused = [why for r in self._runs for why in r.refused.values()]
        trials = self.result().trials()
        done = max((t.batch for t in trials), default=0)
        if outcome.failure and not outcome.failure.expected:
            limited = _short(outcome.failure)
        elif refused and not trials:
            limited = f"its throughput cannot be measured: {refused[0]}"
        elif done >= search.LARGEST:
            limited = f"memory does not limit the search: batch {done:,} still fits"
        elif not failed and done < (o.most_batch or search.LARGEST):
            self._missing.append((60.0, f"batches above {begun[-1]:,} to the search"))
        if limited:
            where = f" at batch {begun[-1]:,}" if begun else ""
            self._notes.append(f"the search ended{where}: {limited}")
        more = search.refined(trials, failed, o.most_batch, limit_ns) if trials else ()
        try:
            if more:
                outcome = self._probe(more, 1 - AFTER_SEARCH)
                failed = self._failed_at(outcome) or failed
                if outcome.failure and not outcome.failure.expected:
                    self._failed(outcome)
        except OutOfTime:
            self._missing.append((30.0, "the batches between the powers of two"))
        trials = self.result().trials()
        done = max((t.batch for t in trials), default=0)
        self._search = {"largest": done, "failed_at": failed, "limited": limited}
        return search.reported(trials, limit_ns) if trials else ()

    def _probe(self, batches: tuple[int, ...], share: float) -> Outcome:
        """One process of the search, until this share of the budget is spent."""
        o = self.options
        left = share * (o.budget_s or 60.0) - (time.monotonic() - self._began)
        if self.outcomes and left < self._starting_s + LEAST_S:
            raise OutOfTime
        return self._worker(0, batches, "probe", CURVE_MODES, PROBE_S, 2, max(1.0, left))

    def _failed_at(self, outcome: Outcome) -> int | None:
        """The batch at which a process of the search found no memory."""
        if outcome.failure and outcome.failure.memory:
            return [outcome.job.batches[0], *(f["batch"] for f in outcome.all("batch"))][-1]
        return None

    def _timed(self, batches: Sequence[int | None]) -> None:
        """Rounds of one process per target and batch, each in an order of its own.

        If processes may differ, seven of each.  This is decided once: checking after each process
        and stopping when the result looks good would favour lucky results (92 instead of 95 % of
        the intervals held the truth)."""
        o = self.options
        pairs = [(t, b) for t in range(len(o.targets)) for b in batches]
        jobs = [p for _ in range(o.processes) for p in self._shuffled(pairs)]
        left = self._rounds(jobs, len(pairs), first=True)
        if o.processes > 1 and not left:
            now = self.result()
            unsure = {p for p in pairs if self._unsure(now, p)}
            if len(o.targets) > 1:
                unsure = {p for p in pairs if any(b == p[1] for _, b in unsure)}
            rest = range(o.processes, o.most_processes)
            jobs = [p for _ in rest for p in self._shuffled(sorted(unsure, key=str))]
            left = self._rounds(jobs, len(pairs), first=False)
        if left:
            seconds = len(left) * (self._starting_s + 1.0)
            named = sorted({b for _, b in left if b is not None})
            of = f" of batch {', '.join(f'{b:,}' for b in named)}" if named else ""
            words = "process" if len(left) == 1 else "processes"
            self._missing.append((seconds, f"{len(left)} {words}{of}"))

    def _rounds(self, jobs: list[Pair], profiles: int, *, first: bool) -> list[Pair]:
        """Run one process after the other; those for which there was no time."""
        failed: set[Pair] = set()
        for done, (target, batch) in enumerate(jobs):
            rest = [p for p in jobs[done:] if p not in failed]
            if (target, batch) in failed:
                continue
            try:
                seconds = self._share_s(len(rest), profiles, first=first)
            except OutOfTime:
                return rest
            o = self.options
            outcome = self._worker(target, (batch,), "time", o.modes, seconds, len(rest))
            if outcome.failure and outcome.failure.kind != "budget":
                self._failed(outcome)
                failed.add((target, batch))
        return []

    def _unsure(self, now: Measure, pair: Pair) -> bool:
        """Whether the processes may differ, in what the curve shows or else in any mode."""
        of = {k: e for k, e in now.estimates.items() if (k.target, k.batch) == pair}
        curve = [of.get(Key(*pair, mode, "warm")) for mode in CURVE_MODES]
        return any(e.unsure for e in ([e for e in curve if e] or of.values()))

    def _profiled(self, batches: Sequence[int | None]) -> None:
        """One more worker per reported batch, under nsys.  A profile that fails is a note."""
        o, now = self.options, self.result()
        advised = now.advised
        # if time is short, the batch that is advised gets a profile
        order = sorted(batches, key=lambda b: advised is None or b != advised.batch)
        there = {(p.target, p.batch) for p in now.points}
        pairs = [(t, b) for b in order for t in range(len(o.targets)) if (t, b) in there]
        for done, (target, batch) in enumerate(pairs):
            if self._left_s < 0.8 * self._profiling_s:
                many = plural(len(pairs) - done, "profile")
                self._missing.append(((len(pairs) - done) * self._profiling_s, many))
                return
            self._say(f"profiling batch {batch:,}" if batch is not None else "profiling", 92)
            began = time.monotonic()
            number = len(self.outcomes) + len(self._profiles)
            limit_s = min(120.0, max(10.0, self._left_s))
            job = Job(number, target, (batch,), "profile", ("event",), o.l2, PROFILED_S, limit_s)
            timed = now.estimates.get(Key(target, batch, "event", "warm"))
            profile = proof.profile(job, o, self.folder, timed.value_ns if timed else math.nan)
            self._profiles.append(profile)
            self._profiling.append(time.monotonic() - began)
            if profile.problem:
                of = "" if batch is None else f" of batch {batch:,}"
                self._notes.append(f"no profile{of}: {profile.problem}")
                if "no nsys" in profile.problem.lower():
                    return

    # --- workers ---

    def _worker(
        self, target: int, batches: tuple[int | None, ...], role: str, modes: tuple[str, ...],
        seconds: float, jobs: int, batches_s: float = 0.0,
    ) -> Outcome:  # fmt: skip
        """One process; `jobs`: with how many to come, itself included."""
        o, done = self.options, len(self.outcomes)
        named = "" if batches[0] is None else f" batch {batches[0]:,}"
        named = f" batches {batches[0]} to {batches[-1]}" if len(batches) > 1 else named
        self._say(f"measuring{named} (process {done + 1})", min(90, 90 * done // (done + jobs)))
        usual_s = seconds * 3 + 4 * self._starting_s + 30 + 2 * batches_s
        job_s = min(o.job_limit_s, usual_s)
        limit_s = min(job_s, max(2.0, self._left_s + 0.05 * (o.budget_s or 0.0)))
        job = Job(done, target, batches, role, modes, o.l2, seconds, limit_s, batches_s)
        outcome = runner.run(job, o, self._work, clocks=self._clocks)
        if outcome.failure and outcome.failure.kind == "hang" and limit_s < job_s:
            outcome = replace(outcome, failure=replace(outcome.failure, kind="budget"))
        self.outcomes.append(outcome)
        self._keep(outcome)
        if outcome.failure and outcome.failure.kind == "interrupted":
            raise KeyboardInterrupt
        blocks = outcome.all("block")
        if blocks and not outcome.failure:
            whole_ns = blocks[-1]["t1"] - blocks[0]["t0"]
            measuring = whole_ns / NS if o.backend == "cuda" else 0.0
            self._starting.append(max(0.1, outcome.wall_s - measuring))
        return outcome

    def _keep(self, outcome: Outcome) -> None:
        """The outcome as runs, one for each batch that the process began, and their blocks."""
        facts, job, clocks = outcome.facts, outcome.job, Clocks(self._clocks)
        starts = [k for k, fact in enumerate(facts) if fact["type"] == "batch"]
        shared = facts[: starts[0]] if starts else facts
        for start, end in zip(starts or [len(facts)], [*starts[1:], len(facts)], strict=True):
            last = end == len(facts)
            part = replace(
                outcome,
                job=replace(job, batches=(facts[start]["batch"],) if starts else job.batches[:1]),
                facts=[*shared, *facts[start:end]],
                failure=outcome.failure if last else None,
                wall_s=outcome.wall_s if last else 0.0,
            )
            number = len(self._runs)
            self._runs.append(_run(part, number))
            self._blocks += [
                Block(
                    number, b["mode"], b["l2"], b["t0"], b["t1"],
                    clocks.between(b["t0"], b["t1"]), tuple(b["ns"]),
                )
                for b in part.all("block")
                if b["ns"]
            ]  # fmt: skip

    def _failed(self, outcome: Outcome) -> None:
        """A failure becomes a note; what is wrong with the function itself is an error."""
        job, failure = outcome.job, outcome.failure
        name = self.options.targets[job.target].name
        begun = [f["batch"] for f in outcome.all("batch")] or list(job.batches)
        which = name if begun[-1] is None else f"{name}, batch {begun[-1]:,}"
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


def _run(outcome: Outcome, number: int) -> Run:
    def by_mode(kind: str) -> dict[str, dict[str, Any]]:
        named = [(f["mode"] + f"/{f['l2']}" * (f["l2"] != "warm"), f) for f in outcome.all(kind)]
        own = ("type", "mode", "l2")
        return {name: {k: v for k, v in f.items() if k not in own} for name, f in named}

    job, failure, warm = outcome.job, outcome.failure, outcome.first("warm")
    made, memory = outcome.first("made"), outcome.first("memory")
    return Run(
        number, job.target, job.batches[0], job.role, round(outcome.wall_s, 2),
        failure.kind if failure else "", without_paths(failure.sentence()) if failure else "",
        warm.get("first_ns", 0), warm.get("ns", 0), warm.get("calls", 0),
        warm.get("settled", False), warm.get("why", ""),
        made.get("outputs", 1.0), made.get("zero", False),
        {k: v for k, v in memory.items() if k != "type"}, outcome.first("hello").get("clean", {}),
        {mode: fact["reason"] for mode, fact in by_mode("refused").items()},
        by_mode("mode"),
    )  # fmt: skip


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
    if failure.memory:
        return "a smaller --batch"
    if failure.stage == "starting CUDA":
        return "nvidia-smi, and: nsysalign doctor"
    return f"its output and traceback: {folder}/workers/*.log"
