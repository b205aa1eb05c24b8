"""Sentences about a run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any

import pandas as pd

from nsysalign.causes import DISPLAY
from nsysalign.explain.verdict import CAT, NCCL, WITHOUT_CAT, collectives_ns
from nsysalign.model import OPERATION_KINDS, Evidence
from nsysalign.parts import staging
from nsysalign.text import duration, kernel_name, percent, safe_text

#: What lies between the nodes of one launch of a graph.
BETWEEN_NODES = "between nodes of graphs"
#: A GPU that works for less of a run waits for something that is named.
_NEARLY_ALL = 0.9
#: NCCL's kernels are named in what is said of a run from this share of it on.
NCCL_SHARE = 0.2
#: So many GPUs are named beside the one that a sentence is about.
_MOST_BESIDE = 2
#: A kernel with less of the kernel time is not worth looking at.
_MUCH = 0.1
#: With less of it than this, making it quicker changes little: it is named, and no tool for it.
_WORTH_A_LOOK = 1 / 3
#: The times of a kernel that ran so often differ much where their mean is so many times their median.
_FEWEST_SPREAD, _SPREAD = 20, 1.5


def nccl_clause(ns: int) -> str:
    """What NCCL's kernels take of a run."""
    return f"NCCL's kernels, which also wait for other ranks, ran for {duration(ns)}"


def of_thinned(ran_ns: int) -> str:
    """What is known of the run of a trace of which rows were taken out."""
    return f"What is left of its GPU work ran for {duration(ran_ns)}."


def between_nodes_ns(kernels: pd.DataFrame, label: str, graph_ns: int) -> int:
    """How much of what a run spent in CUDA graphs lies between their nodes: all but the graphs that are
    one row each.  kernels: `frames.KERNELS`."""
    graphs = kernels[(kernels["label"] == label) & (kernels["kind"] == "graph")]
    return max(graph_ns - int(graphs["total_ns"].sum()), 0)


def of_run(analysis: Evidence, label: str, interval: int, parts: Mapping[str, int]) -> str:
    """Return sentences on a run as a whole: how long it takes, for how long the GPU worked in it, the three largest
    reasons for its idle time, and its largest kernel.  The reasons are left out if it worked nearly all the time,
    the kernel if it worked for less than half of it.

    label, interval: the run's label and the number of its interval
    parts: the run's ns by cause
    """
    whole_ns = max(sum(parts.values()), 1)
    details = analysis.details[analysis.details["interval"] == interval]
    between_ns = between_nodes_ns(analysis.kernels, label, parts["graph"])
    staged_ns = int(staging(details)["ns"].sum())
    # while the CPU stages a copy, and between the nodes of a graph, the GPU does nothing
    worked_ns = sum(parts[cause] for cause in OPERATION_KINDS) - staged_ns - between_ns
    if analysis.trace.thinned:
        return of_thinned(worked_ns)
    text = f"From its first to its last GPU work the run takes {duration(whole_ns)}"
    mine, beside = _side_by_side(analysis.runs, label)
    if side_by_side := _on_several_gpus(analysis.runs, label):
        count, least_ns = side_by_side
        text += f"; each of {count} GPUs worked for {duration(least_ns)} of it or more ({percent(least_ns / whole_ns)})."
    elif mine:
        shares = [f"{mine} worked for {percent(worked_ns / whole_ns)} of it"]
        shares += [f"{name} for {percent(share)}" for name, share in beside]
        text = f"Run: its GPU work spans {duration(whole_ns)}; {', '.join(shares)}."
    else:
        text += (
            f"; the GPU worked for {duration(worked_ns)} of it ({percent(worked_ns / whole_ns)})."
        )
    nccl_ns = collectives_ns(analysis.kernels, label)
    if nccl_ns >= NCCL_SHARE * whole_ns:
        text += f" {nccl_clause(nccl_ns)}."
    if worked_ns < _NEARLY_ALL * whole_ns:
        idle = [(ns, DISPLAY[c]) for c, ns in parts.items() if c not in OPERATION_KINDS]
        idle = nlargest(3, [*idle, (between_ns, BETWEEN_NODES)])
        named = [f"{name} {percent(ns / whole_ns)}" for ns, name in idle if ns >= 0.01 * whole_ns]
        text += f" While {mine or 'it'} ran nothing: {', '.join(named)}." if named else ""
    kernels = analysis.kernels
    rows = kernels[(kernels["label"] == label) & (kernels["kind"] == "kernel")]
    if 2 * worked_ns < whole_ns or rows.empty:
        return text
    kernel_time = f"the kernel time of {mine}" if mine else "its kernel time"
    copied_ns = min(parts["memcpy"] - staged_ns, _copied_ns(kernels, label))
    of_copies = _mostly_copies(parts, copied_ns, worked_ns)
    return f"{text} {of_copies or _of_largest_kernel(rows, kernel_time)}"


