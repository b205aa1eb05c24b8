"""When the host knew that the GPU had executed a record: by waits of all three kinds, each tried for each record."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nsysalign.intervals import FAR
from nsysalign.model import CALL
from nsysalign.place.bounded import known_done_ns_of

KINDS = ("sync_device", "sync_stream", "sync_event", "query_event")


def drawn(seed):
    """(trace, lanes, records) of two processes with two streams and three events each; some waits fail, some begin
    together."""
    random = np.random.default_rng(seed)
    count = 60
    start = np.sort(random.integers(0, 40, count)) * 10
    kind = random.choice([CALL["record"], *(CALL[name] for name in KINDS)], count)
    calls = pd.DataFrame({
        "start_ns": start, "end_ns": start + random.integers(1, 60, count), "kind": kind,
        "process": random.integers(1, 3, count), "return_value": random.choice([0, 0, 600], count),
    })  # fmt: skip
    lanes = pd.DataFrame({"process": [1, 1, 2, 2], "context": 1, "stream": [7, 13, 7, 13]})
    waits = np.flatnonzero(kind != CALL["record"])
    named = waits[kind[waits] != CALL["sync_device"]]
    syncs = pd.DataFrame({
        "call": named, "process": calls["process"].to_numpy()[named], "context": 1,
        "stream": random.choice([7, 13, 99], len(named)), "event": random.integers(-1, 3, len(named)),
    })  # fmt: skip
    call = np.flatnonzero(kind == CALL["record"])
    process = calls["process"].to_numpy()[call]
    records = pd.DataFrame({
        "call": np.where(random.random(len(call)) < 0.9, call, -1),
        "call_end_ns": calls["end_ns"].to_numpy()[call], "process": process,
        "lane": 2 * (process - 1) + random.integers(0, 2, len(call)),
        "event": random.integers(-1, 3, len(call)),
    })  # fmt: skip
    return SimpleNamespace(calls=calls, syncs=syncs), lanes, records


def first_end(calls, waits, time, before=FAR):
    """The end of the first of these waits that begins at this time or later, but before another one."""
    begun = [n for n in waits if calls["start_ns"][n] >= time]
    first = min(begun, key=lambda n: (calls["start_ns"][n], n), default=None)
    return (
        calls["end_ns"][first] if first is not None and calls["start_ns"][first] < before else FAR
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_first_wait_for_device_stream_or_event_tells(seed):
    trace, lanes, records = drawn(seed)
    calls, syncs = trace.calls, trace.syncs.set_index("call")
    lane_of = {
        (p, s): n for n, (p, s) in enumerate(zip(lanes["process"], lanes["stream"], strict=True))
    }
    expected = []
    for number, record in records.iterrows():
        succeeded = [
            n
            for n in calls.index
            if calls["return_value"][n] == 0 and calls["process"][n] == record.process
        ]
        of = {name: [n for n in succeeded if calls["kind"][n] == CALL[name]] for name in KINDS}
        lane = [
            n
            for n in of["sync_stream"]
            if lane_of.get((record.process, syncs["stream"][n])) == record.lane
        ]
        event = [
            n
            for n in of["sync_event"] + of["query_event"]
            if syncs["event"][n] == record.event >= 0
        ]
        again = [
            (other.call_end_ns, n)
            for n, other in records.iterrows()
            if other.call >= 0 and (other.process, other.event) == (record.process, record.event)
        ]
        again = [time for time, n in sorted(again) if (time, n) > (record.call_end_ns, number)]
        ends = [
            first_end(calls, of["sync_device"], record.call_end_ns),
            first_end(calls, lane, record.call_end_ns),
            first_end(calls, event, record.call_end_ns, again[0] if again else FAR),
        ]
        expected.append(min(ends) if record.call >= 0 else FAR)
    assert min(expected) < FAR
    assert known_done_ns_of(trace, lanes, records).tolist() == expected
