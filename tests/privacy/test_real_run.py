"""A real nsys around a script with secrets in its environment, arguments, output, home and user
name."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_export import PROCESS, tiny

from nsysalign.cli import cli
from nsysalign.errors import TraceError

from .conftest import TESTS, leaks

SCRIPT = """
import sys, torch
print("printed: customer 4711 of", sys.argv[1])
a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
a.record(); b.record(); a.elapsed_time(b)
"""
#: What nsys itself leaves; docs/privacy.md and `doctor` say that it carries the environment.
FROM_NSYS = ("trace.nsys-rep", "trace.sqlite", "nsys.log")


@pytest.mark.nsys
def test_no_output_of_ours_carries_a_secret(tmp_path):
    home = tmp_path / "home.alice.planted"
    home.mkdir()
    secrets = {
        "token": "ghp_s3cr3tT0ken/with+signs",
        "home": str(home),
        "user": "alice.planted",
        "argument": "--password=hunter2planted",
        "output": "customer 4711 of",
        "folder": str(tmp_path),
    }
    if len(host := socket.gethostname()) > 5:  # a shorter one stands in every file by chance
        secrets["host"] = host
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSALIGN", "NSYS_"))}
    env |= {
        "PLANTED_TOKEN": secrets["token"],
        "NSYS": os.environ.get("NSYS") or nsys_path(),
        "HOME": str(home),
        "USER": secrets["user"],
        "LOGNAME": secrets["user"],
        "PYTHONPATH": os.pathsep.join(
            [str(TESTS / "collect" / "faketorch"), str(TESTS / "fakenvml"), str(TESTS.parent)]
        ),
    }
    done = subprocess.run(
        [sys.executable, "-m", "nsysalign", "run", "--baseline", "-o", "run", "script.py", secrets["argument"]],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert secrets["output"] in done.stdout, "the script's own output is shown"
    assert "no CUDA work" in done.stderr, "there is no GPU here: GPU rows are added below"
    run = tmp_path / "run"
    assert run.stat().st_mode & 0o777 == 0o700
    add_gpu_rows(run / "trace.sqlite")
    for rank, name in enumerate(
        ("again", "damaged", "unreadable")
    ):  # more ranks, of which not all can be analysed
        shutil.copytree(run, tmp_path / name)
        (tmp_path / name / "trace.nsys-rep").unlink()
        if rank == 1:
            (tmp_path / name / "trace.sqlite").write_bytes(b"no trace")
        elif rank == 2:
            (log,) = (tmp_path / name).glob("events-*")
            log.unlink()
            log.mkdir()
    everything = {line.split(": ")[1] for line in leaks(run, secrets)}
    # the script's output and arguments go past nsys (record/handover.py)
    found = secrets.keys() - {"output", "argument"}
    assert everything >= found, "the search finds them in what nsys wrote"
    (run / "printed").write_text("")
    for arguments in (
        ["analyze", str(run), "--json", str(run / "copy.json")],
        ["report", str(run), "-o", str(run / "again.html")],
        *(["export", str(run), "--format", form] for form in ("perfetto", "csv")),
        ["diff", str(run), str(run), "-o", str(run / "diff.html")],
        [
            *(
                "analyze",
                str(run),
                *(str(tmp_path / n) for n in ("again", "damaged", "unreadable")),
            ),
            *("-o", str(run / "ranks")),
        ],
        ["redact", str(run), str(run / "shared")],
    ):
        invoked = CliRunner().invoke(cli, arguments)
        # the copies have no label that could show them to be ranks of one job
        refused = isinstance(invoked.exception, TraceError) and "ranks" in arguments[-1]
        assert invoked.exit_code == 0 or refused, invoked.output
        if arguments[0] != "redact":  # prints the path that it was given
            with (run / "printed").open("a") as file:
                file.write(invoked.output.replace(str(run), "RUN"))
    found = [line for line in leaks(run, secrets) if line.split(":")[0] not in FROM_NSYS]
    assert found == []
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    assert names >= {
        "analysis.db",
        "report.html",
        "run.json",
        "diff.html",
        "shared/trace.sqlite",
        "clocks.jsonl",
        "shared/clocks.jsonl",
        "baseline/run.json",
    }
    assert all(
        any(n.startswith(f"{folder}baseline/events-") for n in names) for folder in ("", "shared/")
    )
    assert any(name.startswith("shared/events-") for name in names)


def nsys_path() -> str:
    from nsysalign.record.nsys import find_nsys

    return find_nsys().path


def add_gpu_rows(path: Path) -> None:
    """The tiny export's CUDA tables in the process that nsys recorded; the rest stays nsys's
    own."""
    with closing(sqlite3.connect(path)) as db:
        (process,) = db.execute("select globalPid from ProcessStreams").fetchone()
        names = {row["id"]: row["id"] + 100_000 for row in tiny()["StringIds"]}
        have = {name for (name,) in db.execute("select name from sqlite_master")}
        for table, rows in tiny().items():
            if table in have - {"StringIds"}:
                continue
            if table == "StringIds":
                rows = [row | {"id": names[row["id"]]} for row in rows]
            else:
                columns = ", ".join(f'"{c}"' for c in rows[0])
                db.execute(f'create table "{table}" ({columns})')
            for row in rows:
                row = {
                    k: v - PROCESS + process
                    if k.startswith("global")
                    else names[v]
                    if k in ("nameId", "demangledName", "shortName")
                    else v
                    for k, v in row.items()
                }
                marks = ", ".join("?" * len(row))
                listed = ", ".join(f'"{c}"' for c in row)
                db.execute(
                    f'insert into "{table}" ({listed}) values ({marks})', tuple(row.values())
                )
        db.commit()
