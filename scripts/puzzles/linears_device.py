"""The same three linears with their data made on the device: no copies, and the first one is
ordinary."""

# expects: nothing
import statistics

import torch
import torch.nn.functional as F

torch.manual_seed(0)
times = {"t1": [], "t2": [], "t3": []}
for _ in range(20):
    a = torch.rand(20, 8192, dtype=torch.float16, device="cuda")
    b = torch.rand(5120, 8192, dtype=torch.float16, device="cuda")
    s1, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s2, e2 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s3, e3 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    s1.record()
    F.linear(a, b)
    e1.record()

    s2.record()
    F.linear(a, b)
    e2.record()

    s3.record()
    F.linear(a, b)
    e3.record()

    torch.cuda.synchronize()
    times["t1"].append(s1.elapsed_time(e1) * 1e3)
    times["t2"].append(s2.elapsed_time(e2) * 1e3)
    times["t3"].append(s3.elapsed_time(e3) * 1e3)

for name, values in times.items():
    print(f"{name}: median {statistics.median(values):.1f} us of {len(values)}")
