"""Whether an excerpt shows all that intervals in it depend on."""

from __future__ import annotations

import numpy as np

from nsysalign.model import Trace
from nsysalign.trace.index import FOREVER, Excerpt

#: An interval that ends closer than this to the end of what was read could have been cut.
_GUARD_NS = 100_000


def too_narrow(
    trace: Trace, excerpt: Excerpt, opened: np.ndarray, start: np.ndarray, end: np.ndarray
) -> bool:
    """Whether one of some intervals reaches the end of the excerpt, or an operation in one was issued before its beginning."""
    if not len(start):
        return False
    begins, ends = (np.array(edge, dtype=np.int64) for edge in zip(*excerpt.spans, strict=True))
    span = np.minimum(np.searchsorted(ends, opened), len(ends) - 1)
    if (end + _GUARD_NS > ends[span]).any():
        return True
    at = _issued_before(trace, begins, ends)
    if not len(at[0]):
        return False
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    before = np.searchsorted(start[order], at[1], side="right") - 1
    return bool(((before >= 0) & (reach[np.maximum(before, 0)] > at[0])).any())


def _issued_before(trace: Trace, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, end) of operations whose call is not there, and was made before their span: calls of a process are
    numbered as they are made."""
    operations, calls = trace.operations, trace.calls
    lost = np.flatnonzero((operations["call"].to_numpy() < 0) & (operations["correlation"].to_numpy() >= 0))
    start, end, process, number = (
        operations[c].to_numpy()[lost] for c in ("start_ns", "end_ns", "process", "correlation")
    )
    span = np.minimum(np.searchsorted(ends, start), len(ends) - 1)
    earlier = np.zeros(len(lost), dtype=bool)
    for one in np.unique(process):
        mine = np.flatnonzero(calls["process"].to_numpy() == one)
        made, numbers = (calls[c].to_numpy()[mine] for c in ("start_ns", "correlation"))
        first = np.searchsorted(made, begins)
        least = np.append(numbers, np.iinfo(np.int64).max)[first]  # of the first call in each span
        here = process == one
        earlier[here] = number[here] <= least[span[here]]
    earlier &= begins[span] > -FOREVER
    return start[earlier], end[earlier]
