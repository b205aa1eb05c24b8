"""What is inside besides kernels?  Copies, memsets, synchronisations, graphs that are one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from nsysalign.explain import thresholds, words
from nsysalign.explain.advice import in_pieces, is_torch
from nsysalign.explain.facts import Facts, rows_of
from nsysalign.explain.finding import Finding

_WORDS = {
    "H2D": "to the device",
    "D2H": "to the host",
    "D2D": "on the device",
    "P2P": "between devices",
}

#: PCIe 5 with 16 lanes.
_BUS_BYTES_PER_NS = 64.0


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
    saved = _saved(facts, rows, best)
    for case in facts.cases(mask):
        at = case.row
        kinds = rows_of(rows, at).groupby(["direction", "memory"], sort=False)
        (direction, memory), mine = max(kinds, key=lambda kind: kind[1]["ns"].sum())
        ns, moved = int(mine["ns"].sum()), int(mine.loc[mine["detail"] == "copy", "bytes"].sum())
        # a host timer sees only the part of a copy for which the host waited
        rate = None if facts.is_host[at] or in_pieces(moved, ns) else moved / max(ns, 1)
        could = best.get(direction, 0.0) if memory == "pageable" else 0.0
        where = _WORDS.get(direction, direction)
        amount = words.of(ns, facts.elapsed[at])
        speed = (
            "" if rate is None else f", {rate:,.0f} GB/s" if rate >= 100 else f", {rate:.3g} GB/s"
        )
        yield case.finding(
            "warning" if computes[at] and share[at] > thresholds.WARN_SHARE else "info",
            (
                f"{case.who} contains the copy: {amount} go into copying {where}"
                if computes[at]
                else f"{case.who} is a copy {where}: {amount}"
            )
            + speed
            + (f" with {memory} host memory." if memory in ("pageable", "pinned") else "."),
            _advice(direction, bool(computes[at])),
            saved,
            copy_ns=ns,
            elapsed_ns=facts.elapsed[at],
            copied_bytes=moved,
            achieved_GB_per_s=rate,
            pinned_in_this_trace_GB_per_s=could if rate is not None and could > rate else None,
            direction=direction,
            memory=memory,
            kernel_ns=facts.kernel_upper[at] if computes[at] else None,
            seen_in=case.frequency,
        )


def _saved(facts: Facts, rows: pd.DataFrame, best: Mapping[str, float]) -> np.ndarray:
    """What the advice would save, at most, per interval: of pageable copies what is longer than from
    pinned memory; of the rest, which pinned memory could do meanwhile, what kernels could hide, and
    for pageable copies, for which the host waits, the host's own time; all copies on the device."""
    direction, ns = rows["direction"].to_numpy(), rows["ns"].to_numpy()
    pageable, fast = rows["memory"].to_numpy() == "pageable", from_pinned_ns(rows, best)
    host = one_of_words(direction, ("H2D", "D2H"))
    sums = {}
    for name, mask, value in (
        ("pageable", pageable, ns - fast),
        ("once pinned", pageable, fast),
        ("pinned", ~pageable & host, ns),
        ("device", ~host, ns),
    ):
        sums[name] = np.zeros(facts.count)
        np.add.at(sums[name], rows["interval"].to_numpy()[mask], value[mask])
    rest, waits = sums["pinned"] + sums["once pinned"], sums["once pinned"] > 0
    beside = facts.kernel_upper + np.where(waits & (facts.kernel_upper > 0), facts.part("host"), 0)
    hidden = np.minimum(rest, beside)
    device = np.where(facts.kernel_upper > 0, sums["device"], 0)  # else a copy is what it times
    return (sums["pageable"] + hidden + device).astype(np.int64)


