"""Runs one worker and watches it: time, memory, exit.  The parent never opens CUDA."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsysalign.measure import failures
from nsysalign.measure.plan import Job, Options

#: Variables that a worker must not have: profilers inject themselves through them, and the first starts the probe.
_REMOVED = ("NSYSALIGN_DIR", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYSALIGN_CONFIRM")
_LOOK_S = 0.02
_OOM_COUNTS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)


@dataclass(frozen=True)
class Failure:
    """Why a worker failed: a class of failures.CLASSES, and what else is known."""

    kind: str
    message: str
    stage: str = ""
    where: str = ""

    @property
    def memory(self) -> bool:
        """Whether it failed for lack of memory."""
        return self.kind in failures.MEMORY

    def sentence(self) -> str:
        """What happened, at what stage, where, and with what message."""
        what = failures.CLASSES[self.kind]
        at = f" ({self.where})" if self.where else ""
        stage = (
            f" in {self.stage}"
            if self.stage in ("warm-up", "the profiled loop")
            else f" while {self.stage}"
        )
        return f"{what}{stage}{at}: {self.message}"


@dataclass
class Outcome:
    """A worker's result: facts in order, the failure or None, how long it took."""

    job: Job
    facts: list[dict[str, Any]]
    failure: Failure | None
    wall_s: float
    log: str = ""
    began_ns: int = 0
    values: dict[str, Any] = field(default_factory=dict)

    def first(self, kind: str) -> dict[str, Any]:
        """The first fact of a type, {} if there is none."""
        return next((f for f in self.facts if f["type"] == kind), {})

    def all(self, kind: str) -> list[dict[str, Any]]:
        """All facts of a type."""
        return [f for f in self.facts if f["type"] == kind]

    def samples(self, mode: str, l2: str = "warm") -> list[int]:
        """All samples of a mode, in order of time."""
        return [
            v for b in self.all("block") if b["mode"] == mode and b["l2"] == l2 for v in b["ns"]
        ]


