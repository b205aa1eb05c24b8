"""The sentence about the run says how much of it the intervals cover, and gaps of the host's own
work get advice of their own."""

from dataclasses import replace

from handmade import build

from nsysalign.answer import answer
from nsysalign.explain.advice import faster
from nsysalign.explain.finding import Finding


def said(spans):
    """The sentence of a run of 1 ms from 0 on, with intervals at these spans (us)."""
    runs = [[("host", (end - start) * 1_000, "")] for start, end in spans]
    labels = [
        ("t", "event", "a.py:1", False, runs),
        ("process 1", "run", "", False, [[("host", 1_000_000, "")]]),
    ]
    analysis = build(labels)
    starts = [start * 1_000 for start, _ in spans] + [0]
    analysis.intervals["start_ns"] = starts
    own = analysis.labels[analysis.labels["kind"] != "run"]
    return answer(replace(analysis, labels=own)).headline.text


def test_what_was_not_timed_is_said():
    assert said([(0, 100), (500, 600)]).endswith(
        "2 intervals in 1 label cover 200 us of it (20 %); the rest was not timed."
    )


def test_intervals_that_overlap_count_once():
    # 100..400 and 200..300 inside it, 350..450 reaching over its end
    assert "cover 350 us of it (35 %)" in said([(100, 400), (200, 300), (350, 450)])


def test_what_lies_outside_the_run_does_not_count():
    assert "covers 100 us of it (10 %)" in said([(900, 1_200)])


def test_a_run_that_is_nearly_all_timed_has_no_rest():
    assert said([(0, 950)]).endswith("1 interval in 1 label covers 950 us of it (95 %).")


def test_intervals_of_other_processes_cover_nothing_of_it():
    assert said([(2_000, 2_100)]).endswith("host 100 %. 1 interval in 1 label.")


def gap(longest_ns, **evidence):
    seen = {
        "outside_CUDA_ns": 39_000_000,
        "launch_calls_ns": 400_000,
        "longest_gap_ns": longest_ns,
        **evidence,
    }
    return Finding("warning", "t", "t measures the host", seen, "", "", rule="host-gap")


def test_one_long_gap_is_looked_into_instead_of_compiled_away():
    text = faster(gap(38_800_000, it_waited_for="sdpa"), torch=True)
    assert text.startswith(
        "Look at what the host does before it launches sdpa, 38.8 ms in one stretch"
    )
    assert "--sample-python" in text and "torch.compile" not in text
    assert "before it records the end event" in faster(
        gap(38_800_000, it_waited_for=""), torch=True
    )


def test_many_gaps_and_short_ones_are_launches():
    assert "torch.compile" in faster(gap(600_000, it_waited_for="gemm"), torch=True)
    short = gap(20_000, it_waited_for="gemm", outside_CUDA_ns=22_000, launch_calls_ns=3_000)
    assert "torch.compile" in faster(short, torch=True)
