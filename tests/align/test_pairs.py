"""Compared pairs read from a trace, drawn as the order of the calls.

C creates an event, X destroys one, R records one by cudaEventRecordWithFlags (torch), R5 by
cudaEventRecord, of which the trace has a row that names event 5; w issues work, . is another call; with
the number of an event: Q a query (Q1! "not ready"), W a wait of the host, O a wait of a stream; D waits
for the device, S7 for stream 7, M is a copy that waits, E asks cudaEventElapsedTime.  A call of thread 2
is 2:R, one of process B is B:R.  Records are on stream 7; all calls are 2 us apart.  Records are named
a, b, c ... by order.
"""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nsysalign.model import CALL
from nsysalign.place.pairs import _event_calls, _events_of_process, _NumberedEvents, read_pairs

KIND = {"R": "record", "Q": "query_event", "W": "sync_event", "O": "wait_event", "w": "launch",
        "M": "memcpy", "D": "sync_device", "S": "sync_stream"}  # fmt: skip
NAMES = {"C": "cudaEventCreateWithFlags", "X": "cudaEventDestroy", "E": "cudaEventElapsedTime",
         "M": "cudaMemcpy", "R": "cudaEventRecordWithFlags"}  # fmt: skip


def drawn(text: str) -> tuple[SimpleNamespace, pd.DataFrame]:
    """The trace of such a program, and its records."""
    calls, syncs, events, records = [], [], [], []
    for n, token in enumerate(text.split()):
        who, what, event, failed = re.fullmatch(r"(?:(\w):)?(.)(\d*)(!?)", token).groups()
        process, number = (9 if who == "B" else 8), int(event or -1)
        name = list(NAMES).index(what) if what in NAMES and not (what == "R" and event) else -1
        thread, kind = process * 100 + (2 if who == "2" else 1), CALL[KIND.get(what, "other")]
        calls.append((n * 2_000, n * 2_000 + 100, process, thread, kind, name, 600 * bool(failed), 0))  # fmt: skip
        if what == "R":
            records.append((n, process, -1))
            events += [(n, number, process, 1, 7)] * bool(event)
        elif event:
            of_stream = what == "S"
            syncs.append((n, -1 if of_stream else number, process, 1, number if of_stream else -1))
    columns = ["start_ns", "end_ns", "process", "thread", "kind", "name_id", "return_value", "nested"]  # fmt: skip
    trace = SimpleNamespace(
        calls=pd.DataFrame(calls, columns=columns, dtype="int64"),
        syncs=pd.DataFrame(syncs, columns=["call", "event", "process", "context", "stream"], dtype="int64"),
        event_rows=pd.DataFrame(events, columns=["call", "event", "process", "context", "stream"], dtype="int64"),
        operations=pd.DataFrame({"process": [8], "name_id": [-1]}),
        names=dict(enumerate(NAMES.values())),
        outermost=np.ones(len(calls), bool),
    )  # fmt: skip
    return trace, pd.DataFrame(records, columns=["call", "process", "log_process"])


def letters(pairs: np.ndarray) -> str:
    """Pairs by the letters of their records."""
    name = "abcdefghijklmnopqrstuvwxyz"
    return " ".join(name[start] + name[end] for start, end, _ in pairs.tolist())


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
    ("C C w R1 Q1 w R2 Q2", ""),                            # asks what is done: Open MPI's copies (p2p_acc)
    ("C C C w R1 Q1! Q1 w R2 W2 w R3 W3", ""),              # so often that it is done at last
    ("C C R1 Q1! w R2 W2", "ab"),                           # it goes on without an answer
    ("C C R1 w R2 W1 W2", "ab"),                            # at the end for both
    ("C C R1 w R1 w R2 W2", ""),                            # records do not alternate
    ("C . C R1 w R2 W2", ""),                               # not created together
    ("C C R1 w 2:R2 W2", ""),                               # by two threads
    ("C C R1 w R2 E", "ab"),                                # its time was asked for: it was done
    ("C C B:C B:C R1 w R2 B:R1 w B:R2 W2 B:W2", "ab cd"),   # two processes, the same numbers
])  # fmt: skip
def test_events_that_rows_name(program, wanted):
    pairs, _ = read_pairs(*drawn(program))
    assert letters(pairs) == wanted


@pytest.mark.parametrize(("program", "reason"), [
    ("C C R3 w R4 W4", "1 waits for events that the trace does not name"),  # nobody created them
    ("C C R1 w R2 W2 X X C C R1 w R2 W2", "2 waits for events that the trace does not name"),  # used again
    ("C C C C R1 w R2 w R3 w R4 D", "2 pairs of events recorded in a row"),  # which are compared?
    ("C R w C R W2 Q1 Q2", "3 waits for events in a process that runs torch"),
])  # fmt: skip
def test_what_can_be_read_in_two_ways_is_counted(program, reason):
    pairs, notes = read_pairs(*drawn(program))
    assert not len(pairs) and reason in notes[0]


def test_in_a_process_that_runs_torch_pairs_are_of_libraries_and_their_waits_are_counted():
    trace, records = drawn("C C R1 w R2 W2")
    trace.names[7], trace.operations["name_id"] = "at::native::vectorized_elementwise_kernel", 7
    for pairs, notes in (read_pairs(trace, records), read_pairs(*drawn("C C R1 w R2 W2 R"))):
        (note,) = notes
        assert not len(pairs) and note.startswith("1 waits for events in a process that runs torch")
    pairs, notes = read_pairs(trace, records.assign(log_process=0))
    assert not len(pairs) and not notes, "the log knows what torch compared"


def test_a_million_queries_take_time_in_proportion():
    times = []
    for n in (20_000, 80_000):
        drawing, begun = drawn("C C R1 w R2 " + "Q2! . " * n + "Q2"), time.process_time()
        assert letters(read_pairs(*drawing)[0]) == "ab"
        times.append(time.process_time() - begun)
    assert times[1] <= 8 * times[0] + 0.1 and times[1] < 5


def test_a_million_successful_waits_are_not_kept():
    """A program that asks again and again whether one record is done: its first answer is all that a pair
    needs."""
    trace, _ = drawn("C C R1 w R2 " + "Q2 D S7 " * 500)
    events = _events_of_process(_event_calls(trace).itertuples(name="EventCall"))
    assert {key: len(waits) for key, waits in events.waits.items()} == {
        ("event", 2): 1, ("all", 0): 1, ("stream", 1): 1,
    }  # fmt: skip


def test_waits_that_are_not_kept_close_no_pair(monkeypatch):
    """Random programs, read as they are and with every wait kept."""
    random = np.random.default_rng(5)
    tokens = [
        "R1",
        "R2",
        "R3",
        "R4",
        "W1",
        "W2",
        "Q2",
        "Q4",
        "Q4!",
        "D",
        "S7",
        "S8",
        "M",
        "w",
        ".",
        "2:W2",
    ]
    often = np.isin(tokens, ["R1", "R2", "R3", "R4", "W2", "Q2", "D"])
    share = np.where(often, 4, 1) / np.where(often, 4, 1).sum()
    programs = ["C C C C " + " ".join(random.choice(tokens, 24, p=share)) for _ in range(200)]
    read = [read_pairs(*drawn(program))[0].tolist() for program in programs]
    monkeypatch.setattr(
        _NumberedEvents, "add_wait", lambda events, key, call: events.waits[key].append(call)
    )
    assert read == [read_pairs(*drawn(program))[0].tolist() for program in programs]
    assert sum(map(bool, read)) > 10
