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
from nsysalign.intervals import FAR, covered, disjoint
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
from nsysalign.place.own_work import own_ranges
from nsysalign.place.windows import windows_frame
from nsysalign.split.gaps import faulting_threads
from nsysalign.split.pieces import call_names, operation_names
from nsysalign.split.work import Ran
from nsysalign.trace.nccl import NCCL_KERNEL

#: What held up an operation of which the trace has no launch.
NOT_KNOWN = "the trace does not say what the host did"
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
    used = lanes[busy].assign(lane=np.flatnonzero(busy))
    first, last = np.full(len(lanes), FAR), np.full(len(lanes), -FAR)
    np.minimum.at(first, alignment.operation_lane, trace.operations["start_ns"].to_numpy())
    np.maximum.at(last, alignment.operation_lane, trace.operations["end_ns"].to_numpy())
    devices: list[dict[str, int]] = []  # lanes that stand for several
    rows = []
    for (process, device), members in used.groupby(["process", "device"], sort=True)["lane"]:
        where = [f"process {pid_of(process)}"] if used["process"].nunique() > 1 else []
        where += [f"GPU {device}"] if used["device"].nunique() > 1 else []
        of = [(where, int(members.iloc[0]), members)]
        if len(members) > 1:
            of = [(where, len(lanes) + len(devices), members)]
            devices.append(
                {"process": process, "device": device, "context": -1, "stream": -1, "flag": -1}
            )
            for lane in members:
                context, stream = lanes.loc[lane, ["context", "stream"]]
                # pages of managed memory migrate in no context, on a stream of that name only
                pages = context == stream == 0
                of.append(
                    ([*where, "page migrations" if pages else f"stream {stream}"], lane, [lane])
                )
        for words, lane, some in of:
            start, end = int(first[some].min()), int(last[some].max())
            name = f"run ({', '.join(words)})" if words else "run"
            if end > start:
                rows.append((name, lane, process, start, end))
    if not rows:
        return alignment
    made = pd.DataFrame(rows, columns=["region", "lane", "process", "start_ns", "end_ns"])
    process = made["process"].to_numpy()
    thread = process | pid_of(process)
    windows = windows_frame(
        len(made),
        {
            "kind": "run",
            "process": process,
            "thread": thread,
            "end_thread": thread,
            "start_lane": made["lane"],
            "end_lane": made["lane"],
            "open_ns": made["start_ns"],
            "close_ns": made["end_ns"],
            "close_end_ns": made["end_ns"],
            "elapsed_ns": made["end_ns"] - made["start_ns"],
            "start_ns": made["start_ns"],
            "end_ns": made["end_ns"],
            "start_lower_ns": made["start_ns"],
            "start_upper_ns": made["start_ns"],
            "region": made["region"],
            "origin": ORIGIN["run"],
        },
    )
    if devices:
        lanes = pd.concat([lanes, pd.DataFrame(devices)], ignore_index=True)
    windows = pd.concat([alignment.windows, windows], ignore_index=True)
    return replace(
        alignment,
        lanes=frames.check(lanes, frames.LANES),
        busy=np.append(busy, np.zeros(len(devices), dtype=bool)),
        windows=frames.check(windows, frames.WINDOWS),
    )


class _Idle(NamedTuple):
    """All idle stretches of a run: arrays of the same length, in time."""

    run: int
    after: np.ndarray  # the operation before
    operation: np.ndarray  # the one that ended it
    start: np.ndarray
    ns: np.ndarray


def _idle_stretches(ran: Ran) -> Iterator[_Idle]:
    """Those of every run, without what the tool made itself."""
    trace, w = ran.trace, ran.windows
    opened, closed, lane = (w[c].to_numpy() for c in ("start_ns", "end_ns", "end_lane"))
    begin = trace.operations["start_ns"].to_numpy()
    ours = own_ranges(trace)
    own = disjoint(ours["start_ns"].to_numpy(), ours["end_ns"].to_numpy())[1:]
    for run in np.flatnonzero((w["kind"] == "run").to_numpy()).tolist():
        operation, idle = ran.of_lane(int(lane[run]))
        start = begin[operation]
        there = np.flatnonzero((start >= opened[run]) & (start < closed[run]) & (idle > 0))
        ours_ns = covered(*own, start[there]) - covered(*own, (start - idle)[there])
        there = there[2 * ours_ns < idle[there]]
        yield _Idle(run, operation[there - 1], operation[there], (start - idle)[there], idle[there])


