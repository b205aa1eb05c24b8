"""torch.Event and torch.Stream."""

import itertools
import time

handles = itertools.count(9000)


class Device:
    type = "cuda"


class Event:
    device = Device()

    def __init__(self, device=None, enable_timing=False):
        self.event_id = 0

    def record(self, stream=None):
        self.event_id = self.event_id or next(handles)
        self.when = time.perf_counter_ns()

    def wait(self, stream=None):
        pass

    def elapsed_time(self, end_event):
        return (end_event.when - self.when) / 1e6


class Stream:
    device, device_index, native_handle, stream_id = Device(), 0, 77, 3

    def record_event(self, event=None):
        event = Event() if event is None else event
        event.event_id = event.event_id or next(handles)
        event.when = time.perf_counter_ns()
        return event

    def wait_event(self, event):
        pass
