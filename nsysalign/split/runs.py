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
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import covered, disjoint, group, pick
from nsysalign.model import (
    CALL,
    ISSUING_CALLS,
    KIND,
    MIGRATIONS,
    ORIGIN,
    SYNC_CALLS,
    WARP,
    Alignment,
    Trace,
    pid_of,
)
from nsysalign.place.ranges import own_ranges
from nsysalign.split.pieces import call_names
from nsysalign.split.work import Ran
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


def with_runs(trace: Trace, alignment: Alignment) -> Alignment:
    """The alignment with windows of kind run appended."""
    lanes, busy = alignment.lanes, np.asarray(alignment.busy)
    spans = trace.operations.groupby(alignment.operation_lane)
    spans = pd.DataFrame({"start": spans["start_ns"].min(), "end": spans["end_ns"].max()})
    used = lanes[busy].join(spans)
    devices: list[dict[str, int]] = []  # lanes that stand for several
    rows = []
    for (process, device), own in used.groupby(["process", "device"], sort=True):
        words = [f"process {pid_of(process)}"] if used["process"].nunique() > 1 else []
        words += [f"GPU {device}"] if used["device"].nunique() > 1 else []
        lane, start, end = own.index[0], own["start"].min(), own["end"].max()
        if len(own) > 1:
            lane = len(lanes) + len(devices)
            whole = {"process": process, "device": device, "context": -1, "stream": -1, "flag": -1}
            devices.append(whole)
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
    windows = pd.concat([alignment.windows, frames.windows(len(rows), columns)], ignore_index=True)
    return replace(
        alignment,
        lanes=frames.check(
            pd.concat([lanes, pd.DataFrame(devices)], ignore_index=True), frames.LANES
        ),
        busy=np.append(busy, np.zeros(len(devices), dtype=bool)),
        windows=frames.lean({c: windows[c].array for c in windows}, frames.WINDOWS, len(windows)),
    )


class _Idle(NamedTuple):
    """All idle stretches of a run: arrays of the same length, in time."""

    run: int
    after: np.ndarray  # the operation before
    operation: np.ndarray  # the one that ended it
    start: np.ndarray
    end: np.ndarray

    @property
    def ns(self) -> np.ndarray:
        return self.end - self.start


def _idle_stretches(ran: Ran) -> Iterator[_Idle]:
    """Those of every run, without what the tool made itself."""
    ours = own_ranges(ran.trace)
    own = disjoint(ours["start_ns"].to_numpy(), ours["end_ns"].to_numpy())[1:]
    for run in ran.windows[ran.windows["kind"] == "run"].itertuples():
        operation, idle = ran.of_lane(run.end_lane)
        end = ran.start[operation]
        ours_ns = covered(*own, end) - covered(*own, end - idle)
        there = (end >= run.start_ns) & (end < run.end_ns) & (idle > 0) & (2 * ours_ns < idle)
        there = np.flatnonzero(there)
        end, idle = end[there], idle[there]
        yield _Idle(run.Index, operation[there - 1], operation[there], end - idle, end)


