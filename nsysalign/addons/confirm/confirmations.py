"""`RUN_DIR/confirm.json`: the results of re-runs with one intervention; and the sentence shown next
to a finding.

    {"format":"nsysalign-confirm","version":1,"confirmations":[
      {"label":"t1","rules":["host-gap"],"intervention":"delay","verdict":"confirmed","reason":…,
       "before_ns":…,"predicted_ns":…,"predicted_low_ns":…,"predicted_high_ns":…,
       "after_ns":…,"after_low_ns":…,"after_high_ns":…,"before_count":20,"after_count":20,
       "changed":"a delay kernel of 1,000.0 us …","run":"confirm/t1-delay-1"}]}

The keys are the columns of `CONFIRMATIONS`; null is "none".  The newest verdict about a
label and an intervention is the one that counts.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysalign import frames
from nsysalign.addons.confirm.tables import CONFIRMATIONS
from nsysalign.errors import AnalysisError
from nsysalign.explain.finding import NOT_CONFIRMED, Status
from nsysalign.files import write_text
from nsysalign.model import Analysis
from nsysalign.rundir import Inputs
from nsysalign.store.objects import frame, records
from nsysalign.untrusted import contents

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "nsysalign-confirm", 1
CONFIRMED = "confirm.json"


_MEASURED = {"profiler-inflation": Status("measured", "in two runs, with and without nsys")}


def document(table: pd.DataFrame) -> dict[str, Any]:
    """The document as plain objects."""
    return {"format": FORMAT, "version": VERSION, "confirmations": records(table)}


def write(table: pd.DataFrame, path: Path) -> None:
    """Write the document; the file appears whole or not at all."""
    write_text(path, json.dumps(document(table), indent=1, allow_nan=False) + "\n")


def read(path: Path) -> pd.DataFrame:
    """The table of a confirm.json, empty if there is no such file.  Raises AnalysisError if it is
    something else."""
    if not path.is_file():
        return frames.empty(CONFIRMATIONS)
    try:
        stored = json.loads(contents(path).decode())
        if stored["format"] != FORMAT or stored["version"] != VERSION:
            raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
        rows = stored["confirmations"]
        for row in rows:
            _check(row)
        return frame(rows, CONFIRMATIONS)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise AnalysisError(
            f"{path} is not what nsysalign confirm writes "
            f"({type(error).__name__}: {str(error)[:200]})",
            "move it away, then make it again: nsysalign confirm --from RUN_DIR",
        ) from error


def _check(row: dict[str, Any]) -> None:
    """Raises ValueError, KeyError or TypeError if a row holds impossible values: the file may come
    from anyone."""
    for column in CONFIRMATIONS.columns:
        value = row[column.name]
        if column.dtype == "object":
            good = isinstance(value, list) and all(isinstance(v, str) for v in value)
        elif column.dtype == "str":
            good = isinstance(value, str)
        else:
            number = (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and abs(value) < 1 << 63
            )
            good = number and (column.dtype != "int64" or isinstance(value, int))
            good = good or (value is None and column.dtype == "float64")
        if not good:
            raise ValueError(f"{column.name} is {value!r:.40}")


def since(analysis: Analysis, run: Path) -> Analysis:
    """A stored analysis with the re-runs made since it was stored."""
    table = read(run / CONFIRMED)
    return analysis.with_tables({"confirmations": table}) if len(table) else analysis


def step(analysis: Analysis, inputs: Inputs) -> Analysis:
    """The analysis with the re-runs of its run directory."""
    return since(analysis, inputs.home) if inputs.home else analysis


def statuses(analysis: Analysis) -> list[Status]:
    """One per row of `analysis.findings`."""
    from nsysalign.addons.confirm.experiment import SETTLES, testable

    known = {
        (c.label, rule): Status(str(c.verdict), f"{c.changed}: {c.reason}")
        for c in analysis.confirmations.itertuples(index=False)
        for rule in c.rules
    }
    to_settle, own = {rule for rules in SETTLES.values() for rule in rules}, testable(analysis)
    found = []
    for label, rule in zip(analysis.findings["label"], analysis.findings["rule"], strict=True):
        offered = rule in to_settle and label in own
        command = f"nsysalign confirm --label {shlex.quote(label)} SCRIPT.py" if offered else ""
        found.append(
            known.get((label, rule)) or _MEASURED.get(rule) or Status(NOT_CONFIRMED, command)
        )
    return found
