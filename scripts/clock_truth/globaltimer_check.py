"""Do the placed records lie where the GPU's own timer says they must?  Joins a run of globaltimer.py with its stamps.

    python scripts/clock_truth/globaltimer_check.py RUN_DIR STAMPS.json          anywhere

The kernels' readings of %globaltimer are joined with nsys's kernel rows by grid id; the line trace - globaltimer lies
between all kernels' edges (start <= first reading, last reading <= end).  Every record has a kernel before and one
behind it on its stream: its place must lie after the last reading of the one and before the first reading of the other.
"""

from __future__ import annotations

import argparse
import collections
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STEEPEST = 200e-6  # no two clocks of a machine drift apart faster
MISSING = 1 << 62
#: A record placed by the clock may be off by its tick, and the line by half its own width.
TICK_NS = 32


@dataclass(frozen=True)
class Piece:
    """offset(t) = base + intercept + slope * (t - t0), within +-width / 2; t in ns of %globaltimer."""

    t0: int
    base: int
    slope: float
    intercept: float
    width: float


@dataclass(frozen=True)
class Line:
    """trace - globaltimer, in one or more straight pieces."""

    pieces: tuple[Piece, ...]

    def at(self, t: np.ndarray) -> np.ndarray:
        """The offset (int64 ns) at times of %globaltimer."""
        t = np.asarray(t, np.int64)
        piece = np.clip(np.searchsorted([p.t0 for p in self.pieces], t, "right") - 1, 0, None)
        out = np.empty(t.shape, np.int64)
        for n, p in enumerate(self.pieces):
            mine = piece == n
            out[mine] = p.base + np.rint(p.intercept + p.slope * (t[mine] - p.t0)).astype(np.int64)
        return out

    @property
    def ppm(self) -> float:
        return float(np.median([p.slope for p in self.pieces])) * 1e6

    @property
    def width_ns(self) -> float:
        return max(p.width for p in self.pieces)


def line_between(t: np.ndarray, low: np.ndarray, high: np.ndarray) -> Line:
    """The middle of all lines with low <= offset(t) <= high; -MISSING and MISSING: no bound.  Pieces where one cannot be."""
    order = np.argsort(t, kind="stable")
    t, low, high = t[order], low[order], high[order]
    piece = _piece(t, low, high)
    if piece.width >= 0 or len(t) < 8:
        return Line((piece,))
    cut = len(t) // 2
    return Line(
        line_between(t[:cut], low[:cut], high[:cut]).pieces
        + line_between(t[cut:], low[cut:], high[cut:]).pieces
    )


def _piece(t: np.ndarray, low: np.ndarray, high: np.ndarray) -> Piece:
    t0, base = int(t[0]), int(low[low > -MISSING][0])
    # after subtracting in integers all fits a float
    x = (t - t0).astype(float)
    lo = np.where(low > -MISSING, (low - base).astype(float), -np.inf)
    hi = np.where(high < MISSING, (high - base).astype(float), np.inf)

    def room(slope: float) -> tuple[float, float]:
        return float(np.max(lo - slope * x)), float(np.min(hi - slope * x))

    left, right = -STEEPEST, STEEPEST
    for _ in range(100):  # the room is a concave function of the slope
        third = (right - left) / 3
        a, b = room(left + third), room(right - third)
        if a[1] - a[0] < b[1] - b[0]:
            left += third
        else:
            right -= third
    slope = (left + right) / 2
    bottom, top = room(slope)
    return Piece(t0, base, slope, (bottom + top) / 2, top - bottom)


def kernel_rows(trace: Path) -> dict[int, tuple[int, int]]:
    """Grid id -> (start, end), trace ns, of the stamping kernels."""
    with sqlite3.connect(f"file:{trace}?mode=ro", uri=True) as c:
        rows = c.execute(
            "select k.gridId, k.start, k.end from CUPTI_ACTIVITY_KIND_KERNEL k "
            "join StringIds s on s.id = k.shortName where s.value = 'stamp'"
        ).fetchall()
    return {grid: (start, end) for grid, start, end in rows}


def percentiles(values: np.ndarray) -> str:
    if not len(values):
        return "none"
    return " ".join(f"{int(v)}" for v in np.percentile(values, [0, 1, 25, 50, 75, 99, 100]))


