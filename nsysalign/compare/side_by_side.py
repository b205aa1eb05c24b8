"""The profiled run and the same program without nsys, label by label, next to the prediction.

The run without nsys has an event log and no trace: its intervals are measured, not placed.  An
interval is matched to a label by its name (region, else call sites and callers), never by its place
in a list; labels in only one run are reported.
"""

from __future__ import annotations

import math
import re
import zlib
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.compare.bootstrap import change, midmean
from nsysalign.compare.label_changes import FEWEST_RUNS
from nsysalign.label import FIRST
from nsysalign.model import EventLog
from nsysalign.place.event_clock import event_clock
from nsysalign.place.lag import compared_pairs
from nsysalign.place.untraced import SetApart
from nsysalign.split.groups import SHARE
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
        timers = timers.assign(kind="host", certain=False, verdict="")
        found = _joined(found, timers)
    without = _labelled(found, label_of)
    without = without[without["certain"].astype(bool) | without["key"].isin(list(label_of))]
    logged = _labelled(measured(profiled), label_of) if profiled is not None else None
    known = set() if logged is None else set(logged["key"])
    proven = {"profiled_verdict": _verdicts(logged), "baseline_verdict": _verdicts(without)}
    under = intervals[["label", "kind", "site", "elapsed_ns", "interval"]]
    under = under.assign(process=windows["log_process"].to_numpy())
    predictions = unprofiled.set_index("interval")
    sides = [dict(iter(side.groupby("label", sort=False))) for side in (under, without)]
    rows = [
        _row(sides[0].get(label), sides[1].get(label), predictions, known)
        | {name: words.get(label, "") for name, words in proven.items()}
        | {"label": label}
        for label in dict.fromkeys([*intervals["label"], *without["label"]])
    ]
    table = frames.check(pd.DataFrame(rows, columns=frames.BASELINE.names), frames.BASELINE)
    return table, _notes(profiled, baseline, table)


def turns(
    intervals: pd.DataFrame,
    windows: pd.DataFrame,
    traced: EventLog,
    apart: SetApart,
    groups: pd.DataFrame,
) -> tuple[pd.DataFrame, list[str]]:
    """The same of one run whose recorder left in turns: what was traced beside what ran meanwhile.
    `groups`: of what was traced.  A label whose timings do different work (`groups`: kinds) is not
    compared: a turn may hold more of one kind than the next."""
    table, _ = side_by_side(
        intervals, windows, traced, apart.untraced, frames.empty(frames.UNPROFILED), apart.timers
    )
    steady = groups[groups["role"] != FIRST]
    weight = steady.groupby(["label", "kind"])["total_ns"].sum()
    whole = weight.groupby("label").transform("sum")
    kinds = weight[weight >= SHARE * whole].groupby("label").size()
    of_several = table["label"].map(kinds).fillna(1).to_numpy() > 1
    traced_count, count = (table[f"{side}_count"].to_numpy() for side in ("profiled", "baseline"))
    too_few = np.minimum(traced_count, count) < FEWEST_RUNS
    remark = np.select(
        [traced_count == 0, count == 0, too_few, of_several],
        [
            "untraced only",
            "traced only",
            f"fewer than {FEWEST_RUNS} intervals: not compared",
            "its timings do different work: not compared",
        ],
        "",
    )
    numbers = ["low_ns", "high_ns", "inflation"]
    compared = {name: table[name].where(remark == "") for name in numbers}
    table = table.assign(remark=remark, **compared)
    proven = ~table[["profiled_verdict", "baseline_verdict"]].isin(["", CANNOT_TELL]).any(axis=1)
    changed = table[proven & (table["profiled_verdict"] != table["baseline_verdict"])]
    notes = [
        f"tracing changes who limits {label}: what the breakdown says of that holds while it is traced only"
        for label in changed["label"]
    ]
    return frames.check(table, frames.BASELINE), notes


