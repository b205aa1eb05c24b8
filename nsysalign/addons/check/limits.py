"""What the GPU's own limits say: copies faster than its memory, memsets after which the L2 is warm
nevertheless."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.addons.check.scene import FOUND, NOTE, Doubt, Scene
from nsysalign.explain import words
from nsysalign.model import KIND
from nsysalign.text import bytes_text
from nsysalign.trace.info import Limits

_D2D = 8  # CUDA_MEMCPY_KIND: what is copied is read and written by the same memory
#: What is smaller than this many L2s may stay in it.
_L2S = 4
#: Above the memory's rate by this much.
_FASTER = 1.05
#: A memset before each repetition is about a flush if it covers at least this share of the L2.
_FLUSH, _FEWEST = 0.25, 3
#: In the name of the kernel of torch's `zero_` and `fill_` (and so of triton's do_bench).
_FILL = "FillFunctor"


def rates(scene: Scene) -> Iterator[Doubt]:
    """Intervals that launch more copying on the device than its memory can do in their time."""
    operations, issued = scene.trace.operations, scene.issued
    size, device = operations["bytes"].to_numpy(), operations["device"].to_numpy()
    on_device = (operations["copy_kind"] == _D2D).to_numpy() & (scene.kind == KIND["memcpy"])
    needs = np.zeros(len(size))
    for number, (l2, rate) in scene.limits.items():
        if l2 and rate:
            copies = on_device & (device == number) & (size > _L2S * l2)
            needs[copies] = 2e9 * size[copies] / rate
    least = np.zeros(len(scene.intervals))
    np.add.at(least, issued.interval, needs[issued.operation])
    elapsed = scene.column("elapsed_ns")
    for label, rows in scene.labels():
        fast = rows[least[rows] > _FASTER * np.maximum(elapsed[rows], 1)]
        if not len(fast):
            continue
        quoted = int(fast[0])
        its = issued.operation[issued.interval == quoted]
        moved = int(size[its[needs[its] > 0]].sum())
        yield scene.doubt(
            "impossible-rate", FOUND, label, quoted, fast, len(rows),
            f"is faster than the GPU's memory: it launches copies of {bytes_text(moved)} on the "
            f"device, read and written in {words.span(int(elapsed[quoted]))}; the memory needs "
            f"{words.span(int(least[quoted]))} at its full rate.",
            right_ns=int(least[quoted]), bound="at least ", evidence={"copied_bytes": moved},
        )  # fmt: skip


def flushes(scene: Scene) -> Iterator[Doubt]:
    """Labels before each of whose repetitions a large memset or fill ran, after which some of the
    L2 is warm nevertheless."""
    operations = scene.trace.operations
    for label, rows, flush in _flushed(scene):
        limit = scene.limits.get(int(operations["device"].iloc[flush[0]]), Limits(0, 0))
        size = int(operations["bytes"].iloc[flush[0]])
        took = words.span(int(np.median((scene.end - scene.start)[flush])))
        name = f"a memset of {bytes_text(size)}" if size else f"a fill that takes {took}"
        evidence = {"memset_bytes": size} if size else {}
        evidence |= {"l2_bytes": limit.l2_bytes}
        doubts = []
        if size and size < limit.l2_bytes:
            doubts.append(
                ("small-flush", NOTE, f"runs after {name} each time; the GPU's L2 holds "
                 f"{bytes_text(limit.l2_bytes)}, so if the memset is to flush it, some of the L2 "
                 "stays warm.")
            )  # fmt: skip
        elif _filled_again(scene, rows, flush, limit):
            doubts.append(
                ("filled-again", FOUND, f"runs on a warm L2 although {name} flushes it each time: "
                 "between that and the start event the same operations run once, untimed.")
            )  # fmt: skip
        for check, level, title in doubts:
            quoted = scene.typical(rows)
            yield scene.doubt(
                check, level, label, quoted, rows, len(rows), title, evidence=evidence
            )


def _flushed(scene: Scene) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(label, its intervals, what overwrote the L2 before each of them) where the same did so
    before each repetition on its stream: memsets of a quarter of the L2 or more, and torch's fills
    that take as long as the memory needs for the whole L2.  How much a kernel fills is not in a
    trace."""
    operations = scene.trace.operations
    fills = [number for number, name in scene.trace.names.items() if _FILL in name]
    filling = (scene.kind == KIND["kernel"]) & operations["name_id"].isin(fills).to_numpy()
    size, device = operations["bytes"].to_numpy(), operations["device"].to_numpy()
    overwrites = np.zeros(len(size), bool)
    for number, (l2, rate) in scene.limits.items():
        if l2:
            large = (scene.kind == KIND["memset"]) & (size >= _FLUSH * l2)
            long = filling & ((scene.end - scene.start) * rate >= 1e9 * l2)
            overwrites |= (device == number) & (large | long)
    flush = np.flatnonzero(overwrites & (scene.issue >= 0))
    flush = flush[np.argsort(scene.issue[flush], kind="stable")]
    lane, opened, closed = (scene.column(c) for c in ("start_lane", "open_ns", "close_ns"))
    for label, rows in scene.labels():
        its = flush[scene.lane[flush] == lane[rows[0]]]
        if len(rows) < _FEWEST or not len(its) or np.ptp(lane[rows]):
            continue
        before = np.append(0, np.maximum.accumulate(closed[rows])[:-1])  # the repetition before
        place = np.searchsorted(scene.issue[its], opened[rows]) - 1
        last = its[place]
        if (place < 0).any() or (scene.issue[last] <= before).any():
            continue
        if not np.ptp(size[last]) and not np.ptp(scene.code[last]):
            yield label, rows, last


def _filled_again(scene: Scene, rows: np.ndarray, flush: np.ndarray, limit: Limits) -> bool:
    """Whether between its flush and its start event every repetition runs what it times, and what
    it can touch in its time is so little that the L2 still holds most of it."""
    if (
        np.median(scene.column("elapsed_ns")[rows]) * limit.memory_rate
        > 1e9 * _L2S * limit.l2_bytes
    ):
        return False
    ours = np.flatnonzero((scene.lane == scene.lane[flush[0]]) & (scene.issue >= 0))
    ours = ours[np.argsort(scene.issue[ours], kind="stable")]
    names = np.append(0, np.cumsum(scene.digest[scene.code[ours]]))
    computes = np.append(0, np.cumsum(scene.kind[ours] == KIND["kernel"]))
    times = scene.issue[flush], scene.column("open_ns")[rows], scene.column("close_ns")[rows]
    flushed, opened, closed = (np.searchsorted(scene.issue[ours], t, side="right") for t in times)
    again = names[opened] - names[flushed] == names[closed] - names[opened]
    return bool(again.all() and (computes[closed] > computes[opened]).all())
