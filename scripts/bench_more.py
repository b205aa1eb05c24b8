"""Yet more workloads for `nsysalign run --baseline`, none of which the prediction without nsys or its bars were fitted to.

    nsysalign run --baseline -o DIR scripts/bench_more.py          these, after those of bench_baseline.py and bench_models.py
    python scripts/score_predictions.py DIR [DIR...]

Chains in place and out of place, Python between launches, attention, mixed precision, embeddings, decoding with a cache and with
sampling, copies both ways, waits inside, several streams, graphs.  Needs torch only.  Without a GPU it says so and ends well.
"""

from __future__ import annotations

import functools
import sys

import bench_baseline
import bench_models

REPEATS = 20


def small_work(torch, x):
    """Single operators and tight loops; name -> call."""
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    table, ids = torch.randn(5000, 128, device="cuda"), torch.randint(0, 5000, (64,), device="cuda")

    def spaced(statements: int, launches: int = 15):
        def call():
            for _ in range(launches):
                total = 0
                for number in range(statements):
                    total += number
                x.add_(1.0)

        return call

    def out_of_place():
        y = x
        for _ in range(25):
            y = y * 1.01 + 0.5
        return y

    return {
        "chain_in_place": lambda: [x.add_(0.5) for _ in range(40)],
        "chain_out_of_place": out_of_place,
        "python_50": spaced(50),
        "python_400": spaced(400),
        "matmul_chain": lambda: [torch.mm(a, b) for _ in range(12)],
        "einsum": lambda: [torch.einsum("ij,jk->ik", a, b) for _ in range(4)],
        "embedding_sum": lambda: [
            torch.nn.functional.embedding(ids, table).sum(0) for _ in range(6)
        ],
        "softmax_topk": lambda: [torch.softmax(a, -1).topk(5) for _ in range(5)],
        "where_mean_std": lambda: [torch.where(a > 0, a, b).mean() + a.std() for _ in range(4)],
        "cat_split": lambda: [torch.cat(torch.split(a, 32)) for _ in range(4)],
        "zero_fill": lambda: [x.zero_().fill_(1.0) for _ in range(10)],
        "large_matmul": lambda: torch.mm(table[:4096] @ table[:4096].T, table[:4096]),
    }


def waiting_work(torch, x):
    """Copies, waits inside and several streams."""
    pinned, pageable = torch.zeros(1 << 14).pin_memory(), torch.zeros(1 << 14)
    target, side = torch.zeros(1 << 14, device="cuda"), torch.cuda.Stream()

    def fork_join():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(4):
                target.mul_(1.01)
        for _ in range(4):
            x.add_(1.0)
        main.wait_stream(side)

    return {
        "copies_to": lambda: [target.copy_(pinned, non_blocking=True).mul_(2.0) for _ in range(6)],
        "copy_pageable": lambda: target.copy_(pageable),
        "copy_back": lambda: target.cpu(),
        "loss_items": lambda: [(x.sum() * k).item() for k in range(3)],
        "any_branch": lambda: x.add_(1.0) if bool((x > 0).any()) else x.sub_(1.0),
        "fork_join": fork_join,
    }


def model_work(torch):
    """Layers, training in mixed precision, decoding."""
    nn, F = torch.nn, torch.nn.functional
    q, k, v = (torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    mlp = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(384, 384), nn.SiLU()))).cuda()
    norm, lstm = nn.LayerNorm(384).cuda(), nn.LSTM(64, 64, num_layers=2).cuda()
    batch, steps = torch.randn(32, 384, device="cuda"), torch.randn(12, 4, 64, device="cuda")
    adam = torch.optim.AdamW(mlp.parameters())
    vocabulary = nn.Linear(384, 4096).cuda()
    cache = torch.zeros(1, 8, 256, 48, device="cuda")

    @torch.no_grad()
    def inference():
        return norm(mlp(batch))

    def mixed_precision():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = mlp(batch).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    @torch.no_grad()
    def sampled(count=4):
        x = batch[:1]
        for _ in range(count):
            token = torch.multinomial(torch.softmax(vocabulary(x), -1), 1)
            x = x + (token % 7)

    @torch.no_grad()
    def cached(count=4):
        x = batch[:1]
        for step in range(count):
            heads = norm(x).view(1, 8, 1, 48)
            cache[:, :, step : step + 1] = heads
            x = F.scaled_dot_product_attention(heads, cache, cache).reshape(1, 384) + x

    def backward():
        mlp(batch).sum().backward()

    return {
        "attention": lambda: [F.scaled_dot_product_attention(q, k, v) for _ in range(4)],
        "mlp_inference": inference,
        "lstm": torch.no_grad()(lambda: lstm(steps)),
        "backward": backward,
        "train_bf16": mixed_precision,
        "sampling": sampled,
        "kv_cache": cached,
    }


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        print("bench_more.py needs a CUDA device")
        return
    bench_baseline.main()
    bench_models.main()
    torch.manual_seed(0)
    timed = functools.partial(bench_baseline.timed, repeats=REPEATS)
    x = torch.ones(2048, device="cuda")
    work = small_work(torch, x) | waiting_work(torch, x) | model_work(torch)
    for name, call in work.items():
        timed(name, call)
    graph = bench_baseline.captured(torch, work["mlp_inference"])
    timed("graph_mlp", graph.replay)
    timed("graphs_between", lambda: (x.add_(1.0), graph.replay(), x.mul_(0.5), graph.replay()))
    delay = lambda: torch.cuda._sleep(6_000_000)  # noqa: E731
    timed("ahead_chain", work["chain_in_place"], before=delay)


if __name__ == "__main__":
    sys.exit(main())
