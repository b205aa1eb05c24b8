"""What a user's file looks like, on the simulated device."""

import os
import signal
import time

from nsysalign import Workload
from tests.measure import simulated
from tests.measure.simulated import device


def make(batch):
    gpu = device()
    gpu.noise = 0.005
    gpu.allocate((1 << 30) + batch * (200 << 20))
    return lambda: [gpu.launch(20_000 + 3_000 * batch) for _ in range(10)]


def slower(batch):
    call = make(batch)
    gpu = device()

    def both():
        call()
        gpu.launch(8_000)

    return both


def default():
    gpu = device()
    return lambda: gpu.launch(50_000)


def launch_bound():
    gpu = device()
    return lambda: [gpu.launch(1_000) for _ in range(100)]


class Input:
    def __init__(self, size, zero=False):
        self.bytes, self.zero = size, zero


def with_inputs():
    gpu = device()
    gpu.cold_factor = 1.3
    return Workload(lambda x: gpu.launch(50_000), (Input(30 << 20),), outputs_per_call=7)


def zeros():
    gpu = device()
    return Workload(lambda x: gpu.launch(50_000), (Input(1 << 20, zero=True),))


def drifting():
    gpu = device()
    gpu.drift_per_s = 0.5
    return lambda: gpu.launch(50_000)


def needs_arguments(batch, width, height):
    return lambda: None


def returns_nothing():
    device().launch(1)


def returns_module():
    return type("Module", (), {"__module__": "torch.nn.modules.module"})()


def no_work():
    return lambda: None


def on_the_host():
    return lambda: device().work_on_the_host(5_000_000)


def elsewhere():
    return lambda: device().launch_elsewhere(200_000)


def waits():
    gpu = device()

    def call():
        gpu.launch(20_000)
        gpu.wait()

    return call


def fails_in_warm_up():
    calls = []

    def call():
        calls.append(1)
        device().launch(1_000)
        if len(calls) == 3:
            raise ValueError("the third call is one too many")

    return call


def hangs():
    def call():
        time.sleep(1_000)

    return call


def absent_file(batch):
    os.stat("/home/somebody/secret.bin")


def hangs_second(batch):
    """The batches come in a random order: the one after the first hangs."""
    try:
        with open("first", "x"):
            return default()
    except FileExistsError:
        return hangs()


def hangs_late():
    gpu = device()

    def call():
        gpu.launch(1_000_000)
        if gpu.host > 1.9e9:
            time.sleep(1_000)

    return call


def dies():
    os._exit(7)


def segfaults():
    os.kill(os.getpid(), signal.SIGSEGV)


def without_profilers():
    assert not {"NSYSALIGN_DIR", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"} & {*os.environ}
    return default()


def _out_of(error):
    def make(batch):
        if batch > 8:
            raise error
        gpu = device()
        gpu.allocate(batch << 30)
        return lambda: gpu.launch(10_000)

    return make


oom_torch = _out_of(simulated.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
oom_cublas = _out_of(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"))
oom_cuda = _out_of(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"))
oom_host = _out_of(MemoryError())
not_memory = _out_of(RuntimeError("a shape is out of bounds, and out of memory of the author"))
not_memory_either = _out_of(ValueError("CUDA out of memory."))
NUMBER = 5
