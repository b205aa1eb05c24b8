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

import orjson

from nsysalign import frames

if TYPE_CHECKING:
    import pandas as pd

#: `default` handles values that orjson would write in its own way.
_AS_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
#: What a column may hold, by dtype; None, too, where it may be absent.
_HOLDS: dict[str, tuple[set[type], str]] = {
    "str": ({str}, "texts"),
    "float64": ({int, float, type(None)}, "numbers"),
    "Int64": ({int, type(None)}, "whole numbers"),
}


def plain(value: Any) -> Any:
    """Nested mappings, sequences and numbers as JSON types; NaN, NaT and infinity as None."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # numpy's numbers and arrays
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return None if value != value else str(value)


def to_json(value: Any) -> str:
    """Any value (`plain`) as JSON: one line of ASCII without spaces."""
    try:
        text = orjson.dumps(value, default=plain, option=_AS_PLAIN)
    except TypeError:  # a key that is no string, a lone surrogate (from a file name that is not
        # UTF-8), an integer of more than 64 bits
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    if text.isascii():
        return text.decode()
    return re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], text.decode())


def listed(column: pd.Series, change: Callable[[Any], Any] = plain) -> list[Any]:
    """The values of a column as Python's own objects: texts, each once, and objects through
    `change`; NaN, NA and infinity become None, absent texts `change(None)`."""
    import numpy as np
    import pandas as pd

    if column.dtype in ("str", "category"):
        codes, once = pd.factorize(column)
        return np.array([*map(change, once), change(None)], object)[codes].tolist()
    if column.dtype == object:
        return [*map(change, column.tolist())]
    if column.dtype.kind in "iub" and column.dtype != "Int64":
        return column.tolist()
    values = column.to_numpy(object, na_value=None).tolist()
    return [v if v is not None and math.isfinite(v) else None for v in values]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as a list of objects: ten times its size, so of long tables some rows at a time."""
    names = table.columns.tolist()  # an index of texts is slow to go through
    lists = [listed(table[name]) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def table(lists: Iterable[list[Any]], spec: frames.Spec) -> pd.DataFrame:
    """The declared columns from a list of values for each; None is NaN in floats, NA in Int64,
    lists become tuples.

    Raises ValueError, TypeError or OverflowError if a value is not what was declared.
    """
    import pandas as pd

    made: dict[str, Any] = {}
    for (name, dtype, _), values in zip(spec.columns, lists, strict=True):
        if dtype == "object":
            values = [tuple(v) if isinstance(v, list) else v for v in values]
            kind = dict if name in spec.dicts else tuple
            words, right = "declared", all(holds(value, kind, str) for value in values)
        else:
            types, words = _HOLDS.get(dtype, ({int, bool}, "whole numbers"))
            right = {*map(type, values)} <= types
        if not right:
            raise ValueError(f"{spec.name}.{name} holds something other than {words}")
        made[name] = pd.Series(values, dtype=dtype)
    return frames.check(pd.DataFrame(made), spec)


def holds(value: object, kind: Any, within: Any) -> bool:
    """Whether it is a collection of that kind, of such items."""
    return isinstance(value, kind) and all(isinstance(item, within) for item in value)
