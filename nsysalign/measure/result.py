"""What a measurement found: samples, numbers, answers; to and from `measure.json`.

Everything but the samples is computed again from them when a file is read, so that no number can disagree with the samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysalign import untrusted
from nsysalign.errors import AnalysisError
from nsysalign.measure.failures import MEMORY
from nsysalign.measure.profile import Profile
from nsysalign.measure.search import EQUAL, KNEE
from nsysalign.rundir import MEASUREMENT, MEASUREMENT_FORMAT

if TYPE_CHECKING:
    import pandas as pd

    from nsysalign.measure.statistics import Difference, Estimate

VERSION = 1
LARGEST_FILE = 1 << 30
NAN = float("nan")


@dataclass(frozen=True)
class Run:
    """One worker.  `failure` is a class of failures.CLASSES, "" if it succeeded; times in ns, memory in bytes."""

    number: int
    target: int
    batch: int | None
    replicate: int
    role: str
    wall_s: float
    failure: str = ""
    message: str = ""
    first_ns: int = 0
    warm_ns: int = 0
    warm_calls: int = 0
    settled: bool = True
    unsettled: str = ""
    outputs: float = 1.0
    memory: Mapping[str, int] = field(default_factory=dict)
    clean: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fresh: bool = True
    stages_s: Mapping[str, float] = field(default_factory=dict)  # where its time went


@dataclass(frozen=True)
class Block:
    """Consecutive samples of one mode.  `t0`, `t1`: CLOCK_MONOTONIC ns; `sm_mhz` NaN where unknown."""

    run: int
    mode: str
    l2: str
    t0: int
    t1: int
    sm_mhz: float
    ns: tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """The headline of one batch of one target."""

    target: int
    batch: int | None
    processes: int
    latency: Estimate | None
    steady: Estimate | None
    rate: float
    rate_low: float
    rate_high: float
    memory: int
    sm_mhz: float
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measure:
    """A whole measurement.  Tables are built on demand."""

    targets: tuple[str, ...]
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    runs: tuple[Run, ...]
    blocks: tuple[Block, ...]
    profiles: tuple[Profile, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool = True
    folder: Path | None = None

    @property
    def failed(self) -> bool:
        """Whether a process failed that was asked for, or a search found nothing; that it meets the end of the memory is no
        failure of it."""
        searched = bool(self.search)
        if searched and not self.search.get("largest"):
            return True
        return any(
            r.role == "time" and r.failure and not (searched and r.failure in MEMORY)
            for r in self.runs
        )

    @property
    def l2(self) -> str:
        """State of the L2 that the curve is of: warm, unless only a cold one was asked for."""
        return str(next(iter(self.options.get("l2") or ("warm",))))

    # --- numbers ---

    def processes(
        self, target: int, batch: int | None, mode: str, l2: str = "warm"
    ) -> list[list[int]]:
        """The samples of each process; those of the search only if no other process measured this batch."""
        for roles in (("time",), ("time", "probe")):
            wanted = {
                r.number
                for r in self.runs
                if (r.target, r.batch) == (target, batch) and r.role in roles
            }
            per: dict[int, list[int]] = {}
            for b in self.blocks:
                if b.run in wanted and (b.mode, b.l2) == (mode, l2):
                    per.setdefault(b.run, []).extend(b.ns)
            if per:
                return list(per.values())
        return []

    @cached_property
    def estimates(self) -> dict[tuple[int, int | None, str, str], Estimate]:
        """(target, batch, mode, L2) -> Estimate, for all that was measured."""
        from nsysalign.measure.statistics import estimate

        keys = dict.fromkeys(
            (r.target, r.batch, b.mode, b.l2)
            for r in self.runs
            for b in self._by_run.get(r.number, ())
        )
        percentiles = tuple(sorted({50.0, 90.0, 99.0, float(self.options.get("at", 50.0))}))
        made = {k: self.processes(*k) for k in keys}
        return {k: estimate(v, percentiles) for k, v in made.items() if any(v)}

    @cached_property
    def _by_run(self) -> dict[int, list[Block]]:
        out: dict[int, list[Block]] = {}
        for b in self.blocks:
            out.setdefault(b.run, []).append(b)
        return out

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Per target, in order of batch, with remarks on each."""
        keys = sorted({(t, b) for t, b, _, _ in self.estimates}, key=lambda k: (k[0], k[1] or 0))
        bare = [self._point(*key) for key in keys]
        return tuple(self._marked(bare))

    def _point(self, target: int, batch: int | None) -> Point:
        latency = self.estimates.get((target, batch, "latency", self.l2)) or self.estimates.get(
            (target, batch, "event", self.l2)
        )
        steady = self.estimates.get((target, batch, "steady", self.l2))
        runs = [r for r in self.runs if (r.target, r.batch) == (target, batch)]
        outputs = next((r.outputs for r in runs if not r.failure), 1.0)
        rate = steady.mapped(outputs * 1e9) if steady else (NAN, NAN, NAN)
        # a run's own peak; a graph's private pool and a flush buffer come later and are not the call's
        peaks = [r.memory.get("peak_reserved", 0) for r in runs if r.memory]
        mhz = [
            b.sm_mhz
            for r in runs
            for b in self._by_run.get(r.number, ())
            if not math.isnan(b.sm_mhz)
        ]
        count = len(steady.medians) if steady else len(latency.medians) if latency else 0
        return Point(
            target, batch, count, latency, steady, *rate, max(peaks, default=0),
            sorted(mhz)[len(mhz) // 2] if mhz else NAN,
        )  # fmt: skip

    def _marked(self, points: list[Point]) -> Iterator[Point]:
        from dataclasses import replace

        for target in range(len(self.targets)):
            mine = [p for p in points if p.target == target]
            rated = [p for p in mine if p.rate > 0]
            best = max(rated, key=lambda p: p.rate, default=None) if len(rated) > 1 else None
            limit = self.options.get("latency_below_ns")
            below = [p for p in rated if limit and p.latency and self.at(p)[0] <= limit]
            under = max(below, key=lambda p: p.rate, default=None)
            knee = next((p for p in rated if best and p.rate >= (1 - KNEE) * best.rate), None)
            largest = self.search.get("largest")
            for p in mine:
                marks = []
                if best and p is best:
                    equal = [q.batch for q in rated if q.rate >= (1 - EQUAL) * best.rate]
                    spread = f" ({equal[0]}-{equal[-1]} within 1 %)" if len(equal) > 1 else ""
                    marks.append("best" + spread)
                elif p is knee:
                    marks.append("within 5 % of the best")
                if p is under:
                    marks.append("best below the latency limit")
                if (
                    largest
                    and p.batch == largest
                    and (self.search.get("exact") or self.search.get("failed_at"))
                ):
                    marks.append(
                        "largest that fits" if self.search.get("exact") else "largest that ran"
                    )
                yield replace(p, marks=tuple(marks))

    def at(self, point: Point) -> tuple[float, bool]:
        """(latency at the requested percentile, whether there are enough samples for it)."""
        if point.latency is None:
            return NAN, False
        p = float(self.options.get("at", 50.0))
        return (
            (point.latency.value, True)
            if p == 50
            else point.latency.percentiles.get(p, (NAN, False))
        )

    @property
    def best(self) -> Point | None:
        """The batch with the highest throughput, None if none was measured."""
        return max((p for p in self.points if p.rate > 0), key=lambda p: p.rate, default=None)

    def difference(self, batch: int | None, mode: str, l2: str = "warm") -> Difference | None:
        """B against A at one batch in one mode; None if one of them was not measured."""
        from nsysalign.measure.statistics import difference

        sides = [self.estimates.get((t, batch, mode, l2)) for t in (0, 1)]
        return difference(*sides) if all(sides) else None

    # --- tables ---

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per target and batch (frames.CURVE)."""
        from nsysalign.measure import dataframes

        return dataframes.curve(self)

    @cached_property
    def modes(self) -> pd.DataFrame:
        """One row per target, batch, mode and L2 (frames.MODES)."""
        from nsysalign.measure import dataframes

        return dataframes.modes(self)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per sample (frames.SAMPLES)."""
        from nsysalign.measure import dataframes

        return dataframes.samples(self)

    @cached_property
    def budgets(self) -> pd.DataFrame:
        """One row per profiled batch and cause (frames.MEASURED_BUDGETS)."""
        from nsysalign.measure import dataframes

        return dataframes.budgets(self)

    # --- files ---

    def document(self) -> dict[str, Any]:
        """measure.json: what was measured, then what follows from it."""
        out: dict[str, Any] = {"format": MEASUREMENT_FORMAT, "version": VERSION}
        out |= {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name in ("targets", "options", "environment", "search", "notes", "complete")
        }
        out["runs"] = [asdict(r) for r in self.runs]
        out["profiles"] = [asdict(p) for p in self.profiles]
        out["points"] = self.curve.to_dict("records")
        out["modes"] = self.modes.to_dict("records")
        out["blocks"] = [asdict(b) for b in self.blocks]
        return out

    def write(self, path: Path) -> None:
        """The file appears whole or not at all."""
        from nsysalign.files import replacing
        from nsysalign.store.objects import plain

        with replacing(path) as temporary:
            temporary.write_text(
                json.dumps(plain(self.document()), allow_nan=False), encoding="utf-8"
            )

    def _repr_html_(self) -> str:
        from nsysalign.measure import page as measure_html

        return measure_html.fragment(self)


def load(path: Path) -> Measure:
    """Load from its folder or measure.json.  Raises AnalysisError if it is not a measurement, or incomplete."""
    file = path / MEASUREMENT if path.is_dir() else path
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise AnalysisError(f"{file.name}: too large for a measurement", "nsysalign measure")
        data = json.loads(untrusted.contents(file))
        if not isinstance(data, dict) or data.get("format") != MEASUREMENT_FORMAT:
            raise AnalysisError(
                f"{file.name}: not a measurement (format {MEASUREMENT_FORMAT})",
                "nsysalign measure FILE.py:FUNCTION",
            )
        if data.get("version") != VERSION:
            raise AnalysisError(
                f"{file.name}: version {data.get('version')!r}, and this nsysalign reads {VERSION}",
                "measure again",
            )
        return Measure(
            tuple(str(t) for t in data["targets"]), data["options"], data["environment"],
            tuple(Run(**_known(Run, r)) for r in data["runs"]), tuple(_block(b) for b in data["blocks"]),
            tuple(Profile(**_known(Profile, p)) for p in data["profiles"]), data["search"], tuple(str(n) for n in data["notes"]),
            bool(data["complete"]), file.parent,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, AnalysisError):
            raise
        raise AnalysisError(
            f"{file.name}: cannot be read as a measurement ({type(error).__name__}: {error})",
            "measure again",
        ) from error


def _known(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {
        k: (NAN if v is None and k.endswith("_ns") else v) for k, v in row.items() if k in names
    }


def _block(row: Mapping[str, Any]) -> Block:
    values = tuple(int(v) for v in row["ns"])
    mhz = row.get("sm_mhz")
    return Block(
        int(row["run"]),
        str(row["mode"]),
        str(row["l2"]),
        int(row["t0"]),
        int(row["t1"]),
        NAN if mhz is None else float(mhz),
        values,
    )
