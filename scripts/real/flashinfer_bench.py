"""FlashInfer's bench_gpu_time with events and with a CUDA graph (flashinfer/testing/utils.py, from
the folder in argv).

The rest of FlashInfer is not installed: what that file imports of it, and never calls here, is
stood in for.
"""

import importlib.util
import sys
import types

import torch

for name in ("einops", "flashinfer", "flashinfer.utils"):
    if name != "einops" or importlib.util.find_spec(name) is None:
        module = sys.modules[name] = types.ModuleType(name)
        for function in ("rearrange", "reduce", "repeat", "round_up"):
            setattr(module, function, None)
spec = importlib.util.spec_from_file_location(
    "testing_utils", f"{sys.argv[1]}/flashinfer/testing/utils.py"
)
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)

a = torch.randn(1024, 1024, device="cuda")
keywords = {"dry_run_iters": 5, "repeat_iters": 30, "input_args": (a, a)}
print(len(utils.bench_gpu_time_with_cuda_event(torch.matmul, **keywords)))
print(len(utils.bench_gpu_time_with_cudagraph(torch.matmul, num_iters_within_graph=5, **keywords)))
