"""Events inside a CUDA graph: what its two halves take, read after every replay."""

import torch

x = torch.randn(1 << 22, device="cuda")
w = torch.randn(2048, 2048, device="cuda", dtype=torch.half)
torch.mm(w, w), x.mul_(1.0001)
begin, middle, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(3))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    begin.record()
    y = torch.mm(w, w)
    middle.record()
    for _ in range(4):
        x.mul_(1.0001)
    end.record()
first, second = [], []
for _ in range(30):
    graph.replay()
    torch.cuda.synchronize()
    first.append(begin.elapsed_time(middle))
    second.append(middle.elapsed_time(end))
print(f"matmul {sorted(first)[15] * 1e3:.1f} us, scaling {sorted(second)[15] * 1e3:.1f} us")
outer = []
for _ in range(20):
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    outer.append(start.elapsed_time(stop))
print(f"whole replay {sorted(outer)[10] * 1e3:.1f} us")
