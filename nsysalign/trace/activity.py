"""Host calls and the operations that they issue, from columns of CUPTI's activity tables, joined by
correlation id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, one_of
from nsysalign.model import CALL, ISSUING_CALLS, process_of
from nsysalign.trace import schema

_AT_ONCE = 1 << 18
_LATEST_NS, _LONGEST_NS = 1 << 62, 1 << 53  # 146 years, 104 days
_MOST_INT32 = np.iinfo(np.int32).max


def possible_rows(table: Mapping[str, np.ndarray] | pd.DataFrame) -> np.ndarray:
    """Bool, per row: whether its times can be: what the profiler lost comes as start = end = 0, as end < start or
    as NULL (-1); a damaged time is so far away that a difference of two would not fit into int64,
    or lasts for months."""
    start, end = np.asarray(table["start_ns"]), np.asarray(table["end_ns"])
    if len(start) and start.min() > 0 and end.max() < _LATEST_NS:  # as good as always
        lasted = end - start
        if lasted.min() >= 0 and lasted.max() < _LONGEST_NS:
            return np.ones(len(start), dtype=bool)
    lost = (end < start) | ((start == 0) & (end == 0)) | (start == -1) | (end == -1)
    lost |= (start <= -_LATEST_NS) | (end >= _LATEST_NS)
    return ~lost & (end - start < _LONGEST_NS)


def only_possible(table: pd.DataFrame) -> pd.DataFrame:
    """Its rows with plausible times: nearly always all of them, which are not copied then."""
    ok = possible_rows(table)
    return table if ok.all() else table[ok]


def _in_order(columns: dict[str, np.ndarray], *keys: str, longest: bool) -> dict[str, np.ndarray]:
    """The table sorted by its start; of rows with the same start the longest or the shortest one
    first, then by the keys, and at last as the file has them.  nsys writes rows nearly in this
    order, so checking is cheap."""
    start = columns["start_ns"]
    if (start[1:] > start[:-1]).all():
        return columns
    order = np.argsort(start, kind="stable")
    same = start[order][1:] == start[order][:-1]
    if same.any():  # only rows with the same start need their other keys
        tied = np.zeros(len(start), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        end = columns["end_ns"][rows] * (-1 if longest else 1)
        others = [columns[key][rows] for key in reversed((*keys, "row"))]
        order[tied] = rows[np.lexsort((*others, end, start[rows]))]
    return chosen(columns, order)


def calls_table(
    columns: dict[str, np.ndarray] | None, names: dict[int, str]
) -> tuple[pd.DataFrame, int]:
    """`frames.CALLS` from the columns of the runtime table (None: absent), and how many rows were
    left out."""
    if columns is None:
        return frames.empty(frames.CALLS), 0
    ok = possible_rows(columns)
    bad = int((~ok).sum())
    if bad:
        columns = chosen(columns, ok)
    columns = _in_order(columns, "thread", "correlation", longest=True)
    columns["process"] = _each(columns["thread"], process_of)
    ids = distinct(columns["name_id"])
    kinds = np.array([schema.call_kind(names.get(int(i), "")) for i in ids], dtype=np.int8)
    columns["kind"] = _each(
        columns["name_id"],
        lambda name: _pieced(name, np.int8, lambda n: kinds[np.searchsorted(ids, n)]),
    )
    columns["outer"] = outermost(columns["thread"], columns["start_ns"], columns["end_ns"])
    return frames.check(pd.DataFrame(columns, copy=False), frames.CALLS, narrow=True), bad


def _pieced(
    values: np.ndarray, dtype: np.dtype | type, function: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """function(values), a few rows at a time: intermediate results stay small."""
    out: np.ndarray = np.empty(len(values), dtype)
    for first in range(0, len(values), _AT_ONCE):
        out[first : first + _AT_ONCE] = function(values[first : first + _AT_ONCE])
    return out


def _each(values: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """function(values), evaluated once if the column has only one value."""
    if len(values) and not any(values.strides):
        return np.broadcast_to(function(values[:1])[0], len(values))
    return function(values)


def outermost(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For calls sorted by (start, -end): position of the outermost call that contains each on its
    thread.

    thread 1   [ cudaLaunchKernel          ]
                   [ cuLaunchKernel  ]          -> both answer cudaLaunchKernel
    """
    outer = np.arange(len(start), dtype=np.int32 if len(start) < _MOST_INT32 else np.int64)
    for positions in _by_value(thread):
        reach = np.maximum.accumulate(end[positions])
        # a call begins outside of all earlier ones when nothing before it reaches past its start
        inside = np.flatnonzero(start[positions][1:] < reach[:-1]) + 1
        if not len(inside):
            continue
        first = np.arange(len(reach))
        first[inside] = 0
        outer[positions] = np.arange(len(start))[positions][np.maximum.accumulate(first)]
    return outer


def _by_value(values: np.ndarray) -> list[np.ndarray | slice]:
    """Positions of each value, in order; all of them as a slice if there is only one value."""
    if not len(values):
        return []
    if not any(values.strides) or (values == values[0]).all():
        return [slice(None)]
    order = np.argsort(values, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(values[order])) + 1))


