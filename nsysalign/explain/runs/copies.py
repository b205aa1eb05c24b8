"""Did the GPU copy for much of the run?"""

from __future__ import annotations

from nsysalign.explain.facts import BUS_BYTES_PER_NS
from nsysalign.explain.finding import Finding
from nsysalign.explain.runs.run import Run
from nsysalign.text import of, span


def copying(run: Run, kernels: int) -> Finding:
    """Return the finding of a run in which the GPU copied for much of the time.

    kernels: how long (ns) its kernels and graphs took
    """
    copies = run.details[(run.details["cause"] == "memcpy") & (run.details["detail"] == "copy")]
    staged = copies[copies["memory"] == "pageable"]
    what, besides, beside, slower = "copies", "", 0, 0
    faster = "Copy less, and on a stream of its own while kernels run"
    if staged["ns"].sum() > run.copying / 2:
        beside = run.parts["host"]
        slower = int((staged["ns"] - staged["bytes"] / BUS_BYTES_PER_NS).clip(lower=0).sum())
        what = "copies, most of the time of pageable memory,"
        what = "copies of pageable memory" if len(staged) == len(copies) else what
        faster = "Copy less, from pinned memory, and on a stream of its own, while kernels run and the CPU goes on"
    if beside:
        besides = f", the CPU's own code before and between them {span(beside)}"
    computing = f"its kernels take {span(kernels)}"
    evidence = {"copying_ns": run.copying, "kernels_ns": kernels}
    if not kernels:
        count = _count(run)
        computing = f"no kernel was launched; {count:,} {'copy' if count == 1 else 'copies'}"
        evidence = {"copying_ns": run.copying, "copies": count}
        faster = faster.replace(" while kernels run and the CPU goes on", " while the CPU goes on")
        faster = faster.replace(", and on a stream of its own while kernels run", "")
    return run.finding(
        f"{what} take {of(run.copying, run.elapsed)} between the first and the last work of the GPU; "
        f"{computing}{besides}.",
        faster,
        loss_ns=min(run.copying, slower + kernels + beside),
        severity="info" if run.copying < kernels else "warning",
        outside_CUDA_ns=beside or None,
        **evidence,
    )


def _count(run: Run) -> int:
    """Return how many copies the run has."""
    ran = run.facts.analysis.kernels
    ran = ran[(ran["label"] == run.row.label) & (ran["kind"] == "memcpy")]
    return int(ran["count"].sum())
