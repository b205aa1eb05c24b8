"""Workloads whose budget is known by construction, through the whole `nsysalign run`, on a real GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKLOADS = Path(__file__).with_name("workloads.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("oracle") / "run"
    done = subprocess.run(
        [sys.executable, "-m", "nsysalign", "run", "-o", str(run_dir), "--", str(WORKLOADS)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    known = [
        json.loads(line.split("KNOWN ", 1)[1])
        for line in done.stdout.splitlines()
        if line.startswith("KNOWN ")
    ]
    return {k["case"]: k for k in known}, json.loads((run_dir / "analysis.json").read_text())


CASES = [
    "spin",
    "host_busy",
    "sync_inside",
    "allocation",
    "pinned",
    "pageable",
    "pinned_to_host",
    "dependency",
    "contention",
    "two_streams",
    "graph",
    "item",
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_the_dominant_cause_has_its_known_size(outcome, case):
    known, analysis = outcome
    row = next(x["row"] for x in analysis["labels"] if x["label"] == case)
    interval = next(i for i in analysis["intervals"] if i["name"] == row)
    want = known[case]["us"]
    if isinstance(want, list):  # timed anew in every repetition
        want = want[int(row.rpartition("#")[2])]
    got = interval["parts_ns"].get(known[case]["cause"], 0) / 1e3
    assert abs(got - want) <= max(0.02 * want, 5.0), (got, want, interval["parts_ns"])


@pytest.mark.gpu
def test_every_pair_is_placed_and_adds_up(outcome):
    _, analysis = outcome
    assert not [u for u in analysis["unaligned"]]
    for interval in analysis["intervals"]:
        assert (
            sum(interval["parts_ns"].values())
            == interval["elapsed_ns"]
            == interval["end_ns"] - interval["start_ns"]
        )
    assert sum(i["parts_ns"].get("unknown", 0) for i in analysis["intervals"]) == 0
