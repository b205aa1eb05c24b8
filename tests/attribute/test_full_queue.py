"""Launches of CUDA graphs that a full queue blocked, of which a trace does not tell how many it holds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from nsysalign.model import CALL
from nsysalign.split.host_timers import _blocked_graphs

US = 1_000


def blocked(us, behind, graph=2):
    """Which calls a full queue blocked: each took so long, behind so many operations, and launched this graph."""
    count = len(us)
    explainer = SimpleNamespace(
        call_start=np.arange(count) * 10**8,
        call_end=np.arange(count) * 10**8 + np.array(us) * US,
        call_kind=np.full(count, CALL["graph_launch"]),
        graph_of_call=np.full(count, graph),
    )
    return np.flatnonzero(_blocked_graphs(explainer, np.arange(count), np.array(behind))).tolist()


def test_a_full_queue_blocks_the_launches_behind_as_many_as_ever():
    """i12: eight launches of 0.2 ms, then each takes 17 ms, until the one before the seven that wait has run."""
    us, behind = [200] * 8 + [17_000] * 12, [*range(0, 40, 5)] + [40] * 12
    assert blocked(us, behind) == list(range(8, 20))
    # a launch of another graph says nothing of this one; of an unknown graph nothing is known
    assert blocked(us, behind, graph=[2] * 8 + [3] * 12) == []
    assert blocked(us, behind, graph=-1) == []


def test_what_else_makes_launches_slow_is_no_full_queue():
    # a quick one behind as many; slow ones with nothing before them; two, which may be chance
    assert blocked([200] * 8 + [17_000] * 11 + [200], [*range(0, 40, 5)] + [40] * 12) == []
    assert blocked([17_000] * 3 + [200] * 9, [0] * 3 + [0, 5, 10] * 3) == []
    assert blocked([200] * 8 + [17_000] * 2, [*range(0, 40, 5)] + [40] * 2) == []
