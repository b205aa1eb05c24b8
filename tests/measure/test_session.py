"""Whole measurements on the simulated device, every worker a real process: numbers, ways of ending,
what is said and what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from waiting import command_line, wait_until

import nsysalign
from nsysalign.addons.measure import session
from nsysalign.addons.measure.command import Options, Target
from nsysalign.addons.measure.result import advised
from nsysalign.addons.measure.session import MeasureError, Session
from nsysalign.cli import cli
from nsysalign.errors import UsageError

from .conftest import CALLS, SIMULATED
from .programs import calls

ROOT = Path(__file__).parents[2]
FAKE_NVML = ROOT / "tests" / "fakenvml"


# --- what is measured ---


def test_a_measurement_and_everything_it_leaves(measured):
    done = measured("make", batch="1,2,8", processes=3)
    m = done.measure
    order = [o.spec["batches"][0] for o in done.outcomes]
    rounds = [tuple(order[k : k + 3]) for k in (0, 3, 6)]
    assert all(sorted(r) == [1, 2, 8] for r in rounds) and len(set(rounds)) > 1
    assert m.complete and [p.batch for p in m.points] == [1, 2, 8]
    one, steady = m.points[0], m.points[0].warm("steady")
    assert steady.value_ns == pytest.approx(10 * 24_300, rel=0.01) and steady.processes == 3
    assert one.rate == pytest.approx(1e9 / (10 * 24_300), rel=0.01)
    assert one.peak_bytes == (1 << 30) + (200 << 20) and one.floor_ns == 2_592
    assert m.curve["marks"].tolist() == ["", "", "best"]
    assert {mode for mode, _ in one.modes} == {"latency", "event", "device", "steady", "graph"}
    assert len(m.samples) == sum(len(b.ns) for b in m.blocks) and m.samples["ns"].min() > 0


def test_every_clock_and_what_a_call_cannot_be_timed_by(measured):
    """A kernel of 50 us (65 with a cold L2): the distances of tests/measure/simulated.py."""
    m = measured("with_inputs", clocks=True, processes=1).measure
    warm, cold = map(m.points[0].ways, ("warm", "cold"))
    assert list(warm) == ["latency", "event", "device", "steady", "do_bench_cudagraph", "graph"]
    assert list(cold) == ["latency", "event", "device", "do_bench", "graph"]
    us = {way: ns / 1e3 for way, ns in warm.items()}
    expected = {"latency": 62, "event": 58.3, "device": 52.6, "do_bench_cudagraph": 50}
    assert us == pytest.approx(expected | {"graph": 61.3, "steady": 51.3}, abs=0.2)
    assert cold["do_bench"] == pytest.approx(cold["device"], abs=200)
    assert cold["device"] - warm["device"] == pytest.approx(15_000, abs=400)
    assert any(n.startswith("no profile-default: ") for n in m.notes) and not m.failed


def test_the_advice_is_the_smallest_within_five_percent():
    assert advised({1: 10, 8: 96, 32: 98, 64: 100, 128: 99.5}) == 8


def test_a_search_from_end_to_end(measured):
    """1 GiB and 200 MiB per item, nine tenths of 80 GiB: 363 fit, 512 do not."""
    done = measured("make", batch="auto", processes=1)
    m = done.measure
    assert m.search == {"largest": 256, "failed_at": 512} and not m.failed
    (climb,) = (o for o in done.outcomes if o.spec["role"] == "probe")
    assert [f["batch"] for f in climb.all("batch")] == [2**k for k in range(10)]
    assert {r.number for r in m.runs} == set(range(len(m.runs)))
    assert m.best.rate == max(p.rate for p in m.points) and "best" in m.best.marks
    assert m.points[-1].marks.endswith("largest that fits")
    assert m.advised.batch < m.best.batch and m.advised.rate >= 0.95 * m.best.rate
    assert m.advised.marks == "within 5 % of the best"


def test_a_search_that_meets_another_error_says_it_and_never_calls_it_memory(measured):
    m = measured("not_memory", batch="auto", processes=1, modes=("steady",)).measure
    assert (m.search["largest"], m.search["failed_at"]) == (8, None)
    (note,) = (n for n in m.notes if "batch 16" in n)
    assert note.startswith("the search ended at batch 16: an exception")
    assert not any("largest" in p.marks for p in m.points)


def test_two_functions_are_compared_and_the_slower_one_is_found(measured):
    done = measured("make", "slower", batch="4", processes=3)
    m = done.measure
    (d,) = (c for c in m.changes() if c.mode == "device")
    assert d.verdict == "slower" and d.low < (8_000 + 1_300) / (10 * 33_300 + 1_300) < d.high
    order = [o.spec["side"] for o in done.outcomes]
    assert sorted(order) == [0, 0, 0, 1, 1, 1] and order != sorted(order)


def test_zeros_are_a_caveat_and_paths_of_this_machine_are_in_no_result(measured):
    done = measured("absent_file", "zeros", modes=("event",), batch="1")
    text = (done.folder / "measure.json").read_text()
    assert "the inputs are all zeros" in text
    assert "secret.bin" in text and "/home/somebody" not in text


# --- budgets ---


def test_a_budget_too_short_says_what_a_longer_one_would_add(measured):
    began = time.monotonic()
    try:
        done = measured("make", batch="1,2,4,8,16,32", processes=3, budget_s=3.0, modes=("event",))
    except MeasureError as error:
        assert "budget" in str(error)
    else:
        result = done.measure
        whole = all(p.latency.processes >= 3 for p in result.points) and len(result.points) == 6
        said = [n for n in result.notes if n.startswith("the budget of 3 s ran out: ")]
        assert whole or (said and said[0].endswith(" of 18 processes left out"))
        assert not result.failed
        assert time.monotonic() - began < 3.0 + 5.0  # the last may be under way when it ends


def test_the_process_that_the_budget_cuts_short_is_told(measured, monkeypatch):
    """It was the last one, behind which no process is left to tell of."""
    run_worker, started = session.run_worker, []

    def cut_short(spec, folder):
        started.append(spec)
        outcome = run_worker(spec, folder)
        return replace(outcome, failure="hang") if len(started) == 2 else outcome

    monkeypatch.setattr(session, "run_worker", cut_short)
    done = measured("make", batch="1", processes=2, budget_s=600.0, job_limit_s=1e6)
    assert "the budget of 600 s ran out: 1 of 2 processes left out" in done.measure.notes


# --- ways of ending ---


def outcome(tmp_path, name, batch=None):
    options = Options(
        (Target(name, f"{CALLS}:{name}"),), backend=SIMULATED, output=tmp_path / "out"
    )
    spec = Session(options).spec("time", 0, (batch,), ("event",), 2.0)
    return session.run_worker(spec, tmp_path)


@pytest.mark.parametrize(
    ("name", "batch", "kind", "words"),
    [
        ("absent", None, "wrong", "loading the function: calls.py has no function absent"),
        ("NUMBER", None, "wrong", "NUMBER is of type int, and a function is needed"),
        ("needs_arguments", None, "wrong", "needs_arguments(batch, width, height) needs more"),
        (
            "returns_nothing",
            None,
            "wrong",
            "returned NoneType, and a call or nsysalign.Workload was",
        ),
        ("returns_module", None, "wrong", "return a call, such as lambda: model(x)"),
        ("no_work", None, "wrong", "no work on the current stream"),
        ("fails_in_warm_up", None, "error", "warming up (calls.py:"),
        ("dies", None, "died", "the process died while making the call: exit status 7"),
        ("segfaults", None, "died", "while making the call: SIGSEGV"),
        ("oom_torch", 16, "oom", "out of memory while making the call (calls.py:"),
        ("oom_cublas", 16, "oom", "out of memory"),
        ("oom_cuda", 16, "oom", "out of memory"),
        ("oom_host", 16, "oom", "out of memory"),
        # by no words of theirs: a shape out of bounds, somebody else's exception
        ("not_memory", 16, "error", "an exception while making the call"),
        ("not_memory_either", 16, "error", "an exception while making the call"),
    ],
)
def test_each_failure_is_said_as_what_it_is(tmp_path, name, batch, kind, words):
    done = outcome(tmp_path, name, batch)
    assert done.failure == kind and words in done.text.replace(f"{CALLS.parent}/", "")


def test_workers_have_no_variables_of_profilers(tmp_path, monkeypatch):
    """Whatever the shell has set up for one."""
    for name in ("NSYSALIGN_DIR", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        monkeypatch.setenv(name, "/x/libToolsInjection64.so")
    assert not outcome(tmp_path, "without_profilers").failure


def test_what_hangs_in_the_middle_keeps_its_blocks(measured):
    m = measured("hangs_late", modes=("event",), processes=1, job_limit_s=4.0).measure
    assert len(m.samples) and any("while measuring (calls.py:" in n for n in m.notes) and m.complete
    assert [run.failure for run in m.runs] == ["hang"]


def ended(folder, *arguments, path=(), **env):
    """(status, standard error, the measurement or None)."""
    words = "-m", "nsysalign", "measure", "--backend", SIMULATED, "-q", "-o", "out", *arguments
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), **env}
    done = warm.python([*words], folder, environment, timeout_s=120)
    assert "Traceback" not in done.stderr, done.stderr
    file = folder / "out" / "measure.json"
    return done.returncode, done.stderr, json.loads(file.read_text()) if file.exists() else None


@pytest.mark.parametrize(
    ("call", "more", "words"),
    [
        ("fails_in_warm_up", "", "ValueError: the third call is one too many"),
        ("no_work", "--batch auto --budget 20", "does no work on the current stream"),
        ("dies", "--batch auto --budget 20", "exit status 7"),
        pytest.param(
            "default", "--backend cuda --batch auto", "starting CUDA",
            marks=pytest.mark.skipif(bool(shutil.which("nvidia-smi")), reason="a GPU is here"),
        ),
    ],
)  # fmt: skip
def test_where_nothing_was_measured_it_says_why_and_leaves_no_number(tmp_path, call, more, words):
    status, said, kept = ended(tmp_path, f"{CALLS}:{call}", "--processes", "1", *more.split())
    assert status == 3 and words in said and kept is None


def test_memory_that_ends_at_one_batch_keeps_the_others_and_fails(tmp_path):
    given = [f"{CALLS}:oom_torch", "--mode", "event", "--processes", "1", "--batch", "1,16"]
    status, _, kept = ended(tmp_path, *given)
    assert status == 3 and {r["batch"] for r in kept["runs"] if not r["failure"]} == {1}
    assert any("out of memory" in n for n in kept["notes"])


def test_clocks_are_held_while_it_measures(tmp_path):
    log = tmp_path / "nvml.log"
    env = {"FAKE_NVML_NAMES": "NVIDIA H200", "FAKE_NVML_LOG": str(log)}
    given = [f"{CALLS}:default", "--mode", "event", "--processes", "1", "--lock-clocks", "1500"]
    status, said, kept = ended(tmp_path, *given, path=[FAKE_NVML], **env)
    assert status == 0 and "were locked at 1500 MHz" in " ".join(kept["notes"]), said
    assert " ".join(log.read_text().split()) == "lock 0 1500 1500 reset 0"


def test_sigterm_keeps_what_was_measured_and_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "nsysalign", "measure", f"{CALLS}:hangs_second"]
    command += f"--batch 1,2 --mode event --backend {SIMULATED} -o o".split()
    process = subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1)
    folder = tmp_path / "o" / "workers"

    def reached():
        """One batch is measured, and the other hangs."""
        texts = [p.read_text() for p in folder.glob("*.jsonl")] if folder.is_dir() else []
        hangs = [t for t in texts if '"warming up"' in t and '"first_ns"' not in t]
        return hangs and any('"done"' in t for t in texts)

    wait_until(reached, "the second batch never hung")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143 and b"are kept" in said
    kept = json.loads((tmp_path / "o/measure.json").read_text())
    assert not kept["complete"] and kept["blocks"] and len(kept["points"]) == 1
    running = [p.name for p in Path("/proc").iterdir() if p.name.isdecimal()]
    assert not any(os.fsencode(tmp_path) in command_line(pid) for pid in running)


# --- Python and the command line ---


def test_benchmark_from_python(tmp_path):
    how = {"backend": SIMULATED, "processes": 2, "output": tmp_path / "o"}
    r = nsysalign.benchmark(calls.make, batch=[1, 4], modes=["latency", "steady"], **how)
    assert r.curve["batch"].tolist() == [1, 4] and r.best.batch == 4


def test_a_function_that_no_other_process_finds_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="a fresh process cannot import it") as error:
        nsysalign.benchmark(lambda: None)
    assert "%%writefile bench.py" in error.value.next_step
    with pytest.raises(UsageError, match="expected a function"):
        nsysalign.benchmark(3)
    monkeypatch.setenv("NSYSALIGN_MEASURE_WORKER", "1")
    with pytest.raises(UsageError, match="called again"):
        nsysalign.benchmark(calls.make)
    assert list(tmp_path.iterdir()) == []


def test_the_command_its_files_and_diff(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = f"--backend {SIMULATED} --mode latency,steady --batch 4 --processes 1".split()
    for name, folder in (("make", "a"), ("slower", "b")):
        with pytest.raises(SystemExit) as end:
            cli.main(["measure", f"{CALLS}:{name}", *common, "-o", folder])
        assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("One call takes ") and "simulated device" in out
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"measure.json", "measure.html"}
    with pytest.raises(UsageError, match="diff compares analyses") as error:
        cli.main(["diff", "a", "b"], standalone_mode=False)
    assert "both in turns" in error.value.next_step


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nofile.py:make"], "nofile.py: no such file"),
        (["bench.py"], "name a function as FILE.py:FUNCTION"),
        ([f"{CALLS}:make", "--batch", "0"], "neither auto nor whole numbers"),
        ([f"{CALLS}:make", "--mode", "wall"], "there is no mode wall"),
        ([f"{CALLS}:make", "--clocks", "--batch", "auto"], "--clocks is about one batch"),
        ([f"{CALLS}:make", f"{CALLS}:slower", "--batch", "auto"], "the search is of one target"),
    ],
)  # fmt: skip
def test_wrong_usage_is_said_before_anything_runs(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        cli.main(["measure", *arguments], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []
