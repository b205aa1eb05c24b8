"""Rules about what an interval holds besides its kernels: each with a drawing that has it and one
that has not."""

from __future__ import annotations

import pytest

from .drawing import analysis, diagnose, found, interval, piece, repeat, severities

GOOD = (("launch_latency", 1.6), ("kernel", 200), ("event", 2.3))  # the host had run ahead


def test_a_good_interval_has_no_finding():
    assert severities(repeat(10, "good", *GOOD)) == {}


def test_host_gap_before_the_first_kernel_is_a_warning_in_the_words_of_the_design():
    late = (("host", 164), ("api_launch", 31), ("kernel", 25), ("event", 8))
    finding = found(repeat(6, "h2d_t1", *late))["h2d_t1", "host-gap"]
    assert finding.severity == "warning"
    assert finding.title == (
        "h2d_t1 measures the host, not the kernel: for 164 of 228 us the GPU waited, idle, for the launch that came after "
        "the first event."
    )
    assert finding.advice.endswith("torch.cuda._sleep(2_000_000); start.record()")
    assert finding.evidence["it_waited_for"] == "kernel"
    assert finding.site == "bench.py:7"


def test_host_gap_between_kernels():
    busy = (("kernel", 30), ("host", 270), ("api_launch", 4), ("kernel", 30), ("event", 2))
    assert "between two launches" in found(repeat(6, "gap", *busy))["gap", "host-gap"].title


def test_no_graph_is_advised_where_the_interval_synchronises():
    """A graph cannot be captured over a synchronisation (nonzero on an H200 was advised one)."""
    gap = ("host", 160), ("api_launch", 30), ("kernel", 25)
    plain = found(repeat(8, "t", *gap, ("event", 5)))["t", "host-gap"]
    assert "CUDA graph" in plain.faster
    waits = found(repeat(8, "t", *gap, ("sync", 9), ("event", 5)))["t", "host-gap"]
    assert "CUDA graph" not in waits.faster
    assert "reduce-overhead" not in waits.faster and "synchronisation" in waits.advice


def test_host_gap_needs_more_than_a_fifth_and_an_operation():
    assert "host-gap" not in severities(repeat(6, "x", ("host", 18), ("kernel", 90)))
    assert "host-gap" in severities(repeat(6, "x", ("host", 24), ("kernel", 90)))
    assert "host-gap" not in severities(repeat(6, "x", ("host", 6), ("event", 3)))  # an empty pair


def test_host_gap_counts_half_of_the_intervals_not_single_ones():
    good, late = repeat(7, "x", *GOOD), repeat(3, "x", ("host", 300), *GOOD)
    assert "host-gap" not in severities(good + late)
    assert found(good[:3] + late)["x", "host-gap"].evidence["seen_in"] == "3 of 6"


def test_a_delay_grows_with_the_host_and_gives_way_to_a_graph_when_the_queue_is_too_small():
    slow = found(repeat(6, "x", ("host", 3_000), ("kernel", 500)))["x", "host-gap"].advice
    assert "_sleep(17_000_000)" in slow
    many = found(repeat(6, "x", ("host", 3_000), ("kernel", 500), operations=1_500))[
        "x", "host-gap"
    ].advice
    assert "_sleep" not in many and "graph" in many


def test_one_long_gap_is_looked_into_instead_of_compiled_away():
    long = repeat(6, "x", ("host", 39_000), ("api_launch", 400), ("kernel", 500))
    faster = found(long)["x", "host-gap"].faster
    assert faster.startswith("Look at what the host does before it launches kernel, 39.4 ms in one")
    assert "--sample-python" in faster and "torch.compile" not in faster
    end = repeat(6, "x", ("kernel", 500), ("host", 39_000))
    assert "before it records the end event" in found(end)["x", "host-gap"].faster
    for pieces in ([("host", 600), ("kernel", 9)], [("host", 1_200), ("kernel", 9)] * 9):
        assert "torch.compile" in found(repeat(6, "x", *pieces))["x", "host-gap"].faster


