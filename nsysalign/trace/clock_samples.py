"""The runner's clock samples (`clocks.jsonl`, written by record/clock_sampler.py) as a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from nsysalign import frames
from nsysalign.errors import EventLogError
from nsysalign.trace.lines import is_natural, json_or_none, lines_of

FORMAT = "nsysalign-clocks"


def read_clock_samples(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Samples with the columns of frames.CLOCK_SAMPLES, sorted by time, and notes.

    A truncated last line is normal (a killed run); a file of another kind yields a note and never
    stops the analysis.
    """
    none, name = frames.empty(frames.CLOCK_SAMPLES), path.name
    try:
        header, *rows = [json_or_none(line) for line in lines_of(path)] or [None]
    except EventLogError as error:
        return none, [error.message]
    known = isinstance(header, dict) and header.get("format") == FORMAT
    columns = header.get("columns") if known else None
    if not isinstance(columns, list) or not all(isinstance(c, str) for c in columns):
        return none, [f"{name} holds no clock samples (no header of {FORMAT}): it was not used"]
    whole = [row for row in rows if isinstance(row, list) and len(row) == len(columns)]
    values = [dict(zip(columns, row, strict=True)) for row in whole]
    found = pd.DataFrame(values, columns=frames.CLOCK_SAMPLES.names, dtype=object)
    found = found.map(lambda value: value if is_natural(value) else -1).astype("int64")
    found = found[(found["monotonic_ns"] >= 0) & (found["device"] >= 0)]
    bad, notes = len(rows) - len(found), []
    if bad > 1:
        notes.append(f"{name}: {bad} lines could not be used (cut or malformed)")
    if header.get("order") == "assumed" and found["device"].nunique() > 1:
        notes.append(
            "the order of the GPUs in the clock samples is assumed: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
        )
    found = found.sort_values(["device", "monotonic_ns"], ignore_index=True)
    return frames.check(found, frames.CLOCK_SAMPLES), notes
