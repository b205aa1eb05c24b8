"""How much longer launch-bound work takes while it is looked at: alone, with the probe, under nsys, with both, and
with event tracing as well where this nsys has it.

    python scripts/bench_inflation.py [--rounds 2]         on a machine with a GPU, about two minutes

Medians of what `elapsed_time` says, in microseconds, and the ratio to the program alone.  The runs of all modes take
turns, so that a drift of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def child() -> None:
    """The workloads; prints one JSON line."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench_inflation.py needs a CUDA device")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.zeros(1024, device="cuda")
    weight, inputs = torch.randn(4096, 5120, device="cuda"), torch.randn(1, 5120, device="cuda")
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batch = torch.randn(32, 256, device="cuda")

    def small50() -> None:
        for _ in range(50):
            x.add_(1.0)

    def train() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    def linear() -> None:
        torch.nn.functional.linear(inputs, weight)

    def sleep() -> None:
        torch.cuda._sleep(400_000)

    work = {
        "an empty pair": (lambda: None, 300),
        "50 tiny launches": (small50, 300),
        "a training step": (train, 150),
        "one linear": (linear, 300),
        "a long kernel": (sleep, 100),
    }
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, (function, repeat) in work.items():
        values = []
        for number in range(repeat + 20):
            torch.cuda.synchronize()
            start.record()
            function()
            end.record()
            end.synchronize()
            if number >= 20:
                values.append(start.elapsed_time(end) * 1e3)
        result[name] = statistics.median(values)
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    import bench_modes as modes

    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    names, nsys = modes.modes()
    results = modes.rounds(names, nsys, [str(Path(__file__).resolve()), "--child"], options.rounds)
    first = results[modes.ALONE][0]
    print(
        f"\n{first['device']}, torch {first['torch']}: medians in us (ratio to alone), {options.rounds} runs each"
    )
    print(f"{'':18}" + "".join(f"{name:>20}" for name in names))
    for work in [key for key in first if key not in ("device", "torch")]:
        alone = modes.median(results[modes.ALONE], work)
        cells = [modes.median(results[name], work) for name in names]
        print(f"{work:18}" + "".join(f"{f'{us:.1f} ({us / alone:.2f})':>20}" for us in cells))
    spread = max(
        max(r[w] for r in runs) / min(r[w] for r in runs)
        for runs in results.values()
        for w in first
        if w not in ("device", "torch")
    )
    print(f"largest ratio between two runs of one mode: {spread:.2f}")


if __name__ == "__main__":
    main()
