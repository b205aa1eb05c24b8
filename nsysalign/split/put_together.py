"""Windows that several slices split, put together: the run as a whole, and intervals too long for one slice.

slice 1   kernel 5  host 3            row of the window, its sums, details, and what the slice's edges may have cut
slice 2   kernel 4  host 1
joined    kernel 9  host 4            to the nanosecond what it is in one piece
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import KIND, OTHERS_RAN, OTHERS_WORKED, PartialResult
from nsysalign.split.budget import others_worked
from nsysalign.split.groups import BEGIN, COPY, END, PIECE, PIECES, RAN, Key
from nsysalign.split.host_windows import AFTER, BEFORE, IDLE, waits_after
from nsysalign.split.partial import DISTURBED, INTERVENED
from nsysalign.split.pieces import CAUSE

#: Columns that identify the window a row belongs to, besides `open_ns`: a run has another one in every slice.
_WHOSE = ["origin", "source", "region", "process", "thread", "device", "end_lane", "end_stream"]
_SUMS = ("kernel_only_ns", "kernel_only_upper_ns", "kernel_outside_ns", "operations", "others_ns")
_WORK = ("work_count", "work_bytes", "work_names")
_LEAST = ("open_ns", "start_ns", "start_lower_ns", "start_upper_ns")
_MOST = (
    "close_ns",
    "close_end_ns",
    "end_ns",
    "start_record",
    "end_record",
    "launched_ns",
    "waited_ns",
)
_KEYS = ["interval", *Key._fields]
_REMARKS = (DISTURBED, INTERVENED, OTHERS_WORKED, OTHERS_RAN, BEFORE, AFTER, IDLE)


def joined(p: PartialResult) -> PartialResult:
    """Combined portions hold one row of each run, and of each part, per slice: these become one row with the sums, and `unknown`
    for idle time of a run whose end no slice saw."""
    run, part = (p.rows["kind"] == "run").to_numpy(), p.rows["part"].to_numpy(dtype=bool)
    several = np.flatnonzero(run | part)
    if not len(several):
        return p
    opened = np.where(run, 0, p.rows["open_ns"].to_numpy())
    whose = (
        p.rows[_WHOSE]
        .assign(opened=opened)
        .iloc[several]
        .groupby([*_WHOSE, "opened"], sort=False)
        .ngroup()
    )
    order = np.argsort(whose.to_numpy(), kind="stable")
    begins = np.flatnonzero(np.diff(whose.to_numpy()[order], prepend=-1))
    first = several[order[begins]]  # of each window, the row of the earliest slice
    members = several[order]
    target = np.repeat(first, np.diff(np.append(begins, len(order))))
    keep = np.ones(len(p.rows), dtype=bool)
    keep[np.setdiff1d(members, first)] = False
    to = np.arange(len(p.rows))
    to[members] = target
    rows = _rows(p.rows, members, begins, first)
    totals = [_added(table, members, target, first) for table in (p.total, p.low, p.high)]
    _complete(totals, rows, first, run[first])
    low, high = totals[1].copy(), totals[2].copy()
    low[first], high[first] = (
        how([t[first] for t in totals]) for how in (np.minimum.reduce, np.maximum.reduce)
    )
    seams = _seams(p.cut, to)
    _flags(rows, p.rows["flags"].tolist(), members, begins, first, totals[0])
    rows["operations"] -= _ran_twice(seams).reindex(range(len(rows)), fill_value=0).to_numpy()
    size = p.size.copy()
    size[first] = np.add.reduceat(p.size[members], begins)
    place = np.cumsum(keep) - 1
    return replace(
        p,
        rows=rows[keep].reset_index(drop=True),
        total=totals[0][keep],
        low=low[keep],
        high=high[keep],
        details=_details(p.details, seams, to, place, run | part),
        other_streams=_streams(p.other_streams, to, place),
        durations=p.durations.assign(interval=place[to][p.durations["interval"].to_numpy()]),
        gaps=p.gaps.assign(interval=place[to][p.gaps["interval"].to_numpy()]),
        size=size[keep],
        cut=p.cut.iloc[:0],
        segments=None if p.segments is None else _segments(p.segments, place[to], rows[keep]),
    )


def _added(
    table: np.ndarray, members: np.ndarray, target: np.ndarray, first: np.ndarray
) -> np.ndarray:
    out = table.copy()
    out[first] = 0
    np.add.at(out, target, table[members])
    return out


def _rows(
    rows: pd.DataFrame, members: np.ndarray, begins: np.ndarray, first: np.ndarray
) -> pd.DataFrame:
    """Columns of the rows of several slices in the first of each window."""
    rows = rows.copy()
    hows = [(_SUMS, np.add), (_WORK, np.add), (_LEAST, np.minimum), (_MOST, np.maximum)]
    longest = rows["work_longest_ns"].to_numpy()[members]
    most = np.maximum.reduceat(longest, begins)
    at = np.flatnonzero(longest == np.repeat(most, np.diff(np.append(begins, len(members)))))
    owner, which = np.unique(np.searchsorted(begins, at, side="right") - 1, return_index=True)
    for columns, how in hows:
        for column in columns:
            values = rows[column].to_numpy().copy()
            with np.errstate(over="ignore"):
                values[first] = how.reduceat(values[members], begins)
            rows[column] = values
    main = rows["work_main"].to_numpy(dtype=object).copy()
    main[first[owner]] = main[members[at[which]]]
    rows["work_main"] = pd.Series(main, index=rows.index).astype("str")
    values = rows["work_longest_ns"].to_numpy().copy()
    values[first] = most
    rows["work_longest_ns"] = values
    rows["elapsed_ns"] = rows["end_ns"] - rows["start_ns"]
    return rows


def _complete(
    totals: list[np.ndarray], rows: pd.DataFrame, first: np.ndarray, run: np.ndarray
) -> None:
    """Adds what no slice saw: of a stream that was idle for longer than a slice, what its next work waited for.  Raises
    AssertionError if the parts of an interval do not add up to its time."""
    missing = rows["elapsed_ns"].to_numpy()[first] - totals[0][first].sum(axis=1)
    if missing[~run].any():
        raise AssertionError(
            f"parts of {int((missing[~run] != 0).sum())} long intervals do not add up"
        )
    for table in totals:
        table[first, CAUSE["unknown"]] += missing


def _flags(
    rows: pd.DataFrame,
    flags: list[tuple[str, ...]],
    members: np.ndarray,
    begins: np.ndarray,
    first: np.ndarray,
    total: np.ndarray,
) -> None:
    """Flags that hold in any slice, and those that the sums decide."""
    elapsed, others, start = (
        rows[c].to_numpy()[first] for c in ("elapsed_ns", "others_ns", "start_ns")
    )
    idle = elapsed - total[first][:, : len(KIND)].sum(axis=1)
    most = others_worked(others, idle)
    launched, waited = (rows[c].to_numpy()[first] for c in ("launched_ns", "waited_ns"))
    kind = rows["kind"].tolist()
    ends = np.append(begins[1:], len(members))
    for n, at in enumerate(first.tolist()):
        if kind[at] == "run":
            continue
        held = {flag for member in members[begins[n] : ends[n]].tolist() for flag in flags[member]}
        if kind[at] != "host":
            some = 100 * others[n] > idle[n]
            held |= {OTHERS_WORKED} if most[n] else {OTHERS_RAN} if some else set()
        elif waits_after(int(start[n]), int(launched[n]), int(waited[n])):
            held.add(AFTER)
        said = [flag for flag in flags[at] if flag not in _REMARKS]
        flags[at] = (
            *(f for f in _REMARKS[:4] if f in held),
            *said,
            *(f for f in _REMARKS[4:] if f in held),
        )
    rows["flags"] = pd.Series(flags, dtype=object, index=rows.index)


def _seams(cut: pd.DataFrame, to: np.ndarray) -> pd.DataFrame:
    """What both a slice and the next one have at the edge between them, row by row: columns of both, `_before` and `_after`.
    `at`: the row of the window."""
    cut = cut.assign(at=to[cut["interval"].to_numpy()])
    ends, starts = cut[cut["side"] == END], cut[cut["side"] == BEGIN]
    # rows of a window come slice by slice
    of_window = pd.DataFrame({"at": to, "interval": np.arange(len(to))})
    following = of_window.groupby("at")["interval"].shift(-1, fill_value=-1).to_numpy()
    ends = ends.assign(interval=following[ends["interval"].to_numpy()])
    keys = ["interval", "at", "what", *Key._fields, "ref_kind", "ref_id"]
    return ends.drop_duplicates(keys).merge(
        starts.drop_duplicates(keys), on=keys, suffixes=("_before", "_after")
    )


def _ran_twice(seams: pd.DataFrame) -> pd.Series:
    """By row of a host window: the operations that two slices counted."""
    return seams[seams["what"] == RAN].groupby("at").size()


def _details(
    details: pd.DataFrame,
    seams: pd.DataFrame,
    to: np.ndarray,
    place: np.ndarray,
    several: np.ndarray,
) -> pd.DataFrame:
    """Details of renumbered intervals, merged per window: the reference is that of the longest piece, of two equally long ones the
    earlier."""
    number = details["interval"].to_numpy()
    mine = details[several[number]]
    mine = mine.assign(interval=to[mine["interval"].to_numpy()])
    if len(seams):
        pieces = seams[seams["what"] == PIECE]
        whole = _across(pieces)
        copies = seams[seams["what"] == COPY]
        less = pd.DataFrame(
            {
                **{c: copies[c] for c in Key._fields},
                "interval": copies["at"],
                "bytes": -copies["bytes_after"],
                "took_ns": -copies["took_ns_after"],
                "ns": 0,
                "longest_ns": -1,
                "longest_start_ns": 0,
                "ref_kind": "",
                "ref_id": -1,
                "bandwidth_gb_s": np.nan,
            }
        )
        mine = pd.concat([t for t in (mine, whole, less) if len(t)], ignore_index=True)
    mine = mine.sort_values(
        [*_KEYS, "longest_ns", "longest_start_ns"], ascending=[*[True] * len(_KEYS), False, True]
    )
    groups = mine.groupby(_KEYS, sort=False)
    merged = groups.first().reset_index()
    for column in ("ns", "bytes", "took_ns"):
        merged[column] = groups[column].sum().to_numpy()
    took = merged["took_ns"].to_numpy(dtype=np.int64)
    merged["bandwidth_gb_s"] = np.divide(
        merged["bytes"].to_numpy(dtype=np.int64),
        took,
        out=np.full(len(merged), np.nan),
        where=took > 0,
    )
    both = [details[~several[number]], merged]
    both = [t.assign(interval=place[t["interval"].to_numpy(dtype=np.int64)]) for t in both]
    both = [
        frames.check(t, frames.DETAILS).assign(**{c: t[c].astype(np.int64) for c in PIECES})
        for t in both
    ]
    out = pd.concat(both, ignore_index=True)
    return out.sort_values("interval", kind="stable", ignore_index=True)


def _across(pieces: pd.DataFrame) -> pd.DataFrame:
    """Rows for details: the pieces that edges cut, in one."""
    if not len(pieces):
        return pd.DataFrame()
    # a piece may reach over several edges: each continues the one before
    pieces = pieces.sort_values(["at", "start_ns_before"], kind="stable")
    chain = (pieces["at"].to_numpy()[1:] != pieces["at"].to_numpy()[:-1]) | (
        pieces["start_ns_after"].to_numpy()[:-1] != pieces["start_ns_before"].to_numpy()[1:]
    )
    begins = np.flatnonzero(np.concatenate([[True], chain]))
    ns = pieces["ns_after"].to_numpy(dtype=np.int64)
    head = pieces.iloc[begins]
    length = np.add.reduceat(ns, begins) + head["ns_before"].to_numpy(dtype=np.int64)
    return pd.DataFrame(
        {
            **{c: head[c].to_numpy() for c in (*Key._fields, "ref_kind", "ref_id")},
            "interval": head["at"].to_numpy(dtype=np.int64),
            "ns": 0,
            "bytes": 0,
            "took_ns": 0,
            "longest_ns": length,
            "longest_start_ns": head["start_ns_before"].to_numpy(dtype=np.int64),
            "bandwidth_gb_s": np.nan,
        }
    )


def _streams(found: pd.DataFrame, to: np.ndarray, place: np.ndarray) -> pd.DataFrame:
    """`frames.OTHER_STREAMS` of renumbered intervals, merged per window."""
    number = found["interval"].to_numpy()
    out = found.assign(interval=place[to[number]])
    out = out.groupby(["interval", "stream"], as_index=False)["ns"].sum()
    return frames.check(out, frames.OTHER_STREAMS)


def _segments(segments: pd.DataFrame, number: np.ndarray, rows: pd.DataFrame) -> pd.DataFrame:
    """Segments of renumbered intervals; the time between the stretches of a run was not seen to its end."""
    out = segments.assign(interval=number[segments["interval"].to_numpy()])
    out = out.sort_values(["interval", "start_ns"], kind="stable", ignore_index=True)
    out = _uncut(out)
    runs = np.flatnonzero((rows["kind"] == "run").to_numpy())
    missing = []
    for run in runs.tolist():
        mine = out[out["interval"] == run]
        begin = np.append(rows["start_ns"].iat[run], mine["end_ns"].to_numpy())
        end = np.append(mine["start_ns"].to_numpy(), rows["end_ns"].iat[run])
        gap = end > begin
        missing.append(pd.DataFrame({"interval": run, "start_ns": begin[gap], "end_ns": end[gap]}))
    unseen = pd.concat(missing, ignore_index=True) if missing else pd.DataFrame()
    if not len(unseen):
        return out
    unseen = unseen.assign(cause="unknown", ref_kind="", ref_id=-1, detail="")
    both = [frames.check(t, frames.SEGMENTS) for t in (out, unseen)]
    whole = pd.concat(both, ignore_index=True)
    return whole.sort_values(["interval", "start_ns"], kind="stable", ignore_index=True)


def _uncut(segments: pd.DataFrame) -> pd.DataFrame:
    """Touching segments that say the same in one: the edge of a slice lies between them."""
    if len(segments) < 2:
        return segments
    same = np.zeros(len(segments), dtype=bool)
    same[1:] = segments["end_ns"].to_numpy()[:-1] == segments["start_ns"].to_numpy()[1:]
    for column in ("interval", "cause", "ref_kind", "ref_id", "detail"):
        values = segments[column].to_numpy()
        same[1:] &= values[1:] == values[:-1]
    first = np.flatnonzero(~same)
    last = np.append(first[1:], len(segments)) - 1
    out = segments.iloc[first].reset_index(drop=True)
    out["end_ns"] = segments["end_ns"].to_numpy()[last]
    return out
