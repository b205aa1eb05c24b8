"""What an interval would have measured without nsys, predicted from the profiled trace alone, and
its budget then.

The interval is replayed (`replay`) without what the profiler costs (`overhead`): as estimated, and
with less of it, which says how much depends on each part of the estimate.  The budget is the
profiled one minus what was taken away, by cause; it adds up exactly to the prediction.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import CAUSES, OPERATION_KINDS, Alignment, Trace
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
from nsysalign.predict.replay import Call, Item, replay
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
        middle = self._replayed(window, scene)
        work = min(working_ns, middle)
        bar = _TICK_NS + round(
            math.hypot(
                self._replayed(window, scene, inside=1 - INSIDE_ERROR) - middle,
                self._replayed(window, scene, after=1 - AFTER_ERROR) - middle,
                HOST_ERROR * (middle - work),
                WORK_ERROR * work,
            )
        )
        return Prediction(middle, max(middle - bar, 0), middle + bar, "")

    def _replayed(self, window, scene: Scene, inside: float = 1.0, after: float = 1.0) -> int:
        """Its length without these shares of the estimated cost."""
        played = replay(*self.without(scene, inside, after))
        if scene.start < 0:
            return max(int(window.elapsed_ns) - played.host, 0)
        return max(int(window.elapsed_ns) - played.items[scene.end] + played.items[scene.start], 0)

    def without(self, scene: Scene, inside: float, after: float) -> tuple[list[Call], list[Item]]:
        """What is replayed, with these shares of the estimated cost; what the profiler does on the
        GPU belongs to `inside`."""
        start, end = self.scenes.start[scene.calls], self.scenes.end[scene.calls]
        cost = self.cost
        columns = (
            start,
            end,
            whole(cost.inside[scene.calls] * inside),
            whole(cost.after[scene.calls] * after),
            cost.waits[scene.calls],
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        calls = [Call(*row)._replace(back=self.scenes.back) for row in rows]
        items = [
            i._replace(
                gap=i.gap - min(round(inside * device), max(i.gap, 0)),
                trim=min(round(inside * trim), (i.end - i.start) // 2),
            )
            for i, device, trim in zip(scene.items, scene.device, scene.trim, strict=True)
        ]
        return calls, items


def predict(source: SplitTrace, intervals: pd.DataFrame, labels: pd.DataFrame) -> Predictions:
    """Of all intervals of a label with few, else of its row and others evenly spread.  `intervals`:
    frames.INTERVALS without runs, numbered by their rows."""
    # about how many calls were made while each label's row was open
    begins, windows = source.trace.calls["start_ns"].to_numpy(), source.alignment.windows
    opened, closed = (
        np.searchsorted(begins, windows[c].to_numpy()[labels["row_interval"]])
        for c in ("open_ns", "close_ns")
    )
    of_label = intervals.groupby("label", sort=False).indices
    wanted = []
    for label, row, calls in zip(
        labels["label"], labels["row_interval"], (closed - opened).tolist(), strict=True
    ):
        numbers = of_label[label]
        count = int(np.clip(CALLS_PER_LABEL // max(calls, 1), LEAST_PER_LABEL, MOST_PER_LABEL))
        if len(numbers) > count:
            spread = np.linspace(0, len(numbers) - 1, count - 1).astype(int)
            numbers = np.unique(np.append(numbers[spread], row))
        wanted.append(numbers)
    every = np.sort(np.concatenate(wanted)) if wanted else np.empty(0, np.int64)
    return predict_intervals(source, every.astype(np.int64))


def predict_intervals(source: SplitTrace, wanted: np.ndarray) -> Predictions:
    """The same for these intervals (ascending numbers).

    Where none can be made there is a reason, whose first word, up to the colon, is what a table's
    cell has room for (REASONS). Bars are those of a run on a host that is as fast as this one was.
    """
    trace, windows = source.trace, source.alignment.windows.iloc[wanted]
    matrix = source.total[wanted]
    working = matrix[:, [CAUSES.index(c) for c in OPERATION_KINDS]].sum(axis=1)
    unknown = matrix[:, CAUSES.index("unknown")]
    waits = _collectives(trace, windows)
    predictor = None
    rows, budgets = [], []
    for k, (number, window) in enumerate(
        zip(wanted.tolist(), windows.itertuples(index=False), strict=True)
    ):
        reason, predicted = "", None
        if window.method in ("inferred", "event-trace"):
            reason = said(window.method)
        elif len(trace.os_calls):
            reason = said("osrt")
        elif unknown[k] > _UNKNOWN_SHARE * window.elapsed_ns:
            reason = said("unknown")
        elif waits[k] > _WAITING_SHARE * window.elapsed_ns:
            reason = said("collectives")
        else:
            predictor = predictor or Predictor(trace, source.alignment)
            predicted = predictor.predict(window, int(working[k]))
            reason = predicted.reason
            if not reason and predicted.predicted_ns > window.elapsed_ns:
                reason = said("longer")
        if reason or predicted is None:
            rows.append((number, *((pd.NA,) * 3), reason))
            continue
        rows.append((number, *predicted[:3], ""))
        budget = scale_budget(matrix[k], predicted.predicted_ns)
        budgets += [(number, CAUSES[c], int(ns)) for c, ns in enumerate(budget) if ns]
    table = frames.of_rows(sorted(rows, key=itemgetter(0)), frames.UNPROFILED)
    return Predictions(table, frames.of_rows(budgets, frames.UNPROFILED_PARTS))


def _collectives(trace: Trace, windows: pd.DataFrame) -> np.ndarray:
    """int64, per window: ns of NCCL's kernels in it and in as long a time before it: a replay takes
    a wait for another rank to be as long as it was."""
    operations = trace.operations
    names = [n for n, name in trace.names.items() if NCCL_KERNEL.search(name)]
    waiting = operations[operations["name_id"].isin(names)]
    process, begun, over = (waiting[c].to_numpy() for c in ("process", "start_ns", "end_ns"))
    out = np.zeros(len(windows), dtype=np.int64)
    if len(waiting):
        for k, w in enumerate(windows.itertuples(index=False)):
            first = w.start_ns - (w.end_ns - w.start_ns)
            inside = np.minimum(over, w.end_ns) - np.maximum(begun, first)
            out[k] = inside[(process == w.process) & (inside > 0)].sum()
    return out
