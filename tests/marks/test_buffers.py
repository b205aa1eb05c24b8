"""Buffers without a GPU: what would be the device's memory is a bytearray."""

from __future__ import annotations

import numpy as np
import pytest

import nsysalign.addons.marks as marks
from nsysalign.addons.marks import buffers, dump, layout
from nsysalign.addons.marks.layout import name_hash
from nsysalign.errors import UsageError

BASE = 0x7F0000000000


class Memory:
    """A device of 4 SMs.  `busy`: kernels never end."""

    busy = False

    def __init__(self, ordinal: int) -> None:
        self.ordinal, self.bytes = ordinal, bytearray()

    def multiprocessors(self) -> int:
        return 4

    def allocate(self, size: int, begins: bytes) -> int:
        self.bytes = bytearray(size)
        self.bytes[: len(begins)] = begins
        return BASE

    def wait(self, seconds: float) -> bool:
        return not self.busy

    def stream(self) -> None:
        return None

    def read(self, address: int, size: int, stream: object) -> bytearray:
        at = address - BASE
        assert at >= 0 and at + size <= len(self.bytes)
        return bytearray(self.bytes[at : at + size])


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(buffers, "Device", Memory)
    monkeypatch.setattr(buffers, "current_ordinal", lambda: 0)
    monkeypatch.setattr(buffers, "_made", [])
    monkeypatch.setattr(buffers.atexit, "register", lambda function: None)
    monkeypatch.delenv("NSYSALIGN_MARKS", raising=False)
    monkeypatch.delenv("NSYSALIGN_DIR", raising=False)


def kernel(buffer, warps: int, each: int, region: int = 0, strays: int = 0) -> int:
    """Do what marks.cuh does: claim, write, drop.  Returns how many marks were executed."""
    memory = buffer._device.bytes
    magic, version, _, _, lines, first, _ = layout.HEADER.unpack(bytes(memory[: layout.LINE]))
    assert (magic, version) == (layout.MAGIC, layout.VERSION)

    def given(of: int, add: int) -> tuple[int, int] | None:
        at = layout.LINE * (1 + of)
        before = int.from_bytes(memory[at : at + 8], "little")
        memory[at : at + 8] = (before + add).to_bytes(8, "little")
        chunks, others = before & 0xFFFFFFFF, before >> 32
        need = layout.LINES if add == 1 else 1
        return (chunks, others) if chunks * layout.LINES + others + need <= lines else None

    def claim(add: int) -> int | None:
        for tried in range(layout.REGIONS):
            of = (region + tried) % layout.REGIONS
            if (got := given(of, add)) is not None:
                place = got[0] * layout.LINES if add == 1 else lines - got[1] - 1
                return (first + lines * of + place) * layout.LINE
        return None

    def drop() -> None:
        at = layout.LINE * (1 + region) + 8
        memory[at : at + 8] = (int.from_bytes(memory[at : at + 8], "little") + 1).to_bytes(
            8, "little"
        )

    def head(at: int, kind: int, number: int, warp: int, previous: int) -> None:
        one = np.zeros((), dump.HEAD)
        one["kind"], one["id"], one["grid"], one["x"], one["lanes"] = (
            kind | 1,
            number,
            9,
            warp,
            0xFFFF,
        )
        one["time"], one["threads"], one["previous"] = 1_000, 32, previous
        memory[at : at + layout.LINE] = one.tobytes()

    per = (layout.CHUNK - layout.LINE) // 16
    for warp in range(warps):
        chunk = None
        for i in range(each):
            if i % per == 0 and (i == 0 or chunk is not None):
                chunk = claim(1)
                if chunk is not None:
                    head(chunk, layout.HEAD, 0, warp, 1 if i else 0)
            if chunk is None:
                drop()
            else:
                at = chunk + layout.LINE + 16 * (i % per)
                memory[at : at + 16] = np.array(
                    (2_000 + i, i, name_hash("x") << 2), dump.MARK
                ).tobytes()
        for _ in range(strays):
            at = claim(1 << 32)
            if at is None:
                drop()
            else:
                head(at, layout.STRAY, name_hash("x") << 2, warp, 0)
    return warps * (each + strays)


