"""The one path from a trace to its analysis: survey, slices, merge, explain; and the entry point for Python users.

    >>> import nsysalign
    >>> a = nsysalign.analyze("trace.sqlite", events=["events-484.jsonl"])
    >>> a.intervals[["name", "elapsed_ns", "kernel_only_ns"]]

    export, logs --> survey --> slice 1 .. slice n --> merge --> explain --> Analysis
                                (trace, align, attribute)        (compare, diagnose)

A short trace is one slice, which works out by itself what a survey would provide.  Whether a trace is cut depends only on the
trace and its log: options change what is kept, never a number.

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
from nsysalign.compare import confirmations
from nsysalign.compare.judge import attach
from nsysalign.compare.side_by_side import side_by_side
from nsysalign.diagnose.rules import diagnose
from nsysalign.effort import trim_memory
from nsysalign.errors import AnalysisError, EventLogError
from nsysalign.model import KIND, Analysis, EventLog, PartialResult, Trace, TraceInfo
from nsysalign.place.gpu_clock import place_samples
from nsysalign.place.host_clock import ClockMap
from nsysalign.place.timer_windows import timed, timer_notes
from nsysalign.predict.host_speed import HostSpeed
from nsysalign.predict.unprofiled import predict, predict_intervals
from nsysalign.private import without_paths
from nsysalign.rundir import CONFIRMED, DATABASE, Inputs, RunDirectory
from nsysalign.slices.far import far_intervals, too_long
from nsysalign.slices.from_file import FileSource
from nsysalign.slices.one import whole_trace
from nsysalign.slices.pool import WorkerPool, wanted, worker_pool
from nsysalign.slices.rounds import measure, read_ahead
from nsysalign.slices.survey import SLICE_ROWS, survey
from nsysalign.split.host_activity import calls_after_gaps, host_activity, host_gaps
from nsysalign.split.kernels import kernel_table, longest_gaps
from nsysalign.split.labels import label_table
from nsysalign.split.partial import intervals_table, parts_table
from nsysalign.split.ranges import host_ranges, left_out
from nsysalign.split.segment_source import InMemorySource, SegmentSource
from nsysalign.split.timeline import chosen_intervals
from nsysalign.split.work import variant_table
from nsysalign.text import REPETITION
from nsysalign.trace.clock_samples import read_clock_samples
from nsysalign.trace.eventlog import read_event_logs, said_by_the_probe, source_lines
from nsysalign.trace.host_calls import os_calls, threads_of
from nsysalign.trace.index import rows_at_most, sampled
from nsysalign.trace.read import lost_notes, read_trace
from nsysalign.trace.stacks import read_stacks

#: Segments of all intervals are kept up to about this many; sums, bounds and details always cover all intervals.
MOST_PIECES = 100_000

#: Traces with at least this many calls and operations are cut.
SLICED_FROM_ROWS = 1_500_000

#: Called with the step that begins and how much of the whole is done, in percent.
Progress = Callable[[str, int], None]
_Paths = Sequence[str | PathLike[str]] | str | PathLike[str]


def analyze(
    trace: str | PathLike[str],
    events: _Paths = (),
    *,
    clocks: str | PathLike[str] | None = None,
    baseline: _Paths = (),
    draw: Sequence[str] = (),
    all_segments: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
    marks: _Paths = (),
    marked: str | PathLike[str] | None = None,
) -> Analysis:
    """Analyse an nsys SQLite export with the event logs of its processes, or a run directory with all that belongs to it.

    Without a log the NVTX ranges of the trace become intervals of kind `nvtx`.  `clocks` is the run's clocks.jsonl, `baseline`
    the event logs of the same program run without nsys, for comparison.  `marks`: dumps of marks inside kernels (.nsam), made
    in the run of this trace, or in that of the trace `marked` of the same program.  `draw` names intervals whose timeline and
    segments are always kept; `all_segments` keeps those of every interval, even if a long trace has more than fit into a table
    of ordinary size; `progress(step, percent)` is called when a step begins.  A long trace is analysed stretch by stretch, by
    `jobs` processes at once: a script that asks for more than one needs `if __name__ == "__main__":` around its code, as
    `multiprocessing` requires. Raises TraceError or EventLogError with what to do next.
    """
    path, logs, without = Path(trace), _several(events), _several(baseline)
    if path.is_dir():
        run = RunDirectory(path)
        logs, without = logs or tuple(run.event_logs()), without or tuple(run.baseline_logs())
        inputs = run.inputs(run.export(), logs, without)
    else:
        inputs = Inputs(path, logs, without)
    if clocks is not None:
        inputs = replace(inputs, clocks=Path(clocks))
    if marks:
        inputs = replace(
            inputs, marks=_several(marks), marked=Path(marked) if marked is not None else None
        )
    return analyze_inputs(
        inputs, draw=draw, all_segments=all_segments, progress=progress, jobs=jobs
    )


def analyze_inputs(
    inputs: Inputs,
    *,
    draw: Sequence[str] = (),
    all_segments: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
    others: WorkerPool | None = None,
) -> Analysis:
    """The same for inputs that are already put together, including verdicts of re-runs and conditions of the run.  `others`:
    processes to share the work with, if they are already waiting."""
    tell = progress or _silent
    tell("reading the trace", 0)
    found = None
    rows, log = rows_at_most(inputs.trace), None
    if rows >= SLICED_FROM_ROWS:
        with (
            nullcontext(others)
            if others is not None
            else worker_pool(wanted(inputs.trace, jobs)) as helpers
        ):
            found, log = _in_slices(inputs, rows, helpers, all_segments, tell)
    if found is None:
        trace, log = _read(inputs, log, tell)
        found = _in_one(trace, log, tell)
    without, notes = read_baseline(inputs.baseline)
    tell("explaining", 90)
    analysis = explained(
        found, log, clocks=inputs.clocks, baseline=without, draw=draw, all_segments=all_segments,
        inside=partial(_inside_kernels, inputs) if inputs.marks else None,
        host=partial(_host_gaps_opened, inputs),
    )  # fmt: skip
    said = [*inputs.conditions, *analysis.notes, *notes]
    analysis = replace(analysis, notes=tuple(dict.fromkeys(said)))
    return attach(analysis, confirmations.read(inputs.confirmed)) if inputs.confirmed else analysis


def _several(paths: _Paths) -> tuple[Path, ...]:
    """One path becomes a list of one: a string would be taken for a list of its characters."""
    return tuple(map(Path, [paths] if isinstance(paths, str | PathLike) else paths))


def _silent(step: str, percent: int) -> None:
    """A progress callback that does nothing."""


def _read(inputs: Inputs, log: EventLog | None, tell: Progress) -> tuple[Trace, EventLog | None]:
    """The trace and its log, unless that has been read already."""
    with ThreadPoolExecutor(
        1
    ) as pool:  # big tables are read outside the GIL: the logs can be read meanwhile
        unread = inputs.events and log is None
        logs = pool.submit(read_event_logs, inputs.events) if unread else None
        trace = read_trace(inputs.trace)
        tell("reading the event logs", 45)
        log = logs.result() if logs is not None else log
    _refuse_baseline(log)
    return trace, log


def _refuse_baseline(log: EventLog | None) -> None:
    if log is not None and any(h.get("baseline") for h in log.headers):
        raise EventLogError(
            "this is the event log of a run without nsys, so it belongs to no trace",
            "name the profiled run's log with --events, and this one with --baseline",
        )


def read_baseline(logs: Sequence[Path]) -> tuple[EventLog | None, list[str]]:
    """The log of the run without nsys.  If it cannot be read there is a note: the profiled run does not depend on it."""
    if not logs:
        return None, []
    try:
        return read_event_logs(logs), []
    except EventLogError as error:
        return None, [
            f"the run without nsys cannot be compared with this one: {without_paths(error.message)}"
        ]


def load(path: str | PathLike[str]) -> Analysis:
    """A stored analysis: a run directory or an analysis.db.  Raises AnalysisError if it does not add up."""
    from nsysalign.store import database

    path = Path(path)
    if not path.is_dir():
        return database.load(path)
    stored = path / DATABASE
    if not stored.is_file():
        raise AnalysisError(
            f"{path}: no analysis.db in this directory", f"nsysalign analyze {path}"
        )
    verdicts = confirmations.read(path / CONFIRMED)
    loaded = database.load(stored)
    return attach(loaded, verdicts) if len(verdicts) else loaded


@dataclass(frozen=True)
class Measured:
    """The results of alignment and attribution.  `lanes`: the streams on which work ran."""

    info: TraceInfo
    portion: PartialResult
    lanes: pd.DataFrame
    clock_maps: Mapping[int, ClockMap]
    calibration: Mapping[str, Any]
    launch_latency: Mapping[int, int]
    source: SegmentSource


def _in_one(trace: Trace, log: EventLog | None, tell: Progress) -> Measured:
    """A trace in memory, as one slice."""
    tell("placing the events", 50)
    found = whole_trace(trace, log, lambda: tell("splitting the intervals", 65))
    alignment, budgets = found.alignment, found.budgets
    return Measured(
        trace.info,
        found.portion,
        alignment.lanes[alignment.busy],
        alignment.clock_maps,
        dict(alignment.calibration),
        budgets.launch_latency,
        InMemorySource(trace, alignment, budgets),
    )


def _in_slices(
    inputs: Inputs, rows: int, others: WorkerPool, all_segments: bool, tell: Progress
) -> tuple[Measured | None, EventLog | None]:
    """A long trace, stretch by stretch, and its log.  None if it cannot be cut: an interval as long as the run, or clocks that
    nothing connects."""
    trace = inputs.trace
    # without a log there are more intervals for as much work; the same on every machine, whatever the number of processes
    of_slice = SLICE_ROWS if inputs.events else 3 * SLICE_ROWS // 4
    slices = 2 * -(-rows // (2 * of_slice))
    index = sampled(trace)
    read_ahead(others, trace, index, slices)
    log = read_event_logs(inputs.events) if inputs.events else None
    _refuse_baseline(log)
    tell("surveying the trace", 10)
    known = survey(trace, log, index) if index.calls else None
    if known is None:
        return None, log
    step = "reading, placing and splitting"
    tell(step, 15)
    found = measure(
        trace,
        index,
        known,
        slices,
        others,
        lambda done, of: tell(step, 15 + 75 * done // of),
        all_segments,
    )
    if found is None:
        return None, log
    known = found.known
    context, log = known.context, known.timed.given
    said = timer_notes(found.portion.rows, known.timed.timers.candidates, found.portion.alone)
    info = replace(known.info, notes=(*known.info.notes, *lost_notes(found.lost)))
    whole = replace(found.portion, notes=(*known.notes, *found.portion.notes, *said))
    source = FileSource(trace, found.index, known, whole)
    lanes = context.lanes[context.busy]
    return Measured(
        info, whole, lanes, known.clock_maps, known.calibration, known.latency, source
    ), log


def explained(
    measured: Measured,
    log: EventLog | None,
    *,
    clocks: Path | None = None,
    baseline: EventLog | None = None,
    draw: Sequence[str] = (),
    all_segments: bool = False,
    inside: Callable[[Analysis], Analysis] | None = None,
    host: Callable[[pd.DataFrame, pd.DataFrame], tuple[pd.DataFrame, list[str]]] | None = None,
) -> Analysis:
    """Names, labels, findings, source; `baseline` adds the comparison with the log of a run without nsys, `inside` what was
    marked inside kernels, `host` what the host did in the gaps of some segments."""
    analysis = _named(measured, log, clocks)
    if inside is not None:
        analysis = inside(analysis)
    portion, source, intervals = measured.portion, measured.source, analysis.intervals
    real = (intervals["kind"] != "run").to_numpy()
    pieces, run = portion.size.sum(), portion.size[~real].sum()
    whole = all_segments or pieces - run <= MOST_PIECES
    if whole:
        kept = np.flatnonzero(real | all_segments | (pieces <= MOST_PIECES))
        analysis = replace(analysis, segments=source.segments(kept))
    if baseline is not None:
        analysis = _with_baseline(analysis, measured, log, baseline)
    wanted = intervals.loc[intervals["name"].isin(list(draw)) & real, "interval"].tolist()
    far = np.setdiff1d(
        far_intervals(portion), wanted
    )  # of these nothing is read again that was not asked for
    if len(far):
        analysis = replace(analysis, notes=(*analysis.notes, too_long(len(far))))
    if not whole:  # rules mostly need the same intervals that will be drawn
        source.expect(_drawn(analysis, far, wanted))
    analysis = diagnose(analysis, None if whole else source.segment_arrays, () if whole else far)
    trim_memory()
    if not whole:
        analysis = _some_segments(analysis, measured, wanted)
    if host is not None:
        analysis = _with_host_activity(analysis, measured, pieces - run > MOST_PIECES, host)
    drawn = _drawn(analysis, far, wanted)
    if baseline is None:
        told = np.union1d(drawn, far)
        analysis = _with_predictions(analysis, source, told, HostSpeed(log, measured.clock_maps))
    return replace(analysis, timeline=source.timeline(drawn, analysis))


def _drawn(analysis: Analysis, far: np.ndarray, wanted: Sequence[int] = ()) -> np.ndarray:
    return np.setdiff1d(chosen_intervals(analysis, wanted), far).astype(np.int64)


def _named(measured: Measured, log: EventLog | None, clocks: Path | None) -> Analysis:
    """Everything that needs neither segments nor rules: tables, notes, calibration."""
    p = measured.portion
    intervals = intervals_table(p)
    labels = label_table(intervals[intervals["kind"] != "run"])
    gpu_clocks, said = _gpu_clocks(measured, clocks)
    notes = [
        *(log.notes if log else ()),
        *p.notes,
        *left_out(p.on_host),
        *_disturbed(intervals),
        *said,
    ]
    unaligned = p.unaligned
    unaligned = unaligned.assign(
        label=unaligned["name"].astype(str).str.replace(REPETITION, "", regex=True)
    )
    calibration = dict(measured.calibration) | {
        "launch_latency_ns": {k: measured.launch_latency[KIND[k]] for k in KIND},
        "collected_with": said_by_the_probe(log),
    }
    return Analysis(
        trace=_without_what_the_clock_replaces(measured.info, intervals),
        intervals=intervals,
        parts=parts_table(p),
        segments=frames.empty(frames.SEGMENTS),
        details=p.details[frames.DETAILS.names],
        other_streams=p.other_streams,
        labels=labels,
        unaligned=frames.check(unaligned, frames.UNALIGNED),
        findings=frames.empty(frames.FINDINGS),
        timeline=frames.empty(frames.TIMELINE),
        kernels=kernel_table(p.durations, intervals),
        gaps=longest_gaps(p.gaps),
        variants=variant_table(p.rows, intervals, measured.source.blocks),
        host_ranges=host_ranges(p.on_host),
        notes=tuple(dict.fromkeys(notes)),
        calibration=calibration,
        gpu_clocks=gpu_clocks,
        source_lines=source_lines(log),
    )


def _disturbed(intervals: pd.DataFrame) -> list[str]:
    """A note if the profiler's own work fell into intervals."""
    count = sum("profiler-disturbed" in flags for flags in intervals["flags"])
    some = "1 interval was" if count == 1 else f"{count} intervals were"
    return (
        [f"{some} disturbed by the profiler's own work (flag profiler-disturbed)"] if count else []
    )


