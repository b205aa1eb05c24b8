"""One pass over the gaps of a run: the stretches in which a device ran nothing, how each ended, and what
the thread that ended it was in.

    device   KKK|------- gap -------|KKK             first     a kernel that had not run before
    thread      [ call ] own [launch]                load      code was loaded meanwhile
                                                     back      a copy to the host before, one to the device
                                                               behind it, both of one thread, which was
                                                               mostly outside of CUDA
                                                     launch    all others
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.explain.finding import OfRuns
from nsysalign.explain.runs.ranges import InRange, in_data_loader, in_ranges
from nsysalign.intervals import covered, group, pick, ragged, union
from nsysalign.model import CALL, KIND, SYNC_CALLS, Trace, pid_of
from nsysalign.place.ranges import own_ranges
from nsysalign.split.gaps import NODE_GAP_NS
from nsysalign.split.labels import Ran
from nsysalign.split.pieces import call_names

#: What held up an operation of which the trace has no launch.
NOT_KNOWN = "the trace does not say what the host did"
#: An idle stretch that is shorter is the way of the next work to the GPU, not time of the CPU's.
_LATENCY_NS = 10_000
#: A launch to an idle GPU that takes longer does more than launch.
_SLOW_LAUNCH_NS = 1_000_000
#: Idle stretches kept per run; those that a sentence names.
MOST_GAPS, MOST_NAMED = 20, 3
#: CUPTI's kinds of copies; calls that load code.
_H2D, _D2H = 1, 2
_LOADS = re.compile(r"cu(da)?(LibraryLoad|ModuleLoad|Link)")


class Stretches(NamedTuple):
    """All idle stretches of a run: arrays of the same length, in time."""

    after: np.ndarray  # the operation before
    operation: np.ndarray  # the one that ended it
    start: np.ndarray
    end: np.ndarray
    ns: np.ndarray

    def touched(self, table: pd.DataFrame) -> np.ndarray:
        """Bool: in which of them something of a table lies."""
        start, end = union(*(table[c].to_numpy() for c in ("start_ns", "end_ns")))
        first, last = np.searchsorted(self.end, start, "right"), np.searchsorted(self.start, end)
        out = np.zeros(len(self.ns), dtype=bool)
        out[ragged(first, np.maximum(last - first, 0))[1]] = True
        return out


class Crowd(NamedTuple):
    """Many gaps of one kind: those before one operation, by name, or ('') all that are not among the
    longest."""

    count: int = 0
    ns: int = 0  # all together
    gap_ns: int = 0  # their lower median
    before: str = ""
    runs_ns: int = 0  # the lower median of the operations that end them


class IdleTime(NamedTuple):
    """What the gaps of a device have in common."""

    pid: int
    device: int
    first_ns: int = 0  # waited for because a kernel ran for the first time
    first_kernels: int = 0
    first_kernel: str = ""  # the one that was waited for longest
    first_kernel_ns: int = 0
    loading_ns: int = 0  # code was loaded or linked meanwhile
    loading_count: int = 0
    loading_late_ns: int = 0  # of loading_ns in the later half of the run
    loads: int = 0  # calls that did so
    load_calls_ns: int = 0  # how long one of these was open
    back_ns: int = 0  # between a copy to the host and one to the device
    back_count: int = 0
    sync_call: str = ""  # the synchronisation that the process called most often
    sync_count: int = 0
    operations: int = 0  # of the device
    in_ranges: InRange = InRange()
    in_data_loader: InRange = InRange()
    crowd: Crowd = Crowd()


class FirstWait(NamedTuple):
    """An idle stretch of a device that ended in a kernel which had not run before."""

    pid: int
    device: int
    start_ns: int
    end_ns: int
    ns: int  # of it so much because of that


def idle_times(ran: Ran) -> OfRuns:
    """Return an `IdleTime` for every process and device, and `frames.GAPS`.

    Idle time that the tool itself caused is left out, such as its waits for first kernels.
    """
    calls, names = ran.trace.calls, ran.trace.names
    loads = calls[calls["name_id"].isin([n for n, name in names.items() if _LOADS.match(name)])]
    syncs = calls[calls["kind"].isin([CALL[name] for name in SYNC_CALLS])]
    known: dict[tuple[int, int], IdleTime] = {}
    rows: list[tuple[Any, ...]] = []
    waits: list[FirstWait] = []
    for run in ran.windows[ran.windows["kind"] == "run"].itertuples():
        key = run.process, int(ran.explainer.alignment.lanes["device"].iloc[run.end_lane])
        operations, gaps = _stretches(ran, run.end_lane)
        if key in known or not len(gaps.ns):  # streams come behind their device
            continue
        rows += _longest(ran, run.Index, gaps)
        of_process = [t[t["process"] == run.process] for t in (loads, syncs)]
        loading, waiting = (
            t[t["start_ns"].between(gaps.start[0] + 1, gaps.end[-1] - 1)] for t in of_process
        )
        loaded = gaps.touched(of_process[0])
        late, late_ns = _late(ran, operations, gaps, loaded)
        waits += [
            FirstWait(int(pid_of(run.process)), key[1], int(start), int(end), int(ns))
            for start, end, ns in zip(gaps.start[late], gaps.end[late], late_ns, strict=True)
        ]
        most_late = int(late_ns.argmax()) if len(late) else -1
        back = _round_trips(ran, gaps)
        called = waiting["name_id"].value_counts()
        known[key] = IdleTime(
            pid=int(pid_of(run.process)),
            device=key[1],
            first_ns=int(late_ns.sum()),
            first_kernels=len(late),
            first_kernel=_name(ran, gaps.operation[late[most_late]]) if len(late) else "",
            first_kernel_ns=int(late_ns[most_late]) if len(late) else 0,
            loading_ns=int(gaps.ns[loaded].sum()),
            loading_count=int(loaded.sum()),
            loading_late_ns=int(
                gaps.ns[loaded & (2 * gaps.start >= gaps.start[0] + gaps.end[-1])].sum()
            ),
            loads=len(loading),
            load_calls_ns=_open_ns(loading),
            back_ns=int(gaps.ns[back].sum()),
            back_count=len(back),
            sync_call=names.get(int(called.index[0]), "") if len(called) else "",
            sync_count=int(called.iloc[0]) if len(called) else 0,
            operations=len(operations),
            in_ranges=in_ranges(ran.trace, run.process, gaps.start, gaps.end),
            in_data_loader=in_data_loader(ran.trace, run.process, gaps.start, gaps.end),
            crowd=_crowd(ran, gaps),
        )
    return OfRuns((*known.values(), *waits), {"gaps": frames.of_rows(rows, frames.GAPS)})


def _open_ns(calls: pd.DataFrame) -> int:
    """For how long at least one of these calls is open: some are made inside others."""
    begin, end = union(*(calls[c].to_numpy() for c in ("start_ns", "end_ns")))
    return int((end - begin).sum())


def _name(ran: Ran, operation: int) -> str:
    return str(ran.names["kernel"].iloc[ran.name[operation]])


def _stretches(ran: Ran, lane: int) -> tuple[np.ndarray, Stretches]:
    """Return (the operations of a lane, sorted by start; its idle stretches).

    Stretches between nodes of a CUDA graph are left out, and those of which the tool itself caused
    half.
    """
    operations, idle_ns = ran.of_lane(lane)
    there = np.flatnonzero(idle_ns)
    end, idle_ns = ran.start[operations[there]], idle_ns[there]
    gaps = Stretches(operations[there - 1], operations[there], end - idle_ns, end, idle_ns)
    within = ran.explainer.in_one_graph(gaps.after, gaps.operation) & (gaps.ns <= NODE_GAP_NS)
    gaps = Stretches(*(column[~within] for column in gaps))
    ours = own_ranges(ran.trace)
    touched = np.flatnonzero(gaps.touched(ours))
    blocks = union(*(ours[c].to_numpy() for c in ("start_ns", "end_ns")))
    made = covered(*blocks, gaps.end[touched]) - covered(*blocks, gaps.start[touched])
    dropped = touched[2 * made >= gaps.ns[touched]]
    if len(dropped):
        gaps = Stretches(*(np.delete(column, dropped) for column in gaps))
    return operations, gaps


def _late(
    ran: Ran, operations: np.ndarray, gaps: Stretches, loaded: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (the stretches that ended in a kernel that ran for the first time, how long each was
    therefore waited for in ns).

    first    KKK   [ compile ][ load code ][ launch K2 ] K2     K2 runs for the first time

    All of a stretch counts if code was loaded during it, or if the kernel's launch took half of it
    or was slow among other slow calls.  Otherwise what counts is the part beyond the kernel's usual
    wait in later runs.
    """
    new = np.zeros(len(ran.name), dtype=bool)
    new[operations] = ~pd.Series(ran.name[operations]).duplicated().to_numpy()
    new &= ran.explainer.kind == KIND["kernel"]
    name, fresh = ran.name[gaps.operation], new[gaps.operation]
    later = np.flatnonzero(~fresh & np.isin(name, name[fresh]))
    waits = group(name[later], gaps.ns[later])
    runs = np.bincount(ran.name[operations])
    late, late_ns = [], []
    for stretch in np.flatnonzero(fresh).tolist():
        ns = int(gaps.ns[stretch])
        launch_ns = _launch_ns(ran, gaps, stretch)
        waited = ns
        if (
            not loaded[stretch]
            and 2 * launch_ns <= ns
            and not _sets_up(ran, gaps, stretch, launch_ns)
        ):
            if runs[name[stretch]] <= 2:  # of fewer nothing is usual
                continue
            usual = waits.get(int(name[stretch]), gaps.ns[:0])
            waited = ns - _usual_wait(usual, int(runs[name[stretch]]) - 1)
            if waited <= _LATENCY_NS:
                continue
        late.append(stretch)
        late_ns.append(waited)
    return np.array(late, np.int64), np.array(late_ns, np.int64)


