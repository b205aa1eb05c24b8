"""What was issued between the two records of each window: the kind of work that it measured.

    thread   | record   s a   s b   y   s a   record |        three operations, one wait between two of them
    stream              ....AAAA  BBBB   ...AAAA              what ran inside is another question

An operation counts where the call that issued it began, on the window's thread or for the stream of its
start record; of a host timer, which has no stream, for the streams on which its thread issues work itself:
backward passes are issued by a thread of autograd's.  What one call issues together, such as the nodes
of a graph, is one issue.  Never what happened to run meanwhile: work that was queued before fills a
window of any length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, ragged, rising
from nsysalign.model import CALL, KIND, SYNC_CALLS, Alignment, Trace
from nsysalign.split.labels import Ran

#: Pairs of a window and an issue in it that are held at once.
_AT_ONCE = 1 << 20
#: If the windows of a thread together hold more issues than this, and this many times more than
#: exist (ranges in ranges in ranges), only what running sums say is known of them.
_MANY, _TIMES = 1 << 23, 16
#: Grids are read for at most this many kernels.
_MOST_GRIDS = 200_000


class Inside(NamedTuple):
    """Issues in windows: arrays of equal length, positions in windows and in issues."""

    window: np.ndarray
    issue: np.ndarray


@dataclass(frozen=True)
class Issues:
    """One per call that issued operations, in the order in which these calls began: arrays of equal
    length.

    first: its first operation (a position in operations).  process, thread, lane: who issued it, and
    for which stream.  name: a number of its name (`names`, `kinds`: by that number).
    content: an int64 that is equal for issues of the same operations, a graph's nodes included.
    size: bytes.  busy_ns: how long its operations ran.  end_ns: when the last of them ended.  new: it
    launches a kernel that its process has not launched before.
    """

    at_ns: np.ndarray
    first: np.ndarray
    process: np.ndarray
    thread: np.ndarray
    lane: np.ndarray
    name: np.ndarray
    content: np.ndarray
    size: np.ndarray
    busy_ns: np.ndarray
    end_ns: np.ndarray
    new: np.ndarray
    names: list[str]
    kinds: np.ndarray


class Work(NamedTuple):
    """What each window issued: arrays of one value per window, 0 where it issued nothing.

    operations: issues.  graphs: of these, graph launches.  size: bytes.  content: equal for the same
    operations, equally often; names: equal for the same names, however often; name_bits: a bit for each
    name (of 63, which some share), 0 where it launched a graph, which stands for any.  grids: equal for
    the same kernels with the same grids, and blocks: of all grids together; both 0 where it was not
    asked for.  main: the name that ran longest (-1: none).  busy_ns: how long its work ran, on any stream
    and at any time.  waits: synchronisations between
    the first and the last issue.  late: whether over half of its work ended after the window.  new:
    whether it launched a kernel that is new to its process.
    """

    operations: np.ndarray
    graphs: np.ndarray
    size: np.ndarray
    content: np.ndarray
    names: np.ndarray
    name_bits: np.ndarray
    grids: np.ndarray
    blocks: np.ndarray
    main: np.ndarray
    busy_ns: np.ndarray
    waits: np.ndarray
    late: np.ndarray
    new: np.ndarray


def issues_of(ran: Ran, alignment: Alignment) -> Issues:
    """All issues of a trace."""
    operations, calls = ran.trace.operations, ran.trace.calls
    call = operations["call"].to_numpy()
    rows = np.flatnonzero(call >= 0)
    if not rising(call[rows]):  # calls are sorted by their starts
        rows = rows[np.argsort(call[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(call[rows], prepend=-1))
    first, of_call = rows[begins], call[rows[begins]]
    kind, node, start, end, size = (
        operations[c].to_numpy() for c in ("kind", "graph_node", "start_ns", "end_ns", "bytes")
    )
    count = len(ran.names)
    weight = np.random.default_rng(1).integers(1 << 62, size=count)
    graph = (kind[first] == KIND["graph"]) | (node[first] >= 0)
    graph |= calls["kind"].to_numpy()[of_call] == CALL["graph_launch"]
    name = np.where(graph, count, ran.name[first])  # behind all others
    process = operations["process"].to_numpy()[first]
    number, processes = pd.factorize(process)
    launched = pd.Series(name.astype(np.int64) * max(len(processes), 1) + number)
    of_kernel = (kind[first] == KIND["kernel"]) & ~graph
    # there may be millions: columns of one value take no memory, and most fit into half of it
    return Issues(
        at_ns=calls["start_ns"].to_numpy()[of_call],
        first=frames.narrow(first),
        process=frames.narrow(process),
        thread=frames.narrow(calls["thread"].to_numpy()[of_call]),
        lane=frames.narrow(np.asarray(alignment.operation_lane)[first]),
        name=frames.narrow(name),
        content=_sums(weight[ran.name[rows]], begins),
        size=frames.narrow(_sums(size[rows], begins)),
        busy_ns=frames.narrow(_sums((end - start)[rows], begins)),
        end_ns=np.maximum.reduceat(end[rows], begins) if len(rows) else end[:0],
        new=of_kernel & ~launched.duplicated().to_numpy(),
        names=[*ran.names["kernel"].tolist(), "CUDA graph"],
        kinds=np.append(ran.names["kind"].to_numpy(), KIND["graph"]),
    )


def work_of(trace: Trace, alignment: Alignment, issues: Issues) -> Work:
    """What each window issued; its grids are another question (`grids_of`)."""
    windows, names = alignment.windows, max(len(issues.names), 1)
    weight = np.random.default_rng(2).integers(1 << 62, size=names)
    over_ns = (windows["end_ns"] + windows["error_ns"]).to_numpy()
    count, graphs, size, content, alphabet, bits, busy, late = np.zeros((8, len(windows)), np.int64)
    main, new = np.full(len(windows), -1, np.int64), np.zeros(len(windows), bool)
    is_graph = issues.kinds[issues.name] == KIND["graph"]
    for window, issue in issued_in(alignment, issues):
        ran_ns = issues.busy_ns[issue]
        begins = np.flatnonzero(np.diff(window, prepend=-1))  # a window's issues come together
        held = window[begins]
        count[held] += np.diff(np.append(begins, len(window)))
        for total, values in (
            (graphs, is_graph[issue]),
            (size, issues.size[issue]),
            (content, issues.content[issue]),
            (busy, ran_ns),
            (late, np.where(issues.end_ns[issue] > over_ns[window], ran_ns, 0)),
        ):
            total[held] += np.add.reduceat(values, begins, dtype=np.int64)
        new[window[issues.new[issue]]] = True
        row, pairs = pd.factorize(window * names + issues.name[issue])
        of, name = np.divmod(pairs, names)
        np.add.at(alphabet, of, weight[name])
        np.bitwise_or.at(bits, of, np.left_shift(1, name % 63))
        longest = np.zeros(len(pairs), np.int64)
        np.add.at(longest, row, ran_ns.astype(np.int64))
        bits[graphs > 0] = 0
        order = np.argsort(longest, kind="stable")
        main[of[order]] = name[order]  # of equal places the last one written stays
    nothing = np.zeros(len(windows), np.int64)
    return Work(
        count, graphs, size, content, alphabet, bits, nothing, nothing, main, busy,
        _waits(trace, alignment, issues), 2 * late > np.maximum(busy, 1), new,
    )  # fmt: skip


def grids_of(
    trace: Trace, alignment: Alignment, issues: Issues, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`Work.grids` and `Work.blocks` of these windows, 0 for others; 0 if the trace does not say, or
    they hold too many kernels."""
    grids, blocks = np.zeros((2, len(alignment.windows)), np.int64)
    pairs = [Inside(which[:0], which[:0]), *issued_in(alignment, issues, which)]
    window, issue = map(np.concatenate, zip(*pairs, strict=True))
    kernel = issues.kinds[issues.name[issue]] == KIND["kernel"]
    window, issue = window[kernel], issue[kernel]
    rows = trace.operations["row"].to_numpy()[issues.first[issue]]
    each = blocks_of(trace, rows)
    weight = np.random.default_rng(3).integers(1 << 62, size=max(len(issues.names), 1))
    np.add.at(blocks, window, each)
    np.add.at(grids, window, weight[issues.name[issue]] * each)  # wraps around: a number, no size
    return grids, blocks


