"""A comparison in a terminal and as JSON."""

import io
from dataclasses import replace

import pytest
from handmade import CASES, bad, build
from rich.console import Console

from nsysalign.compare.label_changes import compare
from nsysalign.show import diff as screen


def twelve(factor, name=str):
    cases = []
    for label, kind, site, library, runs in CASES:
        pieces = [
            (cause, int(ns * (factor if cause == "host" else 1)), what)
            for cause, ns, what in runs[0]
        ]
        cases.append((label, kind, site, library, [pieces] * 12))
    return build(cases, name=name)


@pytest.fixture
def comparison():
    return compare(twelve(1), twelve(0.25), names=("old", "new"))


def shown(comparison, width):
    stream = io.StringIO()
    screen.render(
        comparison, Console(file=stream, width=width, color_system=None, legacy_windows=False)
    )
    return stream.getvalue()


def test_the_document_is_in_nanoseconds_and_the_terminal_has_room(comparison):
    for width in (60, 80, 130, 200):
        assert max(map(len, shown(comparison, width).splitlines())) <= width
    t1 = screen.document(comparison)["labels"][0]
    assert (t1["label"], t1["verdict"]) == ("t1", "faster")
    assert t1["total"]["change_ns"] == pytest.approx(t1["parts"]["host"]["change_ns"])


def test_causes_that_do_not_fit_are_counted_not_cut(comparison):
    t1, *more = comparison.labels
    host = t1.parts["host"]
    parts = {"host": host} | {
        cause: replace(host, change_ns=-20_000.0)
        for cause in ("api_launch", "launch_latency", "api")
    }
    text = shown(replace(comparison, labels=(replace(t1, parts=parts), *more)), 100)
    assert (
        "-55.8 to -55.8 %; CPU -131 us, launch call -20.0 us, launch latency -20.0 us, … 1 more"
        in text
    )


def test_hostile_names_are_only_text():
    hostile = compare(twelve(1, bad), twelve(0.25, bad), names=(bad("old"), bad("new")))
    text = shown(hostile, 200)
    assert "\x1b" not in text and "\u202e" not in text


def test_nothing_in_common_is_said():
    text = shown(compare(twelve(1), build([])), 100)
    assert "nothing can be compared" in text and "only in A" in text
