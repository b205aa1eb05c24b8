"""Kernels that ran beside the time of an interval: no part of its sum, or not all of them.  The same as
`answer.Row.beside_ns`, for every interval."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.model import Analysis


def beside(analysis: Analysis, rows: pd.DataFrame, own_ns: np.ndarray) -> np.ndarray:
    """Return for how long (ns, int64) kernels ran beside each interval: of a host timer all of them, where some ran
    while its thread did something else; of two events those on other streams, where none ran on its own.

    rows: of `frames.INTERVALS`, all of one label
    own_ns: how long kernels and graphs are part of each
    """
    kind = rows["kind"].iloc[0]
    if kind == "host":
        ran_ns = (rows["kernel_only_upper_ns"] - rows["kernel_outside_ns"]).to_numpy(np.int64)
        ran_ns = np.minimum(ran_ns, rows["elapsed_ns"].to_numpy(np.int64))
        return np.where(ran_ns > own_ns, ran_ns, 0)
    if kind != "event" or (own_ns > 0).all():
        return np.zeros(len(rows), np.int64)
    ns_of_interval = analysis.other_streams.groupby("interval")["ns"].sum()
    others_ns = ns_of_interval.reindex(rows["interval"], fill_value=0).to_numpy(np.int64)
    return np.where(own_ns > 0, 0, others_ns)


def beside_interval(analysis: Analysis, number: int) -> int:
    """Return the same (ns) of one interval.  number: of the interval"""
    parts = analysis.parts[analysis.parts["interval"] == number]
    own_ns = parts.loc[parts["cause"].isin(["kernel", "graph"]), "ns"].sum()
    rows = analysis.intervals[analysis.intervals["interval"] == number]
    return int(beside(analysis, rows, np.array([own_ns], np.int64))[0])


def sentence(kind: str, time: str) -> str:
    """Return it in words.  The page has the same ones (templates/markdown.js).

    kind: of the interval
    time: how long they ran, with its unit
    """
    where = "in all, some of it while the CPU went on" if kind == "host" else "on other streams"
    return f"Beside this sum kernels ran for {time} {where}."
