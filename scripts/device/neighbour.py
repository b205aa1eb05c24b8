"""Holds half of the GPU's free memory until its input ends, then says whether it is still as it was."""

import sys

import torch

free, _ = torch.cuda.mem_get_info()
held = torch.ones(free // 2, dtype=torch.int8, device="cuda")
print(f"holds {held.numel() / 2**30:.1f} GiB", flush=True)
sys.stdin.read()
print(
    "as it was" if int(held[:: 1 << 20].sum()) == -(-held.numel() // (1 << 20)) else "CHANGED",
    flush=True,
)
