"""The function to measure: found, checked, called; and what it may return.  Worker side."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Set in every worker: calling `nsysalign.benchmark` again from the file's top level would recurse.
IN_WORKER = "NSYSALIGN_MEASURE_WORKER"


class Wrong(Exception):
    """The function cannot be measured as it is, at whatever batch."""


@dataclass(frozen=True)
class Workload:
    """A call, and what it is called with.

    call: called as `call(*inputs)`; must only enqueue its work on the current stream, and need not
    wait for it.
    inputs: tensors on the GPU, checked for being all zeros; those of a closure cannot be.
    outputs_per_call: what one call makes (images, tokens): the unit of throughput.  None: the batch
    size, else 1.

        >>> Workload(abs, inputs=(-3,)).run()
        3
    """

    call: Callable[..., Any]
    inputs: Sequence[Any] = ()
    outputs_per_call: float | None = None

    def run(self) -> Any:
        """One call with the inputs as they are."""
        return self.call(*self.inputs)


def find(spec: str) -> Callable[..., Any]:
    """`bench.py:make` or `package.module:make` -> the function.  Raises Wrong if there is none."""
    place, _, name = spec.rpartition(":")
    function: Any = _load(place)
    try:
        for part in name.split("."):
            function = getattr(function, part)
    except AttributeError:
        raise Wrong(f"{place} has no function {name}") from None
    if not callable(function):
        kind = type(function).__name__
        raise Wrong(f"{place}: {name} is of type {kind}, and a function is needed")
    return function


def _load(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and place.startswith(error.name):
                raise Wrong(f"no module is called {place}") from error
            raise
    path = os.path.abspath(place)
    sys.path.insert(0, os.path.dirname(path))  # as if it were run as a script
    name = os.path.basename(path)[:-3]
    if name in sys.modules or not name.isidentifier():
        name = "_nsysalign_measured"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def make(function: Callable[..., Any], batch: int | None) -> Workload:
    """Call the user's function, untimed; its workload says how many outputs a call makes.  Raises
    Wrong if the function needs more than the batch size, or its result cannot be called."""
    parameters = inspect.signature(function).parameters
    needed = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(needed) > 1 or any(parameters[n].kind is inspect.Parameter.KEYWORD_ONLY for n in needed):
        raise Wrong(
            f"{function.__name__}({', '.join(needed)}) needs more arguments than the batch size: "
            "give the others defaults, or wrap it"
        )
    takes_batch = needed or next(iter(parameters), "") in ("batch", "batch_size")
    made = function(batch or 1) if takes_batch else function()
    outputs = float(batch or 1)
    if isinstance(made, Workload):
        return Workload(made.call, made.inputs, float(made.outputs_per_call or outputs))
    hint = " (it did the work itself: return a function that does it)" if made is None else ""
    # without importing torch
    if any(k.__name__ == "Module" and "torch.nn" in k.__module__ for k in type(made).__mro__):
        hint = ", which needs inputs: return a call, such as lambda: model(x)"
    elif callable(made):
        return Workload(made, outputs_per_call=outputs)
    raise Wrong(
        f"the function returned {type(made).__name__}, and a call or nsysalign.Workload was "
        f"expected{hint}"
    )
