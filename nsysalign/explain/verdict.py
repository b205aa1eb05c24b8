"""The word of a group, from the sums of its ledger: what most of its time is.

    ledger of a group --> Sums (GPU work, copies, launches, CPU, waiting, floor) --> verdict word

Every number is a sum over all intervals of the group, in nanoseconds.  The rules and their reasons
for each puzzle: docs/lab/verdicts.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.label import Group
from nsysalign.model import OTHER_STREAMS

WRONG, DOUBTFUL, CPU, LAUNCH, COPY, WAITING, MIXED, GPU, FLOOR, CANNOT_TELL = VERDICTS = (
    "wrong", "doubtful", "cpu_bound", "launch_bound", "copy_bound", "waiting", "mixed", "gpu_bound", "floor",
    "cannot_tell",
)  # fmt: skip
SIGNS: Mapping[str, str] = dict.fromkeys(VERDICTS, "!") | {
    WRONG: "✖", MIXED: "·", GPU: "✓", FLOOR: "·", CANNOT_TELL: "?",
}  # fmt: skip
#: Green from this share of GPU work on; copies, waiting and what the CPU did from these on.
GPU_SHARE, COPY_SHARE, WAITING_SHARE, LATE_SHARE = 0.8, 0.5, 0.4, 0.2
#: An interval consists of what launching costs if that is the first share of it and more, and GPU work less than the second.
_LAUNCHING_SHARE, _LITTLE_WORK = 0.7, 0.5
#: From this share of unknown time on, nothing can be told.
_UNKNOWN_SHARE = 0.5
#: A pair of events and a launch cost about this much, whatever is timed.
FLOOR_NS = 5_000
#: Recording takes about this share of a launch call and of the CPU's time after it (fitted: `predict.replay`),
#: and no more than this for each launch (docs/lab/figures.md).
RECORDING_SHARE, RECORDING_NS, MANY_LAUNCHES = 0.35, 5_300, 10
#: Columns of `frames.INTERVALS` that say what the GPU did while a host timer ran.
_OF_HOST_TIMERS = (
    "kernel_only_upper_ns", "kernel_outside_ns", "elapsed_ns", "gpu_busy_ns", "gpu_earlier_ns",
)  # fmt: skip
#: torch.cat's kernel.
CAT = re.compile(r"\bCatArrayBatchedCopy")
#: What to do about it, and the same as code.
WITHOUT_CAT = (
    "where it makes a tensor longer step by step, write into memory that is allocated once"
)
CODE_WITHOUT_CAT = "cache[:, n] = x  # instead of cache = torch.cat((cache, x), 1)"
#: Kernels that wait for other ranks as well as copy.
NCCL = re.compile(r"ncclDevKernel|ncclKernel")


def concatenating_ns(kernels: pd.DataFrame, label: str) -> int:
    """How long torch.cat's kernels of a label ran, where that is most of the time of its kernels; else 0.
    kernels: `frames.KERNELS`"""
    of_label = kernels[(kernels["label"] == label) & (kernels["kind"] == "kernel")]
    concatenates = of_label["kernel"].astype(str).str.contains(CAT)
    ran_ns = int(of_label.loc[concatenates, "total_ns"].sum())
    return ran_ns if 2 * ran_ns > of_label["total_ns"].sum() else 0


def collectives_ns(kernels: pd.DataFrame, label: str) -> int:
    """Return for how long (ns) NCCL's kernels ran in the intervals of a label or run; of kernels that overlap each counts.

    kernels: `frames.KERNELS`
    """
    rows = kernels[(kernels["label"] == label) & (kernels["kind"] == "kernel")]
    return int(rows.loc[rows["kernel"].astype(str).str.contains(NCCL), "total_ns"].sum())


@dataclass(frozen=True)
class Sums:
    """What the intervals of a group spent their time on, added up, in nanoseconds.

    Of events and NVTX ranges the times from `gpu` to `unknown`, without `unnamed_waiting`, add up to `whole`.  Of a host
    timer (`beside`) they may make more: kernels that ran beside what the CPU did count in `gpu`, too.
    """

    beside: bool  # whether they are of a host timer
    count: int  # of intervals
    whole: int  # how long the intervals are
    gpu: int  # kernels and whole graphs ran, without `collectives`
    collectives: int  # NCCL's kernels ran, which also wait for other ranks
    memset: int
    copies: int  # without `copies_on_device`
    copies_on_device: int
    launches: int  # inside of launch calls
    latency: int  # launch latency and event overhead beyond `floor`, but for `unnamed_waiting`
    floor: int  # launch latency and event overhead, up to FLOOR_NS for each interval
    cpu: int  # outside of CUDA
    calls: int  # CUDA calls that launch nothing
    profiler: int
    sync: int
    waiting: int  # work was launched, and something else held it up
    unnamed_waiting: int  # of `waiting`, what the trace has no name for
    unknown: int
    operations: int = 0  # issued without a wait for the GPU between them; 0 if there were waits
    #: Of host timers: how long anything ran on a GPU of the process; of that, nothing but work that was launched before
    #: the timer began; and how long the CPU staged copies.
    worked: int = 0
    earlier: int = 0
    staged: int = 0
    pageable: int = 0  # of `copies`, those of pageable memory, without `staged`
    on_the_way: int = 0  # launch latency, also what of it is `floor` or `waiting`
    #: Whether other streams worked while that of its typical interval was idle.
    others_ran: bool = False
    #: Of the typical interval of a group: which share of the time of all of them the GPU had nothing to do.
    idle_in_all: float = 0.0

    @property
    def busy(self) -> int:
        """The GPU worked for what was timed."""
        return self.gpu + self.memset + self.copies_on_device

    @property
    def late(self) -> int:
        """How long the GPU had nothing to do, as the CPU, or a launch on its way, was late.

        While the CPU of a host timer works, the GPU may work, too: there it is how long no GPU of the process worked."""
        if self.beside:
            return max(self.whole - self.worked - self.staged, 0)
        return self.launches + self.latency + self.cpu + self.calls + self.profiler + self.sync

    @property
    def idle(self) -> int:
        """The same with all of the launch latency, as a sentence tells it (`Case.idle_ns`): of `late`, what any pair costs is
        no part, as nobody can mend that."""
        return self.late if self.beside else self.late - self.latency + self.on_the_way

    @property
    def recording(self) -> int:
        """How much of `late` recording its launches costs, about: no time of the program's.  Few launches
        can be issued ahead, behind a delay: what they cost is not in question."""
        if self.operations < MANY_LAUNCHES * self.count:
            return 0
        return min(int(RECORDING_SHARE * self.late), RECORDING_NS * self.operations)

    @property
    def late_by_recording(self) -> bool:
        """Whether the GPU would not wait long for the CPU without that."""
        late, whole = self.late - self.recording, self.whole - self.recording
        return self.late >= LATE_SHARE * self.whole and late < LATE_SHARE * whole

    def share(self, ns: int) -> float:
        """Return which part (0 to 1) of the intervals' time these nanoseconds are."""
        return ns / max(self.whole, 1)


