"""Buffers in a GPU's memory that kernels write marks into, and how they are saved to a file: when
the process ends and when `collect()` is called, never by itself in between."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import struct
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nsysalign.addons.marks import layout
from nsysalign.errors import NsysAlignError, UsageError

#: The buffers of this process, in the order of their creation.
_made: list[Buffer] = []
#: How long a copy waits for kernels that are still running.
_PATIENCE_S = 10.0
_LARGEST_MIB = 1 << 17
_SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class NoDevice(NsysAlignError):
    """There is no GPU that this process can use, or the driver refuses."""


class Device:
    """The primary context of a device, by default of the current one: the few calls of libcuda that
    a buffer needs, without importing a framework.  Raises NoDevice."""

    def __init__(self, ordinal: int | None) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoDevice(f"no CUDA driver: {error}", "marks need an NVIDIA GPU") from error
        self._call("cuInit", 0)
        current, sms = ctypes.c_int(), ctypes.c_int()
        if ordinal is None and self._cuda.cuCtxGetDevice(ctypes.byref(current)) == 0:
            ordinal = current.value
        self.ordinal = ordinal or 0
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), self.ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuDeviceGetAttribute", ctypes.byref(sms), _SM_COUNT, device)
        self.sms = sms.value
        self._stream = ctypes.c_void_p()  # one that waits for no other: kernels may be running
        with self._current():
            self._call("cuStreamCreate", ctypes.byref(self._stream), 1)

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(text))
            raise NoDevice(
                f"{name}: {(text.value or b'error').decode()} ({status})",
                "nvidia-smi shows the device and its free memory",
            )

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def allocate(self, size: int, begins: bytes) -> int:
        """The address of zeroed memory that begins with these bytes."""
        address = ctypes.c_uint64()
        with self._current():
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
            self._call("cuMemcpyHtoD_v2", address, begins, ctypes.c_size_t(len(begins)))
            self._call("cuCtxSynchronize")  # a memset may still be on its way
        return address.value

    def wait(self, seconds: float) -> bool:
        """Whether the device became idle within that time: a kernel that never ends must not hold
        up the end of its process."""
        done = threading.Event()

        def synchronize() -> None:
            with contextlib.suppress(NoDevice), self._current():
                self._call("cuCtxSynchronize")
            done.set()

        threading.Thread(target=synchronize, daemon=True).start()
        return done.wait(seconds)

    def read(self, address: int, size: int) -> bytearray:
        """Bytes of the device's memory."""
        into = bytearray(size)
        if size:
            place = (ctypes.c_char * size).from_buffer(into)
            arguments = (place, ctypes.c_uint64(address), ctypes.c_size_t(size), self._stream)
            with self._current():
                self._call("cuMemcpyDtoHAsync_v2", *arguments)
                self._call("cuStreamSynchronize", self._stream)
        return into


class Buffer:
    """Memory for marks.  Pass it to kernels in the form they take: `int(buffer)` or `.address` (the
    pointer), the buffer itself if they support `__cuda_array_interface__` (CuPy, Numba), `.tensor`
    for torch.

    A buffer that is off (`NSYSALIGN_MARKS=0`) has address 0 and no memory: kernels write nothing.
    """

    def __init__(self, mib: int, device: int | None, names: Iterable[str]) -> None:
        self.names = set(names)
        layout.by_hash(self.names)
        self.size, self._lines, self._first, self._slots = layout.sizes(mib)
        self.address, self.device = 0, -1 if device is None else device
        if not on():
            return
        self._device = Device(device)
        self.device = self._device.ordinal
        shape = (self._lines, self._first, self._slots)
        head = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, 0, *shape)
        self.address = self._device.allocate(self.size, head)
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
        """The contents of the buffer, in the format of a dump file (dump.py).  Waits for running
        kernels, at most this long; marks not yet written by then are missing."""
        if not self.address:
            raise UsageError(
                "this buffer is off (NSYSALIGN_MARKS=0): nothing was recorded",
                "unset NSYSALIGN_MARKS",
            )
        about = {
            "pid": os.getpid(), "device": self.device, "sms": self._device.sms, "bytes": self.size,
            "finished": self._device.wait(wait_s),
            "names": sorted(self.names | layout.names_of_program()),
        }  # fmt: skip
        tags, line = layout.TABLE + self._slots * layout.TAG, layout.LINE
        fixed = self._device.read(self.address, tags + self._slots * line)
        slots = [
            fixed[i : i + line] for i in range(tags, len(fixed), line) if any(fixed[i : i + 8])
        ]
        counts, contents = [len(slots), *[0] * 15], []
        for region in range(layout.REGIONS):
            chunks, strays = struct.unpack_from("<II", fixed, line * (1 + region))
            start = self.address + (self._first + self._lines * region) * line
            chunks, strays = min(chunks, self._lines // layout.LINES), min(strays, self._lines)
            if chunks * layout.LINES + strays > self._lines:
                # they have met, and a claim may have found no room: the last head tells where
                while chunks and not self._begins_chunk(start + (chunks - 1) * layout.CHUNK):
                    chunks -= 1
                strays = min(strays, self._lines - chunks * layout.LINES)
            contents.append(self._device.read(start, chunks * layout.CHUNK))
            end = start + (self._lines - strays) * line
            contents.append(self._device.read(end, strays * line))
            counts += [chunks, strays]
        text = json.dumps(about).encode()
        text += b" " * (-(24 + len(text)) % line)
        head = layout.FILE_MAGIC + struct.pack("<II", layout.FILE_VERSION, len(text)) + text
        numbers = struct.pack(f"<{layout.COUNTS}I", *counts)
        return b"".join([head, fixed[: layout.TABLE], numbers, *slots, *contents])

    def _begins_chunk(self, address: int) -> bool:
        kind = int.from_bytes(self._device.read(address, 4), "little")
        return kind & ~0xFF == layout.HEAD

    def write(self, path: str | os.PathLike[str], *, wait_s: float = _PATIENCE_S) -> Path:
        """Write a dump file, whole or not at all."""
        path = Path(path)
        content = self.snapshot(wait_s=wait_s)
        partial = path.with_name(path.name + ".partial")
        partial.unlink(missing_ok=True)
        with open(partial, "xb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(content)
        os.replace(partial, path)
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
    """Write all buffers of this process to a folder, by default that of the run (NSYSALIGN_DIR);
    without either, nowhere.  The same happens when the process ends."""
    to = folder if folder is not None else os.environ.get("NSYSALIGN_DIR")
    if not to:
        return []
    return [b.write(Path(to, f"marks-{os.getpid()}-{b.number}.nsam")) for b in list(_made)]


def _at_exit() -> None:
    try:
        collect()
    except (NsysAlignError, OSError) as error:
        print(f"nsysalign: marks could not be written: {error}", file=sys.stderr)


# CUDA does not work in a forked child, and the buffers belong to its parent
os.register_at_fork(after_in_child=_made.clear)
