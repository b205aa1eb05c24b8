"""What the doctor says about one thing."""

from __future__ import annotations

from dataclasses import dataclass

OK, MISSING, WARNING = "ok", "missing", "warning"


@dataclass(frozen=True)
class Row:
    """One thing that was checked.  `cost` and `fix` are empty if all is well."""

    what: str
    state: str  # ok, warning or missing
    found: str
    cost: str = ""
    fix: str = ""
