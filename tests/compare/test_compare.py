"""Two analyses, label by label: verdicts, what is in one only, and what else differs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from explain.drawing import analysis as drawn
from explain.drawing import interval
from handmade import build

from nsysalign import frames
from nsysalign.cli import cli
from nsysalign.compare.label_changes import Change, compare, judge, matching
from nsysalign.model import Known
from nsysalign.store.database import write


def runs(host_us, count=12, seed=0, kernel_us=50):
    random = np.random.default_rng(seed)
    return [
        [("host", int(host_us * 1000 * n), "python"), ("kernel", kernel_us * 1000, "gemm")]
        for n in 1 + 0.01 * random.standard_normal(count)
    ]


def cases(**host_us):
    return [
        (name, "event", "a.py:1", False, runs(us, seed=len(name))) for name, us in host_us.items()
    ]


def test_slower_faster_same_and_in_one_only():
    a = build(cases(forward=100, back=100, step=100, gone=10))
    b = build(cases(forward=140, back=60, step=100, fresh=10))
    found = compare(a, b, names=("old", "new"))
    verdicts = {label.label: label.verdict for label in found.labels}
    assert verdicts == {"forward": "slower", "back": "faster", "step": "same"}
    assert (found.only_before, found.only_after) == (("gone",), ("fresh",))
    forward = found.labels[0]
    assert forward.total.change_ns == pytest.approx(40_000, rel=0.05)
    assert forward.parts["host"].clear and not forward.parts["kernel"].clear
    changes = sum(part.change_ns for part in forward.parts.values())
    assert changes == pytest.approx(forward.total.change_ns, abs=1e-3)


#  2 % of 1 us are 20 ns, less than two ticks: 64 ns matter.  Of 100 us it is 2 us.
EDGES = [
    (1_000, 0, -63, 63, "same"),
    (1_000, 0, -64, 10, "unclear"),  # a bound that reaches what matters does not exclude it
    (1_000, 0, -10, 64, "unclear"),
    (1_000, 64, 1, 130, "slower"),
    (1_000, 63, 1, 130, "unclear"),
    (1_000, 64, 0, 130, "unclear"),
    (1_000, -64, -130, -1, "faster"),
    (1_000, -63, -130, -1, "unclear"),
    (1_000, -64, -130, 0, "unclear"),
    (100_000, 0, -1_999, 1_999, "same"),
    (100_000, 0, -1_999, 2_000, "unclear"),
    (100_000, 2_000, 0.5, 4_000, "slower"),
    (100_000, 1_999, 0.5, 4_000, "unclear"),
    (100_000, -2_000, -4_000, -0.5, "faster"),
    (100_000, -1_999, -4_000, -0.5, "unclear"),
]  # fmt: skip


def test_where_a_verdict_tips_over():
    for before, by, low, high, verdict in EDGES:
        change = Change(before, before + by, by, low, high)
        assert judge(change, 5, 5, 0.02)[0] == verdict, change


def test_why_it_cannot_be_said():
    """A change that is there but small; one that is large but not clear; one that is exactly as
    large as what matters; six intervals, one cold on either side: no time falls by 762 %."""
    wide = Change(10_000, 10_000, 0, -76_200, 76_200)
    assert judge(wide, 6, 6, 0.02) == ("unclear", "too few")
    assert judge(replace(wide, low_ns=-9_000), 6, 6, 0.02) == ("unclear", "varies")
    small, scattered = Change(1_000, 1_063, 63, 1, 130), Change(1_000, 1_064, 64, -1, 130)
    assert judge(small, 5, 5, 0.02)[1] == "small"
    assert judge(scattered, 5, 5, 0.02)[1] == "varies"
    assert judge(small, 4, 9, 0.02)[1] == judge(small, 9, 4, 9)[1] == "too few"


def test_one_labels_answer_does_not_depend_on_the_others():
    a, b = build(cases(forward=100, back=100)), build(cases(forward=103, back=100))
    alone = compare(build(cases(forward=100)), build(cases(forward=103))).labels[0]
    assert compare(a, b).labels[0].total == alone.total
    found = compare(build(cases(a=1)), build(cases(b=1)))
    assert found.labels == () and found.only_before == ("a",)
    assert compare(build([]), build([])).labels == ()


def label(name, *causes, library=False, count=6):
    pieces = [(cause, 10_000, "it") for cause in causes]
    return (name, "event", "a.py:1", library, [pieces] * count)


def test_a_cause_of_one_side_only_is_a_change():
    a, b = build([label("x", "host", "memcpy")]), build([label("x", "host", "kernel")])
    (found,) = compare(a, b).labels
    assert {cause: (c.before_ns, c.after_ns) for cause, c in found.parts.items()} == {
        "kernel": (0, 10_000), "memcpy": (10_000, 0), "host": (10_000, 10_000),
    }  # fmt: skip
    assert (found.kernel_only.before_ns, found.kernel_only.after_ns) == (0, 10_000)
    assert (found.count_before, found.count_after) == (6, 6)


def test_a_librarys_label_that_is_gone_is_not_missing():
    theirs = label("theirs", "host", library=True)
    a = build([label("mine", "host"), theirs, label("stays", "host")])
    found = compare(a, build([label("stays", "host"), label("new", "host")]))
    assert found.only_before == ("mine", "theirs")
    assert found.missing == ("mine",) and found.only_after == ("new",)
    assert [c.label for c in found.labels] == ["stays"] and found.count("same") == 1


def clocked(analysis, *stretches):
    """`stretches`: (start, end, samples, MHz) of the SM clock."""
    rows = [(0, a, b, count, mhz, mhz, 2619, 0) for a, b, count, mhz in stretches]
    return replace(analysis, gpu_clocks=frames.of_rows(rows, frames.GPU_CLOCKS))


@pytest.mark.parametrize(("clock", "differs"), [(1_940, False), (1_939, True)])
def test_clocks_that_differ_by_more_than_three_percent(clock, differs):
    """
    intervals        |first ... last|
    2000 MHz   [-----]                   ends as the first begins: it counts
    500 MHz    [---]                  [---]  over before, begun after: idle, it does not
    """
    a = build([label("x", "host")])
    first, last = int(a.measured["start_ns"].min()), int(a.measured["end_ns"].max())
    idle = [(first - 900, first - 1, 50, 500), (last + 1, last + 900, 50, 500)]
    before = clocked(a, (first - 500, first, 1, 2_000), *idle)
    found = compare(before, clocked(a, (first, last, 1, clock)))
    assert found.confounders == (f"SM clock differs: A 2000 MHz, B {clock} MHz",) * differs
    assert found.labels[0].verdict == ("different" if differs else "same")


def test_what_differs_is_said_of_the_right_side():
    a, b = build([label("x", "host")]), build([label("x", "host")])
    quiet = a.intervals.assign(flags=pd.Series([()] * len(a.intervals), dtype=object))
    lost = frames.of_rows([("y", "y", "why", "a.py:1")], frames.UNALIGNED)
    traced = b.intervals.assign(method=["event-trace", *["bounds"] * 5])
    a = replace(a, intervals=quiet, known=Known(torch="2.9"))
    other = replace(b.trace, devices=("H100", "H100"), nsys_version=None)
    b = replace(b, intervals=traced, unaligned=lost, trace=other)
    found = compare(a, b, names=("old", "new"))
    assert found.confounders == (
        "GPU differs: old NVIDIA H200, new H100",
        "event tracing differs: old off, new on",
    )
    assert found.remarks == (
        "nsys differs: old 2024.2.3, new unknown",
        "torch differs: old 2.9, new unknown",
        "intervals of new disturbed by the profiler's own work: 1",
        "intervals of new that could not be placed and are not compared: 1",
    )
    assert compare(a, a).remarks == compare(a, a).confounders == ()


def test_runs_that_were_recorded_differently_are_not_judged(tmp_path):
    """The confounder comes first and decides the status; --anyway judges all the same."""
    a, b = build(cases(forward=100)), build(cases(forward=140))
    b = replace(b, trace=replace(b.trace, devices=("NVIDIA H100",)))
    for name, analysis in (("a.db", a), ("b.db", b)):
        write(analysis, tmp_path / name)
    arguments = ["diff", str(tmp_path / "a.db"), str(tmp_path / "b.db"), "--fail-on", "slower"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 3
    text = " ".join(done.output.split())
    assert text.index("! GPU differs") < text.index("The two were recorded differently") < 200
    assert "▲" not in done.output and "≠" in done.output and "+26.7 %" in done.output
    assert CliRunner().invoke(cli, arguments[:3]).exit_code == 0
    quiet = CliRunner().invoke(cli, [*arguments, "-q"])
    assert quiet.exit_code == 3 and "GPU differs" in quiet.output
    judged = CliRunner().invoke(cli, [*arguments, "--anyway"])
    assert judged.exit_code == 1 and "▲ slower" in judged.output


def placed(*lines, text="start.record()", end=0):
    """An analysis with a label for each of these lines of bench.py, of as many us each as the
    line's place says."""
    sites = [f"bench.py:{line}" for line in lines]
    names = [
        f"{site}-{line + end}" if end else site for site, line in zip(sites, lines, strict=False)
    ]
    of_all = enumerate(zip(names, sites, strict=False), 1)
    found = build([(name, "event", site, False, runs(100 * n)) for n, (name, site) in of_all])
    texts = [(site, text) for site in sites]
    texts += [(f"bench.py:{line + end}", f"end{n}.record()") for n, line in enumerate(lines) if end]
    return replace(found, source_lines=frames.of_rows(texts, frames.SOURCE_LINES))


