"""Ranges on the host and what they leave out: drawn by hand, in microseconds."""

from __future__ import annotations

import re

import pytest
from cases.drawing import analysed, in_nanoseconds
from simulator import check, export
from simulator.world import Range, World

from nsysalign.answer import answer
from nsysalign.split.labels import common_names

#   host      L--)  L--)         Y--------------------------------)  L--)
#   ranges   [ step ]       [ item                                  ]
#   stream 7      KK   K                                                 K
#            0      10      20                            60            80


def world() -> World:
    made = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000))
    made.kernel(4, 6, made.call("launch", 1, 3), name="first")
    made.kernel(9, 10, made.call("launch", 6, 8), name="second")
    made.sync(22, 58)
    made.kernel(76, 77, made.call("launch", 72, 75), name="outside")
    made.ranges += [Range("step", 0, 10, made.pid), Range("item", 20, 60, made.pid)]
    return made


@pytest.fixture
def analysis(tmp_path):
    return analysed(world(), tmp_path, logs=False)


def test_a_range_without_gpu_work_has_its_time(analysis):
    table = analysis.host_ranges.set_index("label")
    assert table.index.tolist() == ["item", "step"], "the longest first"
    item = table.loc["item"]
    assert (item["host_ns"], item["sync_ns"], item["outside_ns"]) == (40_000, 36_000, 4_000)
    assert (item["with_work"], item["gpu_ns"]) == (0, 0)
    assert (analysis.intervals[["start_record", "end_record"]] == -1).all(axis=None), (
        "a range has no events"
    )


def test_a_range_has_its_host_time_beside_the_gpu(analysis):
    step = analysis.host_ranges.set_index("label").loc["step"]
    assert (step["host_ns"], step["launch_ns"], step["outside_ns"], step["gpu_ns"]) == (
        10_000,
        4_000,
        6_000,
        6_000,
    )
    split = ["launch_ns", "copy_ns", "sync_ns", "other_ns", "outside_ns"]
    assert step[split].sum() == step["host_ns"]


def test_what_is_left_out_is_said_in_one_note(analysis):
    (note,) = [n for n in analysis.notes if "left out" in n]
    assert "1 of 2 NVTX ranges, which issued no work to a GPU" in note
    assert "1 operation (0.001 ms) issued outside of all ranges" in note


@pytest.mark.parametrize(
    ("names", "together"),
    [
        ([f"blocks.{k}.attn" for k in range(4)], {"blocks.*.attn"}),
        ([f"step {k}" for k in range(1, 9)], {"step *"}),
        ([f"layers.{i}.blocks.{k}" for i in range(2) for k in range(3)], {"layers.*.blocks.*"}),
        (["batch_64", "batch_128", "batch_256", "batch_512"], set()),  # different things
        ([f"blocks.{k}" for k in (0, 1, 2, 4)], set()),
        ([f"conv{k}" for k in range(1, 9)], set()),
        ([f"x (stream {k})" for k in range(9)], set()),
        ([f"blocks.{k}" for k in range(3)], set()),
        (["x.*.5", *(f"x.{k}.5" for k in range(4))], {"x.*.*"}),
    ],
)
def test_which_names_are_numbered(names, together):
    assert set(common_names(names).values()) == together


def test_where_a_log_says_what_was_measured_ranges_are_no_table(tmp_path):
    made = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000))
    start = made.record(1, 0, 1)
    made.kernel(6, 8, made.call("launch", 3, 5))
    made.pair(start, made.record(9, 6, 7))
    made.sync(10, 20)
    made.ranges.append(Range("step", 0, 10, made.pid))
    trace, logs = export.write(in_nanoseconds(made), tmp_path)
    assert check.analyze(trace, logs).host_ranges.empty
    assert check.analyze(trace, []).host_ranges["label"].tolist() == ["step"]


def test_where_events_of_the_log_only_order_streams_ranges_are_what_was_measured(tmp_path):
    """
    host      R W [step L--) ]      another stream waits for the record: nothing is timed
    """
    made = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000))
    record = made.record(1, 0, 1)
    made.wait(record, 1.5, 2, stream=13)
    made.kernel(6, 8, made.call("launch", 3, 5))
    made.sync(10, 20)
    made.ranges.append(Range("step", 2.5, 9, made.pid))
    trace, logs = export.write(in_nanoseconds(made), tmp_path)
    analysis = check.analyze(trace, logs)
    assert analysis.intervals.loc[analysis.intervals["kind"] == "nvtx", "label"].tolist() == [
        "step"
    ]
    assert analysis.host_ranges["with_work"].tolist() == [1]
    assert not any("issued no work" in note for note in analysis.notes)


def test_of_ranges_that_are_no_intervals_it_is_not_said_that_they_issued_no_work(tmp_path):
    """The program compared two events in vain: the log says what was to be measured."""
    made = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000))
    start = made.record(1, 0, 1)
    made.kernel(6, 8, made.call("launch", 3, 5))
    made.pair(start, made.record(9, 6, 7))
    made.sync(10, 20)
    made.ranges.append(Range("step", 0, 10, made.pid))
    trace, logs = export.write(in_nanoseconds(made), tmp_path)
    for log in logs:
        log.write_text(re.sub(r'"ms":[^,}]+', '"error":"not ready"', log.read_text()))
    analysis = check.analyze(trace, logs)
    assert analysis.unaligned["reason"].tolist() and analysis.intervals["kind"].eq("run").all()
    assert not any("issued no work" in note for note in analysis.notes)


def test_a_range_that_holds_all_work_of_the_one_around_it_is_told_with_it(tmp_path):
    """
    host      [epoch [train L--) L--)] ]  [epoch [train L--) L--)] ]      [other L--) ]
    """
    made = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000))
    for t in (0, 100):
        made.kernel(t + 8, t + 20, made.call("launch", t + 3, t + 5))
        made.kernel(t + 22, t + 30, made.call("launch", t + 6, t + 8))
        made.ranges += [
            Range("epoch", t, t + 40, made.pid),
            Range("train", t + 1, t + 39, made.pid),
        ]
        made.ranges.append(Range("first half", t + 2, t + 5.5, made.pid))
    made.kernel(208, 220, made.call("launch", 203, 205))
    made.ranges.append(Range("other", 200, 206, made.pid))
    made.sync(230, 240)
    analysis = analysed(made, tmp_path, logs=False)
    assert analysis.labels["label"].tolist()[:2] == ["epoch", "train"], "the tables have both"
    said = answer(analysis)
    assert sorted(row.label for row in said.labels) == ["epoch", "first half", "other"]
    assert any("told with it: train (in epoch)" in note for note in said.notes)
    assert "7 intervals in 4 labels" in said.about["measured"]
