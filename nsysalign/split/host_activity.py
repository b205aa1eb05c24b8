"""What the host did while a stream waited for it: the cause `host` in detail.

    stream   KKKKK|--------------- gap --------------|NNN
    thread         [outside CUDA      ][api][ outside ][launch N]
    ranges         [ augment                     ]
    OS calls            [read    ]
    samples        ^    ^    ^    ^           ^    ^            one stack each

Three views of the same time, each complete in itself and never added to another: NVTX ranges (the
innermost one) and calls of the OS runtime are exact, samples are counted.  A sample belongs to a
gap if it was taken in it, on the thread that was to issue N.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import pid_of, process_of, tid_of
from nsysalign.text import REPETITION
from nsysalign.tiles import Columns, disjoint, tile

#: Rows per label and view; the rest is one row without a name.
MOST_ROWS = 12
_REPETITION = re.compile(REPETITION)


class Samples(Protocol):
    """Sampled stacks of main threads (`trace.stacks.Stacks`)."""

    process: np.ndarray
    t_ns: np.ndarray
    stack: np.ndarray
    frames: Any


@dataclass(frozen=True)
class Gaps(Columns):
    """Pieces of cause host: arrays of equal length.  `thread`: the nsys globalTid due to issue what
    the stream waited for, -1 if the trace does not say."""

    label: np.ndarray
    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    range: np.ndarray  # its innermost NVTX range, ''


def host_gaps(intervals: pd.DataFrame, segments: pd.DataFrame, thread_of: pd.Series) -> Gaps:
    """The pieces of cause host among the segments.  `thread_of`: rowid of an API call -> its
    globalTid.

    A piece belongs to the thread of the next API call of its interval: everything after it in a
    gap, up to the call that issues the next operation, is on the same thread.  The pieces of a host
    timer always belong to the timer's own thread.
    """
    label = intervals.set_index("interval")["label"]
    number = segments["interval"].to_numpy()
    is_call = (segments["ref_kind"] == "api").to_numpy()
    at = np.where(is_call, np.arange(len(segments)), len(segments))
    following = np.minimum.accumulate(at[::-1])[::-1] if len(at) else at
    here = np.flatnonzero((segments["cause"] == "host").to_numpy())
    call = following[here]
    same = call < len(segments)
    same[same] = number[call[same]] == number[here[same]]
    thread = np.full(len(here), -1, np.int64)
    rows = segments["ref_id"].to_numpy()[call[same]]
    thread[same] = thread_of.reindex(rows).fillna(-1).to_numpy(np.int64)
    named = (segments["ref_kind"] == "nvtx").to_numpy()[here]
    detail = segments["detail"].to_numpy(dtype=object)[here]
    return Gaps(
        label.reindex(number[here]).to_numpy(dtype=object),
        segments["start_ns"].to_numpy()[here],
        segments["end_ns"].to_numpy()[here],
        thread,
        np.where(named, detail, ""),
    )


def calls_after_gaps(segments: pd.DataFrame) -> np.ndarray:
    """Rowids of the API calls whose threads `host_gaps` asks for."""
    if not (segments["cause"] == "host").any():
        return np.empty(0, np.int64)
    return np.unique(segments.loc[segments["ref_kind"] == "api", "ref_id"].to_numpy())


def host_activity(
    gaps: Gaps, os_calls: pd.DataFrame, names: Any, samples: Samples | None
) -> pd.DataFrame:
    """`frames.HOST_ACTIVITY`: per label the total, then each view that has data, its largest row
    first."""
    rows: list[dict[str, Any]] = []
    found = _owners(gaps, samples) if samples is not None else None
    for label, which in _by_label(gaps.label):
        mine = gaps.take(which)
        whole = int((mine.end - mine.start).sum())
        hits = found[0][np.isin(found[1], which)] if found is not None else np.empty(0, np.int64)
        base = {"label": label, "place": "", "within": "", "samples": 0}
        rows.append(
            base
            | {
                "view": "all",
                "name": "",
                "count": len(which),
                "ns": whole,
                "samples": len(hits),
                "share": 1.0,
            }
        )
        if samples is not None and len(hits):
            rows += [base | {"view": "python"} | row for row in _functions(samples, hits)]
        for view, said in (
            ("range", _ranges(mine, str(label))),
            ("os", _os(mine, os_calls, names)),
        ):
            rows += [
                base | {"view": view} | row | {"share": row["ns"] / max(whole, 1)}
                for row in _most(said)
            ]
    table = pd.DataFrame(rows, columns=frames.HOST_ACTIVITY.names) if rows else None
    return (
        frames.empty(frames.HOST_ACTIVITY)
        if table is None
        else frames.check(table, frames.HOST_ACTIVITY)
    )


def _by_label(label: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    code, unique = pd.factorize(label)
    order = np.argsort(code, kind="stable")
    edge = np.searchsorted(code[order], np.arange(len(unique) + 1))
    for number, name in enumerate(unique):
        yield name, order[edge[number] : edge[number + 1]]


def _owners(gaps: Gaps, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """(samples that fall into gaps of their thread, the gap of each).  Where gaps of several
    intervals overlap, a sample belongs to the gap of each label once."""
    hit, owner = [], []
    main = tid_of(gaps.thread) == pid_of(gaps.thread)
    for process in np.unique(samples.process):
        mine = np.flatnonzero(main & (process_of(gaps.thread) == process))
        t = np.flatnonzero(samples.process == process)
        first = np.searchsorted(samples.t_ns[t], gaps.start[mine])
        last = np.searchsorted(samples.t_ns[t], gaps.end[mine])
        for gap, a, b in zip(mine.tolist(), first.tolist(), last.tolist(), strict=True):
            hit.append(t[a:b])
            owner.append(np.full(b - a, gap, np.int64))
    if not hit:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    both = pd.DataFrame({"hit": np.concatenate(hit), "gap": np.concatenate(owner)})
    both = both[~pd.DataFrame({"hit": both["hit"], "label": gaps.label[both["gap"]]}).duplicated()]
    return both["hit"].to_numpy(), both["gap"].to_numpy()


def _functions(samples: Samples, hits: np.ndarray) -> list[dict[str, Any]]:
    """Samples by the innermost function of the program's own code, if there is one, and what ran
    inside it most often."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for stack in samples.stack[hits].tolist():
        every = samples.frames[stack]
        own = next((f for f in every if f.own), every[0] if every else None)
        if own is None:
            continue
        inner = every[0]
        within = "" if inner is own else f"{inner.function} ({inner.file.rpartition('/')[2]})"
        found.setdefault((own.function, own.file), []).append((own.line, within))
    ranked = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    rows = [
        {
            "name": function,
            "place": f"{file}:{_mode([line for line, _ in here])}",
            "within": _mode([inner for _, inner in here]),
            "samples": len(here),
            "count": 0,
            "ns": 0,
            "share": len(here) / len(hits),
        }
        for (function, file), here in ranked[:MOST_ROWS]
    ]
    rest = len(hits) - sum(int(row["samples"]) for row in rows)
    empty = {"name": "", "place": "", "within": "", "count": 0, "ns": 0}
    return [*rows, empty | {"samples": rest, "share": rest / len(hits)}] if rest else rows


