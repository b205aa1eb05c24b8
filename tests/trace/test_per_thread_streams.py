"""Records of programs that were compiled with a default stream per thread."""

from __future__ import annotations

import pandas as pd

from nsysalign import frames
from nsysalign.trace.read import per_thread_streams

COPY, RECORD, OTHER = 1, 2, 3  # cudaMemcpy_ptds, cudaEventRecord_ptsz, cudaEventRecord


def test_a_record_on_a_threads_own_default_stream_bears_the_number_of_the_legacy_one():
    """Two threads copy on streams 20 and 21; the first also records on a stream of its own."""
    calls = [(1, COPY), (2, COPY), (1, RECORD), (2, RECORD), (1, RECORD), (1, OTHER), (3, RECORD)]
    calls = pd.DataFrame(calls, columns=["thread", "name_id"]).assign(process=9)
    calls["correlation"] = calls.index + 100
    operations = pd.DataFrame({"call": [0, 1, -1], "stream": [20, 21, 7]})
    rows = pd.DataFrame(0, index=range(5), columns=frames.EVENT_ROWS.names).assign(
        process=9, correlation=[102, 103, 104, 105, 106], stream=[7, 7, 13, 7, 7]
    )
    rows = frames.check(rows.astype("int64"), frames.EVENT_ROWS)
    found = per_thread_streams(rows, calls, operations, [COPY], [RECORD])
    assert found["stream"].tolist() == [20, 21, 13, 7, 7]
    assert per_thread_streams(rows, calls, operations, [], [RECORD]) is rows
