"""The one finding of a label: what leads, what it is worth, which advice fits; each with drawings that
have what it is about, and some that have not."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.explain.rules import OF_LABELS
from nsysalign.model import Known
from nsysalign.text import kernel_name

from .drawing import analysis, diagnose, found, interval, issued_table, piece, repeat

LATENCY, EVENT = ("launch_latency", 1.6), ("event", 2.3)
GOOD = (LATENCY, ("kernel", 200), EVENT)  # the CPU had run ahead
LATE = (("host", 160), ("api_launch", 30), ("kernel", 25), ("event", 5))
TINY = [p for _ in range(20) for p in (("api_launch", 3), ("launch_latency", 2), ("kernel", 1))]
FILL = "void vectorized_elementwise_kernel<FillFunctor<float>>(int)"


def blocking(tail: bool):
    pieces = []
    for k in range(8):
        pieces += [piece("api_launch", 4, ref=k), piece("launch_latency", 2), piece("kernel", 50)]
        pieces += [piece("api_launch", 2, ref=k)] * tail + [piece("host", 5)]
    return [*pieces, ("event", 2)]


def one(*drawn, **more):
    """The findings of a drawing: (rule, severity, verdict) of each label."""
    return [(f.rule, f.severity, f.verdict) for f in found(*drawn, **more).values()]


@pytest.mark.parametrize(
    ("pieces", "more", "expected"),
    [
        (GOOD, {}, ("gpu-bound", "info", "gpu_bound")),
        ([("host", 18), ("kernel", 90)], {}, ("gpu-bound", "info", "gpu_bound")),
        ([("host", 24), ("kernel", 90)], {}, ("host-gap", "warning", "cpu_bound")),
        (LATE, {}, ("host-gap", "warning", "cpu_bound")),
        ([("host", 2), ("api_launch", 30), ("kernel", 60)], {}, ("api-launch", "warning", "launch_bound")),
        (TINY, {}, ("many-tiny-kernels", "warning", "launch_bound")),
        ([("launch_latency", 2), ("kernel", 6), ("event", 1)], {}, ("mixed", "info", "mixed")),
        ([("launch_latency", 2), ("kernel", 1), ("event", 1)], {}, ("launch-latency", "info", "floor")),
        ([piece("api", 100, "cudaMalloc"), ("api_launch", 5), ("kernel", 235)], {}, ("allocation-inside", "warning", "cpu_bound")),
        ([piece("memcpy", 300, direction="H2D", memory="pageable", bytes=1 << 20), ("kernel", 90)], {}, ("copy-inside", "warning", "copy_bound")),
        ([piece("memcpy", 300, direction="D2D", bytes=1 << 20), ("kernel", 90)], {}, ("gpu-bound", "info", "gpu_bound")),
        ([piece("kernel", 30, FILL), ("event", 2)], {}, ("gpu-bound", "info", "gpu_bound")),  # what it times
        ([("graph", 50), ("event", 3)], {}, ("graph-opaque", "info", "mixed")),
        ([("unknown", 150), ("kernel", 100)], {}, ("unknown-time", "info", "cannot_tell")),
        ([piece("queued", 300, "dependency", stream=13), *GOOD], {}, ("queued", "warning", "waiting")),
        (GOOD, {"stream": 27, "start_stream": 7}, ("different-streams", "warning", "doubtful")),
        ([piece("api", 1, "cudaStreamWaitEvent"), *GOOD], {"stream": 27, "start_stream": 7}, ("gpu-bound", "info", "gpu_bound")),
        (blocking(tail=True), {}, ("launch-blocking", "warning", "doubtful")),
        (blocking(tail=False), {}, ("gpu-bound", "info", "gpu_bound")),
    ],
)  # fmt: skip
def test_what_is_said_of_ten_alike(pieces, more, expected):
    assert one(repeat(10, "x", *pieces, **more)) == [expected]


def test_every_label_has_one_finding_and_its_name_is_listed():
    drawn = [*repeat(6, "late", *LATE), *repeat(6, "good", *GOOD), *repeat(6, "tiny", *TINY)]
    findings = diagnose(analysis(drawn)).findings
    assert sorted(findings["label"]) == ["good", "late", "tiny"]
    assert set(findings["rule"]) <= set(OF_LABELS)
    assert (findings["verdict"] != "").all() and findings["words"].str.len().between(1, 24).all()
    for evidence in findings["evidence"]:
        json.dumps(evidence)


def test_the_sentence_is_about_the_valid_label_with_the_largest_saving():
    drawn = [*repeat(6, "good", *GOOD), *repeat(6, "late", *LATE), *repeat(60, "later", *LATE)]
    said = answer(diagnose(analysis(drawn)))
    assert said.proof.label == "later" and said.verdict == "cpu_bound"
    assert [row.label for row in said.labels] == ["later", "late", "good"]
    assert not said.wrong


def test_first_calls_are_a_remark_and_lead_nothing():
    """torch.compile with CUDA graphs on an H200: 2.7 s, 41 ms, then a graph of 0.5 ms."""
    drawn = [
        interval("x", ("host", 900_000), *GOOD),
        *repeat(17, "x", ("host", 163), ("api_launch", 55), ("kernel", 280)),
    ]
    said = answer(diagnose(analysis(drawn)))
    (row,) = said.labels
    assert (row.warm.count, row.cold.count) == (17, 1)
    assert row.saving_ns == 17 * 163_000 and row.elapsed_ns == 498_000
    assert any(remark.startswith("first calls, left out: 900 ms") for remark in said.remarks)


def test_a_few_slow_ones_lead_with_what_they_take_and_are_worth_their_excess():
    slow = repeat(5, "x", ("kernel", 669), ("host", 149_000))
    usual = repeat(595, "x", ("kernel", 900), ("host", 100))
    said = answer(diagnose(analysis(usual[:300], slow, usual[300:])))
    (row,) = said.labels
    assert [(group.count, group.words) for group in row.groups] == [
        (5, "GPU idle 100 %"),
        (595, "90 % kernels"),
    ]
    assert row.verdict == "cpu_bound" and row.elapsed_ns == 149_669_000
    assert row.saving_ns == 5 * (149_669_000 - 1_000_000)
    assert "5 of them" in said.sentence and "595 x" in said.sentence


def test_two_kinds_that_are_both_good_are_no_green_label():
    drawn = [*repeat(20, "x", LATENCY, ("kernel", 80)), *repeat(20, "x", LATENCY, ("kernel", 400))]
    (row,) = answer(diagnose(analysis(drawn))).labels
    assert row.verdict == "mixed" and {group.verdict for group in row.groups} == {"gpu_bound"}


# --- advice fits or is absent ---


def advice(*drawn, known=None):
    drawn = analysis(*drawn)
    drawn = replace(drawn, known=replace(drawn.known, **known)) if known is not None else drawn
    (finding,) = diagnose(drawn).findings.itertuples()
    return finding.advice, finding.faster


TORCH = {"torch": "2.11", "python": "3.12"}


def test_a_delay_is_for_work_that_is_enqueued_quickly():
    measuring, _ = advice(repeat(6, "x", *LATE), known=TORCH)
    assert "torch.cuda._sleep(2_000_000); start.record()" in measuring
    slow = repeat(6, "x", ("host", 6_000), ("kernel", 500))
    measuring, faster = advice(slow, known=TORCH)
    assert "_sleep" not in measuring and "--sample-python" in faster
    assert "torch.compile" not in faster


def test_torch_compile_is_for_many_small_operations_of_torch():
    assert "reduce-overhead" in advice(repeat(6, "x", *TINY), known=TORCH)[1]
    assert not advice(repeat(6, "x", *LATE), known=TORCH)[1], "one call"


def test_no_advice_where_no_row_fits():
    assert advice(repeat(6, "x", *GOOD), known=TORCH) == ("", "")
    assert advice(repeat(6, "x", ("unknown", 150), ("kernel", 100)), known=TORCH) == ("", "")


# --- pairs without a result ---


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        ("elapsed_time failed: CUDA error 600 (not ready)", "no-result"),
        ("negative elapsed_time: the end was recorded before the start", "no-result"),
        ("captured into a CUDA graph", "captured-events"),
        ("no record of the trace fits", None),
    ],
)
def test_pairs_without_a_place_are_wrong_where_the_program_is_to_blame(reason, rule):
    told = found(repeat(3, "x", *GOOD), unaligned=[("early", reason)])
    mine = [(f.rule, f.severity, f.verdict) for (label, _), f in told.items() if label == "early"]
    assert mine == ([(rule, "error", "wrong")] if rule else [])


def test_a_launch_that_is_on_its_way_for_long_is_no_cost_of_launching():
    """HTA's sampled trace: 129 ms of 263 operations whose neighbours' rows are not there."""
    late = [p for _ in range(20) for p in (("launch_latency", 490), ("kernel", 100))]
    (of_late,) = found(*repeat(10, "step", *late, kind="nvtx")).values()
    assert "typical_latency_ns" in of_late.evidence and "one by one" not in of_late.title
    (tiny,) = found(*repeat(10, "step", *TINY, kind="nvtx")).values()
    assert "typical_latency_ns" not in tiny.evidence


def test_a_range_has_no_start_event_to_synchronise_before():
    contended = [piece("queued", 300, "contention", stream=13), *GOOD]
    (of_range,) = found(*repeat(10, "step", *contended, kind="nvtx")).values()
    assert "start.record()" not in of_range.advice


@pytest.mark.parametrize(
    ("memory", "us", "told"),
    [("pageable", 40, True), ("pageable", 5, False), ("pinned", 40, False)],
)
def test_copies_of_pageable_memory_beside_kernels_are_named(memory, us, told):
    """bitonic sort: 16 % of what was 84 % kernels, the only part that could be saved, was not said."""
    copy = piece("memcpy", us, "copy", memory=memory, direction="D2H", bytes=1 << 20)
    (finding,) = found(*repeat(10, "sort", *GOOD, copy)).values()
    assert (finding.rule, finding.verdict) == ("gpu-bound", "gpu_bound")
    assert ("16 % copies of pageable memory" in finding.title) == told
    assert finding.faster.startswith("Copy from and to pinned memory") == told


@pytest.mark.parametrize(("count", "advised"), [(1, False), (10, True)])
def test_cuda_free_in_what_runs_once_sets_up(count, advised):
    pieces = [piece("api", 9_000, "cudaFree"), ("kernel", 235)]
    drawn = replace(analysis(repeat(count, "step", *pieces)), known=Known(torch="2.11"))
    codes = [fix.code for fix in answer(diagnose(drawn)).fixes]
    assert any("empty_cache" in code for code in codes) == advised


def test_a_program_of_cupy_gets_no_advice_of_torch():
    """It imports torch, which its log says, and times kernels of CuPy's alone."""
    from nsysalign.explain.facts import _OF_OTHERS, _TORCH

    for name in (
        "cupy_multiply__float32_float_float32",
        "_ZN6cudapy8__main__5saxpyB2v1",
        "cudapy::add",
    ):
        assert _OF_OTHERS.search(name) and not _TORCH.search(name)
    for name in ("nvjet_sm90_hsh_128x24", "void at::native::vectorized_elementwise_kernel<4>"):
        assert not _OF_OTHERS.search(name)


