"""The results of a search's processes as trials."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from nsysalign.measure.memory import Trial
from nsysalign.measure.plan import CURVE_MODES, Options
from nsysalign.measure.runner import Outcome

NS = 1e9


def trial(batch: int, done: Outcome, options: Options) -> Trial:
    """The result of a process with this batch: rates from mode `steady`, the requested percentile from mode `latency`."""
    if done.failure:
        return Trial(batch, "memory" if done.failure.memory else done.failure.sentence())
    memory = done.first("memory")
    steady, latency = (done.samples(m, options.l2[0]) for m in CURVE_MODES[::-1])
    if not steady:
        why = next((f["reason"] for f in done.all("refused") if f["mode"] == CURVE_MODES[1]), "no sample")
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