def _sets_up(ran: Ran, gaps: Stretches, stretch: int, launch_ns: int) -> bool:
    """Whether a launch took long though the GPU was idle (code is loaded in it), and with the calls
    before it most of the stretch: handles and contexts are made in cudaFree, cudaMalloc and the like."""
    if launch_ns < _SLOW_LAUNCH_NS:
        return False
    low, high = int(gaps.start[stretch]), int(gaps.end[stretch])
    thread = int(ran.explainer.call_thread[ran.explainer.call[gaps.operation[stretch]]])
    calls = ran.explainer.threads.calls(thread, low, high)
    return bool(2 * _calls_in(ran.trace, calls, low, high).sum() >= gaps.ns[stretch])


def _launch_ns(ran: Ran, gaps: Stretches, stretch: int) -> int:
    """How much of a stretch lies in the call that launched what ended it."""
    call = ran.explainer.call[gaps.operation[stretch]]
    if call < 0:
        return 0
    end = min(ran.explainer.call_end[call], gaps.end[stretch])
    return int(end - max(ran.explainer.call_start[call], gaps.start[stretch]))


def _usual_wait(waits: np.ndarray, runs: int) -> int:
    """The lower median of so many runs, of which these waited; a damaged trace may know of fewer runs
    than of waits."""
    without = max(runs - len(waits), 0)
    place = (without + len(waits)) // 2 - without
    return int(np.sort(waits)[place]) if 0 <= place < len(waits) else 0


