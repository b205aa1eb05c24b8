"""What was requested: targets, batches, modes, precision, limits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsysalign.addons.measure.modes import L2, NAMES, TRITON
from nsysalign.addons.measure.statistics import FEWEST_P99
from nsysalign.errors import UsageError

DEFAULT_MODES = NAMES
#: What a search measures; the rest is measured at the batches that are reported.
CURVE_MODES = ("latency", "steady")
PROCESSES, MOST_PROCESSES = 3, 7
#: Of a search that was given none.
SEARCH_BUDGET_S = 240.0
#: Share of the GPU's free memory that a search may take.
FREE_SHARE = 0.9
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|m)?")
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}


@dataclass(frozen=True)
class Target:
    """What is measured.  `path`: where the worker additionally looks for modules."""

    name: str
    spec: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """How to measure.  Times in seconds, shares as shares."""

    targets: tuple[Target, ...]
    batches: tuple[int, ...] = ()  # () is the function's default
    search: bool = False  # --batch auto
    modes: tuple[str, ...] = DEFAULT_MODES
    precision: float = 0.005
    processes: int = PROCESSES
    most_processes: int = MOST_PROCESSES  # where they differ
    budget_s: float | None = None
    most_batch: int | None = None
    profile: bool = True
    quick: bool = False
    clocks: bool = False  # by every clock, with a warm and a cold L2
    output: Path | None = None
    nsys: str | None = None
    lock_clocks: int | None = None
    job_limit_s: float = 300.0  # of one process, after which it counts as hanging
    seed: int = 0  # of the random orders; 0 chooses a new one each time
    backend: str = "cuda"

    def checked(self) -> Options:
        """The same, with the budget of a search that was given none, and --quick carried out: one
        process, no profile.  UsageError where parts of it do not go together."""
        budget, search = self.budget_s, self.search
        for wrong, message, next_step in (
            (not 0 < self.precision <= 0.5, f"precision is {self.precision!r}",
             "precision: a share between 0 and 0.5"),
            (self.processes < 1, f"processes is {self.processes!r}", "processes: 1 or more"),
            (budget is not None and budget <= 0, f"budget is {budget!r}",
             "budget: more than 0 seconds"),
            (not self.targets, "nothing to measure", "nsysalign measure FILE.py:FUNCTION"),
            (len(self.targets) > 2, "at most two targets can be compared",
             "name one or two functions"),
            (self.most_batch is not None and not search, "--max-batch limits a search",
             "add --batch auto"),
            (search and len(self.targets) > 1, "the search for batches is of one target",
             "search each, then compare both: --batch N"),
            (self.clocks and search, "--clocks is about one batch",
             "add --batch N, or leave it out"),
        ):  # fmt: skip
            if wrong:
                raise UsageError(message, next_step)
        more: dict[str, Any] = {"processes": 1, "profile": False} if self.quick else {}
        if self.clocks:
            more["modes"] = tuple(dict.fromkeys([*self.modes, *DEFAULT_MODES, *TRITON]))
        if search and budget is None:
            more["budget_s"] = SEARCH_BUDGET_S
        return replace(self, **more)

    @property
    def l2(self) -> tuple[str, ...]:
        """States of the L2 to measure in: a cold one is for `--clocks`."""
        return L2 if self.clocks else ("warm",)


@dataclass(frozen=True)
class Job:
    """One process: a target at one batch, or at several in the process of a search."""

    number: int
    target: int
    batches: tuple[int | None, ...]
    role: str  # time, probe, profile
    modes: tuple[str, ...]
    l2: tuple[str, ...]
    seconds: float
    limit_s: float
    batches_s: float = 0.0  # no further batch is begun after this long

    def spec(self, options: Options, out: Path) -> dict[str, Any]:
        """What the worker is told."""
        rough = options.quick or self.role == "probe"
        seconds = max(0.05, self.seconds)
        return {
            "target": options.targets[self.target].spec,
            "path": options.targets[self.target].path,
            "batches": self.batches,
            "batches_s": self.batches_s,
            "modes": self.modes,
            "l2": self.l2,
            "precision": options.precision,
            "role": self.role,
            "seconds": seconds,
            "limit_s": self.limit_s,
            # samples of one process, so that all together bound every percentile that is shown
            "need": 20 if rough else -(-FEWEST_P99 // max(1, options.processes)),
            "most_s": 2.0 if rough else 10.0,
            "least_s": min(0.25 if rough else 0.5, seconds / len(self.modes or (1,))),
            "warm_up_s": min(10.0, max(0.3, seconds if rough else 2 * seconds)),
            "window_s": min(0.25 if rough else 0.5, max(0.1, seconds / 2)),
            "free_share": FREE_SHARE if options.search else None,
            "backend": options.backend,
            "out": str(out),
        }


def target(text: str) -> Target:
    """`bench.py:make`; two of them are called A and B in tables beside their names."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{text}: name a function as FILE.py:FUNCTION",
            f"nsysalign measure {text.strip(':') or 'bench.py'}:make",
        )
    if not place.endswith(".py"):
        return Target(text, text)
    if not Path(place).is_file():
        raise UsageError(
            f"{place}: no such file", "name a file that exists, relative to this directory"
        )
    return Target(f"{Path(place).name}:{name}", text)


def seconds(text: str, option: str) -> float:
    """`20ms`, `120s`, `2min`, `30` (seconds)."""
    parts = _TIME.fullmatch(text.strip())
    value = float(parts[1]) * _UNITS[parts[2] or ""] if parts else 0.0
    if value <= 0:
        raise UsageError(f"{option} {text}: not a time", f"{option} 90s   or   {option} 4min")
    return value


def share(text: str) -> float:
    """Of --precision: `0.5%` or `0.005`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value <= 0.5:
        raise UsageError(f"--precision {text}: not a share of up to 50 %", "--precision 0.5%")
    return value


def modes(text: str) -> tuple[str, ...]:
    """`latency,steady`."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = [n for n in names if n not in NAMES and n not in TRITON]
    if wrong or not names:
        raise UsageError(
            f"--mode {text}: there is no mode {wrong[0] if wrong else ''}",
            f"one or several of {', '.join(NAMES)}",
        )
    return names


def batches(text: str | None) -> tuple[tuple[int, ...], bool]:
    """(batch sizes, whether to search): `auto`, `64`, `1,8,64`, None for the default."""
    if text is None or text == "auto":
        return (), text == "auto"
    try:
        sizes = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise UsageError(
            f"--batch {text}: neither auto nor whole numbers from 1 on",
            "--batch 64   or   --batch 1,8,64   or   --batch auto",
        )
    return sizes, False
