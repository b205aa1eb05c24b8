"""What a measurement found: samples, numbers, answers; to and from `measure.json`.

Everything but the samples is computed again from them when a file is read, so that no number can
disagree with the samples.  Terminal, page, JSON and DataFrames are drawn from this record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from nsysalign import frames, untrusted
from nsysalign.addons.measure import ladder, search, tables
from nsysalign.addons.measure.profile import Profile
from nsysalign.addons.measure.statistics import Estimate, difference, estimate
from nsysalign.addons.measure.stored import FORMAT, MEASUREMENT
from nsysalign.errors import AnalysisError
from nsysalign.files import replacing

if TYPE_CHECKING:
    import pandas as pd

#: Version 1 had differences and their causes in `ladder`, and more of each profile.
VERSION, READABLE = 2, (1, 2)
LARGEST_FILE = 1 << 30
NAN = float("nan")


@dataclass(frozen=True)
class Run:
    """One batch in one worker.  `failure` is a class of failures.CLASSES, "" if it succeeded; times
    in ns, memory in bytes; `refused` and `facts` by mode (`event`, `event/cold`)."""

    number: int
    target: int
    batch: int | None
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
    zero: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)
    clean: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Consecutive samples of one mode.  `t0`, `t1`: CLOCK_MONOTONIC ns; `sm_mhz` NaN where
    unknown."""

    run: int
    mode: str
    l2: str
    t0: int
    t1: int
    sm_mhz: float
    ns: tuple[int, ...]


class Key(NamedTuple):
    """What an estimate is of: the number of the target, batch, mode and L2."""

    target: int
    batch: int | None
    mode: str
    l2: str


@dataclass(frozen=True)
class Point:
    """The headline of one batch of one target: a row of tables.CURVE."""

    target: int
    batch: int | None
    processes: int = 0
    latency_ns: float = NAN
    latency_low_ns: float = NAN
    latency_high_ns: float = NAN
    p90_ns: float = NAN
    p99_ns: float = NAN
    p99_bounded: bool = False
    rate: float = NAN
    rate_low: float = NAN
    rate_high: float = NAN
    memory_bytes: int = 0
    sm_mhz: float = NAN
    marks: str = ""

    @property
    def rate_share(self) -> float:
        """Half the width of the throughput's interval, as a share of it."""
        return (self.rate_high - self.rate_low) / 2 / self.rate if self.rate > 0 else math.inf

    @property
    def latency_share(self) -> float:
        """The same of the latency."""
        width = self.latency_high_ns - self.latency_low_ns
        return width / 2 / self.latency_ns if self.latency_ns > 0 else math.inf


class Change(NamedTuple):
    """B against A at one batch in one mode.  Shares; `verdict` is slower, faster or unclear."""

    batch: int | None
    mode: str
    l2: str
    a_ns: float
    b_ns: float
    ratio: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True)
