"""How much of a process's time passed before its GPU's first work, and after its last?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.finding import Findings
from nsysalign.explain.runs.ranges import InRange, in_ranges
from nsysalign.intervals import union
from nsysalign.model import Trace, pid_of
from nsysalign.text import of, span

if TYPE_CHECKING:
    from nsysalign.explain.runs.run import Run

#: Set-up comes first where CUDA calls before the first and after the last GPU work take this share
#: of the time from the first call on, and the GPU works for less than that share.
SET_UP_SHARE = 0.5
#: A GPU that works for more than this share of the time is not waited for; where the time is outside
#: of calls, for more than this.
_BUSY, _BUSY_WITHOUT_CALLS = 0.1, 0.05
#: From this share on, what follows the last work is named as well.
_AFTERWARDS = 0.1


class Calls(NamedTuple):
    """Calls between two times: how long one was open, the one that took most of it, and how long
    that was open."""

    ns: int
    most: str
    most_ns: int


class SetUp(NamedTuple):
    """What a process did in CUDA before its GPU's first work and after its last; `device`: the first
    of its devices.

    calls    [cudaMalloc: sets CUDA up      ] [memcpy]  [launch]            [cudaFree]
    GPU                                         CC         KKKKK
             |--- until_ns: before ----------|            last|-- since_ns: after --|
    """

    pid: int
    device: int
    whole_ns: int  # from the first call to the last call or work
    busy_ns: int  # how long the device worked
    until_ns: int
    since_ns: int
    before: Calls
    after: Calls
    before_in: InRange  # of `until_ns`, how much lies in the program's own ranges


def set_ups(trace: Trace) -> Iterator[SetUp]:
    """Yield a `SetUp` for each process that calls CUDA and gives work to a GPU."""
    calls = trace.calls[["start_ns", "end_ns", "name_id", "process"]]
    calls = calls[trace.outermost]
    work = trace.operations[["process", "device", "start_ns", "end_ns"]]
    for process, ran in work.groupby("process"):
        made = calls[calls["process"] == process]
        if made.empty:
            continue
        first = int(ran["start_ns"].min())
        last = int(ran["end_ns"].max())
        begin = min(int(made["start_ns"].min()), first)
        end = max(int(made["end_ns"].max()), last)
        yield SetUp(
            pid=int(pid_of(process)),
            device=int(ran["device"].min()),
            whole_ns=end - begin,
            busy_ns=_open_ns(ran),
            until_ns=first - begin,
            since_ns=end - last,
            before=_calls_between(trace, made, begin, first),
            after=_calls_between(trace, made, last, end),
            before_in=in_ranges(trace, process, np.array([begin]), np.array([first])),
        )


def _open_ns(spans: pd.DataFrame) -> int:
    """Return for how long (ns) at least one of these spans is open, as several threads may call at
    once.
    """
    start, end = union(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
    return int((end - start).sum())


def _calls_between(trace: Trace, calls: pd.DataFrame, low: int, high: int) -> Calls:
    inside = calls[(calls["start_ns"] < high) & (calls["end_ns"] > low)]
    inside = inside.assign(**{c: inside[c].clip(low, high) for c in ("start_ns", "end_ns")})
    if inside.empty:
        return Calls(0, "CUDA calls", 0)
    ns = (inside["end_ns"] - inside["start_ns"]).groupby(inside["name_id"]).sum()
    most = int(ns.idxmax())
    name = trace.names.get(most, "CUDA calls")
    return Calls(_open_ns(inside), name, _open_ns(inside[inside["name_id"] == most]))


def set_up(run: Run) -> Findings:
    """Yield a finding if most of a process's time passed before the GPU's first work or after its
    last.

    If CUDA calls took this time, the finding calls it set-up.  Otherwise it says only where the
    time passed: what the CPU did outside of CUDA may be just what it should do.
    """
    known = run.fact(SetUp)
    if known is None:
        return
    whole, least = known.whole_ns, SET_UP_SHARE * known.whole_ns
    before, after = known.before, known.after
    if known.busy_ns >= _BUSY * whole and before.ns < least:  # else it is most of what there is
        return
    worked = f"the GPU works for {span(known.busy_ns)}."
    evidence = {"before_first_work_ns": before.ns, "gpu_works_ns": known.busy_ns}
    if before.ns + after.ns >= least:
        then = ""
        evidence["before_call_ns"] = before.most_ns
        if after.ns >= _AFTERWARDS * whole:
            then = f", {span(after.ns)} after its last ({after.most} {span(after.most_ns)})"
            evidence |= {"after_last_work_ns": after.ns, "after_call_ns": after.most_ns}
        what = "set-up"
        if 2 * known.before_in.ns > known.until_ns:  # the program itself counts it
            what = f"in its own range {known.before_in.name}"
        title = (
            f"{of(before.ns, whole)} pass in CUDA calls before the GPU's first work "
            f"({before.most} {span(before.most_ns)}){then}: {what}; {worked}"
        )
    elif known.until_ns + known.since_ns < least or known.busy_ns >= _BUSY_WITHOUT_CALLS * whole:
        return
    elif known.until_ns >= least:  # what creates a context need not be a recorded call
        title = (
            f"{of(known.until_ns, whole)} since the first CUDA call pass before the GPU's first work, "
            f"{span(before.ns)} of them in CUDA calls; {worked}"
        )
        evidence["first_call_to_first_work_ns"] = known.until_ns
    else:
        until, since = known.until_ns, known.since_ns
        within = whole - until - since
        title = (
            f"All work on the GPU lies within {span(within)} of the {span(whole)} from the first CUDA call to the last: "
            f"{span(until)} before it, {span(since)} after it."
        )
        evidence = {"first_call_to_first_work_ns": until, "last_work_to_last_call_ns": since}
        evidence["work_within_ns"] = within
    yield run.finding(title, whole_ns=whole, **evidence)
