"""The same traces analysed here, in worker processes and on a Dask cluster, workers dying on the
way: one answer.  Processes that work for another one end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
from simulator.ranks import run, write_ranks
from waiting import command_line, wait_until

from nsysalign.addons.ranks import work
from nsysalign.addons.ranks.compare import compare
from nsysalign.addons.ranks.page import dumps
from nsysalign.addons.ranks.records import Source
from nsysalign.addons.ranks.work import Job, find, one, over, processes
from nsysalign.errors import UsageError


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(the traces of three ranks, the serial answer)."""
    folder = tmp_path_factory.mktemp("job")
    write_ranks(run(3, 6, think=lambda r, s: 60_000 * (1 + (r + s) % 3)), folder)
    sources = find([folder])
    with processes(1) as here:
        return sources, answer(sources, tmp_path_factory.mktemp("serial"), here)


def answer(sources, output, executor, function=one):
    return dumps(compare(list(over(function, [Job(s, output) for s in sources], executor))))


def test_worker_processes_one_of_which_is_killed(job, tmp_path):
    """The pool breaks with every job in it; all are done again, and the answer is the serial
    one."""
    with processes(2) as pool:
        assert answer(job[0], tmp_path, pool, jobs.dies_once) == job[1]
    assert Path(f"{tmp_path}-killed").exists()


def test_only_the_job_that_kills_its_worker_is_lost():
    todo = [Job(Source(name, Path(name)), Path()) for name in ("a", "bad", "b")]
    with processes(2) as pool:
        found = {r.source: r for r in over(jobs.always_dies, todo, pool)}
    assert found["bad"].failure.startswith("its worker died (BrokenProcessPool")
    assert not found["a"].failure and not found["b"].failure


def test_a_dask_cluster_gives_the_same_answer(job, tmp_path):
    pytest.importorskip("distributed")
    with work.dask("local", 1) as workers:
        assert answer(job[0], tmp_path, workers) == job[1]
    with pytest.raises(UsageError, match="--dask nonsense"), work.dask("nonsense://x", 1):
        pass


def test_what_workers_cannot_deliver_is_a_failure_of_its_trace(job, tmp_path):
    """A Dask worker that does not share the file system writes to a disk of its own."""
    todo = Job(job[0][0], tmp_path)
    future: Future = Future()
    future.set_result(one(todo))
    (tmp_path / future.result().report).unlink()
    result = work._checked(todo, future)
    assert result.ranks == () and "a disk that this machine cannot see" in result.failure
    assert "this is 0.0.1" in one(replace(todo, version="0.0.1")).failure


def test_workers_fit_into_memory(tmp_path, monkeypatch):
    traces = [tmp_path / f"{n}.sqlite" for n in range(6)]
    for trace in traces:
        trace.write_bytes(b"x" * 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    for need, count in ((1, 4), (1 << 60, 1)):  # cores; memory, one at least
        monkeypatch.setattr(work, "BASE_BYTES", need)
        assert work.workers(traces) == count
    assert work.workers(traces, wanted=99) == 6


LEAVES_TWO_AT_WORK = """
import os, time
from nsysalign.addons.ranks.work import processes

if __name__ == "__main__":
    with processes(2) as busy, processes(2) as idle:
        print(busy.submit(os.getpid).result())
        print(idle.submit(os.getpid).result(), flush=True)
        busy.submit(time.sleep, 1000)
        time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_workers_end_with_whoever_started_them(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(LEAVES_TWO_AT_WORK)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    assert all(map(command_line, pids)) and len({*pids, process.pid}) == 3
    process.send_signal(number)
    process.communicate(timeout=60)
    wait_until(lambda: not any(map(command_line, pids)), "one works on, for nobody")


def test_workers_end_when_their_work_is_in_vain_and_leave_no_half_a_file(tmp_path):
    half = tmp_path / "half"
    with pytest.raises(ValueError, match="in vain"), processes(2) as pool:
        pid = pool.submit(os.getpid).result()
        pool.submit(begins_a_file, half)
        wait_until(half.exists, "it begins no file")
        raise ValueError("in vain")
    wait_until(lambda: not half.exists() and not command_line(pid), "something is left")


def begins_a_file(path: Path) -> None:
    try:
        path.touch()  # what stops us may come as soon as the file is there
        while True:
            time.sleep(0.01)
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("lacking", "error"),
    [
        ("context.SpawnContext.Lock", OSError(38, "Function not implemented")),  # no /dev/shm
        ("context.SpawnProcess.start", BlockingIOError(11, "unavailable")),  # ulimit -u
    ],
)
def test_where_no_process_is_allowed_this_one_does_it_all(monkeypatch, lacking, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(f"multiprocessing.{lacking}", fails)
    before = set(threading.enumerate())
    with processes(4) as pool:
        assert pool.submit(os.getpid).result() == os.getpid()
    assert not set(threading.enumerate()) - before
