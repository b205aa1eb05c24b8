"""Whether what measures time is still what it was when the program began, asked once, at its end.

Only names are compared: what a program puts in the place of `elapsed_time` may well call ours, and
then return another number.
"""

from __future__ import annotations

from typing import Any

#: How a note about it begins; trace.eventlog and the checks know it by that.
REPLACED = "the program replaced "
_kept: list[tuple[Any, str, str, Any]] = []


def keep(owner: Any, where: str, *names: str) -> None:
    """Remember these attributes of a module or class, where it has them."""
    own = vars(owner)
    _kept.extend((owner, where, name, own[name]) for name in names if name in own)


def replaced() -> list[str]:
    """Notes on those that are something else now; a clock may be the builtin again, which ours
    stood for."""
    return [
        f"{REPLACED}{where}.{name}"
        for owner, where, name, own in _kept
        for now in (vars(owner).get(name),)
        if now is not own and now is not getattr(own, "_builtin", own)
    ]
