"""Sampled Python stacks: the layout of nsys's samples, and a real recording of known functions."""

from __future__ import annotations

import base64
import json
import struct
import sys

import numpy as np
import pytest

from nsysalign.record.python_samples import stack_lines
from nsysalign.record.session import CollectOptions, collect
from nsysalign.trace.samples import read_stacks

STRINGS = [
    "zero",
    "resize",
    "/home/me/app/transforms.py",
    "&lt;module&gt;",
    "/usr/lib/python3.11/io.py",
]
THREAD = (7 << 24) | 99


def sample(t_ns: int, *frames: tuple[int, int, int]) -> str:
    data = struct.pack("<IIII", 1, 1, len(frames), 0x137F)  # the padding is not zero
    data += b"".join(struct.pack("<QQII", f, file, line, t_ns & 0xFFFF) for f, file, line in frames)
    payload = {"SchemaId": "4294967299", "Data": base64.b64encode(data).decode()}
    event = {"Timestamp": str(t_ns), "GlobalTid": str(THREAD), "Category": "1"}
    event["Payload"] = {"BinaryData": [payload]}
    return json.dumps({"Type": 34, "NvtxEvent": event}, separators=(",", ":"))


def test_frames_are_named_and_equal_stacks_are_kept_once():
    same = (1, 2, 41), (3, 2, 5)
    samples = sample(30, *same), sample(10, *same), sample(20, (3, 4, 7))
    strings = json.dumps({"data": STRINGS}, separators=(",", ":"))
    header, *lines = stack_lines([strings, *samples], lambda file: file)
    file = "/home/me/app/transforms.py"
    assert header["format"] == "nsysalign-stacks" and lines == [
        {"stack": 0, "frames": [["resize", file, 41, 1], ["<module>", file, 5, 1]]},
        {"stack": 1, "frames": [["<module>", "/usr/lib/python3.11/io.py", 7, 0]]},
        {"process": 7 << 24, "thread": 1, "main": True, "t_ns": [10, 20, 30], "stack_of": [0, 1, 0]},
    ]  # fmt: skip


PROGRAM = """
import json, random, threading, time

data = [random.random() for _ in range(60000)]

def spin():
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass

def sort():
    return sorted(data)

def doze():
    time.sleep(0.02)

def other():
    while not stop.wait(0.001):
        pass

stop = threading.Event()
thread = threading.Thread(target=other)
thread.start()
seconds = {}
for _ in range(30):
    for function in (spin, sort, doze):
        begun = time.perf_counter()
        function()
        seconds[function.__name__] = seconds.get(function.__name__, 0) + time.perf_counter() - begun
stop.set()
thread.join()
json.dump(seconds, open("seconds.json", "w"))
"""


@pytest.mark.nsys
def test_a_real_recording_names_the_functions_of_a_program(nsys, tmp_path, monkeypatch):
    """Pure Python, a call into C that holds the GIL, and sleep: each is sampled for as long as it
    took."""
    if "python-sampling" not in nsys.flags:
        pytest.skip("this nsys cannot sample Python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    wanted = {"clocks": False, "sample_python": True}
    options = CollectOptions(nsys=nsys.path, output=tmp_path / "run", **wanted)
    result = collect([sys.executable, "program.py"], options)
    assert result.exit_status == 0
    if sys.version_info >= (3, 13) and nsys.version.startswith("2024.2"):  # newer than this nsys
        assert [n for n in result.notes if "recorded no Python stacks" in n and "version" in n]
        return
    stacks, notes = read_stacks(tmp_path / "run" / "stacks.jsonl")
    assert not notes and not [n for n in result.notes if "stacks" in n or "Python" in n]
    seconds = json.loads((tmp_path / "seconds.json").read_text())
    own = [[f.function for f in frames if f.file == "program.py"] for frames in stacks.frames]
    innermost = [(own[number] or [""])[0] for number in stacks.stack]
    count = {name: innermost.count(name) for name in seconds}
    whole, taken = sum(seconds.values()), sum(count.values())
    assert taken > 20 and all(count.values())
    # a share of samples is a share of time; on a busy machine the sampler misses some
    for name in seconds:
        assert count[name] / taken == pytest.approx(seconds[name] / whole, abs=0.3)
    assert "other" not in innermost
    assert {f.of_program for s in stacks.frames for f in s if f.file == "program.py"} == {True}
    assert not any(
        f.of_program for s in stacks.frames for f in s if f.file.endswith("threading.py")
    )
    assert (np.diff(stacks.t_ns) >= 0).all()
    assert not list((tmp_path / "run").glob("*partial*"))
