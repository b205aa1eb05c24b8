"""Inputs that are larger, longer or further away than any program makes them: linear work, or a refusal with a reason."""

from __future__ import annotations

import json

import pytest
from tiny_export import P, tiny

import nsysalign
from nsysalign.attribute.pieces import by_cause
from nsysalign.commands.present import store
from nsysalign.errors import NsysAlignError
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.names import LONGEST_NAME, shortened


def with_region(log, region: str, times: int = 1) -> None:
    """The log's pair inside a region of that name."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines[1:]:
        line["region"] = region
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


# --- names ---------------------------------------------------------------------------------------------------


def test_a_long_name_keeps_its_beginning_its_number_and_is_no_other():
    assert shortened("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    long = [shortened("x" * 5_000 + end) for end in ("a", "b", "a#3", "a#4", "#" + "9" * 400)]
    assert len(set(long)) == 5 and all(len(name) <= LONGEST_NAME for name in long)
    assert long[2].endswith("#3") and long[2].removesuffix("#3") == long[0]
    assert all(name.startswith("xxx") for name in long)


@pytest.mark.parametrize("length", [10_000, 900_000])
def test_labels_as_long_as_a_book(export, log, tmp_path, length):
    """They took 24 s and 200 s: patterns looked through the rest of the name from each of its characters."""
    with_region(log, "a" * length + "#0")
    analysis = nsysalign.analyze(export(tiny()), [log])
    store(analysis, tmp_path, json_out=None)
    name, label = analysis.intervals["name"][0], analysis.intervals["label"][0]
    assert name == label + "#0" and len(name) <= LONGEST_NAME


def test_other_texts_of_a_log_are_as_short(log):
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[1] |= {"site": "s" * 50_000, "callers": ["c" * 50_000]}
    lines[3] |= {"ms": None, "error": "e" * 50_000}
    log.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"type": "note", "text": "n" * 50_000}]))
    read = read_event_logs([log])
    texts = [read.records["site"][0], read.records["callers"][0][0], read.elapsed["error"][0], read.notes[0]]
    assert [t[0] for t in texts] == ["s", "c", "e", "n"] and all(len(t) <= LONGEST_NAME for t in texts)


def test_texts_of_ranges_are_as_short(export):
    tables = tiny()
    tables["NVTX_EVENTS"][0] |= {"textId": None, "text": "r" * 15_000}
    names = nsysalign.analyze(export(tables)).intervals["name"]
    assert any(name.startswith("rrr") for name in names) and names.str.len().max() <= LONGEST_NAME + 20


@pytest.mark.parametrize("region", ["7" * 5_000, "x#" + "9" * 5_000, "x#" + "9" * 100, "#" + "9" * 25])
def test_numbers_of_thousands_of_digits_are_names(export, log, tmp_path, region):
    """Python refuses to make a number of more than 4,300 digits."""
    with_region(log, region)
    analysis = nsysalign.analyze(export(tiny()), [log])
    store(analysis, tmp_path, json_out=None)
    assert analysis.intervals["name"][0].startswith(region[:30])


# --- times ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [(1 << 63) - 10**9, 1 << 62, (1 << 62) - 10**9, 1 << 61, -(1 << 62), 10**9 - (1 << 63)])
@pytest.mark.parametrize("only_end", [False, True], ids=["both", "end"])
@pytest.mark.parametrize("table", [*(P + t for t in ("RUNTIME", "KERNEL", "MEMCPY", "GRAPH_TRACE")), "NVTX_EVENTS", None])
def test_times_at_the_edge_of_what_a_number_holds(export, far, only_end, table):
    """Budgets add up, or the trace is refused: an AssertionError is neither."""
    tables = tiny()
    for row in (row for name, rows in tables.items() if table in (None, name) for row in rows):
        for key in ("end",) if only_end else ("start", "end"):
            if isinstance(row.get(key), int):
                row[key] += far
    try:
        analysis = nsysalign.analyze(export(tables))
    except NsysAlignError as error:
        assert table is None and "no CUDA activity" in error.message
        return
    parts = analysis.parts.groupby("interval")["ns"].sum()
    assert parts.tolist() == analysis.intervals["elapsed_ns"].tolist() and (parts > 0).all()


def test_sums_of_many_days_are_exact():
    import numpy as np

    day = 86_400 * 10**9
    row, cause = np.zeros(3, np.int64), np.zeros(3, np.int64)
    assert by_cause(row, cause, np.array([100 * day, 5 * day, 1]), 1)[0, 0] == 105 * day + 1
