"""Inputs that are larger, longer or further away than any program makes them: linear work, or a
refusal with a reason."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tiny_export import OFFSET, PID, US, P, tiny

import nsysalign
from nsysalign.commandline.present import store
from nsysalign.errors import NsysAlignError
from nsysalign.model import KIND
from nsysalign.paths import LONGEST_NAME, shortened
from nsysalign.split import busy
from nsysalign.split.host_timers import kernels_issued_inside


def test_a_long_name_keeps_its_beginning_its_number_and_is_no_other():
    assert shortened("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    long = [shortened("x" * 5_000 + end) for end in ("a", "b", "a#3", "a#4", "#" + "9" * 400)]
    assert len(set(long)) == 5 and all(len(name) <= LONGEST_NAME for name in long)
    assert long[2].endswith("#3") and long[2].removesuffix("#3") == long[0]
    assert all(name.startswith("xxx") for name in long)


def test_labels_as_long_as_a_book(export, log, tmp_path):
    """They took 200 s: patterns looked through the rest of the name from each of its
    characters."""
    lines = [json.loads(line) | {"region": "a" * 900_000 + "#0"} for line in log.open()]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    analysis = nsysalign.analyze(export(tiny()), [log])
    store(analysis, tmp_path)
    name, label = analysis.intervals["name"][0], analysis.intervals["label"][0]
    assert name == label + "#0" and len(name) <= LONGEST_NAME


@pytest.mark.parametrize("far", [(1 << 63) - 10**9, 1 << 61, -(1 << 62)])
@pytest.mark.parametrize("table", [P + "RUNTIME", P + "KERNEL", "NVTX_EVENTS", None])
def test_times_at_the_edge_of_what_a_number_holds(export, far, table):
    """Budgets add up, or the trace is refused: an AssertionError is neither."""
    tables = tiny()
    for row in (row for name, rows in tables.items() if table in (None, name) for row in rows):
        for key in ("start", "end"):
            if isinstance(row.get(key), int):
                row[key] += far
    try:
        analysis = nsysalign.analyze(export(tables))
    except NsysAlignError as error:
        assert table is None and "no CUDA activity" in error.message
        return
    parts = analysis.parts.groupby("interval")["ns"].sum()
    assert parts.tolist() == analysis.intervals["elapsed_ns"].tolist() and (parts > 0).all()


def test_host_timers_inside_each_other_are_kept_to_a_depth(export, log):
    """20,000 of them took 14 GB: the pieces of all grow with the square of their number."""
    host = {"type": "host", "region": "deep", "tid": PID}
    with log.open("a") as file:
        for i in reversed(range(400)):
            inside = {**host, "t0_ns": OFFSET + i, "t1_ns": OFFSET + 300 * US - i}
            file.write(json.dumps(inside) + "\n")
    analysis = nsysalign.analyze(export(tiny()), [log])
    hosts = analysis.intervals[analysis.intervals["kind"] == "host"]
    outer = [300 * US - 2 * i for i in range(99, -1, -1)]
    assert sorted(hosts["elapsed_ns"]) == outer
    assert any(n.startswith("300 host timers lie inside 100 others") for n in analysis.notes)


def test_ranges_inside_each_other_twenty_thousand_deep():
    """They took 44 s: each depth cut all that lies deeper."""
    count = 20_000
    start = np.arange(count)
    s, e, n = busy.innermost(start, 3 * count - start, start)
    assert n.tolist() == [*range(count), *range(count - 2, -1, -1)]
    assert (s[1:] == e[:-1]).all() and s[0] == 0 and e[-1] == 3 * count


def test_kernels_issued_inside_a_hundred_thousand_windows_of_a_day():
    """The product of both does not fit into int64: the union was 2.2e18 ns."""
    count, day = 110_000, 86_400 * 10**9
    at = np.arange(count, dtype=np.int64) * (day // count)
    number = np.arange(count)
    times = {"start_ns": at + 500, "end_ns": at + 2_500}
    operations = pd.DataFrame({"kind": KIND["kernel"], "call": number, "process": 1} | times)
    trace = SimpleNamespace(operations=operations, calls=pd.DataFrame({"start_ns": at + 10}))
    inside, after = kernels_issued_inside(trace, np.ones(count, np.int64), at, at + 1_000)
    assert set(inside) == {2_000} and set(after) == {1_500}
