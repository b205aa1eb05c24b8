"""Tables and values as plain objects and as JSON, and back.

NaN does not exist in JSON: it becomes null.  The text is ASCII, so that no string of a trace can break an encoder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from nsysalign import frames
from nsysalign.model import TraceInfo
from nsysalign.store.columns import as_lists

if TYPE_CHECKING:
    import pandas as pd


#: `default` handles values that orjson would write in its own way.
_AS_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


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
    except TypeError:  # half a character (a file name that is no UTF-8), an integer of more than 64 bits
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def to_json(value: Any) -> str:
    """Any value as JSON: the same as `encoded(plain(value))`, without building plain objects if orjson does not need them."""
    try:
        return _ascii(orjson.dumps(value, default=plain, option=_AS_PLAIN)).decode("ascii")
    except TypeError:  # a key that is no text
        return encoded(plain(value)).decode("ascii")


def _ascii(text: bytes) -> bytes:
    """JSON with every other character escaped."""
    if text.isascii():
        return text
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text.decode()).encode("ascii")


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
        name: tuple(value) if isinstance(value := stored[name], list) else value
        for name in TraceInfo.__dataclass_fields__
        if name in stored
    }
    return TraceInfo(**known)


def frame(rows: list[dict[str, Any]], spec: frames.Spec) -> pd.DataFrame:
    """Objects as a table with the declared columns."""
    import pandas as pd

    from nsysalign.store.columns import series

    def column(name: str) -> list[Any]:
        key = (spec.name, name)
        if key in frames.LATER_COLUMNS:
            return [row.get(name, frames.LATER_COLUMNS[key]) for row in rows]
        return [row[name] for row in rows]

    table = pd.DataFrame({c.name: series(column(c.name), c.dtype) for c in spec.columns})
    return frames.check(table, spec)
