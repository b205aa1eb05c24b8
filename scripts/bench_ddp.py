"""Workloads on several ranks for `nsysalign run --baseline`: what nsys makes longer where ranks meet in collectives.

    nsysalign run --baseline -o DIR -- torchrun --nproc-per-node 2 scripts/bench_ddp.py
    torchrun --nproc-per-node 2 --no-python nsysalign run -q scripts/bench_ddp.py       one trace per rank, no baseline
    python scripts/score_ranks.py DIR [DIR...]                          how far the predictions of the ranks are off

Balanced ranks, ranks of which one is slow (asleep, in Python, by launches, on the GPU, in turns), many small collectives, waits
inside, and work without any.  Every label is a region that all ranks time.  Needs torch and two GPUs.
"""

from __future__ import annotations

import functools
import os
import time

import bench_baseline

REPEATS = 20


def steps_of(torch, rank):
    """Training steps of DistributedDataParallel; name -> call."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    model = nn.Sequential(*(m for _ in range(10) for m in (nn.Linear(768, 768), nn.SiLU())))
    model = DistributedDataParallel(
        model.cuda(), device_ids=[torch.cuda.current_device()], bucket_cap_mb=4
    )
    sgd, adam = (
        torch.optim.SGD(model.parameters(), lr=1e-3),
        torch.optim.AdamW(model.parameters(), lr=1e-4),
    )
    batch = torch.randn(64, 768, device="cuda")
    small, large = torch.randn(2048, device="cuda"), torch.randn(4096, 4096, device="cuda")
    turn = [0]

    def step(optimizer=sgd):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def after(slow):
        def call():
            slow()
            step()

        return call

    def python_loop():
        total = 0
        for number in range(60_000):
            total += number

    def launches(count=250):
        for _ in range(count):
            small.add_(1.0)

    def in_turns():
        turn[0] += 1
        if turn[0] % 2 == rank:
            launches()

    def accumulated():
        with model.no_sync():
            for _ in range(3):
                model(batch).square().mean().backward()
        step()

    late = rank == 1
    return {
        "step": step,
        "step_adam": functools.partial(step, adam),
        "step_item": lambda: [step().item() for _ in range(2)],
        "accumulated": accumulated,
        "slow_asleep": after(lambda: time.sleep(0.003) if late else None),
        "slow_python": after(lambda: python_loop() if late else None),
        "slow_launches": after(lambda: launches() if late else None),
        "slow_gpu": after(lambda: [torch.mm(large, large) for _ in range(4)] if late else None),
        "slow_in_turns": after(in_turns),
    }


def collectives(torch, dist, rank):
    """Collectives without DistributedDataParallel; name -> call."""
    ranks = dist.get_world_size()
    parts = [torch.ones(4096, device="cuda") for _ in range(40)]
    weights = [torch.randn(1024, 1024, device="cuda") / 32 for _ in range(12)]
    token = torch.randn(4, 1024, device="cuda")
    whole, share = torch.ones(1 << 20, device="cuda"), torch.ones((1 << 20) // ranks, device="cuda")
    small = torch.randn(2048, device="cuda")

    def reduce_each():
        for part in parts:
            dist.all_reduce(part)

    def reduce_together():
        for work in [dist.all_reduce(part, async_op=True) for part in parts]:
            work.wait()

    @torch.no_grad()
    def tensor_parallel():
        x = token
        for weight in weights:
            x = torch.relu(x @ weight)
            dist.all_reduce(x)

    @torch.no_grad()
    def sharded():
        x = token
        for weight in weights:
            dist.all_gather_into_tensor(whole, share)
            x = torch.relu(x @ weight)
        for _ in weights:
            whole.mul_(0.5)
            dist.reduce_scatter_tensor(share, whole)

    def uneven():
        for part in parts[:8]:
            for _ in range(30 if rank == 1 else 3):
                small.add_(1.0)
            dist.all_reduce(part)

    def each_in_turn():
        for number, part in enumerate(parts[:8]):
            for _ in range(30 if rank == number % ranks else 3):
                small.add_(1.0)
            dist.all_reduce(part)

    return {
        "reduce_each": reduce_each,
        "reduce_together": reduce_together,
        "tensor_parallel": tensor_parallel,
        "sharded": sharded,
        "uneven": uneven,
        "each_in_turn": each_in_turn,
        "alone": lambda: [small.add_(1.0) for _ in range(40)],
        "large_reduce": lambda: [dist.all_reduce(whole) for _ in range(10)],
    }


def main() -> None:
    import torch
    import torch.distributed as dist

    if torch.cuda.device_count() < 2:
        print("bench_ddp.py needs two CUDA devices")
        return
    rank, device = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
    torch.manual_seed(0)
    for name, call in (steps_of(torch, rank) | collectives(torch, dist, rank)).items():
        dist.barrier()
        bench_baseline.timed(name, call, repeats=REPEATS)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
