"""What a re-run with one intervention shows about a cause: confirmed, refuted, or not conclusive.

before                                  |=====|
predicted            |======|
after                   |==|                 confirmed: the bounds of the re-run meet the prediction
after                             |==|       refuted: they do not
after                   |==================| not conclusive: they also include the time before
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.addons.confirm.experiment import FEWEST, Plan, machine, rows_of
from nsysalign.addons.confirm.prediction import parts_of
from nsysalign.addons.confirm.tables import CONFIRMATIONS
from nsysalign.compare.bootstrap import level
from nsysalign.model import NONE_IF_AHEAD, Analysis
from nsysalign.text import microseconds

NONE = float("nan")
#: This much of them can come from the window's own error bar.
LATE_NS = 500
#: The delay must have outlasted the host before this share of the intervals.
ENOUGH_SHARE = 0.5
#: Different work: this many times more or fewer operations.
SAME_WORK = 1.2


@dataclass(frozen=True)
class Confirmation:
    """One row of CONFIRMATIONS."""

    plan: Plan
    verdict: str
    reason: str
    after_ns: float
    after_bounds_ns: tuple[float, float]
    after_count: int
    changed: str
    run: str

    def row(self) -> dict[str, object]:
        p = self.plan
        predicted, after = p.predicted_bounds_ns, self.after_bounds_ns
        return {
            "label": p.label, "rules": p.rules, "intervention": p.intervention,
            "verdict": self.verdict, "reason": self.reason,
            "before_ns": p.before_ns, "predicted_ns": p.predicted_ns,
            "predicted_low_ns": predicted[0], "predicted_high_ns": predicted[1],
            "after_ns": self.after_ns, "after_low_ns": after[0], "after_high_ns": after[1],
            "before_count": p.count, "after_count": self.after_count,
            "changed": self.changed, "run": self.run,
        }  # fmt: skip


def table(confirmation: Confirmation) -> pd.DataFrame:
    """Its row as a table."""
    return frames.check(pd.DataFrame([confirmation.row()]), CONFIRMATIONS)


def judge(plan: Plan, after: Analysis, *, run: str = "") -> Confirmation:
    """The verdict about a plan from the analysis of its re-run.  Only intervals at whose start
    record the probe intervened (flag `intervened`) are compared."""
    everything = rows_of(after, plan.label)
    flags = after.intervals["flags"].to_numpy(dtype=object)
    rows = np.array([r for r in everything if "intervened" in flags[r]], dtype=np.int64)
    done, values = len(rows), np.empty(0)
    if not done:
        reason = (
            f"the probe found no start record of {plan.label} at which to intervene"
            if len(everything)
            else f"the second run has no interval {plan.label}"
        )
    else:
        now, then = float(after.intervals["operations"].iloc[rows].median()), plan.operations
        reason, there = "", machine(after)
        if plan.machine and there != plan.machine:
            where, wanted = (", ".join(names) for names in (there, plan.machine))
            reason = f"the second run was made on {where} instead of {wanted}"
        elif max(now, then) + 1 > SAME_WORK * (min(now, then) + 1) + 1:
            reason = f"the second run did different work: {now:.0f} operations instead of {then}"
        elif plan.intervention == "delay":
            rows, reason = _outlasted(plan, after, rows)
        values = after.intervals["elapsed_ns"].to_numpy(dtype=np.float64)[rows]
        if not reason and len(values) < FEWEST:
            few = f"{len(values)} intervals of the re-run can be compared"
            reason = f"{few}: at least {FEWEST} are needed"
    measured, *bounds = level(values[:, None])[0].tolist() if len(values) else [NONE] * 3
    verdict = "not conclusive"
    if not reason:
        verdict, reason = decide(plan, measured, tuple(bounds))
        if len(rows) < done:
            reason += (
                f"; {done - len(rows)} of {done} left out, because the delay ended before the host "
                "had issued everything"
            )
    changed = _changed(plan, done)
    return Confirmation(plan, verdict, reason, measured, tuple(bounds), len(values), changed, run)


def nothing(plan: Plan, reason: str, *, run: str = "") -> Confirmation:
    """A re-run that left nothing to compare."""
    return Confirmation(plan, "not conclusive", reason, NONE, (NONE, NONE), 0, _changed(plan), run)


def decide(plan: Plan, after_ns: float, bounds_ns: tuple[float, float]) -> tuple[str, str]:
    """(verdict, reason) from numbers alone."""
    low, high = plan.predicted_bounds_ns
    numbers = f"{microseconds(plan.before_ns)} before, {microseconds(after_ns)} after"
    numbers = f"{numbers}, {microseconds(low)} to {microseconds(high)} predicted"
    meets, unchanged = (
        bounds_ns[0] <= reach[1] and reach[0] <= bounds_ns[1]
        for reach in ((low, high), plan.before_bounds_ns)
    )
    if meets and unchanged:
        return "not conclusive", f"the second run varies too much to tell: {numbers}"
    if meets:
        return "confirmed", numbers
    if unchanged:
        return "refuted", f"the change had no effect: {numbers}"
    expected, got = plan.predicted_ns - plan.before_ns, after_ns - plan.before_ns
    if expected * got < 0:
        return "refuted", f"the time changed in the other direction: {numbers}"
    share = got / expected if expected else 0.0
    return "refuted", f"{100 * share:.0f} % of the predicted change: {numbers}"


def _outlasted(plan: Plan, after: Analysis, rows: np.ndarray) -> tuple[np.ndarray, str]:
    """The intervals whose delay outlasted the host, and why too few did.

    The start record stands at the delay's end.  If a budget still contains host, API or
    synchronisation time, the host had not finished issuing by then.
    """
    late = parts_of(after, rows, *NONE_IF_AHEAD)
    kept = rows[late <= LATE_NS]
    if len(kept) >= ENOUGH_SHARE * len(rows):
        return kept, ""
    causes = {cause: float(np.median(parts_of(after, rows, cause))) for cause in NONE_IF_AHEAD}
    worst = max(causes, key=causes.__getitem__)
    why = {
        "sync": "the host synchronised inside and waited for the delay",
        "api": "a CUDA call inside waited for the delay (as allocating and freeing memory do)",
    }.get(
        worst,
        f"the host had not issued everything when the delay of {microseconds(plan.delay_ns)} ended",
    )
    short = (
        f"in {len(rows) - len(kept)} of {len(rows)} intervals the delay did not outlast the host"
    )
    return kept, f"{why}: {short}"


def _changed(plan: Plan, count: int | None = None) -> str:
    """What was changed; `count`: how often, None where unknown."""
    what = {
        "delay": f"a delay kernel of {microseconds(plan.delay_ns)} on the same stream before",
        "synchronize": "torch.cuda.synchronize() before",
    }[plan.intervention]
    often = "the" if count is None else f"{count:,}"
    return f"{what} {often} start records of {plan.label}"
