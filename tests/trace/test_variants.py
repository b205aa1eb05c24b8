"""Every schema that nsys had from 2020 on: the same numbers, or what is missing and what that
costs."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing

import pandas as pd
import pytest
from variants import VARIANTS, P, Variant, drop, no_timestamps, write_slice

import nsysalign
from nsysalign.errors import TraceError


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(trace, log, {whose numbers: analysis})"""
    folder = tmp_path_factory.mktemp("recorded")
    trace, log = write_slice(folder)
    changes = {"recorded": (), "untimed": (no_timestamps,)}
    analyses = {}
    for name, change in changes.items():
        (folder / name).mkdir()
        analyses[name] = nsysalign.analyze(changed(trace, folder / name, change), [log])
    assert len(analyses["recorded"].intervals) > 40
    return trace, log, analyses


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
        like, columns = analyses[variant.like], ["name", "start_ns", "end_ns", "method", "error_ns"]
        pd.testing.assert_frame_equal(analysis.measured[columns], like.measured[columns])
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
