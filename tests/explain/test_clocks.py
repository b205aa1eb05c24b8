"""Clock changes and throttling: what the samples around each interval say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.explain.clocks import interval_clocks

from .drawing import analysis, diagnose, facts, interval, issued_table, piece

HELD, FREE = (-25, 195, 1500, 4), (196, 500, 1980)
FULL, LATER = (-25, 195, 1980), (200, 425, 1485, 4)


def sampled(
    kernels_us, *stretches, device=0, every_ms=10.0, before=("launch_latency", 2), names=""
):
    """One interval every `every_ms`, from 0 on, and samples: (from ms, to ms, MHz, reasons).

    names: a letter per interval, its label; "" for one label
    """
    names = names or "x" * len(kernels_us)
    pieces = [(before, ("kernel", us), ("event", 2)) for us in kernels_us]
    drawn = [
        interval(name, *p, start=1000 * every_ms * k)
        for k, (name, p) in enumerate(zip(names, pieces, strict=True))
    ]
    rows = [
        (device, int(a * 1e6), int(b * 1e6), 1 + int((b - a) / 25), mhz, mhz, 2619, sum(why))
        for a, b, mhz, *why in stretches
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=frames.GPU_CLOCKS.names)
    return replace(analysis(drawn), gpu_clocks=frames.check(table, frames.GPU_CLOCKS))


def rules(*drawn, **more):
    findings = diagnose(sampled(*drawn, **more)).findings
    return {f.rule: f for f in findings.itertuples(index=False)}


def test_kernels_that_follow_the_clock():
    """20 runs at 1980 MHz, 20 at 1485: the same kernel takes 4/3 as long."""
    changed = rules([*[90] * 20, *[120] * 20], FULL, (200, 425, 1485))["clock-changed"]
    evidence = changed.evidence
    assert (changed.severity, changed.verdict) == ("info", "doubtful")
    assert (evidence["low_clock_mhz"], evidence["high_clock_mhz"]) == (1485, 1980)
    assert (evidence["at_the_low_clock"], evidence["clocked_timings"]) == (20, 40)
    assert evidence["kernel_at_the_low_clock_ns"] == 120_000
    assert evidence["kernel_at_the_high_clock_ns"] == 90_000
    assert "--lock-gpu-clocks=1485" in changed.advice


def test_clocks_of_different_kernels_are_not_compared():
    """complex128 and complex64 products took about as long: one draws more power, and runs at another clock."""
    two = sampled([*[90] * 20, *[120] * 20], FULL, (200, 425, 1485))
    two = replace(two, groups=two.groups.assign(mains=2))
    assert "clock-changed" not in {f.rule for f in diagnose(two).findings.itertuples()}


def test_a_clock_that_costs_less_than_waiting_does_not_lead():
    """The kernel takes 30 us more at the lower clock in half of the runs: less than the 50 us for which
    it waits in all of them, and more than 5 us."""
    drawn = ([*[90] * 20, *[120] * 20], FULL, (200, 425, 1485))
    waits = piece("queued", 50, "contention", stream=9, operation="other")
    (led,) = rules(*drawn, before=waits).values()
    assert led.rule == "queued" and led.evidence["waiting_ns"] == 50_000
    assert led.evidence["stream_waited_for"] == 9
    waits = piece("queued", 5, "contention", stream=9, operation="other")
    assert rules(*drawn, before=waits).keys() == {"clock-changed"}


def at_clocks(here_us, there_us, *, mhz=1500, kernels=("gemm", "gemm"), blocks=(128, 128)):
    """x 20 times at a clock that is held down, then y 20 times at 1980 MHz; the kernel of each, and its grid."""
    two = sampled(
        [*[here_us] * 20, *[there_us] * 20],
        (-25, 195, mhz, 4),
        (200, 425, 1980),
        names="x" * 20 + "y" * 20,
    )
    rows = [(n, "kernel", kernels[n], 1, 0, blocks[n], 1_000) for n in two.groups["group"]]
    return answer(diagnose(replace(two, issued=issued_table(rows))))


def test_the_same_kernel_at_a_clock_that_is_held_down():
    """The small product after the load: 6.66 us at 1586 MHz, 5.44 us at 1980 MHz before it."""
    said = at_clocks(120, 92)
    row = next(row for row in said.labels if row.label == "x")
    assert (row.verdict, row.words, row.findings) == (
        "doubtful", "slowed to 1500 MHz", ("throttled",),
    )  # fmt: skip
    assert "slowed down in 20 of 20 timings (software power cap), at 1500 MHz" in row.sentence
    assert "its kernels take 120 us, the same ones 92.0 us at 1980 MHz in y" in row.sentence
    assert next(row for row in said.labels if row.label == "y").verdict == "gpu_bound"


@pytest.mark.parametrize(
    ("here_us", "there_us", "more"),
    [
        (120, 118, {}),  # memory bounds it
        (120, 126, {}),
        (120, 60, {}),  # twice as long, of which the clock explains a third
        (120, 92, {"kernels": ("gemm", "add")}),  # nothing to compare it with
        (120, 92, {"blocks": (128, 96)}),
        (120, 92, {"blocks": (-1, -1)}),  # not known
        (120, 116, {"mhz": 1940}),
    ],
)
def test_a_low_clock_that_changes_no_comparison_is_a_remark(here_us, there_us, more):
    """An fp8 layer took 1.6 times as long as one in bf16, both under the power cap: "slowed down in 663 of 663 timings, to
    1575 MHz", though 232 of these ran at 1830 MHz and more."""
    said = at_clocks(here_us, there_us, **more)
    assert {row.verdict for row in said.labels} == {"gpu_bound"}
    remark = "the GPU ran at 1500 of 1980 MHz in 20 of 40 timings (software power cap)"
    assert (remark in said.remarks) == ("mhz" not in more)


