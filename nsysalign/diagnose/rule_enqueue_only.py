"""A host timer that stops before the GPU has done what was launched inside: it reads the enqueue."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import host_pattern, thresholds, words
from nsysalign.diagnose.facts import Case, Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "enqueue-only"
_SYNC = "torch.cuda.synchronize()"


def find(facts: Facts) -> Iterator[Finding]:
    waits = facts.part("sync") > 0
    issued = facts.is_host & (facts.kernel_only > 0) & ~waits
    late = issued & (facts.kernel_outside >= thresholds.ENQUEUE_ONLY_SHARE * facts.kernel_only)
    for case in facts.cases(late):
        yield _finding(facts, case, "error")
    # nothing in it waits, yet the GPU had done most of the work: it kept up with the launches
    waits |= facts.part("kernel", "graph", "memcpy", "memset", "queued") > 0
    pattern = host_pattern.patterns(facts)
    open_ended = (pattern == host_pattern.NEVER) | (pattern == host_pattern.BEFORE)
    for case in facts.cases(issued & ~late & ~waits & open_ended):
        after = facts.kernel_outside[case.row] > thresholds.SAY_SHARE * facts.kernel_only[case.row]
        yield _finding(facts, case, "warning" if after else "info")


def _finding(facts: Facts, case: Case, severity: str) -> Finding:
    at = case.row
    pattern = host_pattern.pattern_of(facts, case)
    before = pattern in (host_pattern.BEFORE, host_pattern.BOTH)
    idle = host_pattern.idle_share(facts, case)
    return Finding(
        NAME,
        severity,
        case.label,
        _title(facts, case, severity, before, idle),
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
        float(facts.elapsed[at] if severity == "error" else facts.kernel_outside[at]),
    )


def _title(facts: Facts, case: Case, severity: str, before: bool, idle: float) -> str:
    at, who = case.row, words.subject(case.label)
    kernel, outside = int(facts.kernel_only[at]), int(facts.kernel_outside[at])
    if severity == "error":
        return (
            f"{who} measures the launching, not the GPU: {_why(before, idle)}; {_amount(outside, kernel)} of kernels ran after "
            "the clock was read."
        )
    where = "synchronises only before the first reading" if before else "never synchronises"
    meanwhile = f"the GPU worked for {words.of(kernel - outside, int(facts.elapsed[at]))} meanwhile"
    after = (
        f"{words.of(outside, kernel)} of kernels ran after the clock was read"
        if outside
        else "the GPU had finished when the clock was read, but nothing ensures that"
    )
    return f"{who} {where} and measures the host's launching: {meanwhile}, {after}."


def _why(before: bool, idle: float) -> str:
    if before:
        return "it synchronises only before the first reading, so it measures the API calls alone"
    if idle >= thresholds.TYPICAL_SHARE:
        return "nothing waits for the work before the second reading"
    return "it never synchronises, and earlier work was still running (behind a full queue its launches would wait for that)"


def _amount(part: int, whole: int) -> str:
    return f"all {words.span(whole)}" if part == whole else words.of(part, whole)


RULE = Rule(NAME, find)
