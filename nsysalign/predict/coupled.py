"""How soon a rank would have met the others without nsys, as a function of when they let it go on.

In a collective a rank waits for the last one to arrive, so no rank's trace says alone how long it takes without nsys.  What
it does say is a system of minima: everything comes earlier by what the host has saved, but by no more than what it is ordered
behind comes earlier, plus the slack between the two.

    shift of an arrival = min(saved by the host, shift of an earlier collective's end + slack, ...)

This is the replay of `replay` with the ends of collectives left open.  Where the ranks come together (ranks.predicted) they
are filled in: a collective ends when the last rank has arrived, plus what it took from there.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.model import UNBOUNDED_NS, Alignment, Arrivals, Coupling, Trace
from nsysalign.parts import matrices
from nsysalign.predict.host_speed import HostSpeed
from nsysalign.predict.replay import LONGEST_RETURN_NS, NOTHING, Call, Item
from nsysalign.predict.scene import HELD_NS, RECORD_LATENCY_NS, Scene
from nsysalign.predict.unprofiled import Predictor, predict_intervals
from nsysalign.split.overhead import AFTER_ERROR, FITTED, INSIDE_ERROR, Costs
from nsysalign.split.segment_source import SegmentSource

#: Repetitions per label, evenly spread; fewer if they are long or have many collectives.
MOST_PER_LABEL, LEAST_PER_LABEL, CALLS_PER_LABEL, PAIRS_PER_LABEL = 8, 3, 30_000, 40_000
#: Intervals with more collectives than this are not replayed: every operation would be ordered behind every one of them.
MOST_COLLECTIVES = 400
#: No such shift.
FAR = np.int64(UNBOUNDED_NS)
#: How much of the cost inside calls, and after them, is taken away: as estimated, less inside, less after (see Predictor.predict).
_VARIANTS = ((1.0, 1.0), (1 - INSIDE_ERROR, 1.0), (1.0, 1 - AFTER_ERROR))


def couplings(
    source: SegmentSource,
    intervals: pd.DataFrame,
    parts: pd.DataFrame,
    collectives: pd.DataFrame,
    host: HostSpeed,
) -> tuple[Coupling, ...]:
    """Some repetitions of every label of every process, the same ones on all ranks that measured equally many.

    `intervals`: frames.INTERVALS without runs, numbered by their rows; `collectives`: frames.COLLECTIVES of the trace, to whose
    positions the couplings refer.
    """
    chosen = _chosen(intervals, collectives, source)
    if not len(chosen):
        return ()
    wanted = np.sort(chosen["interval"].to_numpy())
    unprofiled, _ = predict_intervals(source, wanted, intervals, parts, host)
    alone = unprofiled.set_index("interval")
    shown, trace, alignment = source.around(wanted)
    windows = dict(zip(shown.tolist(), alignment.windows.itertuples(index=False), strict=True))
    some = intervals.iloc[wanted]
    (matrix,) = matrices(some, parts, ["ns"])
    keys = zip(*(collectives[c].tolist() for c in ("process", "start_ns", "end_ns")), strict=True)
    rows = {key: row for row, key in enumerate(keys)}
    replays = _Replays(trace, alignment, rows, FITTED.times(host.added))
    found = []
    for at, interval in enumerate(some.itertuples(index=False)):
        own = alone.loc[interval.interval]
        ns = [
            -1 if own["reason"] else int(own[c]) for c in ("predicted_ns", "lower_ns", "upper_ns")
        ]
        replayed = _NOT if own["reason"] else replays.of(windows[interval.interval])
        found.append(
            Coupling(
                label=str(interval.label),
                pid=int(interval.pid),
                repetition=int(chosen["repetition"].loc[interval.interval]),
                start_ns=int(interval.start_ns),
                end_ns=int(interval.end_ns),
                begin_ns=int(interval.start_ns) if replayed.begin_ns is None else replayed.begin_ns,
                parts_ns=matrix[at],
                meets=replayed.meets,
                alone_ns=(ns[0], ns[1], ns[2]),
                reason=str(own["reason"]) or replayed.reason,
                rows=replayed.rows,
                arrivals=replayed.arrivals,
            )
        )
    return tuple(found)


class _Replayed(NamedTuple):
    """One interval's replay, as a Coupling has it.  `begin_ns`: None if nothing was issued."""

    begin_ns: int | None
    rows: np.ndarray
    meets: str
    arrivals: tuple[Arrivals, ...]
    reason: str = ""


_NOT = _Replayed(None, np.empty(0, np.int64), "queued", ())


