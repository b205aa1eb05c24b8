"""Buffers in a device's memory that kernels write marks into, and how they are saved to a file.  A
buffer is allocated once and read when the process ends, when `collect()` is called, and
occasionally between two measured intervals (`probe`): never inside one, never while a graph is
being captured.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from nsysalign.addons.marks import layout
from nsysalign.addons.marks.driver import Device, current_ordinal
from nsysalign.addons.marks.names import by_hash, of_program
from nsysalign.errors import NsysAlignError, UsageError

#: The buffers of this process, in the order of their creation.
_made: list[Buffer] = []
_lock = threading.Lock()
#: How long the end of a process waits for kernels that are still running.
_PATIENCE_S = 10.0
_SNAPSHOT_S = 1.0
_LARGEST_MIB = 1 << 17


class _Region(NamedTuple):
    """A region of a buffer: how many chunks and strays it holds, and they themselves."""

    chunks: int
    strays: int
    content: bytes


class Buffer:
    """Memory for marks.  Pass it to kernels in the form they take: `int(buffer)` or `.address` (the
    pointer), the buffer itself if they support `__cuda_array_interface__` (CuPy, Numba), `.tensor`
    for torch.

    A buffer that is off (`NSYSALIGN_MARKS=0`) has address 0 and no memory: kernels write nothing.
    """

    def __init__(self, mib: int, device: int | None, names: Iterable[str]) -> None:
        self.names = set(names)
        by_hash(self.names)
        self.size, self._lines, self._first, self._slots = layout.sizes(mib)
        self.address, self.device = 0, -1 if device is None else device
        self._written_at = 0.0
        self._stream: Any = None
        if not on():
            return
        self.device = current_ordinal() if device is None else device
        self._device = Device(self.device)
        head = layout.HEADER.pack(
            layout.MAGIC, layout.VERSION, 0, 0, self._lines, self._first, self._slots
        )
        self.address = self._device.allocate(self.size, head)
        self._stream = self._device.stream()
        with _lock:
            self.number = len(_made)
            _made.append(self)

    def __int__(self) -> int:
        return self.address

    __index__ = __int__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The buffer as bytes; empty if the buffer is off."""
        size = self.size if self.address else 0
        return {"shape": (size,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    @property
    def tensor(self) -> Any:
        """A torch tensor over the buffer (uint8): its address is what a kernel gets."""
        import torch

        if not self.address:
            return torch.empty(0, dtype=torch.uint8, device="cuda")
        return torch.as_tensor(self, device=f"cuda:{self.device}")

    def snapshot(self, *, wait_s: float = _PATIENCE_S) -> bytes:
        """The contents of the buffer, in the format of a dump file (docs/marks.md).  Waits for
        running kernels, at most this long; marks not yet written by then are missing.
        """
        if not self.address:
            raise UsageError(
                "this buffer is off (NSYSALIGN_MARKS=0): nothing was recorded",
                "unset NSYSALIGN_MARKS",
            )
        idle = self._device.wait(wait_s) if wait_s else False
        fixed = self._read(0, layout.TABLE + self._slots * (layout.TAG + layout.LINE))
        table = fixed[layout.TABLE + self._slots * layout.TAG :]
        used = [
            bytes(table[at : at + layout.LINE])
            for at in range(0, len(table), layout.LINE)
            if any(table[at : at + 8])
        ]
        counts, regions = [len(used), *[0] * 15], []
        for region in range(layout.REGIONS):
            written = self._region(fixed, region)
            counts += [written.chunks, written.strays]
            regions.append(written.content)
        about = {
            "pid": os.getpid(),
            "device": self.device,
            "sms": self._device.multiprocessors(),
            "bytes": self.size,
            "finished": idle,
            "names": sorted(self.names | of_program()),
        }
        text = json.dumps(about).encode()
        text += b" " * (-(24 + len(text)) % layout.LINE)
        head = (
            layout.FILE_MAGIC
            + layout.FILE_VERSION.to_bytes(4, "little")
            + len(text).to_bytes(4, "little")
        )
        numbers = b"".join(n.to_bytes(4, "little") for n in counts)
        return b"".join([head, text, bytes(fixed[: layout.TABLE]), numbers, *used, *regions])

    def _region(self, fixed: bytearray, region: int) -> _Region:
        """What a region holds.  If chunks and strays have met, the last chunk's head tells
        where."""
        at = layout.LINE * (1 + region)
        low, high = (int.from_bytes(fixed[p : p + 4], "little") for p in (at, at + 4))
        chunks, strays = min(low, self._lines // layout.LINES), min(high, self._lines)
        start = (self._first + self._lines * region) * layout.LINE
        if chunks * layout.LINES + strays > self._lines:
            whole = self._read(start, self._lines * layout.LINE)
            while chunks:
                head = int.from_bytes(whole[(chunks - 1) * layout.CHUNK :][:4], "little")
                if head & ~0xFF == layout.HEAD:
                    break
                chunks -= 1
            strays = min(strays, self._lines - chunks * layout.LINES)
            both = whole[: chunks * layout.CHUNK] + whole[len(whole) - strays * layout.LINE :]
        else:
            end = start + (self._lines - strays) * layout.LINE
            both = self._read(start, chunks * layout.CHUNK) + self._read(end, strays * layout.LINE)
        return _Region(chunks, strays, bytes(both))

    def _read(self, offset: int, size: int) -> bytearray:
        return self._device.read(self.address + offset, size, self._stream)

    def write(self, path: str | os.PathLike[str], *, wait_s: float = _PATIENCE_S) -> Path:
        """Write a dump file, whole or not at all."""
        path = Path(path)
        content = self.snapshot(wait_s=wait_s)
        partial = path.with_name(path.name + ".partial")
        partial.unlink(missing_ok=True)
        with open(partial, "xb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(content)
        os.replace(partial, path)
        self._written_at = time.monotonic()
        return path


def on() -> bool:
    """Whether marks are wanted: they are not in the run of `nsysalign run --marks` that measures
    without them."""
    return os.environ.get("NSYSALIGN_MARKS", "1") != "0"


def buffer(mib: int = 64, *, device: int | None = None, names: Iterable[str] = ()) -> Buffer:
    """A new buffer of `mib` MiB (1 to 131,072) on a device, by default on the current one.

    64 MiB hold about 3.8 million marks.  Marks that do not fit are counted but not written.
    `names`: names of marks whose source is not in a file of this program (most are found there).
    Raises UsageError for another size or for names that cannot be told apart, NoDevice without a
    GPU.
    """
    if isinstance(mib, bool) or not isinstance(mib, int) or not 1 <= mib <= _LARGEST_MIB:
        raise UsageError(
            f"a buffer has 1 to {_LARGEST_MIB:,} MiB, not {mib!r}",
            "nsysalign.marks.buffer(mib=64)",
        )
    if not _made:
        atexit.register(_at_exit)
    return Buffer(mib, device, names)


def collect(folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Write the current contents of the buffers, one file each, into a folder: by default that of
    `nsysalign run`.  Waits for the device; call it outside measured intervals.  Returns the files,
    [] if there is no such folder.
    """
    folder = os.fspath(folder) if folder is not None else os.environ.get("NSYSALIGN_DIR")
    if not folder:
        return []
    return [b.write(_path(folder, b)) for b in list(_made)]


def _path(folder: str, made: Buffer) -> Path:
    return Path(folder) / f"marks-{os.getpid()}-{made.number}.nsam"


def between_intervals() -> None:
    """Called by the probe when nothing is being measured or captured: saves the marks so far, in
    case the process is killed."""
    folder = os.environ.get("NSYSALIGN_DIR")
    now = time.monotonic()
    for made in list(_made):
        # a slow copy is made less often: it takes less than a tenth of the time
        if folder and now - made._written_at >= _SNAPSHOT_S:
            try:
                made.write(_path(folder, made), wait_s=0)
                made._written_at += 10 * (time.monotonic() - now)
            except (NsysAlignError, OSError) as error:
                made._written_at = float("inf")
                _say(error)


def _at_exit() -> None:
    try:
        collect()
    except (NsysAlignError, OSError) as error:
        _say(error)


def _after_fork() -> None:
    """CUDA does not work in a forked child, and the buffers belong to its parent."""
    _made.clear()


def _say(error: Exception) -> None:
    print(f"nsysalign: marks could not be written: {error}", file=sys.stderr)


os.register_at_fork(after_in_child=_after_fork)
