"""What `check` says of a recording beside what its analysis says."""

from __future__ import annotations

from nsysalign.addons.check.checks import Verdict
from nsysalign.answer import wrong_of
from nsysalign.explain.rules import OF_LABELS
from nsysalign.model import Analysis


def agrees(verdict: Verdict, analysis: Analysis, own: set[tuple[str, str]]) -> None:
    """It finds what every screen calls a wrong timing, and of itself only `own`: (check, label)."""
    found = {(doubt.check, doubt.label) for doubt in verdict.found}
    assert {(check, label) for check, label in found if check not in OF_LABELS} == own
    wrong = {finding.label for finding in wrong_of(analysis)}
    assert {label for _, label in found} == wrong | {label for _, label in own}
    assert not any("the work of" in text for text in verdict.unchecked)
