"""The parts of intervals as dense arrays: a row per interval, a column per cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from nsysalign.model import CAUSES, Analysis


def parts_matrix(analysis: Analysis) -> np.ndarray:
    """`parts` as an int64 array (intervals, causes): one row per row of `intervals`, one column per cause of `CAUSES`."""
    (matrix,) = parts_matrices(analysis, ("ns",))
    return matrix


def parts_matrices(analysis: Analysis, columns: Sequence[str]) -> list[np.ndarray]:
    """The same for several columns of `parts`, whose positions are looked up once."""
    return matrices(analysis.intervals, analysis.parts, columns)


def matrices(intervals: pd.DataFrame, parts: pd.DataFrame, columns: Sequence[str]) -> list[np.ndarray]:
    """Columns of `parts` (`frames.PARTS`, or its first three columns) for the rows of `intervals`, int64 (intervals, causes).

    Rows of other intervals, and of unknown causes, are left out.
    """
    rows, causes = positions(intervals, parts), known_as(parts["cause"], CAUSES)
    placed = (rows >= 0) & (causes >= 0)
    at = rows[placed] * len(CAUSES) + causes[placed]
    found = []
    for column in columns:
        matrix = np.zeros((len(intervals), len(CAUSES)), dtype=np.int64)
        np.add.at(matrix.reshape(-1), at, parts[column].to_numpy(np.int64)[placed])
        found.append(matrix)
    return found


def positions(intervals: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Which row of `intervals` each row of a table of intervals belongs to, -1 for none."""
    numbers, of = intervals["interval"].to_numpy(), table["interval"].to_numpy()
    if np.array_equal(numbers, np.arange(len(numbers))):  # numbered in order: nothing to look up
        return np.where((of >= 0) & (of < len(numbers)), of, -1)
    return pd.Index(numbers).get_indexer(of)


def known_as(texts: pd.Series, order: Sequence[str]) -> np.ndarray:
    """The position of every text in `order`, -1 for others.  Each is looked up once, however often it occurs."""
    codes, found = pd.factorize(texts)
    place = {text: number for number, text in enumerate(order)}
    return np.array([*(place.get(text, -1) for text in found.tolist()), -1])[codes]
