"""Programs that use a GPU, each in a way that a recorder inside the process may break: `cases.py NAME`.

What they print is the same in every run, so that output and exit status can be compared; the first words of
each function's docstring are the status with which it ends.  `cases.py` alone lists them.  Parts that only
some machines have (CuPy, numba, JAX, timm, transformers, lightning, triton) are imported inside.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

CASES: dict[str, object] = {}
HERE = os.path.abspath(__file__)


def case(function):
    CASES[function.__name__] = function
    return function


def torch_on_gpu():
    import torch

    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    return torch


def pairs(count: int = 10) -> float:
    """Event pairs around two products; a sum that is the same each time."""
    torch = torch_on_gpu()
    x = torch.ones(256, 256, device="cuda")
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        y = x @ x
        y = y + 1
        end.record()
        end.synchronize()
        start.elapsed_time(end)
    return float(y.sum())


def line(text: str) -> None:
    """In one piece: processes write at once."""
    sys.stdout.flush()
    os.write(1, f"{text}\n".encode())


# --- ends


@case
def plain():
    """0"""
    line(str(pairs()))


@case
def exits():
    """3"""
    line(str(pairs()))
    sys.exit(3)


@case
def exits_with_words():
    """1"""
    pairs()
    sys.exit("these words")


@case
def raises():
    """1"""
    line(str(pairs()))
    raise ValueError("its own")


@case
def ends_at_once():
    """7"""
    line(str(pairs()))
    os._exit(7)


@case
def ends_at_once_with_work():
    """7"""
    pairs()
    torch_on_gpu().cuda._sleep(3_000_000_000)
    line("left")
    os._exit(7)


@case
def terminated():
    """143"""
    line(str(pairs()))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(20)


@case
def hung_up():
    """129"""
    line(str(pairs()))
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(20)


@case
def interrupted():
    """130"""
    line(str(pairs()))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)


@case
def killed():
    """137"""
    line(str(pairs()))
    os.kill(os.getpid(), signal.SIGKILL)


@case
def killed_at_work():
    """137"""
    pairs()
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    line("working")
    while True:
        pairs()


@case
def aborts():
    """134"""
    line(str(pairs()))
    os.abort()


@case
def crashes():
    """139"""
    line(str(pairs()))
    ctypes.string_at(8)


@case
def handles_sigterm():
    """0"""

    def handler(number, frame):
        line(f"handled {number} {pairs(2)}")
        sys.exit(0)

    signal.signal(signal.SIGTERM, handler)
    pairs()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(20)


@case
def terminated_inside_a_wait():
    """143"""
    torch = torch_on_gpu()
    pairs()
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    line("waiting")
    torch.cuda._sleep(8_000_000_000)
    torch.cuda.synchronize()
    line("not reached")


@case
def ends_with_work_under_way():
    """0"""
    torch = torch_on_gpu()
    pairs()
    torch.cuda._sleep(1_000_000_000)
    line("left")


@case
def ends_while_a_thread_launches():
    """134"""  # C++ ends a thread that waits for the lock: terminate called without an active exception
    torch = torch_on_gpu()
    x = torch.ones(1000, device="cuda")

    def forever():
        while True:
            x.add_(0)

    threading.Thread(target=forever, daemon=True).start()
    line(str(pairs()))


@case
def launches_at_exit():
    """0"""
    import atexit

    atexit.register(lambda: line(f"at exit {pairs(3)}"))
    line(str(pairs()))


@case
def launches_in_a_finalizer():
    """0"""
    torch = torch_on_gpu()

    class Holder:
        def __init__(self):
            self.x = torch.ones(10, device="cuda")

        def __del__(self):
            self.x.add_(1)

    globals()["kept"] = Holder()
    line(str(pairs()))


@case
def a_closed_pipe():
    """0"""
    pairs()
    words = [sys.executable, "-c", "import sys; print(sys.stdin.readline())"]
    reader = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
    try:
        for n in range(100_000):
            reader.stdin.write(f"{n}\n")
            reader.stdin.flush()
    except BrokenPipeError:
        line("broken")
        os._exit(0)


@case
def closes_all_descriptors():
    """0"""
    total = pairs()
    line(str(total))
    os.closerange(3, 4096)
    with open("mine", "w") as file:
        file.write("its own")
    time.sleep(1.5)
    with open("mine") as file:
        line(file.read())
    os._exit(0)


@case
def out_of_memory():
    """0"""
    torch = torch_on_gpu()
    pairs()
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        line("out of memory")
    line(str(pairs()))


@case
def an_assertion_on_the_device():
    """1"""
    torch = torch_on_gpu()
    line(str(pairs()))
    torch.arange(4, device="cuda")[torch.tensor([9], device="cuda")]
    torch.cuda.synchronize()


@case
def an_assertion_that_is_caught():
    """4"""
    torch = torch_on_gpu()
    pairs()
    try:
        torch.arange(4, device="cuda")[torch.tensor([9], device="cuda")]
        torch.cuda.synchronize()
    except RuntimeError:  # its class is AcceleratorError in newer torches
        line("caught")
    sys.exit(4)


@case
def resets_the_device():
    """0"""
    runtime = cuda_runtime()
    pointer = ctypes.c_void_p()
    line(str(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))))
    line(str(runtime.cudaMemset(pointer, 1, ctypes.c_size_t(1 << 20))))
    line(str(runtime.cudaDeviceReset()))
    line(str(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))))
    line(str(runtime.cudaMemset(pointer, 1, ctypes.c_size_t(1 << 20))))
    line(str(runtime.cudaDeviceSynchronize()))


def cuda_runtime() -> ctypes.CDLL:
    """torch's libcudart, without importing torch."""
    import glob

    for folder in sys.path:
        for path in sorted(glob.glob(f"{folder}/nvidia/*/lib/libcudart.so.*")):
            return ctypes.CDLL(path)
    return ctypes.CDLL("libcudart.so")


