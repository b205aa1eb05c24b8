"""Which records of a trace without an event log were probably compared: a start with its end.

nsys does not record cudaEventElapsedTime, so nothing says which records the program compared.  Three things hint at it:

    host      s1 s2  launch  e2 e1  cudaDeviceSynchronize       a wait follows: e2 and e1 close the open starts, last in, first out
    host      s1  launch  e1 s2  launch  e2  synchronise        two records without work between them: one closes, one opens
    host      r  cudaStreamWaitEvent(r)                         the event orders streams: it times nothing

A pair never joins two records of the same event, and always spans some work of the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from nsysalign.model import CALL, ORIGIN, SYNC_CALLS, UNSURE, Trace, tid_of
from nsysalign.place.projected_ranges import nvtx_windows
from nsysalign.windows import windows_frame

#: The first relevant call after a record on its thread: none of these, a wait, a query, the destruction of the event.
_NOTHING, _WAITED, _ASKED, _DESTROYED = range(4)
_WAITS = tuple(CALL[k] for k in SYNC_CALLS)
_UNNAMED = "are on a stream that the trace does not name"


@dataclass(frozen=True)
class Mark:
    """One record: its event's number (-1 unknown), whether its thread issued work to the stream since the record before it,
    whether a stream waits for it, and what follows it."""

    event: int = -1
    after_work: bool = True
    awaited: bool = False
    followed: int = _NOTHING


@dataclass
class Pairs:
    """Positions of starts and ends, which pairs are unsure, and how many records belong to no pair, by reason."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    unsure: list[bool] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    def add(self, start: int, end: int, unsure: bool) -> None:
        self.start.append(start)
        self.end.append(end)
        self.unsure.append(unsure)

    def leave(self, reason: str, count: int = 1) -> None:
        if count:
            self.left[reason] = self.left.get(reason, 0) + count


def pair(marks: Sequence[Mark]) -> Pairs:
    """Pairs among the records of one thread on one stream, in the order of their calls."""
    out = Pairs()
    timing = [n for n, m in enumerate(marks) if not m.awaited and m.followed != _DESTROYED]
    out.leave("order streams or are destroyed without being read", len(marks) - len(timing))
    open_: list[int] = []
    for cluster in _clusters(marks, timing):
        last = marks[cluster[-1]].followed
        # between two pieces of work a single record is a start, an end or a lap: what comes later decides
        ends = len(cluster) if last != _NOTHING else len(cluster) // 2
        for k, number in enumerate(cluster):
            _forget(marks, open_, number, out)
            if k < ends and open_:
                out.add(open_.pop(), number, last == _ASKED)
            elif k >= ends or last == _NOTHING:
                open_.append(number)
            else:
                out.leave("are waited for, with nothing open before them")
    _two_by_two(open_, out)
    order = sorted(range(len(out.start)), key=out.start.__getitem__)
    start, end = ([column[n] for n in order] for column in (out.start, out.end))
    return Pairs(start, end, [out.unsure[n] for n in order], out.left)


def _two_by_two(open_: Sequence[int], out: Pairs) -> None:
    """Records that no wait closed, paired in order."""
    for start, end in zip(open_[::2], open_[1::2], strict=False):
        out.add(start, end, True)
    out.leave("are never followed by an end", len(open_) % 2)


def _clusters(marks: Sequence[Mark], which: Sequence[int]) -> list[list[int]]:
    """Records with no work between them, cut where the host waits."""
    out: list[list[int]] = []
    work = True
    for before, number in zip([-1, *which], which, strict=False):
        # a record left out between the two may have had work before it
        work = before < 0 or any(m.after_work for m in marks[before + 1 : number + 1])
        if work or marks[before].followed != _NOTHING:
            out.append([])
        out[-1].append(number)
    return out


def _forget(marks: Sequence[Mark], open_: list[int], number: int, out: Pairs) -> None:
    """Recording an event again replaces its earlier record, and starts opened since then get no end."""
    event = marks[number].event
    at = next((n for n, o in enumerate(open_) if event >= 0 and marks[o].event == event), None)
    if at is not None:
        _two_by_two(open_[at:], out)
        del open_[at:]


