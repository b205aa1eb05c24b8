"""Single operators of torch, again and again, for `nsysalign run --baseline` and `bench_turns.py`.

    python scripts/bench_turns.py DIR scripts/bench_operators.py

Each label is one operator, called 20 times: what nsys adds to what torch does between two launches, which a trace does not
show (calls into CUDA that nsys does not record, but stops at).  The GPU's work is shorter than the host's.
"""

from __future__ import annotations

import sys

import bench_baseline

CALLS = 20


def operators(torch) -> dict:
    """Name -> function that prepares and returns the call."""
    F = torch.nn.functional

    def t(*shape, **kind):
        return torch.rand(shape, device="cuda", **kind)

    half = {"dtype": torch.float16}
    a, b, h, big = t(64, 64), t(64, 64), t(64, 64, **half), t(16, 1024)
    ids, flags = torch.randint(0, 64, (32,), device="cuda"), t(64, 64) > 0.5
    image, image_half = t(1, 16, 16, 16), t(1, 16, 16, 16, **half)
    w, wh, deep = t(16, 16, 3, 3), t(16, 16, 3, 3, **half), t(16, 1, 3, 3)
    line, bias, b3 = t(64, 64), t(64), t(4, 64, 64)
    table = t(500, 64)
    q, q32 = t(1, 4, 32, 64, **half), t(1, 4, 32, 64)
    pinned, pageable, target = torch.zeros(1024).pin_memory(), torch.zeros(1024), t(1024)
    many = [t(64) for _ in range(10)]
    lstm, gru = torch.nn.LSTM(64, 64).cuda(), torch.nn.GRUCell(64, 64).cuda()
    steps = t(4, 2, 64)
    mean, var = t(16), t(16) + 1
    logits, classes = t(8, 64), torch.randint(0, 64, (8,), device="cuda")
    weights = {
        n: torch.nn.Parameter(x)
        for n, x in {
            "line": t(64, 64),
            "conv": t(16, 16, 3, 3),
            "norm": t(64),
            "table": t(500, 64),
        }.items()
    }
    trained = [torch.nn.Parameter(t(64)) for _ in range(10)]
    for p in trained:
        p.grad = torch.zeros_like(p)
    adam = {kind: torch.optim.Adam(trained, **{kind: True}) for kind in ("foreach", "fused")}
    loop = torch.optim.Adam(trained[:2], foreach=False)

    def backward(call):
        def both():
            for p in weights.values():
                p.grad = None
            with torch.enable_grad():
                call().sum().backward()

        return both

    return {
        "add_": lambda: a.add_(1.0), "add": lambda: a + b, "mul_scalar": lambda: a * 1.5, "relu": lambda: F.relu(a),
        "gelu": lambda: F.gelu(a), "sigmoid": lambda: torch.sigmoid(h), "silu": lambda: F.silu(a), "where": lambda: torch.where(flags, a, b),
        "greater": lambda: a > 0.5, "zero_": lambda: a.zero_(), "fill_": lambda: a.fill_(1.0), "to_float": lambda: h.float(),
        "to_half": lambda: a.half(), "clamp": lambda: a.clamp(0, 1), "contiguous": lambda: a.t().contiguous(), "rsqrt": lambda: a.rsqrt(),
        "sum": lambda: a.sum(), "mean_dim": lambda: a.mean(-1), "max_dim": lambda: a.max(-1), "argmax": lambda: a.argmax(-1),
        "std": lambda: a.std(), "softmax": lambda: torch.softmax(a, -1), "log_softmax": lambda: F.log_softmax(a, -1),
        "layer_norm": lambda: F.layer_norm(a, (64,)), "group_norm": lambda: F.group_norm(image, 4), "cumsum": lambda: a.cumsum(-1),
        "batch_norm": lambda: F.batch_norm(image, mean, var), "any": lambda: flags.any(), "norm": lambda: a.norm(),
        "mm": lambda: torch.mm(a, b), "mm_half": lambda: torch.mm(h, h), "linear": lambda: F.linear(a, line, bias),
        "linear_half": lambda: F.linear(h, h), "linear_one": lambda: F.linear(a[:1], line, bias), "bmm": lambda: torch.bmm(b3, b3),
        "baddbmm": lambda: torch.baddbmm(b3, b3, b3), "matmul_3": lambda: b3 @ a, "einsum": lambda: torch.einsum("ij,jk->ik", a, b),
        "conv": lambda: F.conv2d(image, w, padding=1), "conv_half": lambda: F.conv2d(image_half, wh, padding=1),
        "conv_depthwise": lambda: F.conv2d(image, deep, padding=1, groups=16), "conv_stride": lambda: F.conv2d(image, w, stride=2),
        "max_pool": lambda: F.max_pool2d(image, 2), "adaptive_pool": lambda: F.adaptive_avg_pool2d(image, 1),
        "interpolate": lambda: F.interpolate(image, scale_factor=2), "pad": lambda: F.pad(a, (1, 1)),
        "embedding": lambda: F.embedding(ids, table), "index": lambda: table[ids], "index_select": lambda: table.index_select(0, ids),
        "gather": lambda: logits.gather(1, classes[:, None]), "masked_fill": lambda: a.masked_fill(flags, 0.0), "nonzero": lambda: flags.nonzero(),
        "topk": lambda: big.topk(4), "sort": lambda: big.sort(), "argsort_1d": lambda: target.argsort(), "scatter_add": lambda: target.scatter_add(0, ids, bias[:32]),
        "arange": lambda: torch.arange(64, device="cuda"), "cat": lambda: torch.cat([a, b]), "stack": lambda: torch.stack([a, b]),
        "tril": lambda: a.tril(), "repeat": lambda: a.repeat(2, 1), "roll": lambda: a.roll(1, 0),
        "sdpa_half": lambda: F.scaled_dot_product_attention(q, q, q), "sdpa": lambda: F.scaled_dot_product_attention(q32, q32, q32),
        "sdpa_causal": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "lstm": lambda: lstm(steps), "gru_cell": lambda: gru(a), "rand": lambda: torch.rand(64, device="cuda"),
        "multinomial": lambda: torch.multinomial(logits, 1), "dropout": lambda: F.dropout(a, 0.1, True), "zeros": lambda: torch.zeros(64, device="cuda"),
        "copy_device": lambda: a.copy_(b), "copy_pinned": lambda: target.copy_(pinned, non_blocking=True), "copy_pageable": lambda: target.copy_(pageable),
        "to_device": lambda: pageable.cuda(), "item": lambda: bias[0].item(), "cpu": lambda: bias.cpu(), "tolist": lambda: bias.tolist(),
        "foreach_add": lambda: torch._foreach_add_(many, 1.0), "adam_foreach": adam["foreach"].step, "adam_fused": adam["fused"].step, "adam_loop": loop.step,
        "cross_entropy": lambda: F.cross_entropy(logits, classes), "backward_linear": backward(lambda: F.linear(a, weights["line"])),
        "backward_conv": backward(lambda: F.conv2d(image, weights["conv"], padding=1)), "backward_norm": backward(lambda: F.layer_norm(a, (64,), weights["norm"])),
        "backward_embedding": backward(lambda: F.embedding(ids, weights["table"])), "event": lambda: torch.cuda.Event(enable_timing=True).record(),
        "synchronize": torch.cuda.synchronize,
    }  # fmt: skip


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        print("bench_operators.py needs a CUDA device")
        return
    torch.manual_seed(0)
    several = {
        f"op_{name}": lambda call=call: [call() for _ in range(CALLS)]
        for name, call in operators(torch).items()
    }
    with torch.no_grad():
        bench_baseline.timed_each(several, 10)


if __name__ == "__main__":
    sys.exit(main())
