"""What `nsysalign check` finds in programs that cheat, and that it accuses no honest one."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from recordings import untar
from simulator import export, machine
from simulator.program import Elapsed
from simulator.style import Style
from verdicts import agrees
from verdicts import judged as beside

from nsysalign.addons.check.checks import FOUND, judge
from nsysalign.cli import cli
from nsysalign.engine import analyze_inputs
from nsysalign.rundir import Inputs

from .programs import ADD, ASIDE, CHEATS, GEMM, HONEST, again, program

DATA = Path(__file__).parents[1] / "data"


def judged(simulated, folder: Path, style: Style = export.PLAIN):
    trace, logs = export.write(machine.run(simulated), folder, style)
    return judge(Inputs(trace, tuple(logs)))


def labelled(threads, number: int) -> list:
    """The same instructions; labels begin with the program's number."""
    return [
        [replace(s, name=f"{number} {s.name}") if isinstance(s, Elapsed) else s for s in steps]
        for steps in threads
    ]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What is said of each program of CHEATS or HONEST: they are processes of one recording, each on a
    GPU of its own."""

    @cache
    def of(honest: bool) -> list:
        worlds, programs = [], [
            threads for check, by_name in (HONEST if honest else CHEATS).items()
            for threads in by_name.values() if check not in ALONE
        ]  # fmt: skip
        for n, threads in enumerate(programs):
            process = replace(program(*labelled(threads, n)), pid=500 + n, device=n)
            worlds.append(machine.run(process))
        style = Style(event_rows="timestamps" if honest else "none")
        trace, logs = export.write(worlds, tmp_path_factory.mktemp("together"), style)
        doubts = judge(Inputs(trace, tuple(logs))).doubts
        return [[d for d in doubts if d.label.startswith(f"{n} ")] for n in range(len(programs))]

    return of


#: Whether anything ever ran inside a program's other labels decides it.
ALONE = ("nothing-inside",)


def cases(by_check: dict, alone: bool) -> pytest.MarkDecorator:
    named = [(c, name) for c, of in by_check.items() for name in of if (c in ALONE) == alone]
    rows = named if alone else [(check, number) for number, (check, _) in enumerate(named)]
    return pytest.mark.parametrize(("check", "name"), rows, ids=[name for _, name in named])


@cases(CHEATS, alone=False)
def test_cheats_are_found(check, name, together):
    found = [doubt for doubt in together(False)[name] if doubt.level == FOUND]
    assert {(doubt.check, doubt.label) for doubt in found} == {(check, f"{name} work")}
    assert found[0].right_ns is None or found[0].right_ns > found[0].measured_ns


@cases(HONEST, alone=False)
def test_honest_programs_are_not_accused(check, name, together):
    said = together(True)[name]
    assert not any(doubt.level == FOUND for doubt in said)
    assert {doubt.check for doubt in said} == {check} - {""}


@cases(CHEATS, alone=True)
def test_a_cheat_that_its_other_labels_tell(check, name, tmp_path):
    found = judged(program(*CHEATS[check][name]), tmp_path, Style(event_rows="none")).found
    assert {(doubt.check, doubt.label) for doubt in found} == {(check, "work")}


@cases(HONEST, alone=True)
def test_an_honest_program_that_its_other_labels_tell(check, name, tmp_path):
    verdict = judged(program(*HONEST[check][name]), tmp_path, Style(event_rows="timestamps"))
    assert verdict.found == () and {doubt.check for doubt in verdict.doubts} == {check}


def test_the_right_number_is_the_true_one(tmp_path):
    """An interval that escapes is worth what lies between its end and the end of its last work."""
    world = machine.run(program(again(ADD, ASIDE)))
    trace, logs = export.write(world, tmp_path)
    (doubt,) = judge(Inputs(trace, tuple(logs))).found
    pair = next(p for p in world.pairs if p.name == doubt.quoted)
    last = max(op.end for op in world.ops if op.start < pair.end.t + 50_000)
    assert doubt.right_ns == pytest.approx(last - pair.start.t, abs=50)
    assert doubt.worth_ns == pytest.approx(last - pair.end.t, abs=50)


def test_the_demo_is_accused_of_nothing_else(recorded):
    _, trace, logs, analysis = recorded("demo")
    own = {("escaped-work", "wrongstream")}
    agrees(beside(Inputs(trace, tuple(logs)), analysis), analysis, own)


def test_ranks_are_accused_of_nothing(tmp_path):
    untar(DATA / "ddp_slow_rank.tar.xz", tmp_path)
    for trace in tmp_path.rglob("trace.sqlite"):
        inputs = Inputs(trace, tuple(sorted(trace.parent.glob("events-*.jsonl"))))
        analysis = analyze_inputs(inputs)
        agrees(beside(inputs, analysis), analysis, set())


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_rows_that_the_profiler_dropped_accuse_nobody(kept, tmp_path):
    trace, logs = export.write(machine.run(program(again(GEMM, times=8))), tmp_path)
    with sqlite3.connect(trace) as db:
        db.execute("delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid > ?", [kept])
    verdict = judge(Inputs(trace, tuple(logs)))
    assert verdict.doubts == () and f"the work of {8 - kept} intervals" in "".join(
        verdict.unchecked
    )


def test_a_replaced_timer_is_found(tmp_path):
    trace, (log,) = export.write(machine.run(program(again(ADD, times=3))), tmp_path)
    text = "the program replaced torch.cuda.Event.elapsed_time"
    log.write_text(log.read_text() + json.dumps({"type": "note", "text": text}) + "\n")
    (doubt,) = judge(Inputs(trace, (log,))).found
    assert doubt.check == "replaced-timer" and "Event.elapsed_time" in doubt.title


def checked(folder: Path, *options: str, simulated=None):
    world = machine.run(simulated or program(again(ASIDE)))
    trace, (log,) = export.write(world, folder)
    return CliRunner().invoke(cli, ["check", *options, "--events", str(log), str(trace)])


def test_the_command_prints_what_it_found_and_ends_with_one(tmp_path):
    result = checked(tmp_path / "cheat", "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 1 and max(map(len, result.output.splitlines())) <= 80
    assert "! work does not wait for all that it launches" in result.output
    document = json.loads((tmp_path / "out.json").read_text())
    (doubt,) = document["doubts"]
    assert (document["format"], document["found"]) == ("nsysalign-check", 1)
    assert doubt["worth_ns"] == doubt["right_ns"] - doubt["measured_ns"] > 0
    honest = checked(tmp_path / "honest", simulated=program(again(ADD, times=4)))
    assert honest.exit_code == 0 and honest.output.startswith("Nothing found in 4 timed intervals")


def test_a_run_is_named_by_its_analysis_as_well(tmp_path):
    untar(DATA / "ddp_slow_rank.tar.xz", tmp_path)
    folder = tmp_path / "ddp_slow_rank-001"
    by_folder = CliRunner().invoke(cli, ["check", str(folder)])
    (folder / "analysis.db").write_text("as analyze leaves it")
    by_analysis = CliRunner().invoke(cli, ["check", str(folder / "analysis.db")])
    assert by_analysis.exit_code == 0 and by_analysis.output == by_folder.output
