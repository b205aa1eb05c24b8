"""Tables of what ran in the intervals of a label, and of the longest idle stretches.  Everything in
microseconds."""

from __future__ import annotations

import pytest
from cases.drawing import MAIN, OTHER, ZERO, analysed
from simulator.world import LEGACY, NON_BLOCKING, HostInterval, Range, World

from nsysalign.explain.runs.gaps import NOT_KNOWN
from nsysalign.explain.runs.pages import PageMigrations


def world() -> World:
    return World(streams={7: LEGACY, 13: NON_BLOCKING})


def run(w: World, call: tuple, run: tuple, name: str, stream: int = 7, thread: int = MAIN):
    return w.kernel(*run, w.call("launch", *call, thread), stream, name=name)


def twice(w: World) -> None:
    """
    7    |6 add #8-10  mul #12-15  add #20-26 |30        |106 add #108-113  add #113-115 |120
    """
    for at, work in (
        (0, ((8, 10, "add"), (12, 15, "mul"), (20, 26, "add"))),
        (100, ((8, 13, "add"), (13, 15, "add"))),
    ):
        first = w.record(at + 6, at, at + 1)
        for k, (start, end, name) in enumerate(work):
            run(w, (at + 2 + k / 2, at + 2.4 + k / 2), (at + start, at + end), name)
        last = w.record(at + (30 if at == 0 else 20), at + 4, at + 5)
        w.pair(first, last, f"step#{at // 100}")
        w.sync(at + 40, at + 50)


def test_kernels_of_a_label(tmp_path):
    """add: 2, 6, 5 and 2 us, in 24 + 14 us measured; idle before: 0 (nothing ran before) + 5 + 2
    (from the window's start) + 0; mul: 2."""
    w = world()
    twice(w)
    analysis = analysed(w, tmp_path)
    table = analysis.kernels[analysis.kernels["label"] == "step"].set_index("kernel")
    columns = ["count", "total_ns", "median_ns", "idle_before_ns"]
    assert table.loc["add", columns].tolist() == [4, 15_000, 2_000, 7_000], (
        "of an even number the lower one in the middle"
    )
    assert table.loc["mul", columns].tolist() == [1, 3_000, 3_000, 2_000]
    assert table["share"].round(4).tolist() == [0.3947, 0.0789]
    assert table.index.tolist() == ["add", "mul"], "the most time first"


def test_of_a_host_timer_what_was_issued_in_it(tmp_path):
    """
    H    s-5   |0  s2        |10  s12        issued inside: the second one, wherever it ran
    7          a #1-20   b #20-50   c #50-60
    """
    w = world()
    run(w, (-5, -4), (1, 20), "a")
    run(w, (2, 4), (20, 50), "b")
    run(w, (12, 14), (50, 60), "c")
    w.host_intervals.append(HostInterval("case#0", 0, 10, MAIN))
    w.sync(70, 80)
    table = analysed(w, tmp_path).kernels
    mine = table[table["label"] == "case"]
    assert mine[["kernel", "count", "total_ns", "idle_before_ns"]].to_numpy().tolist() == [
        ["b", 1, 30_000, 0]
    ]
    assert mine["share"].tolist() == [3.0]


def test_of_a_run_a_kernel_that_overlaps_itself_has_the_share_of_its_union(tmp_path):
    """
    7    a #10-30
    13       a #20-40     of 30 us one of them runs for all, not for 40
    """
    w = world()
    run(w, (1, 2), (10, 30), "a")
    run(w, (3, 4), (20, 40), "a", 13)
    w.sync(50, 60)
    table = analysed(w, tmp_path).kernels
    whole = table[table["label"] == "run"]
    assert (whole["total_ns"].tolist(), whole["share"].tolist()) == ([40_000], [1.0])


#  H    L0        o12-20 o21-24            L30        [a 40 ... c 45-60   L62       (other thread: o 15-29)
#  7    #2-10                   (22 us)       #32-35              (28 us)    #63-70
def with_gaps() -> World:
    w = world()
    run(w, (0, 1), (2, 10), "a")
    w.call("other", 12, 20)
    w.call("sync_device", 21, 24)
    w.call("other", 15, 29, OTHER)
    run(w, (30, 31), (32, 35), "b")
    w.call("memcpy", 45, 60)
    run(w, (62, 62.5), (63, 70), "c")
    return w


def gaps_of(analysis, label="run"):
    number = analysis.runs.set_index("label")["interval"][label]
    rows = analysis.gaps[analysis.gaps["interval"] == number]
    return [
        ((r.start_ns - ZERO) / 1000, r.ns / 1000, r.next, r.call, r.call_ns / 1000)
        for r in rows.itertuples()
    ]


def test_the_longest_idle_stretches_and_the_call_that_held_each_up(tmp_path):
    assert gaps_of(analysed(with_gaps(), tmp_path)) == [
        (35, 28, "c", "cudaMemcpyAsync", 15),
        (
            10,
            22,
            "b",
            "cudaMalloc",
            8,
        ),  # the longest call of the thread that launched, not another's longer one
    ]


