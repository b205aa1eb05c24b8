"""What a page draws around one interval, row by row.  Everything in microseconds."""

from __future__ import annotations

import pandas as pd
import pytest
from cases.drawing import MAIN, ZERO, in_nanoseconds, kernel
from simulator import check, export
from simulator.world import LEGACY, NON_BLOCKING, Range, World

from nsysalign.split import timeline as module
from nsysalign.split.timeline import everything
from nsysalign.trace.read import read_trace

#   host     r-12  |r0  c3-5  w10-12  s14-18  r20|  y24------------------------120
#   7   #-54  #-30--25  |6  copy 8-9            ....wait 12-63....  #65-----80 |84
#   13                #-10---------------------------------60  |63
#   drawn           [-10                                                          94]


def waiting(inferred: bool = False) -> World:
    w = World(streams={7: LEGACY, 13: NON_BLOCKING})
    kernel(w, (-60, -56), (-54, -40))
    kernel(w, (-50, -46), (-30, -25))
    kernel(w, (-20, -16), (-10, 60), 13)
    r = w.record(63, -12, -9, 13)
    start = w.record(6, 0, 2)
    w.ranges.append(Range("step", -2, 40, MAIN))
    w.copy(8, 9, w.call("memcpy", 3, 5), pageable=False, nbytes=8_000)
    w.wait(r, 10, 12, 7, logged=not inferred)
    kernel(w, (14, 18), (65, 80))
    w.pair(start, w.record(84, 20, 22))
    w.sync(24, 120)
    return in_nanoseconds(w)


def drawn(world, folder, run=False) -> pd.DataFrame:
    """Rows of the pictures of intervals, or of the run, in us."""
    analysis = check.analyze(*export.write(world, folder))
    rows = analysis.timeline
    rows = rows[rows["interval"].isin(analysis.runs["interval"]) == run]
    return rows.assign(start=(rows["start_ns"] - ZERO) / 1000, end=(rows["end_ns"] - ZERO) / 1000)


def of_kind(rows, kind, *columns):
    return [
        tuple(row)
        for row in rows.loc[rows["lane_kind"] == kind, list(columns)].itertuples(index=False)
    ]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return drawn(waiting(), tmp_path_factory.mktemp("drawn"))


def test_calls_that_reach_into_the_picture(rows):
    assert of_kind(rows, "host", "lane", "kind", "start", "end", "ref_id") == [
        ("thread 500", "record", -12, -9, 4), ("thread 500", "record", 0, 2, 5), ("thread 500", "memcpy", 3, 5, 6),
        ("thread 500", "wait_event", 10, 12, 7), ("thread 500", "launch", 14, 18, 8), ("thread 500", "record", 20, 22, 9),
        ("thread 500", "sync_device", 24, 120, 10),
    ]  # fmt: skip
    assert of_kind(rows, "nvtx", "lane", "kind", "name", "start", "end") == [
        ("thread 500", "range", "step", -2, 40)
    ]


def test_work_with_the_call_that_issued_it(rows):
    shape = {"grid": (1, 1, 1), "block": (32, 1, 1)}
    assert of_kind(
        rows, "stream", "lane", "kind", "start", "end", "ref_kind", "link", "detail"
    ) == [
        ("stream 13", "kernel", -10, 60, "kernel", 3, shape),
        ("stream 7", "memcpy", 8, 9, "memcpy", 6, {"bytes": 8_000, "bandwidth_gb_s": 8.0}),
        ("stream 7", "kernel", 65, 80, "kernel", 8, shape),
    ]


def test_records_with_their_bars_and_calls(rows):
    bars = {"at_most_earlier_ns": 32, "at_most_later_ns": 32}
    assert of_kind(rows, "event", "lane", "kind", "start", "end", "ref_id", "link", "detail") == [
        ("stream 7", "record", 6, 6, 1, 5, bars),
        ("stream 13", "record", 63, 63, 0, 4, bars),
        ("stream 7", "record", 84, 84, 3, 9, bars),
        ("stream 7", "wait", 12, 63, 7, 0, {}),
    ]


