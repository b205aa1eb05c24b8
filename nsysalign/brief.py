"""The first screen as one JSON object of at most 2,000 bytes, for agents and CI (`--brief`).

Its JSON Schema is made from these dataclasses: `python -m nsysalign.brief > docs/answer.schema.json`.
"""

from __future__ import annotations

import json
import shlex
import types
import typing
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from nsysalign.text import duration, safe_text
from nsysalign.verdicts import CANNOT_TELL, VERDICTS, First

if TYPE_CHECKING:
    from nsysalign.unprofiled_run import UnprofiledRun

SCHEMA, MOST_BYTES = "nsysalign-answer/1", 2_000
_LABELS, _FIXES, _NAME, _SENTENCE = 5, 3, 60, 400


@dataclass(frozen=True)
class BriefLabel:
    label: str
    verdict: str
    words: str
    n: int
    elapsed_ns: int
    kernel_ns: int | None  # null without nsys
    saving_ns: int | None  # over all its intervals, at most


@dataclass(frozen=True)
class BriefFix:
    purpose: str
    sentence: str
    code: str


@dataclass(frozen=True)
class Omitted:
    """How many did not fit."""

    labels: int
    fixes: int
    wrong: int


@dataclass(frozen=True)
class Brief:
    schema: str
    command: str
    verdict: str
    sentence: str
    interval: str  # the interval that proves it, '' for none
    wrong: tuple[str, ...]  # labels whose timing is not what is meant
    fixes: tuple[BriefFix, ...]
    labels: tuple[BriefLabel, ...]
    remarks: tuple[str, ...]
    trust: str
    next: str  # a command that shows more
    omitted: Omitted


def of_screen(first: First, command: str, run: str) -> Brief:
    """`run`: the path that `show` takes."""
    labels = [
        BriefLabel(
            cut(row.label), row.verdict, row.words, row.count, row.elapsed_ns, row.columns_ns["kernel"], row.saving_ns,
        )
        for row in first.labels
    ]  # fmt: skip
    fixes = [
        BriefFix(fix.purpose, cut(fix.sentence, 160), cut(fix.code[0] if fix.code else "", 160))
        for fix in first.fixes
    ]
    timed = first.proof is not None and first.proof.kind != "run"
    chosen = f" --label {shlex.quote(first.proof.label)}" if timed else ""
    brief = Brief(
        schema=SCHEMA,
        command=command,
        verdict=first.verdict,
        sentence=cut(first.sentence, _SENTENCE),
        interval=cut(first.proof.name) if first.proof else "",
        wrong=tuple(map(cut, first.wrong[:_LABELS])),
        fixes=tuple(fixes[:_FIXES]),
        labels=tuple(labels[:_LABELS]),
        remarks=tuple(
            cut(text, 120) for text in (*first.remarks, first.unplaced) if text
        ),
        trust=cut(first.trust),
        next=f"nsysalign show {shlex.quote(run)}{chosen}"
        if first.proof
        else f"nsysalign report {shlex.quote(run)}",
        omitted=Omitted(
            max(len(labels) - _LABELS, 0), max(len(fixes) - _FIXES, 0), max(len(first.wrong) - _LABELS, 0)
        ),
    )  # fmt: skip
    return _fitted(brief)


def of_unprofiled(run: UnprofiledRun, command: str, next_command: str) -> Brief:
    """The same of a run without nsys: no parts, so no kernel time and no saving."""
    from nsysalign.show import unprofiled_run as shown

    rows = [row for _, row in shown.by_weight(run.labels).iterrows()]
    lead = next((row for row in rows if row["verdict"] == "cpu_bound"), rows[0] if rows else None)
    labels = tuple(
        BriefLabel(
            cut(row["label"]), row["verdict"], shown.words(row), int(row["count"]), round(row["steady_median_ns"]), None, None,
        )
        for row in rows[:_LABELS]
    )  # fmt: skip
    floor = "" if run.floor_ns is None else f", an empty pair reads {duration(run.floor_ns)}"
    brief = Brief(
        schema=SCHEMA,
        command=command,
        verdict=CANNOT_TELL if lead is None else str(lead["verdict"]),
        sentence=cut(" ".join(shown.sentences(run)), _SENTENCE),
        interval="",
        wrong=(),
        fixes=(),
        labels=labels,
        remarks=tuple(cut(note, 120) for note in run.notes[:3]),
        trust=cut(f"{run.device or 'no GPU named'}, not profiled{floor}"),
        next=next_command,
        omitted=Omitted(max(len(rows) - _LABELS, 0), 0, 0),
    )
    return _fitted(brief)


def text(brief: Brief) -> str:
    """One line of JSON."""
    return json.dumps(asdict(brief), ensure_ascii=False, separators=(",", ":"))


def schema() -> dict[str, Any]:
    """The JSON Schema of `Brief`."""
    made = schema_of(Brief)
    made["properties"]["schema"] = {"const": SCHEMA}
    made["properties"]["verdict"] = {"enum": list(VERDICTS)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **made}


def schema_of(kind: Any) -> dict[str, Any]:
    """Of a dataclass, or of the type of a field."""
    plain = {str: "string", int: "integer", float: "number", type(None): "null"}
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {
            "type": "object",
            "properties": {field.name: schema_of(hints[field.name]) for field in fields(kind)},
            "required": [field.name for field in fields(kind)],
            "additionalProperties": False,
        }
    if typing.get_origin(kind) is tuple:
        return {"type": "array", "items": schema_of(typing.get_args(kind)[0])}
    if typing.get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": schema_of(typing.get_args(kind)[1])}
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return {"type": [plain[one] for one in typing.get_args(kind)]}
    return {"type": plain[kind]}


def cut(text: object, most: int = _NAME) -> str:
    """At most so many bytes, whole characters."""
    encoded = safe_text(text).encode()
    if len(encoded) <= most:
        return encoded.decode()
    return encoded[: most - 3].decode(errors="ignore") + "…"


def _fitted(brief: Brief) -> Brief:
    """Within 2,000 bytes: remarks go first, then labels, wrong timings and fixes from their ends."""
    while len(text(brief).encode()) > MOST_BYTES:
        omitted = brief.omitted
        if brief.remarks:
            brief = replace(brief, remarks=brief.remarks[:-1])
        elif len(brief.labels) > 1:
            omitted = replace(omitted, labels=omitted.labels + 1)
            brief = replace(brief, labels=brief.labels[:-1], omitted=omitted)
        elif brief.wrong:
            omitted = replace(omitted, wrong=omitted.wrong + 1)
            brief = replace(brief, wrong=brief.wrong[:-1], omitted=omitted)
        elif brief.fixes:
            omitted = replace(omitted, fixes=omitted.fixes + 1)
            brief = replace(brief, fixes=brief.fixes[:-1], omitted=omitted)
        elif len(brief.next) > _SENTENCE:  # a path this long: the command without it
            brief = replace(brief, next="nsysalign --help")
        else:
            break
    return brief


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
