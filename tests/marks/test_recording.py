"""A run on an H100 (tests/marks/programs/example.py): what its trace and its marks say together."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

import nsysalign

DATA = Path(__file__).parents[1] / "data" / "marks"


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    files = {}
    for name in ("plain.sqlite", "marked.sqlite", "nsam"):
        files[name] = folder / f"example_h100.{name}"
        files[name].write_bytes(lzma.decompress((DATA / f"example_h100.{name}.xz").read_bytes()))
    return nsysalign.analyze(
        files["plain.sqlite"], marks=[files["nsam"]], marked=files["marked.sqlite"]
    )


def test_the_marks_are_those_of_the_kernel_row_with_their_grid_id(analysis):
    gemm = analysis.marked_kernels[analysis.marked_kernels["name"].str.startswith("gemm")].iloc[0]
    assert gemm["grid_id"] == 48 and gemm["row"] > 0 and gemm["complete"]
    assert (gemm["blocks"], gemm["marked_blocks"], gemm["warps"], gemm["sms"]) == (
        144,
        144,
        1152,
        132,
    )
    assert gemm["marks"] == 1152 * (24 * 4 + 2)  # 24 steps with two ranges each, and the store
    assert gemm["outside"] == 0 and 100 < gemm["error_ns"] < 1_000


def test_sm_time_adds_up_and_says_what_the_picture_shows(analysis):
    gemm = analysis.marked_kernels[analysis.marked_kernels["name"].str.startswith("gemm")].iloc[0]
    time = analysis.sm_time[analysis.sm_time["kernel"] == gemm["kernel"]]
    assert time["ns"].sum() == 132 * (gemm["end_ns"] - gemm["start_ns"])
    share = (
        time.set_index(time["phase"].where(time["part"] == "phase", time["part"]))["ns"]
        / time["ns"].sum()
    )
    assert 0.30 < share["after"] < 0.45  # twelve SMs have a second block
    assert share["store"] > 0.15 and share["mma"] > 0.15 and share["load"] > 0.12
    spans = analysis.sm_spans[analysis.sm_spans["kernel"] == gemm["kernel"]]
    assert sorted(spans["blocks"].tolist()) == [1] * 120 + [2] * 12
    phases = analysis.kernel_phases[analysis.kernel_phases["kernel"] == gemm["kernel"]].set_index(
        "phase"
    )
    assert phases["count"].to_dict() == {"load": 1152 * 24, "mma": 1152 * 24, "store": 1152}
    assert not phases["unclosed"].any()


def test_the_change_by_the_marks_is_stated(analysis):
    row = analysis.mark_changes.set_index("name")
    gemm = row.loc[next(n for n in row.index if n.startswith("gemm"))]
    assert (gemm["plain_registers"], gemm["marked_registers"]) == (128, 130)
    assert (gemm["plain_warps_per_sm"], gemm["marked_warps_per_sm"]) == (16, 8)
    assert 0.4 < gemm["change"] < 0.45
    found = analysis.findings
    assert "16 -> 8 warps fit on an SM" in " ".join(
        found.loc[found["rule"] == "mark-perturbed", "title"]
    )


def test_counters_are_of_their_launches(analysis):
    counts = analysis.path_counts.merge(analysis.marked_kernels[["kernel", "name"]], on="kernel")
    assert set(counts["counter"]) == {"large"}
    assert {n.split("(")[0] for n in counts["name"]} == {"short_first", "long_first"}
    lanes = counts.groupby("kernel")["lanes"].sum()
    assert lanes.nunique() == 1  # the same data, in another order
