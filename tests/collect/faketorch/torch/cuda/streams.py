"""The shape of torch/cuda/streams.py: the Stream methods end in the Event methods."""

import time

import torch

#: What was asked of the GPU, in order.
done = []


class Stream:
    def __init__(self, handle=1, device_index=0):
        self.cuda_stream = handle
        self.device_index = device_index
        self.stream_id = handle + 1

    def query(self):
        return True

    def synchronize(self):
        pass

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, stream):
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        if event is None:
            event = Event()
        event.record(self)
        return event


class Event:
    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        return super().__new__(cls)

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self.when = None

    def record(self, stream=None):
        """Record the event."""
        if stream is None:
            stream = torch.cuda.current_stream()
        if stream == "broken":
            raise RuntimeError("not a stream")
        done.append(("record", stream.cuda_stream))
        self.when = time.perf_counter_ns()

    def wait(self, stream=None):
        if stream is None:
            stream = torch.cuda.current_stream()

    def elapsed_time(self, end_event):
        if self.when is None or end_event.when is None:
            raise ValueError(
                "Both events must be recorded before calculating elapsed time.\nMore advice."
            )
        return (end_event.when - self.when) / 1e6
