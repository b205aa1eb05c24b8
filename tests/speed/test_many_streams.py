"""A range, a process and a wait of hundreds of streams: work and tables grow as the trace does, not as
its square."""

from __future__ import annotations

import numpy as np
import pytest

import nsysalign
from nsysalign.model import MOST_STREAMS
from nsysalign.split import gaps
from tests.trace.tiny_export import PID, PROCESS, US, P, call, tiny, work, write_export

LAUNCH, KERNEL, FIRST = 2, 7, 7


def export(path, streams, order, *, ranges=1):
    """Two kernels on every stream, inside NVTX ranges that begin together: `serial`, all launched
    first, and then one runs after the other; or `wide`, each runs beside all others."""
    tables = {name: rows for name, rows in tiny().items() if name in (
        "META_DATA_EXPORT", "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_CONTEXT_INFO",
        "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV")}  # fmt: skip
    count, calls, kernels = 2 * streams, [], []
    for n in range(count):
        calls.append(call(n + 1, LAUNCH, 20 + 3 * n, 22 + 3 * n))
        begin = 3 * count + 100 + 10 * n if order == "serial" else 30 + 3 * n
        ns = 9 if order == "serial" else 2 * streams + n % streams
        row = work(n + 1, begin, begin + ns, demangledName=KERNEL, shortName=KERNEL)
        kernels.append(row | {"streamId": FIRST + n % streams})
    tables[P + "RUNTIME"], tables[P + "KERNEL"] = calls, kernels
    tables["TARGET_INFO_CUDA_STREAM"] = [
        {"streamId": FIRST + n, "processId": PID, "contextId": 1, "flag": 2} for n in range(streams)
    ]
    tables["NVTX_EVENTS"] = [
        {"start": (10 + n) * US, "end": (3 * count + 60 - n) * US, "eventType": 59, "globalTid": PROCESS | PID,
         "text": f"step {n}"} for n in range(ranges)
    ]  # fmt: skip
    return write_export(path, tables)


def work_of(monkeypatch, trace):
    """The analysis of a trace, and how many pieces were made for it."""
    made = []

    def counted(*args, **more):
        pieces = counted.plain(*args, **more)
        made.append(len(pieces.window))
        return pieces

    counted.plain = gaps.make
    with monkeypatch.context() as patch:
        patch.setattr(gaps, "make", counted)
        analysis = nsysalign.analyze(trace)
    return analysis, sum(made)


@pytest.mark.parametrize("order", ["serial", "wide"])
def test_twice_the_streams_are_at_most_two_and_a_half_times_the_work(order, monkeypatch, tmp_path):
    sizes = []
    for streams in (50, 100):
        analysis, pieces = work_of(monkeypatch, export(tmp_path / "t.sqlite", streams, order))
        tables = ("intervals", "parts", "segments", "details", "other_streams", "kernels", "labels")
        sizes.append([pieces, *(len(getattr(analysis, name)) for name in tables)])
    assert (np.array(sizes[1]) <= 2.5 * np.array(sizes[0])).all(), sizes


def test_a_range_is_one_row_and_of_a_run_the_busiest_streams_have_rows(tmp_path):
    streams = MOST_STREAMS + 8
    analysis = nsysalign.analyze(export(tmp_path / "t.sqlite", streams, "wide", ranges=2))
    intervals = analysis.measured
    for label in ("step 0", "step 1"):
        (whole,) = intervals[intervals["label"] == label].itertuples()
        assert whole.end_stream == -1
        assert (whole.start_ns, whole.end_ns) == (30 * US, analysis.intervals["end_ns"].max())
        assert whole.operations == 2 * streams
    of_streams = analysis.runs["end_stream"] >= 0
    assert of_streams.sum() == MOST_STREAMS and (~of_streams).sum() == 1
    busiest = range(FIRST + streams - MOST_STREAMS, FIRST + streams)
    assert set(analysis.runs["end_stream"]) == {-1, *busiest}
    assert sum("streams" in note for note in analysis.notes) == 1
    assert analysis.other_streams.empty


def test_what_waits_for_many_streams_names_the_longest_and_adds_up(tmp_path):
    analysis = nsysalign.analyze(export(tmp_path / "t.sqlite", 2 * MOST_STREAMS, "serial"))
    parts = analysis.parts[analysis.parts["cause"] == "queued"].set_index("interval")["ns"]
    waits = analysis.details[analysis.details["cause"] == "queued"]
    named = waits[waits["stream"] >= 0].groupby("interval").size()
    assert named.max() == MOST_STREAMS
    assert (waits.groupby("interval")["ns"].sum() == parts[parts > 0]).all()


def test_few_streams_are_as_they_are(tmp_path):
    analysis = nsysalign.analyze(export(tmp_path / "t.sqlite", MOST_STREAMS, "serial"))
    assert len(analysis.measured) == 1
    assert (analysis.runs["end_stream"] >= 0).sum() == MOST_STREAMS
    assert not any("streams" in note for note in analysis.notes)
