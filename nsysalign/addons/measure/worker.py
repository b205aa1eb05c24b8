"""One process that measures.  Imports torch, numpy, the user's file and the standard library.

    python -m nsysalign.addons.measure.worker SPEC.json [PARENT]

SPEC: {"target", "batches", "modes", "l2", "precision", "need", "seconds", "out", "role", ...}
(plan.Job.spec).  `out` gets one JSON line per fact, each flushed when it is known: what was
measured survives whatever comes after.  Roles: "time" measures; "probe" measures several batches
roughly, for a search; "profile" makes event pairs in regions, for a run under nsys.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from nsysalign.addons.measure import failures, statistics, target, warmup
from nsysalign.addons.measure.cuda import Cuda, Refused
from nsysalign.addons.measure.modes import TRITON, Mode, Modes, profiled

MOST_SAMPLES = 20_000
#: A call this long needs no block that is not counted before the first one.
LONG_NS = 50e6
#: Signs of a profiler, which a timed worker must not show (libncurses is none).
_INJECTED = re.compile(
    r"ToolsInjection|nvToolsExt-injection|cuda-injection|^libinjection|"
    r"(?<![a-z])(nsys|ncu)(?![a-z])",
    re.IGNORECASE,
)
_VARIABLES = (
    "NSYSALIGN_DIR",
    "NSYS_PROFILING_SESSION_ID",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "LD_PRELOAD",
)


class Worker:
    """`emit(fact)` keeps one fact; `gpu`: the device, made from the spec by default."""

    def __init__(
        self, spec: dict[str, Any], emit: Callable[[dict[str, Any]], None], gpu: Any = None
    ) -> None:
        self.spec, self.emit, self.gpu = spec, emit, gpu
        self.stage = self.traceback = ""
        self.random = random.Random()

    def run(self, function: Callable[..., Any] | None = None) -> bool:
        """Measure; False if it failed, in which case the last fact says how."""
        try:
            self._batches(function)
            self.emit({"type": "done"})
            return True
        except BaseException as error:
            self.traceback = "".join(traceback.format_exception(error))
            own = os.path.dirname(os.path.abspath(__file__))
            places = [
                f"{os.path.basename(frame.filename)}:{frame.lineno}"
                for frame in traceback.extract_tb(error.__traceback__)
                if not frame.filename.startswith(own)
            ]
            fact = {"type": "failed", "class": failures.of_exception(error), "stage": self.stage}
            fact |= {"message": f"{type(error).__name__}: {error}"[:2000]}
            self.emit(fact | {"where": places[-1] if places else ""})
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            return False

    def _enter(self, stage: str) -> None:
        self.stage = stage
        self.emit({"type": "stage", "stage": stage})

    def _batches(self, function: Callable[..., Any] | None) -> None:
        """One batch after the other while there is time: several only steer a search, and starting
        a process for each would take most of its time."""
        spec = self.spec
        self._enter("loading the function")
        sys.path += [p for p in spec.get("path", ()) if p not in sys.path]
        function = function or target.find(spec["target"])
        self._enter("starting CUDA")
        if self.gpu is None:
            module, _, name = spec.get("backend", "cuda").partition(":")
            # tests have a device whose truth is known
            backend = getattr(importlib.import_module(module), name) if name else Cuda
            self.gpu = backend(spec.get("free_share"))
        self.emit({"type": "hello", "pid": os.getpid(), "clean": clean(), **self.gpu.describe()})
        began = time.monotonic()
        for number, batch in enumerate(spec.get("batches") or [None]):
            if number:
                if time.monotonic() - began > spec["batches_s"]:
                    return
                self.gpu.forget()
            self.emit({"type": "batch", "batch": batch})
            modes = self._batch(function, batch)
            if not any(mode.name == "steady" for mode in modes):
                return  # a larger batch has no throughput either

    def _batch(self, function: Callable[..., Any], batch: int | None) -> list[Mode]:
        """The modes that were measured."""
        gpu = self.gpu
        self._enter("making the call")
        work, outputs = target.make(function, batch)
        gpu.sync()
        self.emit({"type": "made", "outputs": outputs, "zero": gpu.all_zero(work.inputs)})
        self._enter("warm-up")
        call_ns = self._warm_up(work.run)
        self.emit({"type": "memory", **gpu.memory()})
        gpu.quiet()
        if self.spec.get("role") == "profile":
            self._enter("the profiled loop")
            self._profiled(work, call_ns, batch)
            return []
        self._enter("setting up")
        modes = self._modes(Modes(gpu, work, call_ns))
        work.run()  # a capture that broke the process fails here
        gpu.sync()
        self._enter("measuring")
        self._measure(modes)
        return modes

    def _warm_up(self, call: Callable[[], Any]) -> float:
        """About how long a call takes then, ns."""
        gpu, spec = self.gpu, self.spec

        def timed() -> tuple[int, int]:
            began = gpu.now()
            call()
            gpu.sync()
            ended = gpu.now()
            return ended, ended - began

        warm = warmup.warm_up(
            timed, gpu.state,
            precision=spec["precision"], limit_s=spec.get("warm_up_s", warmup.LIMIT_S),
            window_s=spec.get("window_s", warmup.WINDOW_S),
        )  # fmt: skip
        facts = {"first_ns": warm.first_ns, "calls": warm.calls, "ns": warm.took_ns}
        self.emit({"type": "warm", **facts, "settled": warm.settled, "why": warm.why})
        return warm.call_ns

    def _modes(self, maker: Modes) -> list[Mode]:
        """The modes that can be measured; the others are refused, each with its reason.  Capture
        comes last: it has the most side effects.  Between queued calls a flush of the L2 would be
        part of the throughput: `steady` has none."""
        made = []
        states = {**TRITON, "steady": "warm"}
        wanted = [
            (name, l2)
            for name in self.spec["modes"]
            for l2 in ([states[name]] if name in states else self.spec["l2"])
        ]
        for name, l2 in sorted(wanted, key=lambda w: "graph" in w[0]):
            try:
                made.append(maker.make(name, l2))
            except Refused as error:
                self.emit({"type": "refused", "mode": name, "l2": l2, "reason": str(error)})
        return made

    def _measure(self, modes: list[Mode]) -> None:
        gpu = self.gpu
        began, limit = gpu.now(), self.spec["seconds"] * 1e9
        for mode in modes:
            if mode.call_ns < LONG_NS:
                mode.block(1)
        active = list(modes)
        while active:
            self.random.shuffle(active)  # a fixed order of two modes would bias both
            for mode in active:
                started = gpu.now()
                values = mode.block(mode.size())
                ended = gpu.now()
                mode.samples += values
                mode.spent_ns += ended - started
                if len(values):
                    mode.call_ns = (ended - started) / len(values)
                block = {"mode": mode.name, "l2": mode.l2, "t0": started, "t1": ended, "ns": values}
                self.emit({"type": "block", **block})
                if any(v < 0 for v in values):
                    raise RuntimeError(
                        "elapsed_time was negative (confidential computing?): the GPU's event "
                        "times cannot be used"
                    )
            over = gpu.now() - began >= limit
            for mode in active:
                mode.done = over or self._enough(mode)
            active = [m for m in active if not m.done]
        for mode in modes:
            facts = {"mode": mode.name, "l2": mode.l2, "late": mode.late, **mode.facts}
            self.emit({"type": "mode", **facts})

    def _enough(self, mode: Mode) -> bool:
        spec, count = self.spec, len(mode.samples)
        if mode.spent_ns >= spec.get("most_s", 10.0) * 1e9 or count >= MOST_SAMPLES:
            return True
        if mode.spent_ns < spec.get("least_s", 0.5) * 1e9:
            return False
        need = spec.get("need", 0) if mode.name != "steady" else statistics.FEWEST
        if count < need or count < 1.1 * mode.checked_at:
            return False
        mode.checked_at = count
        return statistics.precise(mode.samples, spec["precision"])

    def _profiled(self, work: target.Workload, call_ns: float, batch: int | None) -> None:
        """Event pairs in regions, under nsys: the loop of mode `event`; for `--clocks` with a warm
        and a cold L2, and behind a delay as well."""
        from nsysalign.region import region

        gpu, spec = self.gpu, self.spec
        start, end = gpu.event(), gpu.event()
        base = f"batch={batch}" if batch is not None else "call"
        count = int(spec["seconds"] * 1e9 / max(call_ns, 1_000) / len(spec["l2"]))
        for l2 in spec["l2"]:
            work.run()
            for _ in range(max(5, min(200, count))):
                if l2 == "cold":
                    gpu.flush()
                gpu.sync()
                with region(profiled(base, l2)):
                    start.record()
                    work.run()
                    end.record()
                end.synchronize()
                gpu.elapsed_ns(start, end)
        for l2 in spec["l2"] if "cold" in spec["l2"] else ():
            with region("setting up"):
                try:
                    mode = Modes(gpu, work, call_ns).make("device", l2)
                except Refused:
                    continue
            with region(profiled(base, l2, "device")):
                mode.block(max(5, min(50, count)))
        self.emit({"type": "profiled", "label": base})


def clean() -> dict[str, Any]:
    """Evidence that no profiler and no probe is in this process: what was found, where."""
    signs = [v for v in _VARIABLES if os.environ.get(v)]
    signs += [m for m in ("_nsysalign_probe", "nvtx") if m in sys.modules]
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            names = {os.path.basename(line.rstrip("\n").rpartition(" ")[2]) for line in maps}
    except OSError:
        names = set()
    return {"found": [*signs, *injected(names)], "libraries": len(names)}


def injected(names: Iterable[str]) -> list[str]:
    """Which of these files are a profiler's libraries."""
    return sorted(filter(_INJECTED.search, names))


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
    if spec.get("limit_s"):  # where it hangs goes to its log, just before it is ended
        faulthandler.dump_traceback_later(max(0.5, spec["limit_s"] - 1.0), exit=False)
    with open(spec["out"], "a", encoding="utf-8", buffering=1) as out:
        dumped = json.JSONEncoder(separators=(",", ":")).encode
        worker = Worker(spec, lambda fact: out.write(dumped(fact) + "\n"))
        done = worker.run()
    if done and spec["role"] == "profile":
        return 0  # nsys writes its trace when the process ends as any other does
    if done:
        atexit._run_exitfuncs()  # the user's; what Python does after that takes a second with torch
    sys.stdout.flush()
    sys.stderr.write(worker.traceback)
    sys.stderr.flush()
    os._exit(0)  # nor is a broken CUDA context torn down: it may hang


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
