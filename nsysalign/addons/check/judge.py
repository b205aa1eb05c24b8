"""All checks on one trace, and what could not be checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nsysalign.addons.check import captures, escaped, less, limits
from nsysalign.addons.check.scene import FOUND, Doubt, Scene, build
from nsysalign.errors import TraceError
from nsysalign.model import TraceInfo
from nsysalign.place.align import align
from nsysalign.probe.tampering import REPLACED
from nsysalign.rundir import Inputs
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.gpus import read_limits
from nsysalign.trace.read import read_trace

FORMAT, VERSION = "nsysalign-check", 1
#: Stands for a label: which intervals a replaced timer concerns is not known.
_ALL = "(timers)"


@dataclass(frozen=True)
class Verdict:
    """What the checks say of one run: doubts, those that fail the check first."""

    trace: TraceInfo
    labels: int
    intervals: int
    doubts: tuple[Doubt, ...]
    unchecked: tuple[str, ...]

    @property
    def found(self) -> tuple[Doubt, ...]:
        """The doubts that fail the check."""
        return tuple(doubt for doubt in self.doubts if doubt.level == FOUND)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "trace": {"path": self.trace.path, "devices": list(self.trace.devices)},
            "labels": self.labels,
            "intervals": self.intervals,
            "found": len(self.found),
            "doubts": [doubt.plain() for doubt in self.doubts],
            "unchecked": list(self.unchecked),
        }


def judge(inputs: Inputs) -> Verdict:
    """Check the run.  Raises TraceError and EventLogError as an analysis does, and where nothing
    was timed: a check that cannot fail is none."""
    trace = read_trace(inputs.trace)
    log = read_event_logs(inputs.events) if inputs.events else None
    scene = build(trace, log, align(trace, log), read_limits(inputs.trace))
    checks = (
        escaped.escaped,
        less.less,
        limits.rates,
        limits.flushes,
        captures.never_launched,
        timers,
    )
    doubts = [doubt for check in checks for doubt in check(scene)]
    if scene.intervals.empty and not doubts:
        why = scene.alignment.unaligned["reason"].tolist()
        if not why:
            why = ["no pair of events was compared" if log else "no event log says what was timed"]
        raise TraceError(
            f"there is nothing to check: {why[0]}",
            "nsysalign check --events FILE TRACE, or nsysalign check SCRIPT.py",
        )
    doubts.sort(key=lambda doubt: (doubt.level != FOUND, -(doubt.worth_ns or 0)))
    return Verdict(
        trace.info,
        scene.intervals["label"].nunique(),
        len(scene.intervals),
        tuple(doubts),
        tuple(_unchecked(scene)),
    )


def timers(scene: Scene) -> Iterator[Doubt]:
    """What the probe found replaced when a process ended."""
    for note in dict.fromkeys(scene.log.notes if scene.log is not None else ()):
        if note.startswith(REPLACED):
            name = note.removeprefix(REPLACED)
            yield Doubt(
                "replaced-timer",
                FOUND,
                _ALL,
                "",
                f"The program replaced {name}: what it prints need not be what the original returned. "
                "The times shown here are the original's.",
                (),
                0,
                evidence={"replaced": name},
            )


def _unchecked(scene: Scene) -> list[str]:
    """What this trace cannot tell."""
    found = []
    if scene.trace.info.notes:
        found.append(f"of the trace: {'; '.join(scene.trace.info.notes)}")
    if not any(limit.memory_rate for limit in scene.limits.values()):
        found.append(
            "copies against the memory's rate, flushes against the L2: the trace names neither"
        )
    if unknown := int((scene.without_rows | ~scene.looked_at).sum()):
        found.append(
            f"the work of {unknown} intervals: launches without a row in the trace, or too many to look at"
        )
    if lost := len(scene.alignment.unaligned):
        found.append(
            f"{lost} timed intervals have no place in the trace (nsysalign analyze says why)"
        )
    return found