def from_pinned_ns(rows: pd.DataFrame, best: Mapping[str, float] | None = None) -> np.ndarray:
    """How long each copy takes from pinned memory, at least: at this trace's best rate of its
    direction, else at the fastest that a bus does.  Staging is gone."""
    best = _pinned_rates(rows) if best is None else best
    rate = np.array([best.get(d, _BUS_BYTES_PER_NS) for d in rows["direction"].tolist()])
    ns, copied = rows["ns"].to_numpy(), rows["detail"].to_numpy() != "staging"
    return np.minimum(ns, np.where(copied, rows["bytes"].to_numpy() / rate, 0))


def one_of_words(values: np.ndarray, wanted: tuple[str, ...]) -> np.ndarray:
    """Mask of the texts that are wanted."""
    return np.array([value in wanted for value in values.tolist()], dtype=bool)


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
    """How to measure the kernels without the copy; what makes the copy faster is in
    `advice.FASTER`."""
    if not computes or direction not in ("H2D", "D2H"):
        return ""
    if direction == "H2D":
        return (
            "Copy before the start event:   x = x.cuda(); torch.cuda.synchronize(); start.record()"
        )
    return "Copy after the end event:   end.record(); y = y.cpu()"


def memset(facts: Facts) -> Iterator[Finding]:
    """A memset, or a fill as large as an L2 flush, runs inside the interval in addition to the
    work."""
    advice = "Flush or clear before the start event:   flush.zero_(); start.record()"
    why = "(zeroing, or an L2 flush that belongs before the start event)"
    spent = facts.part("memset")
    share = facts.share(spent)
    size = facts.detail_ns(facts.detail_rows("memset"), "bytes")
    for case in facts.cases(
        facts.on_stream & (facts.kernel_upper > 0) & (share >= thresholds.SAY_SHARE)
    ):
        at = case.row
        yield case.finding(
            "warning" if share[at] > thresholds.WARN_SHARE else "info",
            f"{case.who} contains a memset: {words.of(spent[at], facts.elapsed[at])} are spent clearing memory {why}.",
            advice,
            spent,
            memset_ns=spent[at],
            elapsed_ns=facts.elapsed[at],
            set_bytes=int(size[at]) or None,
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )
    # `tensor.zero_()` is a kernel: looked for in the rows of labels with several operations
    rows = facts.row
    several = (facts.operations >= 2) & (facts.operations < thresholds.MANY_OPERATIONS)
    rows = rows[(facts.on_stream & several & (share < thresholds.SAY_SHARE))[rows]]
    ns = np.zeros(facts.count, np.int64)
    for segments in facts.lots(rows):
        kernels = np.flatnonzero(segments.of_cause("kernel"))
        names = segments.words(kernels).tolist()
        fill = kernels[np.array(["FillFunctor" in str(name) for name in names], dtype=bool)]
        np.add.at(ns, segments.interval[fill], segments.ns[fill])
    mask = (facts.share(ns) > thresholds.WARN_SHARE) & (ns < 0.98 * facts.kernel_only)
    for case in facts.cases(mask, at_least=0):
        at = case.row
        yield case.finding(
            "warning",
            f"{case.who} contains a fill: {words.of(ns[at], facts.elapsed[at])} are spent writing a constant {why}.",
            advice,
            np.full(facts.count, ns[at]),
            positions=facts.repetitions(int(facts.label[at])),
            fill_ns=ns[at],
            elapsed_ns=facts.elapsed[at],
            other_kernels_ns=facts.kernel_only[at] - ns[at],
        )


