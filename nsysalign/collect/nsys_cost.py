"""Measures what nsys adds to each kind of call on this machine: the same work in processes with and without nsys, in turn.  The
host's speed changes meanwhile, so every time is converted to the usual speed of this host (`probe.meter`, read next to each).
The result is kept in the user's cache, under everything it depends on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from nsysalign.collect.nsys import Nsys, profile_arguments
from nsysalign.collect.probe import meter
from nsysalign.errors import NsysAlignError, OutputError
from nsysalign.files import write_lines
from nsysalign.untrusted import open_regular

FORMAT, VERSION = "nsysalign-nsys-cost", 1
#: Older measurements are not used: drivers' settings, kernels and neighbours change.
STALE_S = 30 * 86_400
ROUNDS = 3
_PATIENCE_S = 120
_PROC = Path("/proc")
_REPAIR = "nsysalign doctor --calibrate"


@dataclass(frozen=True)
class Machine:
    """Everything the cost depends on that can be read without starting anything.  None of it is private."""

    gpu: str
    driver: str
    nsys: str
    torch: str
    python: str
    cpu: str


@dataclass(frozen=True)
class CallCost:
    """Medians, ns per call; `spread`: how far processes of one kind differed, largest divided by smallest."""

    plain_ns: float
    nsys_ns: float
    spread: float


@dataclass(frozen=True)
class NsysCost:
    """The result of a measurement.  `meter_*_ns`: time of the meter's work: usual (the faster quarter), 5th and 95th
    percentile."""

    machine: Machine
    made_s: float  # UTC
    meter_usual_ns: float
    meter_least_ns: float
    meter_most_ns: float
    calls: Mapping[str, CallCost]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def age_s(self) -> float:
        return time.time() - self.made_s

    @property
    def header(self) -> dict[str, Any]:
        """What an event log records of it, for predictions."""
        known = {name: getattr(self, name) for name in ("meter_usual_ns", "meter_least_ns", "meter_most_ns")}
        return {**known, "meter_work": meter.WORK, "meter_python": self.machine.python}


class Unusable(Exception):
    """A file of the cache that exists but cannot be used.  The text says why."""


def machine(nsys: Nsys) -> Machine | None:
    """This machine, None if no NVIDIA driver is loaded."""
    driver = _found(_PROC / "driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)")
    cards = sorted((_PROC / "driver/nvidia/gpus").glob("*/information"))
    if driver is None:
        return None
    names = [_found(card, r"Model:\s*(.+)") or "unknown" for card in cards]
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "unknown"
    cpu = _found(_PROC / "cpuinfo", r"model name\s*:\s*(.+)") or platform.machine()
    return Machine(
        names[0] if names else "unknown", driver, nsys.version, torch, platform.python_version(), cpu
    )


def _found(path: Path, pattern: str) -> str | None:
    try:
        match = re.search(pattern, path.read_text("utf-8", "replace")[:65_536])
    except OSError:
        return None
    return " ".join(match[1].split())[:100] if match else None


# --- the cache ---------------------------------------------------------------------------------------------


def cache_file(of: Machine, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the measurement of a machine is kept ($XDG_CACHE_HOME, else ~/.cache)."""
    base = environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    key = hashlib.blake2s(json.dumps(asdict(of), sort_keys=True).encode(), digest_size=8).hexdigest()
    return folder / "nsysalign" / f"nsys-cost-{key}.json"


def save(cost: NsysCost, environ: Mapping[str, str] = os.environ) -> Path:
    """Save it.  Raises OutputError if the cache cannot be written."""
    path = cache_file(cost.machine, environ)
    try:
        write_lines(path, [json.dumps({"format": FORMAT, "version": VERSION, **asdict(cost)}, indent=1)])
    except OSError as error:
        raise OutputError(
            f"{path.parent}: cannot be written ({error.strerror})", "XDG_CACHE_HOME=/a/folder " + _REPAIR
        ) from error
    return path


