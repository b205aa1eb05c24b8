"""Compared pairs read from a trace, drawn as the order of the calls.

C creates an event, X destroys one, R records one by cudaEventRecordWithFlags (torch), R5 by
cudaEventRecord, of which the trace has a row that names event 5; w issues work, p a pinned copy, . is
another call; with the number of an event: Q a query (Q1! "not ready"), W a wait of the host, O a wait
of a stream; D waits for the device, S7 for stream 7, M is a copy that waits, E asks
cudaEventElapsedTime; ( ) capture; q is a query of which the trace holds the synchronisation row alone.
A call of thread 2 is 2:R, one of process B is B:R.  Records are on stream 7, those of thread 2 on stream 8.  Queries next to each other are 100 ns
apart, all other calls 2 us.  Records are named a, b, c ... by order.
"""

from __future__ import annotations

import re
import tarfile
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from recordings import DATA, unpack

import nsysalign
from nsysalign.model import CALL
from nsysalign.model import KIND as OPERATION
from nsysalign.place.align import align
from nsysalign.place.pairs import pairs_in_trace
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace

KIND = {"R": "record", "Q": "query_event", "W": "sync_event", "O": "wait_event", "w": "launch",
        "p": "memcpy", "M": "memcpy", "D": "sync_device", "S": "sync_stream"}  # fmt: skip
NAMES = {"C": "cudaEventCreateWithFlags", "X": "cudaEventDestroy", "E": "cudaEventElapsedTime",
         "(": "cudaStreamBeginCapture", ")": "cudaStreamEndCapture", ".": "cudaMalloc", "M": "cudaMemcpy",
         "p": "cudaMemcpyAsync", "R": "cudaEventRecordWithFlags"}  # fmt: skip


def drawn(text: str) -> tuple[SimpleNamespace, dict[int, int], np.ndarray]:
    """The trace of such a program, the events that its rows name, and the streams."""
    calls, syncs, named, lanes, now, last = [], [], {}, [], 0, ""
    for n, token in enumerate(text.split()):
        who, what, event, failed = re.fullmatch(r"(?:(\w):)?(.)(\d*)(!?)", token).groups()
        process = 9 if who == "B" else 8
        now += 200 if last == what and what in "Qq" else 2_000
        last = what
        if what == "q":
            syncs.append((-1, int(event), now, now + 100, process, -1, n))
            continue
        name = (
            list(NAMES).index(what) if what in NAMES and (what, bool(event)) != ("R", True) else 99
        )
        thread, here = process * 100 + (2 if who == "2" else 1), len(calls)
        kind = CALL[KIND.get(what, "other")]
        calls.append((now, now + 100, process, thread, kind, name, 600 if failed else 0, here))
        lanes.append(int(event) if what == "S" else (8 if who == "2" else 7) if what == "R" else -1)
        if what == "R" and event:
            named[here] = int(event)
        elif event and what != "S":
            syncs.append((here, int(event), now, now + 100, process, -1, n))
    columns = ["start_ns", "end_ns", "process", "thread", "kind", "name_id", "return_value", "outer"]  # fmt: skip
    table = pd.DataFrame(calls, columns=columns, dtype="int64")
    issued = np.flatnonzero(table["kind"].isin([CALL["launch"], CALL["memcpy"]]))
    copies = (table["kind"] == CALL["memcpy"]).to_numpy()[issued]
    work = {
        "call": issued,
        "process": table["process"].to_numpy()[issued],
        "name_id": -1,
        "dst_kind": 2,
    }
    work |= {
        "kind": np.where(copies, OPERATION["memcpy"], OPERATION["kernel"]),
        "src_kind": copies * 1,
    }
    columns = ["call", "event", "start_ns", "end_ns", "process", "stream", "correlation"]
    trace = SimpleNamespace(
        calls=table,
        syncs=pd.DataFrame(syncs, columns=columns, dtype="int64"),
        operations=pd.DataFrame(work),
        names=dict(enumerate(NAMES.values())),
    )
    return trace, named, np.array(lanes)