# --- processes


@case
def forks_before():
    """0"""
    child = os.fork()
    if not child:
        line(f"child {pairs()}")
        sys.exit(5)
    line(f"child ended {os.waitpid(child, 0)[1] >> 8}")
    line(f"parent {pairs()}")


@case
def forks_before_and_ends_at_once():
    """0"""
    child = os.fork()
    if not child:
        line(f"child {pairs()}")
        os._exit(6)
    line(f"child ended {os.waitpid(child, 0)[1] >> 8}")


@case
def forks_after():
    """0"""
    pairs()
    for ending in (os._exit, sys.exit):
        child = os.fork()
        if not child:
            line(f"child {sum(range(100))}")
            ending(5)
        line(f"child ended {os.waitpid(child, 0)[1] >> 8}")
    line(f"parent {pairs()}")


@case
def forks_while_a_thread_launches():
    """0"""
    torch = torch_on_gpu()
    x, stop = torch.ones(1000, device="cuda"), threading.Event()

    def launch():
        while not stop.is_set():
            x.add_(0)

    thread = threading.Thread(target=launch)
    thread.start()
    for _ in range(20):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    stop.set()
    thread.join()
    line(str(pairs()))


@case
def uses_cuda_in_a_bad_fork():
    """0"""
    torch = torch_on_gpu()
    pairs()
    child = os.fork()
    if not child:
        try:
            torch.ones(3, device="cuda")
        except RuntimeError as error:
            line(str(error)[:40])
        os._exit(1)
    line(f"child ended {os.waitpid(child, 0)[1] >> 8}")


@case
def executes_another():
    """0"""
    line(str(pairs()))
    os.execv(sys.executable, [sys.executable, HERE, "plain"])


@case
def starts_another():
    """0"""
    pairs()
    line(str(subprocess.run([sys.executable, HERE, "exits"]).returncode))
    line(str(subprocess.run([sys.executable, "-c", "print(6 * 7)"]).returncode))


@case
def starts_one_with_no_environment():
    """0"""
    pairs()
    ran = subprocess.run([sys.executable, "-c", "print(6 * 7)"], env={})
    line(str(ran.returncode))


@case
def kills_another():
    """0"""
    child = subprocess.Popen([sys.executable, HERE, "killed_at_work"], stdout=subprocess.PIPE)
    child.stdout.readline()
    child.kill()
    line(str(child.wait()))
    line(str(pairs()))


def work(number: int) -> float:
    return number + pairs(3)


def fails(number: int) -> None:
    pairs(2)
    raise ValueError(f"in a worker: {number}")


@case
def spawn_pool():
    """0"""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        line(str(pool.map(work, range(6))))


@case
def forkserver_pool():
    """0"""
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        line(str(pool.map(work, range(4))))


@case
def fork_pool_of_the_cpu():
    """0"""
    pairs()
    with multiprocessing.get_context("fork").Pool(4) as pool:
        line(str(pool.map(abs, range(-5, 5))))
    line(str(pairs()))


