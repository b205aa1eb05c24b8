"""Every fourth repetition also saves a checkpoint: different work under one label."""

# expects: several-kinds
import torch

m = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
for _ in range(5):
    torch.matmul(m, m)
times = []
for k in range(40):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    start.record()
    torch.matmul(m, m)
    if k % 4 == 3:
        for _ in range(6):
            m.clone()
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print("median", sorted(times)[20], "ms")
