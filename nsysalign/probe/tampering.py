"""Whether what measures time is still what it was when the program began: asked at its end, and of
`elapsed_time` whenever an event is recorded, for it may be put back before the end.

Only names are compared: what a program puts in the place of `elapsed_time` may well call ours, and
then return another number.
"""

from __future__ import annotations

#: How a note about it begins; the checks know it by that.
REPLACED = "the program replaced "
_seen: dict[str, None] = {}
_kept: list[tuple[object, str, str, object]] = []


def keep(owner: object, where: str, *names: str) -> None:
    """Remember these attributes of a module or class, where it has them."""
    attributes = vars(owner)
    _kept.extend((owner, where, name, attributes[name]) for name in names if name in attributes)


def look() -> None:
    """Remember what is something else now."""
    for owner, where, name, kept in _kept:
        now = vars(owner).get(name)
        # a clock may be the builtin again, which ours stood for
        if now is not kept and now is not getattr(kept, "builtin", kept):
            _seen[f"{REPLACED}{where}.{name}"] = None


def replaced() -> list[str]:
    """Notes on those that were something else at a look, or are now."""
    look()
    return list(_seen)
