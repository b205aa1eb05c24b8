"""Compared pairs read from a trace, drawn as the order of the calls.

C creates an event, R records one, w issues work, . is another call; with the number of an event: Q
a query (Q1! "not ready"), W a wait of the host (V: by the driver API), O a wait of a stream; E asks
cudaEventElapsedTime; ( ) capture; q is a query of which the trace holds the synchronisation row alone.  A call of thread 2 is 2:R, one of process B is B:R.  Queries
next to each other are 100 ns apart, all other calls 2 us.  Records are named a, b, c ... by order.
"""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from recordings import unpack

import nsysalign
from nsysalign.model import CALL
from nsysalign.place.pairs import ELAPSED, QUERIED, UNASKED, WAITED, pairs_in_trace
from nsysalign.place.solve import align
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace

KIND = {"R": "record", "Q": "query_event", "W": "sync_event", "V": "sync_event", "O": "wait_event",
        "w": "launch", "D": "sync_device"}  # fmt: skip
NAMES = {"C": "cudaEventCreateWithFlags", "E": "cudaEventElapsedTime", "V": "cuEventSynchronize",
         ".": "cudaMalloc", "(": "cudaStreamBeginCapture", ")": "cudaStreamEndCapture"}  # fmt: skip


def drawn(text: str) -> SimpleNamespace:
    """The trace of such a program."""
    calls, syncs, at, last = [], [], 0, ""
    for n, token in enumerate(text.split()):
        who, what, event, failed = re.fullmatch(r"(?:(\w):)?(.)(\d*)(!?)", token).groups()
        process = 9 if who == "B" else 8
        at += 200 if last == what and what in "Qq" else 2_000
        last = what
        if what == "q":
            syncs.append((-1, int(event), at, at + 100, process, -1, n))
            continue
        kind, name = CALL[KIND.get(what, "other")], list(NAMES).index(what) if what in NAMES else 9
        thread = process * 100 + (2 if who == "2" else 1)
        here = len(calls)
        calls.append((at, at + 100, process, thread, kind, name, 600 if failed else 0, here))
        if event:
            syncs.append((here, int(event), at, at + 100, process, -1, n))
    columns = [
        "start_ns",
        "end_ns",
        "process",
        "thread",
        "kind",
        "name_id",
        "return_value",
        "outer",
    ]
    table = pd.DataFrame(calls, columns=columns, dtype="int64")
    launches = np.flatnonzero(table["kind"] == CALL["launch"])
    return SimpleNamespace(
        calls=table,
        syncs=pd.DataFrame(
            syncs,
            columns=["call", "event", "start_ns", "end_ns", "process", "stream", "correlation"],
            dtype="int64",
        ),
        operations=pd.DataFrame({"call": launches}, dtype="int64"),
        names=dict(enumerate(NAMES.values())),
    )


def read(text: str, numbers: str = ""):
    """(pairs by the letters of their records, how they are known, the reasons of those left
    out)."""
    trace = drawn(text)
    records = np.flatnonzero(trace.calls["kind"] == CALL["record"]).tolist()
    letter = dict(zip(records, "abcdefghijklmnopqrstuvwxyz", strict=False))
    found = pairs_in_trace(trace, dict(zip(records, map(int, numbers.split()), strict=False)))
    ends = zip(found.start, found.end, strict=True)
    return " ".join(letter[a] + letter[b] for a, b in ends), set(found.how), found.left


@pytest.mark.parametrize(("program", "wanted"), [
    ("C R w C R W2 Q1 Q2", "ab"),
    ("C R w C R . C R w C R W4 Q1 Q2 . Q3 Q4", "ab cd"),       # all at the end
    ("C R w C R w C R W3 Q1 Q2 . Q2 Q3 . Q1 Q3", "ab ac bc"),  # laps
    ("C R w C R W2 Q1 Q2 R w R W2 Q1 Q2 R w R W2 Q1 Q2", "ab cd ef"),      # recorded again
    ("C R C R C R C R R R R R W4 Q1 Q2 . Q3 Q4", "ef gh"),     # and again, four of them
    ("C R w C R R w R R w R W2 Q1 Q2", "ef"),                  # the last one counts
    # recorded again, and compared with one start, or two, that came after the first time
    ("C R w C R Q1 Q2 C R C R Q3 Q4 R w R Q1 Q2 . Q3 Q1 . Q3 Q2", "ab cd ce cf ef"),
    ("C R w C R Q1 Q2 C R C R Q3 Q4 R w R Q1 Q2 . Q3 Q1 . Q3 Q2 . Q4 Q1 . Q4 Q2",
     "ab cd ce cf de df ef"),
    # libraries created events out of sight
    ("C R w C R Q1 Q7 R R Q1 Q7", "ab cd"),
    ("R w R Q41 Q42 R w R Q41 Q42", "ab cd"),                  # created before the trace began
    ("C R w 2:C 2:R w C R 2:C 2:R Q1 Q3 . Q2 Q4", "ac bd"),    # two threads, compared by the first
    ("C R B:C B:R w B:w C R B:C B:R Q1 Q2 B:Q1 B:Q2", "ac bd"),            # the same numbers
    ("C R w C R C R O3 W2 Q1 Q2", "ab"),                       # what orders work is no timing
    ("C R w C R W2 Q1! . Q1 Q2! . Q1 Q2", "ab"),               # not done when first asked
    ("C R w C R C R w C R Q109 Q110 . Q111 Q112", "ab cd"),    # the trace begins after 108 events
])  # fmt: skip
def test_two_queries_are_a_comparison(program, wanted):
    assert read(program) == (wanted, {QUERIED}, {})


