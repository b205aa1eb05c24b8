"""What is said of a trace names the recorder that made it, and no other."""

from dataclasses import replace

import pytest
from handmade import build

from nsysalign.answer import answer
from nsysalign.errors import AnalysisError
from nsysalign.model import RECORDERS
from nsysalign.store import database


@pytest.mark.parametrize("recorder", sorted(RECORDERS.keys() - {"nsys"}))
def test_the_recorder_of_a_trace_is_named_kept_and_no_nsys(recorder, tmp_path):
    made = build()
    made = replace(made, trace=replace(made.trace, recorder=recorder, nsys_version=None))
    about = answer(made).about
    assert about["recorder"] == RECORDERS[recorder].title and "nsys" not in about
    database.write(made, tmp_path / "analysis.db")
    assert database.load(tmp_path / "analysis.db").trace == made.trace


def test_a_stored_analysis_of_an_unknown_recorder_is_refused(tmp_path):
    made = build()
    database.write(
        replace(made, trace=replace(made.trace, recorder="chalk")), tmp_path / "analysis.db"
    )
    with pytest.raises(AnalysisError, match="inconsistent"):
        database.load(tmp_path / "analysis.db")
