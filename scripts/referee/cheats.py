"""Programs whose timing leaves out what they do.  `python cheats.py NAME`, without a name: the
names."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from bench import flush, main, tensors, timed


def side_stream():
    a, b = tensors()
    side = torch.cuda.Stream()

    def call():
        with torch.cuda.stream(side):
            return a @ b

    timed(call)


def half_on_a_side_stream():
    a, b = tensors()
    side = torch.cuda.Stream()

    def call():
        x = a[:512] @ b
        with torch.cuda.stream(side):
            return x, a[512:] @ b

    timed(call)


def waits_but_is_not_waited_for():
    a, b = tensors()
    side = torch.cuda.Stream()

    def call():
        c = a + b
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return c @ b

    timed(call)


def joined_too_early():
    a, b = tensors()
    side = torch.cuda.Stream()

    def call():
        with torch.cuda.stream(side):
            x = a + b
            torch.cuda.current_stream().record_event(done)
            y = a @ b @ b  # two kernels: the addition below gets its turn between them
        torch.cuda.current_stream().wait_event(done)
        return x + 1, y

    done = torch.cuda.Event()
    timed(call)


def graph_on_a_side_stream():
    a, b = tensors()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    a @ b
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        a @ b

    def call():
        with torch.cuda.stream(side):
            graph.replay()

    timed(call)


def copy_on_a_side_stream():
    side, big = torch.cuda.Stream(), torch.empty(1 << 30, device="cuda", dtype=torch.uint8)

    def call():
        with torch.cuda.stream(side):
            return big.clone()

    timed(call)


def late_thread():
    """Another thread launches it, on a stream of its own."""
    a, b = tensors()
    side = torch.cuda.Stream()

    def work():
        with torch.cuda.stream(side):
            a @ b

    def call():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    timed(call)


def kept_result():
    a, b = tensors()
    kept = []

    def call():
        if not kept:
            kept.append(a @ b)
        return kept[0]

    timed(call)


def kept_after_warm_up():
    a, b = tensors()
    calls = []

    def call():
        calls.append(a @ b if len(calls) < 3 else calls[-1])
        return calls[-1]

    timed(call)


def kept_and_copied():
    a, b = tensors()
    kept = []

    def call():
        if not kept:
            kept.append(a @ b)
        return kept[0].clone()

    timed(call)


def computed_before():
    a, b = tensors()
    kept = a @ b
    timed(lambda: kept)


def smaller_after_warm_up():
    a = tensors()[0]
    calls = []

    def call():
        calls.append(1)
        rows = len(a) if len(calls) <= 2 else len(a) // 4
        return torch.relu(a[:rows])

    timed(call)


def halved_elapsed_time():
    a, b = tensors()
    original = torch.cuda.Event.elapsed_time
    torch.cuda.Event.elapsed_time = lambda start, end: original(start, end) / 2
    timed(lambda: a @ b)


def constant_elapsed_time():
    a, b = tensors()
    torch.cuda.Event.elapsed_time = lambda start, end: 0.001
    timed(lambda: a @ b)


def no_synchronize():
    a, b = tensors()
    torch.cuda.synchronize = lambda device=None: None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    a @ b
    end.record()
    end.synchronize()
    print(start.elapsed_time(end), "ms")


def restored_elapsed_time():
    """As gpu-mode/reference-kernels 162, and then it covers its tracks."""
    a, b = tensors()
    original = torch.cuda.Event.elapsed_time
    torch.cuda.Event.elapsed_time = lambda start, end: 0.001
    timed(lambda: a @ b)
    torch.cuda.Event.elapsed_time = original


def slower_clock():
    """The host's clock runs at a tenth of its speed."""
    a, b = tensors()
    original = time.perf_counter
    time.perf_counter = lambda: original() / 10
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        print(time.perf_counter() - start, "s")


class Lazy(torch.Tensor):
    """The product is computed when somebody looks (CUDA-L1 12, gpu-mode/reference-kernels 161)."""

    @staticmethod
    def __new__(cls, a, b):
        out = torch.Tensor._make_subclass(cls, torch.empty(0))
        out.parts = a, b
        return out

    def value(self):
        return self.parts[0] @ self.parts[1]


def lazy_result():
    a, b = tensors()
    results = []

    def check():
        while results:
            results.pop().value()

    timed(lambda: results.append(Lazy(a, b)), before=check)
    check()


def worker_of_a_pool():
    """A thread that lives on launches most of the work, on a stream of its own."""
    a, b = tensors()
    side, pool = torch.cuda.Stream(), ThreadPoolExecutor(1)

    def work():
        with torch.cuda.stream(side):
            return a[512:] @ b

    timed(lambda: (a[:512] @ b, pool.submit(work).result()), repetitions=50)


def _serve(asked, launched):
    a, b = tensors()
    while asked.get():
        a @ b
        launched.put(1)
    torch.cuda.synchronize()


def worker_process():
    """Another process launches it and answers at once."""
    context = multiprocessing.get_context("spawn")
    asked, launched = context.Queue(), context.Queue()
    worker = context.Process(target=_serve, args=(asked, launched))
    worker.start()
    timed(lambda: (asked.put(1), launched.get()))
    asked.put(0)
    worker.join()


def warmed_after_the_flush():
    """The L2 is flushed before the call that is not timed (llm.c 851 is about the same aim)."""
    x, flushed = torch.randn(1 << 21, device="cuda"), flush()

    def before():
        flushed()
        torch.relu(x)

    timed(lambda: torch.relu(x), before=before)


if __name__ == "__main__":
    main(globals())
