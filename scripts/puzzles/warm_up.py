"""No warm-up: the first repetitions pay for the clocks, the caches and the choice of an algorithm."""

# expects: warm-up module-load
import torch

convolution = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
image = torch.randn(8, 64, 64, 64, device="cuda")
times = []
with torch.no_grad():
    for _ in range(40):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        convolution(image)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
print("mean", sum(times) / len(times), "ms")
