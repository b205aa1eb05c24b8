"""Event logs whose records do not say which thread made them: the format lets a program leave `tid`
out."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from recordings import unpack

import nsysalign


@pytest.fixture
def both(request, tmp_path):
    """The analysis of a recording, and the one without `tid` in its log."""
    trace, log = unpack(request.param, tmp_path)
    bare = tmp_path / "without.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    bare.write_text("".join(json.dumps({**x, "tid": None}) + "\n" for x in lines))
    return nsysalign.analyze(trace, [log]), nsysalign.analyze(trace, [bare])


@pytest.mark.parametrize("both", ["unprofiled_linears"], indirect=True)
def test_a_program_with_one_thread_is_analysed_as_with_thread_ids(both):
    for table in ("intervals", "parts", "segments", "unaligned"):
        pd.testing.assert_frame_equal(getattr(both[1], table), getattr(both[0], table))
    assert len(both[0].intervals) == 181


@pytest.mark.parametrize("both", ["threads_h200"], indirect=True)
def test_records_that_may_be_of_several_threads_are_left_out_and_say_so(both):
    assert both[1].measured.empty and len(both[1].unaligned) == len(both[0].measured)
    assert both[1].unaligned["reason"].str.contains("names no thread").all()
