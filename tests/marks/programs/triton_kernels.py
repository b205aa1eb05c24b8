"""One matmul three times, for against.py: plain, with our ranges and with Proton's scopes around
each step."""

import triton
import triton.language as tl

from nsysalign.marks import triton as nm


@triton.jit
def plain(a, b, c, N, B: tl.constexpr, BK: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = pm * B + tl.arange(0, B), pn * B + tl.arange(0, B), tl.arange(0, BK)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, N, BK):
        x = tl.load(a + rm[:, None] * N + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        total = tl.dot(x, y, total)
    tl.store(c + rm[:, None] * N + rn[None, :], total.to(tl.float16))


@triton.jit
def marked(a, b, c, N, marks_, B: tl.constexpr, BK: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    w = nm.enter(marks_)
    rm, rn, rk = pm * B + tl.arange(0, B), pn * B + tl.arange(0, B), tl.arange(0, BK)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, N, BK):
        w = nm.begin(marks_, w, "step")
        x = tl.load(a + rm[:, None] * N + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        total = tl.dot(x, y, total)
        w = nm.end(marks_, w, "step")
    tl.store(c + rm[:, None] * N + rn[None, :], total.to(tl.float16))
    nm.leave(marks_, w)


def scoped():
    """The kernel with Proton's scopes; ImportError or AttributeError where this Triton has none."""
    import triton.profiler.language as pl

    pl.enable_semantic("triton")
    globals()["pl"] = pl
    return _scoped


@triton.jit
def _scoped(a, b, c, N, B: tl.constexpr, BK: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = pm * B + tl.arange(0, B), pn * B + tl.arange(0, B), tl.arange(0, BK)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, N, BK):
        pl.enter_scope("step")  # noqa: F821
        x = tl.load(a + rm[:, None] * N + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        total = tl.dot(x, y, total)
        pl.exit_scope("step")  # noqa: F821
    tl.store(c + rm[:, None] * N + rn[None, :], total.to(tl.float16))
