"""Events that were recorded while a graph was captured: they are nodes of the graph, not records of
the program."""

# expects: captured-events
import torch

x = torch.randn(1 << 20, device="cuda")
x.add_(1)
start = torch.cuda.Event(enable_timing=True, external=True)
end = torch.cuda.Event(enable_timing=True, external=True)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    start.record()
    for _ in range(5):
        x.add_(1)
    end.record()
times = []
for _ in range(12):
    graph.replay()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[6], "ms")