def read(text: str) -> tuple[str, str, int]:
    """(pairs by the letters of their records, the reasons of those left out, pairs of libraries)."""
    trace, named, lane = drawn(text)
    records = np.flatnonzero(trace.calls["kind"] == CALL["record"]).tolist()
    letter = dict(zip(records, "abcdefghijklmnopqrstuvwxyz", strict=False))
    found = pairs_in_trace(trace, named, lane)
    ends = zip(found.start, found.end, strict=True)
    return (
        " ".join(letter[a] + letter[b] for a, b in ends),
        "; ".join([*found.left, *found.unclear]),
        found.of_libraries,
    )


@pytest.mark.parametrize(("program", "wanted"), [
    ("C C R1 w R2 W2", "ab"),
    ("C C R1 w R2 D R1 w R2 D", "ab cd"),
    ("C C R1 w R2 S7 R1 w R2 S8", "ab"),                    # the second wait is for another stream
    ("C C R1 w R2 M", "ab"),                                # a copy that waits
    ("C C R1 w R2 Q2! . Q2", "ab"),                         # polled until it is done
    ("C C R1 w R2 Q2!", ""),
    ("C C C R1 w R3 w R2 W2", "ac"),                        # of three, the first two
    ("C C C R1 R2 w R3 D R1 R1", "bc"),                     # of three, the last two
    ("C C . C R1 w R3 w R2 W2", "ac"),                      # a library's own event between the two
    ("C C C C R1 w R2 R3 w R4 D", "ab cd"),
    ("C C C C R1 w R2 w R3 w R4 D", ""),                    # four marks of which two are compared?
    ("C C C C R1 w R2 W2 w R3 w R4 D", "ab cd"),            # each end was waited for at once
    ("C C C C R1 w R3 w R2 w R4 D", "ab cd"),               # an array of starts, one of ends
    ("C C R1 w R2 R1 w R2 W2", "cd"),                       # not each end was waited for
    ("C C R1 w R2 R1 w R2", ""),
    ("C C R1 w R2 O2 W2", ""),                              # orders streams
    ("C C R1 w R1 w R2 W2", ""),                            # records do not alternate
    ("C . C R1 w R2 W2", ""),                               # not created together
    ("C C R1 w 2:R2 W2", ""),                               # by two threads
    ("C C R1 w R2 E", "ab"),                                # its time was asked for: it was done
    ("C C B:C B:C R1 w R2 B:R1 w B:R2 W2 B:W2", "ab cd"),   # two processes, the same numbers
    ("( C C R1 w R2 ) W2", "ab"),
])  # fmt: skip
def test_events_that_rows_name(program, wanted):
    assert read(program)[0] == wanted


@pytest.mark.parametrize(("program", "reason"), [
    ("C C R3 w R4 W4", "numbers in another way"),            # events that nobody created
    ("C C R1 w R2 W2 X X C C R1 w R2 W2", "numbers in another way"),  # used again: no ordinals
    ("C . C R1 w R2 W2", "created apart"),
    ("C C C C R1 w R2 w R3 w R4 D", "in a row with other work"),  # which are compared?
])  # fmt: skip
def test_what_can_be_read_in_two_ways_is_counted(program, reason):
    pairs, left, _ = read(program)
    assert not pairs and reason in left


def test_records_that_no_row_names_are_counted():
    trace, _, lane = drawn("C C R1 w R2 W2 R1 w R2 W2")
    found = pairs_in_trace(trace, {}, lane)
    assert not found.start and found.unclear.total() == 2 and "does not name" in found.notes[0]


def test_in_a_process_that_runs_torch_they_are_of_libraries_and_counted():
    assert read("C C R1 w R2 W2 C R w C R Q3 Q4") == ("cd", "", 1)
    trace, named, lane = drawn("C C R1 w R2 W2")
    trace.names[7], trace.operations["name_id"] = "at::native::vectorized_elementwise_kernel", 7
    found = pairs_in_trace(trace, named, lane)
    assert (found.start, found.of_libraries) == ([], 1)
    assert "1 pair of events that libraries seem to time" in found.notes[0]


