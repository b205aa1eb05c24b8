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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nsysalign.addons.marks import layout
from nsysalign.addons.marks.names import by_hash
from nsysalign.errors import NsysAlignError, UsageError

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
MARK = np.dtype([("time", "<u8"), ("clock", "<u4"), ("id", "<u4")])
_CHUNK = np.dtype([("head", HEAD), ("marks", MARK, (layout.CHUNK - layout.LINE) // MARK.itemsize)])
SLOT = np.dtype(
    [
        ("tag", "<u8"), ("grid", "<u8"), ("sm", "<u4"), ("id", "<u4"),
        ("warps", "<u8"), ("lanes", "<u8"), ("sum", "<u8"),
        ("least", "<u4"), ("most", "<u4"), ("part", "<u4"), ("unused", "<u4"),
    ]
)  # fmt: skip
_LINE_FIELDS = ("given", "dropped", "counts", "count_lanes")
SM_LINE = np.dtype([*((name, "<u8") for name in _LINE_FIELDS), ("unused", "<u8", 4)])
_LATEST_NS = np.uint64(1 << 62)
_MOST_LANES = np.uint64(1 << 38)  # of a warp: 32 threads that count to 2^32


class MarksError(NsysAlignError):
    """A dump of marks cannot be read or used."""


@dataclass(frozen=True)
class Dump:
    """One buffer.  Arrays of equal length: `warps` (HEAD: a warp's first chunk, each later one,
    each stray), and for every mark `of` (its row there), `time` (the GPU's timer, ns), `clock`
    (cycles of its SM, 32 bits) and `id`; `counters` (SLOT). `dropped`: marks that did not fit;
    `counts_dropped`: executions of counters that did not fit; `damaged`: impossible records."""

    path: str
    pid: int
    device: int
    sms: int
    finished: bool
    refused: int  # version of a header that tried to write here and was refused, 0 for none
    names: Mapping[int, str]
    warps: np.ndarray
    of: np.ndarray
    time: np.ndarray
    clock: np.ndarray
    id: np.ndarray
    counters: np.ndarray
    dropped: int
    counts_dropped: int
    damaged: int
    capacity: int

    @property
    def written(self) -> int:
        """Marks in the buffer, including the one that ends every warp."""
        return len(self.time)


def read(path: str | Path) -> Dump:
    """A dump file.  Raises MarksError, which says what is wrong with it."""
    path = Path(path)
    again = "record it again: nsysalign run"
    try:
        empty = not path.stat().st_size
        content = np.empty(0, np.uint8) if empty else np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        reason = f"{path.name}: {error.strerror or error}"
        raise MarksError(reason, "give the path of a .nsam file") from error
    try:
        return _parsed(path.name, content)
    except UsageError as error:  # two names of one hash
        raise MarksError(f"{path.name}: {error.message}", error.next_step) from error
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        reason = f"{path.name} is not a dump of marks, or is damaged: {error}"
        raise MarksError(reason, again) from error


def _parsed(name: str, content: np.ndarray) -> Dump:
    """The plausible records; `damaged` counts the others, but not lines that were never written."""
    if content[:16].tobytes() != layout.FILE_MAGIC:
        raise ValueError("it does not begin like one")
    version, length = np.frombuffer(content[16:24].tobytes(), "<u4").tolist()
    if version != layout.FILE_VERSION:
        raise MarksError(
            f"{name} has version {version}, this nsysalign reads {layout.FILE_VERSION}",
            "use the nsysalign that recorded it, or record it again",
        )
    at = 24 + length
    if length > _LONGEST_JSON or at + layout.TABLE + 4 * layout.COUNTS > len(content):
        raise ValueError("it is cut")
    about = json.loads(content[24:at].tobytes().decode())
    whole = [n for n in about["names"] if isinstance(n, str) and 0 < len(n) <= _LONGEST_NAME]
    pid, device, sms = (int(about[k]) for k in ("pid", "device", "sms"))
    if not (0 <= pid < 1 << 24 and 0 <= device < 1 << 10 and 0 < sms <= 4096):
        raise ValueError("its process, device or number of SMs is impossible")
    fixed = content[at : at + layout.TABLE]
    header = layout.HEADER.unpack(fixed[: layout.LINE].tobytes())
    magic, of_buffer, refused, _, lines, _, _ = header
    if magic != layout.MAGIC:
        raise ValueError("something else wrote into its header")
    at += layout.TABLE
    counts = content[at : at + 4 * layout.COUNTS].view("<u4")
    at += 4 * layout.COUNTS
    regions = counts[16:].reshape(layout.REGIONS, 2).astype(np.int64)
    few, many = regions.sum(axis=0).tolist()
    records = at + int(counts[0]) * layout.LINE
    expected = records + few * layout.CHUNK + many * layout.LINE
    if expected != len(content):
        raise ValueError(f"it should have {expected:,} bytes and has {len(content):,}")
    counters, lines_of_sms = content[at:records].view(SLOT), fixed[layout.LINE :].view(SM_LINE)
    of_chunks, of_strays = [], []
    for few, many in regions.tolist():
        at = records + few * layout.CHUNK
        of_chunks.append(content[records:at].view(_CHUNK))
        records = at + many * layout.LINE
        of_strays.append(content[at:records].view(HEAD))

    chunks, strays = np.concatenate(of_chunks), np.concatenate(of_strays)
    good = _possible(chunks["head"], layout.HEAD)
    damaged = int((~good & (chunks["head"]["kind"] != 0)).sum())
    chunks = chunks[good]
    chunks["head"]["kind"] = layout.HEAD | layout.VERSION  # whichever version wrote it
    alone = _possible(strays, layout.STRAY) & (strays["id"] != 0)
    damaged += int((~alone & (strays["kind"] != 0)).sum())
    strays = strays[alone]
    strays["kind"] = layout.STRAY | layout.VERSION
    marks, heads = chunks["marks"], chunks["head"]
    # records that are no marks, but what the warp counted
    summed = (marks["id"] & 3 == layout.EXIT) & (marks["id"] != layout.EXIT)
    there = (marks["id"] != 0) & ~summed
    # a chunk's marks follow its head, up to the last one that was reached
    sound = there & (marks["time"] >= heads["time"][:, None]) & (marks["time"] < _LATEST_NS)
    damaged += int((there & ~sound).sum())
    of = np.nonzero(sound)[0].astype(np.int32)
    counted = (counters["sm"] < 4096) & (counters["id"] & 3 == 0) & (counters["tag"] != 0)
    counted &= (counters["warps"] < 1 << 62) & (counters["lanes"] < 1 << 62)
    counted &= counters["part"] <= 33
    damaged += int((~counted).sum())
    slots = counters[counted]
    sums, of_sums = marks[summed], heads[np.nonzero(summed)[0]]
    possible = sums["time"] < _MOST_LANES
    damaged += int((~possible).sum())
    if possible.any():
        slots = _merged(np.concatenate([slots, _as_slots(of_sums[possible], sums[possible])]))
    return Dump(
        warps=np.concatenate([heads, strays]),
        of=np.concatenate([of, len(chunks) + np.arange(len(strays), dtype=np.int32)]),
        time=np.concatenate([marks["time"][sound], strays["time"]]).view(np.int64),
        clock=np.concatenate([marks["clock"][sound], strays["clock"].astype(np.uint32)]),
        id=np.concatenate([marks["id"][sound], strays["id"]]),
        counters=slots,
        damaged=damaged,
        path=name,
        refused=int(refused or (of_buffer if of_buffer not in layout.READS else 0)),
        dropped=int(lines_of_sms["dropped"].sum()),
        counts_dropped=int(lines_of_sms["counts"].sum()),
        capacity=lines // layout.LINES * layout.REGIONS * _CHUNK["marks"].shape[0],
        pid=pid,
        device=device,
        sms=sms,
        finished=bool(about.get("finished", True)),
        names=by_hash(whole[:_MOST_NAMES]),
    )


def _as_slots(heads: np.ndarray, records: np.ndarray) -> np.ndarray:
    """What warps wrote behind their marks, as slots of the table."""
    slots = np.zeros(len(records), SLOT)
    slots["tag"], slots["grid"], slots["sm"] = 1, heads["grid"], heads["sm"]
    slots["id"], slots["lanes"] = records["id"] & ~np.uint32(3), records["time"]
    slots["warps"] = np.maximum(records["clock"], 1)  # 0: what its lanes counted, once
    return slots


def _merged(slots: np.ndarray) -> np.ndarray:
    """One slot for each launch, SM, counter and part."""
    keys = ["grid", "sm", "id", "part"]
    _, first, which = np.unique(slots[keys], return_index=True, return_inverse=True)
    out = slots[first]
    for name in ("warps", "lanes", "sum"):
        out[name] = 0
        np.add.at(out[name], which, slots[name])
    for name in ("least", "most"):  # the least is kept as its complement
        np.maximum.at(out[name], which, slots[name])
    return out


def _possible(heads: np.ndarray, kind: int) -> np.ndarray:
    ok = np.isin(heads["kind"], [kind | version for version in layout.READS])
    ok &= (heads["lanes"] != 0) & (heads["threads"] > 0) & (heads["threads"] <= 1024)
    ok &= (heads["warp"] < 32) & (heads["sm"] < 4096)
    return ok & (heads["time"] > 0) & (heads["time"] < _LATEST_NS) & (heads["grid"] < 1 << 62)


def warnings(dumps: Sequence[Dump]) -> list[str]:
    """Warnings for readers of these dumps, in words."""
    notes = []
    for dump in dumps:
        if dump.refused:
            notes.append(
                f"{dump.path}: a kernel was compiled with version {dump.refused} of marks.cuh, "
                f"this package has {layout.VERSION}: it wrote nothing (compile it with -I from "
                "nsysalign.marks.include())"
            )
        if not dump.finished:
            notes.append(
                f"{dump.path}: kernels were still running when it was copied: what they marked "
                "later is missing"
            )
        if dump.damaged:
            notes.append(f"{dump.path}: {dump.damaged:,} impossible records were left out")
        if dump.dropped:
            whole = dump.dropped + dump.written
            lost = f"{dump.dropped:,} of {whole:,} marks found no room in the buffer"
            notes.append(f"{dump.path}: {lost}")
        if dump.counts_dropped:
            lost = f"{dump.counts_dropped:,} counts found no room in the buffer's table"
            notes.append(f"{dump.path}: {lost}")
    return notes
