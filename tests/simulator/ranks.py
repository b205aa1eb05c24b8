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

_ARGUMENTS = "(ncclDevKernelArgsStorage<(unsigned long)4096>)"
ALL_REDUCE = f"ncclDevKernel_AllReduce_Sum_f32_RING_LL{_ARGUMENTS}"
ALL_GATHER = f"ncclDevKernel_AllGather_RING_LL{_ARGUMENTS}"
NCCL_STREAM = 20


@dataclass
class Job:
    """`arrivals`: per step, when each rank's collective began."""

    worlds: list[World]
    arrivals: list[list[int]] = field(default_factory=list)

    def waits(self, rank: int) -> list[int]:
        return [max(step) - step[rank] for step in self.arrivals]


def run(
    ranks: int = 2,
    steps: int = 20,
    *,
    think: Callable[[int, int], int] = lambda rank, step: 50_000,
    seed: int = 1,
    names: tuple[str, ...] = (ALL_REDUCE,),
    begin: int = 1_000_000_000,
    grid: Callable[[int], int] = lambda step: 1 + step % 3,
) -> Job:
    """`think` is host time before a step's launches; a kernel of 200 us comes before its collectives
    (`names`), which take 80 us and end within 2 us of each other."""
    rand, streams = random.Random(seed), {7: 3, NCCL_STREAM: NON_BLOCKING}
    job = Job([World(pid=500 + r, device=r, streams=dict(streams)) for r in range(ranks)])
    now = [begin] * ranks
    for step in range(steps):
        issued, last = [], []  # of each rank: its start record, the collectives' call; work's end
        for rank, world in enumerate(job.worlds):
            t = now[rank]
            record = world.record(t + 5_504, t, t + 3_000)
            t += 3_000 + think(rank, step)
            gemm = world.call("launch", t, t + 4_000)
            gemm = world.kernel(t + 6_000, t + 206_000, gemm, name="gemm")
            issued.append((record, world.call("launch", t + 4_300, t + 8_300)))
            last.append(gemm.end)
            now[rank] = t + 8_600
        for name in names:
            starts = [end + 1_000 for end in last]
            last = [max(starts) + 80_000 + rand.randint(0, 2_000) for _ in range(ranks)]
            for rank, world in enumerate(job.worlds):
                nccl = issued[rank][1]
                op = world.kernel(starts[rank], last[rank], nccl, NCCL_STREAM, name=name)
                op.grid = grid(step)
            job.arrivals.append(starts)
        for rank, world in enumerate(job.worlds):
            start, t, done = issued[rank][0], now[rank], last[rank] + 2_208
            end = world.record(done + (start.t - done) % 32, t, t + 3_000)
            world.sync(t + 3_300, end.t + 4_000, record=end)
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