class _Replays:
    """Replays of a trace's intervals.  `rows`: (process, start, end) of a collective -> its position."""

    def __init__(
        self,
        trace: Trace,
        alignment: Alignment,
        rows: Mapping[tuple[int, int, int], int],
        costs: Costs,
    ) -> None:
        self._trace, self._alignment, self._rows, self._costs = trace, alignment, rows, costs
        self._predictor: Predictor | None = None

    def of(self, window) -> _Replayed:
        """`window`: one row of alignment.windows (a named tuple)."""
        self._predictor = self._predictor or Predictor(self._trace, self._alignment, self._costs)
        scene = self._predictor.scenes.of(window)
        if not len(scene.calls):
            return _NOT
        begin = int(self._predictor.scenes.start[scene.calls[0]])
        known = [
            self._rows.get((int(window.process), i.start, i.end)) if i.call >= 0 else None
            for i in scene.items
        ]
        items = [at for at, row in enumerate(known) if row is not None]
        if not items:
            return _NOT._replace(begin_ns=begin)
        if len(items) > MOST_COLLECTIVES:
            return _NOT._replace(
                reason=f"more than {MOST_COLLECTIVES} collectives: too many to replay"
            )
        rows = np.array([known[at] for at in items], dtype=np.int64)
        own = {scene.items[at].lane for at in items} == {int(window.end_lane)}
        arrivals = tuple(_arrivals(self._predictor, scene, items, *shares) for shares in _VARIANTS)
        return _Replayed(begin, rows, "kernel" if own else "queued", arrivals)


