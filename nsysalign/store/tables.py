"""The tables as CSV for spreadsheets and as Parquet for data frames, and the budgets as one wide
table."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nsysalign import registry
from nsysalign.errors import UsageError
from nsysalign.files import replacing
from nsysalign.model import CAUSES, Analysis
from nsysalign.parts import parts_matrix
from nsysalign.store.objects import to_json
from nsysalign.text import safe_text

if TYPE_CHECKING:
    import pandas as pd

#: Characters that make a spreadsheet treat a cell as a formula, including their full-width forms.
_FORMULA = tuple("=+-@\t\r\n|%＝＋－＠")
_BUDGET = (
    *("name", "label", "kind", "site", "elapsed_ns", "kernel_only_ns"),
    *("error_ns", "method", "start_ns", "end_ns"),
)


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """Every declared table, and `budgets`: one row per interval, one column per cause."""
    budgets = analysis.intervals[["interval", *_BUDGET]].copy()
    budgets[[f"{cause}_ns" for cause in CAUSES]] = parts_matrix(analysis)
    predicted = analysis.unprofiled.set_index("interval").reindex(budgets["interval"])
    for name in ("predicted_ns", "lower_ns", "upper_ns"):
        budgets[f"unprofiled_{name}".replace("_predicted", "")] = predicted[name].array
    return {"budgets": budgets} | {
        spec.name: getattr(analysis, spec.name) for spec in registry.specs()
    }


def write(analysis: Analysis, folder: Path, form: str) -> int:
    """One file per table: "csv", each text one line without control characters and never a formula,
    or "parquet", text as it is; tuples and dicts as JSON text.  Returns how many."""
    if form == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UsageError(
                "Parquet needs the package pyarrow, which is not installed",
                "pip install pyarrow, or --format csv",
            ) from None
    # each text once; Parquet cannot hold half a character
    once = cache(cell if form == "csv" else lambda t: t.encode("utf-8", "replace").decode("utf-8"))
    every = tables(analysis)
    for name, table in every.items():
        out = table.copy()
        for column in table.columns:
            if table[column].dtype.kind not in "iufb":
                values = table[column].tolist()
                out[column] = [once(v if isinstance(v, str) else to_json(v)) for v in values]
        with replacing(folder / f"{name}.{form}") as temporary:
            if form == "csv":
                out.to_csv(temporary, index=False, encoding="utf-8", lineterminator="\n")
            else:
                out.to_parquet(temporary, engine="pyarrow", index=False)
    return len(every)


def cell(text: str) -> str:
    """Text that a spreadsheet displays and never evaluates: `=cmd()` becomes `'=cmd()`."""
    line = safe_text(text)
    shown = line.lstrip(" \u00a0\u3000")
    return "'" + line if shown.startswith(_FORMULA) or text[:1] in _FORMULA else line