def with_own_work() -> World:
    """
    H    L0         [nsysalign:calibration 14 ------------- 34]     L40
                       L15 (stream 7)   L20 (own stream)  sync 22-33
    7      a #2-10       spin #16-19                                  b #42-50
    99                                  spin #24-30
    """
    w = World(streams={7: LEGACY, 99: NON_BLOCKING})
    run(w, (0, 1), (2, 10), "a")
    run(w, (15, 16), (16, 19), "spin_kernel")
    run(w, (20, 21), (24, 30), "spin_kernel", stream=99)
    w.sync(22, 33)
    run(w, (40, 41), (42, 50), "b")
    w.ranges.append(Range("nsysalign:calibration", 14, 34, MAIN))
    return w


def test_what_the_tool_ran_itself_is_counted_nowhere(tmp_path):
    """One stream of the program's; of its 32 us without work, 20 are the tool's and no idle stretch
    of the program's."""
    w = with_own_work()
    folder = tmp_path / "by the program"
    folder.mkdir()
    analysis = analysed(w, tmp_path)
    assert analysis.runs["label"].tolist() == ["run"]
    assert sorted(set(analysis.kernels["kernel"])) == ["a", "b"]
    assert gaps_of(analysis) == []
    parts = analysis.parts.set_index(["interval", "cause"])["ns"].xs(
        analysis.runs["interval"].iloc[0]
    )
    assert parts[parts > 0].to_dict() == {
        "kernel": 16_000, "profiler": 20_000, "host": 10_000, "api_launch": 1_000, "launch_latency": 1_000,
    }  # fmt: skip
    w.ranges.clear()
    analysis = analysed(w, folder)
    assert analysis.runs["label"].tolist() == ["run", "run (stream 7)", "run (stream 99)"]
    assert "spin_kernel" in set(analysis.kernels["kernel"])


def with_pages() -> World:
    """
    H    L0                  sync 3-24 |  (touches what the kernel wrote)
    7      a #2-24
    0        m #5-7  m #9-12                 m #40-42  m #45-48        pages: to the GPU, to the host
    """
    w = World(streams={7: LEGACY})
    run(w, (0, 1), (2, 24), "a")
    w.sync(3, 24)
    for start, end, kind in ((5, 7, 11), (9, 12, 11), (40, 42, 12), (45, 48, 12)):
        w.op("memcpy", start, end, None, 0, bytes=4096, copy_kind=kind)
    return w


def test_pages_of_managed_memory(tmp_path):
    """They are no copies of the program's; the idle time before one is that of the only thread that
    could have touched it."""
    w = with_pages()
    analysis = analysed(w, tmp_path)
    (moved,) = analysis.of_runs_by(PageMigrations)
    assert {k: v for k, v in moved._asdict().items() if k not in ("pid", "device")} == {
        "to_device_count": 2, "to_host_count": 2, "to_host_bytes": 8192, "to_host_ns": 5_000, "moving_ns": 10_000, "alone_ns": 5_000,
        "touched_count": 2, "touched_ns": 19_000, "asked": False, "to_device_in_kernels_ns": 5_000, "kernels_ns": 22_000,
    }  # fmt: skip
    run = analysis.runs["interval"].iloc[0]
    parts = analysis.parts[(analysis.parts["interval"] == run) & (analysis.parts["ns"] > 0)]
    assert dict(zip(parts["cause"], parts["ns"], strict=True)) == {
        "kernel": 22_000, "memcpy": 5_000, "host": 19_000,
    }  # fmt: skip
    told = "".join(analysis.findings[analysis.findings["rule"] == "page-migrations"]["title"])
    assert "For 19 of 46 us the GPU ran nothing while the CPU touched managed memory; " in told
    assert "(8.19 kB in 2 migrations), to the GPU for 5 of 22 us in which kernels ran." in told
    named = analysis.kernels.loc[analysis.kernels["kind"] == "memcpy", "kernel"]
    assert set(named) == {"page migration H2D", "page migration D2H"}
    assert gaps_of(analysis)[0] == (24, 16, "page migration D2H", "", 0)
    w = with_pages()
    w.call("other", 30, 31, OTHER)
    (tmp_path / "two").mkdir()
    analysis = analysed(w, tmp_path / "two")
    assert analysis.parts.set_index(["interval", "cause"])["ns"][run, "unknown"] == 19_000
    assert gaps_of(analysis)[0] == (24, 16, "page migration D2H", NOT_KNOWN, 0)


def test_pages_that_the_program_asked_for_were_not_touched(tmp_path):
    w = with_pages()
    w.call("other", 38, 39, name="cudaMemPrefetchAsync")
    (moved,) = analysed(w, tmp_path).of_runs_by(PageMigrations)
    assert (moved.touched_count, moved.touched_ns) == (1, 3_000) and moved.asked


@pytest.mark.parametrize("names", [[], ["cudaMallocManaged"], ["cuMemAllocManaged"]])
def test_calls_that_allocate_managed_memory_are_counted(tmp_path, names):
    w = with_pages()
    for number, name in enumerate(["cudaMalloc", *names]):
        w.call("other", 30 + number, 31 + number, name=name)
    assert analysed(w, tmp_path).known.managed_allocations == len(names)


@pytest.mark.parametrize("known", [True, False])
def test_outside_of_cuda_nothing_held_it_up_and_without_a_call_that_is_not_known(tmp_path, known):
    w = world()
    run(w, (0, 1), (2, 10), "a")
    w.kernel(32, 35, w.call("launch", 32, 33) if known else None, name="b")
    w.sync(40, 41)
    assert gaps_of(analysed(w, tmp_path)) == [(10, 22, "b", "" if known else NOT_KNOWN, 0)]
