"""What is said of a run as a whole: calls that failed, and where its time went if the program measured little of it."""

from __future__ import annotations

from dataclasses import replace

from nsysalign.diagnose.rules import diagnose

from .drawing import analysis, interval, piece, repeat

RUN = (("kernel", 100), ("host", 700), ("api_launch", 50), ("kernel", 150))


def rules(drawn):
    return {f.rule: f for f in diagnose(drawn).findings.itertuples(index=False)}


def test_a_run_in_which_nothing_was_measured_waits_for_the_host():
    found = rules(analysis(interval("run", *RUN, kind="run")))["whole-run"]
    assert found.severity == "warning" and found.loss_ns == 700_000 and found.interval == 0
    assert found.title == (
        "Between its first and its last work the GPU ran nothing for 0.75 of 1 ms; for 700 us of that the host was in its own "
        "code and had not launched the next work."
    )
    assert "another thread" in found.faster and not found.advice


def test_copies_of_a_run():
    copies = piece("memcpy", 600, direction="H2D", memory="pinned", bytes=1 << 20)
    staged = piece("memcpy", 100, "staging", direction="H2D", memory="pageable", bytes=1 << 20)
    found = rules(analysis(interval("run", copies, staged, ("kernel", 300), kind="run")))[
        "whole-run"
    ]
    assert found.title.startswith("Copies take 0.60 of 1 ms") and found.loss_ns == 300_000


def test_a_program_that_measured_what_it_wanted_to_know_is_left_alone():
    start = interval("run", ("kernel", 10), ("host", 9_000), ("kernel", 90), kind="run", start=0)
    few = repeat(3, "x", ("launch_latency", 1.6), ("kernel", 200), ("event", 2.3))
    ranges = [interval("x", ("kernel", 90), kind="nvtx", start=9_010)]
    assert "whole-run" not in rules(analysis(few, start))
    assert "whole-run" in rules(analysis(ranges, start))
    half = [interval("x", ("host", 5_000), ("kernel", 90), kind="nvtx", start=4_010)]
    assert "whole-run" not in rules(analysis(half, start))


def test_failed_calls_come_first():
    drawn = analysis(repeat(6, "late", ("host", 300), ("kernel", 100)))
    failed = (("cudaLaunchKernel", 701, 21), ("cudaMemcpy", 77, 1))
    told = diagnose(replace(drawn, trace=replace(drawn.trace, failed_calls=failed)))
    first = told.findings.iloc[0]
    assert (first["rule"], first["severity"]) == ("failed-calls", "error")
    assert first["title"] == (
        "22 CUDA calls failed: cudaLaunchKernel 21 times with error 701 (cudaErrorLaunchOutOfResources), cudaMemcpy once with "
        "error 77."
    )
