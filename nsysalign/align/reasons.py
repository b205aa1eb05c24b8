"""What was measured but has no place: with the reason, and what of the log it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import pandas as pd


class Unplaced(TypedDict):
    """`origin` and `source` as in frames.WINDOWS."""

    name: str
    reason: str
    site: str
    origin: int
    source: int


def unplaced(name: str, reason: str, site: str, origin: int, source: int) -> Unplaced:
    return Unplaced(name=name, reason=reason, site=site, origin=origin, source=int(source))


def unplaced_frame(rows: Sequence[Unplaced]) -> pd.DataFrame:
    """The keys as columns."""
    kinds = {"name": "str", "reason": "str", "site": "str", "origin": "int8", "source": "int64"}
    return pd.DataFrame({c: pd.Series([dict(r)[c] for r in rows], dtype=kind) for c, kind in kinds.items()})
