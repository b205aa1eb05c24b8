"""The same command again, without nsys: what the program measures without a profiler.

Same environment, same probe, same calibration; everything goes to RUN_DIR/baseline.  The probe is active in both runs, so that
the same intervals are found in both.  It makes `Event.record()` about 1.3 us cheaper than torch's own (it hands on the Stream
object that torch would build anew each time), and that is part of what this run measures: it is the program without nsys, not
the program without the probe.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysalign.errors import NsysError
from nsysalign.files import write_lines
from nsysalign.record import command as commands
from nsysalign.record.convert import convert, errors
from nsysalign.record.handover import inheritance, working_directory
from nsysalign.record.launch import hold_signals, launch
from nsysalign.record.processes import of_run
from nsysalign.rundir import BASELINE, MANIFEST, RAW, event_logs

#: In the header of every log of such a run, so that it is not mistaken for the log of a trace.
MARK = {"baseline": True}


@dataclass(frozen=True)
class Baseline:
    """What the run without nsys left.  `exit_status` is the script's own."""

    folder: Path
    exit_status: int
    event_logs: tuple[Path, ...]
    notes: tuple[str, ...]


def collect_baseline(
    command: Sequence[str],
    run_dir: Path,
    *,
    profiled_status: int,
    calibrate: bool = True,
    host_timers: bool = True,
    references: bool = True,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Baseline:
    """Run `command` in the current directory with the probe and without nsys; its output is passed through.

    Raises NsysError if the folder cannot be created or written.
    """
    argv = commands.resolve(command)
    folder = run_dir / BASELINE
    raw = folder / RAW
    try:
        folder.mkdir(mode=0o700)
        raw.mkdir(mode=0o700)
    except OSError as error:
        raise NsysError(
            f"cannot make {folder}: {error.strerror}",
            "the profiled run is kept: nsysalign analyze RUN_DIR",
        ) from error
    env = commands.probe_environment(
        os.environ, folder, calibrate=calibrate, host_timers=host_timers, references=references
    ) | dict(environment or {})
    ended = launch((), argv, env, folder / "run.log", inheritance(), timeout_s=timeout_s)
    notes = [f"without nsys: {note}" for note in ended.notes]
    with hold_signals():
        ends = {
            "exit_status": ended.status,
            "profiled_exit_status": profiled_status,
            "stopped": ended.stopped,
        }
        logs = _converted(raw, folder, working_directory(), ends)
        failures = [text for text in errors(raw) if text]
        notes += [f"without nsys the probe had a problem: {t.splitlines()[-1]}" for t in failures]
        if not failures:
            shutil.rmtree(raw, ignore_errors=True)
        if not logs:
            notes.append(
                "the run without nsys timed nothing, so there is nothing to compare with the profiled run"
            )
        log = folder / "run.log"
        if log.is_file() and not log.stat().st_size:
            log.unlink()  # nothing but this process could have written there
        baseline = Baseline(folder, ended.status, tuple(logs), tuple(notes))
        _write_manifest(baseline)
    return baseline


def baseline_logs(run_dir: Path) -> list[Path]:
    """The event logs of a run directory's run without nsys, [] if there was none.  Raw files of a killed run are converted
    first; a run that is still going on is left alone.
    """
    folder = run_dir / BASELINE
    raw = folder / RAW
    logs = event_logs(folder)
    if logs or not raw.is_dir() or of_run(folder.resolve()):
        return logs
    return _converted(raw, folder, run_dir.resolve().parent.parent, {"stopped": True})


def _converted(raw: Path, folder: Path, cwd: Path, ends: Mapping[str, Any]) -> list[Path]:
    """The logs, with the way the run ended in their headers, so that comparisons with a trace can say so."""
    try:
        return convert(raw, folder, cwd, {**MARK, **ends})
    except OSError as error:
        raise NsysError(
            f"the event logs of the run without nsys cannot be written to {folder}: {error.strerror}; what the probe "
            f"recorded is kept in {raw.name}/ there",
            "free some space, then: nsysalign analyze RUN_DIR",
        ) from error


def _write_manifest(baseline: Baseline) -> None:
    """run.json: no environment, no paths."""
    manifest = {
        "format": "nsysalign-baseline",
        "version": 1,
        "exit_status": baseline.exit_status,
        "event_logs": [p.name for p in baseline.event_logs],
        "notes": list(baseline.notes),
    }
    write_lines(baseline.folder / MANIFEST, [json.dumps(manifest, indent=1)])