def _mode(values: Sequence[Any]) -> Any:
    """The most frequent value, the smallest on ties."""
    counts = pd.Series(values).value_counts()
    return min(counts[counts == counts.iloc[0]].index)


def _ranges(gaps: Gaps, label: str) -> list[tuple[str, int, int]]:
    """(name, pieces, ns) of the innermost ranges, '' for the label's own and for none; [] where
    that is all there is."""
    texts, ns = gaps.range.tolist(), (gaps.end - gaps.start).tolist()
    names = {text: _REPETITION.sub("", text) for text in set(texts)}
    sums: dict[str, list[int]] = {}
    for text, length in zip(texts, ns, strict=True):
        total = sums.setdefault("" if names[text] == label else names[text], [0, 0])
        total[0] += 1
        total[1] += length
    return [(name, count, total) for name, (count, total) in sums.items()] if any(sums) else []


def _os(gaps: Gaps, os_calls: pd.DataFrame, names: Any) -> list[tuple[str, int, int]]:
    """(function, calls, ns) of OS-runtime calls on the gaps' threads."""
    sums: dict[str, list[int]] = {}
    for thread in np.unique(gaps.thread[gaps.thread >= 0]):
        mine = os_calls[os_calls["thread"] == thread]
        if mine.empty:
            continue
        start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        order = np.argsort(start, kind="stable")
        which, begin, over = disjoint(start[order], end[order])  # nested calls count once
        here = gaps.thread == thread
        cut = tile(gaps.start[here], gaps.end[here], begin, over)
        busy = cut.block >= 0
        name = mine["name_id"].to_numpy()[order][which[cut.block[busy]]]
        for number, ns in zip(name.tolist(), (cut.end - cut.start)[busy].tolist(), strict=True):
            total = sums.setdefault(str(names.get(number, "OS call")), [0, 0])
            total[0] += 1
            total[1] += ns
    return [(name, count, ns) for name, (count, ns) in sums.items()]


def _most(said: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """The largest as rows, the rest as one row without a name."""
    ranked = sorted(said, key=lambda item: (item[0] == "", -item[2], item[0]))
    rows = [{"name": name, "count": count, "ns": ns} for name, count, ns in ranked[:MOST_ROWS]]
    rest = ranked[MOST_ROWS:]
    if rest:
        rows.append({"name": "", "count": sum(r[1] for r in rest), "ns": sum(r[2] for r in rest)})
    return rows
