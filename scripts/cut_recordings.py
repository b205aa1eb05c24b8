"""How well places and error bars hold on programs never seen: recordings with known timestamps, cut into short ones.

    python scripts/cut_recordings.py TRUTH.sqlite EVENTS.jsonl [TRUTH.sqlite EVENTS.jsonl ...]

Every recording is blinded (no timestamps; without the whole table of event rows), its reference lines are taken out, and
its log is cut into windows of 25 intervals and into its single workloads, each with and without the harness's
calibration work.  Each cut is aligned as if it were the whole program.  Prints, per recording: cuts, in how many of them
at least 93 % of the starts lie inside the error bar, and the error over all intervals.  The truth is the event's own
stamp where the log has references, else CUPTI's: of the start, or of the end less elapsed_time, whichever is earlier, for
CUPTI is late now and then, and never early.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsysalign import frames
from nsysalign.model import EventLog, Trace
from nsysalign.place.solve import align
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace

_WINDOW, _FEWEST, _HOLDS = 25, 3, 0.93


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("recordings", nargs="+", type=Path)
    recordings = arguments.parse_args().recordings
    print(
        f"{'recording':28s} {'blind':9s} cuts  hold  inside  p50 us  p95 us  p99 us  bar us (median, p95)"
    )
    for trace, events in zip(recordings[::2], recordings[1::2], strict=True):
        whole, log = read_trace(trace), read_event_logs([events])
        truth = align(whole, log).records["t_ns"].to_numpy()
        log = without_references(log)
        for name, blind in blinded(whole).items():
            report(trace.stem, name, [score(blind, cut, truth) for cut in cuts(log)])


def without_references(log: EventLog) -> EventLog:
    return replace(
        log,
        references=frames.empty(frames.REFERENCES),
        distances=frames.empty(frames.DISTANCES),
        elapsed=log.elapsed.assign(reference=np.int64(-1), start_ms=np.nan, end_ms=np.nan),
    )


def blinded(trace: Trace) -> dict[str, Trace]:
    rows = trace.event_rows
    return {
        "untimed": replace(trace, event_rows=rows.assign(timestamp_ns=np.int64(0))),
        "no rows": replace(trace, event_rows=rows.iloc[:0]),
    }


def cuts(log: EventLog) -> Iterator[EventLog]:
    """Logs with some of the pairs; row numbers stay those of the whole log."""
    elapsed = log.elapsed
    calibration = elapsed["calibration"].to_numpy(dtype=bool)
    own = np.flatnonzero(~calibration)
    names = np.array([re.sub(r"#\d+$", "", r) for r in elapsed["region"]], dtype=object)
    pieces = [own[k : k + _WINDOW] for k in range(0, len(own), _WINDOW)]
    pieces += [own[names[own] == name] for name in sorted(set(names[own]))]
    for piece in pieces:
        if len(piece) < _FEWEST:
            continue
        chosen = [piece]
        if calibration.any():
            chosen.append(np.union1d(piece, np.flatnonzero(calibration)))
        for rows in chosen:
            pairs = elapsed.iloc[rows]
            wanted = set(pairs["start"]) | set(pairs["end"])
            yield replace(log, elapsed=pairs, records=log.records[log.records["seq"].isin(wanted)])


def score(trace: Trace, log: EventLog, truth: np.ndarray) -> np.ndarray:
    """(error, bar) of every placed interval."""
    found = align(trace, log)
    windows = found.windows[found.windows["kind"] == "event"]
    start, end = (
        truth[log.records.index.to_numpy()[windows[edge].to_numpy()]] for edge in ("start", "end")
    )
    known = (start > 0) & (end > 0)
    error = windows["start_ns"].to_numpy() - np.minimum(
        start, end - windows["elapsed_ns"].to_numpy()
    )
    return np.stack([error, windows["error_ns"].to_numpy()], axis=1)[known]


def report(name: str, blind: str, scored: list[np.ndarray]) -> None:
    scored = [s for s in scored if len(s)]
    inside = [float((np.abs(s[:, 0]) <= s[:, 1] + 64).mean()) for s in scored]
    every = np.concatenate(scored)
    p50, p95, p99 = np.percentile(np.abs(every[:, 0]), [50, 95, 99]) / 1e3
    bar = np.percentile(every[:, 1], [50, 95]) / 1e3
    print(
        f"{name:28s} {blind:9s} {len(scored):4d}  {np.mean(np.array(inside) >= _HOLDS):4.0%}  {np.mean(np.abs(every[:, 0]) <= every[:, 1] + 64):6.1%}"
        f"  {p50:6.2f}  {p95:6.2f}  {p99:6.2f}  {bar[0]:5.2f} {bar[1]:5.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
