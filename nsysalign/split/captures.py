"""How many launches a CUDA graph replays that was captured from a stream.

    calls    [begin] L L L L [end] [instantiate]    [launch g]   [launch g]      graph g replays 4 launches
    GPU                                              GGGGGGGGG    GGGGGGGGG

A trace of whole graphs does not say which kernels ran in one.  What was captured is known by its calls:
those that issue work, of which nothing ran, while a capture was open.  A graph is that of the only capture which
ended since the graph before it was launched first.  Of several nothing is said, nor of a process with another number of
captures than of graphs, nor of one that changes graphs or makes them by hand.
"""

from __future__ import annotations

import re
from bisect import bisect
from typing import NamedTuple

import numpy as np

from nsysalign.model import CALL, ISSUING_CALLS, Alignment, Trace
from nsysalign.split.issued import Issues, issued_in

_BEGINS, _ENDS = re.compile("StreamBeginCapture"), re.compile("StreamEndCapture")
#: Calls that make or change a graph in another way.
_CHANGES = re.compile(r"GraphExecUpdate|GraphAdd|BeginCaptureToGraph")


class CapturedLaunches(NamedTuple):
    """How many launches the graphs of typical intervals replay together: by interval, only where that is known of all."""

    of_interval: dict[int, int]


def captured_launches(
    trace: Trace, alignment: Alignment, issues: Issues, typical: np.ndarray
) -> CapturedLaunches:
    """Return how many launches the graphs replay that these windows launch.

    typical: positions of windows
    """
    of_graph = _launches_of_graphs(trace, issues)
    out: dict[int, int] = {}
    if not of_graph:
        return CapturedLaunches(out)
    for windows, inside in issued_in(alignment, issues, typical):
        replays = issues.graph[inside] >= 0
        graphs = zip(issues.process[inside], issues.graph[inside], strict=True)
        counts = np.array([of_graph.get((int(p), int(g)), 0) for p, g in graphs])
        for window in np.unique(windows[replays]).tolist():
            of_window = counts[replays & (windows == window)]
            if of_window.all():
                out[window] = int(of_window.sum())
    return CapturedLaunches(out)


def _launches_of_graphs(trace: Trace, issues: Issues) -> dict[tuple[int, int], int]:
    """Return (process, number of a graph) -> how many launches it replays, where that is known."""
    out = {}
    for process, captures in _captures(trace).items():
        # when each graph of the process was launched first
        first_ns: dict[int, int] = {}
        of_process = np.flatnonzero((issues.process == process) & (issues.graph >= 0))
        for issue in of_process.tolist():
            first_ns.setdefault(int(issues.graph[issue]), int(issues.at_ns[issue]))
        if len(first_ns) != len(captures):
            continue
        ends = [end_ns for end_ns, _ in captures]
        before = 0  # captures that ended before an earlier graph was launched
        for graph, at_ns in sorted(first_ns.items(), key=lambda item: item[1]):
            ended = bisect(ends, at_ns)
            if ended == before + 1:
                out[process, graph] = captures[before][1]
            before = ended
    return out


def _captures(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    """Return process -> (when a capture ended in ns, how many launches it holds) for each of its captures, by their ends."""
    calls = trace.calls
    begins, ends, changes = (_called(trace, names) for names in (_BEGINS, _ENDS, _CHANGES))
    process, thread = calls["process"].to_numpy(), calls["thread"].to_numpy()
    changed = {*process[changes].tolist()}
    captured = _without_work(trace) if len(ends) else begins
    out: dict[int, list[tuple[int, int]]] = {}
    for end in ends.tolist():
        earlier = begins[(begins < end) & (thread[begins] == thread[end])]
        number = int(process[end])
        if not len(earlier) or number in changed:
            continue
        inside = captured[(captured > earlier[-1]) & (captured < end)]
        launches = int((process[inside] == number).sum())
        out.setdefault(number, []).append((int(calls["end_ns"].iloc[end]), launches))
    return {number: sorted(captures) for number, captures in out.items()}


def _called(trace: Trace, names: re.Pattern[str]) -> np.ndarray:
    """Return the positions of the outermost calls of these names."""
    wanted = [number for number, name in trace.names.items() if name and names.search(name)]
    is_wanted = np.isin(trace.calls["name_id"].to_numpy(), wanted)
    return np.flatnonzero(is_wanted & trace.outermost)


def _without_work(trace: Trace) -> np.ndarray:
    """Return the positions of the outermost calls that issue work of which none ran."""
    call = trace.operations["call"].to_numpy()
    call = call[call >= 0]
    works = np.zeros(len(trace.calls), bool)
    works[call - trace.calls["nested"].to_numpy()[call]] = True
    issuing = [CALL[kind] for kind in ISSUING_CALLS]
    is_issuing = np.isin(trace.calls["kind"].to_numpy(), issuing)
    return np.flatnonzero(is_issuing & trace.outermost & ~works)
