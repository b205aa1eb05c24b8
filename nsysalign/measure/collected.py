"""The workers' results: as a measurement, and as the trials of a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from nsysalign.measure import sampler
from nsysalign.measure.memory import Trial
from nsysalign.measure.modes import mode_key
from nsysalign.measure.plan import CURVE_MODES, Options
from nsysalign.measure.profile import Profile
from nsysalign.measure.result import Block, Measure, Run
from nsysalign.measure.runner import Outcome
from nsysalign.measure.search import Search
from nsysalign.private import without_paths

NS = 1e9


def collected(
    options: Options,
    outcomes: Sequence[Outcome],
    *,
    clocks: Path,
    folder: Path,
    profiles: Sequence[Profile] = (),
    found: Search | None = None,
    notes: Sequence[str] = (),
    complete: bool = False,
) -> Measure:
    """What is known so far.  `clocks`: the samples of the GPU's clocks; `found`: the result of a search; `notes` come first."""
    known = sampler.rates(clocks)
    runs = tuple(_run(o) for o in outcomes)
    blocks = tuple(
        Block(
            o.job.number, b["mode"], b["l2"], b["t0"], b["t1"], sampler.between(known, b["t0"], b["t1"]),
            tuple(b["ns"]),
        )
        for o in outcomes for b in o.all("block") if b["ns"]
    )  # fmt: skip
    o = options
    asked = {
        "batches": list(o.batches), "search": o.search, "modes": list(o.modes), "l2": list(o.l2), "precision": o.precision,
        "processes": o.processes, "budget_s": o.budget_s, "memory": o.memory, "at": o.at, "quick": o.quick, "seed": o.seed,
        "latency_below_ns": o.latency_below_s * NS if o.latency_below_s else None,
    }  # fmt: skip
    said = tuple(dict.fromkeys([*notes, *_caveats(runs, outcomes)]))
    return Measure(
        tuple(t.name for t in o.targets), asked, environment(outcomes), runs, blocks, tuple(profiles), _search(found),
        said, complete, folder,
    )  # fmt: skip


def environment(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the first worker reported about its device; {} if none did."""
    hello = next((o.first("hello") for o in outcomes if o.first("hello")), {})
    return {k: v for k, v in hello.items() if k not in ("type", "pid", "clean")}


def _search(found: Search | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "largest": found.largest, "exact": found.exact, "limited": found.limited,
        "failed_at": [t.batch for t in found.trials if t.failure == "memory"],
        "trials": [asdict(t) for t in found.trials],
    }  # fmt: skip


def _run(outcome: Outcome) -> Run:
    job, warm, made = outcome.job, outcome.first("warm"), outcome.first("made")
    memory = {k: v for k, v in outcome.first("memory").items() if k not in ("type", "at")}
    failure = outcome.failure
    return Run(
        job.number, job.target, job.batch, job.replicate, job.role, round(outcome.wall_s, 2),
        failure.kind if failure else "", without_paths(failure.sentence()) if failure else "",
        warm.get("first_ns", 0), warm.get("ns", 0), warm.get("calls", 0), warm.get("settled", False), warm.get("why", ""),
        made.get("outputs", 1.0), memory, outcome.first("hello").get("clean", {}),
        {mode_key(r["mode"], r["l2"]): r["reason"] for r in outcome.all("refused")},
        {mode_key(m["mode"], m["l2"]): {k: v for k, v in m.items() if k not in ("type", "mode", "l2")} for m in outcome.all("mode")},
        not outcome.values.get("here", False), _stages(outcome),
    )  # fmt: skip


def _stages(outcome: Outcome) -> dict[str, float]:
    """Seconds from one stage to the next; the first is "starting" the process, the last "ending" it."""
    if outcome.job.ladder:  # several batches in one process
        return {}
    facts = [f for f in outcome.facts if f["type"] in ("stage", "done") and "t" in f]
    begins = [("starting", outcome.began_ns), *((f.get("stage", "ending"), f["t"]) for f in facts)]
    ends = [t for _, t in begins[1:]] + [outcome.began_ns + round(outcome.wall_s * NS)]
    return {stage: round((end - t) / NS, 2) for (stage, t), end in zip(begins, ends, strict=True)}


def _caveats(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[str]:
    """What a reader of the numbers must know."""
    notes = []
    timed = [r for r in runs if not r.failure]
    unsettled = [r for r in timed if not r.settled and r.warm_calls and r.role == "time"]
    if unsettled:
        notes.append(
            f"not warm after {unsettled[0].warm_ns / NS:.1f} s in {len(unsettled)} of {len(timed)} processes: {unsettled[0].unsettled}"
        )
    for key, reason in dict.fromkeys((k, v) for r in runs for k, v in r.refused.items()):
        notes.append(f"mode {key} is not measured: {reason}")
    if any(o.first("made").get("zero") for o in outcomes):
        notes.append(
            "the inputs are all zeros: kernels draw less power then, and can run more than a tenth faster than with data"
        )
    if any(o.values.get("here") for o in outcomes):
        notes.append(
            "one process only, this one: a function that no other process can find cannot be measured afresh, and how processes differ is not known"
        )
    found = sorted({name for r in runs for name in r.clean.get("found", ())})
    if found:
        notes.append(
            f"a profiler or hook is in the timed processes ({', '.join(found[:4])}): the numbers include its cost"
        )
    if any(r.memory.get("retries") for r in timed):
        most = max((r.batch or 0) for r in timed if r.memory.get("retries"))
        notes.append(
            f"at batch {most} torch had to free its cache and allocate again: it barely fits"
        )
    return notes


# --- a search ---


def trial(batch: int, done: Outcome, options: Options) -> Trial:
    """The result of a process with this batch: rates from mode `steady`, the requested percentile from mode `latency`."""
    if done.failure:
        return Trial(batch, "memory" if done.failure.memory else done.failure.sentence())
    memory = done.first("memory")
    steady, latency = (done.samples(m, options.l2[0]) for m in CURVE_MODES[::-1])
    if not steady:
        why = next(
            (f["reason"] for f in done.all("refused") if f["mode"] == CURVE_MODES[1]), "no sample"
        )
        return Trial(batch, f"its throughput cannot be measured: {why}")
    outputs = done.first("made")["outputs"]
    rates = sorted(outputs * NS / ns for ns in steady)
    at = math.ceil(len(latency) * options.at / 100) - 1
    spread = (rates[-1] - rates[0]) / 2 / math.sqrt(len(rates))
    rate = median(rates)
    return Trial(
        batch, "", memory["peak_allocated"], memory["peak_reserved"], int(memory["free_at_start"] * options.memory), rate,
        rate - spread, rate + spread, sorted(latency)[min(len(latency) - 1, at)] if latency else 0, memory["retries"],
    )  # fmt: skip


def rungs(whole: Outcome, number: int) -> Iterator[Outcome]:
    """The batches that one process measured one after the other, each as an outcome of its own with the next `number`.  All
    but the last of one that failed, so none of one that failed while it started; the first one has the process's time."""
    starts = [k for k, f in enumerate(whole.facts) if f["type"] == "batch"]
    hello = whole.facts[: starts[0]] if starts else []
    for k, (at, end) in enumerate(zip(starts, [*starts, len(whole.facts)][1:], strict=True)):
        if end == len(whole.facts) and whole.failure:
            return
        job = replace(whole.job, number=number + k, batch=whole.facts[at]["batch"])
        wall_s = 0.0 if k else whole.wall_s
        yield Outcome(job, [*hello, *whole.facts[at:end]], None, wall_s, "", whole.began_ns)
