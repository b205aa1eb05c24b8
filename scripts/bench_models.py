"""More workloads for `nsysalign run --baseline`: whole models, none of which the prediction without nsys was fitted to.

    nsysalign run --baseline -o DIR scripts/bench_models.py
    python scripts/score_predictions.py DIR

Convolutional nets at batch 1 and 32 (plain, depthwise), an encoder, decoding step by step, three kinds of Adam, sorting and
indexing.  Needs torch only.  Without a GPU it says so and ends well: that is how the job script is tried.
"""

from __future__ import annotations

import functools
import sys

import bench_baseline

REPEATS = 15


def conv_net(nn, width: int, blocks: int, depthwise: bool):
    """Convolution, batch norm and activation, `blocks` times, then a linear layer."""
    layers, channels = [], 3
    for number in range(blocks):
        stride = 2 if number % 4 == 0 else 1
        groups = channels if depthwise and channels == width else 1
        layers += [
            nn.Conv2d(channels, width, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        if groups > 1:
            layers += [nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU()]
        channels = width
    return (
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
        .cuda()
        .eval()
    )


def main() -> None:
    import torch
    from torch import nn

    if not torch.cuda.is_available():
        print("bench_models.py needs a CUDA device")
        return
    torch.manual_seed(0)

    timed = functools.partial(bench_baseline.timed, repeats=REPEATS)
    one, many = (
        torch.randn(1, 3, 128, 128, device="cuda"),
        torch.randn(32, 3, 128, 128, device="cuda"),
    )
    nets = {
        "plain": conv_net(nn, 64, 17, False),
        "deep": conv_net(nn, 32, 50, False),
        "depthwise": conv_net(nn, 96, 20, True),
    }
    with torch.no_grad():
        for name, net in nets.items():
            timed(f"conv_{name}_1", lambda net=net: net(one))
        timed("conv_plain_32", lambda: nets["plain"](many))
        layer = nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().eval()
        tokens = torch.randn(1, 64, 512, device="cuda")
        timed("encoder", lambda: encoder(tokens))

        def decode(steps=4):
            x = tokens[:, :1]
            for _ in range(steps):
                x = torch.cat([x, encoder(x)[:, -1:]], dim=1)

        timed("decode4", decode)
        a = torch.randn(1 << 16, device="cuda")
        timed("sort_index", lambda: a[a.topk(1024).indices].sort().values.cumsum(0))
        timed("nonzero", lambda: (a > 0).nonzero())
    for kind in ("loop", "foreach", "fused"):
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(24))).cuda()
        adam = torch.optim.Adam(
            model.parameters(), foreach=kind == "foreach", fused=kind == "fused"
        )
        batch = torch.randn(16, 256, device="cuda")
        model(batch).sum().backward()
        timed(f"adam_{kind}", adam.step)

        def train(model=model, adam=adam, batch=batch):
            adam.zero_grad()
            model(batch).sum().backward()
            adam.step()

        timed(f"train_{kind}", train)


if __name__ == "__main__":
    sys.exit(main())