@pytest.mark.parametrize(("program", "wanted"), [
    ("C R w C R W2 Q1 Q2", "ab"),
    ("C R w C R . C R w C R W4 Q1 Q2 . Q3 Q4", "ab cd"),       # all at the end
    ("C R w C R w C R W3 Q1 Q2 . Q2 Q3 . Q1 Q3", "ab ac bc"),  # laps
    ("C R w C R W2 Q1 Q2 R w R W2 Q1 Q2 R w R W2 Q1 Q2", "ab cd ef"),     # recorded again
    ("C R w C R R w R R w R W2 Q1 Q2", "ef"),                  # the last one counts
    ("C R w 2:C 2:R w C R 2:C 2:R Q1 Q3 . Q2 Q4", "ac bd"),    # two threads, compared by the first
    ("C R B:C B:R w B:w C R B:C B:R Q1 Q2 B:Q1 B:Q2", "ac bd"),           # the same numbers
    ("C R w C R C R O3 W2 Q1 Q2", "ab"),                       # what orders work is no timing
    ("C R w C R C R w C R Q1 Q2 R O2 R w R Q3 Q4", "ab"),      # the order of a record is known
    ("C R w C R p C R5 Q1 Q2", ""),                            # numbers that count something else
    ("C R p C R Q1 Q2", "ab"),                                 # the program times a pinned copy
    ("C R w C R p R1 Q1 Q2", ""),                              # an allocator's event
    ("C R w C R . R1 Q1 Q2", ""),                              # end before its start
    ("C R w C R D q1 q2 . C R w C R D q3 q4", "ab cd"),
    ("C R w C R D q1 . q2", ""),
    ("C R w C R q1 q2", ""),                    # nothing tells queries from waits
    ("C R w C R D q1 q2 Q1 . Q2", ""),          # this trace does hold queries
])  # fmt: skip
def test_two_queries_are_a_comparison(program, wanted):
    assert read(program)[0] == wanted


@pytest.mark.parametrize("program", [
    "C R w Q1! Q1! Q1! Q1 . Q1",       # a loop that polls
    "C R w C R W2 Q1 . Q2",            # not one after the other
    "C R C R C R w Q1 Q2 Q3",          # an allocator looks what is done
    "C R C R w Q1 Q2 Q1 Q2",           # the same, twice
    "C R C R w Q1 Q1 . Q2 Q2",         # NCCL's watchdog asks twice
    "C R w C R W2",                    # torch events that nobody compares
    "C R w C R W2 Q Q",                # an export without the numbers of events
    "C R w C R W2 Q Q2",               # or without some
])  # fmt: skip
def test_what_is_no_comparison(program):
    assert read(program) == ("", "", 0)


@pytest.mark.parametrize(("program", "reason"), [
    ("C R w C R Q1 Q2 R w R R Q1 Q2", "cannot be told apart"),  # one of them twice, whichever
    ("C R w C R R Q1 Q2", "cannot be told apart"),
    ("C R C R C R C R Q1 Q2 . Q3 Q4 R R Q1 Q2", "cannot be told apart"),  # or the other two
    ("C R C R Q1 Q2 C R C R R R Q3 Q4", "cannot be told apart"),          # or the first two
    ("R w R Q41 Q42", "cannot be told apart"),  # created before the trace began
    ("C R C R Q2 Q1", "before their start"),
    ("( C R w C R ) w Q1 Q2", "into a CUDA graph"),
    ("C R w C R W2 Q1! . Q1 Q2! . Q1 Q2", "polled"),  # not done when first asked
    ("C R w C R W2 Q1 Q2 . Q1", "polled"),            # and asked alone
    ("C p R1 C p R2 w R Q1 Q2", "polled"),            # PyTorch's allocator of pinned memory
    ("C R w C R W2 2:Q1 2:Q2", "a watchdog's"),       # NCCL's asks both events of each collective
    ("C R w 2:C 2:R D q1 q2", "unknown thread"),      # whoever asked: recorded by two threads
])  # fmt: skip
def test_what_is_ambiguous_is_counted(program, reason):
    assert reason in read(program)[1]


