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
from hypothesis import example, given
from hypothesis import strategies as st
from measure.test_page import made
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
from nsysalign.addons.confirm import verdicts as confirmations
from nsysalign.cli import cli
from nsysalign.engine import load
from nsysalign.errors import AnalysisError, NsysAlignError
from nsysalign.rundir import RunDirectory
from nsysalign.show import html
from nsysalign.store import database
from nsysalign.trace.clock_samples import read_clock_samples
from nsysalign.trace.redaction import redact_log, redact_samples

from .conftest import FUZZ
from .mutations import (
    byte_changes,
    cell_changes,
    change_bytes,
    change_cells,
    change_document,
    change_log,
    log_changes,
    node_changes,
)
from .test_fuzz import analysed, written

SITES = {
    "t0": {"site": "a.py:4", "callers": ["b.py:9"], "function": "a.py:1:f", "position": 20, "use": "value",
           "stores": ["a.py:1:t0"]},
    "t1": {"site": "a.py:6", "function": "a.py:1:f", "position": 30, "use": "difference", "subtracts": ["a.py:1:t0"],
           "interleaved": True},
}  # fmt: skip
VERDICT = {
    "label": "case", "rules": ["host-gap"], "intervention": "delay", "verdict": "confirmed",
    "reason": "as predicted", "before_ns": 9e4, "predicted_ns": 2e4, "predicted_low_ns": 1e4,
    "predicted_high_ns": 3e4, "after_ns": 2e4, "after_low_ns": 1e4, "after_high_ns": None, "before_count": 4,
    "after_count": 4, "changed": "a delay kernel", "run": "confirm/case-delay-1",
}  # fmt: skip


class Run:
    """A run whose log has every type of line, with samples of the clocks and a run without nsys."""

    def __init__(self, folder: Path) -> None:
        steps: list = []
        for i in range(3):
            steps += [
                HostStart(f"h{i}"),
                Read("t0"),
                Record(f"a{i}", 7),
                Sleep(60_000),
                Launch(20_000, 7),
            ]
            steps += [Record(f"b{i}", 7), Sync(), Read("t1"), HostStop(f"h{i}"), Sleep(9_000)]
        steps += [Elapsed(f"a{i}", f"b{i}", f"case#{i}") for i in range(3)]
        world = machine.run(Program({500: steps}, {7: LEGACY}, clock_sites=SITES))
        self.folder = folder
        self.trace, (log,) = export.write(world, folder, Style(event_rows="none"))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if line["type"] == "record":
                line["intervened"] = line["seq"] % 2 == 0
        hosts = [line for line in lines if line["type"] == "host"]
        lines += [{**hosts[0], "implicit": True}, {**hosts[-1], "implicit": True, "region": ""}]
        lines += [{"type": "note", "text": "said"}]
        lines += [{**line, "count": 700} for line in lines if line["type"] == "clock_reading"][:1]
        self.log = "".join(json.dumps(line) + "\n" for line in lines)
        assert {json.loads(x)["type"] for x in self.log.splitlines()} >= {
            "clock_site",
            "clock_reading",
            "host",
        }
        names = frames.CLOCK_SAMPLES.names
        times = [line["t0_ns"] for line in lines if line["type"] == "record"]
        header = {
            "type": "header",
            "format": "nsysalign-clocks",
            "version": 1,
            "columns": names,
            "order": "assumed",
        }
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


def spelt(value: object) -> bytes:
    """JSON as a program of any sort may have written it."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


@FUZZ
@given(node_changes)
@example([([0.75, 0.5, 0.0], "set", None)])  # a batch among batches that is none
def test_measurements_that_are_wrong(changes):
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "measure.json"
        made(batches=(1, 8), processes=2).write(file)
        text = json.dumps(change_document(json.loads(file.read_text()), changes))
        file.write_text(text)
        for command in (["report", "-q", name], ["diff", "-q", name, name]):
            result = CliRunner().invoke(cli, command)
            assert isinstance(result.exception, NsysAlignError | SystemExit | None), text[:2000]
        assert file.read_text() == text


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
        for command in (["show", name], ["export", "-f", "csv", name]):
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
        redact_log(log, shared)
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
        for table in ("baseline", "unprofiled", "unprofiled_parts"):
            same(
                getattr(load(Path(name) / "analysis.db"), table),
                getattr(analysis, table),
                check_exact=True,
            )


@FUZZ
@given(node_changes, st.booleans())
def test_clock_samples(run, changes, cut):
    with tempfile.TemporaryDirectory() as name:
        path, shared = Path(name) / "clocks.jsonl", Path(name) / "shared.jsonl"
        changed = change_document(run.samples, changes)
        data = b"\n".join(map(spelt, changed if isinstance(changed, list) else [changed])) + b"\n"
        path.write_bytes(data[: len(data) * 2 // 3] if cut else data)
        samples, _ = read_clock_samples(path)
        analysis = nsysalign.analyze(run.trace, [run.plain], clocks=path)
        assert analysis.parts.equals(run.analysis.parts)
        database.write(analysis, Path(name) / "analysis.db")
        same(load(Path(name) / "analysis.db").gpu_clocks, analysis.gpu_clocks, check_exact=True)
        redact_samples(path, shared)
        again, _ = read_clock_samples(shared)
        assert again.equals(samples)


@FUZZ
@given(node_changes, byte_changes, st.booleans())
def test_verdicts(run, changes, flips, bytewise):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = {
            "format": "nsysalign-confirm",
            "version": 1,
            "confirmations": [VERDICT, {**VERDICT, "intervention": "synchronize"}],
        }
        path = folder / "confirm.json"
        path.write_bytes(
            change_bytes(spelt(good), flips) if bytewise else spelt(change_document(good, changes))
        )
        (folder / "analysis.db").write_bytes((run.folder / "analysis.db").read_bytes())
        try:
            analysis = load(folder)
        except AnalysisError as error:
            assert "nsysalign confirm" in error.next_step and len(error.message) < 1000
            return
        confirmations.statuses(analysis)
        written(analysis, folder)
        html.write(analysis, folder / "again.html")
        confirmations.write(analysis.confirmations, folder / "again.json")
        assert confirmations.read(folder / "again.json").equals(analysis.confirmations)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "1" * 10_000, "null", "[]", '"a"', ""]
)
def test_nesting_and_numbers_without_end(run, tmp_path, text):
    for name in ("confirm.json", "run.json", "clocks.jsonl"):
        (tmp_path / name).write_text(text)
    (tmp_path / "analysis.db").write_bytes((run.folder / "analysis.db").read_bytes())
    with pytest.raises(NsysAlignError):
        load(tmp_path)
    assert RunDirectory(tmp_path).conditions() == ()
    assert read_clock_samples(tmp_path / "clocks.jsonl")[0].empty
