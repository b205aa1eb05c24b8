"""The profiled run and the same program without nsys, label by label, next to the prediction.

The run without nsys has an event log and no trace: its intervals are measured, not placed.  An interval is matched to a label
by its name (region, else call sites and callers), never by its place in a list; labels in only one run are reported.
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
from nsysalign.place.event_clock import event_clock, log_ends
from nsysalign.predict.host_speed import RECORD_UNDER_NSYS, HostSpeed
from nsysalign.text import REPETITION, times

CONFIDENCE = 0.95
#: A host that was this many times slower in one run than in the other is worth a remark: nine in ten differences of the record
#: calls that have another reason are smaller.
_OTHER_SPEED = 1.3
#: Record calls tell the hosts' difference with an error of its own: the bar reaches to this power of it (docs/figures.md).
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
    """(table BASELINE, notes).  `intervals` has one row per row of `windows`, in the same order; `unprofiled` and its parts: the
    predictions.

    `timers`: what clock readings measured in the run without nsys.  No trace says which of them, or which regions, contain CUDA
    work: they count if the profiled run has intervals at the same place.
    """
    label_of = dict(
        zip(map(_key, windows.itertuples(index=False)), intervals["label"].tolist(), strict=True)
    )
    found = measured(baseline)
    if timers is not None:
        last = timers["order"] + timers["elapsed_ns"]
        timers = timers.assign(kind="host", certain=False, gap_ns=np.nan, last_ns=last)
        found = pd.concat([found, timers], ignore_index=True)
    measured_without = _labelled(found, label_of)
    counts = measured_without["certain"].to_numpy(dtype=bool) | measured_without["key"].isin(
        list(label_of)
    )
    measured_without = measured_without[counts].reset_index(drop=True)
    logged = _labelled(measured(profiled), label_of) if profiled is not None else None
    host = _host_speeds(_record_times(profiled, logged), _record_times(baseline, measured_without))
    measured_without["process"] = _ranks(baseline, measured_without["process"].to_numpy())
    known = set(logged["key"]) if logged is not None else set()
    with_nsys = pd.DataFrame(
        {
            "label": intervals["label"].to_numpy(dtype=object),
            "kind": intervals["kind"].to_numpy(dtype=object),
            "site": intervals["site"].to_numpy(dtype=object),
            "process": _ranks(profiled, windows["log_process"].to_numpy()),
            "order": windows["open_ns"].to_numpy(),
            "elapsed_ns": intervals["elapsed_ns"].to_numpy(),
            "interval": intervals["interval"].to_numpy(),
            "gap_ns": _gaps_placed(intervals, windows),
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
    """Every interval that a log measured: event pairs that the program compared, and host timers.  `gap_ns`: for how long
    nothing had been timed on the GPU before it, NaN if unknown; `last_ns`: when its last call began."""
    columns = ["process", "seq", "region", "site", "callers", "t0_ns"]
    records = {(r.process, r.seq): r for r in log.records[columns].itertuples(index=False)}
    own = ((log.elapsed["error"] == "") & ~log.elapsed["calibration"]).to_numpy(dtype=bool)
    rows = []
    for pair, gap in zip(
        log.elapsed[own].itertuples(index=False), _gaps_on_clock(log, own), strict=True
    ):
        start, end = records.get((pair.process, pair.start)), records.get((pair.process, pair.end))
        if start is None or end is None or pair.ms < 0:
            continue
        region = start.region or pair.region
        elapsed = round(pair.ms * 1e6)
        rows.append(
            (
                *(
                    "event",
                    region,
                    start.site,
                    end.site,
                    start.callers,
                    pair.process,
                    start.t0_ns,
                    elapsed,
                ),
                *(True, gap, max(start.t0_ns, end.t0_ns)),
            )
        )
    for host in log.hosts[log.hosts["t1_ns"] >= log.hosts["t0_ns"]].itertuples(index=False):
        rows.append(
            (
                *("host", host.region, host.site, host.site, (), host.process, host.t0_ns),
                *(host.t1_ns - host.t0_ns, not host.implicit, float("nan"), host.t1_ns),
            )
        )
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
        "gap_ns",
        "last_ns",
    ]
    whole = dict.fromkeys(("process", "order", "elapsed_ns", "last_ns"), "int64") | {
        "gap_ns": "float64"
    }
    return pd.DataFrame(rows, columns=names).astype(whole)


def _gaps_on_clock(log: EventLog, which: np.ndarray) -> np.ndarray:
    """`gap_ns` of some pairs of a log: the event clock (docs/design.md, section 3) tells it without any trace."""
    clock = event_clock(log)
    start, end = (e[which] for e in log_ends(log))
    if clock is None:
        return np.full(len(start), np.nan)
    both = (start >= 0) & (end >= 0) & (clock.frame[start] >= 0)
    line = np.where(both, clock.line[clock.frame[start]], -1)
    return _gaps(clock.at_ns[start], clock.at_ns[end], line)


def _gaps_placed(intervals: pd.DataFrame, windows: pd.DataFrame) -> np.ndarray:
    """The same for the intervals that were placed under nsys."""
    event = (windows["kind"] == "event").to_numpy()
    place = windows["log_process"].to_numpy() * 1_000 + intervals["device"].to_numpy()
    start, end = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    return _gaps(start, end, np.where(event, place, -1))


def _gaps(start: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Per interval: ns since the last one of its group (-1: of none) had ended; NaN for the first one, and if another was still
    being timed."""
    out = np.full(len(start), np.nan)
    for number in np.unique(group[group >= 0]):
        mine = np.flatnonzero(group == number)
        mine = mine[np.argsort(start[mine], kind="stable")]
        gap = (start[mine][1:] - np.maximum.accumulate(end[mine])[:-1]).astype(np.float64)
        out[mine[1:]] = np.where(gap >= 0, gap, np.nan)
    return out


