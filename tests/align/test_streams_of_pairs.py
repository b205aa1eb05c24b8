"""On which of a thread's streams the pairs of a trace without a log lie."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nsysalign.place.streams import lane_of_pairs


@pytest.mark.parametrize(("program", "known", "wanted"), [
    ("0 R 1 R 0", (-1, -1), (1, 1)),      # work on one stream between the two
    ("1 R 1 1 R 0", (-1, -1), (1, 1)),
    ("0 R 0 1 R 0", (-1, -1), (-1, -1)),  # on two: it may be either
    ("0 R 1 R 0", (0, -1), (0, 1)),       # a row says the start's
    ("0 R R 0", (-1, -1), (0, 0)),        # none between: that of the work around them
    ("0 R R 1", (-1, -1), (-1, -1)),
])  # fmt: skip
def test_lanes_of_a_pair(program, known, wanted):
    """R records, a number issues work on that lane, one call a microsecond."""
    steps = program.split()
    now = np.arange(len(steps)) * 1_000
    work = np.array([n for n, step in enumerate(steps) if step != "R"])
    records = np.array([n for n, step in enumerate(steps) if step == "R"])
    trace = SimpleNamespace(
        calls=pd.DataFrame({"start_ns": now, "thread": 1}), operations=pd.DataFrame({"call": work})
    )
    table = pd.DataFrame({"call": records, "thread": 1, "call_start_ns": now[records]})
    lane = np.array([int(steps[n]) for n in work])
    start, end = np.array([0]), np.array([1])
    found = lane_of_pairs(trace, lane, table, np.array(known), start, end)
    assert tuple(found) == wanted
