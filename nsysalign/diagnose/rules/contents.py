"""What is inside besides kernels?  Copies, memsets, synchronisations, graphs that are one row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts, rows_of
from nsysalign.diagnose.finding import CouldNotLook, Finding

_WORDS = {
    "H2D": "to the device",
    "D2H": "to the host",
    "D2D": "on the device",
    "P2P": "between devices",
}


def copy(facts: Facts) -> Iterator[Finding]:
    """Copies inside the interval: their share, pageable or pinned, and their bandwidth."""
    rows = facts.detail_rows("memcpy")
    if rows.empty:
        return
    # the result of an .item() belongs to the synchronisation rule
    size = facts.detail_ns(rows[rows["detail"] == "copy"], "bytes")
    copies = np.where(size > thresholds.ITEM_BYTES, facts.part("memcpy"), 0)
    share = facts.share(copies)
    computes = facts.kernel_upper > 0
    on_device = facts.detail_ns(rows[rows["direction"] == "D2D"]) >= 0.5 * copies
    said = np.where(on_device, thresholds.SAY_SHARE, thresholds.COPY_SAY_SHARE)
    mask = np.where(computes, share >= said, share > thresholds.WARN_SHARE) & (copies > 0)
    best = _pinned_rates(rows)
    for case in facts.cases(mask):
        at = case.row
        mine = rows_of(rows, at)
        direction, memory, ns, count = _main_copy(mine)
        rate = count / max(ns, 1)
        could = best.get(direction, 0.0)
        pageable = memory == "pageable"
        warn = bool(computes[at]) and share[at] > thresholds.WARN_SHARE
        where = _WORDS.get(direction, direction)
        name = case.who
        amount = words.of(copies[at], facts.elapsed[at])
        speed = f"{rate:,.0f} GB/s" if rate >= 100 else f"{rate:.3g} GB/s"
        title = (
            f"{name} contains the copy: {amount} are spent on a copy {where}"
            if computes[at]
            else f"{name} is a copy {where}: {amount}"
        )
        kind = f" with {memory} host memory" if memory in ("pageable", "pinned") else ""
        yield case.finding(
            "warning" if warn else "info",
            f"{title}, {speed}{kind}.",
            _advice(direction, bool(computes[at])),
            copies[at],
            copy_ns=copies[at],
            copy_share=share[at],
            copied_bytes=count,
            direction=direction,
            achieved_GB_per_s=rate,
            memory=memory,
            pinned_in_this_trace_GB_per_s=could if pageable and could > rate else None,
            staging_ns=int(mine.loc[mine["detail"] == "staging", "ns"].sum()) or None,
            kernel_ns=facts.kernel_upper[at] if computes[at] else None,
            seen_in=case.frequency,
        )


def _main_copy(rows: pd.DataFrame) -> tuple[str, str, int, int]:
    """(direction, memory, ns with staging, bytes) of the kind of copy that takes longest; the bytes are those of the copy."""
    key = list(zip(rows["direction"].tolist(), rows["memory"].tolist(), strict=True))
    ns: dict[tuple[str, str], int] = {}
    moved: dict[tuple[str, str], int] = {}
    for k, what, length, size in zip(
        key, rows["detail"].tolist(), rows["ns"].tolist(), rows["bytes"].tolist(), strict=True
    ):
        ns[k] = ns.get(k, 0) + length
        moved[k] = moved.get(k, 0) + (size if what == "copy" else 0)
    best = max(ns, key=ns.__getitem__)
    return *best, ns[best], moved[best]


def _pinned_rates(rows: pd.DataFrame) -> dict[str, float]:
    """Best bytes per nanosecond of pinned copies in this trace, per direction."""
    pinned = rows[
        (rows["memory"] == "pinned")
        & (rows["detail"] == "copy")
        & (rows["bytes"] >= thresholds.BANDWIDTH_BYTES)
    ]
    rate = pinned["bytes"].to_numpy() / np.maximum(pinned["ns"].to_numpy(), 1)
    return {
        str(d): float(rate[pinned["direction"].to_numpy() == d].max())
        for d in pinned["direction"].unique()
    }


def _advice(direction: str, computes: bool) -> str:
    """How to measure the kernels without the copy; what makes the copy faster is in `finding.FASTER`."""
    if not computes or direction not in ("H2D", "D2H"):
        return ""
    if direction == "H2D":
        return (
            "Copy before the start event:   x = x.cuda(); torch.cuda.synchronize(); start.record()"
        )
    return "Copy after the end event:   end.record(); y = y.cpu()"


def memset(facts: Facts) -> Iterator[Finding]:
    """A memset, or a fill as large as an L2 flush, runs inside the interval in addition to the work."""
    spent = facts.part("memset")
    share = facts.share(spent)
    rows = facts.detail_rows("memset")
    size = facts.detail_ns(rows, "bytes")
    for case in facts.cases(
        facts.on_stream & (facts.kernel_upper > 0) & (share >= thresholds.SAY_SHARE)
    ):
        at = case.row
        warn = share[at] > thresholds.WARN_SHARE
        yield case.finding(
            "warning" if warn else "info",
            f"{case.who} contains a memset: {words.of(spent[at], facts.elapsed[at])} are spent clearing memory (zeroing, or an L2 flush "
            "that belongs before the start event).",
            "Flush or clear before the start event:   flush.zero_(); start.record()",
            spent[at],
            memset_ns=spent[at],
            memset_share=share[at],
            set_bytes=int(size[at]) or None,
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )
    yield from _fills(facts, share)


def _fills(facts: Facts, memset_share: np.ndarray) -> Iterator[Finding]:
    """`tensor.zero_()` is a kernel: this looks for it in the rows of labels with several operations."""
    rows = facts.row[(facts.row >= 0) & (facts.label_count > 0)]
    rows = rows[
        facts.on_stream[rows]
        & (facts.operations[rows] >= 2)
        & (facts.operations[rows] < thresholds.MANY_OPERATIONS)
    ]
    rows = rows[memset_share[rows] < thresholds.SAY_SHARE]
    segments = facts.segments(rows)
    kernels = np.flatnonzero(segments.of_cause("kernel"))
    fill = (
        kernels[["FillFunctor" in str(name) for name in segments.details(kernels).tolist()]]
        if len(kernels)
        else kernels
    )
    ns, total = np.zeros(facts.count, np.int64), facts.kernel_only
    np.add.at(ns, segments.at[fill], segments.ns[fill])
    mask = (facts.share(ns) > thresholds.WARN_SHARE) & (ns < 0.98 * total)
    for case in facts.cases(mask, at_least=0):
        at = case.row
        yield case.finding(
            "warning",
            f"{case.who} contains a fill: {words.of(ns[at], facts.elapsed[at])} are spent writing a constant (zeroing, or an L2 flush that "
            "belongs before the start event).",
            "Flush or clear before the start event:   flush.zero_(); start.record()",
            ns[at],
            positions=facts.repetitions(int(facts.label[at])),
            fill_ns=ns[at],
            fill_share=facts.share(ns)[at],
            other_kernels_ns=total[at] - ns[at],
        )


def drains(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Per interval: length of the idle stretches with a synchronisation in them, and how much of them the host rules would
    count again (host, api, api_launch) if the stretches have a warning of their own.

        kernel | sync host launch latency | kernel      all four are the drain
    """
    return facts.remember("drains", _drains)


