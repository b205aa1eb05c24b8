"""What was requested: targets, batches, modes, limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from nsysalign.addons.measure.modes import L2, NAMES, TRITON
from nsysalign.errors import UsageError

#: Of a search that was given none.
SEARCH_BUDGET_S = 240.0
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|)")


@dataclass(frozen=True)
class Target:
    """What is measured.  `path`: where the worker additionally looks for modules."""

    name: str
    spec: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """How to measure; times in seconds."""

    targets: tuple[Target, ...]
    batches: tuple[int, ...] = ()  # () is the function's default
    search: bool = False  # --batch auto
    modes: tuple[str, ...] = NAMES
    processes: int = 3
    budget_s: float | None = None
    most_batch: int | None = None
    quick: bool = False
    clocks: bool = False  # by every clock, with a warm and a cold L2
    output: Path | None = None
    nsys: str | None = None
    lock_clocks: int | None = None
    job_limit_s: float = 300.0  # of one process, after which it counts as hanging
    seed: int = 0  # of the random orders; 0 chooses a new one each time
    backend: str = "cuda"

    def checked(self) -> Options:
        """The same, with the budget of a search that was given none, and --quick and --clocks
        carried out.  UsageError where parts of it do not go together."""
        for wrong, message, next_step in (
            (self.processes < 1, f"processes is {self.processes!r}", "1 or more"),
            (self.budget_s is not None and self.budget_s <= 0, "budget: no time", "90 (seconds)"),
            (len(self.targets) > 2, "at most two targets can be compared", "name one or two"),
            (self.most_batch and not self.search, "--max-batch limits a search", "--batch auto"),
            (
                self.search and len(self.targets) > 1,
                "the search for batches is of one target",
                "search each, then compare both: --batch N",
            ),
            (self.clocks and self.search, "--clocks is about one batch", "--batch N"),
        ):
            if wrong:
                raise UsageError(message, next_step)
        every = dict.fromkeys([*self.modes, *NAMES, *TRITON])
        return replace(
            self,
            processes=1 if self.quick else self.processes,
            modes=tuple(every) if self.clocks else self.modes,
            budget_s=SEARCH_BUDGET_S if self.search and not self.budget_s else self.budget_s,
        )

    @property
    def l2(self) -> tuple[str, ...]:
        """States of the L2 to measure in: a cold one is for `--clocks`."""
        return L2 if self.clocks else ("warm",)


def target(text: str) -> Target:
    """`bench.py:make`, `package.module:make`."""
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
    return Target(f"{Path(place).name}:{name}", text)


def seconds(text: str) -> float:
    """`120s`, `2min`, `30` (seconds)."""
    parts = _TIME.fullmatch(text.strip())
    value = float(parts[1]) * (60 if parts[2].startswith("m") else 1) if parts else 0.0
    if value <= 0:
        raise UsageError(f"--budget {text}: not a time", "--budget 90s   or   --budget 4min")
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
