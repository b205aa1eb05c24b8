"""How far predictions without nsys are off, on runs with a run without nsys beside them; and what would make them better.

    python scripts/score_predictions.py RUN_DIR [RUN_DIR...]          of `nsysalign run --baseline`
    python scripts/score_predictions.py tests/data/unprofiled_micro   or the stem of a recording: .sqlite.xz, .events.jsonl.xz, ...

Each argument is one program.  Three ways to predict are scored on the same labels:

    today          as in every table
    equal speed    the same, times how much faster the host was without nsys: by the meter where both logs have it, else by
                   how long the record calls around each interval took (their usual ratio is taken from the other programs)
    fitted         equal speed, with all that nsys costs times one factor: the one that suits the other programs best

The second and the third need the run without nsys, so they are no predictions: they say what is left when the host's speed is
known.  No program is scored with anything that was fitted to it.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nsysalign import engine
from nsysalign.compare.side_by_side import measured
from nsysalign.model import EventLog
from nsysalign.rundir import event_logs
from nsysalign.trace.eventlog import read_event_logs

AT_WORK = ("kernel", "graph", "memcpy", "memset")
FACTORS = np.arange(0.4, 1.81, 0.05)
WAYS = ("today", "equal speed", "fitted")


def files_of(path: Path, folder: Path) -> tuple[Path, list[Path], list[Path]]:
    """(export, event logs, logs of the run without nsys)."""
    if path.is_dir():
        return path / "trace.sqlite", event_logs(path), event_logs(path / "baseline")
    out = {}
    for suffix in ("sqlite", "events.jsonl", "baseline.jsonl"):
        out[suffix] = folder / f"{path.name}.{suffix}"
        out[suffix].write_bytes(lzma.decompress(Path(f"{path}.{suffix}.xz").read_bytes()))
    return out["sqlite"], [out["events.jsonl"]], [out["baseline.jsonl"]]


def record_times(log: EventLog, key: str) -> pd.Series:
    """Median length, ns, of the record calls at both ends, by region or place of the start."""
    records = log.records[~log.records["calibration"]]
    took = pd.Series(
        (records["t1_ns"] - records["t0_ns"]).to_numpy(),
        index=pd.MultiIndex.from_frame(records[["process", "seq"]]),
    )
    pairs = log.elapsed[(log.elapsed["error"] == "") & ~log.elapsed["calibration"]]
    start, end = (
        took.reindex(pd.MultiIndex.from_frame(pairs[["process", c]])).to_numpy() for c in ("start", "end")
    )
    found = measured(log)
    both = (start + end)[~np.isnan(start + end)]
    events = found[found["kind"] == "event"]
    if len(both) != len(events):
        return pd.Series(dtype=float)
    names = events["region"].str.replace(r"#\d+$", "", regex=True).where(events["region"] != "", events[key])
    return pd.Series(both).groupby(names.to_numpy()).median()


def rows(path: Path) -> pd.DataFrame:
    """One row per label that was measured in both runs and predicted."""
    with tempfile.TemporaryDirectory() as folder:
        sqlite, events, baseline = files_of(path, Path(folder))
        a = engine.analyze(sqlite, events=events, baseline=baseline)
        logs = [read_event_logs(which) for which in (events, baseline)]
    table = a.baseline.dropna(subset=["error"]).copy()
    parts = a.unprofiled_parts.assign(working=a.unprofiled_parts["cause"].isin(AT_WORK))
    share = parts[parts["working"]].groupby("interval")["ns"].sum() / parts.groupby("interval")["ns"].sum()
    shown = a.labels.set_index("label")["row_interval"]
    table["host"] = 1 - share.reindex(shown.reindex(table["label"])).fillna(0).to_numpy()
    under, without = (record_times(log, "site") for log in logs)
    table["records"] = (under / without).reindex(table["label"]).to_numpy()
    table["program"] = path.name
    return table


def scored(table: pd.DataFrame) -> pd.DataFrame:
    """Long: a row per label and way, with its error and whether the bar holds."""
    out = []
    for program, mine in table.groupby("program", sort=False):
        others = table[table["program"] != program]
        usual = others["records"].median()
        factor = best_factor(with_speed(others, others["records"].median())) if len(others) else 1.0
        known = with_speed(mine, usual)
        for way in WAYS:
            speed = 1.0 if way == "today" else known["speed"]
            f = factor if way == "fitted" else 1.0
            predicted = corrected(known, speed, f)
            shift = predicted - known["predicted_ns"]
            low, high = known["predicted_lower_ns"] + shift, known["predicted_upper_ns"] + shift
            found = known[["program", "label"]].assign(
                way=way, error=predicted / known["baseline_ns"] - 1, factor=f,
                inside=(low <= known["baseline_ns"]) & (known["baseline_ns"] <= high),
            )  # fmt: skip
            out.append(found.dropna(subset=["error"]))
    return pd.concat(out, ignore_index=True)


def with_speed(table: pd.DataFrame, usual: float) -> pd.DataFrame:
    """How many times slower the host was under nsys: the meter's word, else that of the record calls."""
    return table.assign(speed=table["host_slowdown"].fillna(table["records"] / usual))


def corrected(table: pd.DataFrame, speed, factor: float) -> pd.Series:
    """Predictions at the speed of the run without nsys, with `factor` times what nsys is taken to cost."""
    removed = factor * (table["profiled_ns"] - table["predicted_ns"])
    predicted = table["profiled_ns"] - removed
    host = np.minimum(table["host"], 1) * table["predicted_ns"] - (removed - removed / factor)
    return predicted - (1 - 1 / speed) * host.clip(lower=0)


def best_factor(table: pd.DataFrame) -> float:
    known = table.dropna(subset=["speed"])
    errors = [
        (corrected(known, known["speed"], f) / known["baseline_ns"] - 1).abs().median() for f in FACTORS
    ]
    return float(FACTORS[int(np.argmin(errors))])


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Per program and way, and over all."""
    everything = found.assign(program="all")
    groups = pd.concat([found, everything]).groupby(["program", "way"], sort=False)
    return groups.apply(
        lambda g: pd.Series(
            {
                "labels": len(g),
                "median error %": round(100 * g["error"].abs().median(), 1),
                "within 10 %": round(100 * (g["error"].abs() <= 0.1).mean()),
                "inside the bar %": round(100 * g["inside"].mean()),
                "factor": round(g["factor"].median(), 2),
            }
        ),
        include_groups=False,
    )


def main() -> None:
    """Print both tables; `--json` has every label."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write the errors of every label here")
    arguments = parser.parse_args()
    tables = []
    for path in arguments.programs:
        try:
            tables.append(rows(path))
        except Exception as error:  # one broken run must not hide the others
            print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
    if not tables:
        sys.exit("nothing to score")
    found = scored(pd.concat(tables, ignore_index=True))
    print(summary(found).to_string())
    if arguments.json:
        arguments.json.write_text(json.dumps(found.to_dict("records"), indent=1, default=float))


if __name__ == "__main__":
    main()
