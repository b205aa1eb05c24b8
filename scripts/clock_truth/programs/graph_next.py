"""A graph directly behind the first event, on an idle GPU and behind other work."""

import torch

x = torch.randn(1 << 18, device="cuda")
w = torch.randn(1024, 1024, dtype=torch.half, device="cuda")
torch.mm(w, w), x.add_(1)
torch.cuda.synchronize()
graphs = []
for length in (1, 10, 100):
    graphs.append(torch.cuda.CUDAGraph())
    with torch.cuda.graph(graphs[-1]):
        for _ in range(length):
            x.add_(1)
for busy in (False, True):
    for graph in graphs:
        times = []
        for _ in range(12):
            torch.cuda.synchronize()
            if busy:
                for _ in range(20):
                    torch.mm(w, w)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        print(f"{'busy' if busy else 'idle'}: {sorted(times)[6] * 1e3:.1f} us")
