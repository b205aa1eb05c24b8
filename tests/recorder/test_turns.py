"""`nsysalign run --untraced` on a GPU made of C: the recorder leaves the process and comes back."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from nsysalign.engine import analyze, load
from nsysalign.trace.cupti import write_export
from nsysalign.trace.read import read_trace

TURNS = {"NSYSALIGN_RECORDER_OPTIONS": "turns"}
#: `turn(traced)`: what the recorder answers.
BEGIN = """
import ctypes, threading
recorder = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
recorder.nsysalign_problem.restype = ctypes.c_char_p
turn = recorder.nsysalign_turn
time.sleep(1.2)  # it listens anew a second after CUPTI was loaded
"""
#: Another thread calls CUDA every 5 ms, until `calling` is false.
OTHER_CALLS = """
timed(3)
calling = True
def other():
    while calling: gpu.fake_long_call(10_000); time.sleep(0.005)
thread = threading.Thread(target=other); thread.start()
"""
#: Runs `step` for so long, with pauses: a few thousand records tell as much as all that fit.
LOOP = """
def loop(seconds, step):
    until = time.monotonic() + seconds
    while time.monotonic() < until: step(); time.sleep(0.001)
"""


def test_many_turns_lose_nothing_and_do_not_grow(program):
    text = (
        BEGIN
        + """
def turned(traced):  # 0 is "not now", as on a machine so busy that a thread of its own does not end in 100 ms
    return any(turn(traced) == 1 for _ in range(20))
def rss(): return int(open("/proc/self/statm").read().split()[1])
timed(3)
for n in range(300):
    if n == 50: before = rss()
    assert turned(0), n
    timed(2)
    assert turned(1), n
    timed(3)
print(gpu.fake_finalized(), recorder.nsysalign_held(), rss() - before)
"""
    )
    ran, (path,) = program.alone(text, **TURNS)
    assert ran.returncode == 0, ran.stderr
    finalized, held, grown = map(int, ran.stdout.split())
    assert finalized == 300 and held <= 1
    assert grown < 500, grown  # pages
    trace = read_trace(path)
    kernels, calls = trace.operations, trace.calls
    assert len(kernels) == 301 * 3 * 2
    # numbers of calls begin anew in each session: each kernel has the call before it all the same
    call = kernels["call"].to_numpy()
    assert (np.diff(call) > 0).all() and call[0] >= 0
    late = kernels["start_ns"].to_numpy() - calls["end_ns"].to_numpy(np.int64)[call]
    assert (late >= 0).all() and (late < 10_000_000).all()
    assert {trace.names[n] for n in calls["name_id"].to_numpy()[call]} == {"cudaLaunchKernel"}
    plain = trace.untraced[trace.untraced["plain"] == 1]
    assert len(plain) == 300
    begins = calls["start_ns"].to_numpy(np.int64)
    inside = np.searchsorted(begins, plain["end_ns"]) - np.searchsorted(begins, plain["start_ns"])
    assert not inside.any()


def test_it_leaves_only_once_it_listens(program):
    """By itself a second after CUPTI was loaded, sooner where it is told to."""
    text = (
        BEGIN.replace("time.sleep(1.2)", "pass")
        + """
timed(3)
print(turn(0), gpu.fake_finalized())
recorder.nsysalign_listen()
print(turn(0), turn(1), gpu.fake_finalized())
timed(3)
"""
    )
    ran, (path,) = program.alone(text, **TURNS)
    assert ran.stdout.split() == ["0", "0", "1", "1", "1"], ran.stderr
    assert len(read_trace(path).operations) == 6 * 2


def test_cupti_is_not_taken_out_of_a_call_of_another_thread(program):
    """The GPU made of C ends the process where that happens."""
    text = (
        BEGIN
        + """
timed(3)
thread = threading.Thread(target=gpu.fake_long_call, args=(500_000_000,)); thread.start(); time.sleep(0.05)
print(turn(0), gpu.fake_finalized())
timed(3)
thread.join()
print(turn(0), turn(1), gpu.fake_finalized())
timed(3)
"""
    )
    ran, (path,) = program.alone(text, **TURNS)
    assert ran.stdout.split() == ["0", "0", "1", "1", "1"], ran.stderr
    assert len(read_trace(path).operations) == 9 * 2


def test_cupti_stays_while_another_thread_calls_now_and_then(program):
    """Its next call would begin while CUPTI is taken out, whatever it does at the moment."""
    text = (
        BEGIN
        + OTHER_CALLS
        + """
print(*[turn(0) for _ in range(5)])
calling = False; thread.join()
print(turn(0))
"""
    )
    ran, _ = program.alone(text, **TURNS)
    assert ran.stdout.split() == ["0"] * 5 + ["1"], ran.stderr


def test_threads_of_python_wait_while_cupti_is_taken_out(program):
    text = (
        BEGIN
        + OTHER_CALLS
        + """
from nsysalign.probe.recorder import Recorder
here = Recorder(os.environ["CUDA_INJECTION64_PATH"])
print(*[here.turn(traced) for traced in (False, True) * 3])
calling = False; thread.join()
"""
    )
    ran, _ = program.alone(text, **TURNS)
    assert ran.stdout.split() == ["1"] * 6, ran.stderr


def test_a_gpu_that_waits_for_the_program_is_not_waited_for(program):
    text = (
        BEGIN
        + """