@pytest.mark.parametrize("program", [
    "C R w Q1! Q1! Q1! Q1 . Q1",       # a loop that polls
    "C R w C R W2 Q1 . Q2",            # not one after the other
    "C R C R C R w Q1 Q2 Q3",          # an allocator looks what is done
    "C R C R w Q1 Q2 Q1 Q2",           # the same, twice
    "C R C R w Q1 Q1 . Q2 Q2",         # NCCL's watchdog asks twice
    "C R w C R W2",                    # torch events that nobody compares
    "R W5 w R W6 w R W5",              # a library waits for its own work
    "C C R O1 w R O2 w R O1",          # or lets a stream wait for it
    "C C R R W2",                      # no work between
    "C C C R w R w R W1 W2 W3",        # one for each of three streams, and a wait for all
    "C R w C R",                       # the trace ends before they are compared
    "C R w C R W2 Q Q",                # an export without the numbers of events
    "C R w C R W2 Q Q2",               # or without some
])  # fmt: skip
def test_what_is_no_comparison(program):
    assert read(program) == ("", set(), {})


@pytest.mark.parametrize(("program", "reason"), [
    ("C R w C R Q1 Q2 R w R R Q1 Q2", "cannot be told apart"),  # one of them twice, whichever
    ("C R w C R R Q1 Q2", "cannot be told apart"),
    ("Q41 Q42", "cannot be told apart"),  # the trace begins between the records and the queries
    ("C R C R Q2 Q1", "before their start"),
    ("( C R w C R ) w Q1 Q2", "into a CUDA graph"),
    ("C C C R w R w R . E", "by cudaEventElapsedTime"),  # any two of three
    ("R w R . E", "by cudaEventElapsedTime"),  # created before the trace began, perhaps with more
    ("C C R w 2:R . E", "by cudaEventElapsedTime"),
])  # fmt: skip
def test_what_is_ambiguous_is_said(program, reason):
    _, _, left = read(program)
    assert [reason in text for text in left] == [True] and sum(left.values()) == 1


def test_two_threads_that_create_events_at_once_do_so_in_either_order():
    trace = drawn("C 2:C R 2:R w Q1 Q2")
    assert len(pairs_in_trace(trace, {}).start) == 1
    trace.calls.loc[0, "end_ns"] = trace.calls.loc[1, "start_ns"] + 50
    found = pairs_in_trace(trace, {})
    assert not found.start and sum(found.left.values()) == 1


def test_event_rows_tell_which_event_a_record_is_of():
    assert read("C R w C R R w R Q1 Q2 Q2 Q1", "1 2 1 2")[0] == ""  # a run that is no list of pairs
    assert read("C R w C R R Q1 Q2", "1 2 2")[0] == "ac"


def test_event_rows_of_some_records_leave_the_others_to_their_order():
    # nsys 2024.2 writes rows of the records that other streams of a process wait for
    assert read("C R O1 C R w C R R Q2 Q3", "1")[0] == "bc"
    assert read("C R O1 C R w C R R Q2 Q3", "7")[0] == ""  # numbers that count something else


@pytest.mark.parametrize(("program", "numbers", "wanted"), [
    ("C R w C R D q1 q2 . R w R D q1 q2", "", "ab cd"),
    ("C R w 2:C 2:R D q1 q2", "1 2", ""),           # whoever asked: recorded by two threads
    ("C R w C R 2:C 2:R w 2:C 2:R D q1 q2 . q3 q4", "1 2 3 4", "ab cd"),
    ("C R w C R D q1 . q2", "", ""),
    ("C R w C R q1 q2", "", ""),                    # nothing tells queries from waits
    ("C R w C R D q1 q2 Q1 . Q2", "", ""),          # this trace does hold queries
])  # fmt: skip
def test_queries_without_a_call(program, numbers, wanted):
    assert read(program, numbers)[0] == wanted