def idle_time(ran: Ran) -> list[dict[str, Any]]:
    """What the idle time of each process and device has in common.

    first    KKK   [ compile ][ load code ][ launch K2 ] K2     K2 runs for the first time, and code was loaded before it
    back     D2H   [ the CPU reads the result, makes the next input ]  H2D

    `idle_ns` is all of it; of that `first_ns` ended in a kernel that had not run before, and code
    was loaded or the launch itself took half of it (`first_kernels` so many); `back_ns` lay between
    a copy to the host and one to the device (`back_count` times).  `sync_call` is the
    synchronisation that the process called most often while its GPU worked, `sync_count` times.
    """
    trace, operations = ran.trace, ran.trace.operations
    kind, copy, call = (operations[c].to_numpy() for c in ("kind", "copy_kind", "call"))
    where = pd.DataFrame({c: operations[c] for c in ("process", "device")} | {"name": ran.codes[0]})
    new = ~where.duplicated().to_numpy() & (kind == KIND["kernel"])
    calls = trace.calls
    begun, over, of_process = (calls[c].to_numpy() for c in ("start_ns", "end_ns", "process"))
    loads = [n for n, name in trace.names.items() if _LOADS.match(name)]
    loading = calls["name_id"].isin(loads).to_numpy()
    waiting = calls["kind"].isin([CALL[name] for name in SYNC_CALLS]).to_numpy()
    out: dict[tuple[int, int], dict[str, Any]] = {}
    for idle in _idle_stretches(ran):
        if not len(idle.ns):
            continue
        process, device = (
            int(operations[c].to_numpy()[idle.operation[0]]) for c in ("process", "device")
        )
        if (process, device) in out:  # streams come behind their device
            continue
        stop = idle.start + idle.ns
        mine = loading & (of_process == process)
        loaded = disjoint(begun[mine], over[mine])[1:]
        load_ns = covered(*loaded, stop) - covered(*loaded, idle.start)
        issued = call[idle.operation]
        launch_ns = np.zeros(len(issued), np.int64)
        known = issued >= 0
        launch_ns[known] = np.minimum(over[issued[known]], stop[known]) - np.maximum(
            begun[issued[known]], idle.start[known]
        )
        first = new[idle.operation] & ((load_ns > 0) | (2 * launch_ns > idle.ns))
        back = (copy[idle.after] == _D2H) & (copy[idle.operation] == _H2D)
        during = waiting & (of_process == process)
        during &= (begun > idle.start[0]) & (begun < stop[-1])
        names = calls["name_id"][during].value_counts()
        out[process, device] = {
            "pid": int(pid_of(process)),
            "device": device,
            "idle_ns": int(idle.ns.sum()),
            "first_ns": int(idle.ns[first].sum()),
            "first_kernels": int(first.sum()),
            "back_ns": int(idle.ns[back].sum()),
            "back_count": int(back.sum()),
            "sync_call": trace.names.get(int(names.index[0]), "") if len(names) else "",
            "sync_count": int(names.iloc[0]) if len(names) else 0,
            **_copied_again(operations, process, device),
        }
    return list(out.values())


def _copied_again(operations: pd.DataFrame, process: int, device: int) -> dict[str, Any]:
    """How many operations the device had, and of copies between host and device that are alike (so
    many bytes, one way): how long all but the first of each took (`again_ns`), and those that took
    longest: how often, how many bytes each, how long together."""
    own = operations[(operations["process"] == process) & (operations["device"] == device)]
    copies = own[own["copy_kind"].isin([_H2D, _D2H])]
    ns = (copies["end_ns"] - copies["start_ns"]).groupby([copies["copy_kind"], copies["bytes"]])
    table = ns.agg(["count", "sum"])
    table = table[table["count"] > 1]
    again = (table["sum"] * (table["count"] - 1) / table["count"]).sum()
    out: dict[str, int | str] = {"operations": len(own), "again_ns": int(again)}
    if len(table):
        way, size = table["sum"].idxmax()
        most = table.loc[(way, size)]
        out |= {
            "alike_way": "to the device" if way == _H2D else "to the host",
            "alike_bytes": int(size),
            "alike_count": int(most["count"]),
            "alike_ns": int(most["sum"]),
        }
    return out


