"""Which label leads, and which labels have a row on the first screen."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from explain.drawing import analysis, diagnose, interval, piece, repeat
from rich.console import Console

from nsysalign.answer import Fix, Wrong, answer
from nsysalign.show import screen


def first_screen(told):
    stream = io.StringIO()
    screen.render(told, Console(file=stream, width=80, color_system=None, legacy_windows=False))
    lines = stream.getvalue().splitlines()
    assert len(lines) <= screen.LINES
    return lines


def rows_of(lines):
    """The labels of the table's rows."""
    (head,) = (n for n, line in enumerate(lines) if line.startswith("label, "))
    return [line.split()[0] for line in lines[head + 1 :] if line.split()[1:]]


@pytest.mark.parametrize(("later", "leads"), [(1, "steady"), (9, "first")])
def test_a_first_call_leads_only_where_others_are_averaged_with_it(later, leads):
    """j01: the headline was about the warm-up, two calls of which the first one loads code; nobody reads that number."""
    load = piece("api", 90_000, "cuLibraryLoadData")
    loads = interval("first", load, ("host", 400_000), *[("kernel", 1_000)] * 9)
    usual = repeat(later, "first", ("host", 10), *[("kernel", 1_000)] * 9)
    told = answer(diagnose(analysis(loads, usual, repeat(9, "steady", ("kernel", 900)))))
    row = next(row for row in told.labels if row.label == "first")
    assert told.labels[0].label == ("steady" if later == 1 else "first")
    assert row.saving_ns == 0 and (leads == "first") == told.sentence.startswith("first ")


def many_labels():
    """Twelve labels, of which the last ones have no room."""
    drawn = [repeat(9, f"x{n:02}", ("host", 900 - n), ("kernel", 100)) for n in range(12)]
    return answer(diagnose(analysis(*drawn)))


@pytest.mark.parametrize(
    ("waits_us", "keeps"),
    [(500, True), (0, False)],  # 0: launched by the CPU, as the line with the cross says
)
def test_a_wrong_label_of_which_some_timings_wait_keeps_its_row(waits_us, keeps):
    """j01: of 300 timings 150 measured launching; that the others waited for earlier work stood behind -v."""
    told = many_labels()
    last = told.labels[-1]
    parts = dict.fromkeys(last.parts_ns, 0)
    parts |= {"queued": 1_000 * waits_us, "host": 1_000 * (1_000 - waits_us)}
    kind = replace(last, name="×9: some", parts_ns=parts, elapsed_ns=1_000_000, gpu_ns=0)
    wrong = replace(last, verdict="wrong", groups=(kind, replace(last, words="launches")))
    line = Wrong(last.label, last.label, "measures only launching.", "")
    lines = first_screen(replace(told, labels=(*told.labels[:-1], wrong), wrong=(line,)))
    assert any(text.startswith("✖ x11") for text in lines)
    assert (last.label in rows_of(lines)) == keeps
    assert any("×9: some" in text for text in lines) == keeps


@pytest.mark.parametrize("rules", [("enqueue-only",), ()])
def test_a_label_that_waits_for_others_keeps_its_row(rules):
    """p01: the row of the largest phase gave way to the picture of a smaller one."""
    told = many_labels()
    waits = replace(told.labels[-1], findings=rules, saving_ns=1)
    lines = first_screen(replace(told, labels=(*told.labels[:-1], waits)))
    assert (waits.label in rows_of(lines)) == bool(rules)


def test_of_a_line_and_its_caller_the_file_is_cut():
    """p06: "p06_cupy… › 44-47" was the row of two callers."""
    assert screen.shortened("p06_cupy_fft_lengths.py:60 › 44-47", 17) == "p06_cu…60 › 44-47"


