"""The one change that helps against a late host, chosen by what the interval contains."""

from __future__ import annotations

import math

from nsysalign.diagnose import thresholds
from nsysalign.diagnose.facts import Facts


def run_ahead(facts: Facts, at: int) -> str:
    """A line of code that lets the host run ahead of interval `at`, or an alternative and the reason if a delay kernel cannot
    do that."""
    host_ns = facts.part("host", "api", "api_launch", "launch_latency", "profiler", "event")[at]
    if facts.operations[at] >= thresholds.QUEUE_DEPTH:
        return (
            f"Capture it once and time the replay (its {facts.operations[at]:,} operations do not fit in the launch queue, so a delay cannot "
            "hide them):   start.record(); graph.replay(); end.record()"
        )
    if facts.part("sync")[at] > 0:
        return (
            "Move the synchronisation out of the interval, then let the host run ahead:   "
            f"torch.cuda._sleep({delay_cycles(host_ns):_}); start.record()"
        )
    return (
        "Let the host run ahead before the start event, or time a CUDA graph:   "
        f"torch.cuda._sleep({delay_cycles(host_ns):_}); start.record()"
    )


def delay_cycles(host_ns: float) -> int:
    """Cycles of a delay that outlasts the host's part with a margin, in whole millions; never less than about 1 ms."""
    wanted = host_ns / 1e3 * thresholds.DELAY_CYCLES_PER_US * thresholds.DELAY_MARGIN
    return max(thresholds.DELAY_CYCLES, math.ceil(wanted / 1e6) * 1_000_000)