def idle_gaps(ran: Ran) -> pd.DataFrame:
    """`frames.GAPS`: the longest idle stretches of every run, with what ended them and the call
    that held it up."""
    trace = ran.trace
    call = trace.operations["call"].to_numpy()
    faulting, issuing = faulting_threads(trace), np.append(trace.calls["thread"].to_numpy(), -1)
    rows = []
    for idle in _idle_stretches(ran):
        there = np.arange(len(idle.ns))
        if len(there) > MOST_GAPS:  # stretches that cannot be among the longest need not be sorted
            there = there[idle.ns >= np.partition(idle.ns, -MOST_GAPS)[-MOST_GAPS]]
        longest = there[np.argsort(-idle.ns[there], kind="stable")[:MOST_GAPS]]
        names = operation_names(trace, idle.operation[longest])
        for n, name in zip(longest.tolist(), names.tolist(), strict=True):
            op, start, ns = idle.operation[n], int(idle.start[n]), int(idle.ns[n])
            thread = int(issuing[call[op]] if call[op] >= 0 else faulting[op])
            held = _held(trace, thread, start, start + ns)
            rows.append((idle.run, start, ns, name, held.call, held.ns))
    return frames.of_rows(rows, frames.GAPS)


class _Held(NamedTuple):
    """A call, and for how long it lasted in an idle stretch."""

    call: str
    ns: int


def _held(trace: Trace, issuing: int, low: int, high: int) -> _Held:
    """Which call of the thread that issued the operation behind an idle stretch covers most of it;
    '' where that thread was outside of CUDA, NOT_KNOWN where it is not known (-1)."""
    if issuing < 0:
        return _Held(NOT_KNOWN, 0)
    begin, over, thread, outer = (
        trace.calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread", "outer")
    )
    last = int(np.searchsorted(begin, high))
    near = np.arange(max(0, last - 20_000), last)
    near = near[(over[near] > low) & (thread[near] == issuing) & (outer[near] == near)]
    if not len(near):
        return _Held("", 0)
    ns = np.minimum(over[near], high) - np.maximum(begin[near], low)
    longest = int(ns.argmax())
    return _Held(str(call_names(trace, near[[longest]])[0]), int(ns[longest]))


def calls_without_work(trace: Trace) -> dict[str, object]:
    """Of a trace with calls and no GPU work: how many there are, how many issue work, and how long
    the longest took by name."""
    if len(trace.operations) or trace.calls.empty:
        return {}
    calls = trace.calls[trace.calls["outer"].to_numpy() == np.arange(len(trace.calls))]
    spent = (calls["end_ns"] - calls["start_ns"]).groupby(calls["name_id"]).sum()
    issuing = [CALL[kind] for kind in ISSUING_CALLS]
    return {
        "calls": len(calls),
        "issuing": int(calls["kind"].isin(issuing).sum()),
        "longest": {
            f"{trace.names.get(int(n), 'CUDA call')}_ns": int(ns)
            for n, ns in spent.nlargest(3).items()
        },
    }