def sums_of(group: Group, kind: str, intervals: pd.DataFrame) -> Sums:
    """Return what the intervals of a group spent their time on, added up (ns).

    kind:      the kind of its label: event, host or nvtx
    intervals: `frames.INTERVALS`, numbered by position

    Launch latency and event overhead divide into three: `floor`, up to FLOOR_NS for each interval; beyond it, as far as
    it lies before end records, `unnamed_waiting`; the rest is `latency`.

    Of 20 us of launch latency and 30 us before an end record: 5 us floor, 30 us unnamed waiting, 15 us latency
    """
    kernels = group.ns("kernel", "graph")
    collectives = sum(e.ns for e in group.of_cause("kernel") if NCCL.search(e.what))
    worked = earlier = staged = pageable = 0
    if kind == "host":
        ran, outside, elapsed, on_gpu, on_gpu_earlier = (
            intervals[name].to_numpy()[group.intervals] for name in _OF_HOST_TIMERS
        )
        # the ledger has the kernels that the host waited for; others ran beside what the CPU did
        kernels = max(kernels, int(np.clip(ran - outside, 0, elapsed).sum()))
        worked, earlier = int(on_gpu.sum()), int(on_gpu_earlier.sum())
        staged = sum(e.ns for e in group.of_cause("memcpy") if e.why == "staging")
        pageable = sum(e.ns for e in group.of_cause("memcpy") if e.memory == "pageable")
    on_device = sum(e.ns for e in group.of_cause("memcpy") if e.direction in ("D2D", "P2P"))
    # Event overhead without a name lies between the call that records the end and the record's own time on the GPU.
    # If it is long, the record waited for something.
    before_end_record = sum(e.ns for e in group.of_cause("event") if not e.what)
    overhead = group.ns("launch_latency", "event")
    floor = min(overhead, FLOOR_NS * group.count)
    unnamed_waiting = min(before_end_record, overhead - floor)
    return Sums(
        beside=kind == "host",
        count=group.count,
        whole=group.total_ns,
        gpu=kernels - collectives,
        collectives=collectives,
        memset=group.ns("memset"),
        copies=group.ns("memcpy") - on_device,
        copies_on_device=on_device,
        launches=group.ns("api_launch"),
        latency=overhead - floor - unnamed_waiting,
        floor=floor,
        cpu=group.ns("host"),
        calls=group.ns("api"),
        profiler=group.ns("profiler"),
        sync=group.ns("sync"),
        waiting=group.ns("queued") + unnamed_waiting,
        unnamed_waiting=unnamed_waiting,
        unknown=group.ns("unknown"),
        operations=0 if group.work.waits else group.work.operations * group.count,
        worked=worked,
        earlier=earlier,
        staged=staged,
        pageable=pageable,
        on_the_way=group.ns("launch_latency"),
        others_ran=not OTHER_STREAMS.isdisjoint(intervals["flags"].iloc[group.typical]),
    )


