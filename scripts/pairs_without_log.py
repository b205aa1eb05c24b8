"""Which compared pairs the trace alone tells, scored against the logs of the same recordings.

    python scripts/pairs_without_log.py tests/data ../shared/data/h200      a table in Markdown

Recordings are found as `same_numbers.py` finds them.  A pair of the trace is right if the log has
it: as a pair of the program, or as a distance that the probe measured.  A window is inside its bar
if both of its ends lie within `error_ns` of where the alignment with the log has them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from same_numbers import inputs, recordings

from nsysalign.model import EventLog, Trace
from nsysalign.place.match import Lookup
from nsysalign.place.solve import align
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace


def logged(log: EventLog, records) -> tuple[set, set]:
    """(pairs that elapsed_time compared, those and all that the probe measured): record calls."""
    find = Lookup(records["log_process"].to_numpy(), records["seq"].to_numpy())
    single = ~records["captured"].to_numpy(dtype=bool)
    call = np.append(np.where(single, records["call"].to_numpy(), -1), -1)
    own = find(log.references, "record")
    reference = Lookup(log.references["process"].to_numpy(), log.references["id"].to_numpy())

    def pairs(a: np.ndarray, b: np.ndarray) -> set:
        ends = zip(call[a].tolist(), call[b].tolist(), strict=True)
        return {(x, y) for x, y in ends if min(x, y) >= 0}

    # the probe's own calibration is in the trace too, and is left out there: it is no timing of the
    # program
    good = (log.elapsed["error"] == "") & (log.elapsed["ms"] >= 0) & ~log.elapsed["calibration"]
    good = log.elapsed[good.to_numpy(dtype=bool)]
    compared = pairs(find(good, "start"), find(good, "end"))
    measured = set(compared)
    for table in (log.elapsed, log.distances):
        start, end = find(table, "start"), find(table, "end")
        known = np.append(own, -1)[reference(table, "reference")]
        measured |= pairs(start, end) | pairs(known, start) | pairs(known, end)
    before = np.append(own, -1)[reference(log.references, "previous")]
    return compared, measured | pairs(before, own)


def scored(trace: Trace, log: EventLog) -> tuple[int, int, int, int, int] | None:
    """(pairs of the log, of these found, wrong ones, windows, windows inside); None without
    queries."""
    whole, alone = align(trace, log), align(trace, None)
    records = whole.records.assign(captured=False)
    records.loc[: len(log.records) - 1, "captured"] = log.records["captured"].to_numpy()
    compared, measured = logged(log, records)
    windows = alone.windows[alone.windows["method"] == "inferred"]
    call = alone.records["call"].to_numpy()
    found = list(zip(call[windows["start"]].tolist(), call[windows["end"]].tolist(), strict=True))
    ours = set(records.loc[records["log_process"] >= 0, "call"].tolist())
    told = {pair for pair in found if set(pair) <= ours}
    place = {
        (a, b): (start, end)
        for a, b, start, end in zip(
            *(records["call"].to_numpy()[whole.windows[c]].tolist() for c in ("start", "end")),
            *(whole.windows[c].tolist() for c in ("start_ns", "end_ns")),
            strict=True,
        )
    }
    inside, placed = 0, 0
    ends = zip(found, windows["start_ns"], windows["end_ns"], windows["error_ns"], strict=True)
    for pair, start, end, bar in ends:
        if pair in place:
            placed += 1
            inside += max(abs(place[pair][0] - start), abs(place[pair][1] - end)) <= bar + 32
    return len(compared), len(compared & told), len(told - measured), placed, inside


def main(folders: list[Path]) -> None:
    print(
        "| recording | compared | found | wrong | windows | inside their bars |\n|---|---|---|---|---|---|"
    )
    total = np.zeros(5, np.int64)
    for folder in folders:
        for recording in recordings(folder):
            with tempfile.TemporaryDirectory() as room:
                for name, path, logs, *_ in inputs(recording, Path(room)):
                    log = read_event_logs(logs) if logs else None
                    if log is None or log.elapsed.empty:
                        continue
                    row = scored(read_trace(path), log)
                    total += row
                    print(f"| {name} | " + " | ".join(map(str, row)) + " |", flush=True)
    print("| all | " + " | ".join(map(str, total.tolist())) + " |")


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:]])
