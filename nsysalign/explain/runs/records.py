"""Is the trace whole?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Advice, Finding, Findings
from nsysalign.model import CALL, OURS, Trace, pid_of
from nsysalign.place.ranges import own_calls
from nsysalign.text import span

#: So many ranges of a name, and so many of them with calls, tell what the others should hold.
_SOME_RANGES = 3
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
    """Return one record for each process, and for each thread, whose rows in the trace are not
    complete.

    launches   [k1]  [k2]  [k3]              ranges   [step c ] [step c ] [step   ] [step   ]
    kernels      KK                          calls       c         c    ^ the last one

    A process lacks kernels if nearly all of its successful launches have none (`without_kernel`). A
    process that captures CUDA graphs is left out: its launches need not have kernels.  A thread
    lacks calls if ranges of a name (`range`) go on for some time after its last call
    (`after_last_call_ns`), and earlier ranges of that name call CUDA.
    """
    if trace.operations.empty:
        return []
    calls, out = trace.calls, list[LostRecords]()
    columns = ("process", "thread", "kind", "return_value", "name_id", "start_ns", "end_ns")
    process, thread, kind, failed, name, start, end = (calls[c].to_numpy() for c in columns)
    captures = [number for number, text in trace.names.items() if "BeginCapture" in text]
    launches = (kind == CALL["launch"]) & (failed == 0) & trace.outermost & ~own_calls(trace)
    with_kernel = np.zeros(len(calls), dtype=bool)
    launched = trace.operations["call"].to_numpy()
    with_kernel[launched[launched >= 0]] = True
    capturing = np.unique(process[np.isin(name, captures)])
    for number in np.setdiff1d(process[launches & ~with_kernel], capturing).tolist():
        of_all = launches & (process == number)
        count = int((of_all & ~with_kernel).sum())
        if count >= _NEARLY_ALL * of_all.sum():
            out.append(LostRecords(int(pid_of(number)), without_kernel=count))
    named = trace.ranges[trace.program_ranges]
    named = named[~named["text"].str.startswith(OURS).to_numpy(dtype=bool)]
    for number, ranges in named.groupby("thread"):
        own = np.flatnonzero(thread == number)
        if not len(own):
            continue
        last = int(end[own].max())
        edges = [np.searchsorted(start[own], ranges[c]) for c in ("start_ns", "end_ns")]
        after = ranges["start_ns"] > last
        each = pd.DataFrame({"calls": edges[1] > edges[0], "after": after, "before": ~after})
        cut = each.groupby(ranges["text"]).sum()
        cut = cut[(cut["after"] >= _SOME_RANGES) & (cut["calls"] >= _SOME_RANGES)]
        cut = cut[2 * cut["calls"] >= cut["before"]]
        if len(cut):
            after_ns, name_of = int(ranges["end_ns"].max()) - last, str(cut["after"].idxmax())
            out.append(LostRecords(int(pid_of(number)), after_last_call_ns=after_ns, range=name_of))
    return out


def lost_records(facts: Facts) -> Findings:
    """Yield findings that the trace is not complete, so that it shows less of the GPU's work than
    there was.
    """
    if facts.analysis.trace.thinned:
        yield _thinned(facts)
        return
    known = facts.analysis.of_runs_by(LostRecords)
    lost = dict[str, dict[str, int]]()
    if without := sum(row.without_kernel for row in known):
        launches = "1 kernel launch has" if without == 1 else f"{without:,} kernel launches have"
        text = f"{launches} no kernel that begins later in this trace: records were lost, or time stamps of the GPU are wrong."
        lost[text] = {"launches_without_kernel": without}
    for row in known:
        if after := row.after_last_call_ns:
            text = f"Ranges that call CUDA ({row.range}) go on for {span(after)} after the last CUDA call of their thread in this trace: records were lost."
            lost[text] = {"after_last_call_ns": after}
    for text, evidence in lost.items():
        title = f"{text} What is said of the GPU counts only what is there."
        advice = Advice("Record again, a shorter part, and synchronise before the program ends")
        yield Finding("error", "the run", title, evidence, advice)


def _thinned(facts: Facts) -> Finding:
    """Return the finding of a trace from which rows were removed: it says only how long the kernels
    and copies ran that are left.
    """
    text = facts.analysis.trace.thinned
    title = f"{text[:1].upper()}{text[1:]}. How long its GPU idled, and what for, cannot be told; --kernels lists what is left."
    return Finding(
        "error", "the run", title, {}, Advice("Give the trace as torch.profiler wrote it")
    )
