"""Event logs whose records do not say which thread made them: the format lets a program leave `tid`
out."""

from __future__ import annotations

import json

import pandas as pd
from recordings import unpack

import nsysalign


def both(name, folder):
    """The analysis of a recording, and the one without `tid` in its log."""
    trace, log = unpack(name, folder)
    bare = folder / "without.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    bare.write_text("".join(json.dumps({**x, "tid": None}) + "\n" for x in lines))
    return nsysalign.analyze(trace, [log]), nsysalign.analyze(trace, [bare])


def test_a_program_with_one_thread_is_analysed_as_with_thread_ids(tmp_path):
    known, without = both("unprofiled_linears", tmp_path)
    for table in ("intervals", "parts", "segments", "unaligned"):
        pd.testing.assert_frame_equal(getattr(without, table), getattr(known, table))
    assert len(known.intervals) == 181


def test_records_that_may_be_of_several_threads_are_left_out_and_say_so(tmp_path):
    known, without = both("threads_h200", tmp_path)
    assert without.measured.empty and len(without.unaligned) == len(known.measured)
    assert without.unaligned["reason"].str.contains("names no thread").all()
