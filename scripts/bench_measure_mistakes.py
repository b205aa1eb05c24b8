"""The four mistakes of a well-known article on inference time, each beside the right number (docs/measuring.md).

python scripts/bench_measure_mistakes.py OUT.json         EfficientNet-b0 with random weights, batch 64 and 1
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any


def pairs(call: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds between two events, `count` times."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    out = []
    for _ in range(count):
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        out.append(start.elapsed_time(end))
    return out


def unsynchronised(call: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds by the host's clock, nobody waits for the GPU."""
    import torch

    out = []
    for _ in range(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        out.append(1e3 * (time.perf_counter() - began))
    torch.cuda.synchronize()
    return out


def right(call: Callable[[], Any]) -> dict[str, float]:
    """Medians of our modes in ms, in this process."""
    from nsysalign.measure.cuda import Cuda
    from nsysalign.measure.worker import Worker

    facts: list[dict[str, Any]] = []
    modes = ["latency", "event", "device", "steady"]
    spec = {
        "modes": modes,
        "l2": ["warm"],
        "precision": 0.005,
        "seconds": 2.0,
        "need": 50,
        "least_s": 0.2,
        "warm_up_s": 2.0,
        "window_s": 0.3,
    }
    Worker(spec, facts.append, Cuda()).run(lambda: call)
    samples = {
        m: [v for f in facts if f["type"] == "block" and f["mode"] == m for v in f["ns"]]
        for m in modes
    }
    return {m: median(v) / 1e6 for m, v in samples.items() if v}


def main(out: Path) -> None:
    import torch
    import torchvision

    found: dict[str, Any] = {}

    def keep(**more: Any) -> None:
        found.update(more)
        out.write_text(json.dumps(found, indent=1))

    torch.manual_seed(0)
    with torch.inference_mode():
        model = torchvision.models.efficientnet_b0(weights=None).eval().cuda()
        here = torch.randn(64, 3, 224, 224)
        there, one = here.cuda(), here[:1].cuda()
        torch.cuda.synchronize()
        cold = pairs(lambda: model(there), 10)  # the process's first calls
        keep(first_call=cold[0], mean_of_first_10=mean(cold))
        keep(right_64=right(lambda: model(there)))
        keep(copy_inside=median(pairs(lambda: model(here.cuda()), 40)))
        keep(host_timer_64=median(unsynchronised(lambda: model(there), 40)))
        keep(right_1=right(lambda: model(one)))
        single = pairs(lambda: model(one), 100)
        keep(
            single_least=min(single),
            single_most=max(single),
            host_timer_1=median(unsynchronised(lambda: model(one), 100)),
        )
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
