"""What a run tells while it goes on: nsys's own percentages; and whose stdout is whose."""

from __future__ import annotations

import json

import pytest


@pytest.mark.nsys
def test_stdout_is_the_analysis_when_it_was_asked_for(real):
    text = "import sys; print('to out'); print('to err', file=sys.stderr)"
    process = real.run(text, "--no-clocks", "--json", "-", "-o", "out", begin="")
    out, err = process.communicate(timeout=120)
    assert out == "", "it measured nothing, so there is no analysis: not a word of its own either"
    assert "to out\n" in err and "to err\n" in err
    run_dir = real.folder / "out"
    assert json.loads((run_dir / "run.json").read_text())["profiled_s"] > 0
    assert "not sampled" not in err and not (run_dir / "clocks.jsonl").exists()
