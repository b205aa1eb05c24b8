"""A run without nsys: what its event log alone proves.

    event logs --> compared pairs --> lag of each record --> label: who limits it --> UnprofiledRun
                                      (place/lag.py)

There is no trace, so there are no parts.  Three words are possible for a label:

    gpu_bound    the CPU can have kept the GPU waiting for at most a fifth of each interval
    cpu_bound    at the end record the GPU had caught up with the CPU: the CPU was late, or a call
                 inside the interval waited for the GPU
    cannot_tell  neither holds in most repetitions
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import EventLog
from nsysalign.place.event_clock import event_clock
from nsysalign.place.lag import compared_pairs
from nsysalign.rundir import CLOCKS, RunDirectory
from nsysalign.split.labels import label_statistics, name_intervals
from nsysalign.split.paces import RARE, paces
from nsysalign.store.objects import records
from nsysalign.text import plural
from nsysalign.trace.eventlog import read_event_logs, source_lines
from nsysalign.trace.samples import read_clock_samples

#: The log of a program that left none.
GPU_BOUND, CPU_BOUND, CANNOT_TELL = "gpu_bound", "cpu_bound", "cannot_tell"
#: An interval is GPU-bound if the CPU can have cost at most this share of it; a label takes the word
#: that holds in at least this share of its steady repetitions.
LARGEST_SHARE, MOST_OF_THEM = 0.2, 0.8
_MEDIANS = ["elapsed_ns", "idle_at_most_ns", "end_lag_ns"]


@dataclass(frozen=True)
class Pace:
    """Repetitions of a label, the first one apart, that are about equally long.

    slow: a slower pace that is rare.  typical_ns: the median.  verdict: the word that holds in most of
    them, holds_in: in how many.  idle_at_most_ns, end_lag_ns: medians, NaN where they are not known.
    """

    label: str
    slow: bool
    count: int
    total_ns: int
    typical_ns: float
    verdict: str
    holds_in: int
    idle_at_most_ns: float
    end_lag_ns: float


@dataclass(frozen=True)
class UnprofiledRun:
    """A run without nsys.  Columns: `frames.TIMED`, `frames.TIMED_LABELS`.  paces: of each label, that
    with most repetitions first."""

    device: str  # name of the GPU, '' if no process said it
    intervals: pd.DataFrame
    labels: pd.DataFrame
    paces: tuple[Pace, ...]
    floor_ns: float | None  # what an event pair with nothing between measured (calibration)
    sm_mhz: tuple[int, int] | None  # least and greatest SM clock while the GPU worked
    source_lines: pd.DataFrame
    host_timers: int = 0  # readings of the host's clocks and timed regions that the log holds
    notes: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """ "<UnprofiledRun on NVIDIA H100: 120 intervals in 4 labels: 2 gpu_bound, ...>"."""
        counts = self.labels["verdict"].value_counts().items()
        words = ", ".join(f"{count} {word}" for word, count in counts) or "none"
        counted = (
            f"{plural(len(self.intervals), 'interval')} in {plural(len(self.labels), 'label')}"
        )
        return f"<UnprofiledRun{self.device and ' on '}{self.device}: {counted}: {words}>"

    def document(self) -> dict[str, Any]:
        """The run as plain objects, for JSON."""
        return {
            "format": "nsysalign-unprofiled",
            "version": 2,
            "device": self.device,
            "floor_ns": self.floor_ns,
            "sm_mhz": self.sm_mhz,
            "labels": records(self.labels),
            "paces": [vars(pace) for pace in self.paces],
            "intervals": records(self.intervals),
            "notes": self.notes,
            "conditions": self.conditions,
        }


def analyze_run(run: RunDirectory) -> UnprofiledRun:
    """What the event logs of a run directory prove; without a log (the program did not import torch)
    nothing was timed.  Raises EventLogError."""
    clocks = run.path / CLOCKS
    proven = analyze_logs(run.event_logs(), clocks if clocks.is_file() else None)
    return replace(proven, conditions=tuple(run.conditions()))


def analyze_logs(logs: Sequence[Path], clocks: Path | None = None) -> UnprofiledRun:
    """The same of event logs and the samples of the clock.  Raises EventLogError if one is none."""
    log = read_event_logs(logs) if logs else EventLog.empty()
    intervals = timed_intervals(log)
    asked = log.elapsed[log.elapsed["error"] == ""]
    empty_pairs = asked.loc[asked["calibration"].astype(bool), "ms"]  # on an idle stream
    notes, sm_mhz = list(log.notes), None
    if left := len(log.compared) - len(intervals):
        notes.append(
            f"{plural(left, 'compared pair')} not shown: the end was recorded before the start or into a CUDA "
            "graph, or the log does not hold a record"
        )
    if failed := len(log.elapsed) - len(asked):
        notes.append(f"{plural(failed, 'call')} of elapsed_time failed: their events were not done")
    if without := int(intervals["idle_at_most_ns"].isna().sum()):
        notes.append(
            f"no reference event reaches {without:,} of {len(intervals):,} intervals (their process ended early, or "
            "the probe could make none): nothing is proven of these"
        )
    if clocks is not None:
        samples, of_samples = read_clock_samples(clocks)
        notes += of_samples
        busy = samples["sm_mhz"][(samples["sm_mhz"] > 0) & ((samples["reasons"] & 1) == 0)]  # idle
        sm_mhz = (int(busy.min()), int(busy.max())) if len(busy) else None
    return UnprofiledRun(
        device=next((str(h["device_name"]) for h in log.headers if h.get("device_name")), ""),
        intervals=intervals,
        labels=timed_labels(intervals),
        paces=tuple(timed_paces(intervals)),
        floor_ns=float(empty_pairs.median() * 1e6) if len(empty_pairs) else None,
        sm_mhz=sm_mhz,
        source_lines=source_lines(log),
        host_timers=len(log.hosts) + len(log.clock_readings),
        notes=tuple(notes),
    )


def timed_intervals(log: EventLog) -> pd.DataFrame:
    """`frames.TIMED`: the compared pairs of a log with names and verdicts."""
    pairs = compared_pairs(log, event_clock(log))
    pairs = pairs[pairs["elapsed_ns"] >= 0].reset_index(drop=True)
    if pairs.empty:
        return frames.empty(frames.TIMED)
    names, labels = name_intervals(pairs)
    pairs = pairs.assign(interval=np.arange(len(pairs)), name=names, label=labels)
    return frames.check(pairs.assign(verdict=verdicts(pairs)), frames.TIMED)


def verdicts(pairs: pd.DataFrame) -> np.ndarray:
    """The word that holds for each of `compared_pairs`."""
    idle = pairs["idle_at_most_ns"].astype("Float64")
    bound_by_gpu = (idle <= LARGEST_SHARE * pairs["elapsed_ns"]).fillna(False).to_numpy(dtype=bool)
    return np.where(bound_by_gpu, GPU_BOUND, np.where(pairs["caught_up"], CPU_BOUND, CANNOT_TELL))


def label_verdict(steady: pd.Series) -> str:
    """The word of a label, from those of its steady repetitions."""
    shares = {word: float((steady == word).mean()) for word in (GPU_BOUND, CPU_BOUND)}
    return next((word for word, share in shares.items() if share >= MOST_OF_THEM), CANNOT_TELL)


def timed_labels(intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.TIMED_LABELS`: a row per label, of its pace with most repetitions.  The first one is
    apart: it loads, compiles and allocates."""
    if intervals.empty:
        return frames.empty(frames.TIMED_LABELS)
    usual = dict[str, Pace]()
    for pace in timed_paces(intervals):
        usual.setdefault(pace.label, pace)
    first = intervals.groupby("label", sort=False)["elapsed_ns"].first()
    rows = {
        label: {
            "first_ns": first[label],
            "steady": pace.count,
            "steady_median_ns": pace.typical_ns,
            "verdict": pace.verdict,
            "holds_in": pace.holds_in,
            "idle_at_most_ns": np.ceil(pace.idle_at_most_ns),
            "end_lag_ns": np.floor(pace.end_lag_ns),
        }
        for label, pace in usual.items()
    }
    steady_columns = pd.DataFrame.from_dict(rows, orient="index")
    return frames.check(
        label_statistics(intervals).join(steady_columns, on="label"), frames.TIMED_LABELS
    )


