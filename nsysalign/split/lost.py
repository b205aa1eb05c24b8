"""Records that a trace should have and does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from nsysalign.model import CALL, OURS, Trace, pid_of
from nsysalign.place.ranges import own_calls

#: So many ranges of a name, and so many of them with calls, tell what the others should hold.
_SOME = 3
#: A trace that ends early lacks the kernels of its last launches: only from this share on it is a
#: loss.
_NEARLY_ALL = 0.9


def lost_records(trace: Trace) -> list[dict[str, Any]]:
    """One of each process, and of each thread, whose records are not whole.

    launches   [k1]  [k2]  [k3]              ranges   [step c ] [step c ] [step   ] [step   ]
    kernels      KK                          calls       c         c    ^ the last one

    After `without_kernel` launches of kernels that succeeded, nearly all there are, no kernel
    begins: in captures that is as it should be, and such processes are left out.
    `after_last_call_ns`: for so long ranges of a name (`range`), whose earlier ones call CUDA, go on
    without a call.
    """
    if trace.operations.empty:
        return []
    calls, out = trace.calls, list[dict[str, Any]]()
    process, thread, name, start, end = (
        calls[c].to_numpy() for c in ("process", "thread", "name_id", "start_ns", "end_ns")
    )
    captures = [number for number, text in trace.names.items() if "BeginCapture" in text]
    without = (calls["kind"].to_numpy() == CALL["launch"]) & (calls["return_value"].to_numpy() == 0)
    without &= trace.outermost & ~own_calls(trace)
    every = without.copy()
    launched = trace.operations["call"].to_numpy()
    without[launched[launched >= 0]] = False
    without &= ~np.isin(process, process[np.isin(name, captures)])
    for number in np.unique(process[without]).tolist():
        count, of_all = (int((process[some] == number).sum()) for some in (without, every))
        if count >= _NEARLY_ALL * of_all:
            out.append({"pid": int(pid_of(number)), "without_kernel": count})
    named = trace.ranges[~trace.ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)]
    for number, ranges in named.groupby("thread"):
        own = np.flatnonzero(thread == number)
        if not len(own):
            continue
        last = int(end[own].max())
        edges = [np.searchsorted(start[own], ranges[c]) for c in ("start_ns", "end_ns")]
        of_name = ranges.assign(
            calls=edges[1] > edges[0], after=ranges["start_ns"] > last, before=ranges["start_ns"] <= last
        ).groupby("text")[["calls", "after", "before"]].sum()  # fmt: skip
        cut = of_name[(of_name["after"] >= _SOME) & (of_name["calls"] >= _SOME)]
        cut = cut[2 * cut["calls"] >= cut["before"]]
        if len(cut):
            after_ns, name_of = int(ranges["end_ns"].max()) - last, str(cut["after"].idxmax())
            out.append(
                {"pid": int(pid_of(number)), "after_last_call_ns": after_ns, "range": name_of}
            )
    return out