def test_labels_whose_lines_moved_are_matched_by_their_code():
    """Ten lines were added above: B's line 20 is A's line 10, and not A's line 20."""
    a, b = placed(10, 20), placed(20, 30)
    found = compare(a, b)
    assert [(c.label, c.label_after, c.verdict) for c in found.labels] == [
        ("bench.py:10", "bench.py:20", "same"),
        ("bench.py:20", "bench.py:30", "same"),
    ]
    assert found.only_before == found.only_after == ()
    assert "bench.py:10 is bench.py:20, bench.py:20 is bench.py:30" in found.remarks[-1]


def test_the_end_s_line_tells_labels_apart_too():
    """The first one is gone: by the text of the end record the second one is still the second
    one."""
    a, b = placed(10, 20, end=3), placed(20, end=3)
    second = b.source_lines["text"].replace("end0.record()", "end1.record()")
    moved = replace(b, source_lines=b.source_lines.assign(text=second))
    assert matching(a, moved) == {"bench.py:20-23": "bench.py:20-23"}
    assert matching(a, b) == {"bench.py:10-13": "bench.py:20-23"}


def test_where_code_cannot_tell_names_do():
    """As many as before there are not; or nobody knows the code, as in a redacted trace."""
    assert matching(placed(10, 20), placed(20)) == {"bench.py:20": "bench.py:20"}
    blank = placed(10, 20).source_lines[:0]
    a, b = (replace(placed(*lines), source_lines=blank) for lines in ((10, 20), (20, 30)))
    assert matching(a, b) == {"bench.py:20": "bench.py:20"}
    assert matching(placed(10), placed(10, text="other.record()")) == {}


