"""One event after every layer: what each layer takes is the distance to the one before."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [
    nn.Conv2d(3, 64, 3, padding=1),
    nn.ReLU(),
    *[nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)],
    nn.Flatten(),
]
model = nn.Sequential(*layers).cuda().eval()
image = torch.randn(4, 3, 96, 96, device="cuda")
sums = [0.0] * len(layers)
with torch.no_grad():
    model(image)
    for _ in range(12):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(layers) + 1)]
        x = image
        marks[0].record()
        for layer, mark in zip(model, marks[1:], strict=True):
            x = layer(x)
            mark.record()
        torch.cuda.synchronize()
        for n in range(len(layers)):
            sums[n] += marks[n].elapsed_time(marks[n + 1])
for layer, total in zip(layers, sums, strict=True):
    print(f"{type(layer).__name__:<8} {total / 12 * 1e3:.1f} us")
