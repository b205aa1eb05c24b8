"""CUDA_LAUNCH_BLOCKING=1 was left on after debugging."""

# expects: launch-blocking
import os

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
import torch

x = torch.randn(2048, 2048, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for _ in range(3):
    torch.relu(x @ x)
times = []
for _ in range(20):
    torch.cuda.synchronize()
    start.record()
    y = x
    for _ in range(10):
        y = torch.relu(y @ x)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[10], "ms")