def test_two_threads_that_create_events_at_once_do_so_in_either_order():
    trace, named, lane = drawn("C 2:C R 2:R w Q1 Q2")
    assert len(pairs_in_trace(trace, named, lane).start) == 1
    trace.calls.loc[0, "end_ns"] = trace.calls.loc[1, "start_ns"] + 50
    found = pairs_in_trace(trace, named, lane)
    assert not found.start and found.left.total() == 1


def test_a_million_queries_take_time_in_proportion():
    few, many = ("C R w " + "Q3! . " * n + "C R Q1 Q2 C" for n in (20_000, 80_000))
    times = []
    for text in (few, many):
        drawing, begun = drawn(text), time.process_time()
        pairs_in_trace(*drawing)
        times.append(time.process_time() - begun)
    assert times[1] <= 8 * times[0] + 0.1 and times[1] < 5


@pytest.mark.parametrize(("name", "compared", "share"), [
    ("globaltimer_h100", 960, 0.96), ("truth_random1", 753, 1), ("threads_h200", 160, 1), ("truth_event_timestamps", 346, 1),
])  # fmt: skip
def test_recordings_read_without_their_logs(name, compared, share, tmp_path):
    path, log = unpack(name, tmp_path)
    trace = read_trace(path)
    with_log, alone = align(trace, read_event_logs([log])), align(trace, None)

    def windows(a):
        rows, call = a.windows[a.windows["kind"] == "event"], a.records["call"].to_numpy()
        keys = zip(call[rows["start"]].tolist(), call[rows["end"]].tolist(), strict=True)
        return dict(zip(keys, rows.itertuples(), strict=True))

    true, found = windows(with_log), windows(alone)
    assert len(true) == compared and len(true.keys() & found.keys()) >= share * compared
    off = [
        max(abs(true[k].start_ns - w.start_ns), abs(true[k].end_ns - w.end_ns)) <= w.error_ns
        for k, w in found.items()
        if k in true
    ]
    assert np.mean(off) >= 0.95
    analysis = nsysalign.analyze(path)
    events = analysis.intervals[analysis.intervals["kind"] == "event"]
    assert set(events["method"]) == {"inferred"}
    assert any("read from the trace: " in note for note in analysis.notes)


@pytest.mark.parametrize("rank", ["ddp_slow_rank-001", "ddp_slow_rank-002"])
def test_with_a_log_the_pairs_of_libraries_are_a_count(rank, tmp_path):
    """DDP's reducer times itself in every step: these were labels and findings."""
    with tarfile.open(DATA / "ddp_slow_rank.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    analysis = nsysalign.analyze(tmp_path / rank)
    assert not analysis.intervals["library"].any() and len(analysis.labels) == 1
    counts = [n for n in analysis.notes if " pairs of events that libraries seem" in n]
    assert len(counts) == 1 and int(counts[0].split()[0]) >= 4


def test_the_demo_has_no_pair_that_its_recording_has_not(tmp_path):
    """Its trace was cut from `probe` with holes: a number counted across a hole made a pair of
    3.6 s of two events that were never compared."""
    ends = []
    for name in ("demo", "probe"):
        (tmp_path / name).mkdir()
        trace, log = unpack(name, tmp_path / name)
        log = None if name == "demo" else read_event_logs([log])
        windows = align(read_trace(trace), log).windows
        windows = windows[windows["kind"] == "event"]
        ends.append(windows[["start_ns", "end_ns"]].to_numpy())
    far = np.abs(ends[0][:, None] - ends[1][None]).max(axis=2).min(axis=1, initial=0)
    assert (far < 6_000).all()  # both ends lie where one pair of the recording has them


def test_the_reducers_own_timers_are_counted():
    # five events of which four pairs are compared in this order, by DistributedDataParallel alone
    text = "C R w C R w C R C R w C R Q1 Q2 . Q2 Q5 . Q3 Q4 . Q3 Q5"
    pairs, left, of_libraries = read(text)
    assert (pairs, left, of_libraries) == ("", "", 4)
    assert read("C R w C R w C R Q1 Q2 . Q2 Q3")[0]  # a chain of a program's own is none
