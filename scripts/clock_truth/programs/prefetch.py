"""A training loop that copies the next batch on a second stream while the current one is worked on."""

import sys

import torch
from torch import nn

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
model = nn.Sequential(
    nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 100)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loss_function = nn.CrossEntropyLoss()
batches = [
    (torch.randn(512, 3072).pin_memory(), torch.randint(0, 100, (512,)).pin_memory())
    for _ in range(6)
]
copies = torch.cuda.Stream()


def fetch(number):
    with torch.cuda.stream(copies):
        x, y = (t.to("cuda", non_blocking=True) for t in batches[number % len(batches)])
    return x, y


upcoming = fetch(0)
steps, loads = [], []
for step in range(50):
    start, ready, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    torch.cuda.current_stream().wait_stream(copies)
    x, y = upcoming
    x.record_stream(torch.cuda.current_stream())
    y.record_stream(torch.cuda.current_stream())
    ready.record()
    upcoming = fetch(step + 1)
    optimizer.zero_grad(set_to_none=True)
    loss = loss_function(model(x), y)
    loss.backward()
    optimizer.step()
    end.record()
    steps.append((start, ready, end))
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.3f}")
torch.cuda.synchronize()
waits = [s.elapsed_time(r) for s, r, _ in steps]
works = [r.elapsed_time(e) for _, r, e in steps]
print(f"waiting for data {sorted(waits)[25]:.3f} ms, computing {sorted(works)[25]:.3f} ms")
