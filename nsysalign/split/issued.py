"""What was issued between the two records of each window: the kind of work that it measured.

    thread   | record   s a   s b   y   s a   record |        three issues, one wait between two of them
    stream              ....AAAA  BBBB   ...AAAA              what ran inside is another question

issue     the work that one call launches: an operation, or all nodes of a graph
window    a measured interval: a row of `alignment.windows`
name      the name of an operation, or "CUDA graph", as a number: an index of `Issues.names`
content   a number that is equal for the same operations, equally often
batch     windows that are looked at together, to bound the memory

An issue belongs to a window if its call began inside the window and was made by the window's thread
or launched to the stream of the window's start record.  A host timer has no such stream: it has the
issues for all streams to which its thread launches work itself, so that a backward pass, which a
thread of autograd launches, is among them.  What happens to run in a window does not count: work
that was queued before fills a window of any length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import batches, distinct, group, ragged, rising
from nsysalign.label import GIVES_BACK
from nsysalign.model import CALL, KIND, SYNC_CALLS, Alignment, Trace
from nsysalign.split.labels import Ran

#: Pairs of a window and an issue in it that are held at once.
_AT_ONCE = 1 << 20
#: If the windows of a thread together hold more than _MANY issues and over _TIMES_AS_MANY times as many as
#: exist (ranges in ranges in ranges), they are not counted one by one: only their waits are known.
_MANY, _TIMES_AS_MANY = 1 << 23, 16
#: An odd number that scatters small ones; products wrap around.
_SCATTER = 0x9E3779B97F4A7C15 - (1 << 64)
#: Grids are read for at most this many kernels.
_MOST_GRIDS = 200_000


class Inside(NamedTuple):
    """Pairs of a window and an issue in it: positions, in arrays of equal length."""

    window: np.ndarray
    issue: np.ndarray


@dataclass(frozen=True)
class Issues:
    """All issues of a trace, in the order in which their calls began: arrays of equal length.

    at_ns:    when the call began
    first:    the position of its first operation
    process, thread: which thread made the call (globalPid, globalTid)
    lane:     to which stream it launched its first operation
    name:     its name
    content:  int64, equal for issues of the same operations, with all nodes of a graph
    size:     the bytes that it copies or sets
    busy_ns:  how long its operations ran, added up
    end_ns:   when the last of them ended
    new:      whether it launches a kernel that its process has not launched before
    graph:    the number of the graph that it launches, -1 where it launches none or the trace does not say

    names, kinds: the text and the kind of operation of each name
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
    graph: np.ndarray
    names: list[str]
    kinds: np.ndarray


class Work(NamedTuple):
    """What each window issued: arrays with a value per window, 0 where it issued nothing.

    operations: how many issues it has
    graphs:     how many of them launch a graph
    size:       the bytes that they copy or set
    content:    equal for the same operations, equally often
    names:      equal for the same names, however often
    name_bits:  a bit for each name (some names share one of 63 bits); 0 if it launched a graph, in
                which any kernel may be
    graph:      equal for the same graphs, equally often; 0 if it launched none, or none that is known
    grids:      equal for the same kernels with the same grids; 0 if it was not asked for
    blocks:     how many blocks all these grids have together; 0 if it was not asked for
    main:       the name that ran longest, -1 for none
    busy_ns:    how long its work ran, on any stream and at any time
    waits:      how many synchronisations lie between its first and its last issue
    late:       whether over half of its work ended after the window
    new:        whether it launched a kernel that is new to its process
    frees:      whether it gave memory of the GPU back to the driver
    behind:     whether earlier work still ran when it was opened: on the stream of its start record, of a
                window without one on any stream of its process
    """

    operations: np.ndarray
    graphs: np.ndarray
    size: np.ndarray
    content: np.ndarray
    names: np.ndarray
    name_bits: np.ndarray
    graph: np.ndarray
    grids: np.ndarray
    blocks: np.ndarray
    main: np.ndarray
    busy_ns: np.ndarray
    waits: np.ndarray
    late: np.ndarray
    new: np.ndarray
    frees: np.ndarray
    behind: np.ndarray


