"""`doctor --calibrate`: measured in processes with and without nsys, kept by machine, refused where it does not fit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from nsysalign.cli import cli
from nsysalign.commands.doctor import cost_row, show_cost
from nsysalign.errors import NsysAlignError, OutputError, UsageError
from nsysalign.predict import nsys_cost, nsys_cost_work
from nsysalign.predict.nsys_cost import (
    CallCost,
    Machine,
    NsysCost,
    Unusable,
    cache_file,
    load,
    save,
    summary,
)
from nsysalign.record.nsys import Nsys

from .conftest import FAKE_TORCH, ROOT
from .user import fresh_environment

NSYS = Nsys("/nowhere/nsys", "2024.2.3.38-1v0", frozenset())
HERE = Machine("NVIDIA H200", "580.95.05", NSYS.version, "2.11.0", "3.11.7", "Some CPU")
CPUINFO = "processor : 0\nmodel name\t: Some  CPU\nflags : x\nmodel name : another\n"


def cost(of=HERE, **more) -> NsysCost:
    calls = {
        "launch": CallCost(4_000.0, 6_000.0, 5_500.0, 1.5, 1.4, 1.7),
        "record": CallCost(2_000.0, 3_500.0, 3_000.0, 1.75, 1.6, 1.9),
        "first record": CallCost(2_500.0, 5_000.0, 4_500.0, 2.0, 1.6, 2.9),
    }
    return replace(NsysCost(of, time.time(), calls, {}), **more)


@pytest.fixture
def environ(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a GPU, as /proc shows it."""
    proc = tmp_path / "proc"
    card = proc / "driver/nvidia/gpus/0000:18:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text(
        "Model: \t\t NVIDIA H200\nIRQ:   16\nGPU UUID: \t GPU-0123-secret\n"
    )
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)  Tue\n"
    )
    (proc / "cpuinfo").write_text(CPUINFO)
    monkeypatch.setattr(nsys_cost, "_PROC", proc)
    monkeypatch.setattr(nsys_cost.metadata, "version", lambda name: "2.11.0")
    monkeypatch.setattr(nsys_cost.platform, "python_version", lambda: "3.11.7")
    return proc


def test_what_a_machine_is_told_by(machine):
    assert nsys_cost.machine(NSYS) == HERE, "and nothing private: no UUID, no host"
    (machine / "cpuinfo").unlink()
    assert nsys_cost.machine(NSYS).cpu == nsys_cost.platform.machine()
    (machine / "driver/nvidia/version").unlink()
    assert nsys_cost.machine(NSYS) is None


def test_it_is_kept_by_machine_and_found_again(environ, tmp_path):
    kept = cost()
    assert load(HERE, environ) is None
    path = save(kept, environ)
    assert path.parent == tmp_path / "cache/nsysalign" and load(HERE, environ) == kept
    for name in asdict(HERE):
        assert load(replace(HERE, **{name: "another"}), environ) is None, f"not for another {name}"


def test_the_cache_is_the_users(tmp_path):
    assert str(cache_file(HERE, {"XDG_CACHE_HOME": "relative"})).startswith(
        str(cache_file(HERE, {}).parent)
    )
    assert cache_file(HERE, {}).parent.parts[-2:] == (".cache", "nsysalign")


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", "{}", '{"format": "nsysalign-nsys-cost", "version": 1}', "\udcff", "[" * 100_000,
])  # fmt: skip
def test_a_damaged_file_is_not_used(environ, text):
    path = save(cost(), environ)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Unusable, match=r"cannot be read|damaged"):
        load(HERE, environ)


def test_a_pipe_in_its_place_is_not_waited_for(environ):
    path = cache_file(HERE, environ)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(Unusable, match="cannot be read"):
        load(HERE, environ)


@pytest.mark.parametrize(
    "name", ["made_s", "plain_ns", "nsys_ns", "nsys_least_ns", "ratio", "ratio_low", "ratio_high"]
)
@pytest.mark.parametrize("value", [0, -1, None, "1", 1e30, float("nan"), True, []])
def test_numbers_that_are_none_are_not_used(environ, name, value):
    path = save(cost(), environ)
    kept = json.loads(path.read_text())
    (kept if name in kept else kept["calls"]["record"])[name] = value
    path.write_text(json.dumps(kept))
    with pytest.raises(Unusable, match="damaged"):
        load(HERE, environ)


