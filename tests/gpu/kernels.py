"""Kernels of known length: they read the GPU's own clock (%globaltimer) and spin until it has moved
on."""

from __future__ import annotations

import torch

_SOURCE = """
__device__ __forceinline__ unsigned long long now() {
  unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t;
}
extern "C" __global__ void spin_ns(int ns) {
  unsigned long long t0 = now();
  while (now() - t0 < (unsigned long long)ns) {}
}
"""
_kernels: dict[str, object] = {}


def _kernel(name: str):
    if name not in _kernels:
        _kernels[name] = torch.cuda._compile_kernel(_SOURCE, name)
    return _kernels[name]


def spin(us: float, *, whole_gpu: bool = False) -> None:
    """Run `us` microseconds on the current stream, on one block or on every thread slot of the
    device."""
    blocks = 1
    if whole_gpu:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        blocks = (
            properties.multi_processor_count * properties.max_threads_per_multi_processor // 1024
        )
    _kernel("spin_ns")((blocks, 1, 1), (1024 if whole_gpu else 1, 1, 1), (round(us * 1000),))
