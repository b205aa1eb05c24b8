"""The one path from a trace to its analysis, and the entry point for Python users.

    >>> import nsysalign
    >>> a = nsysalign.analyze("trace.sqlite", events=["events-484.jsonl"])
    >>> a.intervals[["name", "elapsed_ns", "kernel_only_ns"]]

Each stage takes the record of the one before it and returns its own, which holds no more than later
stages read; memory that the earlier ones used is given back in between.  Files are read in the first
stage (but those of add-ons, and the grids of single kernels, `Trace.shapes`).

    Request --> Recorded --> Placed --> Split --> Measured --> Explained --> Diagnosed --> Analysis
           read         place      split    intervals    explain       diagnose      answer

The DataFrames' columns are declared, with dtype and unit, in `nsysalign.frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames, registry
from nsysalign.errors import EventLogError
from nsysalign.explain.findings import diagnose
from nsysalign.explain.rules import facts_of_runs
from nsysalign.explain.runs.no_work import CallsWithoutWork
from nsysalign.explain.runs.pages import ManagedAllocations
from nsysalign.memory import trim_memory
from nsysalign.model import (
    Alignment,
    Analysis,
    Diagnosis,
    EventLog,
    Evidence,
    Known,
    Trace,
    TraceInfo,
)
from nsysalign.paths import without_paths
from nsysalign.place.align import align
from nsysalign.place.clocks import place_samples
from nsysalign.place.forks import with_forks
from nsysalign.place.host_timers import timed
from nsysalign.place.off_cpu import with_off_cpu
from nsysalign.place.pauses import with_pauses
from nsysalign.place.ranges import without_own_work
from nsysalign.place.untraced import SetApart, set_apart, traced_windows
from nsysalign.predict.unprofiled import Predictions, predict, predict_intervals
from nsysalign.rundir import Inputs, RunDirectory
from nsysalign.split.budget import (
    DISTURBED,
    SplitTrace,
    idle_by_the_log,
    intervals_table,
    other_streams,
    split_trace,
)
from nsysalign.split.crowd import without_crowds
from nsysalign.split.gaps import launch_latency
from nsysalign.split.groups import groups_of
from nsysalign.split.host import host_activity, on_host
from nsysalign.split.labels import Ran, kernel_table, label_table, labels_around
from nsysalign.split.runs import with_runs
from nsysalign.split.timeline import chosen_intervals, split_timeline
from nsysalign.text import REPETITION, plural
from nsysalign.trace.eventlog import named_by_probe, read_event_logs, source_lines, torch_is_alone
from nsysalign.trace.read import read_trace
from nsysalign.trace.samples import Stacks, read_clock_samples, read_stacks

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
    **of_addons: _Paths,
) -> Analysis:
    """Return the analysis of an nsys SQLite export with the event logs of its processes, or of a run directory with
    all that belongs to it.

    trace, events: the export and the logs, or the run directory.  Without a log the NVTX ranges of the trace
        become intervals of kind `nvtx`
    clocks: the run's clocks.jsonl
    baseline: the event logs of the same program run without nsys, for comparison
    draw: names of intervals whose timeline and segments are always kept
    all_segments: whether the segments of every interval are kept, even if a long trace has more than fit into
        a table of ordinary size
    progress: called with (step, percent) when a step begins
    of_addons: files for add-ons, such as `marks`: dumps of marks inside kernels (.nsam), made in the run of this
        trace, or in that of the trace `marked` of the same program

    Raises TraceError or EventLogError with what to do next.
    """
    known = {name for addon in registry.addons().values() for name in addon.files}
    if unknown := sorted(of_addons.keys() - known):
        raise TypeError(f"analyze() got an unexpected keyword argument {unknown[0]!r}")
    path = Path(trace)
    logs, logs_without_nsys = _several(events), _several(baseline)
    if path.is_dir():
        run = RunDirectory(path)
        logs = logs or tuple(run.event_logs())
        logs_without_nsys = logs_without_nsys or tuple(run.baseline_logs())
        inputs = run.inputs(run.export(), logs, logs_without_nsys)
    else:
        inputs = Inputs(path, logs, logs_without_nsys)
    if clocks is not None:
        inputs = replace(inputs, clocks=Path(clocks))
    if of_addons:
        files = {name: _several(paths) for name, paths in of_addons.items()}
        inputs = replace(inputs, of_addons=files)
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
    record: Any = Request(inputs, tuple(draw), all_segments)
    for stage in STAGES:
        if stage.step:
            tell(stage.step, stage.percent)
        record = stage.run(record)
        trim_memory()
    return record


def _several(paths: _Paths) -> tuple[Path, ...]:
    """One path becomes a list of one: a string would be taken for a list of its characters."""
    return tuple(map(Path, [paths] if isinstance(paths, str | PathLike) else paths))


def load(path: str | PathLike[str]) -> Analysis:
    """A stored analysis: a run directory or an analysis.db.  Raises AnalysisError if it does not
    add up."""
    from nsysalign.pathkind import stored
    from nsysalign.store import database

    return database.load(stored(Path(path)))


# --- read


class Request(NamedTuple):
    """What is asked for.  draw, all_segments: as in `analyze`."""

    inputs: Inputs
    draw: tuple[str, ...]
    all_segments: bool


class Beside(NamedTuple):
    """What else was recorded in the run, and of the same program without nsys; None and () for none.

    not_compared: why its run without nsys cannot be compared with this one.  conditions: what was set up
    around the run.  exit_status: of the script.  apart: what ran untraced in it, once that is set apart."""

    clock_samples: pd.DataFrame
    clock_notes: Sequence[str]
    stacks: Stacks | None
    stack_notes: Sequence[str]
    baseline: EventLog | None
    not_compared: str
    conditions: tuple[str, ...]
    exit_status: int = 0
    apart: SetApart | None = None


class Recorded(NamedTuple):
    request: Request
    beside: Beside
    trace: Trace
    log: EventLog | None


def _read(request: Request) -> Recorded:
    """Read the trace, its logs, and what was recorded beside them.  Raises TraceError or EventLogError."""
    inputs = request.inputs
    # big tables are read outside the GIL: the logs can be read meanwhile
    with ThreadPoolExecutor(1) as pool:
        logs = pool.submit(read_event_logs, inputs.events) if inputs.events else None
        trace = read_trace(inputs.trace)
        log = logs.result() if logs is not None else None
    # a program that profiles itself is recorded in its run without nsys
    profiled_itself = trace.info.recorder == "kineto"
    unprofiled = log is not None and any(header.get("baseline") for header in log.headers)
    if unprofiled and not profiled_itself:
        raise EventLogError(
            "this is the event log of a run without nsys, so it belongs to no trace",
            "name the profiled run's log with --events, and this one with --baseline",
        )
    return Recorded(request, _read_beside(inputs), trace, log)


def _read_beside(inputs: Inputs) -> Beside:
    """Read what was recorded beside the trace.  A log of the run without nsys that cannot be read is a reason why
    nothing is compared, and no error."""
    samples, clock_notes = frames.empty(frames.CLOCK_SAMPLES), list[str]()
    if inputs.clocks is not None:
        samples, clock_notes = read_clock_samples(inputs.clocks)
    stacks, stack_notes = None, list[str]()
    if inputs.stacks is not None:
        stacks, stack_notes = read_stacks(inputs.stacks)
    baseline, not_compared = None, ""
    if inputs.baseline:
        try:
            baseline = read_event_logs(inputs.baseline)
        except EventLogError as error:  # the profiled run does not depend on it
            reason = without_paths(error.message)
            not_compared = f"the run without nsys cannot be compared with this one: {reason}"
    run = RunDirectory(inputs.home) if inputs.home else None
    conditions, exit_status = (run.conditions(), run.exit_status()) if run else ((), 0)
    return Beside(
        clock_samples=samples,
        clock_notes=clock_notes,
        stacks=stacks,
        stack_notes=stack_notes,
        baseline=baseline,
        not_compared=not_compared,
        conditions=conditions,
        exit_status=exit_status,
    )


# --- place


class Placed(NamedTuple):
    """latency: the usual launch latencies, measured before the tool's own work was taken out.  idle_at_most_ns:
    by window (`idle_by_the_log`).  log: without its records, where no run without nsys is
    compared with it."""

    request: Request
    beside: Beside
    trace: Trace
    alignment: Alignment
    log: EventLog | None
    idle_at_most_ns: pd.Series
    latency: np.ndarray


def _place(recorded: Recorded) -> Placed:
    """Give every interval a window on the trace's clock, and take out of the trace what the tool itself did.

    Of a recorder that works in turns, what ran while nothing was traced is set apart first.
    """
    log, beside = recorded.log, recorded.beside
    apart = set_apart(recorded.trace, log)
    if apart is not None:
        log = apart.log
    latency = launch_latency(recorded.trace)
    trace, alignment = without_own_work(recorded.trace, align(recorded.trace, log))
    alignment, left_out = traced_windows(trace, alignment)
    if apart is not None:
        beside = beside._replace(apart=apart._replace(left_out=apart.left_out + left_out))
    alignment = without_crowds(trace, with_runs(trace, alignment))
    trace = with_pauses(trace, log, alignment.clock_maps, alignment.processes)
    trace = with_off_cpu(trace, log, alignment.clock_maps, alignment.processes)
    trace = with_forks(trace, log, alignment.clock_maps, alignment.processes)
    idle_at_most_ns = idle_by_the_log(alignment, log)
    # what only placing needs takes as much memory as all the rest
    is_compared = beside.baseline is not None or apart is not None
    if log is not None and not is_compared:
        log = replace(
            log,
            records=frames.empty(frames.RECORDS),
            waits=frames.empty(frames.WAITS),
            elapsed=frames.empty(frames.ELAPSED),
        )
    trace = replace(trace, event_rows=frames.empty(frames.EVENT_ROWS))
    if not (alignment.windows["kind"] == "host").any():  # these say what host timers waited for
        trace = replace(trace, syncs=frames.empty(frames.SYNCS))
    alignment = replace(alignment, clock=None)
    return Placed(recorded.request, beside, trace, alignment, log, idle_at_most_ns, latency)


# --- split


class Split(NamedTuple):
    request: Request
    beside: Beside
    log: EventLog | None
    idle_at_most_ns: pd.Series
    split: SplitTrace


class Measured(NamedTuple):
    """intervals: all of them, those of runs last; measured: all but those, a view."""

    request: Request
    beside: Beside
    log: EventLog | None
    split: SplitTrace
    intervals: pd.DataFrame

    @property
    def measured(self) -> pd.DataFrame:
        return self.intervals.iloc[: int((self.intervals["kind"] != "run").sum())]


def _split(placed: Placed) -> Split:
    split = split_trace(placed.trace, placed.alignment, placed.latency)
    return Split(placed.request, placed.beside, placed.log, placed.idle_at_most_ns, split)


def _intervals(parted: Split) -> Measured:
    intervals = intervals_table(parted.split, parted.idle_at_most_ns)
    return Measured(parted.request, parted.beside, parted.log, parted.split, intervals)


# --- explain


class Explained(NamedTuple):
    """evidence: the tables that rules read.  predicted: what the intervals should have measured without
    nsys, if a run without it says what they did."""

    request: Request
    beside: Beside
    split: SplitTrace
    evidence: Evidence
    predicted: Predictions | None


class Diagnosed(NamedTuple):
    request: Request
    beside: Beside
    split: SplitTrace
    evidence: Evidence
    predicted: Predictions | None
    diagnosis: Diagnosis


def _explain(measured: Measured) -> Explained:
    """Make the tables that rules read: labels, groups with their ledgers, facts of runs, what kernels, ranges and
    clocks did, and the comparison with a run without nsys."""
    split, log = measured.split, measured.log
    alignment = split.alignment
    ran = Ran(split.explainer, alignment.windows)
    groups = groups_of(split, ran, measured.intervals)
    intervals = measured.intervals.assign(group=frames.narrow(groups.of_interval))
    measured = measured._replace(intervals=intervals)
    labels = label_table(measured.measured)
    label_around = labels_around(alignment.windows, intervals["label"])
    labels = labels.assign(inside=[label_around.get(label, "") for label in labels["label"]])
    of_runs = facts_of_runs(ran)
    ranges = on_host(split.trace, alignment)
    clocks, clock_notes = _gpu_clocks(measured)
    compared = _compared(measured, labels, groups.groups)
    notes = [*(log.notes if log else ()), *alignment.notes, *ranges.notes]
    notes += [*_disturbed(intervals), *clock_notes, *compared.notes]
    evidence = Evidence(
        trace=_info(split.trace.info, intervals),
        intervals=intervals,
        parts=split.parts,
        details=split.details,
        other_streams=other_streams(split),
        labels=labels,
        unaligned=_with_labels(alignment.unaligned),
        kernels=kernel_table(ran, intervals),
        host_ranges=ranges.table,
        gpu_clocks=clocks,
        source_lines=source_lines(log),
        baseline=compared.table,
        notes=tuple(dict.fromkeys(notes)),
        of_runs=(*of_runs.records, *groups.works),
        known=_known(log, of_runs.records, measured.beside),
    )
    evidence = evidence.with_tables({**groups.tables, **of_runs.tables})
    return Explained(measured.request, measured.beside, split, evidence, compared.predicted)


def _with_add_ons(explained: Explained) -> Explained:
    """Add the tables of add-ons."""
    inputs, evidence = explained.request.inputs, explained.evidence
    for add in registry.steps(inputs):
        evidence = add(evidence, inputs)
    return explained._replace(evidence=evidence)


def _gpu_clocks(measured: Measured) -> tuple[pd.DataFrame, list[str]]:
    """`frames.GPU_CLOCKS`, and notes."""
    beside, split = measured.beside, measured.split
    if measured.request.inputs.clocks is None:
        return frames.empty(frames.GPU_CLOCKS), []
    alignment = split.alignment
    used = alignment.lanes.loc[alignment.busy, ["process", "device"]].drop_duplicates()
    shared = used["device"].duplicated().any()  # or each process saw its own GPU as device 0
    start = split.trace.info.session_start_utc_ns
    clocks, notes = place_samples(
        beside.clock_samples, alignment.clock_maps, start, shared=bool(shared)
    )
    return clocks, [*beside.clock_notes, *notes]


class _Compared(NamedTuple):
    """`frames.BASELINE`, notes, and predictions for the intervals that it compares."""

    table: pd.DataFrame
    notes: Sequence[str]
    predicted: Predictions | None


def _compared(measured: Measured, labels: pd.DataFrame, groups: pd.DataFrame) -> _Compared:
    """Compare this run with the one without nsys, or what was traced of it with what was not; without either the
    table is empty.

    labels, groups: `frames.LABELS` and `frames.GROUPS`
    """
    beside, log = measured.beside, measured.log
    intervals = measured.measured
    windows = measured.split.alignment.windows.iloc[: len(intervals)]  # the same, without runs
    if beside.apart is not None and log is not None:
        from nsysalign.compare.side_by_side import turns

        table, notes = turns(intervals, windows, log, beside.apart, groups)
        return _Compared(table, notes, None)
    if beside.baseline is None:
        notes = [beside.not_compared] if beside.not_compared else []
        return _Compared(frames.empty(frames.BASELINE), notes, None)
    from nsysalign.compare.side_by_side import side_by_side

    baseline = beside.baseline
    predicted = predict(measured.split, intervals, labels)
    table, notes = side_by_side(intervals, windows, log, baseline, predicted.table, timed(baseline))
    return _Compared(table, notes, predicted)


def _disturbed(intervals: pd.DataFrame) -> list[str]:
    """A note on the intervals that the profiler disturbed, if there are any."""
    count = sum(DISTURBED in flags for flags in intervals["flags"])
    if not count:
        return []
    were = "was" if count == 1 else "were"
    return [
        f"{plural(count, 'interval')} {were} disturbed by the profiler's own work (flag {DISTURBED})"
    ]


def _info(info: TraceInfo, intervals: pd.DataFrame) -> TraceInfo:
    """Where every pair is placed by the events' own clock, time stamps of events are not missing."""
    if set(intervals.loc[intervals["kind"] == "event", "method"]) != {"clock"}:
        return info
    stamps = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
    return replace(info, missing=tuple(m for m in info.missing if not m.startswith(stamps)))


