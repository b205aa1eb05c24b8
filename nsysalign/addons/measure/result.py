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

from nsysalign import untrusted
from nsysalign.addons.measure.clocks import TRITON
from nsysalign.addons.measure.statistics import Estimate, difference, estimate
from nsysalign.errors import AnalysisError
from nsysalign.files import replacing

if TYPE_CHECKING:
    import pandas as pd

#: The file, and the format that it names in its first bytes.
MEASUREMENT, FORMAT, VERSION = "measure.json", "nsysalign-measure", 3
LARGEST_FILE = 1 << 30
#: The advice is the smallest batch whose throughput is within this share of the best.
NEARLY = 0.05
#: Ways of timing a call, and what each says: the modes, and what nsys says of the kernels.
WAYS = {
    "latency": "what one caller waits, by the host's clock",
    "event": "what most benchmarks print; waits for launches",
    "device": "the GPU's time in a busy model, behind a delay",
    "steady": "throughput: calls queued, per call",
    "do_bench": "triton's, behind a flush of the L2; the mean",
    "do_bench_cudagraph": "triton's, in a CUDA graph; the mean",
    "graph": "replayed as a CUDA graph",
    "sum": "its kernels and copies alone, by nsys",
}
_ORDER = list(WAYS)


@dataclass(frozen=True)
class Run:
    """One batch in one worker.  `role`: time, probe (of the search) or profile (under nsys, with
    `gpu_ns`: by the state of the L2 how long operations ran).  `failure` is "" if it succeeded;
    `refused` by mode.  Times in ns."""

    number: int
    target: int
    batch: int | None
    role: str
    failure: str = ""
    message: str = ""
    first_ns: int = 0
    warm_ns: int = 0
    unsettled: str = ""
    outputs: float = 1.0
    zero: bool = False
    peak_bytes: int = 0
    floor_ns: float = 0.0
    refused: Mapping[str, str] = field(default_factory=dict)
    gpu_ns: Mapping[str, float] = field(default_factory=dict)


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
    """What an estimate is of."""

    target: int
    batch: int | None
    mode: str
    l2: str


@dataclass(frozen=True)
class Point:
    """One batch of one target: what a row of the curve says.  `peak_bytes`: the most that torch's
    allocator held; `sm_mhz`: the median clock, NaN where unknown; `marks`: best, largest, in
    words."""

    target: int
    batch: int | None
    latency: Estimate | None
    steady: Estimate | None
    outputs: float
    peak_bytes: int
    sm_mhz: float
    marks: str = ""

    @property
    def rate(self) -> float:
        """Outputs per second with calls queued; 0 where that was not measured."""
        known = self.steady is not None and self.steady.value_ns > 0
        return 1e9 * self.outputs / self.steady.value_ns if known else 0.0

    def row(self) -> dict[str, Any]:
        """A row of `Measure.curve`."""
        latency, steady, nan = self.latency, self.steady, math.nan
        known = latency or steady
        return {
            "batch": self.batch,
            "processes": known.processes if known else 0,
            "latency_ns": latency.value_ns if latency else nan,
            "latency_low_ns": latency.low_ns if latency else nan,
            "latency_high_ns": latency.high_ns if latency else nan,
            "p99_ns": latency.p99_ns if latency else nan,
            "rate": self.rate or nan,
            "rate_low": 1e9 * self.outputs / steady.high_ns if steady else nan,
            "rate_high": 1e9 * self.outputs / steady.low_ns if steady and steady.low_ns else nan,
            "memory_bytes": self.peak_bytes,
            "sm_mhz": self.sm_mhz,
            "marks": self.marks,
        }


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


class Rung(NamedTuple):
    """One way of timing the call; `mhz`: the median SM clock meanwhile, NaN where unknown."""

    way: str
    value_ns: float
    mhz: float


def advised(rates: Mapping[int, float]) -> int:
    """Of outputs per second by batch: the smallest that gives nearly as much as the best."""
    return min(b for b, rate in rates.items() if rate >= (1 - NEARLY) * max(rates.values()))


