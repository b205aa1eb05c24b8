"""The shape of the house: how long functions and files may be, and that nothing in it is unused."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import nsysalign

PACKAGE = Path(nsysalign.__file__).parent
#: A function fits a screen, a file a few; so many files there are.  Numbers that only get smaller: what needs a file of its own
#: takes the place of one that does not.
MOST_LINES, MOST_LINES_OF_A_FILE, MOST_FILES = 60, 500, 249
NAMED_TWICE = {"host.py", "names.py", "ranges.py", "redaction.py", "windows.py"}

#: click's and importlib's interfaces; modes of `measure` are looked up by their names.
CALLED_BY_OTHERS = {"list_commands", "get_command", "format_commands", "invalidate_caches"}
CALLED_BY_OTHERS |= {"_transfer", "_graph", "_steady"}


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
    assert not long_functions(), "split them"


def test_no_file_has_two_jobs_and_no_job_needs_many_files():
    """The data dictionary is a table of text."""
    lines = {
        p.relative_to(PACKAGE).as_posix(): len(p.read_bytes().splitlines()) for p in PACKAGE.rglob("*.py")
    }
    assert [n for n, count in lines.items() if count > MOST_LINES_OF_A_FILE] == ["frames.py"], "split them"
    assert len(lines) <= MOST_FILES, "merge what serves one module with it"


def test_no_two_files_have_one_name():
    """Whoever reads `windows.py` in a traceback or in a list of tabs must not have to ask which one."""
    names = Counter(p.name for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")
    twice = {name for name, count in names.items() if count > 1}
    assert twice <= NAMED_TWICE, "find it a name of its own"
    assert twice >= NAMED_TWICE, "they have names of their own now: take them off the list"


def test_every_name_of_the_package_is_used_in_it():
    """What only tests call is no part of the program: functions, classes and methods are named somewhere else in it."""
    text = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    words = Counter(word for source in text.values() for word in re.findall(r"\w+", source))
    unused = {
        node.name
        for path, source in text.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and words[node.name] == 1
        and not re.fullmatch(r"__\w+__", node.name)
    }
    assert unused <= CALLED_BY_OTHERS, "nothing uses them"


@pytest.mark.parametrize("what", ["py.typed", "report/templates/page.html"])
def test_what_is_no_code_is_part_of_the_package(what):
    assert (PACKAGE / what).is_file()


def test_the_version_is_in_one_place():
    text = (PACKAGE.parent / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in text and nsysalign.__version__.count(".") == 2
