"""Repetitions that do less than the first ones: a result that is kept, a smaller input, nothing at
all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.addons.check.scene import FOUND, NOTE, Doubt, Scene
from nsysalign.text import plural

#: The work is done at most this often before it is left out, and then left out at least so often
#: ...
_FIRST, _FEWEST = 3, 3
#: ... and this many times as often.
_TIMES = 2
#: Fewer blocks or bytes by at least this share.
_LESS = 0.1


def less(scene: Scene) -> Iterator[Doubt]:
    """Labels of which all repetitions but the first few do less, and those that do nothing.

    A loop over sizes, a warm-up that tries algorithms and a batch that is cut short are none of
    this: the later repetitions must all do the same, and either run nothing on the GPU, or only
    copies, or the same kernels on fewer blocks or bytes.
    """
    did = scene.did
    labels = [(label, at[~scene.without_rows[at]]) for label, at in scene.labels()]
    labels = [(label, at) for label, at in labels if len(at)]
    worked = any(did["count"].to_numpy()[at].any() for _, at in labels)
    for label, at in labels:
        mine = did.iloc[at]
        count, kernels = mine["count"].to_numpy(), mine["kernels"].to_numpy()
        if not count.any():
            yield _nothing(scene, label, at, NOTE if worked else FOUND)
        elif first := _first(count > 0):
            what = "run nothing on the GPU between their two events"
            yield _after(scene, "work-left-out", label, at, first, what)
        elif first := _first(kernels > 0):
            what = "only copy or set memory: what computes is left out"
            yield _after(scene, "work-left-out", label, at, first, what)
        elif _alternates(kernels > 0):
            yield _every_second(scene, label, at[kernels > 0], at[kernels == 0])
        elif (count == 0).any():
            yield _now_and_then(scene, label, at, np.flatnonzero(count == 0))
        else:
            yield from _smaller(scene, label, at)


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


def _every_second(scene: Scene, label: str, works: np.ndarray, idle: np.ndarray) -> Doubt:
    elapsed = scene.column("elapsed_ns")
    quoted, right = scene.typical(idle), int(elapsed[scene.typical(works)])
    return scene.doubt(
        "work-left-out", FOUND, label, quoted, idle, len(works) + len(idle),
        f"computes in every second repetition only: {len(idle)} of {len(works) + len(idle)} run no "
        "kernel between their two events.",
        right_ns=right if right > elapsed[quoted] else None,
        evidence={"median_with_work_ns": right},
    )  # fmt: skip


def _smaller(scene: Scene, label: str, at: np.ndarray) -> Iterator[Doubt]:
    """The same operations, but fewer blocks or bytes in all but the first repetitions."""
    if len(at) < _FEWEST + 1 or np.ptp(scene.did["names"].to_numpy()[at]):
        return
    for unit, size in (
        ("bytes", scene.did["bytes"].to_numpy()[at]),
        ("blocks", scene.blocks(at)),
    ):
        first = _first(size != size[-1])
        if first and (size[-1] < (1 - _LESS) * size[:first]).all():
            what = f"run the same operations on less: {size[-1]:,} {unit} instead of {size[0]:,}"
            yield _after(scene, "smaller-work", label, at, first, what)
            return


def _after(scene: Scene, check: str, label: str, at: np.ndarray, first: int, what: str) -> Doubt:
    """`first` repetitions did the work, the others do `what`."""
    rest, did = at[first:], scene.did
    quoted, worked = scene.typical(rest), int(_executed(scene, at[:first]).min())
    begun = "its first repetition" if first == 1 else f"its first {first} repetitions"
    return scene.doubt(
        check, FOUND, label, quoted, rest, len(at),
        f"does less after {begun}: the other {len(rest)} {what}.",
        right_ns=worked if worked > scene.column("elapsed_ns")[quoted] else None,
        bound="at least ",  # without launching and waiting
        evidence={
            "gpu_time_at_first_ns": worked,
            "operations_at_first": int(did["count"].iloc[at[0]]),
            "operations_later": int(did["count"].iloc[quoted]),
            "kernels_at_first": int(did["kernels"].iloc[at[0]]),
            "kernels_later": int(did["kernels"].iloc[quoted]),
        },
    )  # fmt: skip


def _executed(scene: Scene, which: np.ndarray) -> np.ndarray:
    """Sum of the durations of what these intervals issued."""
    mine = scene.issued.where(np.isin(scene.issued.interval, which))
    return mine.sums(len(scene.intervals), (scene.end - scene.start)[mine.operation])[which]


def _nothing(scene: Scene, label: str, at: np.ndarray, level: str) -> Doubt:
    all_of = "its one interval" if len(at) == 1 else f"any of its {len(at)} intervals"
    also = " No other pair of events of the program has work in it either." * (level == FOUND)
    title = f"times no work: its thread launched nothing in {all_of}.{also}"
    return scene.doubt("nothing-inside", level, label, scene.typical(at), at, len(at), title)


def _now_and_then(scene: Scene, label: str, at: np.ndarray, none: np.ndarray) -> Doubt:
    full = np.delete(at, none)
    return scene.doubt(
        "nothing-inside", NOTE, label, scene.typical(at[none]), at[none], len(at),
        f"mixes intervals with and without work: {plural(len(none), 'interval')} of {len(at)} launched nothing on the GPU.",
        evidence={"median_with_work_ns": int(np.median(scene.column("elapsed_ns")[full]))},
    )  # fmt: skip
