"""Code is loaded, compiled or chosen inside the interval: the first call is not like the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Case, Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "module-load"
LOADS = r"^cu(da)?(LibraryLoad|ModuleLoad|Link)"


def loads(facts: Facts) -> np.ndarray:
    """Time in calls that load code, per interval."""
    return facts.detail_ns(facts.detail_rows("api", LOADS))


def find(facts: Facts) -> Iterator[Finding]:
    spent = loads(facts)
    for case in facts.cases(spent >= thresholds.LOAD_NS, at_least=0):
        code = int(facts.label[case.row])
        row = int(facts.row[code])
        if row >= 0 and spent[row] > thresholds.WARN_SHARE * facts.elapsed[row]:
            yield _finding(facts, case, "warning", row, spent)
            continue
        slowest = int(case.positions[facts.elapsed[case.positions].argmax()])
        if facts.elapsed[slowest] >= thresholds.WARMUP_FACTOR * facts.median[code] or case.count == 1:
            yield _finding(facts, case, "info", slowest, spent)


def _finding(facts: Facts, case: Case, severity: str, at: int, spent: np.ndarray) -> Finding:
    median = facts.median[facts.label[at]]
    alone = case.count == 1 or severity == "warning"
    than = (
        ""
        if alone
        else f", {words.times(facts.elapsed[at] / max(median, 1))} the median of {words.span(median)}"
    )
    mine = facts.repetitions(int(facts.label[at]))
    first = at == int(mine[facts.pid[mine] == facts.pid[at]][0])
    where = (
        "its measurement"
        if case.count == 1
        else "its first interval"
        if first
        else words.subject(str(facts.names[at]))
    )
    return Finding(
        NAME,
        severity,
        case.label,
        f"{words.subject(case.label)} loads code in {where}: that interval took "
        f"{words.span(facts.elapsed[at])}{than}; {words.span(spent[at])} of it was module loading alone.",
        evidence(
            module_loading_ns=spent[at],
            slow_run_ns=facts.elapsed[at],
            median_ns=None if alone else median,
            kernel_ns=facts.kernel_upper[at],
            loading_runs=f"{len(case.positions)} of {case.count}",
        ),
        "Run the code once before timing it:   f(x); torch.cuda.synchronize(); start.record()",
        case.site,
        case.positions,
        float(spent[at]),
        about_row=severity == "warning",
    )


RULE = Rule(NAME, find)