class Workers:
    """Starts workers.  While one starts, the next one already imports torch and then sleeps, without CUDA: by the time
    measuring begins only the measured process is running, and starting takes half as long.  None waits on a machine with fewer
    than four cores, or if torch is not the backend.  While the first one starts, `meanwhile()` runs in a thread, likewise.
    """

    def __init__(
        self, options: Options, folder: Path, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        self._options, self._folder, self._meanwhile = options, folder, meanwhile
        self._spare: tuple[subprocess.Popen, Path] | None = None
        self._count = 0
        self._ahead = options.backend == "cuda" and (os.cpu_count() or 1) >= 4

    def start(self, spec: Path, *, more: bool) -> tuple[subprocess.Popen, Path]:
        """(a worker that has its spec, its log).  `more`: another one will follow."""
        worker = self._take() or self._new()
        with contextlib.suppress(OSError):  # the status of a worker that has already died tells
            worker[0].stdin.write(f"{spec}\n".encode())
            worker[0].stdin.close()
        if self._ahead and self._count == 1:
            threading.Thread(target=self._meanwhile, daemon=True).start()
        if more and self._ahead:
            self._spare = self._new()
        return worker

    def ahead_s(self, outcome: Outcome) -> float:
        """Seconds of a worker's time that the next one will not need: the first one imports torch by itself."""
        stage = outcome.first("stage")
        return (
            (stage["t"] - outcome.began_ns) / 1e9
            if self._ahead and outcome.job.number == 0 and stage
            else 0.0
        )

    def _take(self) -> tuple[subprocess.Popen, Path] | None:
        spare, self._spare = self._spare, None
        if spare is not None and spare[0].poll() is not None:
            return None
        return spare

    def _new(self) -> tuple[subprocess.Popen, Path]:
        self._count += 1
        log = self._folder / f"worker-{self._count:04d}.log"
        with open(log, "wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "nsysalign.measure.worker", "--wait", str(os.getpid()), *(["torch"] if self._ahead else [])],
                stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT,
                env=environment(os.environ, self._options.environment), start_new_session=True,
            )  # fmt: skip
        return process, log

    def close(self) -> None:
        """End the waiting worker."""
        if (spare := self._take()) is not None:
            spare[0].stdin.close()
            _end(spare[0])


def run(
    job: Job,
    options: Options,
    folder: Path,
    workers: Workers,
    *,
    clocks: Path | None = None,
    used_bytes: Callable[[], int | None] = lambda: None,
    killed: Callable[[], int] | None = None,
    more: bool = False,
) -> Outcome:
    """Start a worker, wait for it, and end it if necessary.  `used_bytes()`: device memory in use by all processes; `more`:
    another worker will follow."""
    out, spec = (folder / f"{job.number:04d}.{end}" for end in ("jsonl", "json"))
    out.unlink(missing_ok=True)
    spec.write_text(json.dumps(job.spec(options, out, clocks)), encoding="utf-8")
    killed = killed or killed_for_memory
    before, began = killed(), time.monotonic()
    began_ns = time.monotonic_ns()
    process, log = workers.start(spec, more=more)
    try:
        ended = _wait(process, began + job.limit_s, job.most_bytes, used_bytes)
    except KeyboardInterrupt:  # what it has measured so far is kept, too
        ended = "interrupted"
    finally:
        _end(process)
    facts = list(read(out))
    text = log.read_text(encoding="utf-8", errors="replace")
    failure = _failure(process.returncode, facts, ended, text, job, killed() > before)
    return Outcome(
        job, facts, failure, time.monotonic() - began, text[-4000:] if failure else "", began_ns
    )


def run_here(job: Job, options: Options, function: Callable[..., Any]) -> Outcome:
    """A function that only this process can find (a lambda, a notebook's cell): the worker's loop in this process."""
    from nsysalign.measure.worker import Worker

    facts: list[dict[str, Any]] = []
    began, began_ns = time.monotonic(), time.monotonic_ns()
    spec = job.spec(options, Path("."), None) | {"memory_fraction": None}
    with contextlib.suppress(KeyboardInterrupt):  # among the facts
        Worker(spec, facts.append).run(function)
    said = next((f for f in facts if f["type"] == "failed"), None)
    failure = (
        Failure(said["class"], said["message"], said["stage"], said["where"]) if said else None
    )
    return Outcome(job, facts, failure, time.monotonic() - began, "", began_ns, {"here": True})


def command(job: Job, options: Options, folder: Path) -> tuple[list[str], Path]:
    """(the worker as a command, its facts' file), for a run under nsys."""
    out, spec = folder / f"{job.number:04d}.jsonl", folder / f"{job.number:04d}.json"
    spec.write_text(json.dumps(job.spec(options, out, None)), encoding="utf-8")
    return [sys.executable, "-m", "nsysalign.measure.worker", str(spec)], out


def environment(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, without the variables through which profilers inject themselves."""
    kept = {k: v for k, v in environ.items() if k not in _REMOVED}
    if "nsys" in kept.get("LD_PRELOAD", "").lower() or "ToolsInjection" in kept.get(
        "LD_PRELOAD", ""
    ):
        del kept["LD_PRELOAD"]
    return kept | dict(more)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The facts that were written completely."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                fact = json.loads(line)
            except ValueError:
                continue
            if isinstance(fact, dict) and "type" in fact:
                yield fact


def _wait(
    process: subprocess.Popen,
    deadline: float,
    most_bytes: int | None,
    used_bytes: Callable[[], int | None],
) -> str:
    """ "" if it ended by itself, "time" or "memory" if it must be ended."""
    while True:
        try:
            process.wait(_LOOK_S)
            return ""
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return "time"
            if most_bytes is not None and (used_bytes() or 0) > most_bytes:
                return "memory"


def _end(process: subprocess.Popen) -> None:
    """End the worker and everything it started: it has its own process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def killed_for_memory() -> int:
    """How often the kernel has ended a process for memory: in this container, else on the machine."""
    for path in _OOM_COUNTS:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            found = re.search(r"^oom_kill (\d+)", file.read(), re.MULTILINE)
            if found:
                return int(found[1])
    return 0


def _failure(
    status: int, facts: list[dict[str, Any]], ended: str, log: str, job: Job, for_memory: bool
) -> Failure | None:
    stage = next((f["stage"] for f in reversed(facts) if f["type"] == "stage"), "starting")
    if ended == "interrupted":
        return Failure("interrupted", "by Ctrl-C or a signal", stage)
    if ended == "memory":
        return Failure(
            "oom-limit",
            "the device's memory in use exceeded the limit, and the process was stopped",
            stage,
        )
    said = next((f for f in facts if f["type"] == "failed"), None)
    if said is not None:
        return Failure(said["class"], said["message"], said["stage"], said.get("where", ""))
    if ended == "time":
        return Failure("hang", f"ended after {job.limit_s:.0f} s", stage, _hung_at(log))
    if any(f["type"] == "done" for f in facts):
        return None  # how it ended after that does not matter
    kind = failures.of_exit(status, killed_for_memory=for_memory)
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    return Failure(kind, f"{name}{f' ({last[:200]})' if last else ''}", stage)


def _hung_at(log: str) -> str:
    """The innermost frame outside our code that faulthandler wrote, such as `model.py:12`."""
    for path, line in re.findall(
        r'File "([^"]+)", line (\d+) in ', log[log.rfind("most recent call first") :]
    ):
        if f"{os.sep}nsysalign{os.sep}measure{os.sep}" not in path and not path.startswith("<"):
            return f"{os.path.basename(path)}:{line}"
    return ""