def _threads(ran: Ran, gaps: Stretches) -> tuple[np.ndarray, np.ndarray]:
    """Of every stretch the thread that issued what was before it, and what ended it; -1: not known."""
    explainer = ran.explainer
    before, behind = (explainer.call[side] for side in (gaps.after, gaps.operation))
    return pick(explainer.call_thread, before, -1), pick(explainer.call_thread, behind, -1)


def _round_trips(ran: Ran, gaps: Stretches) -> np.ndarray:
    """Return the stretches in which the CPU works on a result or makes the next input.

    device   D2H |------------------------| H2D
    thread       [ the CPU's own code  ][ call ]     one thread issued both, and was mostly outside of CUDA
    """
    copy = ran.trace.operations["copy_kind"].to_numpy()
    back = (copy[gaps.after] == _D2H) & (copy[gaps.operation] == _H2D)
    back = np.flatnonzero(back & (gaps.ns >= _LATENCY_NS))
    between = Stretches(*(column[back] for column in gaps))
    before, behind = _threads(ran, between)
    outside = np.zeros(len(back), dtype=bool)
    for thread, places in group(behind, np.arange(len(back))).items():
        if thread < 0:
            continue
        low, high = between.start[places], between.end[places]
        calls = ran.explainer.threads.calls(thread, int(low[0]), int(high[-1]))
        called = covered(calls.start, calls.end, high) - covered(calls.start, calls.end, low)
        outside[places] = 2 * called <= between.ns[places]
    return back[outside & (before == behind)]


