"""`nsysalign analyze` with several traces: what is found, kept, refused and said."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from recordings import DATA, untar
from simulator.export import write
from simulator.ranks import run, write_ranks
from simulator.style import Style

import nsysalign
from nsysalign.addons.ranks.work import find, is_many
from nsysalign.cli import cli
from nsysalign.errors import TraceError, UsageError

pytestmark = pytest.mark.usefixtures("remembered")


def slow_rank_1(rank: int, step: int) -> int:
    return 2_000_000 if rank == 1 else 50_000


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Three ranks of one job on two machines whose clocks differ by 3 ms."""
    folder = tmp_path_factory.mktemp("job")
    early = Style().utc_epoch
    job = run(3, 8, think=slow_rank_1)
    write_ranks(
        job,
        folder,
        lambda r: Style(shift=-100_000_000 * r, utc_epoch=early + (3_000_000 if r == 2 else 0)),
    )
    return folder


def analyze(*arguments, **more):
    return CliRunner().invoke(cli, ["analyze", *map(str, arguments)], **more)


def listing(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_a_folder_of_ranks(job, tmp_path):
    before = listing(job)
    result = analyze(job, "-o", tmp_path / "out", "--jobs", 1, "--json", tmp_path / "copy.json")
    assert result.exit_code == 0, result.output
    assert listing(job) == before, "the inputs were touched"
    document = json.loads((tmp_path / "out/ranks.json").read_text())
    assert (document["format"], document["version"]) == ("nsysalign-ranks", 5)
    assert (tmp_path / "copy.json").read_bytes() == (tmp_path / "out/ranks.json").read_bytes()
    assert [r["rank"] for r in document["ranks"]] == [0, 1, 2]
    assert document["clocks"][2]["correction_ns"] == pytest.approx(-3_000_000, abs=2_000)
    (label,) = document["labels"]
    assert (label["label"], label["verdict"], label["collectives"]) == ("step", "waits", 8)
    assert {(w["rank"], w["waits_for"]) for w in document["waits"]} == {(0, 1), (2, 1)}
    for rank in document["ranks"]:
        assert (tmp_path / "out" / rank["report"]).is_file()
        assert (tmp_path / "out" / rank["report"]).with_name("analysis.db").is_file()
    assert "for rank 1, the last to arrive in 8 of 8" in " ".join(result.output.split())
    again = analyze(job, "-o", tmp_path / "out")
    assert again.exception and "not empty" in str(again.exception)


def test_a_new_folder_each_time(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nsysalign-ranks-007").mkdir()
    traces = sorted(job.glob("*.sqlite"))[:2]
    assert analyze(*traces, "-q", "--jobs", 1).exit_code == 0
    assert (tmp_path / "nsysalign-ranks-008/ranks.json").is_file()
    assert (tmp_path / "nsysalign-ranks-008").stat().st_mode & 0o777 == 0o700


def test_a_damaged_trace_does_not_lose_the_others(job, tmp_path):
    good = sorted(job.glob("*.sqlite"))
    damaged, empty = tmp_path / "report_rank7.sqlite", tmp_path / "report_rank8.sqlite"
    damaged.write_bytes(good[0].read_bytes()[:20_000])
    empty.write_bytes(b"")
    result = analyze(good[0], good[1], damaged, empty, "-o", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "left out: report_rank7: report_rank7.sqlite: damaged" in result.output
    document = json.loads((tmp_path / "out/ranks.json").read_text())
    assert [f["source"] for f in document["failures"]] == ["report_rank7", "report_rank8"]
    assert [r["rank"] for r in document["ranks"]] == [0, 1]
    assert not (tmp_path / "out/report_rank7").exists()


def test_nothing_works(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.sqlite").write_bytes(b"no database")
    result = analyze(tmp_path, "-o", tmp_path / "out", "--jobs", 1)
    assert isinstance(result.exception, TraceError) and result.exception.exit_code == 3
    assert "a.sqlite" in str(result.exception) and "b.sqlite" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_two_traces_with_nothing_in_common(job, tmp_path):
    other = run(1, 5)
    for pair in other.worlds[0].pairs:
        pair.name = pair.name.replace("step", "elsewhere")
    write(other.worlds, tmp_path / "b", name="other")
    result = analyze(min(job.glob("*.sqlite")), tmp_path / "b", "-o", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 0 and "no label was measured by two ranks" in result.output


def test_processes_of_one_run(tmp_path):
    """A torchrun in one trace, its logs beside it as `nsysalign run` leaves them: pid by pid."""
    simulated = run(2, 8, think=slow_rank_1)
    trace, logs = write(simulated.worlds, tmp_path / "train-001", name="trace")
    for world, log in zip(simulated.worlds, logs, strict=True):
        log.rename(log.with_name(f"events-{world.pid}.jsonl"))
    hint = analyze(trace.parent, "-o", tmp_path / "plain").output
    assert (
        f"2 processes measured something; to compare them: nsysalign analyze --ranks {trace.parent}"
        in " ".join(hint.replace("\\\n", " ").split())
    )
    result = analyze(trace.parent, "--ranks", "-o", tmp_path / "out", "--json", "-")
    document = json.loads(result.output)
    assert [(r["pid"], r["device"]) for r in document["ranks"]] == [(500, 0), (501, 1)]
    assert len({r["report"] for r in document["ranks"]}) == 1
    (label,) = document["labels"]
    assert [r["count"] for r in label["ranks"]] == [8, 8]
    assert (
        label["ranks"][0]["wait_ns"] == sum(simulated.waits(0))
        and label["ranks"][1]["wait_ns"] == 0
    )
    assert label["ranks"][1]["arrived_last"] == 8


def test_what_counts_as_a_source(job, tmp_path):
    """Reports beside their exports count once, folders are looked into, results of earlier
    comparisons are not."""
    for rank in (2, 10, 1):
        folder = tmp_path / f"node/rank{rank}"
        folder.mkdir(parents=True)
        (folder / "report.nsys-rep").touch()
        (folder / "report.sqlite").touch()
    earlier = tmp_path / "node/out"
    (earlier / "rank1").mkdir(parents=True)
    (earlier / "ranks.json").touch()
    (earlier / "rank1/report.sqlite").touch()
    found = find([tmp_path / "node"])
    assert [(s.name, s.trace.name) for s in found] == [
        ("rank1", "report.nsys-rep"),
        ("rank2", "report.nsys-rep"),
        ("rank10", "report.nsys-rep"),
    ]
    assert (
        is_many(tmp_path / "node")
        and not is_many(tmp_path / "node/rank1")
        and not is_many(tmp_path / "absent")
    )
    files = [tmp_path / f"node/rank{r}/report.sqlite" for r in (1, 2)]
    assert [s.name for s in find(files)] == ["rank1_report", "rank2_report"]
    (tmp_path / "far/a/b/c").mkdir(parents=True)
    (tmp_path / "far/a/b/c/report.sqlite").touch()
    assert not is_many(tmp_path / "far")  # two folders deep, no more
    with pytest.raises(TraceError, match="no such file"):
        find([tmp_path / "absent"])
    assert [s.trace for s in find([*files, files[0].parent, files[0]])] == [
        *files,
        files[0].with_suffix(".nsys-rep"),
    ]  # each once
    assert isinstance(analyze(*files, "--events", __file__).exception, UsageError)


def test_reports_are_exported_into_the_results(job, tmp_path):
    """A player's nsys whose reports are exports already; the second report is one it cannot
    read."""
    nsys = tmp_path / "nsys"
    nsys.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo "NVIDIA Nsight Systems version 2024.2.3.38";; '
        'export) grep -q SQLite "$6" && cp "$6" "$5";; *) echo;; esac\n'
    )
    nsys.chmod(0o755)
    folder = tmp_path / "reports"
    folder.mkdir()
    for number, path in enumerate(sorted(job.glob("*.sqlite"))):
        (folder / f"report_{number}.nsys-rep").write_bytes(
            path.read_bytes() if number != 1 else b"cut short"
        )
    before = listing(folder)
    result = analyze(folder, "-o", tmp_path / "out", "--nsys", nsys, "-q", "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert listing(folder) == before
    document = json.loads((tmp_path / "out/ranks.json").read_text())
    assert [r["source"] for r in document["ranks"]] == ["report_0", "report_2"]
    assert [f["source"] for f in document["failures"]] == ["report_1"]
    assert (tmp_path / "out/report_0/report_0.sqlite").is_file()


def test_the_launcher_s_rank_and_nothing_else_of_the_environment(job, tmp_path):
    traces = sorted(job.glob("*.sqlite"))[:2]
    for number, path in enumerate(traces):
        copy = tmp_path / f"node_{'ab'[number]}.sqlite"
        copy.write_bytes(path.read_bytes())
        db = sqlite3.connect(copy)
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, nameEnum INTEGER, value TEXT)")
        secret = f"API_TOKEN=hunter2;SLURM_PROCID=44;RANK={9 - number};XRANK=3;HOME=/home/alice"
        rows = [("DeviceEnvironment", secret), ("Hostname", f"gpu-node-{number}")]
        db.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, 0, ?)", rows)
        db.commit()
        db.close()
    result = analyze(tmp_path, "-o", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 0
    document = json.loads((tmp_path / "out/ranks.json").read_text())
    assert [(r["rank"], r["source"]) for r in document["ranks"]] == [(8, "node_b"), (9, "node_a")]
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(word in content for word in (b"hunter2", b"gpu-node", b"/home/alice")), (
                path
            )


def test_two_recorded_ranks_one_of_which_sleeps(tmp_path):
    """scripts/puzzles/ddp_slow_rank.py on two H200s, one trace each: rank 1 sleeps 5 ms a step.
    DDP's reducer records an event per bucket and then waits for each: its wait for a bucket's
    all-reduce is no launch latency."""
    untar(DATA / "ddp_slow_rank.tar.xz", tmp_path)
    done = analyze("-q", *sorted(tmp_path.iterdir()), "-o", tmp_path / "out", "--jobs", "1")
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "out" / "ranks.json").read_text())
    (wait,) = document["waits"]
    assert wait["collectives"] > 100 and wait["wait_ns"] > 200_000_000
    clock = document["clocks"][1]
    assert clock["method"] == "collectives" and clock["error_ns"] < 20_000
    assert abs(clock["correction_ns"]) < 100_000
    assert document["verdict"]["text"].startswith(
        "Rank 2 is slow: ddp_slow_rank.py:54-56: rank 1 waits"
    )
    analysis = nsysalign.load(tmp_path / "out" / document["ranks"][0]["report"].partition("/")[0])
    parts = analysis.parts.pivot(index="interval", columns="cause", values="ns").fillna(0)
    parts = parts.loc[analysis.measured.loc[~analysis.measured["library"], "interval"]]
    assert len(parts) == 30 and parts["launch_latency"].max() < 300_000
    assert parts["queued"].median() > 4_000_000 and "queued" in set(analysis.findings["rule"])
