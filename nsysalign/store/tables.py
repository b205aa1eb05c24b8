"""The tables as CSV for spreadsheets and as Parquet for data frames, and the budgets as one wide
table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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
from nsysalign.untrusted import contents

if TYPE_CHECKING:
    import pandas as pd

#: Characters that make a spreadsheet treat a cell as a formula, including their full-width forms.
_FORMULA = tuple("=+-@\t\r\n|%＝＋－＠")
_BUDGET = (
    "name",
    "label",
    "kind",
    "site",
    "elapsed_ns",
    "kernel_only_ns",
    "error_ns",
    "method",
    "start_ns",
    "end_ns",
)


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """Every declared table, and `budgets`: one row per interval, one column per cause."""
    budgets = analysis.intervals[["interval", *_BUDGET]].copy()
    matrix = parts_matrix(analysis)
    for number, cause in enumerate(CAUSES):
        budgets[f"{cause}_ns"] = matrix[:, number]
    predicted = analysis.unprofiled.set_index("interval").reindex(budgets["interval"])
    for name in ("predicted_ns", "lower_ns", "upper_ns"):
        budgets[f"unprofiled_{name}".replace("_predicted", "")] = predicted[name].array
    return {"budgets": budgets} | {
        spec.name: getattr(analysis, spec.name) for spec in registry.specs()
    }


def write_csv(analysis: Analysis, folder: str | os.PathLike[str]) -> list[Path]:
    """One file per table.  Text is one line without control characters, and never a formula."""
    return _written(
        analysis,
        folder,
        "csv",
        cell,
        lambda table, path: table.to_csv(path, index=False, encoding="utf-8", lineterminator="\n"),
    )


def _written(
    analysis: Analysis,
    folder: str | os.PathLike[str],
    form: str,
    change: Callable[[str], str],
    write: Callable[[pd.DataFrame, Path], None],
) -> list[Path]:
    """One file per table, each text changed once."""
    once = cache(change)
    written = []
    for name, table in tables(analysis).items():
        out = table.copy()
        for column in table.columns:
            if table[column].dtype.kind not in "iufb":
                values = table[column].tolist()
                out[column] = [once(v if isinstance(v, str) else to_json(v)) for v in values]
        path = Path(folder) / f"{name}.{form}"
        with replacing(path) as temporary:
            write(out, temporary)
        written.append(path)
    return written


def cell(text: str) -> str:
    """Text that a spreadsheet displays and never evaluates: `=cmd()` becomes `'=cmd()`."""
    line = safe_text(text)
    return (
        "'" + line
        if line.lstrip(" \u00a0\u3000").startswith(_FORMULA) or text[:1] in _FORMULA
        else line
    )


def write_parquet(analysis: Analysis, folder: str | os.PathLike[str]) -> list[Path]:
    """One file per table, text as it is; tuples and dicts as JSON text."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError(
            "Parquet needs the package pyarrow, which is not installed",
            "pip install pyarrow, or --format csv",
        ) from None
    return _written(
        analysis,
        folder,
        "parquet",
        lambda text: text.encode("utf-8", "replace").decode("utf-8"),
        lambda table, path: table.to_parquet(path, engine="pyarrow", index=False),
    )


def foreign(analysis: Analysis, folder: Path, form: str) -> Iterator[Path]:
    """Files that an export to this folder would replace, and that are no earlier export of the same
    table."""
    for name, table in tables(analysis).items():
        path = folder / f"{name}.{form}"
        if not path.is_file() or path.is_symlink():
            continue
        try:
            if form == "csv":
                head = contents(path, 1 << 16).partition(b"\n")[0].decode()
                there = head.strip().split(",")
            else:
                from pyarrow.parquet import read_schema

                there = read_schema(path).names
        except (OSError, ValueError):
            there = [""]
        if not {*there} <= {*table.columns}:
            yield path
