"""A scheduler and workers started by their own commands, on machines of their own: each trace is analysed where it lies."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
from click.testing import CliRunner
from simulator.ranks import run, write_ranks
from waiting import wait_until

from nsysalign import __version__
from nsysalign.cli import cli
from nsysalign.errors import TraceError, UsageError
from nsysalign.ranks import spread
from nsysalign.ranks.command import Job, analyse, present_many
from nsysalign.ranks.results import Source
from nsysalign.ranks.sources import find
from nsysalign.ranks.spread import Place, Seen, look, merged

TESTS = Path(__file__).parents[1]
DASK = [sys.executable, "-m", "dask"]
pytest.importorskip("distributed")


@contextlib.contextmanager
def cluster(folder: Path, *workers: tuple[list[str], str]):
    """(address of a scheduler, its process and those of its workers): of each worker what its command begins with, and its
    options."""
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
        for number, (before, options) in enumerate(workers):
            where = [
                "--no-dashboard",
                "--nthreads",
                "1",
                "--local-directory",
                str(folder / f"scratch{number}"),
            ]
            command = [*before, *DASK, "worker", address(), *where, *options.split()]
            start(command, folder / f"worker{number}.log")
        logs = [folder / f"worker{number}.log" for number in range(len(workers))]
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


def with_disk(*mounts: tuple[Path, Path]) -> list[str]:
    """What begins a command that sees other folders in the place of some, as another machine does."""
    binds = "".join(f"mount --bind '{disk}' '{place}' && " for disk, place in mounts)
    return ["unshare", "--mount", "sh", "-c", f'{binds}exec "$@"', "sh"]


def can_mount() -> bool:
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "--bind", "/tmp", "/mnt"], capture_output=True
    )
    return tried.returncode == 0


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    write_ranks(run(4, 6, think=lambda r, s: 60_000 * (1 + (r + s) % 3)), folder)
    return folder


@pytest.fixture(scope="module")
def serial(traces, tmp_path_factory):
    """(the comparison without a cluster, the folder of its analyses)."""
    out = tmp_path_factory.mktemp("serial") / "out"
    return present_many([traces], output=out, quiet=True, jobs=1), out


@pytest.mark.skipif(sys.platform != "linux" or not can_mount(), reason="nobody may mount here")
def test_each_trace_is_analysed_where_it_lies(traces, serial, tmp_path):
    """Two machines with half of the traces each, under one path that is empty here, and disks of their own for results."""
    job, here = tmp_path / "job", tmp_path / "results"
    job.mkdir(), here.mkdir()
    machines = []
    for number in range(2):
        disk, own = tmp_path / f"disk{number}", tmp_path / f"own{number}"
        disk.mkdir(), own.mkdir()
        for path in traces.glob(f"*rank[{2 * number}{2 * number + 1}]*"):
            (disk / path.name).write_bytes(path.read_bytes())
        machines.append((with_disk((disk, job), (own, here)), f"--host 127.0.0.{2 + number}"))
    with cluster(tmp_path, *machines) as (address, _):
        found = present_many([job], output=here / "out", quiet=True, dask=address)
    expected, analyses = serial
    for same in ("clocks", "labels", "waits"):
        assert getattr(found, same) == getattr(expected, same)
    assert found.ranks == tuple(replace(rank, report="") for rank in expected.ranks)
    assert not found.failures
    assert sorted(p.name for p in here.rglob("*")) == ["out", "ranks.html", "ranks.json"]
    for mine in analyses.glob("*/analysis.json"):  # each on its own machine, and nowhere else
        machine = int(mine.parent.name[-1]) // 2
        (lies,) = tmp_path.glob(f"own*/*/{mine.parent.name}/analysis.json")
        assert lies.is_relative_to(tmp_path / f"own{machine}")
        assert lies.read_bytes() == mine.read_bytes()


def test_a_killed_worker_is_replaced(traces, serial, tmp_path):
    """By the other worker: every trace is analysed, and each is there once."""
    out = tmp_path / "out"
    out.mkdir()
    work = [Job(source, out, source.name, None) for source in find([traces])]
    with (
        cluster(tmp_path, *[([], "--no-nanny")] * 2) as (address, _),
        spread.dask(address, 0) as workers,
    ):
        found = list(spread.over(jobs.dies_once, work, workers))
    assert Path(f"{out}-killed").exists()
    assert Counter(job.source.name for job, _ in found) == Counter(
        f"report_rank{n}" for n in range(4)
    )
    assert all(len(result.ranks) == 1 for _, result in found)
    for mine in serial[1].glob("*/analysis.json"):
        assert (out / mine.parent.name / mine.name).read_bytes() == mine.read_bytes()


def test_a_machine_that_is_gone_costs_its_own_traces_only(traces, tmp_path, monkeypatch):
    monkeypatch.setattr(spread, "GONE_S", 2)
    out = tmp_path / "out"
    out.mkdir()
    places = [Place(("127.0.0.2",)), *[Place(("127.0.0.3",))] * 3]
    machines = [([], f"--no-nanny --host 127.0.0.{n}") for n in (2, 3)]
    with (
        cluster(tmp_path, *machines) as (address, processes),
        spread.dask(address, 0) as workers,
    ):
        processes[1].kill()
        found = analyse(find([traces]), out, workers, places)
    assert [len(result.ranks) for result in found] == [0, 1, 1, 1]
    assert found[0].failure == "no worker of its machine (127.0.0.2) has come back"


def test_a_scheduler_that_is_gone_is_no_lack_of_memory(traces, tmp_path, caplog):
    out = tmp_path / "out"
    out.mkdir()
    with (
        cluster(tmp_path, ([], "--no-nanny")) as (address, processes),
        spread.dask(address, 0) as workers,
    ):
        processes[0].kill()
        processes[0].wait()
        found = analyse(find([traces]), out, workers)
    assert {result.failure for result in found} == {
        "the scheduler of the cluster cannot be reached any more"
    }
    assert not any(record.name == "distributed.client" for record in caplog.records)


def test_what_several_machines_see_as_one_file_is_one_trace():
    shared, here, there = (Source(name, Path(f"/job/{name}.sqlite")) for name in ("s", "r", "r"))
    seen = {
        "a": Seen(__version__, ((shared, (1, 2, 3)), (here, (4, 5, 6))), "", True),
        "b": Seen(__version__, ((shared, (1, 2, 3)), (there, (4, 5, 7))), "", False),
    }
    found = merged(seen, Path("/out-x"))
    assert [(source.name, place) for source, place in found] == [
        ("s", Place(("a",))),  # only that machine sees the folder of the results
        ("r", Place(("a",))),
        ("r-2", Place(("b",), Path("/out-x"))),
    ]
    everywhere = {host: replace(what, shared=True) for host, what in seen.items()}
    assert merged(everywhere, Path("/out-x"))[0][1] == Place()


def test_a_machine_looks_at_what_is_there(traces, tmp_path):
    seen = look([traces, tmp_path / "absent"], [tmp_path / "no.jsonl"], tmp_path / "mark")
    assert [source.name for source, _ in seen.sources] == [f"report_rank{n}" for n in range(4)]
    assert not seen.shared and not seen.error
    assert look([tmp_path / "absent"], [], tmp_path).error == "nothing lies under these paths"
    assert "neither a trace" in look([tmp_path], [], tmp_path).error


def test_workers_with_another_nsysalign_are_refused():
    with pytest.raises(UsageError, match=r"have nsysalign 0\.0\.1, this is"):
        merged({"a": Seen("0.0.1", (), "", True), "b": Seen(__version__, (), "", True)}, Path())


def test_a_cluster_that_sees_nothing(tmp_path):
    """A folder that is empty here may hold traces there: what is said must not be that it is one trace."""
    (tmp_path / "empty").mkdir()
    with cluster(tmp_path, ([], "--no-nanny")) as (address, _):
        for path in (tmp_path / "absent", tmp_path / "empty"):
            arguments = ["analyze", "--dask", address, "-o", tmp_path / "out", path]
            done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
            assert isinstance(done.exception, TraceError)
            assert "no machine of the cluster sees" in str(done.exception)
            assert not (tmp_path / "out").exists()
