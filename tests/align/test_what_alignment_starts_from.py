"""What alignment is made of, one function at a time: bounds of records, compared pairs, work of
ranges.

Each case was a fault put in by hand, or one at a time by a script, that whole recordings did not
show.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import CALL, EventLog
from nsysalign.place import bounded as bounds
from nsysalign.place import ranges
from nsysalign.place.matched import awaited_records, logged_pairs

US = 1_000
P, Q = 1 << 24, 2 << 24  # two processes, as globalPid


def table(spec: frames.Spec, rows: list[dict]) -> pd.DataFrame:
    """Rows with the columns that matter; the others hold what means nothing."""
    plain = {"int64": -1, "float64": np.nan, "bool": False, "str": "", "object": ()}
    full = [{c.name: plain.get(c.dtype, 0) for c in spec.columns} | row for row in rows]
    return (
        frames.check(pd.DataFrame(full, columns=spec.names), spec) if full else frames.empty(spec)
    )


def trace(**tables: list[dict]) -> SimpleNamespace:
    """As much of a trace as the function looks at."""
    made = {name: table(getattr(frames, name.upper()), rows) for name, rows in tables.items()}
    if "ranges" in made:
        made["program_ranges"] = np.ones(len(made["ranges"]), bool)
    return SimpleNamespace(**made)


def test_only_synchronisations_of_its_stream_bound_a_record():
    """A record at 1 us; at 2 us a synchronisation of an unknown stream, at 4 us an event's, at 6 us
    its own stream's."""
    kinds = [
        ("sync_stream", 2, 99),
        ("sync_event", 4, 7),
        ("sync_stream", 6, 7),
        ("sync_stream", 8, 7),
    ]
    calls = [
        {"start_ns": at * US, "end_ns": (at + 1) * US, "kind": CALL[kind], "process": P, "return_value": 0}
        for kind, at, _ in kinds
    ]  # fmt: skip
    place = {"process": P, "device": 0, "context": 1}
    syncs = [{"call": n, **place, "stream": stream} for n, (*_, stream) in enumerate(kinds)]
    lanes = pd.DataFrame({"process": [P], "device": [0], "context": [1], "stream": [7]})
    records = pd.DataFrame({"call": [0], "call_end_ns": [US], "process": P, "lane": 0, "event": -1})
    made = trace(calls=calls, syncs=syncs)
    assert bounds.known_done_ns_of(made, lanes, records).tolist() == [7 * US]


def test_why_a_compared_pair_cannot_be_placed():
    """Of four comparisons one has both records and an end after its start."""
    records = pd.DataFrame({"log_process": [0, 0], "seq": [0, 1], "site": ["a.py:1", "a.py:2"]})
    asked = [
        (0, 1, 0.5, ""),
        (0, 9, 0.5, ""),
        (9, 1, 0.5, ""),
        (1, 0, -0.5, ""),
        (0, 1, np.nan, "not ready"),
    ]
    columns = ("start", "end", "ms", "error")
    rows = [{"process": 0, **dict(zip(columns, row, strict=True))} for row in asked]
    log = replace(EventLog.empty(), headers=({},), elapsed=table(frames.ELAPSED, rows))
    pairs, left_out = logged_pairs(log, records)
    assert pairs[["start", "end", "elapsed_ns"]].to_numpy().tolist() == [[0, 1, 500_000]]
    unseen = "a record of the pair was not seen by the probe"
    reasons = [unseen, unseen, "negative elapsed_time", "elapsed_time failed"]
    assert [reason.split(":")[0] for reason in left_out["reason"]] == reasons
    assert left_out[["start", "end"]].to_numpy().tolist() == [[0, -1], [-1, 1], [1, 0], [0, 1]]


def test_a_range_holds_work_of_threads_of_its_process_without_ranges_of_their_own():
    """Four kernels in one range of P's first thread: its own; autograd's; a thread's with a range
    of its own; and Q's."""
    threads = [P | 1, P | 2, P | 3, Q | 1]
    calls = [{"start_ns": (n + 1) * US, "end_ns": (n + 1) * US + 500, "thread": t, "process": t & ~0xFFFFFF} for n, t in enumerate(threads)]  # fmt: skip
    operations = [
        {"call": n, "start_ns": (n + 10) * US, "end_ns": (n + 11) * US, "process": t & ~0xFFFFFF}
        for n, t in enumerate(threads)
    ]
    opened = [{"thread": t, "process": P, "start_ns": 0, "end_ns": 9 * US} for t in (P | 1, P | 3)]
    made = trace(calls=calls, operations=operations, ranges=opened)
    spans = ranges.spans_of_ranges(made, np.zeros(4, np.int64)).set_index("range")
    assert spans.loc[0, ["start", "end"]].tolist() == [10 * US, 12 * US]
    assert spans.loc[1, ["start", "end"]].tolist() == [11 * US, 13 * US], "and of the helper"


def test_a_wait_is_for_the_record_of_its_synchronisation_then_of_the_log_then_of_its_event():
    """Records 0 to 3; the first wait knows CUPTI's number of record 0 (and the log says 3), the
    second what the log says, record 0 too, the third only its event, which record 2 recorded last
    before it, the fourth nothing but its thread."""
    columns = ["event", "event_sync", "call", "call_start_ns", "seq"]
    rows = [
        (5, 40, 0, 1_000, 10),
        (6, 41, 1, 2_000, 11),
        (0, -1, 2, 3_000, 12),
        (-1, -1, 3, 4_000, 13),
    ]
    records = pd.DataFrame(rows, columns=columns).assign(
        process=P, thread=P | 1, log_process=0, lane=-1
    )
    calls = [{"start_ns": n * US, "thread": P | 1, "process": P} for n in (1, 2, 3, 4, 6)]
    columns = ["event_sync", "log_process", "seq", "event"]
    said = [(40, 0, 13, -1), (-1, 0, 10, 6), (-1, 0, -1, 0), (99, 0, 99, -1)]
    waits = pd.DataFrame(said, columns=columns).assign(process=P, call=4, lane=0)
    record, inferred = awaited_records(trace(calls=calls), waits, records)
    assert record.tolist() == [0, 0, 2, 3] and inferred.tolist() == [False, False, True, True]


def test_the_event_with_number_0_is_an_event():
    """A query of event 0 that succeeds at 4 us; the record of event 1 is never asked for."""
    calls = [{"start_ns": a * US, "end_ns": b * US, "kind": CALL[k], "process": P, "return_value": 0} for a, b, k in ((0, 1, "record"), (1, 2, "record"), (3, 4, "query_event"))]  # fmt: skip
    records = pd.DataFrame({"event": [0, 1], "call": [0, 1], "process": P, "lane": -1})
    records["call_end_ns"] = [US, 2 * US]
    made = trace(calls=calls, syncs=[{"call": 2, "process": P, "event": 0}])
    lanes = pd.DataFrame({"process": [], "context": [], "stream": []})
    assert bounds.known_done_ns_of(made, lanes, records).tolist() == [4 * US, bounds.FAR]
