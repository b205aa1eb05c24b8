"""Marks, phases and path counters inside kernels, on the timeline of the trace (docs/marks.md).

    import nsysalign.marks as marks

    buffer = marks.buffer(mib=64)
    module = load_inline(..., extra_cuda_cflags=marks.flags())      # -I ... -DNSYSALIGN_MARKS
    module.gemm(a, b, c, buffer.address)

In the kernel: `#include <nsysalign/marks.cuh>`.  Importing this needs no GPU.
"""

from __future__ import annotations

from pathlib import Path

from nsysalign.addons.marks.buffers import Buffer, buffer, collect, on

__all__ = ["Buffer", "buffer", "collect", "flags", "include", "on", "source"]


def include() -> str:
    """The folder for `-I`: `#include <nsysalign/marks.cuh>` is found there."""
    return str(Path(__file__).with_name("include"))


def flags() -> list[str]:
    """Options for the compiler (nvcc or NVRTC): the include folder, and -DNSYSALIGN_MARKS unless
    marks are off (`on`)."""
    return [f"-I{include()}", *(["-DNSYSALIGN_MARKS"] if on() else [])]


def source() -> str:
    """The header's text, for compilers that take no include folder: prepend it to the kernel."""
    text = Path(include(), "nsysalign", "marks.cuh").read_text("utf-8")
    return ("#define NSYSALIGN_MARKS\n" if on() else "") + text.replace("#pragma once\n", "")
