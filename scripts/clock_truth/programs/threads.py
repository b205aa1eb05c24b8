"""Four threads, each with a stream and a model of its own, each timing its own steps."""

import threading

import torch
from torch import nn

lock = threading.Lock()


def serve(number):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(3)]).half().cuda()
        times = []
        for n in range(40):
            request = torch.randn(8 * (1 + n % 3), 1024).half()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            answer = model(request.cuda(non_blocking=True))
            end.record(stream)
            answer.cpu()
            times.append(start.elapsed_time(end))
    with lock:
        print(f"thread {number}: {sorted(times)[20]:.3f} ms")


torch.zeros(1, device="cuda")
workers = [threading.Thread(target=serve, args=(n,)) for n in range(4)]
for w in workers:
    w.start()
for w in workers:
    w.join()
