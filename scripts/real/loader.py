"""A DataLoader with two workers (forked), timed as people do."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    gpu = "--gpu" in sys.argv
    data = TensorDataset(torch.arange(64.0).reshape(16, 4))
    began, total = time.perf_counter(), 0.0
    for (batch,) in DataLoader(data, batch_size=4, num_workers=2, pin_memory=gpu):
        if gpu:
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            batch = batch.cuda(non_blocking=True) * 2 / 2
            b.record()
            b.synchronize()
            a.elapsed_time(b)
        total += float(batch.sum())
    print(total, time.perf_counter() > began)
