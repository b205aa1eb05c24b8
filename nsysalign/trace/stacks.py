"""Sampled Python stacks (`stacks.jsonl`, written by record/python_samples.py) as tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nsysalign.errors import EventLogError
from nsysalign.paths import short_path
from nsysalign.trace.lines import is_natural, json_or_none, lines_of

FORMAT = "nsysalign-stacks"


class Frame(NamedTuple):
    """A function that was running, and the line in it.  `own`: code of the program itself, not of a
    library."""

    function: str
    file: str
    line: int
    own: bool


@dataclass(frozen=True)
class Stacks:
    """Samples of main threads, sorted by process and time; `frames` of each stack, the innermost
    first.

    `process`: nsys globalPid, `t_ns` on the trace's clock, `stack`: position in `frames` (int64
    arrays of equal length). `others` counts the samples of other threads: nsys does not identify
    these threads.
    """

    process: np.ndarray
    t_ns: np.ndarray
    stack: np.ndarray
    frames: tuple[tuple[Frame, ...], ...]
    others: int


def read_stacks(path: Path) -> tuple[Stacks | None, list[str]]:
    """The samples, and notes.  A file of another kind yields a note and never stops the
    analysis."""
    try:
        lines = iter(lines_of(path))
        header = json_or_none(next(lines, ""))
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            return None, [
                f"{path.name} holds no Python stacks (no header of {FORMAT}): it was not used"
            ]
        return _stacks([json_or_none(line) for line in lines], path.name)
    except EventLogError as error:
        return None, [error.message]


def _stacks(items: list[Any], name: str) -> tuple[Stacks, list[str]]:
    known: dict[int, tuple[Frame, ...]] = {}
    columns: list[tuple[int, int, int]] = []
    others, bad = 0, 0
    for item in items:
        if not isinstance(item, dict):
            bad += 1
        elif isinstance(item.get("frames"), list) and is_natural(item.get("stack")):
            known[item["stack"]] = tuple(
                f for raw in item["frames"] if (f := _frame(raw)) is not None
            )
        elif isinstance(item.get("t_ns"), list) and isinstance(item.get("stack_of"), list):
            if item.get("main") is not True:
                others += len(item["t_ns"])
                continue
            columns += _samples(item)
        else:
            bad += 1
    table = np.array(columns, dtype=np.int64).reshape(-1, 3)
    number = {stack: at for at, stack in enumerate(known)}
    at = np.array([number.get(s, -1) for s in table[:, 2].tolist()], dtype=np.int64)
    table, at = table[at >= 0], at[at >= 0]
    order = np.lexsort((table[:, 1], table[:, 0]))
    notes = [f"{name}: {bad} lines could not be used (cut or malformed)"] if bad > 1 else []
    return Stacks(table[order, 0], table[order, 1], at[order], tuple(known.values()), others), notes


def _samples(item: dict[str, Any]) -> list[tuple[int, int, int]]:
    """(process, time, stack) of one line; values that are not numbers are left out."""
    process = item.get("process")
    if not is_natural(process):
        return []
    both = zip(item["t_ns"], item["stack_of"], strict=False)
    return [(int(process), t, s) for t, s in both if is_natural(t) and is_natural(s)]  # type: ignore[arg-type]


def _frame(raw: Any) -> Frame | None:
    if not isinstance(raw, list) or len(raw) != 4:
        return None
    function, file, line, own = raw
    if not (isinstance(function, str) and isinstance(file, str) and is_natural(line)):
        return None
    return Frame(function[:200], short_path(file[:400]), line, own == 1)
