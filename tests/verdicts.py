"""What `check` says of a recording beside what its analysis says."""

from __future__ import annotations

import pytest

from nsysalign.addons.check import checks
from nsysalign.addons.check.checks import Verdict
from nsysalign.answer import wrong_of
from nsysalign.explain.rules import OF_LABELS
from nsysalign.model import Analysis
from nsysalign.rundir import Inputs


def judged(inputs: Inputs, analysis: Analysis) -> Verdict:
    """What `check` says of inputs that are analysed already: half of its time is an analysis of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "analyze_inputs", lambda given: analysis)
        return checks.judge(inputs)


def agrees(verdict: Verdict, analysis: Analysis, own: set[tuple[str, str]]) -> None:
    """It finds what every screen calls a wrong timing, and of itself only `own`: (check, label)."""
    found = {(doubt.check, doubt.label) for doubt in verdict.found}
    assert {(check, label) for check, label in found if check not in OF_LABELS} == own
    wrong = {finding.label for finding in wrong_of(analysis)}
    assert {label for _, label in found} == wrong | {label for _, label in own}
    assert not any("the work of" in text for text in verdict.unchecked)
