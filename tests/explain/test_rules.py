"""Rules about single intervals: each with drawings that have what it is about, and some that have
not; what findings say depends on the program and on the kind of interval."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.model import OTHERS_WORKED
from nsysalign.text import subject

from .drawing import analysis, diagnose, found, interval, piece, repeat, severities

LATENCY, EVENT = ("launch_latency", 1.6), ("event", 2.3)
GOOD = (LATENCY, ("kernel", 200), EVENT)  # the CPU had run ahead
LATE = (("host", 160), ("api_launch", 30), ("kernel", 25), ("event", 5))
TINY = [p for _ in range(20) for p in (("api_launch", 3), ("launch_latency", 2), ("kernel", 1))]
TORCH, OTHER = "void at::native::add<4>(float*)", "sm80_xmma_gemm"
#: A kernel with a synchronisation after it, until the CPU has caught up.
SYNC = (("kernel", 50), ("sync", 300), ("host", 40), ("kernel", 50))
ITEM = [("kernel", 50), piece("memcpy", 2, direction="D2H", memory="pageable", bytes=4), ("sync", 30), ("host", 40), ("kernel", 50)]  # fmt: skip
FILL = "void vectorized_elementwise_kernel<FillFunctor<float>>(int)"


def blocking(tail: bool):
    pieces = []
    for k in range(8):
        pieces += [piece("api_launch", 4, ref=k), piece("launch_latency", 2), piece("kernel", 50)]
        pieces += [piece("api_launch", 2, ref=k)] * tail + [piece("host", 5)]
    return [*pieces, ("event", 2)]


@pytest.mark.parametrize(
    ("pieces", "more", "expected"),
    [
        (GOOD, {}, {}),
        ([("host", 18), ("kernel", 90)], {}, {}),
        ([("host", 24), ("kernel", 90)], {}, {"host-gap": "warning"}),
        ([("host", 2), ("api_launch", 30), ("kernel", 60)], {}, {"api-launch": "warning"}),
        ([("host", 2), ("api_launch", 10), ("kernel", 90)], {}, {}),
        ([p for _ in range(20) for p in (("launch_latency", 1), ("kernel", 100))], {}, {}),
        ([("launch_latency", 2), ("kernel", 6), ("event", 1)], {}, {"launch-latency": "info"}),
        ([("launch_latency", 2), ("kernel", 20), ("event", 1)], {}, {}),
        ([piece("api", 60, "cudaMalloc"), ("api_launch", 5), ("kernel", 235)], {}, {"allocation-inside": "info"}),
        ([piece("api", 100, "cudaMalloc"), ("api_launch", 5), ("kernel", 235)], {}, {"allocation-inside": "warning"}),
        ([piece("api", 20, "cudaFuncGetAttributes"), ("kernel", 90)], {}, {}),
        ([("kernel", 50), ("sync", 3), ("host", 40), ("api_launch", 5), ("kernel", 50)], {}, {"sync-inside": "warning"}),
        ([piece("memcpy", 300, direction="H2D", memory="pageable", bytes=1 << 20), ("sync", 4), ("host", 5), ("kernel", 9000)], {}, {"copy-inside": "info"}),
        ([piece("memset", 30, bytes=60 << 20), ("kernel", 60)], {}, {"copy-inside": "warning"}),
        ([piece("kernel", 30, FILL), ("kernel", 60)], {}, {"copy-inside": "warning"}),
        ([piece("kernel", 30, FILL), ("event", 2)], {}, {}),  # a fill is what it times
        ([("graph", 50), ("event", 3)], {}, {"graph-opaque": "info"}),
        ([("unknown", 50), ("kernel", 100)], {}, {"unknown-time": "warning"}),
        ([piece("queued", 300, "dependency", stream=13), *GOOD], {}, {"queued": "warning"}),
        ([piece("queued", 30, "dependency", stream=13), *GOOD], {}, {"queued": "info"}),
        ([piece("queued", 3, "dependency", stream=13), *GOOD], {}, {}),
        ([("api_launch", 400), piece("queued", 600, "full-queue", stream=7)], {"kind": "host"}, {"queued": "warning"}),
        (GOOD, {"stream": 27, "start_stream": 7}, {"different-streams": "warning"}),
        ([piece("api", 1, "cudaStreamWaitEvent"), *GOOD], {"stream": 27, "start_stream": 7}, {"different-streams": "info"}),
        (GOOD, {"other": {23: 2_668}}, {}),
        ([("host", 8), ("api_launch", 4), ("kernel", 900), ("sync", 3)], {"kind": "host", "issued": 900}, {}),
    ],
)  # fmt: skip
def test_what_is_said(pieces, more, expected):
    assert severities(repeat(10, "x", *pieces, **more)) == expected


@pytest.mark.parametrize("tail", [True, False])
def test_launch_blocking_is_two_launch_calls_in_every_gap(tail):
    said = severities(repeat(6, "x", *blocking(tail))).get("launch-blocking")
    assert said == ("warning" if tail else None)


def test_host_gap_before_the_first_kernel_in_the_words_of_the_design():
    late = (("host", 164), ("api_launch", 31), ("kernel", 25), ("event", 8))
    finding = found(repeat(6, "h2d_t1", *late))["h2d_t1", "host-gap"]
    assert finding.title == (
        "h2d_t1 measures the CPU, not the kernel: for 164 of 228 us the GPU waited, idle, for the launch that came after "
        "the first event."
    )
    assert finding.advice.endswith("torch.cuda._sleep(2_000_000); start.record()")
    assert (finding.severity, finding.site) == ("warning", "bench.py:7")
    assert finding.evidence == {"elapsed_ns": 228_000, "waiting_ns": 164_000, "it_waited_for": "kernel"}  # fmt: skip
    busy = (("kernel", 30), ("host", 270), ("api_launch", 4), ("kernel", 30), ("event", 2))
    assert "between two launches" in found(repeat(6, "gap", *busy))["gap", "host-gap"].title


def test_host_gap_counts_half_of_the_intervals_not_single_ones():
    good, late = repeat(7, "x", *GOOD), repeat(3, "x", ("host", 300), *GOOD)
    assert "host-gap" not in severities(good + late)
    assert found(good[:3] + late)["x", "host-gap"].evidence["seen_in"] == "3 of 6"


def test_a_delay_grows_with_the_host_and_gives_way_to_a_graph_when_the_queue_is_too_small():
    slow = ("host", 3_000), ("kernel", 500)
    assert "_sleep(17_000_000)" in found(repeat(6, "x", *slow))["x", "host-gap"].advice
    many = found(repeat(6, "x", *slow, operations=1_500))["x", "host-gap"].advice
    assert "_sleep" not in many and "graph" in many


def test_one_long_gap_is_looked_into_instead_of_compiled_away():
    long = repeat(6, "x", ("host", 39_000), ("api_launch", 400), ("kernel", 500))
    faster = found(long)["x", "host-gap"].faster
    assert faster.startswith("Look at what the CPU does before it launches kernel, 39.4 ms in one")
    assert "--sample-python" in faster and "torch.compile" not in faster
    end = repeat(6, "x", ("kernel", 500), ("host", 39_000))
    assert "before it records the end event" in found(end)["x", "host-gap"].faster
    short = repeat(6, "x", *[("host", 1_200), ("kernel", 9)] * 9)
    assert "torch.compile" in found(short)["x", "host-gap"].faster
    sleeps = repeat(6, "x", *[("host", 40_000), ("kernel", 9)] * 9)
    assert not found(sleeps)["x", "host-gap"].faster, "launching is not what takes 40 ms"


def test_missing_api_rows_are_not_nothing_found():
    drawn = analysis(repeat(6, "x", *GOOD), missing=("CUPTI_ACTIVITY_KIND_RUNTIME: no rows",))
    assert any(n.startswith("host-gap was not checked:") for n in diagnose(drawn).notes)


def test_many_kernels_cost_their_launches():
    finding = found(repeat(6, "tiny", *TINY))["tiny", "many-tiny-kernels"]
    assert finding.title == (
        "tiny pays for 20 launches: 100 of 120 us go into launching operations that run for 1 us each on average."
    )
    assert (finding.severity, finding.loss_ns) == ("warning", 6 * 100_000)
    launches = [p for n in range(12) for p in (("api_launch", 300 if n == 5 else 1), ("kernel", 2))]
    one = found(repeat(6, "x", *launches))
    assert ("x", "many-tiny-kernels") not in one, "one call is not many launches"
    assert "cudaLaunchKernel" in one["x", "api-launch"].title


def test_module_load_in_the_first_run_replaces_warm_up():
    cold = interval("x", piece("api", 30_000, "cuLibraryLoadData"), *GOOD)
    rules = found([cold, *repeat(9, "x", *GOOD)])
    assert "in its first interval" in rules["x", "module-load"].title
    assert rules["x", "module-load"].severity == "info" and ("x", "warm-up") not in rules
    alone = severities(interval("x", piece("api", 30_000, "cuModuleLoadData"), *GOOD))
    assert alone["module-load"] == "warning"


def test_loading_is_not_blamed_for_an_interval_that_something_else_made_slow():
    """A decode loop: the second interval took 318 ms, of which loading was 0.3; the first one
    loaded for 60 of 300 ms."""
    loading = interval("x", piece("api", 60_000, "cuLibraryLoadData"), ("host", 240_000), *GOOD)
    slow = interval("x", piece("api", 332, "cuLibraryLoadData"), ("host", 318_000), *GOOD)
    rest = repeat(9, "x", ("host", 40_000), *GOOD)
    assert "in its first interval" in found([loading, slow, *rest])["x", "module-load"].title
    assert ("x", "module-load") not in found([slow, *rest])


@pytest.mark.parametrize(
    ("pieces", "severity", "idle_us"),
    [
        ([("kernel", 500), ("sync", 3), ("host", 20), ("api_launch", 5), ("kernel", 500)], "info", 28),
        # a sleep before it, and a longer one after it, which would not fit beside the kernel
        ([("kernel", 50), ("host", 900), ("sync", 3), ("host", 5_000), ("api_launch", 5), ("kernel", 50)], "info", 53),
        ([("kernel", 500), ("host", 900), ("sync", 3), ("host", 5_000), ("api_launch", 5), ("kernel", 50)], "info", 503),
        # two in one interval: each has the work since the one before
        ([("kernel", 60), ("sync", 3), ("host", 99), ("kernel", 30), ("sync", 3), ("host", 99), ("kernel", 10)], "warning", 96),
    ],
)  # fmt: skip
def test_what_the_gpu_idles_because_of_a_sync(pieces, severity, idle_us):
    finding = found(repeat(10, "x", *pieces))["x", "sync-inside"]
    assert finding.evidence["idle_because_of_it_ns"] == idle_us * 1_000
    assert (finding.severity, finding.loss_ns) == (severity, idle_us * 10_000)


def test_an_end_event_beside_the_work_is_not_told_to_wait_no_more():
    """Without the synchronisation the timer would read too little."""
    alone, beside = (
        found(repeat(6, "x", *SYNC, other=other))["x", "sync-inside"].advice
        for other in ({}, {13: 40})
    )
    assert alone.startswith("Synchronise after the end event only")
    assert beside.startswith("Record both events on the stream of the work")


def test_a_pageable_copy_beside_kernels_with_its_bandwidth():
    copy = piece("memcpy", 3_600, direction="H2D", memory="pageable", bytes=64 << 20)
    staging = piece("memcpy", 60, "staging", direction="H2D", memory="pageable", bytes=64 << 20)
    pinned = piece("memcpy", 1_220, direction="H2D", memory="pinned", bytes=64 << 20)
    both = [
        repeat(10, "work", staging, copy, ("kernel", 500)),
        repeat(10, "pinned", pinned, ("event", 5)),
    ]
    finding = found(*both)["work", "copy-inside"]
    assert finding.severity == "warning"
    assert finding.evidence["achieved_GB_per_s"] == pytest.approx(67.1e6 / 3.6e6, rel=1e-3)
    assert finding.evidence["pinned_in_this_trace_GB_per_s"] == pytest.approx(55.0, rel=1e-2)
    assert "pin_memory" in finding.faster and "start.record()" in finding.advice
    # at the pinned copies' rate it would take as long as they do, and kernels could hide a part of
    # that; a pinned copy beside nothing saves nothing
    assert finding.loss_ns == pytest.approx(10 * (3_660_000 - 1_220_000 + 500_000), rel=1e-3)
    alone = found(*both)["pinned", "copy-inside"]
    assert (alone.severity, alone.loss_ns) == ("info", 0)  # a copy is what it times
    # without a pinned copy to compare with, no bus moves 64 MiB in less than 1.05 ms
    alone = found(both[0])["work", "copy-inside"]
    assert alone.loss_ns == pytest.approx(10 * (3_660_000 - 1_048_576 + 500_000), rel=1e-3)


def test_many_small_copies_are_put_together_not_pinned():
    copy = piece("memcpy", 2_000, direction="D2H", memory="pageable", bytes=8_000)
    finding = found(repeat(10, "x", copy, ("kernel", 500)))["x", "copy-inside"]
    assert "GB/s" not in finding.title and "achieved_GB_per_s" not in finding.evidence
    assert "copy it once" in finding.faster and "pin" not in finding.faster


# --- other streams, pairs without a place, empty pairs, host timers ---


def test_dependency_and_contention_are_told_apart():
    for what, text in (
        ("dependency", "ordered behind stream 13"),
        ("contention", "while stream 13 kept"),
    ):
        waits = repeat(10, "x", piece("queued", 300, what, stream=13), *GOOD)
        finding = found(waits)["x", "queued"]
        assert text in finding.title and finding.loss_ns == 10 * 300_000


def test_wrong_stream_is_an_error_of_the_thread_that_times():
    empty = (("host", 33), ("api_launch", 5), ("event", 6))
    finding = found(repeat(10, "x", *empty, other={23: 2_668}))["x", "wrong-stream"]
    assert finding.severity == "error"
    assert finding.evidence["working_stream"] == 23 and finding.evidence["timed_stream"] == 7
    assert "wrong-stream" not in severities(repeat(10, "x", *empty))
    inferred = repeat(10, "x", *empty, other={23: 2_668}, method="inferred")
    assert ("x", "wrong-stream") not in found(inferred)
    quiet = repeat(10, "x", ("host", 5), ("event", 5), other={23: 2_668})
    busy = repeat(10, "other thread", *GOOD, stream=23, tid=2)
    assert ("x", "wrong-stream") not in found(quiet, busy)
    assert ("x", "wrong-stream") in found(quiet)  # one thread: whose work should it be?


def test_pairs_without_a_place():
    lost = [
        ("early", "elapsed_time failed: CUDA error: device not ready"),
        ("swapped", "negative elapsed_time: the end was recorded before the start"),
        ("graph", "captured into a CUDA graph"),
        ("unseen", "the probe did not see one of its records"),
    ]
    rules = {label: rule for label, rule in found(repeat(10, "x", *GOOD), unaligned=lost)}
    assert rules == dict.fromkeys(("early", "swapped", "graph"), "no-result")


def test_a_pair_with_nothing_between_measures_itself_or_the_host():
    prefetch = repeat(6, "prefetch", ("host", 900), ("api", 40), ("event", 4))
    rules = found(prefetch, repeat(6, "empty", ("host", 6), ("event", 3)))
    waits, empty = rules["prefetch", "event-floor"], rules["empty", "event-floor"]
    assert waits.title == (
        "prefetch contains no GPU work: for 940 of 944 us the CPU did something else before it recorded the end event."
    )
    assert "perf_counter" in waits.advice and "another thread" in waits.faster
    assert "9 us is what an event pair itself costs" in empty.title and not empty.faster


BEFORE, AFTER, IDLE = "synchronised-before", "synchronised-after", "idle-before"
ENQUEUE = (("host", 4), ("api_launch", 4))
WHOLE = (("host", 8), ("api_launch", 4), ("kernel", 2), ("sync", 3))
LOOP = (("host", 3300), ("api_launch", 3000))


@pytest.mark.parametrize(
    ("pieces", "more", "rule", "severity", "text"),
    [
        (ENQUEUE, {"issued": 2, "outside": 2}, "enqueue-only", "error", "never synchronises, and earlier work"),
        (ENQUEUE, {"issued": 2, "outside": 2, "flags": (IDLE,)}, "enqueue-only", "error", "nothing waits for the work"),
        (ENQUEUE, {"issued": 2, "outside": 2, "flags": (BEFORE, IDLE)}, "enqueue-only", "error", "measures the API calls alone; all 2 us"),
        (WHOLE, {"flags": (AFTER,)}, "host-timer", "warning", "or for earlier work, which was still running"),
        (WHOLE, {"flags": (AFTER, IDLE)}, "host-timer", "warning", "here it had ended"),
        # 300 runs of 6.3 ms, 0.7 ms of kernels that overlap with the launches: it measures the CPU
        (LOOP, {"issued": 700, "outside": 100}, "enqueue-only", "warning", "kernels ran for 0.60 of 6.30 ms meanwhile, 100 of 700 us of kernels ran after"),
        (LOOP, {"issued": 700}, "enqueue-only", "info", "but nothing ensures that"),
        (LOOP, {"issued": 700, "outside": 50, "flags": (BEFORE,)}, "enqueue-only", "warning", "only before the first reading"),
        ((*LOOP, ("sync", 5)), {"issued": 700, "flags": (AFTER,)}, "host-timer", "warning", "synchronisation together"),
        ((*LOOP, ("memcpy", 5)), {"issued": 700}, "host-timer", "warning", "launches and the kernels beside them together"),
        ([("queued", 100), ("api_launch", 30)], {"issued": 50, "outside": 5}, "host-timer", "warning", "launches and the kernels beside them together"),
    ],
)  # fmt: skip
def test_host_timers_say_where_they_synchronise(pieces, more, rule, severity, text):
    said = found(repeat(3, "x", *pieces, kind="host", **more))
    assert said["x", rule].severity == severity and text in said["x", rule].title
    other = {"enqueue-only": "host-timer", "host-timer": "enqueue-only"}[rule]
    assert ("x", other) not in said


def test_a_loops_first_repetition_may_begin_with_nothing_behind_it():
    first = interval("both", *WHOLE, kind="host", flags=(AFTER,))
    said = found([first, *repeat(2, "both", *WHOLE, kind="host", flags=(BEFORE, AFTER))])
    assert said["both", "host-timer"].evidence["synchronises"] == "before and after"


# --- what is said depends on the program ---


def of_program(kernel: str, *drawn):
    """rule -> finding, in a trace of one kernel's name."""
    ran = pd.DataFrame([("x", kernel, "kernel", 1, 1, 1, 0.1, 0)], columns=frames.KERNELS.names)
    made = replace(analysis(*drawn), kernels=frames.check(ran, frames.KERNELS))
    return {f.rule: f for f in diagnose(made).findings.itertuples(index=False)}


