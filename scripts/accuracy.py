"""How exactly events are placed: every recording by its event clock, and again without it.

    python scripts/accuracy.py tests/data [FOLDER ...]

A row per recording with references (lines of type `reference` in its log): the intervals that the
event clock placed, the half-width of their bars, and how far CUPTI's own stamps lie from those
places, where the recording has them.  Then the same log with its references, and the trace's
stamps, taken away: how far the start lies from the clock's place, the half-width of the bar and the
share of starts inside it.  Everything in microseconds.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

import numpy as np
from same_numbers import inputs, recordings

import nsysalign

DISTANCES = ("reference", "start_ms", "end_ms")


def text_of(log: Path) -> TextIO:
    return (gzip.open if log.suffix == ".gz" else open)(log, "rt", encoding="utf-8")


def without_references(log: Path, out: Path) -> Path:
    """The log as a program would have written it that measures no distances; references stay
    records."""
    with text_of(log) as lines, out.open("w", encoding="utf-8") as kept:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # a cut last line
            if entry.get("type") in ("reference", "distance"):
                continue
            kept.write(json.dumps({k: v for k, v in entry.items() if k not in DISTANCES}) + "\n")
    return out


def without_stamps(trace: Path, out: Path) -> Path:
    """The export without CUPTI's event rows, whose stamps would give the places away."""
    shutil.copy(trace, out)
    with sqlite3.connect(out) as db:
        db.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_CUDA_EVENT")
    return out


def events(trace: Path, log: Path):
    """Intervals of kind event, by the numbers of their process and records."""
    found = nsysalign.analyze(trace, [log]).intervals
    found = found[found["kind"] == "event"]
    return found.set_index(["pid", "start_record", "end_record", "name"]).sort_index()


def row(trace: Path, log: Path, room: Path) -> tuple[str, np.ndarray]:
    clock = events(trace, log)
    clock = clock[clock["method"] == "clock"]
    bar = f"{clock['error_ns'].median() / 1e3:.2f}"
    stamps = clock["clock_residual_ns"].dropna().to_numpy(float) / 1e3
    late = f"{np.median(stamps):.2f}" if len(stamps) else ""
    bare = without_stamps(trace, room / "bare.sqlite")
    other = events(bare, without_references(log, room / "bare.jsonl"))
    both = clock.join(other.add_suffix("_bare"), how="inner")
    error = (both["start_ns_bare"] - both["start_ns"]).abs().to_numpy(float) / 1e3
    reach = both["error_ns_bare"].to_numpy(float) / 1e3
    errors = np.stack([error, reach], axis=1)
    text = summary(errors) if len(errors) else "none | | | "
    return f"{len(clock)} | {bar} | {late} | {text}", errors


def summary(errors: np.ndarray) -> str:
    error, reach = errors.T
    quantiles = "/".join(f"{q:.2f}" for q in np.quantile(error, [0.5, 0.95, 0.99]))
    inside = f"{100 * (error <= reach).mean():.1f}"
    return f"{len(error)} | {quantiles} | {inside} | {np.median(reach):.2f}"


def main(folders: list[Path]) -> None:
    heads = "recording | by the clock | bar | CUPTI's stamps later by | without it | p50/p95/p99 | % inside | bar"
    print(f"| {heads} |", "|---" * 8 + "|", sep="\n")
    every = []
    for path in (p for folder in folders for p in recordings(folder)):
        with tempfile.TemporaryDirectory() as folder:
            for name, trace, logs, *_ in inputs(path, Path(folder)):
                with text_of(logs[0]) if len(logs) == 1 else nullcontext(()) as lines:
                    if not any('"type":"reference"' in line for line in lines):
                        continue
                text, errors = row(trace, logs[0], Path(folder))
                every.append(errors)
                print(f"| {name} | {text} |", flush=True)
    print(f"| all | | | | {summary(np.concatenate(every))} |")


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:]] or [Path("tests/data")])