def test_a_wait_begins_when_the_stream_has_reached_it(tmp_path):
    """
    7    |6  #8------------50   ..wait 50-63..  #65
    13                                  |63
    """
    w = World(streams={7: LEGACY, 13: NON_BLOCKING})
    kernel(w, (-20, -16), (-10, 60), 13)
    r = w.record(63, -12, -9, 13)
    start = w.record(6, 0, 2)
    kernel(w, (3, 5), (8, 50))
    w.wait(r, 10, 12, 7)
    kernel(w, (14, 18), (65, 80))
    w.pair(start, w.record(84, 20, 22))
    w.sync(24, 120)
    waits = drawn(in_nanoseconds(w), tmp_path).query("kind == 'wait'")
    assert waits[["start", "end"]].to_numpy().tolist() == [[50, 63]]
    assert waits["name"].tolist() == ["waits for record 0 of stream 13"]


def test_what_does_not_fit_is_counted(tmp_path, monkeypatch):
    """Room for two rows of a kind: the longest stay, in order; five calls, one operation and
    one record are said."""
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    rows = drawn(waiting(), tmp_path)
    assert of_kind(rows, "host", "start", "end") == [(14, 18), (24, 120)]
    assert of_kind(rows, "stream", "start", "end") == [(-10, 60), (65, 80)]
    assert of_kind(rows, "omitted", "ref_kind", "ref_id", "link") == [("", -1, -1)] * 3
    assert of_kind(rows, "omitted", "name", "start", "end", "detail") == [
        ("CUDA calls", -10, 94, {"count": 5, "ns": 11_000, "longest_ns": 3_000}),
        ("operations", -10, 94, {"count": 1, "ns": 1_000, "longest_ns": 1_000}),
        ("records", -10, 94, {"count": 1, "ns": 0, "longest_ns": 0}),
    ]


def test_a_run_as_a_whole_loses_no_row(tmp_path, monkeypatch):
    """Room for one row of a kind: neighbours are blocks, and what runs in a block is no more than
    its length."""
    whole = drawn(waiting(), tmp_path / "whole", run=True)
    assert len(of_kind(whole, "host", "start")) == 10
    assert of_kind(whole, "stream", "lane", "start", "end") == [
        ("stream 7", -54, -40), ("stream 7", -30, -25), ("stream 13", -10, 60), ("stream 7", 8, 9), ("stream 7", 65, 80),
    ]  # fmt: skip
    monkeypatch.setattr(module, "RUN_ROWS", 1)
    monkeypatch.setattr(module, "_RUN_PIXELS", 30)
    few = drawn(waiting(), tmp_path / "few", run=True)
    assert of_kind(few, "stream", "lane", "start", "end") == [
        ("stream 7", -54, 9), ("stream 13", -10, 60), ("stream 7", 65, 80),
    ]  # fmt: skip
    assert of_kind(few, "stream", "name", "detail")[0] == ("3 operations", {"together_ns": 20_000})
    assert of_kind(few, "host", "name", "start")[0] == ("9 CUDA calls", -60)


def test_all_of_a_trace_process_by_process(tmp_path):
    """For exports: every call, range and operation; two processes on two GPUs are told apart."""
    worlds = [waiting(), waiting()]
    worlds[1].pid, worlds[1].device = 501, 1
    for call in worlds[1].calls:
        call.thread = 501
    path, _ = export.write(worlds[:1], tmp_path / "one")
    one = everything(read_trace(path))
    assert one["lane_kind"].value_counts().to_dict() == {"host": 10, "stream": 5, "nvtx": 1}
    assert (
        set(one["lane"]) == {"thread 500", "stream 7", "stream 13"}
        and (one["interval"] == -1).all()
    )
    path, _ = export.write(worlds, tmp_path / "both")
    both = everything(read_trace(path))
    assert len(both) == 32
    assert set(both["lane"]) == {
        "thread 500 (pid 500)", "GPU 0 stream 7 (pid 500)", "GPU 0 stream 13 (pid 500)",
        "thread 501 (pid 501)", "GPU 1 stream 7 (pid 501)", "GPU 1 stream 13 (pid 501)", "thread 500 (pid 501)",
    }  # fmt: skip
