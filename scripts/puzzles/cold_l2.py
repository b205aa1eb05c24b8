"""The same linear twice: `warm` right after itself, `cold` behind 120 MB of zeroes.  The host runs
ahead of both, so the difference is the kernel's own.
"""

# expects: cold-l2
import statistics

import torch
import torch.nn.functional as F

a = torch.rand(20, 8192, dtype=torch.float16, device="cuda")
b = torch.rand(5120, 8192, dtype=torch.float16, device="cuda")
zeroes = torch.empty(120 * 1024 * 1024, dtype=torch.int8, device="cuda")
times = {"warm": [], "cold": []}
for _ in range(20):
    s1, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s2, e2 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    F.linear(a, b)

    s1.record()
    F.linear(a, b)
    e1.record()

    zeroes.zero_()
    s2.record()
    F.linear(a, b)
    e2.record()

    torch.cuda.synchronize()
    times["warm"].append(s1.elapsed_time(e1) * 1e3)
    times["cold"].append(s2.elapsed_time(e2) * 1e3)

for name, values in times.items():
    print(f"{name}: median {statistics.median(values):.1f} us of {len(values)}")