def check(run_dir: Path, stamps: dict) -> bool:
    """Print the check; whether every placement holds within the line's width and a tick."""
    kernels = kernel_rows(run_dir / "trace.sqlite")
    rows = [(g, first, last) for g, first, last in stamps["stamps"] if g in kernels]
    if not rows:
        print(f"none of {len(stamps['stamps'])} grid ids is in the trace")
        return False
    first, last = (np.array([r[n] for r in rows], np.int64) for n in (1, 2))
    start, end = (np.array([kernels[r[0]][n] for r in rows], np.int64) for n in (0, 1))
    line = line_between(first, start - first, end - last)
    # the second bound holds at the last reading; the line's slope makes nothing of the few us between
    print(
        f"{len(rows)} of {len(stamps['stamps'])} stamped kernels joined; trace - globaltimer: {line.ppm:.2f} ppm in "
        f"{len(line.pieces)} piece(s), open by {line.width_ns:.0f} ns"
    )
    print("percentiles 0 1 25 50 75 99 100 (ns):")
    print("  first reading after kernel start:", percentiles(first + line.at(first) - start))
    print("  kernel end after last reading:   ", percentiles(end - last - line.at(last)))
    analysis = json.loads((run_dir / "analysis.json").read_text())
    placed = {i["name"]: i for i in analysis["intervals"] if i["kind"] == "event"}
    found = collections.defaultdict(list)
    for row in stamps["intervals"]:
        if (interval := placed.get(row["name"])) is None:
            continue
        for side in ("start", "end"):
            found[row["kind"]].append(
                _sides(row[side], interval[f"{side}_ns"], line, interval["error_ns"])
            )
    missing = len(stamps["intervals"]) - sum(len(v) for v in found.values()) // 2
    methods = collections.Counter(i["method"] for i in placed.values())
    print(
        f"{len(stamps['intervals'])} intervals, {missing} not placed; methods {dict(methods)}; places (ns), each kind:"
    )
    slack, everything = line.width_ns / 2 + TICK_NS, []
    for kind, sides in [*found.items(), ("all", [s for v in found.values() for s in v])]:
        after, before, error = np.array(sides).T
        holds = (after >= -slack) & (before >= -slack)
        with_bar = (after >= -slack - error) & (before >= -slack - error)
        print(
            f"{kind:<14} {len(sides):>4} records, {holds.sum()} hold, {with_bar.sum()} hold within the error bar"
        )
        print(f"  {'after the last reading before:':<36}", percentiles(after))
        print(f"  {'before the first reading behind:':<36}", percentiles(before))
        everything = holds
    if len(everything):
        _event_clock(stamps, placed, line)
    return bool(len(everything) and everything.all() and not missing)


def _sides(row: dict, place: int, line: Line, error: float) -> tuple[float, float, float]:
    after = place - row["floor"] - int(line.at(row["floor"]))
    before = row["ceiling"] + int(line.at(row["ceiling"])) - place
    return after, before, error


def _event_clock(stamps: dict, placed: dict, line: Line) -> None:
    """The places against the events' own distances to references: one constant apart if all lie on one clock."""
    base = np.cumsum(
        np.rint(np.array(stamps["references_ms"]) * 1e6 / TICK_NS).astype(np.int64) * TICK_NS
    )
    rows = [
        (
            int(base[row[side]["reference"]]) + round(row[side]["ms"] * 1e6),
            placed[row["name"]][f"{side}_ns"],
            row[side],
        )
        for row in stamps["intervals"]
        if row["name"] in placed
        for side in ("start", "end")
    ]
    place = np.array([p for _, p, _ in rows], np.int64)
    floor = np.array([r["floor"] for *_, r in rows], np.int64)
    c = place - line.at(floor) - np.array([e for e, *_ in rows], np.int64)
    middle = int(np.sort(c)[len(c) // 2])
    print("  place - event clock, around its median: ", percentiles(c - middle))
    events = np.array([e for e, *_ in rows], np.int64)
    low = int((floor - events).max())
    high = int((np.array([r["ceiling"] for *_, r in rows], np.int64) - events).min())
    print(
        f"  event clock against globaltimer, from these stamps: {high - low} ns wide; the median place is {middle - low} ns "
        "above its lower end"
    )


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "run", type=Path, metavar="RUN_DIR", help="with trace.sqlite and analysis.json"
    )
    arguments.add_argument(
        "stamps", type=Path, metavar="STAMPS.json", help="what globaltimer.py wrote"
    )
    a = arguments.parse_args()
    return 0 if check(a.run, json.loads(a.stamps.read_text())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