def measured(log: EventLog) -> pd.DataFrame:
    """Every interval that a log measured: event pairs that the program compared, and host timers.
    `order`: when its first call began; `certain`: no clock readings that may have been of
    anything; `verdict`: what the log proves of an event pair (`unprofiled_run`), else ''."""
    of_records = ["region", "site", "callers", "t0_ns"]
    records = log.records.drop_duplicates(["process", "seq"], keep="last")
    records = records.set_index(["process", "seq"])[of_records]
    pairs = compared_pairs(log, event_clock(log))
    own = log.compared.assign(verdict=pd.Series(verdicts(pairs), index=pairs.index, dtype=object))
    own = own.rename(columns={"region": "asked_in"}).drop(columns=["site", "t1_ns"])
    own = own.join(records, on=["process", "start"]).join(
        records[["site"]].rename(columns={"site": "end_site"}), on=["process", "end"]
    )
    own = own.dropna(subset=["site", "end_site"])
    own = own[own["ms"] >= 0]
    events = pd.DataFrame(
        {
            "kind": "event", "region": own["region"].where(own["region"] != "", own["asked_in"]),
            "site": own["site"], "end_site": own["end_site"], "callers": own["callers"],
            "process": own["process"], "order": own["t0_ns"].astype("int64"),
            "elapsed_ns": (own["ms"] * 1e6).round().astype("int64"), "certain": True,
            "verdict": own["verdict"].fillna(""),
        }
    )  # fmt: skip
    timed = log.hosts[log.hosts["t1_ns"] >= log.hosts["t0_ns"]]
    hosts = pd.DataFrame(
        {
            "kind": "host", "region": timed["region"], "site": timed["site"], "end_site": timed["site"],
            "callers": pd.Series([()] * len(timed), index=timed.index, dtype=object),
            "process": timed["process"], "order": timed["t0_ns"],
            "elapsed_ns": timed["t1_ns"] - timed["t0_ns"], "certain": ~timed["implicit"].astype(bool),
            "verdict": "",
        }
    )  # fmt: skip
    return _joined(events, hosts)


def _joined(*tables: pd.DataFrame) -> pd.DataFrame:
    """Rows of all tables; pandas 2 warns where one of them is empty."""
    return pd.concat([t for t in tables if len(t)] or [tables[0]], ignore_index=True)


def _key(row: Any) -> tuple:
    """The key by which intervals of different runs are the same measurement."""
    if row.region:
        return row.kind, re.sub(REPETITION, "", row.region)
    return row.kind, row.site, row.end_site, tuple(row.callers)


def _labelled(found: pd.DataFrame, label_of: dict[tuple, str]) -> pd.DataFrame:
    """With the key and the label of each; what the profiled run never timed is named by its region
    or its call sites."""
    keys, labels = [_key(row) for row in found.itertuples(index=False)], []
    for key in keys:
        start, end = key[1], key[2] if key[3:] else ""
        other = f"{start}-{end.rpartition(':')[2]}" if end not in ("", start) else start
        labels.append(label_of.get(key) or other)
    return found.assign(label=pd.Series(labels, dtype=object), key=pd.Series(keys, dtype=object))