def test_old_ones_others_and_those_of_tomorrow_are_not_used(environ):
    save(cost(made_s=time.time() - 31 * 86_400), environ)
    with pytest.raises(Unusable, match="it was measured 31 days ago"):
        load(HERE, environ)
    save(cost(made_s=time.time() + 9_000), environ)
    with pytest.raises(Unusable, match="in the future"):
        load(HERE, environ)
    path = save(cost(), environ)
    other = replace(HERE, gpu="NVIDIA H100")
    path.rename(cache_file(other, environ))
    with pytest.raises(Unusable, match="another machine's"):
        load(other, environ)


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written") as error:
        save(cost(), {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert "XDG_CACHE_HOME=" in error.value.next_step


def test_what_was_measured_side_by_side_is_compared():
    """The host was half as fast from the third batch on: each ratio is still that of its own time."""
    rounds = [
        {
            "launch": [
                (4_000.0, 6_000.0),
                (4_000.0, 6_000.0),
                (8_000.0, 12_000.0),
                (8_000.0, 12_400.0),
            ]
        },
        {"launch": [(4_000.0, 6_000.0)]},
    ]
    found = summary(HERE, rounds, {"graph": "RuntimeError"})
    call = found.calls["launch"]
    assert (call.plain_ns, call.nsys_ns, call.ratio, call.ratio_low) == (4_000, 6_000, 1.5, 1.5)
    assert (
        call.nsys_least_ns == 6_000
        and 1.5 < call.ratio_high <= 1.55
        and found.left_out == {"graph": "RuntimeError"}
    )


def test_a_kind_that_one_side_lacks_is_not_compared():
    found = summary(
        HERE, [{"launch": [(4.0, 6.0)], "item": [(4.0, 6.0)]}], {"item": "RuntimeError"}
    )
    assert list(found.calls) == ["launch"]
    with pytest.raises(NsysAlignError, match="none of the known work"):
        summary(HERE, [{}], {})


def test_the_doctor_shows_age_and_machine(machine, environ):
    assert "not measured on this machine" in cost_row(NSYS, environ).found
    save(cost(made_s=time.time() - 3 * 86_400 - 60), environ)
    row = cost_row(NSYS, environ)
    assert row.state == "ok" and row.found == (
        "measured 3 days ago: NVIDIA H200, driver 580.95.05, nsys 2024.2.3.38, torch 2.11.0, Python 3.11.7, Some CPU"
    )
    cache_file(HERE, environ).write_text("{")
    row = cost_row(NSYS, environ)
    assert (
        row.state == "warning"
        and "damaged: it is not used" in row.found
        and row.cost
        and "--calibrate" in row.fix
    )
    assert cost_row(None, environ) is None
    (machine / "driver/nvidia/version").unlink()
    assert cost_row(NSYS, environ) is None


def test_event_logs_say_what_was_measured(machine, environ):
    assert nsys_cost.for_header(NSYS, environ) == {}
    save(cost(), environ)
    assert nsys_cost.for_header(NSYS, environ) == {
        "record_under_nsys": 1.75,
        "record_undisturbed_ns": 4_500.0,
    }
    ratios = dict(zip(nsys_cost.TYPICAL, (1.25, 1.25, 1.25, 2, 2, 2, 4, 4), strict=True))
    save(
        cost(calls={k: CallCost(4_000, 4_000 * r, 3_900 * r, r, r, r) for k, r in ratios.items()}),
        environ,
    )
    assert nsys_cost.for_header(NSYS, environ) == {
        "added_share": pytest.approx((3 * 0.2 + 3 * 0.5 + 2 * 0.75) / 8)
    }
    save(cost(calls={}), environ)
    assert nsys_cost.for_header(NSYS, environ) == {}
    cache_file(HERE, environ).write_text("{")
    assert nsys_cost.for_header(NSYS, environ) == {}
    (machine / "driver/nvidia/version").unlink()
    assert nsys_cost.for_header(NSYS, environ) == {}


def test_the_table(capsys):
    show_cost(cost(left_out={"graph launch": "RuntimeError"}))
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["launch", "4.00", "6.00", "1.50", "1.40", "to", "1.70"]
    assert "1 kind of call could not be measured: graph launch" in out


# --- as a user -------------------------------------------------------------------------------------------------


def doctor(*arguments, env, **more):
    return subprocess.run(
        [sys.executable, "-m", "nsysalign", "doctor", "--calibrate", *arguments],
        env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **more,
    )  # fmt: skip


def test_a_trace_is_not_calibrated(tmp_path):
    (tmp_path / "t.sqlite").write_text("")
    done = CliRunner().invoke(cli, ["doctor", "--calibrate", str(tmp_path / "t.sqlite")])
    assert isinstance(done.exception, UsageError) and "not a trace" in str(done.exception)


@pytest.mark.nsys
def test_without_torch_two_lines_say_so(nsys, tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_cost.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NsysAlignError) as error:
        nsys_cost.calibrate(nsys, HERE, lambda *_: None)
    assert len(str(error.value).splitlines()) == 2 and "torch is not installed" in str(error.value)


@pytest.mark.nsys
def test_without_a_gpu_two_lines_say_so(nsys, tmp_path):
    """A torch that sees none."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    env = fresh_environment(tmp_path, ROOT) | {
        "NSYS": nsys.path,
        "XDG_CACHE_HOME": str(tmp_path / "c"),
    }
    done = doctor(env=env, cwd=tmp_path)
    assert (
        done.returncode == 3
        and "torch sees no CUDA device here" in done.stderr
        and done.stdout == ""
    )
    assert len(done.stderr.strip().splitlines()) == 2 and not (tmp_path / "c").exists()


@pytest.mark.nsys
def test_with_a_torch_that_is_played_and_a_real_nsys(nsys, machine, environ, monkeypatch, tmp_path):
    """Four kinds of call exist there; what lacks is named; the measurement is kept and used."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE_TORCH), str(ROOT)]))
    said = []
    monkeypatch.setattr(nsys_cost, "BATCHES", 4)
    found = nsys_cost.calibrate(
        nsys, HERE, lambda step, percent: said.append((step, percent)), rounds=2
    )
    percents = [p for _, p in said]
    assert (
        percents == sorted(percents) and percents[0] == 0 and 50 in percents and percents[-1] < 100
    )
    assert "known work with and without nsys: memset" in dict(said)
    assert set(found.calls) == {"memset", "record", "first record", "elapsed_time", "synchronize"}
    assert found.left_out["launch"] == "AttributeError" and len(found.left_out) == 8
    for call in found.calls.values():
        assert (
            0 < call.plain_ns < 1e6
            and call.nsys_least_ns <= call.nsys_ns
            and call.ratio_low <= call.ratio <= call.ratio_high
        )
        assert 0.2 < call.ratio < 5, "nothing of CUDA here: nsys adds nothing"
    save(found, environ)
    assert load(HERE, environ) == found


@pytest.mark.nsys
def test_both_processes_are_gone_when_one_breaks(nsys, monkeypatch):
    """The one under nsys ends in the middle of the work."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE_TORCH), str(ROOT)]))
    begun, popen = [], subprocess.Popen
    monkeypatch.setattr(
        nsys_cost.subprocess, "Popen", lambda *a, **k: begun.append(popen(*a, **k)) or begun[-1]
    )
    batch = nsys_cost._Work.batch

    def broken(self, kind):
        if self._where:
            self._connection.shutdown(socket.SHUT_RDWR)
        return batch(self, kind)

    monkeypatch.setattr(nsys_cost._Work, "batch", broken)
    with pytest.raises(NsysAlignError, match="ended under nsys without a result"):
        nsys_cost.calibrate(nsys, HERE, lambda *_: None)
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)


def test_work_that_leaves_nothing_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(nsys_cost.sys, "executable", "/bin/false")
    with pytest.raises(NsysAlignError, match="ended without a result"):
        nsys_cost.calibrate(replace(NSYS, path="/bin/false"), HERE, lambda *_: None)


def test_a_folder_too_deep_for_a_socket_is_said(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(NsysAlignError, match="no socket can be made there") as error:
        nsys_cost.calibrate(NSYS, HERE, lambda *_: None)
    assert error.value.next_step == "TMPDIR=/tmp nsysalign doctor --calibrate"


def test_the_work_is_what_torch_understands():
    """On the CPU: all kinds but those that only a GPU has."""
    torch = pytest.importorskip("torch")
    on_cpu = SimpleNamespace(
        zeros=lambda shape, device=None: torch.zeros(shape), mm=torch.mm, nn=torch.nn, int8=torch.int8,
        empty=lambda size, dtype, device: torch.empty(size, dtype=dtype),
    )  # fmt: skip
    gpu_only = {
        "copy from pinned memory",
        "graph launch",
        "record",
        "first record",
        "elapsed_time",
        "synchronize",
    }
    with torch.no_grad():
        for name, ready in nsys_cost_work.kinds(on_cpu).items():
            if name not in gpu_only:
                assert nsys_cost_work.batch(name, ready(), lambda: None) > 0, name
