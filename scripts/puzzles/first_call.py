"""The first call of everything: modules are loaded, code is chosen; nobody warmed up, and it is
timed once."""

# expects: module-load
import torch

x = torch.randn(512, 512, device="cuda", dtype=torch.float64)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
torch.cuda.synchronize()
start.record()
y = torch.special.i1e(torch.erfinv(torch.tanh(x)))
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end), "ms")
