"""A matmul timed by triton.testing.do_bench: its events are made inside the library."""

# expects: nothing
import sys

import torch

try:
    from triton.testing import do_bench
except ImportError:
    sys.exit("dobench.py needs triton: pip install triton")

a = torch.randn(1024, 1024, dtype=torch.float16, device="cuda")
b = torch.randn(1024, 1024, dtype=torch.float16, device="cuda")
ms = do_bench(lambda: a @ b, warmup=5, rep=20)
print(f"matmul 1024: {ms * 1e3:.1f} us")
