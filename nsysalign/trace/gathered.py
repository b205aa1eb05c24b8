"""A column that is built batch by batch and kept as small as its values allow.  Most integer columns of a trace need far less
than the int64 that nsys declares: one process, one stream, names by number.  A column with one value costs nothing, one whose
values fit into 32 bits half; times stay int64.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_INT32 = np.iinfo(np.int32)
_LEAST_ROWS = 1 << 12


class Gathered:
    """Batches of int64 values; `column()` returns all of them.

    One value only: an int64 view with stride 0, read-only, without memory of its own.  Otherwise int32 if that holds every
    value and the column is not `wide`, else int64.  `rows` says how many are expected.
    """

    def __init__(self, rows: int = 0, *, wide: bool = False) -> None:
        self._expected = max(rows, _LEAST_ROWS)
        self._wide = wide
        self._length = 0
        self._only: int | None = None  # the only value so far
        self._values: np.ndarray | None = None  # from the second value on

    def add(self, values: np.ndarray) -> None:
        """Copies the values: the caller may reuse the memory."""
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        if self._values is None and low == high and self._only in (None, low):
            self._only = low
            self._length += len(values)
            return
        kept = self._make_room(len(values), low, high)
        kept[self._length : self._length + len(values)] = values
        self._length += len(values)

    def column(self) -> np.ndarray:
        if self._values is None:
            return np.broadcast_to(np.int64(self._only or 0), self._length)
        whole = self._values[: self._length]
        return whole if len(self._values) <= 2 * self._length else whole.copy()

    def _make_room(self, more: int, low: int, high: int) -> np.ndarray:
        """Space for `more` values behind those already stored."""
        if self._only is not None:
            low, high = min(low, self._only), max(high, self._only)
        narrow = not self._wide and _INT32.min <= low and high <= _INT32.max
        old, need = self._values, self._length + more
        if old is not None and need <= len(old) and (narrow or old.dtype == np.int64):
            return old
        narrow &= old is None or old.dtype == np.int32
        size = max(self._expected, need) if old is None or need <= len(old) else 2 * need
        self._values = np.empty(size, np.int32 if narrow else np.int64)
        if old is not None:
            self._values[: self._length] = old[: self._length]
        elif self._only is not None:
            self._values[: self._length] = self._only
            self._only = None
        return self._values


def chosen(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of a table that a mask or positions select; a column of one value still takes no memory."""
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