def idle_time(ran: Ran) -> list[dict[str, Any]]:
    """What the idle time of each process and device has in common.

    first    KKK   [ compile ][ load code ][ launch K2 ] K2     K2 runs for the first time, and code was loaded before it
    back     D2H   [ the CPU reads the result, or makes the next input ]  H2D

    `first_ns` ended in a kernel that had not run before, and code was loaded or the launch itself
    took half of it, or it waited for longer than the kernel's later runs usually do, which is what
    counts then (`first_kernels` so many); `back_ns` lay between a copy to the host and one to
    the device (`back_count` times).  `sync_call` is the synchronisation that the process called most
    often while its GPU worked, `sync_count` times.  `operations`: how many the device had; of copies
    between host and device that are alike (so many bytes, one way) `alike_...` is which took
    longest, how often and how long.  `long_gaps` last at least a tenth of the longest: all together
    `long_gaps_ns`, the shortest of them `long_gap_ns`.
    """
    operations, calls, names = ran.trace.operations, ran.trace.calls, ran.trace.names
    kind, copy, call = (operations[c].to_numpy() for c in ("kind", "copy_kind", "call"))
    where = operations[["process", "device"]]
    name = where.groupby(["process", "device"]).ngroup() * len(ran.names) + ran.name
    new = ~name.duplicated().to_numpy() & (kind == KIND["kernel"])
    begun, over = (calls[c].to_numpy() for c in ("start_ns", "end_ns"))
    loads = calls["name_id"].isin([n for n, name in names.items() if _LOADS.match(name)])
    waits = calls["kind"].isin([CALL[name] for name in SYNC_CALLS])
    out: dict[tuple[int, int], dict[str, Any]] = {}
    for idle in _idle_stretches(ran):
        process, device = where.iloc[idle.operation[0]] if len(idle.ns) else (-1, -1)
        if not len(idle.ns) or (process, device) in out:  # streams come behind their device
            continue
        of_process = calls["process"] == process
        loading = (loads & of_process).to_numpy()
        loaded = disjoint(begun[loading], over[loading])[1:]
        load_ns = covered(*loaded, idle.end) - covered(*loaded, idle.start)
        issued = call[idle.operation]
        launch_ns = np.minimum(pick(over, issued, 0), idle.end)
        launch_ns = launch_ns - np.maximum(pick(begun, issued, 0), idle.start)
        first = new[idle.operation] & ((load_ns > 0) | (2 * launch_ns > idle.ns))
        own = ((where["process"] == process) & (where["device"] == device)).to_numpy()
        runs = pd.Series(ran.name[own]).value_counts()
        usual = _usual_wait(idle, ran.name, runs, new)
        late_ns = np.where(first, idle.ns, np.maximum(idle.ns - usual, 0))
        first |= new[idle.operation] & (late_ns > _LATENCY_NS)
        long = idle.ns[idle.ns >= idle.ns.max() / 10]
        back = (copy[idle.after] == _D2H) & (copy[idle.operation] == _H2D)
        back &= idle.ns >= _LATENCY_NS
        meanwhile = (begun > idle.start[0]) & (begun < idle.end[-1])
        synchronised = calls["name_id"][waits & of_process & meanwhile].value_counts()
        copies = operations[own & np.isin(copy, [_H2D, _D2H])]
        ns = (copies["end_ns"] - copies["start_ns"]).groupby([copies["copy_kind"], copies["bytes"]])
        alike = ns.agg(["count", "sum"]).query("count > 1")
        row = {
            "pid": int(pid_of(process)),
            "device": int(device),
            "first_ns": int(late_ns[first].sum()),
            "first_kernels": int(first.sum()),
            "back_ns": int(idle.ns[back].sum()),
            "back_count": int(back.sum()),
            "sync_call": names.get(int(synchronised.index[0]), "") if len(synchronised) else "",
            "sync_count": int(synchronised.iloc[0]) if len(synchronised) else 0,
            "operations": int(own.sum()),
            "loading_ns": int(idle.ns[load_ns > 0].sum()),
            "loading_count": int((load_ns > 0).sum()),
            "loads": int((loading & meanwhile).sum()),
            "long_gaps": len(long),
            "long_gaps_ns": int(long.sum()),
            "long_gap_ns": int(long.min()),
        }
        if len(alike):
            way, size = alike["sum"].idxmax()
            row["alike_way"] = "to the device" if way == _H2D else "to the host"
            row["alike_bytes"] = int(size)
            row["alike_count"], row["alike_ns"] = map(int, alike.loc[(way, size)])
        out[process, device] = row
    return list(out.values())


def _usual_wait(idle: _Idle, name: np.ndarray, runs: pd.Series, new: np.ndarray) -> np.ndarray:
    """How long the device usually idles before later runs of the kernel that ended each stretch; as
    long as it did where that ran fewer than twice more (`runs`: how often each name did), for then
    nothing is usual."""
    ends, fresh, ns = name[idle.operation], new[idle.operation], idle.ns  # its own array
    later = np.flatnonzero(~fresh & np.isin(ends, ends[fresh]))
    usual: dict[int, int] = {}
    for kernel, which in group(ends[later], later).items():
        # runs that waited for nothing; a damaged trace may know of fewer runs than of waits
        without = max(int(runs.get(kernel, 0)) - 1 - len(which), 0)
        place = (without + len(which)) // 2 - without
        usual[kernel] = int(np.sort(ns[which])[place]) if place >= 0 else 0
    for stretch in np.flatnonzero(fresh).tolist():
        if runs.get(ends[stretch], 0) > 2:
            ns[stretch] = usual.get(int(ends[stretch]), 0)
    return ns


