"""Copies inside the interval: how much of it, pageable or pinned, at which bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts, rows_of
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "copy-inside"
_WORDS = {"H2D": "to the device", "D2H": "to the host", "D2D": "on the device", "P2P": "between devices"}


def find(facts: Facts) -> Iterator[Finding]:
    rows = facts.detail_rows("memcpy")
    if rows.empty:
        return
    # the result of an .item() is a synchronisation's business
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
        name = words.subject(case.label)
        amount = words.of(copies[at], facts.elapsed[at])
        speed = f"{rate:,.0f} GB/s" if rate >= 100 else f"{rate:.3g} GB/s"
        title = (
            f"{name} contains the copy: {amount} are spent on a copy {where}"
            if computes[at]
            else f"{name} is a copy {where}: {amount}"
        )
        kind = f" with {memory} host memory" if memory in ("pageable", "pinned") else ""
        yield Finding(
            NAME,
            "warning" if warn else "info",
            case.label,
            f"{title}, {speed}{kind}.",
            evidence(
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
            ),
            _advice(direction, bool(computes[at])),
            case.site,
            case.positions,
            float(copies[at]),
        )


def _main_copy(rows: pd.DataFrame) -> tuple[str, str, int, int]:
    """(direction, memory, ns with staging, bytes) of the kind of copy that takes longest; staging's bytes are the copy's."""
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
        str(d): float(rate[pinned["direction"].to_numpy() == d].max()) for d in pinned["direction"].unique()
    }


def _advice(direction: str, computes: bool) -> str:
    """How to measure the kernels without the copy; what makes the copy faster is in `faster.py`."""
    if not computes or direction not in ("H2D", "D2H"):
        return ""
    if direction == "H2D":
        return "Copy before the start event:   x = x.cuda(); torch.cuda.synchronize(); start.record()"
    return "Copy after the end event:   end.record(); y = y.cpu()"


RULE = Rule(NAME, find)
