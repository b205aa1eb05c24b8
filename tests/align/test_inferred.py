"""Records of a trace without an event log: which of them belong together, drawn as the order of the calls.

s1 w e1 |      two letters name an event, w is work of the thread, | a wait of the host, ? a query
"""

from __future__ import annotations

import re

import pandas as pd
import pytest
from simulator import check, export
from simulator.world import NON_BLOCKING, World

from nsysalign.model import UNSURE
from nsysalign.place.inferred import Mark, _in_order, pair


def drawn(text: str, *, numbered: bool = True) -> tuple[list[str], list[Mark]]:
    """Names and marks of the records in a drawing; `>x` is a record that a stream waits for."""
    tokens, names, marks, work = text.split(), [], [], True
    for n, token in enumerate(tokens):
        if token in "w|?":
            work = work or token == "w"
            continue
        name = token.lstrip(">")
        after = tokens[n + 1] if n + 1 < len(tokens) else ""
        event = sum(map(ord, name)) if numbered else -1
        names.append(name)
        marks.append(Mark(event, work, token != name, {"|": 1, "?": 2}.get(after, 0)))
        work = False
    return names, marks


def pairs(text: str, *, numbered: bool = True) -> list[str]:
    names, marks = drawn(text, numbered=numbered)
    found = pair(marks)
    return [
        f"{names[a]}-{names[b]}{'?' if u else ''}"
        for a, b, u in zip(found.start, found.end, found.unsure, strict=True)
    ]


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("s w e |", "s-e"),
        ("s w e | s w e | s w e |", "s-e s-e s-e"),
        ("a b w c d |", "a-d b-c"),  # nested, closed together
        ("a w b w c | w d |", "a-d b-c"),  # nested, each end waited for
        ("a w b c w d e w f |", "a-b c-d e-f"),  # a loop without a wait inside
        ("a w b w c w d |", "a-b? c-d"),
        ("s w e w s w e w s w e |", "s-e? s-e? s-e"),
        ("s w e ?", "s-e?"),
        ("w >r w >r w >r w", ""),
        ("a w >r w b |", "a-b"),
        ("w r | w r | w r |", ""),
        ("w r w r w r w", ""),
        ("a w", ""),
    ],
)  # fmt: skip
def test_the_order_of_the_calls_tells_pairs(program, wanted):
    assert pairs(program) == wanted.split()


def test_two_records_of_one_event_are_never_a_pair():
    assert pairs("r w r w r |") == []
    assert pairs("r w r w r |", numbered=False) == ["r-r"], (
        "nobody knows whether they are of one event"
    )


def test_records_of_one_stream_keep_their_order():
    records = pd.DataFrame(
        {
            "t_ns": [50, 40, 45, 70, -1, 10],
            "lane": [0, 0, 0, 0, 0, 1],
            "call_start_ns": [1, 2, 3, 4, 5, 6],
        }
    )
    assert _in_order(records).tolist() == [50, 50, 50, 70, -1, 10]


@pytest.mark.parametrize(
    "program", ["s w e | w r |", "w >r w >r", "a b w c d | x w", "r w r w s w e |"]
)
def test_every_record_is_in_a_pair_or_counted(program):
    names, marks = drawn(program)
    found = pair(marks)
    assert 2 * len(found.start) + sum(found.left.values()) == len(names)


def _program(world: World) -> None:
    """Two nested pairs, and a record that only makes another stream wait."""

    def kernel(at: int) -> None:
        world.kernel(at + 6_000, at + 26_000, world.call("launch", at, at + 4_000))

    outer = world.record(10_500, 10_000, 11_000)
    inner = world.record(12_500, 12_000, 13_000)
    kernel(14_000)
    ready = world.record(42_000, 20_000, 21_000)
    world.wait(ready, 22_000, 23_000, 13)
    kernel(30_000)
    world.record(58_000, 36_000, 37_000)
    world.record(59_000, 38_000, 39_000)
    world.sync(40_000, 64_000)
    assert outer.event != inner.event


def test_a_trace_without_a_log(tmp_path):
    world = World(streams={7: 3, 13: NON_BLOCKING}, end=1_000_000)
    _program(world)
    trace, _ = export.write(world, tmp_path)
    analysis = check.analyze(trace, [])
    check.invariants(analysis)
    found = analysis.measured[analysis.measured["method"] == "inferred"].sort_values("elapsed_ns")
    assert len(found) == 2
    inner, outer = found.iloc[0], found.iloc[1]
    assert outer.start_ns <= inner.start_ns < inner.end_ns <= outer.end_ns, "one lies in the other"
    assert not any(UNSURE in flags for flags in found["flags"])
    note = next(n for n in analysis.notes if "inferred from records" in n)
    assert re.search(r"2 intervals are .* 1 record belongs to no pair \(1 order streams", note)