def test_each_kind_of_work_is_compared_with_its_like():
    """One helper times one kernel, or two, in turn; the CPU is 30 us later before the two in B, and the
    mix is another one: a mean of all would say that it got faster."""

    def timed(host_us, two):
        one = [interval("f", ("kernel", 50 + 0.1 * (k % 5))) for k in range(40 - two)]
        pairs = [
            interval("f", ("host", host_us), ("kernel", 60 + 0.1 * (k % 5)), ("kernel", 60))
            for k in range(two)
        ]
        return drawn([*one, *pairs])

    told = compare(timed(10, 20), timed(40, 10))
    assert {(c.label, c.count_before, c.count_after): c.verdict for c in told.labels} == {
        ("f", 20, 30): "same",
        ("f", 20, 10): "slower",
    }
    (slower,) = (c for c in told.labels if c.verdict == "slower")
    assert slower.work and slower.parts["host"].change_ns == pytest.approx(30_000)
    assert not told.only_before and not told.only_after


def test_each_pace_is_compared_with_its_like():
    """A kernel of 50 us with the CPU 100 us late in half of the timings, as without a backlog.  A mean of both lies
    where no timing is; and where B has one pace, it is compared with the one that it is near."""

    def timed(late_us, late, kernel_us=50):
        return drawn(
            [
                interval(
                    "f", ("host", late_us if k < late else 1), ("kernel", kernel_us + 0.1 * (k % 5))
                )
                for k in range(40)
            ]
        )

    told = compare(timed(100, 20), timed(200, 10))
    assert [(c.work, c.count_before, c.count_after, c.verdict) for c in told.labels] == [
        ("faster", 20, 30, "same"),
        ("slower", 20, 10, "slower"),
    ]
    assert told.labels[1].total.before_ns == pytest.approx(150_200, rel=0.01)
    gone = compare(timed(100, 20), timed(1, 0))
    assert [(c.work, c.verdict, c.count_before) for c in gone.labels] == [("faster", "same", 20)]
    assert gone.only_before == ("f (slower)",) and not gone.missing
    # other work in the same code: its paces are still compared with their like
    other = timed(100, 20, 60)
    other = replace(other, groups=other.groups.assign(operations=7))
    assert [(c.work, c.verdict) for c in compare(timed(100, 20), other).labels] == [
        ("faster", "slower"),
        ("slower", "slower"),
    ]


def test_slow_timings_that_are_gone_are_said():
    """Half of the time is 5 of 100, in A only."""
    usual = [interval("f", ("kernel", 50 + 0.1 * (k % 7))) for k in range(95)]
    pauses = [interval("f", ("host", 900 + k), ("kernel", 50)) for k in range(5)]
    told = compare(drawn([*usual, *pauses]), drawn(usual))
    assert [(c.work, c.verdict, c.count_before) for c in told.labels] == [("", "same", 95)]
    assert told.only_before == ("f (slow)",) and not told.only_after and not told.missing


def test_first_calls_are_compared_with_nothing():
    first = interval("f", ("host", 9_000), ("kernel", 50))
    usual = [interval("f", ("kernel", 50 + 0.1 * k)) for k in range(9)]
    (change,) = compare(drawn([first, *usual]), drawn(usual)).labels
    assert (change.count_before, change.count_after, change.verdict) == (9, 9, "same")
