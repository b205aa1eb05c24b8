"""The one path from a trace to its analysis, and the entry point for Python users.

    >>> import nsysalign
    >>> a = nsysalign.analyze("trace.sqlite", events=["events-484.jsonl"])
    >>> a.intervals[["name", "elapsed_ns", "kernel_only_ns"]]

    export, logs --> read --> place --> split --> explain --> Analysis
                    (trace)  (place)   (split)   (tables, add-ons, segments, baseline, diagnose, host, predict, pictures)

The DataFrames' columns are declared, with dtype and unit, in `nsysalign.frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames, registry
from nsysalign.compare.side_by_side import side_by_side
from nsysalign.errors import AnalysisError, EventLogError
from nsysalign.explain.rules import diagnose
from nsysalign.memory import trim_memory
from nsysalign.model import KIND, Analysis, EventLog, Trace, TraceInfo
from nsysalign.paths import without_paths
from nsysalign.place.align import align
from nsysalign.place.gpu_clock import place_samples
from nsysalign.place.host_timers import timed
from nsysalign.place.own_work import without_own_work
from nsysalign.predict.unprofiled import predict, predict_intervals
from nsysalign.rundir import DATABASE, Inputs, RunDirectory
from nsysalign.split.budget import (
    SplitTrace,
    intervals_table,
    other_streams,
    parts_table,
    split_trace,
)
from nsysalign.split.gaps import launch_latency
from nsysalign.split.host import calls_after_gaps, host_activity, host_gaps, on_host
from nsysalign.split.labels import label_table
from nsysalign.split.runs import (
    calls_without_work,
    idle_gaps,
    page_migrations,
    small_launches,
    with_runs,
)
from nsysalign.split.timeline import MAX_INTERVALS, chosen_intervals, split_timeline
from nsysalign.split.work import Ran, kernel_table, variant_table
from nsysalign.text import REPETITION
from nsysalign.trace.clock_samples import read_clock_samples
from nsysalign.trace.eventlog import read_event_logs, said_by_the_probe, source_lines
from nsysalign.trace.gpus import multiprocessors
from nsysalign.trace.host_calls import os_calls, threads_of
from nsysalign.trace.read import read_trace
from nsysalign.trace.stacks import read_stacks

#: Segments of all intervals are kept up to about this many; sums, bounds and details always cover
#: all intervals.
MOST_PIECES = 100_000

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
    **given: _Paths,
) -> Analysis:
    """Analyse an nsys SQLite export with the event logs of its processes, or a run directory with
    all that belongs to it.

    Without a log the NVTX ranges of the trace become intervals of kind `nvtx`.  `clocks` is the
    run's clocks.jsonl, `baseline` the event logs of the same program run without nsys, for
    comparison.  `given`: files for add-ons, such as `marks`: dumps of marks inside kernels (.nsam),
    made in the run of this trace, or in that of the trace `marked` of the same program.  `draw` names intervals whose timeline and
    segments are always kept; `all_segments` keeps those of every interval, even if a long trace has
    more than fit into a table of ordinary size; `progress(step, percent)` is called when a step
    begins.  Raises TraceError or EventLogError with what to do next.
    """
    known = {name for addon in registry.addons().values() for name in addon.files}
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"analyze() got an unexpected keyword argument {unknown[0]!r}")
    path, logs, without = Path(trace), _several(events), _several(baseline)
    if path.is_dir():
        run = RunDirectory(path)
        logs, without = logs or tuple(run.event_logs()), without or tuple(run.baseline_logs())
        inputs = run.inputs(run.export(), logs, without)
    else:
        inputs = Inputs(path, logs, without)
    if clocks is not None:
        inputs = replace(inputs, clocks=Path(clocks))
    if given:
        inputs = replace(inputs, given={name: _several(paths) for name, paths in given.items()})
    return analyze_inputs(inputs, draw=draw, all_segments=all_segments, progress=progress)


def analyze_inputs(
    inputs: Inputs,
    *,
    draw: Sequence[str] = (),
    all_segments: bool = False,
    progress: Progress | None = None,
) -> Analysis:
    """The same for inputs that are already put together, including verdicts of re-runs and
    conditions of the run."""
    tell = progress or (lambda step, percent: None)
    tell("reading the trace", 0)
    trace, log = _read(inputs)
    tell("placing the events", 45)
    latency = launch_latency(trace)
    trace, alignment = without_own_work(trace, align(trace, log))
    alignment = with_runs(trace, alignment)
    trim_memory()
    tell("splitting the intervals", 60)
    split = split_trace(trace, alignment, latency)
    trim_memory()
    tell("explaining", 85)
    return _explained(split, log, inputs, draw, all_segments)


def _several(paths: _Paths) -> tuple[Path, ...]:
    """One path becomes a list of one: a string would be taken for a list of its characters."""
    return tuple(map(Path, [paths] if isinstance(paths, str | PathLike) else paths))


def _read(inputs: Inputs) -> tuple[Trace, EventLog | None]:
    """The trace and its log."""
    # big tables are read outside the GIL: the logs can be read meanwhile
    with ThreadPoolExecutor(1) as pool:
        logs = pool.submit(read_event_logs, inputs.events) if inputs.events else None
        trace = read_trace(inputs.trace)
        log = logs.result() if logs is not None else None
    if log is not None and any(h.get("baseline") for h in log.headers):
        raise EventLogError(
            "this is the event log of a run without nsys, so it belongs to no trace",
            "name the profiled run's log with --events, and this one with --baseline",
        )
    return trace, log


def read_baseline(logs: Sequence[Path]) -> tuple[EventLog | None, list[str]]:
    """The log of the run without nsys.  If it cannot be read there is a note: the profiled run does
    not depend on it."""
    if not logs:
        return None, []
    try:
        return read_event_logs(logs), []
    except EventLogError as error:
        return None, [
            f"the run without nsys cannot be compared with this one: {without_paths(error.message)}"
        ]


def load(path: str | PathLike[str]) -> Analysis:
    """A stored analysis: a run directory or an analysis.db.  Raises AnalysisError if it does not
    add up."""
    from nsysalign.store import database

    path = Path(path)
    if not path.is_dir():
        return database.load(path)
    stored = path / DATABASE
    if not stored.is_file():
        raise AnalysisError(
            f"{path}: no analysis.db in this directory", f"nsysalign analyze {path}"
        )
    loaded = database.load(stored)
    for add in registry.each("since"):
        loaded = add(loaded, path)
    return loaded


def _explained(
    split: SplitTrace,
    log: EventLog | None,
    inputs: Inputs,
    draw: Sequence[str],
    all_segments: bool,
) -> Analysis:
    """Names, labels, segments, what add-ons and a run without nsys say, findings, what the host did,
    predictions, pictures."""
    analysis = _tables(split, log, inputs)
    for add in registry.each("step"):
        analysis = add(analysis, inputs)
    real = (analysis.intervals["kind"] != "run").to_numpy()
    named = analysis.intervals["name"].isin(list(draw)).to_numpy()
    wanted = np.flatnonzero(named & real).tolist()
    size = split.size
    many = size[real].sum() > MOST_PIECES
    whole = all_segments or not many
    if whole:
        kept = real | all_segments | (size.sum() <= MOST_PIECES)
        analysis = replace(analysis, segments=split.segments(np.flatnonzero(kept)))
    baseline, said = read_baseline(inputs.baseline)
    if baseline is not None:
        analysis = _with_baseline(analysis, split, log, baseline)
    analysis = diagnose(analysis, split.segment_arrays)
    trim_memory()
    drawn = np.array(chosen_intervals(analysis, wanted), np.int64)
    if not whole:
        analysis = _with_some_segments(analysis, split, drawn, wanted)
    analysis = _with_host_activity(analysis, split, inputs, drawn if many else None)
    if baseline is None:
        analysis = _with_predictions(analysis, split, drawn)
    return replace(
        analysis,
        timeline=split_timeline(split, drawn, analysis),
        notes=tuple(dict.fromkeys([*inputs.conditions, *analysis.notes, *said])),
    )


def _tables(split: SplitTrace, log: EventLog | None, inputs: Inputs) -> Analysis:
    """Everything that needs neither segments nor rules: tables, notes, calibration."""
    trace, alignment = split.trace, split.alignment
    intervals = intervals_table(split, log)
    ran = Ran(trace, split.explainer.streams, alignment.windows)
    ranges = on_host(trace, alignment)
    gpu_clocks, said = _gpu_clocks(split, inputs.clocks)
    notes = [
        *(log.notes if log else ()),
        *alignment.notes,
        *ranges.notes,
        *_disturbed(intervals),
        *said,
    ]
    unaligned = alignment.unaligned
    unaligned = unaligned.assign(
        label=unaligned["name"].astype(str).str.replace(REPETITION, "", regex=True)
    )
    calibration = dict(alignment.calibration) | {
        "launch_latency_ns": {k: split.explainer.launch_latency[KIND[k]] for k in KIND},
        "collected_with": said_by_the_probe(log),
        "page_migrations": page_migrations(trace),
        **small_launches(trace, multiprocessors(inputs.trace)),
        "calls_without_work": calls_without_work(trace),
    }
    return Analysis(
        trace=_without_what_the_clock_replaces(trace.info, intervals),
        intervals=intervals,
        parts=parts_table(split),
        segments=frames.empty(frames.SEGMENTS),
        details=split.details,
        other_streams=other_streams(split),
        labels=label_table(intervals[intervals["kind"] != "run"]),
        unaligned=frames.check(unaligned, frames.UNALIGNED),
        findings=frames.empty(frames.FINDINGS),
        timeline=frames.empty(frames.TIMELINE),
        kernels=kernel_table(ran, intervals),
        gaps=idle_gaps(ran),
        variants=variant_table(ran, intervals),
        host_ranges=ranges.table,
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


def _with_predictions(analysis: Analysis, split: SplitTrace, drawn: np.ndarray) -> Analysis:
    """Adds what the interval in each label's row would have measured without nsys, which tables
    show next to the profiled time."""
    labels, variants = (
        table["row_interval"].to_numpy(dtype=np.int64)
        for table in (analysis.labels, analysis.variants)
    )
    rows = np.union1d(np.intersect1d(labels, drawn), variants[:MAX_INTERVALS])
    if not len(rows):
        return analysis
    unprofiled, parts = predict_intervals(split, rows, analysis.measured, analysis.parts)
    return replace(analysis, unprofiled=unprofiled, unprofiled_parts=parts)


def _without_what_the_clock_replaces(info: TraceInfo, intervals: pd.DataFrame) -> TraceInfo:
    """If every pair is placed by the events' own clock, missing CUPTI timestamps are not
    mentioned."""
    if set(intervals.loc[intervals["kind"] == "event", "method"]) != {"clock"}:
        return info
    kept = tuple(m for m in info.missing if not m.startswith("CUPTI_ACTIVITY_KIND_CUDA_EVENT"))
    return replace(info, missing=kept)


def _with_some_segments(
    analysis: Analysis, split: SplitTrace, drawn: np.ndarray, wanted: Sequence[int]
) -> Analysis:
    """Segments of the wanted intervals and of those that are drawn, as many as fit, and a note
    about that."""
    fit = _fitting(np.setdiff1d(drawn, wanted), split)
    kept = np.union1d(fit, np.array(wanted, dtype=np.int64)).astype(np.int64)
    note = (
        f"segments are kept of {len(kept):,} of {len(analysis.measured):,} intervals (median, slowest and first of each "
        "label, and those of the findings); to keep all: nsysalign analyze --all-segments"
    )
    return replace(analysis, segments=split.segments(kept), notes=(*analysis.notes, note))


def _fitting(intervals: np.ndarray, split: SplitTrace) -> np.ndarray:
    """As many intervals as together have a third of MOST_PIECES, those with the fewest pieces
    first; ascending."""
    size = split.size
    ranked = intervals[np.argsort(size[intervals], kind="stable")]
    return np.sort(ranked[np.cumsum(size[ranked]) <= MOST_PIECES // 3])


def _gpu_clocks(split: SplitTrace, clocks: Path | None) -> tuple[pd.DataFrame, list[str]]:
    """The run's clock samples on the trace's clock, and notes."""
    if clocks is None:
        return frames.empty(frames.GPU_CLOCKS), []
    samples, notes = read_clock_samples(clocks)
    alignment = split.alignment
    used = alignment.lanes.loc[alignment.busy, ["process", "device"]].drop_duplicates()
    shared = bool(used["device"].duplicated().any())  # or each process saw its own GPU as device 0
    start = split.trace.info.session_start_utc_ns
    placed, more = place_samples(samples, alignment.clock_maps, start, shared=shared)
    return placed, notes + more


def _with_baseline(
    analysis: Analysis, split: SplitTrace, log: EventLog | None, baseline: EventLog
) -> Analysis:
    """Adds the run without nsys, and what it should have measured according to the profiled one."""
    real = analysis.measured
    unprofiled, parts = predict(split, real, analysis.parts, analysis.labels)
    windows = split.alignment.windows.iloc[: len(real)]  # all but the run as a whole
    table, notes = side_by_side(real, windows, log, baseline, unprofiled, timed(baseline))
    return replace(
        analysis,
        baseline=table,
        unprofiled=unprofiled,
        unprofiled_parts=parts,
        notes=tuple(dict.fromkeys([*analysis.notes, *notes])),
    )


def _with_host_activity(
    analysis: Analysis, split: SplitTrace, inputs: Inputs, some: np.ndarray | None
) -> Analysis:
    """Adds what the host did in the gaps of all intervals or, if there are too many pieces, of
    `some`, as many as fit."""
    real, notes = analysis.measured, []
    if some is None:
        segments = analysis.segments[analysis.segments["interval"].isin(real["interval"])]
    else:
        some = _fitting(some, split)
        segments = split.segments(some)
        notes = [
            f"what the host did in its gaps was determined for {len(some):,} of {len(real):,} intervals"
        ]
    calls = calls_after_gaps(segments)
    if not len(calls):
        return replace(analysis, host_activity=frames.empty(frames.HOST_ACTIVITY))
    idle = host_gaps(real, segments, threads_of(inputs.trace, calls))
    made, names, said = os_calls(inputs.trace, int(idle.start.min()), int(idle.end.max()))
    stacks, more = read_stacks(inputs.stacks) if inputs.stacks is not None else (None, [])
    table = host_activity(idle, made, names, stacks)
    notes = [*(notes if (table["view"] != "all").any() else []), *said, *more]
    return replace(
        analysis, host_activity=table, notes=tuple(dict.fromkeys([*analysis.notes, *notes]))
    )