def together(of_groups: Sequence[Sums]) -> Sums:
    """Return what the intervals of several groups of a label spent their time on, added up (ns)."""
    first = of_groups[0]
    added = {
        name: sum(getattr(sums, name) for sums in of_groups)
        for name, value in vars(first).items()
        if type(value) is int
    }
    return replace(first, **added)


def typical_of(
    sums: Sums, parts: Mapping[str, int], gpu_ns: int, worked_ns: int = 0, earlier_ns: int = 0
) -> Sums:
    """Return what one interval of a group spent its time on (ns).

    sums:   the sums of the whole group
    parts:  the interval's ns by cause
    gpu_ns: how long kernels and whole graphs ran in it; of a host timer also beside what the CPU did
    worked_ns, earlier_ns: of a host timer, as in `Sums`

    How its kernels, copies and overhead divide (which of them were collectives, copies on the device, staged or of
    pageable memory, unnamed waiting) is not known of one interval: they divide in it as they do in the group.
    """

    def divided(ns: int, of_group: int, rest_of_group: int) -> int:
        """Return how much of `ns` is of the first kind, if it divides into two kinds as they do in the group."""
        return ns * of_group // max(of_group + rest_of_group, 1)

    copies_ns = parts["memcpy"]
    collectives = divided(gpu_ns, sums.collectives, sums.gpu)
    on_device = divided(copies_ns, sums.copies_on_device, sums.copies)
    all_copies = sums.copies + sums.copies_on_device
    staged = divided(copies_ns, sums.staged, all_copies - sums.staged)
    pageable = divided(copies_ns, sums.pageable, all_copies - sums.pageable)
    overhead = parts["launch_latency"] + parts["event"]
    floor = min(overhead, FLOOR_NS)
    unnamed_waiting = divided(overhead - floor, sums.unnamed_waiting, sums.latency)
    return Sums(
        beside=sums.beside,
        count=1,
        whole=sum(parts.values()),
        gpu=gpu_ns - collectives,
        collectives=collectives,
        memset=parts["memset"],
        copies=copies_ns - on_device,
        copies_on_device=on_device,
        launches=parts["api_launch"],
        latency=overhead - floor - unnamed_waiting,
        floor=floor,
        cpu=parts["host"],
        calls=parts["api"],
        profiler=parts["profiler"],
        sync=parts["sync"],
        waiting=parts["queued"] + unnamed_waiting,
        unnamed_waiting=unnamed_waiting,
        unknown=parts["unknown"],
        operations=sums.operations // max(sums.count, 1),
        worked=worked_ns if sums.beside else 0,
        earlier=earlier_ns if sums.beside else 0,
        staged=staged,
        pageable=pageable,
        on_the_way=parts["launch_latency"],
        others_ran=sums.others_ran,
        idle_in_all=sums.share(sums.idle),
    )


