"""KernelBench's timing functions (src/kernelbench/timing.py, from the folder in argv) on a matrix
product."""

import sys

import torch

sys.path.insert(0, sys.argv[1])
import timing

a = torch.randn(1024, 1024, device="cuda")
for method in ("cuda_event", "do_bench_impl", "host_time", "do_bench"):
    times = timing.get_timing_function(method)(
        torch.matmul,
        [a, a],
        num_warmup=3,
        num_trials=20,
        discard_first=1,
        verbose=False,
        device=torch.device("cuda:0"),
    )
    print(method, len(times) if method != "do_bench" else "as many as fit", min(times) > 0)
