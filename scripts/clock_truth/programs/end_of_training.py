"""Twenty seconds of steps; all events are kept and compared only when everything is over."""

import sys
import time

import torch
from torch import nn

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(256, 1024, device="cuda")
starts, ends = [], []
begin = time.time()
while time.time() - begin < seconds:
    starts.append(torch.cuda.Event(enable_timing=True))
    ends.append(torch.cuda.Event(enable_timing=True))
    starts[-1].record()
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    ends[-1].record()
    time.sleep(0.05)  # the data is not ready any sooner
torch.cuda.synchronize()
times = [s.elapsed_time(e) for s, e in zip(starts, ends, strict=True)]
print(f"{len(times)} steps, median {sorted(times)[len(times) // 2]:.3f} ms")
