"""First calls, one after the other: every operation is new, its code is loaded while it is timed."""

import torch

x = torch.rand(512, 512, device="cuda", dtype=torch.float64) * 0.9
operations = [
    torch.tanh, torch.erfinv, torch.special.i1e, torch.lgamma, torch.special.ndtri, torch.atanh, torch.expm1,
    torch.digamma, torch.special.bessel_j0, torch.frac, torch.special.entr, torch.sinc, torch.logit, torch.trunc,
    lambda t: torch.sort(t, dim=1).values, lambda t: torch.cumsum(t, 0), lambda t: torch.topk(t, 5).values,
    lambda t: torch.fft.fft2(t).abs(), lambda t: torch.unique(t[:4]), lambda t: torch.histc(t, 20),
]  # fmt: skip
for round_ in range(2):
    times = []
    for operation in operations:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        operation(x)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    print(f"round {round_}: " + " ".join(f"{t:.2f}" for t in times))
