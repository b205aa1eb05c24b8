"""The same traces analysed here, in worker processes and on a Dask cluster, workers dying on the
way: one answer."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
from simulator.ranks import run, write_ranks

from nsysalign.addons.ranks import spread
from nsysalign.addons.ranks.command import Job, analyse, one
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


def test_a_dask_cluster_of_this_machine():
    pytest.importorskip("distributed")
    with spread.dask("local", 1) as workers:
        assert list(spread.over(len, ["abc"], workers)) == [("abc", 3)]


def test_only_the_job_that_kills_its_worker_is_lost(tmp_path):
    names = [tmp_path / name for name in ("a", "bad", "b", "c")]
    with spread.processes(2) as pool:
        results = {job.name: outcome for job, outcome in spread.over(jobs.always_dies, names, pool)}
    assert isinstance(results.pop("bad"), Exception)
    assert results == {"a": "a", "b": "b", "c": "c"}


def test_a_result_that_is_not_here_is_a_failure(job, tmp_path):
    """A Dask worker that does not share the file system writes to a disk of its own."""
    from nsysalign.addons.ranks.command import checked

    made = one(Job(job[0][0], tmp_path, "rank0", None))
    (tmp_path / made.report).unlink()
    result = checked(Job(job[0][0], tmp_path, "rank0", None), made)
    assert result.ranks == () and "cannot see" in result.failure


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