@pytest.mark.parametrize("alone", [False, True])
def test_code_of_torch_is_for_programs_that_import_no_other_library(alone):
    """Matrix products of cuBLAS, which torch and CuPy call alike."""
    pieces = [("host", 300), ("launch_latency", 5), ("kernel", 100)]
    known = Known(torch="2.11", torch_is_alone=alone)
    drawn = analysis(repeat(20, "step", *pieces))
    row = dict.fromkeys(frames.KERNELS.names, 0)
    row |= {"label": "x", "kind": "kernel", "kernel": "nvjet_sm90_hsh_128x24"}
    kernels = frames.check(pd.DataFrame([row]), frames.KERNELS)
    findings = diagnose(replace(drawn, known=known, kernels=kernels)).findings
    assert findings["advice"].str.contains(r"torch\.").any() == alone


def test_a_slower_call_of_the_same_lines_is_compared():
    """One helper called from three lines: twice with the same kernels, once with others."""
    first = repeat(10, "bench.py:26 (bench.py:12-18)", ("host", 120), ("kernel", 200))
    second = repeat(10, "bench.py:27 (bench.py:12-18)", ("host", 30), ("kernel", 200))
    other = repeat(10, "bench.py:28 (bench.py:12-18)", ("host", 30), ("kernel", 150))
    findings = diagnose(analysis([*first, *second, *other])).findings
    evidence = dict(zip(findings["label"], findings["evidence"], strict=True))
    assert evidence["bench.py:26 (bench.py:12-18)"]["same_work_elsewhere_ns"] == 230_000
    for line in (27, 28):
        assert "elsewhere" not in evidence[f"bench.py:{line} (bench.py:12-18)"]


