"""The whole measurement: processes in random order, the search, the profiles, the budget of time."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsysalign.errors import NsysAlignError, UsageError
from nsysalign.measure import profile as proof
from nsysalign.measure import runner, sampler
from nsysalign.measure.collected import collected, environment, rungs, trial
from nsysalign.measure.memory import Trial
from nsysalign.measure.plan import CURVE_MODES, Job, Options, check
from nsysalign.measure.result import Measure
from nsysalign.measure.runner import Failure, Outcome
from nsysalign.measure.search import OutOfTime, Search, search
from nsysalign.measure.time_left import LEAST_S, Budget
from nsysalign.private import without_paths
from nsysalign.record.lock import locked
from nsysalign.rundir import MEASUREMENT, make_run_dir

PROBE_S, QUICK_S, PROFILED_S = 1.0, 1.5, 1.0
#: Points that are measured in full: 1, the best, its equals, the knee, the largest, the best below the limit.
MOST_REPORTED = 6
#: Characters of a failure that a note shows.
SAID = 300
NS = 1e9

Tell = Callable[[str, int], None]


class MeasureError(NsysAlignError):
    """Nothing could be measured."""


class Session:
    """One measurement in progress.  `tell(step, percent)` is called when a step begins, `meanwhile()` once, in a thread, while
    the first process starts."""

    def __init__(
        self,
        options: Options,
        tell: Tell | None = None,
        folder: Path | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.options = check(options)
        self.tell = tell or (lambda step, percent: None)
        self.time = Budget(self.options.budget_s)
        self.folder = folder or make_run_dir("measure", options.output)
        self.work = self.folder / "workers"
        self.work.mkdir(mode=0o700, exist_ok=True)
        self.clocks = self.work / "clocks.jsonl"
        self.gpu = sampler.Gpu()
        self.workers = runner.Workers(self.options, self.work, meanwhile)
        self.outcomes: list[Outcome] = []
        self.profiles: list[proof.Profile] = []
        self.notes: list[str] = []
        self.found: Search | None = None
        self.complete = False
        self._random = random.Random(options.seed or None)
        self._climbed: dict[int, Outcome] = {}

    # --- the parts of it ---

    def run(self) -> Measure:
        """Measure.  If it ends early, what was measured so far is in the folder.  Raises MeasureError if nothing was."""
        o = self.options
        self.notes += self.gpu.caveats() if o.backend == "cuda" else []
        try:
            with (
                locked(o.lock_clocks) as said,
                sampler.clocks(self.clocks, wanted=o.backend == "cuda") as unsampled,
            ):
                self.notes += said
                self._measure()
            self.notes += unsampled
            self.complete = True
        except KeyboardInterrupt:
            self.notes.append("interrupted: these are the results until then")
        finally:
            self.workers.close()
            if o.backend == "cuda":
                self.notes += self.gpu.newcomers()
            self.gpu.close()
            measure = self.result()
            if measure.blocks:
                measure.write(self.folder / MEASUREMENT)
                if self.complete and not any(o.failure for o in self.outcomes):
                    shutil.rmtree(
                        self.work, ignore_errors=True
                    )  # everything in it is in the file now
        self._raise_if_nothing(measure)
        return measure

    def _measure(self) -> None:
        o = self.options
        batches: Sequence[int | None] = o.batches or (None,)
        try:
            if o.search:
                batches = self._searched()
            self._timed(batches)
        except OutOfTime:
            self.notes.append(
                f"the budget of {o.budget_s:g} s ran out before all planned processes had run"
            )
        if o.profile:
            self._profiled(batches)

    def _timed(self, batches: Sequence[int | None]) -> None:
        """Rounds of one process per target and batch, each in an order of its own; more for those that differ."""
        o = self.options
        rounds = 1 if o.quick else max(1, o.processes)
        pairs = [(t, b) for t in range(len(o.targets)) for b in batches]
        usual = QUICK_S if o.quick else 10.0 * len(o.modes) * len(o.l2)
        failed: set[tuple[int, int | None]] = set()
        for number in range(rounds):
            for at, (target, batch) in enumerate(
                self._shuffled(p for p in pairs if p not in failed)
            ):
                jobs = (rounds - number) * len(pairs) - at
                seconds = self._share_s(jobs, len(pairs), usual)
                done = self._worker(
                    target, batch, number, "time", o.modes, o.l2, seconds, rounds * len(pairs)
                )
                if done.failure:
                    self._failed(done)
                    failed.add((target, batch))
        if not o.quick and o.processes > 1:
            self._more([p for p in pairs if p not in failed], usual)

    def _more(self, pairs: list[tuple[int, int | None]], usual: float) -> None:
        """If processes may differ, seven of each.  This is decided once: checking after each process and stopping when the
        result looks good would favour lucky results (92 instead of 95 % of the intervals held the truth)."""
        o = self.options
        now = self.result()
        unclear = [p for p in pairs if self._unsure(now, *p)]
        if len(o.targets) > 1:
            unclear = [p for p in pairs if any(b == p[1] for _, b in unclear)]
        jobs = [
            (number, *p)
            for number in range(o.processes, o.most_processes)
            for p in self._shuffled(unclear)
        ]
        for at, (number, target, batch) in enumerate(jobs):
            seconds = self._share_s(len(jobs) - at, len(pairs), usual, first=False)
            self._worker(
                target,
                batch,
                number,
                "time",
                o.modes,
                o.l2,
                seconds,
                len(pairs) * o.processes + len(jobs),
            )

    def _share_s(self, jobs: int, profiles: int, usual_s: float, *, first: bool = True) -> float:
        """Seconds that one of this many processes may measure.  `first`: they come before profiles."""
        reserve_s = self.time.for_profiles(profiles if self.options.profile else 0)
        return self.time.share_s(jobs, reserve_s, usual_s, any_yet=bool(self.outcomes), first=first)

    def _unsure(self, now: Measure, target: int, batch: int | None) -> bool:
        """Whether the processes may differ."""
        found = [
            now.estimates.get((target, batch, m, self.options.l2[0])) for m in ("latency", "steady")
        ]
        found = [e for e in found if e is not None] or [
            e for k, e in now.estimates.items() if k[:2] == (target, batch)
        ]
        return any(e.unsure for e in found)

    def _searched(self) -> Sequence[int]:
        """Find the batches to report."""
        o = self.options
        limit = o.latency_below_s * NS if o.latency_below_s else None
        self.found = Search()
        search(
            self._trial,
            most=o.most_batch,
            latency_ns=limit,
            found=self.found,
            sms=self._multiprocessors,
        )
        found = self.found
        if found.trials and found.limited and not found.limited.startswith("--max-batch"):
            self.notes.append(
                f"the search ended at batch {found.trials[-1].batch}: {found.limited}"
            )
        return found.reported(limit, MOST_REPORTED) if found.ran else ()

    def _multiprocessors(self) -> int:
        return int(environment(self.outcomes).get("sms") or 0)

    def _trial(self, batch: int) -> Trial:
        """One process of the search."""
        o = self.options
        left_s = self.time.left_s - self.time.for_search(o.processes, o.profile)
        if left_s < self.time.starting_s + LEAST_S and self.outcomes:
            raise OutOfTime
        if not self.outcomes and o.targets[0].function is None:
            self._ladder()
        done = self._climbed.get(batch) or self._worker(
            0, batch, 0, "probe", CURVE_MODES, o.l2[:1], PROBE_S, 20
        )
        if done.failure and not done.failure.memory:
            self._failed(done)
        return trial(batch, done, o)

    def _ladder(self) -> None:
        """The first batches, far from the memory's limit, in one process; each becomes an outcome of its own.  A batch that
        failed is tried again in a process of its own, since earlier batches may have caused the failure."""
        o = self.options
        ladder = tuple(
            b
            for b in (1, 2, *(4**k for k in range(1, 12)))
            if o.most_batch is None or b <= o.most_batch
        )
        seconds = 0.5 * min(o.budget_s or 60.0, 60.0)
        whole = self._worker(
            0,
            ladder[0],
            0,
            "probe",
            CURVE_MODES,
            o.l2[:1],
            PROBE_S,
            20,
            ladder=ladder,
            ladder_s=seconds,
        )
        self.outcomes.pop()
        for rung in rungs(whole, len(self.outcomes)):
            self._climbed[rung.job.batch] = rung
            self.outcomes.append(rung)

    def _profiled(self, batches: Sequence[int | None]) -> None:
        """One more worker per reported batch, under nsys.  A profile that fails is a note."""
        o = self.options
        best = self.found.best.batch if self.found and self.found.best else None
        first = sorted(
            batches, key=lambda b: b != best
        )  # if time is short, the best batch gets a profile
        pairs = [(t, b) for b in first for t in range(len(o.targets)) if self._ran(t, b)]
        for target, batch in pairs:
            if self.time.left_s < 0.8 * self.time.profiling_s:
                self.notes.append(
                    "the budget did not suffice for a profile of every batch: --no-profile, or a larger --budget"
                )
                return
            self._say(f"profiling batch {batch}" if batch is not None else "profiling", 92)
            began = time.monotonic()
            job = Job(
                len(self.outcomes) + len(self.profiles),
                target,
                batch,
                0,
                "profile",
                ("event",),
                o.l2,
                PROFILED_S,
                min(120.0, max(10.0, self.time.left_s)),
            )
            timed = {
                l2: [v for p in self.result().processes(target, batch, "event", l2) for v in p]
                for l2 in o.l2
            }
            host = [
                f["ns"]
                for x in self.outcomes
                if (x.job.target, x.job.batch, x.job.role) == (target, batch, "time")
                for f in x.all("host")
            ]
            found = proof.profile(job, o, self.folder, timed, environment(self.outcomes), host)
            self.profiles.append(found)
            self.time.profiling.append(time.monotonic() - began)
            if found.problem:
                self.notes.append(
                    f"no profile{'' if batch is None else f' of batch {batch}'}: {found.problem}"
                )
                if "nsys" in found.problem and "no nsys" in found.problem.lower():
                    return

    def _ran(self, target: int, batch: int | None) -> bool:
        return any(
            o.all("block") for o in self.outcomes if (o.job.target, o.job.batch) == (target, batch)
        )

    def result(self) -> Measure:
        """What is known by now."""
        return collected(
            self.options, self.outcomes, clocks=self.clocks, folder=self.folder, profiles=self.profiles, found=self.found,
            notes=self.notes, complete=self.complete,
        )  # fmt: skip

    # --- workers ---

    def _worker(
        self, target: int, batch: int | None, replicate: int, role: str, modes: tuple[str, ...], l2: tuple[str, ...], seconds: float, of: int,
        **more: Any,
    ) -> Outcome:  # fmt: skip
        o = self.options
        done = sum(x.job.role == role for x in self.outcomes)
        self._say(
            f"measuring{'' if batch is None else f' batch {batch}'} (process {done + 1})",
            min(90, 90 * done // max(of, done + 1)),
        )
        total = self.gpu.total_bytes()
        limit = seconds * 3 + 4 * self.time.starting_s + 30 + 2 * more.get("ladder_s", 0.0)
        limit = self.time.limit_s(min(o.job_limit_s, limit))
        fraction, most = self._memory_limit(total, role)
        job = Job(
            len(self.outcomes),
            target,
            batch,
            replicate,
            role,
            modes,
            l2,
            seconds,
            limit,
            fraction,
            most,
            **more,
        )
        if o.targets[target].function is not None:
            outcome = runner.run_here(job, o, o.targets[target].function)
        else:
            outcome = runner.run(
                job,
                o,
                self.work,
                self.workers,
                clocks=self.clocks,
                used_bytes=self.gpu.used_bytes,
                more=of > done + 1 or o.search,
            )
        self.outcomes.append(outcome)
        if outcome.failure and outcome.failure.kind == "interrupted":
            raise KeyboardInterrupt
        blocks = outcome.all("block")
        if blocks and not outcome.failure:
            # all but measuring; the next one has imported torch by then
            measuring = (blocks[-1]["t1"] - blocks[0]["t0"]) / NS if o.backend == "cuda" else 0.0
            self.time.starting.append(
                max(0.1, outcome.wall_s - measuring - self.workers.ahead_s(outcome))
            )
        return outcome

    def _memory_limit(self, total: int | None, role: str) -> tuple[float | None, int | None]:
        """(torch's share of the device, bytes in use by all above which the worker is ended), in a search only.

        Memory held by other processes is not available: the limit is a share of what was free before.
        """
        if not self.options.search or total is None:
            return (self.options.memory if self.options.search else None), None
        used = self.gpu.used_bytes() or 0
        mine = self.options.memory * (total - used)
        return mine / total, int(used + mine + 0.05 * (total - used))

    def _failed(self, outcome: Outcome) -> None:
        """A failure becomes a note; if nothing was measured at all, the first worker's failure is the error."""
        job, failure = outcome.job, outcome.failure
        which = self.options.targets[job.target].name + (
            "" if job.batch is None else f", batch {job.batch}"
        )
        said = without_paths(
            failure.sentence()
        )  # torch's may be a page long: measure.json has all of it
        self.notes.append(f"{which}: {said if len(said) <= SAID else said[:SAID] + '…'}")
        if failure.kind in ("usage", "no-work"):
            raise MeasureError(
                f"{which}: {failure.message.partition(': ')[2] or failure.message}"
            ) from None

    def _raise_if_nothing(self, measure: Measure) -> None:
        if measure.blocks:
            return
        failure = next((o.failure for o in self.outcomes if o.failure), None)
        if failure is not None:
            raise MeasureError(
                f"nothing was measured: {failure.sentence()}", _next_step(failure, self.folder)
            )
        raise MeasureError(
            "nothing was measured",
            "a longer --budget: starting a process and its CUDA takes several seconds",
        )

    def _say(self, step: str, percent: int) -> None:
        self.tell(step, self.time.percent(percent))

    def _shuffled(self, values: Iterator[Any] | Sequence[Any]) -> list[Any]:
        out = list(values)
        self._random.shuffle(out)
        return out


def _next_step(failure: Failure, folder: Path) -> str:
    if failure.kind in ("usage", "no-work"):
        return "see: nsysalign measure --help"
    if failure.kind == "hang":
        return "does the call return at all? if it is only slow, a longer --budget helps"
    if failure.memory:
        return "a smaller --batch, or --memory nearer to 1"
    if failure.stage == "starting CUDA":
        return "nvidia-smi, and: nsysalign doctor"
    return f"its output and traceback: {folder}/workers/*.log"


def measure(
    options: Options, tell: Tell | None = None, meanwhile: Callable[[], None] = lambda: None
) -> Measure:
    """Measure by these options (plan.Options).  `tell`, `meanwhile`: as in Session."""
    if options.backend == "cuda" and not options.targets:
        raise UsageError("nothing to measure", "nsysalign measure FILE.py:FUNCTION")
    return Session(options, tell, meanwhile=meanwhile).run()


def quickly(options: Options) -> Options:
    """--quick: one process, no profile."""
    return replace(options, quick=True, processes=1, most_processes=1, profile=False)
