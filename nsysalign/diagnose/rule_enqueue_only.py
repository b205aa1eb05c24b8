"""A host timer that stops before the GPU has done what was launched inside: it reads the enqueue."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import host_pattern, thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "enqueue-only"
_SYNC = "torch.cuda.synchronize()"


def find(facts: Facts) -> Iterator[Finding]:
    late = facts.kernel_outside >= thresholds.ENQUEUE_ONLY_SHARE * facts.kernel_only
    mask = facts.is_host & (facts.kernel_only > 0) & late & (facts.part("sync") == 0)
    for case in facts.cases(mask):
        at = case.row
        pattern = host_pattern.pattern_of(facts, case)
        before = pattern in (host_pattern.BEFORE, host_pattern.BOTH)
        idle = host_pattern.idle_share(facts, case)
        yield Finding(
            NAME,
            "error",
            case.label,
            f"{words.subject(case.label)} measures the launching, not the GPU: {_why(before, idle)}; "
            f"{_amount(facts.kernel_outside[at], facts.kernel_only[at])} of kernels ran after the clock was read.",
            evidence(
                synchronises=pattern,
                elapsed_ns=facts.elapsed[at],
                launch_calls_ns=facts.part("api_launch")[at],
                host_ns=facts.part("host", "api")[at],
                kernel_ns=facts.kernel_only[at],
                kernel_after_the_end_ns=facts.kernel_outside[at],
                earlier_work_done_at_the_start_share=idle,
                seen_in=case.frequency,
            ),
            f"Synchronise before the second reading as well:   ...; {_SYNC}; t1 = time.perf_counter()"
            if before
            else f"Synchronise before both readings:   {_SYNC}; t0 = time.perf_counter(); ...; {_SYNC}; t1 = time.perf_counter()",
            case.site,
            case.positions,
            float(facts.elapsed[at]),
        )


def _why(before: bool, idle: float) -> str:
    if before:
        return "it synchronises only before the first reading, so it measures the API calls alone"
    if idle >= thresholds.TYPICAL_SHARE:
        return "nothing waits for the work before the second reading"
    return "it never synchronises, and earlier work was still running (behind a full queue its launches would wait for that)"


def _amount(part: int, whole: int) -> str:
    return f"all {words.span(whole)}" if part == whole else words.of(part, whole)


RULE = Rule(NAME, find)
