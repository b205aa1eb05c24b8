"""Answers besides the budgets: labels split by kind of work, ranges on the host, and what the host
did while streams waited for it; in lines and as the page's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsysalign.model import Analysis
from nsysalign.parts import parts_matrix
from nsysalign.show.overview import of_devices
from nsysalign.show.rows import LabelRow, of_interval, unprofiled
from nsysalign.text import duration, percent, plural, safe_text

if TYPE_CHECKING:
    import pandas as pd

    from nsysalign.show.verdict import Spent


#: Ranges that a terminal lists; rows of a table on the page.
MOST_LINES, MOST_ROWS = 6, 150
_NOTHING: dict[str, Any] = {"unprofiled_ns": None, "no_prediction": ""}
#: The parts of a range's host time, as named in both outputs.
SPLIT = {
    "launch_ns": "launch",
    "copy_ns": "copy",
    "sync_ns": "sync",
    "other_ns": "other calls",
    "outside_ns": "outside",
}


def told_apart(analysis: Analysis, rows: Sequence[LabelRow]) -> list[LabelRow]:
    """The rows, with one row per kind of work for a label that did different work: its own median
    would describe none of them."""
    if analysis.variants.empty:
        return list(rows)
    import pandas as pd

    matrix, intervals = parts_matrix(analysis), analysis.intervals
    place = pd.Index(intervals["interval"]).get_indexer(analysis.variants["row_interval"])
    predicted = unprofiled(analysis)
    several: dict[str, list[LabelRow]] = {}
    of_label = {row.label: row for row in rows}
    for v, at in zip(analysis.variants.itertuples(index=False), place.tolist(), strict=True):
        row = of_label.get(str(v.label))
        if row is None or at < 0:
            continue
        shown = of_interval(next(intervals.iloc[[at]].itertuples(index=False)), matrix[at])
        several.setdefault(row.label, []).append(
            replace(
                row,
                label=f"{row.label} [{v.variant}]",
                count=int(v.count),
                median_ns=float(v.median_ns),
                **shown,
                **predicted.get(int(v.row_interval), _NOTHING),
            )
        )
    return [each for row in rows for each in several.get(row.label, [row])]


def range_lines(analysis: Analysis, width: int) -> list[str]:
    """Ranges by their time on the host: that time, the GPU time of their work, and its parts where
    `width` has room for all of them."""
    table = analysis.host_ranges
    if table.empty:
        return []
    lines, parted = [], []
    for r in table.head(MOST_LINES).itertuples(index=False):
        parts = sorted(
            ((ns, word) for c, word in SPLIT.items() if (ns := getattr(r, c))), reverse=True
        )
        made_of = ", ".join(f"{word} {percent(ns / max(r.host_ns, 1))}" for ns, word in parts[:2])
        gpu = f"GPU {duration(r.gpu_ns)}" if r.with_work else "nothing on the GPU"
        lines.append(
            f"{duration(r.host_ns):>8}  {r.count:>7,} x {duration(r.median_ns):>8}  {gpu:<18}  {safe_text(r.label)}"
        )
        parted.append(f"{lines[-1]}  ({made_of})")
    if max(map(len, parted)) <= width:
        lines = parted
    lines.insert(0, "NVTX ranges by their time on the host, each with all inside it:")
    if len(table) > MOST_LINES:
        lines.append(f"          … {len(table) - MOST_LINES:,} more in the report")
    return lines


def page_tables(analysis: Analysis) -> dict[str, Any]:
    """The page's tables of ranges, gaps and kinds of work."""
    labels = analysis.runs.set_index("interval")["label"]
    gaps = analysis.gaps[analysis.gaps["interval"].isin(of_devices(analysis)["interval"])]
    gaps = gaps.assign(run=labels.reindex(gaps["interval"]).to_numpy()).nlargest(20, "ns")
    variants = plain_rows(
        analysis.variants[
            ["label", "variant", "count", "row_interval", "median_ns", "min_ns", "max_ns"]
        ].head(MOST_ROWS)
    )
    predicted = unprofiled(analysis)
    host = analysis.host_activity
    host = host[(host["view"] != "all") & (host["name"] != "")]
    host = host.assign(view=host["view"].map(VIEWS).fillna(""))
    return {
        "host": plain_rows(
            host[["label", "view", "name", "place", "within", "share", "samples", "ns"]].head(
                MOST_ROWS
            )
        ),
        "ranges": plain_rows(analysis.host_ranges.head(MOST_ROWS)),
        "gaps": plain_rows(gaps[["run", "ns", "next", "call", "call_ns"]]),
        "variants": [row | predicted.get(row["row_interval"], _NOTHING) for row in variants],
        "more": {
            "ranges": max(0, len(analysis.host_ranges) - MOST_ROWS),
            "variants": max(0, len(analysis.variants) - MOST_ROWS),
            "gaps": 0,
            "host": max(0, len(host) - MOST_ROWS),
        },
    }


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as the page's data, with foreign text made plain."""
    return [
        {name: safe_text(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]


#: Functions, ranges or calls in a sentence.
MOST_NAMED = 3
#: A share below this does not explain where the time went.
_WORTH_NAMING = 0.02
_MATTERS = 0.1
#: Host gaps of a label from this length on are worth recording again: they give a handful of
#: samples.
_WORTH_SAMPLING_NS = 5_000_000
VIEWS = {"python": "Python stacks", "range": "NVTX ranges", "os": "OS calls"}


def host_sentences(analysis: Analysis, found: Mapping[str, Spent]) -> dict[str, str]:
    """Label -> the contents of its host gaps, view by view; if unknown although the stream was idle
    for long in warm intervals, how to record them."""
    table = analysis.host_activity
    sampled = bool(table["samples"].any())
    by_label: dict[str, list[Any]] = {}
    for row in table.itertuples(index=False):
        by_label.setdefault(str(row.label), []).append(row)
    return {
        label: said
        for label, rows in by_label.items()
        if (said := _sentence(rows, sampled, found[label].idle_ns if label in found else 0))
    }


def host_matters(row: LabelRow) -> bool:
    """Whether waiting for the host is enough of the label's time to be worth explaining."""
    return row.parts_ns.get("host", 0) >= _MATTERS * row.elapsed_ns


def _sentence(rows: list[Any], sampled: bool, idle_ns: int) -> str:
    whole = next(row for row in rows if row.view == "all")
    parts = []
    if whole.samples:
        counted = plural(int(whole.samples), "sample")
        parts.append(f"{_listed(rows, 'python')} ({counted} in {duration(whole.ns)} of gaps)")
    elif sampled:
        parts.append(f"not sampled: none of the samples fell into its {duration(whole.ns)} of gaps")
    parts += [f"{VIEWS[view]}: {said}" for view in ("range", "os") if (said := _listed(rows, view))]
    if not parts and min(whole.ns, idle_ns) >= _WORTH_SAMPLING_NS:
        return "not recorded; nsysalign run --sample-python SCRIPT.py names its functions"
    return "; ".join(parts)


def _listed(rows: list[Any], view: str) -> str:
    """ "63 % resize (transforms.py:41), 12 % read (loader.py:9, in open (io.py))": the largest, as
    far as they matter."""
    mine = [r for r in rows if r.view == view and r.name and r.share >= _WORTH_NAMING]
    return ", ".join(
        f"{percent(r.share)} {safe_text(r.name)}{_where(r)}" for r in mine[:MOST_NAMED]
    )


def _where(row: Any) -> str:
    if not row.place:
        return ""
    within = f", in {safe_text(row.within)}" if row.within else ""
    return f" ({safe_text(row.place)}{within})"