def _with_predictions(
    analysis: Analysis, source: SegmentSource, drawn: np.ndarray, host: HostSpeed
) -> Analysis:
    """Adds what the interval in each label's row would have measured without nsys, which tables show next to the profiled
    time."""
    labels, variants = (
        table["row_interval"].to_numpy(dtype=np.int64)
        for table in (analysis.labels, analysis.variants)
    )
    rows = np.union1d(np.intersect1d(labels, drawn), variants[: len(drawn)])
    if not len(rows):
        return analysis
    unprofiled, parts = predict_intervals(
        source, rows, analysis.measured, analysis.parts, host, wide=False
    )
    return replace(analysis, unprofiled=unprofiled, unprofiled_parts=parts)


def _without_what_the_clock_replaces(info: TraceInfo, intervals: pd.DataFrame) -> TraceInfo:
    """If every pair is placed by the events' own clock, missing CUPTI timestamps are not mentioned."""
    if set(intervals.loc[intervals["kind"] == "event", "method"]) != {"clock"}:
        return info
    kept = tuple(m for m in info.missing if not m.startswith("CUPTI_ACTIVITY_KIND_CUDA_EVENT"))
    return replace(info, missing=kept)


def _some_segments(analysis: Analysis, measured: Measured, wanted: Sequence[int]) -> Analysis:
    """Segments of the wanted intervals and of those that are drawn, as many as fit, and a note about that."""
    drawn = np.setdiff1d(_drawn(analysis, far_intervals(measured.portion)), wanted)
    fit = _fitting(drawn, measured.portion.size)
    kept = np.union1d(fit, np.array(wanted, dtype=np.int64)).astype(np.int64)
    note = (
        f"segments are kept of {len(kept):,} of {len(analysis.measured):,} intervals (median, slowest and first of each "
        "label, and those of the findings); to keep all: nsysalign analyze --all-segments"
    )
    return replace(analysis, segments=measured.source.segments(kept), notes=(*analysis.notes, note))


