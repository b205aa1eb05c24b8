"""What the host did while streams waited for it, in words: for a finding, and as rows of the page's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nsysalign.text import duration, percent, plural, safe_text

if TYPE_CHECKING:
    import pandas as pd

    from nsysalign.model import Analysis
    from nsysalign.report.losses import Loss
    from nsysalign.report.rows import LabelRow

#: Functions, ranges or calls in a sentence; rows of the page's table.
MOST_NAMED, MOST_ROWS = 3, 150
#: A share below this does not explain where the time went.
_WORTH_NAMING = 0.02
_MATTERS = 0.1
#: Host gaps of a label from this length on are worth recording again: they give a handful of samples.
_WORTH_SAMPLING_NS = 5_000_000
VIEWS = {"python": "Python stacks", "range": "NVTX ranges", "os": "OS calls"}


def sentences(analysis: Analysis, found: Mapping[str, Loss]) -> dict[str, str]:
    """Label -> the contents of its host gaps, view by view; if unknown although much time was lost in warm intervals, how to
    record them."""
    table = analysis.host_activity
    sampled = bool(table["samples"].any())
    by_label: dict[str, list[Any]] = {}
    for row in table.itertuples(index=False):
        by_label.setdefault(str(row.label), []).append(row)
    return {
        label: said
        for label, rows in by_label.items()
        if (said := _sentence(rows, sampled, found[label].lost_ns if label in found else 0))
    }


def matters(row: LabelRow) -> bool:
    """Whether waiting for the host is enough of the label's time to be worth explaining."""
    return row.parts_ns.get("host", 0) >= _MATTERS * row.elapsed_ns


def _sentence(rows: list[Any], sampled: bool, lost_ns: int) -> str:
    whole = next(row for row in rows if row.view == "all")
    parts = []
    if whole.samples:
        counted = plural(int(whole.samples), "sample")
        parts.append(f"{_listed(rows, 'python')} ({counted} in {duration(whole.ns)} of gaps)")
    elif sampled:
        parts.append(f"not sampled: none of the samples fell into its {duration(whole.ns)} of gaps")
    parts += [f"{VIEWS[view]}: {said}" for view in ("range", "os") if (said := _listed(rows, view))]
    if not parts and min(whole.ns, lost_ns) >= _WORTH_SAMPLING_NS:
        return "not recorded; nsysalign run --sample-python SCRIPT.py names its functions"
    return "; ".join(parts)


def _listed(rows: list[Any], view: str) -> str:
    """ "63 % resize (transforms.py:41), 12 % read (loader.py:9, in open (io.py))": the largest, as far as they matter."""
    mine = [r for r in rows if r.view == view and r.name and r.share >= _WORTH_NAMING]
    return ", ".join(f"{percent(r.share)} {safe_text(r.name)}{_where(r)}" for r in mine[:MOST_NAMED])


def _where(row: Any) -> str:
    if not row.place:
        return ""
    within = f", in {safe_text(row.within)}" if row.within else ""
    return f" ({safe_text(row.place)}{within})"


def named(analysis: Analysis) -> int:
    """The number of rows with a name."""
    return len(_named(analysis))


def _named(analysis: Analysis) -> pd.DataFrame:
    table = analysis.host_activity
    return table[(table["view"] != "all") & (table["name"] != "")]


def page_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """The page's table: the first MOST_ROWS rows with a name."""
    return [
        {
            "label": safe_text(r.label),
            "view": VIEWS.get(r.view, ""),
            "name": safe_text(r.name),
            "place": safe_text(r.place),
            "within": safe_text(r.within),
            "share": float(r.share),
            "samples": int(r.samples),
            "ns": int(r.ns),
        }
        for r in _named(analysis).head(MOST_ROWS).itertuples(index=False)
    ]