@dataclass(frozen=True)
class Measure:
    """A whole measurement.  `search`: {"largest", "failed_at" (the batch that found no memory, or
    None)}; {} without one."""

    targets: tuple[str, ...]
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    runs: tuple[Run, ...]
    blocks: tuple[Block, ...]
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
        expected = ("", "budget", "oom") if self.search else ("", "budget")
        return any(r.role == "time" and r.failure not in expected for r in self.runs)

    # --- numbers ---

    @cached_property
    def _blocks(self) -> dict[Key, list[Block]]:
        """Of each key; those of the search only where no other process measured it."""
        runs = {r.number: r for r in self.runs}
        by_key: dict[Key, list[Block]] = {}
        for b in self.blocks:
            key = Key(runs[b.run].target, runs[b.run].batch, b.mode, b.l2)
            by_key.setdefault(key, []).append(b)
        return {
            key: [b for b in blocks if runs[b.run].role == "time"] or blocks
            for key, blocks in by_key.items()
        }

    @cached_property
    def estimates(self) -> dict[Key, Estimate]:
        """An estimate of all that was measured, in the order of WAYS."""
        out = {}
        for key in sorted(self._blocks, key=lambda key: _ORDER.index(key.mode)):
            by_run: dict[int, list[tuple[int, ...]]] = {}
            for block in self._blocks[key]:
                by_run.setdefault(block.run, []).append(block.ns)
            if any(any(blocks) for blocks in by_run.values()):
                out[key] = estimate(list(by_run.values()))
        return out

    def _mhz(self, point: tuple[int, int | None], *of: str) -> float:
        """The median SM clock of a point's blocks; `of`: a mode and an L2."""
        blocks = [b for k, b in self._blocks.items() if k[:2] == point and (not of or k[2:] == of)]
        mhz = [b.sm_mhz for its in blocks for b in its if not math.isnan(b.sm_mhz)]
        return median(mhz) if mhz else math.nan

    def modes_at(self, point: Point, l2: str = "warm") -> dict[str, Estimate]:
        """The estimates at one point, by mode."""
        wanted = (point.target, point.batch, l2)
        return {k.mode: e for k, e in self.estimates.items() if (k.target, k.batch, k.l2) == wanted}

    def _runs_of(self, target: int, batch: int | None) -> list[Run]:
        return [r for r in self.runs if (r.target, r.batch) == (target, batch)]

    def floor_ns(self, point: Point) -> float:
        """What an event pair around an empty kernel read beside this point; 0 if unknown."""
        return next((r.floor_ns for r in self._runs_of(point.target, point.batch) if r.floor_ns), 0)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Per target, in order of batch, with remarks on each."""
        points = []
        of = sorted({(k.target, k.batch) for k in self.estimates}, key=lambda k: (k[0], k[1] or 0))
        for target, batch in of:
            runs = self._runs_of(target, batch)
            latency, event, steady = (
                self.estimates.get(Key(target, batch, mode, "warm"))
                for mode in ("latency", "event", "steady")
            )
            points.append(
                Point(
                    target, batch, latency or event, steady,
                    outputs=next((r.outputs for r in runs if not r.failure), 1.0),
                    peak_bytes=max((r.peak_bytes for r in runs), default=0),
                    sm_mhz=self._mhz((target, batch)),
                )
            )  # fmt: skip
        marked = []
        for p in points:
            marks, batch = [], p.batch or 1
            rates = {o.batch or 1: o.rate for o in points if o.target == p.target and o.rate}
            if len(rates) > 1:
                best = max(rates, key=rates.__getitem__)
                marks += ["best"] * (batch == best)
                marks += ["within 5 % of the best"] * (batch == advised(rates) != best)
            if batch == self.search.get("largest") and self.search.get("failed_at"):
                marks.append("largest that fits")
            marked.append(replace(p, marks="; ".join(marks)))
        return tuple(marked)

    def rates(self) -> dict[int, float]:
        """Outputs per second of the first target, by batch."""
        return {p.batch or 1: p.rate for p in self.points if p.target == 0 and p.rate}

    @property
    def best(self) -> Point | None:
        """The batch with the highest throughput, None if none was measured."""
        return max((p for p in self.points if p.rate), key=lambda p: p.rate, default=None)

    @property
    def advised(self) -> Point | None:
        """What to use, of the first target: the smallest batch within 5 % of the best."""
        batch = advised(rates) if (rates := self.rates()) else 0
        return next((p for p in self.points if p.target == 0 and (p.batch or 1) == batch), None)

    @property
    def shown(self) -> Point | None:
        """The point that screen and page are about."""
        return self.advised or next(iter(self.points), None)

    def changes(self) -> list[Change]:
        """B against A, of all that was measured of both; nothing of one target alone.  Slower or
        faster: the interval excludes zero."""
        out = []
        both = [k for k in self.estimates if k.target and k._replace(target=0) in self.estimates]
        for key in sorted(both, key=lambda k: (k.batch or 0, _ORDER.index(k.mode), k.l2 == "cold")):
            a, b = self.estimates[key._replace(target=0)], self.estimates[key]
            ratio, low, high = difference(a, b)
            verdict = "slower" if low > 0 else "faster" if high < 0 else "unclear"
            out.append(Change(*key[1:], a.value_ns, b.value_ns, ratio, low, high, verdict))
        return out

    def rungs(self, point: Point, l2: str) -> list[Rung]:
        """What each way of timing the call prints at a point, with a warm or a cold L2."""
        modes, of = self.modes_at(point, l2).items(), (point.target, point.batch)
        # triton prints the mean
        values = {m: e.mean_ns if m in TRITON else e.value_ns for m, e in modes}
        values |= dict([("sum", r.gpu_ns[l2]) for r in self._runs_of(*of) if l2 in r.gpu_ns])
        return [Rung(way, values[way], self._mhz(of, way, l2)) for way in WAYS if way in values]

    # --- tables, files ---

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per target and batch: `Point.row`, with low and high of 95 % intervals; times in
        ns, `rate` in outputs per second."""
        return _frame(self.curve_rows())

    def curve_rows(self) -> list[dict[str, Any]]:
        """The rows of `curve`."""
        return [{"target": self.targets[p.target], **p.row()} for p in self.points]

    @cached_property
    def modes(self) -> pd.DataFrame:
        """One row per target, batch, mode and L2: the fields of `statistics.Estimate`."""
        rows = [
            {**key._asdict(), "target": self.targets[key.target], **asdict(e)}
            for key, e in self.estimates.items()
        ]
        return _frame(rows)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per timed repetition: target, batch, role, and the fields of `Block`, of which
        `ns` is the repetition's."""
        runs = {r.number: r for r in self.runs}
        rows = []
        for b in self.blocks:
            run = runs[b.run]
            of = {"target": self.targets[run.target], "batch": run.batch, "role": run.role}
            rows.append(of | asdict(b))
        return _frame(rows).explode("ns", ignore_index=True).astype({"ns": "int64"})

    def write(self, path: Path) -> None:
        """measure.json: what was measured, then what follows from it; whole or not at all."""
        from nsysalign.store.objects import to_json

        named = ("targets", "options", "environment", "search", "notes", "complete")
        out: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        out |= {name: getattr(self, name) for name in named}
        out["points"] = self.curve_rows()
        out |= {"runs": list(map(asdict, self.runs)), "blocks": list(map(asdict, self.blocks))}
        with replacing(path) as temporary:
            temporary.write_text(to_json(out), encoding="utf-8")


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(rows)
    return table.assign(batch=pd.array(table["batch"].tolist(), dtype="Int64"))


