"""From a trace and dumps to tables, page, Perfetto and findings; times and structure of simulated
kernels are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import nsysalign
from nsysalign import frames
from nsysalign.addons.marks.inside import warps_per_sm
from nsysalign.addons.marks.page import inside
from nsysalign.addons.marks.tables import MARKS_SPECS
from nsysalign.cli import cli
from nsysalign.show import html
from nsysalign.show.payload import payload
from nsysalign.store import database, document
from tests.marks.export import export
from tests.marks.simulated import Gpu


def even(block, warp):
    return [("load", 2_000), ("mma", [("inner", 4_000), ("", 2_000)]), ("!done", 0)]


def uneven(block, warp):
    return [("load", 1_000), ("work", 30_000 if block == 7 else 3_000)]


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    gpu = Gpu(sms=8, slots=1)
    for i in range(6):
        gpu.launch(10 + i, 8, even, name="even_kernel")
        gpu.launch(50 + i, 8, uneven, name="uneven_kernel")
    return gpu


@pytest.fixture(scope="module")
def analysis(gpu, tmp_path_factory):
    return analysed(gpu, tmp_path_factory.mktemp("analysis"))


def analysed(gpu: Gpu, folder: Path, **options):
    return nsysalign.analyze(
        export(gpu, folder / "trace.sqlite"),
        marks=[gpu.write(folder / "marks-77-0.nsam")],
        **options,
    )


def rules(analysis) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for f in analysis.findings.itertuples():
        found.setdefault(f.rule, []).append(f.title)
    return found


def test_marks_of_one_tick_stand_in_the_order_they_were_made(analysis):
    """A mark takes less than a tick of the timer: where one range ends and the next begins, the
    clock tells which came first."""
    a = analysis
    mine = a.marks[
        a.marks["kernel"].isin(a.marked_kernels.query("name == 'even_kernel'")["kernel"])
    ]
    way = [
        "enter",
        "begin load",
        "end load",
        "begin mma",
        "begin inner",
        "end inner",
        "end mma",
        "mark done",
        "exit",
    ]
    runs = 0
    for _, marks in mine.groupby(["kernel", "block_x", "warp"]):
        assert (marks["kind"] + " " + marks["name"]).str.strip().tolist() == way
        runs += 1
    assert runs >= 16
    strips = [
        kernel["strip"]
        for kernel in inside(a)
        if kernel["name"] == "even_kernel" and kernel["strip"]
    ]
    for strip in strips:
        names = [
            strip["names"][ord(digit) - ord("A")] for digit in strip["p"][1:]
        ]  # packed, one digit each
        assert names == ["load", "", "mma", "inner", "mma", ""] * (len(names) // 6)
    assert strips


def test_kernels_are_joined_opened_and_put_into_their_intervals(analysis):
    a = analysis
    kernels = a.marked_kernels
    assert kernels["name"].tolist() == ["even_kernel", "uneven_kernel"] * 6
    assert kernels["complete"].all() and (kernels["row"] > 0).all()
    whole = kernels.set_index("kernel").eval("sms * (end_ns - start_ns)")
    assert (a.sm_time.groupby("kernel")["ns"].sum() == whole).all()
    assert set(a.kernel_phases["phase"]) == {"load", "mma", "inner", "work"}
    labels = a.intervals.set_index("interval")["label"]
    assert [labels[i] for i in kernels["interval"]] == [
        "step even_kernel",
        "step uneven_kernel",
    ] * 6
    marks = a.marks[a.marks["name"] == "done"]
    assert set(marks["kind"]) == {"mark"}
    for spec in MARKS_SPECS:
        frames.check(getattr(a, spec.name), spec)


def test_the_tail_and_the_busy_sm_are_found_with_their_numbers(analysis):
    a = analysis
    found = rules(a)
    (tail,) = found["tail"]
    assert tail.startswith("uneven_kernel: 7") and "after the SMs' last blocks" in tail
    (busy,) = found["sm-imbalance"]
    assert busy.startswith("uneven_kernel: SM 7 is busy for 31.")
    assert "no more than others" in busy
    assert not any(
        "even_kernel:" in t and "uneven" not in t for titles in found.values() for t in titles
    )
    evidence = next(f.evidence for f in a.findings.itertuples() if f.rule == "tail")
    assert evidence["last_sm"] == 7
    assert "mark-perturbed" not in found and "marks-dropped" not in found
    assert any("what that changes is not known" in note for note in a.notes)


def test_dropped_marks_are_a_finding_with_what_to_do(tmp_path):
    gpu = Gpu(sms=4, slots=1)
    gpu.launch(1, 4, even, name="k", room=3)
    a = analysed(gpu, tmp_path)
    (title,) = rules(a)["marks-dropped"]
    assert f"{gpu.dropped:,} of {gpu.dropped + 24:,} marks found no room" in title
    assert "unknown" in set(a.sm_time["part"])


def test_two_runs_say_what_the_marks_change(gpu, tmp_path):
    """The run without marks is the one that is shown; kernels of the other stand for those of the
    same name and turn."""
    plain = Gpu(sms=8, slots=1, seed=5)
    for i in range(6):
        plain.launch(10 + i, 8, lambda b, w: [("", 7_000)], name="even_kernel")
        plain.launch(50 + i, 8, uneven, name="uneven_kernel")
    trace = export(plain, tmp_path / "trace.sqlite", registers=60)
    marked = export(gpu, tmp_path / "marked.sqlite", registers=70, local_bytes=16)
    dump = gpu.write(tmp_path / "m.nsam")
    a = nsysalign.analyze(trace, marks=[dump], marked=marked)
    changes = a.mark_changes.set_index("name").loc["even_kernel"]
    assert changes["change"] == pytest.approx(8_100 / 8_100 - 1, abs=0.2)
    assert (
        changes["plain_registers"],
        changes["marked_registers"],
        changes["marked_local_bytes"],
    ) == (60, 70, 16)
    said = rules(a)["mark-perturbed"]
    assert any("60 -> 70 registers" in t and "0 -> 16 bytes of local memory" in t for t in said)
    names = a.intervals.set_index("interval")["name"]
    assert [names[i] for i in a.marked_kernels["interval"]] == [
        f"step {k}#{i}" for i in range(6) for k in ("even_kernel", "uneven_kernel")
    ]
    assert a.intervals["end_ns"].max() < 5_000_000_000 + plain.now  # times of the run without


def test_stored_and_loaded_it_is_the_same(analysis, tmp_path):
    a = analysis
    database.write(a, tmp_path / "a.db")
    loaded = database.load(tmp_path / "a.db")
    for spec in MARKS_SPECS:
        assert getattr(loaded, spec.name).equals(getattr(a, spec.name)), spec.name


def test_an_analysis_without_marks_has_none_of_it(gpu, tmp_path):
    a = nsysalign.analyze(export(gpu, tmp_path / "trace.sqlite"))
    assert payload(a)["inside"] == []
    assert '"sm_time"' not in document.dumps(a)
    assert all(getattr(a, spec.name).empty for spec in MARKS_SPECS)


def test_the_page_holds_a_strip_and_hostile_names_stay_text(tmp_path):
    gpu = Gpu(sms=4, slots=2)
    evil = "</script><script>alert(1)</script>\x1b[2J"
    gpu.launch(1, 9, lambda b, w: [(evil, 900)], name=f"kernel<{evil}>")
    a = analysed(gpu, tmp_path)
    (kernel,) = payload(a)["inside"]
    strip = kernel["strip"]
    assert len(strip["names"]) == 2 and "\x1b" not in strip["names"][1]
    assert sum(ns for _, _, ns in kernel["budget"]) == kernel["sms"] * kernel["duration"]
    html.write(a, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page and len(page) < 8 << 20
    assert 'id="insides"' in page


def test_analyze_takes_dumps_and_a_run_directory_brings_its_own(gpu, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    export(gpu, run / "trace.sqlite")
    gpu.write(run / "marks-77-0.nsam")
    done = CliRunner().invoke(cli, ["analyze", str(run), "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    assert "uneven_kernel" in done.output
    assert len(json.loads((tmp_path / "out.json").read_text())["marked_kernels"]) == 12
    alone = tmp_path / "alone.sqlite"
    export(gpu, alone)
    given = [
        "analyze",
        str(alone),
        "--marks",
        str(run / "marks-77-0.nsam"),
        "--json",
        str(tmp_path / "two.json"),
        "-q",
    ]
    assert CliRunner().invoke(cli, given).exit_code == 0
    assert len(json.loads((tmp_path / "two.json").read_text())["marked_kernels"]) == 12


def test_a_damaged_dump_costs_its_own_answers_only(gpu, tmp_path):
    (tmp_path / "bad.nsam").write_bytes(b"NSYSALIGN-MARKS\n garbage")
    a = nsysalign.analyze(
        export(gpu, tmp_path / "trace.sqlite"),
        marks=[tmp_path / "bad.nsam", gpu.write(tmp_path / "ok.nsam")],
    )
    assert len(a.marked_kernels) == 12
    assert any("bad.nsam" in n for n in a.notes)


def test_names_that_cannot_be_told_apart_cost_the_marks_and_nothing_else(tmp_path):
    gpu = Gpu(sms=8, slots=1)
    gpu.launch(1, 8, even, name="even_kernel")
    gpu.names |= {"p53601", "p223588"}  # of one hash
    a = analysed(gpu, tmp_path)
    assert a.marked_kernels.empty and len(a.intervals)
    (note,) = (n for n in a.notes if "cannot be told apart" in n)
    assert "marks-77-0.nsam: the marks 'p223588' and 'p53601'" in note


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "warps"),
    [
        (32, 128, 0, 64),
        (128, 256, 8_192, 16),
        (130, 256, 8_192, 8),
        (255, 256, 0, 8),
        (32, 1_024, 0, 64),
        (16, 128, 100_000, 8),
        (-1, 128, 0, -1),
    ],
)
def test_warps_that_fit_on_an_sm(registers, threads, shared, warps):
    assert warps_per_sm(registers, threads, shared) == warps
