"""What no recording shows of the terminal's answer: hostile names, nothing, much, CPU samples."""

import io
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from handmade import build
from rich.console import Console

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.show import screen
from nsysalign.show.table import Column, draw, text


def shown(analysis, width=120):
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, legacy_windows=False)
    screen.everything(analysis, answer(analysis), console, "report.html")
    return stream.getvalue()


def test_labels_of_one_site_stay_apart_when_there_is_little_room():
    labels = [f"host_timers.py:{n} (host_timers.py:42-45)" for n in (115, 121)]
    for width, ends in ((38, " (:42-45)"), (20, "")):
        assert [screen.shortened(label, width) for label in labels] == [
            f"host_timers.py:115{ends}",
            f"host_timers.py:121{ends}",
        ]


def test_groups_of_the_same_work_stay_apart_by_how_many_they_are():
    """m10: '…67: 186 operati…' and '…60: 186 operati…'."""
    names = [f"  ×{count}: 186 operations" for count in (67, 60)]
    assert list(screen._short_names(names, 17).values()) == [
        "  ×67: 186 opera…",
        "  ×60: 186 opera…",
    ]
    assert screen._short_names(names[:1], 17)[names[0]] == "  186 operations"


def test_columns_leave_before_texts_are_short_and_numbers_are_never_cut():
    """
    a rather long name  1,234.5    7.25      at 35 columns; with less room GB/s leaves, then the
    a rat… name  1,234.5                     name is shortened
    """

    def drawn(columns, width):
        stream = io.StringIO()
        draw(columns, Console(file=stream, width=width, color_system=None))
        return stream.getvalue().splitlines()

    columns = [text("what", ["a rather long name", "b"]), Column("us", ["1,234.5", "."])]
    columns.append(Column("GB/s", ["7.25", "512.00"], leaves=1))
    assert drawn(columns, 35)[1] == "a rather long name  1,234.5    7.25"
    assert drawn(columns, 34)[1] == "a rather long name  1,234.5"
    assert drawn(columns, 20)[1:] == ["a rat… name  1,234.5", "b                  ."]
    assert drawn([text("what", ["世界" * 4, "b"]), Column("n", ["1", "2"])], 40)[2].endswith("  2")


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([(0, 100), (500, 600)], "cover 200 us of it (20 %); the rest was not timed."),
        # 100..400 and 200..300 inside it, 350..450 reaching over its end
        ([(100, 400), (200, 300), (350, 450)], "cover 350 us of it (35 %); the rest was"),
        ([(900, 1_200)], "covers 100 us of it (10 %)"),  # what lies outside does not count
        ([(0, 950)], "1 interval in 1 label covers 950 us of it (95 %)."),
        ([(2_000, 2_100)], "CPU 100 %. 1 interval in 1 label."),  # of another process
    ],
)
def test_the_sentence_says_how_much_of_a_run_was_timed(spans, said):
    """A run of 1 ms from 0 on, with intervals at these spans (us)."""
    runs = [[("host", (end - start) * 1_000, "")] for start, end in spans]
    whole = [[("host", 1_000_000, "")]]
    analysis = build([("t", "event", "a.py:1", False, runs), ("run", "run", "", False, whole)])
    analysis.intervals["start_ns"] = [start * 1_000 for start, _ in spans] + [0]
    labels = analysis.labels[analysis.labels["kind"] != "run"]
    assert said in answer(replace(analysis, labels=labels)).headline.text


@pytest.mark.parametrize(
    ("named", "rows"), [("d", "ad"), ("a", "ab"), ("", "ab"), ("cd", "cd"), ("bcd", "bc")]
)
def test_labels_that_are_named_above_the_table_keep_their_rows(named, rows):
    """j01: a sentence, and a line with a cross, stood above rows of other labels alone."""
    labels = [SimpleNamespace(label=name) for name in "abcd"]
    assert "".join(row.label for row in screen._first_rows(labels, named, 2)) == rows


def test_wrong_numbers_come_first_and_then_what_costs_most(builder, finding):
    """Ranked by their own loss over all runs; an error is no loss."""

    def one(label, ns, runs):
        pieces = [[("host", ns, ""), ("kernel", 5_000, "gemm")]] * runs
        return (label, "event", f"{label}.py:1", False, pieces)

    labels = [one("rare", 900_000, 1), one("often", 30_000, 40)]
    labels += [one("wrong", 2_000_000, 1), one("alike", 20_000, 2)]
    rows = [
        ("rare", "queued-dependency", "warning", 900_000),
        ("often", "host-gap", "warning", 1_200_000),
        ("wrong", "wrong-stream", "error", 0),
        ("alike", "host-gap", "warning", 40_000),
        ("often", "high-variance", "info", 0),
    ]
    names = ("label", "rule", "severity", "loss_ns")
    findings = [{**finding, **dict(zip(names, row, strict=True))} for row in rows]
    said = answer(builder(labels, findings=findings))
    assert [(g.rule, [f.label for f in g.findings]) for g in said.groups] == [
        ("wrong-stream", ["wrong"]),
        ("host-gap", ["often", "alike"]),
        ("queued-dependency", ["rare"]),
        ("high-variance", ["often"]),
    ]
    assert [row.label for row in said.labels] == ["often", "rare", "alike", "wrong"]
    assert said.proof.label == "often" and [wrong.label for wrong in said.wrong] == ["wrong"]


