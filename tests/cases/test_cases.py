"""The hand-drawn budgets, against the oracle (is the drawing right?) and against nsysalign."""

from __future__ import annotations

import pytest
from simulator import check, oracle

from .drawing import side_by_side
from .event_cases import EVENT_CASES
from .idle_cases import IDLE_CASES
from .other_cases import HOST_CASES, NVTX_CASES

CASES = [*EVENT_CASES, *IDLE_CASES, *HOST_CASES, *NVTX_CASES]


def expected_ns(case) -> dict[str, int]:
    return {cause: us * 1000 for cause, us in case.expected.items() if us}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.kind}-{c.name}")
def test_the_oracle_agrees_with_the_drawing(case):
    world = case.world()
    if case.kind == "event":
        pieces = oracle.event_budget(
            world, *world.pairs[0].window, world.pairs[0].end.stream, world.pairs[0].end
        )
    elif case.kind == "host":
        h = world.host_intervals[0]
        pieces = oracle.host_budget(world, h.start, h.end, h.thread)
    else:
        inside = [
            o for o in world.ops if world.ranges[0].start <= o.call.start < world.ranges[0].end
        ]
        window = min(o.start for o in inside), max(o.end for o in inside)
        pieces = oracle.event_budget(world, *window, 7, None)
    assert oracle.parts(pieces) == expected_ns(case)


@pytest.fixture(scope="module")
def analyses(tmp_path_factory):
    """kind -> (analysis, {name of a case: its intervals})."""
    made = {}
    for kinds in (("event", "host"), ("nvtx",)):
        worlds = {c.name: c.world() for c in CASES if c.kind in kinds}
        folder = tmp_path_factory.mktemp(kinds[0])
        made |= dict.fromkeys(kinds, side_by_side(worlds, folder, logs="event" in kinds))
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.kind}-{c.name}")
def test_nsysalign_agrees_with_the_drawing(case, analyses):
    analysis, intervals = analyses[case.kind]
    found = intervals[case.name]
    found = found[found.kind == case.kind]
    assert len(found) == 1, (analysis.unaligned, analysis.notes)
    row = found.iloc[0]
    assert check.parts(analysis, row.interval) == expected_ns(case)
    for column, us in (
        ("kernel_only_ns", case.kernel_only),
        ("kernel_only_upper_ns", case.with_graphs),
        ("kernel_outside_ns", case.kernel_outside),
        ("gpu_busy_ns", case.gpu_busy),
        ("gpu_earlier_ns", case.gpu_earlier),
    ):
        assert us is None or row[column] == us * 1000, column
    details = analysis.details[analysis.details.interval == row.interval]
    for word, us in case.details.items():
        named = details[details.detail.str.contains(word) | (details.memory == word)]
        assert named.ns.sum() == us * 1000, details
