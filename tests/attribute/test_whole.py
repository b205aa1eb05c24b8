"""The run as a whole: drawn by hand, in microseconds, and against the operations themselves."""

from __future__ import annotations

import numpy as np
import pytest
from cases.drawing import analysed, in_nanoseconds
from simulator import check, export
from simulator.world import NON_BLOCKING, World

#   host       L-----)      L--)             Y-----------------)  C---)
#   stream 7         KKKKKKKK                                          CCCC
#   stream 13                KKKKKKKKK
#   device           KKKKKKKKKKKKKKKKK                                 CCCC
#              0    10       20      30      40               60   70    80


def two_streams() -> World:
    world = World(
        streams={7: 3, 13: NON_BLOCKING}, latency=dict.fromkeys(("kernel", "memcpy"), 2_000)
    )
    world.kernel(10, 24, world.call("launch", 0, 8), name="first")
    world.kernel(20, 34, world.call("launch", 12, 16), 13, name="second")
    world.sync(40, 60)
    world.copy(74, 80, world.call("memcpy", 64, 72), pageable=False, nbytes=1000)
    return world


@pytest.fixture
def analysis(tmp_path):
    return analysed(two_streams(), tmp_path, logs=False)


def test_a_device_and_its_streams(analysis):
    runs = analysis.runs.set_index("label")
    assert runs["elapsed_ns"].to_dict() == {
        "run": 70_000,
        "run (stream 7)": 70_000,
        "run (stream 13)": 14_000,
    }
    assert (runs["tid"] == runs["pid"]).all() and runs["pid"].min() > 0, (
        "as the host's, the main thread's"
    )
    device = check.parts(analysis, runs["interval"]["run"])
    assert (device["kernel"], device["memcpy"], device["sync"]) == (24_000, 6_000, 20_000)
    assert device["api_launch"] == 8_000 and device["launch_latency"] == 2_000
    assert device["host"] == 10_000, "before the synchronisation and after it"
    stream = check.parts(analysis, runs["interval"]["run (stream 7)"])
    assert stream["kernel"] == 14_000, "the other stream's kernel is not its own"


def test_what_ran(analysis):
    table = analysis.kernels[analysis.kernels["label"] == "run"].set_index("kernel")
    assert table["total_ns"].to_dict() == {
        "first": 14_000,
        "second": 14_000,
        "copy H2D pinned": 6_000,
    }
    assert table["idle_before_ns"].to_dict() == {"first": 0, "second": 0, "copy H2D pinned": 40_000}
    assert np.isclose(table["share"]["first"], 0.2)
    gap = analysis.gaps[analysis.gaps["interval"] == analysis.runs["interval"].iloc[0]].iloc[0]
    assert (gap["ns"], gap["next"], gap["call"]) == (
        40_000,
        "copy H2D pinned",
        "cudaDeviceSynchronize",
    )
    assert gap["call_ns"] == 20_000


def test_processes_and_devices_have_runs_of_their_own(tmp_path):
    worlds = [in_nanoseconds(two_streams()) for _ in range(2)]
    worlds[1].pid, worlds[1].device = 501, 1
    for call in worlds[1].calls:
        call.thread = 501
    trace, _ = export.write(worlds, tmp_path)
    analysis = check.analyze(trace, [])
    check.invariants(analysis)
    whole = analysis.runs[analysis.runs["end_stream"] < 0]
    assert whole["label"].tolist() == ["run (process 500, GPU 0)", "run (process 501, GPU 1)"]
    assert whole["elapsed_ns"].tolist() == [70_000, 70_000]
