"""What a function returns to `nsysalign measure` if a plain call is not enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """A call, and what it is called with.

    call: called as `call(*inputs)`; must only enqueue its work on the current stream, and need not wait for it.
    inputs: tensors on the GPU.  Inputs given here can be rotated (cold L2), copied in (`--include-transfer`) and checked (all
    zeros?); those held by a closure cannot.
    outputs_per_call: what one call makes (images, tokens): the unit of throughput.  None: the batch size, else 1.

        >>> Workload(abs, inputs=(-3,)).run()
        3
    """

    call: Callable[..., Any]
    inputs: Sequence[Any] = ()
    outputs_per_call: float | None = None

    def run(self) -> Any:
        """One call with the inputs as they are."""
        return self.call(*self.inputs)
