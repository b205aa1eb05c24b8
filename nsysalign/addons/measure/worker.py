"""One process that measures.  Imports torch, numpy, the user's file and the standard library.

    python -m nsysalign.addons.measure.worker SPEC.json [PARENT]

SPEC: `session.Session.spec`.  `out` gets one JSON line per fact, each flushed when it is known:
what was measured survives whatever comes after.  Roles: "time" measures; "probe" measures several
batches roughly, for a search; "profile" makes event pairs in regions, for a run under nsys.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from statistics import median
from typing import Any

from nsysalign.addons.measure import target
from nsysalign.addons.measure.clocks import OWN_L2, Cuda, Mode, Modes, Refused
from nsysalign.addons.measure.statistics import RESOLUTION_NS, Z95, standard_error
from nsysalign.region import region

#: A mode is measured until its median is known to this share of it, or to the clock's resolution.
PRECISION = 0.005
MOST_SAMPLES, MOST_S = 20_000, 10.0
#: Of one process, so that three have those of a 99th percentile.
ENOUGH_SAMPLES, LEAST_S = 100, 0.5
#: Of its own: the program may seed Python's.
_orders = random.Random()
#: Warm: the median of a stretch of calls (at least so many, so long) is that of the stretch before.
STRETCH_CALLS, STRETCH_NS, SETTLED = 5, 0.25e9, 0.01
#: What reliably means memory in messages of RuntimeErrors, which carry nothing else.
_MEMORY = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA error: out of memory",
    "CUDA out of memory.",
)


class Worker:
    """`emit(fact)` keeps one fact; `gpu`: the device, made from the spec by default."""

    def __init__(
        self, spec: dict[str, Any], emit: Callable[[dict[str, Any]], None], gpu: Any = None
    ) -> None:
        self.spec, self.emit, self.gpu = spec, emit, gpu

    def run(self, function: Callable[..., Any] | None = None) -> str:
        """Measure.  If it failed the last fact says how; the traceback is returned."""
        try:
            self._batches(function)
            self.emit({"type": "done"})
            return ""
        except BaseException as error:
            our_folder = os.path.dirname(os.path.abspath(__file__))
            places = [
                f"{os.path.basename(frame.filename)}:{frame.lineno}"
                for frame in traceback.extract_tb(error.__traceback__)
                if not frame.filename.startswith(our_folder)
            ]
            kind, text = kind_of(error), str(error)
            text = text if kind == "wrong" else f"{type(error).__name__}: {text}"[:2000]
            where = f" ({places[-1]})" if places else ""
            self.emit({"type": "failed", "kind": kind, "where": where, "message": text})
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            return "".join(traceback.format_exception(error))

    def _enter(self, stage: str) -> None:
        self.emit({"type": "stage", "stage": stage})

    def _know(self, **fields: Any) -> None:
        """Fields of `result.Run`."""
        self.emit({"type": "known", **fields})

    def _batches(self, function: Callable[..., Any] | None) -> None:
        """One batch after the other: several only steer a search, and starting a process for each
        would take most of its time."""
        spec = self.spec
        self._enter("loading the function")
        sys.path += [p for p in spec["path"] if p not in sys.path]
        function = function or target.find(spec["target"])
        self._enter("starting CUDA")
        if self.gpu is None:
            module, _, name = spec["backend"].partition(":")
            # tests have a device whose truth is known
            backend = getattr(importlib.import_module(module), name) if name else Cuda
            self.gpu = backend(spec["free_share"])
        self.emit({"type": "hello", **self.gpu.describe()})
        for number, batch in enumerate(spec["batches"]):
            if number:
                self.gpu.forget()
            self.emit({"type": "batch", "batch": batch})
            if "steady" not in self._batch(function, batch):
                return  # a larger batch has no throughput either

    def _batch(self, function: Callable[..., Any], batch: int | None) -> list[str]:
        """Measure one batch; the names of the modes that could be."""
        gpu, spec, profile = self.gpu, self.spec, self.spec["role"] == "profile"
        self._enter("making the call")
        work = target.make(function, batch)
        gpu.sync()
        self._know(outputs=work.outputs_per_call, zero=gpu.all_zero(work.inputs))
        self._enter("warming up")
        call_ns = self._warm_up(work.run)
        self._know(peak_bytes=gpu.peak_bytes())
        self._enter("setting up")
        with region("setting up") if profile else contextlib.nullcontext():
            maker = Modes(gpu, work, call_ns)
        if profile:
            self._profiled(maker)
            return []
        modes, refused = [], {}
        # capture comes last: it has the most side effects
        for name in sorted(spec["modes"], key=lambda name: "graph" in name):
            for l2 in [OWN_L2[name]] if name in OWN_L2 else spec["l2"]:
                try:
                    modes.append(maker.make(name, l2))
                except Refused as error:
                    refused[name + ", cold L2" * (l2 == "cold")] = str(error)
        self._know(floor_ns=maker.floor_ns, refused=refused)
        work.run()  # a capture that broke the process fails here
        gpu.sync()
        self._enter("measuring")
        self._measure(modes)
        return [mode.name for mode in modes]

    def _warm_up(self, call: Callable[[], Any]) -> float:
        """Call until the time that a call takes no longer changes, or the limit; about how long it
        takes then, ns."""
        gpu, limit_ns = self.gpu, self.spec["warm_up_s"] * 1e9

        def timed() -> int:
            began = gpu.now()
            call()
            gpu.sync()
            return gpu.now() - began

        began, level, change = gpu.now(), 0.0, ""
        end = began + limit_ns
        first_ns = timed()
        while gpu.now() < end:
            before, stretch, times = level, gpu.now() + min(STRETCH_NS, limit_ns / 3), [timed()]
            while gpu.now() < end and (len(times) < STRETCH_CALLS or gpu.now() < stretch):
                times.append(timed())
            level = median(times)
            if before and gpu.now() < end:
                change = f"a call took {before / 1e3:,.1f} us, then {level / 1e3:,.1f}"
                if abs(level - before) <= SETTLED * before:
                    change = ""
                    break
        self._know(first_ns=first_ns, warm_ns=gpu.now() - began, unsettled=change)
        return level or first_ns

    def _measure(self, modes: list[Mode]) -> None:
        gpu, active = self.gpu, list(modes)
        end = gpu.now() + self.spec["seconds"] * 1e9
        while active:
            _orders.shuffle(active)  # a fixed order of two modes would bias both
            for mode in active:
                started = gpu.now()
                samples = mode.block(mode.size())
                ended = gpu.now()
                mode.blocks.append(samples)
                mode.spent_ns += ended - started
                mode.call_ns = (ended - started) / max(1, len(samples))
                block = {"mode": mode.name, "l2": mode.l2, "t0": started, "t1": ended}
                self.emit({"type": "block", **block, "ns": samples})
                if any(v < 0 for v in samples):
                    raise RuntimeError(
                        "elapsed_time was negative (confidential computing?): the GPU's event "
                        "times cannot be used"
                    )
            active = [m for m in active if gpu.now() < end and not self._enough(m)]

    def _enough(self, mode: Mode) -> bool:
        """Whether a mode has been measured long enough, and its median is known well enough."""
        count, spent_s = sum(map(len, mode.blocks)), mode.spent_ns / 1e9
        if count >= MOST_SAMPLES or spent_s >= MOST_S or self.spec["role"] == "probe":
            return True
        if count < (8 if mode.name == "steady" else ENOUGH_SAMPLES) or spent_s < LEAST_S:
            return False
        blocks = [b for b in mode.blocks if b]
        middle = median([v for b in blocks for v in b])
        return Z95 * standard_error(blocks) <= max(PRECISION * middle, RESOLUTION_NS)

    def _profiled(self, maker: Modes) -> None:
        """Event pairs under nsys, behind a delay where that is possible, in a region for each state
        of the L2."""
        for l2 in self.spec["l2"]:
            with region("setting up"):
                try:
                    mode = maker.make("device", l2)
                except Refused:
                    mode = maker.make("event", l2)
                mode.block(1)
            with region(l2):
                mode.block(max(5, min(50, mode.size())))


def kind_of(error: BaseException) -> str:
    """ "oom", "wrong" (no other batch can mend it) or "error".  torch.OutOfMemoryError is
    recognised by its name, without importing torch."""
    if isinstance(error, target.Wrong):
        return "wrong"
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    memory = isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY)
    return "oom" if named or memory or isinstance(error, MemoryError) else "error"


def main(path: str, parent: str = "") -> int:
    """Exit status 0 even if the call failed, which the facts report; anything else means that the
    process died.  `parent`: with whom it is to end, so that no killed one leaves it on the GPU."""
    if parent:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):
            return 1
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    os.environ[target.IN_WORKER] = "1"
    # where it hangs goes to its log, just before it is ended
    faulthandler.dump_traceback_later(max(0.5, spec["limit_s"] - 1.0), exit=False)
    with open(spec["out"], "a", encoding="utf-8", buffering=1) as out:
        dumped = json.JSONEncoder(separators=(",", ":")).encode
        failure = Worker(spec, lambda fact: out.write(dumped(fact) + "\n")).run()
    if not failure and spec["role"] == "profile":
        return 0  # nsys writes its trace when the process ends as any other does
    if not failure:
        atexit._run_exitfuncs()  # the user's; what Python does after that takes a second with torch
    sys.stdout.flush()
    sys.stderr.write(failure)
    sys.stderr.flush()
    os._exit(0)  # nor is a broken CUDA context torn down: it may hang


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
