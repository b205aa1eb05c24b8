"""The worked example of docs/marks.md:  nsysalign run --marks tests/marks/programs/example.py   (needs torch and CuPy)."""

from pathlib import Path

import cupy
import numpy as np
import torch

import nsysalign
import nsysalign.marks as marks

buffer = marks.buffer(mib=64)
source = Path(__file__).with_suffix(".cu").read_text()
module = cupy.RawModule(code=source, options=tuple(marks.flags()))
n, k, rows = 1536, 192, 1056
a, b, c = (
    torch.rand(n, k, device="cuda"),
    torch.rand(k, n, device="cuda"),
    torch.empty(n, n, device="cuda"),
)
data, sums = torch.rand(rows + 1, 4096, device="cuda"), torch.empty(rows, device="cuda")
pointer = [np.uint64(t.data_ptr()) for t in (a, b, c, data, sums)]
address = np.uint64(buffer.address)
tile = 100_000  # bytes of shared memory, as a tile of keys would take: two blocks fit on an SM
work = {
    "gemm": ((n // 128, n // 128), 256, (*pointer[:3], np.int32(n), np.int32(k), address), 0),
    "short_first": ((rows,), 128, (*pointer[3:], address), tile),
    "long_first": ((rows,), 128, (*pointer[3:], address), tile),
}
for name, (grid, threads, arguments, shared) in work.items():
    kernel = module.get_function(name)
    kernel.max_dynamic_shared_size_bytes = shared
    kernel(grid, (threads,), arguments, shared_mem=shared)
    torch.cuda.synchronize()
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)
        with nsysalign.region(name):
            start.record()
            kernel(grid, (threads,), arguments, shared_mem=shared)
            end.record()
        end.synchronize()
        print(name, start.elapsed_time(end))
print("largest error of the product:", float((c - a @ b).abs().max()))
