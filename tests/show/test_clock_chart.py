"""The GPU's clock in the page, in the stored forms, and where there is none."""

import json as stdlib_json
from dataclasses import replace

import numpy as np
import pandas as pd
from recordings import unpack

from nsysalign import frames
from nsysalign.commandline.present import present
from nsysalign.explain.clocks import interval_clocks
from nsysalign.explain.facts import Facts
from nsysalign.show.payload import MOST_DRAWN, page_clocks

MS = 1_000_000


def clocks(*stretches, device=0):
    """(from ms, to ms, MHz, reasons)"""
    rows = [
        (device, a * MS, b * MS, 1 + (b - a) // 25, mhz, mhz, 3201, why)
        for a, b, mhz, why in stretches
    ]
    return frames.check(pd.DataFrame(rows, columns=frames.GPU_CLOCKS.names), frames.GPU_CLOCKS)


def test_the_page_holds_a_bounded_number_of_stretches(analysis):
    stretches = [(k, k, 1980 - 15 * (k % 2), 4 * (k == 777)) for k in range(3 * MOST_DRAWN)]
    gpu = page_clocks(replace(analysis, gpu_clocks=clocks(*stretches)))["devices"][0]
    assert len(gpu["x"]) <= MOST_DRAWN and gpu["joined"] == 3 and gpu["samples"] == 3 * MOST_DRAWN
    assert set(gpu["low"]) == {1965} and sum(gpu["why"]) == 4


def test_what_held_a_clock_down_is_said_in_words(analysis):
    shown = page_clocks(
        replace(analysis, gpu_clocks=clocks((0, 9, 1500, 0x1024), (9, 10, 1500, -1)))
    )
    words = ["software power cap", "software thermal slowdown", "reason 0x1000"]
    assert list(shown["why"].values()) == words


def test_samples_of_a_real_run_meet_its_intervals(tmp_path):
    """The demo's recording with samples made up in its CLOCK_MONOTONIC: those of the middle third
    say 1500 MHz."""
    unpack("demo", tmp_path)
    log = [
        stdlib_json.loads(line) for line in (tmp_path / "events-1.jsonl").read_text().splitlines()
    ]
    began = {line["seq"]: line["t0_ns"] for line in log if line["type"] == "record"}
    first, last = min(began.values()), max(began.values())
    low, high = first + (last - first) // 3, first + 2 * (last - first) // 3
    columns = ["monotonic_ns", "device", "sm_mhz", "reasons"]
    lines = [{"format": "nsysalign-clocks", "columns": columns}]
    for t in range(first - 10 * MS, last + 10 * MS, MS):
        lines.append([t, 0, 1500 if low <= t < high else 1980, 0])
    (tmp_path / "clocks.jsonl").write_text("\n".join(map(stdlib_json.dumps, lines)))
    analysis = present(tmp_path, quiet=True)
    clocks = interval_clocks(Facts(analysis, lambda numbers: None))
    measured = analysis.measured
    event = (measured["kind"] == "event").to_numpy()
    assert clocks.known[event].all()
    start = np.array([began.get(seq, low) for seq in measured["start_record"]])
    sure = (abs(start - low) > 2 * MS) & (abs(start - high) > 2 * MS)
    expected = np.where((start >= low) & (start < high), 1500, 1980)
    assert sure.sum() > 20 and len(set(expected[sure])) == 2
    assert (clocks.sm_mhz[sure] == expected[sure]).all()
    assert "1500 to 1980 MHz" in (tmp_path / "report.html").read_text()