def issues_of(ran: Ran, alignment: Alignment) -> Issues:
    """Return all issues of a trace, in the order in which their calls began.  An issue is the work that one call launches:
    one operation, or all nodes of a graph.

    operation    0    1    2    3        two issues: call 7 launched operation 0, call 9 a graph with
    call         7    9    9    9        three nodes
    result       first 0, 1; sums over operations 0 and 1 to 3
    """
    operations, calls = ran.trace.operations, ran.trace.calls
    call = operations["call"].to_numpy()
    rows = np.flatnonzero(call >= 0)
    if not rising(call[rows]):  # calls are sorted by their starts
        rows = rows[np.argsort(call[rows], kind="stable")]
    # the operations of an issue come together: `begins` says where each issue begins among the rows
    begins = np.flatnonzero(np.diff(call[rows], prepend=-1))
    first = rows[begins]
    issuing_call = call[first]
    end = operations["end_ns"].to_numpy()
    length = end - operations["start_ns"].to_numpy()
    size = operations["bytes"].to_numpy()
    is_graph = _launches_graph(ran.trace, first)
    graph_name = len(ran.names)  # behind all other names
    name = np.where(is_graph, graph_name, ran.name[first])
    process = operations["process"].to_numpy()[first]
    is_kernel = operations["kind"].to_numpy()[first] == KIND["kernel"]
    # `content` is to be equal for the same names, equally often, in any order: each name has a random number, and the
    # numbers of the names are added up
    weight = np.random.default_rng(1).integers(1 << 62, size=graph_name)
    # there may be millions of issues: `narrow` halves most columns (int32), and one of a single value takes no memory
    return Issues(
        at_ns=calls["start_ns"].to_numpy()[issuing_call],
        first=frames.narrow(first),
        process=frames.narrow(process),
        thread=frames.narrow(calls["thread"].to_numpy()[issuing_call]),
        lane=frames.narrow(np.asarray(alignment.operation_lane)[first]),
        name=frames.narrow(name),
        content=_sums(weight[ran.name[rows]], begins),
        size=frames.narrow(_sums(size[rows], begins)),
        busy_ns=frames.narrow(_sums(length[rows], begins)),
        end_ns=np.maximum.reduceat(end[rows], begins) if len(rows) else end[:0],
        new=is_kernel & ~is_graph & _is_first_of_process(name, process),
        graph=frames.narrow(_graph_of(ran.trace, first, is_graph)),
        names=[*ran.names["kernel"].tolist(), "CUDA graph"],
        kinds=np.append(ran.names["kind"].to_numpy(), KIND["graph"]),
    )


def _launches_graph(trace: Trace, first: np.ndarray) -> np.ndarray:
    """Return, per issue, whether it launches a graph: by its operation, which is a whole graph or a node of one, or by its
    call.

    first: the position of its first operation
    """
    operations = trace.operations
    is_whole_graph = operations["kind"].to_numpy()[first] == KIND["graph"]
    is_node = operations["graph_node"].to_numpy()[first] >= 0
    call = operations["call"].to_numpy()[first]
    by_call = trace.calls["kind"].to_numpy()[call] == CALL["graph_launch"]
    return is_whole_graph | is_node | by_call


def _graph_of(trace: Trace, first: np.ndarray, is_graph: np.ndarray) -> np.ndarray:
    """Return, per issue, the number of the graph that it launches, -1 for none or an unknown one.

    first:    the position of its first operation
    is_graph: whether it launches a graph

    The number of a graph's node holds that of the graph in its upper half.
    """
    operations = trace.operations
    node = operations["graph_node"].to_numpy()[first]
    out = np.where(node >= 0, node >> 32, -1)
    whole = np.flatnonzero(is_graph & (operations["kind"].to_numpy()[first] == KIND["graph"]))
    if trace.graphs is not None and len(whole):
        out[whole] = trace.graphs(operations["row"].to_numpy()[first[whole]])
    return out


def _is_first_of_process(name: np.ndarray, process: np.ndarray) -> np.ndarray:
    """Return, per issue, whether no earlier issue of its process has the same name."""
    number, processes = pd.factorize(process)
    pair = name.astype(np.int64) * max(len(processes), 1) + number
    return ~pd.Series(pair).duplicated().to_numpy()


