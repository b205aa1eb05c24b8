"""torch.cuda.streams on the GPU of `fakecuda.c`; takes the place of the fake torch's file of this name."""

import ctypes
import os
import time

import torch

if os.environ.get("FAKE_CUDA"):
    gpu = ctypes.CDLL("libcuda.so.1")
    gpu.fake_launch.argtypes = (ctypes.c_int, ctypes.c_uint64)
    gpu.fake_record.restype = ctypes.c_uint64
    gpu.fake_graph.argtypes = gpu.fake_long_call.argtypes = (ctypes.c_uint64,)
    gpu.cuInit(0)
done = []


def launch(which=0, lasts_us=20):
    gpu.fake_launch(which, int(lasts_us * 1000))


def synchronize(device=None):
    gpu.fake_synchronize()


class Stream:
    def __init__(self, handle=0, device_index=0):
        self.cuda_stream, self.device_index, self.stream_id = handle, device_index, handle

    def query(self):
        return True

    def synchronize(self):
        synchronize()

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, stream):
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event


class Event:
    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        return super().__new__(cls)

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self.when, self.cuda_event = None, id(self)

    def record(self, stream=None):
        if stream is None:
            stream = torch.cuda.current_stream()
        self.when = gpu.fake_record()

    def wait(self, stream=None):
        pass

    def elapsed_time(self, end_event):
        if self.when is None or end_event.when is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        while time.perf_counter_ns() < max(self.when, end_event.when):
            pass
        return (end_event.when - self.when) / 1e6
