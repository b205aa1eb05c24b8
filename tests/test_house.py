"""The shape of the house: nothing in it is unused, and what is no code is packaged."""

from __future__ import annotations

import ast
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from recordings import unpack

import nsysalign

PACKAGE = Path(nsysalign.__file__).parent
#: click's and importlib's interfaces; modes of `measure` are looked up by their names.
CALLED_BY_OTHERS = {"list_commands", "get_command", "format_commands", "invalidate_caches"}
CALLED_BY_OTHERS |= {"_transfer", "_graph", "_steady"}
#: Records for users and for what is read off groups (issue 51); groups of tables that no trace made.
CALLED_BY_OTHERS |= {"steady_ns", "without_trace"}


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


def copied(folder: Path, *without: str):
    """A copy of the package in `folder`, and a function that runs Python with it."""
    skip = shutil.ignore_patterns("__pycache__", *without)
    shutil.copytree(PACKAGE, folder / "nsysalign", ignore=skip)
    # without site, whose .pth of an editable installation finds what the copy lacks in the original
    packages = [path for path in sys.path if path.endswith("-packages")]
    path = os.pathsep.join([str(folder), *packages])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def python(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-S", *arguments], cwd=folder, env=environment, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip

    return python


def test_without_add_ons_the_core_works(tmp_path):
    """The folder `addons` deleted: every command of the core, and what is said where one of its
    add-ons' public names is used."""
    python = copied(tmp_path, "addons")
    (tmp_path / "run").mkdir()
    for name, file in (("demo.sqlite", "trace.sqlite"), ("demo.events.jsonl", "events-1.jsonl")):
        packed = (PACKAGE / "demo" / f"{name}.xz").read_bytes()
        (tmp_path / "run" / file).write_bytes(lzma.decompress(packed))
    for words in (
        "demo -o demo",
        "analyze run --json analysis.json",
        "show run --label h2d_t1",
        "diff run run",
        "report run -o page.html",
        "export run -o run.json",
        "redact run/trace.sqlite shared.sqlite",
        "run --help",
    ):
        done = python("-m", "nsysalign", *words.split())
        assert done.returncode == 0, f"{words}: {done.stderr}"
    help_text = python("-m", "nsysalign", "--help").stdout
    assert "doctor" in help_text and "measure" not in help_text
    assert "nsysalign" in python("-m", "nsysalign", "doctor").stdout
    several = python("-m", "nsysalign", "analyze", "run", "run")
    assert several.returncode == 2 and "add-on" in several.stderr
    for name, words in (("marks", "addons/marks"), ("benchmark", "add-on measure")):
        done = python("-c", f"from nsysalign import {name}")
        assert done.returncode == 1 and words in done.stderr


ADDON = """
from nsysalign.registry import AddOn, Section
ADDON = AddOn(
    commands={"extra": ("things:extra", "Say hello.")},
    tables="things:TABLES", step="things:step", rules="things:RULES",
    sections=(Section("extra.html", "extra.js", "extra", "things:shown"),),
)
"""
THINGS = """
import click, pandas as pd
from nsysalign.explain.finding import Remark
from nsysalign.explain.rules import Rule
from nsysalign.frames import specs
TABLES = specs('''
extras: what is extra
    label  str    whose
    ns     int64  how much
''')
@click.command()
def extra():
    click.echo("hello")
def step(evidence, inputs):
    table = pd.DataFrame({"label": evidence.labels["label"], "ns": 7})
    return evidence.with_tables({"extras": table})
RULES = (Rule("too-extra", lambda facts: [Remark(f"{facts.analysis.extras.ns.sum()} ns extra")]),)
def shown(analysis):
    return analysis.extras["label"].tolist()
"""


def test_an_add_on_adds_all_it_has_from_its_own_folder(tmp_path):
    """A command, a table (computed, stored, read back), a rule and a section of the page: no file
    of the core is touched."""
    python = copied(tmp_path)
    folder = tmp_path / "nsysalign" / "addons" / "extra"
    (folder / "templates").mkdir(parents=True)
    for name, text in {
        "__init__.py": "", "addon.py": ADDON, "things.py": THINGS,
        "templates/extra.html": '<section id="extra-part">here</section>',
        "templates/extra.js": 'SECTIONS.push(["extra-part", "extra", () => {}]);',
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    assert python("-m", "nsysalign", "extra").stdout == "hello\n"
    assert "Say hello." in python("-m", "nsysalign", "--help").stdout
    done = python("-m", "nsysalign", "demo", "-o", "out")
    assert done.returncode == 0, done.stderr
    code = "import nsysalign; a = nsysalign.load('out/analysis.db'); print(len(a.extras), a.notes)"
    read = python("-c", code).stdout
    labels = int(read.split()[0])
    assert labels > 5 and f"{7 * labels} ns extra" in read
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert '<section id="extra-part">here</section>' in page and '"extra":["h2d_t1"' in page
    assert 'SECTIONS.push(["extra-part"' in page


def test_the_version_is_in_one_place():
    text = (PACKAGE.parent / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in text and nsysalign.__version__.count(".") == 2


#: What one analysis of an ordinary recording runs, to be read in a week: it may shrink.  Of these a
#: file for each of ten questions about runs.
MOST_FUNCTIONS, MOST_FILES = 380, 56

_COUNTED = """
import sys, threading, nsysalign
trace, log, root = sys.argv[1:]
nsysalign.analyze(trace, [log])  # what is imported once is not counted
seen = set()


def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
        seen.add((code.co_filename, code.co_firstlineno))


threading.setprofile(note)
sys.setprofile(note)
nsysalign.analyze(trace, [log])
sys.setprofile(None)
files = {file for file, _ in seen}
print(len(seen), len(files), sum("/addons/" in file for file in files))
"""


def test_the_way_of_an_analysis_is_short(tmp_path):
    files = unpack("probe", tmp_path)
    command = [sys.executable, "-c", _COUNTED, *map(str, files[:2]), f"{PACKAGE}/"]
    counted = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions, of_files, of_addons = map(int, counted.split())
    assert functions <= MOST_FUNCTIONS and of_files <= MOST_FILES and not of_addons, counted
