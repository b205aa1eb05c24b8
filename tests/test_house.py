"""The shape of the house: nothing in it is unused, and what is no code is packaged."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import nsysalign

PACKAGE = Path(nsysalign.__file__).parent
#: click's and importlib's interfaces; modes of `measure` are looked up by their names.
CALLED_BY_OTHERS = {"list_commands", "get_command", "format_commands", "invalidate_caches"}
CALLED_BY_OTHERS |= {"_transfer", "_graph", "_steady"}


def test_every_name_of_the_package_is_used_in_it():
    """What only tests call is no part of the program: functions, classes and methods are named
    somewhere else in it."""
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


@pytest.mark.parametrize("what", ["py.typed", "show/templates/page.html"])
def test_what_is_no_code_is_part_of_the_package(what):
    assert (PACKAGE / what).is_file()


def test_the_version_is_in_one_place():
    text = (PACKAGE.parent / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in text and nsysalign.__version__.count(".") == 2