def _with_labels(unaligned: pd.DataFrame) -> pd.DataFrame:
    """Return `frames.UNALIGNED`: pairs that have no place, with the label that their intervals would have."""
    labels = unaligned["name"].astype(str).str.replace(REPETITION, "", regex=True)
    return frames.check(unaligned.assign(label=labels), frames.UNALIGNED)


def _known(log: EventLog | None, of_runs: Sequence[Any], beside: Beside) -> Known:
    """Return what is known of the run as a whole.

    of_runs: records about runs, of several kinds
    """
    without_work = [fact for fact in of_runs if isinstance(fact, CallsWithoutWork)]
    return Known(
        calls_without_work=sum(fact.calls for fact in without_work),
        issuing_without_work=sum(fact.issuing for fact in without_work),
        torch=named_by_probe(log, "torch"),
        python=named_by_probe(log, "python"),
        torch_is_alone=torch_is_alone(log),
        in_turns=beside.apart is not None,
        left_out=beside.apart.left_out if beside.apart is not None else 0,
        exit_status=beside.exit_status,
        managed_allocations=sum(
            fact.count for fact in of_runs if isinstance(fact, ManagedAllocations)
        ),
    )


def _diagnose(explained: Explained) -> Diagnosed:
    return Diagnosed(*explained, diagnose(explained.evidence, explained.split.segment_arrays))


