"""Rules that turn budgets into findings."""

from __future__ import annotations

from nsysalign.model import Analysis


def diagnose(analysis: Analysis) -> Analysis:
    """Apply every rule, in order."""
    return analysis
