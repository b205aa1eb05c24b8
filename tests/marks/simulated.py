"""A GPU that marks its kernels: dumps and kernel rows with a known truth, from a clock that nobody
is told.

A kernel's blocks go to the SM that is free first; every warp runs its program, a list of (range,
ns) and marks.  Stamps are whole ticks of the timer; the trace's clock is timer + offset + drift,
with corrections now and then.
"""

from __future__ import annotations

import json
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
    offset: float = -1_700_000_000_123_456_789.0
    drift: float = 12e-6
    jumps: tuple[
        tuple[int, int], ...
    ] = ()  # (timer time after the start, ns by which the trace's clock is corrected there)
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
        self,
        grid: int,
        blocks: int,
        program,
        warps: int = 2,
        *,
        ramp=700,
        tail=400,
        row=True,
        name="kernel",
        room=None,
    ):
        """One kernel; `program(block, warp)` gives a list of ("range name", ns), ("", ns) or
        ("!mark", 0); nested: a list in place of ns.  `room`: marks that find room in the buffer,
        the rest is dropped."""
        begin = self.now
        free = [(begin + ramp + 10 * i, i % self.sms) for i in range(self.sms * self.slots)]
        made, sm_blocks, last = [], {}, begin
        for block in range(blocks):
            free.sort()
            at, sm = free.pop(0)
            ends = [
                self._warp(
                    grid, block, warp, warps, sm, at + 30 * warp, program(block, warp), made, room
                )
                for warp in range(warps)
            ]
            end = max(ends)
            sm_blocks.setdefault(sm, []).append((at, end))
            free.append((end + 200, sm))
            last = max(last, end)
        over = last + tail
        if row:
            self.rows.append(
                (self.trace_time(begin), self.trace_time(over), grid, blocks, warps * 32, name)
            )
        self.truth.append(
            {"begin": begin, "end": over, "blocks": sm_blocks, "ranges": made, "row": row}
        )
        self.now = over + int(self.random.integers(2_000, 40_000))

    def _warp(self, grid, block, warp, warps, sm, at, program, made, room):
        head = np.zeros((), dump.HEAD)
        head["kind"], head["grid"], head["x"], head["warp"] = (
            layout.HEAD | layout.VERSION,
            grid,
            block,
            warp,
        )
        head["sm"], head["time"], head["lanes"], head["threads"] = (
            sm,
            self.stamp(at),
            WHOLE,
            warps * 32,
        )
        head["clock"] = self.cycles(at)
        marks: list[tuple[float, int]] = []
        t = self._run(program, at, marks, made, (grid, block, warp, sm))
        marks.append((t, layout.EXIT))
        if room is not None:
            self.dropped += max(0, len(marks) - room)
            marks = marks[:room]
        per = dump._CHUNK["marks"].shape[0]
        for first in range(0, max(len(marks), 1), per):
            chunk = np.zeros((), dump._CHUNK)
            chunk["head"] = head
            if first:
                chunk["head"]["previous"], chunk["head"]["time"] = 7, self.stamp(marks[first][0])
            for i, (time, number) in enumerate(marks[first : first + per]):
                clock = (
                    self.cycles(time) + first + i + 1
                ) & WHOLE  # a later mark has a later clock
                chunk["marks"][i] = (self.stamp(time), clock, number)
            self.chunks.append(chunk)
        return t

    def _run(self, program, t, marks, made, where):
        for name, what in program:
            if name.startswith("!"):
                self.names.add(name[1:])
                marks.append((t, name_hash(name[1:]) << 2))
                continue
            if name:
                self.names.add(name)
                marks.append((t, name_hash(name) << 2 | layout.BEGIN))
            begun = t
            t = self._run(what, t, marks, made, where) if isinstance(what, list) else t + what
            if name:
                marks.append((t, name_hash(name) << 2 | layout.END))
                made.append((*where, name, begun, t))
        return t

    def content(self, pid: int = 77, **about) -> bytes:
        """The dump file."""
        fixed = bytearray(layout.TABLE)
        fixed[: layout.LINE] = layout.HEADER.pack(
            layout.MAGIC, layout.VERSION, 0, 0, 8_000, 400, 1024
        )
        fixed[layout.LINE + 8 : layout.LINE + 16] = self.dropped.to_bytes(8, "little")
        order = self.random.permutation(len(self.chunks))
        chunks = np.array([self.chunks[i] for i in order], dump._CHUNK)
        return file(
            fixed,
            [],
            chunks,
            np.array(self.strays, dump.HEAD),
            {"pid": pid, "device": 0, "sms": self.sms, "names": sorted(self.names), **about},
        )

    def write(self, path: Path, **about) -> Path:
        path.write_bytes(self.content(**about))
        return path

    def table(self, pid: int = 77) -> pd.DataFrame:
        """Its kernel rows, as `trace.launches` reads them."""
        columns = ("start_ns", "end_ns", "grid_id", "blocks", "threads", "name")
        rows = pd.DataFrame(self.rows, columns=columns)
        rows = rows.assign(
            row=np.arange(len(rows)),
            pid=pid,
            device=0,
            stream=7,
            grid_x=rows["blocks"],
            grid_y=1,
            registers=32,
            local_bytes=0,
            shared_bytes=0,
        )
        rows["name"] = rows["name"].astype("str")
        return frames.check(rows.sort_values("start_ns", ignore_index=True), frames.LAUNCHES)


def file(fixed: bytes, counters, chunks: np.ndarray, strays: np.ndarray, about: dict) -> bytes:
    """The bytes of a dump file; everything lies in the first region."""
    text = json.dumps(about).encode()
    text += b" " * (-(24 + len(text)) % layout.LINE)
    counts = np.zeros(layout.COUNTS, "<u4")
    counts[0], counts[16], counts[17] = len(counters), len(chunks), len(strays)
    head = (
        layout.FILE_MAGIC
        + layout.FILE_VERSION.to_bytes(4, "little")
        + len(text).to_bytes(4, "little")
    )
    slots = np.array(counters, dump.SLOT) if len(counters) else np.empty(0, dump.SLOT)
    return b"".join(
        [
            head,
            text,
            bytes(fixed),
            counts.tobytes(),
            slots.tobytes(),
            chunks.tobytes(),
            strays.tobytes(),
        ]
    )


def sm_time(gpu: Gpu, number: int) -> dict[str, float]:
    """The truth of one launch, nanosecond by nanosecond of the timer: {part or range: SM time}."""
    truth = gpu.truth[number]
    begin, end = truth["begin"], truth["end"]
    total = {"before": 0.0, "between": 0.0, "after": 0.0, "none": 0.0, "unmarked": 0.0}
    total["none"] = (gpu.sms - len(truth["blocks"])) * (end - begin)
    for blocks in truth["blocks"].values():
        total["before"] += min(a for a, _ in blocks) - begin
        total["after"] += end - max(b for _, b in blocks)
    return total
