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
from nsysalign.split.paces import SHARE
from nsysalign.text import REPETITION, plural
from nsysalign.unprofiled_run import CANNOT_TELL, label_verdict, verdicts

#: So many intervals of later turns speak for a label, without those of the first.
_ENOUGH_LATER = 30


def side_by_side(
    intervals: pd.DataFrame,
    windows: pd.DataFrame,
    profiled: EventLog | None,
    baseline: EventLog,
    unprofiled: pd.DataFrame,
    timers: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Compare a profiled run with the same program without nsys.  Returns (`frames.BASELINE`: a row per label of either
    run; notes).

    intervals, windows: of the profiled run, row by row the same intervals
    profiled, baseline: the log of the profiled run (None: it has none), and that of the run without nsys
    unprofiled: the predictions
    timers: what clock readings measured in the run without nsys, if that is known apart from its log

    No trace says which clock readings of the run without nsys, or which of its regions, contain CUDA work:
    they count if the profiled run has intervals at the same place.
    """
    # what is measured at the same place (key) in both runs has the same label
    keys = map(_key, windows.itertuples(index=False))
    label_of = dict(zip(keys, intervals["label"].tolist(), strict=True))
    without_nsys = measured(baseline)
    if timers is not None:
        timers = timers.assign(kind="host", certain=False, verdict="")
        without_nsys = _joined(without_nsys, timers)
    without_nsys = _labelled(without_nsys, label_of)
    counts = without_nsys["certain"].astype(bool) | without_nsys["key"].isin(list(label_of))
    without_nsys = without_nsys[counts]
    logged = None if profiled is None else _labelled(measured(profiled), label_of)
    logged_keys = set() if logged is None else set(logged["key"])

    under_nsys = intervals[["label", "kind", "site", "elapsed_ns", "interval"]]
    under_nsys = under_nsys.assign(process=windows["log_process"].to_numpy())
    under_by_label = dict(iter(under_nsys.groupby("label", sort=False)))
    without_by_label = dict(iter(without_nsys.groupby("label", sort=False)))
    predictions = unprofiled.set_index("interval")
    verdict_under = _verdicts(logged)
    verdict_without = _verdicts(without_nsys)
    rows = []
    for label in dict.fromkeys([*intervals["label"], *without_nsys["label"]]):
        row = _row(under_by_label.get(label), without_by_label.get(label), predictions, logged_keys)
        row["label"] = label
        row["profiled_verdict"] = verdict_under.get(label, "")
        row["baseline_verdict"] = verdict_without.get(label, "")
        rows.append(row)
    table = frames.check(pd.DataFrame(rows, columns=frames.BASELINE.names), frames.BASELINE)
    return table, _notes(profiled, baseline, table)


def turns(
    intervals: pd.DataFrame,
    windows: pd.DataFrame,
    traced: EventLog,
    apart: SetApart,
    groups: pd.DataFrame,
) -> tuple[pd.DataFrame, list[str]]:
    """Compare what was traced of a run with what ran untraced in the same run, whose recorder attached and left in turns.
    Returns (`frames.BASELINE`, notes), as `side_by_side` does; "without nsys" is here what ran untraced.

    intervals, windows, traced: of what was traced
    apart: what ran while nothing was traced
    groups: `frames.GROUPS` of what was traced

    A label whose timings do different work (a share of them is of another kind) is not compared: a turn may
    hold more of one kind than the next.  A few of another kind, however long, do not move the middle half.  The first turn, in which a program warms up, is
    left out for labels of which later ones hold enough.
    """
    later = _is_compared(intervals["label"], windows, apart)
    table, _ = side_by_side(
        intervals[later],
        windows[later],
        traced,
        apart.untraced,
        frames.empty(frames.UNPROFILED),
        apart.timers,
    )
    # which labels have several kinds of work that each are a share of their timings
    steady = groups[groups["role"] != FIRST]
    count_of_kind = steady.groupby(["label", "kind"])["count"].sum()
    count_of_label = count_of_kind.groupby("label").transform("sum")
    kinds = count_of_kind[count_of_kind >= SHARE * count_of_label].groupby("label").size()
    has_kinds = table["label"].map(kinds).fillna(1).to_numpy() > 1
    traced_count = table["profiled_count"].to_numpy()
    untraced_count = table["baseline_count"].to_numpy()
    too_few = np.minimum(traced_count, untraced_count) < FEWEST_RUNS
    remark = np.select(
        [traced_count == 0, untraced_count == 0, too_few, has_kinds],
        [
            "untraced only",
            "traced only",
            f"fewer than {FEWEST_RUNS} intervals: not compared",
            "its timings do different work: not compared",
        ],
        "",
    )
    # what is not compared has no numbers of a comparison
    numbers = ["low_ns", "high_ns", "inflation"]
    compared = {name: table[name].where(remark == "") for name in numbers}
    table = table.assign(remark=remark, **compared)
    notes = [
        f"tracing changes who limits {label}: what the breakdown says of that holds while it is traced only"
        for label in _with_other_verdict(table)
    ]
    return frames.check(table, frames.BASELINE), notes


def _is_compared(label: pd.Series, windows: pd.DataFrame, apart: SetApart) -> np.ndarray:
    """Return, per interval, whether it is compared: it began after the recorder had left its process once, or its
    label has too few intervals that did.

    label, windows: of what was traced, row by row the same intervals
    """
    begin = windows["open_ns"].to_numpy(np.int64)
    process = windows["log_process"].to_numpy().tolist()
    later = np.array(
        [at > apart.left_at_ns.get(p, at) for p, at in zip(process, begin, strict=True)], bool
    )
    of_label = pd.Series(later, index=label.index).groupby(label, sort=False)
    return later | (of_label.transform("sum") < _ENOUGH_LATER).to_numpy()


def _with_other_verdict(table: pd.DataFrame) -> list[str]:
    """Return the labels that another side limits with the recorder than without it, as far as both are proven.

    table: `frames.BASELINE`
    """
    verdicts_of_runs = table[["profiled_verdict", "baseline_verdict"]]
    is_proven = ~verdicts_of_runs.isin(["", CANNOT_TELL]).any(axis=1)
    is_other = table["profiled_verdict"] != table["baseline_verdict"]
    return table["label"][is_proven & is_other].tolist()


def measured(log: EventLog) -> pd.DataFrame:
    """Return every interval that a log measured, event pairs that the program compared and host timers, a row each:

    kind        "event" or "host"
    region, site, end_site, callers, process: of the log; `end_site` is where the end was recorded
    order       when its first call began (ns)
    elapsed_ns  what it measured
    certain     False for clock readings that may have been of anything
    verdict     what the log proves of an event pair (`unprofiled_run.verdicts`), else ""
    """
    of_records = ["region", "site", "callers", "t0_ns"]
    records = log.records.drop_duplicates(["process", "seq"], keep="last")
    records = records.set_index(["process", "seq"])[of_records]
    # each comparison with what the log says of its two records
    compared = compared_pairs(log, event_clock(log))
    verdict = pd.Series(verdicts(compared), index=compared.index, dtype=object)
    pairs = log.compared.assign(verdict=verdict)
    pairs = pairs.rename(columns={"region": "asked_in"}).drop(columns=["site", "t1_ns"])
    pairs = pairs.join(records, on=["process", "start"])
    end_sites = records[["site"]].rename(columns={"site": "end_site"})
    pairs = pairs.join(end_sites, on=["process", "end"])
    pairs = pairs.dropna(subset=["site", "end_site"])
    pairs = pairs[pairs["ms"] >= 0]
    of_record, asked_in = pairs["region"].astype(object), pairs["asked_in"].astype(object)
    events = pd.DataFrame(
        {
            "kind": "event", "region": of_record.where(of_record != "", asked_in),
            "site": pairs["site"], "end_site": pairs["end_site"], "callers": pairs["callers"],
            "process": pairs["process"], "order": pairs["t0_ns"].astype("int64"),
            "elapsed_ns": (pairs["ms"] * 1e6).round().astype("int64"), "certain": True,
            "verdict": pairs["verdict"].fillna(""),
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
    """Return the key by which intervals of different runs are the same measurement: their region, else their lines.

    ("event", "forward") for the region "forward#3"; else ("event", "a.py:3", "a.py:9", ()) with its callers
    """
    if row.region:
        return row.kind, re.sub(REPETITION, "", row.region)
    return row.kind, row.site, row.end_site, tuple(row.callers)


def _labelled(rows: pd.DataFrame, label_of: dict[tuple, str]) -> pd.DataFrame:
    """Return rows of `measured` with columns `key` and `label`.

    label_of: key -> label in the profiled run
    """
    keys = [_key(row) for row in rows.itertuples(index=False)]
    labels = [label_of.get(key) or _name_of(key) for key in keys]
    return rows.assign(label=pd.Series(labels, dtype=object), key=pd.Series(keys, dtype=object))


def _name_of(key: tuple) -> str:
    """Return the label of what the profiled run never timed: its region, or its call sites as "a.py:3-9"."""
    _, region_or_site, *sites = key
    end_site = sites[0] if sites else ""
    if end_site in ("", region_or_site):
        return region_or_site
    _, _, end_line = end_site.rpartition(":")
    return f"{region_or_site}-{end_line}"


def _row(
    under: pd.DataFrame | None,
    without: pd.DataFrame | None,
    predictions: pd.DataFrame,
    logged_keys: set[tuple],
) -> dict[str, Any]:
    """Return a row of `frames.BASELINE`, all but its label and verdicts.

    under, without: the intervals of the label under nsys and without it, None for none; at least one is given
    predictions: `frames.UNPROFILED`, with the interval as its index
    logged_keys: the keys of what the profiled run logged
    """
    side = under if under is not None else without
    under_ns = math.nan if under is None else _midmean(under["elapsed_ns"])
    without_ns = math.nan if without is None else _midmean(without["elapsed_ns"])
    row = dict.fromkeys(frames.BASELINE.names, math.nan) | {
        "kind": side["kind"].iloc[0],
        "site": side["site"].iloc[0],
        "profiled_count": 0 if under is None else len(under),
        "baseline_count": 0 if without is None else len(without),
        "profiled_ns": under_ns,
        "baseline_ns": without_ns,
        "predicted_from": 0,
    }
    if under is None:
        was_logged = logged_keys and without["key"].iloc[0] in logged_keys
        remark = "not placed in the profiled run" if was_logged else "measured without nsys only"
        return row | {"remark": remark}
    if without is None:
        remarks = ["measured under nsys only"]
    else:
        row["inflation"] = under_ns / without_ns if without_ns > 0 else math.nan
        bounds, remarks = _bounds_of_change(under, without)
        row |= bounds
    prediction, why_there_is_none = _prediction(under, predictions)
    row |= prediction
    if prediction and without_ns > 0:
        row["error"] = row["predicted_ns"] / without_ns - 1
    remarks += why_there_is_none
    return row | {"remark": "; ".join(remarks)}


def _bounds_of_change(
    under: pd.DataFrame, without: pd.DataFrame
) -> tuple[dict[str, float], list[str]]:
    """Return (`low_ns` and `high_ns`, between which the change by nsys lies; remarks on the comparison).

    under, without: the intervals of one label under nsys and without it
    """
    bounds = dict[str, float]()
    remarks = list[str]()
    if min(len(under), len(without)) >= FEWEST_RUNS:
        seed = zlib.crc32(str(under["label"].iloc[0]).encode("utf-8", "replace"))
        # `change` takes tables, here with one column: the elapsed time
        before, after = (
            side["elapsed_ns"].to_numpy(np.float64)[:, None] for side in (without, under)
        )
        _, _, _, low_ns, high_ns = change(before, after, seed)[0]
        bounds |= {"low_ns": low_ns, "high_ns": high_ns}
    else:
        remarks.append(f"fewer than {FEWEST_RUNS} intervals: no confidence")
    under_counts = sorted(under.groupby("process").size())
    without_counts = sorted(without.groupby("process").size())
    if under_counts != without_counts:
        remarks.append(
            f"{'+'.join(map(str, under_counts))} intervals under nsys, {'+'.join(map(str, without_counts))} without: either "
            "the work differs or not all could be placed"
        )
    return bounds, remarks


def _prediction(
    under: pd.DataFrame, predictions: pd.DataFrame
) -> tuple[dict[str, float], list[str]]:
    """Return (the columns of the prediction for one label, {} for none; a remark that there is none, and why).

    under: its intervals under nsys, of which some were replayed without what nsys costs
    predictions: as in `_row`

    All took 120 us, those that were replayed 110 us, and 90 us without nsys: 90 + (120 - 110) = 100 us.
    """
    tried = predictions.reindex(under["interval"])
    was_replayed = tried["predicted_ns"].notna().to_numpy()
    if not was_replayed.any():
        reasons = tried["reason"].dropna()
        untried = "untried: no interval of this label was replayed"
        return {}, [f"no prediction: {reasons.iloc[0] if len(reasons) else untried}"]
    all_ns = _midmean(under["elapsed_ns"])
    shift_ns = all_ns - _midmean(under["elapsed_ns"][was_replayed])
    columns: dict[str, float] = {"predicted_from": int(was_replayed.sum())}
    for name, column in (
        ("predicted_ns", "predicted_ns"),
        ("lower_ns", "predicted_lower_ns"),
        ("upper_ns", "predicted_upper_ns"),
    ):
        columns[column] = max(_midmean(tried[name][was_replayed]) + shift_ns, 0.0)
    return columns, []


def _midmean(values: Any) -> float:
    return float(midmean(np.asarray(values, dtype=np.float64)[:, None])[0])


def _verdicts(rows: pd.DataFrame | None) -> dict[str, str]:
    """Return label -> what the log of one run proves of it.  The same rule for both runs, so that only nsys
    can make the difference.

    rows: as `_labelled` returns them, None if there is no log
    """
    if rows is None:
        return {}
    events = rows[(rows["kind"] == "event") & (rows["verdict"] != "")]
    out = {}
    for label, of_label in events.groupby("label", sort=False):
        verdict = of_label["verdict"]
        # the first one prepares for the others: it counts only where there is no other
        out[label] = label_verdict(verdict.iloc[1:] if len(verdict) > 1 else verdict)
    return out


def _notes(profiled: EventLog | None, baseline: EventLog, table: pd.DataFrame) -> list[str]:
    """Return notes on what differs between the two runs as a whole, and on labels that another side limits under nsys.

    profiled: the log of the profiled run, None if it has none
    baseline: that of the run without nsys
    table: `frames.BASELINE`
    """
    ends = [
        (header.get("exit_status"), header.get("profiled_exit_status"))
        for header in baseline.headers
    ]
    notes = [
        f"without nsys the script ended with status {without}, under nsys with {under}: "
        "the two runs may not have done the same"
        for without, under in dict.fromkeys(ends)
        if None not in (without, under) and without != under
    ]
    if any(header.get("stopped") for header in baseline.headers):
        notes.append("the run without nsys was stopped: it measured only a part")
    for subject, key in (("GPU", "device_name"), ("torch", "torch"), ("Python", "python")):
        # without a log of the profiled run nothing is compared: the baseline's stands for it
        under, without = (
            ", ".join(sorted({str(header[key]) for header in log.headers if header.get(key)}))
            for log in (profiled or baseline, baseline)
        )
        if under and without and under != without:
            notes.append(f"{subject} differs: {under} under nsys, {without} without")
    if labels := _with_other_verdict(table):
        first_three = f"{', '.join(labels[:3])}{', ...' if len(labels) > 3 else ''}"
        notes.append(
            f"nsys changes who limits {plural(len(labels), 'label')} ({first_three}): what the breakdown says of that "
            "holds under nsys only"
        )
    return notes
