"""Pieces of windows: flat arrays of what each stretch of time was, before they become segments and
sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.intervals import Columns, distinct
from nsysalign.model import CAUSES, OPERATION_KINDS

CAUSE = {name: code for code, name in enumerate(CAUSES)}
#: The cause of the time in which an operation of each kind executes.
CAUSE_OF_KIND = np.array([CAUSE[k] for k in OPERATION_KINDS], dtype=np.int8)

#: What a piece points to: nsys tables by their short names, the log's records, or nothing.
REF_KINDS = ("", "kernel", "graph", "memcpy", "memset", "api", "nvtx", "overhead", "event")
REF = {name: code for code, name in enumerate(REF_KINDS)}
OPERATION_REFS = tuple(REF[kind] for kind in OPERATION_KINDS)

#: How a cause came about, where the cause alone does not say it.
DETAILS = (
    "",
    "copy",
    "staging",
    "dependency",
    "dependency-inferred",
    "default-stream-order",
    "contention",
    "full-queue",
    "earlier-work",
    "no-api-row",
    "host-function",
)
DETAIL = {name: code for code, name in enumerate(DETAILS)}


@dataclass(frozen=True)
class Pieces(Columns):
    """Arrays of equal length.  `ref` is a position: in operations (kernel .. memset), calls (api),
    ranges (nvtx), overhead, or records (event); `stream` the lane waited for (queued), -1
    otherwise."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    cause: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    detail: np.ndarray
    lane: np.ndarray

    def __len__(self) -> int:
        return len(self.window)


_TYPES = dict.fromkeys(("cause", "ref_kind", "detail"), np.int8)


def make(window, start, end, cause, ref_kind=0, ref=-1, detail=0, lane=-1, *, where=None) -> Pieces:
    """Pieces from arrays or constants (which take no memory); `where`: only the rows of the arrays
    that this mask, or these positions, select."""
    given = dict(
        zip(
            Pieces.__dataclass_fields__,
            (window, start, end, cause, ref_kind, ref, detail, lane),
            strict=True,
        )
    )
    if where is not None:
        given = {
            name: value if np.ndim(value) == 0 else value[where] for name, value in given.items()
        }
    n = len(given["window"])
    typed = ((name, value, _TYPES.get(name, np.int64)) for name, value in given.items())
    return Pieces(
        **{
            f: np.broadcast_to(dtype(v), n) if np.ndim(v) == 0 else np.asarray(v, dtype)
            for f, v, dtype in typed
        }
    )


def none() -> Pieces:
    """No piece at all."""
    return make(*(np.empty(0, np.int64),) * 3, 0)


def concatenated(parts: list[Pieces]) -> Pieces:
    """All pieces of at least one part, one part after the other."""
    return Pieces.joined([p for p in parts if len(p)] or parts[:1])


def join(parts: list[Pieces]) -> Pieces:
    """The same, sorted by window and time."""
    whole = concatenated(parts)
    return whole.take(np.lexsort((whole.start, whole.window)))


#: float64 represents all whole numbers below this.
_WHOLE = 1 << 53


def sums(pieces: Pieces, windows: int) -> np.ndarray:
    """Nanoseconds per window and cause: int64 array (windows, causes)."""
    return by_cause(pieces.window, pieces.cause, pieces.end - pieces.start, windows).T


def by_cause(row: np.ndarray, cause: np.ndarray, ns: np.ndarray, rows: int) -> np.ndarray:
    """Sums per cause and row: int64 array (causes, rows), exact."""
    out = np.zeros((len(CAUSES), rows), np.int64)
    if ns.sum(dtype=np.float64) >= _WHOLE:  # a damaged time: 104 days
        np.add.at(out, (cause, row), ns)
        return out
    found = distinct(cause).tolist()
    for code in found:
        mine = cause == code if len(found) > 1 else slice(None)
        out[code] = np.bincount(row[mine], ns[mine], rows)
    return out
