"""triton's do_bench over a few sizes, with quantiles, as kernels are usually compared."""

import torch
from triton.testing import do_bench

for n in (256, 1024, 4096):
    a = torch.randn(n, n, dtype=torch.float16, device="cuda")
    ms = do_bench(lambda a=a: a @ a, warmup=5, rep=15, quantiles=[0.5, 0.2, 0.8])
    print(f"matmul {n}: {ms[0] * 1e3:.1f} us ({ms[1] * 1e3:.1f} to {ms[2] * 1e3:.1f})")
a = torch.randn(1 << 22, device="cuda")
print(
    f"softmax: {do_bench(lambda: torch.softmax(a.view(1024, -1), -1), warmup=5, rep=15) * 1e3:.1f} us"
)
