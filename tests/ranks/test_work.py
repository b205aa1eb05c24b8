"""The same traces analysed here, in worker processes and on a Dask cluster, workers dying on the
way: one answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jobs
import pytest
from simulator.ranks import run, write_ranks

from nsysalign.addons.ranks import work
from nsysalign.addons.ranks.compare import compare
from nsysalign.addons.ranks.page import dumps
from nsysalign.addons.ranks.records import Source
from nsysalign.addons.ranks.work import Job, analyse, checked, find, one
from nsysalign.errors import UsageError


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(the traces of three ranks, the serial answer)."""
    folder = tmp_path_factory.mktemp("job")
    write_ranks(run(3, 6, think=lambda r, s: 60_000 * (1 + (r + s) % 3)), folder)
    sources = find([folder])
    with work.processes(1) as here:
        return sources, dumps(compare(analyse(sources, tmp_path_factory.mktemp("serial"), here)))


def named(*names: str) -> list[Job]:
    return [Job(Source(name, Path(name)), Path(), name) for name in names]


def test_worker_processes_one_of_which_is_killed(job, tmp_path):
    """The pool breaks with every job in it; all are done again, and the answer is the serial
    one."""
    todo = [Job(source, tmp_path, source.name) for source in job[0]]
    with work.processes(2) as pool:
        results = list(work.over(jobs.dies_once, todo, pool))
    assert Path(f"{tmp_path}-killed").exists()
    assert dumps(compare(results)) == job[1]


def test_a_dask_cluster_gives_the_same_answer(job, tmp_path, monkeypatch):
    """A relative folder of results: workers have other working directories."""
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    with work.dask("local", 1) as workers:
        assert dumps(compare(analyse(job[0], Path("."), workers))) == job[1]
    with pytest.raises(UsageError, match="--dask nonsense"), work.dask("nonsense://x", 1):
        pass


def test_only_the_job_that_kills_its_worker_is_lost():
    with work.processes(2) as pool:
        found = {r.source: r for r in work.over(jobs.always_dies, named("a", "bad", "b"), pool)}
    assert found["bad"].failure.startswith("its worker died (BrokenProcessPool")
    assert not found["a"].failure and not found["b"].failure


def test_what_workers_cannot_deliver_is_a_failure_of_its_trace(job, tmp_path):
    """A Dask worker that does not share the file system writes to a disk of its own."""
    todo = Job(job[0][0], tmp_path, "rank0")
    made = one(todo)
    (tmp_path / made.report).unlink()
    result = checked(todo, made)
    assert result.ranks == () and "a disk that this machine cannot see" in result.failure
    assert "this is 0.0.1" in one(replace(todo, version="0.0.1")).failure


def test_workers_fit_into_memory(tmp_path, monkeypatch):
    traces = [tmp_path / f"{n}.sqlite" for n in range(6)]
    for trace in traces:
        trace.write_bytes(b"x" * 1000)
    monkeypatch.setattr(work, "processors", lambda: 4)
    for need, count in ((1, 4), (1 << 60, 1)):  # cores; memory, one at least
        monkeypatch.setattr(work, "BASE_BYTES", need)
        assert work.workers(traces) == count
    assert work.workers(traces, wanted=99) == 6
