"""CUDA_LAUNCH_BLOCKING=1: every launch call returns only when its kernel has ended.

host    [ launch k -------------) host [ launch k+1 -------
GPU             [kernel k )                   [kernel k+1
                           ^ the rest of launch k, then host, then launch k+1: two launch calls in one gap
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "launch-blocking"


def find(facts: Facts) -> Iterator[Finding]:
    rows = facts.row[facts.row >= 0]
    rows = rows[facts.on_stream[rows] & (facts.operations[rows] > 1) & (facts.part("api_launch")[rows] > 0)]
    segments = facts.segments(rows)
    at, run, launch = segments.at, segments.run, segments.of_cause("api_launch")
    if len(segments) < 3:
        return
    # gaps between two operations of one interval, right after a kernel; the last one before the end event launches nothing
    first = np.flatnonzero((run[1:] >= 0) & segments.of_cause("kernel")[:-1] & (at[1:] == at[:-1])) + 1
    closing = np.zeros(int(run.max(initial=-1)) + 2, dtype=bool)
    closing[run[np.append(at[1:] != at[:-1], True)]] = True
    first = first[~closing[run[first]]]
    calls = (
        np.unique(np.stack([run[launch], segments.ref_id[launch]]), axis=1)[0]
        if launch.any()
        else np.empty(0, np.int64)
    )
    distinct = np.bincount(calls, minlength=int(run.max(initial=0)) + 1)
    blocked = launch[first] & (distinct[run[first]] >= 2)
    gaps, hits = np.zeros(facts.count, np.int64), np.zeros(facts.count, np.int64)
    np.add.at(gaps, at[first], 1)
    np.add.at(hits, at[first], blocked)
    for case in facts.cases(
        (gaps >= thresholds.BLOCKING_KERNELS) & (hits >= thresholds.BLOCKING_SHARE * gaps), at_least=0
    ):
        yield Finding(
            NAME,
            "warning",
            case.label,
            f"{words.subject(case.label)} seems to run with CUDA_LAUNCH_BLOCKING: after {hits[case.row]} of {gaps[case.row]} kernels the host was still "
            "inside the call that had launched them.",
            evidence(
                kernels_followed_by_their_own_launch_call=hits[case.row],
                gaps_between_kernels=gaps[case.row],
                elapsed_ns=facts.elapsed[case.row],
                kernel_ns=facts.kernel_upper[case.row],
            ),
            "",  # there is nothing to measure differently
            case.site,
            facts.repetitions(int(facts.label[case.row])),
            float(facts.elapsed[case.row] - facts.work[case.row]),
        )


RULE = Rule(NAME, find)
