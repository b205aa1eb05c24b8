"""nsysalign: where the time of a `torch.cuda.Event` interval went.

Importing this package is cheap: neither torch nor pandas nor plotly is loaded until a function
needs it.

    >>> import nsysalign
    >>> with nsysalign.region("forward"):        # a no-op outside `nsysalign run`
    ...     pass
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsysalign.region import region
from nsysalign.version import __version__

if TYPE_CHECKING:
    from nsysalign.addons.measure.command import benchmark
    from nsysalign.addons.measure.target import Workload
    from nsysalign.show.notebook import Analysis, analyze, load
    from nsysalign.stretch import recording

__all__ = [
    "Analysis",
    "Workload",
    "__version__",
    "analyze",
    "benchmark",
    "load",
    "recording",
    "region",
]

_LAZY = {
    "analyze": "nsysalign.show.notebook",
    "load": "nsysalign.show.notebook",
    "Analysis": "nsysalign.show.notebook",
    "recording": "nsysalign.stretch",
    "Workload": "nsysalign.addons.measure.target",
    "benchmark": "nsysalign.addons.measure.command",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        try:
            module = importlib.import_module(_LAZY[name])
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("nsysalign.addons"):
                raise
            raise ImportError(
                f"nsysalign.{name} needs the add-on measure, which is not installed here"
            ) from error
        value = globals()[name] = getattr(module, name)  # is not asked for again
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext nsysalign` in IPython: the cell magic %%nsysalign."""
    from nsysalign.stretch import load_ipython_extension as load_it

    load_it(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