def _chosen(
    intervals: pd.DataFrame, collectives: pd.DataFrame, source: SegmentSource
) -> pd.DataFrame:
    """Columns interval (also the index), repetition: which intervals are replayed, and the how-manieth of its label and process each
    is."""
    ordered = intervals.sort_values(["start_ns", "interval"])
    ordered = ordered.assign(repetition=ordered.groupby(["label", "pid"], sort=False).cumcount())
    begun = np.sort(collectives["start_ns"].to_numpy())
    out = []
    for _, mine in ordered.groupby(["label", "pid"], sort=False):
        middle = mine.iloc[[len(mine) // 2]]
        calls = max(int(source.calls(middle["interval"].to_numpy())[0]), 1)
        edges = np.searchsorted(begun, [middle["start_ns"].iloc[0], middle["end_ns"].iloc[0]])
        pairs = max(int(edges[1] - edges[0]), 1) ** 2
        most = min(CALLS_PER_LABEL // calls, PAIRS_PER_LABEL // pairs)
        # of all ranks the same, though they make a few calls more or less
        most = int(np.clip(1 << max(most, 1).bit_length() - 1, LEAST_PER_LABEL, MOST_PER_LABEL))
        every = -(-len(mine) // most)
        out.append(mine.iloc[every // 2 :: every][["interval", "repetition"]])
    table = (
        pd.concat(out) if out else pd.DataFrame({"interval": [], "repetition": []}, dtype=np.int64)
    )
    return table.set_index("interval", drop=False)


def _arrivals(
    predictor: Predictor, scene: Scene, collectives: Sequence[int], inside: float, after: float
) -> Arrivals:
    """With these shares of the estimated cost taken away.  `collectives`: which items they are."""
    calls, items = predictor.without(scene, inside, after)
    for at in {scene.start, scene.end} - {-1}:
        items[at] = _held(items, at, calls)
    found, ends, host = replay_open(calls, items, collectives)
    length = np.array([items[at].end - items[at].start for at in collectives], dtype=np.int64)
    first, last = ends[scene.start], ends[scene.end]
    if scene.start < 0:  # the host's own: its begin stays where it was
        first, last = np.zeros_like(host), host
    return _sparse(np.vstack([found, first, last]), length)


def _held(items: Sequence[Item], at: int, calls: Sequence[Call]) -> Item:
    """A record that came much later than records usually do waited for another stream: for what ended just before, which often is
    a collective."""
    item, before = items[at], items[at - 1] if at else None
    ready = calls[item.call].end
    if before is not None and before.lane == item.lane:
        ready = max(ready, before.end)
    if item.behind != NOTHING or item.start - ready < HELD_NS:
        return item
    rivals = [i for i, o in enumerate(items) if o.lane != item.lane and ready < o.end <= item.start]
    if not rivals:
        return item
    own = calls[item.call].end - calls[item.call].start
    return item._replace(
        behind=max(rivals, key=lambda i: items[i].end),
        latency=min(item.latency, own + RECORD_LATENCY_NS),
        gap=min(item.gap, RECORD_LATENCY_NS),
    )


def replay_open(
    calls: Sequence[Call], items: Sequence[Item], collectives: Sequence[int]
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """(arrivals, ends of all items, the host after the last call), as rows of minima: column 0 holds the shift that the rank has
    by itself, column 1 + k the slack (FAR: none) behind the end of collective k.

    The same as `replay`, whose shifts are minima of other shifts plus what is known.
    """
    playing = _Playing(calls, items, collectives)
    for n, call in enumerate(calls):
        shift = playing.host[n]
        if call.waits:
            playing.place(n, call.end)
            shift = playing.waited(n)
        playing.host.append(shift + (call.inside + call.after))
    playing.place(len(calls), int(FAR) ** 2)
    return playing.found, playing.shifts, playing.host[-1]


class _Playing:
    """A replay under way.  `host[n]`: the shift of the host before call n."""

    def __init__(
        self, calls: Sequence[Call], items: Sequence[Item], collectives: Sequence[int]
    ) -> None:
        self.calls, self.items = calls, items
        self.number = {at: k for k, at in enumerate(collectives)}
        self.width = 1 + len(collectives)
        self.shifts: list[np.ndarray] = [np.empty(0, np.int64)] * len(
            items
        )  # empty until it is placed
        self.found = np.full((len(collectives), self.width), FAR)
        self.host = [self._by_itself(0)]
        self._waiting = sorted(range(len(items)), key=lambda at: (items[at].start, items[at].end))
        self._ended: list[tuple[int, int]] = []  # (end, item) of what has been placed, sorted
        self._lanes: dict[int, tuple[int, np.ndarray]] = {}

    def _by_itself(self, shift: int) -> np.ndarray:
        row = np.full(self.width, FAR)
        row[0] = shift
        return row

    def place(self, issued: int, until: int) -> None:
        """Every operation that the calls before number `issued`, and it, have issued, and that began by then, in the order in which
        they ran: one may be held up by another that was issued later."""
        left = []
        for n, at in enumerate(self._waiting):
            if self.items[at].start > until:
                left += self._waiting[n:]
                break
            if self.items[at].call > issued:
                left.append(at)
            else:
                self._place(at)
        self._waiting = left

    def _place(self, at: int) -> None:
        item = self.items[at]
        shift = self._arrival(item) + item.trim
        if at in self.number:
            self.found[self.number[at]] = shift
            shift = np.full(self.width, FAR)
            shift[1 + self.number[at]] = 0
        self.shifts[at] = shift
        insort(self._ended, (item.end, at))
        if item.lane in self._lanes:  # whatever ends last in it
            end, before = self._lanes[item.lane]
            shift = np.minimum(shift, before + max(item.end - end, 0))
        self._lanes[item.lane] = item.end, shift

    def _arrival(self, item: Item) -> np.ndarray:
        """How much earlier an operation begins: no more than its call, its predecessor, and what it was queued behind."""
        if item.call < 0:
            return self._by_itself(0)
        call = self.calls[item.call]
        shift = self.host[item.call] + max(
            item.start - call.start - max(item.latency - call.inside, 0), 0
        )
        if item.lane in self._lanes:
            end, before = self._lanes[item.lane]
            shift = np.minimum(shift, before + max(item.start - end - item.gap, 0))
        if item.behind >= 0 and len(self.shifts[item.behind]):
            return np.minimum(shift, self.shifts[item.behind])
        return shift if item.behind == NOTHING else self._by_itself(0)

    def waited(self, n: int) -> np.ndarray:
        """The host's shift when call n, which waits for the GPU, returns, without the call's own cost."""
        call, host = self.calls[n], self.host[n]
        last = bisect_right(self._ended, (call.end, len(self.items))) - 1
        if last < 0:
            return host
        end, at = self._ended[last]
        shift = self.shifts[at]
        if end > max(call.start, call.end - LONGEST_RETURN_NS):
            return np.minimum(host + (end - call.start), shift)
        return np.minimum(host, shift + max(call.end - end - call.back, 0))


def _sparse(rows: np.ndarray, length: np.ndarray) -> Arrivals:
    """Without what can never be the least: a slack of more than the rank's own shift, and one that a later collective of the same
    rank, which waits no longer than it takes, undercuts."""
    own, slack = rows[:, 0], rows[:, 1:].copy()
    slack[slack >= own[:, None]] = FAR
    count = len(length)
    for row in slack:
        through = np.flatnonzero(row < FAR)
        if len(through) > 1:
            by_way = (row[through] + length[through])[:, None] + slack[:count][through]
            row[by_way.min(axis=0) <= row] = FAR
    at, behind = np.nonzero(slack < FAR)
    return Arrivals(
        own=np.minimum(own, FAR),
        at=at.astype(np.int32),
        behind=behind.astype(np.int32),
        slack=slack[at, behind],
    )
