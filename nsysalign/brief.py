"""The answer as one JSON object of at most 2,000 bytes, for agents and CI (`--brief`).

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
from nsysalign.verdicts import CANNOT_TELL, VERDICTS

if TYPE_CHECKING:
    from nsysalign.answer import Answer
    from nsysalign.unprofiled_run import UnprofiledRun

SCHEMA, MOST_BYTES = "nsysalign-answer/1", 2_000
#: Verdicts of commands that answer another question.
OTHERS = {
    "check": ("ok", "wrong"),
    "diff": ("slower", "faster", "same", "unclear"),
    "measure": ("stable", "noisy", "no_interval", "slower", "faster", "unclear", "mixed"),
}
_LABELS, _FIXES, _NAME, _SENTENCE = 5, 3, 60, 400


@dataclass(frozen=True)
class Short:
    """The answer of `check`, `diff` and `measure`."""

    schema: str
    command: str
    verdict: str
    sentence: str
    next: str  # a command that shows more


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
class Brief(Short):
    interval: str  # the interval that proves it, '' for none
    wrong: tuple[str, ...]  # labels whose timing is not what is meant
    fixes: tuple[BriefFix, ...]
    labels: tuple[BriefLabel, ...]
    remarks: tuple[str, ...]
    trust: str
    omitted: Omitted = Omitted(0, 0, 0)


def of_answer(said: Answer, command: str, run: str) -> Brief:
    """`run`: the path that `show` takes."""
    proof, shown = said.proof, f"nsysalign report {shlex.quote(run)}"
    if proof:
        chosen = f" --label {shlex.quote(proof.label)}" if proof.kind != "run" else ""
        shown = f"nsysalign show {shlex.quote(run)}{chosen}"
    fixes = [
        BriefFix(f.purpose, cut(f.sentence, 160), cut("".join(f.code[:1]), 160)) for f in said.fixes
    ]
    labels = [
        BriefLabel(
            cut(row.label), row.verdict, row.words, row.count, row.elapsed_ns,
            row.columns_ns["kernel"], row.saving_ns,
        )
        for row in said.labels
    ]  # fmt: skip
    return _fitted(
        Brief(
            SCHEMA,
            command,
            said.verdict,
            cut(said.sentence, _SENTENCE),
            next=shown,
            interval=cut(proof.name) if proof else "",
            wrong=tuple(map(cut, said.wrong)),
            fixes=tuple(fixes),
            labels=tuple(labels),
            remarks=tuple(cut(text, 120) for text in (*said.remarks, said.lost) if text),
            trust=cut(said.trust),
        )
    )


def of_unprofiled(run: UnprofiledRun, command: str, next_command: str) -> Brief:
    """The same of a run without nsys: no parts, so no kernel time and no saving."""
    from nsysalign.show import unprofiled_run as shown

    rows = [row for _, row in shown.by_weight(run.labels).iterrows()]
    words = [row["verdict"] for row in rows]
    verdict = "cpu_bound" if "cpu_bound" in words else next(iter(words), CANNOT_TELL)
    floor = "" if run.floor_ns is None else f", an empty pair reads {duration(run.floor_ns)}"
    labels = [
        BriefLabel(
            cut(row["label"]), row["verdict"], shown.words(row), int(row["count"]),
            round(row["steady_median_ns"]), None, None,
        )
        for row in rows
    ]  # fmt: skip
    return _fitted(
        Brief(
            SCHEMA,
            command,
            verdict,
            cut(" ".join(shown.sentences(run)), _SENTENCE),
            next=next_command,
            interval="",
            wrong=(),
            fixes=(),
            labels=tuple(labels),
            remarks=tuple(cut(note, 120) for note in run.notes[:3]),
            trust=cut(f"{run.device or 'no GPU named'}, not profiled{floor}"),
        )
    )


def short(command: str, verdict: str, sentence: str, next_command: str) -> str:
    """One line of JSON for a command of OTHERS."""
    assert verdict in OTHERS[command]
    shown = next_command if len(next_command.encode()) <= 1_000 else "nsysalign --help"
    return text(Short(SCHEMA, command, verdict, cut(sentence, _SENTENCE), shown))


def text(brief: Short) -> str:
    """One line of JSON; what would drive a terminal (`next` has names as they are) is escaped."""
    line = json.dumps(asdict(brief), ensure_ascii=False, separators=(",", ":"))
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in line)


def schema() -> dict[str, Any]:
    """The JSON Schema of what `--brief` prints."""
    kinds = [
        (Brief, VERDICTS),
        (Short, list(dict.fromkeys(w for words in OTHERS.values() for w in words))),
    ]
    found = []
    for kind, verdicts in kinds:
        found.append(schema_of(kind))
        found[-1]["properties"]["schema"] = {"const": SCHEMA}
        found[-1]["properties"]["verdict"] = {"enum": list(verdicts)}
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": SCHEMA, "oneOf": found}


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
    every = {name: len(getattr(brief, name)) for name in ("labels", "fixes", "wrong")}
    most = {"labels": _LABELS, "fixes": _FIXES, "wrong": _LABELS}
    counts = {"remarks": len(brief.remarks)} | {n: min(every[n], most[n]) for n in every}
    # of a path this long: the command without it
    further = [("remarks", 0), ("labels", 1), ("wrong", 0), ("fixes", 0), ("next", 0)]
    while True:
        kept = {name: getattr(brief, name)[:count] for name, count in counts.items()}
        omitted = Omitted(**{name: every[name] - len(kept[name]) for name in every})
        fitted = replace(brief, **kept, omitted=omitted)
        name = next((n for n, least in further if counts.get(n, 1) > least), "")
        if len(text(fitted).encode()) <= MOST_BYTES or not name:
            return fitted
        if name == "next":
            return replace(fitted, next="nsysalign --help")
        counts[name] -= 1


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
