"""The run as a whole: one window per process and device, and per stream where several worked, over
the span of its work; and what is looked at once per run.

    stream 7     KKKK    KK            CC
    stream 13        KKKK      KKKK
    device       KKKKKKKKKK    KKKK    CC       busy when any stream is; idle time waits for whatever begins next, on any stream

A device with several streams is a lane of its own behind the lanes of the trace (`stream` -1): its
operations are those of all its streams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import covered, disjoint, group, ragged, union
from nsysalign.model import (
    CALL,
    ISSUING_CALLS,
    KIND,
    MIGRATIONS,
    ORIGIN,
    OURS,
    SYNC_CALLS,
    WARP,
    Alignment,
    Trace,
    pid_of,
)
from nsysalign.place.ranges import own_calls, own_ranges
from nsysalign.split.labels import Ran
from nsysalign.split.pieces import call_names
from nsysalign.trace.info import Gpu
from nsysalign.trace.nccl import NCCL_KERNEL

#: What held up an operation of which the trace has no launch.
NOT_KNOWN = "the trace does not say what the host did"
#: An idle stretch that is shorter is the way of the next work to the GPU, not time of the CPU's.
_LATENCY_NS = 10_000
#: Idle stretches kept per run.
MOST_GAPS = 20
#: Grids of more kernels than this are not read.
_MOST = 200_000
#: What is no computation: torch.cuda._sleep holds up a stream.
_SLEEPS = "spin_kernel"
_ENOUGH = 1 << 40
_TO_DEVICE, _TO_HOST, _ = MIGRATIONS
#: CUPTI's kinds of copies; calls that load code.
_H2D, _D2H = 1, 2
_LOADS = re.compile(r"cu(da)?(LibraryLoad|ModuleLoad|Link)")
_ASKED = ("cudaMemPrefetch", "cuMemPrefetch")
#: So many ranges of a name, and so many of them with calls, tell what the others should hold.
_SOME_RANGES = 3
#: A trace that ends early lacks the kernels of its last launches: only from this share on it is a
#: loss.
_NEARLY_ALL = 0.9


def with_runs(trace: Trace, alignment: Alignment) -> Alignment:
    """The alignment with windows of kind run appended."""
    lanes, busy = alignment.lanes, np.asarray(alignment.busy)
    spans = trace.operations.groupby(alignment.operation_lane)
    used = lanes[busy].join(spans.agg(start=("start_ns", "min"), end=("end_ns", "max")))
    devices: list[tuple[int, int]] = []  # lanes that stand for several
    rows = []
    for (process, device), own in used.groupby(["process", "device"], sort=True):
        words = [f"process {pid_of(process)}"] if used["process"].nunique() > 1 else []
        words += [f"GPU {device}"] if used["device"].nunique() > 1 else []
        lane, start, end = own.index[0], own["start"].min(), own["end"].max()
        if len(own) > 1:
            lane = len(lanes) + len(devices)
            devices.append((process, device))
        rows.append((words, lane, process, start, end))
        for stream in own.itertuples() if len(own) > 1 else ():
            # pages of managed memory migrate in no context, on a stream of that name only
            pages = stream.context == stream.stream == 0
            name = "page migrations" if pages else f"stream {stream.stream}"
            rows.append(([*words, name], stream.Index, process, stream.start, stream.end))
    rows = [row for row in rows if row[-1] > row[-2]]
    if not rows:
        return alignment
    texts, *numbers = zip(*rows, strict=True)
    lane, of, begin, over = (np.array(column, np.int64) for column in numbers)
    region = [f"run ({', '.join(text)})" if text else "run" for text in texts]
    columns = {"kind": "run", "origin": ORIGIN["run"], "region": np.array(region, object)}
    columns |= {"process": of, "elapsed_ns": over - begin}
    columns |= dict.fromkeys(("thread", "end_thread"), of | pid_of(of))
    columns |= dict.fromkeys(("start_lane", "end_lane"), lane)
    columns |= dict.fromkeys(("open_ns", "start_ns", "start_lower_ns", "start_upper_ns"), begin)
    columns |= dict.fromkeys(("close_ns", "close_end_ns", "end_ns"), over)
    columns |= {"method": "exact", "error_ns": 0}
    of_runs = frames.lean(columns, frames.WINDOWS, len(rows))
    windows = pd.concat([alignment.windows, of_runs], ignore_index=True)
    more = pd.DataFrame(devices, columns=["process", "device"]).assign(
        context=-1, stream=-1, flag=-1
    )
    lanes = pd.concat([lanes, more.astype("int64")], ignore_index=True)
    return replace(
        alignment,
        lanes=frames.check(lanes, frames.LANES),
        busy=np.append(busy, np.zeros(len(devices), dtype=bool)),
        windows=frames.lean({c: windows[c].array for c in windows}, frames.WINDOWS, len(windows)),
    )


class _Idle(NamedTuple):
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


class IdleTime(NamedTuple):
    """What the idle time of each process and device has in common; `frames.GAPS`."""

    known: list[dict[str, Any]]
    gaps: pd.DataFrame


def idle_time(ran: Ran) -> IdleTime:
    """Of every process and device, without what the tool made itself.

    first    KKK   [ compile ][ load code ][ launch K2 ] K2     K2 runs for the first time, and code was loaded before it
    back     D2H   [ the CPU reads the result, or makes the next input ]  H2D

    `first_ns` ended in a kernel that had not run before, and code was loaded or the launch itself
    took half of it, or it waited for longer than the kernel's later runs usually do, which is what
    counts then (`first_kernels` so many); `back_ns` lay between a copy to the host and one to
    the device (`back_count` times).  `sync_call` is the synchronisation that the process called most
    often while its GPU worked, `sync_count` times.  `operations`: how many the device had;
    `long_gaps` last at least a tenth of the longest: all together
    `long_gaps_ns`, the shortest of them `long_gap_ns`.
    """
    calls, names = ran.trace.calls, ran.trace.names
    copy = ran.trace.operations["copy_kind"].to_numpy()
    loads = calls[calls["name_id"].isin([n for n, name in names.items() if _LOADS.match(name)])]
    syncs = calls[calls["kind"].isin([CALL[name] for name in SYNC_CALLS])]
    known: dict[tuple[int, int], dict[str, Any]] = {}
    gaps: list[tuple] = []
    for run in ran.windows[ran.windows["kind"] == "run"].itertuples():
        key = run.process, int(ran.explainer.alignment.lanes["device"].iloc[run.end_lane])
        own, idle = _idle_stretches(ran, run.end_lane)
        if key in known or not len(idle.ns):  # streams come behind their device
            continue
        gaps += _longest(ran, run.Index, idle)
        own_loads, own_syncs = (t[t["process"] == run.process] for t in (loads, syncs))
        meanwhile = [
            table[table["start_ns"].between(idle.start[0] + 1, idle.end[-1] - 1)]
            for table in (own_loads, own_syncs)
        ]
        loaded = idle.touched(own_loads)
        late_ns = _late(ran, own, idle, loaded)
        long = idle.ns[idle.ns >= idle.ns.max() / 10]
        back = (copy[idle.after] == _D2H) & (copy[idle.operation] == _H2D)
        back &= idle.ns >= _LATENCY_NS
        called = meanwhile[1]["name_id"].value_counts()
        known[key] = {
            "pid": int(pid_of(run.process)),
            "device": key[1],
            "first_ns": int(late_ns.sum()),
            "first_kernels": len(late_ns),
            "back_ns": int(idle.ns[back].sum()),
            "back_count": int(back.sum()),
            "sync_call": names.get(int(called.index[0]), "") if len(called) else "",
            "sync_count": int(called.iloc[0]) if len(called) else 0,
            "operations": len(own),
            "loading_ns": int(idle.ns[loaded].sum()),
            "loading_count": int(loaded.sum()),
            "loads": len(meanwhile[0]),
            "long_gaps": len(long),
            "long_gaps_ns": int(long.sum()),
            "long_gap_ns": int(long.min()),
        }
    return IdleTime(list(known.values()), frames.of_rows(gaps, frames.GAPS))


def _idle_stretches(ran: Ran, lane: int) -> tuple[np.ndarray, _Idle]:
    """The operations of a lane, by start, and its idle stretches; not those of which the tool itself
    made half."""
    own, idle_ns = ran.of_lane(lane)
    there = np.flatnonzero(idle_ns)
    end, idle_ns = ran.start[own[there]], idle_ns[there]
    idle = _Idle(own[there - 1], own[there], end - idle_ns, end, idle_ns)
    ours = own_ranges(ran.trace)
    some = np.flatnonzero(idle.touched(ours))
    blocks = union(*(ours[c].to_numpy() for c in ("start_ns", "end_ns")))
    made = covered(*blocks, idle.end[some]) - covered(*blocks, idle.start[some])
    dropped = some[2 * made >= idle.ns[some]]
    if len(dropped):
        idle = _Idle(*(np.delete(column, dropped) for column in idle))
    return own, idle


def _late(ran: Ran, own: np.ndarray, idle: _Idle, loaded: np.ndarray) -> np.ndarray:
    """How long each kernel (`first_kernels`) was waited for because it ran for the first time."""
    new = np.zeros(len(ran.name), dtype=bool)
    new[own] = ~pd.Series(ran.name[own]).duplicated().to_numpy()
    new &= ran.explainer.kind == KIND["kernel"]
    name, fresh = ran.name[idle.operation], new[idle.operation]
    later = np.flatnonzero(~fresh & np.isin(name, name[fresh]))
    waits, runs = group(name[later], idle.ns[later]), np.bincount(ran.name[own])
    late = []
    for stretch in np.flatnonzero(fresh).tolist():
        operation, ns = idle.operation[stretch], int(idle.ns[stretch])
        call = ran.explainer.call[operation]
        launch_ns = 0
        if call >= 0:
            launch_ns = min(ran.explainer.call_end[call], idle.end[stretch])
            launch_ns -= max(ran.explainer.call_start[call], idle.start[stretch])
        if loaded[stretch] or 2 * launch_ns > ns:
            late.append(ns)
        elif runs[name[stretch]] > 2:  # of fewer nothing is usual
            waited = np.sort(waits.get(int(name[stretch]), idle.ns[:0]))
            # runs that waited for nothing; a damaged trace may know of fewer runs than of waits
            without = max(int(runs[name[stretch]]) - 1 - len(waited), 0)
            place = (without + len(waited)) // 2 - without
            usual = int(waited[place]) if 0 <= place < len(waited) else 0
            late += [ns - usual] if ns - usual > _LATENCY_NS else []
    return np.array(late, np.int64)


def _longest(ran: Ran, run: int, idle: _Idle) -> list[tuple]:
    """Rows of `frames.GAPS`: the longest stretches, with what ended each and the call (by name) of
    the thread that issued this which covers most of it: '' where that thread was outside of CUDA,
    NOT_KNOWN where it is not known."""
    explainer, rows = ran.explainer, []
    for n in np.argsort(-idle.ns, kind="stable")[:MOST_GAPS].tolist():
        operation, low, high = idle.operation[n], int(idle.start[n]), int(idle.end[n])
        issue = explainer.call[operation]
        thread = explainer.call_thread[issue] if issue >= 0 else explainer.faulting[operation]
        call, longest = NOT_KNOWN if thread < 0 else "", 0
        calls = explainer.threads.calls(int(thread), low, high)
        some = slice(np.searchsorted(calls.end, low, "right"), np.searchsorted(calls.start, high))
        ns = np.minimum(calls.end[some], high) - np.maximum(calls.start[some], low)
        if len(ns):
            named = call_names(ran.trace, calls.ref[some])
            by_name = pd.Series(ns).groupby(np.asarray(named, dtype=object)).sum()
            call, longest = str(by_name.idxmax()), int(by_name.max())
        name = ran.names["kernel"].iloc[ran.name[operation]]
        rows.append((run, low, high - low, name, call, longest))
    return rows


def calls_without_work(trace: Trace) -> dict[str, Any]:
    """Of a trace with calls and no GPU work: how many there are, how many issue work, from the first
    to the last of them, and the one (by name) that takes most of it."""
    if len(trace.operations) or trace.calls.empty:
        return {}
    calls = trace.calls[trace.outermost]
    issuing = calls["kind"].isin([CALL[kind] for kind in ISSUING_CALLS])
    spent = (calls["end_ns"] - calls["start_ns"]).groupby(calls["name_id"]).sum()
    return {
        "calls": len(calls),
        "issuing": int(issuing.sum()),
        "whole_ns": int(calls["end_ns"].max() - calls["start_ns"].min()),
        "call": trace.names.get(int(spent.idxmax()), ""),
        "call_ns": int(spent.max()),
        "call_count": int((calls["name_id"] == spent.idxmax()).sum()),
    }


def page_migrations(trace: Trace) -> list[dict[str, Any]]:
    """Pages of managed memory that moved between host and device, and whether kernels ran
    meanwhile.

    Kernels:         KKKKKKKKKKKKKKKKKKKK
    Pages to the GPU:   mm mm mmm           to the host:   m m mm

    Per process and device on which pages moved: how often the device had run nothing before one
    moved to the host, and for how long (`touched_...`; the host asked for none in that time, it
    touched them); how often pages moved each way, how long (`moving_ns`, a union), and for how long
    of that no kernel ran (`alone_ns`).  How long faults take besides is not in a trace: between two
    pages a kernel may work.  `asked`: the program itself asked for pages ahead of their use; such
    rows look the same."""
    asking = [i for i, name in trace.names.items() if name.startswith(_ASKED)]
    asked = trace.calls[trace.calls["name_id"].isin(asking)]
    pages = trace.operations["copy_kind"].isin(MIGRATIONS)
    columns = ("copy_kind", "start_ns", "end_ns", "kind", "bytes")
    out = []
    for (process, device), operations in trace.operations.groupby(["process", "device"]):
        moved = pages[operations.index].to_numpy()
        if not moved.any():
            continue
        copy, start, end, kind, size = (operations[c].to_numpy() for c in columns)
        until, since = np.maximum.accumulate(end)[:-1], start[1:]
        calls = asked.loc[asked["process"] == process, "start_ns"].to_numpy()
        alone = np.searchsorted(calls, until) == np.searchsorted(calls, since)
        to_host, kernels = copy == _TO_HOST, kind == KIND["kernel"]
        back = to_host[1:] & (since > until) & alone
        _, first, last = disjoint(start[moved], end[moved])
        ran = disjoint(start[kernels], end[kernels])[1:]
        moving = int((last - first).sum())
        out.append(
            {
                "pid": int(pid_of(process)),
                "device": int(device),
                "touched_count": int(back.sum()),
                "touched_ns": int((since - until)[back].sum()),
                "asked": bool(len(calls)),
                "to_device_count": int((copy == _TO_DEVICE).sum()),
                "to_host_count": int(to_host.sum()),
                "to_host_bytes": int(size[to_host].sum()),
                "to_host_ns": int((end - start)[to_host].sum()),
                "moving_ns": moving,
                "alone_ns": moving - int((covered(*ran, last) - covered(*ran, first)).sum()),
            }
        )
    return out


def small_launches(trace: Trace, gpus: Mapping[int, Gpu]) -> dict[str, list[dict[str, Any]]]:
    """For how long a device ran kernels that leave most of it without work: fewer blocks than
    multiprocessors, which take one each at least; blocks of fewer threads than a warp has.

    stream 7     [ 1 block           ]  [ 528 blocks ]   [ 1 ]   [ 4,096 blocks of 1 thread ]
    stream 13          [ 200 blocks ]                              a GPU with 132 multiprocessors
    few blocks   ******              *                   *****
    few threads                                                  ****************************

    `few_blocks` (`fewer_blocks`) and `few_threads`, per process and device: for how long at least
    half (a third) of the multiprocessors had no block, and for how long what ran, with more blocks
    than half, had blocks of less than a warp only; what of that time would remain if the work were shared out
    (`unused_ns` is the rest); and of such kernels the one that ran longest.  CUDA graphs,
    collectives and kernels of unknown size have enough; where the number of multiprocessors is not
    known (0), one block is too few."""
    operations = trace.operations
    out: dict[str, list[dict[str, Any]]] = {"few_blocks": [], "fewer_blocks": [], "few_threads": []}
    count = int((operations["kind"] == KIND["kernel"]).sum())
    if trace.shapes is None or not 0 < count <= _MOST:
        return out
    table = operations[operations["kind"].isin([KIND["kernel"], KIND["graph"]])]
    kernel = (table["kind"] == KIND["kernel"]).to_numpy()
    rows, place = np.unique(table["row"].to_numpy()[kernel], return_inverse=True)
    shape = np.zeros((len(table), 6), np.int64)
    shape[kernel] = np.asarray(trace.shapes(rows))[place, :6]
    names = trace.names
    other = [n for n, text in names.items() if _SLEEPS in text or NCCL_KERNEL.search(text)]
    size = shape[:, :3].prod(axis=1)
    known = (size > 0) & ~table["name_id"].isin(other).to_numpy()
    table = table[["start_ns", "end_ns", "name_id", "process", "device"]].assign(
        blocks=np.where(known, size, _ENOUGH),
        threads=np.where(known, shape[:, 3:].prod(axis=1), WARP),
        ns=table["end_ns"] - table["start_ns"],
    )
    for (process, device), own in table.groupby(["process", "device"]):
        most = gpus[device].multiprocessors or 2
        blocks, threads = own["blocks"].to_numpy(), own["threads"].to_numpy()
        narrow = (threads > 0) & (threads < WARP)
        time = np.concatenate([own["start_ns"], own["end_ns"]])
        order = np.argsort(time, kind="stable")
        ns = np.diff(time[order])
        # at once, between one time and the next: all blocks, those of whole warps, and threads
        each = (blocks, np.where(narrow, 0, blocks), blocks * np.where(narrow, threads, 0))
        running, of_warps, of_narrow = (
            np.cumsum(np.concatenate([count, -count])[order])[:-1] for count in each
        )
        few, fewer = ((running > 0) & (running <= share * most) for share in (1 / 2, 2 / 3))
        small = ~few & (running > 0) & (of_warps == 0)
        of_blocks, of_warp = running / most, of_narrow / np.maximum(WARP * running, 1)
        for what, when, of, used in (
            ("few_blocks", few, 2 * blocks <= most, of_blocks),
            ("fewer_blocks", fewer, 3 * blocks <= 2 * most, of_blocks),
            ("few_threads", small, narrow, of_warp),
        ):
            if not ns[when].sum():
                continue
            groups = own[of].groupby(["name_id", "blocks", "threads"])["ns"].sum()
            longest, of_grid, of_block = map(int, groups.idxmax())
            kinds_ns = own[of].groupby("name_id")["ns"].sum()
            several = int((kinds_ns > 0.05 * kinds_ns.sum()).sum())  # the others change no picture
            out[what].append(
                {
                    "pid": int(pid_of(process)),
                    "device": device,
                    f"{what}_ns": int(ns[when].sum()),
                    "unused_ns": int((ns * (1 - used))[when].sum()),
                    "kernel": names.get(longest, "kernel"),
                    "kinds": several,
                    "longest_ns": int(groups.max()),
                    "blocks": of_grid,
                    "threads_per_block": of_block,
                    "multiprocessors": gpus[device].multiprocessors,
                }
            )
    return out


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
            out.append({"pid": int(pid_of(number)), "without_kernel": count})
    named = trace.ranges[~trace.ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)]
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
            out.append(
                {"pid": int(pid_of(number)), "after_last_call_ns": after_ns, "range": name_of}
            )
    return out
