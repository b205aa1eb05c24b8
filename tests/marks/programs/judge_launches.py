"""Judges what `launches.cu` wrote: python tests/marks/programs/judge_launches.py FOLDER
[TRACE.sqlite] < its output; JSON lines.

With the trace: is every launch joined, does every mark lie in its kernel, does SM time add up?  And
what is not known yet: how many dependent kernels' blocks came before the kernel they depend on had
ended, by marks and by rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from nsysalign import frames
from nsysalign.addons.marks import dump
from nsysalign.addons.marks.inside import inside
from nsysalign.addons.marks.join import join
from nsysalign.trace.launches import read_launches


def overlapping(begin: np.ndarray, end: np.ndarray) -> int:
    """How many begin before the one before them has ended."""
    order = np.argsort(begin, kind="stable")
    return int((begin[order][1:] < end[order][:-1]).sum())


def judged(path: Path, trace: Path | None, said: dict[str, int]) -> dict[str, object]:
    """What a dump and its rows say, beside what the program says of itself."""
    read = dump.read(path)
    rows = read_launches(trace, [read.pid]) if trace else frames.empty(frames.LAUNCHES)
    marked = join(read, rows)
    table, found = marked.launches, inside(marked)
    out: dict[str, object] = {
        "launches": said["launches"], "expected": said["kernels"], "found": len(table), "dropped": read.dropped,
        "complete": int(found.kernels["complete"].sum()), "warps": int(found.kernels["warps"].sum()), "warps_expected": said["warps"],
        "overlap_by_marks": overlapping(table["first"].to_numpy(), table["last"].to_numpy()), "notes": list(marked.notes),
    }  # fmt: skip
    if trace:
        whole = read_sums(found.sm_time, len(table))
        wanted = marked.dump.sms * (table["end_ns"] - table["start_ns"]).to_numpy()
        joined = table["row"].to_numpy() >= 0
        out |= {
            "joined": int(joined.sum()), "outside_marks": int(found.kernels["outside"].sum()), "adds_up": bool((whole == wanted).all()),
            "bar_median_ns": float(table["error_ns"].median()), "bar_most_ns": float(table["error_ns"].max()),
            "overlap_by_rows": overlapping(table["start_ns"].to_numpy()[joined], table["end_ns"].to_numpy()[joined]),
        }  # fmt: skip
    return out


def read_sums(sm_time, count: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """SM time of every kernel."""
    return np.bincount(sm_time["kernel"], weights=sm_time["ns"], minlength=count).astype(np.int64)


def main() -> None:
    folder, trace = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    for line in sys.stdin:
        said = json.loads(line) if line.startswith("{") else {}
        if "launches" in said:
            print(json.dumps(judged(folder / f"{said['launches']}.nsam", trace, said)), flush=True)


if __name__ == "__main__":
    main()
