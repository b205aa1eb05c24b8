"""Host timers by where they synchronise: before the first reading, before the second, both, never."""

from __future__ import annotations

import numpy as np

from nsysalign.diagnose.facts import Case, Facts

BOTH, BEFORE, AFTER, NEVER = "before and after", "only before", "only after", "never"


def patterns(facts: Facts) -> np.ndarray:
    """Per interval, one of the four in words; meaningless for kinds other than host."""
    return facts.remember("host patterns", _patterns)


def _patterns(facts: Facts) -> np.ndarray:
    before, after = facts.flagged("synchronised-before"), facts.flagged("synchronised-after")
    return np.where(before, np.where(after, BOTH, BEFORE), np.where(after, AFTER, NEVER)).astype(object)


def pattern_of(facts: Facts, case: Case) -> str:
    """The pattern of most of a case's intervals: a loop's first repetition may differ."""
    names, count = np.unique(patterns(facts)[case.positions].astype(str), return_counts=True)
    return str(names[int(count.argmax())])


def idle_share(facts: Facts, case: Case) -> float:
    """In how many of the case's intervals all earlier work had ended at the first reading."""
    return float(facts.flagged("idle-before")[case.positions].mean())
