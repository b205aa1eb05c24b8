"""The work runs on a side stream, the events stand on the default stream: they time nothing."""

# expects: wrong-stream
import torch

side = torch.cuda.Stream()
m = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(20):
    torch.cuda.synchronize()
    start.record()
    with torch.cuda.stream(side):
        torch.matmul(m, m)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[10], "ms")
