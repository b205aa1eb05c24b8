"""The answer as one line of JSON of at most 2,000 bytes, for agents and CI (`--brief`): its fields
and words are those of docs/answer.schema.json."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from nsysalign.explain.verdict import CANNOT_TELL, CPU, DOUBTFUL, SIGNS, WRONG
from nsysalign.text import safe_text

if TYPE_CHECKING:
    from nsysalign.answer import Answer, Finding, Fix, LabelRow
    from nsysalign.unprofiled_run import UnprofiledRun

SCHEMA, MOST_BYTES = "nsysalign-answer/3", 2_000
_LABEL = ("label", "verdict", "words", "n", "elapsed_ns", "kernel_ns", "saving_ns", "groups")
_GROUP = ("n", "what", "interval", "elapsed_ns", "words")
#: Groups of a label.
_MOST_GROUPS = 4
_MOST = {"labels": 8, "fixes": 3, "wrong": 5, "doubtful": 5, "findings": 6}
#: What leaves where it does not fit, from its end, down to so many.
_LEAVES = (
    ("remarks", 0),
    ("labels", 6),
    ("findings", 1),
    ("labels", 1),
    ("findings", 0),
    ("doubtful", 0),
    ("wrong", 0),
    ("fixes", 0),
)
_HELP = "nsysalign --help"  # where a path makes the command too long


def of_answer(said: Answer, command: str, run: str) -> str:
    """`run`: the path that `show` takes."""
    proof, shown = said.proof, f"nsysalign report {shlex.quote(run)}"
    if proof:
        chosen = f" --label {shlex.quote(proof.label)}" if proof.kind != "run" else ""
        shown = f"nsysalign show {shlex.quote(run)}{chosen}"
    labels = [
        (row.label, row.verdict, row.words, row.count, row.elapsed_ns, row.gpu_ns, row.saving_ns, _groups(row))
        for row in said.labels
    ]  # fmt: skip
    return _fitted(
        _short(command, said.verdict, said.sentence, shown),
        interval=cut(proof.name) if proof else "",
        wrong=[{"label": cut(w.label), "reason": cut(w.reason, 160)} for w in said.wrong],
        doubtful=[
            {"label": cut(row.label), "words": row.words}
            for row in said.labels
            if row.verdict == DOUBTFUL
        ],
        fixes=[*map(_fix, said.fixes)],
        labels=labels,
        findings=_findings(said),
        remarks=[cut(text, 120) for text in (*said.remarks, said.lost) if text],
        trust=cut(said.trust),
    )


def _fix(fix: Fix) -> dict[str, str]:
    """What to change.  Its code has its lines: they are to be pasted."""
    code = "\n".join(cut(line, 160) for line in fix.code.splitlines())
    return {"purpose": fix.purpose, "sentence": cut(fix.sentence, 160), "code": code}


def _findings(said: Answer) -> list[dict[str, Any]]:
    """The sentence of each other label whose timing is wrong or that has a fix, and its first fix; wrong timings first.
    What limits a label without a fix is among `labels`; a wrong timing whose fix is among `fixes` is among `wrong`."""
    about = said.proof.label if said.proof else ""
    leading = {
        finding.label: finding
        for group in said.groups
        for finding in group.findings
        if finding.severity != "info" or finding.advice
    }
    rows = [row for row in said.labels if row.label != about and row.label in leading]
    rows = [row for row in rows if leading[row.label].title == row.sentence]
    rows = [row for row in rows if row.verdict == WRONG or leading[row.label].advice]
    rows.sort(key=lambda row: row.verdict != WRONG)
    told = {fix.code for fix in said.fixes}
    findings = []
    for row in rows:
        fix = _first_fix(leading[row.label])
        if row.verdict != WRONG or fix["code"] not in told:
            sentence = cut(row.sentence, 200)
            findings.append({"label": cut(row.label), "sentence": sentence, **fix})
    return findings


def _first_fix(finding: Finding) -> dict[str, str]:
    if not finding.advice:
        return {"purpose": "", "fix": "", "code": ""}
    fix = _fix(finding.advice[0])
    return {"purpose": fix["purpose"], "fix": fix["sentence"], "code": fix["code"]}


def _groups(row: LabelRow) -> list[dict[str, Any]]:
    """The groups of a label that have a row each, the largest first."""
    rows = (
        (
            group.count,
            cut(group.name, 40),
            "#" + group.interval_name.rpartition("#")[2],
            group.elapsed_ns,
            f"{SIGNS[group.verdict]} {group.words}",
        )
        for group in row.groups[:_MOST_GROUPS]
    )
    return [dict(zip(_GROUP, values, strict=True)) for values in rows]


def of_unprofiled(run: UnprofiledRun, command: str, next_command: str) -> str:
    """The same of a run without nsys: no parts, so no kernel time and no saving."""
    from nsysalign.show import unprofiled_run as shown

    rows = [row for _, row in shown.by_weight(run.labels, run.paces).iterrows()]
    words = [row["verdict"] for row in rows]
    verdict = CPU if CPU in words else next(iter(words), CANNOT_TELL)
    labels = [
        (row["label"], row["verdict"], shown.words(row), int(row["count"]), round(row["steady_median_ns"]), None, None, [])
        for row in rows
    ]  # fmt: skip
    return _fitted(
        _short(command, verdict, " ".join(shown.sentences(run)), next_command),
        interval="",
        wrong=[],
        doubtful=[],
        fixes=[],
        labels=labels,
        findings=[],
        remarks=[cut(note, 120) for note in run.notes[:3]],
        trust=cut(shown.trust(run)),
    )


def short(command: str, verdict: str, sentence: str, next_command: str) -> str:
    """The answer of `check`, `diff` and `measure`; `next_command` shows more."""
    shown = next_command if len(next_command.encode()) <= 1_000 else _HELP
    return _line(_short(command, verdict, sentence, shown))


def _short(command: str, verdict: str, sentence: str, next_command: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "command": command,
        "verdict": verdict,
        "sentence": cut(sentence, 400),
        "next": next_command,
    }


def cut(text: object, most: int = 60) -> str:
    """At most so many bytes, whole characters."""
    encoded = safe_text(text).encode()
    if len(encoded) <= most:
        return encoded.decode()
    return encoded[: most - 3].decode(errors="ignore") + "…"


def _line(brief: dict[str, Any]) -> str:
    """What would drive a terminal (`next` has names as they are) is escaped."""
    line = json.dumps(brief, ensure_ascii=False, separators=(",", ":"))
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in line)


def _fitted(brief: dict[str, Any], **more: Any) -> str:
    """The line, with as many labels (values of `_LABEL`), fixes and remarks as fit."""
    brief |= more
    rows = ((cut(label), *values) for label, *values in brief["labels"])
    brief["labels"] = [dict(zip(_LABEL, row, strict=True)) for row in rows]
    every = {name: len(brief[name]) for name in _MOST}
    brief |= {name: brief[name][:most] for name, most in _MOST.items()}
    for name, least in _LEAVES:
        while True:
            brief["omitted"] = {n: count - len(brief[n]) for n, count in every.items()}
            line = _line(brief)
            if len(line.encode()) <= MOST_BYTES:
                return line
            if len(brief[name]) <= least:
                break
            brief[name] = brief[name][:-1]
    return _line(brief | {"next": _HELP})
