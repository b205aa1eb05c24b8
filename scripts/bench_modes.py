"""A program alone, with the probe, under nsys, with both, and with event tracing as well: for the benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nsysalign.errors import NsysError
from nsysalign.record.command import probe_environment
from nsysalign.record.nsys import Nsys, find_nsys, profile_arguments
from nsysalign.record.processes import end_all

ALONE, PROBE, NSYS, BOTH, TRACED = "alone", "probe", "nsys", "nsys+probe", "nsys+probe+events"


def modes() -> tuple[list[str], Nsys | None]:
    """What can be compared on this machine, and its nsys."""
    try:
        nsys = find_nsys()
    except NsysError as error:
        print(f"without nsys: {error.message}", file=sys.stderr)
        return [ALONE, PROBE], None
    print(f"nsys {nsys.version}", file=sys.stderr)
    traced = "cuda-event-trace" in nsys.flags
    if not traced:
        print("this nsys has no --cuda-event-trace: without that mode", file=sys.stderr)
    return [ALONE, PROBE, NSYS, BOTH] + [TRACED] * traced, nsys


def run(
    mode: str, nsys: Nsys | None, argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict, Path]:
    """One run; the JSON line it printed, and the run directory (the caller removes it)."""
    run_dir = Path(tempfile.mkdtemp(prefix="nsysalign-bench-"))
    (run_dir / "raw").mkdir()
    env, command = {**environ, "NSYSALIGN_BENCH_MODE": mode}, [sys.executable, *argv]
    if mode in (PROBE, BOTH, TRACED):
        env = probe_environment(env, run_dir, calibrate=False)
    if mode in (NSYS, BOTH, TRACED):
        profile, _ = profile_arguments(nsys, run_dir / "trace", accurate=mode == TRACED)
        command = profile + command
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    end_all(run_dir)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(
            f"{mode}: the program printed no result (exit status {done.returncode})\n{done.stdout[-500:]}"
        )
    return json.loads(lines[-1]), run_dir


def rounds(
    names: Sequence[str], nsys: Nsys | None, argv: Sequence[str], count: int
) -> dict[str, list[dict]]:
    """`count` runs of every mode, in turn: what drifts does so for all."""
    results: dict[str, list[dict]] = {name: [] for name in names}
    for number in range(count):
        for name in names:
            result, run_dir = run(name, nsys, argv, os.environ)
            shutil.rmtree(run_dir, ignore_errors=True)
            results[name].append(result)
            print(f"round {number + 1} of {count}: {name}", file=sys.stderr)
    return results


def median(results: Iterable[dict], key: str) -> float:
    return statistics.median(result[key] for result in results)
