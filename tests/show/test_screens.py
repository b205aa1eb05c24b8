"""The terminal's answer to recordings, as reviewed text: one file of `screens` per recording.

    python tests/show/test_screens.py      writes them again; read the difference

What a screen must do at any width is checked on the same recordings.
"""

from __future__ import annotations

import io
import lzma
import re
import sys
import tarfile
import tempfile
from importlib.resources import files
from pathlib import Path

import pytest
from rich.console import Console

from nsysalign.answer import Answer, answer
from nsysalign.engine import analyze
from nsysalign.model import Analysis
from nsysalign.show import terminal
from nsysalign.show.label_table import layout

SCREENS, DATA = Path(__file__).parent / "screens", Path(__file__).resolve().parents[1] / "data"
SINGLE = ("probe", "threads_h200", "unprofiled_linears", "truth_oracle", "graph_loop_h100")
RECORDED = [*sorted(p.name.removesuffix(".tar.xz") for p in (DATA / "puzzles").glob("*.tar.xz"))]


def analysed(name: str, room: Path) -> Analysis:
    """The analysis of a puzzle, of a recording of tests/data, or of the demo."""
    if (DATA / "puzzles" / f"{name}.tar.xz").is_file():
        with tarfile.open(DATA / "puzzles" / f"{name}.tar.xz") as packed:
            packed.extractall(room, filter="data")
        (trace,) = room.rglob("trace.sqlite")
        return analyze(trace.parent)
    source = files("nsysalign.demo") if name == "demo" else DATA
    for kind in ("sqlite", "events.jsonl", "baseline.jsonl"):
        packed = source.joinpath(f"{name}.{kind}.xz")
        if packed.is_file():
            (room / kind).write_bytes(lzma.decompress(packed.read_bytes()))
    baseline = [room / "baseline.jsonl"] if (room / "baseline.jsonl").exists() else []
    return analyze(room / "sqlite", events=[room / "events.jsonl"], baseline=baseline)


def screen(analysis: Analysis, said: Answer, width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, legacy_windows=False)
    terminal.render(analysis, console, "report.html", said=said)
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().splitlines())


@pytest.mark.parametrize("name", ["demo", *SINGLE, *RECORDED])
def test_screen(name, tmp_path):
    analysis = analysed(name, tmp_path)
    said = answer(analysis)
    assert screen(analysis, said, 100) == (SCREENS / f"{name}.txt").read_text("utf-8")
    for width in (60, 80, 200):
        for line in screen(analysis, said, width).splitlines():
            # code and commands are copied whole
            assert len(line) <= width or line.startswith("      ")
        columns = [
            column
            for column in layout(said.rows or said.runs, width - 2)[0]
            if column.unit and column.head != "w/o nsys"
        ]
        for time, *parts in zip(*(column.cells for column in columns), strict=True):
            numbers = [re.sub(r".* |<=|\(.*|,", "", cell) for cell in parts]
            total = sum(float(number) for number in numbers if number not in ("", "."))
            places = len(time.partition(".")[2])
            assert total == pytest.approx(
                float(time.replace(",", "")), abs=len(parts) * 10**-places
            )


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    for recorded in sys.argv[1:] or ["demo", *SINGLE, *RECORDED]:
        with tempfile.TemporaryDirectory() as folder:
            shown = analysed(recorded, Path(folder))
            (SCREENS / f"{recorded}.txt").write_text(screen(shown, answer(shown), 100), "utf-8")
