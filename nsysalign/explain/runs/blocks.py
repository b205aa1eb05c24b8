"""Do launches leave most of the GPU without work?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.clauses import Clause, Cut, until
from nsysalign.explain.facts import SMALL_NS, TYPICAL_SHARE, WARN_SHARE
from nsysalign.explain.finding import Findings
from nsysalign.model import KIND, WARP, Gpu, Trace, pid_of
from nsysalign.place.streams import BLOCKING, LEGACY_DEFAULT
from nsysalign.text import kernel_name, of, plural, span
from nsysalign.trace.nccl import NCCL_KERNEL

if TYPE_CHECKING:
    from nsysalign.explain.runs.run import Run

#: Grids of more kernels than this are not read.
_MOST_KERNELS = 200_000
#: A stream on which small kernels run for this share of their time is the only one.  Work on the default stream keeps
#: streams apart where it stands between this share of the neighbours on different ones, so many at least.
_ON_ONE, _KEPT_APART, _FEWEST_APART = 0.9, 0.9, 2
_STREAM = ["process", "context", "stream"]
#: What is no computation: torch.cuda._sleep holds up a stream.
_SLEEPS = "spin_kernel"
_ENOUGH = 1 << 40
_MORE_BLOCKS = "Give each launch more blocks than the GPU has multiprocessors, of 128 threads or more, and each thread a share of the data"
_OTHER_STREAMS = "; or run other work beside it, on other streams"
_NON_BLOCKING = (
    "Create the streams with cudaStreamNonBlocking, or compile with --default-stream per-thread: work on the legacy "
    "default stream waits for all other streams, and they wait for it"
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
    on_streams: bool = False  # they run on several streams
    kept_apart: int = 0  # streams that take turns, as work on the default stream stands between


def small_launches_of(trace: Trace) -> list[SmallLaunches]:
    """Return the small launches on the GPUs of the trace."""
    return small_launches(trace, trace.gpus)


def small_launches(trace: Trace, gpus: Mapping[int, Gpu]) -> list[SmallLaunches]:
    """Return for how long each device ran kernels that left most of it without work: at most one record of
    each `lack` per process and device.

    trace: with the grids of its kernels; without them, or with more than _MOST_KERNELS kernels, nothing is returned
    gpus: number of the device -> how many multiprocessors it has, 0 if that is not known

    Such kernels have fewer blocks than the GPU has multiprocessors (each takes at least one block),
    or blocks of fewer threads than a warp has.

    stream 7     [ 1 block           ]  [ 528 blocks ]   [ 1 ]   [ 4,096 blocks of 1 thread ]
    stream 13          [ 200 blocks ]                              a GPU with 132 multiprocessors
    few blocks   ******              *                   *****
    few threads                                                  ****************************

    few_blocks:   at least half of the multiprocessors had no block
    fewer_blocks: at least a third of them had none
    few_threads:  more than half of them had blocks, but all blocks were smaller than a warp

    Where the number of multiprocessors is not known, a kernel of one block is too small.
    """
    count = int((trace.operations["kind"] == KIND["kernel"]).sum())
    if trace.shapes is None or not 0 < count <= _MOST_KERNELS:
        return []
    out = list[SmallLaunches]()
    by_device = _table_of_launches(trace).groupby(["process", "device"])
    for (process, device), launches in by_device:
        multiprocessors = gpus[device].multiprocessors
        # not known (0): with 2, a kernel of one block leaves half of them without work
        for lack in _lacks(launches, multiprocessors or 2):
            if lack.ns:
                out.append(
                    _small_launches_of_lack(
                        trace, int(pid_of(process)), device, multiprocessors, lack
                    )
                )
    return out


def _table_of_launches(trace: Trace) -> pd.DataFrame:
    """Return a row per kernel and graph of the trace, with the columns start_ns, end_ns, ns, name_id, process,
    device, context, stream, call, blocks (of its grid) and threads (of a block).

    CUDA graphs, collectives, kernels that only sleep and kernels of unknown size count as large enough:
    they have _ENOUGH blocks of a whole warp.
    """
    operations = trace.operations
    table = operations[operations["kind"].isin([KIND["kernel"], KIND["graph"]])]
    is_kernel = (table["kind"] == KIND["kernel"]).to_numpy()
    # shapes are read from the trace file: once for each of its rows, by their numbers
    rows, place = np.unique(table["row"].to_numpy()[is_kernel], return_inverse=True)
    grid_and_block = np.zeros((len(table), 6), np.int64)  # x, y, z of each
    grid_and_block[is_kernel] = np.asarray(trace.shapes(rows))[
        place, :6
    ]  # behind these stand registers and memory
    blocks = grid_and_block[:, :3].prod(axis=1)
    threads = grid_and_block[:, 3:].prod(axis=1)
    no_computation = [
        name_id
        for name_id, name in trace.names.items()
        if _SLEEPS in name or NCCL_KERNEL.search(name)
    ]
    is_sized = (blocks > 0) & ~table["name_id"].isin(no_computation).to_numpy()
    columns = ["start_ns", "end_ns", "name_id", "device", "call", *_STREAM]
    return table[columns].assign(
        ns=table["end_ns"] - table["start_ns"],
        blocks=np.where(is_sized, blocks, _ENOUGH),
        threads=np.where(is_sized, threads, WARP),
    )


class _Lack(NamedTuple):
    """How long one device lacked work in one way.

    name:      few_blocks, fewer_blocks or few_threads
    ns:        for how long
    unused_ns: the part of this time that would go away if the work were shared out
    launches:  the kernels that are too small in this way: rows of `_table_of_launches`
    """

    name: str
    ns: int
    unused_ns: int
    launches: pd.DataFrame


def _lacks(launches: pd.DataFrame, multiprocessors: int) -> list[_Lack]:
    """Return the three ways in which a device can lack work, each with its time, which may be 0.

    launches: the rows of `_table_of_launches` of this device
    multiprocessors: how many the device has

    Starts and ends of all kernels, sorted, cut the time into stretches, in each of which the same kernels run (of 0 ns
    where two of them are at one time).
    """
    blocks = launches["blocks"].to_numpy()
    threads = launches["threads"].to_numpy()
    is_narrow = (threads > 0) & (threads < WARP)
    times = np.concatenate([launches["start_ns"], launches["end_ns"]])
    order = np.argsort(times, kind="stable")
    stretch_ns = np.diff(times[order])

    def running(count: np.ndarray) -> np.ndarray:
        """Return, per stretch, the sum of `count` (a number per kernel) over the kernels that run."""
        change = np.concatenate([count, -count])[order]  # a start adds it, an end takes it away
        return np.cumsum(change)[:-1]

    blocks_at_once = running(blocks)
    wide_blocks = running(np.where(is_narrow, 0, blocks))
    narrow_threads = running(np.where(is_narrow, blocks * threads, 0))
    works = blocks_at_once > 0
    # of so many blocks each multiprocessor has one at most: half of them have none, or a third
    is_half_idle = works & (2 * blocks_at_once <= multiprocessors)
    is_third_idle = works & (3 * blocks_at_once <= 2 * multiprocessors)
    is_only_narrow = ~is_half_idle & works & (wide_blocks == 0)
    used_multiprocessors = blocks_at_once / multiprocessors
    # where multiprocessors have blocks, what lacks is threads: a block takes a whole warp at least
    used_threads = narrow_threads / np.maximum(WARP * blocks_at_once, 1)

    def lack(name: str, when: np.ndarray, used: np.ndarray, is_small: np.ndarray) -> _Lack:
        """Return a lack of the stretches `when`, in which the device uses a share of what it has.

        when, used: per stretch; is_small: per kernel
        """
        unused_ns = (stretch_ns * (1 - used))[when].sum()
        return _Lack(name, int(stretch_ns[when].sum()), int(unused_ns), launches[is_small])

    return [
        lack("few_blocks", is_half_idle, used_multiprocessors, 2 * blocks <= multiprocessors),
        lack(
            "fewer_blocks", is_third_idle, used_multiprocessors, 3 * blocks <= 2 * multiprocessors
        ),
        lack("few_threads", is_only_narrow, used_threads, is_narrow),
    ]


def _small_launches_of_lack(
    trace: Trace, pid: int, device: int, multiprocessors: int, lack: _Lack
) -> SmallLaunches:
    """Return the record of one lack; it names the kernel that ran longest among those that are too small.

    multiprocessors: as it is reported, 0 if it is not known
    """
    small = lack.launches
    ns_of_shape = small.groupby(["name_id", "blocks", "threads"])["ns"].sum()
    name_id, blocks, threads = map(int, ns_of_shape.idxmax())
    ns_of_name = small.groupby("name_id")["ns"].sum()
    matters = ns_of_name > 0.05 * ns_of_name.sum()  # shorter kernels change no picture
    return SmallLaunches(
        pid=pid,
        device=device,
        lack=lack.name,
        ns=lack.ns,
        unused_ns=lack.unused_ns,
        kernel=trace.names.get(name_id, "kernel"),
        blocks=blocks,
        threads_per_block=threads,
        multiprocessors=multiprocessors,
        kinds=int(matters.sum()),
        longest_ns=int(ns_of_shape.max()),
        on_streams=small.groupby(_STREAM)["ns"].sum().max() < _ON_ONE * small["ns"].sum(),
        kept_apart=_kept_apart(trace, small),
    )


def _kept_apart(trace: Trace, small: pd.DataFrame) -> int:
    """Return on how many streams small kernels take turns because work on the legacy default stream stands between
    them; 0 where that is not known of nearly all neighbours on different streams.

    Each was launched before the one in front of it ended: it waited, and for nothing but the default stream's work.

    stream 13       [ 1 block  ]
    default stream              [K]
    stream 14          launched    [ 1 block  ]

    small: rows of `_table_of_launches` of one device
    """
    flags = trace.streams.set_index(_STREAM)["flag"]
    flags = flags[~flags.index.duplicated()]
    on_blocking = small.join(flags, on=_STREAM)
    on_blocking = on_blocking[on_blocking["flag"] == BLOCKING].sort_values("start_ns")
    by_default = trace.operations.join(flags[flags == LEGACY_DEFAULT], on=_STREAM, how="inner")
    by_default = by_default[by_default["device"].isin(small["device"])].sort_values("start_ns")
    before, behind = on_blocking.iloc[:-1], on_blocking.iloc[1:]
    on_another = before["stream"].to_numpy() != behind["stream"].to_numpy()
    before, behind = before[on_another], behind[on_another]
    if len(behind) < _FEWEST_APART or by_default.empty:
        return 0
    ended_ns, begun_ns = before["end_ns"].to_numpy(), behind["start_ns"].to_numpy()
    call = behind["call"].to_numpy()
    launched_ns = trace.calls["start_ns"].to_numpy()[np.maximum(call, 0)]
    waited = (call >= 0) & (launched_ns < ended_ns)
    # the first work on the default stream behind the one, if it ended before the other
    place = np.searchsorted(by_default["start_ns"].to_numpy(), ended_ns)
    stands = np.append(by_default["end_ns"].to_numpy(), np.iinfo(np.int64).max)[place] <= begun_ns
    if (waited & stands).sum() < max(_KEPT_APART * len(behind), _FEWEST_APART):
        return 0
    return len(on_blocking[_STREAM].drop_duplicates())


def few_blocks(run: Run) -> Findings:
    """Yield findings on a run whose kernels leave a third of the GPU or more without work, as they have too
    few blocks, or blocks of fewer threads than a warp.

    There is one for each lack (see `small_launches`) that lasts for a large enough share of the run without what passed
    before kernels that had not run: which kernel lacks what, and what to change.
    """
    lacks = {small.lack: small for small in run.facts_by(SmallLaunches)}
    says_half = "few_blocks" in lacks and lacks["few_blocks"].ns > WARN_SHARE * run.warm_ns
    for lack_name, share in (
        ("few_blocks", WARN_SHARE),
        ("fewer_blocks", TYPICAL_SHARE),
        ("few_threads", WARN_SHARE),
    ):
        if lack_name == "fewer_blocks" and says_half:
            continue  # what is said of half of the GPU is not said of a third of it once more
        few = lacks.get(lack_name)
        if few is None or few.ns <= share * run.warm_ns:
            continue
        ran = run.facts.analysis.kernels
        ran = ran[(ran["label"] == run.row.label) & (ran["kernel"] == few.kernel)]
        if 0 < ran["total_ns"].sum() <= SMALL_NS * ran["count"].sum():
            continue  # its launch takes longer than it runs on average: more blocks gain nothing
        blocks = few.blocks
        threads = few.threads_per_block
        evidence = {f"{lack_name}_ns": few.ns, "blocks": blocks, "threads_per_block": threads}
        of_others = ""
        if few.kinds > 1:  # others lack the same, and `few.ns` is of all of them
            of_others = (
                f" (of {few.kinds} such kernels the one that runs longest: {span(few.longest_ns)})"
            )
            evidence |= {"kinds": few.kinds, "longest_ns": few.longest_ns}
        if lack_name == "few_threads":
            lacking = "nothing ran but blocks of fewer threads than a warp"
            whole = Clause(f", and a warp has {WARP}")
            evidence["threads_of_a_warp"] = WARP
        else:
            part = "half" if lack_name == "few_blocks" else "a third"
            lacking = f"at least {part} of the GPU had nothing to do"
            count = few.multiprocessors
            has = f", and the GPU has {count:,} multiprocessors" if count else ""
            whole = Clause(has, {Cut.WORDS: ""})
            evidence["multiprocessors"] = count or None  # None is left out
        apart, cut = "", Cut.DETAIL
        if lack_name != "few_threads" and few.kept_apart:
            apart = f": {few.kept_apart} streams took turns, as work on the default stream lies between them"
            evidence["streams"], cut = few.kept_apart, Cut.SECOND_CLAUSE
        launched = until(
            cut,
            Clause(f"{';' if apart else ':'} {kernel_name(few.kernel)}"),
            Clause(of_others, {Cut.REMARK: ""}),
            Clause(f" was launched with {plural(blocks, 'block')} of {plural(threads, 'thread')}"),
            whole,
        )
        title = (Clause(f"for {of(few.ns, run.elapsed_ns)} {lacking}{apart}"), *launched)
        yield run.finding(title, _advice(few), loss_ns=few.unused_ns, **evidence)


def _advice(few: SmallLaunches) -> str:
    """Return what to do about small launches: other streams are advised only where they are not in use."""
    if few.lack == "few_threads":
        return _MORE_THREADS
    if few.kept_apart:
        return _NON_BLOCKING
    return _MORE_BLOCKS if few.on_streams else f"{_MORE_BLOCKS}{_OTHER_STREAMS}"
