"""From a trace and dumps to tables, page and findings; times and structure of simulated kernels are
known, and a run on an H100 (tests/marks/programs/example.py) says what its picture shows."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner

import nsysalign
from nsysalign import frames
from nsysalign.addons.marks import results
from nsysalign.addons.marks.tables import MARKS_SPECS
from nsysalign.cli import cli
from nsysalign.show import html
from nsysalign.show.payload import payload
from nsysalign.store import document
from tests.marks.export import export
from tests.marks.simulated import Gpu

DATA = Path(__file__).parents[1] / "data" / "marks"
LAUNCHES = ["even_kernel", "uneven_kernel"] * 6


def even(block, warp):
    return [("load", 2_000), ("mma", [("inner", 4_000), ("", 2_000)]), ("!done", 0)]


def uneven(block, warp):
    return [("load", 1_000), ("work", 30_000 if block == 7 else 3_000)]


def program(even=even, **options) -> Gpu:
    gpu = Gpu(sms=8, slots=1, **options)
    for i in range(6):
        gpu.launch(10 + 2 * i, 8, even, name="even_kernel")
        gpu.launch(11 + 2 * i, 8, uneven, name="uneven_kernel")
    return gpu


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return program()


@pytest.fixture(scope="module")
def analysis(gpu, tmp_path_factory):
    return analysed(gpu, tmp_path_factory.mktemp("analysis"))


def analysed(gpu: Gpu, folder: Path):
    dump = gpu.write(folder / "marks-77-0.nsam")
    return nsysalign.analyze(export(gpu, folder / "trace.sqlite"), marks=[dump])


def titles(analysis, rule: str) -> list[str]:
    return analysis.findings.loc[analysis.findings["rule"] == rule, "title"].tolist()


def test_marks_of_one_tick_stand_in_the_order_they_were_made(analysis):
    """A mark takes less than a tick of the timer: where one range ends and the next begins, the
    clock tells which came first."""
    a = analysis
    even = a.marked_kernels.query("name == 'even_kernel'")["kernel"]
    way = "enter,begin load,end load,begin mma,begin inner,end inner,end mma,mark done,exit"
    runs = a.marks[a.marks["kernel"].isin(even)].groupby(["kernel", "block_x", "warp"])
    assert len(runs) >= 16
    for _, marks in runs:
        assert ",".join((marks["kind"] + " " + marks["name"]).str.strip()) == way
    strips = [k["strip"] for k in payload(a)["inside"] if k["name"] == "even_kernel"]
    for strip in filter(None, strips):
        names = [strip["names"][ord(digit) - ord("A")] for digit in strip["p"][1:]]  # packed
        assert names == ["load", "", "mma", "inner", "mma", ""] * (len(names) // 6)
    assert any(strips)


def test_kernels_are_joined_opened_and_put_into_their_intervals(analysis):
    a = analysis
    kernels = a.marked_kernels
    assert kernels["name"].tolist() == LAUNCHES
    assert kernels["complete"].all() and (kernels["row"] > 0).all()
    assert set(a.kernel_phases["phase"]) == {"load", "mma", "inner", "work"}
    labels = a.intervals.set_index("interval")["label"]
    assert [labels[i] for i in kernels["interval"]] == [f"step {name}" for name in LAUNCHES]
    assert set(a.marks.loc[a.marks["name"] == "done", "kind"]) == {"mark"}
    for spec in MARKS_SPECS:
        frames.check(getattr(a, spec.name), spec)


def test_the_tail_and_the_last_sm_are_found_with_their_numbers(analysis):
    (tail,) = titles(analysis, "tail")
    assert tail.startswith("uneven_kernel: 7") and "after the SMs' last blocks" in tail
    assert "before the last, SM 7 with 1 block" in tail
    assert not titles(analysis, "mark-perturbed")
    assert any("what that changes is not known" in note for note in analysis.notes)


def test_marks_that_found_no_room_are_said_with_what_to_do(tmp_path):
    gpu = Gpu(sms=4, slots=1)
    gpu.launch(1, 4, even, name="k", room=3)
    a = analysed(gpu, tmp_path)
    assert f"{gpu.dropped} of {gpu.dropped + 24} marks found no room" in " ".join(a.notes)
    assert set(a.sm_time["part"]) <= {"phase", "unmarked", "unknown"}
    assert not a.marked_kernels["complete"].any() and a.kernel_phases["unclosed"].sum() > 0


def test_two_runs_say_what_the_marks_change(gpu, tmp_path):
    """The run without marks is the one that is shown; kernels of the other are in none of its
    intervals."""
    plain = program(even=lambda b, w: [("", 7_000)], seed=5)
    trace = export(plain, tmp_path / "trace.sqlite", registers=60)
    marked = export(gpu, tmp_path / "marked.sqlite", registers=70, local_bytes=16)
    a = nsysalign.analyze(trace, marks=[gpu.write(tmp_path / "m.nsam")], marked=marked)
    changes = a.mark_changes.set_index("name").loc["even_kernel"]
    assert changes["change"] == pytest.approx(1 / 8.2)  # 8.2 us without them, 9.2 with
    columns = ["plain_registers", "marked_registers", "plain_local_bytes", "marked_local_bytes"]
    assert changes[columns].tolist() == [60, 70, 0, 16]
    said = " ".join(titles(a, "mark-perturbed"))
    assert "60 -> 70 registers" in said and "0 -> 16 bytes of local memory" in said
    assert (a.marked_kernels["interval"] == -1).all()
    assert a.intervals["end_ns"].max() < 5_000_000_000 + plain.now  # times of the run without


def test_a_launch_with_too_many_marks_has_none_in_the_table(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "MOST_MARKS", 150)
    a = analysed(gpu, tmp_path)
    assert 0 < len(a.marks) <= 150 and any("are too many for the table" in n for n in a.notes)
    assert len(a.kernel_phases["kernel"].unique()) == 12


def test_an_analysis_without_marks_has_none_of_it(gpu, tmp_path):
    a = nsysalign.analyze(export(gpu, tmp_path / "trace.sqlite"))
    assert payload(a)["inside"] == []
    assert b'"sm_time"' not in b"".join(document.pieces(a))
    assert all(getattr(a, spec.name).empty for spec in MARKS_SPECS)


def test_the_page_holds_a_strip_and_hostile_names_stay_text(tmp_path):
    gpu = Gpu(sms=4, slots=2)
    evil = "</script><script>alert(1)</script>\x1b[2J"
    gpu.launch(1, 9, lambda b, w: [(evil, 900)], name=f"kernel<{evil}>")
    a = analysed(gpu, tmp_path)
    (kernel,) = payload(a)["inside"]
    assert len(kernel["strip"]["names"]) == 2 and "\x1b" not in kernel["strip"]["names"][1]
    assert sum(ns for _, _, ns in kernel["budget"]) == kernel["sms"] * kernel["duration"]
    html.write(a, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page and len(page) < 8 << 20 and 'id="insides"' in page


@pytest.mark.parametrize("given", [False, True])
def test_analyze_takes_dumps_and_a_run_directory_brings_its_own(gpu, tmp_path, given):
    trace = export(gpu, tmp_path / "trace.sqlite")
    dump = str(gpu.write(tmp_path / "marks-77-0.nsam"))
    what = [str(trace), "--marks", dump] if given else [str(tmp_path)]
    done = CliRunner().invoke(cli, ["analyze", *what, "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 0 and "uneven_kernel" in done.output
    assert len(json.loads((tmp_path / "out.json").read_text())["marked_kernels"]) == 12


def test_a_damaged_dump_costs_its_own_answers_only(gpu, tmp_path):
    """Also one with names that cannot be told apart."""
    (tmp_path / "bad.nsam").write_bytes(b"NSYSALIGN-MARKS\n garbage")
    files = [tmp_path / "bad.nsam", gpu.write(tmp_path / "ok.nsam")]
    files.append(gpu.write(tmp_path / "same.nsam", names=["p53601", "p223588"]))
    a = nsysalign.analyze(export(gpu, tmp_path / "trace.sqlite"), marks=files)
    assert len(a.marked_kernels) == 12 and any("bad.nsam" in n for n in a.notes)
    (note,) = (n for n in a.notes if "cannot be told apart" in n)
    assert "same.nsam: the marks 'p223588' and 'p53601'" in note


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    for name in ("plain.sqlite", "marked.sqlite", "nsam"):
        packed = (DATA / f"example_h100.{name}.xz").read_bytes()
        (folder / f"h100.{name}").write_bytes(lzma.decompress(packed))
    plain, marked = folder / "h100.plain.sqlite", folder / "h100.marked.sqlite"
    return nsysalign.analyze(plain, marks=[folder / "h100.nsam"], marked=marked)


def test_a_recording_says_what_its_picture_shows(recorded):
    a = recorded
    gemm = a.marked_kernels[a.marked_kernels["name"].str.startswith("gemm")].iloc[0]
    numbers = ["grid_id", "blocks", "marked_blocks", "warps", "sms", "complete"]
    assert gemm[numbers].tolist() == [48, 144, 144, 1152, 132, True]
    assert gemm["marks"] == 1152 * (24 * 4 + 2)  # 24 steps with two ranges each, and the store
    assert gemm["row"] > 0 and 100 < gemm["error_ns"] < 1_000
    of = {n: getattr(a, n).query(f"kernel == {gemm['kernel']}") for n in ("sm_time", "sm_spans")}
    time, whole = of["sm_time"], 132 * (gemm["end_ns"] - gemm["start_ns"])
    assert time["ns"].sum() == whole
    share = time.set_index(time["phase"].where(time["part"] == "phase", time["part"]))["ns"] / whole
    assert 0.30 < share["after"] < 0.45  # twelve SMs have a second block
    assert share["store"] > 0.15 and share["mma"] > 0.15 and share["load"] > 0.12
    assert sorted(of["sm_spans"]["blocks"].tolist()) == [1] * 120 + [2] * 12
    phases = a.kernel_phases.query(f"kernel == {gemm['kernel']}").set_index("phase")
    assert phases["count"].to_dict() == {"load": 1152 * 24, "mma": 1152 * 24, "store": 1152}
    assert not phases["unclosed"].any()
    row = a.mark_changes.set_index("name").filter(like="gemm", axis=0).iloc[0]
    assert (row["plain_registers"], row["marked_registers"]) == (128, 130)
    assert 0.4 < row["change"] < 0.45
    assert "128 -> 130 registers" in " ".join(titles(a, "mark-perturbed"))
    counts = a.path_counts.merge(a.marked_kernels[["kernel", "name"]], on="kernel")
    assert {n.split("(")[0] for n in counts["name"]} == {"short_first", "long_first"}
    assert counts.groupby("kernel")["lanes"].sum().nunique() == 1  # the same data, another order
