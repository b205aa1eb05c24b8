"""Marks in a Triton matmul: what is written, as JSON.  python tests/marks/programs/triton_check.py
FOLDER"""

import json
import sys

import torch
import triton
import triton.language as tl

import nsysalign.marks as marks
from nsysalign.addons.marks import dump
from nsysalign.marks import triton as nm


@triton.jit
def matmul(
    a, b, c, M, N, K, marks_, MARKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    pm, pn = tl.program_id(0), tl.program_id(1)
    w = tl.full([], 0, tl.int64)
    if MARKED:
        w = nm.enter(marks_)
    rm, rn, rk = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        if MARKED:
            w = nm.mark(marks_, w, "step")
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        total = tl.dot(x, y, total)
    if MARKED:
        w = nm.begin(marks_, w, "store")
    tl.store(c + rm[:, None] * N + rn[None, :], total.to(tl.float16))
    if MARKED:
        w = nm.end(marks_, w, "store")
        nm.leave(marks_, w)


def main() -> None:
    n, block = 4096, 128
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    grid, buffer = (n // block, n // block), marks.buffer(mib=64)
    sizes = (a, b, c, n, n, n, buffer.address, True, block, block, 64)
    matmul[grid](*sizes, num_warps=8, num_stages=3)
    torch.cuda.synchronize()
    d = dump.read(buffer.write(sys.argv[1] + "/triton.nsam"))
    expected = grid[0] * grid[1] * (n // 64 + 3)
    out = {"written": d.written, "expected": expected, "names": sorted(d.names.values())}
    out["exact"] = d.written + d.dropped == expected
    out["correct"] = float((c - (a @ b)).abs().max()) < 1.0
    print(json.dumps(out))


main()
