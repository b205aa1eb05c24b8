"""A torch without a GPU: enough of torch.cuda for the harness's tests.  Put this folder on
PYTHONPATH."""

__version__ = "0.0+fake"

import contextlib

from . import cuda
from ._events import Event, Stream  # noqa: F401  before torch.cuda, as in the real one

int8 = "int8"


@contextlib.contextmanager
def inference_mode(mode=True):
    yield


no_grad = inference_mode


class _Tensor:
    def __init__(self, size):
        self.size = size

    def zero_(self):
        cuda.done.append(("zero_", self.size, cuda.current_stream().cuda_stream))


def empty(size, dtype=None, device=None):
    cuda.done.append(("empty", size, device))
    return _Tensor(size)


class _C:
    """The private calls behind torch.cuda.current_stream()."""

    @staticmethod
    def _cuda_getDevice():
        return 0

    @staticmethod
    def _cuda_getCurrentStream(device):
        return (1, device, 0)
