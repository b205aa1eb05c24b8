"""Host timers: does the program wait for the GPU before the first reading, and before the second?

y sync   |t0   s launch   y sync   |t1      both: launch, kernel and synchronisation
y sync   |t0   s launch            |t1      only before: the enqueueing
         |t0   s launch   y sync   |t1      only after: and what was queued before
         |t0   s launch            |t1      never: the enqueueing, behind a full queue also other work
"""

from __future__ import annotations

import numpy as np

from nsysalign.model import CALL, ENQUEUEING_CALLS, SYNC_CALLS, Alignment, Trace
from nsysalign.sweep.tiles import group

#: Flags of an interval.
BEFORE, AFTER, IDLE = "synchronised-before", "synchronised-after", "idle-before"
_NEVER = np.iinfo(np.int64).min


def synchronisation_flags(trace: Trace, alignment: Alignment) -> list[tuple[str, ...]]:
    """Per window, the flags that hold; () for other kinds than host.

    synchronised-before: the thread waited for the GPU after the last work that it issued before the window, and not
    inside an earlier window (a loop that synchronises only after has waited there, in its previous repetition).
    synchronised-after: inside, it waited after the last work that it issued there, or issued none and waited.
    idle-before: everything that its process had issued before the window had ended when the window began.
    """
    w, calls = alignment.windows, trace.calls
    out: list[tuple[str, ...]] = [()] * len(w)
    host = np.flatnonzero((w["kind"] == "host").to_numpy())
    if not len(host):
        return out
    outer = np.flatnonzero(calls["outer"].to_numpy() == np.arange(len(calls)))
    kind, begin, end = (calls[c].to_numpy()[outer] for c in ("kind", "start_ns", "end_ns"))
    syncs = np.isin(kind, [CALL[k] for k in SYNC_CALLS]) & (calls["return_value"].to_numpy()[outer] == 0)
    launches = np.isin(kind, [CALL[k] for k in ENQUEUEING_CALLS])
    of_thread = group(calls["thread"].to_numpy()[outer], np.arange(len(outer)))
    drained = _drained(trace)
    start_ns, end_ns, thread, process = (w[c].to_numpy() for c in ("start_ns", "end_ns", "thread", "process"))
    for number in np.unique(thread[host]).tolist():
        mine = of_thread.get(number, np.empty(0, np.int64))
        launched, waited = np.sort(begin[mine[launches[mine]]]), np.sort(end[mine[syncs[mine]]])
        windows = host[thread[host] == number]
        ends = np.sort(np.append(end_ns[windows], _ends_around(alignment, number)))
        for at in windows.tolist():
            a, b = int(start_ns[at]), int(end_ns[at])
            flags = []
            # a window that ends where this one starts was closed by the same reading, so its wait also counts for this one
            if _last(waited, a) > max(_last(launched, a), _last(ends, a - 1)):
                flags.append(BEFORE)
            last, sync = _last(launched, b), _last(waited, b)
            if sync > max(a, last if last >= a else _NEVER):
                flags.append(AFTER)
            if a >= drained(int(process[at]), a):
                flags.append(IDLE)
            out[at] = tuple(flags)
    return out


def _ends_around(alignment: Alignment, thread: int) -> np.ndarray:
    """Ends of the host windows of a thread that belong to other slices."""
    w = alignment.around
    if w is None:
        return np.empty(0, np.int64)
    return w.loc[(w["kind"] == "host") & (w["thread"] == thread), "end_ns"].to_numpy()


def _last(times: np.ndarray, before: int) -> int:
    """The latest of some sorted times that is not later than `before`."""
    at = int(np.searchsorted(times, before, side="right"))
    return int(times[at - 1]) if at else _NEVER


def _drained(trace: Trace):
    """drained(process, at): when all work that the process had issued before `at` was done."""
    operations, calls = trace.operations, trace.calls
    call = operations["call"].to_numpy()
    known = np.flatnonzero(call >= 0)
    issue = calls["start_ns"].to_numpy()[call[known]] if len(known) else known
    order = np.argsort(issue, kind="stable")
    per_process = {}
    for number, rows in group(operations["process"].to_numpy()[known[order]], order).items():
        done = np.maximum.accumulate(operations["end_ns"].to_numpy()[known[rows]])
        per_process[number] = (issue[rows], done)

    def drained(process: int, at: int) -> int:
        issued, done = per_process.get(process, (np.empty(0, np.int64),) * 2)
        count = int(np.searchsorted(issued, at))
        return int(done[count - 1]) if count else _NEVER

    return drained