def timed_paces(intervals: pd.DataFrame) -> Iterator[Pace]:
    """The paces of each label, that with most repetitions first.  What was issued is not known: they
    are told by length alone."""
    for label, repetitions in intervals.groupby("label", sort=False):
        steady = repetitions.iloc[1:] if len(repetitions) > 1 else repetitions
        elapsed = steady["elapsed_ns"].to_numpy()
        sides = paces(elapsed, np.arange(len(elapsed)), int(elapsed.sum()))
        slow = [n > 0 and len(side) < RARE * len(elapsed) for n, side in enumerate(sides)]
        for side, rare in sorted(zip(sides, slow, strict=True), key=lambda pair: -len(pair[0])):
            rows = steady.iloc[np.sort(side)]
            verdict, middle = label_verdict(rows["verdict"]), rows[_MEDIANS].astype(float).median()
            yield Pace(
                label=str(label),
                slow=rare,
                count=len(rows),
                total_ns=int(rows["elapsed_ns"].sum()),
                typical_ns=float(middle["elapsed_ns"]),
                verdict=verdict,
                holds_in=int((rows["verdict"] == verdict).sum()),
                idle_at_most_ns=float(middle["idle_at_most_ns"]),
                end_lag_ns=float(middle["end_lag_ns"]),
            )
