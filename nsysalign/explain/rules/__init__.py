"""Rules about runs, and those of add-ons: a plain ordered registry, one function per question.

A rule reads only the analysis (as `Facts`) and yields findings or remarks: also that it could not
check.  What is said of labels is no rule of this kind: `explain.findings` chooses one finding for
each.  Severity: error = the number answers another question; warning = much of it need not be; info
= worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from nsysalign import registry
from nsysalign.explain.finding import Findings, OfRuns
from nsysalign.explain.runs import (
    blocks,
    caches,
    copies,
    failed,
    forks,
    gaps,
    idle,
    no_work,
    pages,
    ranges,
    records,
    set_up,
    threads,
)
from nsysalign.model import Trace
from nsysalign.split.labels import Ran


class Rule(NamedTuple):
    """An entry of the registry: `find` is asked with the `Facts`, or with each of a list of
    theirs."""

    name: str
    find: Callable[[Any], Findings]
    each: str = ""  # of `labels` or `runs`
    table: str = ""  # of an add-on: asked only where the analysis has this table
    facts: Callable[[Ran], OfRuns] | None = None  # what it has to know of the trace


def _of_trace(records_of: Callable[[Trace], Iterable[Any]]) -> Callable[[Ran], OfRuns]:
    """Facts that are read off the trace alone."""
    return lambda ran: OfRuns(tuple(records_of(ran.trace)))


#: In the order in which findings of equal weight are shown.
REGISTRY: tuple[Rule, ...] = (
    Rule("failed-calls", failed.failed_calls),
    Rule("lost-records", records.lost_records, facts=_of_trace(records.lost_records_of)),
    Rule("no-gpu-work", no_work.no_gpu_work, facts=_of_trace(no_work.calls_without_work)),
    Rule("set-up", set_up.set_up, each="runs", facts=_of_trace(set_up.set_ups)),
    Rule("few-blocks", blocks.few_blocks, each="runs", facts=_of_trace(blocks.small_launches_of)),
    Rule(
        "page-migrations",
        pages.page_migrations,
        each="runs",
        facts=_of_trace(pages.page_migrations_of),
    ),
    Rule("whole-run", idle.whole_run, each="runs", facts=gaps.idle_times),
    Rule("ranges-without-work", ranges.ranges_without_work),
)

#: What findings have to know of the trace beside its intervals, and what no rule of a run is alone in asking for.
_OF_OTHERS = (
    _of_trace(threads.launches_of_threads),
    _of_trace(forks.forks_of),
    _of_trace(pages.managed_allocations_of),
    _of_trace(copies.rounds_of_copies),
    lambda ran: OfRuns(tuple(caches.after_fill(ran))),
)

#: What the one finding of a label can be: why its number means something else, then what takes most
#: of the time that need not be.
OF_LABELS: tuple[str, ...] = (
    "no-result", "captured-events", "wrong-stream", "enqueue-only", "nothing-inside",
    "different-streams", "launch-blocking", "fill-inside", "overlapping", "throttled", "clock-changed", "cold-l2", "high-variance",
    "several-kinds", "event-floor", "no-gpu-work-inside",
    "module-load", "host-gap", "many-tiny-kernels", "api-launch", "launch-latency", "allocation-inside", "other-calls",
    "sync-inside", "copy-inside", "queued", "slower-kernel", "graph-opaque", "unknown-time", "mixed", "gpu-bound",
)  # fmt: skip


def facts_of_runs(ran: Ran) -> OfRuns:
    """What rules have to know of the trace, all of it."""
    facts = [rule.facts(ran) for rule in REGISTRY if rule.facts]
    facts += [facts_of(ran) for facts_of in _OF_OTHERS]
    records = [record for fact in facts for record in fact.records]
    return OfRuns(tuple(records), {name: t for fact in facts for name, t in fact.tables.items()})


@cache
def every_rule() -> tuple[Rule, ...]:
    """The rules above, then those of add-ons."""
    return (*REGISTRY, *(rule for rules in registry.each("rules") for rule in rules))


@cache
def every_name() -> tuple[str, ...]:
    """The names of all findings that there can be."""
    return tuple(dict.fromkeys((*OF_LABELS, *(rule.name for rule in every_rule()))))
