"""Did the GPU copy for much of the run?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.clauses import Clause, Cut
from nsysalign.explain.facts import BUS_BYTES_PER_NS
from nsysalign.explain.finding import Finding
from nsysalign.explain.runs.run import Run
from nsysalign.model import Trace, pid_of
from nsysalign.text import of, quantity, span

#: (whether most memory is pageable, whether kernels run) -> what makes the run faster.
_ADVICE = {
    (False, True): "Copy less, and on a stream of its own while kernels run",
    (False, False): "Copy less",
    (
        True,
        True,
    ): "Copy less, from pinned memory, and on a stream of its own, while kernels run and the CPU goes on",
    (
        True,
        False,
    ): "Copy less, from pinned memory, and on a stream of its own, while the CPU goes on",
}


#: So many copies to the GPU come again and again.
_MANY = 10
#: Data goes up and comes back where each direction has this share of the bytes.
_BOTH_WAYS = 0.1
KEEP_ON_GPU = (
    "Keep the data on the GPU between the kernels (OpenACC, OpenMP: a data region around them; CUDA: no copies in each "
    "step)"
)
#: CUPTI's kind of a copy to the GPU.
_H2D = 1
_ONCE = "Where these are the same data each time, copy them once. "
_INPUTS = (
    "Copy to the GPU once, before the repetitions and outside of what is timed, what stays the same: at least as many copies go there as kernels run. "
    "Copy the rest from pinned memory"
)


class CopyRounds(NamedTuple):
    """Copies of a process to a device, all of which are the same few sizes over again."""

    pid: int
    device: int
    copies: int
    length: int  # the copies of a round


def rounds_of_copies(trace: Trace) -> Iterator[CopyRounds]:
    """Yield a record for each process and device whose copies to it are the same sizes, in the same order, a few times.

    sizes   2.7 13.1 3.3 13.1   2.7 13.1 3.3 13.1     two rounds of four copies

    Copies of one size may be the parts of one array, and many rounds are steps of a program, with other data in each.
    """
    copies = trace.operations[trace.operations["copy_kind"] == _H2D]
    for (process, device), to_device in copies.groupby(["process", "device"]):
        size = to_device["bytes"].to_numpy()
        count = len(size)
        lengths = [count // times for times in range(_MANY - 1, 1, -1) if count % times == 0]
        for length in lengths:  # the shortest first
            if len(np.unique(size[:length])) > 1 and (size[length:] == size[:-length]).all():
                yield CopyRounds(int(pid_of(process)), int(device), count, length)
                break


def go_both_ways(run: Run) -> bool:
    """Return whether data goes up to the GPU and comes back again and again."""
    copies = _copies(run)
    bytes_of = copies.groupby("direction", observed=True)["bytes"].sum()
    least = min(bytes_of.get("H2D", 0), bytes_of.get("D2H", 0))
    return bool(least >= _BOTH_WAYS * copies["bytes"].sum() > 0 and _count_of_copies(run) >= _MANY)


def copying(run: Run, kernels_ns: int) -> Finding:
    """Return the finding of a run in which the GPU copied for much of the time.

    kernels_ns: how long its kernels and graphs took

    It is a warning if the copies took longer than the kernels.  What could be saved is what kernels and the
    CPU's own code could do beside the copies, and by how much copies of pageable memory are slower than the bus.
    """
    copies = _copies(run)
    pageable = copies[copies["memory"] == "pageable"]
    mostly_pageable = pageable["ns"].sum() > run.copying_ns / 2
    name = "copies"
    cpu_ns = 0
    slower_ns = 0
    if mostly_pageable:
        # such a copy keeps the CPU until it is done: the CPU's own code could run beside it
        cpu_ns = run.idle_in("host")
        at_bus_speed_ns = pageable["bytes"] / BUS_BYTES_PER_NS
        slower_ns = int((pageable["ns"] - at_bus_speed_ns).clip(lower=0).sum())
        only_pageable = len(pageable) == len(copies)
        name = (
            "copies of pageable memory"
            if only_pageable
            else "copies, most of the time of pageable memory,"
        )
    if kernels_ns:
        computing = (Clause(f"; its kernels take {span(kernels_ns)}", {Cut.SECOND_CLAUSE: ""}),)
        evidence = {"copying_ns": run.copying_ns, "kernels_ns": kernels_ns}
    else:
        count = _count_of_copies(run)
        computing = (
            Clause("; no kernel was launched", {Cut.SECOND_CLAUSE: ""}),
            Clause(f"; {count:,} {'copy' if count == 1 else 'copies'}", {Cut.THIRD_CLAUSE: ""}),
        )
        evidence = {"copying_ns": run.copying_ns, "copies": count}
    advice = _ADVICE[bool(mostly_pageable), kernels_ns > 0]
    if mostly_pageable and _is_copied_for_each(run):
        advice = _INPUTS
    again = ""
    rounds = run.fact(CopyRounds)
    if rounds and 2 * copies.loc[copies["direction"] == "H2D", "ns"].sum() > run.copying_ns:
        again = f"; its {rounds.copies} H2D copies repeat the sizes of the first {rounds.length}"
        evidence |= {"copies_to_the_GPU": rounds.copies, "copies_in_a_round": rounds.length}
        advice = _ONCE + advice
    rates, evidence_of_rates = _rates(copies)
    evidence |= evidence_of_rates
    beside = f", the CPU's own code before and between them {span(cpu_ns)}" if cpu_ns else ""
    return run.finding(
        (
            Clause(f"{name} take {of(run.copying_ns, run.elapsed_ns)}"),
            Clause(rates, {Cut.RANGE: ""}),
            Clause(" between the first and the last work of the GPU", {Cut.WORDS: ""}),
            *computing,
            Clause(beside, {Cut.PLACE: ""}),
            Clause(again, {Cut.THIRD_PAUSE: ""}),
        ),
        advice,
        # kernels and the CPU's own code could run while copies do
        loss_ns=min(run.copying_ns, slower_ns + kernels_ns + cpu_ns),
        severity="info" if run.copying_ns < kernels_ns else "warning",
        outside_CUDA_ns=cpu_ns or None,
        **evidence,
    )


def _copies(run: Run) -> pd.DataFrame:
    """Return the rows of `frames.DETAILS` of the run's copies."""
    return run.details[(run.details["cause"] == "memcpy") & (run.details["detail"] == "copy")]


