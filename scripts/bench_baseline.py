"""Workloads for `nsysalign run --baseline`: what nsys makes longer, and whether the prediction without it is right.

    nsysalign run --baseline -o DIR scripts/bench_baseline.py
    python scripts/bench_baseline.py --error DIR [DIR...]        the predictions' errors of such runs, label by label

Every label is a region: the empty pair, tiny launches, the three linears (after copies, on the device), a training step, a
convolutional net, a recurrent net, a graph, `.item()` inside, a busy host, the same behind a delay kernel, and host-bound
work of many small operators.  No workload is one of those that the profiler's cost was fitted to.
"""

from __future__ import annotations

import statistics
import sys

import turns

REPEATS = 30
#: Where two processes take turns (`bench_turns.py`).
TURNS, IN_TURN = 12, 5


def summary(folders: list[str]) -> None:
    """Per label: inflation, prediction, error; then how many lie within 10 % and within their bars."""
    import nsysalign

    errors, inside = [], []
    for folder in folders:
        table = nsysalign.load(folder).baseline.dropna(subset=["error"])
        for r in table.itertuples():
            errors.append(r.error)
            inside.append(r.predicted_lower_ns <= r.baseline_ns <= r.predicted_upper_ns)
            print(
                f"{r.label:20s} {r.profiled_ns / 1e3:9.2f} us under nsys  {r.baseline_ns / 1e3:9.2f} without  x{r.inflation:.2f}"
                f"  predicted {r.predicted_ns / 1e3:9.2f}  {100 * r.error:+5.1f} %  {'' if inside[-1] else 'outside its bar'}"
            )
    sizes = [abs(e) for e in errors]
    print(
        f"{len(errors)} labels: error median {100 * statistics.median(sizes):.1f} %, largest {100 * max(sizes):.1f} %, "
        f"within 10 %: {sum(e <= 0.10 for e in sizes)}, inside the bar: {sum(inside)}"
    )


def timed(name, work, before=None, repeats=REPEATS):
    """`work` in event pairs of a region of that name, after three calls that are not timed."""
    import torch

    from nsysalign import region

    with turns.turn():
        for _ in range(3):
            work()
    several = turns.taking_turns()
    for _ in range(TURNS if several else 1):
        with turns.turn():
            if several:
                work()  # finds what the other process left in the caches
            for _ in range(IN_TURN if several else repeats):
                torch.cuda.synchronize()
                if before:
                    before()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                with region(name):
                    start.record()
                    work()
                    end.record()
                torch.cuda.synchronize()
                start.elapsed_time(end)


def timed_each(work, repeats):
    """Every call of `work` (name -> call); one that fails is named and left out."""
    for name, call in work.items():
        try:
            timed(name, call, repeats=repeats)
        except Exception as error:
            print(f"left out: {name}: {type(error).__name__}: {error}")


def captured(torch, work):
    """A CUDA graph of `work`, after one call on another stream."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    return graph


def main() -> None:
    import time

    import torch
    import torch.nn.functional as F
    from torch import nn

    from nsysalign import region

    torch.manual_seed(0)
    x, y = torch.randn(4096, device="cuda"), torch.randn(256, 256, device="cuda")

    def tiny(count):
        return lambda: [x.mul_(1.0001) for _ in range(count)]

    def linears(name, on_device):
        for _ in range(REPEATS):
            with turns.turn():
                linears_once(name, on_device)

    def linears_once(name, on_device):
        shape = (16, 4096), (4096, 4096)
        a, b = (
            torch.rand(s, dtype=torch.float16, device="cuda")
            if on_device
            else torch.rand(s, dtype=torch.float16).cuda()
            for s in shape
        )
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(3)]
        for k, (start, end) in enumerate(pairs, 1):
            with region(f"{name}_{k}"):
                start.record()
                F.linear(a, b)
                end.record()
        torch.cuda.synchronize()
        for start, end in pairs:
            start.elapsed_time(end)

    def busy():
        total = 0
        for i in range(5_000):
            total += i
        x.add_(total * 0.0)

    def pointwise():
        z = y
        for _ in range(8):
            z = torch.sigmoid(z @ y).clamp(0, 1).t().contiguous() + 0.5
        return z

    net = nn.Sequential(
        *[m for _ in range(6) for m in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())]
    ).cuda()
    optimizer, batch = (
        torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9),
        torch.randn(32, 512, device="cuda"),
    )

    def train():
        optimizer.zero_grad(set_to_none=True)
        net(batch).pow(2).mean().backward()
        optimizer.step()

    conv = nn.Sequential(
        *[m for k in range(10) for m in (nn.Conv2d(3 if k == 0 else 24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())]
    ).eval().cuda()  # fmt: skip
    image = torch.randn(1, 3, 96, 96, device="cuda")
    cell, state = nn.GRUCell(128, 128).cuda(), torch.zeros(8, 128, device="cuda")

    @torch.no_grad()
    def convnet():
        conv(image)

    @torch.no_grad()
    def recurrent():
        h = state
        for _ in range(12):
            h = cell(h, h)

    graph = captured(torch, convnet)
    delay = lambda: torch.cuda._sleep(6_000_000)  # noqa: E731
    timed("empty", lambda: None)
    timed("tiny1", tiny(1))
    timed("tiny20", tiny(20))
    timed("tiny100", tiny(100))
    linears("copied", on_device=False)
    linears("device", on_device=True)
    timed("train", train)
    timed("convnet", convnet)
    timed("recurrent", recurrent)
    timed("pointwise", pointwise)
    timed("graph", graph.replay)
    timed("item", lambda: (x.add_(1), x[0].item(), x.add_(1)))
    timed("busy", busy)
    timed("ahead_tiny20", tiny(20), before=delay)
    timed("ahead_pointwise", pointwise, before=delay)
    print(f"done, {torch.cuda.get_device_name()}, {time.strftime('%F')}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--error"]:
        summary(sys.argv[2:])
    else:
        main()
