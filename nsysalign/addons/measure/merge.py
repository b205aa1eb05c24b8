"""Two measurements as one of two targets, so that the code that compares A and B in one run also
compares runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nsysalign.addons.measure.result import Change, Measure
from nsysalign.errors import UsageError

FORMAT, VERSION = "nsysalign-measure-diff", 1
#: What must be equal for a change to be due to the code.
MACHINE = (("device", "GPU"), ("torch", "torch"), ("cuda", "CUDA"))


def merged(a: Measure, b: Measure, names: tuple[str, str]) -> Measure:
    """A measurement whose first target is `a`'s and whose second is `b`'s.  UsageError where one of
    them has two."""
    for side, name in ((a, names[0]), (b, names[1])):
        if len(side.targets) != 1:
            raise UsageError(
                f"{name} compares two functions already", "name measurements of one function each"
            )
    shift = 1 + max((r.number for r in a.runs), default=0)
    modes = list(dict.fromkeys([*a.options["modes"], *b.options["modes"]]))
    return replace(
        a,
        targets=tuple(f"{n} ({m.targets[0]})" for n, m in zip(names, (a, b), strict=True)),
        options={**a.options, "modes": modes},
        runs=(*a.runs, *(replace(r, number=r.number + shift, target=1) for r in b.runs)),
        blocks=(*a.blocks, *(replace(x, run=x.run + shift) for x in b.blocks)),
        profiles=(*a.profiles, *(replace(p, target=1) for p in b.profiles)),
        search={},
        notes=(*_remarks(a, b), *(f"A: {n}" for n in a.notes), *(f"B: {n}" for n in b.notes)),
        complete=a.complete and b.complete,
    )


def _remarks(a: Measure, b: Measure) -> Iterator[str]:
    """What differs apart from the code."""
    for key, name in MACHINE:
        sides = [str(m.environment.get(key, "")) or "unknown" for m in (a, b)]
        if sides[0] != sides[1]:
            yield f"{name} differs: {sides[0]} and {sides[1]}"
    if only := {p.batch for p in a.points} ^ {p.batch for p in b.points}:
        yield f"{len(only)} batch sizes were measured in one of them only, and are not compared"


def document(both: Measure, rows: list[Change], threshold: float) -> dict[str, Any]:
    """`nsysalign diff --json` of two measurements."""
    sides = {"before": both.targets[0], "after": both.targets[1], "threshold": threshold}
    changes = [c._asdict() for c in rows]
    head = {"format": FORMAT, "version": VERSION}
    return head | sides | {"remarks": list(both.notes), "changes": changes}