def _row(
    profiled: pd.DataFrame | None,
    baseline: pd.DataFrame | None,
    predictions: pd.DataFrame,
    known: set[tuple],
) -> dict[str, Any]:
    """Of a row of BASELINE all but its label and verdicts; `known`: what the profiled run logged."""
    first, remarks = profiled if profiled is not None else baseline, []
    counts = [0 if side is None else len(side) for side in (profiled, baseline)]
    profiled_ns, baseline_ns = (
        math.nan if side is None else _midmean(side["elapsed_ns"]) for side in (profiled, baseline)
    )
    row = dict.fromkeys(frames.BASELINE.names, math.nan) | {
        "kind": first["kind"].iloc[0], "site": first["site"].iloc[0],
        "profiled_count": counts[0], "baseline_count": counts[1],
        "profiled_ns": profiled_ns, "baseline_ns": baseline_ns, "predicted_from": 0,
    }  # fmt: skip
    if profiled is None:
        placed = known and baseline["key"].iloc[0] in known
        remarks.append("not placed in the profiled run" if placed else "measured without nsys only")
        return row | {"remark": remarks[0]}
    if baseline is None:
        remarks.append("measured under nsys only")
    else:
        row["inflation"] = profiled_ns / baseline_ns if baseline_ns > 0 else math.nan
        if min(counts) >= FEWEST_RUNS:
            seed = zlib.crc32(str(profiled["label"].iloc[0]).encode("utf-8", "replace"))
            columns = [s["elapsed_ns"].to_numpy(np.float64)[:, None] for s in (baseline, profiled)]
            row["low_ns"], row["high_ns"] = change(*columns, seed)[0, 3:5]
        else:
            remarks.append(f"fewer than {FEWEST_RUNS} intervals: no confidence")
        each = [sorted(side.groupby("process").size()) for side in (profiled, baseline)]
        if each[0] != each[1]:
            under, without = ("+".join(map(str, own)) for own in each)
            remarks.append(
                f"{under} intervals under nsys, {without} without: either the work differs or not "
                "all could be placed"
            )
    tried = predictions.reindex(profiled["interval"])
    have = tried["predicted_ns"].notna().to_numpy()
    if have.any():
        # the loss of the intervals that were replayed, subtracted from the measurement of all
        shift = profiled_ns - _midmean(profiled["elapsed_ns"][have])
        for name in ("predicted_ns", "lower_ns", "upper_ns"):
            ns = max(_midmean(tried[name][have]) + shift, 0.0)
            row[name if name == "predicted_ns" else f"predicted_{name}"] = ns
        row["predicted_from"] = int(have.sum())
        if baseline_ns > 0:
            row["error"] = row["predicted_ns"] / baseline_ns - 1
    else:
        reasons = tried["reason"].dropna()
        untried = "untried: no interval of this label was replayed"
        remarks.append(f"no prediction: {reasons.iloc[0] if len(reasons) else untried}")
    return row | {"remark": "; ".join(remarks)}


def _midmean(values: Any) -> float:
    return float(midmean(np.asarray(values, dtype=np.float64)[:, None])[0])


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


def _notes(profiled: EventLog | None, baseline: EventLog, table: pd.DataFrame) -> list[str]:
    """What differs between the two runs as a whole, and whether nsys changed who limits labels."""
    ends = [(h.get("exit_status"), h.get("profiled_exit_status")) for h in baseline.headers]
    notes = [
        f"without nsys the script ended with status {without}, under nsys with {under}: "
        "the two runs may not have done the same"
        for without, under in dict.fromkeys(ends)
        if None not in (without, under) and without != under
    ]
    if any(h.get("stopped") for h in baseline.headers):
        notes.append("the run without nsys was stopped: it measured only a part")
    for what, key in (("GPU", "device_name"), ("torch", "torch"), ("Python", "python")):
        under, without = (
            ", ".join(sorted({str(h[key]) for h in log.headers if h.get(key)}))
            for log in (profiled or baseline, baseline)
        )
        if under and without and under != without:
            notes.append(f"{what} differs: {under} under nsys, {without} without")
    proven = ~table[["profiled_verdict", "baseline_verdict"]].isin(["", CANNOT_TELL]).any(axis=1)
    changed = table[proven & (table["profiled_verdict"] != table["baseline_verdict"])]
    if names := changed["label"].tolist():
        some = f"{plural(len(names), 'label')} ({', '.join(names[:3])}{', ...' * bool(names[3:])})"
        notes.append(
            f"nsys changes who limits {some}: what the breakdown says of that holds under nsys only"
        )
    return notes
