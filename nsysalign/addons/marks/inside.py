"""Tables of what happened inside kernels: dumps of marks, joined with the trace's kernels and
split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.addons.marks import layout
from nsysalign.addons.marks.command import MARKED, dumps
from nsysalign.addons.marks.dump import Dump, MarksError, read, warnings
from nsysalign.addons.marks.join import Marked, join
from nsysalign.addons.marks.sm_time import inside
from nsysalign.addons.marks.tables import MARK_CHANGES, MARKS_SPECS
from nsysalign.model import Evidence
from nsysalign.rundir import Inputs, RunDirectory
from nsysalign.trace.launches import read_launches

#: Rows of the table `marks`: the median and the slowest launch of each kernel, as many as fit.
MOST_MARKS = 150_000
_FEWEST_OF_LAUNCH = 5_000
_KINDS = np.array(["mark", "begin", "end", "exit", "enter"], dtype=object)
_ENTER = 4
#: An SM of compute capability 8.0 and 9.0: warps, blocks, registers of each of its four parts,
#: bytes that blocks can share.
_SM_WARPS, _SM_BLOCKS, _PART_REGISTERS, _SM_SHARED, _BLOCK_RESERVED = 64, 32, 16_384, 233_472, 1_024


@dataclass(frozen=True)
class MarkTables:
    """The tables of `MARKS_SPECS` by name, and notes about them."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    buffers: tuple[Mapping[str, object], ...] = ()  # what each dump contains and lacks


def step(analysis: Evidence, inputs: Inputs) -> Evidence:
    """Adds what dumps of marks say about the insides of kernels: those that were given, else those
    of the run directory or of its run with marks (run --marks)."""
    paths, marked = inputs.given.get("marks", ()), inputs.given.get("marked", (None,))[0]
    if not paths and inputs.home:
        paths = dumps(inputs.home)
        own = RunDirectory(inputs.home / MARKED)
        if (theirs := dumps(own.path)) and own.traces():
            paths, marked = theirs, own.export()
    if not paths:
        return analysis
    inside = marked_inside(paths, inputs.trace, marked, analysis.measured)
    return replace(
        analysis.with_tables(inside.tables),
        notes=tuple(dict.fromkeys([*analysis.notes, *inside.notes])),
        calibration={**analysis.calibration, "marks": list(inside.buffers)},
    )


def marked_inside(
    paths: Sequence[Path], trace: Path, marked: Path | None, intervals: pd.DataFrame
) -> MarkTables:
    """The tables of these dumps, made in the run of `trace`, or of `marked` where that is another.
    A damaged dump only yields a note; the rest of the answer is kept."""
    dumps, notes = [], []
    for path in paths:
        try:
            dumps.append(read(path))
        except MarksError as error:
            notes.append(f"marks: {error.message}")
    pids = {dump.pid for dump in dumps}
    rows = read_launches(marked or trace, pids)
    plain = read_launches(trace, set(intervals["pid"]) or pids) if marked is not None else None
    found = mark_tables(dumps, rows, intervals, plain)
    return replace(found, notes=(*notes, *found.notes))


def mark_tables(
    dumps: Sequence[Dump],
    rows: pd.DataFrame,
    intervals: pd.DataFrame,
    plain: pd.DataFrame | None = None,
) -> MarkTables:
    """What the dumps say of the kernels in `rows` (`frames.LAUNCHES`).

    `plain`: the kernels of the same program without marks, where `rows` are of a run of their own;
    `intervals` are then of the run without.
    """
    parts: dict[str, list[pd.DataFrame]] = {spec.name: [] for spec in MARKS_SPECS}
    notes = warnings(dumps)
    count = 0
    for dump in dumps:
        marked = join(dump, rows)
        notes += marked.notes
        for name, table in _of_dump(marked, count, notes).items():
            parts[name].append(table)
        count += len(marked.launches)
    tables = {
        spec.name: pd.concat(parts[spec.name], ignore_index=True)
        if parts[spec.name]
        else frames.empty(spec)
        for spec in MARKS_SPECS
    }
    kernels = tables["marked_kernels"]
    if len(kernels):
        tables["marked_kernels"] = kernels.assign(
            interval=_intervals(kernels, rows, intervals, plain)
        )
        tables["mark_changes"] = _changes(kernels, rows, plain)
        tables = _numbered(tables)
        if plain is None:
            notes.append(
                "kernels were marked in the run that was measured: what that changes is not known "
                "(nsysalign run --marks measures it, and shows times without marks)"
            )
    specs = {spec.name: spec for spec in MARKS_SPECS}
    buffers = tuple(
        {
            "file": d.path, "pid": d.pid, "device": d.device, "written": d.written,
            "dropped": d.dropped, "counts_dropped": d.counts_dropped, "capacity": d.capacity,
        }
        for d in dumps
    )  # fmt: skip
    return MarkTables(
        {n: frames.check(t, specs[n]) for n, t in tables.items()},
        tuple(dict.fromkeys(notes)),
        buffers,
    )


