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
    issuing: int  # of them give work to a GPU
    whole_ns: int  # from the first to the last
    call: str  # the one, by name, that takes most of it
    call_ns: int
    call_count: int


def calls_without_work(trace: Trace) -> list[CallsWithoutWork]:
    """Return one record if the trace has CUDA calls but no work of a GPU, and none otherwise."""
    if len(trace.operations) or trace.calls.empty:
        return []
    calls = trace.calls[trace.outermost]
    issuing = calls["kind"].isin([CALL[kind] for kind in ISSUING_CALLS])
    spent = (calls["end_ns"] - calls["start_ns"]).groupby(calls["name_id"]).sum()
    most = int(spent.idxmax())
    known = CallsWithoutWork(
        calls=len(calls),
        issuing=int(issuing.sum()),
        whole_ns=int(calls["end_ns"].max() - calls["start_ns"].min()),
        call=trace.names.get(most, ""),
        call_ns=int(spent.max()),
        call_count=int((calls["name_id"] == most).sum()),
    )
    return [known]


def no_gpu_work(facts: Facts) -> Findings:
    """Yield a remark on a trace with CUDA calls and no work of a GPU: which calls it has, and why it has no row of their
    work.

    If the recorder itself stated a reason, this is the reason that is given; else the usual ones are listed.
    """
    info = facts.analysis.trace
    usual = _USUAL.get(info.recorder, _USUAL_OF_OTHERS.format(info.by.title))
    for known in facts.analysis.of_runs_by(CallsWithoutWork):
        calls = plural(known.calls, "CUDA call")
        if known.call_ns >= WARN_SHARE * known.whole_ns:
            spent = of(known.call_ns, known.whole_ns)
            calls += f" ({known.call}, called {times_over(known.call_count)}, takes {spent})"
        reasons = info.reasons
        if not known.issuing:
            why = "check that the program reached its GPU part, and that the process that does was recorded"
            if reasons:
                why = f"{info.by.title} says: {first_reason(reasons)}"
            text = f"{NO_WORK}{calls}, and none of them gives work to the GPU: {why}"
        elif reasons and not facts.failed_calls:
            text = (
                f"{NO_WORK}no row of the GPU's work; {info.by.title} says: {first_reason(reasons)} There are {calls}, {known.issuing:,} of "
                "which give work to the GPU."
            )
        else:
            text = f"{NO_WORK}{calls}, {known.issuing:,} of which give work to the GPU, but no row of it"
            text += "" if facts.failed_calls else f": {usual}"
        yield Remark(text)


def first_reason(reasons: tuple[str, ...]) -> str:
    """Return the first reason as a sentence."""
    return f"{safe_text(reasons[0]).rstrip('. ')}."