def page_migrations(trace: Trace) -> list[dict[str, Any]]:
    """Pages of managed memory that moved between host and device, and whether kernels ran
    meanwhile.

    Kernels:         KKKKKKKKKKKKKKKKKKKK
    Pages to the GPU:   mm mm mmm           to the host:   m m mm

    Per process and device on which pages moved: how often the device had run nothing before one
    moved to the host, and for how long (`touched_...`; the host asked for none in that time, it
    touched them); how many and how much moved each way, how long pages moved (`moving_ns`, a union),
    and for how long of that no kernel ran (`alone_ns`).  How long faults take besides is not in a
    trace: between two pages a kernel may work.  `asked`: the program itself asked for pages ahead of
    their use; such rows look the same."""
    if not np.isin(trace.operations["copy_kind"].to_numpy(), MIGRATIONS).any():
        return []
    asking = [i for i, name in trace.names.items() if name.startswith(_ASKED)]
    asked = trace.calls[trace.calls["name_id"].isin(asking)]
    out = []
    for (process, device), operations in trace.operations.groupby(["process", "device"]):
        copy = operations["copy_kind"].to_numpy()
        pages = np.isin(copy, MIGRATIONS)
        if not pages.any():
            continue
        row = {"pid": int(pid_of(process)), "device": int(device)}
        start, end = (operations[c].to_numpy() for c in ("start_ns", "end_ns"))
        until, since = np.maximum.accumulate(end)[:-1], start[1:]
        calls = asked["start_ns"].to_numpy()[asked["process"].to_numpy() == process]
        alone = np.searchsorted(calls, until) == np.searchsorted(calls, since)
        back = (copy[1:] == _TO_HOST) & (since > until) & alone
        row["touched_count"], row["touched_ns"] = int(back.sum()), int((since - until)[back].sum())
        row["asked"] = bool(len(calls))
        for name, way in (("to_device", _TO_DEVICE), ("to_host", _TO_HOST)):
            row[f"{name}_count"] = int((copy == way).sum())
            row[f"{name}_bytes"] = int(operations["bytes"].to_numpy()[copy == way].sum())
            row[f"{name}_ns"] = int((end - start)[copy == way].sum())
        kernels = (operations["kind"] == KIND["kernel"]).to_numpy()
        _, first, last = disjoint(start[pages], end[pages])
        _, begun, ended = disjoint(start[kernels], end[kernels])
        during = int((covered(begun, ended, last) - covered(begun, ended, first)).sum())
        row["moving_ns"] = int((last - first).sum())
        row["alone_ns"] = row["moving_ns"] - during
        out.append(row)
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

    `few_blocks` and `few_threads`, per process and device: for how long at least half of the
    multiprocessors had no block, and for how long what ran, with more blocks than that, had blocks
    of less than a warp only; what of that time would remain if the work were shared out
    (`unused_ns` is the rest); and of such kernels the one that ran longest.  CUDA graphs,
    collectives and kernels of unknown size have enough; where the number of multiprocessors is not
    known (0), one block is too few."""
    operations = trace.operations
    kind, name = operations["kind"].to_numpy(), operations["name_id"].to_numpy()
    kernel = np.flatnonzero(kind == KIND["kernel"])
    out: dict[str, list[dict[str, Any]]] = {"few_blocks": [], "few_threads": []}
    if trace.shapes is None or not 0 < len(kernel) <= _MOST:
        return out
    rows, place = np.unique(operations["row"].to_numpy()[kernel], return_inverse=True)
    shape = np.asarray(trace.shapes(rows))[place]
    texts = {n: trace.names.get(n, "kernel") for n in np.unique(name[kernel]).tolist()}
    other = [n for n, text in texts.items() if _SLEEPS in text or NCCL_KERNEL.search(text)]
    size = shape[:, :3].prod(axis=1)
    known = (size > 0) & ~np.isin(name[kernel], other)
    table = operations[["start_ns", "end_ns", "name_id"]].assign(blocks=_ENOUGH, threads=WARP)
    table["ns"] = table["end_ns"] - table["start_ns"]
    table.loc[kernel[known], "blocks"] = size[known]
    table.loc[kernel[known], "threads"] = shape[known, 3:6].prod(axis=1)
    computes = np.isin(kind, [KIND["kernel"], KIND["graph"]])
    for (process, device), own in table[computes].groupby(
        [operations["process"][computes], operations["device"][computes]]
    ):
        most = multiprocessors[device] or 2
        blocks, threads = own["blocks"].to_numpy(), own["threads"].to_numpy()
        narrow = (threads > 0) & (threads < WARP)
        time = np.concatenate([own["start_ns"], own["end_ns"]])
        order = np.argsort(time, kind="stable")
        ns = np.diff(time[order])
        # at once, between one time and the next: all blocks, those of whole warps, and threads
        running, of_warps, of_narrow = (
            np.cumsum(np.concatenate([each, -each])[order])[:-1]
            for each in (
                blocks,
                np.where(narrow, 0, blocks),
                blocks * np.where(narrow, threads, 0),
            )
        )
        few = (running > 0) & (2 * running <= most)
        small = ~few & (running > 0) & (of_warps == 0)
        used = np.where(few, running / most, of_narrow / np.maximum(WARP * running, 1))
        for what, when, of in (
            ("few_blocks", few, 2 * blocks <= most),
            ("few_threads", small, narrow),
        ):
            if not ns[when].sum():
                continue
            groups = own[of].groupby(["name_id", "blocks", "threads"])["ns"].sum()
            longest, of_grid, of_block = map(int, groups.idxmax())
            out[what].append(
                {
                    "pid": int(pid_of(process)),
                    "device": device,
                    f"{what}_ns": int(ns[when].sum()),
                    "unused_ns": int((ns * (1 - used))[when].sum()),
                    "kernel": texts[longest],
                    "blocks": of_grid,
                    "threads_per_block": of_block,
                    "multiprocessors": multiprocessors[device],
                }
            )
    return out
