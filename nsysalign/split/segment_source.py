"""What is kept for a few intervals only: their segments, and what ran around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pandas as pd

from nsysalign.model import Alignment, Analysis, SegmentArrays, Trace
from nsysalign.split import work
from nsysalign.split.budget import Budgets
from nsysalign.split.timeline import timeline


class SegmentSource(Protocol):
    """Segments and surroundings of intervals, given by their numbers (ascending)."""

    def expect(self, which: np.ndarray) -> None:
        """Announces intervals that will be asked for: fetching them together is faster."""

    def segments(self, which: np.ndarray) -> pd.DataFrame:
        """`frames.SEGMENTS`."""

    def segment_arrays(self, which: np.ndarray) -> SegmentArrays:
        """The same segments without text, for rules."""

    def timeline(self, which: np.ndarray, analysis: Analysis) -> pd.DataFrame:
        """`frames.TIMELINE`."""

    def blocks(self, which: np.ndarray) -> np.ndarray:
        """Blocks of the grids of their kernels, -1 if that is not determined."""

    def around(self, which: np.ndarray, wide: bool = True) -> tuple[np.ndarray, Trace, Alignment]:
        """Those of the intervals that can be shown, ascending; a trace with their surroundings, and an alignment with their
        windows.  `wide`: more surroundings than pictures need."""

    def calls(self, which: np.ndarray) -> np.ndarray:
        """About how many calls were made while each interval was open."""


@dataclass(frozen=True)
class InMemorySource:
    """SegmentSource of a trace that is in memory, whose windows are all intervals."""

    trace: Trace
    alignment: Alignment
    budgets: Budgets

    def expect(self, which: np.ndarray) -> None:
        """All are in memory already."""

    def segments(self, which: np.ndarray) -> pd.DataFrame:
        return self.budgets.segments(which)

    def segment_arrays(self, which: np.ndarray) -> SegmentArrays:
        return self.budgets.segment_arrays(which)

    def timeline(self, which: np.ndarray, analysis: Analysis) -> pd.DataFrame:
        windows = self.alignment.windows.iloc[which].assign(interval=which)
        return timeline(self.trace, self.alignment, windows, analysis)

    def blocks(self, which: np.ndarray) -> np.ndarray:
        windows = self.alignment.windows.iloc[which].reset_index(drop=True)
        return work.blocks(self.trace, replace(self.alignment, windows=windows))

    def around(self, which: np.ndarray, wide: bool = True) -> tuple[np.ndarray, Trace, Alignment]:
        return (
            which,
            self.trace,
            replace(self.alignment, windows=self.alignment.windows.iloc[which]),
        )

    def calls(self, which: np.ndarray) -> np.ndarray:
        windows, made = self.alignment.windows, self.trace.calls["start_ns"].to_numpy()
        begin, end = (
            np.searchsorted(made, windows[c].to_numpy()[which]) for c in ("open_ns", "close_ns")
        )
        return end - begin
