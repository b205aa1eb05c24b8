"""What the GPU's own limits say: copies faster than its memory, memsets after which the L2 is warm
nevertheless."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.addons.check.scene import FOUND, NOTE, Doubt, Scene
from nsysalign.explain import words
from nsysalign.model import KIND
from nsysalign.text import bytes_text
from nsysalign.trace.gpus import Limits

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
    issued, operations = scene.issued, scene.trace.operations
    copies = issued.where(
        (operations["copy_kind"].to_numpy()[issued.operation] == _D2D)
        & (scene.kind[issued.operation] == KIND["memcpy"])
    )
    size = operations["bytes"].to_numpy()[copies.operation]
    device = operations["device"].to_numpy()[copies.operation]
    known = {d: limit for d, limit in scene.limits.items() if limit.l2_bytes and limit.memory_rate}
    large = np.array([s > _L2S * known[d].l2_bytes if d in known else False for s, d in zip(size.tolist(), device.tolist(), strict=True)], bool)  # fmt: skip
    rate = np.array([known[d].memory_rate if d in known else 1 for d in device.tolist()], float)
    least = np.zeros(len(scene.intervals))
    np.add.at(least, copies.interval[large], (2e9 * size / rate)[large])
    elapsed = scene.column("elapsed_ns")
    for label, at in scene.labels():
        fast = at[least[at] > _FASTER * np.maximum(elapsed[at], 1)]
        if not len(fast):
            continue
        quoted = int(fast[0])
        moved = int(size[large & (copies.interval == quoted)].sum())
        yield scene.doubt(
            "impossible-rate", FOUND, label, quoted, fast, len(at),
            f"is faster than the GPU's memory: it launches copies of {bytes_text(moved)} on the device, read and written in "
            f"{words.span(int(elapsed[quoted]))}; the memory needs {words.span(int(least[quoted]))} at its full rate.",
            right_ns=int(least[quoted]), bound="at least ", evidence={"copied_bytes": moved},
        )  # fmt: skip


def flushes(scene: Scene) -> Iterator[Doubt]:
    """Labels before each of whose repetitions a large memset or fill ran, after which some of the
    L2 is warm nevertheless."""
    size = scene.trace.operations["bytes"].to_numpy()
    for label, at, flush in _flushed(scene):
        limit, found = _limit(scene, flush[0]), int(size[flush[0]])
        took = words.span(int(np.median((scene.end - scene.start)[flush])))
        name = f"a memset of {bytes_text(found)}" if found else f"a fill that takes {took}"
        evidence = {"memset_bytes": found} if found else {}
        evidence |= {"l2_bytes": limit.l2_bytes}
        if found and found < limit.l2_bytes:
            yield scene.doubt(
                "small-flush", NOTE, label, scene.typical(at), at, len(at),
                f"runs after {name} each time; the GPU's L2 holds {bytes_text(limit.l2_bytes)}, so if the "
                "memset is to flush it, some of the L2 stays warm.",
                evidence=evidence,
            )  # fmt: skip
        elif _filled_again(scene, at, flush, limit):
            yield scene.doubt(
                "filled-again", FOUND, label, scene.typical(at), at, len(at),
                f"runs on a warm L2 although {name} flushes it each time: between that and the start "
                "event the same operations run once, untimed.",
                evidence=evidence,
            )  # fmt: skip
        if kept := scene.persisting:
            yield scene.doubt(
                "persisting-l2", FOUND, label, scene.typical(at), at, len(at),
                f"runs after {name} each time, which does not push out the {bytes_text(kept)} that the access policy of a stream "
                "keeps in the L2.",
                evidence={**evidence, "persisting_bytes": kept},
            )  # fmt: skip


def _limit(scene: Scene, operation: int) -> Limits:
    device = int(scene.trace.operations["device"].iloc[operation])
    return scene.limits.get(device, Limits(0, 0))


def _overwrites(scene: Scene) -> np.ndarray:
    """The memsets of a quarter of the L2 or more, and torch's fills that take as long as the memory
    needs for the whole L2, by issue.  How much a kernel fills is not in a trace."""
    operations = scene.trace.operations
    fills = [number for number, name in scene.trace.names.items() if _FILL in name]
    filling = (scene.kind == KIND["kernel"]) & operations["name_id"].isin(fills).to_numpy()
    size, device = operations["bytes"].to_numpy(), operations["device"].to_numpy()
    out = np.zeros(len(size), bool)
    for number, (l2, rate) in scene.limits.items():
        if l2:
            large = (scene.kind == KIND["memset"]) & (size >= _FLUSH * l2)
            long = filling & ((scene.end - scene.start) * rate >= 1e9 * l2)
            out |= (device == number) & (large | long)
    return np.flatnonzero(out & (scene.issue >= 0))


def _flushed(scene: Scene) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(label, its intervals, what overwrote the L2 before each of them) where the same did so
    before each repetition on its stream."""
    flush = _overwrites(scene)
    flush = flush[np.argsort(scene.issue[flush], kind="stable")]
    lane, opened, closed = (scene.column(c) for c in ("start_lane", "open_ns", "close_ns"))
    size = scene.trace.operations["bytes"].to_numpy()
    for label, at in scene.labels():
        mine = flush[scene.lane[flush] == lane[at[0]]]
        if len(at) < _FEWEST or not len(mine) or (lane[at] != lane[at[0]]).any():
            continue
        before = np.append(0, np.maximum.accumulate(closed[at])[:-1])  # the repetition before
        place = np.searchsorted(scene.issue[mine], opened[at]) - 1
        if (place < 0).any() or (scene.issue[mine[place]] <= before).any():
            continue
        last = mine[place]
        if not np.ptp(size[last]) and not np.ptp(scene.code[last]):
            yield label, at, last


def _filled_again(scene: Scene, at: np.ndarray, flush: np.ndarray, limit: Limits) -> bool:
    """Whether between its flush and its start event every repetition runs what it times, and what
    it can touch in its time is so little that the L2 still holds most of it."""
    if np.median(scene.column("elapsed_ns")[at]) * limit.memory_rate > 1e9 * _L2S * limit.l2_bytes:
        return False
    ours = np.flatnonzero((scene.lane == scene.lane[flush[0]]) & (scene.issue >= 0))
    ours = ours[np.argsort(scene.issue[ours], kind="stable")]
    names = np.append(0, np.cumsum(scene.digest[scene.code[ours]]))
    computes = np.append(0, np.cumsum(scene.kind[ours] == KIND["kernel"]))
    marks = scene.issue[flush], scene.column("open_ns")[at], scene.column("close_ns")[at]
    flushed, opened, closed = (np.searchsorted(scene.issue[ours], t, side="right") for t in marks)
    again = names[opened] - names[flushed] == names[closed] - names[opened]
    return bool(again.all() and (computes[closed] > computes[opened]).all())