def test_what_the_quoted_interval_waited_for_is_named():
    """Two threads time the same code on a stream each, and wait for the other's: most of all for 17, the
    interval that is quoted for 13."""
    drawn = []
    for k in range(10):
        for stream, us in ((13, 50), (17, 60)):
            waits = piece("queued", us + k, "contention", stream=30 - stream, operation="gemm")
            drawn.append(interval("serve", waits, ("kernel", 90), stream=stream))
    analysed = analysis(drawn)
    (finding,) = diagnose(analysed).findings.itertuples(index=False)
    quoted = analysed.intervals.iloc[finding.interval]
    assert finding.evidence["stream_waited_for"] == 30 - quoted["end_stream"]
    most = analysed.details.groupby("stream")["ns"].sum().idxmax()
    assert most != finding.evidence["stream_waited_for"]


def test_overlapping_timings_are_not_summed_and_not_green():
    """Requests of a server, four at a time on one stream: 400 us each, of which 100 are its own."""

    def timed(every_us, **more):
        drawn = [
            interval("request", ("kernel", 395), ("event", 5), start=every_us * k, **more)
            for k in range(20)
        ]
        return answer(diagnose(analysis(drawn))).labels[0]

    row = timed(100)
    assert row.findings == ("overlapping",) and row.verdict == "mixed" and row.overlapping
    assert "3.5 at a time" in row.sentence and "each takes 115 us" in row.sentence
    assert not row.flagged and row.saving_ns == 0
    assert timed(500).verdict == "gpu_bound", "one after the other"
    assert timed(390).verdict == "gpu_bound", "they hardly overlap"
    assert timed(100, start_stream=13).findings != ("overlapping",), "not of one stream"


