"""Doctor: rows with a cost and a fix."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

from click.testing import CliRunner

from nsysalign.commands import doctor

OTHERS = {
    "CUDA_INJECTION64_PATH": "/x/libother.so",
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def rows_of(environ: dict[str, str], nsys: str = "/nonexistent/nsys") -> dict[str, doctor.Row]:
    rows = doctor.look_at_machine({"PATH": "/nonexistent", **environ}, nsys)
    assert all(row.cost and row.fix for row in rows if row.state != "ok")
    return {row.finding if row.subject == "settings" else row.subject: row for row in rows}


def test_what_is_missing_has_a_cost_and_a_fix():
    rows = rows_of({"NSYS_PROFILING_SESSION_ID": "1"})
    assert rows["nsys"].state == "missing" and "/nonexistent/nsys" in rows["nsys"].finding
    assert rows["session"].state == "missing" and rows["python"].state == "ok"
    rows = rows_of(OTHERS)
    assert rows["session"].finding.endswith("(CUDA_INJECTION64_PATH: libother.so)")
    assert {"CUDA_LAUNCH_BLOCKING=1", "CUDA_VISIBLE_DEVICES hides every GPU"} <= rows.keys()
    result = CliRunner().invoke(doctor.doctor, [])
    assert result.exit_code in (0, 3) and "python" in result.output and "nsys" in result.output


def test_gpus(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'NVIDIA H200, 580.95\\nNVIDIA H200, 580.95\\n'\n")
    program.chmod(0o755)
    rows = rows_of({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert rows["gpu"].finding == "2 x NVIDIA H200, driver 580.95"


def test_a_folder_that_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2e8))
    assert rows_of({"TMPDIR": str(tmp_path)})["temporary"].state == "warning"


def test_which_recorders_work(monkeypatch):
    from nsysalign.record import cupti

    monkeypatch.setattr(cupti, "why_not", lambda environ: None)
    rows = rows_of({})
    assert rows["cupti"].state == "ok" and rows["nsys"].state == "warning"
    monkeypatch.setattr(cupti, "why_not", lambda environ: "no driver")
    rows = rows_of({})
    assert "no driver" in rows["cupti"].finding and rows["nsys"].state == "missing"


def test_what_nsys_would_hang_at(monkeypatch):
    from nsysalign.record import command

    monkeypatch.setattr(command, "obstacles", lambda folder: [("1 MB of TMPDIR", "another")])
    row = rows_of({})["limits"]
    assert (row.state, row.finding, row.fix) == ("missing", "1 MB of TMPDIR", "another")
