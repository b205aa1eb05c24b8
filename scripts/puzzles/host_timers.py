"""One addition timed by the host's clock in the four classic ways, built in and as an operator of
our own.

Synchronise before and after, only before, only after, never: four numbers for the same work.  Then
timeit and torch.utils.benchmark.  The operator of our own is compiled on the spot (CUDA where nvcc
is, else C++; a minute).
"""

# expects: enqueue-only queued
import shutil
import statistics
import time
import timeit

import torch
import torch.utils.benchmark as benchmark

REPETITIONS = 20
CUDA_SOURCE = """
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
torch::Tensor our_add(torch::Tensor a, torch::Tensor b) {
  auto c = torch::empty_like(a);
  int n = a.numel();
  add<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), n);
  return c;
}
"""
CPP_SOURCE = """
#include <torch/extension.h>
torch::Tensor our_add(torch::Tensor a, torch::Tensor b) { return at::add(a, b); }
"""
DECLARATION = "torch::Tensor our_add(torch::Tensor a, torch::Tensor b);"


def both(op, a, b):
    times = []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        op(a, b)
        torch.cuda.synchronize()
        t1 = time.perf_counter()
        times.append(t1 - t0)
    return times


def only_before(op, a, b):
    times = []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        op(a, b)
        t1 = time.perf_counter()
        times.append(t1 - t0)
    return times


def only_after(op, a, b):
    times = []
    for _ in range(REPETITIONS):
        torch.mm(b, b)  # the rest of a program: it is still running when the clock is read
        t0 = time.perf_counter()
        op(a, b)
        torch.cuda.synchronize()
        t1 = time.perf_counter()
        times.append(t1 - t0)
    return times


def never(op, a, b):
    times = []
    for _ in range(REPETITIONS):
        torch.mm(b, b)
        t0 = time.perf_counter()
        op(a, b)
        t1 = time.perf_counter()
        times.append(t1 - t0)
    torch.cuda.synchronize()
    return times


def show(name, times):
    print(f"{name:<28} median {statistics.median(times) * 1e6:9.1f} us of {len(times)}")


def our_operator():
    """The operator, or None with a word about what is missing."""
    try:
        from torch.utils.cpp_extension import CUDA_HOME, load_inline

        if CUDA_HOME and shutil.which("nvcc", path=f"{CUDA_HOME}/bin"):
            module = load_inline("our_add_cuda", DECLARATION, CUDA_SOURCE, functions=["our_add"])
            return "own CUDA operator", module.our_add
        if shutil.which("g++") or shutil.which("c++"):
            return "own C++ operator", load_inline(
                "our_add_cpp", CPP_SOURCE, functions=["our_add"]
            ).our_add
        print("no operator of our own: neither nvcc nor a C++ compiler here")
    except Exception as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        print(f"no operator of our own: it could not be compiled ({first[0]})")
    return None


a = torch.rand(2048, 2048, device="cuda")
b = torch.rand(2048, 2048, device="cuda")
own = our_operator()
for op in [torch.add] + (
    [own[1]] if own else []
):  # first calls load modules: not what is asked here
    op(a, b)
torch.mm(b, b)
torch.cuda.synchronize()

show("torch.add, both", both(torch.add, a, b))
show("torch.add, only before", only_before(torch.add, a, b))
show("torch.add, only after", only_after(torch.add, a, b))
show("torch.add, never", never(torch.add, a, b))
if own:
    name, our_add = own
    show(f"{name}, both", both(our_add, a, b))
    show(f"{name}, only before", only_before(our_add, a, b))
    show(f"{name}, only after", only_after(our_add, a, b))
    show(f"{name}, never", never(our_add, a, b))

torch.cuda.synchronize()
seconds = timeit.timeit(lambda: torch.add(a, b), number=100)
print(f"{'timeit, 100 times':<28} mean   {seconds / 100 * 1e6:9.1f} us (nothing waits for the GPU)")
torch.cuda.synchronize()
measured = benchmark.Timer("torch.add(a, b)", globals={"torch": torch, "a": a, "b": b}).timeit(100)
print(f"{'torch.utils.benchmark, 100':<28} mean   {measured.mean * 1e6:9.1f} us")
