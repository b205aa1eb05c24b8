"""Two shapes alternate under one label."""

# expects: several-kinds
import torch

small, large = (torch.randn(n, n, device="cuda", dtype=torch.float16) for n in (2048, 3072))
for _ in range(5):
    torch.matmul(small, small), torch.matmul(large, large)
times = []
for k in range(60):
    m = small if k % 2 else large
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    start.record()
    torch.matmul(m, m)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print("median", sorted(times)[30], "ms")