def test_a_long_command_is_wrapped_so_that_it_can_be_copied():
    """At blanks between words, never at one inside a path."""
    paths = [f"/scratch/user/runs with blanks/experiment-{n}/train-001" for n in range(3)]
    command = f"nsysalign analyze --ranks {shlex.join(paths)}"
    lines = screen.command_lines(command, 78)
    assert len(lines) > 1 and max(map(len, lines)) <= 78
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == shlex.split(command)
    assert screen.command_lines("nsysalign analyze run", 78) == ["nsysalign analyze run"]


def sampled(analysis, *rows):
    """The analysis with rows of host_activity: (label, view, name, place, within, samples, ns,
    share)."""
    columns = ["label", "view", "name", "place", "within", "samples", "ns", "share"]
    table = pd.DataFrame(rows, columns=columns).assign(count=1)
    return replace(analysis, host_activity=frames.check(table, frames.HOST_ACTIVITY))


def test_a_finding_says_what_the_cpu_did(analysis):
    found = sampled(
        analysis,
        ("t1", "all", "", "", "", 8, 45_000_000, 1.0),
        ("t1", "python", "\x1b[31mresize", "a\u202e.py:41", "", 5, 0, 0.625),
        ("t1", "python", "load", "loader.py:12", "read (io.py)", 3, 0, 0.375),
        ("t1", "range", "augment", "", "", 0, 30_000_000, 0.67),
        ("t1", "os", "futex", "", "", 0, 300_000, 0.007),  # less than is worth naming
    )
    said = (
        "62 % resize (a.py:41), 38 % load (loader.py:12, in read (io.py)) (8 samples in 45.0 ms of "
        "gaps); NVTX ranges: 67 % augment"
    )
    assert f"CPU: {said}" in " ".join(shown(found).split())


@pytest.mark.parametrize(
    ("gaps_ns", "times", "other", "said"),
    [
        (500_000, 1, True, "not sampled: none of the samples fell into its 500 us of gaps"),
        (45_000_000, 1, False, ""),  # the warm intervals lost less than that
        (45_000_000, 100, False, "not recorded; nsysalign run --sample-python SCRIPT.py names its functions"),
        (800_000, 100, False, ""),
    ],
)  # fmt: skip
def test_gaps_that_nothing_recorded(analysis, gaps_ns, times, other, said):
    rows = [("t1", "all", "", "", "", 0, gaps_ns, 1.0)]
    rows += [("t2", "all", "", "", "", 4, 30_000, 1.0)] * other
    slow = replace(
        sampled(analysis, *rows),
        intervals=analysis.intervals.assign(elapsed_ns=analysis.intervals["elapsed_ns"] * times),
        parts=analysis.parts.assign(ns=analysis.parts["ns"] * times),
        groups=analysis.groups.assign(total_ns=analysis.groups["total_ns"] * times),
    )
    assert answer(slow).labels[0].host == said


@pytest.mark.parametrize("letters", range(18, 24))
def test_a_line_of_a_kernel_is_no_longer_than_the_terminal_is_wide(letters):
    run = {"label": "GPU 0", "pid": 1, "device": 0, "elapsed_ns": 10**9}
    kernel = {"label": "GPU 0", "kernel": "k" * letters, "share": 0.5, "total_ns": 18_300_000,
              "count": 100_000, "idle_before_ns": 999_400_000}  # fmt: skip
    analysis = SimpleNamespace(
        runs=pd.DataFrame([run]),
        kernels=pd.DataFrame([kernel]),
        trace=SimpleNamespace(thinned=False),
    )
    (line,) = screen.kernel_lines(analysis, 80)
    assert len(line) <= 80 and ("idle before" in line) == (letters <= 20)


@pytest.mark.parametrize("told_of", ["GPU 0", "GPU 1", "forward"])
def test_kernels_below_a_picture_are_those_of_its_run(told_of):
    """Below the sentence on one process of p2p_acc stood what another one, which ran longer, had copied."""
    runs = [{"label": f"GPU {n}", "pid": n, "device": 0, "elapsed_ns": 10**9 + n} for n in range(2)]
    kernels = [
        {"label": run["label"], "kernel": f"kernel_of_{run['pid']}", "share": 0.5,
         "total_ns": 18_300_000, "count": 1, "idle_before_ns": 0}
        for run in runs
    ]  # fmt: skip
    analysis = SimpleNamespace(
        runs=pd.DataFrame(runs),
        kernels=pd.DataFrame(kernels),
        trace=SimpleNamespace(thinned=False),
    )
    (line,) = screen.kernel_lines(analysis, 80, proof=SimpleNamespace(label=told_of))
    assert ("kernel_of_0" in line) == (told_of == "GPU 0"), "the longest where it is of no run"
