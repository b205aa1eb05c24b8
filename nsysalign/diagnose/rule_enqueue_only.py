"""A host timer that stops before the GPU has done what was launched inside: it reads the enqueue."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "enqueue-only"


def find(facts: Facts) -> Iterator[Finding]:
    late = facts.kernel_outside >= thresholds.ENQUEUE_ONLY_SHARE * facts.kernel_only
    mask = facts.is_host & (facts.kernel_only > 0) & late & (facts.part("sync") == 0)
    for case in facts.cases(mask):
        at = case.row
        yield Finding(
            NAME,
            "error",
            case.label,
            f"{words.subject(case.label)} times the enqueueing, not the GPU: nothing waits for the work before the clock is read, "
            f"{_amount(facts.kernel_outside[at], facts.kernel_only[at])} of kernels ran after it.",
            evidence(
                elapsed_ns=facts.elapsed[at],
                launch_calls_ns=facts.part("api_launch")[at],
                host_ns=facts.part("host", "api")[at],
                kernel_ns=facts.kernel_only[at],
                kernel_after_the_end_ns=facts.kernel_outside[at],
                seen_in=case.frequency,
            ),
            "Synchronise before both readings:   torch.cuda.synchronize(); t0 = time.perf_counter(); ...; torch.cuda.synchronize(); "
            "t1 = time.perf_counter()",
            case.site,
            case.positions,
            float(facts.elapsed[at]),
        )


def _amount(part: int, whole: int) -> str:
    return f"all {words.span(whole)}" if part == whole else words.of(part, whole)


RULE = Rule(NAME, find)
