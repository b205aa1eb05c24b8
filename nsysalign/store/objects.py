"""Tables and values as plain objects and as JSON, and back.

NaN does not exist in JSON: it becomes null.  The text is ASCII, so that no string of a trace can
break an encoder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from nsysalign import frames

if TYPE_CHECKING:
    import pandas as pd

#: `default` handles values that orjson would write in its own way.
_AS_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def listed(column: pd.Series, change: Callable[[Any], Any]) -> list[Any]:
    """The values of a column as Python's own objects.

    Texts and objects go through `change`, each text and tuple of texts once; NaN, NA and infinity
    become `change(None)`.
    """
    if str(column.dtype) == "Int64":
        values = column.to_numpy(object, na_value=None).tolist()
        return [change(None) if value is None else value for value in values]
    if column.dtype.kind == "f":
        return [v if math.isfinite(v) else change(None) for v in column.tolist()]
    if column.dtype.kind in "iub":
        return column.tolist()
    if column.dtype != object:  # texts, which pandas goes through one by one slowly
        codes, texts = column.factorize()
        written = [*map(change, texts.tolist()), change(None)]  # -1, the last, is a missing text
        return [written[code] for code in codes.tolist()]
    known: dict[Any, Any] = {}
    out = []
    for value in column.tolist():
        # Others than texts and tuples of texts are not compared, nor equal to one: 1, True and 1.0
        # are equal and not written alike, and dicts cannot be hashed.
        try:
            out.append(known[value])
            continue
        except (KeyError, TypeError):
            parts = value if isinstance(value, tuple) else (value,)
        if all(isinstance(part, str) for part in parts):
            out.append(known.setdefault(value, change(value)))
        else:
            out.append(change(None if isinstance(value, float) and value != value else value))
    return out


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as a list of objects: ten times its size, so of long tables some rows at a time."""
    names = table.columns.tolist()  # an index of texts is slow to go through
    lists = [listed(table[name], plain) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def frame(rows: list[dict[str, Any]], spec: frames.Spec) -> pd.DataFrame:
    """Objects as a table with the declared columns.  Raises KeyError, which names a missing one."""
    return table([[row[name] for row in rows] for name in spec.names], spec)


def table(lists: list[list[Any]], spec: frames.Spec) -> pd.DataFrame:
    """The declared columns from a list of values for each; None is NaN in floats, NA in Int64,
    lists become tuples.

    Raises ValueError, TypeError or OverflowError if a value is not what was declared.
    """
    import pandas as pd

    made: dict[str, Any] = {}
    for (name, dtype, _), values in zip(spec.columns, lists, strict=True):
        if dtype == "str" and not all(isinstance(v, str) for v in values):
            raise ValueError(f"{spec.name}.{name} holds something other than texts")
        if dtype in ("int8", "int64", "Int64", "bool"):
            wrong = [v for v in values if type(v) not in (int, bool)]
            if wrong and (dtype != "Int64" or any(v is not None for v in wrong)):
                raise ValueError(f"{spec.name}.{name} holds something other than whole numbers")
        if dtype == "object":
            made[name] = pd.Series([None] * len(values), dtype=object)
            # One by one, because pandas would take equally long tuples for a two-dimensional array.
            for position, value in enumerate(values):
                made[name].iat[position] = tuple(value) if isinstance(value, list) else value
        elif dtype == "float64":
            made[name] = np.array([np.nan if v is None else v for v in values], dtype=dtype)
        elif dtype == "str":
            made[name] = pd.Series(values, dtype=object).astype("str")
        else:
            made[name] = pd.array(values, dtype=dtype)
    return frames.check(pd.DataFrame(made), spec)


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
    """Any value as JSON: the same as `encoded(plain(value))`, without plain objects where orjson
    needs none."""
    try:
        return _ascii(orjson.dumps(value, default=plain, option=_AS_PLAIN)).decode("ascii")
    except TypeError:  # a key that is not a string
        return encoded(plain(value)).decode("ascii")


def _ascii(text: bytes) -> bytes:
    """JSON with every other character escaped."""
    if text.isascii():
        return text
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text.decode()).encode()
