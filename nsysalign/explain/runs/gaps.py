"""One pass over the gaps of a run: the stretches in which a device ran nothing, how each ended, and what
the thread that ended it was in.

A stretch of idle time is called a gap; the operation that ended it is the first one after it.

    device   KKK|------- gap -------|KKK             first     a kernel that had not run before
    thread      [ call ] own [launch]                load      code was loaded meanwhile: calls took most of it
                                                     back      a copy to the host before, one to the device
                                                               behind it, both of one thread, which was
                                                               mostly outside of CUDA
                                                     launch    all others
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.explain.clauses import MOSTLY
from nsysalign.explain.facts import LAUNCHES
from nsysalign.explain.finding import OfRuns
from nsysalign.explain.preparing import LOADS
from nsysalign.explain.runs.forks import forks_of
from nsysalign.explain.runs.ranges import InRange, in_data_loader, in_ranges, in_set_up
from nsysalign.explain.runs.rounds import Rounds, rounds_of
from nsysalign.intervals import covered, covered_ns, group, largest, pick, union
from nsysalign.model import CALL, KIND, MIGRATIONS, SYNC_CALLS, Trace, pid_of
from nsysalign.place.ranges import own_ranges
from nsysalign.split.gaps import NODE_GAP_NS
from nsysalign.split.labels import Ran
from nsysalign.split.pieces import call_names

#: What held up an operation of which the trace has no launch.
NOT_KNOWN = "the trace does not say what the host did"
#: An idle stretch that is shorter is the way of the next work to the GPU, not time of the CPU's.
_LATENCY_NS = 10_000
#: A launch to an idle GPU that takes longer does more than launch; of a kernel that had not run, from the second on.
_SLOW_LAUNCH_NS, _SLOW_FIRST_LAUNCH_NS = 1_000_000, 100_000
#: Idle stretches kept per run; those that a sentence names.
MOST_GAPS, MOST_NAMED = 20, 3
#: CUPTI's kinds of copies.
_H2D, _D2H = 1, 2


class Stretches(NamedTuple):
    """Idle stretches of a run, in the order of time: arrays of equal length.

    after:      the position of the operation before the stretch
    operation:  the position of the operation that ended it
    start, end: ns
    ns:         how long it lasted
    """

    after: np.ndarray
    operation: np.ndarray
    start: np.ndarray
    end: np.ndarray
    ns: np.ndarray

    def take(self, index: np.ndarray) -> Stretches:
        """Return the stretches that a mask or positions name."""
        return Stretches(*(column[index] for column in self))

    def held_by(self, table: pd.DataFrame) -> np.ndarray:
        """Return, per stretch, for how long (ns) a row of a table was open (columns start_ns and end_ns)."""
        start, end = union(table["start_ns"].to_numpy(), table["end_ns"].to_numpy())
        return covered(start, end, self.end) - covered(start, end, self.start)


class Crowd(NamedTuple):
    """Many gaps of one kind, but for the longest of the run: those before one operation, by name, or ('') before any."""

    count: int = 0
    ns: int = 0  # all together
    gap_ns: int = 0  # their lower median
    before: str = ""
    runs_ns: int = 0  # the lower median of the operations that end them
    longest: int = 0  # how many before the same operation are among the longest
    longest_ns: int = 0  # these together

    def whole(self) -> Crowd:
        """Return it with the longest, where a sentence does not tell of those by themselves."""
        return self._replace(count=self.count + self.longest, ns=self.ns + self.longest_ns)


class RoundTrips(NamedTuple):
    """Gaps between a copy to the host and the next one to the device, in which the CPU was mostly outside of CUDA."""

    ns: int
    count: int
    in_calls_ns: int  # for how long the CPU was in CUDA calls all the same
    #: those in which it was mostly, the longest first; () where no few calls took most of it
    calls: tuple[str, ...] = ()


class FirstRuns(NamedTuple):
    """Idle time before kernels that ran for the first time."""

    ns: int = 0
    kernels: int = 0
    kernel: str = ""  # the one that was waited for longest
    kernel_ns: int = 0
    loads_ns: int = 0  # of ns, for how long code was loaded
    call: str = ""  # the one that the launching threads were in for most of ns, '' for none
    call_ns: int = 0
    call_count: int = 0


class Forking(NamedTuple):
    """Gaps in which the program forks processes, as a DataLoader does in each epoch whose workers do not persist."""

    ns: int = 0  # how long these gaps are
    gaps: int = 0
    forks: int = 0


class IdleTime(NamedTuple):
    """What the gaps of a device have in common."""

    pid: int
    device: int
    first: FirstRuns = (
        FirstRuns()
    )  # calls that load or launch took most of each stretch before them
    before_first: FirstRuns = FirstRuns()  # all, whatever took most of it
    slow_first_launches_ns: int = 0  # in the calls that launched kernels which had not run
    loading_ns: int = 0  # code was loaded or linked meanwhile
    loading_count: int = 0
    loads: int = 0  # calls that did so
    load_calls_ns: int = 0  # for how long of loading_ns one of these was open
    #: of that, in the quarter of the device's operations that has least of it: 0 where loading ends
    load_calls_in_least_quarter_ns: int = 0
    back: RoundTrips | None = None  # between copies to the host and to the device
    before_copies_ns: int = 0  # in all gaps that a copy ended
    between_kernels: float = (
        0.0  # the share of the device's copies that lie behind its first kernel and before its last
    )
    sync_call: str = ""  # the synchronisation that the process called most often
    sync_count: int = 0
    operations: int = 0  # of the device
    in_ranges: InRange = InRange()
    in_data_loader: InRange = InRange()
    in_set_up: InRange = InRange()  # of a library
    forking: Forking = Forking()
    crowd: Crowd = Crowd()
    rounds: Rounds = Rounds()


class FirstWait(NamedTuple):
    """An idle stretch of a device that ended in a kernel which had not run before."""

    pid: int
    device: int
    start_ns: int
    end_ns: int
    ns: int  # of it so much because of that


class _FirstWaits(NamedTuple):
    """The stretches of a device that lasted longer because a kernel then ran for the first time: arrays of equal length.

    stretch:   the position of the stretch
    longer_ns: how much longer it lasted
    is_known:  whether that is because of the kernel: calls that load or launch took most of the stretch
    """

    stretch: np.ndarray
    longer_ns: np.ndarray
    is_known: np.ndarray


def idle_times(ran: Ran) -> OfRuns:
    """Return what is known of the idle time of each process's devices.

    The records are an `IdleTime` for each process and device that was ever idle, then all `FirstWait`s; the
    table is `frames.GAPS`, with the longest gaps of each.  Idle time that the tool itself caused is left out.
    """
    idle_of_devices: list[IdleTime] = []
    rows: list[tuple[Any, ...]] = []
    waits: list[FirstWait] = []
    for device_run in _runs_of_devices(ran):
        operations, gaps = _idle_stretches(ran, device_run.lane)
        if not len(gaps.ns):
            continue
        rows += _rows_of_longest(ran, device_run.interval, gaps)
        loading_ns = gaps.held_by(_loading_calls(ran.trace, device_run.process))
        is_first = _first_runs_of_kernels(ran, operations)
        first_waits = _waits_for_first_runs(ran, operations, gaps, loading_ns, is_first)
        waits += _records_of_waits(device_run, gaps, first_waits)
        idle = IdleTime(
            pid=int(pid_of(device_run.process)),
            device=device_run.device,
            operations=len(operations),
            crowd=_crowd(ran, gaps),
            before_copies_ns=int(gaps.ns[_is_copy(ran)[gaps.operation]].sum()),
            between_kernels=_copies_between_kernels(ran, operations),
        )
        stretch, longer_ns, is_known = first_waits
        idle = idle._replace(
            first=_first_runs(ran, gaps, loading_ns, stretch[is_known], longer_ns[is_known]),
            before_first=_first_runs(ran, gaps, loading_ns, stretch, longer_ns),
            slow_first_launches_ns=_slow_first_launches_ns(ran, gaps, is_first),
        )
        idle = _with_loading(idle, gaps, loading_ns, _quarters(ran, operations, gaps))
        idle = _with_calls(idle, ran.trace, device_run.process, gaps)
        idle = _with_ranges(idle, ran.trace, device_run.process, gaps)
        idle_of_devices.append(idle._replace(back=_round_trips(ran, gaps)))
    table = frames.of_rows(rows, frames.GAPS)
    return OfRuns((*idle_of_devices, *waits), {"gaps": table})


class _DeviceRun(NamedTuple):
    """The run of a whole device: the number of its interval, the process, the device, and the lane that has its work."""

    interval: int
    process: int
    device: int
    lane: int


def _runs_of_devices(ran: Ran) -> Iterator[_DeviceRun]:
    """Yield the run of each device of a process.

    The runs of single streams of a device are left out: while one of them has a gap, another may work.
    """
    device_of_lane = ran.explainer.alignment.lanes["device"]
    seen: set[tuple[int, int]] = set()
    for run in ran.windows[ran.windows["kind"] == "run"].itertuples():
        device = int(device_of_lane.iloc[run.end_lane])
        if (
            run.process,
            device,
        ) not in seen:  # the run of the device comes before those of its streams
            seen.add((run.process, device))
            yield _DeviceRun(run.Index, run.process, device, run.end_lane)


def _loading_calls(trace: Trace, process: int) -> pd.DataFrame:
    """Return the calls of a process that load or link code."""
    calls = trace.calls
    loads = [number for number, name in trace.names.items() if LOADS.match(name)]
    return calls[calls["name_id"].isin(loads) & (calls["process"] == process)]


def _records_of_waits(run: _DeviceRun, gaps: Stretches, waits: _FirstWaits) -> Iterator[FirstWait]:
    """Yield a record for each stretch that lasted longer because a kernel then ran for the first time."""
    for stretch, ns in zip(waits.stretch.tolist(), waits.longer_ns.tolist(), strict=True):
        start_ns, end_ns = int(gaps.start[stretch]), int(gaps.end[stretch])
        yield FirstWait(int(pid_of(run.process)), run.device, start_ns, end_ns, ns)


def _first_runs(
    ran: Ran, gaps: Stretches, loading_ns: np.ndarray, stretch: np.ndarray, longer_ns: np.ndarray
) -> FirstRuns:
    """Return what is known of kernels that ran for the first time behind some gaps.

    loading_ns: per gap, for how long code was loaded
    stretch, longer_ns: as in _FirstWaits
    """
    if not len(stretch):
        return FirstRuns()
    longest = int(longer_ns.argmax())
    call = _call_of_most(ran, gaps, stretch, int(longer_ns.sum()))
    return FirstRuns(
        ns=int(longer_ns.sum()),
        kernels=len(stretch),
        kernel=_kernel_name_of(ran, gaps.operation[stretch[longest]]),
        kernel_ns=int(longer_ns[longest]),
        loads_ns=int(loading_ns[stretch].sum()),
        **call,
    )


def _call_of_most(ran: Ran, gaps: Stretches, stretch: np.ndarray, whole_ns: int) -> dict[str, Any]:
    """Return (as fields of FirstRuns) the call that the threads which ended some stretches were in for most of a time:
    its name, for how long, and how often; {} for none.

    stretch: the positions of the stretches
    whole_ns: the time
    """
    ns_of_call, count_of_call = Counter[str](), Counter[str]()
    for position in stretch.tolist():
        thread = _waiting_thread(ran, gaps.operation[position])
        low, high = int(gaps.start[position]), int(gaps.end[position])
        if thread < 0:
            continue
        calls = ran.explainer.threads.calls(thread, low, high)
        ns_of_call.update(_ns_of_calls_by_name(ran.trace, calls, low, high))
        inside = slice(np.searchsorted(calls.end, low, "right"), np.searchsorted(calls.start, high))
        count_of_call.update(call_names(ran.trace, calls.ref[inside]))
    call, call_ns = next(iter(ns_of_call.most_common(1)), ("", 0))
    # code is loaded in launches as well: `is_known` of _FirstWaits
    if 2 * call_ns <= whole_ns or LAUNCHES.match(call) or LOADS.match(call):
        return {}
    return {"call": call, "call_ns": call_ns, "call_count": count_of_call[call]}


def _with_loading(
    idle: IdleTime, gaps: Stretches, loading_ns: np.ndarray, quarter: np.ndarray
) -> IdleTime:
    """Return the record with the gaps in which code was loaded.

    loading_ns: per gap, for how long code was loaded
    quarter: as `_quarters`
    """
    ns_of_quarter = np.bincount(quarter, weights=loading_ns, minlength=4)
    return idle._replace(
        loading_ns=int(gaps.ns[loading_ns > 0].sum()),
        loading_count=int((loading_ns > 0).sum()),
        load_calls_ns=int(loading_ns.sum()),
        load_calls_in_least_quarter_ns=int(ns_of_quarter.min()),
    )


def _quarters(ran: Ran, operations: np.ndarray, gaps: Stretches) -> np.ndarray:
    """Return, per gap, in which quarter of the operations the one that ended it is: 0 to 3.

    Operations count, not time: a first iteration that loads for seconds is most of a run's time, and little of its work.

    time        [ load    KK  load      KK   load     KK load ][K][K][K][K][K][K][K][K][K][K][K][K]
    quarter       0                                            0        1        2        3

    operations: those of the lane, sorted by start
    """
    place = np.searchsorted(ran.start[operations], gaps.end)
    return 4 * place // len(operations)


def _with_ranges(idle: IdleTime, trace: Trace, process: int, gaps: Stretches) -> IdleTime:
    """Return the record with what the ranges and the rounds of calls of the process say of its gaps."""
    return idle._replace(
        in_ranges=in_ranges(trace, process, gaps.start, gaps.end),
        in_data_loader=in_data_loader(trace, process, gaps.start, gaps.end),
        in_set_up=in_set_up(trace, process, gaps.start, gaps.end),
        rounds=rounds_of(trace, process, gaps.start, gaps.end),
        forking=_forking(trace, process, gaps),
    )


def _forking(trace: Trace, process: int, gaps: Stretches) -> Forking:
    """Return in which gaps a process forks others."""
    for record in forks_of(trace):
        if record.pid == int(pid_of(process)):
            begin, end = (np.searchsorted(record.start_ns, at) for at in (gaps.start, gaps.end))
            forks = end - begin
            return Forking(int(gaps.ns[forks > 0].sum()), int((forks > 0).sum()), int(forks.sum()))
    return Forking()


def _with_calls(idle: IdleTime, trace: Trace, process: int, gaps: Stretches) -> IdleTime:
    """Return the record with how many calls loaded code, and which synchronisation was called most often, between the
    first and the last gap."""

    def among_gaps(calls: pd.DataFrame) -> pd.DataFrame:
        return calls[calls["start_ns"].between(gaps.start[0] + 1, gaps.end[-1] - 1)]

    idle = idle._replace(loads=len(among_gaps(_loading_calls(trace, process))))
    is_sync = trace.calls["kind"].isin([CALL[kind] for kind in SYNC_CALLS])
    syncs = among_gaps(trace.calls[is_sync & (trace.calls["process"] == process)])
    count_of_name = syncs["name_id"].value_counts()  # the most frequent first
    if not len(count_of_name):
        return idle
    name = trace.names.get(int(count_of_name.index[0]), "")
    return idle._replace(sync_call=name, sync_count=int(count_of_name.iloc[0]))


def _open_ns(calls: pd.DataFrame) -> int:
    """Return for how long (ns) at least one of these calls is open: some are made inside others."""
    return covered_ns(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())


def _is_copy(ran: Ran) -> np.ndarray:
    """Return, per operation of the trace, whether it is a copy: pages of managed memory that move are none."""
    moves = ran.trace.operations["copy_kind"].isin(MIGRATIONS).to_numpy()
    return (ran.explainer.kind == KIND["memcpy"]) & ~moves


def _copies_between_kernels(ran: Ran, operations: np.ndarray) -> float:
    """Return the share of copies that lie behind the first kernel or graph and before the last, 0 where there are none.

    operations: of one device, sorted by start
    """
    is_copy = _is_copy(ran)[operations]
    kind = ran.explainer.kind[operations]
    kernels = np.flatnonzero((kind == KIND["kernel"]) | (kind == KIND["graph"]))
    if not len(kernels) or not is_copy.any():
        return 0.0
    return float(is_copy[kernels[0] : kernels[-1]].sum() / is_copy.sum())


def _kernel_name_of(ran: Ran, operation: int) -> str:
    return str(ran.names["kernel"].iloc[ran.name[operation]])


def _idle_stretches(ran: Ran, lane: int) -> tuple[np.ndarray, Stretches]:
    """Return (the operations of a lane, sorted by start; its idle stretches, in the order of time).

    operations  [A ]    [B ][C ]  [D ]        A, B, C and D are returned, and two stretches:
    stretches       |--|        |-|           between A and B, and between C and D

    Two kinds of stretches are left out: those between nodes of a CUDA graph that are no longer than the GPU takes from
    node to node, and those of which the tool itself took half or more.
    """
    operations, idle_before_ns = ran.of_lane(lane)
    # operations with idle time before them: never the first one, before which nothing is known
    place = np.flatnonzero(idle_before_ns)
    ns = idle_before_ns[place]
    end = ran.start[operations[place]]
    gaps = Stretches(
        after=operations[place - 1],
        operation=operations[place],
        start=end - ns,
        end=end,
        ns=ns,
    )
    in_graph = ran.explainer.in_one_graph(gaps.after, gaps.operation)
    gaps = gaps.take(~(in_graph & (gaps.ns <= NODE_GAP_NS)))
    by_tool = own_ranges(ran.trace)
    tool_start, tool_end = union(by_tool["start_ns"].to_numpy(), by_tool["end_ns"].to_numpy())
    tool_ns = covered(tool_start, tool_end, gaps.end) - covered(tool_start, tool_end, gaps.start)
    mostly_by_tool = (tool_ns > 0) & (2 * tool_ns >= gaps.ns)
    return operations, gaps.take(~mostly_by_tool)


def _first_runs_of_kernels(ran: Ran, operations: np.ndarray) -> np.ndarray:
    """Return, per operation of the trace, whether it is the first run of a kernel.

    operations: those of the lane, sorted by start
    """
    is_first = np.zeros(len(ran.name), dtype=bool)
    is_first[operations] = ~pd.Series(ran.name[operations]).duplicated().to_numpy()
    return is_first & (ran.explainer.kind == KIND["kernel"])


def _slow_first_launches_ns(ran: Ran, gaps: Stretches, is_first: np.ndarray) -> int:
    """Return how much (ns) of the stretches lies in calls that launched a kernel which had not run, and were slow."""
    ends_in_first = np.flatnonzero(is_first[gaps.operation]).tolist()
    launches_ns = (_launch_ns(ran, gaps, stretch) for stretch in ends_in_first)
    return sum(ns for ns in launches_ns if ns >= _SLOW_FIRST_LAUNCH_NS)


def _waits_for_first_runs(
    ran: Ran, operations: np.ndarray, gaps: Stretches, loading_ns: np.ndarray, is_first: np.ndarray
) -> _FirstWaits:
    """Return the stretches that lasted longer because a kernel then ran for the first time, and how much longer.

    first    KKK   [ compile ][ load code ][ launch K2 ] K2     K2 runs for the first time

    operations: those of the lane, sorted by start
    gaps: its idle stretches
    loading_ns: per stretch, for how long code was loaded
    is_first: per operation of the trace, whether it is the first run of a kernel

    Where loading or the launch took most of the stretch, all of it counts: without the first run it would not have been
    there.  Where code was loaded, but something else took most of it, that may be compiling, or reading a file; nothing
    is known either of other stretches, of which counts what is longer than the usual wait for the kernel's later runs.
    """
    name_id = ran.name[gaps.operation]
    ends_in_first = is_first[gaps.operation]
    ends_in_later = ~ends_in_first & np.isin(name_id, name_id[ends_in_first])
    # the id of a kernel's name -> the waits (ns) before its later runs, where there were any
    later_waits = group(name_id[ends_in_later], gaps.ns[ends_in_later])
    runs_of_name = np.bincount(ran.name[operations])
    no_waits = gaps.ns[:0]
    waits = list[tuple[int, int, bool]]()  # as the columns of _FirstWaits
    for stretch in np.flatnonzero(ends_in_first).tolist():
        kernel = int(name_id[stretch])
        longer_ns = int(gaps.ns[stretch])
        is_known = 2 * loading_ns[stretch] >= longer_ns or _mostly_launching(ran, gaps, stretch)
        if not loading_ns[stretch] and not is_known:
            later = later_waits.get(kernel, no_waits)
            longer_ns = _longer_than_usual(longer_ns, later, int(runs_of_name[kernel]))
        if longer_ns:
            waits.append((stretch, longer_ns, bool(is_known)))
    stretches, longer, known = np.array(waits, np.int64).reshape(-1, 3).T
    return _FirstWaits(stretches, longer, known.astype(bool))


def _longer_than_usual(ns: int, later_waits: np.ndarray, runs: int) -> int:
    """Return by how much (ns) a wait for a kernel's first run is longer than the usual wait for its later runs;
    0 if that is no more than a launch takes, or if it ran too seldom to say what is usual.

    later_waits: the waits (ns) before those of its later runs that were waited for
    runs: how often the kernel ran in all; runs that were not waited for have a wait of 0, which counts in what is usual
    """
    if runs <= 2:
        return 0
    longer = ns - _usual_wait(later_waits, runs - 1)
    return longer if longer > _LATENCY_NS else 0


def _mostly_launching(ran: Ran, gaps: Stretches, stretch: int) -> bool:
    """Return whether the call that launched the kernel behind a stretch took over half of the stretch, or was
    slow among other calls that did (`_is_set_up_with_launch`)."""
    launch_ns = _launch_ns(ran, gaps, stretch)
    return 2 * launch_ns > gaps.ns[stretch] or _is_set_up_with_launch(ran, gaps, stretch, launch_ns)


def _is_set_up_with_launch(ran: Ran, gaps: Stretches, stretch: int, launch_ns: int) -> bool:
    """Return whether a launch took long though the GPU was idle, and took most of a stretch together with the
    calls before it.

    Code is loaded in such a launch; handles and contexts are made in cudaFree, cudaMalloc and the like.

    stretch: the position of the stretch that the launched operation ended
    launch_ns: how much of the stretch lies in the launch call
    """
    if launch_ns < _SLOW_LAUNCH_NS:
        return False
    low, high = int(gaps.start[stretch]), int(gaps.end[stretch])
    thread = int(ran.explainer.call_thread[ran.explainer.call[gaps.operation[stretch]]])
    calls = ran.explainer.threads.calls(thread, low, high)
    ns_of_name = _ns_of_calls_by_name(ran.trace, calls, low, high)
    return bool(2 * sum(ns_of_name.values()) >= gaps.ns[stretch])


def _launch_ns(ran: Ran, gaps: Stretches, stretch: int) -> int:
    """Return how much (ns) of a stretch, given by its position, lies in the call that launched the operation
    which ended it; 0 if that call is not known."""
    call = ran.explainer.call[gaps.operation[stretch]]
    if call < 0:
        return 0
    end = min(ran.explainer.call_end[call], gaps.end[stretch])
    return int(end - max(ran.explainer.call_start[call], gaps.start[stretch]))


def _usual_wait(waits: np.ndarray, runs: int) -> int:
    """Return the lower median (ns) of the waits before each run of a kernel.

    waits: those of the runs that were waited for; the wait of all others is 0
    runs: how many runs there are.  A damaged trace may know of fewer runs than of waits
    """
    without = max(runs - len(waits), 0)
    place = (without + len(waits)) // 2 - without
    return int(np.sort(waits)[place]) if 0 <= place < len(waits) else 0


def _round_trips(ran: Ran, gaps: Stretches) -> RoundTrips | None:
    """Return what is known of the stretches in which the CPU works on a result or makes the next input, None if there
    are none.

    device   D2H |------------------------| H2D
    thread       [ the CPU's own code  ][ call ]     one thread issued both, and was mostly outside of CUDA

    gaps: all idle stretches of a run
    """
    copy_kind = ran.trace.operations["copy_kind"].to_numpy()
    between_copies = (copy_kind[gaps.after] == _D2H) & (copy_kind[gaps.operation] == _H2D)
    # in a shorter one the next copy was on its way already, and the CPU did nothing
    positions = np.flatnonzero(between_copies & (gaps.ns >= _LATENCY_NS))
    pauses = gaps.take(positions)
    thread = _issuing_threads(ran, pauses.operation)
    of_one_thread = np.flatnonzero((thread >= 0) & (thread == _issuing_threads(ran, pauses.after)))
    ns_of_call = Counter[str]()
    outside = list[Stretches]()
    in_calls_ns = 0
    for number, rows in group(thread[of_one_thread], of_one_thread).items():
        of_thread = pauses.take(rows)  # still in the order of time
        calls = ran.explainer.threads.calls(number, int(of_thread.start[0]), int(of_thread.end[-1]))
        called_ns = covered(calls.start, calls.end, of_thread.end)
        called_ns = called_ns - covered(calls.start, calls.end, of_thread.start)
        mostly_outside = 2 * called_ns <= of_thread.ns
        outside.append(of_thread.take(mostly_outside))
        in_calls_ns += int(called_ns[mostly_outside].sum())
        for low, high in zip(outside[-1].start.tolist(), outside[-1].end.tolist(), strict=True):
            ns_of_call.update(_ns_of_calls_by_name(ran.trace, calls, low, high))
    count = sum(len(trips.ns) for trips in outside)
    if not count:
        return None
    longest = dict(ns_of_call.most_common(MOST_NAMED))
    are_most = sum(longest.values()) >= MOSTLY * in_calls_ns
    return RoundTrips(
        ns=sum(int(trips.ns.sum()) for trips in outside),
        count=count,
        in_calls_ns=in_calls_ns,
        calls=tuple(longest) if are_most else (),
    )


def _issuing_threads(ran: Ran, operations: np.ndarray) -> np.ndarray:
    """Return the thread (globalTid) that issued each operation, -1 where that is not known.

    operations: positions
    """
    return pick(ran.explainer.call_thread, ran.explainer.call[operations], -1)


def _crowd(ran: Ran, gaps: Stretches) -> Crowd:
    """Return a summary of the gaps that are not among the MOST_NAMED longest.

    If the gaps before operations of one name make up half of their time, the summary is of these gaps; otherwise
    it is of all of them.
    """
    is_shorter = np.ones(len(gaps.ns), dtype=bool)
    is_shorter[largest(gaps.ns, MOST_NAMED)] = False
    shorter = gaps.take(is_shorter)
    longest_ns = gaps.ns[:0]
    if not len(shorter.ns):
        return Crowd()
    name = ran.name[shorter.operation]
    # sums in float64 are exact below 2 ** 53
    ns_of_name = np.bincount(name, weights=shorter.ns)
    most_waited = int(ns_of_name.argmax())
    before = ""
    if 2 * ns_of_name[most_waited] >= shorter.ns.sum():
        before = str(ran.names["kernel"].iloc[most_waited])
        shorter = shorter.take(name == most_waited)
        longest_ns = gaps.ns[~is_shorter & (ran.name[gaps.operation] == most_waited)]
    operation_ns = ran.end[shorter.operation] - ran.start[shorter.operation]
    return Crowd(
        count=len(shorter.ns),
        ns=int(shorter.ns.sum()),
        gap_ns=_lower_median(shorter.ns),
        before=before,
        runs_ns=_lower_median(operation_ns),
        longest=len(longest_ns),
        longest_ns=int(longest_ns.sum()),
    )


def _lower_median(values: np.ndarray) -> int:
    place = (len(values) - 1) // 2
    return int(np.partition(values, place)[place])


def _rows_of_longest(ran: Ran, run: int, gaps: Stretches) -> list[tuple[Any, ...]]:
    """Return rows of `frames.GAPS` for the longest stretches of a run, the longest first.

    run: the number of its interval
    gaps: all idle stretches of the run

    A row has the operation that ended the stretch, and the call (`_longest_call`) in which the thread that issued the
    operation was meanwhile.
    """
    rows = []
    for stretch in largest(gaps.ns, MOST_GAPS).tolist():
        operation = gaps.operation[stretch]
        start, end = int(gaps.start[stretch]), int(gaps.end[stretch])
        call, call_ns = _longest_call(ran, _waiting_thread(ran, operation), start, end)
        rows.append((run, start, end - start, _kernel_name_of(ran, operation), call, call_ns))
    return rows


def _waiting_thread(ran: Ran, operation: int) -> int:
    """Return the thread (globalTid) for which an operation came: the one that issued it, or that touched the page
    which it moves; -1 where that is not known."""
    issuing_call = ran.explainer.call[operation]
    if issuing_call >= 0:
        return int(ran.explainer.call_thread[issuing_call])
    return int(ran.explainer.faulting[operation])


def _longest_call(ran: Ran, thread: int, start: int, end: int) -> tuple[str, int]:
    """Return (the name of the call that a thread spent most of a time in, how long): a CUDA call; or one of the
    operating system, if that took more than half of the time and no CUDA call half of it.

    ("", 0) if the thread was outside of calls, (NOT_KNOWN, 0) if the thread is not known.

    start, end: the time (ns)
    """
    if thread < 0:
        return NOT_KNOWN, 0
    calls = ran.explainer.threads.calls(thread, start, end)
    ns_of_name = _ns_of_calls_by_name(ran.trace, calls, start, end)
    call = max(ns_of_name, key=lambda name: ns_of_name[name], default="")
    call_ns = ns_of_name.get(call, 0)
    if 2 * call_ns < end - start:
        os_call, os_ns = _os_call(ran.trace, thread, start, end)
        if 2 * os_ns > end - start:
            return os_call, os_ns
    return call, call_ns


def _os_call(trace: Trace, thread: int, low: int, high: int) -> tuple[str, int]:
    """Return (the call of the operating system, by name, that a thread spent most of a time in, how long), ('', 0) for
    none.

    low, high: the time (ns)
    """
    calls = trace.os_calls
    if calls.empty:
        return "", 0
    calls = calls[
        (calls["thread"] == thread) & (calls["start_ns"] < high) & (calls["end_ns"] > low)
    ]
    if calls.empty:
        return "", 0
    cut = calls.assign(
        start_ns=calls["start_ns"].clip(lower=low), end_ns=calls["end_ns"].clip(upper=high)
    )
    ns_of_name = {name: _open_ns(named) for name, named in cut.groupby("name_id")}
    longest = max(ns_of_name, key=lambda name: ns_of_name[name])
    return trace.names.get(longest, "an OS call"), ns_of_name[longest]


def _ns_of_calls_by_name(trace: Trace, calls: Any, low: int, high: int) -> dict[str, int]:
    """Return name, in alphabetical order -> how long (ns) calls of that name were open between two times (ns).

    calls: sorted by time and disjoint
    """
    first = np.searchsorted(calls.end, low, side="right")
    stop = np.searchsorted(calls.start, high)
    ns = np.minimum(calls.end[first:stop], high) - np.maximum(calls.start[first:stop], low)
    names = call_names(trace, calls.ref[first:stop]) if len(ns) else []
    ns_of_name = dict.fromkeys(sorted(set(names)), 0)
    for name, call_ns in zip(names, ns.tolist(), strict=True):
        ns_of_name[name] += call_ns
    return ns_of_name
