"""The runner's clock samples (`clocks.jsonl`, written by record/clock_sampler.py) as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
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
    try:
        return _samples(path.name, lines_of(path))
    except EventLogError as error:
        return _none(error.message)


def _samples(name: str, lines: Iterator[str]) -> tuple[pd.DataFrame, list[str]]:
    header = json_or_none(next(lines, ""))
    if (
        not isinstance(header, dict)
        or header.get("format") != FORMAT
        or not _are_names(header.get("columns"))
    ):
        return _none(f"{name} holds no clock samples (no header of {FORMAT}): it was not used")
    names = frames.CLOCK_SAMPLES.names
    rows, bad, columns = [], 0, header["columns"]
    for line in lines:
        values = json_or_none(line)
        if not isinstance(values, list) or len(values) != len(columns):
            bad += 1
            continue
        item = dict(zip(columns, values, strict=True))
        row = [_int(item.get(n)) for n in names]
        if row[0] < 0 or row[names.index("device")] < 0:
            bad += 1
            continue
        rows.append(row)
    notes = [f"{name}: {bad} lines could not be used (cut or malformed)"] if bad > 1 else []
    if header.get("order") == "assumed" and len({row[names.index("device")] for row in rows}) > 1:
        notes.append(
            "the order of the GPUs in the clock samples is assumed: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
        )
    if not rows:
        return frames.empty(frames.CLOCK_SAMPLES), notes
    frame = pd.DataFrame(np.array(rows, dtype=np.int64), columns=names)
    return frames.check(
        frame.sort_values(["device", "monotonic_ns"], ignore_index=True), frames.CLOCK_SAMPLES
    ), notes


def _none(note: str) -> tuple[pd.DataFrame, list[str]]:
    return frames.empty(frames.CLOCK_SAMPLES), [note]


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _int(value: object) -> int:
    return value if is_natural(value) else -1  # type: ignore[return-value]
