"""Sums per window without its pieces: what `stream.stream_pieces` would add up to, for any number of windows.

Edges are explained window by window (`stream.edge_pieces`), interiors once for all (`interior.py`).  Windows for which the
error bar is wanted occur several times, at several places; details are kept for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.effort import threads as cores
from nsysalign.effort import trim_memory
from nsysalign.model import CAUSES, KIND, Alignment
from nsysalign.split.busy import Blocks
from nsysalign.split.gaps import NEVER, Explainer
from nsysalign.split.groups import Groups
from nsysalign.split.interior import Interior
from nsysalign.split.pieces import Pieces, sums
from nsysalign.split.run_windows import extent, is_part
from nsysalign.split.stream import Span, StreamWindows, edge_pieces, span_of, stream_pieces
from nsysalign.split.threads import Threads
from nsysalign.tiles import ragged

#: Blocks at once: their columns stay in the processor's cache, and two batches fit into memory next to a long trace.
_CHUNK = 1 << 14
_WINDOWS_AT_ONCE = 1 << 12
#: Calls of their threads in host windows at once.
_CALLS_AT_ONCE = 1 << 16


def stream_sums(
    explainer: Explainer, places: Sequence[StreamWindows], groups: Groups, numbers: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """(nanoseconds per window and cause at each place; operations executing in each window at the first place; about
    how many pieces each window has there).  Adds the pieces of the first place to `groups`, in which the windows have these
    `numbers`."""
    count = len(places[0].start)
    totals = [np.zeros((count, len(CAUSES)), np.int64) for _ in places]
    operations, size = np.zeros(count, np.int64), np.ones(count, np.int64)
    lanes = places[0].lane
    for lane in np.unique(lanes):
        there = [np.flatnonzero((lanes == lane) & (w.end > w.start)) for w in places]
        if not any(map(len, there)):
            continue
        blocks = explainer.streams.blocks(int(lane))
        latest = _latest_issue(explainer, blocks)
        spans: list[tuple[np.ndarray, Span]] = []
        for number, (w, mine) in enumerate(zip(places, there, strict=True)):
            span = span_of(blocks, w.start[mine], w.end[mine])
            late = _issued_late(w.close_ns[mine], span, latest)
            plain, span = mine[~late], Span(span.first[~late], span.last[~late])
            spans.append((plain, span))
            if number == 0:
                operations[plain] = _distinct(blocks, span)
                size[plain] += 2 * np.maximum(span.last - span.first, 0)
            for pieces in _cut(explainer, w, int(lane), plain, span, mine[late]):
                totals[number] += sums(pieces, count)
                if number == 0:
                    groups.add(replace(pieces, window=numbers[pieces.window]))
                    _count(pieces, mine[late], operations, size)
        del latest  # 8 bytes per block
        trim_memory()
        _add_interiors(
            Interior(int(lane), blocks, explainer, groups), spans, totals, groups, numbers
        )
    return totals, operations, size


def _cut(explainer, w, lane, plain, span, late):
    """Pieces of the windows' edges, and all pieces of windows that need them."""
    for first in range(0, len(plain), _WINDOWS_AT_ONCE):
        s = slice(first, first + _WINDOWS_AT_ONCE)
        yield edge_pieces(explainer, w, lane, plain[s], Span(span.first[s], span.last[s]))
    if len(late):
        pieces = stream_pieces(explainer, w.take(late))
        yield replace(pieces, window=late[pieces.window])


def _latest_issue(explainer: Explainer, b: Blocks) -> np.ndarray:
    """Per block: the latest start of a call that issued an operation up to it."""
    call = explainer.call[b.operation]
    if not len(call) or not len(explainer.call_start):
        return np.full(len(call), NEVER)
    issue = explainer.call_start[call]
    issue[call < 0] = NEVER
    return np.maximum.accumulate(issue, out=issue)