# --- answer


class _Kept(NamedTuple):
    """`frames.SEGMENTS` of the intervals of which they are kept, what the host did in their gaps, and
    notes on what was left out."""

    segments: pd.DataFrame
    activity: pd.DataFrame
    notes: list[str]


def _answer(diagnosed: Diagnosed) -> Analysis:
    """Return the evidence with what rules say, and with what is made for some intervals only: segments,
    what the host did, predictions, pictures."""
    request, beside, split, evidence, predicted, diagnosis = diagnosed
    real = (evidence.intervals["kind"] != "run").to_numpy()
    asked_for = evidence.intervals["name"].isin(list(request.draw)).to_numpy() & real
    wanted = np.flatnonzero(asked_for)
    drawn = np.array(chosen_intervals(evidence, diagnosis.findings, wanted.tolist()), np.int64)
    kept = _kept(diagnosed, wanted, drawn)
    notes = [*beside.conditions, *evidence.notes, *diagnosis.notes, *kept.notes]
    if len(kept.activity):
        notes += beside.stack_notes
    if predicted is None:  # what the intervals that tables show would have measured without nsys
        rows = evidence.labels["row_interval"].to_numpy(dtype=np.int64)
        predicted = predict_intervals(split, np.intersect1d(rows, drawn))
    return Analysis(
        **evidence.fields
        | {
            "intervals": evidence.intervals.assign(findings=diagnosis.of_intervals),
            "notes": tuple(dict.fromkeys(notes)),
        },
        findings=diagnosis.findings,
        segments=kept.segments,
        host_activity=kept.activity,
        unprofiled=predicted.table,
        unprofiled_parts=predicted.parts,
        timeline=split_timeline(split, drawn, evidence),
    )


