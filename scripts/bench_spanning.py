"""What one interval over the whole trace costs beside very many tiny ones: nothing may grow with their product.

    python scripts/bench_spanning.py big-x10.sqlite big-x10.events.jsonl

The program's own log is analysed first; its records, where they were placed, are then compared in more ways, as if the
program had asked for it: each with the next one, with the one after it, and the first with the last.  A host timer goes
around everything and one around every region.  Both logs are analysed in turn, whole processes, started cold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from bench_analysis import cost

import nsysalign


def with_spanning(trace: Path, events: Path, out: Path) -> int:
    """Writes the log with more pairs to `out`; returns how many intervals it asks for."""
    intervals = nsysalign.analyze(trace, [events]).intervals
    at = dict(zip(intervals["start_record"].tolist(), intervals["start_ns"].tolist(), strict=True))
    at |= dict(zip(intervals["end_record"].tolist(), intervals["end_ns"].tolist(), strict=True))
    lines = [json.loads(line) for line in events.read_text("utf-8").splitlines()]
    records = [line for line in lines if line["type"] == "record" and line["seq"] in at]
    records.sort(key=lambda record: at[record["seq"]])
    pairs = [(records[0], records[-1], "whole")]
    pairs += [(a, b, "next") for a, b in pairwise(records)]
    pairs += [(a, b, "after next") for a, b in zip(records, records[2:], strict=False)]
    with out.open("w", encoding="utf-8") as file:
        for line in lines:
            if line["type"] != "elapsed":
                file.write(json.dumps(line) + "\n")
        for a, b, region in pairs:
            ms = (at[b["seq"]] - at[a["seq"]]) / 1e6
            asked = {
                "type": "elapsed",
                "start": a["seq"],
                "end": b["seq"],
                "ms": ms,
                "region": region,
            }
            file.write(json.dumps(asked) + "\n")
        for a, b in [(records[0], records[-1]), *zip(records[::2], records[1::2], strict=False)]:
            timer = {
                "type": "host",
                "t0_ns": a["t0_ns"],
                "t1_ns": b["t1_ns"],
                "tid": a["tid"],
                "region": "host",
            }
            file.write(json.dumps(timer) + "\n")
    return len(pairs) + 1 + len(records) // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("events", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.trace.parent) as folder:
        more = Path(folder) / "more.jsonl"
        asked = with_spanning(a.trace, a.events, more)
        for what, events in (("as recorded", a.events), (f"{asked:,} with spanning ones", more)):
            command = [
                sys.executable,
                "-m",
                "nsysalign",
                "analyze",
                str(a.trace),
                "--events",
                str(events),
            ]
            spent = cost([*command, "-q", "--no-cache", "-o", str(Path(folder) / "out")])
            print(
                f"{what}: {spent.wall_s:.1f} s wall, {spent.cpu_s:.1f} s CPU, {spent.peak_mb:.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
