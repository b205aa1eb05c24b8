"""Two processes at once, which share a GPU where there is one."""

import subprocess
import sys

WORK = """
import os, sys, time
began = time.perf_counter()
if "--gpu" in sys.argv:
    import torch
    x = torch.ones(2048, 2048, device="cuda")
    for _ in range(50):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); y = x @ x; b.record(); b.synchronize(); a.elapsed_time(b)
else:
    sum(n * n for n in range(300_000))
os.write(1, f"done {time.perf_counter() > began}\\n".encode())  # in one piece: two processes write at once
"""
both = [subprocess.Popen([sys.executable, "-c", WORK, *sys.argv[1:]]) for _ in range(2)]
print([process.wait() for process in both])
