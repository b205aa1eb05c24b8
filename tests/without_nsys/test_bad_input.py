"""Logs that prove little, or nothing: what is said of them, and that no bound breaks."""

from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from nsysalign.show.unprofiled_run import render
from nsysalign.unprofiled_run import CANNOT_TELL, CPU_BOUND, GPU_BOUND, analyze_logs

from .modelled import log_of

WORK_NS, GAP_NS = 100_000, 50_000


@pytest.mark.parametrize("drift", [-50e-6, 50e-6])
@pytest.mark.parametrize(
    ("gap_ns", "queued_ns", "verdict"),
    [(GAP_NS, 300_000, GPU_BOUND), (GAP_NS, 0, CANNOT_TELL), (400_000, 30_000, CANNOT_TELL)],
)
def test_a_clock_that_drifts_either_way_breaks_no_bound(
    tmp_path, drift, gap_ns, queued_ns, verdict
):
    work = {"work_ns": WORK_NS, "gap_ns": gap_ns, "queued_ns": queued_ns}
    run = analyze_logs([log_of(tmp_path / "log.jsonl", drift=drift, pairs=300, **work)])
    assert run.labels["verdict"].tolist() == [verdict]
    idle_ns = max(4_000 + gap_ns - queued_ns, 0)  # from the start's execution to the work's
    assert (run.intervals["idle_at_most_ns"] >= idle_ns).all()


def test_two_devices_have_a_clock_each(tmp_path):
    log = log_of(tmp_path / "log.jsonl", work_ns=0, gap_ns=150_000, queued_ns=300_000, devices=2)
    by_device = analyze_logs([log]).intervals.groupby("device")["verdict"].unique()
    assert by_device.map(list).to_dict() == {0: [GPU_BOUND], 1: [CPU_BOUND]}


@pytest.mark.parametrize(
    ("log", "pairs", "note"),
    [
        ({"references": False}, 8, "no reference event reaches 8 of 8 intervals"),
        ({"complete": 3}, 3, None),
        ({"complete": 0}, 0, None),
    ],
    ids=["no references", "ended after three pairs", "ended before a comparison"],
)
def test_what_a_log_lacks_is_not_proven(tmp_path, log, pairs, note):
    path = log_of(tmp_path / "log.jsonl", work_ns=WORK_NS, gap_ns=0, queued_ns=300_000, **log)
    cut = path.read_text()[:-25] if pairs == 3 else path.read_text()  # killed within a line
    path.write_text(cut)
    run = analyze_logs([path])
    assert len(run.intervals) == pairs
    proven = run.intervals["verdict"] == GPU_BOUND
    assert proven.all() if note is None else not proven.any()
    said = [text for text in run.notes if "reference" in text]
    assert len(said) == (note is not None) and all(text.startswith(note) for text in said)


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_a_verdict_is_never_cut_and_labels_of_one_site_stay_apart(tmp_path, width):
    run = analyze_logs([log_of(tmp_path / "a.jsonl", work_ns=200_000, gap_ns=0)])
    row = run.labels.iloc[[0]]
    names = [f"kernelbench.py:{n} (kernelbench.py:8)" for n in (11, 12, 13)]
    labels = pd.concat([row] * 3, ignore_index=True).assign(
        label=names, verdict=["gpu_bound", "cpu_bound", "cannot_tell"]
    )
    paces = tuple(replace(run.paces[0], label=name) for name in names)
    console = Console(width=width)
    with console.capture() as capture:
        render(replace(run, labels=labels, paces=paces), console, "nsysalign doctor")
    lines = capture.get().splitlines()
    for n, words in ((11, "GPU-bound"), (12, "GPU had drained"), (13, "cannot tell")):
        (line,) = [line for line in lines if f":{n}" in line and line[:1] in "✓!?"]
        assert line.endswith(words), line
