"""Shell completion: commands, options, choices, and the names inside a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete
from handmade import bad, build

from nsysalign.cli import COMMANDS, cli
from nsysalign.store import database


def proposed(*arguments: str, incomplete: str = "") -> list[str]:
    complete = BashComplete(cli, {}, "nsysalign", "_NSYSALIGN_COMPLETE")
    return [
        item.value for item in complete.get_completions([str(a) for a in arguments], incomplete)
    ]


def test_commands_options_and_choices():
    assert proposed() == list(COMMANDS)
    assert proposed("export", "--format") == ["perfetto", "chrome", "json", "csv", "parquet"]
    assert proposed("run", incomplete="--no-c") == ["--no-calibrate", "--no-clocks"]


def test_labels_and_intervals_of_the_run(analysis, tmp_path):
    database.write(analysis, tmp_path / "analysis.db")
    assert proposed("show", tmp_path, "--label", incomplete="t") == ["t1", "t2"]
    assert proposed("export", tmp_path / "analysis.db", "-l", incomplete="do") == ["do_bench"]
    assert proposed("report", tmp_path, "--interval", incomplete="t1#") == ["t1#0", "t1#1", "t1#2"]


def test_nothing_is_proposed_where_nothing_is_known(tmp_path):
    assert proposed("show", "--label") == proposed("show", tmp_path / "absent", "--label") == []
    (tmp_path / "analysis.db").write_text("no database")
    assert proposed("show", tmp_path, "--label") == []
    database.write(build(name=bad), tmp_path / "analysis.db")
    assert proposed("show", tmp_path, "--label") == []  # they would drive the terminal
    assert sorted(p.name for p in tmp_path.iterdir()) == ["analysis.db"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_real_bash_completes(tmp_path):
    """As docs/commands.md says it, with the shell's own function."""
    program = tmp_path / "nsysalign"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nsysalign "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_NSYSALIGN_COMPLETE=bash_source nsysalign)"; COMP_WORDS=(nsysalign d); COMP_CWORD=1; '
        '_nsysalign_completion nsysalign; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env)
    assert (done.stdout, done.stderr) == ("diff demo doctor\n", "")