@pytest.mark.parametrize(
    ("warps", "each", "strays"),
    [(1, 1, 0), (3, 59, 2), (1_200, 61, 5)],
)
def test_written_and_dropped_are_what_was_executed(memory, tmp_path, warps, each, strays):
    buffer = marks.buffer(mib=1)
    executed = kernel(buffer, warps, each, region=3, strays=strays)
    found = dump.read(buffer.write(tmp_path / "b.nsam"))
    assert found.written + found.dropped == executed
    assert found.damaged == 0
    chunks = warps * -(-each // 60)
    assert (found.dropped > 0) == (
        chunks * 16 + strays * warps > 15_000
    )  # lines of a buffer of 1 MiB, about


def test_collect_writes_every_buffer_into_the_runs_folder(memory, tmp_path, monkeypatch):
    assert marks.collect() == []  # no run
    a, b = marks.buffer(mib=1, names=["x"]), marks.buffer(mib=2)
    kernel(a, 3, 5)
    monkeypatch.setenv("NSYSALIGN_DIR", str(tmp_path))
    files = marks.collect()
    assert [f.name.split("-")[2] for f in files] == ["0.nsam", "1.nsam"]
    assert all(f.stat().st_mode & 0o077 == 0 for f in files)
    assert "x" in dump.read(files[0]).names.values() and dump.read(files[1]).written == 0
    assert int(a) == a.__cuda_array_interface__["data"][0] == BASE and b.size == 2 << 20


def test_kernels_that_never_end_are_copied_all_the_same_and_said(memory, tmp_path, monkeypatch):
    buffer = marks.buffer(mib=1)
    kernel(buffer, 2, 3)
    monkeypatch.setattr(Memory, "busy", True)
    found = dump.read(buffer.write(tmp_path / "b.nsam", wait_s=0.01))
    assert found.written == 6 and not found.finished
    assert "still running" in dump.warnings([found])[0]


def test_between_intervals_it_is_kept_now_and_then(memory, tmp_path, monkeypatch):
    monkeypatch.setenv("NSYSALIGN_DIR", str(tmp_path))
    buffer = marks.buffer(mib=1)
    kernel(buffer, 1, 2)
    buffers.between_intervals()
    (file,) = tmp_path.iterdir()
    before = file.stat().st_mtime_ns
    buffers.between_intervals()  # at once again: not yet
    assert file.stat().st_mtime_ns == before
    assert dump.read(file).written == 2


def test_sizes_that_cannot_be_are_refused(memory):
    for bad in (0, -3, 1.5, True, "64", 1 << 30):
        with pytest.raises(UsageError, match="1 to 131,072 MiB"):
            marks.buffer(mib=bad)


@pytest.mark.parametrize("mib", [1, 2, 3, 64, 1_000, 131_072])
def test_a_buffer_holds_what_is_laid_out_in_it(mib):
    size, lines, first, slots = layout.sizes(mib)
    assert lines % layout.LINES == 0 and lines > 0 and slots & (slots - 1) == 0
    assert first * layout.LINE >= layout.TABLE + slots * (layout.LINE + layout.TAG)
    assert (first + lines * layout.REGIONS) * layout.LINE <= size
    assert first * layout.LINE % layout.CHUNK == 0


def test_a_fork_forgets_its_parents_buffers(memory):
    marks.buffer(mib=1)
    buffers._after_fork()
    assert buffers._made == []


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.delenv("NSYSALIGN_MARKS", raising=False)
    from nsysalign.addons.marks import driver

    def absent(name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver.ctypes, "CDLL", absent)
    with pytest.raises(driver.NoDevice, match="no CUDA driver"):
        marks.buffer(mib=1)
