"""Children, tools and folders that are not what the probe was made for: losing records is fine,
failing is not."""

from __future__ import annotations

import json

import pytest

from nsysalign.record.convert import convert

from .test_transparent import interpreters

PAIR = "import torch\na, b = torch.cuda.Event(), torch.cuda.Event()\na.record(); b.record()\nprint(a.elapsed_time(b) > 0)\n"


@pytest.mark.torch
def test_the_trace_module_prints_no_line_of_ours(probed):
    run = probed(PAIR, options=("-m", "trace", "--trace"))
    assert run.status == 0 and "script.py(2)" in run.out
    printed = run.out.replace("__editable___nsysalign_", "")  # pip's finder, not a file of ours
    assert "nsysalign" not in printed and "modulename: wrap" not in printed
    assert "encoder" not in printed and "_parser" not in printed, "nor of what the probe calls"


def test_a_step_limit_by_sys_monitoring_reaches_the_program(probed):
    """Graders raise a builtin exception, in the middle of our code as anywhere."""
    python = interpreters().get("3.13") or interpreters().get("3.12")
    if python is None:
        pytest.skip("no Python with sys.monitoring here")
    run = probed(
        PAIR
        + """
import sys
monitoring = sys.monitoring
left = 0
def line(code, number):
    global left
    if not code.co_filename.startswith("<nsysalign/"):
        return monitoring.DISABLE
    left -= 1
    if left == 0:
        raise RuntimeError("step limit")
monitoring.use_tool_id(0, "limit")
monitoring.register_callback(0, monitoring.events.LINE, line)
arrived = 0
for n in range(1, 40):
    left = n
    monitoring.set_events(0, monitoring.events.LINE)
    try:
        a.record(); b.record(); a.elapsed_time(b)
    except RuntimeError as error:
        arrived += str(error) == "step limit"
    monitoring.set_events(0, 0)
print(arrived)
""",
        python=python,
    )
    assert (run.status, run.out, run.err, run.errors) == (0, "True\n39\n", "", "")


def test_links_among_the_raw_files_are_not_followed(tmp_path):
    raw, secret = tmp_path / "raw", tmp_path / "secret"
    raw.mkdir()
    secret.write_text(json.dumps({"note": {"text": "secret"}}) + "\n" + " " * 64)
    (raw / "7-0.rec").write_bytes(bytes(64))
    for name in ("7-0.txt", "7-0.clk", "8-0.rec"):
        (raw / name).symlink_to(secret)
    (log,) = convert(raw, tmp_path, tmp_path)
    assert log.name == "events-7.jsonl" and "secret" not in log.read_text()
