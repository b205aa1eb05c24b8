"""The profiled run and the same program without nsys, label by label, next to the prediction.

The run without nsys has an event log and no trace: its intervals are measured, not placed.  An
interval is matched to a label by its name (region, else call sites and callers), never by its place
in a list; labels in only one run are reported.
"""

from __future__ import annotations

import re
import zlib

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.compare.bootstrap import change, midmean
from nsysalign.compare.label_changes import FEWEST_RUNS
from nsysalign.model import EventLog
from nsysalign.place.event_clock import event_clock
from nsysalign.place.lag import compared_pairs
from nsysalign.text import REPETITION, plural
from nsysalign.unprofiled_run import CANNOT_TELL, label_verdict, verdicts


def side_by_side(
    intervals: pd.DataFrame,
    windows: pd.DataFrame,
    profiled: EventLog | None,
    baseline: EventLog,
    unprofiled: pd.DataFrame,
    timers: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """(table BASELINE, notes).  `intervals` has one row per row of `windows`, in the same order;
    `unprofiled`: the predictions.

    `timers`: what clock readings measured in the run without nsys.  No trace says which of them, or
    which regions, contain CUDA work: they count if the profiled run has intervals at the same
    place.
    """
    keys = map(_key, windows.itertuples(index=False))
    label_of = dict(zip(keys, intervals["label"].tolist(), strict=True))
    found = measured(baseline)
    if timers is not None:
        timers = timers.assign(kind="host", certain=False)
        found = pd.concat([found, timers], ignore_index=True)
    without = _labelled(found, label_of)
    counts = without["certain"].to_numpy(dtype=bool) | without["key"].isin(list(label_of))
    without = without[counts].reset_index(drop=True)
    logged = _labelled(measured(profiled), label_of) if profiled is not None else None
    known = set() if logged is None else set(logged["key"])
    words = [_verdicts(side) for side in (logged, without)]
    under = intervals[["label", "kind", "site", "elapsed_ns", "interval"]]
    under = under.assign(process=windows["log_process"].to_numpy())
    predictions = unprofiled.set_index("interval")
    sides = [dict(iter(side.groupby("label", sort=False))) for side in (under, without)]
    rows = [
        _row(label, sides[0].get(label), sides[1].get(label), predictions, known)
        + tuple(side.get(label, "") for side in words)
        for label in dict.fromkeys([*intervals["label"], *without["label"]])
    ]
    table = (
        pd.DataFrame(rows, columns=frames.BASELINE.names) if rows else frames.empty(frames.BASELINE)
    )
    table = frames.check(table, frames.BASELINE)
    return table, _notes(profiled, baseline) + _other_verdicts(table)


def measured(log: EventLog) -> pd.DataFrame:
    """Every interval that a log measured: event pairs that the program compared, and host timers.
    `order`: when its first call began; `certain`: no clock readings that may have been of
    anything; `verdict`: what the log proves of an event pair (`unprofiled_run`), else ''."""
    columns = ["process", "seq", "region", "site", "callers", "t0_ns"]
    records = {(r.process, r.seq): r for r in log.records[columns].itertuples(index=False)}
    own, pairs = log.compared, compared_pairs(log, event_clock(log))
    proven = dict(zip(pairs.index, verdicts(pairs), strict=True))
    rows = []
    for index, pair in zip(own.index, own.itertuples(index=False), strict=True):
        start, end = records.get((pair.process, pair.start)), records.get((pair.process, pair.end))
        if start is None or end is None or pair.ms < 0:
            continue
        rows.append(
            ("event", start.region or pair.region, start.site, end.site, start.callers,
             pair.process, start.t0_ns, round(pair.ms * 1e6), True, proven.get(index, ""))
        )  # fmt: skip
    for host in log.hosts[log.hosts["t1_ns"] >= log.hosts["t0_ns"]].itertuples(index=False):
        rows.append(
            ("host", host.region, host.site, host.site, (), host.process,
             host.t0_ns, host.t1_ns - host.t0_ns, not host.implicit, "")
        )  # fmt: skip
    names = ["kind", "region", "site", "end_site", "callers", "process", "order", "elapsed_ns"]
    names += ["certain", "verdict"]
    whole = dict.fromkeys(("process", "order", "elapsed_ns"), "int64")
    return pd.DataFrame(rows, columns=names).astype(whole)


def _key(row) -> tuple:
    """The key by which intervals of different runs are the same measurement."""
    if row.region:
        return row.kind, re.sub(REPETITION, "", row.region)
    return row.kind, row.site, row.end_site, tuple(row.callers)


def _labelled(found: pd.DataFrame, label_of: dict[tuple, str]) -> pd.DataFrame:
    keys = [_key(row) for row in found.itertuples(index=False)]
    labels = [label_of.get(key) or _place(key) for key in keys]
    return found.assign(label=pd.Series(labels, dtype=object), key=pd.Series(keys, dtype=object))


def _place(key: tuple) -> str:
    """A name for what the profiled run never timed: its region or its call sites, formed like a
    label."""
    if len(key) == 2:
        return key[1]
    _, start, end, _ = key
    return start if end in ("", start) else f"{start}-{end.rpartition(':')[2]}"


def _row(
    label: str,
    profiled: pd.DataFrame | None,
    baseline: pd.DataFrame | None,
    predictions: pd.DataFrame,
    known: set[tuple],
) -> tuple:
    """A row of BASELINE without its verdicts; `known`: what the profiled run logged."""
    first, remarks = profiled if profiled is not None else baseline, []
    counts = [0 if side is None else len(side) for side in (profiled, baseline)]
    nan = float("nan")
    profiled_ns, baseline_ns = (
        nan if side is None else _midmean(side["elapsed_ns"]) for side in (profiled, baseline)
    )
    low, high, inflation, error = nan, nan, nan, nan
    if profiled is None:
        placed = known and baseline["key"].iloc[0] in known
        remarks.append("not placed in the profiled run" if placed else "measured without nsys only")
    elif baseline is None:
        remarks.append("measured under nsys only")
    else:
        inflation = profiled_ns / baseline_ns if baseline_ns > 0 else nan
        if min(counts) >= FEWEST_RUNS:
            seed = zlib.crc32(str(label).encode("utf-8", "replace"))
            columns = [s["elapsed_ns"].to_numpy(np.float64)[:, None] for s in (baseline, profiled)]
            low, high = change(*columns, seed)[0, 3:5]
        else:
            remarks.append(f"fewer than {FEWEST_RUNS} intervals: no confidence")
        each = [sorted(side.groupby("process").size()) for side in (profiled, baseline)]
        if each[0] != each[1]:
            under, without = ("+".join(map(str, own)) for own in each)
            remarks.append(
                f"{under} intervals under nsys, {without} without: either the work differs or not "
                "all could be placed"
            )
    predicted = (nan, nan, nan, 0)
    if profiled is not None:
        tried = predictions.reindex(profiled["interval"])
        predicted = _predicted(profiled, tried, profiled_ns)
        if not predicted[-1]:
            reasons = tried["reason"].dropna()
            untried = "untried: no interval of this label was replayed"
            remarks.append(f"no prediction: {reasons.iloc[0] if len(reasons) else untried}")
        if baseline is not None and baseline_ns > 0:
            error = predicted[0] / baseline_ns - 1
    return (
        label, str(first["kind"].iloc[0]), str(first["site"].iloc[0]), *counts, profiled_ns, baseline_ns,
        low, high, inflation, *predicted, error, "; ".join(remarks),
    )  # fmt: skip


def _verdicts(found: pd.DataFrame | None) -> dict[str, str]:
    """What the log of one run proves of each label.  The same rule for both runs, so that only nsys
    can make the difference."""
    if found is None:
        return {}
    events = found[(found["kind"] == "event") & (found["verdict"] != "")]
    return {
        label: label_verdict(own["verdict"].iloc[1:] if len(own) > 1 else own["verdict"])
        for label, own in events.groupby("label", sort=False)
    }


def _other_verdicts(table: pd.DataFrame) -> list[str]:
    """A note if nsys changed who limits labels."""
    under, without = table["profiled_verdict"], table["baseline_verdict"]
    proven = ~under.isin(["", CANNOT_TELL]) & ~without.isin(["", CANNOT_TELL])
    changed = table.loc[proven & (under != without), "label"].tolist()
    if not changed:
        return []
    some = f"{plural(len(changed), 'label')} ({', '.join(changed[:3])}{', ...' if changed[3:] else ''})"
    return [
        f"nsys changes who limits {some}: what the breakdown says of that holds under nsys only"
    ]


def _midmean(values) -> float:
    """The midmean; NaN for no values."""
    if not len(values):
        return float("nan")
    return float(midmean(np.asarray(values, dtype=np.float64)[:, None])[0])


def _predicted(
    profiled: pd.DataFrame, tried: pd.DataFrame, profiled_ns: float
) -> tuple[float, float, float, int]:
    """(ns, its bar, of how many intervals; NaN and 0 for none): the loss of the intervals that were
    replayed, subtracted from the measurement of all.  `tried`: a row per row of `profiled`."""
    have = tried["predicted_ns"].notna().to_numpy()
    nan = float("nan")
    if not have.any():
        return nan, nan, nan, 0
    # 0 if all were replayed
    shift = profiled_ns - _midmean(profiled["elapsed_ns"].to_numpy(np.float64)[have])
    names = ("predicted_ns", "lower_ns", "upper_ns")
    ns, low, high = (max(_midmean(tried[c][have].to_numpy(np.float64)) + shift, 0.0) for c in names)
    return ns, low, high, int(have.sum())


def _notes(profiled: EventLog | None, baseline: EventLog) -> list[str]:
    """Notes on differences between the two runs as a whole."""
    ends = [(h.get("exit_status"), h.get("profiled_exit_status")) for h in baseline.headers]
    notes = [
        f"without nsys the script ended with status {without}, under nsys with {under}: "
        "the two runs may not have done the same"
        for without, under in dict.fromkeys(ends)
        if None not in (without, under) and without != under
    ]
    if any(h.get("stopped") for h in baseline.headers):
        notes.append("the run without nsys was stopped: it measured only a part")
    if profiled is None:
        return notes
    for what, key in (("GPU", "device_name"), ("torch", "torch"), ("Python", "python")):
        under, without = (
            ", ".join(sorted({str(h.get(key)) for h in log.headers if h.get(key)}))
            for log in (profiled, baseline)
        )
        if under and without and under != without:
            notes.append(
                f"{what} differs between the run under nsys ({under}) and the one without "
                f"({without})"
            )
    processes, others = len(profiled.headers), len(baseline.headers)
    if processes != others:
        notes.append(f"{processes} processes timed something under nsys, {others} without it")
    return notes
