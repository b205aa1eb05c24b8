"""Long columns of numbers as short text: the runs are the largest part of a large page.

A column is its width, then every number in that many base-64 digits, the most significant first:
[0, 63, 64] -> "2AAA/BA". The page's `unpack` (templates/dom.js) reads it.  JSON would take twice as
much for times in nanoseconds.
"""

from __future__ import annotations

import numpy as np

_DIGITS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
#: JavaScript's numbers are whole up to 2^53, that is eight digits and a bit: longer columns stay
#: lists.
_MOST_DIGITS = 8
#: Shorter columns are as compact as lists, which are readable.
FEWEST = 20


def packed(values: np.ndarray) -> str | list[int]:
    """The column packed, or as a list if it is short or does not fit (negative, beyond 2^48)."""
    values = np.asarray(values, dtype=np.int64)
    if len(values) < FEWEST or values.min() < 0 or values.max() >= 1 << (6 * _MOST_DIGITS):
        return values.tolist()
    width = max(1, -(-int(values.max()).bit_length() // 6))
    shifts = 6 * np.arange(width - 1, -1, -1)
    digits = (values[:, None] >> shifts) & 63
    return str(width) + _DIGITS[digits].tobytes().decode("ascii")
