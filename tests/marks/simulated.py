"""A GPU that marks its kernels: dumps and kernel rows with a known truth, from a clock that nobody
is told.

A kernel's blocks go to the SM that is free first; every warp runs its program, a list of (range,
ns) and marks.  Stamps are whole ticks of the timer; the trace's clock is timer + offset + drift,
with corrections now and then.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.addons.marks import dump, layout
from nsysalign.addons.marks.layout import name_hash

WHOLE = 0xFFFFFFFF


@dataclass
class Gpu:
    """Times in ns of the hidden timer.  `truth`: per kernel, what the analysis is to find."""

    sms: int = 4
    slots: int = 2  # blocks that fit on an SM
    tick: int = 32
    drift: float = 12e-6
    #: (timer time after the start, ns by which the trace's clock is corrected there)
    jumps: tuple[tuple[int, int], ...] = ()
    seed: int = 1
    start: int = 1_700_000_000_000_000_000
    chunks: list = field(default_factory=list)
    strays: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    truth: list = field(default_factory=list)
    names: set = field(default_factory=set)
    dropped: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.now = self.start

    def trace_time(self, timer: float) -> int:
        """The hidden clock."""
        since = timer - self.start
        jump = sum(by for at, by in self.jumps if since >= at)
        return round(since + self.drift * since + jump) + 5_000_000_000

    def stamp(self, timer: float) -> int:
        return int(timer) // self.tick * self.tick

    def cycles(self, timer: float) -> int:
        """An SM's clock, at 2 GHz; it wraps soon after the start."""
        return int(2 * (timer - self.start)) + (WHOLE - 30_000)

    def launch(
        self, grid: int, blocks: int, program, warps: int = 2, *,
        ramp=700, tail=400, row=True, name="kernel", room=None,
    ):  # fmt: skip
        """One kernel; `program(block, warp)` gives a list of ("range name", ns), ("", ns) or
        ("!mark", 0); nested: a list in place of ns.  `room`: marks that find room in the buffer,
        the rest is dropped."""
        begin = self.now
        free = [(begin + ramp + 10 * i, i % self.sms) for i in range(self.sms * self.slots)]
        sm_blocks, last = {}, begin
        for block in range(blocks):
            free.sort()
            at, sm = free.pop(0)
            end = max(
                self.warp(grid, block, warp, warps, sm, at + 30 * warp, program(block, warp), room)
                for warp in range(warps)
            )
            sm_blocks.setdefault(sm, []).append((at, end))
            free.append((end + 200, sm))
            last = max(last, end)
        over = last + tail
        if row:
            self.rows.append(
                (self.trace_time(begin), self.trace_time(over), grid, blocks, warps * 32, name)
            )
        self.truth.append({"begin": begin, "end": over, "blocks": sm_blocks})
        self.now = over + int(self.random.integers(2_000, 40_000))

    def warp(self, grid, block, warp, warps, sm, at, program, room=None):
        """A warp's marks; when it ends."""
        head = np.zeros((), dump.HEAD)
        head["kind"], head["lanes"], head["threads"] = (
            layout.HEAD | layout.VERSION,
            WHOLE,
            warps * 32,
        )
        head["grid"], head["x"], head["warp"], head["sm"] = grid, block, warp, sm
        head["time"] = self.stamp(at)
        head["clock"] = self.cycles(at)
        marks: list[tuple[float, int]] = []
        t = self._run(program, at, marks)
        marks.append((t, layout.EXIT))
        if room is not None:
            self.dropped += max(0, len(marks) - room)
            marks = marks[:room]
        per = dump.CHUNK["marks"].shape[0]
        for first in range(0, max(len(marks), 1), per):
            chunk = np.zeros((), dump.CHUNK)
            chunk["head"] = head
            if first:
                chunk["head"]["previous"], chunk["head"]["time"] = 7, self.stamp(marks[first][0])
            for i, (time, number) in enumerate(marks[first : first + per]):
                clock = (self.cycles(time) + first + i + 1) & WHOLE  # a later mark's is later
                chunk["marks"][i] = (self.stamp(time), clock, number)
            self.chunks.append(chunk)
        return t

    def _run(self, program, t, marks):
        for name, what in program:
            if name.startswith("!"):
                self.names.add(name[1:])
                marks.append((t, name_hash(name[1:]) << 2))
                continue
            if name:
                self.names.add(name)
                marks.append((t, name_hash(name) << 2 | layout.BEGIN))
            t = self._run(what, t, marks) if isinstance(what, list) else t + what
            if name:
                marks.append((t, name_hash(name) << 2 | layout.END))
        return t

    def stray(self, of: int, time: int, number: int, lanes: int) -> None:
        """A mark of some lanes of the warp whose chunk this is."""
        head = self.chunks[of]["head"].copy()
        head["kind"], head["id"], head["lanes"] = layout.STRAY | layout.VERSION, number, lanes
        head["time"], head["clock"] = time, self.cycles(time)
        self.strays.append(head)

    def content(self, pid: int = 77, **about) -> bytes:
        """The dump file."""
        order = self.random.permutation(len(self.chunks))
        chunks = [self.chunks[i] for i in order]
        about = {"pid": pid, "sms": self.sms, "names": sorted(self.names), **about}
        return file(header(self.dropped), [], chunks, self.strays, about)

    def write(self, path: Path, **about) -> Path:
        path.write_bytes(self.content(**about))
        return path

    def table(self, pid: int = 77) -> pd.DataFrame:
        """Its kernel rows, as `trace.launches` reads them."""
        columns = ("start_ns", "end_ns", "grid_id", "blocks", "threads", "name")
        rows = pd.DataFrame(self.rows, columns=columns)
        rows = rows.assign(
            row=np.arange(len(rows)), pid=pid, device=0, stream=7, registers=32, local_bytes=0,
        )  # fmt: skip
        rows["name"] = rows["name"].astype("str")
        return frames.check(rows.sort_values("start_ns", ignore_index=True), frames.LAUNCHES)


def header(dropped: int = 0, version: int = layout.VERSION, refused: int = 0) -> bytes:
    """A buffer's header and the lines of its SMs."""
    fixed = layout.HEADER.pack(layout.MAGIC, version, refused, 0, 8_000, 400, 1024)
    return (fixed + bytes(8) + dropped.to_bytes(8, "little")).ljust(layout.TABLE, b"\0")


def file(fixed: bytes, counters, chunks, strays, about) -> bytes:
    """The bytes of a dump file; everything lies in the first region."""
    if isinstance(about, dict) and about:
        about = {"pid": 5, "device": 0, "sms": 4} | about
    text = json.dumps(about).encode()
    text += b" " * (-(24 + len(text)) % layout.LINE)
    counts = np.zeros(layout.COUNTS, "<u4")
    counts[0], counts[16], counts[17] = len(counters), len(chunks), len(strays)
    head = layout.FILE_MAGIC + struct.pack("<II", layout.FILE_VERSION, len(text)) + text
    records = ((counters, dump.SLOT), (chunks, dump.CHUNK), (strays, dump.HEAD))
    arrays = [np.array(of, dtype).tobytes() for of, dtype in records if len(of)]
    return b"".join([head, fixed, counts.tobytes(), *arrays])