def _of_largest_kernel(rows: pd.DataFrame, kernel_time: str) -> str:
    """Return a sentence on the kernel that takes most of the kernel time.

    rows: those of a run's kernels in `frames.KERNELS`
    kernel_time: in words, whose it is
    """
    largest = rows.sort_values("total_ns", ascending=False).iloc[0]
    share = largest["total_ns"] / max(rows["total_ns"].sum(), 1)
    if share < _MUCH:
        return f"No kernel is more than {percent(share)} of {kernel_time}."
    name = kernel_name(safe_text(largest["kernel"]))
    text = f"{name} is {percent(share)} of {kernel_time}{_spread(largest)}"
    if CAT.search(largest["kernel"]):
        return f"{text}: torch.cat copies. {WITHOUT_CAT.capitalize()}."
    # ncu replays a kernel alone: a collective would wait for ever
    if share < _WORTH_A_LOOK or NCCL.search(largest["kernel"]):
        return f"{text}."
    return f"{text}: look at it with ncu."


def _copied_ns(kernels: pd.DataFrame, label: str) -> int:
    """Return how long (ns) all copies of a run took, without pages of managed memory that moved."""
    of_run = kernels[kernels["label"] == label]
    return int(of_run.loc[of_run["kernel"].str.startswith("copy "), "total_ns"].sum())


def _mostly_copies(parts: Mapping[str, int], copied_ns: int, worked_ns: int) -> str:
    """Return a sentence on a run that copies for longer than its kernels run, of which the best one saves little; '' for
    any other.

    parts: the run's ns by cause
    copied_ns: how long it copied, without pages of managed memory that moved
    worked_ns: how long the GPU worked
    """
    if copied_ns <= parts["kernel"] + parts["graph"]:
        return ""
    return f"Copies are {percent(copied_ns / max(worked_ns, 1))} of that work."


def _spread(kernel: pd.Series[Any]) -> str:
    """Return in brackets how far apart the times of a kernel lie, '' where they do not, or it ran few times."""
    mean_ns = kernel["total_ns"] / max(kernel["count"], 1)
    if kernel["count"] < _FEWEST_SPREAD or mean_ns < _SPREAD * kernel["median_ns"]:
        return ""
    median = duration(kernel["median_ns"])
    return f" (half of {kernel['count']:,} take {median} or less, the mean is {duration(mean_ns)})"


def _side_by_side(runs: pd.DataFrame, label: str) -> tuple[str, list[tuple[str, float]]]:
    """Return (the GPU of a run, by its name; the names of those that worked beside it, and for which share of their own
    run), at most _MOST_BESIDE of them; ("", []) where there is one GPU alone, or where the run is that of a stream.
    """
    devices = runs.drop_duplicates(["pid", "device"])
    mine = devices[devices["label"] == label]
    if len(devices) < 2 or mine.empty:
        return "", []
    beside = runs_beside(runs, label)

    def name(run: pd.Series) -> str:
        return (
            f"GPU {run.device}" if devices["device"].is_unique else f"the GPU of process {run.pid}"
        )

    shares = [(name(row), row.gpu_busy_ns / row.elapsed_ns) for _, row in beside.iterrows()]
    return name(mine.iloc[0]), shares[:_MOST_BESIDE]


def runs_beside(runs: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return the runs of other GPUs that begin and end with a run, nearly; none where it is that of a stream."""
    devices = runs.drop_duplicates(["pid", "device"])
    mine = devices[devices["label"] == label]
    if mine.empty:
        return mine
    run = mine.iloc[0]
    allowed_ns = (1 - _NEARLY_ALL) * run.elapsed_ns
    begins_with_it = (devices["start_ns"] - run.start_ns).abs() <= allowed_ns
    lasts_as_long = (devices["elapsed_ns"] - run.elapsed_ns).abs() <= allowed_ns
    return devices[begins_with_it & lasts_as_long & (devices["label"] != label)]


def _on_several_gpus(runs: pd.DataFrame, label: str) -> tuple[int, int] | None:
    """How many GPUs worked side by side with that of a run, each for nearly all of it, and for how long
    at least; None where there is one, or one of them did less.  runs: of processes on devices."""
    count = runs["device"].nunique()
    if count < 2:
        return None
    devices = runs.drop_duplicates(["pid", "device"])
    mine = devices[devices["label"] == label]
    if mine.empty:
        return None
    begin, whole = mine[["start_ns", "elapsed_ns"]].iloc[0]
    apart = (devices["start_ns"] - begin).abs().max()
    least = int(devices["gpu_busy_ns"].min())
    if apart > (1 - _NEARLY_ALL) * whole or least < _NEARLY_ALL * whole:
        return None
    return count, min(least, int(whole))
