"""A CUDA graph: nsys traces it as one row, what is inside stays dark."""

# expects: graph-opaque
import torch

x = torch.randn(1 << 20, device="cuda")
x.add_(1)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(20):
        x.add_(1)
times = []
for _ in range(25):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1_000_000)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[12], "ms")
