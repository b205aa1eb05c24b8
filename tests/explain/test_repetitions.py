"""Rules about the repetitions of a label as a set, and the findings' order, shape and place in the
intervals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.explain.rules import REGISTRY
from nsysalign.text import kernel_name, of

from .drawing import analysis, diagnose, found, interval, piece, repeat, severities

STEADY = [96, 97, 95, 96, 98, 95, 96, 97, 96]


def runs(label: str, *kernels_us: float, **more):
    return [
        interval(label, ("launch_latency", 1.6), ("kernel", us), ("event", 2.4), **more)
        for us in kernels_us
    ]


def test_warm_up_is_said_with_what_a_mean_would_say():
    finding = found(runs("x", 900, *STEADY))["x", "warm-up"]
    assert finding.title == (
        "x warms up: the first interval took 904 us, 9.0 times the median of the later ones (100 us); the mean of all is 181 us."
    )
    assert finding.severity == "info" and finding.evidence["slowest_cold_ns"] == 904_000
    assert severities(runs("x", *STEADY, 96)) == {}


def test_what_compiles_or_captures_first_is_cold_although_its_work_is_another():
    """torch.compile with CUDA graphs on an H200: 2.7 s, 41 ms, then a graph of 0.5 ms.  The loss
    that repeats was said to be 2.65 s of 50 ms."""
    drawn = [
        interval("replay", ("host", 2_700_000), ("kernel", 280)),
        interval("replay", ("host", 40_000), *[("kernel", 5)] * 48),
        interval("replay", ("host", 1_000), ("api_launch", 55), ("graph", 280)),
        *repeat(17, "replay", ("host", 163), ("api_launch", 55), ("graph", 280)),
    ]
    diagnosed = diagnose(analysis(drawn))
    rows = {f.rule: f for f in diagnosed.findings.itertuples()}
    assert "the slowest of the first 3 intervals took 2.70 s" in rows["warm-up"].title
    known = next(row for row in answer(diagnosed).labels if row.label == "replay")
    assert (known.warm.count, known.cold.count, known.cold.total_ns) == (17, 3, 2_741_855_000)
    assert rows["host-gap"].loss_ns == 17 * 218_000 <= known.warm.total_ns == 17 * 498_000


def test_the_first_of_the_usual_kind_may_come_later():
    other = interval("x", *[("kernel", 300)] * 6)
    slow_first = found([other, *runs("x", 900, *STEADY)])
    assert "x warms up: x#1 took 904 us" in slow_first["x", "warm-up"].title
    assert "warm-up" not in severities([other, *runs("x", *STEADY)]), "more work is not cold"


def test_every_process_warms_up_by_itself():
    ranks = runs("x", 900, 96, 97, 95, 96, pid=1) + runs("x", 800, 96, 97, 95, 96, pid=2)
    assert found(ranks)["x", "warm-up"].evidence["cold_intervals"] == 2
    assert "high-variance" not in severities(ranks)


@pytest.mark.parametrize(
    ("kernels", "slowest_us"),
    [
        ([100, 140, 101, 141, 100, 139, 99, 140, 101, 140], 145),
        ([100, 118, 133, 105, 127, 141, 111, 123, 137, 101], 145),
        ([100, 101, 100, 99, 100, 101, 400, 100, 100, 101], 404),
    ],
)
def test_high_variance_is_two_modes_a_wide_spread_or_outliers(kernels, slowest_us):
    said = found(runs("x", *kernels))
    assert list(said) == [("x", "high-variance")]
    finding = said["x", "high-variance"]
    assert finding.severity == "info" and "most in kernel" in finding.title
    assert finding.evidence["slowest_ns"] == slowest_us * 1_000


def test_few_samples_are_not_no_variance():
    notes = diagnose(analysis(runs("x", 100, 101, 102, 103, 104))).notes
    assert any(n.startswith("high-variance was not checked: 1 label") for n in notes)


def test_mixed_work_is_left_out_of_the_spread():
    whole = interval("x", *[("kernel", 100)] * 20)
    assert severities([*runs("x", *[100] * 10), whole]) == {"mixed-work": "info"}


def test_cold_l2_compares_labels_with_the_same_kernels():
    warm = runs("warm", *[25.0, 25.1, 24.9, 25, 25])
    rules = found(warm, runs("cold", *[30.4, 30.5, 30.6, 30.5, 30.5]))
    assert rules["cold", "cold-l2"].evidence["slower_share"] == pytest.approx(0.22, abs=0.01)
    assert ("warm", "cold-l2") not in rules
    other = [interval("cold", piece("kernel", 30.5, "gemm_64x64"), ("event", 2)) for _ in range(5)]
    assert ("cold", "cold-l2") not in found(warm, other)


def test_findings_are_sorted_plain_and_in_the_intervals():
    late = repeat(6, "late", ("host", 300), ("kernel", 100))
    later = repeat(6, "later", ("host", 3_000), ("kernel", 100))
    wrong = repeat(6, "wrong", ("host", 30), ("event", 5), other={9: 100})
    result = diagnose(analysis(late, later, wrong))
    said = list(zip(result.findings["rule"], result.findings["label"], strict=True))
    assert said[:3] == [("wrong-stream", "wrong"), ("host-gap", "later"), ("host-gap", "late")]
    assert result.measured["findings"].tolist()[0] == ("host-gap",)
    assert result.measured["findings"].tolist()[-1] == ("wrong-stream",)
    for finding in result.findings.itertuples():
        json.dumps(finding.evidence)
        assert "\n" not in finding.title and finding.title.endswith(".")
    frames.check(result.findings, frames.FINDINGS)
    frames.check(result.measured, frames.INTERVALS)
    nothing = diagnose(analysis())
    assert nothing.findings.empty and nothing.notes == ()


def test_findings_do_not_depend_on_the_clock_or_the_order_of_rows():
    late = repeat(
        6, "late", ("host", 300), ("kernel", 100), ("sync", 3), ("host", 9), ("kernel", 50)
    )
    drawn = analysis(runs("x", 900, *[96] * 9), late)
    own, segments, shift = drawn.measured, drawn.segments, 7 * 10**17
    columns = ["start_ns", "end_ns", "start_lower_ns", "start_upper_ns"]
    moved = replace(
        drawn,
        intervals=own.assign(**{c: own[c] + shift for c in columns}),
        segments=segments.assign(**{c: segments[c] + shift for c in columns[:2]}),
    )
    mixed = {"frac": 1, "random_state": np.random.default_rng(1), "ignore_index": True}
    parts, details = drawn.parts.sample(**mixed), drawn.details.sample(**mixed)
    for other in (moved, replace(drawn, parts=parts, details=details)):
        assert diagnose(other).findings.equals(diagnose(drawn).findings)


def test_time_that_overlaps_is_lost_once():
    """Nested ranges of one label, and the same work on two streams: the wait inside is one wait."""
    wait = (("host", 300), ("kernel", 100))
    nested = [interval("x", ("host", 350), *wait, start=0, kind="nvtx")]
    nested += [interval("x", *wait, start=350, kind="nvtx")]
    assert found(nested)["x", "host-gap"].loss_ns == 650_000
    ranks = [interval("x", *wait, start=5_000, kind="nvtx", pid=pid) for pid in (1, 2)]
    assert found(ranks)["x", "host-gap"].loss_ns == 600_000


def test_rule_names_are_unique():
    names = [rule.name for rule in REGISTRY]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (164_252, 227_776, "164 of 228 us"),
        (985_112, 1_065_872, "0.99 of 1.07 ms"),
        (3_900, 4_349_792, "3.90 us of 4.35 ms"),
    ],
)
def test_a_part_of_a_whole(part, whole, text):
    assert of(part, whole) == text


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, 1>>(int, T2)",
            "vectorized_elementwise_kernel (FillFunctor)",
        ),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int>(T1)", "gemvx::kernel"),
        ("void at::native::<unnamed>::silu_kernel<(int)4>(T1)", "silu_kernel"),
        ("copy D2H pinned", "copy D2H pinned"),
    ],
)
def test_kernel_names_are_short(name, short):
    assert kernel_name(name) == short


def test_two_labels_of_many_intervals():
    many = runs("x", *(100 + k % 7 for k in range(20_000)))
    result = diagnose(analysis(many, repeat(5_000, "late", ("host", 300), ("kernel", 100))))
    assert ["host-gap", "late"] in result.findings[["rule", "label"]].values.tolist()
