"""A trace as the checks look at it: the timed intervals, and what each of them issued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.explain import words
from nsysalign.intervals import ragged
from nsysalign.model import CALL, KIND, Alignment, EventLog, Trace
from nsysalign.probe.tampering import PERSISTING
from nsysalign.split.labels import name_intervals
from nsysalign.split.work import operation_codes
from nsysalign.trace.gpus import Limits

#: Pairs of an interval and an operation that are looked at, at most.
MOST_PAIRS = 20_000_000
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
    evidence: Mapping[str, Any] = field(default_factory=dict)
    bound: str = ""  # "at least " where `right_ns` is one

    @property
    def worth_ns(self) -> int | None:
        """How far the quoted interval is off."""
        if self.measured_ns is None or self.right_ns is None:
            return None
        return self.right_ns - self.measured_ns

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "worth_ns": self.worth_ns, "evidence": dict(self.evidence)}


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


@dataclass(frozen=True)
class Scene:
    """`intervals`: frames.WINDOWS of kind event that the log says were compared, with `name` and
    `label`."""

    trace: Trace
    log: EventLog | None
    alignment: Alignment
    intervals: pd.DataFrame
    limits: dict[int, Limits]

    def column(self, name: str) -> np.ndarray:
        """Of the intervals."""
        return self.intervals[name].to_numpy()

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
    def _spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(operations by process and issue; per interval the first of them that was issued in it,
        and how many)."""
        process = self.trace.operations["process"].to_numpy()
        ops = np.lexsort((self.issue, process))
        opened, closed, own = (self.column(c) for c in ("open_ns", "close_ns", "process"))
        first, last = np.zeros(len(own), np.int64), np.zeros(len(own), np.int64)
        for number in np.unique(own).tolist():
            begin, end = np.searchsorted(process[ops], [number, number + 1])
            issue, mine = self.issue[ops[begin:end]], own == number
            first[mine] = begin + np.searchsorted(issue, opened[mine])
            last[mine] = begin + np.searchsorted(issue, closed[mine])
        return ops, first, np.maximum(last - first, 0)

    @cached_property
    def looked_at(self) -> np.ndarray:
        """Which intervals are looked at: those with the fewest operations, up to MOST_PAIRS
        together."""
        count = self._spans[2]
        order = np.argsort(count, kind="stable")
        out = np.zeros(len(count), bool)
        out[order[np.cumsum(count[order]) <= MOST_PAIRS]] = True
        return out

    @cached_property
    def issued(self) -> Issued:
        """What was issued between the two records of each interval."""
        ops, first, count = self._spans
        interval, place = ragged(first, np.where(self.looked_at, count, 0))
        operation = ops[place]
        ours = self.lane[operation] == self.column("end_lane")[interval]
        for side in ("thread", "end_thread"):
            ours |= self.thread[operation] == self.column(side)[interval]
        for thread, at in self._helpers:
            ours |= (self.thread[operation] == thread) & np.isin(interval, at)
        return Issued(interval, operation).where(ours)

    @cached_property
    def _helpers(self) -> list[tuple[int, np.ndarray]]:
        """(thread, intervals of a label) of threads that launch inside these intervals only, never
        between them, although so much of the time from one to the next lies between them that this
        is no coincidence: a pool's worker that the timed call waits for.

        A thread that works beside launches between them as well.
        """
        computes = (self.kind == KIND["kernel"]) | (self.kind == KIND["graph"])
        threads, first = np.unique(self.thread[computes & (self.issue >= 0)], return_index=True)
        ran_by = self.trace.operations["process"].to_numpy()[computes & (self.issue >= 0)][first]
        process_of = dict(zip(threads.tolist(), ran_by.tolist(), strict=True))
        launched = {t: np.sort(self.issue[computes & (self.thread == t)]) for t in process_of}
        begun, ended = self.column("open_ns"), self.column("close_ns")
        out = []
        for _, at in self.labels() if len(threads) > 1 else ():
            opened, closed = begun[at], np.maximum.accumulate(ended[at])
            fresh = closed - np.maximum(opened, np.append(opened[0], closed[:-1]))
            covered = fresh / np.maximum(np.diff(opened, append=closed[-1]), 1)
            own = {*self.column("thread")[at], *self.column("end_thread")[at]}
            near = {t for t, of in process_of.items() if of == self.column("process")[at[0]]}
            for thread in near - own:
                low, high = np.searchsorted(launched[thread], [opened[0], closed[-1]])
                issue = launched[thread][low:high]
                place = np.searchsorted(opened, issue, side="right") - 1
                by_chance = covered[np.unique(place)].prod()
                if by_chance < _BY_CHANCE and (issue < closed[place]).all():
                    out.append((thread, at))
        return out

    @cached_property
    def without_rows(self) -> np.ndarray:
        """Intervals in which their thread launched more kernels and graphs than the trace has rows
        of (they were dropped, calls failed, a graph was captured): what they did is not known.
        Copies of nothing have no row, and do not count."""
        calls, codes = self.trace.calls, [CALL["launch"], CALL["graph_launch"]]
        made = calls["kind"].isin(codes) & (calls["outer"] == np.arange(len(calls)))
        begun, thread = (calls[c].to_numpy()[made] for c in ("start_ns", "thread"))
        launched, owner = np.zeros(len(self.intervals), np.int64), self.column("thread")
        own = [(number, np.flatnonzero(owner == number)) for number in np.unique(owner).tolist()]
        for number, mine in [*own, *self._helpers]:
            times = np.sort(begun[thread == number])
            opened, closed = (self.column(c)[mine] for c in ("open_ns", "close_ns"))
            launched[mine] += np.searchsorted(times, closed) - np.searchsorted(times, opened)
        return launched > self.did["kernels"].to_numpy()

    @cached_property
    def digest(self) -> np.ndarray:
        """A random number per code: sums of them are equal where the same names occur equally
        often."""
        return np.random.default_rng(0).integers(1 << 62, size=int(self.code.max(initial=0)) + 1)

    @cached_property
    def did(self) -> pd.DataFrame:
        """Per interval, of what it issued: `count`, `kernels` (graphs included), `bytes` that were
        copied or set, `names` (a digest of which, and how often each)."""
        issued, n = self.issued, len(self.intervals)
        kind = self.kind[issued.operation]
        computes = (kind == KIND["kernel"]) | (kind == KIND["graph"])
        moved = self.trace.operations["bytes"].to_numpy()[issued.operation]
        return pd.DataFrame(
            {
                "count": issued.sums(n),
                "kernels": issued.sums(n, computes),
                "bytes": issued.sums(n, moved),
                "names": issued.sums(n, self.digest[self.code[issued.operation]]),
            }
        )

    def blocks(self, which: np.ndarray) -> np.ndarray:
        """Blocks of the grids of the kernels that these intervals issued, 0 if the trace does not
        say."""
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
        """A doubt about a label of `of` intervals, those at `shown` in particular, with the numbers
        of one of them."""
        row, names = self.intervals.iloc[quoted], self.column("name")[shown].tolist()
        return Doubt(
            check, level, label, str(row["site"]), f"{words.subject(label)} {title}", tuple(names), of,
            str(row["name"]), int(row["elapsed_ns"]), **more,
        )  # fmt: skip

    @property
    def persisting(self) -> int:
        """Bytes that the access policy of a stream keeps in the L2, 0 for none."""
        notes = self.log.notes if self.log is not None else ()
        found = (note.removeprefix(PERSISTING) for note in notes if note.startswith(PERSISTING))
        return max((int(size) for size in found if size.isdigit()), default=0)

    def typical(self, at: np.ndarray) -> int:
        """Of these intervals the one with the lower-median measured time."""
        order = np.argsort(self.column("elapsed_ns")[at], kind="stable")
        return int(at[order[(len(at) - 1) // 2]])

    def labels(self) -> Iterator[tuple[str, np.ndarray]]:
        """(label, positions of its intervals in the order of their issue), of pairs of events."""
        v = self.intervals[self.looked_at].sort_values("open_ns", kind="stable")
        for label, rows in v.groupby("label", sort=False):
            yield str(label), rows.index.to_numpy()


def build(
    trace: Trace, log: EventLog | None, alignment: Alignment, limits: dict[int, Limits]
) -> Scene:
    """The scene.  Pairs that only the trace shows are left out: nobody says what they are to
    measure."""
    w = alignment.windows
    names, labels = name_intervals(w)
    w = w.assign(name=names, label=labels)
    told = (w["kind"] == "event") & (w["method"] != "inferred")
    return Scene(trace, log, alignment, w[told].reset_index(drop=True), limits)
