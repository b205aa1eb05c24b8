"""What is run, what is refused, where it goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsysalign.errors import NsysError, UsageError
from nsysalign.record.command import (
    obstacles,
    probe_environment,
    refuse_nested,
    refuse_small_files,
    resolve,
    stem,
)
from nsysalign.rundir import make_run_dir


def test_a_script_runs_under_this_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bench.py").write_text("")
    assert resolve(["bench.py", "-x", "--", "y"]) == [sys.executable, "bench.py", "-x", "--", "y"]
    assert resolve(["sh", "-c", "true"]) == ["sh", "-c", "true"]
    for wrong in (["missing.py"], ["no-such-command-here"], []):
        with pytest.raises(UsageError):
            resolve(wrong)


def test_python_options_that_keep_the_probe_out_are_refused_and_no_others():
    for options in ("-I", "-E", "-S", "-sE", "-uI"):
        with pytest.raises(UsageError, match="disables the probe"):
            resolve([sys.executable, *options.split(), "x.py"])
    for options in (
        "-s",
        "-P",
        "-c I",
        "-m E -I",
        "x.py -I",
        "-W I",
        "-Xfrozen_modules=off",
        "-u -cI",
    ):
        assert resolve([sys.executable, *options.split(), "x.py"])[-1] == "x.py"


def test_nesting_is_refused():
    refuse_nested({})
    for name in ("NSYS_PROFILING_SESSION_ID", "NSYSALIGN_DIR"):
        with pytest.raises(UsageError, match="already runs under"):
            refuse_nested({name: "1"})


def test_the_users_environment_is_kept(tmp_path):
    env = probe_environment({"PYTHONPATH": "/mine", "A": "b"}, tmp_path, calibrate=False)
    first, rest = env["PYTHONPATH"].split(os.pathsep)
    assert os.listdir(first).count("sitecustomize.py") == 1 and rest == "/mine" and env["A"] == "b"
    assert env["NSYSALIGN_CALIBRATE"] == "0" and env["NSYSALIGN_DIR"] == str(tmp_path)
    assert "NSYSALIGN_CALIBRATE" not in probe_environment({}, tmp_path, calibrate=True)


def test_run_directories_are_fresh_private_and_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = make_run_dir(stem(["a b.py"]))
    second = make_run_dir(stem(["a b.py"]))
    assert (first.name, second.name) == ("a-b-001", "a-b-002")
    assert first.stat().st_mode & 0o777 == 0o700
    (tmp_path / "nsysalign-runs" / "a-b-1041").mkdir()
    assert make_run_dir("a b").name == "a-b-1042"
    assert make_run_dir("").name == "run-001"
    assert stem(["torchrun", "--nproc", "2", "train.py", "x"]) == "train"
    assert stem(["/bin/sh"]) == "sh"
    assert make_run_dir("x", tmp_path / "new" / "deep").is_dir()
    (tmp_path / "file").write_text("")
    for named, said in ((tmp_path, "is not empty"), (tmp_path / "file" / "below", "cannot make")):
        with pytest.raises(NsysError, match=said):
            make_run_dir("x", named)


@pytest.mark.parametrize("receipt", ["", "pipx_metadata.json", "uv-receipt.toml"])
def test_a_tool_of_its_own_takes_the_python_of_the_shell(receipt, tmp_path, monkeypatch):
    """pipx and uv install nsysalign without torch: the script's Python is that of the activated
    environment."""
    script, shell, own = tmp_path / "a.py", tmp_path / "bin", tmp_path / "own"
    for folder in (shell, own):
        folder.mkdir()
    script.write_text("")
    python = shell / "python"
    python.symlink_to(sys.executable)
    (own / (receipt or "pyvenv.cfg")).touch()
    monkeypatch.setattr(sys, "prefix", str(own))
    monkeypatch.setenv("PATH", str(shell))
    expected = str(python) if receipt else sys.executable
    assert resolve([str(script), "-x"]) == [expected, str(script), "-x"]
    monkeypatch.setenv("PATH", str(own))
    if receipt:
        with pytest.raises(UsageError, match="environment of its own, and no python is on PATH"):
            resolve([str(script)])


def test_a_small_limit_of_files_is_said_at_once():
    program = "from nsysalign.record.command import refuse_small_files as f; f()"
    done = subprocess.run(
        ["bash", "-c", f'ulimit -f 1000; exec {sys.executable} -c "{program}"'], capture_output=True, text=True
    )  # fmt: skip
    assert "this shell limits files to 1,024,000 bytes (ulimit -f)" in done.stderr
    refuse_small_files()


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("ulimit -n 40", "limits open files to 40 (ulimit -n)"),
        ("ulimit -v 900000", "limits memory to 921,600,000 bytes (ulimit -v)"),
        ("unshare -Urn true && exec unshare -Urn", "127.0.0.1 cannot be reached"),
        (
            "unshare -Urm true && exec unshare -Urm bash -c 'mount -t tmpfs -o size=1m none \"$1\" && "
            "export TMPDIR=$1 && shift && exec \"$@\"' bash $PWD/small",
            "the folder for temporary files has",
        ),
    ],
)  # fmt: skip
def test_what_nsys_would_hang_at_is_said_at_once(before, words, tmp_path):
    """`doctor` says the same (test_doctor.py).  It took up to 93 s to say that the script never started."""
    (tmp_path / "small").mkdir()
    join = " " if "exec" in before else " && exec "
    program = "import sys; from nsysalign.record.command import refuse_obstacles as f; f()"
    shell = f'{before}{join}{sys.executable} -c "{program}"'
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True)
    if "unshare" in before and "unshare: " in done.stderr:
        pytest.skip("no namespace can be made here")
    assert f"{words}" in done.stderr and "UsageError" in done.stderr, done.stderr


def test_a_usual_shell_has_no_obstacles(tmp_path):
    assert not list(obstacles(tmp_path))
