"""How well records without timestamps are placed, on machines whose latencies vary: a few fixed
programs."""

from __future__ import annotations

import random
from statistics import median

import pytest
from simulator import machine
from simulator.export import Style
from simulator.program import Api, Elapsed, Launch, Program, Record, Sleep, Sync, Timing
from thorough import part

from .test_properties import analysed, rows_of


def mixed(seed: int, repetitions: int = 12) -> Program:
    """Launch-bound, queued, empty and synchronising intervals, shuffled."""
    draw = random.Random(seed)
    shapes = {
        "bound": lambda: [Sleep(draw.randint(20_000, 80_000)), Launch(draw.randint(3_000, 30_000))],
        "queued": lambda: [Launch(draw.randint(20_000, 40_000)), Launch(25_000)],
        "empty": lambda: [],
        "alloc": lambda: [Launch(9_000), Api(30_000), Launch(5_000)],
    }
    before = {"queued": [Launch(400_000)], "empty": [Launch(100_000)]}
    names = [name for name in shapes for _ in range(repetitions)]
    draw.shuffle(names)
    steps: list = []
    for i, name in enumerate(names):
        steps += [
            *before.get(name, []),
            Record(f"a{i}"),
            *shapes[name](),
            Record(f"b{i}"),
            Sync(),
            Elapsed(f"a{i}", f"b{i}", f"{name}#{names[:i].count(name)}"),
            Sleep(draw.randint(5_000, 50_000)),
        ]
    spacing = draw.choice(
        [2_550, 5_000]
    )  # a record takes its spacing less 370 ns after an operation (measured)
    timing = Timing(
        op_to_record=spacing - 370,
        record_to_record=spacing,
        call_to_record=draw.choice([5_500, 6_500]),
    )
    return Program({500: steps}, timing=timing)


@pytest.mark.parametrize("clock_error", [-8_000, 0, 8_000])
def test_records_are_matched_without_exact_clocks(clock_error):
    """Only realtime, off by 8 us, which is more than a record call takes."""
    world = machine.run(mixed(5))
    rows = rows_of(analysed(world, Style(clock_lines=False, clock_error=clock_error)))
    for pair in world.pairs:
        assert rows[500, pair.start.seq, pair.end.seq].start_ns == pair.start.t


@pytest.mark.parametrize("event_rows", ["untimed", "none"])
def test_placement_of_blind_records(event_rows):
    errors, held, bound, count = [], 0, 0, 0
    for seed in range(part(2, 4)):
        world = machine.run(mixed(seed))
        rows = rows_of(analysed(world, Style(event_rows=event_rows)))
        assert len(rows) == len(world.pairs)
        for pair in world.pairs:
            row = rows[500, pair.start.seq, pair.end.seq]
            error = abs(row.start_ns - pair.start.t)
            errors.append(error)
            count += 1
            held += error <= row.error_ns + 64
            bound += row.start_lower_ns - 64 <= pair.start.t <= row.start_upper_ns + 64
    assert bound == count
    assert held >= 0.95 * count
    assert median(errors) <= 200
    assert sorted(errors)[int(0.95 * count)] <= 2_000