def _crowd(ran: Ran, gaps: Stretches) -> Crowd:
    """Return a summary of the gaps that are not among the longest.

    It holds the gaps before one and the same operation if these make up half of the time, and all
    of them otherwise.
    """
    rest = np.sort(np.argsort(-gaps.ns, kind="stable")[MOST_NAMED:])
    if not len(rest):
        return Crowd()
    name, ns = ran.name[gaps.operation[rest]], gaps.ns[rest]
    sums = np.bincount(name, weights=ns)  # exact: below 2 ** 53
    most = int(sums.argmax())
    text = ""
    if 2 * sums[most] >= ns.sum():
        text = str(ran.names["kernel"].iloc[most])
        rest, ns = rest[name == most], ns[name == most]
    ran_ns = ran.end[gaps.operation[rest]] - ran.start[gaps.operation[rest]]
    return Crowd(len(ns), int(ns.sum()), _lower_median(ns), text, _lower_median(ran_ns))


def _lower_median(values: np.ndarray) -> int:
    place = (len(values) - 1) // 2
    return int(np.partition(values, place)[place])


def _longest(ran: Ran, run: int, gaps: Stretches) -> list[tuple[Any, ...]]:
    """Return rows of `frames.GAPS` for the longest stretches.

    Each says which operation ended it, and which call covers most of it, of the thread that issued
    this operation: '' if the thread was outside of CUDA, NOT_KNOWN if that is not known.
    """
    explainer, rows = ran.explainer, []
    for place in np.argsort(-gaps.ns, kind="stable")[:MOST_GAPS].tolist():
        operation, low, high = gaps.operation[place], int(gaps.start[place]), int(gaps.end[place])
        issue = explainer.call[operation]
        thread = explainer.call_thread[issue] if issue >= 0 else explainer.faulting[operation]
        call, longest = NOT_KNOWN if thread < 0 else "", 0
        spent = _calls_in(ran.trace, explainer.threads.calls(int(thread), low, high), low, high)
        if len(spent):
            call, longest = str(spent.idxmax()), int(spent.max())
        rows.append((run, low, high - low, _name(ran, operation), call, longest))
    return rows


def _calls_in(trace: Trace, calls: Any, low: int, high: int) -> pd.Series:
    """Nanoseconds of disjoint calls between two times, by name."""
    inside = slice(np.searchsorted(calls.end, low, "right"), np.searchsorted(calls.start, high))
    ns = np.minimum(calls.end[inside], high) - np.maximum(calls.start[inside], low)
    names = call_names(trace, calls.ref[inside]) if len(ns) else []
    return pd.Series(ns).groupby(np.asarray(names, dtype=object)).sum()
