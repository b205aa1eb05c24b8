"""Calls for scripts/device/measure.sh: launch-bound and not, with inputs handed over, and one that takes a lot of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nsysalign import Workload


def mlp(batch: int) -> Callable[[], Any]:
    """Ten small layers: launch-bound at small batches."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers).eval().cuda().half()
    x = torch.randn(batch, 1024, device="cuda", dtype=torch.float16)

    def call() -> Any:
        with torch.inference_mode():
            return model(x)

    return call


def same(batch: int) -> Callable[[], Any]:
    """mlp() once more: A against A."""
    return mlp(batch)


def efficientnet(batch: int) -> Callable[[], Any]:
    """EfficientNet-b0 with random weights, as in docs/measuring.md."""
    import torchvision

    model = torchvision.models.efficientnet_b0().eval().cuda()
    x = torch.randn(batch, 3, 224, 224, device="cuda")

    def call() -> Any:
        with torch.inference_mode():
            return model(x)

    return call


def convolutions(batch: int) -> Callable[[], Any]:
    """Four convolutions with normalisation."""
    sizes = [(3, 64), (64, 64), (64, 128), (128, 128)]
    model = nn.Sequential(
        *(
            m
            for a, b in sizes
            for m in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        )
    )
    model = model.eval().cuda()
    x = torch.randn(batch, 3, 112, 112, device="cuda")

    def call() -> Any:
        with torch.inference_mode():
            return model(x)

    return call


def handed_over(batch: int) -> Workload:
    """A product of 64 MB per 16 examples, its input rotated and copied in where that is asked for."""
    weight = torch.randn(1024, 1024, device="cuda")
    x = torch.randn(batch * 1024, 1024, device="cuda")
    return Workload(lambda x: x @ weight, (x,), outputs_per_call=batch)


def hungry(batch: int) -> Callable[[], Any]:
    """A GiB per example."""
    x = torch.ones(batch, 1 << 28, device="cuda")
    return lambda: x.mul_(1.0)
