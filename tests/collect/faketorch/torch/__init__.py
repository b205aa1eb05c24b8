"""A torch without a GPU: enough of torch.cuda for the harness's tests.  Put this folder on PYTHONPATH."""

__version__ = "0.0+fake"

from . import cuda  # noqa: F401
