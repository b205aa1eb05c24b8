"""What a timing does for those behind it: compile or load code, record a CUDA graph, search for the fastest way.

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
MAKES = re.compile(f"{LOADS.pattern}|{_GRAPHS.pattern}")
#: Loading code, and recording a graph, are named from this time in each timing on.
LOAD_NS, _GRAPH_NS = 100_000, 5_000
#: What is prepared, in words.
CODE, GRAPH = "code is loaded", "a CUDA graph is recorded"
#: The words of timings in which a library searches.
A_SEARCH = "a search"
#: Kernels that torch.compile makes: it times them, too, while it compiles.
_COMPILED = re.compile(r"^triton_(poi|red|per|tem|for|mm|unk)_")
#: Ranges that XLA opens while it compiles.
_XLA = re.compile(r"^Xla(Pass|Compile|Emit|Autotun|CreateGpuExec)")
#: Who compiles is outside CUDA for so much of the time.
_MOSTLY = 0.5
#: A search takes so many times as long as the usual timing, issues so many times its operations, and waits
#: at least so often, as it times each way.
_LONGER, _MORE, _LEAST_WAITS = 5, 3, 10
#: Kernels of convolutions, by their names; so many of different names are tried, each between two events.
CONVOLUTIONS = re.compile(r"cudnn|fprop|dgrad|wgrad|implicit_gemm|implicit_convolve", re.IGNORECASE)
_FEWEST_VARIANTS, _READS_TIMES = 4, re.compile(r"^cu(da)?EventElapsedTime")

#: torch's kernel of `zero_` and `fill_`, with which Triton clears the L2 cache before each trial.
_CLEARS = re.compile(r"FillFunctor")

#: Kernels that XLA runs around those that it tries.
_TRIALS_OF_XLA = re.compile(r"stream_executor::gpu::.*(Redzone|DelayKernel)")


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
        count = intervals_that_call(details_of(group.intervals, "api"), calls, least_ns)
        counts |= {text: count} if 2 * count >= group.count else {}
    return counts


def intervals_that_call(rows: pd.DataFrame, calls: re.Pattern[str], least_ns: int) -> int:
    """Return in how many intervals these calls take so long together.

    rows: `frames.DETAILS` of CUDA calls that launch nothing
    """
    rows = rows[rows["detail"].astype(str).str.match(calls)]
    return int((rows.groupby("interval")["ns"].sum() >= least_ns).sum())


def searches(label: Label, group: Group) -> bool:
    """Whether they try many ways to do what the label's usual timing does in one, such as cuDNN's search and
    the autotuning of Triton."""
    usual = label.usual
    longer = group.typical_ns >= _LONGER * usual.typical_ns
    larger = group.work.operations >= _MORE * max(usual.work.operations, 1)
    kernels, usually = ({i.name for i in g.work.of_kind("kernel")} for g in (group, usual))
    alike = bool(usually) and 2 * len(kernels & usually) >= len(usually)
    waits = group.work.waits >= _LEAST_WAITS
    is_longer = longer and larger and alike and waits
    return is_longer and _has_trials(group, usual) and not compiled(group)


def _has_trials(group: Group, usual: Group) -> bool:
    """Whether a group has operations that only trials make: convolutions of several names that the usual timing does not
    run, or all that the usual timing runs, one kernel many times as often, with the cache cleared in between, as
    Triton's autotuning does.  More operations, and others, are none: that may be another program."""
    counts, usually = ({i.name: i.count for i in g.work.of_kind("kernel")} for g in (group, usual))
    vanish = counts.keys() - usually.keys()
    if sum(bool(CONVOLUTIONS.search(name)) for name in vanish) >= _FEWEST_VARIANTS:
        return True
    clears = sum(i.count for i in group.work.of_kind("memset"))
    clears += sum(counts[name] for name in vanish if _CLEARS.search(name))
    again = any(counts.get(name, 0) >= _MORE * count for name, count in usually.items())
    return usually.keys() <= counts.keys() and again and clears >= _LEAST_WAITS


def compiled(group: Group) -> bool:
    """Whether they run kernels of torch.compile's."""
    return any(_COMPILED.match(kernel.name) for kernel in group.work.of_kind("kernel"))


def compiler_of(group: Group) -> str:
    """Who compiles for most of the time of its timings, by its own ranges, or by its kernels where code is loaded, too:
    "XLA" or "torch.compile"; '' for nobody."""
    in_passes_ns = sum(e.ns for e in group.of_cause("host") if _XLA.match(e.what))
    if in_passes_ns >= _MOSTLY * group.total_ns:
        return "XLA"
    is_outside = group.ns("host") >= _MOSTLY * group.total_ns
    return "torch.compile" if compiled(group) and loads_code(group) and is_outside else ""


def is_of_compiler(range_name: str) -> bool:
    """Whether XLA opens a range of this name while it compiles."""
    return bool(_XLA.match(range_name))


def times_compiled(label: Label, group: Group) -> int:
    """How many of a label's timings are compiled in by the compiler of this group; 0 if nobody compiles."""
    compiler = compiler_of(group)
    alike = [g for g in label.groups if compiler and compiler_of(g) == compiler]
    return sum(g.count for g in alike)


def tells_apart(label: Label) -> bool:
    """Whether some timings of a label record a CUDA graph, and others do not: what all of them do makes none of them
    longer than the others."""
    return any(not records_graph(group) for group in label.groups)


def tries_kernels(group: Group) -> bool:
    """Whether a library times kernels of convolutions, one after the other, in each of its timings: cuDNN's search, which
    comes with every shape that is new."""
    kernels = group.work.of_kind("kernel")
    variants = sum(bool(CONVOLUTIONS.search(kernel.name)) for kernel in kernels)
    reads_times = any(_READS_TIMES.match(entry.what) for entry in group.of_cause("api"))
    return variants >= _FEWEST_VARIANTS and reads_times and group.work.waits >= _LEAST_WAITS


def tries_for_xla(group: Group) -> bool:
    """Whether XLA tries kernels in its timings, by the names of those that it surrounds them with; what it has tried once it
    remembers."""
    return any(_TRIALS_OF_XLA.search(kernel.name) for kernel in group.work.of_kind("kernel"))


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
