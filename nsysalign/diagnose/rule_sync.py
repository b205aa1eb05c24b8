"""A synchronisation inside the interval: the queue runs empty, and the GPU idles until the host has caught up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts, rows_of
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "sync-inside"


def drains(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Per interval: length of the idle stretches with a synchronisation in them, and how much of them the host rules
    would count again (host, api, api_launch) where the stretches are a warning of their own.

        kernel | sync host launch latency | kernel      all four are the drain
    """
    return facts.remember("drains", _drains)


def _drains(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    total, again = np.zeros(facts.count, np.int64), np.zeros(facts.count, np.int64)
    positions = np.flatnonzero(facts.on_stream & (facts.part("sync") > 0))
    for lot in facts.portions(positions):
        segments = facts.segments(lot)
        run = segments.run
        drained = np.zeros(int(run.max(initial=-1)) + 2, dtype=bool)
        drained[run[segments.of_cause("sync")]] = True
        marked = drained[run] & (run >= 0)
        hosted = marked & segments.of_cause("host", "api", "api_launch")
        np.add.at(total, segments.at[marked], segments.ns[marked])
        np.add.at(again, segments.at[hosted], segments.ns[hosted])
    if len(positions):
        again[facts.share(total) <= thresholds.WARN_SHARE] = 0
        again[_pageable(facts)] = 0
    return total, again


def _pageable(facts: Facts) -> np.ndarray:
    """Intervals whose synchronisation belongs to a pageable copy of some size: rule copy-inside speaks of it."""
    rows = facts.detail_rows("memcpy")
    rows = rows[(rows["memory"] == "pageable") & (rows["bytes"] > thresholds.ITEM_BYTES)]
    return facts.detail_ns(rows) > 0


def find(facts: Facts) -> Iterator[Finding]:
    total, _ = drains(facts)
    rows = facts.detail_rows("memcpy")
    small = rows[
        (rows["direction"] == "D2H") & (rows["bytes"] > 0) & (rows["bytes"] <= thresholds.ITEM_BYTES)
    ]
    item = facts.detail_ns(small) > 0
    calls = facts.detail_rows("sync")
    for case in facts.cases((total > 0) & ~(_pageable(facts) & ~item)):
        at = case.row
        mine = rows_of(calls, at)
        name = str(mine["detail"].iloc[0]) if len(mine) else "a synchronisation"
        empty = not facts.others_worked[at]
        warn = empty and total[at] > thresholds.WARN_SHARE * facts.elapsed[at]
        how = " (.item(), .cpu(), nonzero, an if on a tensor)" if facts.program_is_torch else ""
        what = f"a result is read back{how}" if item[at] else f"{name} waits"
        yield Finding(
            NAME,
            "warning" if warn else "info",
            case.label,
            f"{words.subject(case.label)} synchronises inside: {what}, and for {words.of(total[at], facts.elapsed[at])} "
            f"{'the GPU was idle' if empty else 'its stream was idle, while other streams kept the GPU busy,'} until the "
            "host had caught up.",
            evidence(
                idle_around_the_synchronisation_ns=total[at],
                inside_the_call_ns=facts.part("sync")[at],
                call=name,
                kernel_ns=facts.kernel_upper[at],
                seen_in=case.frequency,
            ),
            "Keep the result on the GPU until the end event:   end.record(); value = result.item()"
            if item[at]
            else "Synchronise after the end event only:   end.record(); torch.cuda.synchronize()",
            case.site,
            case.positions,
            float(total[at]),
        )


RULE = Rule(NAME, find)
