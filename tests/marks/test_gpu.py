"""On a GPU: what only it can show.  scripts/marks has the measurements."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nsysalign.marks as marks
from nsysalign.marks import dump
from nsysalign.marks.layout import name_hash

pytestmark = pytest.mark.gpu
SCRIPTS = Path(__file__).parents[2] / "scripts" / "marks"
HEAD = "#include <nsysalign/marks.cuh>\n"


@pytest.fixture(scope="module")
def cupy():
    cupy = pytest.importorskip("cupy")
    try:
        if not cupy.cuda.runtime.getDeviceCount():
            pytest.skip("no GPU")
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no GPU")
    return cupy


def compiled(cupy, code: str, name: str):
    return cupy.RawModule(code=HEAD + code, options=tuple(marks.flags())).get_function(name)


MANY = """extern "C" __global__ void many(int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  for (int i = 0; i < n; i++) { if (threadIdx.x % 32 < i % 33) NSYSALIGN_MARK(w, "some"); NSYSALIGN_COUNT(w, "all"); }
}"""


def test_lanes_marked_and_counted_are_those_that_passed(cupy, tmp_path):
    buffer = marks.buffer(mib=64)
    compiled(cupy, MANY, "many")((40,), (96,), (np.int32(66), np.uint64(buffer.address)))
    found = dump.read(buffer.write(tmp_path / "m.nsam"))
    passed = 40 * 3 * sum(i % 33 for i in range(66))
    lanes = np.array([int(x).bit_count() for x in found.warps["lanes"]])[
        found.of[found.id >> 2 == name_hash("some")]
    ]
    assert not found.dropped and lanes.sum() == passed
    assert found.counters["lanes"].sum() == 40 * 96 * 66


def test_a_null_pointer_writes_nothing_and_a_buffer_of_another_version_neither(cupy, tmp_path):
    kernel = compiled(cupy, MANY, "many")
    buffer = marks.buffer(mib=1)
    kernel((4,), (32,), (np.int32(5), np.uint64(0)))
    assert dump.read(buffer.write(tmp_path / "m.nsam")).written == 0
    cupy.asarray(buffer)[4] = 9
    kernel((4,), (32,), (np.int32(5), np.uint64(buffer.address)))
    found = dump.read(buffer.write(tmp_path / "m.nsam"))
    assert found.written == 0 and found.refused in (1, 9)


def test_replays_of_a_graph_are_launches_of_their_own(cupy, tmp_path):
    buffer = marks.buffer(mib=4)
    kernel = compiled(cupy, MANY, "many")
    stream = cupy.cuda.Stream(non_blocking=True)
    kernel((2,), (32,), (np.int32(3), np.uint64(buffer.address)))
    with stream:
        stream.begin_capture()
        kernel((2,), (32,), (np.int32(3), np.uint64(buffer.address)))
        graph = stream.end_capture()
        for _ in range(4):
            graph.launch()
    stream.synchronize()
    from nsysalign import frames
    from nsysalign.align.marked import join

    marked = join(dump.read(buffer.write(tmp_path / "m.nsam")), frames.empty(frames.LAUNCHES))
    assert marked.launches["replay"].tolist() == [0, 0, 1, 2, 3]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("parts", [["paths", "together", "chase", "spins", "version", "join", "graph"]])
def test_the_checks_of_the_scripts(tmp_path, parts):
    program = tmp_path / "checks"
    flags = ["-arch=native", "-O3", "-DNSYSALIGN_MARKS", "-I", marks.include()]
    subprocess.run(["nvcc", *flags, str(SCRIPTS / "checks.cu"), "-o", str(program)], check=True, timeout=300)
    said = subprocess.run(
        [str(program), str(tmp_path), *parts], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    judged = subprocess.run(
        [sys.executable, str(SCRIPTS / "judge.py"), str(tmp_path)],
        input=said,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert '"exact": false' not in judged, judged


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_dependent_launches_clusters_and_every_gpu(tmp_path):
    program = tmp_path / "launches"
    flags = ["-arch=native", "-O3", "-DNSYSALIGN_MARKS", "-I", marks.include()]
    subprocess.run(
        ["nvcc", *flags, str(SCRIPTS / "launches.cu"), "-o", str(program)], check=True, timeout=300
    )
    said = subprocess.run(
        [str(program), str(tmp_path)], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    judged = subprocess.run(
        [sys.executable, str(SCRIPTS / "judge_launches.py"), str(tmp_path)],
        input=said, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    for line in map(json.loads, judged.splitlines()):
        assert (line["found"], line["complete"]) == (line["expected"],) * 2 and line["dropped"] == 0
        assert line["warps"] == line["warps_expected"]
