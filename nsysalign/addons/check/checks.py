"""All checks on one trace: what each of them finds, and what could not be checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsysalign.addons.check.scene import FOUND, NOTE, Doubt, Issued, Scene
from nsysalign.answer import wrong_of
from nsysalign.engine import analyze_inputs
from nsysalign.errors import TraceError
from nsysalign.model import CALL, KIND, Gpu, TraceInfo
from nsysalign.place.align import align
from nsysalign.probe.tampering import REPLACED
from nsysalign.rundir import Inputs
from nsysalign.split.pieces import operation_names
from nsysalign.text import bytes_text, plural, span
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.nccl import NCCL_KERNEL
from nsysalign.trace.read import read_trace

FORMAT, VERSION = "nsysalign-check", 1
#: Stands for a label: which intervals a replaced timer concerns is not known.
_ALL = "(timers)"
#: An end that is later by less may be the two clocks' disagreement.
_SLACK_NS = 2_000
#: A label is judged by what at least this share of its intervals does.
_TYPICAL = 0.5
#: The work is done at most this often before it is left out, and then left out at least so often
#: and this many times as often.
_FIRST, _FEWEST, _TIMES = 3, 3, 2
#: Fewer blocks or bytes by at least this share.
_LESS = 0.1
#: What moves at most this many L2s may stay in it.
_L2S = 4
#: In the name of the kernel of torch's `zero_` and `fill_` (and so of triton's do_bench).
_FILL = "FillFunctor"


@dataclass(frozen=True)
class Verdict:
    """What the checks say of one run: doubts, those that fail the check first."""

    trace: TraceInfo
    labels: int
    intervals: int
    doubts: tuple[Doubt, ...]
    unchecked: tuple[str, ...]

    @property
    def found(self) -> tuple[Doubt, ...]:
        """The doubts that fail the check."""
        return tuple(doubt for doubt in self.doubts if doubt.level == FOUND)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "trace": {"path": self.trace.path, "devices": list(self.trace.devices)},
            "labels": self.labels,
            "intervals": self.intervals,
            "found": len(self.found),
            "doubts": [{**vars(doubt), "worth_ns": doubt.worth_ns} for doubt in self.doubts],
            "unchecked": list(self.unchecked),
        }


def judge(inputs: Inputs) -> Verdict:
    """Check the run.  Raises TraceError and EventLogError as an analysis does, and where nothing
    was timed: a check that cannot fail is none."""
    trace = read_trace(inputs.trace)
    log = read_event_logs(inputs.events) if inputs.events else None
    scene = Scene(trace, align(trace, log), trace.gpus)
    doubts = [doubt for check in (escaped, less, flushes, captured) for doubt in check(scene)]
    doubts += _wrong(inputs, {doubt.label for doubt in doubts if doubt.level == FOUND})
    for note in dict.fromkeys(log.notes if log is not None else ()):
        if note.startswith(REPLACED):
            title = (
                f"The program replaced {note.removeprefix(REPLACED)}: what it prints need not be "
                "what the original returned. The times shown here are the original's."
            )
            doubts.append(Doubt("replaced-timer", FOUND, _ALL, "", title, (), 0))
    lost = scene.alignment.unaligned["reason"].tolist()
    if scene.intervals.empty and not doubts:
        nothing = "no pair of events was compared" if log else "no event log says what was timed"
        raise TraceError(
            f"there is nothing to check: {[*lost, nothing][0]}",
            "nsysalign check --events FILE TRACE, or nsysalign check SCRIPT.py",
        )
    doubts.sort(key=lambda doubt: (doubt.level != FOUND, -(doubt.worth_ns or 0)))
    unchecked = [f"of the trace: {'; '.join(trace.info.notes)}"] if trace.info.notes else []
    if not any(limit.memory_rate for limit in scene.limits.values()):
        unchecked.append("flushes against the L2: the trace does not name it")
    if unknown := int(scene.without_rows.sum()):
        unchecked.append(f"the work of {unknown} intervals: launches without a row in the trace")
    if lost:
        unchecked.append(
            f"{len(lost)} timed intervals have no place in the trace (nsysalign analyze says why)"
        )
    many = scene.intervals["label"].nunique()
    return Verdict(trace.info, many, len(scene.intervals), tuple(doubts), tuple(unchecked))


def _wrong(inputs: Inputs, known: set[str]) -> Iterator[Doubt]:
    """What every screen calls a wrong timing, unless a check here says more of its label."""
    analysis = analyze_inputs(inputs)
    for finding in wrong_of(analysis):
        if finding.label in known:
            continue
        its = analysis.intervals[analysis.intervals["label"] == finding.label]
        shown = [finding.rule in rules for rules in its["findings"]]
        yield Doubt(
            finding.rule, FOUND, finding.label, finding.site, finding.title,
            tuple(its["name"][shown]), len(its),
        )  # fmt: skip


# --- is what was timed the work? ---


def escaped(scene: Scene) -> Iterator[Doubt]:
    """Work that was launched in an interval and ended after it.

    host    r(start)  launch on stream 13   r(end)
    7       |---------------------------------|                 what was measured
    13                    [=============================]       what it launched
    """
    late, end = _late(scene), scene.column("end_ns")
    last = np.full(len(scene.intervals), np.iinfo(np.int64).min)
    np.maximum.at(last, late.interval, scene.end[late.operation])
    # programs prefetch the next batch and reduce gradients while they time something else
    kinds = scene.kind[late.operation]
    kernels = np.flatnonzero(kinds == KIND["kernel"])
    names = operation_names(scene.trace, late.operation[kernels]).tolist()
    overlaps = kinds == KIND["memcpy"]
    overlaps[kernels] = [NCCL_KERNEL.search(str(name)) is not None for name in names]
    usual = late.where(~overlaps)
    timed = scene.lane[scene.issued.operation] == scene.column("end_lane")[scene.issued.interval]
    worked = scene.issued.where(timed).sums(len(scene.intervals)) > 0
    for _, rows in scene.labels():
        its = rows[np.isin(rows, late.interval)]
        if not len(its):
            continue
        grave = np.isin(its, usual.interval) | ~worked[its]
        often = grave.sum() >= _TYPICAL * len(rows)
        shown = its[grave] if often else its
        over = last[shown] - end[shown]
        quoted = int(shown[np.argsort(over, kind="stable")[(len(over) - 1) // 2]])
        work = late.operation[late.interval == quoted]
        streams = sorted({scene.stream(lane) for lane in scene.lane[work].tolist()})
        on = f"stream {streams[0]}" if len(streams) == 1 else f"{len(streams)} other streams"
        yield scene.doubt(
            "escaped-work", FOUND if often else NOTE, rows, shown,
            f"does not wait for all that it launches: {plural(len(work), 'operation')} launched "
            f"between its two records ran on {on} until {span(int(last[quoted] - end[quoted]))} "
            "after the end event.",
            quoted=quoted,
            right_ns=int(last[quoted] - scene.column("start_ns")[quoted]),
        )  # fmt: skip


def _late(scene: Scene) -> Issued:
    """What was issued inside, on another stream, ended after the end event, and was not issued
    between the two records of a pair on its own stream."""
    issued, lane = scene.issued, scene.column("end_lane")
    end = scene.column("end_ns") + 2 * scene.column("error_ns") + _SLACK_NS
    late = scene.lane[issued.operation] != lane[issued.interval]
    issued = issued.where(late & (scene.end[issued.operation] > end[issued.interval]))
    of_operation, issue = scene.lane[issued.operation], scene.issue[issued.operation]
    timed = np.zeros(len(issue), bool)
    for number in np.intersect1d(of_operation, lane).tolist():
        pairs = scene.intervals[lane == number].sort_values("open_ns")
        here = of_operation == number
        reach = np.append(0, np.maximum.accumulate(pairs["close_ns"].to_numpy()))
        timed[here] = reach[np.searchsorted(pairs["open_ns"], issue[here])] > issue[here]
    return issued.where(~timed)


def less(scene: Scene) -> Iterator[Doubt]:
    """Labels of which all repetitions but the first few do less, and those that do nothing.

    A loop over sizes, a warm-up that tries algorithms and a batch that is cut short are none of
    this: the later repetitions must all do the same, and either run nothing on the GPU, or only
    copies, or the same kernels on fewer blocks or bytes.
    """
    labels = [rows[~scene.without_rows[rows]] for _, rows in scene.labels()]
    did, elapsed = scene.did, scene.column("elapsed_ns")
    worked = any(did["count"][rows].any() for rows in labels)
    for rows in (rows for rows in labels if len(rows)):
        of, (count, kernels) = len(rows), (did[c].to_numpy()[rows] for c in ("count", "kernels"))
        idle, full = rows[count == 0], rows[kernels > 0]
        if not count.any():
            inside = "its one interval" if of == 1 else f"any of its {of} intervals"
            also = " No other pair of events of the program has work in it either." * (not worked)
            yield scene.doubt(
                "nothing-inside", NOTE if worked else FOUND, rows, rows,
                f"times no work: its thread launched nothing in {inside}.{also}",
            )  # fmt: skip
        elif first := _first(count > 0):
            what = "run nothing on the GPU between their two events"
            yield _after(scene, "work-left-out", rows, first, what)
        elif first := _first(kernels > 0):
            what = "only copy or set memory: what computes is left out"
            yield _after(scene, "work-left-out", rows, first, what)
        elif _alternates(kernels > 0):
            shown, right = rows[kernels == 0], int(elapsed[scene.typical(full)])
            yield scene.doubt(
                "work-left-out", FOUND, rows, shown,
                f"computes in every second repetition only: {len(shown)} of {of} run no kernel "
                "between their two events.",
                right_ns=right if right > elapsed[scene.typical(shown)] else None,
            )  # fmt: skip
        elif len(idle):
            yield scene.doubt(
                "nothing-inside", NOTE, rows, idle,
                f"mixes intervals with and without work: {plural(len(idle), 'interval')} of {of} "
                "launched nothing on the GPU.",
            )  # fmt: skip
        elif of > _FEWEST and not np.ptp(did["names"].to_numpy()[rows]):
            sizes = {"bytes": did["bytes"].to_numpy()[rows], "blocks": _blocks(scene, rows)}
            for unit, size in sizes.items():
                first = _first(size != size[-1])
                if first and (size[-1] < (1 - _LESS) * size[:first]).all():
                    what = f"{size[-1]:,} {unit} instead of {size[0]:,}"
                    what = f"run the same operations on less: {what}"
                    yield _after(scene, "smaller-work", rows, first, what)
                    break


def _first(does: np.ndarray) -> int:
    """How many repetitions at the beginning do it, if there are few of them, and many others that
    never do; else 0."""
    first = int(np.argmin(does)) if not does.all() else 0
    rest = len(does) - first
    few = 0 < first <= _FIRST and rest >= max(_FEWEST, _TIMES * first)
    return first if few and not does[first:].any() else 0


def _alternates(does: np.ndarray) -> bool:
    """Whether every second repetition does it, and the ones between never do; the first ones may
    have been a warm-up."""
    rest = does[_FIRST:] if len(does) >= _FIRST + 2 * _FEWEST else does
    return len(rest) >= 2 * _FEWEST and bool((rest[1:] != rest[:-1]).all())


def _blocks(scene: Scene, rows: np.ndarray) -> np.ndarray:
    """Blocks of the grids of the kernels that these intervals issued, 0 if the trace does not
    say."""
    issued = scene.issued.where(np.isin(scene.issued.interval, rows))
    issued = issued.where(scene.kind[issued.operation] == KIND["kernel"])
    of = scene.trace.operations["row"].to_numpy()[issued.operation]
    kernels, place = np.unique(of, return_inverse=True)
    if scene.trace.shapes is None or not len(kernels):
        return np.zeros(len(rows), np.int64)
    grid = np.asarray(scene.trace.shapes(kernels))[:, :3].prod(axis=1)
    return issued.sums(len(scene.intervals), grid[place])[rows]


def _after(scene: Scene, check: str, rows: np.ndarray, first: int, what: str) -> Doubt:
    """`first` repetitions did the work, the others do `what`."""
    rest, issued = rows[first:], scene.issued
    took = issued.sums(len(scene.intervals), (scene.end - scene.start)[issued.operation])
    worked = int(took[rows[:first]].min())
    begun = "its first repetition" if first == 1 else f"its first {first} repetitions"
    return scene.doubt(
        check, FOUND, rows, rest,
        f"does less after {begun}: the other {len(rest)} {what}.",
        right_ns=worked if worked > scene.column("elapsed_ns")[scene.typical(rest)] else None,
        bound="at least ",  # without launching and waiting
    )  # fmt: skip


def captured(scene: Scene) -> Iterator[Doubt]:
    """Labels in whose repetitions a capture ends, in a process that launches no graph from then
    on."""
    calls = scene.trace.calls
    ends = [number for number, name in scene.trace.names.items() if "StreamEndCapture" in name]
    captures = calls[calls["name_id"].isin(ends)]
    launches = calls[calls["kind"] == CALL["graph_launch"]]
    for _, rows in scene.labels() if len(captures) else ():
        its = scene.intervals.iloc[rows]
        later = launches["start_ns"] > its["open_ns"].iloc[0]
        inside = [
            ((captures["thread"] == i.thread) & captures["start_ns"].between(i.open_ns, i.close_ns)).any()
            for i in its.itertuples()
        ]  # fmt: skip
        if any(inside) and not (later & (launches["process"] == its["process"].iloc[0])).any():
            shown = rows[np.array(inside)]
            yield scene.doubt(
                "never-launched", FOUND, rows, shown,
                "captures a CUDA graph that the program never launches: what is captured does not "
                "run, so it is not in this time.", quoted=int(shown[0]),
            )  # fmt: skip


# --- what the GPU's own limits say ---


def flushes(scene: Scene) -> Iterator[Doubt]:
    """Labels before each of whose repetitions a memset or fill covered the L2, after which it is
    warm nevertheless."""
    operations = scene.trace.operations
    for rows, flush in _flushed(scene):
        limit = scene.limits[int(operations["device"].iloc[flush[0]])]
        if _filled_again(scene, rows, flush, limit):
            size = int(operations["bytes"].iloc[flush[0]])
            took = span(int(np.median((scene.end - scene.start)[flush])))
            name = f"a memset of {bytes_text(size)}" if size else f"a fill that takes {took}"
            yield scene.doubt(
                "filled-again", FOUND, rows, rows,
                f"runs on a warm L2 although {name} flushes it each time: between that and the "
                "start event the same operations run once, untimed.",
            )  # fmt: skip


def _flushed(scene: Scene) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(intervals of a label, what overwrote the L2 before each of them) where the same did so
    before each repetition on its stream: memsets of the L2's size or more, and torch's fills
    that take as long as the memory needs for the whole L2.  How much a kernel fills is not in a
    trace."""
    operations = scene.trace.operations
    fills = [number for number, name in scene.trace.names.items() if _FILL in name]
    filling = (scene.kind == KIND["kernel"]) & operations["name_id"].isin(fills).to_numpy()
    size, device = operations["bytes"].to_numpy(), operations["device"].to_numpy()
    overwrites = np.zeros(len(size), bool)
    for number, (_, l2, rate) in scene.limits.items():
        if l2:
            large = (scene.kind == KIND["memset"]) & (size >= l2)
            long = filling & ((scene.end - scene.start) * rate >= 1e9 * l2)
            overwrites |= (device == number) & (large | long)
    flush = np.flatnonzero(overwrites & (scene.issue >= 0))
    flush = flush[np.argsort(scene.issue[flush], kind="stable")]
    lane, opened, closed = (scene.column(c) for c in ("start_lane", "open_ns", "close_ns"))
    for _, rows in scene.labels():
        its = flush[scene.lane[flush] == lane[rows[0]]]
        if len(rows) < _FEWEST or not len(its) or np.ptp(lane[rows]):
            continue
        before = np.append(0, np.maximum.accumulate(closed[rows])[:-1])  # the repetition before
        place = np.searchsorted(scene.issue[its], opened[rows]) - 1
        last = its[place]
        if (place < 0).any() or (scene.issue[last] <= before).any():
            continue
        if not np.ptp(size[last]) and not np.ptp(scene.code[last]):
            yield rows, last


def _filled_again(scene: Scene, rows: np.ndarray, flush: np.ndarray, limit: Gpu) -> bool:
    """Whether between its flush and its start event every repetition runs what it times, and what
    it can touch in its time is so little that the L2 still holds most of it."""
    usual_ns = np.median(scene.column("elapsed_ns")[rows])
    if usual_ns * limit.memory_rate > 1e9 * _L2S * limit.l2_bytes:
        return False
    ours = np.flatnonzero((scene.lane == scene.lane[flush[0]]) & (scene.issue >= 0))
    ours = ours[np.argsort(scene.issue[ours], kind="stable")]
    names = np.append(0, np.cumsum(scene.digest[scene.code[ours]]))
    computes = np.append(0, np.cumsum(scene.kind[ours] == KIND["kernel"]))
    times = scene.issue[flush], scene.column("open_ns")[rows], scene.column("close_ns")[rows]
    flushed, opened, closed = (np.searchsorted(scene.issue[ours], t, side="right") for t in times)
    again = names[opened] - names[flushed] == names[closed] - names[opened]
    return bool(again.all() and (computes[closed] > computes[opened]).all())
