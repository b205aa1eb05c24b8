"""Doctor: rows with a cost and a fix, for machines and for traces."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

from nsysalign.commands import doctor
from nsysalign.record.nsys import Nsys


def test_what_is_missing_has_a_cost_and_a_fix(tmp_path):
    rows = doctor.look_at_machine(
        {"PATH": "/nonexistent", "NSYS_PROFILING_SESSION_ID": "1"}, "/nonexistent/nsys"
    )
    states = {r.what: r for r in rows}
    assert states["nsys"].state == "missing" and "/nonexistent/nsys" in states["nsys"].found
    assert states["session"].state == "missing" and states["python"].state == "ok"
    assert all(r.cost and r.fix for r in rows if r.state != "ok")


def test_nvtx_that_does_not_fit_nsys_is_told(monkeypatch):
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", lambda name: "0.2.17")
    old = Nsys("x", "2024.2.3.38", frozenset())
    new = Nsys("x", "2025.3.1", frozenset({"cuda-event-trace"}))
    assert doctor._nvtx(old).state == "warning" and doctor._nvtx(new).state == "ok"
    assert "this nsys has no --cuda-event-trace" in {row.found for row in doctor._options(old)}
    assert "--cuda-event-trace" in [*doctor._options(new)][-1].found
    monkeypatch.setattr("nsysalign.record.nsys.find_nsys", lambda explicit: new)
    assert doctor._nsys(None)[1].found == "2025.3.1 (x); tried was 2024.2.3"
    monkeypatch.setattr("nsysalign.record.nsys.find_nsys", lambda explicit: old)
    assert doctor._nsys(None)[1].found == "2024.2.3.38 (x)"
    monkeypatch.setattr(metadata, "version", lambda name: "0.2.11")
    assert doctor._nvtx(old).state == "ok"


def smi(folder, *gpus: str) -> dict[str, str]:
    """An environment in which nvidia-smi answers this."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(gpus) + "\nEND\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_persistence_mode_and_clocks(tmp_path):
    cold = "NVIDIA H200, 580.95, Disabled, 345, 1980, 0"
    rows = {r.what: r for r in doctor._gpu(smi(tmp_path, cold, cold))}
    assert rows["gpu"].found == "2 x NVIDIA H200, driver 580.95"
    assert rows["persistence"].state == "warning" and "nvidia-smi -pm 1" in rows["persistence"].fix
    assert rows["clocks"].state == "warning" and "345 of 1980" in rows["clocks"].found
    assert "-lgc 1584" in rows["clocks"].fix
    rows = {
        r.what: r for r in doctor._gpu(smi(tmp_path, "NVIDIA H200, 580.95, Enabled, 1980, 1980, 0"))
    }
    assert {r.state for r in rows.values()} == {"ok"} and len(rows) == 3
    rows = list(doctor._gpu(smi(tmp_path, "Tesla K80, 470.1, [N/A], [N/A], [N/A], [N/A]")))
    assert [r.what for r in rows] == ["gpu"], "what is not known is not said"


def test_other_tools_and_settings(tmp_path):
    environ = {
        "PATH": "/nonexistent",
        "CUDA_INJECTION64_PATH": "/x/libother.so",
        "CUDA_LAUNCH_BLOCKING": "1",
    }
    rows = doctor.look_at_machine({**environ, "CUDA_VISIBLE_DEVICES": ""}, "/nonexistent/nsys")
    said = {r.found for r in rows}
    assert (
        "another tool is injected into CUDA programs here (CUDA_INJECTION64_PATH: libother.so)"
        in said
    )
    assert {"CUDA_LAUNCH_BLOCKING=1", "CUDA_VISIBLE_DEVICES hides every GPU"} <= said


def test_a_python_without_an_environment_and_a_folder_that_is_full(tmp_path, monkeypatch):
    done = subprocess.run(
        [sys.executable, "-E", "-c", "from nsysalign.commands import doctor; print(doctor._python())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "missing" in done.stdout and "-I, -E or -S" in done.stdout
    rows = {r.what: r for r in doctor._room({"TMPDIR": str(tmp_path / "absent")})}
    assert rows["folder"].state == rows["temporary"].state == "ok", "Python goes to /tmp then"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2e8))
    assert {r.state for r in doctor._room({"TMPDIR": str(tmp_path)})} == {"warning"}
