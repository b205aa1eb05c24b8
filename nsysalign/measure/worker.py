"""One process that measures one batch once.  Imports torch, the user's file and the standard library, nothing else.

    python -m nsysalign.measure.worker SPEC.json               (--wait PARENT [torch]: SPEC comes on standard input)

SPEC: {"target", "batch", "shapes", "modes", "l2", "precision", "need", "seconds", "out", "role", ...} (plan.Job.spec).
`out` gets one JSON line per fact, each flushed when it is known: what was measured survives whatever comes after.
Roles: "time" measures; "probe" makes a few calls and tells memory and a quick throughput; "profile" makes event pairs
in regions, for a run under nsys.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nsysalign.measure import failures, stop, target, warmup
from nsysalign.measure.cuda import Cuda, Refused
from nsysalign.measure.modes import Mode, Modes

MOST_SAMPLES, MOST_S, LEAST_S = 20_000, 10.0, 0.5
#: A call this long needs no block that is not counted before the first one.
LONG_NS = 50e6
#: A ladder of batches ends when the next one is expected to need this share of the memory available to it.
LADDER_SHARE = 0.5
_TAIL = 1 << 16
#: The loop that shows how fast the host is: its iterations, and how often it is timed (a third of a millisecond in all).
_TURNS, _TIMED = 2_000, 7
#: Columns of collect.clocks.
_T, _DEVICE, _MHZ = 0, 3, 4
#: Signs of a profiler, which a timed worker must not show.
_INJECTED = re.compile(
    r"ToolsInjection|nvToolsExt-injection|cuda-injection|^libinjection|(?<![a-z])(nsys|ncu)(?![a-z])",  # not libncurses
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
    """`emit(fact)` keeps one fact."""

    def __init__(
        self, spec: dict[str, Any], emit: Callable[[dict[str, Any]], None], gpu: Any = None
    ) -> None:
        self.spec, self.emit = spec, emit
        self._gpu = gpu
        self.stage = self.traceback = ""
        self.random = random.Random(spec.get("seed", 0))

    def run(self, function: Callable[..., Any] | None = None) -> bool:
        """Measure; False if it failed, in which case the last fact says how."""
        try:
            self._run(function)
            self.emit({"type": "done", "t": time.monotonic_ns()})
            return True
        except BaseException as error:
            self.emit(self._failure(error))
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            return False

    def _enter(self, stage: str) -> None:
        self.stage = stage
        self.emit({"type": "stage", "stage": stage, "t": time.monotonic_ns()})

    def _failure(self, error: BaseException) -> dict[str, Any]:
        self.traceback = "".join(
            traceback.format_exception(type(error), error, error.__traceback__)
        )
        own = os.path.dirname(os.path.abspath(__file__))
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(own)
        ]
        where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
        fact = {
            "type": "failed", "class": failures.of_exception(error), "stage": self.stage,
            "message": f"{type(error).__name__}: {error}"[:2000], "where": where,
        }  # fmt: skip
        try:
            fact["memory"] = self._gpu.memory()
        except Exception:
            fact["memory"] = {}
        return fact

    def _run(self, function: Callable[..., Any] | None) -> None:
        spec = self.spec
        self._enter("loading the function")
        sys.path += [p for p in spec.get("path", ()) if p not in sys.path]
        function = function or target.find(spec["target"])
        self._enter("starting CUDA")
        gpu = self._gpu = self._gpu or _backend(spec)
        self.emit({"type": "hello", "pid": os.getpid(), "clean": clean(), **gpu.describe()})
        if spec.get("ladder"):
            self._ladder(gpu, function)
        else:
            self._one(gpu, function)

    def _ladder(self, gpu: Any, function: Callable[..., Any]) -> None:
        """Batches one after the other, as long as the next one is far from the memory's limit: they only steer a search, and
        starting a process for each would take most of its time."""
        spec, began = self.spec, gpu.now()
        limit = (spec.get("memory_fraction") or 1.0) * gpu.total
        for batch, following in zip(spec["ladder"], [*spec["ladder"][1:], None], strict=True):
            spec["batch"] = batch
            self.emit({"type": "batch", "batch": batch})
            needed = self._one(gpu, function)["peak_allocated"]
            gpu.forget()
            if (
                following is None
                or needed * following / batch > LADDER_SHARE * limit
                or gpu.now() - began > spec["ladder_s"] * 1e9
            ):
                return

    def _one(self, gpu: Any, function: Callable[..., Any]) -> dict[str, int]:
        """One batch; the memory that it needs."""
        spec = self.spec
        self._enter("making the call")
        began = gpu.now()
        made = target.make(function, spec.get("batch"), spec.get("shapes") or (), gpu)
        gpu.sync()
        work = made.workload
        self.emit(
            {
                "type": "made", "ns": gpu.now() - began, "outputs": made.outputs, "takes_batch": made.takes_batch,
                "input_bytes": gpu.bytes_of(work.inputs), "zero": gpu.all_zero(work.inputs),
            }
        )  # fmt: skip
        self._enter("warm-up")
        warm = self._warm_up(gpu, work.run)
        memory = gpu.memory()
        self.emit({"type": "memory", **memory})
        gpu.quiet()
        if spec.get("role") == "profile":
            self._enter("the profiled loop")
            self._profiled(gpu, work.run, warm.call_ns)
            return memory
        self._enter("setting up")
        modes = self._modes(gpu, work, warm.call_ns)
        self._enter("measuring")
        self._measure(gpu, modes)
        return memory

    def _warm_up(self, gpu: Any, call: Callable[[], Any]) -> warmup.WarmUp:
        def timed() -> tuple[int, int]:
            began = gpu.now()
            call()
            gpu.sync()
            ended = gpu.now()
            return ended, ended - began

        spec = self.spec
        stands = _clock(spec.get("clocks"))
        warm = warmup.warm_up(
            timed, gpu.state, stands, precision=spec["precision"],
            limit_s=spec.get("warm_up_s", warmup.LIMIT_S), window_s=spec.get("window_s", warmup.WINDOW_S),
        )  # fmt: skip
        self.emit(
            {
                "type": "warm", "first_ns": warm.first_ns, "calls": warm.calls, "ns": warm.took_ns, "settled": warm.settled,
                "why": warm.why, "times": warm.times,
            }
        )  # fmt: skip
        return warm

    def _modes(self, gpu: Any, work: Any, call_ns: float) -> list[Mode]:
        """The modes that can be measured; the others are refused, each with its reason.  Capture comes last: it has the most
        side effects."""
        made, maker = [], Modes(gpu, work, call_ns)
        wanted = [(name, l2) for name in self.spec["modes"] for l2 in self.spec["l2"]]
        for name, l2 in sorted(wanted, key=lambda w: w[0] == "graph"):
            try:
                made.append(maker.make(name, l2))
            except Refused as error:
                self.emit({"type": "refused", "mode": name, "l2": l2, "reason": str(error)})
        work.run()  # a capture that broke the process fails here
        gpu.sync()
        return made

    def _measure(self, gpu: Any, modes: list[Mode]) -> None:
        spec = self.spec
        self.emit({"type": "host", "ns": host_ns()})
        began, limit = gpu.now(), spec["seconds"] * 1e9
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
                    mode.call_ns = (ended - started) / max(1, len(values))
                self.emit(
                    {
                        "type": "block",
                        "mode": mode.name,
                        "l2": mode.l2,
                        "t0": started,
                        "t1": ended,
                        "ns": values,
                    }
                )
                if any(v < 0 for v in values):
                    raise RuntimeError(
                        "elapsed_time was negative (confidential computing?): the GPU's event times cannot be used"
                    )
            out_of_time = gpu.now() - began >= limit
            for mode in active:
                mode.done = out_of_time or self._enough(mode)
            active = [m for m in active if not m.done]
        self.emit({"type": "host", "ns": host_ns()})
        for mode in modes:
            self.emit(
                {"type": "mode", "mode": mode.name, "l2": mode.l2, "late": mode.late, **mode.facts}
            )

    def _enough(self, mode: Mode) -> bool:
        spec = self.spec
        if mode.spent_ns >= spec.get("most_s", MOST_S) * 1e9 or len(mode.samples) >= MOST_SAMPLES:
            return True
        if mode.spent_ns < spec.get("least_s", LEAST_S) * 1e9:
            return False
        need = spec.get("need", 0) if mode.name != "steady" else stop.FEWEST
        if len(mode.samples) < need or len(mode.samples) < 1.1 * mode.checked_at:
            return False
        mode.checked_at = len(mode.samples)
        return stop.precise(mode.samples, spec["precision"])

    def _profiled(self, gpu: Any, call: Callable[[], Any], call_ns: float) -> None:
        """Event pairs in regions: the loop of mode `event`, under nsys."""
        from nsysalign.region import region

        start, end = gpu.event(), gpu.event()
        batch, seconds = self.spec.get("batch"), self.spec["seconds"]
        base = f"batch={batch}" if batch is not None else "call"
        count = max(5, min(200, int(seconds * 1e9 / max(call_ns, 1_000) / len(self.spec["l2"]))))
        done = 0
        self.emit({"type": "host", "ns": host_ns()})
        for l2 in self.spec["l2"]:
            name = base if l2 == "warm" else f"{base} {l2}"
            call()
            for _ in range(count):
                if l2 == "cold":
                    gpu.flush()
                gpu.sync()
                with region(name):
                    start.record()
                    call()
                    end.record()
                end.synchronize()
                gpu.elapsed_ns(start, end)
                done += 1
        self.emit({"type": "host", "ns": host_ns()})
        self.emit({"type": "profiled", "pairs": done, "label": base})


def host_ns() -> int:
    """Nanoseconds that a fixed loop of plain Python takes, the median of several.  nsys traces nothing in it: if it differs
    between a timed and a profiled process, the host's speed differs."""
    found = []
    for _ in range(_TIMED):
        began, total = time.perf_counter_ns(), 0
        for turn in range(_TURNS):
            total += turn
        found.append(time.perf_counter_ns() - began)
    return sorted(found)[_TIMED // 2]


def clean() -> dict[str, Any]:
    """Evidence that no profiler and no probe is in this process: what was checked, and what was found."""
    found = [v for v in _VARIABLES if os.environ.get(v)]
    found += [m for m in ("_nsysalign_probe", "nvtx") if m in sys.modules]
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            names = {os.path.basename(line.rstrip("\n").rpartition(" ")[2]) for line in maps}
    except OSError:
        names = set()
    return {"found": [*found, *injected(names)], "libraries": len(names)}


def injected(names: Iterable[str]) -> list[str]:
    """Which of these files are a profiler's libraries."""
    return sorted(filter(_INJECTED.search, names))


def _clock(path: str | None) -> Callable[[int], bool]:
    """Whether the SM clock was stable since a time, from the samples that the parent writes; True if unknown."""

    def stands(since_ns: int) -> bool:
        rates = [
            row[_MHZ]
            for row in _rows(path)
            if row[_T] >= since_ns and row[_DEVICE] == 0 and row[_MHZ]
        ]
        return not rates or max(rates) - min(rates) <= warmup.CLOCK_SHARE * max(rates)

    return stands if path else lambda since_ns: True


def _rows(path: str) -> Iterator[list[Any]]:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines:
        if line.startswith(b"[") and line.endswith(b"]"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _backend(spec: dict[str, Any]) -> Any:
    """torch's device, or a class MODULE:NAME with the same methods: tests have one whose truth is known."""
    module, _, name = spec.get("backend", "cuda").partition(":")
    if name:
        return getattr(importlib.import_module(module), name)(
            spec.get("memory_fraction"), spec.get("seed", 0)
        )
    return Cuda(spec.get("memory_fraction"))


def _die_with_parent() -> None:
    """Makes sure that a killed parent leaves no worker on the GPU."""
    import ctypes
    import signal

    try:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return
    if os.getppid() == 1:
        os._exit(1)


def main(path: str) -> int:
    """Exit status 0 even if the call failed, which the facts report; anything else means that the process died."""
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    os.environ[target.IN_WORKER] = "1"
    if spec.get("limit_s"):  # where it hangs goes to its log, just before it is ended
        faulthandler.dump_traceback_later(max(0.5, spec["limit_s"] - 1.0), exit=False)
    with open(spec["out"], "a", encoding="utf-8", buffering=1) as out:
        worker = Worker(
            spec, lambda fact: out.write(json.dumps(fact, separators=(",", ":")) + "\n")
        )
        done = worker.run()
    if done and spec["role"] == "profile":
        return 0  # nsys writes its trace when the process ends as any other does
    if done:
        atexit._run_exitfuncs()  # the user's; what Python does after that takes up to a second with torch
    sys.stdout.flush()
    sys.stderr.write(worker.traceback)
    sys.stderr.flush()
    os._exit(0)  # nor is a broken CUDA context torn down: it may hang


def wait(parent: int, ahead: str = "") -> int:
    """Import slow modules, then wait for the name of a spec on standard input; an empty line means to exit."""
    if os.getppid() == parent:
        _die_with_parent()
    if ahead:
        importlib.import_module(ahead)  # no CUDA yet
    path = sys.stdin.readline().strip()
    return main(path) if path else 0


if __name__ == "__main__":
    sys.exit(
        wait(int(sys.argv[2]), *sys.argv[3:]) if sys.argv[1] == "--wait" else main(sys.argv[1])
    )
