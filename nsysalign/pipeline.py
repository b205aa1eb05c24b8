"""The stages in order: trace, align, attribute, diagnose; and the door for Python users.

    >>> import nsysalign
    >>> a = nsysalign.analyze("trace.sqlite", events=["events-484.jsonl"])
    >>> a.intervals[["name", "elapsed_ns", "kernel_only_ns"]]

The DataFrames' columns are declared, with dtype and unit, in `nsysalign.frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.align.clock import ClockMap
from nsysalign.align.samples import place_samples
from nsysalign.align.solve import align
from nsysalign.align.timers import timed, timer_notes
from nsysalign.attribute.budget import attribute
from nsysalign.attribute.kernels import kernel_table, longest_gaps
from nsysalign.attribute.labels import label_table
from nsysalign.attribute.pictures import FromMemory, Pictures
from nsysalign.attribute.portion import intervals_table, parts_table, portion
from nsysalign.attribute.timeline import chosen_intervals
from nsysalign.attribute.unprofiled import predict
from nsysalign.attribute.whole import with_runs
from nsysalign.compare.baseline import side_by_side
from nsysalign.diagnose.rules import diagnose
from nsysalign.errors import AnalysisError, EventLogError
from nsysalign.marks.dump import MarksError
from nsysalign.memory import give_back
from nsysalign.model import KIND, Alignment, Analysis, EventLog, Portion, Trace, TraceInfo
from nsysalign.private import without_paths
from nsysalign.slices.crew import Crew, crew, wanted
from nsysalign.slices.pictures import FromFile
from nsysalign.slices.plan import SLICE_ROWS, survey
from nsysalign.slices.run import measure, read_ahead
from nsysalign.trace.clocks import read_clock_samples
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.index import rows_at_most, sampled
from nsysalign.trace.read import lost_notes, read_trace

#: Segments of all intervals are kept up to about so many; sums, bounds and details are of all intervals always.
MOST_PIECES = 100_000

#: Traces with as many calls and operations are analysed stretch by stretch.
SLICED_FROM_ROWS = 1_500_000

#: Told what begins and how much of the whole is done, in percent.
Progress = Callable[[str, int], None]


def analyze(
    trace: str | PathLike[str],
    events: Sequence[str | PathLike[str]] | str | PathLike[str] = (),
    *,
    clocks: str | PathLike[str] | None = None,
    baseline: Sequence[str | PathLike[str]] | str | PathLike[str] = (),
    draw: Sequence[str] = (),
    all_segments: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
    others: Crew | None = None,
    marks: Sequence[str | PathLike[str]] | str | PathLike[str] = (),
    marked: str | PathLike[str] | None = None,
) -> Analysis:
    """Analyse an nsys SQLite export, with the event logs of its processes.

    Without a log the NVTX ranges of the trace become intervals of kind `nvtx`.  `clocks` is the run's clocks.jsonl,
    `baseline` the event logs of the same program run without nsys, to be put beside.  `marks`: dumps of marks inside kernels
    (.nsam), made in the run of this trace, or in that of the trace `marked`, which is of the same program.  `draw` names intervals whose
    timeline and segments are kept whatever their place among the runs; `all_segments` keeps those of every interval,
    where a long trace has more than fit into a table of ordinary size; `progress(step, percent)` is told what begins.
    A long trace is analysed stretch by stretch, by `jobs` processes at once: a script that asks for more than one has
    `if __name__ == "__main__":` around what it does, as `multiprocessing` wants it.  `others`: these processes, where they
    wait already.
    Raises TraceError or EventLogError with what to do next.
    """
    events, baseline = _several(events), _several(baseline)
    inside = partial(_inside_kernels, [Path(m) for m in _several(marks)], Path(trace), marked and Path(marked))
    tell = progress or _silent
    tell("reading the trace", 0)
    rows = rows_at_most(Path(trace)) if events and not baseline and not all_segments else 0
    log = None
    if rows >= SLICED_FROM_ROWS:
        with nullcontext(others) if others is not None else crew(wanted(Path(trace), jobs)) as helpers:
            measured, log = _in_slices(Path(trace), [Path(e) for e in events], rows, helpers, tell)
        if measured is not None:
            tell("explaining", 90)
            return explained(measured, log, clocks=clocks, beside=inside, draw=draw)
    with ThreadPoolExecutor(1) as pool:  # big tables are read outside of Python: there is time for the logs
        unread = events and log is None
        logs = pool.submit(read_event_logs, [Path(e) for e in events]) if unread else None
        read = read_trace(Path(trace))
        tell("reading the event logs", 45)
        log = logs.result() if logs is not None else log
    _refuse_baseline(log)
    without, notes = read_baseline(baseline)
    analysis = analyze_trace(
        read,
        log,
        clocks=clocks,
        baseline=without,
        draw=draw,
        all_segments=all_segments,
        progress=progress,
        inside=inside,
    )
    return replace(analysis, notes=(*analysis.notes, *notes)) if notes else analysis


def _several(paths: Sequence[str | PathLike[str]] | str | PathLike[str]) -> Sequence[str | PathLike[str]]:
    """One path is a list of one: a text would be taken for a list of its characters."""
    return [paths] if isinstance(paths, str | PathLike) else paths


def _refuse_baseline(log: EventLog | None) -> None:
    if log is not None and any(h.get("baseline") for h in log.headers):
        raise EventLogError(
            "this is the event log of a run without nsys: it belongs to no trace",
            "name the profiled run's log with --events, and this one with --baseline",
        )


def _in_slices(
    trace: Path, events: Sequence[Path], rows: int, others: Crew, tell: Progress
) -> tuple[Measured | None, EventLog]:
    """A long trace, stretch by stretch, and its log.  None where it cannot be cut: an interval as long as the run, clocks
    that nothing connects."""
    slices = 2 * -(-rows // (2 * SLICE_ROWS))  # however many help: the same on every machine
    index = sampled(trace)
    read_ahead(others, trace, index, slices)
    log = read_event_logs(events)
    _refuse_baseline(log)
    tell("looking over the trace", 10)
    known = survey(trace, log, index) if index.calls else None
    if known is None:
        return None, log
    tell("reading, placing and splitting", 15)
    found = measure(
        trace,
        index,
        known,
        slices,
        others,
        lambda done, of: tell("reading, placing and splitting", 15 + 75 * done // of),
    )
    if found is None:
        return None, log
    known = found.known
    given, log = known.given, known.timed.log
    rows, alone = found.portion.rows, found.portion.alone
    said = timer_notes(rows, known.timed.timers.candidates, alone)
    info = replace(known.info, notes=(*known.info.notes, *lost_notes(found.lost)))
    whole = replace(found.portion, notes=(*known.notes, *found.portion.notes, *said))
    pictures = FromFile(trace, found.index, known, whole)
    lanes = given.lanes[given.busy]
    return Measured(info, whole, lanes, known.clock_maps, known.calibration, known.latency, pictures), log


def read_baseline(logs: Sequence[str | PathLike[str]]) -> tuple[EventLog | None, list[str]]:
    """The log of the run without nsys.  What cannot be read is a note: the profiled run stands without it."""
    if not logs:
        return None, []
    try:
        return read_event_logs([Path(e) for e in logs]), []
    except EventLogError as error:
        return None, [f"the run without nsys cannot be put beside this one: {without_paths(error.message)}"]


def analyze_trace(
    trace: Trace,
    log: EventLog | None,
    *,
    clocks: str | PathLike[str] | None = None,
    baseline: EventLog | None = None,
    draw: Sequence[str] = (),
    all_segments: bool = False,
    progress: Progress | None = None,
    inside: Callable[[Analysis], Analysis] | None = None,
) -> Analysis:
    """The same from what has been read already; `inside` adds what was marked inside kernels."""
    tell = progress or _silent
    tell("placing the events", 50)
    alignment = align(trace, log)
    give_back()
    tell("splitting the intervals", 65)
    alignment = with_runs(trace, alignment)
    budgets = attribute(trace, alignment)
    give_back()
    tell("explaining", 90)
    measured = Measured(
        trace.info,
        portion(alignment, budgets, log),
        alignment.lanes[alignment.busy],
        alignment.clock_maps,
        dict(alignment.calibration),
        budgets.launch_latency,
        FromMemory(trace, alignment, budgets),
    )
    beside = inside
    if baseline is not None:
        beside = partial(_beside, trace=trace, alignment=alignment, log=log, baseline=baseline, inside=inside)
    return explained(measured, log, clocks=clocks, beside=beside, draw=draw, all_segments=all_segments)


def _silent(step: str, percent: int) -> None:
    """For callers who do not want to be told."""


def load(path: str | PathLike[str]) -> Analysis:
    """A stored analysis: a run directory, analysis.db or analysis.json.  AnalysisError where it does not add up."""
    path = Path(path)
    if path.is_dir():
        from nsysalign.compare.confirm import attach
        from nsysalign.report import confirmations

        found = [path / n for n in ("analysis.db", "analysis.json") if (path / n).is_file()]
        if not found:
            raise AnalysisError(
                f"{path}: no analysis.db or analysis.json in this directory", f"nsysalign analyze {path}"
            )
        verdicts = confirmations.read(path / confirmations.FILE)
        loaded = load(found[0])
        return attach(loaded, verdicts) if len(verdicts) else loaded
    if path.suffix == ".json":
        from nsysalign.report import json as store
    else:
        from nsysalign.report import database as store
    from nsysalign.report.sound import refuse_unsound

    analysis = store.load(path)
    refuse_unsound(analysis, path.name)
    return analysis


@dataclass(frozen=True)
class Measured:
    """What alignment and attribution found in a trace.  `lanes`: the streams on which work ran."""

    info: TraceInfo
    portion: Portion
    lanes: pd.DataFrame
    clock_maps: Mapping[int, ClockMap]
    calibration: Mapping[str, Any]
    launch_latency: Mapping[int, int]
    pictures: Pictures


def explained(
    measured: Measured,
    log: EventLog | None,
    *,
    clocks: str | PathLike[str] | None = None,
    beside: Callable[[Analysis], Analysis] | None = None,
    draw: Sequence[str] = (),
    all_segments: bool = False,
) -> Analysis:
    """Names, labels, findings, pictures: what is the same whether the trace was looked at as a whole or piece by piece.
    `beside` puts a run without nsys beside it, and what was marked inside kernels into it."""
    p = measured.portion
    intervals = intervals_table(p)
    measured_rows = intervals["kind"] != "run"
    labels = label_table(intervals[measured_rows])
    notes = [*(log.notes if log else ()), *p.notes]
    if len(intervals) and "profiler-disturbed" in {f for flags in intervals["flags"] for f in flags}:
        count = sum("profiler-disturbed" in flags for flags in intervals["flags"])
        notes.append(
            f"{count} intervals were disturbed by the profiler's own work in their process (flag profiler-disturbed)"
        )
    gpu_clocks, more = _gpu_clocks(measured, clocks)
    notes += more
    unaligned = p.unaligned
    unaligned = unaligned.assign(label=unaligned["name"].astype(str).str.replace(r"#\d+$", "", regex=True))
    calibration = dict(measured.calibration) | {
        "launch_latency_ns": {k: measured.launch_latency[KIND[k]] for k in KIND},
        "collected_with": _headers(log),
    }
    pieces, run = p.size.sum(), p.size[~measured_rows.to_numpy()].sum()
    whole = all_segments or pieces - run <= MOST_PIECES
    pictures = measured.pictures
    analysis = Analysis(
        trace=_without_what_the_clock_replaces(measured.info, intervals),
        intervals=intervals,
        parts=parts_table(p),
        segments=pictures.segments(np.flatnonzero(measured_rows | all_segments | (pieces <= MOST_PIECES)))
        if whole
        else frames.empty(frames.SEGMENTS),
        details=p.details,
        other_streams=p.other_streams,
        labels=labels,
        unaligned=frames.check(unaligned, frames.UNALIGNED),
        findings=frames.empty(frames.FINDINGS),
        timeline=frames.empty(frames.TIMELINE),
        kernels=kernel_table(p.durations, intervals),
        gaps=longest_gaps(p.gaps),
        notes=tuple(dict.fromkeys(notes)),
        calibration=calibration,
        gpu_clocks=gpu_clocks,
    )
    if beside is not None:
        analysis = beside(analysis)
    if not whole:  # rules look at the same intervals that will be drawn, mostly
        drawn = chosen_intervals(
            analysis, intervals.loc[intervals["name"].isin(list(draw)) & measured_rows, "interval"].tolist()
        )
        pictures.expect(np.array(drawn, dtype=np.int64))
    analysis = diagnose(analysis, None if whole else pictures.segment_arrays)
    give_back()
    wanted = intervals.loc[intervals["name"].isin(list(draw)) & measured_rows, "interval"].tolist()
    if not whole:
        analysis = _some_segments(analysis, measured, wanted)
    drawn = np.array(chosen_intervals(analysis, wanted), dtype=np.int64)
    return replace(analysis, timeline=pictures.timeline(drawn, analysis))


def _without_what_the_clock_replaces(info: TraceInfo, intervals: pd.DataFrame) -> TraceInfo:
    """Where every pair is placed by the events' own clock, CUPTI's timestamps are not missed."""
    if set(intervals.loc[intervals["kind"] == "event", "method"]) != {"clock"}:
        return info
    kept = tuple(m for m in info.missing if not m.startswith("CUPTI_ACTIVITY_KIND_CUDA_EVENT"))
    return replace(info, missing=kept)


def _some_segments(analysis: Analysis, measured: Measured, wanted: Sequence[int]) -> Analysis:
    """Segments of the wanted intervals and of those that are drawn, as many as fit, and a note that says so."""
    drawn = np.setdiff1d(chosen_intervals(analysis), wanted)
    size = measured.portion.size
    drawn = drawn[np.argsort(size[drawn], kind="stable")]
    fit = drawn[np.cumsum(size[drawn]) <= MOST_PIECES // 3]
    kept = np.union1d(fit, np.array(wanted, dtype=np.int64)).astype(np.int64)
    note = (
        f"segments are kept of {len(kept):,} of {len(analysis.measured):,} intervals (medians, slowest, first, every "
        "finding's): of all there are too many for a table of ordinary size; nsysalign analyze --all-segments keeps them"
    )
    return replace(analysis, segments=measured.pictures.segments(kept), notes=(*analysis.notes, note))


def _gpu_clocks(measured: Measured, clocks: str | PathLike[str] | None) -> tuple[pd.DataFrame, list[str]]:
    """The run's clock samples on the trace's clock, and notes."""
    if clocks is None:
        return frames.empty(frames.GPU_CLOCKS), []
    samples, notes = read_clock_samples(Path(clocks))
    used = measured.lanes[["process", "device"]].drop_duplicates()
    shared = bool(used["device"].duplicated().any())  # or each process saw one GPU of its own, as device 0
    placed, more = place_samples(
        samples, measured.clock_maps, measured.info.session_start_utc_ns, shared=shared
    )
    return placed, notes + more


def _inside_kernels(dumps: Sequence[Path], trace: Path, marked: Path | None, analysis: Analysis) -> Analysis:
    """The same with what the dumps say about the insides of kernels, those of this trace or of `marked`."""
    if not dumps:
        return analysis
    from nsysalign.attribute.marks import mark_tables
    from nsysalign.marks.dump import read
    from nsysalign.trace.launches import read_launches

    found, notes = [], []
    for dump in dumps:  # one that is damaged does not cost the rest of the answer
        try:
            found.append(read(dump))
        except MarksError as error:
            notes.append(f"marks: {error.message}")
    pids = {dump.pid for dump in found}
    rows = read_launches(marked or trace, pids)
    plain = read_launches(trace, set(analysis.intervals["pid"]) or pids) if marked is not None else None
    inside = mark_tables(found, rows, analysis.measured, plain)
    return replace(
        analysis,
        **inside.tables,
        notes=tuple(dict.fromkeys([*analysis.notes, *notes, *inside.notes])),
        calibration={**analysis.calibration, "marks": list(inside.buffers)},
    )


def _beside(
    analysis: Analysis,
    *,
    trace: Trace,
    log: EventLog | None,
    alignment: Alignment,
    baseline: EventLog,
    inside: Callable[[Analysis], Analysis] | None = None,
) -> Analysis:
    """The same with the run without nsys beside it, and what the profiled one says it should have measured."""
    if inside is not None:
        analysis = inside(analysis)
    measured = analysis.measured
    alignment = replace(
        alignment, windows=alignment.windows.iloc[: len(measured)]
    )  # without the run as a whole
    unprofiled, parts = predict(trace, alignment, measured, analysis.parts, analysis.labels)
    table, notes = side_by_side(measured, alignment.windows, log, baseline, unprofiled, timed(baseline))
    return replace(
        analysis,
        baseline=table,
        unprofiled=unprofiled,
        unprofiled_parts=parts,
        notes=tuple(dict.fromkeys([*analysis.notes, *notes])),
    )


def _headers(log: EventLog | None) -> list[dict[str, Any]]:
    """What the probe said of itself, without anything private."""
    keys = ("pid", "device_name", "torch", "python", "nvtx", "calibration_ns")
    return [{k: h[k] for k in keys if k in h} for h in (log.headers if log else ())]
