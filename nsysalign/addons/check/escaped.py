"""Work that was launched in an interval and ended after it.

host    r(start)  launch on stream 13   r(end)
7       |---------------------------------|                 what was measured
13                    [=============================]       what it launched
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.addons.check.scene import FOUND, NOTE, Doubt, Issued, Scene
from nsysalign.explain import words
from nsysalign.model import KIND
from nsysalign.split.pieces import operation_names
from nsysalign.text import plural
from nsysalign.trace.nccl import NCCL_KERNEL

#: An end that is later by less may be the two clocks' disagreement.
_SLACK_NS = 2_000
#: A label is judged by what at least this share of its intervals does.
_TYPICAL = 0.5


def escaped(scene: Scene) -> Iterator[Doubt]:
    """Intervals between events whose end did not wait for work on other streams."""
    late = _late(scene)
    if not len(late.interval):
        return
    end = scene.column("end_ns")
    last = np.full(len(scene.intervals), np.iinfo(np.int64).min)
    np.maximum.at(last, late.interval, scene.end[late.operation])
    usual = late.where(~_meant_to_overlap(scene, late.operation))
    timed = scene.lane[scene.issued.operation] == scene.column("end_lane")[scene.issued.interval]
    worked = scene.issued.where(timed).sums(len(scene.intervals)) > 0
    for label, all_of_it in scene.labels():
        at = all_of_it[np.isin(all_of_it, late.interval)]
        if not len(at):
            continue
        grave = np.isin(at, usual.interval) | ~worked[at]
        often = grave.sum() >= _TYPICAL * len(all_of_it)
        shown = at[grave] if often else at
        over = last[shown] - end[shown]
        quoted = int(shown[np.argsort(over, kind="stable")[(len(over) - 1) // 2]])
        mine = late.operation[late.interval == quoted]
        longest = mine[[np.argmax(scene.end[mine] - scene.start[mine])]]
        yield scene.doubt(
            "escaped-work",
            FOUND if often else NOTE,
            label,
            quoted,
            shown,
            len(all_of_it),
            f"does not wait for all that it launches: {plural(len(mine), 'operation')} launched between its two records ran on "
            f"{_streams(scene, mine)} until {words.span(int(last[quoted] - end[quoted]))} after the end event.",
            right_ns=int(last[quoted] - scene.column("start_ns")[quoted]),
            evidence={
                "timed_stream": scene.stream(int(scene.column("end_lane")[quoted])),
                "operations_on_it": int(((scene.issued.interval == quoted) & timed).sum()),
                "escaped_operations": len(mine),
                "the_longest": words.kernel(str(operation_names(scene.trace, longest)[0])),
                "its_time_ns": int((scene.end - scene.start)[longest[0]]),
            },
        )


def _streams(scene: Scene, operations: np.ndarray) -> str:
    numbers = sorted({scene.stream(lane) for lane in scene.lane[operations].tolist()})
    return f"stream {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} other streams"


def _late(scene: Scene) -> Issued:
    """What was issued inside, on another stream, ended after the end event, and is in no other pair
    on its own stream."""
    issued, end = scene.issued, scene.column("end_ns") + 2 * scene.column("error_ns")
    late = scene.lane[issued.operation] != scene.column("end_lane")[issued.interval]
    late &= scene.end[issued.operation] > end[issued.interval] + _SLACK_NS
    issued = issued.where(late)
    return issued.where(~_timed_there(scene, issued.operation))


def _timed_there(scene: Scene, operation: np.ndarray) -> np.ndarray:
    """Whether an operation was issued between the two records of a pair on its own stream."""
    out = np.zeros(len(operation), bool)
    lane = scene.column("end_lane")
    for number in np.unique(scene.lane[operation]).tolist():
        pairs = scene.intervals[lane == number].sort_values("open_ns")
        if pairs.empty:
            continue
        here = np.flatnonzero(scene.lane[operation] == number)
        reach = np.append(0, np.maximum.accumulate(pairs["close_ns"].to_numpy()))
        issue = scene.issue[operation[here]]
        out[here] = reach[np.searchsorted(pairs["open_ns"].to_numpy(), issue)] > issue
    return out


def _meant_to_overlap(scene: Scene, operation: np.ndarray) -> np.ndarray:
    """Copies and collectives: programs prefetch the next batch and reduce gradients while they time
    something else."""
    kind = scene.kind[operation]
    out = kind == KIND["memcpy"]
    kernels = np.flatnonzero(kind == KIND["kernel"])
    names = operation_names(scene.trace, operation[kernels]).tolist()
    out[kernels] = [NCCL_KERNEL.search(str(name)) is not None for name in names]
    return out
