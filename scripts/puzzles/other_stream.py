"""A small kernel that waits for another stream: `before` for work launched before the start event,
`inside` for work launched after it.  A synchronisation in front helps the first and cannot help the
second.
"""

# expects: queued
import statistics

import torch

side = torch.cuda.Stream()
big = torch.randn(4096, 4096, device="cuda")
x = torch.zeros(1 << 20, device="cuda")
torch.cuda.synchronize()
times = {"before": [], "inside": []}
for _ in range(12):
    s1, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s2, e2 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    with torch.cuda.stream(side):
        big @ big
    s1.record()
    torch.cuda.current_stream().wait_stream(side)
    x.add_(1)
    e1.record()
    torch.cuda.synchronize()

    s2.record()
    with torch.cuda.stream(side):
        big @ big
    torch.cuda.current_stream().wait_stream(side)
    x.add_(1)
    e2.record()
    torch.cuda.synchronize()

    times["before"].append(s1.elapsed_time(e1) * 1e3)
    times["inside"].append(s2.elapsed_time(e2) * 1e3)

for name, values in times.items():
    print(f"{name}: median {statistics.median(values):.1f} us of {len(values)}")
