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
from nsysalign.errors import EventLogError
from nsysalign.explain.findings import diagnose
from nsysalign.explain.runs import facts_of_runs
from nsysalign.explain.runs.no_work import CallsWithoutWork
from nsysalign.memory import trim_memory
from nsysalign.model import Analysis, Diagnosis, EventLog, Evidence, Known, Trace
from nsysalign.paths import without_paths
from nsysalign.place.align import align
from nsysalign.place.clocks import place_samples
from nsysalign.place.host_timers import timed
from nsysalign.place.pauses import with_pauses
from nsysalign.place.ranges import without_own_work
from nsysalign.predict.unprofiled import Predictions, predict, predict_intervals
from nsysalign.rundir import Inputs, RunDirectory
from nsysalign.split.budget import (
    DISTURBED,
    SplitTrace,
    by_the_log,
    intervals_table,
    other_streams,
    split_trace,
)
from nsysalign.split.crowd import without_crowds
from nsysalign.split.gaps import launch_latency
from nsysalign.split.groups import groups_of, labels_around
from nsysalign.split.host import host_activity, on_host
from nsysalign.split.labels import Ran, kernel_table, label_table
from nsysalign.split.runs import with_runs
from nsysalign.split.timeline import chosen_intervals, split_timeline
from nsysalign.text import REPETITION
from nsysalign.trace.eventlog import named_by_probe, read_event_logs, source_lines
from nsysalign.trace.read import read_trace
from nsysalign.trace.samples import read_clock_samples

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
        inputs = replace(inputs, of_addons={name: _several(paths) for name, paths in given.items()})
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
    trim_memory()
    tell("placing the events", 45)
    latency = launch_latency(trace)
    trace, alignment = without_own_work(trace, align(trace, log))
    alignment = without_crowds(trace, with_runs(trace, alignment))
    trace = with_pauses(trace, log, alignment.clock_maps, alignment.processes)
    trim_memory()
    by_log = by_the_log(alignment, log)
    # what only placing needs takes as much memory as all the rest
    if log is not None and not inputs.baseline:
        log = replace(
            log,
            records=frames.empty(frames.RECORDS),
            waits=frames.empty(frames.WAITS),
            elapsed=frames.empty(frames.ELAPSED),
        )
    alignment = replace(alignment, clock=None)
    trace = replace(trace, event_rows=frames.empty(frames.EVENT_ROWS))
    if not (alignment.windows["kind"] == "host").any():  # these say what host timers waited for
        trace = replace(trace, syncs=frames.empty(frames.SYNCS))
    trim_memory()
    tell("splitting the intervals", 60)
    split = split_trace(trace, alignment, latency)
    trim_memory()
    tell("explaining", 85)
    intervals = intervals_table(split, by_log)
    trim_memory()
    evidence, predicted = _evidence(split, intervals, log, inputs)
    del log
    trim_memory()
    for add in registry.steps(inputs):
        evidence = add(evidence, inputs)
    diagnosis = diagnose(evidence, split.segment_arrays)
    trim_memory()
    return _answer(split, inputs, evidence, predicted, diagnosis, draw, all_segments)


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


def load(path: str | PathLike[str]) -> Analysis:
    """A stored analysis: a run directory or an analysis.db.  Raises AnalysisError if it does not
    add up."""
    from nsysalign.pathkind import stored
    from nsysalign.store import database

    return database.load(stored(Path(path)))


