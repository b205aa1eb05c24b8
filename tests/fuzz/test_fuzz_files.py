"""Damaged files of a run directory beside the trace and its log: each costs a note or an error,
never a crash.

`NSYSALIGN_FUZZ=100 pytest tests/fuzz` looks a hundred times as long, at other things each time.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal as same
from simulator import check, export, machine
from simulator.export import Style
from simulator.program import (
    Elapsed,
    HostStart,
    HostStop,
    Launch,
    Program,
    Read,
    Record,
    Sleep,
    Sync,
)
from simulator.world import LEGACY

import nsysalign
from nsysalign import frames
from nsysalign.cli import cli
from nsysalign.engine import load
from nsysalign.errors import NsysAlignError
from nsysalign.rundir import RunDirectory
from nsysalign.show import html
from nsysalign.store import database
from nsysalign.trace.redaction import redact_lines
from nsysalign.trace.samples import read_clock_samples

from .conftest import FUZZ
from .mutations import (
    byte_changes,
    cell_changes,
    change_bytes,
    change_cells,
    change_log,
    log_changes,
)
from .test_fuzz import analysed

SITES = {
    "t0": {"site": "a.py:4", "callers": ["b.py:9"], "function": "a.py:1:f", "position": 20, "use": "value",
           "stores": ["a.py:1:t0"]},
    "t1": {"site": "a.py:6", "function": "a.py:1:f", "position": 30, "use": "difference", "subtracts": ["a.py:1:t0"],
           "interleaved": True},
}  # fmt: skip


class Run:
    """A run whose log has every type of line, with samples of the clocks and a run without nsys."""

    def __init__(self, folder: Path) -> None:
        steps: list = []
        for i in range(3):
            steps += [HostStart(f"h{i}"), Read("t0"), Record(f"a{i}", 7), Sleep(60_000)]
            steps += [Launch(20_000, 7), Record(f"b{i}", 7), Sync(), Read("t1"), HostStop(f"h{i}")]
        steps += [Elapsed(f"a{i}", f"b{i}", f"case#{i}") for i in range(3)]
        world = machine.run(Program({500: steps}, {7: LEGACY}, clock_sites=SITES))
        self.folder = folder
        self.trace, (log,) = export.write(world, folder, Style(event_rows="none"))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        hosts = [line for line in lines if line["type"] == "host"]
        lines += [{**hosts[0], "implicit": True}, {**hosts[-1], "implicit": True, "region": ""}]
        lines += [{"type": "note", "text": "said"}]
        lines += [{**line, "count": 700} for line in lines if line["type"] == "clock_reading"][:1]
        self.log = "".join(json.dumps(line) + "\n" for line in lines)
        assert {"clock_site", "clock_reading", "host"} <= {line["type"] for line in lines}
        names = frames.CLOCK_SAMPLES.names
        times = [line["t0_ns"] for line in lines if line["type"] == "record"]
        header = {"type": "header", "format": "nsysalign-clocks", "version": 1}
        header |= {"columns": names, "order": "assumed"}
        rows = [
            [t if n == "monotonic_ns" else k % 2 if n == "device" else 1_500 + k for n in names]
            for k, t in enumerate(times)
        ]
        self.samples = [header, *rows]
        self.plain = folder / "plain.jsonl"
        self.plain.write_text(self.log)
        self.analysis = nsysalign.analyze(self.trace, [self.plain])
        database.write(self.analysis, folder / "analysis.db")
        kinds = self.analysis.intervals["kind"].value_counts()
        assert kinds["event"] == 3 and kinds["host"] >= 3


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


@FUZZ
@given(st.sampled_from(["cells", "bytes"]), cell_changes, byte_changes)
def test_stored_analyses(run, how, changes, flips):
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "analysis.db"
        data = (run.folder / "analysis.db").read_bytes()
        path.write_bytes(data if how == "cells" else change_bytes(data, flips))
        if how == "cells":
            change_cells(path, changes)
        try:
            analysis = load(path)
        except NsysAlignError:
            return
        parts = analysis.parts.groupby("interval")["ns"].sum()
        elapsed = analysis.intervals.set_index("interval")["elapsed_ns"]
        assert (parts.reindex(elapsed.index, fill_value=0) == elapsed).all()
        html.write(analysis, path.with_suffix(".html"))
        for command in (["show", name], ["export", "-f", "json", name]):
            result = CliRunner().invoke(cli, command)
            assert isinstance(result.exception, NsysAlignError | SystemExit | None), command


@FUZZ
@given(log_changes, st.booleans())
def test_lines_of_every_type(run, changes, packed):
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / ("events-500.jsonl" + ".gz" * packed)
        data = change_log(run.log, changes).encode()
        log.write_bytes(gzip.compress(data, 1) if packed else data)
        analysis = analysed(run.trace, [log])
        shared = Path(name) / "shared.jsonl"
        redact_lines(log, shared)
        again = analysed(run.trace, [shared])
        assert (analysis is None) == (again is None)
        assert analysis is None or again.parts.equals(analysis.parts)


@FUZZ
@given(log_changes)
def test_the_run_without_nsys(run, changes):
    """It is put beside, or a note says why not: the profiled run's numbers are what they are
    without it."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "baseline.jsonl"
        lines = run.log.replace(
            '"version": 1', '"version": 1, "baseline": true, "exit_status": 0', 1
        )
        log.write_text(change_log(lines, changes))
        analysis = nsysalign.analyze(run.trace, [run.plain], baseline=[log])
        check.invariants(analysis)
        assert analysis.parts.equals(run.analysis.parts)
        database.write(analysis, Path(name) / "analysis.db")
        stored = load(Path(name) / "analysis.db")
        for table in ("baseline", "unprofiled", "unprofiled_parts"):
            same(getattr(stored, table), getattr(analysis, table), check_exact=True)


@FUZZ
@given(log_changes, st.booleans())
def test_clock_samples(run, changes, cut):
    with tempfile.TemporaryDirectory() as name:
        path, shared = Path(name) / "clocks.jsonl", Path(name) / "shared.jsonl"
        text = change_log("".join(json.dumps(line) + "\n" for line in run.samples), changes)
        path.write_text(text[: len(text) * 2 // 3] if cut else text)
        samples, _ = read_clock_samples(path)
        analysis = nsysalign.analyze(run.trace, [run.plain], clocks=path)
        assert analysis.parts.equals(run.analysis.parts)
        database.write(analysis, Path(name) / "analysis.db")
        same(load(Path(name) / "analysis.db").gpu_clocks, analysis.gpu_clocks, check_exact=True)
        redact_lines(path, shared)
        again, _ = read_clock_samples(shared)
        assert again.equals(samples)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "1" * 10_000, "null", "[]", '"a"', ""]
)
def test_nesting_and_numbers_without_end(run, tmp_path, text):
    for name in ("confirm.json", "run.json", "clocks.jsonl"):
        (tmp_path / name).write_text(text)
    (tmp_path / "analysis.db").write_bytes((run.folder / "analysis.db").read_bytes())
    assert len(load(tmp_path).intervals) == len(run.analysis.intervals)
    assert RunDirectory(tmp_path).conditions() == ()
    assert read_clock_samples(tmp_path / "clocks.jsonl")[0].empty