def idle_gaps(ran: Ran) -> pd.DataFrame:
    """`frames.GAPS`: the longest idle stretches of every run, with what ended them and the call (by
    name) of the thread that issued this which covers most of the stretch: '' where that thread was outside of
    CUDA, NOT_KNOWN where it is not known."""
    explainer, rows = ran.explainer, []
    issuing = pick(explainer.call_thread, explainer.call, -1)
    issuing = np.where(explainer.call >= 0, issuing, explainer.faulting)
    for idle in _idle_stretches(ran):
        for n in np.argsort(-idle.ns, kind="stable")[:MOST_GAPS].tolist():
            operation, low, high = idle.operation[n], int(idle.start[n]), int(idle.end[n])
            call, longest = NOT_KNOWN if issuing[operation] < 0 else "", 0
            calls = explainer.threads[int(issuing[operation])].calls
            first, last = (
                np.searchsorted(calls.end, low, "right"),
                np.searchsorted(calls.start, high),
            )
            ns = np.minimum(calls.end[first:last], high) - np.maximum(calls.start[first:last], low)
            if len(ns):
                named = call_names(ran.trace, calls.ref[first:last])
                by_name = pd.Series(ns).groupby(np.asarray(named, dtype=object)).sum()
                call, longest = str(by_name.idxmax()), int(by_name.max())
            name = ran.names["kernel"].iloc[ran.name[operation]]
            rows.append((idle.run, low, high - low, name, call, longest))
    return frames.of_rows(rows, frames.GAPS)


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
    out = []
    for (process, device), operations in trace.operations.groupby(["process", "device"]):
        if not pages[operations.index].any():
            continue
        copy, start, end, kind = (
            operations[c].to_numpy() for c in ("copy_kind", "start_ns", "end_ns", "kind")
        )
        until, since = np.maximum.accumulate(end)[:-1], start[1:]
        calls = asked["start_ns"].to_numpy()[asked["process"].to_numpy() == process]
        alone = np.searchsorted(calls, until) == np.searchsorted(calls, since)
        back = (copy[1:] == _TO_HOST) & (since > until) & alone
        moved, kernels = np.isin(copy, MIGRATIONS), kind == KIND["kernel"]
        _, first, last = disjoint(start[moved], end[moved])
        ran = disjoint(start[kernels], end[kernels])[1:]
        moving = int((last - first).sum())
        to_host = copy == _TO_HOST
        out.append(
            {
                "pid": int(pid_of(process)),
                "device": int(device),
                "touched_count": int(back.sum()),
                "touched_ns": int((since - until)[back].sum()),
                "asked": bool(len(calls)),
                "to_device_count": int((copy == _TO_DEVICE).sum()),
                "to_host_count": int(to_host.sum()),
                "to_host_bytes": int(operations["bytes"].to_numpy()[to_host].sum()),
                "to_host_ns": int((end - start)[to_host].sum()),
                "moving_ns": moving,
                "alone_ns": moving - int((covered(*ran, last) - covered(*ran, first)).sum()),
            }
        )
    return out


def small_launches(
    trace: Trace, multiprocessors: Mapping[int, int]
) -> dict[str, list[dict[str, Any]]]:
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
    kind, name = operations["kind"].to_numpy(), operations["name_id"].to_numpy()
    kernel = np.flatnonzero(kind == KIND["kernel"])
    out: dict[str, list[dict[str, Any]]] = {"few_blocks": [], "fewer_blocks": [], "few_threads": []}
    if trace.shapes is None or not 0 < len(kernel) <= _MOST:
        return out
    rows, place = np.unique(operations["row"].to_numpy()[kernel], return_inverse=True)
    shape = np.asarray(trace.shapes(rows))[place]
    texts = {n: trace.names.get(n, "kernel") for n in np.unique(name[kernel]).tolist()}
    other = [n for n, text in texts.items() if _SLEEPS in text or NCCL_KERNEL.search(text)]
    size = shape[:, :3].prod(axis=1)
    known = (size > 0) & ~np.isin(name[kernel], other)
    table = operations[["start_ns", "end_ns", "name_id", "process", "device"]].assign(
        blocks=_ENOUGH, threads=WARP, ns=operations["end_ns"] - operations["start_ns"]
    )
    table.loc[kernel[known], "blocks"] = size[known]
    table.loc[kernel[known], "threads"] = shape[known, 3:6].prod(axis=1)
    table = table[np.isin(kind, [KIND["kernel"], KIND["graph"]])]
    for (process, device), own in table.groupby(["process", "device"]):
        most = multiprocessors[device] or 2
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
        kinds = (
            ("few_blocks", few, 2 * blocks <= most, of_blocks),
            ("fewer_blocks", fewer, 3 * blocks <= 2 * most, of_blocks),
            ("few_threads", small, narrow, of_warp),
        )
        for what, when, of, used in kinds:
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
                    "kernel": texts[longest],
                    "kinds": several,
                    "longest_ns": int(groups.max()),
                    "blocks": of_grid,
                    "threads_per_block": of_block,
                    "multiprocessors": multiprocessors[device],
                }
            )
    return out
