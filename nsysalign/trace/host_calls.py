"""What an export says about host threads apart from the work they issued: the threads of calls, and
calls of the OS runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames, untrusted
from nsysalign.trace import schema
from nsysalign.trace.activity import possible_rows
from nsysalign.trace.sqlite import Source, open_readonly

#: An export with more OS-runtime calls is not searched: that would take longer than everything
#: else.
MOST_OS_CALLS = 5_000_000


def threads_of(path: Path, rows: np.ndarray) -> pd.Series:
    """rowid of a CUDA API call -> nsys globalTid of its thread, for those of `rows` that exist."""
    with open_readonly(path) as connection:
        found = Source(connection, path).read_rows(_THREADS, rows)
    return found.set_index("row")["thread"]


def os_calls(
    path: Path, first_ns: int, last_ns: int
) -> tuple[pd.DataFrame, dict[int, str], list[str]]:
    """(frames.OS_CALLS that overlap a stretch of time, sorted by start; their names; notes)."""
    with open_readonly(path) as connection:
        source = Source(connection, path)
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
            _names(source, table["name_id"].unique().tolist()),
            [],
        )


def _names(source: Source, ids: list[int]) -> dict[int, str]:
    if not {"id", "value"} <= source.columns("StringIds"):
        return {}
    found: dict[int, str] = {}
    with untrusted.long_values(source.connection):
        for begin in range(0, len(ids), 500):
            some = ids[begin : begin + 500]
            marks = ", ".join("?" * len(some))
            sql = f"select id, cast(value as text) from StringIds where value is not null and id in ({marks})"
            found |= dict(source.connection.execute(sql, some))
    return found


_THREADS = schema.RUNTIME._replace(
    fields=tuple(f for f in schema.RUNTIME.fields if f.name == "thread")
)