def word_of(sums: Sums, elsewhere: float = 0.0) -> str:
    """Return the verdict word of a group whose numbers mean what they say.

    sums:      those of its typical interval
    elsewhere: the share (0 to 1) of its time in which it waited for kernels that it launched on other streams itself:
               then the GPU works for it, too

    The first word that fits is the one: what the GPU does, then what it waits for, then what is missing.
    """
    share = sums.share
    if sums.whole <= 0:
        return CANNOT_TELL
    if share(sums.busy) + elsewhere >= GPU_SHARE:
        return GPU
    if share(sums.copies + sums.copies_on_device + sums.memset) >= COPY_SHARE:
        return COPY
    if share(sums.waiting) >= WAITING_SHARE:
        return WAITING
    is_nearly_empty = share(sums.busy) < _LITTLE_WORK
    if share(sums.floor + sums.latency) >= _LAUNCHING_SHARE and is_nearly_empty:
        # up to the floor it is what any pair with a launch costs; beyond, it is paid for each launch in a row
        return FLOOR if sums.floor > sums.latency else LAUNCH
    if share(sums.late) >= LATE_SHARE and not sums.late_by_recording:
        launching = sums.launches + sums.latency
        return LAUNCH if launching > sums.cpu + sums.calls + sums.profiler else CPU
    if share(sums.unknown) >= _UNKNOWN_SHARE:
        return CANNOT_TELL
    return MIXED


def works_beside(sums: Sums) -> bool:
    """Return whether the GPU works nearly all the time of a host timer, though mostly not on what it waits for: on
    earlier work, or on copies while the CPU goes on.  Then nothing is late, and no part of its own time says more, unless
    the host waits for copies of pageable memory beside which no kernel runs.

    sums: as for `word_of`
    """
    is_busy = sums.beside and sums.share(sums.worked) >= GPU_SHARE and word_of(sums) == MIXED
    copied_alone = min(sums.pageable, sums.worked - sums.earlier - sums.busy)
    return is_busy and sums.share(copied_alone) < LATE_SHARE


def word_of_run(parts: Mapping[str, int]) -> str:
    """Return the verdict word of a run as a whole: the first that fits, in the order of `word_of`.

    parts: ns by cause
    """
    whole_ns = max(sum(parts.values()), 1)
    if parts["kernel"] + parts["graph"] >= GPU_SHARE * whole_ns:
        return GPU
    if parts["memcpy"] + parts["memset"] >= COPY_SHARE * whole_ns:
        return COPY
    if parts["queued"] >= WAITING_SHARE * whole_ns:
        return WAITING
    late_ns = sum(parts[cause] for cause in ("host", "api", "api_launch", "sync", "profiler"))
    if late_ns >= LATE_SHARE * whole_ns:
        return LAUNCH if 2 * parts["api_launch"] > late_ns else CPU
    return CANNOT_TELL if parts["unknown"] >= _UNKNOWN_SHARE * whole_ns else MIXED
