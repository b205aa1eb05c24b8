"""The terminal's answer to recordings, as reviewed text: one file of `screens` per recording.

    python tests/show/test_screens.py      writes them again; read the difference

What a screen must do at any width is checked on the same recordings, and the verdict of each label
of a puzzle is the one that docs/lab/verdicts.md gives it.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from nsysalign import brief
from nsysalign.answer import Answer, Fix, answer
from nsysalign.model import Analysis
from nsysalign.show import screen, waterfall

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # for who runs this file
from recordings import PUZZLES, Recorded, analysed  # noqa: E402

SCHEMA = json.loads((ROOT / "docs" / "answer.schema.json").read_text("utf-8"))
SCREENS, DATA = Path(__file__).parent / "screens", ROOT / "tests" / "data"
SINGLE = ("probe", "threads_h200", "unprofiled_linears", "truth_oracle", "graph_loop_h100")
#: Of these, what -v prints is kept as well.
WHOLE = ("demo", "probe", "unprofiled_linears", "host_timers", "captured")


def of(name: str, recorded: Callable[..., Recorded]) -> Analysis:
    """The analysis of a puzzle, of a recording of tests/data, or of the demo."""
    return recorded(name, baseline=name.startswith("unprofiled")).analysis


def _printed(draw, width: int) -> str:
    stream = io.StringIO()
    draw(Console(file=stream, width=width, color_system=None, legacy_windows=False))
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().splitlines())


def first_screen(analysis: Analysis, said: Answer, width: int) -> str:
    listed = () if said.labels else screen.kernel_lines(analysis, width, proof=said.proof)
    return _printed(lambda c: screen.render(said, c, "report.html", listed=listed), width)


def everything(analysis: Analysis, said: Answer, width: int) -> str:
    return _printed(lambda c: screen.everything(analysis, said, c, "report.html"), width)


def expected_verdicts() -> dict[tuple[str, str], str]:
    page = (ROOT / "docs" / "lab" / "verdicts.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| (.+?) \| (\w+) \| .+ \|$", page, re.M)
    return {(puzzle, label): word for puzzle, label, word in rows if puzzle != "puzzle"}


@pytest.mark.parametrize("name", ["demo", *SINGLE])
def test_screen(name, recorded, tmp_path):
    agrees(name, of(name, recorded), tmp_path)


@pytest.mark.parametrize("puzzle", PUZZLES, indirect=True)
def test_screen_of_a_puzzle(puzzle):
    name, folder, analysis = puzzle
    said = agrees(name, analysis, folder)
    verdicts = {label: word for (of, label), word in expected_verdicts().items() if of == name}
    assert {row.label: row.verdict for row in said.labels} == verdicts


def test_code_is_on_lines_of_its_own_at_any_width(recorded):
    """Code that is broken where the terminal ends cannot be pasted, nor two statements behind one comment."""
    said = answer(of("copy_pageable", recorded))
    long = "torch.cuda.synchronize(); t0 = time.perf_counter(); ...; torch.cuda.synchronize()"
    said = replace(said, fixes=(*said.fixes, Fix("measure it right", "Wait", long)))
    for width in (40, 60, 80):
        lines = first_screen(None, said, width).splitlines()
        for code in (
            "x = x.pin_memory()  # once",
            "x.cuda(non_blocking=True)  # in the loop",
            long,
        ):
            assert f"    {code}" in lines


@pytest.mark.parametrize(
    ("name", "width", "head"),
    [("outliers", 50, r"time +kernels$"), ("other_stream", 80, r"time = waiting \+ rest")],
)
def test_a_narrow_table_calls_no_largest_part_rest(name, width, head, recorded):
    """Where there is no room for the parts it has the kernels alone; a column that is empty takes none."""
    lines = first_screen(None, answer(of(name, recorded)), width).splitlines()
    (shown,) = (line for line in lines if line.startswith("label, ") or " time " in line)
    assert re.search(head, shown.partition("  parts,")[0].rstrip()), shown
    if name == "outliers":
        assert any(line.startswith("  ×4: slow ") for line in lines)
        assert any("80 timings " in line for line in lines), "its total is left out, not cut"


def test_commands_name_the_script_if_there_is_one(recorded):
    """The one that all call sites are in; of two files nobody knows which was run."""
    analysis = of("graph", recorded)
    assert answer(analysis).fixes[0].code.endswith("run --graph-trace node puzzles/graph.py")
    sites = analysis.intervals["site"].astype(str)
    sites = sites.where(analysis.intervals.index > 0, "other.py:3")
    mixed = replace(analysis, intervals=analysis.intervals.assign(site=sites))
    assert answer(mixed).fixes[0].code.endswith("run --graph-trace node SCRIPT.py")


def test_numbers_of_a_row_are_rounded_as_on_the_page():
    """To the nearest; what is over goes to the rest, unless that would be off by a step."""
    rounded = screen._rounded
    assert [*rounded(228, np.array([24_730, 31_130, 164_440, 7_410]), 1_000)] == [25, 31, 164, 8]
    assert [*rounded(3, np.array([1_400, 1_400, 0]), 1_000)] == [2, 1, 0]
    assert [*rounded(2, np.array([700, 800, 800]), 1_000)] in ([1, 1, 0], [1, 0, 1], [0, 1, 1])


def test_brief_has_the_sentence_and_the_fix_of_other_labels(recorded):
    said = answer(of("demo", recorded))
    short = json.loads(brief.of_answer(said, "demo", "run"))
    assert (
        short["wrong"][0]["label"] == "wrongstream" and "stream 23" in short["wrong"][0]["reason"]
    )
    assert short["fixes"][1]["code"].endswith("end.record()")
    first = short["findings"][0]
    assert first["label"] == "h2d_t2" and first["sentence"].startswith("h2d_t2 measured")
    assert first["code"].endswith("start.record()") and first["purpose"] == "measure the GPU only"
    told = {"h2d_t1", *(wrong["label"] for wrong in short["wrong"])}
    assert not told & {found["label"] for found in short["findings"]}
    assert len(short["findings"]) + short["omitted"]["findings"] == 2
    long = replace(said, sentence="x" * 399, labels=said.labels * 40)
    assert len(brief.of_answer(long, "demo", "r" * 900).encode()) <= 2_000


def agrees(name: str, analysis: Analysis, folder: Path) -> Answer:
    said = answer(analysis)
    assert first_screen(analysis, said, 80) == (SCREENS / f"{name}.txt").read_text("utf-8")
    if name in WHOLE:
        assert everything(analysis, said, 100) == (SCREENS / f"{name}-all.txt").read_text("utf-8")
    short = brief.of_answer(said, "analyze", str(folder))
    assert len(short.encode()) <= 2_000 and json.loads(short)["verdict"] == said.verdict
    valid(json.loads(short), SCHEMA["oneOf"][0])
    for width in (40, 60, 80, 140):
        lines = first_screen(analysis, said, width).splitlines()
        code = {f"    {line}" for fix in said.fixes for line in fix.code.splitlines()}
        assert len(lines) <= 24 and all(len(line) <= width or line in code for line in lines)
        whole = " ".join(" ".join(lines).split())  # sentences are wrapped, never cut
        assert " ".join(said.sentence.split()) in whole or width == 40
        rows_add_up(lines)
    assert sum(p.end_ns - p.start_ns for p in said.proof.pieces) == said.proof.elapsed_ns
    if said.proof.kind != "run":  # what `next` tells to type draws what the sentence is about
        assert waterfall.find(analysis, label=said.proof.label) == said.proof.interval
    for width in (60, 140):
        rows_add_up(everything(analysis, said, width).splitlines())
    return said


def valid(value, kind: dict) -> None:
    """Against what a schema here can say."""
    if "const" in kind or "enum" in kind:
        assert value in kind.get("enum", [kind.get("const")])
    elif kind["type"] == "object":
        assert set(value) == set(kind["required"])
        for name, inner in value.items():
            valid(inner, kind["properties"][name])
    elif kind["type"] == "array":
        for item in value:
            valid(item, kind["items"])
    else:
        names = {str: "string", int: "integer", type(None): "null"}
        assert names[type(value)] in kind["type"]


def rows_add_up(lines: list[str]) -> None:
    """What is printed behind `=` adds up to what stands before it, to the last digit."""
    head = next((n for n, line in enumerate(lines) if line.startswith("label, ")), None)
    if head is None or "=" not in lines[head]:
        return
    count = lines[head].count("+") + 2
    for line in lines[head + 1 :]:
        line = re.sub(r"\([\d,.]+\)", "", line)  # beside the sum
        cells = re.search(rf"((?: +(?:[\d,.]+|·)){{{count}}})  [✖!·✓?] ", line)
        if cells is None:
            continue
        whole, *parts = (
            0.0 if cell == "·" else float(cell.replace(",", "")) for cell in cells[1].split()
        )
        assert sum(parts) == pytest.approx(whole, abs=1e-6), line


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ["demo", *SINGLE, *PUZZLES]:
        with tempfile.TemporaryDirectory() as folder:
            shown = of(name, partial(analysed, room=Path(folder)))
            told = answer(shown)
            (SCREENS / f"{name}.txt").write_text(first_screen(shown, told, 80), "utf-8")
            if name in WHOLE:
                whole = everything(shown, told, 100)
                (SCREENS / f"{name}-all.txt").write_text(whole, "utf-8")
