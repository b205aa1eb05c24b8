"""A forward pass as a CUDA graph, replayed in a loop, with the input copied in before each replay."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 512)
)
model = model.half().cuda().eval()
static_input = torch.randn(32, 512, dtype=torch.half, device="cuda")
batches = [torch.randn(32, 512, dtype=torch.half).pin_memory() for _ in range(4)]
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(static_input)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_output = model(static_input)

pairs = []
for step in range(60):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    static_input.copy_(batches[step % 4], non_blocking=True)
    start.record()
    graph.replay()
    end.record()
    pairs.append((start, end))
    if step % 10 == 9:
        static_output.sum().item()
torch.cuda.synchronize()
times = sorted(s.elapsed_time(e) for s, e in pairs)
print(f"replay: median {times[30] * 1e3:.1f} us")