def blocks_of(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Blocks of the grids of kernels, given by their rowids; 0 for all if the trace does not say or
    there are too many of them."""
    wanted = distinct(rows)
    if trace.shapes is None or not len(wanted) or len(wanted) > _MOST_GRIDS:
        return np.zeros(len(rows), np.int64)
    return np.asarray(trace.shapes(wanted))[:, :3].prod(axis=1)[np.searchsorted(wanted, rows)]


def issued_in(
    alignment: Alignment, issues: Issues, which: np.ndarray | None = None
) -> Iterator[Inside]:
    """Issues in these windows (all but runs where none are given), in lots; a window is in one lot, in
    which its issues come together."""
    for positions, windows, first, count in _spans(alignment, issues, which):
        if count.sum() > max(_MANY, _TIMES * len(positions)):
            continue
        lot = np.cumsum(count) // _AT_ONCE
        for part in np.split(np.arange(len(windows)), np.flatnonzero(np.diff(lot)) + 1):
            owner, place = ragged(first[part], count[part])
            yield Inside(windows[part[owner]], positions[place])


def _spans(
    alignment: Alignment, issues: Issues, which: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Per process, thread and stream of windows: the issues that are theirs, by time; their windows; and
    of each the first of these issues and how many."""
    columns = ("process", "thread", "start_lane", "open_ns", "close_ns", "kind")
    process, thread, lane, opened, closed, kind = (alignment.windows[c].to_numpy() for c in columns)
    measured = np.flatnonzero(kind != "run")
    windows = measured if which is None else which
    if not len(windows):  # pandas 2 finds no levels in none
        return
    whose = pd.MultiIndex.from_arrays([a[windows] for a in (process, thread, lane)])
    number, combinations = pd.factorize(whose)
    for code, (of, by, stream) in enumerate(combinations):
        mine = windows[number == code]
        by_thread = (issues.process == of) & (issues.thread == by)
        streams = np.unique(issues.lane[by_thread]) if stream < 0 else stream
        for_streams = (issues.process == of) & np.isin(issues.lane, streams)
        positions = np.flatnonzero(by_thread | for_streams)
        begin, over = (np.searchsorted(issues.at_ns[positions], t[mine]) for t in (opened, closed))
        yield positions, mine, begin, np.maximum(over - begin, 0)


def _waits(trace: Trace, alignment: Alignment, issues: Issues) -> np.ndarray:
    """Per window, synchronisations between its first and its last issue: of its thread, and of
    the threads that issued for it."""
    calls = trace.calls
    kind, thread, start = (calls[c].to_numpy() for c in ("kind", "thread", "start_ns"))
    sync = np.flatnonzero(np.isin(kind, [CALL[k] for k in SYNC_CALLS]) & trace.outermost)
    of_thread, out = (
        alignment.windows["thread"].to_numpy(),
        np.zeros(len(alignment.windows), np.int64),
    )
    for positions, windows, begin, held in _spans(alignment, issues):
        some = np.flatnonzero(held > 1)
        if not len(some) or not len(sync):
            continue
        threads = np.append(np.unique(issues.thread[positions]), of_thread[windows[some[0]]])
        mine = start[sync[np.isin(thread[sync], threads)]]
        at = issues.at_ns[positions]
        low, high = at[begin[some]], at[begin[some] + held[some] - 1]
        out[windows[some]] = np.searchsorted(mine, high) - np.searchsorted(mine, low, side="right")
    return out


def _sums(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    return np.add.reduceat(values, begins) if len(begins) else values[:0]
