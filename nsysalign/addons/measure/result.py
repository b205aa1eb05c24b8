"""What a measurement found: samples, and the numbers and answers that follow from them.  Terminal,
page, `measure.json` and DataFrames are drawn from this record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from nsysalign import untrusted
from nsysalign.addons.measure.clocks import TRITON
from nsysalign.addons.measure.statistics import Estimate, difference, estimate
from nsysalign.files import replacing

if TYPE_CHECKING:
    import pandas as pd

#: The file, and the format that it names in its first bytes.
MEASUREMENT, FORMAT, VERSION = "measure.json", "nsysalign-measure", 3
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
    `refused` by mode; `floor_ns`: an event pair around an empty kernel.  Times in ns."""

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


@dataclass(frozen=True)
class Point:
    """One batch of one target: a row of the curve.  `modes`: the estimates by mode and state of the
    L2, in the order of WAYS; `peak_bytes`: the most that torch's allocator held; `marks`: best,
    largest, in words."""

    target: int
    batch: int | None
    modes: Mapping[tuple[str, str], Estimate]
    outputs: float
    peak_bytes: int
    floor_ns: float
    gpu_ns: Mapping[str, float]
    marks: str = ""

    def warm(self, *modes: str) -> Estimate | None:
        """The first of these modes that was measured."""
        return next((e for mode in modes if (e := self.modes.get((mode, "warm")))), None)

    @property
    def latency(self) -> Estimate | None:
        """How long one call takes."""
        return self.warm("latency", "event")

    @property
    def rate(self) -> float:
        """Outputs per second with calls queued; 0 where that was not measured."""
        steady = self.warm("steady")
        return 1e9 * self.outputs / steady.value_ns if steady and steady.value_ns > 0 else 0.0

    def ways(self, l2: str = "warm") -> dict[str, float]:
        """What each way of timing the call prints, ns; triton prints the mean."""
        values = {
            mode: e.mean_ns if mode in TRITON else e.value_ns
            for (mode, its), e in self.modes.items()
            if its == l2
        }
        return values | ({"sum": self.gpu_ns[l2]} if l2 in self.gpu_ns else {})

    def row(self) -> dict[str, Any]:
        """A row of `Measure.curve`."""
        latency, steady, nan = self.latency, self.warm("steady"), math.nan
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
            "sm_mhz": known.sm_mhz if known else nan,
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
    def points(self) -> tuple[Point, ...]:
        """Per target, in order of batch, with remarks on each.  What the search measured counts
        only where no other process did."""
        runs, blocks_of = {r.number: r for r in self.runs}, {}
        for b in self.blocks:
            point = (runs[b.run].target, runs[b.run].batch)
            blocks_of.setdefault(point, {}).setdefault((b.mode, b.l2), {}).setdefault(
                b.run, []
            ).append(b)
        points = []
        for target, batch in sorted(blocks_of, key=lambda point: (point[0], point[1] or 0)):
            modes, runs_here = {}, [r for r in self.runs if (r.target, r.batch) == (target, batch)]
            for key, its in sorted(
                blocks_of[target, batch].items(), key=lambda i: _ORDER.index(i[0][0])
            ):
                its = {n: blocks for n, blocks in its.items() if runs[n].role == "time"} or its
                mhz = [b.sm_mhz for blocks in its.values() for b in blocks if b.sm_mhz == b.sm_mhz]
                if any(b.ns for blocks in its.values() for b in blocks):
                    known = estimate([[b.ns for b in blocks] for blocks in its.values()])
                    modes[key] = replace(known, sm_mhz=median(mhz) if mhz else math.nan)
            points.append(
                Point(
                    target, batch, modes,
                    # known before its first block, however a process ended
                    outputs=runs[min(n for its in blocks_of[target, batch].values() for n in its)].outputs,
                    peak_bytes=max((r.peak_bytes for r in runs_here), default=0),
                    floor_ns=next((r.floor_ns for r in runs_here if r.floor_ns), 0.0),
                    gpu_ns={l2: ns for r in runs_here for l2, ns in r.gpu_ns.items()},
                )
            )  # fmt: skip
        points = [p for p in points if p.modes]
        largest = self.search.get("largest") if self.search.get("failed_at") else None
        for n, p in enumerate(points):
            marks, batch = [], p.batch or 1
            rates = {o.batch or 1: o.rate for o in points if o.target == p.target and o.rate}
            if len(rates) > 1 and batch == max(rates, key=rates.__getitem__):
                marks.append("best")
            elif len(rates) > 1 and batch == advised(rates):
                marks.append("within 5 % of the best")
            if batch == largest:
                marks.append("largest that fits")
            points[n] = replace(p, marks="; ".join(marks))
        return tuple(points)

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
        out, second = [], {p.batch: p for p in self.points if p.target}
        for point in (p for p in self.points if not p.target and p.batch in second):
            for mode, a in point.modes.items():
                if b := second[point.batch].modes.get(mode):
                    change = difference(a, b)
                    faster = "faster" if change.high < 0 else "unclear"
                    verdict = "slower" if change.low > 0 else faster
                    out.append(Change(point.batch, *mode, a.value_ns, b.value_ns, *change, verdict))
        return out

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
    def samples(self) -> pd.DataFrame:
        """One row per timed repetition: target, batch, role, and the fields of `Block`, of which
        `ns` is the repetition's."""
        runs = {
            r.number: {"target": self.targets[r.target], "batch": r.batch, "role": r.role}
            for r in self.runs
        }
        rows = _frame(runs[b.run] | asdict(b) for b in self.blocks)
        return rows.explode("ns", ignore_index=True).astype({"ns": "int64"})

    def write(self, path: Path) -> None:
        """measure.json: what was measured, then what follows from it; whole or not at all."""
        from nsysalign.store.objects import to_json

        named = ("targets", "options", "environment", "search", "notes", "complete")
        out: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        out |= {name: getattr(self, name) for name in named} | {"points": self.curve_rows()}
        out |= {"runs": list(map(asdict, self.runs)), "blocks": list(map(asdict, self.blocks))}
        with replacing(path) as temporary:
            temporary.write_text(to_json(out), encoding="utf-8")


def _frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(list(rows))
    return table.assign(batch=pd.array(table["batch"].tolist(), dtype="Int64"))


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
