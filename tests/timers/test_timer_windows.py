"""Clock readings on simulated traces: which become intervals, what their budgets and flags are,
what is said."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console
from simulator import check, export, machine, oracle
from simulator.program import Launch, Program, Push, Read, Record, Sleep, Sync
from simulator.program import Pop as PopRange
from simulator.world import LEGACY

from nsysalign.answer import answer
from nsysalign.show.screen import everything

SITES = {
    "start": {"site": "bench.py:10", "callers": ["train.py:5"], "function": "bench.py:8:f", "position": 10, "use": "start",
              "stores": ["bench.py:8:t0"]},
    "end": {"site": "bench.py:12", "function": "bench.py:8:f", "position": 20, "use": "difference",
            "subtracts": ["bench.py:8:t0"]},
    "poll": {"site": "bench.py:30", "function": "bench.py:8:f", "position": 40, "use": "compared"},
    "net": {"site": "bench.py:50", "callers": ["train.py:7"], "function": "bench.py:48:g", "position": 2, "use": "kept"},
    "masks": {"site": "bench.py:52", "function": "bench.py:48:g", "position": 9, "use": "kept"},
    "last": {"site": "bench.py:54", "function": "bench.py:48:g", "position": 15, "use": "kept"},
    "one": {"site": "cell:1", "function": "<cell>:1:<module>", "position": 2, "use": ""},
    "two": {"site": "cell:2", "function": "<cell>:1:<module>", "position": 9, "use": ""},
}  # fmt: skip
MAIN, WORKER = 500, 501


def analysed(tmp_path, *steps, other=(), extra=()):
    """(analysis, world) of a program; `extra` lines go to the end of its log."""
    threads = {MAIN: list(steps)} | ({WORKER: list(other)} if other else {})
    program = Program(threads, streams={7: LEGACY}, clock_sites=SITES)
    world = machine.run(program)
    trace, logs = export.write(world, tmp_path)
    if extra:
        with logs[0].open("a") as log:
            log.writelines(json.dumps(line) + "\n" for line in extra)
    analysis = check.analyze(trace, logs)
    check.invariants(analysis)
    return analysis, world


def timed(*work):
    return [Read("start"), *work, Read("end")]


KERNEL = Launch(50_000)
BEFORE, AFTER, IDLE = "synchronised-before", "synchronised-after", "idle-before"
NO_WORK = "no-gpu-work"


@pytest.mark.parametrize(("before", "work", "flags", "rule"), [
    ([Sync()], [Launch(6_000), Sync()], {BEFORE, AFTER, IDLE}, "host-timer"),
    ([Sync()], [KERNEL], {BEFORE, IDLE}, "enqueue-only"),
    ([Launch(90_000)], [KERNEL, Sync()], {AFTER}, "queued"),
    ([], [KERNEL], set(), "enqueue-only"),
], ids=["both", "before", "after", "never"])  # fmt: skip
def test_the_four_patterns_are_told_apart(before, work, flags, rule, tmp_path):
    steps = [s for _ in range(6) for s in (*before, *timed(*work), Sleep(2_000))]
    analysis, world = analysed(tmp_path, KERNEL, *steps)
    rows = analysis.measured[analysis.measured["kind"] == "host"]
    assert set(rows["label"]) == {"bench.py:10-12"} and set(rows["method"]) == {"exact"}
    assert [set(f) for f in rows["flags"]] == [flags] * 6
    starts, ends = ([r for r in world.readings if r.site == site] for site in ("start", "end"))
    for row, a, b in zip(rows.itertuples(), starts, ends, strict=True):
        assert (row.start_ns, row.elapsed_ns) == (a.t, b.t - a.t)
        budget = oracle.parts(oracle.host_budget(world, a.t, b.t, MAIN))
        assert check.parts(analysis, row.interval) == budget
    found = analysis.findings[analysis.findings["severity"] != "info"]
    assert set(found["rule"]) == {rule}


def test_only_after_in_a_loop_is_not_taken_for_both(tmp_path):
    """The synchronisation before each repetition is that of the one before, inside its interval."""
    analysis, _ = analysed(tmp_path, KERNEL, *(timed(KERNEL, Sync()) * 4))
    assert [set(f) for f in analysis.measured["flags"]] == [
        {"synchronised-after"}, *[{"synchronised-after", "idle-before"}] * 3
    ]  # fmt: skip


def test_a_timer_without_cuda_inside_is_an_interval_without_operations(tmp_path):
    """What the host did between two readings, with the GPU idle, and with a kernel of before."""
    analysis, _ = analysed(
        tmp_path, *timed(Sleep(5_000)), KERNEL, *timed(Sleep(2_000)), *timed(Sync())
    )
    alone, beside, waiting = analysis.measured.itertuples()
    assert check.parts(analysis, alone.interval) == {"host": alone.elapsed_ns}
    assert (alone.operations, alone.gpu_busy_ns) == (0, 0) and NO_WORK in alone.flags
    assert beside.gpu_busy_ns > 0 and NO_WORK not in beside.flags
    assert waiting.gpu_busy_ns > 0 and NO_WORK not in waiting.flags
    assert not [n for n in analysis.notes if "host timers" in n]


def test_the_timers_of_a_process_without_cuda(tmp_path):
    """Its log has a clock line; the trace has nothing of it."""
    analysed(tmp_path, *timed(KERNEL, Sync()))
    trace, (log,) = tmp_path / "trace.sqlite", [*tmp_path.glob("*.jsonl")]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kept = [line for line in lines if line["type"] not in ("record", "elapsed", "wait", "mark")]
    for line in kept:
        line |= {"pid": 777} if line["type"] == "header" else {}
        line |= {"tid": 777} if "tid" in line else {}
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in kept))
    both = check.analyze(trace, [log, other])
    of_cuda, of_cpu = both.measured.itertuples()
    assert (of_cuda.pid, of_cpu.pid) == (MAIN, 777)
    assert abs(of_cpu.start_ns - of_cuda.start_ns) <= of_cpu.error_ns + of_cuda.error_ns
    assert check.parts(both, of_cpu.interval) == {"host": of_cuda.elapsed_ns}
    assert NO_WORK in of_cpu.flags and not both.unaligned.shape[0]


def test_a_polling_loop_makes_no_intervals(tmp_path):
    steps = [s for _ in range(200) for s in (Read("poll"), Launch(1_000))]
    analysis, _ = analysed(tmp_path, Read("start"), *steps)
    assert analysis.measured.empty and not [n for n in analysis.notes if "host timers" in n]


def test_a_workers_launches_count_for_the_thread_that_waits_for_it(tmp_path):
    """The backward pass: autograd's thread launches."""
    analysis, _ = analysed(tmp_path, *timed(Sleep(60_000)), other=[Sleep(10_000), KERNEL])
    (row,) = analysis.measured.itertuples()
    assert row.kernel_only_ns == 50_000 and row.tid == MAIN


