"""Finds the records that other log lines refer to, by process and number."""

from __future__ import annotations

import numpy as np
import pandas as pd


class Lookup:
    """Positions of (process, number), counted from `first`; of equal ones the first counts.  -1 for a missing one."""

    def __init__(self, process: np.ndarray, number: np.ndarray, *, first: int = 0) -> None:
        keys = pd.MultiIndex.from_arrays([process, number])
        self._position = np.flatnonzero(~keys.duplicated())
        self._keys, self._first = keys[self._position], first

    def __call__(self, rows: pd.DataFrame, column: str) -> np.ndarray:
        """Positions of what a column of `rows` (which has a column `process`) refers to."""
        if rows.empty or not len(self._keys):
            return np.full(len(rows), -1)
        wanted = pd.MultiIndex.from_arrays([rows["process"].to_numpy(), rows[column].to_numpy()])
        at = self._keys.get_indexer(wanted)
        return np.where(at >= 0, self._position[np.maximum(at, 0)] + self._first, -1)
