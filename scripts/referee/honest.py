"""Programs that time what they do, some of them in ways that look like a cheat.  `python honest.py
NAME`."""

import torch
from bench import N, main, tensors, timed


def matmul():
    a, b = tensors()
    timed(lambda: a @ b)


def chain():
    a, b = tensors()
    timed(lambda: torch.softmax(torch.relu(a @ b) + 1, -1))


def side_stream_joined():
    a, b = tensors()
    side = torch.cuda.Stream()

    def call():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x = a @ b
        y = b @ a
        torch.cuda.current_stream().wait_stream(side)
        return x + y

    timed(call)


def events_on_the_side_stream():
    a, b = tensors()
    with torch.cuda.stream(torch.cuda.Stream()):
        timed(lambda: a @ b)


def graph():
    a, b = tensors()
    g = torch.cuda.CUDAGraph()
    a @ b
    torch.cuda.synchronize()
    with torch.cuda.graph(g):
        (a @ b).relu()
    timed(g.replay)


def prefetch():
    a, b = tensors()
    host, side = torch.empty(1 << 28, dtype=torch.uint8).pin_memory(), torch.cuda.Stream()

    def call():
        with torch.cuda.stream(side):
            host.to("cuda", non_blocking=True)
        return a @ b

    timed(call)


def flushed():
    a, b = tensors()
    size = torch.cuda.get_device_properties(0).L2_cache_size
    flush = torch.empty(2 * size, device="cuda", dtype=torch.uint8)
    timed(lambda: a @ b, before=flush.zero_)


def cudnn_tries_algorithms():
    torch.backends.cudnn.benchmark = True
    conv = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
    x = torch.randn(16, 64, 128, 128, device="cuda")
    with torch.no_grad():
        timed(lambda: conv(x))


def training_step():
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
    optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(256, 1024, device="cuda")

    def call():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    timed(call)


def sizes_in_a_loop():
    for n in (N, N // 2, N // 4):
        a = torch.randn(n, n, device="cuda", dtype=torch.float16)
        timed(lambda a=a: a @ a)


def last_batch_is_smaller():
    a = tensors()[0]
    batches = [a] * 19 + [a[: N // 3]]
    timed(lambda: torch.relu(batches.pop(0)))


def data_dependent():
    x = torch.randn(1 << 22, device="cuda")
    timed(lambda: torch.nonzero(x > torch.randn((), device="cuda")))


def copy_on_the_device():
    x = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    timed(x.clone)


def do_bench():
    from triton.testing import do_bench

    a, b = tensors()
    print(do_bench(lambda: a @ b), "ms")


def compiled():
    a, b = tensors()
    timed(torch.compile(lambda: torch.softmax(a @ b, -1), mode="reduce-overhead"))


if __name__ == "__main__":
    main(globals())
