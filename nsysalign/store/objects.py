"""Tables and values as plain objects and as JSON, and back.

What occurs often in a column is converted once: 150,000 details differ in little more than their numbers.  A column whose
rows are all the same need not be listed at all: its value goes into the statement that inserts every row.

NaN does not exist in JSON: it becomes null.  The text is ASCII, so that no string of a trace can break an encoder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from nsysalign import frames
from nsysalign.model import TraceInfo

if TYPE_CHECKING:
    import pandas as pd


#: `default` handles values that orjson would write in its own way.
_AS_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
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
            value if known else self.missing
            for value, known in zip(listed, finite.tolist(), strict=True)
        ]


def as_lists(frame: pd.DataFrame, change: Change | Mapping[str, Change]) -> dict[str, Listed]:
    """The columns of a table by name; `change` for all of them or by column."""
    by_name = change if isinstance(change, Mapping) else dict.fromkeys(frame.columns, change)
    return {name: _column(frame[name], by_name[name]) for name in frame.columns}


def numbers(array: np.ndarray, missing: Any = None) -> Listed:
    """A plain column of numbers; `missing` replaces values that are not finite."""
    if array.dtype.kind == "f":
        return (
            Listed(array, missing=missing)
            if np.isfinite(array).any()
            else _same(missing, len(array))
        )
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


def plain(value: Any) -> Any:
    """Nested mappings, sequences and numbers as JSON types; NaN, NA and infinity as None."""
    if isinstance(value, (str, bool)) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # numpy's numbers and arrays
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return None if value != value else str(value)


def encoded(value: Any) -> bytes:
    """Plain objects (`plain`) as JSON: one line of ASCII without spaces."""
    try:
        return _ascii(orjson.dumps(value))
    except (
        TypeError
    ):  # a lone surrogate (from a file name that is not UTF-8), an integer of more than 64 bits
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def to_json(value: Any) -> str:
    """Any value as JSON: the same as `encoded(plain(value))`, without building plain objects if orjson does not need them."""
    try:
        return _ascii(orjson.dumps(value, default=plain, option=_AS_PLAIN)).decode("ascii")
    except TypeError:  # a key that is not a string
        return encoded(plain(value)).decode("ascii")


def _ascii(text: bytes) -> bytes:
    """JSON with every other character escaped."""
    if text.isascii():
        return text
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text.decode()).encode(
        "ascii"
    )


def records(table: pd.DataFrame, rows: Any = slice(None)) -> list[dict[str, Any]]:
    """A table, or some of its rows, as a list of objects."""
    return Records(table).of(rows)


class Records:
    """A table as objects, some rows at a time: as Python objects a row takes ten times its size."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._names = list(table.columns)
        self._columns = as_lists(table, plain)

    def of(self, rows: Any) -> list[dict[str, Any]]:
        """The objects of these rows, a slice or an array of positions."""
        lists = [column.rows(rows) for column in self._columns.values()]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*lists, strict=True)]


def trace_info(stored: Mapping[str, Any]) -> TraceInfo:
    """The stored facts about a trace; fields of other versions are left out."""
    known: dict[str, Any] = {
        name: _as_tuple(stored[name]) for name in TraceInfo.__dataclass_fields__ if name in stored
    }
    return TraceInfo(**known)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def frame(rows: list[dict[str, Any]], spec: frames.Spec) -> pd.DataFrame:
    """Objects as a table with the declared columns."""
    import pandas as pd

    def column(name: str) -> list[Any]:
        key = (spec.name, name)
        if key in frames.LATER_COLUMNS:
            return [row.get(name, frames.LATER_COLUMNS[key]) for row in rows]
        return [row[name] for row in rows]

    table = pd.DataFrame({c.name: series(column(c.name), c.dtype) for c in spec.columns})
    return frames.check(table, spec)