def operations_table(
    tables: Sequence[dict[str, np.ndarray] | None], calls: pd.DataFrame
) -> tuple[pd.DataFrame, int]:
    """`frames.OPERATIONS` from the columns of `schema.OPERATION_TABLES`, in their order, and how
    many rows were left out."""
    parts, bad = [], 0
    for kind, columns in enumerate(tables):
        if columns is None:
            continue
        ok = possible_rows(columns)
        if not ok.all():
            bad += int((~ok).sum())
            columns = chosen(columns, ok)
        if not len(columns["row"]):
            continue
        parts.append(columns | {"kind": np.broadcast_to(np.int8(kind), len(columns["row"]))})
    if not parts:
        return frames.empty(frames.OPERATIONS), bad
    absent = {
        "name_id": -1,
        "bytes": 0,
        "copy_kind": -1,
        "src_kind": -1,
        "dst_kind": -1,
        "graph_node": -1,
    }
    names = list(dict.fromkeys([name for part in parts for name in part] + list(absent)))
    whole = {
        name: _stacked(
            [p[name] if name in p else absent[name] for p in parts], [len(p["row"]) for p in parts]
        )
        for name in names
    }
    del parts
    whole = _in_order(whole, "kind", "process", "correlation", longest=False)
    unknown = whole["process"] < 0
    if unknown.any():  # exports before globalPid: one process, or nothing can be joined
        processes = distinct(calls["process"].to_numpy())
        if len(processes) == 1:
            whole["process"] = np.where(unknown, processes[0], whole["process"])
    whole["call"] = _issuing_call(whole, calls)
    return frames.check(pd.DataFrame(whole, copy=False), frames.OPERATIONS, narrow=True), bad


def _stacked(parts: Sequence[np.ndarray | int], counts: Sequence[int]) -> np.ndarray:
    """Concatenated columns (a number stands for a constant column), in the narrowest type."""
    full = [
        np.broadcast_to(np.int64(p), n) if isinstance(p, int) else p
        for p, n in zip(parts, counts, strict=True)
    ]
    full = [p for p in full if len(p)] or full[:1]
    if all(not any(p.strides) and p[0] == full[0][0] for p in full):
        return np.broadcast_to(full[0][0], sum(counts))
    narrow = any(p.dtype == np.int32 for p in full)  # never times: those are int64 throughout
    for number, part in enumerate(full):
        constant = narrow and part.dtype == np.int64 and not any(part.strides)
        if constant and -_MOST_INT32 <= part[0] <= _MOST_INT32:
            full[number] = part.astype(np.int32)
    return np.concatenate(full)


def joined(
    calls: pd.DataFrame, process: np.ndarray, correlation: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Positions in `calls` (restricted to `candidates`) with the same process and correlation id,
    -1 for none.

    If several calls carry the id (corrupt or merged exports), the first one is taken.
    """
    position = np.flatnonzero(candidates).astype(np.int32 if len(calls) < _MOST_INT32 else np.int64)
    out = np.full(len(process), -1, dtype=np.int32 if len(calls) < _MOST_INT32 else np.int64)
    if not len(position) or not len(process):
        return out
    theirs, ids = calls["process"].to_numpy(), calls["correlation"].to_numpy()[position]
    theirs = chosen({"": theirs}, position)[""]
    for mine in _by_value(process):
        of_process = theirs == process[mine][0]
        which = position if of_process.all() else position[of_process]
        look_up = _by_id(ids if of_process.all() else ids[of_process], which)
        out[mine] = _pieced(correlation[mine], out.dtype, look_up)
    return out


def _by_id(ids: np.ndarray, position: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Function of wanted ids: position[k] of the first ids[k] that equals each, -1 for none and for
    ids below 0."""
    if not len(ids):
        return lambda wanted: np.full(len(wanted), -1)
    if not (
        ids[1:] > ids[:-1]
    ).all():  # the profiler numbers calls in order, but a thread may be late
        order = np.argsort(ids, kind="stable")
        order = order[np.concatenate([[True], ids[order][1:] > ids[order][:-1]])]
        ids, position = ids[order], position[order]

    def look_up(wanted: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where((ids[at] == wanted) & (wanted >= 0), position[at], -1)

    return look_up


def _issuing_call(operations: Mapping[str, np.ndarray], calls: pd.DataFrame) -> np.ndarray:
    process, correlation = operations["process"], operations["correlation"]
    kind = calls["kind"].to_numpy()
    issuing = one_of(kind, [CALL[k] for k in ISSUING_CALLS])
    call = joined(calls, process, correlation, issuing)
    rest = call < 0  # operations issued by calls of other names (prefetch, library internals)
    if rest.any():
        call[rest] = joined(calls, process[rest], correlation[rest], ~issuing)
    if not len(calls):
        return call
    # a kernel cannot start before the call that issues it: a join that says so is a reused
    # correlation id
    start, outer = calls["start_ns"].to_numpy(), calls["outer"].to_numpy()
    for first in range(0, len(call), _AT_ONCE):
        here = call[first : first + _AT_ONCE]
        here[operations["start_ns"][first : first + _AT_ONCE] < start[here] - 100_000] = -1
        here[here >= 0] = outer[here[here >= 0]]
    return call


def chosen(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of a table that a mask or positions select; a column of one value still takes no
    memory."""
    if rows.dtype == bool and rows.any():
        first, stop = int(rows.argmax()), len(rows) - int(rows[::-1].argmax())
        if rows[first:stop].all():  # one piece: nothing is copied
            return {name: values[first:stop] for name, values in columns.items()}
    count = int(rows.sum()) if rows.dtype == bool else len(rows)
    return {
        name: np.broadcast_to(values[0], count)
        if count and not any(values.strides)
        else values[rows]
        for name, values in columns.items()
    }
