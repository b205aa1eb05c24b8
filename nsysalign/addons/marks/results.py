"""Tables of what happened inside kernels: dumps of marks, joined with the trace's kernels and
split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.addons.marks.command import MARKED, dumps
from nsysalign.addons.marks.dump import MarksError, read
from nsysalign.addons.marks.inside import Marked, inside, join
from nsysalign.addons.marks.tables import MARK_CHANGES, MARKS_SPECS
from nsysalign.model import Evidence
from nsysalign.rundir import Inputs, RunDirectory
from nsysalign.trace.read import read_launches

#: Rows of the table `marks`: the median and the slowest launch of each kernel, those that fit.
MOST_MARKS = 300_000
_KINDS = np.array(["mark", "begin", "end", "exit", "enter"], dtype=object)
_ENTER = 4

Tables = dict[str, pd.DataFrame]


def step(analysis: Evidence, inputs: Inputs) -> Evidence:
    """Adds what dumps of marks say about the insides of kernels: those that were given, else those
    of the run directory or of its run with marks (run --marks).  A damaged dump only yields a
    note."""
    paths = inputs.of_addons.get("marks", ())
    marked = inputs.of_addons.get("marked", (None,))[0]
    if not paths and inputs.home:
        paths = dumps(inputs.home)
        marked_run = RunDirectory(inputs.home / MARKED)
        if (theirs := dumps(marked_run.path)) and marked_run.traces():
            paths, marked = theirs, marked_run.export()
    if not paths:
        return analysis
    dumped, notes = [], []
    for path in paths:
        try:
            dumped.append(read(path))
        except MarksError as error:
            notes.append(f"marks: {error.message}")
    pids = {dump.pid for dump in dumped}
    rows, plain = read_launches(marked or inputs.trace, pids), None
    if marked is not None:
        plain = read_launches(inputs.trace, set(analysis.measured["pid"]) or pids)
    joined = [join(dump, rows) for dump in dumped]
    tables, mark_notes = mark_tables(joined, rows, analysis.measured, plain)
    notes += [note for dump in dumped for note in dump.notes()]
    return replace(
        analysis.with_tables(tables),
        notes=tuple(dict.fromkeys([*analysis.notes, *notes, *mark_notes])),
    )


def mark_tables(
    joined: Sequence[Marked],
    rows: pd.DataFrame,
    intervals: pd.DataFrame,
    plain: pd.DataFrame | None = None,
) -> tuple[Tables, list[str]]:
    """The tables of `MARKS_SPECS` by name, and notes.  `plain`: the kernels of the same program
    without marks, where `rows` are of a run of their own: kernels are then in no interval."""
    parts: dict[str, list[pd.DataFrame]] = {spec.name: [frames.empty(spec)] for spec in MARKS_SPECS}
    notes, count = [note for marked in joined for note in marked.notes], 0
    for marked in joined:
        for name, table in _of_dump(marked, notes).items():
            parts[name].append(table.assign(kernel=table["kernel"] + count))
        count += len(marked.launches)
    tables = {n: pd.concat(pieces[1:] or pieces, ignore_index=True) for n, pieces in parts.items()}
    if count:
        kernels = tables["marked_kernels"]
        tables["mark_changes"] = _changes(kernels, rows, plain)
        kernels["interval"] = -1
        if plain is None:
            kernels["interval"] = _intervals(kernels, intervals)
            notes.append(
                "kernels were marked in the run that was measured: what that changes is not known "
                "(nsysalign run --marks measures it, and shows times without marks)"
            )
    return {s.name: frames.check(tables[s.name], s) for s in MARKS_SPECS}, notes


def _of_dump(marked: Marked, notes: list[str]) -> Tables:
    """The tables of one dump; its launches are numbered from 0."""
    dump, opened, named = marked.dump, inside(marked), {0: "", **marked.dump.names}
    used = np.unique(np.append(dump.id >> 2, dump.counters["id"] >> 2)).tolist()
    unknown = {number: f"{number:#010x}" for number in used if number not in named}
    named |= unknown
    if unknown:
        notes.append(
            f"{dump.path}: marks without a known name are called by their number "
            f"({', '.join(sorted(unknown.values())[:5])}): nsysalign.marks.buffer(names=[...]) "
            "names them"
        )
    kernels = marked.launches.assign(**opened.kernels, kernel=range(len(marked.launches)))
    sms_seen = opened.sm_spans.groupby("kernel").size().reindex(kernels["kernel"], fill_value=0)
    kernels["sms"] = np.maximum(dump.sms, sms_seen.to_numpy())
    marks = _chosen_marks(marked, kernels, notes)
    return {
        "marked_kernels": kernels,
        "marks": marks.assign(name=marks["name"].map(named)),
        "kernel_phases": opened.phases.assign(phase=opened.phases["phase"].map(named)),
        "sm_time": opened.sm_time.assign(phase=opened.sm_time["phase"].map(named)),
        "sm_spans": opened.sm_spans,
        "path_counts": _counters(marked, named),
    }


def _chosen_marks(marked: Marked, kernels: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Marks of the median, then of the slowest launch of each kernel, those that fit; `name` is the
    hash."""
    dump, launch = marked.dump, marked.dump.launch[marked.dump.head_of]
    measured = kernels[kernels["warps"] > 0].assign(ns=kernels["end_ns"] - kernels["start_ns"])
    groups = measured.sort_values("ns", kind="stable").groupby(["name", "blocks"], sort=False)
    by_time = [group["kernel"].tolist() for _, group in groups]
    wanted = dict.fromkeys([its[(len(its) - 1) // 2] for its in by_time])
    wanted |= dict.fromkeys([its[-1] for its in by_time])
    wanted = np.array([*wanted], np.int64)
    sizes = np.bincount(launch, minlength=len(kernels))[wanted]
    picked = wanted[np.cumsum(sizes) <= MOST_MARKS]
    if left := len(wanted) - len(picked):
        notes.append(
            f"the marks of {left} launches of {dump.path} are too many for the table: phases and "
            "SM time are of all"
        )
    marks = np.flatnonzero(np.isin(launch, picked))
    head, launch_of = dump.head_of[marks], launch[marks]
    warps, ids = dump.heads[head], dump.id[marks].astype(np.int64)
    table = pd.DataFrame(
        {
            "kernel": launch_of, "sm": warps["sm"], "block_x": warps["x"], "block_y": warps["y"],
            "block_z": warps["z"], "warp": warps["warp"],
            "first_lane": dump.first_lane[head],
            "kind": _KINDS[np.where(ids == 0, _ENTER, ids & 3)], "name": ids >> 2,
            "t_ns": kernels["start_ns"].to_numpy()[launch_of] + marked.relative(launch_of, dump.time[marks]),
            "clock": dump.clock[marks],
        }
    )  # fmt: skip
    # stable: what a warp did within one tick of the timer stays in its order
    order = np.lexsort((table["warp"], table["block_x"], table["t_ns"], launch_of))
    return table.iloc[order].reset_index(drop=True)


def _counters(marked: Marked, named: dict[int, str]) -> pd.DataFrame:
    """`path_counts` of a dump."""
    slots, launches = marked.dump.counters, marked.launches
    table = pd.DataFrame({name: slots[name].astype(np.int64) for name in ("sm", "warps", "lanes")})
    return table.assign(
        kernel=pd.Index(launches["grid_id"]).get_indexer(slots["grid"].astype(np.int64)),
        counter=[named[number] for number in (slots["id"] >> 2).tolist()],
    ).sort_values(["kernel", "counter", "sm"], ignore_index=True)


def _intervals(kernels: pd.DataFrame, intervals: pd.DataFrame) -> np.ndarray:
    """Number of the shortest interval on whose stream each kernel began, -1 for none."""
    began, out = kernels[kernels["row"] >= 0].sort_values("start_ns"), np.full(len(kernels), -1)
    keys = ["stream", "pid"] if intervals["pid"].nunique() > 1 else ["stream"]
    by_stream = dict(iter(began.groupby(keys)))
    on_gpu = intervals[(intervals["kind"] != "run") & (intervals["device"] >= 0)]
    # the longest first: a shorter one that holds a kernel, too, comes after it
    ordered = on_gpu.iloc[::-1].sort_values("elapsed_ns", ascending=False, kind="stable")
    for i in ordered.itertuples(index=False):
        its = by_stream.get((i.end_stream, i.pid)[: len(keys)])
        if its is not None:
            begin, end = np.searchsorted(its["start_ns"], [i.start_ns, i.end_ns])
            out[its.index[begin:end]] = i.interval
    return out


def _changes(kernels: pd.DataFrame, rows: pd.DataFrame, plain: pd.DataFrame | None) -> pd.DataFrame:
    """`tables.MARK_CHANGES`: every kernel that was marked, with and without."""
    limits = ["registers", "local_bytes"]
    sides = []
    for side, table in (("marked", rows), ("plain", rows.iloc[:0] if plain is None else plain)):
        by_name = table.assign(ns=table["end_ns"] - table["start_ns"]).groupby("name")
        kinds = by_name[limits].max().assign(count=by_name.size(), ns=by_name["ns"].median())
        marked_kinds = kinds.reindex(sorted(set(kernels["name"]) - {""}))
        sides.append(
            marked_kinds.fillna({"count": 0} | dict.fromkeys(limits, -1)).add_prefix(f"{side}_")
        )
    out = sides[0].join(sides[1]).reset_index(names="name")
    change = out["marked_ns"] / out["plain_ns"].where(out["plain_ns"] > 0) - 1
    return out.assign(change=change)[MARK_CHANGES.names]
