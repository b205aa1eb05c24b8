"""What was sampled during the run, as tables: the GPU's clocks (`clocks.jsonl`, written by
record/clock_sampler.py) and Python stacks (`stacks.jsonl`, record/python_samples.py).

A truncated last line is normal (a killed run); a file of another kind yields a note and never stops
the analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.errors import EventLogError
from nsysalign.paths import short_path
from nsysalign.untrusted import is_natural, json_or_none, lines_of

CLOCKS, STACKS = "nsysalign-clocks", "nsysalign-stacks"


class Frame(NamedTuple):
    """A function that was running, and the line in it.  `of_program`: code of the program itself, not of a
    library."""

    function: str
    file: str
    line: int
    of_program: bool


@dataclass(frozen=True)
class Stacks:
    """Samples of main threads, sorted by process and time; `frames` of each stack, the innermost
    first.

    `process`: nsys globalPid, `t_ns` on the trace's clock, `stack`: position in `frames` (int64
    arrays of equal length).
    """

    process: np.ndarray
    t_ns: np.ndarray
    stack: np.ndarray
    frames: tuple[tuple[Frame, ...], ...]


def read_clock_samples(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Samples with the columns of frames.CLOCK_SAMPLES, sorted by time, and notes."""
    header, rows, notes = _read(path, CLOCKS, "clock samples")
    named = header.get("columns")
    columns = [str(name) for name in named] if isinstance(named, list) else []
    whole = [row for row in rows if isinstance(row, list) and len(row) == len(columns)]
    values = [dict(zip(columns, row, strict=True)) for row in whole]
    samples = pd.DataFrame(values, columns=frames.CLOCK_SAMPLES.names, dtype=object)
    samples = samples.map(lambda value: value if is_natural(value) else -1).astype("int64")
    samples = samples[(samples["monotonic_ns"] >= 0) & (samples["device"] >= 0)]
    notes += _unusable(path, len(rows) - len(samples))
    if header.get("order") == "assumed" and samples["device"].nunique() > 1:
        notes.append(
            "the order of the GPUs in the clock samples is assumed: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
        )
    samples = samples.sort_values(["device", "monotonic_ns"], ignore_index=True)
    return frames.check(samples, frames.CLOCK_SAMPLES), notes


def read_stacks(path: Path) -> tuple[Stacks | None, list[str]]:
    """Return (the samples of main threads, None if the file cannot be used; notes).

    Lines of the file:
        {"stack": 4, "frames": [["step", "train.py", 12, 1], ...]}                 stack 4, the innermost frame first
        {"process": 77, "main": true, "t_ns": [1000, 2000], "stack_of": [4, 4]}    two samples of it
    """
    header, items, notes = _read(path, STACKS, "Python stacks")
    if not header:
        return None, notes
    frames_of_stack: dict[int, tuple[Frame, ...]] = {}
    samples = list[tuple[int, int, int]]()  # process, time (ns), stack
    unusable = 0
    for item in items:
        line = item if isinstance(item, dict) else {}
        process, entries = line.get("process"), line.get("frames")
        times, stacks = line.get("t_ns"), line.get("stack_of")
        if isinstance(entries, list) and is_natural(line.get("stack")):
            usable = filter(None, map(_frame, entries))
            frames_of_stack[line["stack"]] = tuple(usable)
        elif not isinstance(times, list) or not isinstance(stacks, list):
            unusable += 1
        elif line.get("main") is True and is_natural(process):
            for t_ns, stack in zip(times, stacks, strict=False):
                if is_natural(t_ns) and is_natural(stack):
                    samples.append((process, t_ns, stack))  # type: ignore[arg-type]
    position = {stack: number for number, stack in enumerate(frames_of_stack)}
    known = sorted((process, t, position[s]) for process, t, s in samples if s in position)
    rows = np.array(known, dtype=np.int64).reshape(-1, 3)
    stacks_read = Stacks(rows[:, 0], rows[:, 1], rows[:, 2], tuple(frames_of_stack.values()))
    return stacks_read, notes + _unusable(path, unusable)


def _read(path: Path, form: str, subject: str) -> tuple[dict[str, Any], list[Any], list[str]]:
    """(header, lines, notes); ({}, [], why) for a file that cannot be used."""
    try:
        header, *items = [json_or_none(line) for line in lines_of(path)] or [None]
    except EventLogError as error:
        return {}, [], [error.message]
    if isinstance(header, dict) and header.get("format") == form:
        return header, items, []
    return {}, [], [f"{path.name} holds no {subject} (no header of {form}): it was not used"]


def _unusable(path: Path, count: int) -> list[str]:
    """A note on lines, if it is not only the last that is cut."""
    return [f"{path.name}: {count} lines could not be used (cut or malformed)"] * (count > 1)


def _frame(raw: Any) -> Frame | None:
    if not isinstance(raw, list) or len(raw) != 4:
        return None
    function, file, line, of_program = raw
    if not (isinstance(function, str) and isinstance(file, str) and is_natural(line)):
        return None
    return Frame(function[:200], short_path(file[:400]), line, of_program == 1)
