"""Twelve calls by every clock: `nsysalign measure --clocks` of each, beside the originals.

    python scripts/clocks_ladder.py OUT [CALL ...]        (a GPU, torch, nsys; triton for two rows)

Every call is a function of this file, so each can be measured by itself: `nsysalign measure
scripts/clocks_ladder.py:softmax --clocks`.  OUT/ladder.tsv gets a row per call, L2 and clock: us,
the difference to the next row, its cause, what is known of it, what is not, and the SM clock.  Beside them stands
what the originals print when they are run by themselves in a process of their own: triton's
do_bench and do_bench_cudagraph, and the article's loop of event pairs.

The calls of ASKED are those of public threads in which somebody asks which of two numbers is right:
`clocks_ladder.py OUT asked` measures them, and `nsysalign measure` compares the two of
NVIDIA/cutlass 2004: `scripts/clocks_ladder.py:gemm_zeros scripts/clocks_ladder.py:gemm_random`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

HALF = {"device": "cuda", "dtype": torch.float16}


def add_inplace():
    x = torch.randn(1 << 20, **HALF)
    return lambda: x.add_(1)


def matmul_512():
    a, b = (torch.randn(512, 512, **HALF) for _ in range(2))
    return lambda: a @ b


def matmul_4096():
    a, b = (torch.randn(4096, 4096, **HALF) for _ in range(2))
    return lambda: a @ b


def softmax():
    x = torch.randn(4096, 4096, **HALF)
    return lambda: torch.softmax(x, -1)


def layer_norm_backward():
    x = torch.randn(4096, 4096, **HALF, requires_grad=True)
    weight = torch.ones(4096, **HALF, requires_grad=True)
    out = F.layer_norm(x, (4096,), weight)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (x, weight), grad, retain_graph=True)


def fifty_launches():
    x = torch.randn(1024, **HALF)
    return lambda: [x.mul_(1.0) for _ in range(50)]


def _efficientnet(batch):
    import torchvision

    model = torchvision.models.efficientnet_b0().eval().cuda()
    x = torch.randn(batch, 3, 224, 224, device="cuda")

    def call():
        with torch.inference_mode():
            return model(x)

    return call


def efficientnet_1():
    return _efficientnet(1)


def efficientnet_64():
    return _efficientnet(64)


def attention():
    q, k, v = (torch.randn(4, 16, 2048, 64, **HALF) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v)


def graph_replay():
    x, graph = torch.randn(1024, **HALF), torch.cuda.CUDAGraph()
    x.mul_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(50):
            x.mul_(1.0)
    return lambda: (graph.replay(), x)  # the graph writes to memory that is not its own


def copy():
    x, y = torch.empty(1 << 26, dtype=torch.uint8).pin_memory(), torch.empty(1 << 26, **HALF)
    y = y.view(torch.uint8)[: 1 << 26]
    return lambda: y.copy_(x, non_blocking=True)


def synchronises():
    x = torch.randn(1 << 20, **HALF)
    return lambda: x.sum().item()


def gemm_1_1024():
    a, b = torch.randn(1, 1024, **HALF), torch.randn(1024, 1024, **HALF)
    return lambda: a @ b


def gemm_256():
    a, b = (torch.randn(256, 256, **HALF) for _ in range(2))
    return lambda: a @ b


def tiny_relu():
    x = torch.randn(2048, **HALF)
    return lambda: torch.relu(x)


def l2_norm():
    x = torch.randn(4096, 4096, **HALF)
    return lambda: F.normalize(x, dim=-1)


def layer_norm_1024():
    x, weight = torch.randn(4096, 1024, **HALF), torch.ones(1024, **HALF)
    return lambda: F.layer_norm(x, (1024,), weight)


def rms_norm_in_l2():
    x, weight = torch.randn(4096, 1024, **HALF), torch.ones(1024, **HALF)
    return lambda: F.rms_norm(x, (1024,), weight)


def _gemm(make):
    a, b = make(8192, 8192, **HALF), make(8192, 8192, **HALF)
    return lambda: a @ b


def gemm_zeros():
    return _gemm(torch.zeros)


def gemm_random():
    return _gemm(torch.randn)


#: Call -> the thread that it stands for, and what was said there (us, on the thread's own GPU).
ASKED = {
    gemm_1_1024: "tile-ai/tilelang 1633: events 8.77, CUPTI 4.64, do_bench_cudagraph 3.65",
    gemm_256: "triton-lang/triton 10149: do_bench 6.1, do_bench_cudagraph 2.2, flushed in between",
    tiny_relu: "pytorch/pytorch 196413: a graph of one call carries 5 to 7 us of launch and events",
    l2_norm: "tile-ai/TileOPs 1791: events 67, CUPTI 9",
    layer_norm_1024: "meta-pytorch/tritonbench 386: do_bench 24 with its launches, graph less",
    rms_norm_in_l2: "NVIDIA/TileGym 82, flashinfer 4468: a graph's repetitions find the L2 warm",
}

CALLS = [
    add_inplace, matmul_512, matmul_4096, softmax, layer_norm_backward, fifty_launches,
    efficientnet_1, efficientnet_64, attention, graph_replay, copy, synchronises,
]  # fmt: skip


def originals(name: str) -> None:
    """What the originals print of one call, us, in this process: one line each."""
    call = globals()[name]()
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    kept = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for name, made in (("new events", lambda: torch.cuda.Event(enable_timing=True)), ("events", 0)):
        times = []
        for _ in range(300):
            start, end = (made(), made()) if made else kept
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        print(f"loop of {name}, median\t{1e3 * sorted(times)[150]:.2f}")
    try:
        from triton import testing
    except ImportError:
        return
    for time_it in (testing.do_bench, testing.do_bench_cudagraph):
        try:
            print(f"{time_it.__name__}\t{1e3 * time_it(call):.2f}")
        except Exception as error:
            print(f"{time_it.__name__}\t{type(error).__name__}")


def main(out: Path, names: list[str]) -> None:
    from nsysalign.addons.measure.result import load

    out.mkdir(parents=True, exist_ok=True)
    heads = ("call", "l2", "clock", "us", "to_next_us", "cause", "known_us", "not_known_us", "mhz")
    with open(out / "ladder.tsv", "w", encoding="utf-8") as file:
        print(*heads, sep="\t", file=file)
        chosen = ASKED if names == ["asked"] else CALLS
        for name in [c.__name__ for c in chosen] if names in ([], ["asked"]) else names:
            run, spec = out / name, f"{__file__}:{name}"
            options = ["--clocks", "--processes", "1", "--budget", "60s", "-o", run]
            print(f"== {name}", flush=True)
            subprocess.run([sys.executable, "-m", "nsysalign", "measure", spec, *options])
            if not (run / "measure.json").is_file():
                continue
            for row in load(run).ladder:
                step, known = row["next_ns"], row["known_ns"]
                numbers = (row["value_ns"], step, known, step - known)
                us = [f"{ns / 1e3:.2f}" if ns == ns else "" for ns in numbers]
                cells = (name, row["l2"], row["name"], us[0], us[1], row["cause"], us[2], us[3])
                print(*cells, row["mhz"], sep="\t", file=file, flush=True)
            by_itself = [sys.executable, __file__, "--originals", name]
            done = subprocess.run(by_itself, capture_output=True, text=True)
            for line in done.stdout.splitlines():
                clock, _, value = line.partition("\t")
                print(name, "", f"original: {clock}", value, *[""] * 5, sep="\t", file=file)
                print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--originals"]:
        originals(sys.argv[2])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
