"""A table's columns as lists of plain values, for formats written row by row, and back with the dtype that `frames` declares.
Frequent values are converted once: 150,000 details differ in little more than their numbers. A column whose rows are all the
same need not be listed at all: its value goes into the statement that inserts every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

#: Converts a value for writing; called once for every text and object, and with None for NaN and NA, not for numbers.
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Listed:
    """A column: which of `values` each row has, or (`codes` is None) a number for each row."""

    values: np.ndarray  # objects; int64 or float64 where `codes` is None
    codes: np.ndarray | None = None
    missing: Any = None  # replaces values that are not finite in a float64 column

    @property
    def constant(self) -> bool:
        """Every row has the value `values[0]`."""
        return self.codes is not None and len(self.values) == 1

    def rows(self, which: slice | np.ndarray) -> list[Any]:
        """The values of these rows: Python's own objects, never numpy's."""
        if self.codes is not None:
            return self.values[self.codes[which]].tolist()
        values = self.values[which]
        listed = values.tolist()
        if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
            return listed
        return [
            value if known else self.missing for value, known in zip(listed, finite.tolist(), strict=True)
        ]


def as_lists(frame: pd.DataFrame, change: Change | Mapping[str, Change]) -> dict[str, Listed]:
    """The columns of a table by name; `change` for all of them or by column."""
    by_name = change if isinstance(change, Mapping) else dict.fromkeys(frame.columns, change)
    return {name: _column(frame[name], by_name[name]) for name in frame.columns}


def numbers(array: np.ndarray, missing: Any = None) -> Listed:
    """A plain column of numbers; `missing` replaces values that are not finite."""
    if array.dtype.kind == "f":
        return Listed(array, missing=missing) if np.isfinite(array).any() else _same(missing, len(array))
    same = len(array) and array.min() == array.max()
    return _same(int(array[0]), len(array)) if same else Listed(array)


def _column(column: pd.Series, change: Change) -> Listed:
    import pandas as pd

    if str(column.dtype) == "Int64":
        unknown = column.isna().to_numpy()
        known = column.to_numpy(np.int64, na_value=0)
        if not unknown.any():
            return numbers(known)
        if unknown.all():
            return _same(change(None), len(column))
        values = known.astype(object)
        values[unknown] = change(None)
        return Listed(values, np.arange(len(values)))
    if column.dtype == object:
        codes, found = _numbered(column.tolist())
    elif column.dtype.kind in "iuf":
        return numbers(column.to_numpy(), change(None))
    else:
        codes, distinct = pd.factorize(column)
        found = distinct.tolist()
        if (codes < 0).any():  # -1 is a missing text: the last of the values
            found.append(None)
    return Listed(_objects([change(value) for value in found]), codes.astype(np.int32))


def _numbered(values: list[Any]) -> tuple[np.ndarray, list[Any]]:
    """Codes and different values of a column of objects.

    Texts, and tuples of texts (callers, flags, rules), share a code if they are equal.  Others are not compared: equal values
    are not always written alike (1, True and 1.0), and dicts cannot be hashed.
    """
    known: dict[Any, int] = {}
    codes: list[int] = []
    found: list[Any] = []
    for value in values:
        try:
            codes.append(known[value])
        except (KeyError, TypeError):  # TypeError: cannot be hashed
            texts = value if isinstance(value, tuple) else (value,)
            if all(isinstance(text, str) for text in texts):
                known[value] = len(found)
            codes.append(len(found))
            found.append(value)
    return np.array(codes, dtype=np.int64), found


def _same(value: Any, count: int) -> Listed:
    return Listed(_objects([value]), np.zeros(count, dtype=np.int32))


def _objects(values: list[Any]) -> np.ndarray:
    return np.fromiter(values, dtype=object, count=len(values))


def series(values: list[Any], dtype: str) -> pd.Series:
    """A column of `dtype`.  None is NaN in floats, NA in Int64; lists come back as the tuples they were."""
    import pandas as pd

    if dtype == "object":
        column = pd.Series([None] * len(values), dtype=object)
        # One by one, because pandas would take a list of equal-length tuples for a two-dimensional array.
        for position, value in enumerate(values):
            column.iat[position] = tuple(value) if isinstance(value, list) else value
        return column
    if dtype == "Int64":
        return pd.Series(pd.array(values, dtype="Int64"))
    if dtype.startswith("float"):
        return pd.Series(np.array([np.nan if v is None else v for v in values], dtype=dtype))
    if dtype == "str":
        return pd.Series(values, dtype=object).astype("str") if values else pd.Series(dtype="str")
    return pd.Series(np.array(values, dtype=dtype))