class Measure:
    """A whole measurement.  Tables are built on demand.  `search`: {"largest", "failed_at" (the
    batch that found no memory, or None), "limited" (what else ended it)}; {} without one."""

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
        """Whether a process failed that was asked for, or a search found nothing; that a search
        meets the end of the memory, or anything the end of its time budget, is no failure."""
        if self.search and not self.search.get("largest"):
            return True
        # "oom-torch" and the like in files of before
        return any(
            r.role == "time"
            and r.failure not in ("", "budget")
            and not (self.search and r.failure.startswith("oom"))
            for r in self.runs
        )

    # --- numbers ---

    @cached_property
    def _samples(self) -> dict[Key, list[list[int]]]:
        runs = {r.number: r for r in self.runs}
        per: dict[Key, dict[int, list[int]]] = {}
        for b in self.blocks:
            run = runs[b.run]
            key = Key(run.target, run.batch, b.mode, b.l2)
            per.setdefault(key, {}).setdefault(b.run, []).extend(b.ns)
        out = {}
        for key, of in per.items():
            timed = [ns for number, ns in of.items() if runs[number].role == "time"]
            out[key] = timed or list(of.values())
        return out

    def processes(self, key: Key) -> list[list[int]]:
        """The samples of each process; those of the search only if no other process measured this
        batch."""
        return self._samples.get(key, [])

    @cached_property
    def estimates(self) -> dict[Key, Estimate]:
        """An estimate of all that was measured."""
        return {k: estimate(v) for k, v in self._samples.items() if any(v)}

    def modes_at(self, point: Point, l2: str = "warm") -> dict[str, Estimate]:
        """The estimates at one point, by mode."""
        wanted = (point.target, point.batch, l2)
        return {k.mode: e for k, e in self.estimates.items() if (k.target, k.batch, k.l2) == wanted}

    def _runs_of(self, point: Point) -> list[Run]:
        return [r for r in self.runs if (r.target, r.batch) == (point.target, point.batch)]

    def floor_ns(self, point: Point) -> float:
        """What an event pair around an empty kernel read beside this point; 0 if unknown."""
        facts = [mode for run in self._runs_of(point) for mode in run.facts.values()]
        known = (mode["empty_kernel_ns"] for mode in facts if "empty_kernel_ns" in mode)
        return float(next(known, 0))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Per target, in order of batch, with remarks on each."""
        keys = sorted(
            {(k.target, k.batch) for k in self.estimates}, key=lambda k: (k[0], k[1] or 0)
        )
        points = [self._point(Point(*key)) for key in keys]
        return tuple(
            replace(p, marks="; ".join(self._marks(p, _trials(points, p.target)))) for p in points
        )

    def _point(self, point: Point) -> Point:
        modes, runs = self.modes_at(point), self._runs_of(point)
        latency, steady = modes.get("latency") or modes.get("event"), modes.get("steady")
        numbers = {r.number for r in runs}
        mhz = sorted(b.sm_mhz for b in self.blocks if b.run in numbers and b.sm_mhz == b.sm_mhz)
        point = replace(
            point,
            # a run's own peak; a graph's pool and a flush buffer come later and are not the call's
            memory_bytes=max((r.memory.get("peak_reserved", 0) for r in runs), default=0),
            sm_mhz=mhz[len(mhz) // 2] if mhz else NAN,
        )
        if latency:
            point = replace(
                point,
                processes=latency.processes,
                latency_ns=latency.value_ns,
                latency_low_ns=latency.low_ns,
                latency_high_ns=latency.high_ns,
                p90_ns=latency.p90_ns,
                p99_ns=latency.p99_ns,
                p99_bounded=latency.p99_bounded,
            )
        if steady and steady.value_ns > 0:
            per_ns = 1e9 * next((r.outputs for r in runs if not r.failure), 1.0)
            point = replace(
                point,
                processes=steady.processes,
                rate=per_ns / steady.value_ns,
                rate_low=per_ns / steady.high_ns,
                rate_high=per_ns / steady.low_ns if steady.low_ns > 0 else math.inf,
            )
        return point

    def _marks(self, point: Point, trials: list[search.Trial]) -> list[str]:
        marks = []
        batch, failed = point.batch or 1, self.search.get("failed_at")
        if len(trials) > 1:
            best, advised = search.best(trials).batch, search.advised(trials).batch
            marks += ["best"] * (batch == best)
            marks += ["within 5 % of the best"] * (batch == advised != best)
        if batch == self.search.get("largest") and isinstance(failed, int):
            marks.append(f"largest that fits ({failed:,} does not)")
        return marks

    def trials(self) -> list[search.Trial]:
        """The batches with a throughput of the first target, as `search` looks at them."""
        return _trials(self.points, 0)

    @property
    def best(self) -> Point | None:
        """The batch with the highest throughput, None if none was measured."""
        return max((p for p in self.points if p.rate > 0), key=lambda p: p.rate, default=None)

    @property
    def advised(self) -> Point | None:
        """What to use, of the first target: the smallest batch within 5 % of the best."""
        if not (trials := self.trials()):
            return None
        batch = search.advised(trials).batch
        return next((p for p in self.points if p.target == 0 and (p.batch or 1) == batch), None)

    def profile_of(self, point: Point) -> Profile | None:
        """The profile of a point, None where there is none or it failed."""
        for p in self.profiles:
            if (p.target, p.batch) == (point.target, point.batch) and not p.problem:
                return p
        return None

    def changes(self) -> list[Change]:
        """B against A, of all that was measured of both; nothing of one target alone.  Slower or
        faster: the interval excludes zero."""
        order, out = list(self.options["modes"]), []
        both = [k for k in self.estimates if k.target and k._replace(target=0) in self.estimates]
        for key in sorted(both, key=lambda k: (k.batch or 0, order.index(k.mode), k.l2 == "cold")):
            a, b = self.estimates[key._replace(target=0)], self.estimates[key]
            ratio, low, high = difference(a, b)
            verdict = "slower" if low > 0 else "faster" if high < 0 else "unclear"
            out.append(Change(*key[1:], a.value_ns, b.value_ns, ratio, low, high, verdict))
        return out

    # --- rows, tables, files ---

    def rungs(self, point: Point, l2: str) -> list[ladder.Rung]:
        """What each way of timing the call prints at a point, warm or cold; [] without --clocks."""
        if not self.options.get("clocks"):
            return []
        numbers = {r.number for r in self._runs_of(point)}
        mhz: dict[str, list[float]] = {}
        for block in self.blocks:
            if block.run in numbers and block.l2 == l2 and block.sm_mhz == block.sm_mhz:
                mhz.setdefault(block.mode, []).append(block.sm_mhz)
        clocks = {mode: median(values) for mode, values in mhz.items()}
        return ladder.rungs(self.modes_at(point, l2), l2, self.profile_of(point), clocks)

    @property
    def ladder(self) -> list[dict[str, Any]]:
        """The same of all points, as rows."""
        return [
            {"target": point.target, "batch": point.batch, "l2": l2} | rung._asdict()
            for point in self.points
            for l2 in ("warm", "cold")
            for rung in self.rungs(point, l2)
        ]

    def curve_rows(self) -> list[dict[str, Any]]:
        """Rows of tables.CURVE."""
        return [asdict(p) | {"target": self.targets[p.target]} for p in self.points]

    def mode_rows(self) -> list[dict[str, Any]]:
        """Rows of tables.MODES."""
        return [
            asdict(e)
            | key._asdict()
            | {"target": self.targets[key.target], "processes": e.processes}
            for key, e in self.estimates.items()
        ]

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per target and batch (tables.CURVE)."""
        return _frame(self.curve_rows(), tables.CURVE)

    @cached_property
    def modes(self) -> pd.DataFrame:
        """One row per target, batch, mode and L2 (tables.MODES)."""
        return _frame(self.mode_rows(), tables.MODES)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per sample (tables.SAMPLES)."""
        runs, rows = {r.number: r for r in self.runs}, []
        for n, b in enumerate(self.blocks):
            of = {"target": self.targets[runs[b.run].target], "batch": runs[b.run].batch}
            of |= {"process": b.run, "role": runs[b.run].role, "mode": b.mode, "l2": b.l2}
            rows.append(of | {"block": n, "t0_ns": b.t0, "sm_mhz": b.sm_mhz, "k": 0, "ns": 0})
        sizes = [len(b.ns) for b in self.blocks]
        out = _frame(rows, tables.SAMPLES).loc[np.repeat(np.arange(len(sizes)), sizes)]
        ks = [k for size in sizes for k in range(size)]
        ns = np.array([v for b in self.blocks for v in b.ns], dtype=np.int64)
        return frames.check(out.reset_index(drop=True).assign(k=ks, ns=ns), tables.SAMPLES)

    def write(self, path: Path) -> None:
        """measure.json: what was measured, then what follows from it; whole or not at all."""
        from nsysalign.store.objects import to_json

        named = ("targets", "options", "environment", "search", "notes", "complete")
        out: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        out |= {name: getattr(self, name) for name in named}
        out |= {"runs": list(map(asdict, self.runs)), "profiles": list(map(asdict, self.profiles))}
        out |= {"points": self.curve.to_dict("records"), "modes": self.modes.to_dict("records")}
        out |= {"ladder": self.ladder, "blocks": list(map(asdict, self.blocks))}
        with replacing(path) as temporary:
            temporary.write_text(to_json(out), encoding="utf-8")


def _trials(points: Any, target: int) -> list[search.Trial]:
    of = [p for p in points if p.target == target and p.rate > 0]
    return [search.Trial(p.batch or 1, p.rate) for p in of]


def _frame(rows: list[dict[str, Any]], spec: frames.Spec) -> pd.DataFrame:
    import pandas as pd

    if not rows:
        return frames.empty(spec)
    table = pd.DataFrame(rows)
    table["batch"] = pd.array(table["batch"].tolist(), dtype="Int64")
    return frames.check(table, spec)


def load(path: Path) -> Measure:
    """Load from its folder or measure.json.  Raises AnalysisError if it is not a measurement, or
    incomplete."""
    file = path / MEASUREMENT if path.is_dir() else path
    again = "nsysalign measure FILE.py:FUNCTION"
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise AnalysisError(f"{file.name}: too large for a measurement", again)
        data = json.loads(untrusted.contents(file))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise AnalysisError(f"{file.name}: not a measurement (format {FORMAT})", again)
        if (version := data.get("version")) not in READABLE:
            words = f"version {version!r}, and this nsysalign reads up to {VERSION}"
            raise AnalysisError(f"{file.name}: {words}", "measure again")
        measure = _known(Measure, data)
        _refer(measure)
        return replace(measure, folder=file.parent)
    except AnalysisError:
        raise
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = f"cannot be read as a measurement ({type(error).__name__}: {error})"
        raise AnalysisError(f"{file.name}: {reason}", "measure again") from error


def _known(kind: Any, row: Any) -> Any:
    """The row as this class, without what it does not know.  Raises TypeError if a value is not
    what the class says: the file may come from anyone."""
    wanted = get_type_hints(kind) if isinstance(row, dict) else {}
    return kind(**{k: _typed(row[k], wanted[k]) for k in wanted if k in row})


def _typed(value: Any, wanted: Any) -> Any:
    """A value of JSON as this type; null is NaN where a number belongs."""
    parts = get_args(wanted)
    if wanted is Any:
        return value
    if type(None) in parts:
        return None if value is None else _typed(value, parts[0])
    if is_dataclass(wanted):
        return _known(wanted, value)
    if isinstance(value, list) and get_origin(wanted) is tuple:
        return tuple(_typed(v, parts[0]) for v in value)
    if isinstance(value, dict) and get_origin(wanted) is Mapping:
        return {k: _typed(v, parts[1]) for k, v in value.items()}
    if wanted is float and value is None:
        return NAN
    if wanted is int and isinstance(value, float):
        return _typed(int(value), int)
    good = isinstance(value, int | float if wanted is float else wanted)
    if not good or (wanted is not bool and isinstance(value, bool)):
        raise TypeError(f"{value!r:.40} where {wanted} is expected")
    if not isinstance(value, str) and abs(value) >= 1 << 63:
        raise TypeError(f"{value!r:.40} is no number of a measurement")
    return value


def _refer(measure: Measure) -> None:
    """Raises TypeError or ValueError if a part names what is not there."""
    _typed(measure.options["modes"], tuple[str, ...])
    _typed(measure.search.get("largest"), int | None)
    if None in (batches := {run.batch for run in measure.runs}) and len(batches) > 1:
        raise ValueError("runs with and without a batch")
    numbers, targets = {run.number for run in measure.runs}, range(len(measure.targets))
    good = len(targets) in (1, 2) and len(numbers) == len(measure.runs)
    good &= all(x.target in targets for x in (*measure.runs, *measure.profiles))
    good &= all(x.batch is None or x.batch > 0 for x in (*measure.runs, *measure.profiles))
    good &= all(b.run in numbers and b.mode in measure.options["modes"] for b in measure.blocks)
    if not good:
        raise ValueError("a target, a batch, a run or a mode that cannot be")
