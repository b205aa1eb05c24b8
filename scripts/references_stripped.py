"""How well logs without references are placed: the references are taken out of logs that have them.

    python scripts/references_stripped.py RECORDING.sqlite ... [--against CHECKOUT] [--classes] [--rows]

Beside RECORDING.sqlite lies RECORDING.events.jsonl.  The truth is the event clock of the whole log (method `clock`), which
is not CUPTI's; the same pairs are then placed by a log without reference lines and distances, and by a trace without
event timestamps (`--rows`: they keep their rows, so that event tracing shows; else the whole table is taken out).

Prints, per recording: compared pairs, the error of their starts (p50, p95, p99, us), how many lie inside their error bars,
and the median bar.  `--against`: beside it the same of another checkout of nsysalign.  `--classes`: by what the start record
met, over all recordings.  Where CUPTI stamped the events, two more lines show the same error against CUPTI's raw stamp of
the start, and against the earlier of that and the end's less elapsed_time: what those measures make of the same places.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign.issue import lane_operations
from nsysalign.model import EventLog, Trace
from nsysalign.place import streams as lanes
from nsysalign.place.solve import align
from nsysalign.place.surroundings import gather, neighbours
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace

_ROWS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
#: Beside the bar itself: two ticks of the event clock.
_TICKS_NS = 64
#: What another checkout runs: the places of all pairs, one line each.
_PLACE = """
import sys
from pathlib import Path
from nsysalign.place.solve import align
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace
for path in map(Path, sys.argv[1:]):
    log = read_event_logs([path.with_suffix(".events.jsonl")])
    w = align(read_trace(path), log).windows
    w = w[w["kind"] == "event"]
    for row in zip(log.records["process"].to_numpy()[w["start"]], log.records["seq"].to_numpy()[w["start"]],
                   log.records["seq"].to_numpy()[w["end"]], w["start_ns"], w["error_ns"]):
        print(path.name, *row)
"""
_KEY = ["process", "start_seq", "end_seq"]


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("recordings", nargs="+", type=Path)
    arguments.add_argument("--against", type=Path, metavar="CHECKOUT")
    arguments.add_argument("--classes", action="store_true")
    arguments.add_argument("--rows", action="store_true")
    arguments.add_argument(
        "--markdown", action="store_true", help="the rows of docs/accuracy-by-recording.md"
    )
    arguments.add_argument("--keep", type=Path, metavar="CSV", help="every pair with its errors")
    asked = arguments.parse_args()
    here = Path(__file__).resolve().parents[1]
    versions = {"": here} | ({"before": asked.against} if asked.against else {})
    with tempfile.TemporaryDirectory() as room:
        truth = {}
        for number, path in enumerate(asked.recordings):
            name = f"{number}.sqlite"
            truth[name] = (f"{path.parent.name}/{path.stem}", true_places(path))
            strip(path, Path(room) / name, rows=asked.rows)
        found = {
            version: placed(checkout, Path(room), list(truth))
            for version, checkout in versions.items()
        }
    table = pd.concat(
        rows.assign(recording=recording)
        .merge(placed[placed["name"] == name], on=_KEY)
        .assign(version=version)
        for name, (recording, rows) in truth.items()
        for version, placed in found.items()
    )
    table["error"] = table["start_ns"] - table["true_ns"]
    if asked.keep:
        table.to_csv(asked.keep, index=False)
    if asked.markdown:
        return markdown(table[table["version"] == ""])
    show(table, "recording", list(versions))
    if asked.classes:
        show(table, "class", list(versions))


def true_places(path: Path) -> pd.DataFrame:
    """Every pair that the event clock places: the keys, `true_ns`, `true_bar`, `class`, CUPTI's stamps (0: none)."""
    trace, log = read_trace(path), read_event_logs([path.with_suffix(".events.jsonl")])
    found = align(trace, log)
    w = found.windows[(found.windows["kind"] == "event") & (found.windows["method"] == "clock")]
    start, end = w["start"].to_numpy(), w["end"].to_numpy()
    seq, stamp = log.records["seq"].to_numpy(), found.records["timestamp_ns"].to_numpy()
    return pd.DataFrame(
        {
            "process": log.records["process"].to_numpy()[start],
            "start_seq": seq[start],
            "end_seq": seq[end],
            "true_ns": w["start_ns"].to_numpy(),
            "true_bar": w["error_ns"].to_numpy(),
            "class": classes(trace, log, found)[start],
            "stamp_ns": stamp[start],
            "end_stamp_ns": np.where(stamp[end] > 0, stamp[end] - w["elapsed_ns"].to_numpy(), 0),
        }
    ).drop_duplicates(_KEY)


