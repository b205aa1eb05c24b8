"""Buffers without a GPU, and the files made of them: what would be the device's memory is a
bytearray.  A file may be anybody's: every damage is a message, nothing impossible is believed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nsysalign.addons.marks as marks
from nsysalign import frames
from nsysalign.addons.marks import buffers, dump, layout
from nsysalign.addons.marks.dump import MarksError
from nsysalign.addons.marks.inside import join
from nsysalign.addons.marks.layout import name_hash
from nsysalign.addons.marks.results import mark_tables
from nsysalign.errors import UsageError
from tests.marks.simulated import Gpu, file, header

BASE = 0x7F0000000000
X = name_hash("x") << 2


class Memory:
    """A device of 4 SMs.  `busy`: kernels never end."""

    busy, sms = False, 4

    def __init__(self, ordinal: int | None) -> None:
        self.ordinal, self.bytes = ordinal or 0, bytearray()

    def allocate(self, size: int, begins: bytes) -> int:
        self.bytes = bytearray(size)
        self.bytes[: len(begins)] = begins
        return BASE

    def wait(self, seconds: float) -> bool:
        return not self.busy

    def read(self, address: int, size: int) -> bytearray:
        start = address - BASE
        assert start >= 0 and start + size <= len(self.bytes)
        return self.bytes[start : start + size]


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(buffers, "Device", Memory)
    monkeypatch.setattr(buffers, "_made", [])
    monkeypatch.setattr(buffers.atexit, "register", lambda function: None)
    monkeypatch.delenv("NSYSALIGN_MARKS", raising=False)
    monkeypatch.delenv("NSYSALIGN_DIR", raising=False)


def kernel(buffer, warps: int, each: int, region: int = 0, strays: int = 0) -> int:
    """Do what marks.cuh does: claim, write, drop.  Returns how many marks were executed."""
    memory = buffer._device.bytes
    magic, version, _, _, lines, first, _ = layout.HEADER.unpack(memory[: layout.LINE])
    assert (magic, version) == (layout.MAGIC, layout.VERSION)

    def add(place: int, number: int) -> int:
        before = int.from_bytes(memory[place : place + 8], "little")
        memory[place : place + 8] = (before + number).to_bytes(8, "little")
        return before

    def claim(stray: bool) -> int | None:
        for of in range(region, region + layout.REGIONS):
            start = first + lines * (of % layout.REGIONS)
            before = add(layout.LINE * (1 + of % layout.REGIONS), 1 << 32 if stray else 1)
            chunks, others = before & 0xFFFFFFFF, before >> 32
            if chunks * layout.LINES + others + (1 if stray else layout.LINES) <= lines:
                line = start + lines - others - 1 if stray else start + chunks * layout.LINES
                return line * layout.LINE
        return None

    def head(place: int, kind: int, number: int, warp: int, previous: int) -> None:
        one = np.zeros((), dump.HEAD)
        one["kind"], one["id"], one["grid"], one["x"], one["lanes"] = kind, number, 9, warp, 0xFFFF
        one["time"], one["threads"], one["previous"] = 1_000, 32, previous
        memory[place : place + layout.LINE] = one.tobytes()

    for warp in range(warps):
        chunk: int | None = 0
        for i in range(each):
            if i % 60 == 0 and chunk is not None and (chunk := claim(False)) is not None:
                head(chunk, layout.HEAD | 1, 0, warp, int(i > 0))
            if chunk is None:
                add(layout.LINE * (1 + region) + 8, 1)
            else:
                place = chunk + layout.LINE + 16 * (i % 60)
                memory[place : place + 16] = np.array((2_000 + i, i, X), dump.MARK).tobytes()
        for _ in range(strays):
            if (place := claim(True)) is not None:
                head(place, layout.STRAY | 1, X, warp, 0)
            else:
                add(layout.LINE * (1 + region) + 8, 1)
    return warps * (each + strays)


@pytest.mark.parametrize(
    ("warps", "each", "strays"), [(1, 1, 0), (3, 59, 2), (1_200, 61, 5)], ids=str
)
def test_written_and_dropped_are_what_was_executed(memory, tmp_path, warps, each, strays):
    buffer = marks.buffer(mib=1)
    executed = kernel(buffer, warps, each, region=3, strays=strays)
    found = dump.read(buffer.write(tmp_path / "b.nsam"))
    assert (found.written + found.dropped, found.damaged) == (executed, 0)
    assert (found.dropped > 0) == (warps > 1_000)


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


def test_a_buffer_that_cannot_be_is_refused(memory, monkeypatch):
    for bad in (0, -3, 1.5, True, "64", 1 << 30):
        with pytest.raises(UsageError, match="1 to 131,072 MiB"):
            marks.buffer(mib=bad)
    with pytest.raises(UsageError, match="'p223588' and 'p53601' cannot be told apart"):
        marks.buffer(mib=1, names=["p53601", "p223588"])
    monkeypatch.setenv("NSYSALIGN_MARKS", "0")
    with pytest.raises(UsageError, match="off"):
        marks.buffer(mib=1).snapshot()


@pytest.mark.parametrize("mib", [1, 2, 3, 64, 1_000, 131_072])
def test_a_buffer_holds_what_is_laid_out_in_it(mib):
    size, lines, first, slots = layout.sizes(mib)
    assert lines % layout.LINES == 0 and lines > 0 and slots & (slots - 1) == 0
    assert first * layout.LINE >= layout.TABLE + slots * (layout.LINE + layout.TAG)
    assert (first + lines * layout.REGIONS) * layout.LINE <= size
    assert first * layout.LINE % layout.CHUNK == 0


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.delenv("NSYSALIGN_MARKS", raising=False)

    def absent(name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(buffers.ctypes, "CDLL", absent)
    with pytest.raises(buffers.NoDevice, match="no CUDA driver"):
        marks.buffer(mib=1)


def simulated(**options) -> Gpu:
    gpu = Gpu(**options)
    gpu.launch(1, 3, lambda b, w: [("load", 500)])
    return gpu


def read(content: bytes, tmp_path) -> dump.Dump:
    path = tmp_path / "x.nsam"
    path.write_bytes(content)
    return dump.read(path)


def test_every_cut_and_another_version_is_a_message(tmp_path):
    content = simulated().content()
    for length in {0, 1, 15, 16, 20, 24, 100, 3_000, len(content) - 1, len(content) - 64}:
        with pytest.raises(MarksError):
            read(content[:length], tmp_path)
    with pytest.raises(MarksError, match="bytes and has"):
        read(content + b"x", tmp_path)
    with pytest.raises(MarksError, match="version 2, this nsysalign reads 1"):
        read(content[:16] + (2).to_bytes(4, "little") + content[20:], tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes_never_raise_anything_else(tmp_path, seed):
    random, gpu = np.random.default_rng(seed), simulated()
    broken = bytearray(gpu.content())
    places = [*random.integers(0, len(broken), 30), *random.integers(16, 400, 4)]
    for place in places[: 34 if seed % 2 else 30]:
        broken[place] = int(random.integers(0, 256))
    try:
        found = read(bytes(broken), tmp_path)
    except MarksError:
        return
    rows = gpu.table()
    tables, _ = mark_tables([join(found, rows)], rows, frames.empty(frames.INTERVALS))
    kernels = tables["marked_kernels"].set_index("kernel")
    sums = tables["sm_time"].groupby("kernel")["ns"].sum()
    whole = kernels["sms"] * (kernels["end_ns"] - kernels["start_ns"])
    assert (sums == whole[sums.index]).all() and (tables["sm_time"]["ns"] > 0).all()


def test_impossible_records_are_counted_and_left_out(tmp_path):
    gpu = simulated()
    gpu.chunks[0]["head"]["threads"] = 5_000
    gpu.chunks[1]["marks"][1]["time"] = 1 << 63
    found = read(gpu.content(), tmp_path)
    assert found.damaged == 2 and "2 impossible records were left out" in found.notes()[0]


def test_counters_behind_marks_are_summed_for_each_launch_and_sm_with_those_of_the_table(tmp_path):
    gpu = simulated(sms=2)
    number = name_hash("path") << 2
    for chunk in gpu.chunks:
        chunk["marks"][3] = (7, 0, number | layout.EXIT)  # sum, executions by warps, whose counter
        chunk["marks"][5] = (5, 2, number + 4 | layout.EXIT)
    gpu.chunks[0]["marks"][6] = (1 << 40, 1, number | layout.EXIT)  # more than a warp can count
    slot = np.zeros((), dump.SLOT)
    slot["tag"], slot["grid"], slot["id"], slot["warps"], slot["lanes"] = 9, 1, number, 3, 90
    older = slot.copy()  # a bin of a histogram
    older["part"] = 3
    found = read(file(header(), [slot, older], gpu.chunks, [], {"names": ["path"]}), tmp_path)
    assert (found.written, found.damaged) == (6 * 3, 1)
    columns = found.counters[["sm", "id", "warps", "lanes"]].tolist()
    on = sum(int(c["head"]["sm"]) == 0 for c in gpu.chunks)
    assert columns == [
        (0, number, 3 + on, 90 + 7 * on), (0, number + 4, 2 * on, 5 * on),
        (1, number, 6 - on, 7 * (6 - on)), (1, number + 4, 2 * (6 - on), 5 * (6 - on)),
    ]  # fmt: skip


def test_a_refused_header_and_running_kernels_are_said(tmp_path):
    about = {"names": [], "finished": False}
    said = " ".join(read(file(header(refused=3), [], [], [], about), tmp_path).notes())
    assert f"compiled with version 3 of marks.cuh, this package has {layout.VERSION}" in said
    assert "still running when it was copied" in said


@pytest.mark.parametrize(
    "about", [{}, {"pid": -1}, {"sms": 0}, [], {"pid": "x"}, {"pid": 1e400}, {"names": 7}], ids=str
)
def test_json_that_cannot_be_is_a_message(about, tmp_path):
    with pytest.raises(MarksError):
        read(file(header(), [], [], [], {"names": None} | about if about else about), tmp_path)


def test_names_are_found_in_sources():
    text = """
      NSYSALIGN_RANGE(w, "load") { }  NSYSALIGN_MARK( warp, "landed" ); NSYSALIGN_MARK_AFTER(w, "after it", v);
      NSYSALIGN_COUNT(w, "slow path"); printf("no mark");
      NSYSALIGN_MARK(w, "with \\"quotes\\"");
    """
    assert layout.names_in(text) == {"load", "landed", "after it", "slow path"}
    python = 'from nsysalign.marks import triton as nm\nw = nm.begin(m, w, "t1")\nnm.end(m, w, "t1"); nm.mark(m, w, \'t2\')'
    assert layout.names_in(python) == {"t1", "t2"}


def test_the_scripts_own_names_are_known_when_it_ends(tmp_path):
    """Buffers are written by a function of atexit; Python has taken __main__.__file__ away by
    then."""
    (tmp_path / "own" / "below").mkdir(parents=True)
    (tmp_path / "own" / "kernel.cu").write_text('NSYSALIGN_RANGE(w, "load") {}')
    (tmp_path / "own" / "below" / "module.py").write_text("")
    (tmp_path / "own" / "below" / "more.cuh").write_text('NSYSALIGN_COUNT(w, "path");')
    (tmp_path / "own" / "script.py").write_text(
        "import atexit, below.module\nfrom nsysalign.addons.marks import layout\n"
        "atexit.register(lambda: print(sorted(layout.names_of_program())))\n"
        'def kernel(nm, m, w): nm.mark(m, w, "step")  # nsysalign.marks.triton\n'
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "own/script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout == "['load', 'path', 'step']\n", done.stderr
