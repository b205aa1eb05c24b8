"""A measurement to share: its numbers, without the program's own texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nsysalign.measure.failures import CLASSES
from nsysalign.measure.modes import L2, NAMES
from nsysalign.measure.result import Measure
from nsysalign.private import short_path, without_paths

_WORDS = {*NAMES, *L2, *CLASSES, "memory", ""}
_ENVIRONMENT = ("device", "torch", "cuda")
_LEFT_OUT = "left out by redact"


def redacted(measure: Measure, rename: Callable[[str], str] | None = None) -> Measure:
    """The same numbers.  The texts of exceptions and notes are left out; functions keep their file's short name, or get another
    one from `rename`."""
    name = rename or short_path
    environment = {
        k: without_paths(str(v)) for k, v in measure.environment.items() if k in _ENVIRONMENT
    }
    runs = tuple(
        replace(
            run,
            failure=run.failure if run.failure in _WORDS else "error",
            message=_LEFT_OUT if run.message else "",
            unsettled=_LEFT_OUT if run.unsettled else "",
            memory=_numbers(run.memory),
            clean={"found": [], **_numbers(run.clean)},
            refused={mode: _LEFT_OUT for mode in run.refused if mode.partition("/")[0] in NAMES},
            facts=_numbers({m: f for m, f in run.facts.items() if m.partition("/")[0] in NAMES}),
        )
        for run in measure.runs
    )
    profiles = tuple(
        replace(
            p,
            run=p.run if re.fullmatch(r"profile-(default|\d+)(-[AB])?", p.run) else "",
            parts_ns=_numbers(p.parts_ns),
            problem=_LEFT_OUT if p.problem else "",
        )
        for p in measure.profiles
    )
    limited = measure.search.get("limited")
    return replace(
        measure,
        targets=tuple(name(t) for t in measure.targets),
        options=_numbers(measure.options),
        environment=_numbers(measure.environment) | environment,
        runs=runs,
        profiles=profiles,
        search=_numbers(measure.search) | ({"limited": _LEFT_OUT} if limited else {}),
        notes=(f"notes and messages were {_LEFT_OUT}",) if measure.notes else (),
    )


def _numbers(value: Any) -> Any:
    """Numbers and our own words; of an object, the keys that hold any."""
    if isinstance(value, dict):
        kept = {str(k): _numbers(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not _NOTHING}
    if isinstance(value, list | tuple):
        return [v for v in map(_numbers, value) if v is not _NOTHING]
    if value is None or isinstance(value, int | float) or value in _WORDS:
        return value
    return _NOTHING


_NOTHING = object()
