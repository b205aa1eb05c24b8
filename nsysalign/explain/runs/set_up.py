"""How much of a process's time passed before its GPU's first work, and after its last?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.clauses import Clause, Cut
from nsysalign.explain.finding import Findings
from nsysalign.explain.runs.ranges import InRange, in_ranges
from nsysalign.intervals import union
from nsysalign.model import Trace, pid_of
from nsysalign.text import of, same_unit, span

if TYPE_CHECKING:
    from nsysalign.explain.runs.run import Run

#: Set-up comes first where CUDA calls before the first and after the last GPU work take this share
#: of the time from the first call on, and the GPU works for less than that share.
SET_UP_SHARE = 0.5
#: A GPU that works for more than this share of the time is not waited for, on both sides together.  Time outside of
#: calls may be just what the CPU should do: there, not from the second share on.
_BUSY, _BUSY_WITHOUT_CALLS = 0.1, 0.05
#: A call that takes this share of the calls before the first work may stand for them.
_NEARLY_ALL = 0.9
#: From this share on, what follows the last work is named as well.
_AFTERWARDS = 0.1


class Calls(NamedTuple):
    """Calls between two times.

    ns:      for how long at least one of them was open
    most:    the name of those that were open longest
    most_ns: for how long these were open
    """

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
    until_ns: int  # from the first call to the first work
    since_ns: int  # from the last work to the last call
    before: Calls  # in `until_ns`
    after: Calls  # in `since_ns`
    before_in: InRange  # of `until_ns`, how much lies in the program's own ranges


def set_ups(trace: Trace) -> Iterator[SetUp]:
    """Yield a `SetUp` for each process that gives work to a GPU, from its outermost calls and all its operations.

    A process of which the trace has no calls is left out: when it began to use CUDA is not known.
    """
    calls = trace.calls[["start_ns", "end_ns", "name_id", "process"]]
    calls = calls[trace.outermost]
    work = trace.operations[["process", "device", "start_ns", "end_ns"]]
    for process, process_work in work.groupby("process"):
        process_calls = calls[calls["process"] == process]
        if process_calls.empty:
            continue
        first = int(process_work["start_ns"].min())
        last = int(process_work["end_ns"].max())
        begin = min(int(process_calls["start_ns"].min()), first)
        end = max(int(process_calls["end_ns"].max()), last)
        yield SetUp(
            pid=int(pid_of(process)),
            device=int(
                process_work["device"].min()
            ),  # it is told once: with the run of this device
            whole_ns=end - begin,
            busy_ns=_open_ns(process_work),
            until_ns=first - begin,
            since_ns=end - last,
            before=_calls_between(trace, process_calls, begin, first),
            after=_calls_between(trace, process_calls, last, end),
            before_in=in_ranges(trace, process, np.array([begin]), np.array([first])),
        )


def _open_ns(spans: pd.DataFrame) -> int:
    """Return for how long (ns) at least one of these spans is open, as several threads may call at
    once.
    """
    start, end = union(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
    return int((end - start).sum())


def _calls_between(trace: Trace, calls: pd.DataFrame, low: int, high: int) -> Calls:
    """Return what these calls did between two times (ns)."""
    inside = calls[(calls["start_ns"] < high) & (calls["end_ns"] > low)]
    inside = inside.assign(**{c: inside[c].clip(low, high) for c in ("start_ns", "end_ns")})
    if inside.empty:
        return Calls(0, "CUDA calls", 0)
    ns = (inside["end_ns"] - inside["start_ns"]).groupby(inside["name_id"]).sum()
    most = int(ns.idxmax())
    name = trace.names.get(most, "CUDA calls")
    return Calls(_open_ns(inside), name, _open_ns(inside[inside["name_id"] == most]))


def set_up(run: Run) -> Findings:
    """Yield a finding if most of a process's time passed before the GPU's first work or after its last.

    If CUDA calls took this time, the finding calls it set-up.  Otherwise it says only where the time passed: before the
    first work; or on both sides, if the GPU hardly worked, as what the CPU did outside of CUDA may be just what it
    should do.
    """
    times = run.fact(SetUp)
    if times is None:
        return
    whole_ns = times.whole_ns
    least_ns = SET_UP_SHARE * whole_ns  # from so long on it is most of the time
    gpu_works = times.busy_ns >= _BUSY * whole_ns
    gpu_works_somewhat = times.busy_ns >= _BUSY_WITHOUT_CALLS * whole_ns
    in_calls_ns = times.before.ns + times.after.ns
    if times.before.ns >= least_ns or (in_calls_ns >= least_ns and not gpu_works):
        clauses, evidence = _said_of_calls(times)
    elif times.until_ns >= least_ns:
        clauses, evidence = _said_of_time_before(times)
    elif times.until_ns + times.since_ns >= least_ns and not gpu_works_somewhat:
        clauses, evidence = _said_of_both_sides(times)
    else:
        return
    yield run.finding(clauses, whole_ns=whole_ns, **evidence)


def _gpu_works(known: SetUp) -> Clause:
    return Clause(f"; the GPU works for {span(known.busy_ns)}", {Cut.GPU_TIME: ""})


def _beside_the_cause(words: str, instead: str = "") -> Clause:
    """Return what says less than why the GPU was idle later on: where there is no room for that, it is back."""
    return Clause(words, {Cut.CALL: instead, Cut.CAUSE: words})


def _said_of_calls(known: SetUp) -> tuple[tuple[Clause, ...], dict[str, int]]:
    """Return (clauses, evidence) where CUDA calls before the first work and after the last one took most of the
    time."""
    before, after = known.before, known.after
    evidence = {
        "before_first_work_ns": before.ns,
        "gpu_works_ns": known.busy_ns,
        "before_call_ns": before.most_ns,
    }
    # where most of it lies in ranges the program counts it
    in_range = 2 * known.before_in.ns > known.until_ns
    verb = "pass in" if in_range else "are set-up in"
    calls = f"{of(before.ns, known.whole_ns)} {verb} CUDA calls"
    of_call = f" ({before.most} {span(before.most_ns)})"
    if before.most_ns >= _NEARLY_ALL * before.ns and same_unit(before.most_ns, known.whole_ns):
        # one call stands for all of them
        short = f"{of(before.most_ns, known.whole_ns)} are {before.most if in_range else 'set-up'}"
        of_one = "" if in_range else f" ({before.most})"
        call = Clause(of_call, {Cut.SET_UP: of_one, Cut.CALL: "", Cut.CAUSE: of_one})
    else:
        short = f"{of(before.ns, known.whole_ns)} are {'CUDA calls' if in_range else 'set-up'}"
        call = _beside_the_cause(of_call)
    clauses = [Clause(calls, {Cut.SET_UP: short}), Clause(" before the GPU's first work"), call]
    if after.ns >= _AFTERWARDS * known.whole_ns:
        clauses += [
            Clause(f", {span(after.ns)} after its last"),
            _beside_the_cause(f" ({after.most} {span(after.most_ns)})"),
        ]
        evidence |= {"after_last_work_ns": after.ns, "after_call_ns": after.most_ns}
    if in_range:
        clauses.append(Clause(f": in its own range {known.before_in.name}"))
    return (*clauses, _gpu_works(known)), evidence


def _said_of_time_before(known: SetUp) -> tuple[tuple[Clause, ...], dict[str, int]]:
    """Return (clauses, evidence) where most of the time passed before the first work, but not in recorded calls:
    what creates a context need not be a recorded call."""
    evidence = {
        "before_first_work_ns": known.before.ns,
        "gpu_works_ns": known.busy_ns,
        "first_call_to_first_work_ns": known.until_ns,
    }
    clauses = (
        Clause(
            f"{of(known.until_ns, known.whole_ns)} since the first CUDA call pass before the GPU's first work"
        ),
        Clause(f", {span(known.before.ns)} of them in CUDA calls", {Cut.CALLS_TIME: ""}),
        _gpu_works(known),
    )
    return clauses, evidence


def _said_of_both_sides(known: SetUp) -> tuple[tuple[Clause, ...], dict[str, int]]:
    """Return (clauses, evidence) where the times before the first work and after the last are most only
    together."""
    work_within_ns = known.whole_ns - known.until_ns - known.since_ns
    evidence = {
        "first_call_to_first_work_ns": known.until_ns,
        "last_work_to_last_call_ns": known.since_ns,
        "work_within_ns": work_within_ns,
    }
    clauses = (
        Clause(
            f"All work on the GPU lies within {span(work_within_ns)} of the {span(known.whole_ns)}"
        ),
        _beside_the_cause(
            f" from the first CUDA call to the last: {span(known.until_ns)} before it, {span(known.since_ns)} after it",
            instead=" since the first CUDA call",
        ),
    )
    return clauses, evidence
