"""The clock sampler, against a made-up NVML: what it writes, and that it always ends."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import wait_for, wait_until

from nsysalign.record import clock_sampler as clocks
from nsysalign.trace.samples import read_clock_samples

FAKE_NVML = Path(__file__).parents[1] / "fakenvml"


@pytest.fixture
def nvml(monkeypatch):
    """`nvml(FAKE_NVML="init")`: the made-up NVML, as those variables say."""

    def prepare(**variables: str):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        monkeypatch.syspath_prepend(str(FAKE_NVML))
        import pynvml

        return pynvml

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield prepare
    sys.modules.pop("pynvml", None)


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "nsysalign-clocks"]


def test_samples_carry_both_clocks_and_end_with_the_block(nvml, tmp_path):
    nvml(FAKE_NVML_SHUTDOWN=str(tmp_path / "ended"))
    before = time.monotonic_ns()
    with clocks.sampling(tmp_path / "clocks.jsonl", flush_s=0) as notes:
        assert running()
        wait_for(tmp_path / "clocks.jsonl")
        written = (tmp_path / "clocks.jsonl").read_text
        wait_until(lambda: written().count("\n") > 20, "no samples")
    after = time.monotonic_ns()
    assert notes == [] and not running() and (tmp_path / "ended").exists()
    samples, notes = read_clock_samples(tmp_path / "clocks.jsonl")
    # 25 ms after a round began, or twenty times as long as it took, begins the next one
    assert notes == [] and 20 <= len(samples) <= 2 + (after - before) // 23_000_000
    t = samples["monotonic_ns"].to_numpy()
    assert before <= t.min() and t.max() <= after and (t[1:] - t[:-1] >= 23_000_000).all()
    apart = time.time_ns() - time.monotonic_ns()
    # of most: between the two clocks' readings this process may have had to wait for a processor
    assert abs(samples["realtime_ns"] - samples["monotonic_ns"] - apart).median() < 50_000_000
    assert samples["sm_mhz"].iloc[0] < 1000 and samples["sm_mhz"].max() == 1980
    assert (samples["mem_mhz"] == 2619).all() and samples["reasons"].iloc[0] == 1
    text = (tmp_path / "clocks.jsonl").read_text()
    assert "secret" not in text and os.uname().nodename not in text
    assert (tmp_path / "clocks.jsonl").stat().st_mode & 0o077 == 0
    assert tuple(json.loads(text.splitlines()[0])["columns"]) == clocks.COLUMNS


def test_what_cannot_be_sampled_is_said(nvml, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with clocks.sampling(tmp_path / "a") as notes:
        pass
    assert "NVML: import of pynvml halted" in notes[0] and "cannot be seen" in notes[0]
    with clocks.sampling(tmp_path / "a", wanted=False) as notes:
        pass
    assert notes == [] and not (tmp_path / "a").exists()
    nvml(FAKE_NVML="init")
    with clocks.sampling(tmp_path / "a") as notes:
        pass
    assert "NVML: Driver Not Loaded" in notes[0] and not (tmp_path / "a").exists()


def test_a_driver_that_hangs_does_not_hold_up_the_run(nvml, tmp_path, monkeypatch):
    driver = nvml(FAKE_NVML="hang")
    monkeypatch.setattr(clocks, "JOIN_S", 0.05)
    began = time.monotonic()
    with clocks.sampling(tmp_path / "a") as notes:
        assert driver.hanging.wait(30)
    assert time.monotonic() - began < 50 and "stopped answering" in notes[0]  # it hangs for 60 s


def test_a_full_disk_ends_the_samples_and_nothing_else(nvml):
    nvml()
    with clocks.sampling(Path("/dev/full"), flush_s=0) as notes:
        wait_until(lambda: bool(notes), "no note")
    assert "end early" in notes[0] and "space" in notes[0]


def test_devices_are_numbered_as_cuda_numbers_them(nvml):
    module = nvml(FAKE_NVML_NAMES="A,A,A")
    for asked, expected in (
        (None, ([0, 1, 2], "pci")),
        ("2,0", ([2, 0], "pci")),
        ("GPU-secret-1,0", ([1, 0], "pci")),
        ("1,9,0", ([1], "pci")),  # CUDA ends the list there
        ("MIG-1234", ([0, 1, 2], "assumed")),
        ("", ([], "pci")),
    ):
        environ = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
        assert clocks.visible(module, environ) == expected
