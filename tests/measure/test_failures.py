"""Every way for a worker to fail, each a process of its own, without a GPU: what is said, and what
is never said."""

from __future__ import annotations

import pytest

from nsysalign.addons.measure import runner
from nsysalign.addons.measure.plan import Job, Options, Target

from .conftest import CALLS, SIMULATED


def outcome(tmp_path, name, *, batch=None, limit_s=60.0, mode="event"):
    options = Options((Target(name, f"{CALLS}:{name}"),), backend=SIMULATED)
    job = Job(0, 0, (batch,), "time", (mode,), ("warm",), 2.0, limit_s)
    return runner.run(job, options, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "stage", "words"),
    [
        ("absent", "usage", "loading the function", "has no function absent (there: "),
        ("NUMBER", "usage", "loading the function", "NUMBER is of type int, and a function is needed"),
        ("needs_arguments", "usage", "making the call", "needs_arguments(batch, width, height) needs more arguments"),
        ("returns_nothing", "usage", "making the call", "returned NoneType, and a call or nsysalign.Workload was expected (it did"),
        ("returns_number", "usage", "making the call", "returned int"),
        ("returns_module", "usage", "making the call", "return a call, such as lambda: model(x)"),
        ("no_work", "no-work", "setting up", "no work on the current stream"),
        ("fails_in_warm_up", "error", "warm-up", "ValueError: the third call is one too many"),
        ("dies", "died", "making the call", "exit status 7"),
        ("segfaults", "died", "making the call", "SIGSEGV"),
        ("is_killed", "died", "making the call", "SIGKILL"),
    ],
)  # fmt: skip
def test_each_is_said_as_what_it_is(tmp_path, name, kind, stage, words):
    mode = "device" if name == "no_work" else "event"
    failure = outcome(tmp_path, name, mode=mode).failure
    assert (failure.kind, failure.stage) == (kind, stage) and words in failure.message
    assert "memory" not in failure.sentence()


@pytest.mark.parametrize("name", ["oom_torch", "oom_cublas", "oom_cuda", "oom_host"])
def test_each_way_of_running_out_of_memory(tmp_path, name):
    assert outcome(tmp_path, name, batch=1).failure is None
    failure = outcome(tmp_path, name, batch=16).failure
    assert failure.kind == "oom"


@pytest.mark.parametrize("name", ["not_memory", "not_memory_either"])
def test_anything_else_is_never_called_memory(tmp_path, name):
    """Not by its words either: a shape out of bounds, somebody else's exception with torch's
    text."""
    failure = outcome(tmp_path, name, batch=16).failure
    assert failure.kind == "error"


def test_a_hang_is_ended_and_says_where(tmp_path):
    done = outcome(tmp_path, "hangs", limit_s=4.0)
    assert done.failure.kind == "hang" and done.failure.where.startswith("calls.py:")
    assert "warm-up" in done.failure.sentence() and 4 <= done.wall_s < 12


def test_what_was_written_before_a_cut_line_is_read(tmp_path):
    path = tmp_path / "facts.jsonl"
    path.write_text('{"type":"hello"}\n[1]\n{"type":"block","ns":[1,2')
    assert list(runner.read(path)) == [{"type": "hello"}]


def test_workers_have_no_injection_no_probe_and_no_nvtx(tmp_path, monkeypatch):
    """Whatever the shell has set up for a profiler."""
    monkeypatch.setenv("NSYSALIGN_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/x/libToolsInjection64.so")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/x/libToolsInjection64.so")
    done = outcome(tmp_path, "default")
    assert done.failure is None and done.first("hello")["clean"]["found"] == []