def work_of(trace: Trace, alignment: Alignment, issues: Issues) -> Work:
    """Return what each window issued, from sums over its issues; `grids` and `blocks` are 0, `grids_of` returns
    them.

    A window with two issues of gemm (10 us each) and one of a copy (4 KB, 2 us): operations 3, size 4096,
    busy_ns 22,000, main the name gemm, name_bits those of gemm and of the copy.
    """
    windows = alignment.windows
    name_count = max(len(issues.names), 1)
    # equal for equal sets of names: each name that occurs has a random number, and these are added up
    names_hash = np.zeros(len(windows), np.int64)
    weight = np.random.default_rng(2).integers(1 << 62, size=name_count)
    latest_end = (windows["end_ns"] + windows["error_ns"]).to_numpy()
    sums = {column: np.zeros(len(windows), np.int64) for column in _SUMMED}
    # which names may occur, to find that one certainly does not: 63 bits are enough for that
    name_bits = np.zeros(len(windows), np.int64)
    main = np.full(len(windows), -1, np.int64)
    new = np.zeros(len(windows), bool)
    for window, issue in issued_in(alignment, issues):
        # all issues of a window are in this batch, and come together: `begins` says where those of each begin
        begins = np.flatnonzero(np.diff(window, prepend=-1))
        for column, values in _values(issues, issue, latest_end[window]).items():
            sums[column][window[begins]] = np.add.reduceat(values, begins, dtype=np.int64)
        new[window[issues.new[issue]]] = True
        # from here on each name of a window once, with how long its operations ran
        window, name, ran_ns = _by_name(
            window, issues.name[issue], issues.busy_ns[issue], name_count
        )
        np.add.at(names_hash, window, weight[name])
        np.bitwise_or.at(name_bits, window, np.left_shift(1, name % 63))
        # the name that ran longest is written last and stays
        order = np.argsort(ran_ns, kind="stable")
        main[window[order]] = name[order]
    # a graph may hold any kernel
    name_bits[sums["graphs"] > 0] = 0
    # late: over half of the work ended after the window; 1: a window without work is not late
    late = 2 * sums["late_ns"] > np.maximum(sums["busy_ns"], 1)
    return Work(
        operations=sums["operations"],
        graphs=sums["graphs"],
        size=sums["size"],
        content=sums["content"],
        names=names_hash,
        name_bits=name_bits,
        graph=sums["graph"],
        grids=np.zeros(len(windows), np.int64),
        blocks=np.zeros(len(windows), np.int64),
        main=main,
        busy_ns=sums["busy_ns"],
        waits=_waits(trace, alignment, issues),
        frees=_calls(trace, alignment, issues, GIVES_BACK),
        late=late,
        new=new,
        behind=_behind_earlier_work(alignment, issues),
    )


def _behind_earlier_work(alignment: Alignment, issues: Issues) -> np.ndarray:
    """Return `Work.behind`, a bool per window: whether work that was issued before the window still ran when it was opened;
    False for runs.

    The work is that on the stream of the window's start record; for a host timer, which has none, on any stream of its
    process.

    thread   [launch A)      record  [launch B)  record
    stream       AAAAAAAAAAAAAABBBB             A still runs when the window is opened: B need not wait for the CPU
    """
    table = alignment.windows
    selected = np.flatnonzero((table["kind"] != "run").to_numpy())
    behind = np.zeros(len(table), bool)
    opened = table["open_ns"].to_numpy()
    process = table["process"].to_numpy()
    lane = table["start_lane"].to_numpy()
    for number, windows in group(process[selected], selected).items():
        of_process = issues.process == number
        for stream, rows in group(lane[windows], windows).items():
            is_any_stream = stream < 0  # host timers have no stream
            may_run = np.flatnonzero(of_process & ((issues.lane == stream) | is_any_stream))
            latest_end = np.maximum.accumulate(issues.end_ns[may_run])
            issued_before = np.searchsorted(issues.at_ns[may_run], opened[rows])  # how many
            has_earlier = issued_before > 0
            last = issued_before[has_earlier] - 1
            behind[rows[has_earlier]] = latest_end[last] > opened[rows[has_earlier]]
    return behind


#: What `_values` returns.
_SUMMED = ("operations", "graphs", "size", "content", "graph", "busy_ns", "late_ns")


def _values(issues: Issues, issue: np.ndarray, latest_end: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is added up over the issues of a window, as columns with a value per issue.

    issue:      positions of issues
    latest_end: per issue, when (ns) its window ended at the latest; what ends later is late
    """
    ran_ns = issues.busy_ns[issue]
    graph = issues.graph[issue].astype(np.int64)
    return {
        "operations": np.ones(len(issue), np.int64),
        "graphs": issues.kinds[issues.name[issue]] == KIND["graph"],
        "size": issues.size[issue],
        "content": issues.content[issue],
        "graph": np.where(graph >= 0, _scattered(graph), 0),
        "busy_ns": ran_ns,
        "late_ns": np.where(issues.end_ns[issue] > latest_end, ran_ns, 0),
    }


def _scattered(numbers: np.ndarray) -> np.ndarray:
    """Return numbers whose sums differ where those of small ones might not (2 + 5, 3 + 4)."""
    products = (numbers + 1) * _SCATTER
    return (products ^ (products >> 29)) * _SCATTER


def _by_name(
    window: np.ndarray, name: np.ndarray, ns: np.ndarray, name_count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (window, name, ns): each pair of a window and a name once, with the sum of its ns.

    window, name, ns: arrays with a value per issue
    name_count:       how many names there are
    """
    row, pairs = pd.factorize(window * name_count + name)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, row, ns.astype(np.int64))
    pair_window, pair_name = np.divmod(pairs, name_count)
    return pair_window, pair_name, sums


