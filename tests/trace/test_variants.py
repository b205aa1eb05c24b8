"""Every schema that nsys had from 2020 on: the same numbers, or what is missing and what that
costs."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from unittest import mock

import pandas as pd
import pytest
from variants import VARIANTS, P, Variant, drop, write_slice

import nsysalign
from nsysalign import engine
from nsysalign.errors import TraceError
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(trace, log, {whose numbers: analysis})"""
    folder = tmp_path_factory.mktemp("recorded")
    trace, log = write_slice(folder)
    read, events = read_trace(trace), read_event_logs([log])
    untimed = replace(read, event_rows=read.event_rows.assign(timestamp_ns=0))
    analyses = {
        "recorded": _analysed(trace, read, events),
        "untimed": _analysed(trace, untimed, events),
    }
    for nsys in (
        read.info.nsys_version,
        None,
        "2022.4.2",
    ):  # it says whether event tracing can have been on
        info = replace(read.info, nsys_version=nsys)
        blind = replace(read, event_rows=read.event_rows.iloc[:0], info=info)
        analyses["no rows", nsys] = _analysed(trace, blind, events)
    assert len(analyses["recorded"].intervals) > 40
    return trace, log, analyses


def _analysed(path, trace, log):
    """What `analyze` does with what has been read already."""
    with mock.patch.object(engine, "_read", return_value=(trace, log)):
        return engine.analyze(path)


def changed(trace, folder, changes):
    path = folder / "trace.sqlite"
    shutil.copyfile(trace, path)
    with closing(sqlite3.connect(path)) as db:
        for change in changes:
            change(db)
        db.commit()
    return path


def check_exact(analysis: nsysalign.Analysis, asked: int) -> None:
    """Every pair has an exact budget or a reason."""
    intervals, parts = analysis.intervals, analysis.parts
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    assert (parts["ns"] >= 0).all()
    assert (
        parts.groupby("interval")["ns"].sum().reindex(elapsed.index, fill_value=0) == elapsed
    ).all()
    assert (intervals["end_ns"] - intervals["start_ns"] == intervals["elapsed_ns"]).all()
    assert len(analysis.measured) + len(analysis.unaligned) == asked
    assert analysis.unaligned["reason"].str.len().gt(5).all()


def numbers(analysis: nsysalign.Analysis) -> pd.DataFrame:
    columns = [
        "name",
        "start_ns",
        "end_ns",
        "start_lower_ns",
        "start_upper_ns",
        "method",
        "kernel_only_ns",
    ]
    return analysis.measured[columns]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_a_variant(recorded, tmp_path, variant: Variant):
    trace, log, analyses = recorded
    path = changed(trace, tmp_path, variant.changes)
    analysis = nsysalign.analyze(path, [log])
    reference = analyses["recorded"]
    check_exact(analysis, len(reference.measured) + len(reference.unaligned))
    said = [*analysis.trace.missing, *analysis.trace.notes, *analysis.notes]
    if variant.note:
        assert any(re.search(variant.note, text) for text in said), said
    assert analysis.trace.schema_version == variant.version
    if variant.like:
        key = (
            (variant.like, analysis.trace.nsys_version)
            if variant.like == "no rows"
            else variant.like
        )
        like = analyses[key]
        pd.testing.assert_frame_equal(numbers(analysis), numbers(like))
        assert analysis.parts.equals(like.parts)
    # whatever is missing, what was compared is never changed
    pair = ["pid", "start_record", "end_record"]  # names count only what could be placed
    known = reference.measured.set_index(pair)["elapsed_ns"]
    found = analysis.measured.set_index(pair)["elapsed_ns"]
    assert (found == known.reindex(found.index)).all()


@pytest.mark.parametrize(
    ("table", "said"),
    [(P + "RUNTIME", "no CUDA API calls"), ("StringIds", "no names of its API calls")],
)
def test_without_a_needed_table_the_option_is_named(recorded, tmp_path, table, said):
    path = changed(recorded[0], tmp_path, [drop(table)])
    with pytest.raises(TraceError, match=said) as error:
        nsysalign.analyze(path, [recorded[1]])
    assert "nsys " in error.value.next_step and ("-t cuda" in error.value.next_step) == (
        table != "StringIds"
    )