def classes(trace: Trace, log: EventLog, found) -> np.ndarray:
    """What each record met."""
    records = found.records
    per_lane = lane_operations(trace, found.operation_lane)
    around = neighbours(trace, per_lane, records["lane"].to_numpy(), records["call"].to_numpy())
    waits = lanes.wait_calls(trace, found.lanes)
    s = gather(trace, records, around, found.lanes, found.operation_lane, waits)
    busy = s.previous_end > s.call_start + 1_000
    behind = np.where(s.previous_is_copy, "copy", np.where(s.previous_is_graph, "graph", "kernel"))
    slow = np.where(s.call_end - s.call_start > 6_000, "idle, slow call", "idle")
    out = np.where(busy, np.char.add("behind a ", behind.astype(str)), slow)
    out = np.where(s.contended, "other streams busy", out)
    return np.where(s.copying, "copy elsewhere", np.where(s.waits, "after a wait", out))


def strip(path: Path, target: Path, *, rows: bool, references: bool = False) -> None:
    """The recording without event timestamps (`rows`: but with their rows), and without references unless these are kept."""
    shutil.copy(path, target)
    with contextlib.closing(sqlite3.connect(target)) as c:
        columns = {column[1] for column in c.execute(f"pragma table_info({_ROWS})")}
        if columns and not rows:
            c.execute(f"drop table {_ROWS}")
        elif "timestamp" in columns:
            c.execute(f"update {_ROWS} set timestamp = 0")
        c.commit()
    with (
        open(path.with_suffix(".events.jsonl")) as log,
        open(target.with_suffix(".events.jsonl"), "w") as out,
    ):
        for line in map(json.loads, log):
            if references:
                out.write(json.dumps(line) + "\n")
            elif line["type"] not in ("reference", "distance", "link"):
                for key in ("reference", "start_ms", "end_ms"):
                    line.pop(key, None)
                out.write(json.dumps(line) + "\n")


def placed(checkout: Path, room: Path, names: list[str]) -> pd.DataFrame:
    """What a checkout makes of the stripped recordings."""
    command = [sys.executable, "-c", _PLACE, *(str(room / n) for n in names)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    said = subprocess.run(
        command, env=environment, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True
    )
    rows = [line.split() for line in said.stdout.splitlines()]
    table = pd.DataFrame(rows, columns=["name", *_KEY, "start_ns", "error_ns"])
    whole = [*_KEY, "start_ns", "error_ns"]
    return table.astype(dict.fromkeys(whole, "int64")).drop_duplicates(["name", *_KEY])


def markdown(table: pd.DataFrame) -> None:
    """A row per program: the recordings of it, GPU by GPU, in one cell each."""
    program = table["recording"].str.rpartition("/")[2].str.replace("_", " ")
    for name, rows in [*table.groupby(program), ("**all**", table.assign(recording="all"))]:
        each = [figures(mine) for _, mine in rows.groupby("recording")]
        gpus = sorted(set(rows["recording"].str.partition("-")[0].str.upper()))
        where = f", {gpus[0]}" if len(gpus) == 1 and gpus[0] in ("H100", "H200") else ""
        print(
            f"| {name}{where} | "
            + " | ".join("; ".join(cell) for cell in zip(*each, strict=True))
            + " |"
        )


def figures(rows: pd.DataFrame) -> tuple[str, str, str, str]:
    """(pairs, error p50/p95/p99, inside, bar)."""
    error, bar = rows["error"].abs(), rows["error_ns"]
    p = np.percentile(error, [50, 95, 99]) / 1e3
    inside = 100 * (error <= bar + _TICKS_NS).mean()
    return (
        f"{len(rows):,}",
        "/".join(f"{v:.2f}" for v in p),
        f"{inside:.0f}" if inside == 100 else f"{inside:.1f}",
        f"{bar.median() / 1e3:.2f}",
    )


def show(table: pd.DataFrame, by: str, versions: list[str]) -> None:
    heads = "".join(
        f"   {'before' if v else 'now':>7s}: p50   p95   p99  inside   bar" for v in versions
    )
    print(f"{by:34s} pairs {heads}")
    for key, rows in [*table.groupby(by, sort=False), ("all", table)]:
        line(str(key), rows, rows["error"], versions)
        if by != "recording" or not (rows["stamp_ns"] > 0).any():
            continue
        stamped = rows[(rows["stamp_ns"] > 0) & (rows["end_stamp_ns"] > 0)]
        raw = stamped["start_ns"] - stamped["stamp_ns"]
        earlier = stamped["start_ns"] - stamped[["stamp_ns", "end_stamp_ns"]].min(axis=1)
        line("  against CUPTI's start", stamped, raw, versions)
        line("  against the earlier of both", stamped, earlier, versions)


def line(name: str, rows: pd.DataFrame, error: pd.Series, versions: list[str]) -> None:
    out = f"{name:34s} {(rows['version'] == versions[0]).sum():5d} "
    for version in versions:
        mine = (rows["version"] == version).to_numpy()
        e, bar = error.to_numpy()[mine], rows["error_ns"].to_numpy()[mine]
        if not len(e):
            out += f"{'none':>38s}"
            continue
        p = np.percentile(np.abs(e), [50, 95, 99]) / 1e3
        inside = (np.abs(e) <= bar + _TICKS_NS).mean()
        out += f"        {p[0]:6.2f} {p[1]:5.2f} {p[2]:5.2f}  {inside:6.1%} {np.median(bar) / 1e3:5.2f}"
    print(out, flush=True)


if __name__ == "__main__":
    main()