def _rates(copies: pd.DataFrame) -> tuple[str, dict[str, Any]]:
    """Return (in brackets how much was copied in each direction, and how fast: " (H2D 129 GB at 24.7 GB/s)"; evidence);
    ("", {}) where one direction has two kinds of memory, or the trace has no bytes.

    copies: rows of `frames.DETAILS`
    """
    rows = copies[copies["bandwidth_gb_s"] > 0].sort_values("ns", ascending=False)
    if rows.empty or len(rows) < len(copies) or rows["direction"].duplicated().any():
        return "", {}
    told = []
    evidence: dict[str, Any] = {}
    for row in rows.itertuples():
        told.append(
            f"{row.direction} {quantity('bytes', row.bytes)} at {row.bandwidth_gb_s:.3g} GB/s"
        )
        evidence[f"{row.direction}_bytes"] = int(row.bytes)
        evidence[f"{row.direction}_GB_per_s"] = float(row.bandwidth_gb_s)
    return f" ({', '.join(told)})", evidence


def _is_copied_for_each(run: Run) -> bool:
    """Return whether there is a copy of pageable memory to the GPU for each kernel of the run: its input."""
    ran = run.facts.analysis.kernels
    ran = ran[ran["label"] == run.row.label]
    to_gpu = ran.loc[ran["kernel"].astype(str).str.contains("H2D pageable"), "count"].sum()
    kernels = ran.loc[ran["kind"] == "kernel", "count"].sum()
    return bool(to_gpu >= max(kernels, _MANY)) and kernels > 0


def _count_of_copies(run: Run) -> int:
    """Return how many copies the run has."""
    ran = run.facts.analysis.kernels
    ran = ran[(ran["label"] == run.row.label) & (ran["kind"] == "memcpy")]
    return int(ran["count"].sum())
