"""Do the same events lie in the same places whoever watches?  Runs of programs/positions.py beside each other.

    python scripts/clock_truth/compare_positions.py DEFAULT.sqlite DEFAULT.events.jsonl BASELINE.jsonl TRACED.sqlite TRACED.events.jsonl

What run.py records: nsys's default mode, the run without nsys, and CUPTI's event tracing (its time stamps are taken away
before it is placed).  Positions are ns after the first event of each block, medians of all blocks; without nsys they are
distances on the events' own clock.  Prints what must agree: how far the trace's places are from the distances of the same
run, and how long each stretch is in each way of running.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from nsysalign.model import EventLog
from nsysalign.place.event_clock import event_clock, log_ends
from nsysalign.place.solve import align
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace

BLOCKS, EVENTS = (
    60,
    10,
)  # of programs/positions.py, which compares first and last once more at the end


def on_event_clock(log: EventLog) -> np.ndarray:
    """(BLOCKS, EVENTS) of places on the events' own clock."""
    clock, (start, end) = event_clock(log), log_ends(log)
    own = ~log.elapsed["calibration"].to_numpy(dtype=bool)
    return _blocks(clock.at_ns[start[own]], clock.at_ns[end[own]])


def placed(trace: Path, log: EventLog) -> np.ndarray:
    """The same on the trace's clock; every pair of the program must have been placed."""
    read = read_trace(trace)
    rows = read.event_rows
    if len(rows):
        read.event_rows["timestamp_ns"] = np.int64(0)
    windows = align(read, log).windows
    windows = windows[windows["kind"] == "event"].sort_values("source")
    return _blocks(windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy())


def _blocks(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Pairs of neighbours, then first to last: EVENTS comparisons per block."""
    start, end = (edge[: BLOCKS * EVENTS].reshape(BLOCKS, EVENTS) for edge in (start, end))
    return np.concatenate([start[:, :1], end[:, : EVENTS - 1]], axis=1)


def main() -> None:
    default, default_log, baseline_log, traced, traced_log = map(Path, sys.argv[1:])
    logs = {
        n: read_event_logs([p])
        for n, p in (("default", default_log), ("baseline", baseline_log), ("traced", traced_log))
    }
    clock = {name: on_event_clock(log) for name, log in logs.items()}
    places = {"default": placed(default, logs["default"]), "traced": placed(traced, logs["traced"])}
    for name, at in places.items():
        off = (at - at[:, :1]) - (clock[name] - clock[name][:, :1])
        print(
            f"{name}: {len(at)} blocks, places against the run's own distances: at most {np.abs(off).max()} ns"
        )
    steps = {name: np.median(np.diff(at, axis=1), axis=0) for name, at in clock.items()}
    print("stretch (ns, medians)" + "".join(f"{n:>9d}" for n in range(1, EVENTS)))
    for name in ("baseline", "default", "traced"):
        print(f"{name:<21s}" + "".join(f"{v:9.0f}" for v in steps[name]))


if __name__ == "__main__":
    main()
