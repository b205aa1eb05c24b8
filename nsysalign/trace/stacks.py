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
        header, *items = [json_or_none(line) for line in lines_of(path)] or [None]
    except EventLogError as error:
        return None, [error.message]
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        note = f"{path.name} holds no Python stacks (no header of {FORMAT}): it was not used"
        return None, [note]
    known: dict[int, tuple[Frame, ...]] = {}
    samples: list[tuple[int, int, int]] = []  # process, time, stack
    others, bad = 0, 0
    for item in items:
        line = item if isinstance(item, dict) else {}
        frames, process = line.get("frames"), line.get("process")
        times, stacks = line.get("t_ns"), line.get("stack_of")
        if isinstance(frames, list) and is_natural(line.get("stack")):
            known[line["stack"]] = tuple(f for raw in frames if (f := _frame(raw)) is not None)
        elif not isinstance(times, list) or not isinstance(stacks, list):
            bad += 1
        elif line.get("main") is not True:
            others += len(times)
        elif is_natural(process):
            both = zip(times, stacks, strict=False)
            samples += [(process, t, s) for t, s in both if is_natural(t) and is_natural(s)]  # type: ignore[misc]
    number = {stack: n for n, stack in enumerate(known)}
    samples = sorted((p, t, number[s]) for p, t, s in samples if s in number)
    table = np.array(samples, dtype=np.int64).reshape(-1, 3)
    notes = [f"{path.name}: {bad} lines could not be used (cut or malformed)"] if bad > 1 else []
    process, t_ns, stack = table.T
    return Stacks(process, t_ns, stack, tuple(known.values()), others), notes


def _frame(raw: Any) -> Frame | None:
    if not isinstance(raw, list) or len(raw) != 4:
        return None
    function, file, line, own = raw
    if not (isinstance(function, str) and isinstance(file, str) and is_natural(line)):
        return None
    return Frame(function[:200], short_path(file[:400]), line, own == 1)
