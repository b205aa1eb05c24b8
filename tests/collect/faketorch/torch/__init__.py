"""A torch without a GPU: enough of torch.cuda for the harness's tests.  Put this folder on PYTHONPATH."""

__version__ = "0.0+fake"

from . import cuda  # noqa: F401


class _C:
    """The private calls behind torch.cuda.current_stream()."""

    @staticmethod
    def _cuda_getDevice():
        return 0

    @staticmethod
    def _cuda_getCurrentStream(device):
        return (1, device, 0)
