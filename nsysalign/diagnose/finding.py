"""What a rule returns: findings, and remarks that it could not check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from nsysalign.diagnose import words

if TYPE_CHECKING:
    from nsysalign.diagnose.facts import Facts

SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One diagnosis of one label.  Evidence keys carry their unit: `_ns`, `bytes`, `share`."""

    rule: str
    severity: str
    label: str
    title: str
    evidence: Mapping[str, Any]
    advice: str  # how to measure the GPU's time alone, or how to measure right
    site: str
    intervals: np.ndarray = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # positions in analysis.intervals
    explained_ns: float = 0.0  # how much time of the label's row it explains
    about_row: bool = True  # the typical interval; False: the label's repetitions as a set
    faster: str = ""  # what makes the program faster; `advice` is about measuring (see `faster.py`)


@dataclass(frozen=True)
class About:
    """What findings are about: a label, its call site, and the positions of its intervals that show it."""

    label: str
    site: str
    positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    #: Default: whether they are about the typical interval (the label's row).
    of_row: ClassVar[bool] = True

    @property
    def who(self) -> str:
        """The label as titles name it."""
        return words.subject(self.label)

    def finding(
        self,
        rule: str,
        severity: str,
        title: str,
        advice: str,
        explained_ns: float = 0.0,
        *,
        positions: np.ndarray | None = None,
        about_row: bool | None = None,
        **values: Any,
    ) -> Finding:
        """A finding about the label; `values` are its evidence, `positions` its intervals if they differ from the label's."""
        return Finding(
            rule, severity, self.label, title, evidence(**values), advice, self.site,
            self.positions if positions is None else positions,
            float(explained_ns),
            self.of_row if about_row is None else about_row,
        )  # fmt: skip


@dataclass(frozen=True)
class CouldNotLook:
    """A rule could not check; that is different from not finding anything."""

    rule: str
    reason: str


class Rule(NamedTuple):
    """An entry of the registry.  `find` reads only what Facts holds, that is, the Analysis."""

    name: str
    find: Callable[[Facts], Iterable[Finding | CouldNotLook]]


def evidence(**values: Any) -> dict[str, Any]:
    """Evidence as plain Python values (JSON), without None and empty values."""
    out = {}
    for key, value in values.items():
        if value is None or (isinstance(value, (str, list, dict)) and not value):
            continue
        if isinstance(value, np.integer):
            value = int(value)
        elif isinstance(value, (float, np.floating)):
            value = round(float(value)) if key.endswith("_ns") else round(float(value), 4)
        out[key] = value
    return out
