"""Two measurements as one of two targets, so that the code that compares A and B in one run also
compares runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from nsysalign.errors import UsageError
from nsysalign.measure.result import Measure

FORMAT, VERSION = "nsysalign-measure-diff", 1
#: What must be equal for a change to be due to the code.
MACHINE = (("device", "GPU"), ("torch", "torch"), ("cuda", "CUDA"))


@dataclass(frozen=True)
class Change:
    """One batch in one mode.  Shares; `verdict` is slower, faster, same or unclear."""

    batch: int | None
    mode: str
    l2: str
    a_ns: float
    b_ns: float
    ratio: float
    low: float
    high: float
    verdict: str


def merged(a: Measure, b: Measure, names: tuple[str, str]) -> Measure:
    """A measurement whose first target is `a`'s and whose second is `b`'s.  UsageError where one of
    them has two."""
    for side, name in ((a, names[0]), (b, names[1])):
        if len(side.targets) != 1:
            raise UsageError(
                f"{name} compares two functions already", "name measurements of one function each"
            )
    shift = 1 + max((r.number for r in a.runs), default=0)
    runs = [*a.runs, *(replace(r, number=r.number + shift, target=1) for r in b.runs)]
    blocks = [*a.blocks, *(replace(x, run=x.run + shift) for x in b.blocks)]
    profiles = [*a.profiles, *(replace(p, target=1) for p in b.profiles)]
    both = {k: list(dict.fromkeys([*a.options[k], *b.options[k]])) for k in ("modes", "l2")}
    notes = [*_remarks(a, b), *(f"A: {n}" for n in a.notes), *(f"B: {n}" for n in b.notes)]
    targets = tuple(f"{n} ({m.targets[0]})" for n, m in zip(names, (a, b), strict=True))
    return Measure(
        targets, {**a.options, **both}, a.environment, tuple(runs), tuple(blocks),
        tuple(profiles), {}, tuple(notes), a.complete and b.complete,
    )  # fmt: skip


def _remarks(a: Measure, b: Measure) -> Iterator[str]:
    """What differs apart from the code."""
    for key, name in MACHINE:
        sides = [str(m.environment.get(key, "")) or "unknown" for m in (a, b)]
        if sides[0] != sides[1]:
            yield f"{name} differs: {sides[0]} and {sides[1]}"
    if only := {p.batch for p in a.points} ^ {p.batch for p in b.points}:
        yield f"{len(only)} batch sizes were measured in one of them only, and are not compared"


def changes(both: Measure, threshold: float) -> list[Change]:
    """All changes between what both measured.  Same: the whole interval is nearer to zero than
    `threshold`; slower or faster: it excludes zero, and the change is at least the threshold."""
    out = []
    for key, d in both.differences():
        small = max(abs(d.low), abs(d.high)) if d.verdict == "unclear" else abs(d.ratio)
        verdict = "same" if small < threshold else d.verdict
        values = [both.estimates[key._replace(target=t)].value_ns for t in (0, 1)]
        out.append(Change(*key[1:], *values, d.ratio, d.low, d.high, verdict))
    return out


def document(both: Measure, rows: list[Change], threshold: float) -> dict[str, Any]:
    """`nsysalign diff --json` of two measurements."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "before": both.targets[0],
        "after": both.targets[1],
        "threshold": threshold,
        "remarks": list(both.notes),
        "changes": [asdict(c) for c in rows],
    }
