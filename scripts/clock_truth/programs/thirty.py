"""Thirty small workloads, each timed the way one of the usual benchmarks does it."""

import itertools
import threading
import time

import torch
import torch.nn.functional as F


def event():
    return torch.cuda.Event(enable_timing=True)


def report(name, values):
    values = sorted(values)
    print(f"{name:<12} {values[len(values) // 2] * 1e3:9.1f} us")


def timed(name, work, before=lambda: None, repeats=10):
    values = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        before()
        start, end = event(), event()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        values.append(start.elapsed_time(end))
    report(name, values)


def three_linears(name, prepare, flush=lambda: None, repeats=10):
    values = []
    for _ in range(repeats):
        a, b = prepare()
        pairs = []
        for _ in range(3):
            flush()
            start, end = event(), event()
            start.record()
            F.linear(a, b)
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        values += [s.elapsed_time(e) for s, e in pairs]
    report(name, values)


def on_host():
    shape = ((20, 8192), (5120, 8192))
    return [torch.rand(s, dtype=torch.float16).cuda() for s in shape]


def on_device():
    shape = ((20, 8192), (5120, 8192))
    return [torch.rand(s, dtype=torch.float16, device="cuda") for s in shape]


def busy_host(us):
    end = time.perf_counter_ns() + us * 1000
    while time.perf_counter_ns() < end:
        pass


x = torch.ones(64, device="cuda")
matrix = torch.randn(2048, 2048, dtype=torch.half, device="cuda")
large = torch.randn(8192, 8192, dtype=torch.half, device="cuda")
product, large_product = torch.empty_like(matrix), torch.empty_like(large)
cache = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
pinned = torch.empty(16 << 20, dtype=torch.uint8, pin_memory=True)
pageable = torch.ones(16 << 20, dtype=torch.uint8)
device = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
side, third = torch.cuda.Stream(), torch.cuda.Stream()


def mm():
    torch.mm(matrix, matrix, out=product)


def mm_large():
    torch.mm(large, large, out=large_product)


mm(), mm_large(), x.add_(1)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(20):
        x.add_(1)

three_linears("h2d", on_host, repeats=6)
three_linears("dev", on_device)
three_linears("flush", on_device, cache.zero_)
timed("empty", lambda: None)
timed("syncin", lambda: (mm(), torch.cuda.synchronize(), mm()))
timed("streamsync", lambda: (mm(), torch.cuda.current_stream().synchronize(), mm()))
timed("item", lambda: (mm(), x[0].item(), mm()))
timed("pageable", lambda: device.copy_(pageable))
timed("pinned", lambda: device.copy_(pinned, non_blocking=True))
timed("d2h", lambda: pinned.copy_(device, non_blocking=True), repeats=5)
timed("memset", lambda: cache.zero_())
timed("cpugap", lambda: (mm(), busy_host(200), mm()))
timed("queued", mm, before=lambda: torch.cuda._sleep(2_000_000))
timed("small50", lambda: [x.add_(1) for _ in range(50)])
timed("graph", graph.replay)
timed("sleepq", lambda: torch.cuda._sleep(200_000), before=lambda: torch.cuda._sleep(1_000_000))


def other_stream():
    with torch.cuda.stream(side):
        mm_large()
    torch.cuda.current_stream().wait_stream(side)
    mm()


def beside():
    with torch.cuda.stream(side):
        for _ in range(3):
            mm_large()


def on_side():
    with torch.cuda.stream(side):
        mm()


timed("otherstream", other_stream)
timed("contended", mm, before=beside)
timed("wrongstream", on_side)

values = []
for _ in range(10):
    torch.cuda.synchronize()
    start, end = event(), event()
    start.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        mm()
        end.record(side)
    torch.cuda.synchronize()
    values.append(start.elapsed_time(end))
report("crossstream", values)

values, start, end = [], event(), event()
for _ in range(10):
    start.record()
    mm()
    end.record()
    end.synchronize()
    values.append(start.elapsed_time(end))
report("reuse", values)

chain = [event() for _ in range(22)]
torch.cuda.synchronize()
for e in chain:
    e.record()
    mm()
torch.cuda.synchronize()
report("chain", [a.elapsed_time(b) for a, b in itertools.pairwise(chain)])


def worker(number):
    with torch.cuda.stream(torch.cuda.Stream()):
        mine = []
        for _ in range(10):
            start, end = event(), event()
            start.record()
            torch.mm(matrix, matrix)
            end.record()
            end.synchronize()
            mine.append(start.elapsed_time(end))
        report(f"thread {number}", mine)


threads = [threading.Thread(target=worker, args=(n,)) for n in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()

try:
    from triton.testing import do_bench

    print("dobench", do_bench(lambda: torch.mm(matrix, matrix), warmup=5, rep=10))
except ImportError:
    print("no triton")

model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
batch = torch.randn(64, 512, device="cuda")


def train():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


train()
timed("train", train, repeats=8)

try:
    from torchvision.models import efficientnet_b0

    net, image = (
        efficientnet_b0(weights=None).eval().cuda(),
        torch.randn(1, 3, 224, 224, device="cuda"),
    )
    host_image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        net(image)
        timed("effnet", lambda: net(image))
        timed("effnet_h2d", lambda: net(host_image.cuda()))
except ImportError:
    print("no torchvision")

for both in ("both", "first", "second", "none"):
    values = []
    for _ in range(10):
        if both in ("both", "first"):
            torch.cuda.synchronize()
        t0 = time.perf_counter()
        x.add_(1)
        if both in ("both", "second"):
            torch.cuda.synchronize()
        values.append((time.perf_counter() - t0) * 1e3)
    report(f"host {both}", values)