def test_no_group_of_overlapping_timings_is_green():
    drawn = [
        interval("x", *[("kernel", us)] * 4, ("event", 5), start=100 * k)
        for k in range(20)
        for us in ([100] if k % 2 else [180])
    ]
    row = answer(diagnose(analysis(drawn))).labels[0]
    assert row.findings == ("overlapping",)
    assert "gpu_bound" not in {row.verdict, *(group.verdict for group in row.groups)}


@pytest.mark.parametrize(
    ("flag", "rule"),
    [("synchronised-before", "no-gpu-work-inside"), ("synchronised-after", "nothing-inside")],
)
def test_only_who_waits_inside_meant_gpu_work(flag, rule):
    """A loader's first batch, behind the model's copy to the GPU, which waits: no wrong timing."""
    drawn = interval("data", ("host", 144_000), kind="host", flags=(flag, "no-gpu-work"))
    assert [name for _, name in found(drawn)] == [rule]


@pytest.mark.parametrize("kind", ["host", "event"])
@pytest.mark.parametrize(("begins_us", "wrong"), [(100, False), (101, True)])
def test_marks_round_the_phases_of_a_loop_may_have_no_work_between_two_of_them(
    kind, begins_us, wrong
):
    """Next batch, forward: the end of the first timing is the begin of the second one."""
    idle, work = (("host", 100),), (("host", 20), ("kernel", 80))
    flags = ("synchronised-after", "no-gpu-work") if kind == "host" else ()
    drawn = [interval("data", *idle, kind=kind, start=1_000 * k, flags=flags) for k in range(8)]
    drawn += [interval("step", *work, kind=kind, start=1_000 * k + begins_us) for k in range(8)]
    drawn = analysis(drawn)
    if kind == "event" and not wrong:  # the same records
        of = drawn.intervals.groupby("label")
        steps = of.get_group("data")["end_record"].to_numpy()
        drawn.intervals.loc[of.get_group("step").index, "start_record"] = steps
    rule = "nothing-inside" if wrong else "no-gpu-work-inside"
    assert rule in {f.rule for f in diagnose(drawn).findings.itertuples() if f.label == "data"}


@pytest.mark.parametrize(("pid", "wrong"), [(2, False), (1, True)])
def test_work_of_a_child_process_is_no_fault_of_the_timing(pid, wrong):
    """An engine runs in a process of its own, and the program times its answer."""
    flags = ("synchronised-after", "no-gpu-work")
    timed = repeat(8, "answer", ("host", 900), kind="host", flags=flags)
    made = diagnose(analysis(timed, interval("run", ("kernel", 9_000), kind="run", pid=pid)))
    (row,) = [f for f in made.findings.itertuples() if f.label == "answer"]
    assert (row.verdict == "wrong") == wrong and ("another process" in row.title) != wrong


def elsewhere(operation, **more):
    """Eight products on two other streams, for which its end waits."""
    waits = piece("queued", 4_800, "dependency", stream=17, operation=operation)
    pieces = (("host", 400), ("api_launch", 60), waits, ("event", 20))
    drawn = repeat(
        20,
        "x",
        *pieces,
        **(
            {"other": {13: 2_900, 17: 3_000}, "elsewhere": 5_100, "ordered": True, "operations": 8}
            | more
        ),
    )
    return answer(diagnose(analysis(drawn)))


def test_waiting_for_kernels_it_launched_itself_is_gpu_work():
    told = elsewhere("gemm")
    row = told.labels[0]
    assert (row.verdict, row.findings, row.saving_ns) == ("gpu_bound", ("gpu-bound",), 0)
    assert "97 %" in row.words and "streams 13 and 17" in told.sentence
    assert not told.fixes and not row.flagged
    assert told.proof.gpu_in(400_000) == "", "beside its CPU other streams may work"