# --- a measurement on disk: `holds` and `report` are what the core asks ---


def holds(path: Path) -> bool:
    """Whether this is a measurement: a folder with measure.json, or such a file."""
    if path.is_dir():
        return (path / MEASUREMENT).is_file()
    if path.suffix != ".json":
        return False
    try:
        with untrusted.open_regular(path) as file:
            return f'"{FORMAT}"'.encode() in file.read(200)
    except OSError:
        return False


def report(path: Path, output: Path | None) -> Path:
    """Write the page of a measurement, with numbers computed again from the samples."""
    from nsysalign.addons.measure import screen

    measure = load(path)
    target = output or measure.folder / "measure.html"
    screen.write_page(measure, target)
    return target


def load(path: Path) -> Measure:
    """Load from its folder or measure.json.  Raises AnalysisError if it is not a measurement, of
    another version, or incomplete."""
    file = path / MEASUREMENT if path.is_dir() else path
    again = "measure it again: nsysalign measure FILE.py:FUNCTION"
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise AnalysisError(f"{file.name}: too large for a measurement", again)
        data = json.loads(untrusted.contents(file))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise AnalysisError(f"{file.name}: not a measurement (format {FORMAT})", again)
        if data.get("version") != VERSION:
            words = f"version {data.get('version')!r}, and this nsysalign reads {VERSION} alone"
            raise AnalysisError(f"{file.name}: {words}", again)
        measure = _typed(data, Measure)
        for name in ("largest", "failed_at"):
            _typed(measure.search.get(name), int | None)
        numbers, targets = {run.number for run in measure.runs}, range(len(measure.targets))
        batches = {run.batch for run in measure.runs}
        if not (
            len(targets) in (1, 2)
            and len(numbers) == len(measure.runs)
            and all(run.target in targets for run in measure.runs)
            and (batches == {None} or all(b is not None and b > 0 for b in batches))
            and all(b.run in numbers and b.mode in WAYS for b in measure.blocks)
        ):
            raise ValueError("a target, a batch, a run or a mode that cannot be")
        return replace(measure, folder=file.parent)
    except AnalysisError:
        raise
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = f"cannot be read as a measurement ({type(error).__name__}: {error})"
        raise AnalysisError(f"{file.name}: {reason}", again) from error


def _typed(value: Any, wanted: Any) -> Any:
    """A value of JSON as this type, of records what they know; null is NaN where a number belongs.
    Raises TypeError if it is something else: the file may come from anyone."""
    parts = get_args(wanted)
    if wanted is Any:
        return value
    if type(None) in parts:
        return None if value is None else _typed(value, parts[0])
    if is_dataclass(wanted) and isinstance(value, dict):
        hints = get_type_hints(wanted)
        return wanted(**{k: _typed(value[k], hints[k]) for k in hints if k in value})
    if isinstance(value, list) and get_origin(wanted) is tuple:
        return tuple(_typed(v, parts[0]) for v in value)
    if isinstance(value, dict) and get_origin(wanted) is Mapping:
        return {k: _typed(v, parts[1]) for k, v in value.items()}
    if wanted is float and value is None:
        return math.nan
    good = isinstance(value, int | float if wanted is float else wanted)
    if not good or (wanted is not bool and isinstance(value, bool)):
        raise TypeError(f"{value!r:.40} where {wanted} is expected")
    if not isinstance(value, str) and abs(value) >= 1 << 63:
        raise TypeError(f"{value!r:.40} is no number of a measurement")
    return value
