"""What limits a run whose GPU is busy, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysalign.explain import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysalign.model import Analysis

#: From these shares of the run on, its kernels, or its copies between host and device, are what it
#: does.
KERNELS_SHARE, COPIES_SHARE = 0.8, 0.5


def run_sentence(analysis: Analysis, number: int, parts: Mapping[str, int]) -> str:
    """ "GPU-bound: fit_lines is 81 % of its kernels' time." or "Copying: H2D 921 of 969 ms at 27 GB/s.";
    '' where the GPU was not busy with either.  `number`: the run's interval."""
    run = analysis.intervals[analysis.intervals["interval"] == number].iloc[0]
    elapsed = max(int(run["elapsed_ns"]), 1)
    if parts["kernel"] + parts["graph"] >= KERNELS_SHARE * elapsed:
        ran = analysis.kernels[analysis.kernels["label"] == run["label"]]
        ran = ran[ran["kind"] == "kernel"]
        if not len(ran):
            return "GPU-bound."
        most = ran.loc[ran["total_ns"].idxmax()]
        share = words.percent(most["total_ns"] / max(ran["total_ns"].sum(), 1))
        return f"GPU-bound: {words.kernel(most['kernel'])} is {share} of its kernels' time."
    details = analysis.details
    copies = details[(details["interval"] == number) & (details["cause"] == "memcpy")]
    copies = copies[(copies["detail"] == "copy") & copies["direction"].isin(["H2D", "D2H"])]
    ns = copies.groupby("direction")["ns"].sum()
    if not len(ns) or ns.max() < COPIES_SHARE * elapsed:
        return ""
    way = copies[copies["direction"] == ns.idxmax()]
    known = way[way["bandwidth_gb_s"] > 0]
    rate = known["bytes"].sum() / max((known["bytes"] / known["bandwidth_gb_s"]).sum(), 1)
    speed = f" at {rate:,.3g} GB/s" if rate > 0 else ""
    return f"Copying: {ns.idxmax()} {words.of(int(ns.max()), elapsed)}{speed}."
