"""The recorded H200 workloads say in their names what is wrong with them: each gets the right top
finding, the good ones no warning.  Runs on the full recording where it is present, else on the demo
trace cut from it."""

from __future__ import annotations

import pytest

#: workload -> its finding and what that is worth: (rule, severity, verdict).
EXPECTED = {
    "h2d_t1": ("host-gap", "warning", "cpu_bound"), "h2d_t2": ("host-gap", "warning", "cpu_bound"),
    "h2d_t3": ("host-gap", "warning", "cpu_bound"), "dev_t1": ("gpu-bound", "info", "gpu_bound"),
    "dev_t2": ("gpu-bound", "info", "gpu_bound"), "dev_t3": ("gpu-bound", "info", "gpu_bound"),
    "flush_t1": ("cold-l2", "info", "mixed"), "flush_t2": ("cold-l2", "info", "mixed"),
    "flush_t3": ("cold-l2", "info", "mixed"), "empty": ("event-floor", "info", "floor"),
    "syncin": ("gpu-bound", "info", "gpu_bound"), "streamsync": ("gpu-bound", "info", "gpu_bound"),
    "item": ("gpu-bound", "info", "gpu_bound"), "pageable": ("copy-inside", "warning", "copy_bound"),
    "pinned": ("copy-inside", "warning", "copy_bound"), "d2h": ("copy-inside", "warning", "copy_bound"),
    "cpugap": ("host-gap", "warning", "cpu_bound"), "otherstream": ("gpu-bound", "info", "gpu_bound"),
    "wrongstream": ("wrong-stream", "error", "wrong"), "queued": ("gpu-bound", "info", "gpu_bound"),
    "crossstream": ("different-streams", "warning", "doubtful"),
    "small50": ("many-tiny-kernels", "warning", "launch_bound"), "graph": ("graph-opaque", "info", "mixed"),
    "sleepq": ("gpu-bound", "info", "gpu_bound"), "reuse": ("gpu-bound", "info", "gpu_bound"),
    "train": ("host-gap", "warning", "cpu_bound"), "effnet": ("many-tiny-kernels", "warning", "cpu_bound"),
    "effnet_h2d": ("many-tiny-kernels", "warning", "cpu_bound"), "host_both": ("host-gap", "warning", "cpu_bound"),
    "host_first": ("enqueue-only", "error", "wrong"), "host_second": ("host-gap", "warning", "cpu_bound"),
    "host_none": ("enqueue-only", "error", "wrong"),
}  # fmt: skip


@pytest.fixture(scope="module")
def analysis(recorded):
    return recorded("probe").analysis


@pytest.mark.parametrize("label", EXPECTED)
def test_workload(analysis, label):
    mine = analysis.findings[analysis.findings["label"] == label]
    (found,) = zip(mine["rule"], mine["severity"], mine["verdict"], strict=True)
    assert found == EXPECTED[label]


def test_nothing_else_is_called_wrong(analysis):
    wrong = analysis.findings[analysis.findings["verdict"] == "wrong"]
    assert set(wrong["label"]) == {"wrongstream", "host_first", "host_none"}


def test_the_first_linear_and_a_pageable_copy_read_as_the_budget_says(analysis):
    found = analysis.findings.set_index(["label", "rule"])
    linear, copy = found.loc[("h2d_t1", "host-gap")], found.loc[("pageable", "copy-inside")]
    assert linear["evidence"]["launched_after_ns"] == pytest.approx(153_000, rel=0.05)
    assert linear["loss_ns"] == pytest.approx(5 * 164_000, rel=0.1)  # its first interval is cold
    assert copy["evidence"]["achieved_GB_per_s"] == pytest.approx(18.66, rel=0.05)
