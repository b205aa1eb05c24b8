"""What the GPU's own limits say: copies faster than its memory, memsets that look like a flush of
an L2 that is larger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import words
from nsysalign.model import KIND
from nsysalign.referee.doubt import FOUND, NOTE, Doubt
from nsysalign.referee.scene import Scene
from nsysalign.text import bytes_text

_D2D = 8  # CUDA_MEMCPY_KIND: what is copied is read and written by the same memory
#: Copies of fewer bytes than this many L2s may stay in it.
_L2S = 4
#: Above the memory's rate by this much.
_FASTER = 1.05
#: A memset before each repetition is about a flush if it covers at least this share of the L2.
_FLUSH, _FEWEST = 0.25, 3


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
    """Labels before each of whose repetitions the same memset ran, large, but smaller than the
    L2."""
    operations = scene.trace.operations
    memsets = np.flatnonzero((scene.kind == KIND["memset"]) & (scene.issue >= 0))
    memsets = memsets[np.argsort(scene.issue[memsets], kind="stable")]
    lane, opened, closed = (scene.column(c) for c in ("start_lane", "open_ns", "close_ns"))
    size, device = operations["bytes"].to_numpy(), operations["device"].to_numpy()
    for label, at in scene.labels():
        mine = memsets[scene.lane[memsets] == lane[at[0]]]
        if len(at) < _FEWEST or not len(mine) or (lane[at] != lane[at[0]]).any():
            continue
        l2 = getattr(scene.limits.get(int(device[mine[0]])), "l2_bytes", 0)
        before = np.append(0, np.maximum.accumulate(closed[at])[:-1])  # the repetition before
        place = np.searchsorted(scene.issue[mine], opened[at]) - 1
        if (place < 0).any() or (scene.issue[mine[place]] <= before).any():
            continue
        found = size[mine[place]]
        if np.ptp(found) or not _FLUSH * l2 <= found[0] < l2:
            continue
        yield scene.doubt(
            "small-flush", NOTE, label, scene.typical(at), at, len(at),
            f"runs after a memset of {bytes_text(int(found[0]))} each time; the GPU's L2 holds {bytes_text(l2)}, so if the memset "
            "is to flush it, some of the L2 stays warm.",
            evidence={"memset_bytes": int(found[0]), "l2_bytes": l2},
        )  # fmt: skip
