"""Runs one worker and watches it: time, memory, exit.  The parent never opens CUDA."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysalign.addons.measure.failures import Failure
from nsysalign.addons.measure.plan import Job, Options

#: Variables that a worker must not have: profilers inject themselves through them, and the first
#: starts the probe.
_REMOVED = ("NSYSALIGN_DIR", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYSALIGN_CONFIRM")
WORKER = [sys.executable, "-m", "nsysalign.addons.measure.worker"]


@dataclass(frozen=True)
class Outcome:
    """A worker's result: facts in order, the failure or None, how long it took."""

    job: Job
    facts: list[dict[str, Any]]
    failure: Failure | None
    wall_s: float
    began_ns: int = 0

    def first(self, kind: str) -> dict[str, Any]:
        """The first fact of a type, {} if there is none."""
        return next((f for f in self.facts if f["type"] == kind), {})

    def all(self, kind: str) -> list[dict[str, Any]]:
        """All facts of a type."""
        return [f for f in self.facts if f["type"] == kind]


def run(job: Job, options: Options, folder: Path) -> Outcome:
    """Start a worker, wait for it, and end it if necessary."""
    spec, out = _specified(job, options, folder)
    began, began_ns = time.monotonic(), time.monotonic_ns()
    log = folder / f"worker-{job.number:04d}.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*WORKER, str(spec), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(os.environ),
            start_new_session=True,
        )
    ended = ""  # by itself
    try:
        process.wait(job.limit_s)
    except subprocess.TimeoutExpired:
        ended = "time"
    except KeyboardInterrupt:  # what it has measured so far is kept, too
        ended = "interrupted"
    finally:
        _end(process)
    facts = list(read(out))
    text = log.read_text(encoding="utf-8", errors="replace")
    failure = _failure(process.returncode, facts, ended, text, job)
    return Outcome(job, facts, failure, time.monotonic() - began, began_ns)


def command(job: Job, options: Options, folder: Path) -> tuple[list[str], Path]:
    """(the worker as a command, its facts' file), for a run under nsys."""
    spec, out = _specified(job, options, folder)
    return [*WORKER, str(spec)], out


def _specified(job: Job, options: Options, folder: Path) -> tuple[Path, Path]:
    spec, out = (folder / f"{job.number:04d}.{end}" for end in ("json", "jsonl"))
    out.unlink(missing_ok=True)
    spec.write_text(json.dumps(job.spec(options, out)), encoding="utf-8")
    return spec, out


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, without the variables through which profilers inject themselves."""
    kept = {k: v for k, v in environ.items() if k not in _REMOVED}
    if re.search("nsys|ToolsInjection", kept.get("LD_PRELOAD", ""), re.IGNORECASE):
        del kept["LD_PRELOAD"]
    return kept


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


def _end(process: subprocess.Popen) -> None:
    """End the worker and everything it started: it has its own process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(
    status: int, facts: list[dict[str, Any]], ended: str, log: str, job: Job
) -> Failure | None:
    stage = next((f["stage"] for f in reversed(facts) if f["type"] == "stage"), "starting")
    if ended == "interrupted":
        return Failure("interrupted", "by Ctrl-C or a signal", stage)
    for fact in facts:
        if fact["type"] == "failed":
            return Failure(fact["class"], fact["message"], fact["stage"], fact.get("where", ""))
    if ended == "time":
        # the innermost line outside our code that faulthandler wrote
        begin = log.rfind("most recent call first")
        own = os.path.dirname(__file__) + os.sep
        places = [
            f"{os.path.basename(path)}:{line}"
            for path, line in re.findall(r'File "([^"]+)", line (\d+) in ', log[begin:])
            if not path.startswith((own, "<"))
        ]
        return Failure("hang", f"ended after {job.limit_s:.0f} s", stage, *places[:1])
    if any(f["type"] == "done" for f in facts):
        return None  # how it ended after that does not matter
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    return Failure("died", f"{name}{f' ({last[:200]})' if last else ''}", stage)
