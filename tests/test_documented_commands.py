"""Every command that a page shows is run: on a small recording, by the names that the page uses.

What records finds no GPU here, and says so; a command that a page spells wrongly ends with 2."""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kineto_file
import pytest
import warm
from recordings import untar
from simulator import export, machine
from simulator.program import Elapsed, Launch, Program, Record, Sleep, Sync
from test_documentation import DOCS, ROOT, typed_commands

from nsysalign import cli

pytestmark = pytest.mark.usefixtures("remembered")

PAGES = [page for page in DOCS if page.parent.name != "lab"]
#: What pages call a run, each a folder of the same recording.
RUNS = ("A", "RUN", "RUN_DIR", "B", "run", "baseline", "nsysalign-runs/bench-001", "nsysalign-runs/bench-002", "nsysalign-runs/train-001")  # fmt: skip
SCRIPTS = ("bench.py", "train.py", "puzzle.py", "script.py", "SCRIPT.py", "old.py", "new.py")
#: Names on pages for what the recording calls otherwise.
NAMES = {"L": "h2d_t1", "NAME": "h2d_t1", "t1": "h2d_t1", "runs/$(hostname)": "runs/node"}
#: What one command is as good as another of, by what their words are.
KINDS = dict.fromkeys(RUNS, "RUN") | dict.fromkeys(SCRIPTS, "SCRIPT") | {"NAME": "L", "t1": "L"}
KINDS |= {"runs/*": "RANKS", "nsysalign-runs/train-*": "RANKS"}
#: Status of what reads, and of what records where there is no GPU.
READ, RECORD = {0, 1}, {0, 1, 3, 4}


def shown() -> list[str]:
    """The commands of all pages, once each: what differs in the name of a run or a script alone, in
    ARGS or in the order of its words is one.  Named alone (`nsysalign confirm`) they are no command."""
    bare = ("COMMAND --help", "confirm", "run", "run --sample-python")
    lines: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        for words in typed_commands(page):
            line = shlex.join(words)
            if line not in bare and "--dask" not in line:  # dask: tests/ranks
                kinds = (KINDS.get(word, word) for word in words if not word.startswith("ARGS"))
                lines.setdefault(tuple(sorted(kinds)), line)
    return list(lines.values())


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder in which all names of the pages exist."""
    place = tmp_path_factory.mktemp("documented")
    timed = [Record("a"), Launch(9_000), Sleep(20_000), Record("b"), Sync(), Elapsed("a", "b", "h2d_t1")]  # fmt: skip
    trace, (log,) = export.write(machine.run(Program({484: timed * 3})), place / "A", name="trace")
    log = log.rename(log.with_name("events-484.jsonl"))
    for name in ("trace.sqlite", "TRACE.sqlite"):
        shutil.copy(trace, place / name)
    shutil.copy(log, place / "LOG.events.jsonl")
    done(["analyze", "-q", str(place / "A")])
    for name in RUNS[1:]:
        shutil.copytree(place / "A", place / name)
    done(["demo", "-q", "-o", str(place / "demo")])
    for name in SCRIPTS:
        (place / name).write_text("def make(): return lambda: None\n")
    (place / "tests").mkdir()
    (place / "tests" / "test_speed.py").write_text("def test_speed(): pass\n")
    (place / "bin").mkdir()
    (place / "bin" / "torchrun").write_text("#!/bin/sh\n")
    (place / "bin" / "torchrun").chmod(0o755)
    (place / "bin" / "python").symlink_to(sys.executable)
    return place


def done(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert not ended.value.code


def lent(source: str, target: str) -> None:
    """Recordings are linked, as no command writes them; all else is copied."""
    recorded = source.endswith((".sqlite", ".jsonl"))
    (os.link if recorded else shutil.copy2)(source, target)


HIDDEN = ("NSYS", "PYTHONPATH", "COLUMNS")


def surroundings(place: Path) -> dict[str, str]:
    return {"HOME": str(place), "PATH": f"{place}/bin:/usr/bin:/bin"}


def ran(place: Path, words: list[str]) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    environment |= surroundings(place)
    return warm.python(["-m", "nsysalign", *words], place, environment, timeout_s=120)


@pytest.mark.parametrize("line", shown())
def test_a_command_that_a_page_shows_runs(place, tmp_path, monkeypatch, capfd, line):
    shutil.copytree(place, tmp_path / "here", symlinks=True, copy_function=lent)
    here = tmp_path / "here"
    words = [NAMES.get(word, word) for word in shlex.split(line) if word not in ("ARGS", "ARGS...")]
    for number, word in enumerate(words[:-1]):
        if word in ("-o", "--output") and words[0] in ("run", "demo", "analyze"):
            shutil.rmtree(here / words[number + 1], ignore_errors=True)  # a new one is made there
    prepare(here, line)
    if "--interval" in words and "NAME" in line:
        words[-1] = "h2d_t1#1"
    words = [name for word in words for name in expanded(here, word)]
    if words[0] in ("run", "doctor") or any(".py" in word for word in words):
        done = ran(here, words)
        status, text, allowed = done.returncode, done.stdout + done.stderr, RECORD
    else:  # what only reads does so in this process
        monkeypatch.chdir(here)
        for name in HIDDEN:
            monkeypatch.delenv(name, raising=False)
        for name, value in surroundings(place).items():
            monkeypatch.setenv(name, value)
        # several traces one after the other: tests/ranks has them analysed in processes of their own
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        status, text, allowed = ended.value.code, "".join(capfd.readouterr()), READ
    assert status in allowed, text[-4000:]
    assert "Traceback" not in text


def prepare(here: Path, line: str) -> None:
    """Recordings that only some lines name: two ranks, traces of torch.profiler."""
    if "train-" in line or "runs/*" in line:
        for name in ("runs", "nsysalign-runs"):
            shutil.rmtree(here / name, ignore_errors=True)
            untar(ROOT / "tests" / "data" / "ddp_slow_rank.tar.xz", here / name)
            for rank in (1, 2):
                folder = here / name / f"ddp_slow_rank-00{rank}"
                folder.rename(here / name / f"train-00{rank}")
    if "trace.json.gz" in line:
        kineto_file.written(kineto_file.small(), here / "trace.json.gz")
    if "log/" in line:
        (here / "log").mkdir()
        for rank in (0, 1):
            about = {"distributedInfo": {"rank": rank, "world_size": 2}}
            kineto_file.written(kineto_file.small(), here / "log" / f"rank{rank}.json", **about)


def expanded(here: Path, word: str) -> list[str]:
    """As a shell expands it."""
    if "*" not in word:
        return [word]
    return sorted(os.path.relpath(path, here) for path in glob.glob(str(here / word))) or [word]
