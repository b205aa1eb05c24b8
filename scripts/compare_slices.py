"""Whether a trace in slices says what it says as a whole: to the nanosecond, where both know the same of it.

    python scripts/compare_slices.py RUN_DIR [--slice-rows 300000] [--jobs 2]

Reads the run twice, whole and in slices, with the knowledge (clocks, streams, how long records take) that the slices'
survey found.  Prints how many rows of what differ, and the time and memory of both.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from nsysalign.place.solve import align
from nsysalign.rundir import event_logs
from nsysalign.slices import rounds as run
from nsysalign.slices import survey as plan
from nsysalign.slices.pool import worker_pool
from nsysalign.split.budget import attribute
from nsysalign.split.partial import partial_result
from nsysalign.split.run_windows import with_runs
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.index import sampled
from nsysalign.trace.read import read_trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--slice-rows", type=int, default=300_000)
    parser.add_argument("--jobs", type=int, default=2)
    a = parser.parse_args()
    trace, log = a.run / "trace.sqlite", read_event_logs(event_logs(a.run))
    begin = time.perf_counter()
    index = sampled(trace)
    known = plan.survey(trace, log, index, most_calls=a.slice_rows)
    if known is None:
        sys.exit("nothing connects the clocks of this run")
    with worker_pool(a.jobs) as others:
        found = run.measure(
            trace, index, known, -(-2 * index.calls // a.slice_rows), others, lambda done, of: None
        )
    if found is None:
        sys.exit(
            "not cut: slices so small would overlap too much, or an interval depends on more than they see"
        )
    print(
        f"slices: {time.perf_counter() - begin:.1f} s, {index.calls:,} calls, {len(found.portion.rows):,} intervals"
    )
    begin = time.perf_counter()
    read = read_trace(trace)
    alignment = with_runs(read, align(read, log, found.known.context))
    whole = partial_result(read, alignment, attribute(read, alignment, known.latency), log)
    print(
        f"whole:  {time.perf_counter() - begin:.1f} s, {len(read.calls):,} calls, {len(whole.rows):,} intervals"
    )
    different = 0
    for column in whole.rows.columns.drop(
        ["part", "launched_ns", "waited_ns"]
    ):  # of which only flags are made
        if not whole.rows[column].equals(found.portion.rows[column]):
            mine, theirs = whole.rows[column].to_numpy(), found.portion.rows[column].to_numpy()
            off = np.array(
                [str(x) != str(y) for x, y in zip(mine.tolist(), theirs.tolist(), strict=True)]
            )
            by_origin = np.bincount(whole.rows["origin"].to_numpy()[off]).tolist()
            far = f", by up to {np.abs(mine - theirs)[off].max()}" if mine.dtype.kind == "i" else ""
            print(
                f"{column}: {int(off.sum())} differ (pairs, hosts, timers, regions: {by_origin}){far}"
            )
            different += int(off.sum())
    for part in ("total", "low", "high"):
        off = (getattr(whole, part) != getattr(found.portion, part)).any(axis=1)
        if off.any():
            print(f"{part}: {int(off.sum())} intervals differ")
            different += int(off.sum())
    print("equal to the nanosecond" if not different else f"{different} values differ")
    print(
        "unaligned:",
        len(whole.unaligned),
        len(found.portion.unaligned),
        "alone:",
        whole.alone == found.portion.alone,
    )


if __name__ == "__main__":
    main()
