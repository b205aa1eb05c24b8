"""`nsysalign run`: arguments pass through, the script's status comes back, the analysis is always
tried."""

from __future__ import annotations

import os
import signal
import types
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from nsysalign.cli import cli, main
from nsysalign.errors import Interrupted, TraceError
from nsysalign.model import Known
from nsysalign.record import session


@pytest.fixture
def invoked(monkeypatch, tmp_path):
    """`invoked(*args, status=, fails=)`: the command with collect and present replaced, and both
    calls."""

    def invoke(*args: str, status: int = 0, fails=None):
        calls = {}

        def collect(command, options, progress):
            calls["collect"] = (list(command), options)
            return session.CollectResult(tmp_path, status, tmp_path / "s", (), ("a note",))

        def present(run_dir, *, quiet, json_out):
            calls["present"] = (run_dir, quiet, json_out)
            if fails:
                raise fails() if callable(fails) else fails
            return types.SimpleNamespace(intervals=pd.DataFrame({"ns": [1]}), known=Known())

        monkeypatch.setattr(session, "collect", collect)
        monkeypatch.setattr("nsysalign.commandline.present.present", present)
        return CliRunner().invoke(cli, ["run", *args]), calls

    return invoke


def test_options_before_the_command_are_ours_and_after_it_the_scripts(invoked, tmp_path):
    result, calls = invoked(
        "--accurate", "-o", "D", "--no-calibrate", "--graph-trace", "node", "--json", "x.json", "-q", "s.py",
        "--accurate", "-o", "E", "--", "-q",
    )  # fmt: skip
    command, options = calls["collect"]
    assert result.exit_code == 0 and command == ["s.py", "--accurate", "-o", "E", "--", "-q"]
    assert options == session.CollectOptions(
        nsys=None, output=Path("D"), accurate=True, calibrate=False, graph_trace="node"
    )
    assert calls["present"] == (tmp_path, True, "x.json")


def test_the_scripts_status_is_returned_after_the_analysis(invoked):
    result, calls = invoked("s.py", status=7)
    assert result.exit_code == 7 and "present" in calls and "ended with status 7" in result.output
    error = TraceError("empty", "measure something")
    result, _ = invoked("s.py", status=7, fails=error)
    assert result.exit_code == 7 and "not analysed: empty" in result.output
    result, _ = invoked("s.py", fails=error)
    assert result.exception is error


def test_ctrl_c_during_the_analysis_says_how_to_go_on(invoked, tmp_path):
    result, _ = invoked("s.py", fails=KeyboardInterrupt())
    assert isinstance(result.exception, Interrupted) and result.exception.exit_code == 130
    assert str(result.exception).endswith(f"is kept\n  next: nsysalign analyze {tmp_path}")
    result, _ = invoked("s.py", status=7, fails=KeyboardInterrupt())
    assert result.exit_code == 7 and "what was recorded is kept" in result.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_analysis_says_how_to_go_on(invoked, tmp_path, number):
    def told():
        os.kill(os.getpid(), number)
        return OSError("it went on")

    before = signal.getsignal(number)
    result, _ = invoked("s.py", fails=told)
    assert result.exception.exit_code == 128 + number and signal.getsignal(number) == before
    assert str(result.exception).endswith(f"is kept\n  next: nsysalign analyze {tmp_path}")


def test_ctrl_c_elsewhere_is_no_finding(monkeypatch, capsys, tmp_path):
    """1 would be one of --fail-on."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("nsysalign.commandline.present.present", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["analyze", str(tmp_path)])
    assert ended.value.code == 130 and capsys.readouterr().err == "\nnsysalign: interrupted\n"