def load(of: Machine, environ: Mapping[str, str] = os.environ) -> NsysCost | None:
    """What was measured on exactly this machine, None if nothing was.  Raises Unusable if it is damaged or older than
    STALE_S."""
    path = cache_file(of, environ)
    try:
        with open_regular(path) as file:
            text = file.read(1 << 20).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Unusable(f"the measurement in the cache cannot be read ({type(error).__name__})") from error
    try:
        cost = _parsed(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unusable("the measurement in the cache is damaged") from error
    if cost.machine != of:
        raise Unusable("the measurement in the cache is another machine's")
    if not 0 <= cost.age_s <= STALE_S:
        raise Unusable(f"it was measured {days(cost.age_s)} ago")
    return cost


def usual_speed(nsys: Nsys, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """For the header of event logs: how fast this machine's host usually is, {} if that was not measured."""
    here = machine(nsys)
    try:
        cost = load(here, environ) if here else None
    except Unusable:
        return {}
    return cost.header if cost else {}


def _parsed(found: Any) -> NsysCost:
    if found["format"] != FORMAT or found["version"] != VERSION:
        raise ValueError("another format")
    calls = {
        str(k): CallCost(*(_positive(v[n]) for n in ("plain_ns", "nsys_ns", "spread")))
        for k, v in found["calls"].items()
    }
    numbers = [_positive(found[n]) for n in ("made_s", "meter_usual_ns", "meter_least_ns", "meter_most_ns")]
    of = Machine(**{k: str(v) for k, v in found["machine"].items()})
    return NsysCost(of, *numbers, calls, {str(k): str(v) for k, v in found["left_out"].items()})


def _positive(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e18:
        raise ValueError(value)
    return float(value)


def days(seconds: float) -> str:
    """An age in words."""
    if seconds < 0:
        return "in the future, not"
    whole = int(seconds // 86_400)
    return f"{whole} days" if whole > 1 else "1 day" if whole else f"{int(seconds // 3_600)} hours"


# --- measuring ---------------------------------------------------------------------------------------------


def calibrate(
    nsys: Nsys, of: Machine | None, tell: Callable[[str, int], None], rounds: int = ROUNDS
) -> NsysCost:
    """Measure: `rounds` processes without nsys and as many under it, in turn.

    Raises NsysAlignError if this Python has no torch, torch sees no GPU, or nsys leaves nothing.
    """
    if importlib.util.find_spec("torch") is None:
        raise NsysAlignError(
            "torch is not installed in this Python: there is no known work to measure",
            "install nsysalign where torch is, and there: " + _REPAIR,
        )
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    with tempfile.TemporaryDirectory(prefix="nsysalign-") as folder:
        for number in range(2 * rounds):
            under = bool(number % 2)
            tell(f"known work {'under' if under else 'without'} nsys", 100 * number // (2 * rounds))
            sides[under].append(_once(nsys if under else None, Path(folder) / str(number)))
    if of is None:
        raise NsysAlignError(
            "no NVIDIA driver is loaded on this machine", "run it where nvidia-smi lists a GPU"
        )
    return summary(of, *sides)


def _once(nsys: Nsys | None, stem: Path) -> dict[str, Any]:
    """The work in a process of its own."""
    out = stem.with_suffix(".json")
    profile = profile_arguments(nsys, stem)[0] if nsys else []
    root = str(Path(__file__).resolve().parents[2])
    env = {k: v for k, v in os.environ.items() if not k.startswith("NSYSALIGN_")}
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    command = [*profile, sys.executable, "-m", "nsysalign.collect.nsys_cost_work", str(out)]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        found = json.loads(out.read_text("utf-8"))
    except subprocess.TimeoutExpired as error:
        raise NsysAlignError(
            f"the known work took more than {_PATIENCE_S} s{' under nsys' if nsys else ''}",
            "nsysalign doctor",
        ) from error
    except (OSError, ValueError) as error:
        said = " ".join((done.stderr or done.stdout).split())[-200:] or "nothing was said"
        raise NsysAlignError(
            f"the known work ended{' under nsys' if nsys else ''} without a result: {said}",
            "nsysalign doctor",
        ) from error
    if "error" in found:
        raise NsysAlignError(
            f"the known work cannot be done here: {found['error']}",
            "run it where torch sees a GPU (python -c 'import torch; print(torch.cuda.is_available())')",
        )
    return found


def summary(of: Machine, plain: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]]) -> NsysCost:
    """Per kind the median over batches of each process and then over processes, at the host's usual speed."""
    readings = [m for one in (*plain, *under) for batches in one["calls"].values() for _, m in batches]
    if not readings:
        raise NsysAlignError("none of the known work could be done with this torch", "nsysalign doctor")
    cuts = statistics.quantiles(readings, n=20, method="inclusive") if len(readings) > 1 else readings * 19
    usual, least, most = cuts[4], cuts[0], cuts[18]
    calls = {}
    for kind in plain[0]["calls"]:
        sides = []
        for side in (plain, under):
            medians = [
                statistics.median(ns * usual / m for ns, m in one["calls"][kind])
                for one in side
                if kind in one["calls"]
            ]
            sides.append(medians)
        if all(sides):
            spread = max(max(side) / min(side) for side in sides)
            calls[kind] = CallCost(statistics.median(sides[0]), statistics.median(sides[1]), spread)
    left_out = {kind: why for one in (*plain, *under) for kind, why in one["left_out"].items()}
    return NsysCost(of, time.time(), usual, least, most, calls, left_out)