def test_missing_api_rows_are_not_nothing_found():
    result = diagnose(
        analysis(repeat(6, "x", *GOOD), missing=("CUPTI_ACTIVITY_KIND_RUNTIME: no CUDA API rows",))
    )
    assert any(n.startswith("host-gap was not checked:") for n in result.notes)


def test_api_launch_when_the_call_itself_is_the_wait():
    assert severities(repeat(6, "x", ("host", 2), ("api_launch", 30), ("kernel", 60))) == {
        "api-launch": "warning"
    }
    assert "api-launch" not in severities(
        repeat(6, "x", ("host", 2), ("api_launch", 10), ("kernel", 90))
    )


def test_many_tiny_kernels():
    tiny = [p for _ in range(20) for p in (("api_launch", 3), ("launch_latency", 2), ("kernel", 1))]
    finding = found(repeat(6, "tiny", *tiny))["tiny", "many-tiny-kernels"]
    assert finding.severity == "warning"
    assert finding.evidence["operations"] == 20
    assert finding.evidence["running_each_ns"] == 1_000 and finding.loss_ns == 6 * 100_000
    large = [p for _ in range(20) for p in (("launch_latency", 1), ("kernel", 100))]
    assert severities(repeat(6, "large", *large)) == {}


def test_launch_latency_is_an_info_where_the_host_is_ahead():
    assert severities(repeat(10, "x", ("launch_latency", 2), ("kernel", 6), ("event", 1))) == {
        "launch-latency": "info"
    }
    assert severities(repeat(10, "x", ("launch_latency", 2), ("kernel", 20), ("event", 1))) == {}


@pytest.mark.parametrize(("us", "severity"), [(60, "info"), (100, "warning")])
def test_allocation_is_told_from_a_host_gap(us, severity):
    drawn = repeat(10, "x", piece("api", us, "cudaMalloc"), ("api_launch", 5), ("kernel", 235))
    assert severities(drawn) == {"allocation-inside": severity}


def test_other_calls_are_no_allocation():
    assert "allocation-inside" not in severities(
        repeat(6, "x", piece("api", 100, "cudaFuncGetAttributes"), ("kernel", 90))
    )


def test_module_load_in_the_first_run_is_an_info_and_replaces_warm_up():
    cold = interval("x", piece("api", 30_000, "cuLibraryLoadData"), *GOOD)
    finding = found([cold, *repeat(9, "x", *GOOD)])["x", "module-load"]
    assert finding.severity == "info" and "in its first interval" in finding.title
    assert "warm-up" not in severities([cold, *repeat(9, "x", *GOOD)])


def test_loading_is_not_blamed_for_an_interval_that_something_else_made_slow():
    """A decode loop: the second interval took 318 ms, of which loading was 0.3; the first one
    loaded for 60 of 300 ms."""
    loading = interval("x", piece("api", 60_000, "cuLibraryLoadData"), ("host", 240_000), *GOOD)
    slow = interval("x", piece("api", 332, "cuLibraryLoadData"), ("host", 318_000), *GOOD)
    rest = repeat(9, "x", ("host", 40_000), *GOOD)
    assert "in its first interval" in found([loading, slow, *rest])["x", "module-load"].title
    assert ("x", "module-load") not in found([slow, *rest])


def test_module_load_in_the_only_run_is_a_warning():
    assert (
        severities(interval("x", piece("api", 30_000, "cuModuleLoadData"), *GOOD))["module-load"]
        == "warning"
    )


def test_sync_inside_names_the_idle_time_around_it_not_only_the_call():
    drawn = repeat(
        10, "x", ("kernel", 500), ("sync", 3), ("host", 20), ("api_launch", 5), ("kernel", 500)
    )
    finding = found(drawn)["x", "sync-inside"]
    assert finding.severity == "info"
    assert finding.evidence["idle_because_of_it_ns"] == 28_000


