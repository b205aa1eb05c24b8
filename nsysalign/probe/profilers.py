"""A program that profiles itself: what it reads of the GPU is void under nsys, and nobody tells it.

CUPTI gives the GPU's activity to one subscriber, which is nsys.  With CUDA 13.3 and driver r610
several may subscribe.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from . import failed
from .runtime import Runtime

#: Module -> (class or None, its function that begins, the profiler's name).
PROFILERS: dict[str, tuple[str | None, str, str]] = {
    "torch.autograd.profiler": ("profile", "_prepare_trace", "torch.profiler"),
    "triton.profiler.profile": (None, "start", "Proton"),
    "cupti.cupti": (None, "activity_enable", "CUPTI's Python binding"),
}
_SHARED = 13030  # cuDriverGetVersion


def wrap_profiler(module: Any, rt: Runtime) -> None:
    """Note that a profiler of the GPU's activity begins while nsys has it, once."""
    owner, function, name = PROFILERS[module.__name__]
    place = module if owner is None else getattr(module, owner, None)
    original = getattr(place, function, None)
    if original is None or "NVTX_INJECTION64_PATH" not in os.environ:
        return
    known: set[str] = set()

    @functools.wraps(original)
    def begin(*args, **kwargs):
        try:
            activities = str(getattr(args[0], "kineto_activities", "CUDA")) if owner else "CUDA"
            if "CUDA" in activities and name not in known and rt.driver.version() < _SHARED:
                known.add(name)
                places = rt.sites.places[rt.sites.context(sys._getframe(1))]
                file, line = places[0] if places else ("an unknown place", "?")
                if not rt.ready:
                    rt.begin(-1)
                rt.note(
                    text=f"{name} began at {os.path.basename(file)}:{line} inside the program, but nsys alone gets "
                    "the GPU's activity: GPU times that the program prints from it are void (0, or missing). "
                    "Intervals of events and host timers here stay right. Time by events instead (a benchmark's own "
                    "event mode; DeepGEMM: DG_USE_NVIDIA_TOOLS=1). CUDA 13.3 with driver r610 or newer lets both record"
                )
        except Exception as error:
            failed(error)
        return original(*args, **kwargs)

    setattr(place, function, begin)
