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
from nsysalign.model import OPERATION_KINDS, EventLog
from nsysalign.predict.host_speed import RECORD_UNDER_NSYS, HostSpeed
from nsysalign.text import REPETITION, times

CONFIDENCE = 0.95
#: A host that was this many times slower in one run than in the other is worth a remark: nine in
#: ten differences of the record calls that have another reason are smaller.
_OTHER_SPEED = 1.3
#: Record calls tell the hosts' difference with an error of its own: the bar reaches to this power
#: of it (docs/figures.md).
_UNCERTAIN = 1.2


def side_by_side(
    intervals: pd.DataFrame,
    windows: pd.DataFrame,
    profiled: EventLog | None,
    baseline: EventLog,
    unprofiled: pd.DataFrame,
    unprofiled_parts: pd.DataFrame,
    timers: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """(table BASELINE, notes).  `intervals` has one row per row of `windows`, in the same order;
    `unprofiled` and its parts: the predictions.

    `timers`: what clock readings measured in the run without nsys.  No trace says which of them, or
    which regions, contain CUDA work: they count if the profiled run has intervals at the same
    place.
    """
    label_of = dict(
        zip(map(_key, windows.itertuples(index=False)), intervals["label"].tolist(), strict=True)
    )
    found = measured(baseline)
    if timers is not None:
        last = timers["order"] + timers["elapsed_ns"]
        timers = timers.assign(kind="host", certain=False, last_ns=last)
        found = pd.concat([found, timers], ignore_index=True)
    measured_without = _labelled(found, label_of)
    counts = measured_without["certain"].to_numpy(dtype=bool) | measured_without["key"].isin(
        list(label_of)
    )
    measured_without = measured_without[counts].reset_index(drop=True)
    logged = _labelled(measured(profiled), label_of) if profiled is not None else None
    host = _host_speeds(_record_times(profiled, logged), _record_times(baseline, measured_without))
    known = set(logged["key"]) if logged is not None else set()
    with_nsys = pd.DataFrame(
        {
            "label": intervals["label"].to_numpy(dtype=object),
            "kind": intervals["kind"].to_numpy(dtype=object),
            "site": intervals["site"].to_numpy(dtype=object),
            "process": windows["log_process"].to_numpy(),
            "elapsed_ns": intervals["elapsed_ns"].to_numpy(),
            "interval": intervals["interval"].to_numpy(),
        }
    )
    removed = unprofiled.dropna(subset=["predicted_ns"]).set_index("interval")
    removed = removed.assign(
        host_ns=removed["predicted_ns"] - _at_work(unprofiled_parts, removed.index)
    )
    why = unprofiled.set_index("interval")["reason"]
    sides = [dict(iter(f.groupby("label", sort=False))) for f in (with_nsys, measured_without)]
    labels = [
        *dict.fromkeys(intervals["label"].tolist()),
        *dict.fromkeys(measured_without["label"].tolist()),
    ]
    rows = [
        _row(
            label,
            sides[0].get(label),
            sides[1].get(label),
            removed,
            why,
            known,
            host.get(label, (float("nan"), 1.0)),
        )
        for label in dict.fromkeys(labels)
    ]
    table = (
        pd.DataFrame(rows, columns=frames.BASELINE.names) if rows else frames.empty(frames.BASELINE)
    )
    return frames.check(table, frames.BASELINE), _notes(profiled, baseline)


def measured(log: EventLog) -> pd.DataFrame:
    """Every interval that a log measured: event pairs that the program compared, and host timers.
    `order` and `last_ns`: when its first and its last call began; `certain`: no clock readings that
    may have been of anything."""
    columns = ["process", "seq", "region", "site", "callers", "t0_ns"]
    records = {(r.process, r.seq): r for r in log.records[columns].itertuples(index=False)}
    own = log.elapsed[(log.elapsed["error"] == "") & ~log.elapsed["calibration"].astype(bool)]
    rows = []
    for pair in own.itertuples(index=False):
        start, end = records.get((pair.process, pair.start)), records.get((pair.process, pair.end))
        if start is None or end is None or pair.ms < 0:
            continue
        rows.append(
            ("event", start.region or pair.region, start.site, end.site, start.callers, pair.process,
             start.t0_ns, round(pair.ms * 1e6), True, max(start.t0_ns, end.t0_ns))
        )  # fmt: skip
    for host in log.hosts[log.hosts["t1_ns"] >= log.hosts["t0_ns"]].itertuples(index=False):
        rows.append(
            ("host", host.region, host.site, host.site, (), host.process,
             host.t0_ns, host.t1_ns - host.t0_ns, not host.implicit, host.t1_ns)
        )  # fmt: skip
    names = [
        "kind",
        "region",
        "site",
        "end_site",
        "callers",
        "process",
        "order",
        "elapsed_ns",
        "certain",
        "last_ns",
    ]
    whole = dict.fromkeys(("process", "order", "elapsed_ns", "last_ns"), "int64")
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


def _record_times(log: EventLog | None, found: pd.DataFrame | None) -> pd.DataFrame:
    """Per label the medians of how long the record calls of its intervals took: `ns`, and as a
    multiple of what is `usual` in the run."""
    if log is None or found is None or not len(found):
        return pd.DataFrame({"ns": [], "usual": []}, dtype=np.float64)
    speed = HostSpeed(log)
    near = speed.near(*(found[c].to_numpy() for c in ("process", "order", "last_ns")))
    both = pd.DataFrame({"ns": near, "usual": near / speed.usual(found["process"].to_numpy())})
    return both.groupby(found["label"].to_numpy()).median()


def _host_speeds(under: pd.DataFrame, without: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Label -> (how many times slower the host was under nsys, by the record calls; below 1 that
    says nothing down to here).

    nsys adds the same to a call that takes longer in both runs (cold caches), and so makes it
    longer by less than usual.
    """
    usual = RECORD_UNDER_NSYS
    both = under.add_suffix("_under").join(without, how="inner")
    slowdown = both["ns_under"] / both["ns"] / usual
    cold = both[["usual_under", "usual"]].min(axis=1, skipna=False).clip(lower=1).fillna(1.0)
    return dict(
        zip(both.index, zip(slowdown, (cold + usual - 1) / cold / usual, strict=True), strict=True)
    )


def _at_work(parts: pd.DataFrame, intervals: pd.Index) -> np.ndarray:
    """Per interval: ns of its predicted budget in which the GPU works."""
    working = parts[parts["cause"].isin(OPERATION_KINDS)].groupby("interval")["ns"].sum()
    return working.reindex(intervals, fill_value=0).to_numpy()


def _row(label, profiled, baseline, removed, why, known, host) -> tuple:
    slowdown, explained = host
    first = profiled if profiled is not None else baseline
    counts = [0 if side is None else len(side) for side in (profiled, baseline)]
    nan = float("nan")
    profiled_ns, baseline_ns = (
        nan if s is None else _midmean(s["elapsed_ns"]) for s in (profiled, baseline)
    )
    low = high = nan
    remarks = []
    if profiled is None:
        placed = known and baseline["key"].iloc[0] in known
        remarks.append("not placed in the profiled run" if placed else "measured without nsys only")
    elif baseline is None:
        remarks.append("measured under nsys only")
    else:
        if min(counts) >= FEWEST_RUNS:
            seed = zlib.crc32(str(label).encode("utf-8", "replace"))
            columns = [s["elapsed_ns"].to_numpy(np.float64)[:, None] for s in (baseline, profiled)]
            low, high = change(*columns, CONFIDENCE, seed)[0, 3:5]
        else:
            remarks.append(f"fewer than {FEWEST_RUNS} intervals: no confidence")
        each = [sorted(side.groupby("process").size()) for side in (profiled, baseline)]
        if each[0] != each[1]:
            under, without = ("+".join(map(str, own)) for own in each)
            remarks.append(
                f"{under} intervals under nsys, {without} without: either the work differs or not all could be placed"
            )
    predicted, lower, upper, used = (nan, nan, nan, 0)
    if profiled is not None:
        predicted, lower, upper, used = _predicted(profiled, removed, profiled_ns, slowdown)
        if not used:
            reasons = why.reindex(profiled["interval"]).dropna()
            remarks.append(
                f"no prediction: {reasons.iloc[0] if len(reasons) else 'untried: no interval of this label was replayed'}"
            )
    both = counts[0] and counts[1] and baseline_ns > 0
    other = slowdown if slowdown >= 1 else min(slowdown / explained, 1.0)
    if max(other, 1 / other) >= _OTHER_SPEED:
        remarks.append(
            f"the host was {times(max(other, 1 / other))} {'slower' if other > 1 else 'faster'} under nsys than "
            "without: part of the difference is the host's, not nsys's"
        )
    return (
        label, str(first["kind"].iloc[0]), str(first["site"].iloc[0]), *counts, profiled_ns, baseline_ns, low, high,
        profiled_ns / baseline_ns if both else nan, predicted, lower, upper, used,
        predicted / baseline_ns - 1 if both else nan, "; ".join(remarks), slowdown,
    )  # fmt: skip


def _midmean(values) -> float:
    """The midmean; NaN for no values."""
    if not len(values):
        return float("nan")
    return float(midmean(np.asarray(values, dtype=np.float64)[:, None])[0])


def _predicted(
    profiled: pd.DataFrame, removed: pd.DataFrame, profiled_ns: float, slowdown: float
) -> tuple[float, float, float, int]:
    """The label's prediction: the loss of the replayed intervals, subtracted from the measurement
    of all of them.  Its bar reaches to what the other run's host, `slowdown` times faster (NaN:
    unknown), makes of it."""
    mine = removed.reindex(profiled["interval"]).reset_index()
    have = mine["predicted_ns"].notna().to_numpy()
    if not have.any():
        return float("nan"), float("nan"), float("nan"), 0
    elapsed = profiled["elapsed_ns"].to_numpy(np.float64)[have]
    columns = [
        mine[c][have].to_numpy(np.float64)
        for c in ("predicted_ns", "lower_ns", "upper_ns", "host_ns")
    ]
    *values, host = (_midmean(c) for c in columns)
    shift = profiled_ns - _midmean(elapsed)  # 0 if all were replayed
    predicted, lower, upper = (max(v + shift, 0.0) for v in values)
    if predicted and slowdown > 0:
        there = max(1 - min(max(host / predicted, 0.0), 1.0) * (1 - slowdown**-_UNCERTAIN), 0.0)
        lower, upper = lower * min(there, 1.0), upper * max(there, 1.0)
    return predicted, lower, upper, int(have.sum())


def _notes(profiled: EventLog | None, baseline: EventLog) -> list[str]:
    """Notes on differences between the two runs as a whole."""
    notes = []
    ends = [(h.get("exit_status"), h.get("profiled_exit_status")) for h in baseline.headers]
    for without, under in dict.fromkeys(ends):
        if without is not None and under is not None and without != under:
            notes.append(
                f"without nsys the script ended with status {without}, under nsys with {under}: "
                "the two runs may not have done the same"
            )
    if any(h.get("stopped") for h in baseline.headers):
        notes.append("the run without nsys was stopped: it measured only a part")
    if profiled is None:
        return notes
    for what, key in (("GPU", "device_name"), ("torch", "torch"), ("Python", "python")):
        sides: list[str] = [
            ", ".join(sorted({str(h.get(key)) for h in log.headers if h.get(key)}))
            for log in (profiled, baseline)
        ]
        if all(sides) and sides[0] != sides[1]:
            notes.append(
                f"{what} differs between the run under nsys ({sides[0]}) and the one without ({sides[1]})"
            )
    if len(profiled.headers) != len(baseline.headers):
        notes.append(
            f"{len(profiled.headers)} processes timed something under nsys, {len(baseline.headers)} without it"
        )
    return notes
