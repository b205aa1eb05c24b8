"""Why a stream was idle: rules 5 to 16 of the table in docs/design.md, applied to all gaps at once.

    host     ...[ a0  call that issues N  a1 )
    stream   PPPPP|-- gap ---------------------|NNNN
                  host: rules 10-15 | 9 | 6, 7, 8

gap       a stretch in which a lane executes nothing
P, N      the operations before and after the gap; where no other operation was issued before the
          window's end record, N is this record
window    a measured interval on the timeline: a row of `alignment.windows`
lane      a stream of one process, by its number; some stand for several (`Streams.members`)
issued    by when the host began the call that launches an operation, not by when it executes
position  the row of an operation, call or record in its table; -1 for none
BEFORE_ALL     a time before all others; FAR is one after all others
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSE
from nsysalign.intervals import FAR, Columns, distinct, group, pick, ragged, tile
from nsysalign.model import CALL, KIND, MIGRATIONS, OPERATION_KINDS, Alignment, Trace, process_of
from nsysalign.place.streams import LaneOperations, lane_operations
from nsysalign.split.busy import NO_RIVAL, RIVAL_KERNELS, Blocks, Streams, Threads
from nsysalign.split.pieces import DETAIL, REF, Pieces, Spans, host_side, join, make

LEGACY_DEFAULT, BLOCKING = 3, 1
BEFORE_ALL = -FAR  # a time before all others
PAGEABLE = 0  # CUDA_MEMOPR_MEMORY_KIND_PAGEABLE
_COPY_DEVICE_KINDS = (1, 2)  # host-to-device, device-to-host
#: Latency of a launch if a trace shows too few of its kind on an idle device (ns).
_FALLBACK_NS, _ENOUGH = 5_000, 5
#: A record that the stream reaches this long after an operation's end was held up by something else.
_RIGHT_BEHIND_NS = 20_000
#: A node of a graph that begins later than this after the node before it waited for something that
#: the trace does not show: a host node, or a wait for an event.
NODE_GAP_NS = 10_000
#: The cause of what a thread does outside of calls, by what such a piece points to.
_CAUSE_BESIDE_CALLS = {"overhead": CAUSE["profiler"], "nvtx": CAUSE["host"]}


@dataclass(frozen=True)
class Windows(Columns):
    """Where windows lie and what closes them: arrays with a value per window.

    start, end:    ns
    lane:          the lane of its end
    thread:        globalTid of the thread that was measured
    process:       globalPid
    host:          whether it is a host timer
    close_ns:      when the call began that made the end record (nothing that was issued later
                   belongs to the window); FAR where no record closes the window
    close_end_ns:  when this call ended
    close_thread:  the thread of this call
    close_call:    the position of this call, -1 for none
    record:        the end record's position in the alignment's records, -1 for none
    """

    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    thread: np.ndarray
    process: np.ndarray
    host: np.ndarray
    close_ns: np.ndarray
    close_end_ns: np.ndarray
    close_thread: np.ndarray
    close_call: np.ndarray
    record: np.ndarray

    @classmethod
    def measured(cls, alignment: Alignment) -> Windows:
        """Return all windows (measured intervals) of an alignment where they were placed, as arrays with a value per window:
        when each begins and ends, on which lane (stream), and which call and record close it.

        Only a window of kind event is closed by a record.  The others get FAR as the time of the call, so that
        all their work counts as issued before their end: the work of a range ends with its own last operation,
        and a host timer is split by what its thread did.
        """
        windows = alignment.windows
        kind = windows["kind"].to_numpy()
        close_ns = windows["close_ns"].to_numpy()
        close_end_ns = windows["close_end_ns"].to_numpy()
        record = windows["end"].to_numpy()
        closed = kind == "event"
        if (
            not closed.all()
        ):  # else there is nothing to replace, and no copy of a million windows to make
            close_ns = np.where(closed, close_ns, FAR)
            close_end_ns = np.where(closed, close_end_ns, FAR)
            record = np.where(closed, record, -1)
        calls = np.append(alignment.records["call"].to_numpy(), -1)  # record -1 takes this -1
        return cls(
            start=windows["start_ns"].to_numpy(),
            end=windows["end_ns"].to_numpy(),
            lane=windows["end_lane"].to_numpy(),
            thread=windows["thread"].to_numpy(),
            process=windows["process"].to_numpy(),
            host=kind == "host",
            close_ns=close_ns,
            close_end_ns=close_end_ns,
            close_thread=windows["end_thread"].to_numpy(),
            close_call=calls[record],
            record=record,
        )

    @classmethod
    def endless(cls, lane: int) -> Windows:
        """Return one window that holds all of a lane and that no record closes."""
        return cls(
            start=np.array([-FAR]),
            end=np.array([FAR]),
            lane=np.array([lane]),
            thread=np.array([-1]),
            process=np.array([-1]),
            host=np.array([False]),
            close_ns=np.array([FAR]),
            close_end_ns=np.array([FAR]),
            close_thread=np.array([-1]),
            close_call=np.array([-1]),
            record=np.array([-1]),
        )

    @classmethod
    def places(cls, alignment: Alignment) -> Iterator[Windows]:
        """Yield all windows as they were measured, then moved to either end of their error bars.

        An end at which no window would move is left out.
        """
        windows, measured = alignment.windows, cls.measured(alignment)
        yield measured
        closed = windows["kind"].to_numpy() == "event"
        error = np.where(closed, windows["error_ns"].to_numpy(), 0)
        for sign, bound in ((-1, "start_lower_ns"), (1, "start_upper_ns")):
            # the start is moved by the error, but not beyond what it can be
            room = sign * (windows[bound].to_numpy() - measured.start)
            shift = sign * np.minimum(error, np.maximum(room, 0))
            if shift.any():
                yield replace(measured, start=measured.start + shift, end=measured.end + shift)


@dataclass(frozen=True)
class Gaps(Columns):
    """Idle stretches of lanes: arrays with a value per gap.

    window:        the number of the window that holds it
    start, end:    ns
    lane:          the lane that is idle
    next:          N, a position in operations; -1 where it is the end record
    stream_of_next: the lane to which N was issued; `lane` itself, unless that stands for several
    previous_on_lane: P, the operation before the gap on `lane`; -1 for none
    previous_on_stream: the operation before the gap on `stream_of_next`; -1 for none
    issue_start, issue_end: when the call began and ended that issues N (ns)
    issue_thread:  its thread (globalTid)
    issue_call:    its position in calls; -1 for none
    known:         whether it is known when N was issued
    ref:           what N is: its position in operations or, where it is the end record, in the
                   alignment's records
    """

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    next: np.ndarray
    stream_of_next: np.ndarray
    previous_on_lane: np.ndarray
    previous_on_stream: np.ndarray
    issue_start: np.ndarray
    issue_end: np.ndarray
    issue_thread: np.ndarray
    issue_call: np.ndarray
    known: np.ndarray
    ref: np.ndarray


class _Tiling:
    """Gaps that are tiled with pieces from left to right.

    gap      [----------------------------)
    pieces   [memcpy)[host    )[api_launch)
                               ^ since, before the last of them

    since:  per gap, when (ns) the part begins that has no piece yet
    pieces: all pieces so far
    """

    def __init__(self, gaps: Gaps) -> None:
        self.gaps = gaps
        self.since = gaps.start
        self.pieces: list[Pieces] = []

    def advance(self, until: np.ndarray) -> Spans:
        """Return what lies before `until` (ns, per gap) and has no piece yet; the caller tiles it.

        The `window` of these spans is the position of a gap, not of a window.
        """
        stop = np.minimum(np.maximum(until, self.since), self.gaps.end)
        gap = np.flatnonzero(stop > self.since)
        spans = Spans(gap, self.since[gap], stop[gap])
        self.since = stop
        return spans

    def give(self, until: np.ndarray, cause: Any, **reference: Any) -> None:
        """Make a piece, in each gap, of what lies before `until` and has no piece yet.

        until:     ns, per gap
        cause:     a code, or a code per gap
        reference: other columns of `Pieces`, also one value or a value per gap
        """
        of_gaps = self.advance(until)
        gap = of_gaps.window

        def per_piece(values: Any) -> Any:
            """Return a value per piece for a value per gap; one value for all stays as it is."""
            return values if np.ndim(values) == 0 else values[gap]

        columns = {name: per_piece(values) for name, values in reference.items()}
        spans = replace(of_gaps, window=self.gaps.window[gap])
        self.pieces.append(make(spans, per_piece(cause), **columns))

    def give_all(self, wanted: np.ndarray, cause: int, **reference: Any) -> None:
        """Make a piece of all that has no piece yet, in the gaps that are wanted (bool, per gap)."""
        self.give(np.where(wanted, FAR, BEFORE_ALL), cause, **reference)


@dataclass(frozen=True)
class _Behind(Columns):
    """Behind which other work something is ordered, and until when: arrays of equal length.

    until:                       ns, BEFORE_ALL for what is ordered behind nothing
    ref_kind, ref, detail, lane: the other work, as in `Pieces`
    """

    until: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    detail: np.ndarray
    lane: np.ndarray

    @classmethod
    def nobody(cls, size: int) -> _Behind:
        """Return `size` rows that are ordered behind nothing."""
        return cls(
            until=np.full(size, BEFORE_ALL),
            ref_kind=np.zeros(size, np.int64),
            ref=np.full(size, -1),
            detail=np.zeros(size, np.int64),
            lane=np.full(size, -1),
        )

    def put(self, rows: np.ndarray, behind: _Behind) -> None:
        """Write the rows of `behind` over these rows; where a row occurs twice the last one stays."""
        for name, column in vars(self).items():
            column[rows] = getattr(behind, name)

    def reference(self) -> dict[str, np.ndarray]:
        """Return the columns that a piece of waiting takes from here: all but `until`."""
        return {name: column for name, column in vars(self).items() if name != "until"}


class Explainer:
    """Everything that the rules need, made once per trace.

    latency: ns by kind of operation, as `launch_latency` returns it
    """

    def __init__(self, trace: Trace, alignment: Alignment, latency: np.ndarray) -> None:
        """Prepare what the rules read that say why a stream was idle, once for all gaps: columns of operations
        (`op_start`, `kind`, ...) and calls (`call_start`, ...) as arrays, and the waits of each lane (stream).

        latency: as `launch_latency` returns it
        """
        self.trace = trace
        self.alignment = alignment
        self.launch_latency = latency
        self.streams = Streams(trace, alignment)
        self.threads = Threads(trace)
        #: Lane -> its operations in the order of issue.
        self.per_lane = lane_operations(trace, alignment.operation_lane)
        operations, calls = trace.operations, trace.calls
        self.kind = operations["kind"].to_numpy()
        self.copy_kind = operations["copy_kind"].to_numpy()
        self.call = operations["call"].to_numpy()
        self.op_start = operations["start_ns"].to_numpy()
        self.op_end = operations["end_ns"].to_numpy()
        self.call_start = calls["start_ns"].to_numpy()
        self.call_end = calls["end_ns"].to_numpy()
        self.call_thread = calls["thread"].to_numpy()
        self.call_kind = calls["kind"].to_numpy()
        #: Per operation, whether it copies between a device and pageable host memory.
        self.pageable = self._copies_of_pageable_memory()
        #: Per operation, the thread (globalTid) that moved it by touching a page of managed memory, -1 for none.
        self.faulting = faulting_threads(trace)
        waits = alignment.wait_calls
        known = waits[(waits["record"] >= 0) & (waits["lane"] >= 0)]
        #: Lane -> (when its waits were issued, behind what each of them puts it).
        self._waits = {int(lane): self._waits_of(rows) for lane, rows in known.groupby("lane")}
        hidden = np.isin(calls["kind"], [CALL["host_function"], CALL["stream_memory_op"]])
        #: Thread -> the starts of its calls that issue work which the trace does not show: host functions and
        #: stream memory operations.  Such work may hold up the operations behind it on its stream.
        self._hidden_work = group(self.call_thread[hidden], self.call_start[hidden])

    @cached_property
    def graph_of_call(self) -> np.ndarray:
        """Per call, the number of the graph that it launches as a whole, -1 for none or an unknown one."""
        out = np.full(len(self.call_start) + 1, -1, np.int64)
        whole = np.flatnonzero(self.kind == KIND["graph"])
        if self.trace.graphs is not None and len(whole):
            # an execution of no known call has the call -1: it writes to the one place too many
            out[self.call[whole]] = self.trace.graphs(
                self.trace.operations["row"].to_numpy()[whole]
            )
        return out[:-1]

    def _copies_of_pageable_memory(self) -> np.ndarray:
        """Return, per operation, whether it copies between a device and pageable host memory."""
        copies = np.flatnonzero(self.kind == KIND["memcpy"])
        with_host = np.isin(self.copy_kind[copies], _COPY_DEVICE_KINDS)
        memory = host_side(self.trace.operations, copies)
        pageable = np.zeros(len(self.kind), dtype=bool)
        pageable[copies] = with_host & (memory == PAGEABLE)
        return pageable

    def _waits_of(self, waits: pd.DataFrame) -> tuple[np.ndarray, _Behind]:
        """Return what the waits (cudaStreamWaitEvent) of one lane (stream) wait for: (when each wait was issued (ns), behind
        which work it puts the lane, and until when).  Both are sorted by the time of issue.

        waits: rows of `alignment.wait_calls` with a known record

        A wait puts the lane behind the operation right before its record, until the time of the record; or behind the
        record itself, if no operation ended right before that.
        """
        records = self.alignment.records
        issue = self.call_start[waits["call"].to_numpy()]
        order = np.argsort(issue, kind="stable")
        record = waits["record"].to_numpy()[order]
        inferred = waits["inferred"].to_numpy()[order]
        operation = self._ended_before(record)
        behind = _Behind(
            until=records["t_ns"].to_numpy()[record],
            ref_kind=pick(self.kind, operation, REF["event"]),
            ref=np.where(operation >= 0, operation, record),
            detail=np.where(inferred, DETAIL["dependency-inferred"], DETAIL["dependency"]),
            lane=records["lane"].to_numpy()[record],
        )
        return issue[order], behind

    def _ended_before(self, records: np.ndarray) -> np.ndarray:
        """Return, per record of an event, the operation right behind which it lies on its own stream: of those that were
        issued before the record, the one that ends last.

        This is what a wait for the record waits for; -1 where the record lies later than
        _RIGHT_BEHIND_NS after the operation, so that something else held it up.

        host     [launch A] [launch B] [record]
        stream      AAAAA      BBBBBBBBBBBBBBBBR        R lies right behind B

        records: positions in the alignment's records
        """
        table = self.alignment.records
        lane = table["lane"].to_numpy()[records]
        call = table["call"].to_numpy()[records]
        time = table["t_ns"].to_numpy()[records]
        operation = np.full(len(records), -1)
        for number, rows in group(lane, np.arange(len(records))).items():
            ops = self.per_lane.get(number)
            if ops is None:
                continue
            recorded = pick(self.call_start, call[rows], BEFORE_ALL)
            ends_last, end = _last_to_end(ops, recorded)
            right_behind = (
                time[rows] - end <= _RIGHT_BEHIND_NS
            )  # False for no operation: BEFORE_ALL
            operation[rows] = np.where(right_behind, ends_last, -1)
        return operation

    def explain(self, gaps: Gaps) -> list[Pieces]:
        """Return why streams were idle in these gaps: pieces of time, each with a cause, that tile every gap exactly, in no
        order.

        P is the operation before a gap, N the one after it, or the record that ends the window.  The rules are those of
        docs/lab/attribution.md.  They come in the order in which things happen in a gap: P's copy call returns, the host
        does something else, it issues N, N waits for other work, N is on its way, N is late.  Each gives what lies before a
        certain time, and has no piece yet (`tiling.since`), to one cause; so none has to ask what an earlier one gave.

        gap      |--------------------------------------|N
        pieces   [staging of P)[host      )[call)[queued)[launch latency)      rules 5, 10 to 15, 9, 6, 8
        """
        tiling = _Tiling(gaps)
        next_kind = pick(self.kind, gaps.next, REF["event"])
        points_to_next = {"ref_kind": next_kind, "ref": gaps.ref}
        # rule 5, staging: P's copy call has not returned
        self._give_staging_of_previous(tiling)
        # rule 16, unknown: when N was issued is not known, and so nothing about the gap is
        tiling.give_all(
            ~gaps.known, CAUSE["unknown"], **points_to_next, detail=DETAIL["no-api-row"]
        )
        # rules 10 to 15, host: N has not been issued
        self._give_host(tiling)
        # rule 9, the call that issues N; for a copy of pageable memory rules 6 and 5 (N's side)
        behind = self._dependency(gaps)
        self._give_call(tiling, behind, next_kind)
        # rule 6, queued: N has been issued, and waits for other work; first for what the trace does not show,
        # of which nobody knows when it ended
        is_hidden = self._behind_host_function(gaps)
        tiling.give_all(
            is_hidden, CAUSE["unknown"], **points_to_next, detail=DETAIL["host-function"]
        )
        tiling.give(behind.until, CAUSE["queued"], **behind.reference())
        # rule 8, launch latency: N is on its way
        in_graph = self.in_one_graph(gaps.previous_on_lane, gaps.next)
        in_graph |= self.in_one_graph(gaps.previous_on_stream, gaps.next)
        self._give_underway(tiling, points_to_next, in_graph)
        # rule 7, contention: N is late
        return tiling.pieces + self._contended(gaps, tiling.since, in_graph)

    def _give_call(self, tiling: _Tiling, behind: _Behind, next_kind: np.ndarray) -> None:
        """Explain each gap's time up to the end of the call that issues N, the operation after the gap or the record that
        ends the window.

        N is a copy of pageable memory: while its stream waits for other work the copy is held up (rule 6, `queued`), and
                                        then the call stages memory (rule 5, `memcpy`)
        N is another operation:         its launch call (rule 9, `api_launch`)
        N is the end record:            the record's call (rule 9, `event`)

        behind:    per gap, behind which other work N is ordered
        next_kind: per gap, the code of N's kind
        """
        gaps = tiling.gaps
        is_staging = pick(self.pageable, gaps.next, False)
        held_up_until = np.where(is_staging, np.minimum(behind.until, gaps.issue_end), BEFORE_ALL)
        tiling.give(held_up_until, CAUSE["queued"], **behind.reference())
        launching = np.where(gaps.next >= 0, CAUSE["api_launch"], CAUSE["event"])
        tiling.give(
            gaps.issue_end,
            np.where(is_staging, CAUSE["memcpy"], launching),
            ref_kind=np.where(is_staging, next_kind, REF["api"]),
            ref=np.where(is_staging, gaps.next, gaps.issue_call),
            detail=np.where(is_staging, DETAIL["staging"], 0),
        )

    def _give_underway(
        self, tiling: _Tiling, points_to_next: dict[str, np.ndarray], in_graph: np.ndarray
    ) -> None:
        """Apply rule 8: N, the operation after a gap, is on its way to the GPU for the usual latency after its call has
        returned, or after P, the operation before the gap, has ended.  What lies before that time and has no piece yet
        becomes a piece; all of it where N is the record that ends the window, for which nothing else can be said.

        host     [call that issues N)
        gap      [ has pieces       )[on its way   )[ left for rule 7  )N
                                     |-- latency --|

        points_to_next: the columns `ref_kind` and `ref` of N, per gap
        in_graph:       per gap, whether it lies between two nodes of one graph; the node after it
                        is on its way for at least NODE_GAP_NS
        """
        gaps = tiling.gaps
        is_record = gaps.next < 0
        tiling.give_all(is_record, CAUSE["event"], **points_to_next)
        previous_end = pick(self.op_end, gaps.previous_on_lane, BEFORE_ALL)
        ready = np.maximum(gaps.issue_end, previous_end)
        next_kind = pick(self.kind, gaps.next, -1)
        usual_start = ready + pick(self.launch_latency, next_kind, 0)
        # between nodes of a graph; what is looked at may be a part of a gap (a window may begin inside one), and
        # the whole gap begins where P ended
        gap_start = np.where(gaps.previous_on_lane >= 0, previous_end, gaps.start)
        node_start = np.maximum(usual_start, gap_start + NODE_GAP_NS)
        until_node = np.where(in_graph, node_start, BEFORE_ALL)
        detail = DETAIL["between-nodes"]
        tiling.give(until_node, CAUSE["graph"], **points_to_next, detail=detail)
        # all others
        until_start = np.where(in_graph, BEFORE_ALL, usual_start)
        tiling.give(until_start, CAUSE["launch_latency"], **points_to_next)

    def in_one_graph(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Return, per pair of operations, whether both are nodes of one launch of a CUDA graph.

        before, after: positions of operations, -1 for none
        """
        call = pick(self.call, after, -1)
        kind = pick(self.call_kind, call, -1)
        return (kind == CALL["graph_launch"]) & (call == pick(self.call, before, -1))

    def _give_staging_of_previous(self, tiling: _Tiling) -> None:
        """Apply rule 5 to P: a pageable copy has finished on the stream, but its call has not."""
        previous = tiling.gaps.previous_on_lane
        call = pick(self.call, previous, -1)
        staged = pick(self.pageable, previous, False)
        staged &= pick(self.call_start, call, FAR) <= tiling.since
        until = np.where(staged, pick(self.call_end, call, BEFORE_ALL), BEFORE_ALL)
        detail = DETAIL["staging"]
        tiling.give(until, CAUSE["memcpy"], ref_kind=REF["memcpy"], ref=previous, detail=detail)

    def _give_host(self, tiling: _Tiling) -> None:
        """Apply rules 10 to 15: the host has not begun to issue N, and does something else."""
        gaps = tiling.gaps
        of_gaps = tiling.advance(gaps.issue_start)
        gap = of_gaps.window
        thread = gaps.issue_thread[gap]
        spans = replace(of_gaps, window=gaps.window[gap])
        for number, rows in group(thread, np.arange(len(thread))).items():
            tiling.pieces += host_pieces(self.threads, number, spans.take(rows))

    def _contended(self, gaps: Gaps, since: np.ndarray, in_graph: np.ndarray) -> list[Pieces]:
        """Apply rule 7: return pieces of what the other rules left of each gap, in which N, the operation after the gap,
        is late.  While other streams keep busy what it needs, it waits for these.

        A kernel or graph competes with kernels and graphs for the device, a copy with copies of
        its own direction for the copy engine.

        since:    per gap, when (ns) the part begins that has no piece yet
        in_graph: per gap, whether it lies between two nodes of one graph

        what is left of a gap      [                     )N      N is a kernel
        kernels of other streams      [K1    )   [K2  )
        pieces                     [  )[K1    )[ )[K2  )[)       waits for K1, for K2; else launch latency
        """
        pieces = []
        late_gaps = np.flatnonzero(since < gaps.end)
        rival_kind = self._rival_kind(gaps.next)
        for lane, on_lane in group(gaps.lane[late_gaps], late_gaps).items():
            for kind, rows in group(rival_kind[on_lane], on_lane).items():
                blocks = self.streams.rivals(lane, kind)
                tiles = tile(since[rows], gaps.end[rows], blocks.start, blocks.end)
                rival = pick(blocks.ref, tiles.block, -1)
                gap = rows[tiles.span]
                spans = Spans(gaps.window[gap], tiles.start, tiles.end)
                pieces.append(self._behind_rivals(spans, rival, gaps.next[gap], in_graph[gap]))
        return pieces

    def _rival_kind(self, operation: np.ndarray) -> np.ndarray:
        """Return, per operation, which others compete with it: RIVAL_KERNELS, the direction of a copy, or NO_RIVAL.

        operation: positions, -1 for none
        """
        kind = pick(self.kind, operation, -1)
        direction = pick(self.copy_kind, operation, -1)
        of_copies = np.where(kind == KIND["memcpy"], direction, NO_RIVAL)
        is_kernel = np.isin(kind, [KIND["kernel"], KIND["graph"]])
        return np.where(is_kernel, RIVAL_KERNELS, of_copies)

    def _behind_rivals(
        self, spans: Spans, rival: np.ndarray, following: np.ndarray, in_graph: np.ndarray
    ) -> Pieces:
        """Return a piece for each span, in which N, the operation after a gap, is late: `queued` where it waits for an
        operation of another lane; else launch latency, or `unknown` between two nodes of a graph.

        rival:     the position of the other operation, -1 where nothing competes with N
        following: the position of N
        in_graph:  whether N follows another node of the same graph
        """
        has_rival = rival >= 0
        cause_alone = np.where(in_graph, CAUSE["unknown"], CAUSE["launch_latency"])
        detail_alone = np.where(in_graph, DETAIL["between-nodes"], 0)
        ref = np.where(has_rival, rival, following)
        return make(
            spans,
            np.where(has_rival, CAUSE["queued"], cause_alone),
            ref_kind=self.kind[ref],
            ref=ref,
            detail=np.where(has_rival, DETAIL["contention"], detail_alone),
            lane=pick(self.alignment.operation_lane, rival, -1),
        )

    def _behind_host_function(self, gaps: Gaps) -> np.ndarray:
        """Return, per gap, whether a host function or a stream memory operation was issued to the stream of N, the
        operation after the gap, between N and the operation before it.

        The trace does not say on which stream such a call works, nor when what it holds up goes on.
        A call counts for N's stream if the thread's operations before and after it were both issued
        to this stream.
        """
        out = np.zeros(len(gaps.window), dtype=bool)
        for number, hidden_work in self._hidden_work.items():
            rows = np.flatnonzero(gaps.issue_thread == number)
            previous = gaps.previous_on_stream[rows]
            previous_call = pick(self.call, previous, -1)
            by_same_thread = pick(self.call_thread, previous_call, -1) == number
            previous_issue = pick(self.call_start, previous_call, BEFORE_ALL)
            first = np.searchsorted(hidden_work, previous_issue)
            stop = np.searchsorted(hidden_work, gaps.issue_start[rows])
            out[rows] = (stop > first) & (by_same_thread | (previous < 0))
        return out

    def _dependency(self, gaps: Gaps) -> _Behind:
        """Return, per gap, behind what N is ordered (rule 6): of all that, what ends last."""
        latest = _Behind.nobody(len(gaps.window))
        for stream in distinct(gaps.stream_of_next).tolist():
            rows = np.flatnonzero(gaps.stream_of_next == stream)
            if stream in self._waits:
                self._put_waits(latest, gaps, stream, rows)
            for other_lane in self.default_stream_partners(stream):
                self._put_default_stream(latest, gaps, other_lane, rows)
        return latest

    def _put_waits(self, latest: _Behind, gaps: Gaps, stream: int, rows: np.ndarray) -> None:
        """Write into `latest` what gaps wait for by waits that were issued to the stream of N, the operation after a gap,
        between N and the operation before it.

        stream: N's lane
        rows:   positions of the gaps whose N is on this lane
        """
        issue, behind = self._waits[stream]
        previous_call = pick(self.call, gaps.previous_on_stream[rows], -1)
        previous_issue = pick(self.call_start, previous_call, BEFORE_ALL)
        first = np.searchsorted(issue, previous_issue, side="right")
        stop = np.searchsorted(issue, gaps.issue_start[rows], side="left")
        owner, wait = ragged(first, np.maximum(stop - first, 0))
        # of a gap's waits the one that lasts longest comes last and so stays
        order = np.argsort(behind.until[wait], kind="stable")
        gap = rows[owner[order]]
        latest.put(gap, behind.take(wait[order]))

    def _put_default_stream(
        self, latest: _Behind, gaps: Gaps, other_lane: int, rows: np.ndarray
    ) -> None:
        """Write into `latest` what gaps wait for by the order of the legacy default stream: the operation of another lane
        (stream) that ends last, of those that were issued before the operation after the gap (N).

        Only what ends later than what `latest` holds already is written.

        host            [launch D on the default stream] [launch N]
        default stream      DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD
        N's stream      PPP|  gap                               |NNN       the gap waits for D

        other_lane: the default stream's; or where N is on the default stream itself, that of a blocking stream
        rows:       positions of the gaps
        """
        ends_last, end = _last_to_end(self.per_lane[other_lane], gaps.issue_start[rows])
        later = np.flatnonzero(end > latest.until[rows])
        operation = ends_last[later]
        behind = _Behind(
            until=end[later],
            ref_kind=self.kind[operation],
            ref=operation,
            detail=np.full(len(later), DETAIL["default-stream-order"]),
            lane=np.full(len(later), other_lane),
        )
        latest.put(rows[later], behind)

    def default_stream_partners(self, lane: int) -> list[int]:
        """Return the lanes that the legacy default stream's implicit order puts behind or before this
        lane: all blocking streams of its context for the default stream, and the reverse."""
        lanes = self.alignment.lanes
        flag = lanes["flag"].to_numpy()
        partner = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}.get(flag[lane])
        if partner is None:
            return []
        process, context = lanes["process"].to_numpy(), lanes["context"].to_numpy()
        in_context = (process == process[lane]) & (context == context[lane])
        partners = np.flatnonzero(in_context & (flag == partner))
        return [number for number in partners.tolist() if number in self.per_lane]