def test_torch_code_is_for_torch_programs_and_start_events_for_events():
    events = repeat(6, "x", *LATE)
    assert "start.record()" in of_program(TORCH, events)["host-gap"].advice
    said = of_program(OTHER, events)["host-gap"].advice
    assert "torch" not in said and "record" not in said and said.endswith(".")
    said = of_program(TORCH, repeat(6, "layer", *LATE, kind="nvtx"))["host-gap"].advice
    assert "start.record" not in said and "_sleep" not in said
    with_item, without = (of_program(k, repeat(6, "x", *ITEM))["sync-inside"] for k in (TORCH, OTHER))  # fmt: skip
    assert ".item()" in with_item.title and ".item()" in with_item.advice
    assert ".item()" not in without.title and ".item()" not in without.advice


@pytest.mark.parametrize(
    ("rule", "drawn"),
    [
        ("host-gap", (("host", 160), ("api_launch", 30), ("kernel", 25))),
        ("api-launch", (("api_launch", 160), ("kernel", 25))),
        ("many-tiny-kernels", [p for _ in range(12) for p in (("api_launch", 25), ("kernel", 2))]),
        ("whole-run", (("kernel", 25), ("api_launch", 160), ("kernel", 25))),
    ],
)
def test_programs_that_replay_graphs_are_not_told_to(rule, drawn):
    """An Inductor program in mode reduce-overhead: its launches are cudaGraphLaunch."""
    graphs = [piece(*p, "cudaGraphLaunch_v10000") if p[0] == "api_launch" else p for p in drawn]
    for pieces, told in ((drawn, True), (graphs, False)):
        kind = "run" if rule == "whole-run" else "event"
        made = repeat(1 if kind == "run" else 6, "x", *pieces, kind=kind)
        for kernel in (TORCH, OTHER):
            said = of_program(kernel, made)[rule]
            advice = f"{said.advice} {said.faster}"
            wanted = ("time a CUDA graph", "replay the work", "replay them", "reduce-overhead")
            assert any(text in advice for text in wanted) == told
            assert ("replayed here" in advice) != told


