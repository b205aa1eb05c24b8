"""Processes that work for another one end with it, and their absence is no obstacle."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from waiting import command_line, wait_until

from nsysalign import workers
from nsysalign.ranks import spread
from nsysalign.slices.pool import worker_pool

LEAVES_TWO_AT_WORK = """
import os, time
from nsysalign.slices.pool import worker_pool
from nsysalign.workers import started

if __name__ == "__main__":
    with worker_pool(2) as others:
        print(others.begin(os.getpid)())
        pool = started(1)
        print(pool.submit(os.getpid).result(), flush=True)
        others.begin(time.sleep, 1000)
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


@pytest.mark.parametrize("by", [spread.processes, worker_pool])
def test_they_end_when_what_they_do_is_in_vain(by):
    with pytest.raises(ValueError, match="in vain"), by(2) as pool:
        submit = pool.submit if by is spread.processes else pool._others[0].submit
        pid = submit(os.getpid).result()
        submit(time.sleep, 1000)
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
    path.touch()
    try:
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
    assert workers.started(2) is None and workers.started(1, print) is None
    with worker_pool(3) as others:
        assert others.others == 0
        assert others.map(abs, [partial(int, -n) for n in range(5)], lambda done: None) == list(
            range(5)
        )
        assert others.begin(os.getpid)() == os.getpid()
    with spread.processes(4) as pool:
        assert [r for _, r in spread.over(os.getpgid, [0, 0], pool, again=spread.alone)] == 2 * [
            os.getpgrp()
        ]
    with spread.alone() as nobody:
        assert nobody is None
    assert not set(threading.enumerate()) - before


def test_a_job_whose_process_died_is_not_tried_in_this_one(monkeypatch):
    class Broken(concurrent.futures.ThreadPoolExecutor):
        def submit(self, *_):
            future = concurrent.futures.Future()
            future.set_exception(concurrent.futures.BrokenExecutor("died"))
            return future

    monkeypatch.setattr(spread, "started", lambda count: None)
    with Broken(1) as pool:
        ((job, outcome),) = spread.over(os._exit, [7], pool, again=spread.alone)
    assert job == 7 and isinstance(outcome, concurrent.futures.BrokenExecutor)
