"""Judges what `launches.cu` wrote: python tests/marks/programs/judge_launches.py FOLDER < its
output; JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nsysalign import frames
from nsysalign.addons.marks import dump
from nsysalign.addons.marks.inside import inside, join

if __name__ == "__main__":
    for line in sys.stdin:
        said = json.loads(line) if line.startswith("{") else {}
        if "launches" in said:
            read = dump.read(Path(sys.argv[1], f"{said['launches']}.nsam"))
            kernels = inside(join(read, frames.empty(frames.LAUNCHES))).kernels
            out = {
                "launches": said["launches"], "expected": said["kernels"], "found": len(kernels),
                "dropped": read.dropped, "complete": int(kernels["complete"].sum()),
                "warps": int(kernels["warps"].sum()), "warps_expected": said["warps"],
            }  # fmt: skip
            print(json.dumps(out), flush=True)
