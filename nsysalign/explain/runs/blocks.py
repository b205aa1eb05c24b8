"""Do launches leave most of the GPU without work?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsysalign.explain.facts import SMALL_NS, TYPICAL_SHARE, WARN_SHARE
from nsysalign.explain.finding import Findings
from nsysalign.model import KIND, WARP, Gpu, Trace, pid_of
from nsysalign.text import kernel_name, of, plural, span
from nsysalign.trace.nccl import NCCL_KERNEL

if TYPE_CHECKING:
    from nsysalign.explain.runs.run import Run

#: Grids of more kernels than this are not read.
_MOST = 200_000
#: What is no computation: torch.cuda._sleep holds up a stream.
_SLEEPS = "spin_kernel"
_ENOUGH = 1 << 40
_MORE_BLOCKS = (
    "Give each launch more blocks than the GPU has multiprocessors, of 128 threads or more, and each thread a share of the data; "
    "or run other work beside it, on other streams"
)
_MORE_THREADS = "Launch blocks of 128 threads or more, and fewer of them: a block takes a whole warp, whatever it uses of it"


class SmallLaunches(NamedTuple):
    """For how long a device ran kernels too small for it, and of these the one that ran longest."""

    pid: int
    device: int
    lack: str  # few_blocks, fewer_blocks, few_threads
    ns: int
    unused_ns: int  # of that what would go away if the work were shared out
    kernel: str
    blocks: int
    threads_per_block: int
    multiprocessors: int  # 0: not known
    kinds: int = 1  # kernels of this sort
    longest_ns: int = 0  # how long the one that is named ran


def small_launches_of(trace: Trace) -> list[SmallLaunches]:
    """Return the small launches on the GPUs of the trace."""
    return small_launches(trace, trace.gpus)


def small_launches(trace: Trace, gpus: Mapping[int, Gpu]) -> list[SmallLaunches]:
    """Return for how long each device ran kernels that left most of it without work.

    Such kernels have fewer blocks than the GPU has multiprocessors (each takes at least one block),
    or blocks of fewer threads than a warp has.

    stream 7     [ 1 block           ]  [ 528 blocks ]   [ 1 ]   [ 4,096 blocks of 1 thread ]
    stream 13          [ 200 blocks ]                              a GPU with 132 multiprocessors
    few blocks   ******              *                   *****
    few threads                                                  ****************************

    There is at most one of each `lack` per process and device:

    few_blocks:   at least half of the multiprocessors had no block
    fewer_blocks: at least a third of them had none
    few_threads:  more than half of them had blocks, but all blocks were smaller than a warp

    `unused_ns` is the part of this time that would go away if the work were shared out.  CUDA
    graphs, collectives and kernels of unknown size count as large enough.  Where the number of
    multiprocessors is not known (0), a kernel of one block is too small.
    """
    operations = trace.operations
    out = list[SmallLaunches]()
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
        for what, when, small_ones, used in (
            ("few_blocks", few, 2 * blocks <= most, of_blocks),
            ("fewer_blocks", fewer, 3 * blocks <= 2 * most, of_blocks),
            ("few_threads", small, narrow, of_warp),
        ):
            if not ns[when].sum():
                continue
            groups = own[small_ones].groupby(["name_id", "blocks", "threads"])["ns"].sum()
            longest, of_grid, of_block = map(int, groups.idxmax())
            kinds_ns = own[small_ones].groupby("name_id")["ns"].sum()
            several = int((kinds_ns > 0.05 * kinds_ns.sum()).sum())  # the others change no picture
            out.append(
                SmallLaunches(
                    pid=int(pid_of(process)),
                    device=device,
                    lack=what,
                    ns=int(ns[when].sum()),
                    unused_ns=int((ns * (1 - used))[when].sum()),
                    kernel=names.get(longest, "kernel"),
                    kinds=several,
                    longest_ns=int(groups.max()),
                    blocks=of_grid,
                    threads_per_block=of_block,
                    multiprocessors=gpus[device].multiprocessors,
                )
            )
    return out


def few_blocks(run: Run) -> Findings:
    """Yield findings on kernels that leave half of the GPU or more without work, as they have too
    few blocks or blocks of less than a warp.
    """
    lacks = {few.lack: few for few in run.facts_by(SmallLaunches)}
    half = "few_blocks" in lacks and lacks["few_blocks"].ns > WARN_SHARE * run.elapsed
    for what, share, faster in (
        ("few_blocks", WARN_SHARE, _MORE_BLOCKS),
        ("fewer_blocks", 1 if half else TYPICAL_SHARE, _MORE_BLOCKS),
        ("few_threads", WARN_SHARE, _MORE_THREADS),
    ):
        few = lacks.get(what)
        if few is None or few.ns <= share * run.elapsed:
            continue
        ran = run.facts.analysis.kernels
        ran = ran[(ran["label"] == run.row.label) & (ran["kernel"] == few.kernel)]
        if 0 < ran["total_ns"].sum() <= SMALL_NS * ran["count"].sum():
            continue  # its launch takes longer than it: more blocks gain nothing
        size, blocks, threads = few.multiprocessors, few.blocks, few.threads_per_block
        evidence = {f"{what}_ns": few.ns, "blocks": blocks, "threads_per_block": threads}
        name = kernel_name(few.kernel)
        if few.kinds > 1:  # it has only a part of the time
            name += (
                f" (of {few.kinds} such kernels the one that runs longest: {span(few.longest_ns)})"
            )
            evidence |= {"kinds": few.kinds, "longest_ns": few.longest_ns}
        launched = (
            f"{name} was launched with {plural(blocks, 'block')} of {plural(threads, 'thread')}"
        )
        if what == "few_threads":
            title = f"nothing ran but blocks of fewer threads than a warp: {launched}, and a warp has {WARP}"
            evidence["threads_of_a_warp"] = WARP
        else:
            part = "half" if what == "few_blocks" else "a third"
            title = f"at least {part} of the GPU had nothing to do: {launched}"
            title += f", and the GPU has {size:,} multiprocessors" if size else ""
            evidence["multiprocessors"] = size or None
        title = f"for {of(few.ns, run.elapsed)} {title}."
        yield run.finding(title, faster, loss_ns=few.unused_ns, **evidence)
