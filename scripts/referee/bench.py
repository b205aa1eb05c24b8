"""How the programs here time a call: a pair of events per repetition, as evaluators do."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

import torch

N = 4096


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    """Two square matrices whose product takes some hundred microseconds."""
    return tuple(torch.randn(N, N, device="cuda", dtype=torch.float16) for _ in range(2))


def timed(
    call: Callable[[], object], repetitions: int = 20, before: Callable[[], object] = bool
) -> None:
    """Time the call, and print the median in milliseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repetitions):
        before()
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    print(sorted(times)[len(times) // 2], "ms")


def flush() -> Callable[[], object]:
    """What overwrites twice the L2."""
    size = torch.cuda.get_device_properties(0).L2_cache_size
    return torch.empty(2 * size, device="cuda", dtype=torch.uint8).zero_


def main(programs: dict[str, object]) -> None:
    """Run the function named on the command line, or print the names of all."""
    mine = {
        n: f
        for n, f in programs.items()
        if inspect.isfunction(f) and f.__module__ == "__main__" and n[0] != "_"
    }
    if len(sys.argv) == 2 and sys.argv[1] in mine:
        mine[sys.argv[1]]()
    else:
        print("\n".join(mine))
