"""A host timer with a synchronisation at its end: what it contains besides the GPU's work."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import host_pattern, thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "host-timer"


def find(facts: Facts) -> Iterator[Finding]:
    waits = facts.part("sync", "kernel", "graph", "memcpy", "memset", "queued") > 0
    # the GPU's execution hides behind the launch's return and the synchronisation's: what was issued inside counts
    gpu = facts.kernel_only - facts.kernel_outside
    done = facts.kernel_outside < thresholds.ENQUEUE_ONLY_SHARE * facts.kernel_only
    host = facts.elapsed - facts.work
    mask = (
        facts.is_host
        & waits
        & done
        & (facts.kernel_only > 0)
        & (facts.elapsed - gpu > thresholds.WARN_SHARE * facts.elapsed)
    )
    for case in facts.cases(mask):
        at = case.row
        rest = int(facts.elapsed[at] - gpu[at])
        pattern = host_pattern.pattern_of(facts, case)
        idle = host_pattern.idle_share(facts, case)
        alone = pattern != host_pattern.AFTER
        waits_itself = pattern in (host_pattern.BOTH, host_pattern.AFTER)
        what = (
            "launch, kernel and synchronisation" if waits_itself else "launches and the kernels beside them"
        )
        what = what if alone else f"earlier work, {what}"
        yield Finding(
            NAME,
            "warning",
            case.label,
            f"{words.subject(case.label)} times {what} together: kernels ran for {words.of(gpu[at], facts.elapsed[at])}, the "
            f"rest is the host's{'' if alone else _waits(idle)}.",
            evidence(
                synchronises=pattern,
                kernel_ns=gpu[at],
                launch_calls_ns=facts.part("api_launch")[at],
                synchronisation_ns=facts.part("sync")[at],
                earlier_work_ns=facts.part("queued")[at],
                outside_CUDA_ns=facts.part("host")[at],
                not_overlapped_by_the_GPU_ns=host[at],
                earlier_work_done_at_the_start_share=idle,
                seen_in=case.frequency,
            ),
            "For the GPU's time, use events and let the host run ahead:   torch.cuda._sleep(2_000_000); start.record(); f(); end.record()"
            if alone
            else "Synchronise before the first reading as well; for the GPU's time alone use events:   torch.cuda.synchronize(); "
            "t0 = time.perf_counter()",
            case.site,
            case.positions,
            float(rest),
        )


def _waits(idle: float) -> str:
    """It synchronises only at its end: what that means for what had been launched before."""
    if idle >= thresholds.TYPICAL_SHARE:
        return " (nothing excludes earlier work; here it had ended)"
    return " or a wait for earlier work, which was still running"


RULE = Rule(NAME, find)
