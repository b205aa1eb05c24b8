"""A measurement as one JSON object of at most 2,000 bytes, for agents and CI (`--brief`).

Its JSON Schema: `python -m nsysalign.addons.measure.brief > docs/measure.schema.json`.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nsysalign.addons.measure import screen
from nsysalign.brief import MOST_BYTES, Short, cut, schema_of, text

if TYPE_CHECKING:
    from nsysalign.addons.measure.result import Measure

SCHEMA = "nsysalign-measure-answer/1"
#: Of one function: its interval is narrow, is wide, or there is none (one process).  Of two: B
#: against A; "mixed" where batches differ.
VERDICTS = ("stable", "noisy", "no_interval", "slower", "faster", "unclear", "mixed")
#: Half an interval of this share of the value is still stable.
STABLE = 0.02
_POINTS, _NOTES = 6, 4


@dataclass(frozen=True)
class BriefPoint:
    """A batch of a function; `low` and `high` are 95 % intervals, null for one process."""

    target: str
    batch: int | None
    latency_ns: int | None
    latency_low_ns: int | None
    latency_high_ns: int | None
    per_second: float | None
    marks: str


@dataclass(frozen=True)
class Brief(Short):
    ways_ns: dict[str, int]  # of the advised batch, L2 warm: what each way of timing prints
    points: tuple[BriefPoint, ...]
    notes: tuple[str, ...]
    trust: str
    omitted: int  # points that did not fit


def brief(measure: Measure) -> Brief:
    """The answer; points with a mark come first, those that do not fit are counted."""
    shown = measure.advised or measure.points[0]
    report, points = f"nsysalign report {shlex.quote(str(measure.folder))}", []
    for p in sorted(measure.points, key=lambda p: (p is not shown, not p.marks)):
        known = p.latency and math.isfinite(p.latency.high_ns)
        points.append(
            BriefPoint(
                cut(measure.targets[p.target]), p.batch,
                round(p.latency.value_ns) if p.latency else None,
                round(p.latency.low_ns) if known else None,
                round(p.latency.high_ns) if known else None,
                float(f"{p.rate:.4g}") if p.rate else None, p.marks,
            )
        )  # fmt: skip
    made = Brief(
        schema=SCHEMA,
        command="measure",
        verdict=_verdict(measure),
        sentence=cut(screen.headline(measure), 400),
        ways_ns={r.way: round(r.value_ns) for r in measure.rungs(shown, "warm")},
        points=tuple(points[:_POINTS]),
        notes=tuple(cut(note, 120) for note in measure.notes[:_NOTES]),
        trust=cut(screen.environment(measure), 100),
        next=report if len(report.encode()) <= 400 else "nsysalign --help",
        omitted=max(0, len(points) - _POINTS),
    )
    while len(text(made).encode()) > MOST_BYTES and (made.notes or len(made.points) > 1):
        if made.notes:
            made = replace(made, notes=made.notes[:-1])
        else:
            made = replace(made, points=made.points[:-1], omitted=made.omitted + 1)
    return made


def _verdict(measure: Measure) -> str:
    if len(measure.targets) > 1:
        found = {c.verdict for c in screen.headline_changes(measure)}
        return found.pop() if len(found) == 1 else "mixed" if found else "unclear"
    shown = measure.advised or measure.points[0]
    share = next((e.share for e in (shown.latency, shown.steady) if e), math.inf)
    return "no_interval" if math.isinf(share) else "stable" if share <= STABLE else "noisy"


def schema() -> dict[str, Any]:
    """The JSON Schema of `Brief`."""
    made = schema_of(Brief)
    made["properties"]["schema"] = {"const": SCHEMA}
    made["properties"]["verdict"] = {"enum": list(VERDICTS)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **made}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