def _ranks(log: EventLog | None, process: np.ndarray) -> np.ndarray:
    """Numbers that identify the same process in both runs: in order of device, then of process id, as ranks start."""
    if log is None:
        return process
    devices = log.records[log.records["device"] >= 0].groupby("process")["device"].min().to_dict()
    keys = [(devices.get(n, -1), int(h.get("pid", 0)), n) for n, h in enumerate(log.headers)]
    rank = np.full(len(keys) + 1, -1)  # the last entry: no process
    for place, (_, _, number) in enumerate(sorted(keys)):
        rank[number] = place
    return rank[process]


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
    """A name for what the profiled run never timed: its region or its call sites, formed like a label."""
    if len(key) == 2:
        return key[1]
    _, start, end, _ = key
    return start if end in ("", start) else f"{start}-{end.rpartition(':')[2]}"


def _record_times(log: EventLog | None, found: pd.DataFrame | None) -> pd.DataFrame:
    """Per label the medians of how long the record calls of its intervals took: `ns`, and as a multiple of what is `usual` in the
    run."""
    if log is None or found is None or not len(found):
        return pd.DataFrame({"ns": [], "usual": []}, dtype=np.float64)
    speed = HostSpeed(log)
    near = speed.near(*(found[c].to_numpy() for c in ("process", "order", "last_ns")))
    both = pd.DataFrame({"ns": near, "usual": near / speed.usual(found["process"].to_numpy())})
    return both.groupby(found["label"].to_numpy()).median()


def _host_speeds(under: pd.DataFrame, without: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Label -> (how many times slower the host was under nsys, by the record calls; below 1 that says nothing down to here).

    nsys adds the same to a call that takes longer in both runs (cold caches), and so makes it longer by less than usual.
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
    low = high = paired = nan
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
        paired, why_not = _paired(profiled, baseline)
        if why_not:
            remarks.append(why_not)
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
    gaps = (nan if s is None else _midmean(s["gap_ns"].dropna()) for s in (profiled, baseline))
    return (
        label, str(first["kind"].iloc[0]), str(first["site"].iloc[0]), *counts, profiled_ns, baseline_ns, low, high,
        profiled_ns / baseline_ns if both else nan, paired, predicted, lower, upper, used,
        predicted / baseline_ns - 1 if both else nan, "; ".join(remarks), *gaps,
        slowdown,
    )  # fmt: skip


def _midmean(values) -> float:
    """The midmean; NaN for no values."""
    if not len(values):
        return float("nan")
    return float(midmean(np.asarray(values, dtype=np.float64)[:, None])[0])


def _predicted(
    profiled: pd.DataFrame, removed: pd.DataFrame, profiled_ns: float, slowdown: float
) -> tuple[float, float, float, int]:
    """The label's prediction: the loss of the replayed intervals, subtracted from the measurement of all of them.  Its bar
    reaches to what the other run's host, `slowdown` times faster (NaN: unknown), makes of it."""
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


def _paired(profiled: pd.DataFrame, baseline: pd.DataFrame) -> tuple[float, str]:
    """(median difference of the k-th interval of each process with and without nsys, why not)."""
    groups = [
        [g.sort_values("order", kind="stable") for _, g in s.groupby("process")]
        for s in (profiled, baseline)
    ]
    counts = [[len(g) for g in side] for side in groups]
    if counts[0] != counts[1]:
        text = ["+".join(map(str, c)) for c in counts]
        return (
            float("nan"),
            f"{text[0]} intervals under nsys, {text[1]} without: either the work differs or not all could be placed",
        )
    differences = [
        a["elapsed_ns"].to_numpy() - b["elapsed_ns"].to_numpy()
        for a, b in zip(*groups, strict=True)
    ]
    return float(np.median(np.concatenate(differences))), ""


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
