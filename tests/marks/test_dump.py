"""Dump files may be anybody's: every damage is a message, nothing is believed that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nsysalign.addons.marks import dump, layout, names
from nsysalign.addons.marks.dump import MarksError, read, warnings
from nsysalign.addons.marks.layout import name_hash
from nsysalign.errors import UsageError
from tests.marks.simulated import Gpu, file


@pytest.fixture
def content() -> bytes:
    gpu = Gpu()
    gpu.launch(1, 3, lambda b, w: [("load", 500)])
    return gpu.content()


def parsed(content: bytes, tmp_path) -> dump.Dump:
    path = tmp_path / "x.nsam"
    path.write_bytes(content)
    return read(path)


def test_what_was_written_is_read(content, tmp_path):
    found = parsed(content, tmp_path)
    assert found.written == 3 * 2 * 3  # begin, end and exit of six warps
    assert (found.pid, found.device, found.sms, found.finished, found.refused) == (
        77,
        0,
        4,
        True,
        0,
    )
    assert found.names == {name_hash("load"): "load"}
    assert not warnings([found])


def test_every_cut_is_a_message(content, tmp_path):
    for length in {0, 1, 15, 16, 20, 24, 100, 3_000, len(content) - 1, len(content) - 64}:
        with pytest.raises(MarksError):
            parsed(content[:length], tmp_path)
    with pytest.raises(MarksError, match="bytes and has"):
        parsed(content + b"x", tmp_path)


def test_another_version_names_both(content, tmp_path):
    with pytest.raises(MarksError, match="version 2, this nsysalign reads 1"):
        parsed(content[:16] + (2).to_bytes(4, "little") + content[20:], tmp_path)


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_never_raise_anything_else(content, tmp_path, seed):
    random = np.random.default_rng(seed)
    broken = bytearray(content)
    for at in random.integers(0, len(broken), 30):
        broken[at] = int(random.integers(0, 256))
    for at in random.integers(16, 400, 4):
        broken[at] = int(random.integers(0, 256))
    try:
        found = parsed(bytes(broken), tmp_path)
    except MarksError:
        return
    from nsysalign import frames
    from nsysalign.addons.marks.inside import mark_tables

    gpu = Gpu()
    gpu.launch(1, 3, lambda b, w: [("load", 500)])
    tables = mark_tables([found], gpu.table(), frames.empty(frames.INTERVALS)).tables
    kernels = tables["marked_kernels"].set_index("kernel")
    sums = tables["sm_time"].groupby("kernel")["ns"].sum()
    whole = kernels["sms"] * (kernels["end_ns"] - kernels["start_ns"])
    assert (sums == whole[sums.index]).all()
    assert (tables["sm_time"]["ns"] > 0).all()


def test_impossible_records_are_counted_and_left_out(tmp_path):
    gpu = Gpu()
    gpu.launch(1, 4, lambda b, w: [("load", 500)], warps=1)
    gpu.chunks[0]["head"]["threads"] = 5_000
    gpu.chunks[1]["marks"][1]["time"] = 1 << 63
    found = parsed(gpu.content(), tmp_path)
    assert found.damaged == 2
    assert "2 impossible records were left out" in warnings([found])[0]


def test_counters_behind_marks_are_summed_for_each_launch_and_sm_with_those_of_the_table(tmp_path):
    gpu = Gpu(sms=2)
    gpu.launch(1, 4, lambda b, w: [("load", 500)], warps=1)
    number = name_hash("path") << 2
    for chunk in gpu.chunks:
        chunk["marks"][3] = (7, 0, number | layout.EXIT)  # sum, executions by warps, whose counter
        chunk["marks"][5] = (5, 2, number + 4 | layout.EXIT)
    gpu.chunks[0]["marks"][6] = (1 << 40, 1, number | layout.EXIT)  # more than a warp can count
    fixed = bytearray(layout.TABLE)
    fixed[: layout.LINE] = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, 0, 8_000, 400, 1024)
    slot = np.zeros((), dump.SLOT)
    slot["tag"], slot["grid"], slot["sm"], slot["id"], slot["warps"], slot["lanes"] = (
        9,
        1,
        0,
        number,
        3,
        90,
    )
    about = {"pid": 5, "device": 0, "sms": 2, "names": ["path"]}
    found = parsed(
        file(fixed, [slot], np.array(gpu.chunks, dump._CHUNK), np.empty(0, dump.HEAD), about),
        tmp_path,
    )
    assert (found.written, found.damaged) == (4 * 3, 1)
    rows = {
        (int(r["sm"]), int(r["id"])): (int(r["warps"]), int(r["lanes"])) for r in found.counters
    }
    on_first = sum(int(c["head"]["sm"]) == 0 for c in gpu.chunks)
    assert rows == {
        (0, number): (3 + on_first, 90 + 7 * on_first), (1, number): (4 - on_first, 7 * (4 - on_first)),
        (0, number + 4): (2 * on_first, 5 * on_first), (1, number + 4): (2 * (4 - on_first), 5 * (4 - on_first)),
    }  # fmt: skip


@pytest.mark.parametrize("version", layout.READS)
def test_dumps_of_earlier_versions_are_read(content, tmp_path, version):
    head = layout.HEADER.pack(layout.MAGIC, version, 0, 0, 8_000, 400, 1024)
    now = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, 0, 8_000, 400, 1024)
    kind = (layout.HEAD | layout.VERSION).to_bytes(4, "little")
    old = content.replace(now, head).replace(kind, (layout.HEAD | version).to_bytes(4, "little"))
    found = parsed(old, tmp_path)
    assert (found.written, found.refused, found.damaged) == (18, 0, 0)


def test_a_refused_header_and_running_kernels_are_said(tmp_path):
    gpu = Gpu()
    gpu.launch(1, 1, lambda b, w: [])
    fixed = bytearray(layout.TABLE)
    fixed[: layout.LINE] = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 3, 0, 8_000, 400, 1024)
    about = {"pid": 5, "device": 0, "sms": 4, "names": [], "finished": False}
    found = parsed(
        file(fixed, [], np.array(gpu.chunks, dump._CHUNK), np.empty(0, dump.HEAD), about), tmp_path
    )
    said = " ".join(warnings([found]))
    assert f"compiled with version 3 of marks.cuh, this package has {layout.VERSION}" in said
    assert "still running when it was copied" in said


@pytest.mark.parametrize(
    "about",
    [
        {}, {"pid": -1, "device": 0, "sms": 4, "names": []}, {"pid": 1, "device": 0, "sms": 0, "names": []}, [],
        {"pid": "x", "device": 0, "sms": 4, "names": []}, {"pid": 1e400, "device": 0, "sms": 4, "names": []},
        {"pid": 1, "device": 0, "sms": 4, "names": 7},
    ],
)  # fmt: skip
def test_json_that_cannot_be_is_a_message(about, tmp_path):
    fixed = bytearray(layout.TABLE)
    fixed[: layout.LINE] = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, 0, 8_000, 400, 1024)
    with pytest.raises(MarksError):
        parsed(file(fixed, [], np.empty(0, dump._CHUNK), np.empty(0, dump.HEAD), about), tmp_path)


def test_names_that_share_a_hash_are_refused(monkeypatch):
    monkeypatch.setattr(names, "name_hash", lambda name: len(name))
    with pytest.raises(UsageError, match="'left' and 'load' cannot be told apart"):
        names.by_hash(["load", "left", "mma"])


def test_names_are_found_in_sources():
    text = """
      NSYSALIGN_RANGE(w, "load") { }  NSYSALIGN_MARK( warp, "landed" ); NSYSALIGN_MARK_AFTER(w, "after it", v);
      NSYSALIGN_COUNT(w, "slow path"); NSYSALIGN_LATENCY(w, "gather", clock() - t); printf("no mark");
      NSYSALIGN_MARK(w, "with \\"quotes\\"");
    """
    assert names.found_in(text) == {"load", "landed", "after it", "slow path", "gather"}
    python = 'from nsysalign.addons.marks import triton as nm\nw = nm.begin(m, w, "t1")\nnm.end(m, w, "t1"); nm.mark(m, w, \'t2\')'
    assert names.found_in(python) == {"t1", "t2"}


def test_the_scripts_own_names_are_known_when_it_ends(tmp_path):
    """Buffers are written by a function of atexit; Python has taken __main__.__file__ away by
    then."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "kernel.cu").write_text('NSYSALIGN_RANGE(w, "load") {}')
    script = tmp_path / "own" / "script.py"
    script.write_text(
        "import atexit\nfrom nsysalign.addons.marks import names\n"
        'atexit.register(lambda: print(sorted(names.of_program()) == ["load", "step"]))\n'
        'def kernel(nm, m, w): nm.mark(m, w, "step")  # nsysalign.addons.marks.triton\n'
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    told = subprocess.run(
        [sys.executable, "own/script.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "True\n"


def test_the_hash_is_that_of_the_header():
    assert name_hash("") == 1 or name_hash("") > 0
    assert all(0 < name_hash(str(i)) < layout.TRIGGER for i in range(20_000))
    # FNV-1a of "load" folded to 30 bits, by hand
    h = 2166136261
    for byte in b"load":
        h = ((h ^ byte) * 16777619) % 2**32
    assert name_hash("load") == (h >> 30) ^ (h % 2**30)