def _last_to_end(
    operations: LaneOperations, before_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return, per time, (the operation that ends last of those of a lane that were issued before this time, when it ends).
    Where none was issued before, these are -1 and BEFORE_ALL.

    operations   A    B    C
    issued at   10   20   30
    ends at     45   40   60         before 25: A, at 45
    reach_ns    45   45   60         the latest end so far: the first operation that has 45 is the one that ends then
    """
    times = operations.times
    issued = np.searchsorted(times.call_start_ns, before_ns)  # how many
    end = pick(times.reach_ns, issued - 1, BEFORE_ALL)
    ends_last = operations.position[np.searchsorted(times.reach_ns, end)]
    return np.where(issued > 0, ends_last, -1), end


def stream_pieces(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """Return what streams did in these spans of windows: pieces that tile the spans exactly, one for each block that the
    window's lane executed, and some for each gap between blocks, by why the lane was idle there.

    window's lane   KKKKKK    KKKK      KKKK
    span              [                    )
    pieces            [K )[  )[K )[ )[  )[K)

    What a gap waits for depends on what closes the span's window.
    """
    pieces, gaps = [], []
    lane_of_span = windows.lane[spans.window]
    for lane, rows in group(lane_of_span, np.arange(len(lane_of_span))).items():
        blocks = explainer.streams.blocks(lane)
        tiles = tile(spans.start[rows], spans.end[rows], blocks.start, blocks.end)
        span = rows[tiles.span]
        stretches = Spans(spans.window[span], tiles.start, tiles.end)
        busy = np.flatnonzero(tiles.block >= 0)
        idle = np.flatnonzero(tiles.block < 0)
        operation = blocks.ref[tiles.block[busy]]
        kind = explainer.kind[operation]  # codes of causes begin with the kinds of operations
        pieces.append(make(stretches.take(busy), kind, ref_kind=kind, ref=operation))
        gaps.append(_gaps_of_lane(explainer, windows, lane, stretches.take(idle)))
    return join([*pieces, *explainer.explain(Gaps.joined(gaps))] if gaps else [])


def _gaps_of_lane(explainer: Explainer, windows: Windows, lane: int, idle: Spans) -> Gaps:
    """Return what the rules have to know of each idle stretch of one lane (stream): P, the operation before it; N, what
    comes after it; and the call that issues N.

    idle: the stretches, each inside one window

    N is the operation behind the stretch if it was issued before the window's end record, and this
    record itself otherwise.

    window   [----------------------------R
    lane        PPPP   idle   NNNN   idle     OOOO       O was issued behind R: N of the second stretch is R
    """
    window = idle.window
    blocks = explainer.streams.blocks(lane)
    # nothing runs in a stretch: what precedes and follows its start precedes and follows all of it
    previous = _block_before(blocks, idle.start)
    following = _block_after(blocks, idle.start)
    is_next = _is_issued_inside(explainer, windows, window, following)
    next_operation = np.where(is_next, following, -1)
    stream_of_next, previous_on_stream = _stream_of_next(
        explainer, lane, idle, next_operation, previous
    )
    issue = _issue_of_next(explainer, windows, window, next_operation)
    return Gaps(
        window=window,
        start=idle.start,
        end=idle.end,
        lane=np.full(len(window), lane),
        next=next_operation,
        stream_of_next=stream_of_next,
        previous_on_lane=previous,
        previous_on_stream=previous_on_stream,
        issue_start=issue.start,
        issue_end=issue.end,
        issue_thread=issue.thread,
        issue_call=issue.call,
        known=issue.known,
        ref=np.where(is_next, following, windows.record[window]),
    )


class _Issue(NamedTuple):
    """How what ends each gap was issued: the columns `issue_start`, `issue_end`, `issue_thread`, `issue_call` and
    `known` of `Gaps`."""

    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    call: np.ndarray
    known: np.ndarray


def _issue_of_next(
    explainer: Explainer, windows: Windows, window: np.ndarray, next_operation: np.ndarray
) -> _Issue:
    """Return how N was issued, what comes after a gap (an operation or the window's end record), for each of some gaps:

    N                              start, end             thread                 known
    operation with a call          of this call           of this call           yes
    moved page of managed memory   FAR                    that touched it        yes
    operation without a call       mean nothing           means nothing          no
    end record                     of the record's call   of the record's call   if the trace has this call

    A page is moved when a thread touches it, without a call.  At FAR the whole gap lies before the issue, so that what
    this thread did explains all of it.  Where N's issue is not known, rule 16 gives the whole gap to `unknown`.

    window:         per gap, the number of its window
    next_operation: per gap, N; -1 where it is the end record
    """
    # as if N were the end record; then the rows are replaced in which it is an operation
    call = windows.close_call[window].astype(np.int64)
    start = windows.close_ns[window].astype(np.int64)
    end = windows.close_end_ns[window].astype(np.int64)
    thread = windows.close_thread[window].astype(np.int64)
    known = (next_operation < 0) & (call >= 0)
    next_call = pick(explainer.call, next_operation, -1)
    with_call = np.flatnonzero(next_call >= 0)
    call[with_call] = next_call[with_call]
    start[with_call] = explainer.call_start[call[with_call]]
    end[with_call] = explainer.call_end[call[with_call]]
    thread[with_call] = explainer.call_thread[call[with_call]]
    known[with_call] = True
    faulting = pick(explainer.faulting, next_operation, -1)  # -1 also for all that has a call
    by_touch = np.flatnonzero(faulting >= 0)
    start[by_touch] = FAR
    end[by_touch] = FAR
    thread[by_touch] = faulting[by_touch]
    known[by_touch] = True
    return _Issue(start, end, thread, call, known)


def _stream_of_next(
    explainer: Explainer,
    lane: int,
    idle: Spans,
    next_operation: np.ndarray,
    previous: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each idle stretch of one lane, (the lane to which the operation after it was issued, the operation
    before it there).  That differs from the lane itself where this stands for several streams: waits apply to one.

    next_operation, previous: per stretch, the operation after it and the one before it on `lane`, -1 for none
    """
    stream = np.full(len(previous), lane)
    previous_on_stream = previous.copy()
    if lane in explainer.streams.members:
        with_next = np.flatnonzero(next_operation >= 0)
        stream[with_next] = explainer.alignment.operation_lane[next_operation[with_next]]
        for number, rows in group(stream[with_next], with_next).items():
            on_stream = _block_before(explainer.streams.blocks(number), idle.start[rows])
            previous_on_stream[rows] = on_stream
    return stream, previous_on_stream


def _is_issued_inside(
    explainer: Explainer, windows: Windows, window: np.ndarray, operation: np.ndarray
) -> np.ndarray:
    """Return, per row, whether an operation was issued before the end of a window; False for no operation.

    window:    the number of the window
    operation: the position of the operation, -1 for none
    """
    call = pick(explainer.call, operation, -1)
    issue = pick(explainer.call_start, call, FAR)
    issued_in_time = issue < windows.close_ns[window]
    # an operation that runs inside the window was issued before the end, even if the trace does not
    # have its call
    runs_inside = pick(explainer.op_start, operation, FAR) < windows.end[window]
    return (operation >= 0) & np.where(call >= 0, issued_in_time, runs_inside)


def _block_before(blocks: Blocks, time: np.ndarray) -> np.ndarray:
    """Return, per time (ns), the operation of the last block that had ended by then, -1 for none."""
    last = np.searchsorted(blocks.end, time, side="right") - 1
    return pick(blocks.ref, last, -1)


def _block_after(blocks: Blocks, time: np.ndarray) -> np.ndarray:
    """Return, per time (ns), the operation of the first block that begins from then on, -1 for none."""
    first = np.searchsorted(blocks.start, time, side="left")
    return pick(blocks.ref, np.where(first < len(blocks.start), first, -1), -1)


def faulting_threads(trace: Trace) -> np.ndarray:
    """Return, per operation, the thread that touched a page of managed memory and so moved it.

    No call issues such a move.  While the GPU runs nothing, only the host can touch a page; the thread
    is known if its process has only one.  -1 for all other operations.
    """
    operations = trace.operations
    out = np.full(len(operations), -1, np.int64)
    pages = np.isin(operations["copy_kind"].to_numpy(), MIGRATIONS)
    moved = np.flatnonzero(pages & (operations["call"].to_numpy() < 0))
    if not len(moved):
        return out
    process = operations["process"].to_numpy()
    threads = distinct(trace.calls["thread"].to_numpy())
    for number in distinct(process[moved]).tolist():
        candidates = threads[process_of(threads) == number]
        if len(candidates) == 1:
            out[moved[process[moved] == number]] = candidates[0]
    return out


def host_pieces(threads: Threads, thread: int, spans: Spans) -> list[Pieces]:
    """Return pieces that tile these spans, in no order, by what a thread did meanwhile: the outermost call that is open,
    else the work of the profiler, else the innermost NVTX range, else nothing that the trace knows of.

    thread: globalTid
    spans:  at least one

    span     [                         )
    call        [launch)
    range       [ step            )
    pieces   [ )[launch)[step     )[   )      host, api_launch, host in the range, host
    """
    low, high = spans.start.min(), spans.end.max()
    calls = threads.calls(thread, low, high)
    profiler, ranges = (blocks.between(low, high) for blocks in threads.beside_calls(thread))
    pieces = []
    unexplained = spans
    # each layer explains what the layers before it have left
    for ref_kind, blocks in (("api", calls), ("overhead", profiler), ("nvtx", ranges)):
        if not len(blocks.start):
            continue
        tiles = tile(unexplained.start, unexplained.end, blocks.start, blocks.end)
        stretches = Spans(unexplained.window[tiles.span], tiles.start, tiles.end)
        inside = np.flatnonzero(tiles.block >= 0)
        ref = blocks.ref[tiles.block[inside]]
        cause = threads.cause[ref] if ref_kind == "api" else _CAUSE_BESIDE_CALLS[ref_kind]
        pieces.append(make(stretches.take(inside), cause, ref_kind=REF[ref_kind], ref=ref))
        unexplained = stretches.take(np.flatnonzero(tiles.block < 0))
    return [*pieces, make(unexplained, CAUSE["host"])]


def launch_latency(trace: Trace) -> np.ndarray:
    """Return, by the code of a kind of operation (kernel, copy, ...), the median launch latency in this trace: int64 ns.

    call     [ launch )
    device             |--- latency ---[ operation )      idle since the call began

    The latency of an operation lies between the end of the call that issues it and its start on the
    GPU; it counts as 0 where the operation starts before its call returns.  Only operations count
    before which the whole device was idle.  A kind with fewer than _ENOUGH of them gets
    _FALLBACK_NS.
    """
    operations = trace.operations
    start = operations["start_ns"].to_numpy()
    kind = operations["kind"].to_numpy()
    call = operations["call"].to_numpy()
    operations_counted = np.flatnonzero(_launched_to_idle_device(trace))
    call_end = trace.calls["end_ns"].to_numpy()[call[operations_counted]]
    latency = np.maximum(start[operations_counted] - call_end, 0)
    by_kind = [latency[kind[operations_counted] == code] for code in range(len(OPERATION_KINDS))]
    usual = [np.median(ns) if len(ns) >= _ENOUGH else _FALLBACK_NS for ns in by_kind]
    return np.array(usual, dtype=np.int64)


def _launched_to_idle_device(trace: Trace) -> np.ndarray:
    """Return, per operation, whether its device ran nothing from the moment the call began that issued it;
    False where that call is not known."""
    operations = trace.operations
    end = operations["end_ns"].to_numpy()
    call = operations["call"].to_numpy()
    device = operations["device"].to_numpy()
    call_start = trace.calls["start_ns"].to_numpy()
    idle = np.zeros(len(end), dtype=bool)
    for number in distinct(device).tolist():
        rows = np.flatnonzero(device == number)  # sorted by start
        latest_end = np.maximum.accumulate(end[rows])
        all_ended = np.append(np.iinfo(np.int64).min, latest_end[:-1])  # before each of them
        issue = pick(call_start, call[rows], 0)
        idle[rows] = (call[rows] >= 0) & (all_ended <= issue)
    return idle