timed(3)
gpu.fake_block(1)
began = time.monotonic()
print(turn(0), time.monotonic() - began < 9, turn(0))
gpu.fake_block(0); time.sleep(0.1)
print(turn(0))
"""
    )
    ran, _ = program.alone(text, **TURNS)
    assert ran.stdout.split() == ["0", "True", "0", "1"], ran.stderr


WHY_NOT = {
    "graphs": ("gpu.fake_graph(5000)", {}, "CUDA graphs"),
    "torch.profiler": ("recorder.nsysalign_aside(1); recorder.nsysalign_aside(0)", {}, "torch.profiler"),
    "another listener": ("", {"FAKE_CUPTI_LISTENED": "1"}, "another tool listens"),
    "old": ("", {"FAKE_CUPTI": "11.8"}, "12.6 or newer"),
}  # fmt: skip


@pytest.mark.parametrize("why", WHY_NOT)
def test_where_it_cannot_leave_it_records_on_and_says_why(program, why):
    before, environment, words = WHY_NOT[why]
    text = f"{BEGIN}\ntimed(3)\n{before}\nprint(turn(0)); timed(4)"
    ran, (path,) = program.alone(text, **TURNS, **environment)
    assert ran.stdout.split() == ["-1"], ran.stderr
    trace = read_trace(path)
    assert (trace.operations["kind"] == 0).sum() == 7 * 2
    assert trace.untraced.empty
    assert any(words in note for note in trace.info.notes)


def test_torch_profiler_begins_while_nothing_is_traced(program):
    text = (
        BEGIN
        + """
timed(3); turn(0); timed(2)
recorder.nsysalign_aside(1)
print(turn(1))
recorder.nsysalign_aside(0)
print(turn(1), turn(0)); timed(3)
"""
    )
    ran, (path,) = program.alone(text, **TURNS)
    assert ran.stdout.split() == ["0", "1", "-1"], ran.stderr
    assert len(read_trace(path).operations) == 6 * 2


def test_what_ran_after_a_killed_turn_is_not_taken_for_traced(program):
    text = BEGIN + "timed(3); turn(0); timed(2); os.kill(os.getpid(), signal.SIGKILL)"
    ran, (path,) = program.alone(text, **TURNS)
    assert ran.returncode == -signal.SIGKILL
    trace = read_trace(path)
    assert len(trace.operations) == 3 * 2
    assert trace.untraced["plain"].tolist() == [0, 1] and trace.untraced["end_ns"].max() > 1 << 60


def test_a_child_forked_while_nothing_is_traced_works(program):
    text = (
        BEGIN
        + """
timed(3); turn(0)
child = os.fork()
if not child:
    timed(2); print(turn(1), flush=True); os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(turn(1)); timed(3)
"""
    )
    ran, (path,) = program.alone(text, **TURNS)
    assert ran.stdout.split() == ["-1", "1"], ran.stderr
    assert len(read_trace(path).operations) == 6 * 2


def test_both_times_of_one_run(program):
    text = LOOP + "\nloop(3.5, lambda: timed(1)); print(gpu.fake_finalized())"
    ran = program.run(text, "--untraced")
    assert ran.returncode == 0, ran.stderr
    assert "traced, " in ran.stdout and " of this run)" in ran.stdout
    out = program.folder / "out"
    analysis = load(out)
    (row,) = analysis.baseline.itertuples()
    assert analysis.known.in_turns and row.remark == ""
    assert min(row.profiled_count, row.baseline_count) >= 30
    assert row.low_ns <= row.profiled_ns - row.baseline_ns <= row.high_ns
    assert row.baseline_ns > 80_000  # its two kernels
    # what was traced is whole
    own = analysis.measured
    in_first_turn = own["start_ns"] < read_trace(out / "trace.cupti").untraced["start_ns"].min()
    later = (~in_first_turn).sum()
    assert row.profiled_count == (later if later >= 30 else len(own)) and analysis.unaligned.empty
    kernel = analysis.parts[analysis.parts["cause"] == "kernel"].groupby("interval")["ns"].sum()
    assert (kernel.loc[own["interval"]] == 80_000).all()
    # of the run as a whole the longest turn stands for all
    trace = read_trace(out / "trace.cupti")
    run = analysis.runs.iloc[0]
    over = trace.untraced["start_ns"].to_numpy() < run.start_ns + run.elapsed_ns
    assert not (over & (trace.untraced["end_ns"].to_numpy() > run.start_ns)).any()
    # an export for others says the same
    write_export(out / "trace.cupti", program.folder / "export.sqlite")
    again = analyze(program.folder / "export.sqlite", sorted(out.glob("events*")))
    assert again.baseline.equals(analysis.baseline)


def test_a_region_around_everything_keeps_it_traced_and_that_is_said(program):
    text = LOOP + "\nimport nsysalign\nwith nsysalign.region('all'): loop(2.5, lambda: timed(1))"
    ran = program.run(text, "--untraced")
    analysis = load(program.folder / "out")
    assert analysis.baseline.empty and not analysis.known.in_turns
    assert any("nothing ran untraced" in note for note in analysis.notes), ran.stderr


def test_a_stretch_in_turns(program):
    from .conftest import BEGIN as TIMED

    text = f"""{TIMED}{LOOP}
import nsysalign
timed(3)
with nsysalign.recording(untraced=True) as run:
    loop(2.6, lambda: timed(1))
row, = run.analysis.baseline.itertuples()
print(row.profiled_count >= 30, row.baseline_count > 100)
"""
    (program.folder / "script.py").write_text(text)
    ran = program.python("script.py")
    assert ran.stdout.split() == ["True", "True"], ran.stderr


@pytest.mark.parametrize("other", ["--baseline", "--recorder=nsys", "--recorder=log"])
def test_options_that_contradict_it(program, other):
    ran = program.run("pass", "--untraced", other, how="cupti")
    assert ran.returncode == 2 and "--untraced" in ran.stderr