@pytest.mark.parametrize("alone", [False, True])
def test_ranges_of_a_library_have_no_row_beside_the_programs_own_labels(alone):
    """j16: half of the table were XLA's ranges of what was timed above them."""
    told = many_labels()
    ranges = [replace(row, library=True, kind="nvtx") for row in told.labels[2:4]]
    others = [] if alone else told.labels[:2]
    lines = first_screen(replace(told, labels=(*others, *ranges), proof=None))
    assert [row.label in rows_of(lines) for row in ranges] == [alone, alone]
    assert alone or any("-v shows 2 more labels" in line for line in lines)


def test_kinds_of_a_wrong_timing_of_which_the_same_is_said_have_no_rows():
    told = many_labels()
    kinds = [replace(told.labels[1], name=f"×{n}: pace", words=f"launch {n} %") for n in (3, 6)]
    for words, count in (("launch 9 %", 0), ("waits", 2)):
        groups = (kinds[0], replace(kinds[1], words=words))
        wrong = replace(told.labels[1], verdict="wrong", groups=groups)
        lines = first_screen(replace(told, labels=(told.labels[0], wrong)))
        assert sum(": pace" in line for line in lines) == count


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (["host"], "in brackets: how long its kernels ran"),
        (["event"], "in brackets: kernels on other streams"),
        (["event", "host"], "in brackets: kernels on other streams, or while"),
    ],
)
def test_what_stands_in_brackets_is_said_for_what_stands_there(kinds, says):
    """A reader asked of "on other streams, or while the CPU went on": which is it?"""
    told = many_labels()
    rows = [
        replace(row, kind=kind, others_ns=9_000, parts_ns=row.parts_ns | {"kernel": 0})
        for row, kind in zip(told.labels, kinds, strict=False)
    ]
    rows = [replace(row, gpu_ns=9_000 if row.kind == "host" else 0) for row in rows]
    lines = first_screen(replace(told, labels=tuple(rows), proof=None))
    assert any(line.startswith(says) and len(line) <= 80 for line in lines)


def test_points_in_time_are_no_lengths_and_calls_have_plain_names():
    """A reader took the numbers above the bar for lengths, and did not know cuLaunchKernelEx."""
    launch = piece("api_launch", 300, "cuLaunchKernelEx")
    drawn = repeat(9, "x", ("host", 400), launch, ("kernel", 300))
    text = "\n".join(first_screen(answer(diagnose(analysis(drawn)))))
    assert "┌700 us" in text
    assert "└ kernel launch" in text and "cuLaunch" not in text


@pytest.mark.parametrize("alone", [False, True])
def test_pairs_of_a_library_have_no_row_beside_the_programs_own_labels(alone):
    """k05: four rows were XLA's trials, whose events were read from the trace."""
    told = many_labels()
    pairs = [replace(row, inferred=True) for row in told.labels[2:4]]
    others = [] if alone else told.labels[:2]
    lines = first_screen(replace(told, labels=(*others, *pairs), proof=None))
    assert [row.label in rows_of(lines) for row in pairs] == [alone, alone]


@pytest.mark.parametrize("wrong", [True, False])
def test_how_to_measure_right_leaves_room_for_what_makes_faster(wrong):
    """g01: one of the two fixes was left out for rows and a picture."""
    told = many_labels()
    fixes = [
        Fix(purpose, "word " * 60, f"{purpose[:7]}()")
        for purpose in ("measure it right", "make it faster")
    ]
    line = Wrong(told.labels[-1].label, told.labels[-1].label, "measures only launching.", "")
    told = replace(told, fixes=tuple(fixes), wrong=(line,) if wrong else ())
    lines = "\n".join(first_screen(told))
    assert "measure()" in lines and ("make it()" in lines) == wrong


def test_the_picture_leaves_before_the_fix():
    """l05: a sentence of six lines left room for one of them."""
    told = many_labels()
    fix = Fix("make it faster", "Keep the plans", "keep()")
    lines = first_screen(replace(told, sentence="word " * 150, fixes=(fix,)))
    assert any("keep()" in line for line in lines)
    assert len(lines) <= 24
