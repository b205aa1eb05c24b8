"""What re-runs with one change said: the table, where it is kept, what it says of findings.

`RUN_DIR/confirm.json`; the keys are the columns of CONFIRMATIONS, null is "none".  The newest
verdict about a label and a change is the one that counts.

    {"format":"nsysalign-confirm","version":1,"confirmations":[
      {"label":"t1","rules":["host-gap"],"intervention":"delay","verdict":"confirmed","reason":…,
       "before_ns":…, …}]}
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from nsysalign import frames
from nsysalign.errors import AnalysisError
from nsysalign.explain.finding import NOT_CONFIRMED, Status
from nsysalign.files import write_text
from nsysalign.model import Analysis
from nsysalign.rundir import Inputs
from nsysalign.store.objects import records
from nsysalign.store.objects import table as as_table
from nsysalign.untrusted import contents

(CONFIRMATIONS,) = TABLES = frames.specs("""
confirmations: what a re-run with one intervention said about a cause (nsysalign confirm)
    label              str      the label whose cause was put to the test
    rules              object   tuple of the rules whose findings about it this settles
    intervention       str      delay or synchronize: what was done before its start records
    verdict            str      confirmed, refuted or unclear
    reason             str      the verdict in words
    before_ns          float64  midmean of the measured times without the intervention
    predicted_ns       float64  what the budget predicts with it
    predicted_low_ns   float64  least that agrees with the prediction
    predicted_high_ns  float64  most that agrees with the prediction
    after_ns           float64  the same in the re-run, NaN where there was none to compare
    after_low_ns       float64  its lower bound (95 %)
    after_high_ns      float64  its upper bound (95 %)
    before_count       int64    intervals compared, before
    after_count        int64    intervals compared, after
    changed            str      what was changed in the re-run
    run                str      folder of the re-run, relative to the run directory, '' unknown
""")
FORMAT, VERSION, CONFIRMED = "nsysalign-confirm", 1, "confirm.json"
#: Change -> the rules whose findings it settles.
SETTLES: Mapping[str, tuple[str, ...]] = {
    "delay": ("host-gap", "many-tiny-kernels", "api-launch", "allocation-inside"),
    "synchronize": ("queued",),
}


def write(table: pd.DataFrame, path: Path) -> None:
    """Write confirm.json; the file appears whole or not at all."""
    document = {"format": FORMAT, "version": VERSION, "confirmations": records(table)}
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def read(path: Path) -> pd.DataFrame:
    """The table of a confirm.json, empty if there is no such file.  Raises AnalysisError if it is
    something else: the file may come from anyone."""
    if not path.is_file():
        return frames.empty(CONFIRMATIONS)
    try:
        stored = json.loads(contents(path).decode())
        if (stored["format"], stored["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
        rows = stored["confirmations"]
        columns = [[row[name] for row in rows] for name in CONFIRMATIONS.names]
        table = as_table(columns, CONFIRMATIONS)
        if not all(isinstance(r, tuple) and all(type(x) is str for x in r) for r in table["rules"]):
            raise ValueError("rules are something other than texts")
        return table
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise AnalysisError(
            f"{path} is not what nsysalign confirm writes "
            f"({type(error).__name__}: {str(error)[:200]})",
            "move it away, then make it again: nsysalign confirm --from RUN_DIR",
        ) from error


def step(analysis: Analysis, inputs: Inputs) -> Analysis:
    """The analysis with the re-runs of its run directory."""
    table = read(inputs.home / CONFIRMED) if inputs.home else ()
    return analysis.with_tables({"confirmations": table}) if len(table) else analysis


def testable(analysis: Analysis) -> frozenset[str]:
    """Labels at whose start records the probe could intervene: event pairs that a Python program's
    own code made."""
    if not (analysis.known.python or analysis.known.torch):
        return frozenset()  # another program's log, or none: no probe would run in it
    i = analysis.intervals
    of_program = (i["kind"] == "event") & ~i["library"] & (i["site"] != "")
    return frozenset(i.loc[of_program, "label"]) - set(i.loc[i["method"] == "inferred", "label"])


def statuses(analysis: Analysis) -> list[Status]:
    """One per row of `analysis.findings`."""
    known = {
        (c.label, rule): Status(str(c.verdict), f"{c.reason} ({c.changed})")
        for c in analysis.confirmations.itertuples(index=False)
        for rule in c.rules
    }
    settled, tested = {rule for rules in SETTLES.values() for rule in rules}, testable(analysis)
    out = []
    for label, rule in zip(analysis.findings["label"], analysis.findings["rule"], strict=True):
        command = f"nsysalign confirm --label {shlex.quote(label)} SCRIPT.py"
        status = Status(NOT_CONFIRMED, command if rule in settled and label in tested else "")
        out.append(known.get((label, rule), status))
    return out
