"""Processes that work for another one end with it, and their absence is no obstacle."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import command_line, wait_until

from nsysalign.addons.ranks import work, workers

LEAVES_TWO_AT_WORK = """
import os, time
from nsysalign.addons.ranks.workers import started

if __name__ == "__main__":
    busy, idle = started(1), started(1)
    print(busy.submit(os.getpid).result())
    print(idle.submit(os.getpid).result(), flush=True)
    busy.submit(time.sleep, 1000)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_they_end_with_whoever_started_them(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(LEAVES_TWO_AT_WORK)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    assert all(map(command_line, pids)) and len({*pids, process.pid}) == 3
    process.send_signal(number)
    process.communicate(timeout=60)
    _end(pids)


def test_they_end_when_what_they_do_is_in_vain():
    with pytest.raises(ValueError, match="in vain"), work.processes(2) as pool:
        pid = pool.submit(os.getpid).result()
        pool.submit(time.sleep, 1000)
        raise ValueError("in vain")
    _end([pid])


def test_half_a_file_is_removed(tmp_path):
    with workers.Workers(1) as pool:
        begun = pool.submit(begins_a_file, tmp_path / "half")
        while not (tmp_path / "half").exists():
            time.sleep(0.01)
        pool.stop()
    assert isinstance(begun.exception(60), SystemExit | concurrent.futures.BrokenExecutor)
    wait_until(lambda: not (tmp_path / "half").exists(), "it lies there still")


def begins_a_file(path: Path) -> None:
    try:
        path.touch()  # what stops us may come as soon as the file is there
        while True:
            time.sleep(0.01)
    finally:
        path.unlink()


def _end(pids: list[int]) -> None:
    wait_until(lambda: not any(map(command_line, pids)), "one works on, for nobody")


def no_locks(*_, **__):
    raise OSError(38, "Function not implemented")  # no /dev/shm


def no_process(*_, **__):
    raise BlockingIOError(11, "Resource temporarily unavailable")  # ulimit -u


@pytest.mark.parametrize("lacking", ["locks", "process"])
def test_where_there_are_none_this_process_does_it_all(monkeypatch, lacking):
    if lacking == "locks":
        monkeypatch.setattr("multiprocessing.context.SpawnContext.Lock", no_locks)
    else:
        monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", no_process)
    before = set(threading.enumerate())
    assert workers.started(2) is None
    with work.processes(4) as pool:
        assert pool.submit(os.getpid).result() == os.getpid()
    assert not set(threading.enumerate()) - before
