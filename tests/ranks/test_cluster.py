"""A scheduler and workers started by their own commands: the same answer, workers and a scheduler
that die."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jobs
import pytest
from simulator.ranks import run, write_ranks
from waiting import wait_until

from nsysalign.addons.ranks import spread
from nsysalign.addons.ranks.command import Job, analyse, present_many
from nsysalign.addons.ranks.sources import find
from nsysalign.engine import load
from nsysalign.errors import UsageError
from nsysalign.store.document import dumps as dumps_analysis

TESTS = Path(__file__).parents[1]
DASK = [sys.executable, "-m", "dask"]
pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(address of a scheduler, its process and those of its two workers)."""
    folder = tmp_path_factory.mktemp("cluster")
    log = folder / "scheduler.log"
    running, files = [], contextlib.ExitStack()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "ranks")])}
    environment |= {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s"}

    def start(command: list[str], out: Path) -> None:
        file = files.enter_context(out.open("w"))
        # a job in the background inherits an ignored Ctrl-C: these could not be ended by one then
        obey = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        running.append(
            subprocess.Popen(command, stdout=file, stderr=file, env=environment, preexec_fn=obey)
        )

    def address() -> str:
        found = re.search(r"tcp://127\.0\.0\.1:\d+", log.read_text())
        return found[0] if found else ""

    try:
        start([*DASK, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"], log)
        wait_until(lambda: bool(address()), "the scheduler never came")
        logs = [folder / f"worker{number}.log" for number in range(2)]
        for number, out in enumerate(logs):
            options = ["--no-dashboard", "--no-nanny", "--nthreads", "1"]
            scratch = ["--local-directory", str(folder / f"scratch{number}")]
            start([*DASK, "worker", address(), *options, *scratch], out)
        wait_until(
            lambda: all("Registered to" in p.read_text() for p in logs), "a worker never came"
        )
        yield address(), running
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGINT)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        files.close()


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    write_ranks(run(4, 6, think=lambda r, s: 60_000 * (1 + (r + s) % 3)), folder)
    return folder


@pytest.fixture(scope="module")
def serial(traces, tmp_path_factory) -> Path:
    """The folder of the comparison without a cluster."""
    out = tmp_path_factory.mktemp("serial") / "out"
    present_many([traces], output=out, quiet=True, jobs=1)
    return out


def test_the_answer_is_the_same_to_the_byte(cluster, traces, serial, tmp_path, monkeypatch):
    monkeypatch.chdir(
        tmp_path
    )  # a relative folder of results: workers have other working directories
    present_many([traces], output=Path("out"), quiet=True, dask=cluster[0])
    assert (tmp_path / "out/ranks.json").read_bytes() == (serial / "ranks.json").read_bytes()


def test_a_killed_worker_is_replaced(cluster, traces, serial, tmp_path):
    """By the other worker: every trace is analysed, and each is there once."""
    out = tmp_path / "out"
    out.mkdir()
    work = [Job(source, out, source.name, None) for source in find([traces])]
    with spread.dask(cluster[0], 0) as workers:
        found = list(spread.over(jobs.dies_once, work, workers))
    assert Path(f"{out}-killed").exists()
    assert Counter(job.source.name for job, _ in found) == Counter(
        f"report_rank{n}" for n in range(4)
    )
    assert all(len(result.ranks) == 1 for _, result in found)
    for mine in serial.glob("*/analysis.db"):
        assert dumps_analysis(load(out / mine.parent.name)) == dumps_analysis(load(mine))


def test_workers_with_another_nsysalign_are_refused(cluster, monkeypatch):
    monkeypatch.setattr(spread, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"this is 0\.0\.1"), spread.dask(cluster[0], 0):
        pass


def test_a_scheduler_that_is_gone_is_no_lack_of_memory(cluster, traces, tmp_path, caplog):
    out = tmp_path / "out"
    out.mkdir()
    address, processes = cluster
    with spread.dask(address, 0) as workers:
        processes[0].kill()
        processes[0].wait()
        found = analyse(find([traces]), out, workers)
    assert {result.failure for result in found} == {
        "the scheduler of the cluster cannot be reached any more"
    }
    assert not any(record.name == "distributed.client" for record in caplog.records)
