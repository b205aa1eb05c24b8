"""On a GPU: what only it can show.  tests/marks/programs has the measurements."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nsysalign.addons.marks as marks
from nsysalign.addons.marks import dump, layout
from nsysalign.addons.marks.layout import name_hash

pytestmark = pytest.mark.gpu
SCRIPTS = Path(__file__).parents[2] / "tests" / "marks" / "programs"
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


def output(*command: object, given: str | None = None) -> str:
    """What a command prints, which must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(source: str, folder: Path) -> Path:
    """A program of tests/marks/programs, compiled for this GPU."""
    program = folder / source.removesuffix(".cu")
    flags = ["-arch=native", "-O3", "-DNSYSALIGN_MARKS", "-I", marks.include()]
    output("nvcc", *flags, SCRIPTS / source, "-o", program)
    return program


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


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
    lanes = np.array([int(x).bit_count() for x in found.heads["lanes"]])[
        found.head_of[found.id >> 2 == name_hash("some")]
    ]
    assert not found.dropped and lanes.sum() == passed
    assert found.counters["lanes"].sum() == 40 * 96 * 66


EVERY_THREAD = (
    HEAD
    + """extern "C" __global__ void steps(int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  for (int i = 0; i < n; i++) { NSYSALIGN_RANGE(w, "step") NSYSALIGN_MARK(w, "here"); NSYSALIGN_COUNT(w, "turns"); }
}"""
)


def as_written(buffer, tmp_path, blocks, warps, turns):
    found = dump.read(buffer.write(tmp_path / "m.nsam"))
    assert (found.written, found.dropped) == (blocks * warps * (3 * turns + 1), 0)
    assert found.counters["lanes"].sum() == blocks * warps * 32 * turns


def test_torch_compiles_it(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not hasattr(torch.cuda, "_compile_kernel"):
        pytest.skip("this torch compiles no kernels here")
    buffer = marks.buffer(mib=4)
    kernel = torch.cuda._compile_kernel(EVERY_THREAD, "steps", nvcc_options=marks.flags())
    kernel(grid=(7, 1, 1), block=(64, 1, 1), args=[5, buffer.tensor])
    torch.cuda.synchronize()
    as_written(buffer, tmp_path, 7, 2, 5)


ENDLESS = """
import os, signal, sys, time
import cupy, numpy as np
import nsysalign.addons.marks as marks
buffer = marks.buffer(mib=1)
source = '''#include <nsysalign/marks.cuh>
extern "C" __global__ void endless(const volatile int* stop, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  NSYSALIGN_MARK(w, "begun");
  while (!*stop) {}
  NSYSALIGN_MARK(w, "ended");
}'''
kernel = cupy.RawModule(code=source, options=tuple(marks.flags())).get_function("endless")
page = cupy.cuda.alloc_pinned_memory(4096)
stop = np.frombuffer(page, np.int32, 1)
stop[0] = 0
kernel((3,), (32,), (np.uint64(page.ptr), np.uint64(buffer.address)))
time.sleep(0.5)
began = time.monotonic()
buffer.write(sys.argv[1] + "/running.nsam", wait_s=1)
print("took", time.monotonic() - began, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
stop[0] = 1
cupy.cuda.runtime.deviceSynchronize()
buffer.write(sys.argv[1] + "/ended.nsam")
"""


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_a_kernel_that_never_ends_and_a_process_that_is_killed(cupy, tmp_path, end):
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(tmp_path), end],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (0 if end == "ended" else -9), done.stderr
    found = dump.read(tmp_path / "running.nsam")
    assert not found.finished and (found.id == name_hash("begun") << 2).sum() == 3 == found.written
    assert any("still running" in said for said in found.notes())
    if end == "ended":
        assert dump.read(tmp_path / "ended.nsam").written == 9


def test_a_triton_kernel_marks_once_for_each_program(tmp_path):
    pytest.importorskip("triton")
    said = json.loads(
        output(sys.executable, SCRIPTS / "triton_check.py", tmp_path).splitlines()[-1]
    )
    assert said["exact"] and said["correct"], said


def test_a_null_pointer_writes_nothing_and_a_buffer_of_another_version_neither(cupy, tmp_path):
    kernel = compiled(cupy, MANY, "many")
    buffer = marks.buffer(mib=1)
    kernel((4,), (32,), (np.int32(5), np.uint64(0)))
    assert dump.read(buffer.write(tmp_path / "m.nsam")).written == 0
    cupy.asarray(buffer)[4] = 9
    kernel((4,), (32,), (np.int32(5), np.uint64(buffer.address)))
    found = dump.read(buffer.write(tmp_path / "m.nsam"))
    assert found.written == 0 and found.refused in (layout.VERSION, 9)


def test_replays_of_a_graph_are_said_and_left_out(cupy, tmp_path):
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
    found = dump.read(buffer.write(tmp_path / "m.nsam"))
    assert found.repeated == 1 and len(found.grid) == 1


@needs_nvcc
def test_the_checks_of_the_scripts(tmp_path):
    parts = ("paths", "together", "chase", "spins", "version", "join", "graph", "long", "overflow")
    said = output(built("checks.cu", tmp_path), tmp_path, *parts)
    judged = output(sys.executable, SCRIPTS / "judge.py", tmp_path, given=said)
    assert '"exact": false' not in judged, judged


@needs_nvcc
def test_dependent_launches_clusters_and_every_gpu(tmp_path):
    said = output(built("launches.cu", tmp_path), tmp_path)
    judged = output(sys.executable, SCRIPTS / "judge_launches.py", tmp_path, given=said)
    for line in map(json.loads, judged.splitlines()):
        assert (line["found"], line["complete"]) == (line["expected"],) * 2 and line["dropped"] == 0
        assert line["warps"] == line["warps_expected"]
