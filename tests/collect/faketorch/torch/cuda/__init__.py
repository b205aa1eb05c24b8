"""Streams, events and the calls the probe makes."""

import contextlib

from . import graphs  # noqa: F401
from .streams import Event, Stream, done

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "done",
    "get_device_properties",
    "init",
    "stream",
    "synchronize",
]

_current = Stream(0)
_initialized = False


def init():
    """The program begins to use CUDA."""
    global _initialized
    _initialized = True


def current_device():
    return 0


def current_stream(device=None):
    return _current


class _Properties:
    name = "Fake GPU"
    clock_rate = 1_000_000
    L2_cache_size = 1 << 20


def get_device_properties(device):
    return _Properties()


def _sleep(cycles):
    """The GPU would be busy; here nothing is."""
    done.append(("sleep", cycles, _current.cuda_stream))


def synchronize(device=None):
    init()
    done.append(("synchronize", device))


@contextlib.contextmanager
def stream(other):
    global _current
    before, _current = _current, other
    try:
        yield
    finally:
        _current = before


def is_initialized():
    return True
