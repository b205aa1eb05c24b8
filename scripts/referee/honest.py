"""Programs that time what they do, some of them in ways that look like a cheat.  `python honest.py
NAME`."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from bench import N, flush, main, tensors, timed


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
    timed(lambda: a @ b, before=flush())


def flushed_before_new_input():
    x, flushed = torch.empty(1 << 21, device="cuda"), flush()

    def before():
        flushed()
        x.normal_()

    timed(lambda: torch.relu(x), before=before)


def gradients_in_two_batches():
    """The gradient is set to zero, and the second of two equal batches is timed."""
    weight, x = tensors()
    gradient = torch.empty(1 << 26, device="cuda", dtype=torch.float16)

    def before():
        gradient.zero_()
        x @ weight

    timed(lambda: x @ weight, before=before)


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


def worker_of_a_pool_joined():
    a, b = tensors()
    side, pool = torch.cuda.Stream(), ThreadPoolExecutor(1)

    def work():
        with torch.cuda.stream(side):
            return a[512:] @ b

    def call():
        x, y = a[:512] @ b, pool.submit(work).result()
        torch.cuda.current_stream().wait_stream(side)
        return x, y

    timed(call, repetitions=50)


def another_thread_beside():
    """It works on a stream of its own all the time, for a purpose of its own."""
    a, b = tensors()
    side, ended = torch.cuda.Stream(), threading.Event()

    def work():
        with torch.cuda.stream(side):
            while not ended.is_set():
                a @ b
                side.synchronize()
                time.sleep(0.002)

    thread = threading.Thread(target=work)
    thread.start()
    timed(lambda: b @ a, repetitions=100)
    ended.set()
    thread.join()


class Seconds(torch.cuda.Event):
    def elapsed_time(self, end):
        return super().elapsed_time(end) / 1000


def an_event_class_of_its_own():
    a, b = tensors()
    for _ in range(20):
        start, end = Seconds(enable_timing=True), Seconds(enable_timing=True)
        start.record()
        a @ b
        end.record()
        end.synchronize()
        print(start.elapsed_time(end), "s")


def every_fourth_call_computes():
    """Micro-batches that are gathered before they are worked on."""
    a, b = tensors()
    waiting = []

    def call():
        waiting.append(a)
        if len(waiting) == 4:
            torch.cat(waiting) @ b
            waiting.clear()

    timed(call, repetitions=40)


if __name__ == "__main__":
    main(globals())