def test_a_sync_is_not_blamed_for_host_work_that_would_not_fit_beside_the_kernels():
    #  kernel 50 | host 900 | sync 3 | host 5000 | launch 5 | kernel 50     a sleep before it, and a longer one after it
    drawn = repeat(
        10, "x", ("kernel", 50), ("host", 900), ("sync", 3), ("host", 5_000), ("api_launch", 5), ("kernel", 50)
    )  # fmt: skip
    rules = {rule: f for (_, rule), f in found(drawn).items()}
    assert rules["sync-inside"].severity == "info" and rules["host-gap"].severity == "warning"
    assert rules["sync-inside"].evidence["idle_because_of_it_ns"] == 53_000
    short = repeat(
        10, "x", ("kernel", 500), ("host", 900), ("sync", 3), ("host", 5_000), ("api_launch", 5), ("kernel", 50)
    )  # fmt: skip
    rules = {rule: f for (_, rule), f in found(short).items()}
    assert rules["sync-inside"].evidence["idle_because_of_it_ns"] == 503_000
    assert rules["sync-inside"].loss_ns == 10 * 503_000


def test_a_costly_sync_is_not_counted_again_as_host_gap():
    drawn = repeat(
        10, "x", ("kernel", 50), ("sync", 3), ("host", 40), ("api_launch", 5), ("kernel", 50)
    )
    assert severities(drawn) == {"sync-inside": "warning"}


def test_item_is_a_small_copy_back_and_a_sync():
    back = piece("memcpy", 2, direction="D2H", memory="pinned", bytes=4)
    drawn = repeat(10, "x", ("kernel", 500), back, ("sync", 3), ("host", 20), ("event", 2))
    assert ".item()" in found(drawn)["x", "sync-inside"].title
    assert "copy-inside" not in severities(drawn)


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
    assert found(*both)["pinned", "copy-inside"].severity == "info"  # a copy is what it times
    assert found(*both)["pinned", "copy-inside"].loss_ns == 0
    # without a pinned copy to compare with, no bus moves 64 MiB in less than 1.05 ms, of which
    # kernels could hide half
    alone = found(both[0])["work", "copy-inside"]
    assert alone.loss_ns == pytest.approx(10 * (3_660_000 - 1_048_576 + 500_000), rel=1e-3)


def test_many_small_copies_are_put_together_not_pinned():
    copy = piece("memcpy", 2_000, direction="D2H", memory="pageable", bytes=8_000)
    finding = found(repeat(10, "x", copy, ("kernel", 500)))["x", "copy-inside"]
    assert "GB/s" not in finding.title and "achieved_GB_per_s" not in finding.evidence
    assert "copy it once" in finding.faster and "pin" not in finding.faster


def test_the_synchronisation_of_a_pageable_copy_is_the_copys():
    copy = piece("memcpy", 300, direction="H2D", memory="pageable", bytes=1 << 20)
    assert "sync-inside" not in severities(
        repeat(10, "x", copy, ("sync", 4), ("host", 5), ("kernel", 900))
    )


def test_memset_beside_kernels_and_a_fill_kernel():
    assert (
        severities(repeat(10, "x", piece("memset", 30, bytes=60 << 20), ("kernel", 60)))[
            "copy-inside"
        ]
        == "warning"
    )
    fill = piece("kernel", 30, "void vectorized_elementwise_kernel<FillFunctor<float>>(int)")
    assert severities(repeat(10, "x", fill, ("kernel", 60)))["copy-inside"] == "warning"
    assert severities(repeat(10, "x", fill, ("event", 2))) == {}  # a fill is what it times


def test_graph_as_one_row():
    assert severities(repeat(10, "x", ("graph", 50), ("event", 3))) == {"graph-opaque": "info"}


def test_launch_blocking_is_two_launch_calls_in_every_gap():
    def run(tail: bool):
        pieces = []
        for k in range(8):
            pieces += [
                piece("api_launch", 4, ref=k),
                piece("launch_latency", 2),
                piece("kernel", 50),
            ]
            pieces += [piece("api_launch", 2, ref=k)] if tail else []
            pieces += [piece("host", 5)]
        return repeat(6, "x", *pieces, ("event", 2))

    assert severities(run(tail=True)).get("launch-blocking") == "warning"
    assert "launch-blocking" not in severities(run(tail=False))


def test_unknown_time_is_said():
    assert severities(repeat(10, "x", ("unknown", 50), ("kernel", 100))) == {
        "unknown-time": "warning"
    }