def test_stamps_that_come_again_and_again_are_stages(tmp_path):
    """The first is the launch alone, and the second waits for it: each is judged as a host timer."""
    passes = [Read("net"), Launch(90_000), Read("masks"), Sync(), Read("last"), Sleep(9_000)]
    analysis, world = analysed(tmp_path, KERNEL, Sync(), *passes * 6)
    rows = analysis.measured
    assert rows["label"].value_counts().to_dict() == {"bench.py:50-52": 6, "bench.py:52-54": 6}
    at = {
        site: [r.t for r in world.readings if r.site == site] for site in ("net", "masks", "last")
    }
    for label, ends in (
        ("bench.py:50-52", ("net", "masks")),
        ("bench.py:52-54", ("masks", "last")),
    ):
        stage = rows[rows["label"] == label]
        assert [*zip(stage["start_ns"], stage["end_ns"], strict=True)] == [
            *zip(at[ends[0]], at[ends[1]], strict=True)
        ]
    found = analysis.findings.set_index("label")["rule"]
    assert found["bench.py:50-52"] == "enqueue-only" and found["bench.py:52-54"] == "queued"
    remark = (
        "bench.py:50-52, 52-54: the time between the clock readings at these lines; "
        "no subtraction of them was found"
    )
    told = answer(analysis)
    assert remark in told.remarks and remark in told.notes
    console = Console(width=200, file=StringIO())
    everything(analysis, told, console)
    assert console.file.getvalue().count("no subtraction of them") == 1


