"""Dump files of marks: the contents of a buffer, as arrays.  The file may come from anyone: nothing
in it is trusted before it has been checked against the file's size.

    "NSYSALIGN-MARKS\\n", u32 version, u32 length
    JSON of that length (pid, device, sms, names, finished)
    the buffer's header and lines of the SMs (described in marks.cuh)
    u32 counts: slots of the table, 15 unused, chunks and strays of each region
    those slots; then the chunks and strays of each region
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nsysalign.addons.marks import layout
from nsysalign.errors import NsysAlignError, UsageError
from nsysalign.text import plural

_LONGEST_JSON, _MOST_NAMES, _LONGEST_NAME = 1 << 20, 10_000, 200
#: Of a head: a chunk's first line, or a stray mark.
HEAD = np.dtype(
    [
        ("kind", "<u4"), ("id", "<u4"), ("grid", "<u8"),
        ("x", "<u4"), ("y", "<u2"), ("z", "<u2"), ("warp", "<u4"), ("sm", "<u4"),
        ("time", "<u8"), ("clock", "<u8"),
        ("lanes", "<u4"), ("previous", "<u4"), ("threads", "<u4"), ("unused", "<u4"),
    ]
)  # fmt: skip
#: Of a warp.
_PLACE = ["warp", "x", "y", "z", "grid"]
MARK = np.dtype([("time", "<u8"), ("clock", "<u4"), ("id", "<u4")])
CHUNK = np.dtype([("head", HEAD), ("marks", MARK, (layout.CHUNK - layout.LINE) // MARK.itemsize)])
SLOT = np.dtype(
    [
        ("tag", "<u8"), ("grid", "<u8"), ("sm", "<u4"), ("id", "<u4"),
        ("warps", "<u8"), ("lanes", "<u8"), ("", "V16"), ("part", "<u4"), ("", "V4"),
    ]
)  # fmt: skip
SM_LINE = np.dtype(
    [("given", "<u8"), ("dropped", "<u8"), ("counts", "<u8"), ("count_lanes", "<u8"), ("", "V32")]
)
_LATEST_NS = np.uint64(1 << 62)
_MOST_LANES = np.uint64(1 << 38)  # of a warp: 32 threads that count to 2^32


class MarksError(NsysAlignError):
    """A dump of marks cannot be read or used."""


@dataclass(frozen=True)
class Dump:
    """One buffer.  Arrays of equal length: `heads` (HEAD: of each chunk and stray, sorted by warp
    and time), and for every mark `head_of` (its row there), `time` (the GPU's timer, ns), `clock`
    (cycles of its SM, 32 bits) and `id`, in the order in which its warp made them; the first is
    that a warp entered the kernel, id 0.
    `counters` (SLOT): one per launch, SM and counter.  `dropped`: marks that did not fit;
    `counts_dropped`: executions of counters that did not; `damaged`: impossible records."""

    path: str
    pid: int
    device: int
    sms: int
    finished: bool
    refused: int  # version of a header that tried to write here and was refused, 0 for none
    names: Mapping[int, str]
    heads: np.ndarray
    head_of: np.ndarray
    time: np.ndarray
    clock: np.ndarray
    id: np.ndarray
    counters: np.ndarray
    dropped: int
    counts_dropped: int
    damaged: int
    repeated: int  # grid ids that were launched more than once: what they left is left out
    #: Of every head: its launch, its warp's run, whether that warp's first lane is among its lanes.
    #: Of every launch: its grid id.
    launch: np.ndarray
    run: np.ndarray
    first_lane: np.ndarray
    grid: np.ndarray

    @property
    def written(self) -> int:
        """Marks in the buffer, including the one that ends every warp."""
        return int(np.count_nonzero(self.id))

    def notes(self) -> list[str]:
        """What a reader of this dump must know, in words."""
        notes, executed = [], self.written + self.dropped
        if self.refused:
            notes.append(
                f"a kernel was compiled with version {self.refused} of marks.cuh, this package has "
                f"{layout.VERSION}: it wrote nothing (compile it with -I from "
                "nsysalign.marks.include())"
            )
        if not self.finished:
            notes.append(
                "kernels were still running when it was copied: what they marked later is missing"
            )
        if self.damaged:
            notes.append(f"{self.damaged:,} impossible records were left out")
        if self.repeated:
            notes.append(
                f"{plural(self.repeated, 'kernel')} ran several times under one grid id, as a CUDA "
                "graph's do: their marks are left out (launch them outside of the graph)"
            )
        if self.dropped:
            mib = math.ceil(64 * 1.3 * executed / 3_600_000)
            notes.append(
                f"{self.dropped:,} of {executed:,} marks found no room in the buffer: "
                f"nsysalign.marks.buffer(mib={mib}) would hold them"
            )
        if self.counts_dropped:
            notes.append(f"{self.counts_dropped:,} counts found no room in the buffer's table")
        return [f"{self.path}: {note}" for note in notes]


def read(path: str | Path) -> Dump:
    """A dump file.  Raises MarksError, which says what is wrong with it."""
    path = Path(path)
    try:
        return _parsed(path.name, np.memmap(path, dtype=np.uint8, mode="r"))
    except OSError as error:
        reason = f"{path.name}: {error.strerror or error}"
        raise MarksError(reason, "give the path of a .nsam file") from error
    except UsageError as error:  # two names of one hash
        raise MarksError(f"{path.name}: {error.message}", error.next_step) from error
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        reason = f"{path.name} is not a dump of marks, or is damaged: {error}"
        raise MarksError(reason, "record it again: nsysalign run") from error


class _Buffer(NamedTuple):
    """What a file holds, as it was written: refused is the version of a header that tried to write, 0 for
    none."""

    pid: int
    device: int
    sms: int
    finished: bool
    refused: int
    names: Sequence[str]
    of_sms: np.ndarray  # SM_LINE
    slots: np.ndarray  # SLOT
    chunks: np.ndarray  # CHUNK
    strays: np.ndarray  # HEAD


def _buffer(content: np.ndarray) -> _Buffer:
    """Raises ValueError, KeyError or TypeError for what is none."""
    if content[:16].tobytes() != layout.FILE_MAGIC:
        raise ValueError("it does not begin like one")
    version, length = np.frombuffer(content[16:24].tobytes(), "<u4").tolist()
    if version != layout.FILE_VERSION:
        raise ValueError(f"version {version}, this nsysalign reads {layout.FILE_VERSION}")
    place = 24 + length
    fixed, counts = np.split(content[place:][: layout.TABLE + 4 * layout.COUNTS], [layout.TABLE])
    if length > _LONGEST_JSON or len(counts) < 4 * layout.COUNTS:
        raise ValueError("it is cut")
    about = json.loads(content[24:place].tobytes().decode())
    names = [n for n in about["names"] if isinstance(n, str) and 0 < len(n) <= _LONGEST_NAME]
    pid, device, sms = (int(about[k]) for k in ("pid", "device", "sms"))
    if not (0 <= pid < 1 << 24 and 0 <= device < 1 << 10 and 0 < sms <= 4096):
        raise ValueError("its process, device or number of SMs is impossible")
    magic, of_buffer, refused, *_ = layout.HEADER.unpack(fixed[: layout.LINE].tobytes())
    if magic != layout.MAGIC:
        raise ValueError("something else wrote into its header")
    if not refused and of_buffer not in layout.READS:
        refused = of_buffer
    slots, regions = _regions(content[place + layout.TABLE + 4 * layout.COUNTS :], counts, place)
    return _Buffer(
        pid, device, sms, bool(about.get("finished", True)), int(refused), names,
        of_sms=fixed[layout.LINE :].view(SM_LINE),
        slots=slots.view(SLOT),
        chunks=np.concatenate([region.view(CHUNK) for region in regions[::2]]),
        strays=np.concatenate([region.view(HEAD) for region in regions[1::2]]),
    )  # fmt: skip


def _regions(
    content: np.ndarray, counts: np.ndarray, before: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The bytes of the table of counters, and those of every region: chunks and strays by turns.  counts: how
    many lines the buffer says that each has.  Raises ValueError where there are not as many."""
    lines = counts.view("<u4").astype(np.int64)
    sizes = lines[16:] * np.tile([layout.CHUNK, layout.LINE], layout.REGIONS)
    ends = np.cumsum(np.append(lines[0] * layout.LINE, sizes))
    if ends[-1] != len(content):
        before += layout.TABLE + 4 * layout.COUNTS
        raise ValueError(
            f"it should have {before + ends[-1]:,} bytes and has {before + len(content):,}"
        )
    slots, *regions = np.split(content, ends[:-1])
    return slots, regions


def _parsed(name: str, content: np.ndarray) -> Dump:
    """The plausible records; `damaged` counts the others, but not lines that were never written."""
    buffer = _buffer(content)
    chunks, strays = buffer.chunks, buffer.strays
    good = _possible(chunks["head"], layout.HEAD)
    alone = _possible(strays, layout.STRAY) & (strays["id"] != 0)
    damaged = ((chunks["head"]["kind"] != 0) & ~good).sum() + ((strays["kind"] != 0) & ~alone).sum()
    repeated = _repeated(chunks["head"][good])
    chunks = chunks[good & ~np.isin(chunks["head"]["grid"], repeated)]
    strays = strays[alone & ~np.isin(strays["grid"], repeated)]
    heads = np.concatenate([chunks["head"], strays])
    order = np.lexsort([heads[key] for key in ("time", *_PLACE)])
    heads, chunks = heads[order], chunks[order[order < len(chunks)]]
    marks = _marks(chunks)
    # a record that ends a warp and has a name is no mark, but what the warp counted
    summed = (marks["id"] & 3 == layout.EXIT) & (marks["id"] != layout.EXIT)
    recorded = (marks["id"] != 0) & ~summed
    entered = chunks["head"]["time"][:, None]
    sound = recorded & (marks["time"] >= entered) & (marks["time"] < _LATEST_NS)
    damaged += (recorded & ~sound).sum()
    sound[:, 0] = chunks["head"]["previous"] == 0  # the warp enters
    slots = buffer.slots[~np.isin(buffer.slots["grid"], repeated)]
    counters, impossible = _counters(slots, chunks["head"][np.nonzero(summed)[0]], marks[summed])
    runs = _runs(heads, counters["grid"])
    in_order = {
        "head_of": _heads_of(np.argsort(order), np.nonzero(sound)[0], len(chunks)),
        "time": np.append(marks["time"][sound], strays["time"]).view(np.int64),
        "clock": np.append(marks["clock"][sound], strays["clock"].astype(np.uint32)),
        "id": np.append(marks["id"][sound], strays["id"]),
    }
    return Dump(
        path=name, pid=buffer.pid, device=buffer.device, sms=buffer.sms, finished=buffer.finished,
        refused=buffer.refused, names=layout.by_hash(buffer.names[:_MOST_NAMES]), heads=heads,
        **_by_warp(in_order, heads, runs["run"], strays=len(strays) > 0), counters=counters,
        dropped=int(buffer.of_sms["dropped"].sum()),
        counts_dropped=int(buffer.of_sms["counts"].sum()),
        damaged=int(damaged + impossible), repeated=len(repeated), **runs,
    )  # fmt: skip


def _heads_of(place: np.ndarray, chunk: np.ndarray, chunks: int) -> np.ndarray:
    """The head of every mark: those of chunks (`chunk`: which) come before those of strays, which are heads
    themselves.  place: of every head, chunks first, among the sorted ones."""
    of_chunks = np.sort(place[:chunks])
    return np.append(of_chunks[chunk], place[chunks:]).astype(np.int32)


def _marks(chunks: np.ndarray) -> np.ndarray:
    """The marks of chunks (chunks, marks), of each first that its warp entered: the time of its head."""
    marks = np.zeros((len(chunks), 1 + CHUNK["marks"].shape[0]), MARK)
    marks[:, 1:] = chunks["marks"]
    for field in ("time", "clock"):
        marks[field][:, 0] = chunks["head"][field].astype(MARK[field])
    return marks


def _by_warp(
    marks: dict[str, np.ndarray], heads: np.ndarray, run_of_head: np.ndarray, *, strays: bool
) -> dict[str, np.ndarray]:
    """Marks in the order in which their warps made them.  Those of lanes that came apart (strays) lie
    between those of their warp; damaged ones anywhere."""
    run, time = run_of_head[marks["head_of"]], marks["time"]
    if not strays and not ((np.diff(time) < 0) & (np.diff(run) == 0)).any():
        return marks
    began = heads["clock"][np.searchsorted(run_of_head, run)].astype(np.uint32)
    order = np.lexsort((marks["clock"] - began, time, run))
    return {name: values[order] for name, values in marks.items()}


def _possible(heads: np.ndarray, kind: int) -> np.ndarray:
    ok = np.isin(heads["kind"], [kind | version for version in layout.READS])
    ok &= (heads["lanes"] != 0) & (heads["threads"] > 0) & (heads["threads"] <= 1024)
    ok &= (heads["warp"] < 32) & (heads["sm"] < 4096)
    return ok & (heads["time"] > 0) & (heads["time"] < _LATEST_NS) & (heads["grid"] < 1 << 62)


def _repeated(heads: np.ndarray) -> np.ndarray:
    """Grid ids that were launched more than once: a warp's first chunk, which has none before it,
    comes once in a launch."""
    first = heads[heads["previous"] == 0]
    first = first[np.lexsort([first[key] for key in _PLACE])][_PLACE]
    return np.unique(first["grid"][1:][first[1:] == first[:-1]])


def _counters(table: np.ndarray, heads: np.ndarray, records: np.ndarray) -> tuple[np.ndarray, int]:
    """(one slot for each launch, SM and counter, from the buffer's table and what warps wrote behind
    their marks; how many were impossible)."""
    sums = np.zeros(len(records), SLOT)
    for name in ("grid", "sm"):
        sums[name] = heads[name]
    sums["id"], sums["lanes"] = records["id"] & ~np.uint32(3), records["time"]
    sums["warps"] = np.maximum(records["clock"], 1)  # 0: what its lanes counted, once
    table = table[table["part"] == 0]  # older headers kept histograms of latencies in others
    possible = [
        (table["sm"] < 4096) & (table["id"] & 3 == 0) & (table["tag"] != 0)
        & (table["warps"] < 1 << 62) & (table["lanes"] < 1 << 62), sums["lanes"] < _MOST_LANES,
    ]  # fmt: skip
    slots = np.concatenate([table[possible[0]], sums[possible[1]]])
    _, first, group = np.unique(slots[["grid", "sm", "id"]], return_index=True, return_inverse=True)
    out = slots[first]
    for name in ("warps", "lanes"):
        out[name] = 0
        np.add.at(out[name], group, slots[name])
    return out, sum(int((~ok).sum()) for ok in possible)


def _runs(heads: np.ndarray, counted: np.ndarray) -> dict[str, np.ndarray]:
    """The runs of warps and the launches of sorted heads; `counted`: grid ids of counters."""
    place = heads[_PLACE]
    run = np.cumsum(np.append(True, place[1:] != place[:-1])[: len(heads)]) - 1
    chunk = heads["kind"] & ~np.uint32(0xFF) == layout.HEAD
    lanes = heads["lanes"].astype(np.int64)
    lowest = np.zeros(int(run.max(initial=-1)) + 1, np.int64)
    lowest[run[chunk]] = lanes[chunk] & -lanes[chunk]
    grids, launch = np.unique(heads["grid"], return_inverse=True)
    only_counted = np.setdiff1d(counted, grids)
    return {
        "launch": launch, "run": run, "first_lane": chunk | (lanes & lowest[run] != 0),
        "grid": np.append(grids, only_counted).astype(np.int64),
    }  # fmt: skip
