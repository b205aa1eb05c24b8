"""EfficientNet-b0, batch 1, 300 repetitions, each timed by an event pair: is it the GPU that takes
3 ms?"""

# expects: host-gap
import statistics
import sys

import torch

try:
    from torchvision.models import efficientnet_b0
except ImportError:
    sys.exit("effnet.py needs torchvision (no weights are downloaded): pip install torchvision")

model = efficientnet_b0(weights=None).eval().cuda()
image = torch.randn(1, 3, 224, 224, device="cuda")
times = []
with torch.no_grad():
    for _ in range(10):
        model(image)
    torch.cuda.synchronize()
    for _ in range(300):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        model(image)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))

print(f"efficientnet_b0: median {statistics.median(times):.3f} ms of {len(times)}")