def test_waiting_for_what_does_not_work_for_it_is_no_gpu_work():
    """Copies, NCCL's kernels, and work that was launched before: `split.elsewhere` counts none of it."""
    assert elsewhere("copy H2D pinned", elsewhere=0).labels[0].verdict == "mixed"
    assert elsewhere("gemm", elsewhere=0, other={13: 50}).labels[0].verdict == "waiting"


def test_where_nothing_can_be_saved_nothing_makes_it_faster():
    """Small launches for another stream, which works all the time."""
    pieces = [("api_launch", 3), ("launch_latency", 2)] * 20
    more = {"flags": ("other-streams-worked",), "operations": 20, "ordered": True}
    drawn = analysis(repeat(20, "x", *pieces, other={13: 100}, **more))
    told = answer(diagnose(replace(drawn, known=Known(**TORCH))))
    assert told.labels[0].saving_ns == 0 and told.labels[0].findings == ("many-tiny-kernels",)
    assert not [fix for fix in told.fixes if fix.purpose == "make it faster"]


@pytest.mark.parametrize(
    ("busy_us", "cpu_us", "expected"),
    [(975, 250, "busy"), (500, 900, ""), (350, 900, ""), (80, 900, "idle"), (300, 250, "")],
)
def test_what_the_gpu_does_beside_the_cpu_of_a_host_timer(busy_us, cpu_us, expected):
    """A drawing said 'GPU idle' for 27 ms in which kernels ran without a gap."""
    drawn = interval("x", ("host", cpu_us), ("sync", 1_000 - cpu_us), kind="host", issued=busy_us)
    drawn = diagnose(analysis(drawn))
    proof = answer(
        replace(drawn, intervals=drawn.intervals.assign(gpu_busy_ns=busy_us * 1_000))
    ).proof
    assert proof.gpu_in(cpu_us * 1_000) == expected


def test_a_result_that_is_read_back_holds_up_launching():
    """A read-back in each repetition of 24 operations: the CPU cannot run ahead of the GPU."""
    calls = [p for _ in range(24) for p in (("api_launch", 5), ("host", 6), ("kernel", 5))]
    back = piece("memcpy", 2, direction="D2H", memory="pinned", bytes=8)
    drawn = repeat(20, "x", *calls, back, ("sync", 4), *calls[:3], ("event", 5))
    told = analysis(drawn)
    told = replace(told, groups=told.groups.assign(waits=1))
    row = (0, "memcpy", "D2H pinned", 1, 8, -1)
    issued = issued_table([row])
    found = answer(diagnose(replace(told, issued=issued)))
    assert found.labels[0].findings == ("sync-inside",) and "once for a few bytes" in found.sentence
    assert answer(diagnose(told)).labels[0].findings == ("host-gap",), "a wait for 26 operations"


def test_a_kernel_is_named_by_what_it_does():
    name = (
        "void at::native::vectorized_elementwise_kernel<8, at::native::float16_copy_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::float16_copy_kernel_cuda(...))"
    )
    assert kernel_name(name) == "float16_copy_kernel_cuda"
    told = answer(diagnose(analysis(repeat(8, "x", piece("kernel", 400, name), ("event", 5)))))
    assert "(float16_copy_kernel_cuda)" in told.sentence


def test_very_many_short_operations_are_launched_one_by_one():
    """An average of 720 weights: 1.5 us each, 7 us to launch and 8 us of Python between two of them; a
    piece of 3 ms beside them is not what the 16 ms are about."""
    weights = [p for _ in range(720) for p in (("host", 8), ("api_launch", 7), ("kernel", 1.5))]

    def first(*pieces):
        (finding,) = diagnose(analysis(repeat(8, "x", *pieces))).findings.itertuples()
        return finding

    found = first(("host", 3_000), *weights)
    assert found.rule == "many-tiny-kernels" and found.evidence["operations"] == 720
    # its first 8 us are one piece with the 3 ms before them
    assert found.evidence["one_by_one_ns"] == 720 * 15_000 - 8_000
    assert first(("host", 9_000), *weights).rule == "host-gap", "nearly as much in one piece"
    long = [(cause, 30 if cause == "kernel" else us) for cause, us in weights]
    assert first(*long).rule != "many-tiny-kernels", "the operations are what takes long"