def _drains(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    total, again = np.zeros(facts.count, np.int64), np.zeros(facts.count, np.int64)
    positions = np.flatnonzero(facts.on_stream & (facts.part("sync") > 0))
    for lot in facts.portions(positions):
        segments = facts.segments(lot)
        run = segments.run
        drained = np.zeros(int(run.max(initial=-1)) + 2, dtype=bool)
        drained[run[segments.of_cause("sync")]] = True
        marked = drained[run] & (run >= 0)
        hosted = marked & segments.of_cause("host", "api", "api_launch")
        np.add.at(total, segments.at[marked], segments.ns[marked])
        np.add.at(again, segments.at[hosted], segments.ns[hosted])
    if len(positions):
        again[facts.share(total) <= thresholds.WARN_SHARE] = 0
        again[_pageable(facts)] = 0
    return total, again


def _pageable(facts: Facts) -> np.ndarray:
    """Intervals whose synchronisation belongs to a large pageable copy: rule copy-inside covers it."""
    rows = facts.detail_rows("memcpy")
    rows = rows[(rows["memory"] == "pageable") & (rows["bytes"] > thresholds.ITEM_BYTES)]
    return facts.detail_ns(rows) > 0


def sync(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """A synchronisation inside the interval: the queue runs empty, and the GPU idles until the host has caught up."""
    total, _ = drains(facts)
    if reason := facts.unread(facts.on_stream & (facts.part("sync") > 0)):
        yield CouldNotLook(reason)
    rows = facts.detail_rows("memcpy")
    small = rows[
        (rows["direction"] == "D2H")
        & (rows["bytes"] > 0)
        & (rows["bytes"] <= thresholds.ITEM_BYTES)
    ]
    item = facts.detail_ns(small) > 0
    calls = facts.detail_rows("sync")
    for case in facts.cases((total > 0) & ~(_pageable(facts) & ~item)):
        at = case.row
        mine = rows_of(calls, at)
        name = str(mine["detail"].iloc[0]) if len(mine) else "a synchronisation"
        empty = not facts.others_worked[at]
        warn = empty and total[at] > thresholds.WARN_SHARE * facts.elapsed[at]
        how = " (.item(), .cpu(), nonzero, an if on a tensor)" if facts.program_is_torch else ""
        what = f"a result is read back{how}" if item[at] else f"{name} waits"
        yield case.finding(
            "warning" if warn else "info",
            f"{case.who} synchronises inside: {what}, and for {words.of(total[at], facts.elapsed[at])} "
            f"{'the GPU was idle' if empty else 'its stream was idle, while other streams kept the GPU busy,'} until the "
            "host had caught up.",
            "Keep the result on the GPU until the end event:   end.record(); value = result.item()"
            if item[at]
            else "Synchronise after the end event only:   end.record(); torch.cuda.synchronize()",
            total[at],
            idle_around_the_synchronisation_ns=total[at],
            inside_the_call_ns=facts.part("sync")[at],
            call=name,
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )


def graph_opaque(facts: Facts) -> Iterator[Finding]:
    """A CUDA graph traced as one row: what happens inside is not in the trace."""
    graph = facts.part("graph")
    for case in facts.cases(facts.share(graph) > thresholds.WARN_SHARE):
        at = case.row
        yield case.finding(
            "info",
            f"{case.who} runs a CUDA graph that is traced as one row: {words.of(graph[at], facts.elapsed[at])}, in which gaps and "
            "copies cannot be told from kernels.",
            "Trace every node of the graph (slower):   nsysalign run --graph-trace node SCRIPT.py",
            graph[at],
            graph_ns=graph[at],
            kernel_at_least_ns=facts.kernel_only[at],
            kernel_at_most_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )
