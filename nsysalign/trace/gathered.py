"""A column that is built batch by batch and kept as small as its values allow.  Most integer
columns of a trace need far less than the int64 that nsys declares: one process, one stream, names
by number.  A column with one value costs nothing, one whose values fit into 32 bits half; times
stay int64.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_INT32 = np.iinfo(np.int32)


class Gathered:
    """Batches of int64 values; `column()` returns all of them, once.

    One value only: an int64 view with stride 0, read-only, without memory of its own.  Otherwise
    int32 if that holds every value and the column is not `wide`, else int64.
    """

    def __init__(self, *, wide: bool = False) -> None:
        self._wide = wide
        self._parts: list[np.ndarray] = []
        self._low = self._high = 0

    def add(self, values: np.ndarray) -> None:
        """Copies the values: the caller may reuse the memory."""
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        if low == high:
            self._parts.append(np.broadcast_to(np.int64(low), len(values)))
        else:
            narrow = not self._wide and _INT32.min <= low and high <= _INT32.max
            self._parts.append(values.astype(np.int32 if narrow else np.int64))
        first = len(self._parts) == 1
        self._low = low if first else min(self._low, low)
        self._high = high if first else max(self._high, high)

    def column(self) -> np.ndarray:
        parts, self._parts = self._parts, []
        if not parts or self._low == self._high:
            return np.broadcast_to(np.int64(self._low if parts else 0), sum(map(len, parts)))
        narrow = not self._wide and _INT32.min <= self._low and self._high <= _INT32.max
        return np.concatenate(parts, dtype=np.int32 if narrow else np.int64, casting="unsafe")


def chosen(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of a table that a mask or positions select; a column of one value still takes no
    memory."""
    if rows.dtype == bool and rows.any():
        first, stop = int(rows.argmax()), len(rows) - int(rows[::-1].argmax())
        if rows[first:stop].all():  # one piece: nothing is copied
            return {name: values[first:stop] for name, values in columns.items()}
    count = int(rows.sum()) if rows.dtype == bool else len(rows)
    return {
        name: np.broadcast_to(values[0], count)
        if count and not any(values.strides)
        else values[rows]
        for name, values in columns.items()
    }