@pytest.mark.parametrize(
    ("lasts_us", "verdict"), [(102, "mixed"), (4, "gpu_bound"), (0, "gpu_bound")]
)
def test_a_range_of_which_the_gpu_works_a_sliver_is_not_green(lasts_us, verdict):
    """A public trace: 1,000 ranges of 102 us, each with one kernel of 1.3 us: '100 % kernels'."""
    drawn = analysis(repeat(20, "test", ("kernel", 1.3), kind="nvtx"))
    row = dict.fromkeys(frames.HOST_RANGES.names, 0) | {"label": "test"}
    row |= {
        "count": 20,
        "with_work": 20,
        "median_ns": lasts_us * 1_000,
        "host_ns": 20_000 * lasts_us,
    }
    ranges = frames.check(pd.DataFrame([row] if lasts_us else [], columns=frames.HOST_RANGES.names), frames.HOST_RANGES)  # fmt: skip
    (told,) = answer(diagnose(replace(drawn, host_ranges=ranges))).labels
    assert told.verdict == verdict
    assert ("range: 102 us" in told.words) is (verdict == "mixed")


def test_first_passes_of_several_kinds_are_one_fact():
    """54 passes of 6 sizes: the search for an algorithm in the first one of each takes 90 % of all."""
    drawn = []
    for size in range(3):
        pieces = [("kernel", 300), ("api_launch", 5)] * (size + 4)
        drawn += [
            interval("x", ("host", 70_000 + 9_000 * size), *pieces, start=1e6 * size + k)
            for k in (0, 9e4)
        ]
    drawn += repeat(40, "x", ("kernel", 1_500), ("host", 100))
    (told,) = answer(diagnose(analysis(drawn))).labels
    assert "88 % of it is the first 6, 71.2 ms to 89.8 ms each" in told.sentence
    assert "Most of the others take 1.60 ms" in told.sentence


