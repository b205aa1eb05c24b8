"""What a measurement found: samples, numbers, answers; to and from `measure.json`.

Everything but the samples is computed again from them when a file is read, so that no number can
disagree with the samples.  Terminal, page, JSON and DataFrames show the same rows: `points`,
`estimates`, `budget_rows`, with the columns of `frames.CURVE`, `MODES` and `MEASURED_BUDGETS`.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nsysalign import frames, untrusted
from nsysalign.errors import AnalysisError
from nsysalign.files import replacing
from nsysalign.measure import ladder, search
from nsysalign.measure.failures import MEMORY
from nsysalign.measure.profile import Profile
from nsysalign.measure.statistics import Difference, Estimate, difference, estimate
from nsysalign.rundir import MEASUREMENT, MEASUREMENT_FORMAT

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
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
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fresh: bool = True


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


class Key(NamedTuple):
    """What an estimate is of: the number of the target, batch, mode and L2."""

    target: int
    batch: int | None
    mode: str
    l2: str


@dataclass(frozen=True)
class Point:
    """The headline of one batch of one target: a row of frames.CURVE, and the numbers behind it."""

    target: int
    batch: int | None
    processes: int
    latency_ns: float
    latency_low_ns: float
    latency_high_ns: float
    p90_ns: float
    p99_ns: float
    p99_bounded: bool
    rate: float
    rate_low: float
    rate_high: float
    memory_bytes: int
    sm_mhz: float
    marks: str = ""
    at_ns: float = NAN

    @property
    def rate_share(self) -> float:
        """Half the width of the throughput's interval, as a share of it."""
        return (self.rate_high - self.rate_low) / 2 / self.rate if self.rate > 0 else math.inf

    @property
    def latency_share(self) -> float:
        """The same of the latency."""
        width = self.latency_high_ns - self.latency_low_ns
        return width / 2 / self.latency_ns if self.latency_ns > 0 else math.inf


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
        allowed = {"", "budget"} | (MEMORY if self.search else set())
        found_nothing = bool(self.search) and not self.search.get("largest")
        return found_nothing or any(
            r.role == "time" and r.failure not in allowed for r in self.runs
        )

    @property
    def l2(self) -> str:
        """State of the L2 that the curve is of: warm, unless only a cold one was asked for."""
        return str(next(iter(self.options.get("l2") or ("warm",))))

    # --- numbers ---

    def processes(self, key: Key) -> list[list[int]]:
        """The samples of each process; those of the search only if no other process measured this
        batch."""
        for roles in (("time",), ("time", "probe")):
            per: dict[int, list[int]] = {}
            for run in self._runs_of(key.target, key.batch):
                for b in self._by_run.get(run.number, ()):
                    if run.role in roles and (b.mode, b.l2) == (key.mode, key.l2):
                        per.setdefault(b.run, []).extend(b.ns)
            if per:
                return list(per.values())
        return []

    @cached_property
    def estimates(self) -> dict[Key, Estimate]:
        """An estimate of all that was measured."""
        keys = dict.fromkeys(
            Key(r.target, r.batch, b.mode, b.l2)
            for r in self.runs
            for b in self._by_run.get(r.number, ())
        )
        samples = {key: self.processes(key) for key in keys}
        percentile = float(self.options.get("at", 50.0))
        return {k: estimate(v, percentile) for k, v in samples.items() if any(v)}

    def modes_at(self, point: Point) -> dict[str, Estimate]:
        """The estimates at one point, by mode, in the L2 that the curve is of."""
        wanted = (point.target, point.batch, self.l2)
        return {k.mode: e for k, e in self.estimates.items() if (k.target, k.batch, k.l2) == wanted}

    @cached_property
    def _by_run(self) -> dict[int, list[Block]]:
        out: dict[int, list[Block]] = {}
        for b in self.blocks:
            out.setdefault(b.run, []).append(b)
        return out

    def _runs_of(self, target: int, batch: int | None) -> list[Run]:
        return [r for r in self.runs if (r.target, r.batch) == (target, batch)]

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Per target, in order of batch, with remarks on each."""
        keys = {(k.target, k.batch) for k in self.estimates}
        bare = [self._point(*key, "") for key in sorted(keys, key=lambda k: (k[0], k[1] or 0))]
        out = []
        for target in range(len(self.targets)):
            marks = self._marks([p for p in bare if p.target == target])
            out += [
                self._point(p.target, p.batch, "; ".join(marks.get(p.batch, ())))
                for p in bare
                if p.target == target
            ]
        return tuple(out)

    def _point(self, target: int, batch: int | None, marks: str) -> Point:
        by_mode = (self.estimates.get(Key(target, batch, m, self.l2)) for m in ("latency", "event"))
        latency = next((e for e in by_mode if e), None)
        steady = self.estimates.get(Key(target, batch, "steady", self.l2))
        runs = self._runs_of(target, batch)
        per_ns = 1e9 * next((r.outputs for r in runs if not r.failure), 1.0)
        rate = rate_low = rate_high = NAN
        if steady and steady.value_ns > 0:
            rate, rate_low = per_ns / steady.value_ns, per_ns / steady.high_ns
            rate_high = per_ns / steady.low_ns if steady.low_ns > 0 else math.inf
        # a run's own peak; a graph's pool and a flush buffer come later and are not the call's
        peak = max((r.memory.get("peak_reserved", 0) for r in runs if r.memory), default=0)
        blocks = [b for r in runs for b in self._by_run.get(r.number, ())]
        mhz = sorted(b.sm_mhz for b in blocks if not math.isnan(b.sm_mhz))
        e = latency
        bounds = (e.value_ns, e.low_ns, e.high_ns) if e else (NAN, NAN, NAN)
        tail = (e.p90_ns, e.p99_ns, e.p99_bounded) if e else (NAN, NAN, False)
        return Point(
            target, batch, (steady or e).processes if steady or e else 0, *bounds, *tail,
            rate, rate_low, rate_high, peak, mhz[len(mhz) // 2] if mhz else NAN, marks,
            e.at_ns if e else NAN,
        )  # fmt: skip

    def trials(self, target: int = 0) -> list[search.Trial]:
        """The batches with a throughput, as `search` looks at them."""
        return [
            search.Trial(p.batch or 1, p.rate, p.at_ns)
            for p in self.points
            if p.target == target and p.rate > 0
        ]

    def _marks(self, points: list[Point]) -> dict[int | None, list[str]]:
        trials = [search.Trial(p.batch or 1, p.rate, p.at_ns) for p in points if p.rate > 0]
        out: dict[int | None, list[str]] = {p.batch: [] for p in points}
        if len(trials) > 1:
            best, advised = search.best(trials).batch, search.advised(trials).batch
            out[best].append("best")
            if advised != best:
                out[advised].append("within 5 % of the best")
            if under := search.below(trials, self.options.get("latency_below_ns")):
                out[under.batch].append("best below the latency limit")
        largest, failed = self.search.get("largest"), self.search.get("failed_at")
        if largest in out and isinstance(failed, int):
            out[largest].append(f"largest that fits ({failed} does not)")
        return out

    @property
    def best(self) -> Point | None:
        """The batch with the highest throughput, None if none was measured."""
        return max((p for p in self.points if p.rate > 0), key=lambda p: p.rate, default=None)

    @property
    def advised(self) -> Point | None:
        """The smallest batch within 5 % of the best, of the first target."""
        if not (trials := self.trials()):
            return None
        batch = search.advised(trials).batch
        return next(p for p in self.points if p.target == 0 and (p.batch or 1) == batch)

    def profile_of(self, point: Point) -> Profile | None:
        """The profile of a point, None where there is none or it failed."""
        for p in self.profiles:
            if (p.target, p.batch) == (point.target, point.batch) and not p.problem:
                return p
        return None

    def differences(self) -> Iterator[tuple[Key, Difference]]:
        """B against A, of all that was measured of both; nothing of one target alone."""
        order = list(self.options["modes"])
        keys = [
            k for k in self.estimates if k.target == 1 and k._replace(target=0) in self.estimates
        ]
        for key in sorted(keys, key=lambda k: (k.batch or 0, order.index(k.mode), k.l2 == "cold")):
            yield key, difference(self.estimates[key._replace(target=0)], self.estimates[key])

    @cached_property
    def ladder(self) -> list[dict[str, Any]]:
        """The rows of `--clocks`: what each way of timing the call prints, and the difference to
        the next (ladder.Rung); [] without it."""
        return ladder.rows(self) if self.options.get("clocks") else []

    # --- rows, tables, files ---

    def curve_rows(self) -> list[dict[str, Any]]:
        """Rows of frames.CURVE."""
        return [asdict(p) | {"target": self.targets[p.target]} for p in self.points]

    def mode_rows(self) -> list[dict[str, Any]]:
        """Rows of frames.MODES."""
        return [
            key._asdict()
            | asdict(e)
            | {"target": self.targets[key.target], "processes": e.processes}
            for key, e in self.estimates.items()
        ]

    def budget_rows(self) -> list[dict[str, Any]]:
        """Rows of frames.MEASURED_BUDGETS."""
        return [
            {"target": self.targets[p.target], "batch": p.batch, "cause": cause, "ns": ns}
            | {"share": ns / p.elapsed_ns if p.elapsed_ns else 0.0, "run": p.run}
            for p in self.profiles
            for cause, ns in p.parts_ns.items()
        ]

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per target and batch (frames.CURVE)."""
        return _frame(self.curve_rows(), frames.CURVE)

    @cached_property
    def modes(self) -> pd.DataFrame:
        """One row per target, batch, mode and L2 (frames.MODES)."""
        return _frame(self.mode_rows(), frames.MODES)

    @cached_property
    def budgets(self) -> pd.DataFrame:
        """One row per profiled batch and cause (frames.MEASURED_BUDGETS)."""
        return _frame(self.budget_rows(), frames.MEASURED_BUDGETS)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per sample (frames.SAMPLES)."""
        import pandas as pd

        runs = {r.number: r for r in self.runs}
        blocks = _frame(
            [
                {
                    "target": self.targets[runs[b.run].target], "batch": runs[b.run].batch,
                    "process": b.run, "role": runs[b.run].role, "mode": b.mode, "l2": b.l2,
                    "block": n, "t0_ns": b.t0, "sm_mhz": b.sm_mhz, "k": 0, "ns": 0,
                }
                for n, b in enumerate(self.blocks)
            ],
            frames.SAMPLES,
        )  # fmt: skip
        sizes = [len(b.ns) for b in self.blocks]
        out = blocks.loc[np.repeat(np.arange(len(sizes)), sizes)].reset_index(drop=True)
        for name, rows in (("k", map(range, sizes)), ("ns", (b.ns for b in self.blocks))):
            out[name] = pd.array([v for row in rows for v in row], dtype="int64")
        return frames.check(out, frames.SAMPLES)

    def write_tables(self, path: Path) -> None:
        """analysis.db with the tables of frames.MEASURE_SPECS, documented inside; whole or not at
        all."""
        import pandas as pd

        with replacing(path) as temporary, closing(sqlite3.connect(temporary)) as connection:
            connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
            tables = (self.curve, self.modes, self.samples, self.budgets)
            for spec, table in zip(frames.MEASURE_SPECS, tables, strict=True):
                table.to_sql(spec.name, connection, index=False)
            meanings = [
                (s.name, c.name, c.meaning) for s in frames.MEASURE_SPECS for c in s.columns
            ]
            names = ["table_name", "column_name", "meaning"]
            pd.DataFrame(meanings, columns=names).to_sql("documentation", connection, index=False)
            connection.commit()

    def document(self) -> dict[str, Any]:
        """measure.json: what was measured, then what follows from it."""
        named = ("targets", "options", "environment", "search", "notes", "complete")
        out: dict[str, Any] = {"format": MEASUREMENT_FORMAT, "version": VERSION}
        out |= {name: getattr(self, name) for name in named}
        out |= {name: [asdict(x) for x in getattr(self, name)] for name in ("runs", "profiles")}
        out |= {"points": self.curve.to_dict("records"), "modes": self.modes.to_dict("records")}
        out |= {"ladder": self.ladder} if self.ladder else {}
        return out | {"blocks": [asdict(b) for b in self.blocks]}

    def write(self, path: Path) -> None:
        """The file appears whole or not at all."""
        from nsysalign.store.objects import to_json

        with replacing(path) as temporary:
            temporary.write_text(to_json(self.document()), encoding="utf-8")

    def _repr_html_(self) -> str:
        from nsysalign.measure import page

        return page.fragment(self)


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
            version = data.get("version")
            raise AnalysisError(
                f"{file.name}: version {version!r}, and this nsysalign reads {VERSION}",
                "measure again",
            )
        runs = tuple(Run(**_known(Run, r)) for r in data["runs"])
        blocks = tuple(Block(**_known(Block, b)) for b in data["blocks"])
        profiles = tuple(Profile(**_known(Profile, p)) for p in data["profiles"])
        return Measure(
            tuple(map(str, data["targets"])), data["options"], data["environment"], runs, blocks,
            profiles, data["search"], tuple(map(str, data["notes"])), bool(data["complete"]),
            file.parent,
        )  # fmt: skip
    except AnalysisError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AnalysisError(
            f"{file.name}: cannot be read as a measurement ({type(error).__name__}: {error})",
            "measure again",
        ) from error


def _known(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that the class has; null is NaN where a number belongs."""
    names = {f.name for f in fields(kind)}
    out = {
        k: NAN if v is None and (k.endswith("_ns") or k == "sm_mhz") else v
        for k, v in row.items()
        if k in names
    }
    return out | ({"ns": tuple(map(int, out["ns"]))} if kind is Block else {})
