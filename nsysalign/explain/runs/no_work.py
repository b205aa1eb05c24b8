"""Does a trace with CUDA calls hold any of the work that they gave to the GPU?"""

from __future__ import annotations

from typing import NamedTuple

from nsysalign.explain.facts import WARN_SHARE, Facts
from nsysalign.explain.finding import NO_WORK, Findings, Remark
from nsysalign.model import CALL, ISSUING_CALLS, Trace
from nsysalign.text import of, plural, safe_text, times_over

#: Usual reasons, by what made the trace.
_USUAL = {
    "nsys": "the driver gave nsys none; usual reasons are WSL2, a virtual machine, a driver newer than this nsys, and counters "
    "that are reserved for administrators (nsys status --environment)",
}
_USUAL_OF_OTHERS = "{} got none from CUPTI; usual reasons are another profiler at the same time, and counters that are reserved for administrators"


class CallsWithoutWork(NamedTuple):
    """The calls of a trace without any GPU work."""

    calls: int
    issuing: int  # how many of them give work to a GPU
    whole_ns: int  # from the first to the last
    call: str  # the name of those that take most of it
    call_ns: int  # how long these take together
    call_count: int  # how many these are


def calls_without_work(trace: Trace) -> list[CallsWithoutWork]:
    """Return one record if the trace has CUDA calls but no work of a GPU, and none otherwise."""
    if len(trace.operations) or trace.calls.empty:
        return []
    calls = trace.calls[trace.outermost]
    is_issuing = calls["kind"].isin([CALL[kind] for kind in ISSUING_CALLS])
    spent = (calls["end_ns"] - calls["start_ns"]).groupby(calls["name_id"]).sum()
    most = int(spent.idxmax())
    known = CallsWithoutWork(
        calls=len(calls),
        issuing=int(is_issuing.sum()),
        whole_ns=int(calls["end_ns"].max() - calls["start_ns"].min()),
        call=trace.names.get(most, ""),
        call_ns=int(spent.max()),
        call_count=int((calls["name_id"] == most).sum()),
    )
    return [known]


def no_gpu_work(facts: Facts) -> Findings:
    """Yield a remark on a trace with CUDA calls and no work of a GPU: which calls it has, and why the trace has
    no row of the GPU's work.

    A program that gives no work to the GPU needs no other reason.  Else it is the recorder's own one if it states one,
    or the usual ones.  Of calls that failed no reason is given here: `failed_calls` tells of them.
    """
    info = facts.analysis.trace
    usual = _USUAL.get(info.recorder, _USUAL_OF_OTHERS.format(info.by.title))
    for known in facts.analysis.of_runs_by(CallsWithoutWork):
        calls = plural(known.calls, "CUDA call")
        if known.call_ns >= WARN_SHARE * known.whole_ns:
            spent = of(known.call_ns, known.whole_ns)
            calls += f" ({known.call}, called {times_over(known.call_count)}, takes {spent})"
        give_work = f"{known.issuing:,} of which give work to the GPU"
        stated = f"{info.by.title} says: {first_reason(info.reasons)}" if info.reasons else ""
        if known.issuing == 0:
            check = "check that the program reached its GPU part, and that the process that does was recorded"
            text = f"{calls}, and none of them gives work to the GPU: {stated or check}"
        elif facts.failed_calls:
            text = f"{calls}, {give_work}, but no row of it"
        elif stated:  # a sentence, with its full stop
            text = f"no row of the GPU's work; {stated} There are {calls}, {give_work}."
        else:
            text = f"{calls}, {give_work}, but no row of it: {usual}"
        yield Remark(f"{NO_WORK}{text}")


def first_reason(reasons: tuple[str, ...]) -> str:
    """Return the first reason as a sentence."""
    return f"{safe_text(reasons[0]).rstrip('. ')}."
