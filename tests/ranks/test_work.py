"""The same traces analysed here, in worker processes and on a Dask cluster, workers dying on the
way: one answer.  Processes that work for another one end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import jobs
import pytest
from simulator.ranks import run, write_ranks
from waiting import command_line, wait_until

from nsysalign.addons.ranks import work
from nsysalign.addons.ranks.compare import compare
from nsysalign.addons.ranks.records import Source
from nsysalign.addons.ranks.words import dumps
from nsysalign.addons.ranks.work import find, here, one
from nsysalign.errors import UsageError


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(the traces of two ranks, the answer of this process)."""
    folder = tmp_path_factory.mktemp("job")
    write_ranks(run(2, 6, think=lambda r, s: 60_000 * (1 + (r + s) % 3)), folder)
    sources = find([folder])
    serial = tmp_path_factory.mktemp("serial")
    return sources, answer(here(partial(one, output=serial), sources, 1))


def answer(results):
    return dumps(compare(list(results)))


def test_worker_processes_and_a_dask_cluster_give_the_same_answer(job, tmp_path):
    sources, serial = job
    for folder in ("two", "cluster"):
        (tmp_path / folder).mkdir()
    assert answer(here(partial(one, output=tmp_path / "two"), sources, 2)) == serial
    distributed = pytest.importorskip("distributed")
    local = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")
    local.scheduler.allowed_failures = 0  # else a trace may kill four workers
    with local, work.cluster(local.scheduler_address) as over:
        assert answer(over(partial(one, output=tmp_path / "cluster"), sources)) == serial
        for nanny in local.workers.values():
            nanny.auto_restart = False  # nobody needs the worker after the one that dies
        failed = [r.failure for r in over(jobs.dies_on_bad, [Source("bad", Path("bad"))])]
        assert len(failed) == 1 and failed[0].startswith("its worker died (KilledWorker")
    with pytest.raises(UsageError, match="--dask nonsense"), work.cluster("nonsense://x"):
        pass


def test_a_process_that_is_killed_loses_its_trace_alone():
    sources = [Source(name, Path(name)) for name in ("a", "bad", "b")]
    found = {r.source: r for r in here(jobs.dies_on_bad, sources, 2)}
    assert found["bad"].failure == "its process died (status -9)"
    assert len({str(os.getpid()), found["a"].report, found["b"].report}) == 3
    assert "this is 0.0.1" in one(sources[0], Path(), version="0.0.1").failure


def test_workers_fit_into_memory(tmp_path, monkeypatch):
    traces = [tmp_path / f"{n}.sqlite" for n in range(6)]
    for trace in traces:
        trace.write_bytes(b"x" * 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    for need, count in ((1, 4), (1 << 60, 1)):  # cores; memory, one at least
        monkeypatch.setattr(work, "BASE_BYTES", need)
        assert work.workers(traces) == count
    assert work.workers(traces, wanted=99) == 6


LEAVES_ONE_AT_WORK = """
import sys
from pathlib import Path

import jobs
from nsysalign.addons.ranks.records import Source
from nsysalign.addons.ranks.work import here

if __name__ == "__main__":
    list(here(jobs.begins_a_file, [Source("slow", Path(sys.argv[1]))] * 2, 2))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_workers_end_with_whoever_started_them(tmp_path, number):
    script, file = tmp_path / "script.py", tmp_path / "file"
    script.write_text(LEAVES_ONE_AT_WORK)
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([sys.executable, str(script), str(file)], env=path)
    wait_until(lambda: file.exists() and file.read_text(), "it begins no file")
    pid = int(file.read_text())
    assert command_line(pid) and pid != process.pid
    process.send_signal(number)
    process.communicate(timeout=60)
    wait_until(lambda: not command_line(pid), "it works on, for nobody")
    assert not file.exists()


def test_workers_end_when_their_work_is_in_vain_and_leave_no_half_a_file(tmp_path):
    half = tmp_path / "half"
    sources = [Source("slow", half), Source("quick", half)]
    with pytest.raises(ValueError, match="in vain"):
        for _ in here(jobs.begins_a_file, sources, 2):
            wait_until(lambda: half.exists() and half.read_text(), "it begins no file")
            pid = int(half.read_text())
            raise ValueError("in vain")
    wait_until(lambda: not half.exists() and not command_line(pid), "something is left")
