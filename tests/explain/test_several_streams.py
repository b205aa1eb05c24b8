"""A correct timing of work on several streams is accused of nothing, and one that does not wait for
its work is: programs of the simulator, whose truth is known."""

from __future__ import annotations

import pytest
from simulator import export, machine
from simulator.program import (
    Copy,
    Elapsed,
    HostStart,
    HostStop,
    Launch,
    Program,
    Record,
    Sync,
    Wait,
)
from simulator.world import LEGACY, NON_BLOCKING

import nsysalign
from nsysalign.answer import answer

SIDE = 13
STREAMS = {7: LEGACY, SIDE: NON_BLOCKING, 15: NON_BLOCKING}


def repeated(*inside, times=8):
    steps = []
    for k in range(times):
        steps += [Sync(), Record("start"), *inside, Record("end"), Sync(), Elapsed("start", "end", f"work#{k}")]  # fmt: skip
    return Program({1: steps}, streams=STREAMS)


def said(program, folder):
    trace, logs = export.write(machine.run(program), folder)
    return answer(nsysalign.analyze(trace, logs))


RIGHT = {
    # torch.cuda.current_stream().wait_stream(side) before the end event
    "wait_stream": [Launch(300_000, SIDE), Record("done", SIDE), Wait("done", 7)],
    # work.wait() of a collective on NCCL's stream: the wait is made by the library
    "work_wait": [
        Launch(300_000, SIDE, name="ncclDevKernel_AllReduce"),
        Record("done", SIDE, logged=False),
        Wait("done", 7, logged=False),
    ],
    # a kernel of its own, then one that waits for the other stream
    "both": [
        Launch(100_000),
        Launch(200_000, SIDE),
        Record("done", SIDE),
        Wait("done", 7),
        Launch(50_000),
    ],
    # the next batch is copied meanwhile, and nothing here needs it
    "prefetching": [Copy(900_000, SIDE, nbytes=40 << 20), Launch(200_000), Launch(200_000)],
    # a chain of two streams: the side stream waits for the second one
    "chain": [
        Launch(200_000, 15),
        Record("first", 15),
        Wait("first", SIDE),
        Launch(100_000, SIDE),
        Record("second", SIDE),
        Wait("second", 7),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_timing_is_accused_of_nothing(name, tmp_path):
    told = said(repeated(*RIGHT[name]), tmp_path)
    assert not told.wrong and all(row.verdict != "wrong" for row in told.labels)


def test_waiting_for_what_it_launched_itself_is_nothing_to_save(tmp_path):
    (row,) = said(repeated(*RIGHT["wait_stream"]), tmp_path).labels
    assert row.saving_ns < row.warm.total_ns / 5


def test_an_end_that_does_not_wait_is_wrong_with_its_stream(tmp_path):
    told = said(repeated(Launch(300_000, SIDE)), tmp_path)
    (wrong,) = told.wrong
    assert wrong.label == "work" and f"stream {SIDE}" in wrong.reason
    assert told.verdict == "wrong" and told.sentence == wrong.sentence


def test_a_host_timer_that_does_not_wait_is_wrong(tmp_path):
    def timed(*, waits):
        steps = []
        for k in range(8):
            inside = [Launch(300_000), *([Sync()] if waits else [])]
            steps += [Sync(), HostStart(f"work#{k}"), *inside, HostStop(f"work#{k}"), Sync()]
        return Program({1: steps})

    for waits in (True, False):
        folder = tmp_path / str(waits)
        folder.mkdir()
        assert bool(said(timed(waits=waits), folder).wrong) is not waits
