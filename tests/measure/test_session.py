"""Whole measurements on the simulated device, every worker a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from waiting import wait_until

import nsysalign
from nsysalign.addons.measure import gpu, runner
from nsysalign.addons.measure.result import Key, load
from nsysalign.addons.measure.session import MeasureError
from nsysalign.cli import cli
from nsysalign.errors import AnalysisError, UsageError

from .conftest import CALLS, SIMULATED
from .programs import calls


def test_a_measurement_and_everything_it_leaves(measured):
    done = measured("make", batches=(1, 2, 8), processes=3, most_processes=3)
    m = load(done.folder)
    order = [o.job.batches[0] for o in done.outcomes]
    rounds = [tuple(order[k : k + 3]) for k in (0, 3, 6)]
    assert all(sorted(r) == [1, 2, 8] for r in rounds) and len(set(rounds)) > 1
    assert m.complete and [p.batch for p in m.points] == [1, 2, 8]
    one, steady = m.points[0], m.estimates[Key(0, 1, "steady", "warm")]
    assert steady.value_ns == pytest.approx(10 * 24_300, rel=0.01) and one.processes == 3
    assert one.rate == pytest.approx(1e9 / (10 * 24_300), rel=0.01)
    assert one.memory_bytes == (1 << 30) + (200 << 20)
    assert m.curve["marks"].tolist() == ["", "", "best"]
    assert set(m.modes["mode"]) == {"latency", "event", "device", "steady", "graph"}
    assert len(m.samples) == sum(len(b.ns) for b in m.blocks) and m.samples["ns"].min() > 0
    assert all(r.clean["found"] == [] for r in m.runs)


def test_a_measurement_of_version_1_is_read_and_one_of_tomorrow_refused(measured):
    folder = measured("default", modes=("event",), processes=1).folder
    document = json.loads((folder / "measure.json").read_text())
    profile = {"target": 0, "batch": None, "run": "profile-default", "elapsed_ns": 5e4}
    profile |= {"parts_ns": {"kernel": 5e4}, "gpu_ns": {"warm": {"event": 9e4, "sum": 5e4}}}
    old = {"version": 1, "profiles": [profile], "ladder": [{"way": "event", "known_ns": None}]}
    (folder / "measure.json").write_text(json.dumps(document | old))
    m = load(folder)
    assert m.profiles[0].gpu_ns["warm"]["sum"] == 5e4 and m.points[0].latency_ns > 0
    (folder / "measure.json").write_text(json.dumps(document | {"version": 3}))
    with pytest.raises(AnalysisError, match="reads up to 2") as error:
        load(folder)
    assert error.value.next_step == "measure again"


def test_a_search_from_end_to_end(measured):
    """1 GiB and 200 MiB per item, nine tenths of 80 GiB: 363 fit, 512 do not; 384 is halfway."""
    done = measured("make", search=True, processes=1)
    m = load(done.folder)
    assert m.search == {"largest": 256, "failed_at": 384, "limited": ""} and not m.failed
    (climb,) = (o for o in done.outcomes if o.job.role == "probe")
    assert [f["batch"] for f in climb.all("batch")] == [2**k for k in range(10)]
    assert {r.number for r in m.runs} == set(range(len(m.runs)))
    assert m.best.rate == max(p.rate for p in m.points) and "best" in m.best.marks
    assert [p.marks for p in m.points][-1].endswith("largest that fits (384 does not)")
    advised = m.advised
    assert advised.batch < m.best.batch and advised.rate >= 0.95 * m.best.rate
    assert advised.marks == "within 5 % of the best"


def test_the_time_to_start_a_process_is_not_taken_from_the_climb(measured, monkeypatch):
    jobs, run = [], runner.run
    monkeypatch.setattr(runner, "run", lambda job, *a: (jobs.append(job), run(job, *a))[1])
    measured("make", search=True, most_batch=2, processes=1, budget_s=14.0)
    assert jobs[0].role == "probe" and 4.0 < jobs[0].batches_s <= 5.6


def test_a_search_that_meets_another_error_says_it_and_never_calls_it_memory(measured):
    how = {"search": True, "processes": 1, "modes": ("latency", "steady")}
    m = load(measured("not_memory", **how).folder)
    assert (m.search["largest"], m.search["failed_at"]) == (8, None)
    (note,) = (n for n in m.notes if "batch 16" in n)
    assert note.startswith("the search ended at batch 16: an exception")
    assert not any("largest" in p.marks for p in m.points)


def test_a_highest_batch_ends_a_search_without_a_word(measured):
    m = load(measured("make", search=True, most_batch=5, processes=1).folder)
    assert {p.batch for p in m.points} == {1, 2, 4, 5} and not m.failed
    assert not any("search" in n for n in m.notes)


def test_paths_of_this_machine_are_in_no_result(measured):
    done = measured("absent_file", "make", modes=("event",), batches=(1,))
    text = (done.folder / "measure.json").read_text()
    assert "secret.bin" in text and "/home/somebody" not in text


def test_a_budget_too_short_for_a_process_says_so_or_measures_what_it_can(measured):
    began, batches = time.monotonic_ns(), (1, 2, 4, 8, 16, 32)
    try:
        done = measured("make", batches=batches, processes=3, budget_s=3.0, modes=("event",))
    except MeasureError as error:
        assert "budget" in str(error)
    else:
        result = load(done.folder)
        all_of_them = all(
            len(result.processes(Key(0, batch, "event", "warm"))) >= 3 for batch in batches
        )
        said = [n for n in result.notes if "the budget of 3 s ran out: " in n]
        assert all_of_them or (said and "would add" in said[0] and not result.failed)
        # the session's budget began a little later; the last process may be under way when it ends
        starts = sorted(o.began_ns - began for o in done.outcomes)
        assert starts[0] > 0 and starts[-1] < starts[0] + 3.0e9


def test_ctrl_c_keeps_what_was_measured(measured, monkeypatch):
    calls_made = []
    run = runner.run

    def second_is_interrupted(*a, **k):
        calls_made.append(1)
        if len(calls_made) == 2:
            raise KeyboardInterrupt
        return run(*a, **k)

    monkeypatch.setattr(runner, "run", second_is_interrupted)
    m = load(measured("make", modes=("event",)).folder)
    assert not m.complete and len(m.samples) and any("interrupted" in n for n in m.notes)


def test_sigterm_keeps_what_was_measured_and_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "nsysalign", "measure", f"{CALLS}:hangs_second"]
    command += f"--batch 1,2 --mode event --no-profile --backend {SIMULATED} -o o".split()
    process = subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1)
    workers = tmp_path / "o" / "workers"
    wait_until(lambda: _reached(workers), "the second batch never hung")
    pids = [json.loads(p.read_text().splitlines()[2])["pid"] for p in workers.glob("*.jsonl")]
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143 and b"are kept" in said
    m = load(tmp_path / "o")
    assert not m.complete and len(m.samples) and len(m.points) == 1
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_ctrl_c_in_the_middle_of_a_process_keeps_its_blocks(measured):
    m = load(measured("is_interrupted_late", modes=("event",)).folder)
    assert not m.complete and len(m.samples) > 0 and any("interrupted" in n for n in m.notes)


def test_a_hang_in_the_middle_keeps_its_blocks_and_says_where(measured):
    m = load(measured("hangs_late", modes=("event",), processes=1, job_limit_s=10.0).folder)
    assert len(m.samples) > 0 and any(
        "did not finish within its time limit while measuring (calls.py:" in n for n in m.notes
    )


def _reached(workers):
    """One batch is measured, and the other hangs."""
    texts = [p.read_text() for p in workers.glob("*.jsonl")] if workers.is_dir() else []
    return any('"done"' in t for t in texts) and any(
        '"warm-up"' in t and '"block"' not in t and '"warm"' not in t for t in texts
    )


def test_processes_that_differ_get_seven(measured, monkeypatch):
    run = runner.run

    def differing(job, *a, **k):
        outcome = run(job, *a, **k)
        for block in outcome.all("block"):
            block["ns"] = [round(v * (1 + 0.05 * (job.number % 3))) for v in block["ns"]]
        return outcome

    monkeypatch.setattr(runner, "run", differing)
    modes = ("event", "steady")
    m = load(measured("make", processes=3, most_processes=7, modes=modes).folder)
    assert m.points[0].processes == 7 and m.modes["differ"].all()


def test_two_functions_are_compared_and_the_slower_one_is_found(measured):
    done = measured("make", "slower", batches=(4,), processes=3, most_processes=3)
    m = load(done.folder)
    (d,) = (c for c in m.changes() if c.mode == "device")
    assert d.verdict == "slower" and d.low < (8_000 + 1_300) / (10 * 33_300 + 1_300) < d.high
    order = [o.job.target for o in done.outcomes]
    assert sorted(order) == [0, 0, 0, 1, 1, 1] and order != sorted(order)


def test_caveats(measured):
    notes = load(measured("zeros", modes=("event",), processes=1).folder).notes
    assert any("the inputs are all zeros" in n for n in notes)


def test_a_gpu_that_others_use_is_a_caveat(monkeypatch):
    nvml = SimpleNamespace(
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=30 << 30),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=87),
    )
    monkeypatch.setattr(gpu, "start_nvml", lambda: nvml)
    monkeypatch.setattr(gpu, "visible", lambda nvml, environ: ([1], None))
    (note,) = gpu.in_use()
    assert "30.0 GiB of its memory were in use, it was 87 % busy" in note


def test_benchmark_from_python(tmp_path):
    how = {"backend": SIMULATED, "profile": False, "processes": 2, "output": tmp_path / "o"}
    r = nsysalign.benchmark(calls.make, batch=[1, 4], modes=["latency", "steady"], **how)
    assert r.curve["batch"].tolist() == [1, 4] and r.best.batch == 4


def test_a_function_that_no_other_process_finds_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="a fresh process cannot import it") as error:
        nsysalign.benchmark(lambda: None)
    assert "%%writefile bench.py" in error.value.next_step
    with pytest.raises(UsageError, match="expected a function"):
        nsysalign.benchmark(3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [{"precision": 2}, {"processes": 0}, {"budget": 0}, {"batch": "many"}, {"max_batch": 4}],
)
def test_what_benchmark_cannot_be_asked_is_said_before_anything_runs(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=next(iter(given)).replace("_", ".")):
        nsysalign.benchmark(f"{CALLS}:make", **given)
    assert list(tmp_path.iterdir()) == []


def test_no_benchmark_inside_a_worker(monkeypatch):
    monkeypatch.setenv("NSYSALIGN_MEASURE_WORKER", "1")
    with pytest.raises(UsageError, match="called again"):
        nsysalign.benchmark(calls.make)


def test_the_command_its_files_and_diff(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = f"--backend {SIMULATED} --no-profile --mode latency,steady --batch 4".split()
    for name, folder in (("make", "a"), ("slower", "b")):
        with pytest.raises(SystemExit) as end:
            cli.main(["measure", f"{CALLS}:{name}", *common, "-o", folder])
        assert end.value.code == 0
    out = capsys.readouterr().out
    assert "calls.py:make" in out and "simulated device" in out and "per s" in out
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"measure.json", "measure.html"}
    kept = load(tmp_path / "a")
    assert len(kept.curve) == 1 and len(kept.samples) > 100
    with pytest.raises(UsageError, match="diff compares analyses") as error:
        cli.main(["diff", "a", "b"], standalone_mode=False)
    assert "both in turns" in error.value.next_step


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nofile.py:make"], "nofile.py: no such file"),
        (["bench.py"], "name a function as FILE.py:FUNCTION"),
        ([f"{CALLS}:make", "--batch", "x"], "neither auto nor whole numbers"),
        ([f"{CALLS}:make", "--batch", "0"], "neither auto nor whole numbers"),
        ([f"{CALLS}:make", "--mode", "wall"], "there is no mode wall"),
        ([f"{CALLS}:make", "--precision", "90%"], "not a share"),
        ([f"{CALLS}:make", "--budget", "soon"], "not a time"),
        (
            [f"{CALLS}:make", f"{CALLS}:slower", "--batch", "auto"],
            "the search for batches is of one target",
        ),
    ],
)
def test_wrong_usage_is_said_before_anything_runs(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        cli.main(["measure", *arguments], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []
