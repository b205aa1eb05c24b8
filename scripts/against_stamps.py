"""How recordings with CUPTI's event timestamps are placed without them, against these timestamps.

    python scripts/against_stamps.py RECORDING.sqlite ... [--no-references] [--no-rows]

Beside RECORDING.sqlite lies RECORDING.events.jsonl.  The timestamps are taken out (`--no-rows`: the whole table), with
`--no-references` the references too, and the recording is aligned.  CUPTI's timestamp is never early, but late on idle
streams: printed are, per recording,

    pairs, and how many of them were placed by the clock
    the error of the start against CUPTI's start (p50, p95, p99, us), and % inside the error bar
    the same against the earlier of CUPTI's start and its end less elapsed_time
    the median bar (us); the median lag of the stamps behind all places (us), how many lags lie within a tick of that (%),
    and how many places lie more than 0.3 us behind the stamp
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from references_stripped import strip

from nsysalign.place.solve import align
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace

_TICKS_NS, _LATE_NS = 64, 300


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("recordings", nargs="+", type=Path)
    arguments.add_argument("--no-references", action="store_true")
    arguments.add_argument("--no-rows", action="store_true")
    asked = arguments.parse_args()
    print(
        f"{'recording':34s} pairs clock   start: p50   p95   p99 inside   earlier: p50   p95   p99 inside",
        end="",
    )
    print("     bar      lag  tick  late")
    every = []
    for path in asked.recordings:
        rows = placed(path, references=not asked.no_references, rows=not asked.no_rows)
        every.append(rows)
        show(f"{path.parent.name}/{path.stem}", rows)
    if len(every) > 1:
        show("all", pd.concat(every))


def placed(path: Path, *, references: bool, rows: bool) -> pd.DataFrame:
    """Pairs with both stamps: start_ns, end_ns, error_ns, on_clock, stamp_ns, end_stamp_ns, elapsed_ns."""
    stamps = align(read_trace(path), read_event_logs([path.with_suffix(".events.jsonl")]))
    stamp = stamps.records["timestamp_ns"].to_numpy()
    with tempfile.TemporaryDirectory() as room:
        blind = Path(room) / "blind.sqlite"
        strip(path, blind, rows=rows, references=references)
        found = align(read_trace(blind), read_event_logs([blind.with_suffix(".events.jsonl")]))
    w = found.windows[found.windows["kind"] == "event"]
    out = w[["start_ns", "end_ns", "error_ns", "elapsed_ns"]].assign(
        on_clock=w["method"] == "clock",
        stamp_ns=stamp[w["start"].to_numpy()],
        end_stamp_ns=stamp[w["end"].to_numpy()],
    )
    return out[(out["stamp_ns"] > 0) & (out["end_stamp_ns"] > 0)]


def show(name: str, rows: pd.DataFrame) -> None:
    """One line about the pairs of a recording."""
    if rows.empty:
        return print(f"{name:34s} none")
    earlier = np.minimum(rows["stamp_ns"], rows["end_stamp_ns"] - rows["elapsed_ns"])
    out = f"{name:34s} {len(rows):5d} {rows['on_clock'].sum():5d}  "
    for truth in (rows["stamp_ns"], earlier):
        e = (rows["start_ns"] - truth).abs()
        inside = (e <= rows["error_ns"] + _TICKS_NS).mean()
        out += (
            "      {:5.2f} {:5.2f} {:5.2f} ".format(*np.percentile(e, [50, 95, 99]) / 1e3)
            + f"{inside:6.1%}"
        )
    lag = np.concatenate(
        [rows["stamp_ns"] - rows["start_ns"], rows["end_stamp_ns"] - rows["end_ns"]]
    )
    tick = (np.abs(lag - np.median(lag)) <= _TICKS_NS).mean()
    late = int((lag < -_LATE_NS).sum())
    print(
        f"{out}   {rows['error_ns'].median() / 1e3:5.2f}   {np.median(lag) / 1e3:6.3f} {tick:5.1%} {late:5d}",
        flush=True,
    )


if __name__ == "__main__":
    main()
