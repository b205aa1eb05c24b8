"""Judges what `launches.cu` wrote: python tests/marks/programs/judge_launches.py FOLDER
[TRACE.sqlite] < its output; JSON lines.  With the trace: is every launch joined, does every mark
lie in its kernel, does SM time add up?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nsysalign import frames
from nsysalign.addons.marks import dump
from nsysalign.addons.marks.inside import inside, join
from nsysalign.trace.read import read_launches


def judged(path: Path, trace: Path | None, said: dict[str, int]) -> dict[str, object]:
    """What a dump and its rows say, beside what the program says of itself."""
    read = dump.read(path)
    rows = read_launches(trace, [read.pid]) if trace else frames.empty(frames.LAUNCHES)
    marked = join(read, rows)
    table, found = marked.launches, inside(marked)
    out: dict[str, object] = {
        "launches": said["launches"], "expected": said["kernels"], "found": len(table),
        "dropped": read.dropped, "complete": int(found.kernels["complete"].sum()),
        "warps": int(found.kernels["warps"].sum()), "warps_expected": said["warps"],
        "notes": list(marked.notes),
    }  # fmt: skip
    if trace:
        sums = found.sm_time.groupby("kernel")["ns"].sum()
        wanted = read.sms * (table["end_ns"] - table["start_ns"])
        out |= {
            "joined": int((table["row"] >= 0).sum()), "bar_most_ns": int(table["error_ns"].max()),
            "outside_marks": int(found.kernels["outside"].sum()),
            "adds_up": bool((sums == wanted[sums.index]).all()),
        }  # fmt: skip
    return out


if __name__ == "__main__":
    folder, trace = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    for line in sys.stdin:
        said = json.loads(line) if line.startswith("{") else {}
        if "launches" in said:
            print(json.dumps(judged(folder / f"{said['launches']}.nsam", trace, said)), flush=True)