def record_pairs(
    trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame, waits: pd.DataFrame
) -> Pairs:
    """Pairs of all records whose stream is known: positions in `records`, thread by thread, stream by stream, by the call
    of their start."""
    out = Pairs()
    thread, lane, call, at, event = (
        records[c].to_numpy() for c in ("thread", "lane", "call", "call_start_ns", "event")
    )
    usable = np.flatnonzero((lane >= 0) & (call >= 0))
    out.leave("are on a stream that the trace does not name", len(records) - len(usable))
    followed = np.zeros(len(records), np.int64)
    followed[usable] = _what_follows(trace, call[usable])
    awaited = np.zeros(len(records), dtype=bool)
    awaited[waits.loc[waits["record"] >= 0, "record"].to_numpy()] = True
    issue = _issues(trace, operation_lane)
    which = usable[np.lexsort((at[usable], lane[usable], thread[usable]))]
    edges = np.flatnonzero((np.diff(thread[which]) != 0) | (np.diff(lane[which]) != 0)) + 1
    for mine in np.split(which, edges) if len(which) else ():
        issued = issue.get((int(thread[mine[0]]), int(lane[mine[0]])), np.empty(0, np.int64))
        after_work = np.diff(np.searchsorted(issued, at[mine]), prepend=-1) > 0
        found = pair(
            [
                Mark(int(event[n]), bool(w), bool(awaited[n]), int(followed[n]))
                for n, w in zip(mine.tolist(), after_work.tolist(), strict=True)
            ]
        )
        for start, end, unsure in zip(found.start, found.end, found.unsure, strict=True):
            out.add(int(mine[start]), int(mine[end]), unsure)
        for reason, count in found.left.items():
            out.leave(reason, count)
    return out


