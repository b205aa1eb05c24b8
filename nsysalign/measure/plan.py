"""What was requested: targets, batches, modes, precision, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsysalign.errors import UsageError
from nsysalign.measure.modes import L2, NAMES

DEFAULT_MODES = ("latency", "event", "device", "steady", "graph")
#: What a point of the curve needs; the rest is measured at the batches that are reported.
CURVE_MODES = ("latency", "steady")
PROCESSES, MOST_PROCESSES = 3, 7
#: Of a search that was given none.
SEARCH_BUDGET_S = 240.0
_SHAPE = re.compile(r"(\d+(?:x\d+)*|scalar)(?::([a-z]+\d*))?(?::(\d+))?")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|m)?")
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}
_KINDS = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
)


@dataclass(frozen=True)
class Target:
    """What is measured.  `function`: for this process only, if no other can find it."""

    name: str
    spec: str
    function: Any = None
    path: tuple[str, ...] = ()  # where the worker additionally looks for modules


@dataclass(frozen=True)
class Options:
    """How to measure.  Times in seconds, shares as shares."""

    targets: tuple[Target, ...]
    batches: tuple[int, ...] = ()  # () is the function's default
    search: bool = False  # --batch auto
    shapes: tuple[tuple[tuple[int, ...], str, int], ...] = ()
    modes: tuple[str, ...] = DEFAULT_MODES
    l2: tuple[str, ...] = ("warm",)
    precision: float = 0.005
    processes: int = PROCESSES
    most_processes: int = MOST_PROCESSES
    budget_s: float | None = None
    most_batch: int | None = None
    memory: float = 0.9
    latency_below_s: float | None = None
    at: float = 50.0  # the percentile that --latency-below is about
    profile: bool = True
    quick: bool = False
    output: Path | None = None
    nsys: str | None = None
    lock_clocks: int | None = None
    job_limit_s: float = 300.0  # of one process, after which it counts as hanging
    seed: int = 0
    backend: str = "cuda"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def percentiles(self) -> tuple[float, ...]:
        """Those that are shown."""
        return tuple(sorted({50.0, 90.0, 99.0, self.at}))


@dataclass(frozen=True)
class Job:
    """One process: a target at a batch, once."""

    number: int
    target: int
    batch: int | None
    replicate: int
    role: str  # time, probe, profile
    modes: tuple[str, ...]
    l2: tuple[str, ...]
    seconds: float
    limit_s: float
    memory_fraction: float | None = None
    most_bytes: int | None = None  # of the device in use, above which the worker is ended
    ladder: tuple[int, ...] = ()  # batches that one process tries one after the other
    ladder_s: float = 0.0

    def spec(self, options: Options, out: Path, clocks: Path | None) -> dict[str, Any]:
        """What the worker is told."""
        quick = options.quick or self.role == "probe"
        seconds = max(0.05, self.seconds)
        return {
            "target": options.targets[self.target].spec, "path": options.targets[self.target].path, "batch": self.batch, "shapes": options.shapes,
            "modes": self.modes, "l2": self.l2, "precision": options.precision, "role": self.role,
            "seconds": seconds, "limit_s": self.limit_s, "need": need(options, quick=quick),
            "most_s": min(10.0, 2.0 if quick else 10.0), "least_s": min(0.25 if quick else 0.5, seconds / len(self.modes or (1,))),
            "warm_up_s": min(10.0, max(0.3, seconds if quick else 2 * seconds)), "window_s": min(0.25 if quick else 0.5, max(0.1, seconds / 2)),
            "memory_fraction": self.memory_fraction, "ladder": self.ladder, "ladder_s": self.ladder_s, "backend": options.backend, "seed": options.seed * 1_000_003 + self.number,
            "out": str(out), "clocks": str(clocks) if clocks else None,
        }  # fmt: skip


def need(options: Options, *, quick: bool) -> int:
    """Samples of one process, so that all together bound every percentile that is shown."""
    from nsysalign.measure.stop import PERCENTILES

    if quick:
        return 20
    wanted = max(PERCENTILES.get(p, 0) for p in options.percentiles)
    return -(-wanted // max(1, options.processes))


def target(text: str, number: int) -> Target:
    """`bench.py:make`; two of them are called A and B in tables beside their names."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{text}: name a function as FILE.py:FUNCTION",
            f"nsysalign measure {text.strip(':') or 'bench.py'}:make",
        )
    if place.endswith(".py") and not Path(place).is_file():
        raise UsageError(
            f"{place}: no such file", "name a file that exists, relative to this directory"
        )
    return Target(text if not place.endswith(".py") else f"{Path(place).name}:{name}", text)


