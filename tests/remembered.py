"""Analyses that commands make, kept: the same files are analysed once for all tests that ask what a command does with
an analysis, and not whether it is right."""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from nsysalign.model import Analysis
from nsysalign.rundir import Inputs

#: Of the JSON files of a run directory what commands write, and no analysis reads.
WRITTEN = {"answer.json"}


def remembering(analyze_inputs: Callable[..., Analysis], room: Path) -> Callable[..., Analysis]:
    """`engine.analyze_inputs`, which keeps in `room` what it returns: for the same contents and the same choices."""
    room.mkdir(parents=True, exist_ok=True)

    def remembered(inputs: Inputs, **choices: Any) -> Analysis:
        key = _key(inputs, {**choices, "progress": None})
        kept = room / f"{key}.pickle"
        if key and kept.exists():
            return pickle.loads(kept.read_bytes())  # anew: nobody sees what another changed
        analysis = analyze_inputs(inputs, **choices)
        if key:
            unfinished = room / f"{key}.{os.getpid()}"
            unfinished.write_bytes(pickle.dumps(analysis))
            unfinished.rename(kept)
        return analysis

    return remembered


def _key(inputs: Inputs, choices: dict[str, Any]) -> str:
    """Names and contents of all that is read; "" where something is no plain file, which is for the analysis to say."""
    digest = hashlib.sha256(repr(sorted(choices.items())).encode())
    given = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    digest.update(repr([(name, bool(value)) for name, value in given.items()]).encode())
    for path in _files(inputs):
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                return ""
            content = path.read_bytes()
        except OSError:
            return ""
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _files(inputs: Inputs) -> Iterator[Path]:
    yield inputs.trace
    yield from sorted(inputs.trace.parent.glob(f"{inputs.trace.name}-*"))  # SQLite's own
    yield from (*inputs.events, *inputs.baseline)
    yield from (path for path in (inputs.clocks, inputs.stacks) if path)
    for paths in inputs.of_addons.values():
        yield from paths
    if inputs.home:
        yield from sorted(inputs.home.rglob("*.nsam"))  # marks
        yield from (p for p in sorted(inputs.home.glob("*.json")) if p.name not in WRITTEN)
