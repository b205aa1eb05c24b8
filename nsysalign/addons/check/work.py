"""Is what was timed the work?  Work that escapes the end event, repetitions that do less than the
first ones, graphs that are captured and never launched."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.addons.check.scene import FOUND, NOTE, Doubt, Issued, Scene
from nsysalign.explain import words
from nsysalign.model import CALL, KIND
from nsysalign.split.pieces import operation_names
from nsysalign.text import plural
from nsysalign.trace.nccl import NCCL_KERNEL

#: An end that is later by less may be the two clocks' disagreement.
_SLACK_NS = 2_000
#: A label is judged by what at least this share of its intervals does.
_TYPICAL = 0.5
#: The work is done at most this often before it is left out, and then left out at least so often
#: and this many times as often.
_FIRST, _FEWEST, _TIMES = 3, 3, 2
#: Fewer blocks or bytes by at least this share.
_LESS = 0.1


def escaped(scene: Scene) -> Iterator[Doubt]:
    """Work that was launched in an interval and ended after it.

    host    r(start)  launch on stream 13   r(end)
    7       |---------------------------------|                 what was measured
    13                    [=============================]       what it launched
    """
    late, end = _late(scene), scene.column("end_ns")
    last = np.full(len(scene.intervals), np.iinfo(np.int64).min)
    np.maximum.at(last, late.interval, scene.end[late.operation])
    usual = late.where(~_meant_to_overlap(scene, late.operation))
    timed = scene.lane[scene.issued.operation] == scene.column("end_lane")[scene.issued.interval]
    worked = scene.issued.where(timed).sums(len(scene.intervals)) > 0
    for label, rows in scene.labels():
        its = rows[np.isin(rows, late.interval)]
        if not len(its):
            continue
        grave = np.isin(its, usual.interval) | ~worked[its]
        often = grave.sum() >= _TYPICAL * len(rows)
        shown = its[grave] if often else its
        over = last[shown] - end[shown]
        quoted = int(shown[np.argsort(over, kind="stable")[(len(over) - 1) // 2]])
        work = late.operation[late.interval == quoted]
        longest = work[[np.argmax((scene.end - scene.start)[work])]]
        streams = sorted({scene.stream(lane) for lane in scene.lane[work].tolist()})
        on = f"stream {streams[0]}" if len(streams) == 1 else f"{len(streams)} other streams"
        yield scene.doubt(
            "escaped-work", FOUND if often else NOTE, label, quoted, shown, len(rows),
            f"does not wait for all that it launches: {plural(len(work), 'operation')} launched "
            f"between its two records ran on {on} until "
            f"{words.span(int(last[quoted] - end[quoted]))} after the end event.",
            right_ns=int(last[quoted] - scene.column("start_ns")[quoted]),
            evidence={
                "timed_stream": scene.stream(int(scene.column("end_lane")[quoted])),
                "operations_on_it": int(((scene.issued.interval == quoted) & timed).sum()),
                "escaped_operations": len(work),
                "the_longest": words.kernel(str(operation_names(scene.trace, longest)[0])),
                "its_time_ns": int((scene.end - scene.start)[longest[0]]),
            },
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


def _meant_to_overlap(scene: Scene, operation: np.ndarray) -> np.ndarray:
    """Copies and collectives: programs prefetch the next batch and reduce gradients while they time
    something else."""
    out = scene.kind[operation] == KIND["memcpy"]
    kernels = np.flatnonzero(scene.kind[operation] == KIND["kernel"])
    names = operation_names(scene.trace, operation[kernels]).tolist()
    out[kernels] = [NCCL_KERNEL.search(str(name)) is not None for name in names]
    return out


def less(scene: Scene) -> Iterator[Doubt]:
    """Labels of which all repetitions but the first few do less, and those that do nothing.

    A loop over sizes, a warm-up that tries algorithms and a batch that is cut short are none of
    this: the later repetitions must all do the same, and either run nothing on the GPU, or only
    copies, or the same kernels on fewer blocks or bytes.
    """
    labels = [(label, rows[~scene.without_rows[rows]]) for label, rows in scene.labels()]
    done, elapsed = scene.did["count"].to_numpy(), scene.column("elapsed_ns")
    worked = any(done[rows].any() for _, rows in labels)
    for label, rows in labels:
        if not (of := len(rows)):
            continue
        count, kernels = done[rows], scene.did["kernels"].to_numpy()[rows]
        if not count.any():
            inside = "its one interval" if of == 1 else f"any of its {of} intervals"
            also = " No other pair of events of the program has work in it either." * (not worked)
            yield scene.doubt(
                "nothing-inside", NOTE if worked else FOUND, label, scene.typical(rows), rows, of,
                f"times no work: its thread launched nothing in {inside}.{also}",
            )  # fmt: skip
        elif first := _first(count > 0):
            what = "run nothing on the GPU between their two events"
            yield _after(scene, "work-left-out", label, rows, first, what)
        elif first := _first(kernels > 0):
            what = "only copy or set memory: what computes is left out"
            yield _after(scene, "work-left-out", label, rows, first, what)
        elif _alternates(kernels > 0):
            idle, full = rows[kernels == 0], rows[kernels > 0]
            quoted, right = scene.typical(idle), int(elapsed[scene.typical(full)])
            yield scene.doubt(
                "work-left-out", FOUND, label, quoted, idle, of,
                f"computes in every second repetition only: {len(idle)} of {of} run no kernel "
                "between their two events.",
                right_ns=right if right > elapsed[quoted] else None,
                evidence={"median_with_work_ns": right},
            )  # fmt: skip
        elif not count.all():
            idle, full = rows[count == 0], rows[count > 0]
            yield scene.doubt(
                "nothing-inside", NOTE, label, scene.typical(idle), idle, of,
                f"mixes intervals with and without work: {plural(len(idle), 'interval')} of {of} "
                "launched nothing on the GPU.",
                evidence={"median_with_work_ns": int(np.median(elapsed[full]))},
            )  # fmt: skip
        elif of > _FEWEST and not np.ptp(scene.did["names"].to_numpy()[rows]):
            sizes = {"bytes": scene.did["bytes"].to_numpy()[rows], "blocks": _blocks(scene, rows)}
            for unit, size in sizes.items():
                first = _first(size != size[-1])
                if first and (size[-1] < (1 - _LESS) * size[:first]).all():
                    what = f"{size[-1]:,} {unit} instead of {size[0]:,}"
                    what = f"run the same operations on less: {what}"
                    yield _after(scene, "smaller-work", label, rows, first, what)
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


def _after(
    scene: Scene, check: str, label: str, rows: np.ndarray, first: int, what: str
) -> Doubt:  # fmt: skip
    """`first` repetitions did the work, the others do `what`."""
    rest, issued = rows[first:], scene.issued
    took = issued.sums(len(scene.intervals), (scene.end - scene.start)[issued.operation])
    quoted, worked = scene.typical(rest), int(took[rows[:first]].min())
    begun = "its first repetition" if first == 1 else f"its first {first} repetitions"
    kernels = scene.did["kernels"]
    return scene.doubt(
        check, FOUND, label, quoted, rest, len(rows),
        f"does less after {begun}: the other {len(rest)} {what}.",
        right_ns=worked if worked > scene.column("elapsed_ns")[quoted] else None,
        bound="at least ",  # without launching and waiting
        evidence={
            "gpu_time_at_first_ns": worked,
            "kernels_at_first": int(kernels[rows[0]]),
            "kernels_later": int(kernels[quoted]),
        },
    )  # fmt: skip


def never_launched(scene: Scene) -> Iterator[Doubt]:
    """Labels in whose repetitions a capture ends, in a process that launches no graph from then
    on."""
    calls = scene.trace.calls
    ends = [number for number, name in scene.trace.names.items() if "StreamEndCapture" in name]
    captures = calls[calls["name_id"].isin(ends)]
    launches = calls[calls["kind"] == CALL["graph_launch"]]
    for label, rows in scene.labels():
        its = scene.intervals.iloc[rows]
        process, opened = its["process"].iloc[0], its["open_ns"].iloc[0]
        later = (launches["process"] == process) & (launches["start_ns"] > opened)
        inside = [
            ((captures["thread"] == i.thread) & captures["start_ns"].between(i.open_ns, i.close_ns)).any()
            for i in its.itertuples()
        ] if len(captures) else []  # fmt: skip
        if any(inside) and not later.any():
            shown = rows[np.array(inside)]
            yield scene.doubt(
                "never-launched", FOUND, label, int(shown[0]), shown, len(rows),
                "captures a CUDA graph that the program never launches: what is captured does not "
                "run, so it is not in this time.",
            )  # fmt: skip