def shape(text: str) -> tuple[tuple[int, ...], str, int]:
    """`3x224x224`, `128:int64:30000` (type, and for whole numbers the bound of random ones)."""
    found = _SHAPE.fullmatch(text)
    if not found or (found[2] and found[2] not in _KINDS) or "0" in found[1].split("x"):
        raise UsageError(
            f"--input {text}: not a shape",
            f"SHAPE[:TYPE[:BOUND]] without the batch, such as 3x224x224 or 128:int64:30000; types: {', '.join(_KINDS)}",
        )
    sizes = () if found[1] == "scalar" else tuple(int(n) for n in found[1].split("x"))
    return sizes, found[2] or "", int(found[3] or 100)


def seconds(text: str, option: str) -> float:
    """`20ms`, `120s`, `2min`, `30` (seconds)."""
    found = _TIME.fullmatch(text.strip())
    value = float(found[1]) * _UNITS[found[2] or ""] if found else 0.0
    if value <= 0:
        raise UsageError(f"{option} {text}: not a time", f"{option} 20ms   or   {option} 120s")
    return value


def share(text: str, option: str) -> float:
    """`0.5%` or `0.005`."""
    return _share(text, option, 0.5, "between 0 and 50 %", "0.5%")


def part(text: str, option: str) -> float:
    """`90%` or `0.9`: a share up to the whole."""
    return _share(text, option, 1, "up to 100 %", "90%")


def _share(text: str, option: str, most: float, allowed: str, example: str) -> float:
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise UsageError(f"{option} {text}: not a share {allowed}", f"{option} {example}")
    return value


def percentile(text: str) -> float:
    """`p99`, `99`."""
    try:
        value = float(text.lstrip("p"))
    except ValueError:
        value = 0.0
    if not 50 <= value <= 99.9:
        raise UsageError(f"--at {text}: not a percentile from p50 to p99.9", "--at p99")
    return value


def modes(text: str) -> tuple[str, ...]:
    """`latency,steady`."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = [n for n in names if n not in NAMES]
    if wrong or not names:
        raise UsageError(
            f"--mode {text}: there is no mode {wrong[0] if wrong else ''}",
            f"one or several of {', '.join(NAMES)}",
        )
    return names


def batches(text: str | None) -> tuple[tuple[int, ...], bool]:
    """(batch sizes, whether to search): `auto`, `64`, `1,8,64`, None for the default."""
    if text is None:
        return (), False
    if text == "auto":
        return (), True
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise UsageError(
            f"--batch {text}: neither auto nor whole numbers from 1 on",
            "--batch 64   or   --batch 1,8,64   or   --batch auto",
        )
    return found, False


def l2(text: str) -> tuple[str, ...]:
    """`both` is warm and cold."""
    return L2 if text == "both" else (text,)


def check(options: Options) -> Options:
    """The same, with the budget of a search that was given none; UsageError where parts of it do not go together."""
    for name, value, sound, range_ in (
        ("precision", options.precision, 0 < options.precision <= 0.5, "a share between 0 and 0.5"),
        ("memory", options.memory, 0 < options.memory <= 1, "a share up to 1"),
        ("at", options.at, 50 <= options.at <= 99.9, "a percentile from 50 to 99.9"),
        ("processes", options.processes, options.processes >= 1, "1 or more"),
        (
            "budget",
            options.budget_s,
            options.budget_s is None or options.budget_s > 0,
            "more than 0 seconds",
        ),
    ):
        if not sound:
            raise UsageError(f"{name} is {value!r}", f"{name}: {range_}")
    if len(options.targets) > 2:
        raise UsageError("at most two targets can be compared", "name one or two functions")
    if options.latency_below_s is not None and not (options.search or options.batches):
        raise UsageError("--latency-below chooses among batch sizes", "add --batch auto")
    if options.most_batch is not None and not options.search:
        raise UsageError("--max-batch limits a search", "add --batch auto")
    if options.search and len(options.targets) > 1:
        raise UsageError(
            "the search for batches is of one target", "search each, then compare both: --batch N"
        )
    if options.search and options.budget_s is None:
        return replace(options, budget_s=SEARCH_BUDGET_S)
    return options
