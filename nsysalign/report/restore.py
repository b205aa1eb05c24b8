"""Columns back from plain values, with the dtype that `frames` declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def series(values: list[Any], dtype: str) -> pd.Series:
    """A column of `dtype`.  None is NaN in floats, NA in Int64; lists come back as the tuples they were."""
    import numpy as np
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
