"""Where an SM's time goes inside a kernel: SMs x duration, split exactly.

SM 0   before | block ...........| between | block ....... | after
SM 1   before | block ........................ | after
SM 2   none

An instant in which blocks are there is shared equally by their warps, each in its innermost range
or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.addons.marks import layout
from nsysalign.addons.marks.join import Marked

PARTS = ("before", "phase", "unmarked", "between", "after", "none", "unknown")
_DEEPEST = 16
_TIME_BITS = 42  # 73 minutes of a kernel, in ns
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Inside:
    """What the marks of one dump say: tables whose `kernel` numbers its launches from 0."""

    kernels: pd.DataFrame  # marked_blocks, warps, marks, complete, outside: one row per launch
    phases: pd.DataFrame
    sm_time: pd.DataFrame
    sm_spans: pd.DataFrame


@dataclass(frozen=True)
class _Warps:
    """Runs of warps: launch, sm, begin and end (ns after the launch's start), whether the end was
    seen."""

    launch: np.ndarray
    sm: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    ended: np.ndarray
    block: np.ndarray  # number of the (launch, block)


@dataclass(frozen=True)
class _Passages:
    """Passages through ranges: of which launch and (launch, SM) group, name, from and until (ns
    after the start)."""

    launch: np.ndarray
    warp: np.ndarray
    id: np.ndarray
    begin: np.ndarray
    end: np.ndarray


def inside(marked: Marked) -> Inside:
    """Phases and SM time of every launch of a dump."""
    table = marked.launches
    duration = (table["end_ns"] - table["start_ns"]).to_numpy()
    warps, outside = _warps(marked, duration)
    complete, counted = _complete(marked, warps)
    sms = _sms(marked, warps, duration)
    group, shared = sms.group, sms.shared
    lengths: list[_Passages] = []
    of_phase: dict[int, float] = {}
    unclosed: dict[tuple[int, int], int] = {}
    for used in _batches(marked):
        passages, inner = _ranges(marked, duration, used, unclosed)
        lengths.append(passages)
        share = shared(group[inner.warp], inner.end) - shared(group[inner.warp], inner.begin)
        keys, which = np.unique(inner.launch << 30 | inner.id, return_inverse=True)
        for key, ns in zip(
            keys.tolist(),
            np.bincount(which, weights=share, minlength=len(keys)).tolist(),
            strict=True,
        ):
            of_phase[key] = of_phase.get(key, 0.0) + ns
    last = marked.dump.id & 3 == layout.EXIT
    marks = np.bincount(
        marked.launch, np.bincount(marked.dump.of[~last], minlength=len(marked.launch)), len(table)
    )
    kernels = pd.DataFrame(
        counted | {"marks": marks.astype(np.int64), "complete": complete, "outside": outside}
    )
    budget = _budget(sms.parts, of_phase, complete)
    return Inside(kernels, _phases(lengths, unclosed), budget, sms.spans)


def _batches(marked: Marked) -> Iterator[np.ndarray]:
    """Marks of ranges, sorted by warp, a few whole warps at a time: processing them takes many
    times their memory."""
    dump, order = marked.dump, marked.order
    at = 0
    while at < len(order):
        end = min(at + _AT_ONCE, len(order))
        while end < len(order):  # not inside a warp
            warps = marked.warp[dump.of[order[at : end + 1]]]
            cut = int(np.searchsorted(warps, warps[-1]))
            if cut:
                end = at + cut
                break
            end = min(end + _AT_ONCE, len(order))  # a single warp with more marks than that
        some = order[at:end]
        kind = dump.id[some] & 3
        yield some[(kind == layout.BEGIN) | (kind == layout.END)]
        at = end


def _warps(marked: Marked, duration: np.ndarray) -> tuple[_Warps, np.ndarray]:
    """The warps, and how many marks of each launch lie outside its kernel row by more than the
    error bar."""
    dump, at = marked.dump, marked.first_heads
    count = len(at)
    launch, heads = marked.launch[at], dump.warps[at]
    begin = heads["time"].astype(np.int64)
    end = begin.copy()
    of = marked.warp[dump.of]
    np.maximum.at(end, of, dump.time)
    ended = np.zeros(count, bool)
    ended[of[dump.id & 3 == layout.EXIT]] = True
    error = marked.launches["error_ns"].to_numpy()
    placed = (marked.launches["row"] >= 0).to_numpy()
    first, last = marked.relative(launch, begin), marked.relative(launch, end)
    out = placed[launch] & ((first < -error[launch]) | (last > duration[launch] + error[launch]))
    number = _numbered(launch, heads["z"], heads["y"], heads["x"])
    limit = duration[launch]
    return (
        _Warps(
            launch,
            heads["sm"].astype(np.int64),
            np.clip(first, 0, limit),
            np.clip(last, 0, limit),
            ended,
            number,
        ),
        np.bincount(launch[out], minlength=len(duration)),
    )


def _numbered(*keys: np.ndarray) -> np.ndarray:
    """A number for each combination of keys."""
    order = np.lexsort(keys[::-1])
    other = np.zeros(len(order), bool)
    for key in keys:
        key = key[order]
        other[1:] |= key[1:] != key[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(other)
    return number


def _complete(marked: Marked, warps: _Warps) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Whether every warp of a launch was seen to its end, and how many blocks and warps were
    seen."""
    table, many = marked.launches, len(marked.launches)
    seen = np.bincount(warps.launch, minlength=many)
    ended = np.bincount(warps.launch[warps.ended], minlength=many)
    _, one = np.unique(warps.block, return_index=True)
    blocks = np.bincount(warps.launch[one], minlength=many)
    threads = np.zeros(many, np.int64)
    np.maximum.at(threads, marked.launch, marked.dump.warps["threads"].astype(np.int64))
    expected = np.where(table["blocks"] > 0, table["blocks"], blocks) * -(-threads // 32)
    return (seen > 0) & (seen == ended) & (seen >= expected), {
        "marked_blocks": blocks,
        "warps": seen,
        "threads": threads,
    }


def _ranges(
    marked: Marked, duration: np.ndarray, used: np.ndarray, unclosed: dict[tuple[int, int], int]
) -> tuple[_Passages, _Passages]:
    """(passages through ranges; stretches of whole warps in their innermost range) of these marks;
    ranges that were begun but not ended are added to `unclosed`, by launch and name.  A warp is
    where its first lane is.  Lanes that diverged from it form a stream of marks of their own: they
    have passages, but no SM time."""
    dump = marked.dump
    of = dump.of[used]
    stray = ~marked.first_lane[of]
    stream = marked.warp[of] << 33
    stream[stray] |= (1 << 32) | dump.warps["lanes"][of[stray]].astype(np.int64)
    if (dump.warps["kind"] == layout.STRAY | layout.VERSION).any():
        again = np.lexsort((marked.cycles(of, dump.clock[used]), dump.time[used], stream))
        used, of, stray, stream = used[again], of[again], stray[again], stream[again]
    launch, name = marked.launch[of], (dump.id[used] >> 2).astype(np.int64)
    time = np.clip(marked.relative(launch, dump.time[used]), 0, duration[launch])
    begins = dump.id[used] & 3 == layout.BEGIN
    depth, sound = _depths(stream, begins)
    pairs = []
    index = np.arange(len(used))
    following = np.ones(len(used), bool)
    following[:-1] = stream[1:] == stream[:-1]
    if len(used):
        following[-1] = False
    inner = np.full(len(used), -1, np.int64)
    for level in range(1, min(int(depth.max(initial=0)), _DEEPEST) + 1):
        mine = np.flatnonzero(
            sound & ((begins & (depth == level)) | (~begins & (depth == level - 1)))
        )
        paired = np.zeros(len(mine), bool)
        paired[:-1] = (
            begins[mine[:-1]] & ~begins[mine[1:]] & (stream[mine[:-1]] == stream[mine[1:]])
        )
        paired[:-1] &= name[mine[:-1]] == name[mine[1:]]
        first = np.flatnonzero(paired)
        pairs.append((mine[first], mine[first + 1]))
        alone = ~paired
        alone[first + 1] = False
        _add(unclosed, launch[mine[alone]], name[mine[alone]])
        last = np.maximum.accumulate(np.where(begins & (depth == level), index, -1))
        here = sound & (depth == level)
        inner[here] = name[last[here]]
    _add(unclosed, launch[~sound], name[~sound])
    a, b = (
        np.concatenate([p[i] for p in pairs]) if pairs else np.empty(0, np.int64) for i in (0, 1)
    )
    warp = marked.warp[of]
    passages = _Passages(launch[a], warp[a], name[a], time[a], time[b])
    lasting = np.flatnonzero((inner >= 0) & following & ~stray)
    return passages, _Passages(
        launch[lasting], warp[lasting], inner[lasting], time[lasting], time[lasting + 1]
    )


def _add(unclosed: dict[tuple[int, int], int], launch: np.ndarray, name: np.ndarray) -> None:
    for key, count in zip(*np.unique(launch << 30 | name, return_counts=True), strict=True):
        pair = (int(key) >> 30, int(key) & 0x3FFFFFFF)
        unclosed[pair] = unclosed.get(pair, 0) + int(count)


def _depths(stream: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many ranges are open after each mark of a stream, and whether every range that ends in
    its stream also began there."""
    if not len(stream):
        return np.empty(0, np.int64), np.empty(0, bool)
    change = np.where(begins, 1, -1)
    total = np.cumsum(change)
    edges = np.flatnonzero(np.concatenate([[True], stream[1:] != stream[:-1]]))
    lengths = np.diff(np.append(edges, len(stream)))
    depth = total - np.repeat(total[edges] - change[edges], lengths)
    return depth, np.repeat(np.minimum.reduceat(depth, edges) >= 0, lengths)


def _phases(passages: list[_Passages], unclosed: dict[tuple[int, int], int]) -> pd.DataFrame:
    """Statistics of passages by launch and name (`tables.KERNEL_PHASES`; `phase` is the hash)."""
    known = [n for _, n in unclosed] + [i for p in passages for i in np.unique(p.id).tolist()]
    ids = np.unique(np.array(known, np.int64))
    keys = [
        (p.launch * max(len(ids), 1) + np.searchsorted(ids, p.id)) << _TIME_BITS
        | np.minimum(p.end - p.begin, (1 << _TIME_BITS) - 1)
        for p in passages
    ]
    order = np.sort(np.concatenate(keys)) if keys else np.empty(0, np.int64)
    key, length = order >> _TIME_BITS, order & ((1 << _TIME_BITS) - 1)
    edges = np.flatnonzero(np.diff(key, prepend=-1))
    ends = np.append(edges[1:], len(key))
    lost = {(launch, name): n for (launch, name), n in unclosed.items()}
    rows = pd.DataFrame(
        {
            "kernel": key[edges] // max(len(ids), 1),
            "phase": ids[key[edges] % max(len(ids), 1)] if len(edges) else np.empty(0, np.int64),
            "count": ends - edges,
            "total_ns": np.add.reduceat(length, edges) if len(edges) else np.empty(0, np.int64),
            "min_ns": length[edges],
            "median_ns": length[(edges + ends - 1) // 2],
            "max_ns": length[ends - 1] if len(edges) else np.empty(0, np.int64),
        }
    )
    pairs = list(zip(rows["kernel"].tolist(), rows["phase"].tolist(), strict=True))
    rows["unclosed"] = [lost.pop(pair, 0) for pair in pairs]
    if lost:
        zeros = dict.fromkeys(("count", "total_ns", "min_ns", "median_ns", "max_ns"), 0)
        more = [{"kernel": k, "phase": p, **zeros, "unclosed": n} for (k, p), n in lost.items()]
        rows = pd.concat([rows, pd.DataFrame(more)], ignore_index=True)
    return rows


class _Sms(NamedTuple):
    """`spans`: `tables.SM_SPANS`; `parts`: SM time of every launch by part, phases still in `busy`;
    `group`: the number of the (launch, SM) of every warp; `shared`: the integral of `_shared`."""

    spans: pd.DataFrame
    parts: dict[str, np.ndarray]
    group: np.ndarray
    shared: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _sms(marked: Marked, warps: _Warps, duration: np.ndarray) -> _Sms:
    """When blocks were on each SM of every launch."""
    groups, group = np.unique(warps.launch << 12 | warps.sm, return_inverse=True)
    launch, sm = groups >> 12, groups & 4095
    first, last = np.full(len(groups), np.iinfo(np.int64).max), np.zeros(len(groups), np.int64)
    np.minimum.at(first, group, warps.begin)
    np.maximum.at(last, group, warps.end)
    busy, shared = _shared(group, warps.begin, warps.end, len(groups))
    _, one = np.unique(_numbered(group, warps.block), return_index=True)
    blocks = np.bincount(group[one], minlength=len(groups))
    spans = pd.DataFrame(
        {
            "kernel": launch,
            "sm": sm,
            "blocks": blocks,
            "first_ns": first,
            "last_ns": last,
            "busy_ns": busy,
        }
    )
    per = partial(_per_launch, launch, len(duration))
    seen = per(np.ones(len(groups), np.int64))
    parts = {
        "before": per(first),
        "busy": per(busy),
        "between": per(last - first - busy),
        "after": per(duration[launch] - last),
        "none": np.where(seen > 0, (np.maximum(marked.dump.sms, seen) - seen) * duration, 0),
    }
    return _Sms(spans, parts, group, shared)


def _budget(
    parts: dict[str, np.ndarray], of_phase: dict[int, float], complete: np.ndarray
) -> pd.DataFrame:
    """`tables.SM_TIME` with hashes for names, of all launches that have marks.  Phases are rounded
    down, and the rest of the time with blocks is `unmarked`, so the sum is exact."""
    phases: dict[int, list[tuple[int, int]]] = {}
    for key, ns in of_phase.items():
        phases.setdefault(key >> 30, []).append((key & 0x3FFFFFFF, int(ns + 1e-6)))
    rows = []
    for kernel in np.flatnonzero(parts["busy"] + parts["none"] > 0).tolist():
        mine = {part: int(ns[kernel]) for part, ns in parts.items()}
        left = mine.pop("busy")
        for phase, ns in sorted(phases.get(kernel, []), key=lambda p: -p[1]):
            rows.append((kernel, "phase", phase, min(ns, left)))
            left -= min(ns, left)
        mine["unmarked"] = left
        if not complete[kernel]:
            mine = {"unmarked": left, "unknown": sum(mine.values()) - left}
        rows += [(kernel, part, 0, ns) for part, ns in mine.items()]
    rows = sorted((r for r in rows if r[3] > 0), key=lambda r: (r[0], PARTS.index(r[1]), -r[3]))
    return pd.DataFrame(rows, columns=["kernel", "part", "phase", "ns"])


def _per_launch(launch: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    out = np.zeros(count, np.int64)
    np.add.at(out, launch, values)
    return out


def _shared(  # type: ignore[no-untyped-def]
    group: np.ndarray, begin: np.ndarray, end: np.ndarray, count: int
):
    """(ns in which each group has a warp; function (group, time) -> integral of 1 / warps there up
    to that time)."""
    groups, times = np.concatenate([group, group]), np.concatenate([begin, end])
    key = groups << _TIME_BITS | times
    order = np.argsort(key, kind="stable")
    key = key[order]
    there = np.cumsum(np.where(order < len(group), 1, -1))
    length = np.diff(times[order], append=0)
    if len(order):
        length[-1] = 0
    used = there > 0  # 0 at the end of every group: its last warp has left
    length = np.where(used, length, 0)
    busy = np.zeros(count, np.int64)
    np.add.at(busy, groups[order], length)
    rate = np.where(used, 1 / np.maximum(there, 1), 0.0)
    integral = np.concatenate([[0.0], np.cumsum(length * rate)])[: len(order)]
    sorted_times = times[order]

    def at(of: np.ndarray, time: np.ndarray) -> np.ndarray:
        where = np.maximum(np.searchsorted(key, of << _TIME_BITS | time, "right") - 1, 0)
        return integral[where] + (time - sorted_times[where]) * rate[where]

    return busy, at