@case
def executor_that_raises():
    """1"""
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        line(str(list(pool.map(work, range(3)))))
        pool.submit(fails, 4).result()


def share(queue, done) -> None:
    torch = torch_on_gpu()
    x = torch.full((1000,), 3.0, device="cuda")
    queue.put(x)
    done.wait()


@case
def shares_memory_between_processes():
    """0"""
    torch = torch_on_gpu()
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    process = context.Process(target=share, args=(queue, done))
    process.start()
    x = queue.get()
    line(str(float(x.sum())))
    del x
    done.set()
    process.join()
    line(str(process.exitcode))


@case
def from_standard_input():
    """0"""
    program = (
        f"import sys; sys.argv[1:] = ['plain']; __file__ = {HERE!r}; exec(open(__file__).read())"
    )
    ran = subprocess.run([sys.executable, "-"], input=program.encode())
    line(str(ran.returncode))


# --- threads, graphs, streams


@case
def threads_with_streams():
    """0"""
    torch = torch_on_gpu()
    sums = [0.0] * 4

    def loop(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((1000,), float(number), device="cuda")
            for _ in range(200):
                x.add_(1)
            torch.cuda.current_stream().synchronize()
            sums[number] = float(x.sum())

    threads = [threading.Thread(target=loop, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line(str(sums))


@case
def coroutines():
    """0"""

    async def both():
        return await asyncio.gather(*(asyncio.to_thread(pairs, 5) for _ in range(3)))

    line(str(asyncio.run(both())))


@case
def graphs():
    """0"""
    torch = torch_on_gpu()
    x, graph = torch.zeros(100, device="cuda"), torch.cuda.CUDAGraph()
    x + 1
    with torch.cuda.graph(graph):
        for _ in range(20):
            x.add_(1)
    for _ in range(50):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        start.elapsed_time(end)
    line(str(float(x.sum())))


@case
def without_torch():
    """0"""
    runtime = cuda_runtime()
    pointer = ctypes.c_void_p()
    data = (ctypes.c_uint8 * 4096)(*range(16))
    back = (ctypes.c_uint8 * 4096)()
    statuses = [runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096))]
    statuses += [runtime.cudaMemcpy(pointer, data, ctypes.c_size_t(4096), 1)]
    statuses += [runtime.cudaMemcpy(back, pointer, ctypes.c_size_t(4096), 2)]
    line(f"{statuses} {bytes(back[:16]) == bytes(range(16))}")


@case
def profiler_start_and_stop():
    """0"""
    torch = torch_on_gpu()
    torch.cuda.cudart().cudaProfilerStart()
    total = pairs()
    torch.cuda.cudart().cudaProfilerStop()
    line(str(total))


@case
def ranges():
    """0"""
    torch = torch_on_gpu()
    with torch.cuda.nvtx.range("mine"):
        line(str(pairs()))
    import nvtx

    with nvtx.annotate("of the package"):
        line(str(pairs()))


# --- profilers inside


@case
def torch_profiler():
    """0"""
    torch = torch_on_gpu()
    from torch.profiler import ProfilerActivity, profile

    pairs()
    x = torch.ones(64, 64, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        for _ in range(30):
            x.mul_(1)
        torch.cuda.synchronize()
    kernels = [e for e in p.events() if e.device_type.name == "CUDA" and "elementwise" in e.name]
    line(f"{len(kernels)} kernels, all take time: {all(k.device_time > 0 for k in kernels)}")
    line(str(pairs()))


@case
def torch_profiler_with_a_schedule():
    """0"""
    torch = torch_on_gpu()
    from torch.profiler import ProfilerActivity, profile, schedule

    x, counts = torch.ones(64, 64, device="cuda"), []

    def ready(p):
        events = p.events()
        counts.append(sum(e.device_type.name == "CUDA" and "elementwise" in e.name for e in events))

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=3),
        on_trace_ready=ready,
    ) as p:
        for _ in range(12):
            for _ in range(10):
                x.mul_(1)
            torch.cuda.synchronize()
            p.step()
    line(str(counts))
    line(str(pairs()))


@case
def torch_profiler_to_a_file():
    """0"""
    import json

    torch = torch_on_gpu()
    x = torch.ones(64, 64, device="cuda")
    with torch.profiler.profile() as p:
        for _ in range(30):
            x.mul_(1)
        torch.cuda.synchronize()
    p.export_chrome_trace("trace.json")
    with open("trace.json") as file:
        events = json.load(file)["traceEvents"]
    line(str(sum(e.get("cat") == "kernel" for e in events)))


