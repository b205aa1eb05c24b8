"""All checks on one trace, and what could not be checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nsysalign.addons.check import limits, work
from nsysalign.addons.check.scene import FOUND, Doubt, Scene
from nsysalign.errors import TraceError
from nsysalign.model import TraceInfo
from nsysalign.place.align import align
from nsysalign.probe.tampering import REPLACED
from nsysalign.rundir import Inputs
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.info import read_limits
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
            "doubts": [{**vars(doubt), "worth_ns": doubt.worth_ns} for doubt in self.doubts],
            "unchecked": list(self.unchecked),
        }


def judge(inputs: Inputs) -> Verdict:
    """Check the run.  Raises TraceError and EventLogError as an analysis does, and where nothing
    was timed: a check that cannot fail is none."""
    trace = read_trace(inputs.trace)
    log = read_event_logs(inputs.events) if inputs.events else None
    scene = Scene(trace, log, align(trace, log), read_limits(inputs.trace))
    checks = (
        work.escaped, work.less, limits.rates, limits.flushes, work.never_launched, timers,
    )  # fmt: skip
    doubts = [doubt for check in checks for doubt in check(scene)]
    if scene.intervals.empty and not doubts:
        nothing = "no pair of events was compared" if log else "no event log says what was timed"
        why = [*scene.alignment.unaligned["reason"], nothing]
        raise TraceError(
            f"there is nothing to check: {why[0]}",
            "nsysalign check --events FILE TRACE, or nsysalign check SCRIPT.py",
        )
    doubts.sort(key=lambda doubt: (doubt.level != FOUND, -(doubt.worth_ns or 0)))
    many, unchecked = scene.intervals["label"].nunique(), tuple(_unchecked(scene))
    return Verdict(trace.info, many, len(scene.intervals), tuple(doubts), unchecked)


def timers(scene: Scene) -> Iterator[Doubt]:
    """What the probe found replaced when a process ended."""
    for note in dict.fromkeys(scene.log.notes if scene.log is not None else ()):
        if note.startswith(REPLACED):
            name = note.removeprefix(REPLACED)
            title = (
                f"The program replaced {name}: what it prints need not be what the original "
                "returned. The times shown here are the original's."
            )
            evidence = {"replaced": name}
            yield Doubt("replaced-timer", FOUND, _ALL, "", title, (), 0, evidence=evidence)


def _unchecked(scene: Scene) -> Iterator[str]:
    """What this trace cannot tell."""
    if scene.trace.info.notes:
        yield f"of the trace: {'; '.join(scene.trace.info.notes)}"
    if not any(limit.memory_rate for limit in scene.limits.values()):
        yield "copies against the memory's rate, flushes against the L2: the trace names neither"
    if unknown := int((scene.without_rows | ~scene.looked_at).sum()):
        lost = "launches without a row in the trace, or too many to look at"
        yield f"the work of {unknown} intervals: {lost}"
    if lost := len(scene.alignment.unaligned):
        yield f"{lost} timed intervals have no place in the trace (nsysalign analyze says why)"
