"""What an export says about host threads apart from the work they issued: calls of the OS
runtime."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from nsysalign import frames
from nsysalign.trace import schema
from nsysalign.trace.activity import possible_rows
from nsysalign.trace.sqlite import opened

#: An export with more OS-runtime calls is not searched: that would take longer than everything
#: else.
MOST_OS_CALLS = 5_000_000


def os_calls(
    path: Path, first_ns: int, last_ns: int
) -> tuple[pd.DataFrame, dict[int, str], list[str]]:
    """(frames.OS_CALLS that overlap a stretch of time, sorted by start; their names; notes)."""
    with opened(path) as source:
        low, high = source.row_numbers(schema.OSRT)
        if high - low >= MOST_OS_CALLS:
            note = f"calls of the OS runtime were not read: there are more than {MOST_OS_CALLS:,}"
            return frames.empty(frames.OS_CALLS), {}, [note]
        table = source.read(schema.OSRT)
        if table is None or table.empty:
            return frames.empty(frames.OS_CALLS), {}, []
        near = (table["end_ns"] > first_ns) & (table["start_ns"] < last_ns)
        table = table[possible_rows(table) & near].sort_values("start_ns", ignore_index=True)
        return (
            frames.check(table, frames.OS_CALLS),
            source.strings(table["name_id"].unique().tolist()),
            [],
        )
