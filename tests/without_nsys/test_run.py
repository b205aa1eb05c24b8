"""`run --no-nsys`, and `run` where nsys is missing, with a torch without a GPU."""

import json
import lzma
import os
from pathlib import Path

import pytest
import warm
from recordings import DATA

import nsysalign
from nsysalign import cli

ROOT = Path(__file__).parents[2]
TIMED = """
import sys, torch
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for _ in range(3):
    start.record(); end.record(); torch.cuda.synchronize(); start.elapsed_time(end)
print("its own words")
sys.exit(5)
"""


def command(folder, *arguments, **environment):
    """The tool in a folder, on a machine without nsys."""
    path = os.pathsep.join([str(ROOT / "tests" / "collect" / "faketorch"), str(ROOT)])
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": path, **environment}
    env["OPENBLAS_NUM_THREADS"] = "1"  # tests/conftest.py
    return warm.python(["-m", "nsysalign", *map(str, arguments)], folder, env)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "timed.py").write_text(TIMED)
    return "timed.py"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with a run of that script, `out`."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "timed.py").write_text(TIMED)
    command(folder, "run", "--no-nsys", "--no-clocks", "-o", "out", "timed.py")
    return folder


@pytest.fixture
def asked(monkeypatch, capsys):
    """`asked(folder, *words)`: a command that runs no script, in this process: status, stdout, stderr."""

    def ask(folder, *words):
        monkeypatch.chdir(folder)
        monkeypatch.delenv("NSYS", raising=False)
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setenv("HOME", str(folder))
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, words)])
        return ended.value.code, *capsys.readouterr()

    return ask


@pytest.mark.parametrize("how", [("--no-nsys",), ()], ids=["asked for", "nsys is missing"])
def test_the_script_keeps_its_words_and_status(tmp_path, script, asked, how):
    ran = command(tmp_path, "run", *how, "--no-clocks", "-o", "out", script)
    assert ran.returncode == 5
    assert ran.stdout.startswith("its own words\n")
    assert "Recorded without nsys" in ran.stdout
    assert "for the breakdown: " in ran.stdout  # how to install it, since it is missing
    assert ("nsys was not found" in ran.stderr) == (how == ())
    run = nsysalign.load(tmp_path / "out")
    assert run.labels["count"].tolist() == [3]
    assert run.intervals["verdict"].unique().tolist() == ["cannot_tell"]
    assert not hasattr(run, "parts")
    _, again, _ = asked(tmp_path, "analyze", "out", "--json", "-")
    document = json.loads(again)
    assert document["format"] == "nsysalign-unprofiled"
    assert len(document["intervals"]) == 3


@pytest.mark.parametrize("option", [("--accurate",), ("--graph-trace", "node"), ("--sample-python",), ("--baseline",), ("--nsys", "/x"), ("--fail-on", "error")])  # fmt: skip
def test_what_needs_a_trace_is_refused(tmp_path, script, asked, option):
    status, _, err = asked(tmp_path, "run", "--no-nsys", *option, script)
    assert status == 2
    assert f"which {option[0]} needs" in err
    # where nsys is merely missing, such a run fails rather than passes in silence
    status, out, _ = asked(tmp_path, "run", *option, script)
    assert status == 3
    assert not out


def test_a_program_that_times_nothing_has_its_sentence(tmp_path):
    (tmp_path / "plain.py").write_text("print('done')")
    ran = command(tmp_path, "run", "--no-nsys", "--no-clocks", "plain.py")
    assert ran.returncode == 0
    assert "No pair of CUDA events was compared" in ran.stdout


@pytest.mark.parametrize("name", ["report", "export"])
def test_other_commands_say_that_there_is_no_breakdown(recorded, asked, name):
    words = ["--format", "json"] if name == "export" else []
    status, _, err = asked(recorded, name, "out", *words)
    assert status == 3
    assert "recorded without nsys" in err
    assert "nsysalign analyze out" in err


def test_a_log_of_such_a_run_belongs_to_no_trace(tmp_path, recorded, asked):
    (log,) = (recorded / "out").glob("events-*.jsonl")
    trace = tmp_path / "trace.sqlite"
    trace.write_bytes(lzma.decompress((DATA / "truth_linears.sqlite.xz").read_bytes()))
    status, _, err = asked(tmp_path, "analyze", trace, "--events", log)
    assert status == 3
    assert "a run without nsys" in err