def _issued_late(close: np.ndarray, span: Span, latest: np.ndarray) -> np.ndarray:
    """Windows in which an operation may run that was issued after the end record: these are explained one by one."""
    inner = span.last - span.first > 1
    return inner & (latest[np.where(inner, span.last - 1, 0)] >= close) if len(latest) else inner


def _distinct(b: Blocks, span: Span) -> np.ndarray:
    """Operations among the blocks that windows touch; one in several blocks counts once."""
    count = np.maximum(span.last - span.first, 0)
    if (b.operation[1:] > b.operation[:-1]).all():
        return count
    order = np.argsort(b.operation, kind="stable")
    sorted_ = b.operation[order]
    same = np.flatnonzero(sorted_[1:] == sorted_[:-1])
    if not len(same):
        return count
    again, before = order[same + 1], order[same]
    by_place = np.argsort(again)
    again, before = again[by_place], before[by_place]
    low, high = np.searchsorted(again, span.first), np.searchsorted(again, span.last)
    owner, at = ragged(low, np.maximum(high - low, 0))
    return count - np.bincount(owner[before[at] >= span.first[owner]], minlength=len(count))


def _count(pieces: Pieces, windows: np.ndarray, operations: np.ndarray, size: np.ndarray) -> None:
    """Operations and pieces of windows whose every piece is here."""
    if len(windows):
        ran = executing(pieces)[0]
        operations[windows] = np.bincount(ran, minlength=len(operations))[windows]
        size[windows] = np.bincount(pieces.window, minlength=len(size))[windows]


def executing(pieces: Pieces) -> np.ndarray:
    """(window, operation) of all that executes in each window, each once: int64 array (2, pairs)."""
    on = (pieces.ref_kind >= 1) & (pieces.ref_kind <= len(KIND)) & (pieces.detail == 0)
    on &= pieces.cause < len(KIND)  # kernel, graph, memcpy, memset come first among causes too
    return np.unique(np.stack([pieces.window[on], pieces.ref[on]]), axis=1)


def begun_before(explainer: Explainer, alignment: Alignment) -> np.ndarray:
    """Per window: of the operations that execute in its extent, those that execute in it before, in another slice."""
    windows, (start, end) = alignment.windows, extent(alignment)
    opened, lane = windows["start_ns"].to_numpy(), windows["end_lane"].to_numpy()
    out = np.zeros(len(windows), np.int64)
    continued = (
        is_part(alignment)
        & (windows["kind"] != "host").to_numpy()
        & (opened < start)
        & (start < end)
    )
    for number in np.unique(lane[continued]).tolist():
        which = np.flatnonzero(continued & (lane == number))
        blocks = explainer.streams.blocks(number)
        ends = ((opened, start), (start, end), (opened, end))
        before, here, both = (
            _distinct(blocks, span_of(blocks, a[which], b[which])) for a, b in ends
        )
        out[which] = before + here - both
    return out


