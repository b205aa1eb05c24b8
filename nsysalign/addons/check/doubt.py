"""What a check returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FOUND, NOTE = "found", "note"


@dataclass(frozen=True)
class Doubt:
    """One reason why a label's numbers are not what they seem.

    `level`: "found" fails the check; "note" is worth knowing, and may well be meant.  `measured_ns`
    and `right_ns` are of the interval that is quoted, None where there is no better number.
    """

    check: str
    level: str
    label: str
    site: str
    title: str
    intervals: tuple[str, ...]  # names of those that show it
    of: int  # intervals of the label
    quoted: str = ""  # name of the one whose numbers these are
    measured_ns: int | None = None
    right_ns: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    bound: str = ""  # "at least " where `right_ns` is one

    @property
    def worth_ns(self) -> int | None:
        """How far the quoted interval is off."""
        if self.measured_ns is None or self.right_ns is None:
            return None
        return self.right_ns - self.measured_ns

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "worth_ns": self.worth_ns, "evidence": dict(self.evidence)}
