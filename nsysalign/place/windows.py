"""Measured intervals: windows, and those without one, with the reason and their origin in the
log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from nsysalign import frames


class Unplaced(NamedTuple):
    """`origin` and `source` as in frames.WINDOWS."""

    name: str
    reason: str
    site: str
    origin: int
    source: int


def unplaced_frame(rows: Sequence[Unplaced]) -> pd.DataFrame:
    """The fields as columns."""
    kinds = {"name": "str", "reason": "str", "site": "str", "origin": "int8", "source": "int64"}
    columns = zip(*rows, strict=True) if rows else ([],) * len(kinds)
    return pd.DataFrame(
        {c: pd.Series(v, dtype=kind) for (c, kind), v in zip(kinds.items(), columns, strict=True)}
    )


def windows_frame(count: int, columns: dict[str, object]) -> pd.DataFrame:
    """A WINDOWS frame: columns that are not given hold the value for "none"."""
    default: dict[str, object] = {
        "log_process": -1,
        "start": -1,
        "end": -1,
        "start_lane": -1,
        "end_lane": -1,
        "error_ns": 0,
        "method": "exact",
        "region": "",
        "site": "",
        "end_site": "",
        "library": False,
        "source": -1,
    }
    out = pd.DataFrame(
        {k: columns.get(k, v) for k, v in default.items()}
        | {k: v for k, v in columns.items() if k not in default},
        index=range(count),
    )
    out["clock_residual_ns"] = pd.array([pd.NA] * count, dtype="Int64")
    out["callers"] = pd.Series([()] * count, dtype=object, index=out.index)
    out["remarks"] = pd.Series([()] * count, dtype=object, index=out.index)
    return frames.check(out, frames.WINDOWS)
