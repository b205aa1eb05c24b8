"""A data-parallel job on several simulated ranks: every step computes, then meets the others in an
all-reduce.

    rank 0   |think |[gemm]   [#####=====]        # waits for rank 1
    rank 1   |think     |[gemm     ][=====]       arrives last

The truth is what `Job` says: when each rank's all-reduce began, on one true clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .export import write
from .style import Style
from .world import NON_BLOCKING, World

ALL_REDUCE = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
)
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
NCCL_STREAM = 20


@dataclass
class Job:
    worlds: list[World]
    arrivals: list[list[int]] = field(
        default_factory=list
    )  # per step: when each rank's collective began
    ends: list[list[int]] = field(default_factory=list)

    def waits(self, rank: int) -> list[int]:
        return [max(step) - step[rank] for step in self.arrivals]


def run(
    ranks: int = 2,
    steps: int = 20,
    *,
    think: Callable[[int, int], int] = lambda rank, step: 50_000,
    compute: Callable[[int, int], int] = lambda rank, step: 200_000,
    reduce_ns: int = 80_000,
    jitter: int = 2_000,
    seed: int = 1,
    names: tuple[str, ...] = (ALL_REDUCE,),
    begin: int = 1_000_000_000,
    pids: list[int] | None = None,
    grid: Callable[[int], int] = lambda step: 1 + step % 3,
    launches: Callable[[int, int], int] = lambda rank, step: 0,
    record_ns: int = 3_000,
    launch_ns: int = 4_000,
    pause_ns: int = 300,
) -> Job:
    """`think` is host time before a step's launches, `compute` the kernel before the collective,
    `launches` how many short kernels come before that one; the collectives of one step end within
    `jitter` of each other.  `record_ns`, `launch_ns`: how long such calls take, `pause_ns`: the
    time between two."""
    rand = random.Random(seed)
    job = Job(
        [
            World(
                pid=(pids or [500 + r for r in range(ranks)])[r],
                device=r,
                streams={7: 3, NCCL_STREAM: NON_BLOCKING},
            )
            for r in range(ranks)
        ]
    )
    now = [begin] * ranks
    for step in range(steps):
        starts, issued = [], []
        for rank, world in enumerate(job.worlds):
            t = now[rank]
            record = world.record(t + record_ns + 2_504, t, t + record_ns)
            t += record_ns + think(rank, step)
            for _ in range(launches(rank, step)):
                call = world.call("launch", t, t + launch_ns)
                world.kernel(t + launch_ns + 1_500, t + launch_ns + 2_500, call, name="short")
                t += launch_ns + pause_ns
            call = world.call("launch", t, t + launch_ns)
            t += launch_ns
            gemm = world.kernel(t + 2_000, t + 2_000 + compute(rank, step), call, name="gemm")
            nccl = world.call("launch", t + pause_ns, t + pause_ns + launch_ns)
            starts.append([gemm.end + 1_000])
            issued.append((record, nccl, t + launch_ns + 2 * pause_ns))
        done = [0] * ranks
        for number, name in enumerate(names):
            latest = max(s[-1] for s in starts)
            ends = [latest + reduce_ns + rand.randint(0, jitter) for _ in range(ranks)]
            for rank, world in enumerate(job.worlds):
                op = world.kernel(
                    starts[rank][-1], ends[rank], issued[rank][1], NCCL_STREAM, name=name
                )
                op.grid = grid(step)
                starts[rank].append(ends[rank] + 1_000)
                done[rank] = ends[rank]
            job.arrivals.append([s[number] for s in starts])
            job.ends.append(ends)
        for rank, world in enumerate(job.worlds):
            start, _, t = issued[rank]
            end = world.record(
                done[rank] + 2_208 + (-(done[rank] + 2_208 - start.t)) % 32, t, t + record_ns
            )
            world.sync(t + record_ns + 300, end.t + 4_000, record=end)
            world.pair(start, end, f"step#{step}")
            now[rank] = end.t + 6_000
            world.end = now[rank] + 1_000_000
    return job


def write_ranks(
    job: Job,
    folder: Path,
    styles: Callable[[int], Style] = lambda rank: Style(shift=-100_000_000 * rank),
    name: Callable[[int], str] = lambda rank: f"report_rank{rank}",
) -> list[Path]:
    """One trace per rank, each with its own session start; logs carry the trace's name."""
    return [
        write(world, folder, styles(rank), name(rank))[0] for rank, world in enumerate(job.worlds)
    ]