def _issues(trace: Trace, operation_lane: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """(thread, lane) -> when the thread issued operations to the lane, sorted."""
    call = trace.operations["call"].to_numpy()
    known = np.flatnonzero(call >= 0)
    at, thread = (trace.calls[c].to_numpy()[call[known]] for c in ("start_ns", "thread"))
    lane = operation_lane[known]
    order = np.lexsort((at, lane, thread))
    edges = np.flatnonzero((np.diff(thread[order]) != 0) | (np.diff(lane[order]) != 0)) + 1
    return {
        (int(thread[mine[0]]), int(lane[mine[0]])): at[mine]
        for mine in (np.split(order, edges) if len(order) else ())
    }


def _what_follows(trace: Trace, record_call: np.ndarray) -> np.ndarray:
    """Per record, given by its call: what its thread's next outermost call that records no event means to it."""
    calls = trace.calls
    kind, names, thread = (calls[c].to_numpy() for c in ("kind", "name_id", "thread"))
    meaning = np.full(len(kind), _NOTHING, np.int8)
    meaning[np.isin(kind, _WAITS)] = _WAITED
    meaning[kind == CALL["query_event"]] = _ASKED
    for number in np.unique(names[kind == CALL["other"]]).tolist():
        text = trace.names.get(int(number), "")
        if "EventDestroy" in text or "EventElapsedTime" in text:
            meaning[names == number] = _DESTROYED if "Destroy" in text else _WAITED
    other = (calls["outer"].to_numpy() == np.arange(len(calls))) & (kind != CALL["record"])
    out = np.full(len(record_call), _NOTHING, np.int64)
    for number in np.unique(thread[record_call]).tolist():
        here = np.flatnonzero(thread[record_call] == number)
        others = np.flatnonzero((thread == number) & other)
        k = np.searchsorted(others, record_call[here], side="right")
        inside = k < len(others)
        out[here[inside]] = meaning[others[k[inside]]]
    return out


def windows_without_log(
    trace: Trace,
    operation_lane: np.ndarray,
    lanes: pd.DataFrame,
    records: pd.DataFrame,
    waits: pd.DataFrame,
    spread: np.ndarray,
) -> tuple[list[pd.DataFrame], list[str]]:
    """(windows, notes) of a trace without an event log: pairs of records, then NVTX ranges, then the unsure pairs.

    `records`: with lane, thread, t_ns and bounds; `waits`: with the record that each waits for; `spread`: the places'
    half-widths.
    """
    pairs = record_pairs(trace, operation_lane, records, waits)
    start, end = np.array(pairs.start, np.int64), np.array(pairs.end, np.int64)
    unsure = np.array(pairs.unsure, dtype=bool)
    found = inferred_windows(records, start, end, unsure, spread)
    ranges = nvtx_windows(trace, operation_lane, lanes)
    windows = [found[~unsure].reset_index(drop=True), ranges, found[unsure].reset_index(drop=True)]
    return windows, pairing_notes(pairs)


def pairing_notes(pairs: Pairs) -> list[str]:
    """Notes: what was paired, on what grounds, and what was left over."""
    count, unsure, left = len(pairs.start), sum(pairs.unsure), sum(pairs.left.values())
    if not count and not left:
        return []
    if not count:
        return [f"no interval is inferred from {left:,} records in the trace: {_why_left(pairs)}"]
    doubt = f", {unsure:,} of them unsure (listed last, without findings)" if unsure else ""
    why = _why_left(pairs)
    rest = (
        f"; {left:,} {'record belongs' if left == 1 else 'records belong'} to no pair ({why})"
        if left
        else ""
    )
    return [
        f"{count:,} {'interval is' if count == 1 else 'intervals are'} inferred from records in the trace, by their order, "
        f"their events and the waits after them{doubt}: it is not known whether the program compared them{rest}"
    ]


def _why_left(pairs: Pairs) -> str:
    return "; ".join(f"{n:,} {reason}" for reason, n in pairs.left.items())


def inferred_windows(
    records: pd.DataFrame,
    start: np.ndarray,
    end: np.ndarray,
    unsure: np.ndarray,
    spread: np.ndarray,
) -> pd.DataFrame:
    """Pairs of records, given by their positions, as intervals whose length is itself an estimate."""
    t = _in_order(records)

    def of(column: str, index: np.ndarray) -> np.ndarray:
        return records[column].to_numpy()[index]

    room = np.maximum(t - records["lower_ns"].to_numpy(), records["upper_ns"].to_numpy() - t)
    error = np.minimum(spread, np.maximum(room, 1)).astype(np.int64)
    error = np.maximum(error[start], error[end])
    out = windows_frame(
        len(start),
        {
            "kind": "event",
            "process": of("process", start),
            "thread": of("thread", start),
            "end_thread": of("thread", end),
            "start": start,
            "end": end,
            "start_lane": of("lane", start),
            "end_lane": of("lane", end),
            "open_ns": of("call_start_ns", start),
            "close_ns": of("call_start_ns", end),
            "close_end_ns": of("call_end_ns", end),
            "elapsed_ns": t[end] - t[start],
            "start_ns": t[start],
            "end_ns": t[end],
            "start_lower_ns": np.minimum(of("lower_ns", start), t[start]),
            "start_upper_ns": np.maximum(np.minimum(of("upper_ns", start), t[end]), t[start]),
            "error_ns": error,
            "method": "inferred",
            "origin": ORIGIN["records"],
            "region": [
                f"records of thread {tid_of(x)}{' (unsure)' if u else ''}"
                for x, u in zip(of("thread", start).tolist(), unsure.tolist(), strict=True)
            ],
        },
    )
    out["remarks"] = pd.Series(
        [(UNSURE,) if u else () for u in unsure.tolist()], dtype=object, index=out.index
    )
    return out


def _in_order(records: pd.DataFrame) -> np.ndarray:
    """Places of records, none before that of a record made earlier on its stream: between the same two operations a single
    record's place is vague, but the order of the records is known."""
    t, lane, at = (records[c].to_numpy() for c in ("t_ns", "lane", "call_start_ns"))
    out = t.copy()
    for number in np.unique(lane[lane >= 0]).tolist():
        mine = np.flatnonzero((lane == number) & (t > 0))
        mine = mine[np.argsort(at[mine], kind="stable")]
        out[mine] = np.maximum.accumulate(t[mine])
    return out