@pytest.mark.parametrize(("program", "numbers", "wanted", "how"), [
    ("C C R w R W2", "", "ab", WAITED),
    ("C C R w R W2 R w R W2", "", "ab cd", WAITED),
    ("C C R w C C R w R W4 w R W2", "", "ad bc", WAITED),  # nested
    ("C C C R w R W2 E . R w R W2 E", "1 2 1 2", "ab cd", ELAPSED),
    ("C C R w R W2 E . R w R W2", "", "ab", ELAPSED),  # the trace would show the second, too
    ("R w R W7", "6 7", "ab", WAITED),
    ("C C R w R . E", "", "ab", ELAPSED),  # no wait, but there are no other events
    ("C C R R . E . R w R E", "", "ab cd", ELAPSED),
    ("C C R w R W1 W2 . R w R W1 W2", "", "ab cd", WAITED),  # and for the start, first
    ("C C R w R W1 W2 . R w R W1 W2", "1 2 1 2", "ab cd", WAITED),
    ("C C R w R D . R w R D", "1 2 1 2", "ab cd", UNASKED),  # CuPy, C++: a wait for the device
])  # fmt: skip
def test_programs_that_wait_for_the_end_event(program, numbers, wanted, how):
    assert read(program, numbers) == (wanted, {how}, {})


@pytest.mark.parametrize(("program", "numbers"), [
    ("C R w C R D", "1 2"),           # created one by one: what an array waits for (XLA)
    ("C C R w R D O2", "1 2"),        # something waits
    ("C C R . R w D", "1 2"),         # no work between
    ("C C C C R w R D", "1 4"),       # not created together
    ("C C R w R D . C C R w R W4 E", "1 2 3 4"),  # the trace would show that it was asked for
    ("R w R D", "6 7"),               # created before the trace began, nobody knows how
])  # fmt: skip
def test_records_for_which_nothing_waits_are_a_timing_only_if_created_for_one(program, numbers):
    assert UNASKED not in read(program, numbers)[1]


def test_waits_for_events_of_the_driver_are_a_timing_right_after_the_end():
    assert read("C C R w R . V2 R w w R . V2 . V1")[0] == ""  # OpenACC's runtime
    assert read("C . . C . . C . . C R w R V3", "4 3")[0] == ""  # and its events, one by one
    assert read("C C R w R V2 . C C R w R . V4 R w R . W2")[0] == "ab ef"  # numba; C++ beside it
    assert read("C C R w R . V2 E")[0] == "ab"


def test_without_synchronisation_rows_nothing_is_read():
    trace = drawn("C R w C R W2 Q1 Q2")
    trace.syncs = trace.syncs.iloc[:0]
    assert pairs_in_trace(trace, {}).start == []


def test_a_million_queries_take_time_in_proportion():
    few, many = ("C R w " + "Q1! . " * n + "C R Q1 Q2" for n in (20_000, 80_000))
    times = []
    for text in (few, many):
        trace, begun = drawn(text), time.process_time()
        assert len(pairs_in_trace(trace, {}).start) == 1
        times.append(time.process_time() - begun)
    assert times[1] <= 8 * times[0] + 0.1 and times[1] < 5


@pytest.mark.parametrize(("name", "compared"), [
    ("globaltimer_h100", 960), ("truth_random1", 753), ("unprofiled_linears", 180), ("threads_h200", 160),
])  # fmt: skip
def test_recordings_read_without_their_logs(name, compared, tmp_path):
    path, log = unpack(name, tmp_path)
    trace = read_trace(path)
    with_log, alone = align(trace, read_event_logs([log])), align(trace, None)

    def windows(a):
        rows, call = a.windows[a.windows["kind"] == "event"], a.records["call"].to_numpy()
        keys = zip(call[rows["start"]].tolist(), call[rows["end"]].tolist(), strict=True)
        return dict(zip(keys, rows.itertuples(), strict=True))

    true, found = windows(with_log), windows(alone)
    assert len(true) == compared and len(true.keys() & found.keys()) >= 0.99 * compared
    assert not any(w.library for w in true.values()), "the probe's own distances are nobody's pairs"
    off = [
        max(abs(true[k].start_ns - w.start_ns), abs(true[k].end_ns - w.end_ns)) <= w.error_ns
        for k, w in found.items()
        if k in true
    ]
    assert np.mean(off) >= 0.95
    analysis = nsysalign.analyze(path)
    assert set(analysis.intervals.loc[analysis.intervals["kind"] == "event", "method"]) == {
        "inferred"
    }
    assert any("read from the trace: " in note for note in analysis.notes)


def test_the_demo_has_no_pair_that_its_recording_has_not(tmp_path):
    """Its trace was cut from `probe` with holes, and its log has the kept cases only: a number
    counted across a hole made a pair of 3.6 s of two events that were never compared."""
    ends = {}
    for name in ("demo", "probe"):
        (tmp_path / name).mkdir()
        trace, log = unpack(name, tmp_path / name)
        windows = align(read_trace(trace), read_event_logs([log])).windows
        read = windows["method"] == "inferred"
        chosen = windows[(read if name == "demo" else ~read) & (windows["kind"] == "event")]
        ends[name] = chosen[["start_ns", "end_ns"]].to_numpy()
    assert len(ends["demo"]) > 50
    far = np.abs(ends["demo"][:, None] - ends["probe"][None]).max(axis=2).min(axis=1)
    assert far.max() < 6_000  # both ends lie where one pair of the recording has them, within bars
