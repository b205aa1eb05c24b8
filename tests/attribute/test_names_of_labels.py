"""What intervals and labels are called: by region, else by the lines of code; one code, one
label."""

from __future__ import annotations

import pandas as pd
import pytest

from nsysalign.split.labels import name_intervals


def named(*rows: dict, kind: str = "event"):
    """(names, labels) of windows given by what is known of them."""
    empty = {"region": "", "site": "", "end_site": "", "callers": (), "kind": kind}
    return name_intervals(pd.DataFrame([empty | row for row in rows]))


def labels(*rows: dict) -> list[str]:
    return named(*rows)[1]


def at(site: str, end_site: str = "", *callers: str) -> dict:
    return {"site": site, "end_site": end_site, "callers": callers}


@pytest.mark.parametrize(("row", "label"), [
    (at("/home/me/bench.py:14", "/home/me/bench.py:17"), "bench.py:14-17"),
    (at("bench.py:14", "bench.py:14"), "bench.py:14"),
    (at("bench.py:14"), "bench.py:14"),
    (at("", "bench.py:17"), "bench.py:17"),
    (at("a.py:1", "b.py:2"), "a.py:1-b.py:2"),
    (at(""), "event interval"),
    ({"region": "step#3"}, "step"),
    ({"region": "step"}, "step"),
    ({"region": "#3"}, "#3"),
    ({"region": "aten::mm, op_id = 12"}, "aten::mm"),
    ({"region": "aten::mm, seq = 7, op_id = 12"}, "aten::mm"),
    ({"region": "aten::mm, op_ids = [1, 2]"}, "aten::mm"),
])  # fmt: skip
def test_the_label_of_one(row, label):
    assert labels(row) == [label]


def test_files_of_one_name_keep_their_folders():
    """a/bench.py and b/bench.py are two files; train.py is one, wherever it is named."""
    assert labels(at("a/bench.py:1"), at("b/bench.py:1"), at("c/train.py:2", "c/train.py:3")) == [
        "a/bench.py:1", "b/bench.py:1", "train.py:2-3",
    ]  # fmt: skip
    assert labels(at("a/bench.py:1", "", "b/bench.py:9")) == ["a/bench.py:1"], (
        "a caller's file counts as well"
    )


def test_the_first_caller_that_differs_names_the_label():
    """A Timer class: one pair of lines, called from two places, two levels up."""
    timer = ("timer.py:5", "timer.py:9")
    rows = [
        at(*timer, "util.py:3", "train.py:10"),
        at(*timer, "util.py:3", "train.py:20"),
        at(*timer, "util.py:3", "train.py:10"),
    ]
    assert labels(*rows) == [
        "train.py:10 (timer.py:5-9)",
        "train.py:20 (timer.py:5-9)",
        "train.py:10 (timer.py:5-9)",
    ]
    assert labels(*rows[:1], rows[2]) == ["timer.py:5-9"] * 2, "one place: nothing to tell apart"
    # of another pair of lines nobody asks
    assert labels(*rows[:1], at("other.py:1", "", "main.py:1")) == ["timer.py:5-9", "other.py:1"]


def test_names_are_unique_and_number_the_repetitions():
    names, found = named(
        {"region": "step#0"},
        {"region": "step#0"},
        {"region": "step"},
        at("a.py:1"),
        at("a.py:1"),
        {"region": "step#2"},
    )
    assert found == ["step", "step", "step", "a.py:1", "a.py:1", "step"]
    assert names == ["step#0", "step#1", "step#2", "a.py:1#0", "a.py:1#1", "step#3"]


def test_host_timers_and_the_run_stand_apart():
    rows = [{"region": "step#0"}, {"region": "step#0", "kind": "host"}, {"region": "alone#0", "kind": "host"},
            {"region": "run", "kind": "run"}, {"region": "step", "kind": "run"}]  # fmt: skip
    names, found = named(*rows)
    assert found == ["step", "step (host)", "alone", "run", "step (all)"]
    assert names[:3] == ["step#0", "step (host)#0", "alone#0"] and len(set(names)) == 5
