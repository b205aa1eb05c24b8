"""A run directory with a run without nsys in it: analysed, shown again, compared, and never taken
for the trace's own."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from nsysalign import engine
from nsysalign.cli import cli
from nsysalign.engine import load

from .recordings import unpack


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    files = unpack("unprofiled_linears", folder)
    files["events.jsonl"].rename(folder / "events-1.jsonl")
    (folder / "baseline").mkdir()
    files["baseline.jsonl"].rename(folder / "baseline" / "events-2.jsonl")
    result = CliRunner().invoke(cli, ["analyze", "-v", str(folder)])
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_analyze_finds_the_second_run_by_itself(run_dir):
    folder, text = run_dir
    assert "profiled and unprofiled" in text
    assert {*load(folder).baseline["label"]} == {
        f"{m}_t{t}" for m in ("h2d", "dev", "flush") for t in (1, 2, 3)
    }
    assert 'id="baseline"' in (folder / "report.html").read_text()
    assert len(engine.load(folder).baseline) == 9


def test_a_broken_baseline_log_is_a_note(run_dir, tmp_path):
    folder, _ = run_dir
    broken = tmp_path / "broken.jsonl"
    broken.write_text("nonsense\n")
    analysis = engine.analyze(
        folder / "trace.sqlite", events=[folder / "events-1.jsonl"], baseline=[broken]
    )
    assert analysis.baseline.empty and len(analysis.measured) == 180
    assert any("cannot be compared" in note for note in analysis.notes)
