"""The launch call itself is what the GPU waits for (few operations; many have a rule of their own)."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts, rows_of
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.remedy import run_ahead
from nsysalign.diagnose.rule_many_kernels import one_call

NAME = "api-launch"


def find(facts: Facts) -> Iterator[Finding]:
    call = facts.part("api_launch")
    host = facts.part("host") + facts.part("api") - facts.loading - facts.allocating
    mask = (
        facts.on_stream
        & (facts.operations > 0)
        & (call > host)
        & (facts.share(call + host.clip(0)) > thresholds.WARN_SHARE)
    )
    for case in facts.cases(mask):
        at = case.row
        if facts.operations[at] >= thresholds.MANY_OPERATIONS and not one_call(facts, at):
            continue
        rows = rows_of(facts.detail_rows("api_launch"), at)
        name = str(rows["detail"].iloc[0]) if len(rows) else "the launch call"
        yield Finding(
            NAME,
            "warning",
            case.label,
            f"{words.subject(case.label)} waits for its launch call: for {words.of(call[at], facts.elapsed[at])} the GPU idled while the host was "
            f"inside {name}.",
            evidence(
                launch_calls_ns=call[at],
                other_host_ns=max(int(host[at]), 0),
                kernel_ns=facts.kernel_upper[at],
                operations=facts.operations[at],
                seen_in=case.frequency,
            ),
            run_ahead(facts, at),
            case.site,
            case.positions,
            float(call[at]),
        )


RULE = Rule(NAME, find)