def missed(analysis):
    return [remark for remark in answer(analysis).remarks if "in no interval" in remark]


def test_what_is_missed_is_said(tmp_path):
    analysis, _ = analysed(
        tmp_path, Read("one"), KERNEL, Read("one"), KERNEL, Read("one"), KERNEL, Read("end")
    )
    assert analysis.measured.empty
    assert missed(analysis) == [
        "3 clock readings after CUDA work in no interval (bench.py:12, cell:1); "
        "nsysalign.region names such a stretch"
    ]


def test_one_start_read_against_again_and_again_is_said(tmp_path):
    analysis, _ = analysed(tmp_path, Read("start"), *[KERNEL, Read("end")] * 4)
    assert len(analysis.measured) == 1
    (remark,) = missed(analysis)
    assert remark.startswith("3 clock readings after CUDA work in no interval (bench.py:12)")


def test_calibration_inside_is_not_the_users_time(tmp_path):
    steps = [*timed(Record("c"), KERNEL, Sync()), *timed(KERNEL, Sync())]
    world = machine.run(Program({MAIN: steps}, clock_sites=SITES))
    trace, (log,) = export.write(world, tmp_path)
    log.write_text(
        log.read_text().replace('"type": "record",', '"type": "record", "calibration": true,')
    )
    analysis = check.analyze(trace, [log])
    assert len(analysis.measured) == 1 and len(analysis.unaligned) == 1
    assert "calibration work ran inside" in analysis.unaligned["reason"].iloc[0]


def region(name: str, start: int, end: int, **more) -> dict:
    shift = export.Style().monotonic
    return {
        "type": "host", "region": name, "t0_ns": start + shift, "t1_ns": end + shift, "tid": MAIN, "implicit": True, **more
    }  # fmt: skip


def test_regions_count_where_they_hold_cuda_work_and_no_timed_readings(tmp_path):
    begin = Program({}).begin
    lines = [
        region("work#0", begin + 10_500, begin + 40_000), region("idle#0", begin + 100, begin + 9_000),
        region("timed#0", begin + 200_000, begin + 400_000),
    ]  # fmt: skip
    steps = [Sleep(10_000), Push("work#0"), Sleep(1_000), KERNEL, Sleep(50_000), PopRange()]
    steps.append(Sleep(150_000))
    steps += [Read("start", "timed#0"), KERNEL, Sync(), Read("end", "timed#0")]
    analysis, _ = analysed(tmp_path, *steps, extra=lines)
    named = analysis.measured.set_index("name")
    assert set(named.index) == {"work#0", "timed#0"}, (
        "the range of the region is not an interval of its own beside it"
    )
    assert named.loc["work#0", "elapsed_ns"] == 29_500 and set(named["kind"]) == {"host"}
    assert named.loc["timed#0", "site"] == "bench.py:10"


def test_a_wall_clock_that_was_set_is_said(tmp_path):
    steps = timed(KERNEL, Sync())
    world = machine.run(Program({MAIN: steps * 2}, clock_sites=SITES))
    trace, (log,) = export.write(world, tmp_path)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    readings, values = [line for line in lines if line["type"] == "clock_reading"], []
    for n, line in enumerate(readings):  # 40 ns off at the second, an hour at the last
        values.append(1_795_229_128_000_000_000 + line["t_ns"] + [0, 40, 0, 3_600 * 10**9][n])
        line |= {"clock": "time", "value_ns": values[-1]}
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    analysis = check.analyze(trace, [log])
    (row,) = analysis.measured.itertuples()
    assert row.elapsed_ns == values[1] - values[0] == row.end_ns - row.start_ns
    assert analysis.unaligned["reason"].tolist() == ["the wall clock was set in between"]