def _numbered(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Kernels sorted by time, the other tables numbered like them."""
    kernels = tables["marked_kernels"]
    order = np.lexsort((kernels["start_ns"], kernels["error_ns"] < 0))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    out = {}
    for name, table in tables.items():
        if "kernel" in table:
            table = table.assign(kernel=place[table["kernel"].to_numpy(dtype=np.int64)])
            table = table.sort_values("kernel", kind="stable", ignore_index=True)
        out[name] = table
    return out


def _of_dump(marked: Marked, first: int, notes: list[str]) -> dict[str, pd.DataFrame]:
    """The tables of one dump; its launches are numbered from `first`."""
    dump, launches = marked.dump, marked.launches
    found = inside(marked)
    names = _Names(dump.names)
    kernels = launches.assign(
        **found.kernels, kernel=np.arange(len(launches)), sms=dump.sms, interval=-1
    )
    kernels["sms"] = np.maximum(
        dump.sms,
        found.sm_spans.groupby("kernel").size().reindex(kernels["kernel"], fill_value=0).to_numpy(),
    )
    kernels["threads"] = np.where(kernels["threads"] > 0, kernels["threads"], launches["threads"])
    counts, latencies = _counters(marked, names)
    tables = {
        "marked_kernels": kernels,
        "marks": _chosen_marks(marked, kernels, names, notes),
        "kernel_phases": found.phases.assign(phase=names.of(found.phases["phase"])),
        "sm_time": found.sm_time.assign(
            phase=np.where(found.sm_time["part"] == "phase", names.of(found.sm_time["phase"]), "")
        ),
        "sm_spans": found.sm_spans,
        "path_counts": counts,
        "latencies": latencies,
    }
    if names.unknown:
        listed = ", ".join(sorted(names.unknown)[:5])
        notes.append(
            f"{dump.path}: marks without a known name are called by their number ({listed}): "
            "nsysalign.marks.buffer(names=[...]) names them"
        )
    return {name: table.assign(kernel=table["kernel"] + first) for name, table in tables.items()}


class _Names:
    """Hashes to texts; `unknown`: those without a known name."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self._known = known
        self.unknown: set[str] = set()

    def text(self, number: int) -> str:
        if number >= layout.TRIGGER:
            return f"prof_trigger_{number - layout.TRIGGER:02d}"
        if number not in self._known:
            self.unknown.add(f"{number:#010x}")
            return f"{number:#010x}"
        return self._known[number]

    def of(self, numbers: pd.Series | np.ndarray) -> np.ndarray:
        """The text of each."""
        unique, which = np.unique(np.asarray(numbers, dtype=np.int64), return_inverse=True)
        texts = np.array([self.text(int(n)) if n else "" for n in unique], dtype=object)
        return texts[which] if len(texts) else np.empty(0, dtype=object)


def _chosen_marks(
    marked: Marked, kernels: pd.DataFrame, names: _Names, notes: list[str]
) -> pd.DataFrame:
    """Marks of the median and the slowest launch of each kernel, as many as fit."""
    dump = marked.dump
    launch = marked.launch[dump.of]
    wanted = _median_and_slowest(kernels)
    room = MOST_MARKS
    picked: list[np.ndarray] = []  # marks; heads are counted from the end: ~head
    for number in wanted:
        mine = np.flatnonzero(launch == number)
        heads = np.flatnonzero(
            (marked.launch == number)
            & (dump.warps["kind"] == layout.HEAD | layout.VERSION)
            & (dump.warps["previous"] == 0)
        )
        both = np.concatenate([mine, ~heads])
        if len(both) > room:
            both = _some_sms(dump, both, room)
            notes.append(
                f"the marks of launch {number} of {dump.path} are too many for the table: those of "
                "some SMs are in it, phases and SM time are of all"
            )
        picked.append(both)
        room -= len(both)
        if room < _FEWEST_OF_LAUNCH:
            break
    rows = np.concatenate(picked) if picked else np.empty(0, np.int64)
    of_head = rows < 0
    head = np.where(of_head, ~rows, dump.of[np.maximum(rows, 0)] if len(dump.of) else 0)
    mark = np.maximum(rows, 0)
    warps = dump.warps[head]
    timer = np.where(
        of_head, warps["time"].astype(np.int64), dump.time[mark] if len(dump.time) else 0
    )
    ids = np.where(of_head, 0, dump.id[mark] if len(dump.id) else 0).astype(np.int64)
    which = marked.launch[head]
    kind = np.where(of_head, _ENTER, ids & 3)
    start = marked.launches["start_ns"].to_numpy()[which]
    clock = np.where(
        of_head, warps["clock"].astype(np.uint32), dump.clock[mark] if len(dump.clock) else 0
    )
    lanes = np.ascontiguousarray(warps["lanes"].astype("<u4")).reshape(-1, 1)
    table = pd.DataFrame(
        {
            "kernel": which, "sm": warps["sm"], "block_x": warps["x"], "block_y": warps["y"],
            "block_z": warps["z"], "warp": warps["warp"],
            "lanes": np.unpackbits(lanes.view(np.uint8), axis=1).sum(axis=1, dtype=np.int64),
            "first_lane": marked.first_lane[head], "kind": _KINDS[kind], "name": names.of(ids >> 2),
            "t_ns": start + marked.relative(which, timer), "timer_ns": timer, "clock": clock,
        }
    )  # fmt: skip
    cycles = np.where(of_head, -1, marked.cycles(head, clock).astype(np.int64))
    order = np.lexsort((cycles, table["warp"], table["block_x"], table["t_ns"], which))
    return table.iloc[order].reset_index(drop=True)


def _median_and_slowest(kernels: pd.DataFrame) -> list[int]:
    """Launches whose marks are kept: of every kernel the median, then of every kernel the
    slowest."""
    there = kernels[kernels["warps"] > 0]
    duration = (there["end_ns"] - there["start_ns"]).rename("duration")
    medians, slowest = [], []
    for _, group in pd.concat([there[["kernel", "name", "blocks"]], duration], axis=1).groupby(
        ["name", "blocks"], sort=False
    ):
        ordered = group.sort_values("duration", kind="stable")["kernel"].tolist()
        medians.append(ordered[(len(ordered) - 1) // 2])
        slowest.append(ordered[-1])
    return list(dict.fromkeys([*medians, *slowest]))


def _some_sms(dump: Dump, both: np.ndarray, room: int) -> np.ndarray:
    """As many whole SMs as fit: first the one that ends last, then by number."""
    head = np.where(both < 0, ~both, dump.of[np.maximum(both, 0)])
    sm = dump.warps["sm"][head].astype(np.int64)
    time = np.where(both < 0, 0, dump.time[np.maximum(both, 0)])
    last = sm[time.argmax()]
    order = [last, *(s for s in np.unique(sm).tolist() if s != last)]
    sizes = np.bincount(sm)
    kept = np.cumsum([sizes[s] for s in order]) <= room
    return both[np.isin(sm, np.array(order)[kept])]


def _counters(marked: Marked, names: _Names) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(`tables.PATH_COUNTS`, `tables.LATENCIES`) of a dump.  Counts of launches that share a grid
    id (a graph's) are one sum: they stand at the first."""
    slots, launches = marked.dump.counters, marked.launches
    firsts = launches[launches["replay"] == 0]
    by_grid = pd.Series(firsts.index, index=firsts["grid_id"].to_numpy())
    table = pd.DataFrame(
        {
            name: slots[name].astype(np.int64)
            for name in ("sm", "part", "warps", "lanes", "sum", "most")
        }
    ).assign(
        kernel=by_grid.reindex(slots["grid"].astype(np.int64)).to_numpy(dtype=np.int64),
        counter=names.of(slots["id"].astype(np.int64) >> 2),
        least=(~slots["least"]).astype(np.int64),
    )
    pair = ["kernel", "counter"]
    timed = table.groupby(pair)["part"].transform("max") > 0
    counts = table[~timed].sort_values([*pair, "sm"], ignore_index=True)
    sums = {"least": "min", "most": "max", "lanes": "sum", "sum": "sum"}
    by_part = table[timed].groupby([*pair, "part"], as_index=False).agg(sums)
    # part 0 is the whole, part n the lanes that took from 2^(n-2) to 2^(n-1) cycles
    power = by_part["part"].to_numpy(dtype=np.int64) - 1
    low = np.where(power > 0, 1 << np.maximum(power - 1, 0), 0)
    latencies = by_part.assign(
        low=np.where(power < 0, by_part["least"], low),
        high=np.where(power < 0, by_part["most"], 1 << np.maximum(power, 0)),
        sum=np.where(power < 0, by_part["sum"], 0),
        bin=power,
    )
    return counts, latencies[[*pair, "low", "high", "lanes", "sum", "bin"]]


def _intervals(
    kernels: pd.DataFrame, rows: pd.DataFrame, intervals: pd.DataFrame, plain: pd.DataFrame | None
) -> np.ndarray:
    """Number of the shortest interval on whose stream each kernel began, -1 for none.  Where the
    intervals are of the run without marks, a kernel stands for the one of the same name and turn
    there."""
    at = kernels[["pid", "device", "stream", "start_ns", "row"]].copy()
    at.loc[at["row"] < 0, "stream"] = -1
    if plain is not None:
        at = _counterparts(kernels, rows, plain)
    out = np.full(len(kernels), -1, np.int64)
    length = np.full(len(kernels), np.iinfo(np.int64).max)
    on_gpu = intervals[(intervals["kind"] != "run") & (intervals["device"] >= 0)]
    start = at["start_ns"].to_numpy()
    by_stream = {key: np.asarray(rows) for key, rows in at.groupby("stream").indices.items()}
    processes = intervals["pid"].nunique() > 1
    pid = at["pid"].to_numpy()
    for i in on_gpu.itertuples(index=False):
        mine = by_stream.get(i.end_stream)
        if mine is None:
            continue
        inside_it = mine[
            (start[mine] >= i.start_ns) & (start[mine] < i.end_ns) & (i.elapsed_ns < length[mine])
        ]
        if processes:
            inside_it = inside_it[pid[inside_it] == i.pid]
        out[inside_it], length[inside_it] = i.interval, i.elapsed_ns
    return out


def _counterparts(kernels: pd.DataFrame, rows: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """For each kernel the launch of the same name and turn in the other run, where both runs
    launched as many."""
    numbered = [t.assign(turn=t.groupby("name").cumcount()) for t in (rows, plain)]
    many, as_many = (t.groupby("name").size() for t in (rows, plain))
    same = many[many == as_many.reindex(many.index)].index
    columns = ["pid", "device", "stream", "start_ns"]
    own = numbered[0][["row", "name", "turn"]]
    pairs = own[own["name"].isin(same)].merge(numbered[1][["name", "turn", *columns]])
    found = pairs.set_index("row")[columns].reindex(kernels["row"], fill_value=-1)
    return found.set_axis(kernels.index)


def _changes(kernels: pd.DataFrame, rows: pd.DataFrame, plain: pd.DataFrame | None) -> pd.DataFrame:
    """`tables.MARK_CHANGES`: every kernel that was marked, with and without."""
    most = ["registers", "local_bytes", "shared_bytes", "threads"]
    sides = {}
    for side, table in (("marked", rows), ("plain", rows.iloc[:0] if plain is None else plain)):
        of = table.assign(ns=table["end_ns"] - table["start_ns"]).groupby("name")
        kinds = of[most].max().assign(count=of.size(), ns=of["ns"].median())
        there = kinds.reindex(sorted(set(kernels["name"]) - {""}))
        there = there.fillna({"count": 0} | dict.fromkeys(most, -1))
        there["warps_per_sm"] = [
            warps_per_sm(int(r.registers), int(r.threads), int(r.shared_bytes))
            for r in there.itertuples()
        ]
        sides[side] = there.add_prefix(f"{side}_")
    out = sides["marked"].join(sides["plain"]).reset_index(names="name")
    change = out["marked_ns"] / out["plain_ns"].where(out["plain_ns"] > 0) - 1
    return out.assign(change=change)[MARK_CHANGES.names]


def warps_per_sm(registers: int, threads: int, shared_bytes: int) -> int:
    """How many warps of such blocks fit on an SM of compute capability 8.0 or 9.0; -1 unknown."""
    if registers < 0 or threads <= 0:
        return -1
    warps = -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    limits = [_SM_WARPS // warps, _SM_BLOCKS, _PART_REGISTERS // per_warp * 4 // warps]
    if shared_bytes > 0:
        limits.append(_SM_SHARED // (shared_bytes + _BLOCK_RESERVED))
    return min(limits) * warps