def _gpu_clocks(measured: Measured, clocks: Path | None) -> tuple[pd.DataFrame, list[str]]:
    """The run's clock samples on the trace's clock, and notes."""
    if clocks is None:
        return frames.empty(frames.GPU_CLOCKS), []
    samples, notes = read_clock_samples(clocks)
    used = measured.lanes[["process", "device"]].drop_duplicates()
    shared = bool(used["device"].duplicated().any())  # or each process saw its own GPU as device 0
    placed, more = place_samples(
        samples, measured.clock_maps, measured.info.session_start_utc_ns, shared=shared
    )
    return placed, notes + more


def _with_baseline(
    analysis: Analysis, measured: Measured, log: EventLog | None, baseline: EventLog
) -> Analysis:
    """Adds the run without nsys, and what it should have measured according to the profiled one."""
    real = analysis.measured
    host = HostSpeed(log, measured.clock_maps)
    unprofiled, parts = predict(measured.source, real, analysis.parts, analysis.labels, host)
    windows = measured.portion.rows.iloc[: len(real)]  # all but the run as a whole
    table, notes = side_by_side(real, windows, log, baseline, unprofiled, parts, timed(baseline))
    return replace(
        analysis,
        baseline=table,
        unprofiled=unprofiled,
        unprofiled_parts=parts,
        notes=tuple(dict.fromkeys([*analysis.notes, *notes])),
    )