def grids_of(
    trace: Trace, alignment: Alignment, issues: Issues, selected: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (`Work.grids`, `Work.blocks`), a value per window: a number that is equal for windows in which the kernels of
    each name have the same number of blocks together, and how many blocks all kernels have together.

    selected: the windows that are asked for; all others get 0

    All are 0 where `blocks_of` says nothing: the trace has no grids, or these windows hold too many kernels.
    """
    grids = np.zeros(len(alignment.windows), np.int64)
    blocks = np.zeros(len(alignment.windows), np.int64)
    empty = Inside(selected[:0], selected[:0])  # concatenate needs a part
    parts = [empty, *issued_in(alignment, issues, selected)]
    window = np.concatenate([part.window for part in parts])
    issue = np.concatenate([part.issue for part in parts])
    is_kernel = issues.kinds[issues.name[issue]] == KIND["kernel"]
    window, issue = window[is_kernel], issue[is_kernel]
    kernel = issues.first[issue]
    (kernel_blocks,) = blocks_of(trace, [trace.operations["row"].to_numpy()[kernel]])
    weight = np.random.default_rng(3).integers(1 << 62, size=max(len(issues.names), 1))
    np.add.at(blocks, window, kernel_blocks)
    # a hash of each name's number of blocks; the sums wrap around, which does no harm, as they are only compared with each
    # other
    np.add.at(grids, window, weight[issues.name[issue]] * kernel_blocks)
    return grids, blocks


def blocks_of(trace: Trace, sets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return, for each set of kernels, per kernel how many blocks its grid has.

    sets: the rowids of the kernels in nsys's table

    All of a set are 0 if the trace does not say, or if the set has too many kernels.  The trace is asked once: one of our
    own recorder is decoded as a whole for each question.
    """
    wanted = [distinct(rows) for rows in sets]
    are_few = [0 < len(rows) <= _MOST_GRIDS for rows in wanted]
    if trace.shapes is None or not any(are_few):
        return [np.zeros(len(rows), np.int64) for rows in sets]
    known = distinct(
        np.concatenate([rows for rows, is_few in zip(wanted, are_few, strict=True) if is_few])
    )
    grid = np.asarray(trace.shapes(known))[:, :3]
    blocks = grid.prod(axis=1)
    return [
        blocks[np.searchsorted(known, rows)] if is_few else np.zeros(len(rows), np.int64)
        for rows, is_few in zip(sets, are_few, strict=True)
    ]


def issued_in(
    alignment: Alignment, issues: Issues, selected: np.ndarray | None = None
) -> Iterator[Inside]:
    """Yield the issues in windows, in batches.

    selected: the windows; None for all but runs

    All issues of a window are in the same batch and come together.
    """
    for spans in _spans(alignment, issues, selected):
        if spans.count.sum() > max(_MANY, _TIMES_AS_MANY * len(spans.issues)):
            continue
        for rows in batches(spans.count, _AT_ONCE):
            owner, place = ragged(spans.first[rows], spans.count[rows])
            yield Inside(spans.windows[rows[owner]], spans.issues[place])


@dataclass(frozen=True)
class _Spans:
    """Windows with the same thread and stream, and their issues: those of windows[n] are
    issues[first[n] : first[n] + count[n]]."""

    #: The issues that may belong to any of these windows, sorted by time.
    issues: np.ndarray
    #: Numbers of windows.
    windows: np.ndarray
    #: Per window, where its first issue stands in `issues`, and how many it has.
    first: np.ndarray
    count: np.ndarray


def _spans(
    alignment: Alignment, issues: Issues, selected: np.ndarray | None = None
) -> Iterator[_Spans]:
    """Yield the windows of each process, thread and stream of the start record, with the issues that belong to them.

    To a window belongs what its thread issues while it is open, to any stream, and what any thread of the process issues
    to the window's stream: autograd launches a backward pass from a thread of its own.  A host timer has no stream
    (-1); for it, the streams are those on which its thread ever launched work.

    selected: the windows to look at; None for all but runs
    """
    table = alignment.windows
    if selected is None:
        selected = np.flatnonzero((table["kind"] != "run").to_numpy())
    if not len(selected):  # `factorize` of pandas 2 fails on an empty MultiIndex
        return
    opened = table["open_ns"].to_numpy()
    closed = table["close_ns"].to_numpy()
    owners = [table[name].to_numpy()[selected] for name in ("process", "thread", "start_lane")]
    code, combinations = pd.factorize(pd.MultiIndex.from_arrays(owners))
    for number, (process, thread, stream) in enumerate(combinations):
        windows = selected[code == number]
        in_process = issues.process == process
        by_thread = in_process & (issues.thread == thread)
        streams = np.unique(issues.lane[by_thread]) if stream < 0 else stream
        for_streams = in_process & np.isin(issues.lane, streams)
        may_belong = np.flatnonzero(by_thread | for_streams)
        issue_ns = issues.at_ns[may_belong]
        first = np.searchsorted(issue_ns, opened[windows])
        stop = np.searchsorted(issue_ns, closed[windows])
        yield _Spans(may_belong, windows, first, np.maximum(stop - first, 0))


def _waits(trace: Trace, alignment: Alignment, issues: Issues) -> np.ndarray:
    """Return, per window, how many synchronisations lie between its first and its last issue (int64); 0 for runs.

    While the host waits there it issues nothing ahead, and the GPU runs out of work.  The synchronisations of the window's
    thread count, and those of all threads whose issues may belong to windows of its thread and stream (`_threads_of`).
    """
    calls = trace.calls
    is_sync = np.isin(calls["kind"].to_numpy(), [CALL[kind] for kind in SYNC_CALLS])
    syncs = np.flatnonzero(is_sync & trace.outermost)
    sync_thread = calls["thread"].to_numpy()[syncs]
    sync_start = calls["start_ns"].to_numpy()[syncs]
    window_thread = alignment.windows["thread"].to_numpy()
    out = np.zeros(len(alignment.windows), np.int64)
    for spans in _spans(alignment, issues):
        rows = np.flatnonzero(spans.count > 1)
        if not len(rows) or not len(syncs):
            continue
        counts = np.isin(sync_thread, _threads_of(spans, issues, window_thread))
        start = sync_start[counts]
        issue_ns = issues.at_ns[spans.issues]
        first = spans.first[rows]
        last = first + spans.count[rows] - 1
        up_to_last = np.searchsorted(start, issue_ns[last])  # how many synchronisations
        up_to_first = np.searchsorted(start, issue_ns[first], side="right")
        out[spans.windows[rows]] = up_to_last - up_to_first
    return out


def _threads_of(spans: _Spans, issues: Issues, window_thread: np.ndarray) -> np.ndarray:
    """Return the threads whose calls count for these windows: the windows' own thread, and those that made any of the issues
    that may belong to them.

    window_thread: the thread of every window; the same for all of `spans`
    """
    of_windows = window_thread[spans.windows[0]]
    return np.append(np.unique(issues.thread[spans.issues]), of_windows)


def _calls(
    trace: Trace, alignment: Alignment, issues: Issues, named: re.Pattern[str]
) -> np.ndarray:
    """Return, per window, whether a call with such a name began in it, on one of the threads that count for it
    (`_threads_of`); False for runs."""
    calls = trace.calls
    names = [name_id for name_id, name in trace.names.items() if named.match(name)]
    chosen = np.flatnonzero(calls["name_id"].isin(names).to_numpy())
    table = alignment.windows
    out = np.zeros(len(table), bool)
    if not len(chosen):
        return out
    call_thread = calls["thread"].to_numpy()[chosen]
    call_ns = calls["start_ns"].to_numpy()[chosen]
    window_thread = table["thread"].to_numpy()
    opened, closed = table["open_ns"].to_numpy(), table["close_ns"].to_numpy()
    for spans in _spans(alignment, issues):
        windows = spans.windows
        counts = np.isin(call_thread, _threads_of(spans, issues, window_thread))
        begun_ns = call_ns[counts]
        before_end = np.searchsorted(begun_ns, closed[windows])  # how many calls
        before_start = np.searchsorted(begun_ns, opened[windows])
        out[windows] |= before_end > before_start
    return out


def _sums(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Return the sum of the values of each stretch; `begins` says where each stretch begins.

    values 1, 2, 3, 4; begins 0, 3:      6, 4
    """
    return np.add.reduceat(values, begins) if len(begins) else values[:0]