@case
def autograd_profiler():
    """0"""
    torch = torch_on_gpu()
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    with torch.autograd.profiler.profile(use_device="cuda") as p:
        (x * 2).sum().backward()
        torch.cuda.synchronize()
    line(str(sum(e.device_type.name == "CUDA" for e in p.function_events) > 3))
    line(str(pairs()))


@case
def proton():
    """0"""
    import triton.profiler

    torch = torch_on_gpu()
    x = torch.ones(64, 64, device="cuda")
    pairs()
    session = triton.profiler.start("proton", backend="cupti")
    for _ in range(30):
        x.mul_(1)
    torch.cuda.synchronize()
    triton.profiler.finalize(session)
    with open("proton.hatchet") as file:
        line(str('"count": 30' in file.read()))
    line(str(pairs()))


# --- frameworks


class Squares:
    def __len__(self):
        return 64

    def __getitem__(self, n):
        import torch

        return torch.full((8,), float(n * n))


def loaded(**options) -> float:
    from torch.utils.data import DataLoader

    total = 0.0
    for batch in DataLoader(Squares(), batch_size=8, pin_memory=True, **options):
        total += float(batch.cuda(non_blocking=True).sum())
    return total


@case
def loader_with_workers():
    """0"""
    pairs()
    line(str([loaded(num_workers=4), loaded(num_workers=2, persistent_workers=True)]))


@case
def loader_of_spawned_workers():
    """0"""
    pairs()
    line(str(loaded(num_workers=2, multiprocessing_context="spawn")))


@case
def loader_left_early():
    """0"""
    from torch.utils.data import DataLoader

    pairs()
    for batch in DataLoader(Squares(), batch_size=8, num_workers=3, pin_memory=True):
        line(str(float(batch.cuda().sum())))
        break


@case
def compiled():
    """0"""
    torch = torch_on_gpu()
    step = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2 + 1, mode="reduce-overhead")
    x = torch.ones(1024, device="cuda")
    for _ in range(5):
        y = step(x)
    line(f"{float(y.sum()):.2f}")


@case
def triton_kernel():
    """0"""
    torch = torch_on_gpu()
    import triton

    x = torch.ones(1 << 20, device="cuda")
    line(str(triton.testing.do_bench(lambda: x.mul_(1), warmup=5, rep=20) > 0))
    line(str(float(x.sum())))


@case
def cupy_kernels():
    """0"""
    import cupy

    x = cupy.ones(1000)
    for _ in range(10):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        x = x + 1
        end.record()
        end.synchronize()
        cupy.cuda.get_elapsed_time(start, end)
    line(str(float(x.sum())))


@case
def numba_kernels():
    """0"""
    import numpy as np
    from numba import cuda

    @cuda.jit
    def adds(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    x = cuda.to_device(np.zeros(1000, np.float32))
    for _ in range(10):
        adds[8, 128](x)
    line(str(float(x.copy_to_host().sum())))


@case
def jax_program():
    """0"""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x: (x @ x).sum())
    line(f"{jax.devices()[0].platform} {float(step(jnp.ones((64, 64))))}")


@case
def timm_model():
    """0"""
    import timm

    torch = torch_on_gpu()
    model = timm.create_model("resnet18", num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in range(5):
        loss = model(torch.ones(4, 3, 64, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    line(f"{len(losses)} {losses[-1] < losses[0]}")


@case
def transformers_model():
    """0"""
    torch = torch_on_gpu()
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config).cuda().eval()
    given = torch.arange(8, device="cuda")[None]
    made = model.generate(given, max_new_tokens=16, do_sample=False, pad_token_id=0)
    line(str(made.shape))


@case
def lightning_trainer():
    """0"""
    import logging
    import warnings

    import lightning

    torch = torch_on_gpu()
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch, n):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-9)

    loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="gpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), loader)
    line(f"{trainer.global_step} steps")


@case
def one_rank_of_nccl():
    """0"""
    torch = torch_on_gpu()
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    x = torch.ones(1000, device="cuda")
    for _ in range(10):
        dist.all_reduce(x)
    line(str(float(x.sum())))
    dist.destroy_process_group()


def status(name: str) -> int:
    """With which a case ends, as a shell reports it."""
    return int(CASES[name].__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("\n".join(CASES))
    else:
        CASES[sys.argv[1]]()
