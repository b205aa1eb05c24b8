"""What a run tells while it goes on: nsys's own percentages; and whose stdout is whose."""

from __future__ import annotations

import json

import pytest

from nsysalign.record.profiler import said_percent

GENERATING = b"Generating '/x/nsys-report-cf1b.qdstrm'\n"
STEPS = b"\r[1/1] [0%                          ] trace.nsys-rep\r[1/1] [=====30%                    ] trace.nsys-rep"


def test_nsys_says_how_far_its_report_is(tmp_path):
    log = tmp_path / "nsys.log"
    log.write_bytes(b"WARNING: 50% of something\n")
    assert said_percent(log) is None
    log.write_bytes(GENERATING)
    assert said_percent(log) == 0
    log.write_bytes(GENERATING + STEPS)
    assert said_percent(log) == 30
    log.write_bytes(
        GENERATING + STEPS * 100 + b"\r[1/1] [========================100%] trace.nsys-rep"
    )
    assert said_percent(log) == 100


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
