"""The word of a group, from the sums of its ledger: what most of its time is.

    ledger of a group --> Sums (GPU work, copies, launches, CPU, waiting, floor) --> verdict word

Every number is a sum over all intervals of the group, in nanoseconds.  The rules and their reasons
for each puzzle: docs/lab/verdicts.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign.label import Group

WRONG, DOUBTFUL, CPU, LAUNCH, COPY, WAITING, MIXED, GPU, FLOOR, CANNOT_TELL = VERDICTS = (
    "wrong", "doubtful", "cpu_bound", "launch_bound", "copy_bound", "waiting", "mixed", "gpu_bound", "floor",
    "cannot_tell",
)  # fmt: skip
SIGNS: Mapping[str, str] = dict.fromkeys(VERDICTS, "!") | {
    WRONG: "✖", MIXED: "·", GPU: "✓", FLOOR: "·", CANNOT_TELL: "?",
}  # fmt: skip
#: Green from this share of GPU work on; copies, waiting and what the CPU did from these on.
GPU_SHARE, COPY_SHARE, WAITING_SHARE, LATE_SHARE = 0.8, 0.5, 0.4, 0.2
#: A pair of events and a launch cost about this much, whatever is timed.
FLOOR_NS = 5_000
#: Recording takes about this share of a launch call and of the CPU's time after it (fitted: `predict.replay`),
#: and no more than this for each launch (docs/lab/figures.md).
RECORDING_SHARE, RECORDING_NS, MANY_LAUNCHES = 0.35, 5_300, 10
#: Kernels that wait for other ranks as well as copy.
NCCL = re.compile(r"ncclDevKernel|ncclKernel")


def collectives_ns(kernels: pd.DataFrame, label: str) -> int:
    """How long NCCL's kernels ran in the intervals of a label or run (ns), those that overlap counted
    each.  kernels: `frames.KERNELS`."""
    rows = kernels[(kernels["label"] == label) & (kernels["kind"] == "kernel")]
    return int(rows.loc[rows["kernel"].astype(str).str.contains(NCCL), "total_ns"].sum())


@dataclass(frozen=True)
class Sums:
    """Nanoseconds over the intervals of a group.

    gpu: kernels and whole graphs that ran, without NCCL's; of host timers also those that ran while
    the CPU did something else (`beside`).  collectives: NCCL's kernels.  floor: launch latency and event
    overhead up to FLOOR_NS for each interval, beyond: `latency`.  operations: that were issued with no wait
    for the GPU between them.  worked, earlier, staged: of host timers, how long anything ran on a GPU of the process;
    how long of that nothing ran but work that was launched before; how long the CPU staged copies.
    """

    beside: bool
    count: int
    whole: int
    gpu: int
    collectives: int
    memset: int
    copies: int
    copies_on_device: int
    launches: int
    latency: int
    floor: int
    cpu: int  # outside of CUDA
    calls: int
    profiler: int
    sync: int
    waiting: int
    unnamed_waiting: int  # of `waiting`, what the trace has no name for
    unknown: int
    operations: int = 0
    worked: int = 0
    earlier: int = 0
    staged: int = 0

    @property
    def busy(self) -> int:
        """The GPU worked for what was timed."""
        return self.gpu + self.memset + self.copies_on_device

    @property
    def late(self) -> int:
        """What the GPU waited for the CPU, and for launches on their way.  Beside a host timer's CPU the
        GPU works, on whatever was launched: what it did not."""
        if self.beside:
            return max(self.whole - self.worked - self.staged, 0)
        return self.launches + self.latency + self.cpu + self.calls + self.profiler + self.sync

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
        return ns / max(self.whole, 1)


def sums_of(group: Group, kind: str, intervals: pd.DataFrame) -> Sums:
    """Return what the intervals of a group spent their time on, added up (ns).

    kind:      the kind of its label: event, host or nvtx
    intervals: `frames.INTERVALS`, numbered by position

    Launch latency and event overhead count as `floor` up to FLOOR_NS for each interval.  What exceeds it is
    waiting, as far as the trace has no name for it, and else latency.
    """
    kernels = group.ns("kernel", "graph")
    collectives = sum(e.ns for e in group.of_cause("kernel") if NCCL.search(e.what))
    worked = earlier = staged = 0
    if kind == "host":
        ran = intervals["kernel_only_upper_ns"].to_numpy()[group.intervals]
        outside = intervals["kernel_outside_ns"].to_numpy()[group.intervals]
        elapsed = intervals["elapsed_ns"].to_numpy()[group.intervals]
        # the ledger has the kernels that the host waited for; others ran beside what the CPU did
        kernels = max(kernels, int(np.clip(ran - outside, 0, elapsed).sum()))
        worked = int(intervals["gpu_busy_ns"].to_numpy()[group.intervals].sum())
        earlier = int(intervals["gpu_earlier_ns"].to_numpy()[group.intervals].sum())
        staged = sum(e.ns for e in group.of_cause("memcpy") if e.why == "staging")
    on_device = sum(e.ns for e in group.of_cause("memcpy") if e.direction in ("D2D", "P2P"))
    # what stands between the end record's call and its place waits for something, if it is long
    unnamed = sum(e.ns for e in group.of_cause("event") if not e.what)
    overhead = group.ns("launch_latency", "event")
    floor = min(overhead, FLOOR_NS * group.count)
    waited = max(min(unnamed, overhead - floor), 0)
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
        latency=overhead - floor - waited,
        floor=floor,
        cpu=group.ns("host"),
        calls=group.ns("api"),
        profiler=group.ns("profiler"),
        sync=group.ns("sync"),
        waiting=group.ns("queued") + waited,
        unnamed_waiting=waited,
        unknown=group.ns("unknown"),
        operations=0 if group.work.waits else group.work.operations * group.count,
        worked=worked,
        earlier=earlier,
        staged=staged,
    )


def typical_of(
    sums: Sums, parts: Mapping[str, int], gpu_ns: int, worked_ns: int = 0, earlier_ns: int = 0
) -> Sums:
    """Return what one interval of a group spent its time on (ns).

    sums:   the sums of the whole group
    parts:  the interval's ns by cause
    gpu_ns: how long kernels ran in it
    worked_ns, earlier_ns: of a host timer, as in `Sums`

    How its kernels, copies and overhead divide into collectives, copies on the device and waiting is not known of
    one interval: they divide in it as they do in the group.
    """
    kernels = max(sums.gpu + sums.collectives, 1)
    collectives = gpu_ns * sums.collectives // kernels
    copied = max(sums.copies + sums.copies_on_device, 1)
    on_device = parts["memcpy"] * sums.copies_on_device // copied
    overhead = parts["launch_latency"] + parts["event"]
    floor = min(overhead, FLOOR_NS)
    beyond = max(sums.latency + sums.unnamed_waiting, 1)
    waited = (overhead - floor) * sums.unnamed_waiting // beyond
    return Sums(
        beside=sums.beside,
        count=1,
        whole=sum(parts.values()),
        gpu=gpu_ns - collectives,
        collectives=collectives,
        memset=parts["memset"],
        copies=parts["memcpy"] - on_device,
        copies_on_device=on_device,
        launches=parts["api_launch"],
        latency=overhead - floor - waited,
        floor=floor,
        cpu=parts["host"],
        calls=parts["api"],
        profiler=parts["profiler"],
        sync=parts["sync"],
        waiting=parts["queued"] + waited,
        unnamed_waiting=waited,
        unknown=parts["unknown"],
        operations=sums.operations // max(sums.count, 1),
        worked=worked_ns if sums.beside else 0,
        earlier=earlier_ns if sums.beside else 0,
        staged=parts["memcpy"] * sums.staged // copied,
    )


def word_of(sums: Sums, elsewhere: float = 0.0) -> str:
    """Return the verdict word of a group whose numbers mean what they say.

    sums:      those of its typical interval
    elsewhere: which share (0 to 1) of the time it waited for kernels that it launched on other streams: time in
               which the GPU works for it
    """
    share = sums.share
    late = sums.late
    if sums.whole <= 0:
        return CANNOT_TELL
    if share(sums.busy) + elsewhere >= GPU_SHARE:
        return GPU
    if share(sums.copies + sums.copies_on_device + sums.memset) >= COPY_SHARE:
        return COPY
    if share(sums.waiting) >= WAITING_SHARE:
        return WAITING
    if share(sums.floor + sums.latency) >= 0.7 and share(sums.busy) < 0.5:
        return FLOOR if sums.floor > sums.latency else LAUNCH
    # launch latency beyond the floor is paid for each launch in a row
    if share(late) >= LATE_SHARE and not sums.late_by_recording:
        launching = sums.launches + sums.latency
        return LAUNCH if launching > sums.cpu + sums.calls + sums.profiler else CPU
    if share(sums.unknown) >= 0.5:
        return CANNOT_TELL
    return MIXED


def works_beside(sums: Sums) -> bool:
    """Return whether the GPU works nearly all the time of a host timer, though mostly not on what it waits for: on
    earlier work, or on copies while the CPU goes on.  Then nothing is late, and no part of its own time says more.

    sums: as for `word_of`
    """
    return sums.beside and sums.share(sums.worked) >= GPU_SHARE and word_of(sums) == MIXED


def word_of_run(parts: Mapping[str, int]) -> str:
    """The word of a run as a whole, from its parts."""
    whole = max(sum(parts.values()), 1)
    late = sum(parts[cause] for cause in ("host", "api", "api_launch", "sync", "profiler"))
    if parts["kernel"] + parts["graph"] >= GPU_SHARE * whole:
        return GPU
    if parts["memcpy"] + parts["memset"] >= COPY_SHARE * whole:
        return COPY
    if parts["queued"] >= WAITING_SHARE * whole:
        return WAITING
    if late >= LATE_SHARE * whole:
        return LAUNCH if 2 * parts["api_launch"] > late else CPU
    return CANNOT_TELL if 2 * parts["unknown"] >= whole else MIXED