def _kept(diagnosed: Diagnosed, wanted: np.ndarray, drawn: np.ndarray) -> _Kept:
    """Return the segments of all intervals; of a long trace those of the intervals that are wanted, and of those that
    are drawn as many as fit.  With them what the host did in the gaps of the intervals, or of the usual ones.

    wanted, drawn: numbers of intervals, rising
    """
    request, beside, split, evidence, _, diagnosis = diagnosed
    measured = evidence.measured
    is_measured = (evidence.intervals["kind"] != "run").to_numpy()
    too_many = split.size[is_measured].sum() > MOST_PIECES
    notes = list[str]()
    if request.all_segments or not too_many:
        # runs have as many pieces again
        with_runs_too = request.all_segments or split.size.sum() <= 2 * MOST_PIECES
        segments = split.segments(np.flatnonzero(is_measured | with_runs_too))
    else:
        numbers = np.union1d(_fitting(np.setdiff1d(drawn, wanted), split), wanted)
        segments = split.segments(numbers.astype(np.int64))
        notes.append(
            f"segments are kept of {len(numbers):,} of {len(measured):,} intervals (median, slowest and first of each "
            "label, and those of the findings); to keep all: nsysalign analyze --all-segments"
        )
    if not too_many:
        of_intervals = segments[segments["interval"].isin(measured["interval"])]
        activity = host_activity(split.trace, beside.stacks, measured, of_intervals)
        return _Kept(segments, activity, notes)
    usual = chosen_intervals(evidence, diagnosis.findings, [])  # whatever else is drawn
    looked_at = _fitting(np.array(usual, np.int64), split)
    activity = host_activity(split.trace, beside.stacks, measured, split.segments(looked_at))
    if (activity["view"] != "all").any():
        notes.append(
            f"what the host did in its gaps was determined for {len(looked_at):,} of {len(measured):,} intervals"
        )
    return _Kept(segments, activity, notes)


def _fitting(intervals: np.ndarray, split: SplitTrace) -> np.ndarray:
    """Return as many of these intervals as together have a third of MOST_PIECES, those with the fewest pieces
    first; ascending."""
    ranked = intervals[np.argsort(split.size[intervals], kind="stable")]
    return np.sort(ranked[np.cumsum(split.size[ranked]) <= MOST_PIECES // 3])


class Stage(NamedTuple):
    """step, percent: what progress says when it begins, '' for nothing."""

    step: str
    percent: int
    run: Callable[[Any], Any]


STAGES = (
    Stage("reading the trace", 0, _read),
    Stage("placing the events", 45, _place),
    Stage("splitting the intervals", 60, _split),
    Stage("explaining", 85, _intervals),
    Stage("", 85, _explain),
    Stage("", 85, _with_add_ons),
    Stage("", 85, _diagnose),
    Stage("", 85, _answer),
)
