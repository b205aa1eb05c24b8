"""marks.cuh as it is compiled, run lane by lane on a GPU of Python (ptx.py): what is written is
what was executed, however a warp's lanes part and meet.

The PTX is kept in tests/data/marks, so that no compiler is needed; `python -m tests.marks.test_ptx`
compiles it anew.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import nsysalign.addons.marks as marks
from nsysalign.addons.marks import dump, layout
from nsysalign.addons.marks.layout import name_hash
from tests.marks.ptx import Machine
from tests.marks.test_buffers import BASE, memory  # noqa: F401

DATA = Path(__file__).parents[1] / "data" / "marks"
KERNEL = """
#include <nsysalign/marks.cuh>
extern "C" __global__ void parts(int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < n; i++) {
    NSYSALIGN_RANGE(w, "turn") {
      if (lane < i % 33) { NSYSALIGN_MARK(w, "some"); } else NSYSALIGN_MARK(w, "others");
    }
    NSYSALIGN_COUNT(w, "turns");
    if (lane == i % 40) NSYSALIGN_COUNT_WARPS(w, "one");
    NSYSALIGN_LATENCY(w, "took", lane * 100);
    NSYSALIGN_MARK_AFTER(w, "after", lane);
    if (threadIdx.x % 5 == 4 && i == n / 2) return;
  }
  NSYSALIGN_MARK(w, "done");
}
extern "C" __global__ void together(int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  for (int i = 0; i < n; i++) NSYSALIGN_MARK(w, "step");
}
extern "C" __global__ void counts(int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  for (int i = 0; i < n; i++) {
    NSYSALIGN_COUNT(w, "a");
    if (threadIdx.x & 1) NSYSALIGN_COUNT(w, "b");
    NSYSALIGN_COUNT(w, "c");
    if (i & 1) NSYSALIGN_COUNT(w, "d");
    if (threadIdx.x == 2) NSYSALIGN_COUNT(w, "e");
    if (threadIdx.x & 1) NSYSALIGN_COUNT_WARPS(w, "f");
  }
}
"""


def source_hash() -> str:
    """Of the header without its comments, and of the kernels here."""
    text = Path(marks.include(), "nsysalign", "marks.cuh").read_text()
    return hashlib.sha256((re.sub(r"//.*", "", text) + KERNEL).encode()).hexdigest()[:16]


def compiled() -> str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "k.cu").write_text(KERNEL)
        flags = ["-arch=sm_90", "-O3", "-DNSYSALIGN_MARKS", "-I", marks.include()]
        subprocess.run(
            ["nvcc", *flags, "-ptx", "k.cu", "-o", "k.ptx"], cwd=folder, check=True, timeout=200
        )
        return Path(folder, "k.ptx").read_text()


def kept() -> str:
    return gzip.decompress((DATA / "marks.ptx.gz").read_bytes()).decode()


def launched(
    tmp_path,
    kernel,
    turns,
    blocks=1,
    threads=32,
    *,
    lines=None,
    order="behind",
    seed=0,
    version=None,
    pointer=None,
    chunks_left=None,
    text=None,
):
    """(what the dump says, the buffer's bytes)."""
    buffer = marks.buffer(mib=1)
    content = buffer._device.bytes
    if lines is not None:  # of each region: less room
        content[16:20] = lines.to_bytes(4, "little")
        buffer._lines = lines
    if chunks_left is not None:  # the other regions are full
        for region in range(chunks_left, layout.REGIONS):
            content[layout.LINE * (1 + region)] = lines // layout.LINES
    if version is not None:
        content[4:8] = version.to_bytes(4, "little")
    machine = Machine(kept() if text is None else text, BASE, content, seed, order)
    machine.launch(kernel, [turns, buffer.address if pointer is None else pointer], blocks, threads)
    path = buffer.write(tmp_path / "m.nsam")
    buffer.address = 0
    return dump.read(path), content


def lanes_of(found: dump.Dump, name: str, kind: int = 0) -> int:
    """Executions of a mark by threads."""
    mine = found.id == (name_hash(name) << 2 | kind)
    return sum(int(x).bit_count() for x in found.warps["lanes"][found.of[mine]])


def executed(turns: int, threads: int) -> dict[str, int]:
    """What the threads of a block do, counted one by one."""
    out = dict.fromkeys(("turn", "some", "others", "turns", "one", "took", "after", "done"), 0)
    for thread in range(threads):
        lane = thread % 32
        for i in range(turns):
            for name in ("turn", "turns", "took", "after", "some" if lane < i % 33 else "others"):
                out[name] += 1
            out["one"] += lane == i % 40
            if thread % 5 == 4 and i == turns // 2:
                break
        else:
            out["done"] += 1
    return out


def check(found: dump.Dump, turns: int, blocks: int, threads: int) -> None:
    true = {name: blocks * count for name, count in executed(turns, threads).items()}
    assert found.damaged == 0 and found.dropped == 0
    for name in ("some", "others", "after", "done"):
        assert lanes_of(found, name) == true[name], name
    for kind in (layout.BEGIN, layout.END):
        assert lanes_of(found, "turn", kind) == true["turn"]
    left = found.id == layout.EXIT
    assert sum(int(x).bit_count() for x in found.warps["lanes"][found.of[left]]) == blocks * threads
    whole = found.counters[found.counters["part"] == 0]
    for name in ("turns", "one", "took"):
        assert whole["lanes"][whole["id"] == name_hash(name) << 2].sum() == true[name], name
    bins = found.counters[found.counters["part"] > 0]
    assert bins["lanes"].sum() == true["took"]


def test_the_kept_ptx_is_what_the_header_compiles_to():
    assert kept().startswith(f"// {source_hash()}\n"), (
        "compile it anew: python -m tests.marks.test_ptx"
    )


@pytest.mark.parametrize("order", ["behind", "any", "meeting"])
def test_whatever_lanes_do_is_written_once(memory, tmp_path, order):  # noqa: F811
    """A whole warp, one of 8 lanes; they part at ifs, leave early, and may never be brought
    together again."""
    found, _ = launched(tmp_path, "parts", 4, threads=40, order=order)
    check(found, 4, 1, 40)


def test_a_warp_together_needs_no_strays_and_chunk_follows_chunk(memory, tmp_path):  # noqa: F811
    found, _ = launched(tmp_path, "together", 130, threads=64)
    assert found.written == 2 * 131 and found.dropped == 0 and found.damaged == 0
    heads = found.warps
    assert len(heads) == 2 * 3 and (heads["kind"] == layout.HEAD | layout.VERSION).all()
    assert (heads["previous"] == 0).sum() == 2
    for warp in range(2):
        mine = (heads["x"] == warp // 2) & (heads["warp"] == warp % 2)
        assert np.diff(found.time[mine[found.of]]).min() >= 0 and mine[found.of].sum() == 131


def test_counters_are_records_behind_the_marks_or_in_the_table(memory, tmp_path):  # noqa: F811
    """A warp that ends together writes records; without a chunk it counts in the table; what is
    read is the same."""
    roomy, content = launched(tmp_path, "counts", 3, threads=64)
    tight, full = launched(tmp_path, "counts", 3, threads=64, lines=0)
    slots = layout.HEADER.unpack(bytes(content[: layout.LINE]))[6]
    table = slice(layout.TABLE, layout.TABLE + layout.TAG * slots)
    assert not any(content[table]) and any(full[table])
    for name in ("sm", "id", "warps", "lanes"):
        assert sorted(roomy.counters[name].tolist()) == sorted(tight.counters[name].tolist()), name
    assert (roomy.written, tight.written, tight.dropped, tight.counts_dropped) == (2, 0, 2, 0)


@pytest.mark.parametrize("lines", [0, 1])
def test_what_finds_no_room_is_counted_and_nothing_is_written_outside(memory, tmp_path, lines):  # noqa: F811
    """Regions of no line, or of one, which holds a stray and no chunk: an access beyond the buffer
    ends the test, and what the warps execute is the same as with room."""
    roomy, _ = launched(tmp_path, "parts", 2)
    tight, content = launched(tmp_path, "parts", 2, lines=lines)
    assert (
        tight.written + tight.dropped == roomy.written and tight.dropped > 0 and tight.damaged == 0
    )
    first = layout.HEADER.unpack(bytes(content[: layout.LINE]))[5]
    assert not any(content[(first + layout.REGIONS * lines) * layout.LINE :])


def test_a_chunk_that_finds_no_successor_is_the_last(memory, tmp_path):  # noqa: F811
    found, _ = launched(tmp_path, "together", 200, lines=16, chunks_left=2)
    assert (found.written, found.dropped) == (120, 81)


@pytest.mark.parametrize("order", ["behind", "any", "meeting"])
@pytest.mark.parametrize("threads", [1, 2, 3, 40])
def test_every_counter_is_written_where_a_warp_ends(memory, tmp_path, threads, order):  # noqa: F811
    """Six counters in warps of 1, 2, 3 and 8 lanes, and in a whole one."""
    turns = 3
    found, _ = launched(tmp_path, "counts", turns, threads=threads, order=order)
    lanes = {
        name: found.counters["lanes"][found.counters["id"] == name_hash(name) << 2].sum()
        for name in "abcdef"
    }
    odd = threads // 2
    assert lanes == {
        "a": turns * threads, "b": turns * odd, "c": turns * threads, "d": threads, "e": turns * (threads > 2),
        "f": turns * odd,
    }  # fmt: skip
    if order == "behind":  # else a warp's lanes may never come together again
        mine = found.counters["id"] == name_hash("f") << 2
        assert found.counters["warps"][mine].sum() == turns * ((threads > 1) + (threads > 33))
    assert found.counts_dropped == 0


def test_one_chunk_is_claimed_then_four_at_a_time(memory, tmp_path):  # noqa: F811
    found, content = launched(tmp_path, "together", 599)
    claimed = [
        int.from_bytes(content[layout.LINE * (1 + r) :][:4], "little")
        for r in range(layout.REGIONS)
    ]
    assert sum(claimed) == 1 + 4 + 4 + 4
    assert (found.written, found.dropped, found.damaged) == (600, 0, 0)
    assert len(found.warps) == 10 and len(set(found.warps["previous"])) == 10  # 0 and nine chunks
    assert np.diff(found.time).min() >= 0


def test_of_a_run_as_much_is_taken_as_there_is(memory, tmp_path):  # noqa: F811
    """Three chunks in each of two regions: one, and what is left of four that are wanted."""
    found, content = launched(tmp_path, "together", 500, lines=48, chunks_left=2)
    assert (found.written, found.dropped, found.damaged) == (6 * 60, 501 - 6 * 60, 0)
    first = layout.HEADER.unpack(bytes(content[: layout.LINE]))[5]
    assert not any(content[(first + 2 * 48) * layout.LINE :])


def test_nothing_is_written_to_another_version_and_to_no_buffer(memory, tmp_path):  # noqa: F811
    found, _ = launched(tmp_path, "parts", 5, version=layout.VERSION + 1)
    assert found.written == 0 and found.dropped == 0 and not len(found.counters) and found.refused
    found, content = launched(tmp_path, "parts", 5, pointer=0)
    assert found.written == 0 and not any(content[layout.LINE :])


@pytest.fixture
def triton_kernel(monkeypatch) -> str:
    """What Triton makes of a loop with a range and a mark in it: its inline assembly, and little
    else.  Triton itself, which the assembly does not need, is a stand-in."""
    language, stand_in = ModuleType("triton.language"), ModuleType("triton")
    language.constexpr = stand_in.jit = stand_in.constexpr_function = lambda given: given
    stand_in.language = language
    monkeypatch.setitem(sys.modules, "triton", stand_in)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    made = runpy.run_path(str(Path(marks.__file__).with_name("triton.py")))
    inside = "".join(
        made[asm]
        .replace("$0", "%w")
        .replace("$1", "%w")
        .replace("$2", "%buffer")
        .replace("$3", f"%n{kind}")
        for kind, asm in ((1, "_BEGINS"), (0, "_POINT"), (2, "_POINT"))
    )
    number = name_hash("step") << 2
    enter = made["_ENTER"].replace("$0", "%w").replace("$1", "0").replace("$2", "%buffer")
    leave = (
        made["_POINT"]
        .replace("$0", "%w")
        .replace("$1", "%w")
        .replace("$2", "%buffer")
        .replace("$3", "3")
    )
    return f""".visible .entry steps(.param .u32 n, .param .u64 marks) {{
  .reg .pred %p; .reg .u32 %i, %n0, %n1, %n2; .reg .u64 %w, %buffer;
  ld.param.u32 %i, [n]; ld.param.u64 %buffer, [marks];
  mov.u32 %n0, {number}; mov.u32 %n1, {number | layout.BEGIN}; mov.u32 %n2, {number | layout.END};
  {enter}
  LOOP: {inside}
  sub.u32 %i, %i, 1; setp.ne.u32 %p, %i, 0; @%p bra LOOP;
  {leave}
  ret; }}"""


@pytest.mark.parametrize(
    ("lines", "left", "written"), [(None, None, 2 * 151), (32, 2, 4 * 60), (0, None, 0)]
)
def test_a_triton_program_marks_with_its_first_warp(
    memory,  # noqa: F811
    tmp_path,
    triton_kernel,
    lines,
    left,
    written,
):
    """Two programs of three warps; with room, with two chunks in each of two regions, and with
    none."""
    found, content = launched(
        tmp_path,
        "steps",
        50,
        blocks=2,
        threads=96,
        lines=lines,
        chunks_left=left,
        text=triton_kernel,
    )
    assert (found.written, found.dropped, found.damaged) == (written, 2 * 151 - written, 0)
    if lines is None:
        marks_of = {k: int((found.id == (name_hash("step") << 2 | k)).sum()) for k in range(3)}
        assert marks_of == {layout.AT: 100, layout.BEGIN: 100, layout.END: 100}
        assert (found.warps["previous"] == 0).sum() == 2 and len(found.warps) == 2 * 3
        for block in range(2):
            assert np.diff(found.time[(found.warps["x"] == block)[found.of]]).min() >= 0
    else:
        first = layout.HEADER.unpack(bytes(content[: layout.LINE]))[5]
        assert not any(content[(first + (left or 0) * lines) * layout.LINE :])


def test_a_triton_program_marks_only_in_a_buffer_of_its_version(memory, tmp_path, triton_kernel):  # noqa: F811
    found, content = launched(tmp_path, "steps", 3, pointer=0, text=triton_kernel)
    assert found.written == 0 and not any(content[layout.LINE :])
    found, _ = launched(tmp_path, "steps", 3, version=layout.VERSION + 1, text=triton_kernel)
    assert found.written == 0 and found.dropped == 0 and found.refused == layout.VERSION


def main() -> None:
    DATA.mkdir(exist_ok=True)
    text = f"// {source_hash()}\n{compiled()}"
    (DATA / "marks.ptx.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