def test_no_graph_is_advised_where_the_interval_synchronises():
    """A graph cannot be captured over a synchronisation (nonzero on an H200 was advised one)."""
    assert "CUDA graph" in found(repeat(8, "t", *LATE))["t", "host-gap"].faster
    waits = found(repeat(8, "t", *LATE, ("sync", 9)))["t", "host-gap"]
    assert "CUDA graph" not in waits.faster and "reduce-overhead" not in waits.faster
    assert "synchronisation" in waits.advice


@pytest.mark.parametrize(("rule", "drawn"), [("host-gap", LATE), ("sync-inside", SYNC)])
def test_the_gpu_is_not_idle_while_others_use_it(rule, drawn):
    alone, beside = (
        found(repeat(6, "x", *drawn, flags=flags))["x", rule] for flags in ((), (OTHERS_WORKED,))
    )
    assert alone.severity == "warning" and "other streams worked during most" not in alone.title
    assert beside.severity == "info" and "other streams worked during most" in beside.title


@pytest.mark.parametrize(
    ("baseline_us", "low_us", "severity"),
    [(70, 25, "warning"), (90, 10, "info"), (101, 1, None), (70, -5, None), (150, 40, None)],
)
def test_a_label_that_the_profiler_makes_longer(baseline_us, low_us, severity):
    row = dict.fromkeys(frames.BASELINE.names, 0) | {
        "label": "x", "kind": "event", "site": "bench.py:7", "remark": "", "profiled_ns": 102e3,
        "baseline_ns": baseline_us * 1e3, "predicted_ns": baseline_us * 1e3 + 500,
        "low_ns": low_us * 1e3, "high_ns": 50e3, "inflation": 102 / baseline_us,
    }  # fmt: skip
    table = frames.check(pd.DataFrame([row]), frames.BASELINE)
    result = diagnose(replace(analysis(repeat(10, "x", *LATE)), baseline=table))
    said = {f.rule: f for f in result.findings.itertuples()}.get("profiler-inflation")
    assert (said and said.severity) == severity
    if severity == "warning":
        assert said.title == "x is 1.46 times as long under nsys: 102 us profiled, 70 us without."
        assert said.evidence["predicted_without_nsys_ns"] == 70_500


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("/work/train.py:12-14", "train.py:12-14"),
        ("scripts/a/b.py:19-21", "b.py:19-21"),
        ("step (/a/b/c.py:7)", "step (c.py:7)"),
        ("/model/attention/MatMul", "/model/attention/MatMul"),
        ("/layers.0/mlp/Gemm + /layers.0/mlp/Relu", "/layers.0/mlp/Gemm + /layers.0/mlp/Relu"),
    ],
)
def test_names_of_layers_are_no_paths(label, said):
    assert subject(label) == said
