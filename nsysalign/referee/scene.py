"""A trace as the checks look at it: the timed intervals, and what each of them issued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.diagnose import words
from nsysalign.model import KIND, Alignment, EventLog, Trace
from nsysalign.referee.doubt import Doubt
from nsysalign.split.kernels import operation_codes
from nsysalign.split.labels import name_intervals
from nsysalign.tiles import ragged
from nsysalign.trace.gpus import Limits

#: Pairs of an interval and an operation that are looked at, at most: beyond, the longest intervals are left out.
MOST_PAIRS = 20_000_000


@dataclass(frozen=True)
class Issued:
    """Which operation was issued in which interval, by its own thread or on its stream: positions, sorted by interval and
    issue."""

    interval: np.ndarray
    operation: np.ndarray

    def where(self, mask: np.ndarray) -> Issued:
        """Those of a mask."""
        return Issued(self.interval[mask], self.operation[mask])

    def sums(self, count: int, values: np.ndarray | int = 1) -> np.ndarray:
        """Sum of a value per pair, of every interval."""
        out = np.zeros(count, np.int64)
        with np.errstate(over="ignore"):
            np.add.at(out, self.interval, values)
        return out


@dataclass(frozen=True)
class Scene:
    """`intervals`: frames.WINDOWS of kind event that the program itself compared and of kind host, with `name` and `label`."""

    trace: Trace
    log: EventLog | None
    alignment: Alignment
    intervals: pd.DataFrame
    limits: dict[int, Limits]

    def column(self, name: str) -> np.ndarray:
        """Of the intervals."""
        return self.intervals[name].to_numpy()

    @cached_property
    def is_event(self) -> np.ndarray:
        """Intervals between two events of the log."""
        return self.column("kind").astype(object) == "event"

    @cached_property
    def kind(self) -> np.ndarray:
        """Of every operation, a code of model.KIND."""
        return self.trace.operations["kind"].to_numpy()

    @cached_property
    def start(self) -> np.ndarray:
        """Of every operation."""
        return self.trace.operations["start_ns"].to_numpy()

    @cached_property
    def end(self) -> np.ndarray:
        """Of every operation."""
        return self.trace.operations["end_ns"].to_numpy()

    @cached_property
    def lane(self) -> np.ndarray:
        """Of every operation."""
        return np.asarray(self.alignment.operation_lane)

    @cached_property
    def issue(self) -> np.ndarray:
        """When the call of every operation began, -1 if the trace has no call."""
        call, begun = self.trace.operations["call"].to_numpy(), self.trace.calls["start_ns"]
        return np.append(begun.to_numpy(), -1)[call]

    @cached_property
    def thread(self) -> np.ndarray:
        """Of the call of every operation, -1 if the trace has none."""
        call = self.trace.operations["call"].to_numpy()
        return np.append(self.trace.calls["thread"].to_numpy(), -1)[call]

    @cached_property
    def code(self) -> np.ndarray:
        """A number for the name of every operation."""
        return operation_codes(self.trace.operations)[0]

    def stream(self, lane: int) -> int:
        """CUPTI's id of a lane's stream."""
        return int(self.alignment.lanes["stream"].iloc[lane])

    @cached_property
    def issued(self) -> Issued:
        """What was issued between the two records (host: readings) of each interval."""
        process = self.trace.operations["process"].to_numpy()
        opened, closed, own = (self.column(c) for c in ("open_ns", "close_ns", "process"))
        found, left = [], MOST_PAIRS
        for number in np.unique(own).tolist():
            ops = np.flatnonzero((process == number) & (self.issue >= 0))
            ops = ops[np.argsort(self.issue[ops], kind="stable")]
            mine = np.flatnonzero(own == number)
            first = np.searchsorted(self.issue[ops], opened[mine])
            count = np.maximum(np.searchsorted(self.issue[ops], closed[mine]) - first, 0)
            few = np.zeros(len(mine), bool)
            order = np.argsort(count, kind="stable")
            few[order[np.cumsum(count[order]) <= left]] = True
            which, place = ragged(first[few], count[few])
            found.append((mine[few][which], ops[place]))
            left -= len(place)
        interval, operation = (
            np.concatenate([pair[side] for pair in found] or [np.empty(0, np.int64)])
            for side in (0, 1)
        )
        thread = self.thread[operation]
        ours = (thread == self.column("thread")[interval]) | (
            thread == self.column("end_thread")[interval]
        )
        ours |= self.lane[operation] == self.column("end_lane")[interval]
        return Issued(interval, operation).where(ours)

    @cached_property
    def did(self) -> pd.DataFrame:
        """Per interval, of what it issued: `count`, `kernels` (graphs included), `bytes` that were copied or set, `names` (a
        digest of which, and how often each)."""
        issued, n = self.issued, len(self.intervals)
        digest = np.random.default_rng(0).integers(1 << 62, size=int(self.code.max(initial=0)) + 1)
        kind = self.kind[issued.operation]
        computes = (kind == KIND["kernel"]) | (kind == KIND["graph"])
        moved = self.trace.operations["bytes"].to_numpy()[issued.operation]
        return pd.DataFrame(
            {
                "count": issued.sums(n),
                "kernels": issued.sums(n, computes),
                "bytes": issued.sums(n, moved),
                "names": issued.sums(n, digest[self.code[issued.operation]]),
            }
        )

    def blocks(self, which: np.ndarray) -> np.ndarray:
        """Blocks of the grids of the kernels that these intervals issued, 0 if the trace does not say."""
        mine = self.issued.where(np.isin(self.issued.interval, which))
        mine = mine.where(self.kind[mine.operation] == KIND["kernel"])
        rows, place = np.unique(
            self.trace.operations["row"].to_numpy()[mine.operation], return_inverse=True
        )
        if self.trace.shapes is None or not len(rows):
            return np.zeros(len(which), np.int64)
        grid = np.asarray(self.trace.shapes(rows))[:, :3].prod(axis=1)
        return mine.sums(len(self.intervals), grid[place])[which]

    def doubt(
        self, check: str, level: str, label: str, quoted: int, shown: np.ndarray, of: int, title: str, **more: Any
    ) -> Doubt:  # fmt: skip
        """A doubt about a label of `of` intervals, those at `shown` in particular, with the numbers of one of them."""
        row, names = self.intervals.iloc[quoted], self.column("name")[shown].tolist()
        return Doubt(
            check, level, label, str(row["site"]), f"{words.subject(label)} {title}", tuple(names), of,
            str(row["name"]), int(row["elapsed_ns"]), **more,
        )  # fmt: skip

    def typical(self, at: np.ndarray) -> int:
        """Of these intervals the one with the lower-median measured time."""
        order = np.argsort(self.column("elapsed_ns")[at], kind="stable")
        return int(at[order[(len(at) - 1) // 2]])

    def labels(self) -> Iterator[tuple[str, np.ndarray]]:
        """(label, positions of its intervals in the order of their issue), of pairs of events."""
        v = self.intervals[self.is_event].sort_values("open_ns", kind="stable")
        for label, rows in v.groupby("label", sort=False):
            yield str(label), rows.index.to_numpy()


def build(
    trace: Trace, log: EventLog | None, alignment: Alignment, limits: dict[int, Limits]
) -> Scene:
    """The scene.  Pairs that only the trace shows are left out: nobody says what they are to measure."""
    w = alignment.windows
    names, labels = name_intervals(w)
    w = w.assign(name=names, label=labels)
    told = w["kind"].isin(["event", "host"]) & (w["method"] != "inferred")
    return Scene(trace, log, alignment, w[told].reset_index(drop=True), limits)
