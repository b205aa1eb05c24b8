"""Rules about runs, and those of add-ons: a plain ordered registry, one function per question.

A rule reads only the analysis (as `Facts`) and yields findings or remarks: also that it could not
check.  What is said of labels is no rule of this kind: `explain.findings` chooses one finding for
each.  Severity: error = the number answers another question; warning = much of it need not be; info
= worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from nsysalign import registry
from nsysalign.explain.finding import Findings
from nsysalign.explain.runs import blocks, failed, idle, no_work, pages, ranges, records, set_up


class Rule(NamedTuple):
    """An entry of the registry: `find` is asked with the `Facts`, or with each of a list of
    theirs."""

    name: str
    find: Callable[[Any], Findings]
    each: str = ""  # of `labels` or `runs`
    table: str = ""  # of an add-on: asked only where the analysis has this table


#: In the order in which findings of equal weight are shown.
REGISTRY: tuple[Rule, ...] = (
    Rule("failed-calls", failed.failed_calls),
    Rule("lost-records", records.lost_records),
    Rule("no-gpu-work", no_work.no_gpu_work),
    Rule("set-up", set_up.set_up, each="runs"),
    Rule("few-blocks", blocks.few_blocks, each="runs"),
    Rule("page-migrations", pages.page_migrations, each="runs"),
    Rule("whole-run", idle.whole_run, each="runs"),
    Rule("ranges-without-work", ranges.ranges_without_work),
)

#: What the one finding of a label can be: why its number means something else, then what takes most
#: of the time that need not be.
OF_LABELS: tuple[str, ...] = (
    "no-result", "captured-events", "wrong-stream", "enqueue-only", "nothing-inside",
    "different-streams", "launch-blocking", "fill-inside", "throttled", "clock-changed", "cold-l2", "high-variance",
    "several-kinds", "event-floor", "no-gpu-work-inside", "profiler-inflation",
    "module-load", "host-gap", "many-tiny-kernels", "api-launch", "launch-latency", "allocation-inside", "other-calls",
    "sync-inside", "copy-inside", "queued", "graph-opaque", "unknown-time", "mixed", "gpu-bound",
)  # fmt: skip


@cache
def every_rule() -> tuple[Rule, ...]:
    """The rules above, then those of add-ons."""
    return (*REGISTRY, *(rule for rules in registry.each("rules") for rule in rules))


@cache
def every_name() -> tuple[str, ...]:
    """The names of all findings that there can be."""
    return tuple(dict.fromkeys((*OF_LABELS, *(rule.name for rule in every_rule()))))
