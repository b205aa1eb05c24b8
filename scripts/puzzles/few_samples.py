"""Two repetitions."""

# expects: nothing
import torch

x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
for _ in range(5):
    torch.matmul(x, x)
for _ in range(2):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    start.record()
    torch.matmul(x, x)
    end.record()
    torch.cuda.synchronize()
    print(start.elapsed_time(end), "ms")
