"""`nsysalign run` and `analyze` that are interrupted, or fail, after the script has ended."""

from __future__ import annotations

import json
import os
import signal

import pytest
from click.testing import CliRunner

from nsysalign.cli import cli, main
from nsysalign.errors import Interrupted, TraceError
from nsysalign.record import session


@pytest.fixture
def invoked(monkeypatch, tmp_path):
    """`invoked(fails, *options, status=)`: `run s.py`, whose script ends and whose analysis fails."""

    def invoke(fails, *options: str, status: int = 0):
        def collect(*_, **__):
            return session.CollectResult(tmp_path, status, tmp_path / "s", (), ())

        def present(*_, **__):
            raise fails() if callable(fails) else fails

        monkeypatch.setattr(session, "collect", collect)
        monkeypatch.setattr("nsysalign.commandline.present.present", present)
        return CliRunner().invoke(cli, ["run", *options, "s.py"])

    return invoke


def test_a_failed_script_keeps_its_status(invoked):
    error = TraceError("empty", "measure something")
    result = invoked(error, status=7)
    assert result.exit_code == 7 and "not analysed: empty" in result.output
    assert invoked(error).exception is error


def test_a_script_that_lacks_a_module_is_told_where_to_install(invoked, monkeypatch, tmp_path):
    """What nsys makes of a program that did not start would point the wrong way."""
    monkeypatch.chdir(tmp_path)
    error = TraceError("CUDA profiling might have not been started correctly")
    text = "import os, absent_one.part\nfrom absent_two import x\nfrom . import y\ntry:\n    import optional\nexcept ImportError: pass\n"
    (tmp_path / "s.py").write_text(text)
    result = invoked(error, status=1)
    assert result.exit_code == 1 and "profiling" not in result.output
    assert "imports absent_one and absent_two, not installed" in result.output
    assert "nsysalign run -- /path/to/python s.py" in result.output
    (tmp_path / "absent_two.py").write_text("")
    assert "imports absent_one, not installed" in invoked(error, status=1).output
    assert "imports" not in invoked(error, status=2).output  # no exception ended it
    monkeypatch.setattr("nsysalign.record.command.script_python", lambda: "/another/python")
    assert "imports" not in invoked(error, status=1).output


def test_a_failed_script_has_a_line_of_json(invoked, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = invoked(TraceError("empty"), "--brief", status=7)
    answer = json.loads(result.stdout.splitlines()[-1])
    assert (answer["verdict"], answer["command"]) == ("error", "run") and answer["next"]
    assert "status 7" in answer["sentence"]


def test_ctrl_c_during_the_analysis_says_how_to_go_on(invoked, tmp_path):
    result = invoked(KeyboardInterrupt())
    assert isinstance(result.exception, Interrupted) and result.exception.exit_code == 130
    assert str(result.exception).endswith(f"is kept\n  next: nsysalign analyze {tmp_path}")
    result = invoked(KeyboardInterrupt(), status=7)
    assert result.exit_code == 7 and "what was recorded is kept" in result.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_analysis_says_how_to_go_on(invoked, tmp_path, number):
    def told():
        os.kill(os.getpid(), number)
        return OSError("it went on")

    before = signal.getsignal(number)
    result = invoked(told)
    assert result.exception.exit_code == 128 + number and signal.getsignal(number) == before
    assert str(result.exception).endswith(f"is kept\n  next: nsysalign analyze {tmp_path}")


def test_ctrl_c_elsewhere_is_no_finding(monkeypatch, capsys, tmp_path):
    """1 would be one of --fail-on."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("nsysalign.commandline.present.present", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["analyze", str(tmp_path)])
    assert ended.value.code == 130 and "interrupted" in capsys.readouterr().err
