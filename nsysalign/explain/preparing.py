"""What a timing does for those behind it: load code, record a CUDA graph, search for the fastest way.

timings of a label   [ compiles, loads code      ][ records a graph ][x][x][x][x]...      the first ones prepare
                     [ 184 operations, 41 waits ][38][38][184 ...     ][38]...            each new shape is searched
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from nsysalign.label import Entry, Group, Label

#: Calls that load or link code, and those that make a graph of what was captured.
LOADS = re.compile(r"^cu(da)?(LibraryLoad|ModuleLoad|Link)")
_GRAPHS = re.compile(r"^cu(da)?GraphInstantiate")
#: Loading code, and recording a graph, are named from this time in each timing on.
LOAD_NS, _GRAPH_NS = 100_000, 5_000
#: What is prepared, in words.
CODE, GRAPH = "code is loaded", "a CUDA graph is recorded"
#: Kernels that torch.compile makes: it times them, too, while it compiles.
_COMPILED = re.compile(r"^triton_(poi|red|per|tem|for|mm|unk)_")
#: A search takes so many times as long as the usual timing, issues so many times its operations, and waits
#: at least so often, as it times each way.
_LONGER, _MORE, _LEAST_WAITS = 5, 3, 10


def loads_code(group: Group) -> bool:
    """Whether the timings of a group load code, on average."""
    return _spent(group, LOADS) >= LOAD_NS * group.count


def records_graph(group: Group) -> bool:
    """The same: whether they make a CUDA graph of what they captured."""
    return _spent(group, _GRAPHS) >= _GRAPH_NS * group.count


def prepared(group: Group, details_of: Callable[[np.ndarray, str], pd.DataFrame]) -> dict[str, int]:
    """What is prepared in at least half of them, in words, and in how many.

    details_of: as `Facts.details`, asked only where the ledger says that it may be
    """
    counts = {}
    for asked, calls, least_ns, text in (
        (loads_code, LOADS, LOAD_NS, CODE),
        (records_graph, _GRAPHS, _GRAPH_NS, GRAPH),
    ):
        if not asked(group):
            continue
        rows = details_of(group.intervals, "api")
        rows = rows[rows["detail"].astype(str).str.match(calls)]
        count = int((rows.groupby("interval")["ns"].sum() >= least_ns).sum())
        counts |= {text: count} if 2 * count >= group.count else {}
    return counts


def searches(label: Label, group: Group) -> bool:
    """Whether they try many ways to do what the label's usual timing does in one, such as cuDNN's search and
    the autotuning of Triton."""
    usual = label.usual
    longer = group.typical_ns >= _LONGER * usual.typical_ns
    larger = group.work.operations >= _MORE * max(usual.work.operations, 1)
    kernels, usually = ({i.name for i in g.work.of_kind("kernel")} for g in (group, usual))
    alike = bool(usually) and 2 * len(kernels & usually) >= len(usually)
    waits = group.work.waits >= _LEAST_WAITS
    return longer and larger and alike and waits and not compiled(group)


def compiled(group: Group) -> bool:
    """Whether they run kernels of torch.compile's."""
    return any(_COMPILED.match(kernel.name) for kernel in group.work.of_kind("kernel"))


def loading_share(group: Group) -> float:
    """How much of a group's time passes in calls that load or link code, 0 to 1."""
    return _spent(group, LOADS) / max(group.total_ns, 1)


def earliest(label: Label, groups: Sequence[Group], start_ns: np.ndarray) -> int:
    """How many timings these groups of a label have, where they are its first ones; else 0.

    start_ns: of all intervals
    """
    timings = np.concatenate([group.intervals for group in label.groups])
    chosen = np.concatenate([group.intervals for group in groups])
    ordered = timings[np.argsort(start_ns[timings], kind="stable")]
    return len(chosen) if {*chosen.tolist()} == {*ordered[: len(chosen)].tolist()} else 0


def _spent(group: Group, calls: re.Pattern[str]) -> int:
    entries: tuple[Entry, ...] = group.of_cause("api")
    return sum(entry.ns for entry in entries if calls.match(entry.what))