def drains(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Per interval: how long the GPU idled because of synchronisations, at most, and how much of
    that is time in which the host caught up in its own code and in calls (rules about the host
    leave it out).

        kernel  host | sync host launch latency | kernel
                     |----- of the sync --------|            the host's time before it is not

    Without the synchronisation the host could have used the time in which the device worked before,
    no more: if it sleeps for a second afterwards, the second is its own.
    """
    return facts.remember("drains", _drains)


def _drains(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    total, hosted = np.zeros(facts.count, np.int64), np.zeros(facts.count, np.int64)
    positions = np.flatnonzero(facts.on_stream & (facts.part("sync") > 0))
    for segments in facts.lots(positions):
        at, ns, run = segments.interval, segments.ns, segments.run
        sync, idle = segments.of_cause("sync"), run >= 0
        stretches = int(run.max(initial=-1)) + 1
        if not stretches:
            continue
        first = np.full(stretches, len(run))
        np.minimum.at(first, run[sync], np.flatnonzero(sync))
        after = idle & (np.arange(len(run)) > np.where(idle, first[run], 0)) & ~sync
        own = after & segments.of_cause("host", "api", "api_launch")
        called, followed, caught_up = (
            np.bincount(run[m], ns[m], minlength=stretches).astype(np.int64)
            for m in (sync, after, own)
        )
        # work since the stretch before that had a synchronisation, or since the interval began
        worked = np.append(0, np.cumsum(np.where(idle, 0, ns)))
        mine = np.flatnonzero(first < len(run))
        owner = at[first[mine]]
        begin = np.searchsorted(at, owner)
        begin[1:] = np.where(owner[1:] == owner[:-1], first[mine][:-1], begin[1:])
        before = worked[first[mine]] - worked[begin]
        catching_up = np.minimum(followed[mine], before)
        np.add.at(total, owner, called[mine] + catching_up)
        np.add.at(hosted, owner, np.minimum(caught_up[mine], catching_up))
    if len(positions):
        hosted[facts.share(total) <= thresholds.WARN_SHARE] = 0  # too little for a warning
        hosted[_pageable(facts)] = 0
    return total, hosted


def _pageable(facts: Facts) -> np.ndarray:
    """Intervals whose synchronisation belongs to a large pageable copy: rule copy-inside covers
    it."""
    rows = facts.detail_rows("memcpy")
    rows = rows[(rows["memory"] == "pageable") & (rows["bytes"] > thresholds.ITEM_BYTES)]
    return facts.detail_ns(rows) > 0


def sync(facts: Facts) -> Iterator[Finding]:
    """A synchronisation inside the interval: the queue runs empty, and the GPU idles until the host
    has caught up."""
    total, _ = drains(facts)
    torch = is_torch(facts.analysis)
    rows = facts.detail_rows("memcpy")
    small = rows[
        (rows["direction"] == "D2H")
        & (rows["bytes"] > 0)
        & (rows["bytes"] <= thresholds.ITEM_BYTES)
    ]
    item = facts.detail_ns(small) > 0
    calls = facts.detail_rows("sync")
    say = np.where(facts.kind == "nvtx", thresholds.SAY_SHARE, thresholds.SYNC_SAY_SHARE)
    said = facts.share(total) >= say
    for case in facts.cases(said & (total > 0) & ~(_pageable(facts) & ~item)):
        at = case.row
        mine = rows_of(calls, at)
        name = str(mine["detail"].iloc[0]) if len(mine) else "a synchronisation"
        how = " (.item(), .cpu(), nonzero, an if on a tensor)" if torch else ""
        what = f"a result is read back{how}" if item[at] else f"{name} waits"
        warn = not facts.others_worked[at] and total[at] > thresholds.WARN_SHARE * facts.elapsed[at]
        yield case.finding(
            "warning" if warn else "info",
            f"{case.who} synchronises inside: {what}, and for {words.of(total[at], facts.elapsed[at])} {facts.idled(at)} in that call "
            "and until the host had caught up.",
            "Keep the result on the GPU until the end event:   end.record(); value = result.item()"
            if item[at]
            else "Synchronise after the end event only:   end.record(); torch.cuda.synchronize()",
            total,
            idle_because_of_it_ns=total[at],
            elapsed_ns=facts.elapsed[at],
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
            graph_ns=graph[at],
            elapsed_ns=facts.elapsed[at],
            kernel_at_least_ns=facts.kernel_only[at],
            kernel_at_most_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )
