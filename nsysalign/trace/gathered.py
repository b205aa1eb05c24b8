"""A column that is built batch by batch and kept as small as its values allow.

Most integer columns of a trace are far smaller than the int64 that nsys declares: one process, one stream, names by
number.  A column with one value costs nothing, one whose values fit into 32 bits half; times stay int64.
"""

from __future__ import annotations

import numpy as np

_INT32 = np.iinfo(np.int32)


class Gathered:
    """Batches of int64 values; `column()` is the whole: int32 where that holds it, else int64.

    The batches are let go by it.  A constant column is an int64 view with stride 0: read-only, without memory of its own.
    """

    def __init__(self) -> None:
        self._batches: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        """Copies what it keeps: the caller may reuse the memory."""
        if len(values):
            self._batches.append(narrowed(values))

    def column(self) -> np.ndarray:
        batches, self._batches = self._batches, []
        if not batches:
            return np.empty(0, np.int64)
        first = batches[0]
        if all(b.strides == (0,) and b[0] == first[0] for b in batches):
            return np.broadcast_to(first[0], sum(len(b) for b in batches))
        out = np.empty(sum(len(b) for b in batches), _common(batches))
        at = len(out)
        while batches:
            batch = batches.pop()
            out[at - len(batch) : at] = batch
            at -= len(batch)
        return out


def narrowed(values: np.ndarray) -> np.ndarray:
    """A copy as int32 if that holds it, else int64; one value only: an int64 view with stride 0."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.broadcast_to(np.int64(low), len(values))
    return values.astype(np.int32 if _INT32.min <= low and high <= _INT32.max else np.int64)


def _common(batches: list[np.ndarray]) -> type:
    wide = any(
        b.dtype == np.int64 and not (b.strides == (0,) and _INT32.min <= b[0] <= _INT32.max) for b in batches
    )
    return np.int64 if wide else np.int32
