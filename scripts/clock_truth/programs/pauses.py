"""Bursts of six measurements with long pauses in between: a service that is asked now and then."""

import sys
import time

import torch

pause = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
x = torch.randn(2048, 2048, dtype=torch.half, device="cuda")
host = torch.randn(1 << 20)
for burst in range(5):
    if burst:
        time.sleep(pause)
    times = []
    for n in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.mm(x, x)
        if n % 3 == 1:
            host.cuda()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    print(f"burst {burst}: " + " ".join(f"{t:.3f}" for t in times), flush=True)
