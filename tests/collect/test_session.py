"""A real nsys around real scripts: output, status, signals, children, losses.  torch is the fake
one."""

from __future__ import annotations

import os
import pty
import sqlite3
import subprocess
import sys

import pytest

from .conftest import FAKE_TORCH, ROOT
from .user import PAIRS, read_log, refuse_a_broken_nsys

pytestmark = pytest.mark.nsys

COLLECT = """
import json, sys
from nsysalign.record.session import collect
from nsysalign.errors import NsysAlignError
try:
    r = collect(sys.argv[1:])
except NsysAlignError as error:
    print("COLLECT-ERROR", error, file=sys.stderr)
    sys.exit(99)
with open("result.json", "w") as file:
    json.dump({"dir": str(r.run_dir), "status": r.exit_status, "notes": r.notes}, file)
sys.exit(r.exit_status)
"""


@pytest.fixture
def session(nsys, tmp_path):
    """`session(script, *args)`: start collect() as a user would, in a process of its own; not
    waited for."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSALIGN", "NSYS_"))}
    env |= {
        "NSYS": nsys.path,
        "PYTHONPATH": os.pathsep.join([str(FAKE_TORCH), str(ROOT)]),
        "TMPDIR": str(tmp_path),
    }
    (tmp_path / "collect_it.py").write_text(COLLECT)

    def start(
        text: str, *args: str, command: tuple[str, ...] | None = None, **kwargs
    ) -> subprocess.Popen:
        (tmp_path / "script.py").write_text(PAIRS + text)
        kwargs = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **kwargs,
        }
        return subprocess.Popen(
            [sys.executable, "collect_it.py", *(command or ("script.py",)), *args],
            cwd=tmp_path, env=env, text=True, start_new_session=True, **kwargs,
        )  # fmt: skip

    return start


def finish(
    process: subprocess.Popen, tmp_path, stdin: str | None = None
) -> tuple[int, str, str, dict[int, list]]:
    out, err = process.communicate(stdin, timeout=120)
    (run_dir,) = (tmp_path / "nsysalign-runs").iterdir()
    refuse_a_broken_nsys(run_dir)
    for name in ("trace.nsys-rep", "trace.sqlite"):
        assert (run_dir / name).is_file() and (run_dir / name).stat().st_size, err
    assert not (run_dir / "raw").exists()
    return (
        process.returncode,
        out,
        err,
        {int(p.stem[7:]): read_log(p) for p in run_dir.glob("events-*.jsonl")},
    )


def count(logs: dict[int, list], kind: str) -> int:
    return sum(
        line["type"] == kind and "calibration" not in line
        for lines in logs.values()
        for line in lines
    )


def trace(tmp_path, sql: str) -> list:
    (path,) = (tmp_path / "nsysalign-runs").glob("*/trace.sqlite")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return db.execute(sql).fetchall()


TEXT = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"


def test_everything_of_the_script_is_its_own(session, tmp_path):
    process = session(
        """
import os, sys
pair(3)
print("out", sys.argv[1:], os.getcwd() == sys.path[0], sys.stdin.read())
print("err", file=sys.stderr)
sys.exit(3)
""",
        "--x", "-o", "a b", stdin=subprocess.PIPE,
    )  # fmt: skip
    status, out, err, logs = finish(process, tmp_path, "typed")
    assert (status, out, err) == (3, "out ['--x', '-o', 'a b'] True typed\n", "err\n"), (
        "not a word of nsys's"
    )
    assert count(logs, "record") == 6 and count(logs, "elapsed") == 3
    ((_, lines),) = logs.items()
    assert lines[0]["nvtx"] == "injection"


def test_a_terminal_stays_a_terminal(session, tmp_path):
    master, slave = pty.openpty()
    process = session(
        "import sys\nprint(sys.stdout.isatty(), sys.stderr.isatty())\npair()", stdout=slave
    )
    os.close(slave)
    finish(process, tmp_path)
    assert os.read(master, 1000).decode().strip() == "True False"
    os.close(master)


def test_what_a_run_leaves(session, tmp_path):
    """Clock marks, ranges of known pairs and of regions in the trace; private files that name no
    folder."""
    text = """
import nsysalign
pair(4)
with nsysalign.region("work"):
    pair()
with nsysalign.region("work"):
    pass
"""
    *_, logs = finish(session(text), tmp_path)
    (lines,) = logs.values()
    sync = {line["payload"]: line for line in lines if line["type"] == "sync"}
    marks = trace(
        tmp_path, f"SELECT start, int64Value FROM NVTX_EVENTS WHERE {TEXT} = 'nsysalign:sync'"
    )
    assert len(marks) == 100 and set(sync) <= {payload for _, payload in marks}
    lower = max(at - sync[p]["after_ns"] for at, p in marks if p in sync)
    upper = min(at - sync[p]["before_ns"] for at, p in marks if p in sync)
    assert -2_000 < upper - lower < 20_000, "one offset fits every mark, and it is known well"

    rows = trace(
        tmp_path, f"SELECT {TEXT}, int64Value, end - start FROM NVTX_EVENTS WHERE eventType = 60"
    )
    names = [(name, payload) for name, payload, _ in rows]
    assert names.count(("script.py:6", 0)) == 3, "known after the first comparison"
    assert names.count(("work", 0)) == 1 and names.count(("work", 1)) == 1
    assert all(0 < length < 1_000_000_000 for *_, length in rows)

    (run_dir,) = (tmp_path / "nsysalign-runs").iterdir()
    assert run_dir.stat().st_mode & 0o777 == 0o700
    assert sorted(p.name for p in run_dir.iterdir() if not p.name.startswith("events")) == [
        "nsys.log", "run.json", "trace.nsys-rep", "trace.sqlite"
    ]  # fmt: skip
    for path in [run_dir / "run.json", *run_dir.glob("events-*.jsonl")]:
        assert str(tmp_path) not in path.read_text()


def test_commands_that_are_no_scripts(session, tmp_path):
    process = session(
        "pair()", command=("sh", "-c", f"echo first; {sys.executable} script.py; exit 4")
    )
    status, out, _, logs = finish(process, tmp_path)
    assert (status, out) == (4, "first\n") and count(logs, "record") == 2


def test_no_nsys_is_an_error_before_anything_runs(session, tmp_path, monkeypatch):
    (tmp_path / "touch.py").write_text("open('ran', 'w')")
    env = {**os.environ, "NSYS": "/nonexistent/nsys", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, "touch.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 99 and "/nonexistent/nsys: no such program" in done.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "nsysalign-runs").exists()
