"""The shape of the house: what is too long today is listed here, and the list only gets shorter."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import nsysalign

PACKAGE = Path(nsysalign.__file__).parent
#: A function fits a screen.
MOST_LINES = 60
TOO_LONG = {
    "collect/convert.py _slot_lines",
    "collect/probe/timers.py _clock",  # wrappers are closures over machine code that is made once
    "collect/probe/wrap.py _record",
    "collect/probe/wrap.py record",  # one call per record: what is not inlined costs the program
    "collect/session.py collect",
    "commands/analyze.py analyze",  # click's options are its arguments
    "commands/confirm.py confirm",
    "commands/run.py run",
}


def long_functions() -> set[str]:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > MOST_LINES:
                    found.add(f"{path.relative_to(PACKAGE).as_posix()} {node.name}")
    return found


def test_no_function_becomes_longer_than_a_screen():
    found = long_functions()
    assert not found - TOO_LONG, "split them"
    assert not TOO_LONG - found, "they are short now: take them off the list"


@pytest.mark.parametrize("what", ["py.typed", "report/templates/page.html"])
def test_what_is_no_code_is_part_of_the_package(what):
    assert (PACKAGE / what).is_file()


def test_the_version_is_in_one_place():
    text = (PACKAGE.parent / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in text and nsysalign.__version__.count(".") == 2