def host_sums(
    threads: Threads,
    windows: pd.DataFrame,
    ends: tuple[np.ndarray, np.ndarray],
    which: np.ndarray,
    pieces: Callable[[np.ndarray, np.ndarray, np.ndarray], Pieces],
    groups: Groups,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of host windows, which lie at one place; 0 for others.  `pieces(window, start, end)`: in order."""
    count = len(windows)
    spent, size = np.zeros((count, len(CAUSES)), np.int64), np.zeros(count, np.int64)
    ran = [np.empty((2, 0), np.int64)]
    for lot in _lots(threads, windows, ends, which):
        cut = pieces(*lot)
        spent += sums(cut, count)
        ran.append(executing(cut))
        size += np.bincount(cut.window, minlength=count)
        groups.add(cut)
    each = np.unique(np.concatenate(ran, axis=1), axis=1)[0]
    return spent, np.bincount(each, minlength=count), size


def _lots(
    threads: Threads, windows: pd.DataFrame, ends: tuple[np.ndarray, np.ndarray], which: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(window, start, end) of host windows in batches of bounded size.  A window with more calls of its thread than that is cut
    where one of them begins: another piece begins there anyway."""
    thread, (start, end) = windows["thread"].to_numpy(), ends
    found = [(which[:0], start[:0], end[:0], start[:0])]
    for number in np.unique(thread[which]).tolist():
        mine, made = which[thread[which] == number], threads[number].start
        first, last = (np.searchsorted(made, t[mine]) for t in (start, end))
        owner, place = ragged(
            np.zeros(len(mine), np.int64), np.maximum(last - first, 1) // _CALLS_AT_ONCE + 1
        )
        at = first[owner] + place * _CALLS_AT_ONCE
        begin = np.where(
            place > 0, np.append(made, 0)[np.minimum(at, len(made))], start[mine[owner]]
        )
        same = np.append(owner[1:] == owner[:-1], False)
        over = np.where(same, np.append(begin[1:], 0), end[mine[owner]])
        found.append((mine[owner], begin, over, np.minimum(last[owner] - at, _CALLS_AT_ONCE)))
    window, begin, over, calls = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((begin, window))
    size = np.cumsum(calls[order] + _CALLS_AT_ONCE // _WINDOWS_AT_ONCE) // _CALLS_AT_ONCE
    for lot in np.split(order, np.flatnonzero(np.diff(size)) + 1) if len(order) else ():
        yield window[lot], begin[lot], over[lot]


def _add_interiors(
    interior: Interior,
    spans: Sequence[tuple[np.ndarray, Span]],
    totals: Sequence[np.ndarray],
    groups: Groups,
    numbers: np.ndarray,
) -> None:
    """To every window its inner gaps (first+1 .. last-1) and inner blocks (first+1 .. last-2)."""
    low = min((int(s.first.min()) + 1 for _, s in spans if len(s.first)), default=0)
    high = max((int(s.last.max()) for _, s in spans if len(s.last)), default=0)
    inner = [
        (which[keep], Span(s.first[keep] + 1, s.last[keep]))
        for which, s in spans
        for keep in [s.last - s.first > 1]
    ]
    jobs = []
    for begin in range(low, high, _CHUNK):
        stop = min(begin + _CHUNK, high)
        here = [np.flatnonzero((s.first < stop) & (s.last > begin)) for _, s in inner]
        if any(len(h) for h in here):
            a = min(int(s.first[h].min()) for (_, s), h in zip(inner, here, strict=True) if len(h))
            b = max(int(s.last[h].max()) for (_, s), h in zip(inner, here, strict=True) if len(h))
            jobs.append((max(begin, a), min(stop, b), here))
    interior.prepare()
    for chunk, here in _ahead(
        jobs, lambda job: (interior.chunk(job[0], job[1], with_lots=len(job[2][0]) > 0), job[2])
    ):
        for number, ((which, s), h) in enumerate(zip(inner, here, strict=True)):
            window, first, last = which[h], s.first[h], s.last[h]
            for running, until in ((chunk.gaps, last), (chunk.blocks, last - 1)):
                from_, to = (
                    np.clip(v, chunk.first, chunk.last) - chunk.first for v in (first, until)
                )
                totals[number][window] += (running[:, np.maximum(to, from_)] - running[:, from_]).T
            if number == 0:
                for index, lot in chunk.in_gaps:
                    groups.add_ranges(numbers[window], first, last, index, lot)
                for index, lot in chunk.in_blocks:
                    groups.add_ranges(numbers[window], first, last - 1, index, lot)


def _ahead(jobs: Sequence[Any], work: Callable[[Any], Any]) -> Iterator[Any]:
    """Results in order; another thread computes the next one while this one is used, because numpy releases the GIL."""
    if len(jobs) < 2 or cores() < 2:
        yield from map(work, jobs)
        return
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(work, jobs[0])
        for job in jobs[1:]:
            ready, coming = coming.result(), pool.submit(work, job)
            yield ready
        yield coming.result()
