"""What a re-run with one change shows about a cause, and `RUN_DIR/confirm.json`, where that is kept.

before                                  |=====|
predicted            |======|
after                   |==|                 confirmed: the bounds of the re-run meet the prediction
after                             |==|       refuted: they do not
after                   |==================| unclear: they also include the time before

    {"format":"nsysalign-confirm","version":1,"confirmations":[
      {"label":"t1","rules":["host-gap"],"intervention":"delay","verdict":"confirmed","reason":…,
       "before_ns":…, …}]}

The keys are the columns of `CONFIRMATIONS`; null is "none".  The newest verdict about a label and a
change is the one that counts.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.addons.confirm.experiment import (
    FEWEST,
    SETTLES,
    Level,
    Plan,
    parts_of,
    rows_of,
    testable,
)
from nsysalign.addons.confirm.tables import CONFIRMATIONS
from nsysalign.compare.bootstrap import level
from nsysalign.errors import AnalysisError
from nsysalign.explain.finding import NOT_CONFIRMED, Status
from nsysalign.files import write_text
from nsysalign.model import NONE_IF_AHEAD, Analysis
from nsysalign.rundir import Inputs
from nsysalign.store.objects import records
from nsysalign.store.objects import table as as_table
from nsysalign.text import microseconds
from nsysalign.untrusted import contents

FORMAT, VERSION, CONFIRMED = "nsysalign-confirm", 1, "confirm.json"
#: This much of the host's parts can come from the window's own error bar.
LATE_NS = 500
#: The delay must have outlasted the host before this share of the intervals.
ENOUGH_SHARE = 0.5
#: Different work: this many times more or fewer operations.
SAME_WORK = 1.2
NOTHING = Level(np.nan, np.nan, np.nan)


def judge(plan: Plan, after: Analysis, run: str) -> pd.DataFrame:
    """A row of CONFIRMATIONS from the analysis of a re-run.  Only intervals at whose start record
    the probe intervened (flag `intervened`) are compared."""
    rows = rows_of(after, plan.label)
    changed = rows[["intervened" in flags for flags in after.intervals["flags"].iloc[rows]]]
    devices = tuple(dict.fromkeys(after.trace.devices))
    now, then = float(after.intervals["operations"].iloc[changed].median()), plan.operations
    # the start record stands at the delay's end: if a budget still contains host, API or
    # synchronisation time, the host had not finished issuing by then
    late = parts_of(after, changed, *NONE_IF_AHEAD) > LATE_NS
    late &= plan.change == "delay"
    kept, measured, verdict, compared = changed[~late], NOTHING, "unclear", 0
    if not len(rows):
        reason = f"the second run has no interval {plan.label}"
    elif not len(changed):
        reason = f"the probe found no start record of {plan.label} at which to intervene"
    elif plan.devices and devices != plan.devices:
        there, here = (", ".join(names) for names in (devices, plan.devices))
        reason = f"the second run was made on {there} instead of {here}"
    elif max(now, then) + 1 > SAME_WORK * (min(now, then) + 1) + 1:
        reason = f"the second run did different work: {now:.0f} operations instead of {then}"
    elif late.sum() > (1 - ENOUGH_SHARE) * len(changed):
        reason = (
            f"the delay of {microseconds(plan.delay_ns)} did not outlast the host in {late.sum()} "
            f"of {len(changed)} intervals: something inside waited for it"
        )
    elif len(kept) < FEWEST:
        reason = (
            f"{len(kept)} intervals of the re-run can be compared: at least {FEWEST} are needed"
        )
    else:
        values = after.intervals["elapsed_ns"].to_numpy(dtype=np.float64)[kept]
        measured = Level(*level(values[:, None])[0].tolist())
        verdict, reason = decide(plan, measured)
        compared = len(kept)
        if late.any():
            reason += (
                f"; {late.sum()} of {len(changed)} left out, because the delay ended before the "
                "host had issued everything"
            )
    return row(plan, verdict, reason, run, measured, compared, len(changed) if len(rows) else None)


def row(
    plan: Plan,
    verdict: str,
    reason: str,
    run: str,
    after: Level = NOTHING,
    count: int = 0,
    done: int | None = None,
) -> pd.DataFrame:
    """A row of CONFIRMATIONS; `done`: how often the change was made, None where unknown."""
    what = {
        "delay": f"a delay kernel of {microseconds(plan.delay_ns)} on the same stream before",
        "synchronize": "torch.cuda.synchronize() before",
    }[plan.change]
    often = "the" if done is None else f"{done:,}"
    values = {
        "label": plan.label, "rules": plan.rules, "intervention": plan.change,
        "verdict": verdict, "reason": reason, "before_ns": plan.before.ns,
        "predicted_ns": plan.predicted.ns, "predicted_low_ns": plan.predicted.low,
        "predicted_high_ns": plan.predicted.high, "after_ns": after.ns, "after_low_ns": after.low,
        "after_high_ns": after.high, "before_count": plan.count, "after_count": count,
        "changed": f"{what} {often} start records of {plan.label}", "run": run,
    }  # fmt: skip
    return frames.check(pd.DataFrame([values]), CONFIRMATIONS)


def decide(plan: Plan, after: Level) -> tuple[str, str]:
    """(verdict, reason) from numbers alone."""
    meets, unchanged = (
        after.low <= reach.high and reach.low <= after.high
        for reach in (plan.predicted, plan.before)
    )
    verdict = "refuted" if not meets else "unclear" if unchanged else "confirmed"
    before, now, low, high = map(
        microseconds, (plan.before.ns, after.ns, plan.predicted.low, plan.predicted.high)
    )
    return verdict, f"{before} before, {now} after, {low} to {high} predicted"


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
        if stored["format"] != FORMAT or stored["version"] != VERSION:
            raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
        rows = stored["confirmations"]
        table = as_table(
            [[row[name] for row in rows] for name in CONFIRMATIONS.names], CONFIRMATIONS
        )
        for rules in table["rules"]:
            if not isinstance(rules, tuple) or not all(isinstance(name, str) for name in rules):
                raise ValueError("rules are something other than texts")
        return table
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise AnalysisError(
            f"{path} is not what nsysalign confirm writes "
            f"({type(error).__name__}: {str(error)[:200]})",
            "move it away, then make it again: nsysalign confirm --from RUN_DIR",
        ) from error


def since(analysis: Analysis, run: Path) -> Analysis:
    """A stored analysis with the re-runs made since it was stored."""
    table = read(run / CONFIRMED)
    return analysis.with_tables({"confirmations": table}) if len(table) else analysis


def step(analysis: Analysis, inputs: Inputs) -> Analysis:
    """The analysis with the re-runs of its run directory."""
    return since(analysis, inputs.home) if inputs.home else analysis


def statuses(analysis: Analysis) -> list[Status]:
    """One per row of `analysis.findings`."""
    known = {
        (c.label, rule): Status(str(c.verdict), f"{c.reason} ({c.changed})")
        for c in analysis.confirmations.itertuples(index=False)
        for rule in c.rules
    }
    measured = Status("measured", "in two runs, with and without nsys")
    settled, own = {rule for rules in SETTLES.values() for rule in rules}, testable(analysis)
    out = []
    for label, rule in zip(analysis.findings["label"], analysis.findings["rule"], strict=True):
        command = f"nsysalign confirm --label {shlex.quote(label)} SCRIPT.py"
        offered = command if rule in settled and label in own else ""
        beside = measured if rule == "profiler-inflation" else Status(NOT_CONFIRMED, offered)
        out.append(known.get((label, rule), beside))
    return out