def _evidence(
    split: SplitTrace, intervals: pd.DataFrame, log: EventLog | None, inputs: Inputs
) -> tuple[Evidence, Predictions | None]:
    """The tables that rules read; what the intervals should have measured without nsys if a run
    without it says what they did."""
    trace, alignment = split.trace, split.alignment
    # those of the run as a whole come last: a view takes no memory
    measured = intervals.iloc[: int((intervals["kind"] != "run").sum())]
    labels = label_table(measured)
    ran = Ran(split.explainer, alignment.windows)
    groups = groups_of(split, ran, intervals)
    intervals = intervals.assign(group=frames.narrow(groups.of_interval))
    measured = intervals.iloc[: len(measured)]
    around = labels_around(alignment.windows, intervals["label"])
    labels = labels.assign(inside=[around.get(label, "") for label in labels["label"]])
    of_runs, gaps = facts_of_runs(ran)
    without_work = [fact for fact in of_runs if isinstance(fact, CallsWithoutWork)]
    ranges = on_host(trace, alignment)
    notes = [*(log.notes if log else ()), *alignment.notes, *ranges.notes]
    disturbed = sum(DISTURBED in flags for flags in intervals["flags"])
    if disturbed:
        some = "1 interval was" if disturbed == 1 else f"{disturbed} intervals were"
        notes.append(f"{some} disturbed by the profiler's own work (flag {DISTURBED})")
    clocks = frames.empty(frames.GPU_CLOCKS)
    if inputs.clocks is not None:
        samples, said = read_clock_samples(inputs.clocks)
        used = alignment.lanes.loc[alignment.busy, ["process", "device"]].drop_duplicates()
        shared = used["device"].duplicated().any()  # or each process saw its own GPU as device 0
        start = trace.info.session_start_utc_ns
        clocks, more = place_samples(samples, alignment.clock_maps, start, shared=bool(shared))
        notes += [*said, *more]
    predicted, baseline = None, frames.empty(frames.BASELINE)
    if inputs.baseline:
        from nsysalign.compare.side_by_side import side_by_side

        try:
            without = read_event_logs(inputs.baseline)
            predicted = predict(split, measured, labels)
            windows = alignment.windows.iloc[: len(measured)]  # all but the run as a whole
            baseline, said = side_by_side(
                measured, windows, log, without, predicted.table, timed(without)
            )
            notes += said
        except EventLogError as error:  # the profiled run does not depend on it
            notes.append(
                f"the run without nsys cannot be compared with this one: {without_paths(error.message)}"
            )
    info = trace.info
    if set(intervals.loc[intervals["kind"] == "event", "method"]) == {"clock"}:
        # every pair is placed by the events' own clock: it lacks no time stamps
        stamps = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
        info = replace(info, missing=tuple(m for m in info.missing if not m.startswith(stamps)))
    unaligned = alignment.unaligned
    unaligned_labels = unaligned["name"].astype(str).str.replace(REPETITION, "", regex=True)
    evidence = Evidence(
        trace=info,
        intervals=intervals,
        parts=split.parts,
        details=split.details,
        other_streams=other_streams(split),
        labels=labels,
        **groups.tables,
        unaligned=frames.check(unaligned.assign(label=unaligned_labels), frames.UNALIGNED),
        kernels=kernel_table(ran, intervals),
        gaps=gaps,
        host_ranges=ranges.table,
        gpu_clocks=clocks,
        source_lines=source_lines(log),
        baseline=baseline,
        notes=tuple(dict.fromkeys(notes)),
        of_runs=of_runs,
        known=Known(
            calls_without_work=sum(made.calls for made in without_work),
            issuing_without_work=sum(made.issuing for made in without_work),
            torch=named_by_probe(log, "torch"),
            python=named_by_probe(log, "python"),
        ),
    )
    return evidence, predicted


def _answer(
    split: SplitTrace,
    inputs: Inputs,
    evidence: Evidence,
    predicted: Predictions | None,
    diagnosis: Diagnosis,
    draw: Sequence[str],
    all_segments: bool,
) -> Analysis:
    """The evidence with what rules say, and with what is made for some intervals only: segments,
    what the host did, predictions, pictures."""
    measured = evidence.measured
    real = (evidence.intervals["kind"] != "run").to_numpy()
    wanted = np.flatnonzero(evidence.intervals["name"].isin(list(draw)).to_numpy() & real)
    drawn = np.array(chosen_intervals(evidence, diagnosis.findings, wanted.tolist()), np.int64)
    conditions = RunDirectory(inputs.home).conditions() if inputs.home else ()
    notes = [*conditions, *evidence.notes, *diagnosis.notes]
    many = split.size[real].sum() > MOST_PIECES
    if all_segments or not many:
        kept = real | all_segments | (split.size.sum() <= 2 * MOST_PIECES)  # runs as much again
        segments = split.segments(np.flatnonzero(kept))
    else:
        numbers = np.union1d(_fitting(np.setdiff1d(drawn, wanted), split), wanted)
        segments = split.segments(numbers.astype(np.int64))
        notes.append(
            f"segments are kept of {len(numbers):,} of {len(measured):,} intervals (median, slowest and first of each "
            "label, and those of the findings); to keep all: nsysalign analyze --all-segments"
        )
    if many:
        usual = chosen_intervals(evidence, diagnosis.findings, [])  # whatever else is drawn
        some = _fitting(np.array(usual, np.int64), split)
        activity = host_activity(split.trace, inputs.stacks, measured, split.segments(some))
        if (activity.table["view"] != "all").any():
            notes.append(
                f"what the host did in its gaps was determined for {len(some):,} of {len(measured):,} intervals"
            )
    else:
        of_intervals = segments[segments["interval"].isin(measured["interval"])]
        activity = host_activity(split.trace, inputs.stacks, measured, of_intervals)
    if predicted is None:  # what the intervals that tables show would have measured without nsys
        rows = evidence.labels["row_interval"].to_numpy(dtype=np.int64)
        predicted = predict_intervals(split, np.intersect1d(rows, drawn))
    return Analysis(
        **evidence.fields
        | {
            "intervals": evidence.intervals.assign(findings=diagnosis.of_intervals),
            "notes": tuple(dict.fromkeys([*notes, *activity.notes])),
        },
        findings=diagnosis.findings,
        segments=segments,
        host_activity=activity.table,
        unprofiled=predicted.table,
        unprofiled_parts=predicted.parts,
        timeline=split_timeline(split, drawn, evidence),
    )


def _fitting(intervals: np.ndarray, split: SplitTrace) -> np.ndarray:
    """As many intervals as together have a third of MOST_PIECES, those with the fewest pieces
    first; ascending."""
    ranked = intervals[np.argsort(split.size[intervals], kind="stable")]
    return np.sort(ranked[np.cumsum(split.size[ranked]) <= MOST_PIECES // 3])
