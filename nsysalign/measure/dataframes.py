"""The measurement as DataFrames (frames.py says what the columns are), and as tables of analysis.db."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nsysalign import frames

if TYPE_CHECKING:
    from nsysalign.measure.result import Measure

_SQL = {"int64": int, "Int64": int, "bool": int, "float64": float, "str": str}


def _frame(rows: list[dict[str, Any]], spec: frames.Spec) -> pd.DataFrame:
    if not rows:
        return frames.empty(spec)
    table = pd.DataFrame(rows)
    table["batch"] = pd.array(table["batch"].tolist(), dtype="Int64")
    return frames.check(table, spec)


def curve(measure: Measure) -> pd.DataFrame:
    """frames.CURVE."""
    rows = []
    for p in measure.points:
        e, nan = p.latency, float("nan")
        p90, p99 = (e.percentiles[q] for q in (90, 99)) if e else ((nan, False), (nan, False))
        rows.append(
            {
                "target": measure.targets[p.target], "batch": p.batch, "processes": p.processes,
                "latency_ns": e.value if e else nan, "latency_low_ns": e.low if e else nan, "latency_high_ns": e.high if e else nan,
                "p90_ns": p90[0], "p99_ns": p99[0], "p99_bounded": p99[1], "rate": p.rate, "rate_low": p.rate_low,
                "rate_high": p.rate_high, "memory_bytes": p.memory, "sm_mhz": p.sm_mhz, "marks": ", ".join(p.marks),
            }
        )  # fmt: skip
    return _frame(rows, frames.CURVE)


def modes(measure: Measure) -> pd.DataFrame:
    """frames.MODES."""
    rows = []
    for (target, batch, mode, l2), e in measure.estimates.items():
        rows.append(
            {
                "target": measure.targets[target], "batch": batch, "mode": mode, "l2": l2, "value_ns": e.value, "low_ns": e.low,
                "high_ns": e.high, "p50_ns": e.percentiles[50][0], "p90_ns": e.percentiles[90][0], "p99_ns": e.percentiles[99][0],
                "p99_bounded": e.percentiles[99][1], "mean_ns": e.mean, "std_ns": e.std, "min_ns": e.least, "max_ns": e.most,
                "samples": e.samples, "effective": e.effective, "outliers": e.outliers, "processes": len(e.medians), "differ": e.differ,
            }
        )  # fmt: skip
    return _frame(rows, frames.MODES)


def samples(measure: Measure) -> pd.DataFrame:
    """frames.SAMPLES."""
    runs = {r.number: r for r in measure.runs}
    if not measure.blocks:
        return frames.empty(frames.SAMPLES)
    sizes = [len(b.ns) for b in measure.blocks]
    each = lambda values: np.repeat(np.array(list(values), dtype=object), sizes)  # noqa: E731
    of = [runs[b.run] for b in measure.blocks]
    table = pd.DataFrame(
        {
            "target": each(measure.targets[r.target] for r in of), "batch": pd.array(each(r.batch for r in of), dtype="Int64"),
            "process": each(b.run for b in measure.blocks), "role": each(r.role for r in of),
            "mode": each(b.mode for b in measure.blocks), "l2": each(b.l2 for b in measure.blocks),
            "block": np.repeat(np.arange(len(sizes)), sizes), "k": np.concatenate([np.arange(n) for n in sizes]),
            "ns": np.concatenate([np.array(b.ns, dtype=np.int64) for b in measure.blocks]),
            "t0_ns": each(b.t0 for b in measure.blocks), "sm_mhz": each(b.sm_mhz for b in measure.blocks),
        }
    )  # fmt: skip
    return frames.check(table, frames.SAMPLES)


def budgets(measure: Measure) -> pd.DataFrame:
    """frames.MEASURED_BUDGETS."""
    rows = [
        {
            "target": measure.targets[p.target], "batch": p.batch, "cause": cause, "ns": ns,
            "share": ns / p.elapsed_ns if p.elapsed_ns else 0.0, "run": p.run,
        }
        for p in measure.profiles
        for cause, ns in p.parts_ns.items()
    ]  # fmt: skip
    return _frame(rows, frames.MEASURED_BUDGETS)


def write(measure: Measure, path: Path) -> None:
    """analysis.db with the tables of frames.MEASURE_SPECS, documented inside; whole or not at all."""
    import sqlite_utils

    from nsysalign.files import replacing

    found = {
        "curve": measure.curve, "modes": measure.modes, "samples": measure.samples, "measured_budgets": measure.budgets
    }  # fmt: skip
    with replacing(path) as temporary, closing(sqlite3.connect(temporary)) as connection:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        database = sqlite_utils.Database(connection)
        documentation = []
        for spec in frames.MEASURE_SPECS:
            database[spec.name].create({c.name: _SQL[c.dtype] for c in spec.columns})
            table = found[spec.name].astype(object).where(found[spec.name].notna(), None)
            places = ", ".join("?" * len(spec.columns))
            connection.executemany(
                f"INSERT INTO {spec.name} VALUES ({places})",
                map(_plain, table.itertuples(index=False)),
            )
            documentation += [
                {"table_name": spec.name, "column_name": c.name, "meaning": c.meaning}
                for c in spec.columns
            ]
        database["documentation"].insert_all(documentation, pk=("table_name", "column_name"))
        connection.commit()


def _plain(row: Any) -> list[Any]:
    return [v.item() if hasattr(v, "item") else v for v in row]
