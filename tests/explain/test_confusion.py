"""The recorded H200 workloads say in their names what is wrong with them: each gets the right top
finding, the good ones no warning.  Runs on the full recording where it is present, else on the demo
trace cut from it."""

from __future__ import annotations

import lzma
import re
import shutil
from pathlib import Path

import pytest

from nsysalign.engine import analyze

RECORDING = Path(__file__).resolve().parents[1] / "data"

#: workload -> (top finding, its severity); None: whatever comes first is no more than an info.
EXPECTED = {
    "h2d_t1": ("host-gap", "warning"), "h2d_t2": ("host-gap", "warning"), "h2d_t3": ("host-gap", "warning"),
    "dev_t1": None, "dev_t2": None, "dev_t3": None, "flush_t1": None, "flush_t2": None, "flush_t3": None,
    "empty": ("event-floor", "info"), "syncin": ("sync-inside", "info"), "streamsync": ("sync-inside", "info"),
    "item": ("sync-inside", "info"), "pageable": ("copy-inside", "info"), "pinned": ("copy-inside", "info"),
    "d2h": ("copy-inside", "info"), "memset": None, "cpugap": ("host-gap", "warning"),
    "otherstream": ("queued", "warning"), "contended": ("queued", "warning"),
    "wrongstream": ("wrong-stream", "error"), "queued": None, "crossstream": ("different-streams", "warning"),
    "small50": ("many-tiny-kernels", "warning"), "graph": ("graph-opaque", "info"), "sleepq": None, "reuse": None,
    "chain": ("mixed-work", "info"), "threads_0": ("queued", "warning"),
    "threads_1": ("queued", "warning"), "threads_2": ("queued", "warning"), "dobench": None,
    "train": ("host-gap", "warning"), "effnet": ("host-gap", "warning"), "effnet_h2d": ("host-gap", "warning"),
    "host_both": ("host-timer", "warning"), "host_first": ("enqueue-only", "error"),
    "host_second": ("host-timer", "warning"), "host_none": ("enqueue-only", "error"),
}  # fmt: skip

#: Errors and warnings that are right beside the top one.
BESIDE = {
    "crossstream": {"queued"},
    "effnet": {"many-tiny-kernels"},
    "effnet_h2d": {"many-tiny-kernels"},
}
#: Findings that must be there, wherever they stand.
ALSO = {
    "effnet_h2d": {"copy-inside"}, "train": {"copy-inside"}, "effnet": {"module-load"}, "h2d_t1": {"module-load"},
    "flush_t1": {"cold-l2"},
}  # fmt: skip


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    for kind in ("sqlite", "events.jsonl"):
        source = RECORDING / f"probe.{kind}.xz"
        with lzma.open(source) as packed, (folder / f"trace.{kind}").open("wb") as out:
            shutil.copyfileobj(packed, out)
    return analyze(folder / "trace.sqlite", events=[folder / "trace.events.jsonl"])


@pytest.mark.parametrize("label", EXPECTED)
def test_workload(analysis, label):
    mine = analysis.findings[analysis.findings["label"] == label]
    found = list(zip(mine["rule"], mine["severity"], strict=True))
    if EXPECTED[label]:
        assert found and found[0] == EXPECTED[label], found
    alarms = {rule for rule, severity in found if severity != "info"} - BESIDE.get(label, set())
    top = EXPECTED[label]
    assert alarms == ({top[0]} if top and top[1] != "info" else set())
    assert ALSO.get(label, set()) <= set(mine["rule"])


def test_the_first_linear_and_a_pageable_copy_read_as_the_budget_says(analysis):
    found = analysis.findings.set_index(["label", "rule"])
    linear, copy = found.loc[("h2d_t1", "host-gap")], found.loc[("pageable", "copy-inside")]
    assert re.search(r"for 16[45] of 228 us the GPU waited, idle, for the CPU", linear["title"])
    assert linear["loss_ns"] == pytest.approx(5 * 200_000, rel=0.1)  # its first interval is cold
    rates = (copy["evidence"][f"{what}_GB_per_s"] for what in ("achieved", "pinned_in_this_trace"))
    assert tuple(rates) == pytest.approx((18.3, 54), rel=0.05)