def test_timings_at_several_low_clocks_are_said_to_be_so():
    """... and those at a clock that is hardly lower are not counted."""
    stretches = (-25, 55, 1940, 4), (56, 105, 1700, 4), (106, 195, 1400, 4), FREE
    (remark,) = (r for r in answer(diagnose(sampled([90] * 20, *stretches))).remarks if "MHz" in r)
    assert remark.startswith("the GPU ran at 1400 to 1700 of 1980 MHz in 14 of 20 timings")


@pytest.mark.parametrize(
    ("stretches", "remark"),
    [
        ([HELD, FREE], "the GPU ran at 1500 of 1980 MHz (software power cap)"),
        (
            [(-25, 175, 1500, 4), (176, 500, 1980)],
            "the GPU ran at 1500 of 1980 MHz in 18 of 20 timings (software power cap)",
        ),
        (
            [(-25, 95, 1700, 4), (96, 195, 1400, 4), FREE],
            "the GPU ran at 1400 to 1700 of 1980 MHz (software power cap)",
        ),
    ],
)
def test_a_clock_that_was_low_in_nearly_all_timings_is_a_remark(stretches, remark):
    """All were "slowed to 1500 MHz" and doubtful, though they can be compared with each other."""
    said = answer(diagnose(sampled([90] * 20, *stretches)))
    assert (said.verdict, [row.verdict for row in said.labels]) == ("gpu_bound", ["gpu_bound"])
    assert remark in said.remarks


def test_kernels_that_follow_the_clock_while_it_is_held_down():
    """All 40 are slowed down, and the clock still changes: they cannot be compared with each other."""
    stretches = (-25, 195, 1700, 4), (200, 425, 1275, 4), (500, 600, 1980)
    changed = rules([*[90] * 20, *[120] * 20], *stretches)["clock-changed"]
    assert (changed.evidence["low_clock_mhz"], changed.evidence["clocked_timings"]) == (1275, 40)


MIXED = np.random.default_rng(1).permutation([90] * 20 + [120] * 20)


@pytest.mark.parametrize(
    ("kernels", "later"),
    [
        ([90] * 40, (200, 425, 1485)),  # a kernel that memory bounds
        (MIXED, (200, 425, 1485)),  # the slow ones are elsewhere
        ([*[90] * 20, *[120] * 20], (200, 425, 1980)),
        ([*[90] * 20, *[92] * 20], (200, 425, 1950)),  # jitter of the clock
        ([90] * 40, (200, 425, 1500, 0x03)),  # idle, and a setting
    ],
)
def test_no_alarm_where_the_kernels_do_not_follow(kernels, later):
    assert not {"clock-changed", "throttled"} & rules(kernels, FULL, later).keys()


@pytest.mark.parametrize(
    ("kernel_us", "stretches"),
    [
        (90, [(-25, 165, 1980), (170, 300, 1980, 0x20)]),  # at the full clock all the same
        (0.5, [(-25, 300, 1500, 4), (400, 500, 1980)]),  # hardly a kernel in it
        (90, [(-25, 300, 1950, 4), (400, 500, 1980)]),
    ],
)
def test_a_slowdown_that_cost_nothing_is_not_said(kernel_us, stretches):
    assert "throttled" not in rules([kernel_us] * 20, *stretches)


def test_between_two_samples_only_what_both_say_is_believed():
    three = sampled([90] * 3, (-25, -10, 1980, 4), (5, 15, 1980, 0), (25, 40, 1000, 4))
    clocks = interval_clocks(facts(three))
    assert clocks.known.all() and not clocks.reasons.any()  # between 4 and 0, inside 0, 0 and 4
    assert clocks.sm_mhz.tolist() == [1980, 1980, 1490]
    # before the first sample, after the last, in a pause; another GPU's clock says nothing
    early = sampled([90] * 3, (100, 200, 1980), (900, 950, 1980), every_ms=300)
    for unknown in (early, sampled([90] * 2, (-25, 300, 1980), device=1)):
        assert not interval_clocks(facts(unknown)).known.any()


@pytest.mark.parametrize(
    ("stretches", "why"),
    [((), "the run has no samples"), (((5_000, 6_000, 1980),), "no interval lies between two")],
)
def test_not_looking_is_said(stretches, why):
    notes = diagnose(sampled([90] * 9, *stretches)).notes
    assert any(note.startswith(f"clock-changed was not checked: {why}") for note in notes)


def test_a_clock_counts_for_as_long_as_it_lasted():
    """A timing of 400 ms of which the clock was held down for 20: its mean clock is hardly lower.

    stretches  [------ 1980 ------][1200][-1980-]
    timing        |------------------------|
    """
    held_down = [(-25, 300, 1980), (300, 320, 1200, 4), (320, 1000, 1980)]
    (mhz,) = interval_clocks(facts(sampled([400_000], *held_down))).sm_mhz
    assert mhz == pytest.approx((380 * 1980 + 20 * 1200) / 400, abs=0.1)


def test_a_short_slowdown_of_long_timings_is_not_said():
    """It was "slowed to 1590 MHz", the mean of two clocks of which one lasted for 20 of 400 ms."""
    stretches = [(-25, 0, 1980)]
    for at in range(0, 8_000, 400):
        stretches += [(at, at + 380, 1980), (at + 380, at + 400, 1200, 4)]
    stretches.append((8_000, 8_100, 1980))
    assert "throttled" not in rules([399_000] * 20, *stretches, every_ms=400)
