"""Damaged exports, logs and analyses: an error that says so, or an answer that adds up; never a
crash, never a hang.

`NSYSALIGN_FUZZ=100 pytest tests/fuzz` looks a hundred times as long, at other things each time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from properties.programs import loops, programs
from rich.console import Console
from simulator import check, export, machine
from simulator.export import Style

import nsysalign
from nsysalign.answer import answer
from nsysalign.engine import load
from nsysalign.errors import NsysAlignError
from nsysalign.show import html, screen
from nsysalign.store import database, document
from nsysalign.trace.redaction import redact

from .conftest import FUZZ
from .mutations import (
    byte_changes,
    cell_changes,
    change_bytes,
    change_cells,
    change_log,
    log_changes,
)

some_programs = st.one_of(programs(intervals=2, ranges=True), loops())
styles = st.sampled_from(["timestamps", "untimed", "none"])


def good(program, event_rows: str, folder: str) -> tuple[Path, list[Path]]:
    return export.write(machine.run(program), Path(folder), Style(event_rows=event_rows))


def analysed(trace: Path, logs: list[Path]) -> nsysalign.Analysis | None:
    """None where an error says what is wrong, in a line or two; else every budget adds up and every
    output is written."""
    try:
        analysis = nsysalign.analyze(trace, logs)
    except NsysAlignError as error:
        assert error.message and str(error).count("\n") <= 2, str(error)
        assert len(error.message) < 1000
        return None
    check.invariants(analysis)
    return analysis


def written(analysis: nsysalign.Analysis, folder: Path) -> None:
    (folder / "analysis.json").write_bytes(b"".join(document.pieces(analysis)))
    database.write(analysis, folder / "analysis.db")
    html.write(analysis, folder / "report.html")
    shown = Console(file=(folder / "terminal.txt").open("w"), width=100)
    screen.everything(analysis, answer(analysis), shown)
    assert len(load(folder / "analysis.db").intervals) == len(analysis.intervals)


@FUZZ
@given(some_programs, styles, cell_changes)
def test_rows_that_are_wrong(program, event_rows, changes):
    with tempfile.TemporaryDirectory() as folder:
        trace, logs = good(program, event_rows, folder)
        change_cells(trace, changes)
        before = trace.read_bytes()
        analysis = analysed(trace, logs)
        assert trace.read_bytes() == before
        shared = trace.with_name("shared.sqlite")
        try:
            redact(trace, shared)
        except NsysAlignError:
            return
        again = analysed(shared, logs)
        assert (analysis is None) == (again is None)
        assert analysis is None or again.parts.equals(analysis.parts)


@FUZZ
@given(some_programs, byte_changes, st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.1]))
def test_bytes_that_are_wrong(program, changes, keep):
    with tempfile.TemporaryDirectory() as folder:
        trace, logs = good(program, "untimed", folder)
        trace.write_bytes(change_bytes(trace.read_bytes(), changes, keep))
        analysed(trace, logs)


@FUZZ
@given(some_programs, cell_changes, log_changes)
def test_what_comes_out_can_be_written_and_read(program, changes, lines):
    with tempfile.TemporaryDirectory() as folder:
        trace, (log, *_) = good(program, "untimed", folder)
        change_cells(trace, changes)
        log.write_text(change_log(log.read_text(), lines))
        analysis = analysed(trace, [log])
        if analysis is not None:
            written(analysis, Path(folder))
