"""Is the trace whole?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysalign.explain.clauses import Clause, Cut, ever_shorter
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Advice, Finding, Findings
from nsysalign.model import CALL, OURS, Trace, pid_of
from nsysalign.place.ranges import own_calls, repeated_without
from nsysalign.text import span

#: A trace that ends early lacks the kernels of its last launches: only from this share on it is a
#: loss.
_NEARLY_ALL = 0.9


class LostRecords(NamedTuple):
    """What a process, or a thread of it, lacks."""

    pid: int
    without_kernel: int = 0  # launches that succeeded, and no kernel begins after them
    after_last_call_ns: int = 0  # for so long ranges go on without a call
    range: str = ""  # their name


def lost_records_of(trace: Trace) -> list[LostRecords]:
    """Return a record for each process that lacks kernels, then one for each thread that lacks calls; none if
    all rows of the trace are there.

    launches   [k1]  [k2]  [k3]              ranges   [step c ] [step c ] [step   ] [step   ]
    kernels      KK                          calls       c         c    ^ the last one
    """
    if trace.operations.empty:
        return []
    return [*_without_kernels(trace), *_without_calls(trace)]


def _without_kernels(trace: Trace) -> Iterator[LostRecords]:
    """Yield a record for each process of which nearly all successful launches have no kernel.

    A process that captures CUDA graphs is left out: its launches need not have kernels.
    """
    calls = trace.calls
    process = calls["process"].to_numpy()
    succeeded = calls["return_value"].to_numpy() == 0
    is_launch = (calls["kind"].to_numpy() == CALL["launch"]) & succeeded & trace.outermost
    is_launch &= ~own_calls(trace)
    issuing_call = trace.operations["call"].to_numpy()  # -1: not known
    has_work = np.zeros(len(calls), dtype=bool)
    has_work[issuing_call[issuing_call >= 0]] = True
    begins_capture = [number for number, name in trace.names.items() if "BeginCapture" in name]
    captures = np.isin(calls["name_id"].to_numpy(), begins_capture)
    lacking = np.unique(process[is_launch & ~has_work])
    lacking = lacking[~np.isin(lacking, process[captures])]
    for number in lacking.tolist():
        launches = is_launch & (process == number)
        without_kernel = int((launches & ~has_work).sum())
        if without_kernel >= _NEARLY_ALL * launches.sum():
            yield LostRecords(int(pid_of(number)), without_kernel=without_kernel)


def _without_calls(trace: Trace) -> Iterator[LostRecords]:
    """Yield a record for each thread whose ranges go on after its last call, although most earlier ranges of
    the same name call CUDA: of such names, the one with most ranges after that call.
    """
    calls = trace.calls
    call_thread = calls["thread"].to_numpy()
    program_ranges = trace.ranges[trace.program_ranges]
    of_tool = program_ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)
    for thread, ranges in program_ranges[~of_tool].groupby("thread"):
        on_thread = np.flatnonzero(call_thread == thread)
        if not len(on_thread):
            continue
        if name := repeated_without(ranges, calls.iloc[on_thread]):
            last_call_ns = int(calls["end_ns"].to_numpy()[on_thread].max())
            goes_on_ns = int(ranges["end_ns"].max()) - last_call_ns
            yield LostRecords(int(pid_of(thread)), after_last_call_ns=goes_on_ns, range=name)


def lost_records(facts: Facts) -> Findings:
    """Yield findings that the trace is not complete, so that it shows less of the GPU's work than there was: one on
    launches without kernels, one for each thread whose ranges go on without calls.  Of a trace from which rows were removed,
    there is one on that alone.
    """
    if facts.analysis.trace.thinned:
        yield _thinned(facts)
        return
    losses = facts.analysis.of_runs_by(LostRecords)
    evidence_of_text = dict[str, dict[str, int]]()  # of threads that lack the same, one text
    if without := sum(row.without_kernel for row in losses):
        launches = "1 kernel launch has" if without == 1 else f"{without:,} kernel launches have"
        text = f"{launches} no kernel that begins later in this trace: records were lost, or time stamps of the GPU are wrong."
        evidence_of_text[text] = {"launches_without_kernel": without}
    for row in losses:
        if after := row.after_last_call_ns:
            text = f"Ranges that call CUDA ({row.range}) go on for {span(after)} after the last CUDA call of their thread in this trace: records were lost."
            evidence_of_text[text] = {"after_last_call_ns": after}
    for text, evidence in evidence_of_text.items():
        only = Clause(
            " What is said of the GPU counts only what is there.", {Cut.SECOND_CLAUSE: ""}
        )
        texts = ever_shorter(Clause(text), only)
        advice = Advice("Record again, a shorter part, and synchronise before the program ends")
        yield Finding("error", "the run", texts[0], evidence, advice, shorter=texts)


def _thinned(facts: Facts) -> Finding:
    """Return the finding of a trace from which rows were removed: it says only how long the kernels
    and copies ran that are left.
    """
    text = facts.analysis.trace.thinned
    title = f"{text[:1].upper()}{text[1:]}. How long its GPU idled, and what for, cannot be told; --kernels lists what is left."
    return Finding(
        "error", "the run", title, {}, Advice("Give the trace as torch.profiler wrote it")
    )