@pytest.mark.parametrize(
    ("launch_us", "waits", "expected"),
    [
        (7, 0, ("mixed", ("mixed",), 0)),  # a quarter; a third of that is recording
        (
            7,
            1,
            ("launch_bound", ("many-tiny-kernels",), 8 * 7_000),
        ),  # held up by a wait, recorded or not
        (
            12,
            0,
            ("launch_bound", ("many-tiny-kernels",), 8 * 12_000),
        ),  # a third of that is not enough
    ],
)
def test_what_recording_costs_is_no_fault_of_the_programs(launch_us, waits, expected):
    """A correct training step, 94 % kernels when it is not recorded, read '25 % CPU-bound'."""
    drawn = analysis(repeat(8, "x", *[("api_launch", launch_us), ("kernel", 21)] * 50))
    drawn = replace(drawn, groups=drawn.groups.assign(waits=waits))
    told = answer(diagnose(drawn))
    (row,) = told.labels
    assert (row.verdict, row.findings, row.saving_ns // 50) == expected
    assert ("Recording its 50 operations" in told.sentence) == (row.verdict == "mixed")


@pytest.mark.parametrize(
    ("kernel", "between_us", "compiles"),
    [
        ("void larft_T_32<float, 256>(int)", 2, False),
        ("void larft_T_32<float, 256>(int)", 9, True),  # an operator of torch's each
        ("void at::native::vectorized_elementwise_kernel<4>(int)", 2, True),
    ],
)
def test_what_a_library_launches_itself_is_out_of_torchs_reach(kernel, between_us, compiles):
    """5,406 launches by one call of cuSOLVER: torch.compile cannot fuse them."""
    pieces = [("host", between_us), ("api_launch", 7), piece("kernel", 1.3, kernel)] * 600
    drawn = analysis(repeat(8, "qr", *pieces))
    issued = [(0, "kernel", kernel, 600, 0, 600)]
    issued = issued_table(issued)
    drawn = replace(drawn, issued=issued, known=Known(**TORCH))
    (fix,) = [f for f in answer(diagnose(drawn)).fixes if f.purpose == "make it faster"]
    assert ("torch.compile" in fix.code) == compiles
    assert compiles or "larft_T_32 600 times" in fix.sentence


@pytest.mark.parametrize(
    ("back", "waits", "sizes", "lines"),
    [(1, 1, True, 1), (200, 200, False, 1), (1, 0, False, 0)],
)
def test_a_read_back_with_work_behind_it_cannot_be_taken_out(back, waits, sizes, lines):
    """`int(index.max())` decides the sizes of what follows: neither recipe could be used."""
    pieces = [("host", 30), ("api_launch", 7), ("kernel", 5), ("sync", 6)]
    read = piece("memcpy", 2, direction="D2H", memory="pinned", bytes=8)
    drawn = analysis(repeat(8, "x", *pieces, read, *pieces))
    row = (0, "memcpy", "D2H pinned", back, 8 * back, -1)
    issued = issued_table([row])
    drawn = replace(drawn, groups=drawn.groups.assign(waits=waits), issued=issued)
    told = answer(diagnose(replace(drawn, known=Known(**TORCH))))
    code = " ".join(fix.code for fix in told.fixes)
    assert ("sizes" in " ".join(fix.sentence for fix in told.fixes)) == sizes
    assert code.count("set_sync_debug_mode") == lines
    assert lines == 0 or "item()" not in code


def prepared(first, *others, kind="host"):
    """Answers for first timings with what they prepare, then usual ones."""
    drawn = [interval("x", *pieces, kind=kind) for pieces in (first, *others)]
    drawn += repeat(40, "x", ("host", 150), ("kernel", 20), kind=kind)
    return answer(diagnose(replace(analysis(drawn), known=Known(**TORCH))))


LOAD = piece("api", 13_000, "cuLibraryLoadData")
GRAPH = piece("api", 114, "cudaGraphInstantiateWithFlags")


def test_first_calls_in_which_loading_takes_a_good_part_are_said_to_compile_or_load():
    first = [("host", 30_000), LOAD, ("kernel", 20)]
    told = prepared(first, [*first, ("kernel", 2)])
    assert "code is compiled or loaded." in told.sentence


def test_the_first_calls_are_told_together_and_left_out():
    """Compiled code with CUDA graphs: the second call prepares as well, and no environment variable helps."""
    compiled = [("host", 3_000_000), LOAD, *[("kernel", 2)] * 400]
    told = prepared(compiled, [("host", 9_000), LOAD, GRAPH, ("kernel", 30), ("kernel", 2)])
    assert "nearly all of it are the first 2" in told.sentence
    # or starts the workers of a loader, for all that is known
    assert "code is loaded for 26.0 ms of it, a graph recorded" in told.sentence
    (fix,) = told.fixes
    assert "range(3)" in fix.code and "EAGER" not in fix.code
    assert told.labels[0].words == "first calls" and told.labels[0].groups[0].words == "first call"


def test_a_graph_that_is_recorded_in_each_of_them_is_told():
    """Each new length: warm-up and recording; to find the function the CPU is in helps nobody."""
    recorded = [("host", 3_400), GRAPH, ("kernel", 30), ("kernel", 5), ("kernel", 5)]
    short = [[("host", 150), ("kernel", 20)]] * 3
    told = prepared(*short, *[recorded] * 7, kind="event")
    assert "a CUDA graph is recorded in each" in told.sentence
    assert "recorded anew" in told.fixes[-1].sentence and "--sample" not in told.fixes[-1].code
    (row,) = told.labels
    assert [group.words for group in row.groups if group.count == 7] == ["records a CUDA graph"]


@pytest.mark.parametrize(
    ("kernel", "waits", "code"),
    [
        ("xmma_fprop_implicit_gemm", 41, "cudnn.benchmark = False"),
        ("_matmul", 41, "triton.autotune"),
        ("_matmul", 2, ""),
    ],
)
def test_a_search_for_the_fastest_way_is_told(kernel, waits, code):
    """184 operations and 41 waits where the others of the same kernels issue 38."""
    search = [("host", 80_000), *[piece("kernel", 30, kernel)] * 184]
    usual = [("host", 80), *[piece("kernel", 30, kernel)] * 38]
    drawn = analysis(repeat(6, "x", *search, kind="host"), repeat(48, "x", *usual, kind="host"))
    rows = [(n, "kernel", kernel, 38, 0, 38) for n in drawn.groups["group"]]
    searching = int(drawn.groups.set_index("group")["operations"].idxmax())
    rows = [row for row in rows if row[0] != searching]
    rows.append((searching, "kernel", kernel, 120, 0, 38))
    rows.append((searching, "kernel", "at::native::FillFunctor<int>", 40, 0, 38))
    rows += [(searching, "kernel", f"{kernel}_{n}", 6, 0, 38) for n in range(4)]
    issued = issued_table(rows)
    groups = drawn.groups.assign(waits=[waits * (n > 100) for n in drawn.groups["operations"]])
    told = answer(diagnose(replace(drawn, issued=issued, groups=groups, known=Known(**TORCH))))
    assert code in told.fixes[-1].code
    assert (told.labels[0].words == "a search") == bool(code)


def test_what_a_library_timed_is_no_fault_of_the_programs():
    """The benchmark of a compiler, inside the program's own line, read '! 90 % CPU-bound'."""
    pieces = [("host", 230), ("api_launch", 20), ("kernel", 2)]
    drawn = analysis(repeat(9, "x", *pieces), repeat(200, "by inductor", *pieces))
    library = (drawn.intervals["label"] == "by inductor").to_numpy()
    labels = drawn.labels.assign(library=drawn.labels["label"] == "by inductor")
    drawn = replace(drawn, intervals=drawn.intervals.assign(library=library), labels=labels)
    own, other = answer(diagnose(drawn)).labels
    assert (own.label, own.verdict) == ("x", "cpu_bound")
    assert (other.verdict, other.words, other.groups) == ("mixed", "timed by a library", ())


@pytest.mark.parametrize(
    ("name", "us", "advised", "much"),
    [
        ("float16_copy_kernel_cuda", 360, True, True),
        ("float16_copy_kernel_cuda", 85, False, False),
        ("direct_copy_kernel_cuda", 360, False, True),
        ("direct_copy_kernel_cuda", 3_600, False, False),  # it is what is timed
        ("copy_if_kernel", 360, False, False),
    ],
)
def test_a_conversion_in_each_call_is_told(name, us, advised, much):
    """Autocast of weights: 'look at it with ncu' was said of four casts a call."""
    pieces = [piece("kernel", us, name), piece("kernel", 185, "gemm"), piece("kernel", 85, "relu")]
    drawn = replace(analysis(repeat(8, "x", *pieces)), known=Known(**TORCH))
    told = answer(diagnose(drawn))
    assert told.verdict == "gpu_bound" and ("torch.float16" in str(told.fixes)) == advised
    assert ("converts to float16" in told.sentence) == advised
    assert any("copies or converts" in fix.sentence for fix in told.fixes) == much


@pytest.mark.parametrize("name", ["CatArrayBatchedCopy", "index_copy"])
def test_a_tensor_that_grows_by_cat(name):
    """l04: "look at it with ncu" was said of a kernel that only copies."""
    pieces = piece("kernel", 850, name), piece("kernel", 150, "at::native::add")
    drawn = replace(analysis(repeat(8, "x", *pieces)), known=Known(**TORCH))
    told = answer(diagnose(drawn))
    grows = name.startswith("Cat")
    assert any("torch.cat" in fix.sentence for fix in told.fixes) == grows
    assert ("ncu" in told.sentence) != grows


def test_kernels_that_convert_come_before_a_small_gap():
    """j07: autocast cast all weights in each call of 4.2 ms; the model in half leaves the GPU idle for 0.6 of 1.8 ms."""
    cast = piece("kernel", 2_500, "float16_copy_kernel_cuda"), piece("kernel", 1_300, "gemm")
    drawn = analysis(
        repeat(8, "half", ("host", 550), piece("kernel", 1_250, "gemm")),
        repeat(8, "autocast", ("host", 350), *cast),
    )
    told = answer(diagnose(replace(drawn, known=Known(**TORCH))))
    assert told.sentence.startswith("autocast")
    assert "torch.float16" in told.fixes[0].code


def test_a_graph_is_counted_once():
    """A wide spread of graphs read 'A CUDA graph 60 %, kernels 60 %'."""
    drawn = [interval("x", ("graph", 160 + 12 * k), ("event", 60)) for k in range(16)]
    (told,) = answer(diagnose(analysis(drawn))).labels
    assert "A CUDA graph" in told.sentence and "kernels" not in told.sentence


def test_a_host_timer_without_cuda_times_nothing_of_the_gpu():
    """No advice: neither launching earlier nor synchronising would change what it measures."""
    timings = repeat(12, "t", ("host", 0.51), kind="host", operations=0)
    (row,) = diagnose(analysis(timings)).findings.itertuples()
    assert (row.rule, row.words) == ("no-gpu-work-inside", "nothing of the GPU")
    assert (
        row.title
        == "t measures nothing of the GPU: 510 ns of CPU time, no GPU work in 12 of 12 timings."
    )
    assert (row.advice, row.faster, row.loss_ns) == ("", "", 0)
    # beside timings with work they are told once
    both = [
        timings,
        repeat(12, "t", ("host", 160), ("api_launch", 30), ("kernel", 250), kind="host"),
    ]
    titles = diagnose(analysis(*both)).findings["title"]
    assert titles.str.contains("12 x 510 ns (no GPU work in it)", regex=False).any()


def test_collectives_that_wait_for_nothing_else_are_not_told_as_waiting_for_0_ns():
    """A public export: "For 0 ns of it work was launched and waited; the trace does not say for what"."""
    drawn = analysis(repeat(8, "x", ("kernel", 400), ("host", 1), kind="nvtx"))
    is_kernel = drawn.ledger["cause"] == "kernel"
    names = drawn.ledger["what"].mask(is_kernel, "ncclDevKernel_SendRecv")
    told = answer(diagnose(replace(drawn, ledger=drawn.ledger.assign(what=names))))
    assert told.sentence.endswith("NCCL's kernels also wait for other ranks.")
