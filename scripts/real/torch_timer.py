"""torch.utils.benchmark's Timer: fixed numbers, adaptive, comparison table."""

import sys

import torch
from torch.utils import benchmark

device = "cuda" if "--gpu" in sys.argv else "cpu"
x = torch.ones(64, 64, device=device)
timers = [
    benchmark.Timer(stmt, globals={"x": x}, label="square", description=stmt)
    for stmt in ("x @ x", "x * x")
]
print([timer.timeit(50).number_per_run for timer in timers])
results = [timer.blocked_autorange(min_run_time=0.05) for timer in timers]
print(all(result.median > 0 for result in results))
benchmark.Compare(results).print()
