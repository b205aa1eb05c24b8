"""A synchronisation that failed, a query that said "not ready": neither says that a record is over.

thread 7   |rec| |launch|   ... |rec|  |call|  |        stream synchronise         |
stream 7                                             kernel, copy, memset  | end record |graph
us         5  10             65    70  76  78  80                         180           182   200

A call that had waited for the end record would have returned after 180: one that returned at 78 and
claims to have waited contradicts the trace.
"""

from __future__ import annotations

import pytest
from tiny_export import PROCESS, US, P, call, tiny

import nsysalign

NAMES = {"device": "cudaDeviceSynchronize_v3020", "stream": "cudaStreamSynchronize_v3020",
         "event": "cudaEventSynchronize_v3020", "query": "cudaEventQuery_v3020"}  # fmt: skip
NOT_READY, LAUNCH_FAILURE = 600, 719


def with_a_call(what: str, status: int):
    tables = tiny()
    tables["StringIds"].append({"id": 30, "value": NAMES[what]})
    tables[P + "RUNTIME"].append(call(8, 30, 76, 78) | {"returnValue": status})
    row = {
        "start": 76 * US,
        "end": 78 * US,
        "globalPid": PROCESS,
        "contextId": 1,
        "correlationId": 8,
    }
    row |= {
        "streamId": 7 if what == "stream" else -1,
        "eventId": 2 if what in ("event", "query") else -1,
    }
    tables[P + "SYNCHRONIZATION"].append(row)
    return tables


@pytest.mark.parametrize(("what", "status"), [("device", LAUNCH_FAILURE), ("stream", LAUNCH_FAILURE),
                                              ("event", LAUNCH_FAILURE), ("query", NOT_READY)])  # fmt: skip
def test_what_failed_or_was_not_ready_bounds_nothing(export, log, what, status):
    (place,) = nsysalign.analyze(export(tiny()), [log]).measured.itertuples()
    analysis = nsysalign.analyze(export(with_a_call(what, status)), [log])
    (found,) = analysis.measured.itertuples()
    assert (found.start_lower_ns, found.start_upper_ns) == (
        place.start_lower_ns,
        place.start_upper_ns,
    )
    assert found.end_ns >= 180 * US, "behind the memset"


@pytest.mark.parametrize("what", NAMES)
def test_what_succeeded_does(export, log, what):
    analysis = nsysalign.analyze(export(with_a_call(what, 0)), [log])
    assert analysis.measured.empty and len(analysis.unaligned) == 1
