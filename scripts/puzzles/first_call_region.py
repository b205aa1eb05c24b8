"""A function whose first call loads and tunes, marked with a region."""

# expects: host-gap
import statistics

import torch

import nsysalign

x = torch.randn(1, 3, 224, 224, device="cuda")
conv = torch.nn.Conv2d(3, 64, 7, stride=2).cuda()
times = []


@nsysalign.region("forward")
def forward():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    y = conv(x)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end) * 1e3)
    return y


for _ in range(12):
    forward()

print(f"first {times[0]:.1f} us, then median {statistics.median(times[1:]):.1f} us")
