"""How many launches a captured graph replays: calls drawn by hand, a letter each.

B, E   begin and end a capture;  L  a launch of which nothing ran;  R  one that ran;  U  changes a graph
0 to 9 launches the graph of this number
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nsysalign.model import CALL
from nsysalign.split.captures import _launches_of_graphs

NAMES = {"B": "cudaStreamBeginCapture_v10000", "E": "cudaStreamEndCapture_v10000", "U": "cuGraphExecUpdate_v2",
         "L": "cudaLaunchKernel_v7000", "R": "cudaLaunchKernel_v7000", "G": "cudaGraphLaunch_v10000"}  # fmt: skip
KINDS = {"L": "launch", "R": "launch", "G": "graph_launch"}


def launches(program: str) -> dict[int, int]:
    """How many launches each graph of the program replays, where that is known."""
    rows, graphs = [], []
    for n, letter in enumerate(program):
        what = "G" if letter.isdigit() else letter
        kind = CALL[KINDS.get(what, "other")]
        rows.append((n * 10, n * 10 + 5, 8, 80, kind, list(NAMES).index(what), 0))
        if what == "G":
            graphs.append((8, int(letter), n * 10))
    columns = ["start_ns", "end_ns", "process", "thread", "kind", "name_id", "nested"]
    ran = [n for n, letter in enumerate(program) if letter == "R" or letter.isdigit()]
    trace = SimpleNamespace(
        calls=pd.DataFrame(rows, columns=columns, dtype="int64"),
        operations=pd.DataFrame({"call": ran}, dtype="int64"),
        names=dict(enumerate(NAMES.values())),
        outermost=np.ones(len(rows), bool),
    )
    process, graph, at_ns = np.array(graphs, np.int64).reshape(-1, 3).T
    issues = SimpleNamespace(process=process, graph=graph, at_ns=at_ns)
    return {graph: count for (_, graph), count in _launches_of_graphs(trace, issues).items()}


@pytest.mark.parametrize(("program", "wanted"), [
    ("RBLLLE1R1", {1: 3}),
    ("BLRLE1", {1: 2}),                 # another thread's work ran meanwhile
    ("BLE1BLLE2121", {1: 1, 2: 2}),
    ("BLEBLLE12", {}),                  # which of the two is which?
    ("BLEBLLE1", {}),                   # one of them is never launched
    ("1BLE2", {}),                      # one was captured before the trace begins
    ("BLE1U1", {}),                     # it is another one by now
    ("R1", {}),
])  # fmt: skip
def test_a_graph_replays_the_launches_of_the_only_capture_before_it(program, wanted):
    assert launches(program) == wanted
