"""What ran while the recorder was not in the process is set apart, and what holds a switch is left out."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.place.untraced import (
    SWITCHED,
    TRACED,
    UNTRACED,
    longest_traced,
    set_apart,
    when_of,
)
from nsysalign.trace.eventlog import read_event_logs

#: Of process 7: traced to 100, a switch, untraced from 110 to 200, a switch, traced from 220 on.
SPANS = [(100, 110, 0), (110, 200, 1), (200, 220, 0)]


def trace(spans=SPANS, pid=7):
    rows = [(begin, end, pid << 24, plain) for begin, end, plain in spans]
    return SimpleNamespace(untraced=frames.of_rows(rows, frames.UNTRACED))


def test_when():
    spans = {
        (0, 100): TRACED, (90, 101): SWITCHED, (100, 109): SWITCHED, (105, 120): SWITCHED,
        (110, 200): UNTRACED, (120, 130): UNTRACED, (120, 201): SWITCHED, (199, 230): SWITCHED,
        (220, 230): TRACED, (0, 300): SWITCHED,
    }  # fmt: skip
    start, end = np.array(list(spans), np.int64).T
    assert when_of(trace(), np.full(len(start), 7), start, end).tolist() == [*spans.values()]
    # another process has turns of its own
    assert (when_of(trace(), np.full(len(start), 8), start, end) == TRACED).all()


def test_the_longest_turn_stands_for_the_run():
    assert longest_traced(trace(), 7 << 24, 10, 500) == (220, 500)
    assert longest_traced(trace(), 7 << 24, 10, 230) == (10, 100)
    assert longest_traced(trace(), 8 << 24, 10, 230) == (10, 230)


def log(folder, starts, lasts):
    """A pair from each of these times on."""
    lines = [{"type": "header", "format": "nsysalign-events", "version": 1, "pid": 7}]
    for n, start in enumerate(starts):
        for seq, t in ((2 * n, start), (2 * n + 1, start + lasts)):
            call = {"type": "record", "seq": seq, "tid": 7, "device": 0, "site": "a.py:3"}
            lines.append(call | {"t0_ns": t, "t1_ns": t + 1})
        pair = {"type": "elapsed", "start": 2 * n, "end": 2 * n + 1, "ms": 0.01}
        lines.append(pair | {"t0_ns": 400, "t1_ns": 401})
    path = folder / "events-7.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_event_logs([path])


def test_every_pair_is_on_one_side_or_left_out_and_counted(tmp_path):
    starts = range(0, 300, 7)
    whole = log(tmp_path, starts, 12)
    apart = set_apart(trace(), whole)
    sides = len(apart.log.elapsed), len(apart.untraced.elapsed), apart.left_out
    assert sum(sides) == len(starts) and min(sides) > 1
    # each side holds the records of its pairs, and neither holds one of a switch
    for side, allowed in ((apart.log, TRACED), (apart.untraced, UNTRACED)):
        numbers = set(side.records["seq"])
        assert {*side.elapsed["start"], *side.elapsed["end"]} <= numbers
        t0, t1 = (side.records[c].to_numpy() for c in ("t0_ns", "t1_ns"))
        assert (when_of(trace(), np.full(len(t0), 7), t0, t1) == allowed).all()


def test_a_recorder_that_stays_sets_nothing_apart(tmp_path):
    assert set_apart(trace([]), log(tmp_path, [1], 5)) is None
    assert set_apart(trace(), None) is None
    assert isinstance(trace([]).untraced, pd.DataFrame)
