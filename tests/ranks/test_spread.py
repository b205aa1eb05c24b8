"""The same traces analysed here, in worker processes and on a Dask cluster, workers dying on the
way: one answer."""

from __future__ import annotations

from concurrent.futures import CancelledError
from pathlib import Path

import jobs
import pytest
from simulator.ranks import run, write_ranks

from nsysalign.addons.ranks import spread
from nsysalign.addons.ranks.command import Job, analyse, checked, one
from nsysalign.addons.ranks.compare import compare
from nsysalign.addons.ranks.page import dumps
from nsysalign.addons.ranks.sources import find
from nsysalign.engine import load
from nsysalign.errors import UsageError
from nsysalign.store.document import dumps as dumps_analysis


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(the traces of three ranks, the serial answer, the folder of the serial analyses)."""
    folder = tmp_path_factory.mktemp("job")
    write_ranks(run(3, 6, think=lambda r, s: 60_000 * (1 + (r + s) % 3)), folder)
    sources, out = find([folder]), tmp_path_factory.mktemp("serial")
    with spread.processes(1) as here:
        return sources, dumps(compare(analyse(sources, out, here))), out


def same_as_serial(job, results, out: Path) -> None:
    _, answer, serial = job
    assert all(
        not isinstance(result, BaseException) and not result.failure for result in results
    ), results
    assert dumps(compare(results)) == answer
    for mine in sorted(serial.glob("*/analysis.db")):
        assert dumps_analysis(load(out / mine.parent.name)) == dumps_analysis(load(mine))


def test_worker_processes_one_of_which_is_killed(job, tmp_path):
    """The pool breaks with every job in it; all are done again, and the answer is the serial
    one."""
    work = [Job(source, tmp_path, source.name, None) for source in job[0]]
    with spread.processes(2) as pool:
        results = [outcome for _, outcome in spread.over(jobs.dies_once, work, pool)]
    assert Path(f"{tmp_path}-killed").exists()
    same_as_serial(job, results, tmp_path)


def test_a_dask_cluster_gives_the_same_answer(job, tmp_path, monkeypatch):
    """A relative folder of results: workers have other working directories."""
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    with spread.dask("local", 1) as workers:
        assert dumps(compare(analyse(job[0], Path("."), workers))) == job[1]
        monkeypatch.setattr(spread, "__version__", "0.0.1")
        address = workers._client.scheduler.address
        with pytest.raises(UsageError, match=r"this is 0\.0\.1"), spread.dask(address, 0):
            pass


def test_only_the_job_that_kills_its_worker_is_lost(tmp_path):
    names = [tmp_path / name for name in ("a", "bad", "b", "c")]
    with spread.processes(2) as pool:
        results = {job.name: outcome for job, outcome in spread.over(jobs.always_dies, names, pool)}
    assert isinstance(results.pop("bad"), Exception)
    assert results == {"a": "a", "b": "b", "c": "c"}


def test_what_workers_cannot_deliver_is_a_failure_of_its_trace(job, tmp_path):
    """A Dask worker that does not share the file system writes to a disk of its own."""
    work = Job(job[0][0], tmp_path, "rank0", None)
    made = one(work)
    (tmp_path / made.report).unlink()
    for outcome, words in (
        (made, "its worker wrote to a disk that this machine cannot see"),
        (CancelledError(), "the scheduler of the cluster cannot be reached any more"),
        (RuntimeError("lost"), "its worker died (RuntimeError: lost)"),
    ):
        result = checked(work, outcome)
        assert result.ranks == () and result.failure == words


def test_no_scheduler_at_the_address():
    pytest.importorskip("distributed")
    with pytest.raises(UsageError, match="--dask nonsense"), spread.dask("nonsense://x", 1):
        pass


def test_workers_fit_into_memory(tmp_path, monkeypatch):
    traces = [tmp_path / f"{n}.sqlite" for n in range(6)]
    for trace in traces:
        trace.write_bytes(b"x" * 1000)
    need = spread.BASE_BYTES + 1000 * spread.BYTES_PER_BYTE
    monkeypatch.setattr(spread, "processors", lambda: 4)
    monkeypatch.setattr(spread, "free_memory", lambda: 100 * need)
    assert spread.workers(traces) == 4  # cores
    monkeypatch.setattr(spread, "free_memory", lambda: 3 * need)
    assert spread.workers(traces) == 3
    monkeypatch.setattr(spread, "free_memory", lambda: 0)
    assert spread.workers(traces) == 1  # one at a time, or nothing at all
    assert spread.workers(traces, wanted=99) == 6
