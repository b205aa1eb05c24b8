"""Windows as far as a slice of the trace answers for them.

    slices    |        1        |        2        |        3        |
    window         [-------------------------------------)                too long to be read at once: a part in every slice
    extent         [------------[-----------------[------)                what each slice splits; the sums are added up

A window that is a part keeps its own start and end: what began before its extent, and what follows, decides as it does in
the whole.
"""

from __future__ import annotations

import numpy as np

from nsysalign.model import Alignment


def is_part(alignment: Alignment) -> np.ndarray:
    """Per window: whether other slices continue it."""
    if alignment.part is None:
        return np.zeros(len(alignment.windows), dtype=bool)
    return np.asarray(alignment.part)


def clipped(alignment: Alignment, times: np.ndarray, which: np.ndarray | None = None) -> np.ndarray:
    """Times of windows (of those at `which`), moved into the slice where the window is a part."""
    if alignment.part is None:
        return times
    part = alignment.part if which is None else alignment.part[which]
    return np.where(part, np.clip(times, *alignment.stretch), times)


def extent(alignment: Alignment) -> tuple[np.ndarray, np.ndarray]:
    """(start, end) of every window, ns: of a part, what lies in the slice, which may be nothing."""
    start, end = (alignment.windows[c].to_numpy() for c in ("start_ns", "end_ns"))
    return clipped(alignment, start), clipped(alignment, end)
