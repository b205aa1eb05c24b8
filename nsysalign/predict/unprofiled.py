"""What an interval would have measured without nsys, predicted from the profiled trace alone, and
its budget then.

The interval is replayed (`replay`) without what the profiler costs (`overhead`): as estimated, and
with less of it, which says how much depends on each part of the estimate.  The budget is the
profiled one minus what was taken away, by cause; it adds up exactly to the prediction.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import CAUSES, KIND, Alignment, Trace
from nsysalign.parts import scale_budget
from nsysalign.predict.costs import (
    AFTER_ERROR,
    FITTED,
    HOST_ERROR,
    INSIDE_ERROR,
    WORK_ERROR,
    Costs,
    overhead,
    whole,
)
from nsysalign.predict.replay import Call, replay
from nsysalign.predict.scene import Scene, Scenes, said
from nsysalign.split.budget import SplitTrace
from nsysalign.trace.nccl import NCCL_KERNEL

#: Intervals replayed per label at most, evenly spread: more would not add anything.  Fewer if they
#: are long.
MOST_PER_LABEL, LEAST_PER_LABEL, CALLS_PER_LABEL = 32, 3, 60_000
_TICK_NS = 64  # the event clock's, at both ends
#: If more of an interval than this is unknown, it is not replayed.
_UNKNOWN_SHARE = 0.05
#: The same for NCCL's kernels in it and before it.
_WAITING_SHARE = 0.05


class Prediction(NamedTuple):
    """The prediction for one interval, ns; -1 if there is none, for the given `reason`."""

    predicted_ns: int
    lower_ns: int
    upper_ns: int
    reason: str


class Predictions(NamedTuple):
    """`frames.UNPROFILED` and `frames.UNPROFILED_PARTS`."""

    table: pd.DataFrame
    parts: pd.DataFrame


class Predictor:
    """`costs`: what the profiler adds; the defaults are the fitted ones."""

    def __init__(self, trace: Trace, alignment: Alignment, costs: Costs = FITTED) -> None:
        self.cost = overhead(trace, costs)
        self.scenes = Scenes(trace, alignment, self.cost.waits, costs)

    def predict(self, window, working_ns: int = 0) -> Prediction:
        """One row of alignment.windows (a named tuple).  `working_ns`: how long the GPU works in
        it."""
        scene = self.scenes.of(window)
        if scene.reason:
            return Prediction(-1, -1, -1, scene.reason)
        whole_ns = int(window.elapsed_ns)
        middle, less_inside, less_after = (
            max(whole_ns - self._earlier(scene, *shares), 0)
            for shares in ((1, 1), (1 - INSIDE_ERROR, 1), (1, 1 - AFTER_ERROR))
        )
        work = min(working_ns, middle)
        errors = (HOST_ERROR * (middle - work), WORK_ERROR * work)
        bar = round(math.hypot(less_inside - middle, less_after - middle, *errors)) + _TICK_NS
        return Prediction(middle, max(middle - bar, 0), middle + bar, "")

    def _earlier(self, scene: Scene, inside: float, after: float) -> int:
        """By how much it is shorter without these shares of the estimated cost; what the profiler
        does on the GPU belongs to `inside`."""
        columns = (
            self.scenes.start[scene.calls],
            self.scenes.end[scene.calls],
            whole(self.cost.inside[scene.calls] * inside),
            whole(self.cost.after[scene.calls] * after),
            self.cost.waits[scene.calls],
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        calls = [Call(*row)._replace(back=self.scenes.back) for row in rows]
        items = [
            i._replace(
                gap=i.gap - min(round(inside * i.device), max(i.gap, 0)),
                trim=min(round(inside * i.trim), (i.end - i.start) // 2),
            )
            for i in scene.items
        ]
        played = replay(calls, items)
        return played.items[scene.end] - played.items[scene.start] if scene.start >= 0 else played.host  # fmt: skip


def predict(source: SplitTrace, intervals: pd.DataFrame, labels: pd.DataFrame) -> Predictions:
    """Of all intervals of a label with few, else of its row and others evenly spread.  `intervals`:
    frames.INTERVALS without runs, numbered by their rows."""
    # about how many calls were made while each label's row was open
    begins, windows = source.trace.calls["start_ns"].to_numpy(), source.alignment.windows
    rows = labels["row_interval"].to_numpy()
    opened, closed = (
        np.searchsorted(begins, windows[c].to_numpy()[rows]) for c in ("open_ns", "close_ns")
    )
    most = CALLS_PER_LABEL // np.maximum(closed - opened, 1)
    most = np.clip(most, LEAST_PER_LABEL, MOST_PER_LABEL)
    of_label = intervals.groupby("label", sort=False).indices
    wanted = [rows]
    for label, count in zip(labels["label"], most.tolist(), strict=True):
        numbers = of_label[label]
        spread = np.linspace(0, len(numbers) - 1, count - 1).astype(int)
        wanted.append(numbers[spread] if len(numbers) > count else numbers)
    return predict_intervals(source, np.unique(np.concatenate(wanted)).astype(np.int64))


def predict_intervals(source: SplitTrace, wanted: np.ndarray) -> Predictions:
    """The same for these intervals (ascending numbers).

    Where none can be made there is a reason, whose first word, up to the colon, is what a table's
    cell has room for (REASONS). Bars are those of a run on a host that is as fast as this one was.
    """
    trace, windows = source.trace, source.alignment.windows.iloc[wanted]
    predictor, rows, budgets = None, [], []
    columns = (wanted.tolist(), windows.itertuples(index=False), source.budgets(wanted))
    collectives = _collectives(trace)
    for number, window, parts in zip(*columns, strict=True):
        reason = predicted = None
        if window.method in ("inferred", "event-trace"):
            reason = said(window.method)
        elif len(trace.os_calls):
            reason = said("osrt")
        elif parts[CAUSES.index("unknown")] > _UNKNOWN_SHARE * window.elapsed_ns:
            reason = said("unknown")
        elif len(collectives) and _waited(collectives, window) > _WAITING_SHARE * window.elapsed_ns:
            reason = said("collectives")
        else:
            predictor = predictor or Predictor(trace, source.alignment)
            predicted = predictor.predict(window, int(parts[: len(KIND)].sum()))
            reason = predicted.reason
            if not reason and predicted.predicted_ns > window.elapsed_ns:
                reason = said("longer")
        if reason or predicted is None:
            rows.append((number, pd.NA, pd.NA, pd.NA, reason))
            continue
        rows.append((number, *predicted[:3], ""))
        budget = scale_budget(parts, predicted.predicted_ns)
        budgets += [(number, CAUSES[c], int(ns)) for c, ns in enumerate(budget) if ns]
    table = frames.of_rows(rows, frames.UNPROFILED)
    return Predictions(table, frames.of_rows(budgets, frames.UNPROFILED_PARTS))


def _collectives(trace: Trace) -> pd.DataFrame:
    """NCCL's kernels: a replay takes a wait for another rank to be as long as it was."""
    names = [n for n, name in trace.names.items() if NCCL_KERNEL.search(name)]
    return trace.operations[trace.operations["name_id"].isin(names)]


def _waited(collectives: pd.DataFrame, window) -> int:
    """Nanoseconds of them in a window and in as long a time before it."""
    own = collectives[collectives["process"] == window.process]
    begin = own["start_ns"].clip(lower=2 * window.start_ns - window.end_ns)
    return int((own["end_ns"].clip(upper=window.end_ns) - begin).clip(lower=0).sum())
