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
    return pd.DataFrame(rows, columns=[*kinds]).astype(kinds)


def windows_frame(count: int, columns: dict[str, object]) -> pd.DataFrame:
    """A WINDOWS frame: columns that are not given hold the value for "none"."""
    numbers = dict.fromkeys(("log_process", "start", "end", "start_lane", "end_lane", "source"), -1)
    texts = dict.fromkeys(("region", "site", "end_site"), "")
    given = numbers | texts | {"error_ns": 0, "method": "exact", "library": False} | columns
    for name in ("callers", "remarks"):
        given.setdefault(name, pd.Series([()] * count, dtype=object))
    given.setdefault("clock_residual_ns", pd.array([pd.NA] * count, dtype="Int64"))
    return frames.lean(given, frames.WINDOWS, count)
