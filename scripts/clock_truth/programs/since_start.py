"""Everything since one start: the progress of 60 steps against the same first event."""

import torch

x = torch.randn(2048, 2048, dtype=torch.half, device="cuda")
torch.mm(x, x)
begin = torch.cuda.Event(enable_timing=True)
marks = []
torch.cuda.synchronize()
begin.record()
for step in range(60):
    for _ in range(1 + step % 4):
        torch.mm(x, x)
    if step % 7 == 0:
        x[0, 0].item()
    marks.append(torch.cuda.Event(enable_timing=True))
    marks[-1].record()
torch.cuda.synchronize()
print("ms:", " ".join(f"{begin.elapsed_time(m):.2f}" for m in marks[::10]))
