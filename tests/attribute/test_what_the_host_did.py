"""The cause `host`, opened: on gaps drawn by hand, and on every recording."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from recordings import unpack

import nsysalign
from nsysalign import frames
from nsysalign.split.host import host_activity, host_gaps
from nsysalign.trace.samples import Frame, read_stacks

PROCESS = 7 << 24  # globalPid of process 7; its main thread has the number 7
MAIN, OTHER = PROCESS | 7, PROCESS | 8

#   time     0    10    20    30    40    50    60
#   t1       [ host ][api][host]           [host]        one interval of label t1, then one of t2
#   ranges   [augment    ]                 [augment]
#   samples   ^  ^     ^    ^                ^   ^
SEGMENTS = pd.DataFrame(
    [
        (0, 0, 16, "host", "nvtx", 1, "augment"),
        (0, 16, 20, "api", "api", 100, "cudaMalloc"),
        (0, 20, 30, "host", "", -1, ""),
        (0, 30, 34, "api_launch", "api", 101, "cudaLaunchKernel"),
        (0, 34, 40, "kernel", "kernel", 1, "gemm"),
        (1, 44, 56, "host", "nvtx", 2, "augment#1"),
        (1, 56, 60, "event", "api", 102, "cudaEventRecord"),
    ],
    columns=frames.SEGMENTS.names,
)
INTERVALS = pd.DataFrame({"interval": [0, 1], "label": ["t1", "t2"], "kind": "event"})
STACKS = (
    (Frame("resize", "app/transforms.py", 41, True), Frame("<module>", "train.py", 3, True)),
    (Frame("open", "io.py", 9, False), Frame("load", "app/loader.py", 12, True)),
    (Frame("load", "app/loader.py", 11, True),),
    (Frame("wait", "threading.py", 300, False),),
)


ISSUED = {100: MAIN, 101: MAIN, 102: MAIN}


def calls(threads: dict[int, int]) -> pd.DataFrame:
    return pd.DataFrame({"row": list(threads), "thread": list(threads.values())})


def os_calls(*rows) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["start_ns", "end_ns", "thread", "name_id"])
    return frames.check(table.assign(row=range(len(rows))), frames.OS_CALLS)


def activity(folder, threads=None, samples=(), made=None, names=()) -> pd.DataFrame:
    """The table for SEGMENTS: `threads` of the calls; `samples` (time, position in STACKS) of the
    main thread; `made`: calls of the OS."""
    lines: list[dict] = [{"format": "nsysalign-stacks", "version": 1, "frequency_hz": 1000}]
    lines += [{"stack": n, "frames": list(map(list, stack))} for n, stack in enumerate(STACKS)]
    t, stack = zip(*samples, strict=True) if samples else ((), ())
    about = {"process": PROCESS, "thread": 7, "main": True}
    lines.append(about | {"t_ns": t, "stack_of": stack})
    path = folder / "stacks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = frames.empty(frames.OS_CALLS) if made is None else made
    trace = SimpleNamespace(calls=calls(threads or ISSUED), os_calls=made, names=dict(names))
    stacks = read_stacks(path)[0] if samples else None
    return host_activity(trace, stacks, INTERVALS, SEGMENTS)


def view(table: pd.DataFrame, label: str, name: str) -> list[tuple]:
    rows = table[(table["label"] == label) & (table["view"] == name)]
    return list(
        rows[["name", "place", "within", "samples", "count", "ns"]].itertuples(
            index=False, name=None
        )
    )


def test_samples_are_counted_by_function_of_the_program(tmp_path):
    taken = ((1, 0), (4, 0), (18, 0), (22, 1), (45, 2), (47, 1), (58, 3), (99, 0))
    table = activity(tmp_path, samples=taken)
    assert view(table, "t1", "all") == [("", "", "", 3, 2, 26)]  # 18 lies in a call, 99 in nothing
    assert view(table, "t1", "python") == [
        ("resize", "app/transforms.py:41", "", 2, 0, 0),
        ("load", "app/loader.py:12", "open (io.py)", 1, 0, 0),
    ]
    # two lines of one function are one row, at the line with most samples (of equals the first)
    assert view(table, "t2", "python") == [("load", "app/loader.py:11", "", 2, 0, 0)]


@pytest.mark.parametrize("thread", [OTHER, -1])
def test_samples_say_nothing_about_another_thread(thread, tmp_path):
    table = activity(tmp_path, dict.fromkeys(ISSUED, thread), ((1, 0), (45, 0)))
    assert (table["view"] != "python").all() and not table["samples"].any()


def test_ranges_and_calls_are_exact(tmp_path):
    made = os_calls((2, 12, MAIN, 5), (4, 6, MAIN, 6), (10, 24, OTHER, 5), (28, 50, MAIN, 6))
    table = activity(tmp_path, made=made, names={5: "read", 6: "futex"})
    assert view(table, "t1", "range") == [("augment", "", "", 0, 1, 16)]
    assert view(table, "t2", "range") == [
        ("augment", "", "", 0, 1, 12)
    ]  # its repetitions are one range
    # a call inside another one counts once; what lies outside of the gaps, or on another thread,
    # does not count
    assert view(table, "t1", "os") == [("read", "", "", 0, 1, 10), ("futex", "", "", 0, 1, 2)]
    assert view(table, "t2", "os") == [("futex", "", "", 0, 1, 6)]


def test_a_gap_belongs_to_the_thread_of_the_next_call_of_its_interval():
    gaps = host_gaps(INTERVALS, SEGMENTS, calls({100: OTHER, 101: MAIN}))
    assert gaps.thread.tolist() == [OTHER, MAIN, -1]
    busy = SEGMENTS[SEGMENTS["cause"] != "host"]
    trace = SimpleNamespace(calls=calls({100: MAIN}))
    assert host_activity(trace, None, INTERVALS, busy).empty


@pytest.mark.parametrize(("kind", "thread"), [("host", MAIN), ("event", -1)])
def test_what_follows_the_last_call_of_a_host_timer_is_about_its_own_thread(kind, thread):
    """
    t3    [launch)[ host ]       a host timer goes on after its last call; a pair of events does not
    """
    segments = pd.DataFrame(
        [
            (2, 60, 64, "api_launch", "api", 101, "cudaLaunchKernel"),
            (2, 64, 80, "host", "", -1, ""),
        ],
        columns=frames.SEGMENTS.names,
    )
    intervals = pd.DataFrame({"interval": [2], "label": ["t3"], "kind": kind})
    gaps = host_gaps(intervals, segments, calls(ISSUED))
    assert gaps[["ns", "thread"]].to_numpy().tolist() == [[16, thread]]


def test_samples_of_a_run_reach_its_analysis(recorded, tmp_path):
    """A recording with samples put into its longest host gap: what a run with --sample-python
    leaves."""
    export, _ = unpack("probe", tmp_path)
    a = recorded("probe").analysis
    host = a.segments[
        (a.segments["cause"] == "host") & a.segments["interval"].isin(a.measured["interval"])
    ]
    gap = host.loc[(host["end_ns"] - host["start_ns"]).idxmax()]
    process = int(
        pd.read_sql("select globalPid from CUPTI_ACTIVITY_KIND_KERNEL limit 1", _open(export)).iloc[
            0, 0
        ]
    )
    times = np.linspace(gap["start_ns"], gap["end_ns"] - 1, 8).astype(int).tolist()
    lines = [
        {"format": "nsysalign-stacks", "version": 1, "frequency_hz": 1000},
        {"stack": 4, "frames": [["resize", "app/transforms.py", 41, 1]]},
        {"stack": 9, "frames": [["read", "io.py", 7, 0], ["load", "app/loader.py", 12, 1]]},
        {
            "process": process,
            "thread": 1,
            "main": True,
            "t_ns": times,
            "stack_of": [4] * 5 + [9] * 3,
        },
        {"process": process, "thread": 2, "main": False, "t_ns": times, "stack_of": [9] * 8},
    ]
    (tmp_path / "stacks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = nsysalign.analyze(tmp_path)
    label = a.intervals.set_index("interval")["label"][gap["interval"]]
    assert view(again.host_activity, label, "python") == [
        ("resize", "app/transforms.py:41", "", 5, 0, 0),
        ("load", "app/loader.py:12", "read (io.py)", 3, 0, 0),
    ]
    assert again.host_activity["samples"].max() == 8
    pd.testing.assert_frame_equal(again.parts, a.parts)  # samples never change a budget


def _open(export: Path):
    import sqlite3

    return sqlite3.connect(export)


def test_lines_that_cannot_be_used_are_left_out(tmp_path):
    path = tmp_path / "stacks.jsonl"
    lines = [
        '{"format":"nsysalign-stacks"}',
        '{"stack":1,"frames":[["f","/home/alice/x.py",3,1],["g"],7]}',
        '{"process":1,"main":true,"t_ns":[5,"x",null,6],"stack_of":[1,1,1,2]}',
        '{"process":true,"main":true,"t_ns":[5],"stack_of":[1]}',
        "[1]",
        '{"cut',
    ]
    path.write_text("\n".join(lines))
    found, notes = read_stacks(path)
    assert found.t_ns.tolist() == [5]
    assert found.frames == ((Frame("f", "x.py", 3, True),),)
    assert notes == ["stacks.jsonl: 2 lines could not be used (cut or malformed)"]
