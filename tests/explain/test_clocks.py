"""Clock changes and throttling: what the samples around each interval say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.explain.rules.repetitions import interval_clocks

from .drawing import analysis, diagnose, facts, interval

MS = 1_000_000


def sampled(drawn, *stretches, device=0):
    """The analysis with samples: (from ms, to ms, MHz, reasons, watts)."""
    rows = [
        (
            device,
            round(a * MS),
            round(b * MS),
            1 + round((b - a) / 25),
            mhz,
            mhz,
            2619,
            why,
            watts * 1000,
            60,
        )
        for a, b, mhz, why, watts in ((*s, *(0, 400)[len(s) - 3 :]) for s in stretches)
    ]
    table = pd.DataFrame(rows, columns=frames.GPU_CLOCKS.names)
    return replace(drawn, gpu_clocks=frames.check(table, frames.GPU_CLOCKS))


def runs(*kernels_us, label="x", every_ms=10.0):
    """One interval every `every_ms`, from 0 on."""
    return analysis(
        [
            interval(
                label,
                ("launch_latency", 2),
                ("kernel", us),
                ("event", 2),
                start=1000 * every_ms * k,
            )
            for k, us in enumerate(kernels_us)
        ]
    )


def rules(drawn):
    return {f.rule: f for f in diagnose(drawn).findings.itertuples(index=False)}


def test_kernels_that_follow_the_clock():
    # 20 runs at 1980 MHz, 20 at 1485: the same kernel takes 4/3 as long
    drawn = sampled(runs(*[90] * 20, *[120] * 20), (-25, 195, 1980), (200, 425, 1485, 4, 699))
    finding = rules(drawn)["clock-changed"]
    assert (
        finding.severity == "warning"
        and "20 of 40 intervals" in finding.title
        and "1485" in finding.title
    )
    assert finding.loss_ns == 20 * 30_000
    assert finding.evidence["correlation_of_kernel_with_clock_period"] == pytest.approx(1)
    assert "--lock-gpu-clocks=1485" in finding.advice
    slowed = rules(drawn)["throttled"]
    assert slowed.severity == "warning" and slowed.evidence["reasons"] == {"software power cap": 20}
    assert (
        slowed.evidence["intervals_slowed_down"] == 20 and slowed.evidence["sm_clock_mhz"] == 1485
    )


def test_a_clock_that_is_still_rising():
    kernels = [400, 200, 133, 100] + [90] * 30
    ramp = [(k * 10 - 2, k * 10 + 2, mhz) for k, mhz in enumerate([445, 890, 1338, 1780])]
    finding = rules(sampled(runs(*kernels), (-50, -25, 345, 1), *ramp, (38, 400, 1980)))[
        "clock-changed"
    ]
    assert "the first 4 of 34 intervals" in finding.title and "still rising" in finding.title
    assert "Warm up" in finding.advice
    # held down by power from the start, free only later: nothing rises
    capped = sampled(runs(*[120] * 10, *[90] * 30), (-25, 98, 1485, 4, 699), (100, 425, 1980))
    assert "still rising" not in rules(capped)["clock-changed"].title


def test_no_alarm_where_the_kernels_do_not_follow():
    still = sampled(runs(*[90] * 40), (-25, 195, 1980), (200, 425, 1485))
    assert "clock-changed" not in rules(still)  # a kernel that memory bounds
    rng = np.random.default_rng(1)
    noisy = sampled(
        runs(*rng.permutation([90] * 20 + [120] * 20)), (-25, 195, 1980), (200, 425, 1485)
    )
    assert "clock-changed" not in rules(noisy)  # the slow ones are elsewhere
    steady = sampled(runs(*[90] * 20, *[120] * 20), (-25, 425, 1980))
    assert not {"clock-changed", "throttled"} & rules(steady).keys()
    jitter = sampled(runs(*[90] * 20, *[92] * 20), (-25, 195, 1980), (200, 425, 1950))
    assert "clock-changed" not in rules(jitter)


def test_idle_and_settings_are_no_throttling_and_heat_is():
    assert "throttled" not in rules(sampled(runs(*[90] * 20), (-25, 300, 1500, 0x03)))
    some = sampled(runs(*[90] * 20), (-25, 165, 1980), (170, 300, 1980, 0x20))
    assert rules(some)["throttled"].severity == "info"
    hot = sampled(runs(*[90] * 20), (-25, 165, 1980), (170, 300, 1200, 0x40))
    assert (
        rules(hot)["throttled"].severity == "warning"
        and "cooling" in rules(hot)["throttled"].advice
    )


def test_a_slowdown_that_cost_nothing_is_a_remark():
    capped = ((-25, 300, 1500, 4), (400, 500, 1980))
    assert rules(sampled(runs(*[90] * 20), *capped))["throttled"].severity == "warning"
    assert (
        rules(sampled(runs(*[0.5] * 20), *capped))["throttled"].severity == "info"
    )  # hardly a kernel in it
    assert (
        rules(sampled(runs(*[90] * 20), (-25, 300, 1950, 4), (400, 500, 1980)))[
            "throttled"
        ].severity
        == "info"
    )
    both = sampled(runs(*[90] * 20), (-25, 155, 1500, 4), (158, 500, 1980))
    assert rules(both)["throttled"].severity == "info"  # as quick as the runs at the full clock


def test_between_two_samples_only_what_both_say_is_believed():
    drawn = sampled(runs(90, 90, 90), (-25, -10, 1980, 4), (5, 15, 1980, 0), (25, 40, 1000, 4))
    clocks = interval_clocks(facts(drawn))
    assert clocks.known.tolist() == [True, True, True]
    assert clocks.reasons.tolist() == [
        0,
        0,
        0,
    ]  # 0: between 4 and 0; 1: inside 0; 2: between 0 and 4
    assert clocks.sm_mhz.tolist() == [1980, 1980, 1490]
    # before the first sample, after the last, in a pause: unknown
    early = sampled(runs(90, 90, 90, every_ms=300), (100, 200, 1980), (900, 950, 1980))
    assert interval_clocks(facts(early)).known.tolist() == [False, False, False]
    other = sampled(runs(90, 90), (-25, 300, 1980), device=1)
    assert not interval_clocks(facts(other)).known.any()  # another GPU's clock says nothing


def test_not_looking_is_said():
    assert any(
        "clock-changed was not checked: the run has no samples" in n
        for n in diagnose(runs(*[90] * 9)).notes
    )
    outside = diagnose(sampled(runs(*[90] * 9), (5_000, 6_000, 1980)))
    assert any("no interval lies between two samples" in n for n in outside.notes)