def _inside_kernels(inputs: Inputs, analysis: Analysis) -> Analysis:
    """Adds what the dumps of marks say about the insides of kernels."""
    from nsysalign.marks.inside import marked_inside

    inside = marked_inside(inputs.marks, inputs.trace, inputs.marked, analysis.measured)
    return replace(
        analysis,
        **inside.tables,
        notes=tuple(dict.fromkeys([*analysis.notes, *inside.notes])),
        calibration={**analysis.calibration, "marks": list(inside.buffers)},
    )


def _with_host_activity(
    analysis: Analysis,
    measured: Measured,
    many: bool,
    opened: Callable[[pd.DataFrame, pd.DataFrame], tuple[pd.DataFrame, list[str]]],
) -> Analysis:
    """Adds what the host did in the gaps: for all intervals or, if there are `many` pieces, for those that are drawn, whatever
    else is kept."""
    real, notes = analysis.measured, []
    if many:
        some = _fitting(_drawn(analysis, far_intervals(measured.portion)), measured.portion.size)
        segments = measured.source.segments(some)
        notes = [
            f"what the host did in its gaps was determined for {len(some):,} of {len(real):,} intervals"
        ]
    else:
        segments = analysis.segments[analysis.segments["interval"].isin(real["interval"])]
    table, more = opened(real, segments)
    notes = [*(notes if (table["view"] != "all").any() else []), *more]
    return replace(
        analysis, host_activity=table, notes=tuple(dict.fromkeys([*analysis.notes, *notes]))
    )


def _fitting(intervals: np.ndarray, size: np.ndarray) -> np.ndarray:
    """As many intervals as together have a third of MOST_PIECES, those with the fewest pieces first; ascending."""
    ranked = intervals[np.argsort(size[intervals], kind="stable")]
    return np.sort(ranked[np.cumsum(size[ranked]) <= MOST_PIECES // 3])


def _host_gaps_opened(
    inputs: Inputs, intervals: pd.DataFrame, segments: pd.DataFrame
) -> tuple[pd.DataFrame, list[str]]:
    """`frames.HOST_ACTIVITY` of these segments, and notes."""
    calls = calls_after_gaps(segments)
    if not len(calls):
        return frames.empty(frames.HOST_ACTIVITY), []
    gaps = host_gaps(intervals, segments, threads_of(inputs.trace, calls))
    made, names, notes = os_calls(inputs.trace, int(gaps.start.min()), int(gaps.end.max()))
    stacks, more = read_stacks(inputs.stacks) if inputs.stacks is not None else (None, [])
    return host_activity(gaps, made, names, stacks), [*notes, *more]
