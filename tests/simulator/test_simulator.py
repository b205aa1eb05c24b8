"""The simulator and the oracle, checked by hand: a test tool needs tests of its own."""

from __future__ import annotations

import itertools

import pytest

from simulator import machine, oracle
from simulator import program as p
from simulator.program import Copy, Elapsed, Launch, Program, Record, Sync, Timing
from simulator.world import BLOCKING, LEGACY, NON_BLOCKING

STREAMS = {7: LEGACY, 13: NON_BLOCKING, 14: BLOCKING}


def run(*steps, **timing):
    program = Program({500: list(steps)}, streams=STREAMS, timing=Timing(**timing), begin=0)
    return machine.run(program)


def test_an_interval_around_one_kernel():
    """
    H  r.35-3.35      s4-8        r8.65-11.65
    G     |5.856           #10-30     |32.2 -> 32.224, the next multiple of 32 ns
    """
    world = run(Record("a"), Launch(20_000), Record("b"), Sync(), Elapsed("a", "b", "x#0"))
    pair = world.pairs[0]
    assert (pair.start.t, pair.end.t) == (5_856, 32_224)
    assert pair.elapsed_ns == 32_224 - 5_856
    pieces = oracle.event_budget(world, *pair.window, 7, pair.end)
    expected = {"api_launch": 2_144, "launch_latency": 2_000, "kernel": 20_000, "event": 2_224}
    assert oracle.parts(pieces) == expected


def test_a_full_queue_blocks_the_launch():
    """Depth 2: the third launch waits for the end of the first kernel (at 106), then takes its 4
    us."""
    world = run(*[Launch(100_000)] * 3, queue_depth=2)
    assert world.calls[2].end == world.ops[0].end + 4_000


@pytest.mark.parametrize(
    ("first", "second", "ordered"), [(7, 14, True), (14, 7, True), (7, 13, False), (13, 14, False)]
)
def test_legacy_default_stream(first, second, ordered):
    world = run(Launch(50_000, first), Launch(1_000, second))
    assert (world.ops[1].start >= world.ops[0].end) == ordered


def test_a_pageable_copy_stages_inside_its_call():
    """H c0----------35: staging 20, copy 10, staging 5."""
    world = run(Copy(10_000, pageable=True))
    (call,), (op,) = world.calls, world.ops
    assert (call.start, op.start, op.end, call.end) == (0, 20_000, 30_000, 35_000)


def test_the_budget_adds_up_and_covers():
    world = run(
        p.Push("outer"), Record("a"), Launch(9_000), Copy(5_000, 13), Copy(5_000, 7, True), Record("r", 13), p.Wait("r", 7),
        p.GraphLaunch([(0, 4_000), (2_000, 5_000)], whole=False), p.GraphLaunch([(0, 5_000)]), p.Api(3_000, nested=True),
        Record("b"), Sync(), p.Pop(), Elapsed("a", "b", "x#0"),
    )  # fmt: skip
    pair = world.pairs[0]
    pieces = oracle.event_budget(world, *pair.window, 7, pair.end)
    assert sum(oracle.parts(pieces).values()) == pair.elapsed_ns
    assert all(a.end == b.start for a, b in itertools.pairwise(pieces))
