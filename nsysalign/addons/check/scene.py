"""A trace as the checks look at it: the timed intervals, and what each of them issued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.intervals import ragged
from nsysalign.model import CALL, KIND, Alignment, Gpu, Trace
from nsysalign.split.labels import name_intervals, operation_codes
from nsysalign.text import subject

#: A thread works for a label if all its launches lie in the label's intervals, and would do so by
#: chance less often than this.
_BY_CHANCE = 1e-3

FOUND, NOTE = "found", "note"


@dataclass(frozen=True)
class Doubt:
    """One reason why a label's numbers are not what they seem.

    `level`: "found" fails the check; "note" is worth knowing, and may well be meant.  `measured_ns`
    and `right_ns` are of the interval that is quoted, None where there is no better number.
    """

    check: str
    level: str
    label: str
    site: str
    title: str
    intervals: tuple[str, ...]  # names of those that show it
    of: int  # intervals of the label
    quoted: str = ""  # name of the one whose numbers these are
    measured_ns: int | None = None
    right_ns: int | None = None
    bound: str = ""  # "at least " where `right_ns` is one

    @property
    def worth_ns(self) -> int | None:
        """How far the quoted interval is off."""
        if self.measured_ns is None or self.right_ns is None:
            return None
        return self.right_ns - self.measured_ns


@dataclass(frozen=True)
class Issued:
    """Which operation was issued in which interval, by its own thread, by one that works for it, or
    on its stream: positions, sorted by interval and issue."""

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


class Scene:
    """`intervals`: frames.WINDOWS of kind event that the log says were compared, with `name` and
    `label`; pairs that only the trace shows are left out: nobody says what they are to measure.
    Of every operation: `kind` (a code of model.KIND), `start`, `end`, `lane`, `issue` (when its
    call began) and `thread` (-1 if the trace has no call), `code` (a number for its name)."""

    def __init__(self, trace: Trace, alignment: Alignment, limits: dict[int, Gpu]) -> None:
        self.trace, self.alignment, self.limits = trace, alignment, limits
        windows = alignment.windows
        names, labels = name_intervals(windows)
        compared = (windows["kind"] == "event") & (windows["method"] != "inferred")
        named = windows.assign(name=names, label=labels)
        self.intervals = named[compared].reset_index(drop=True)
        operations, calls = trace.operations, trace.calls
        call = operations["call"].to_numpy()
        self.kind, self.start, self.end, self.process = (
            operations[c].to_numpy() for c in ("kind", "start_ns", "end_ns", "process")
        )
        self.lane = np.asarray(alignment.operation_lane)
        self.issue, self.thread = (
            np.append(calls[c].to_numpy(), -1)[call] for c in ("start_ns", "thread")
        )
        self.code = operation_codes(operations)[0]
        #: A random number per code: sums are equal where the same names occur equally often.
        random = np.random.default_rng(0)
        self.digest = random.integers(1 << 62, size=int(self.code.max(initial=0)) + 1)
        self.computes = (self.kind == KIND["kernel"]) | (self.kind == KIND["graph"])

    def column(self, name: str) -> np.ndarray:
        """Of the intervals."""
        return self.intervals[name].to_numpy()

    def stream(self, lane: int) -> int:
        """CUPTI's id of a lane's stream."""
        return int(self.alignment.lanes["stream"].iloc[lane])

    @cached_property
    def issued(self) -> Issued:
        """What was issued between the two records of each interval."""
        ops = np.lexsort((self.issue, self.process))
        opened, closed, own = (self.column(c) for c in ("open_ns", "close_ns", "process"))
        first, last = np.zeros(len(own), np.int64), np.zeros(len(own), np.int64)
        for number in np.unique(own).tolist():
            begin, end = np.searchsorted(self.process[ops], [number, number + 1])
            issue, its = self.issue[ops[begin:end]], own == number
            first[its] = begin + np.searchsorted(issue, opened[its])
            last[its] = begin + np.searchsorted(issue, closed[its])
        interval, place = ragged(first, np.maximum(last - first, 0))
        operation = ops[place]
        ours = self.lane[operation] == self.column("end_lane")[interval]
        for side in ("thread", "end_thread"):
            ours |= self.thread[operation] == self.column(side)[interval]
        for thread, rows in self._helpers:
            ours |= (self.thread[operation] == thread) & np.isin(interval, rows)
        return Issued(interval, operation).where(ours)

    @cached_property
    def _helpers(self) -> list[tuple[int, np.ndarray]]:
        """(thread, intervals of a label) of threads that launch inside these intervals only, never
        between them, although so much of the time from one to the next lies between them that this
        is no coincidence: a pool's worker that the timed call waits for.  A thread that works
        beside launches between them as well."""
        known = self.computes & (self.issue >= 0)
        threads, first = np.unique(self.thread[known], return_index=True)
        process, out = self.process[known][first], []
        for _, rows in self.labels() if len(threads) > 1 else ():
            opened = self.column("open_ns")[rows]
            closed = np.maximum.accumulate(self.column("end_ns")[rows])
            fresh = closed - np.maximum(opened, np.append(opened[0], closed[:-1]))
            covered = fresh / np.maximum(np.diff(opened, append=closed[-1]), 1)
            own = [*self.column("thread")[rows], *self.column("end_thread")[rows]]
            near = (process == self.column("process")[rows[0]]) & ~np.isin(threads, own)
            for thread in threads[near].tolist():
                issue = self.issue[self.computes & (self.thread == thread)]
                issue = issue[(issue >= opened[0]) & (issue < closed[-1])]
                place = np.searchsorted(opened, issue, side="right") - 1
                by_chance = covered[np.unique(place)].prod()
                if by_chance < _BY_CHANCE and (issue < closed[place]).all():
                    out.append((thread, rows))
        return out

    @cached_property
    def without_rows(self) -> np.ndarray:
        """Intervals in which their thread launched more kernels and graphs than the trace has rows
        of (they were dropped, calls failed, a graph was captured): what they did is not known.
        Copies of nothing have no row, and do not count."""
        calls, codes = self.trace.calls, [CALL["launch"], CALL["graph_launch"]]
        made = calls["kind"].isin(codes) & self.trace.outermost
        begun, thread = (calls[c].to_numpy()[made] for c in ("start_ns", "thread"))
        launched, owner = np.zeros(len(self.intervals), np.int64), self.column("thread")
        own = [(number, np.flatnonzero(owner == number)) for number in np.unique(owner).tolist()]
        for number, rows in [*own, *self._helpers]:
            times = np.sort(begun[thread == number])
            opened, closed = (self.column(c)[rows] for c in ("open_ns", "close_ns"))
            launched[rows] += np.searchsorted(times, closed) - np.searchsorted(times, opened)
        return launched > self.did["kernels"].to_numpy()

    @cached_property
    def did(self) -> pd.DataFrame:
        """Per interval, of what it issued: `count`, `kernels` (graphs included), `bytes` that were
        copied or set, `names` (a digest of which, and how often each)."""
        operation, size = self.issued.operation, self.trace.operations["bytes"].to_numpy()
        values = {
            "count": 1,
            "kernels": self.computes[operation],
            "bytes": size[operation],
            "names": self.digest[self.code[operation]],
        }
        many = len(self.intervals)
        return pd.DataFrame({name: self.issued.sums(many, of) for name, of in values.items()})

    def doubt(
        self, check: str, level: str, rows: np.ndarray, shown: np.ndarray, title: str, *,
        quoted: int | None = None, **more: Any,
    ) -> Doubt:  # fmt: skip
        """A doubt about a label, whose intervals are `rows`, those at `shown` in particular, with
        the numbers of one of them, by default of their typical one."""
        row = self.intervals.iloc[self.typical(shown) if quoted is None else quoted]
        names, label = tuple(self.column("name")[shown].tolist()), str(row["label"])
        return Doubt(
            check, level, label, str(row["site"]), f"{subject(label)} {title}", names, len(rows),
            str(row["name"]), int(row["elapsed_ns"]), **more,
        )  # fmt: skip

    def typical(self, rows: np.ndarray) -> int:
        """Of these intervals the one with the lower-median measured time."""
        order = np.argsort(self.column("elapsed_ns")[rows], kind="stable")
        return int(rows[order[(len(rows) - 1) // 2]])

    def labels(self) -> Iterator[tuple[str, np.ndarray]]:
        """(label, positions of its intervals in the order of their issue), of pairs of events."""
        ordered = self.intervals.sort_values("open_ns", kind="stable")
        for label, rows in ordered.groupby("label", sort=False):
            yield str(label), rows.index.to_numpy()
