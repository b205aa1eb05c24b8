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
from recordings import DATA, unpack
from simulator import export, machine
from simulator.program import Elapsed, Launch, Program, Record, Sync

import nsysalign
from nsysalign import engine
from nsysalign.rundir import Inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import house

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
    skip = shutil.ignore_patterns(*without)
    shutil.copytree(PACKAGE, folder / "nsysalign", ignore=skip)
    # without site, whose .pth of an editable installation finds what the copy lacks in the original
    packages = [path for path in sys.path if path.endswith("-packages")]
    path = os.pathsep.join([str(folder), *packages])
    environment = {**os.environ, "PYTHONPATH": path}

    def python(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-S", *arguments], cwd=folder, env=environment, capture_output=True,
            text=True, timeout=240,
        )  # fmt: skip

    return python


#: Commands in one process.
ONE_BY_ONE = """
import sys
from nsysalign.cli import main
for words in sys.argv[1:]:
    try:
        main(words.split())
    except SystemExit as ended:
        print(words, "ended with", ended.code or 0)
"""


def test_without_add_ons_the_core_works(tmp_path):
    """The folder `addons` deleted: every command of the core, and what is said where one of its
    add-ons' public names is used."""
    python = copied(tmp_path, "addons")
    timed = [Record("a"), Launch(9_000), Record("b"), Sync(), Elapsed("a", "b", "x")]
    _, (log,) = export.write(machine.run(Program({500: timed * 3})), tmp_path / "run")
    log.rename(log.with_name("events-500.jsonl"))
    commands = (
        "demo -o demo",
        "analyze run --json analysis.json",
        "show run --label x",
        "diff run run",
        "report run -o page.html",
        "export run -o run.json",
        "redact run/trace.sqlite shared.sqlite",
        "run --help",
        "--help",
    )
    done = python("-c", ONE_BY_ONE, *commands, "analyze run run", "doctor")
    assert done.stdout.count("ended with 0\n") == len(commands), done.stdout + done.stderr
    text, said, doctor = done.stdout.partition("analyze run run ended with 2\n")
    assert said and "add-on" in done.stderr
    assert re.search(r"nsysalign.*\ndoctor ended with [013]\n", doctor, re.S), doctor
    help_text = text.partition("run --help ended")[2]
    assert "doctor" in help_text and "measure" not in help_text
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
    done = python("-c", ONE_BY_ONE, "extra", "--help", "demo -o out")
    assert done.stdout.startswith("hello\nextra ended with 0\n") and "Say hello." in done.stdout
    assert done.stdout.endswith("demo -o out ended with 0\n"), done.stderr
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


#: Names that a file still binds though they say which and not what (`scripts/house.py` has the list of them),
#: and functions that bind more than 20: both lists may only get shorter.
NAMES_LEFT = """
addons/check/checks.py: few here many nothing of on rest what
addons/check/command.py: more there
addons/check/scene.py: many more of own
addons/ranks/collectives.py: other others
addons/ranks/command.py: given more
addons/ranks/compare.py: most
addons/ranks/words.py: every more most other others own said what
addons/ranks/work.py: found given there
brief.py: every more most said
explain/findings.py: few
explain/proof.py: what
explain/rules/__init__.py: each
explain/runs/blocks.py: few
explain/runs/failed.py: more
explain/runs/idle.py: rest
explain/runs/no_work.py: most
explain/runs/set_up.py: most
explain/sentences.py: each more one others rest what which
label.py: one what
predict/replay.py: own
predict/unprofiled.py: here most of other own some
registry.py: several
show/baseline.py: both
show/diff.py: more most
show/html.py: own
show/perfetto.py: what
show/screen.py: most of other others several
show/waterfall.py: most what
stretch.py: found given
trace/chrome.py: found more most rest what
trace/cupti.py: what
trace/kineto.py: found more most other others what who
"""
LOCALS_LEFT = """
addons/check/checks.py:escaped
addons/check/checks.py:_flushed
predict/unprofiled.py:predict_intervals
predict/unprofiled.py:scene
"""


@pytest.fixture(scope="module")
def counted():
    """The counts of every file of the package, by its name in it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): house.measured(file) for file in files}


def test_names_say_what_they_name(counted):
    left = dict(line.split(": ") for line in NAMES_LEFT.split("\n") if line)
    wrong = [
        f"{file}: {name}"
        for file, counts in counted.items()
        for name in counts.pronouns
        if name not in left.get(file, "").split()
    ]
    assert not wrong, "names are nouns of the field: stream, kernels, window, idle, record"


def test_functions_hold_what_a_reader_can_hold(counted):
    crowded = {
        f"{file}:{name.rpartition(':')[2]} {count}"
        for file, counts in counted.items()
        for name, count in counts.locals.items()
        if count > house.MOST_LOCALS
    }
    left = {line.split()[0] for line in LOCALS_LEFT.split("\n") if line}
    assert {name for name in crowded if name.split()[0] not in left} == set()


def test_only_the_first_stage_of_an_analysis_reads_logs(tmp_path):
    """Event logs, those of the run without nsys among them, are gone when the second begins; the trace
    stays, of which the grids of single kernels are read when they are drawn."""
    trace, log = unpack("unprofiled_micro", tmp_path)
    baseline = tmp_path / "baseline.jsonl"
    packed = DATA / "unprofiled_micro.baseline.jsonl.xz"
    baseline.write_bytes(lzma.decompress(packed.read_bytes()))
    inputs = Inputs(trace, (log,), (baseline,))
    record = engine.Request(inputs, (), False)
    for number, stage in enumerate(engine.STAGES):
        record = stage.run(record)
        if number == 0:
            log.unlink()
            baseline.unlink()
    assert (
        len(record.labels)
        and len(record.baseline)
        and not record.baseline["inflation"].isna().all()
    )


def test_a_rule_about_runs_and_a_table_touch_two_files_each():
    """Added to a copy of the package, both reach an analysis, and the table what is stored of it."""
    of_rule, of_table, outcome = house.added()
    assert of_rule == ["explain/rules/__init__.py", "explain/runs/trial.py"]
    assert of_table == ["explain/runs/gaps.py", "frames.py"]
    assert re.fullmatch(r"\['the trial counted \d+ operations'\] [1-9]\d*", outcome)


def test_the_count_of_the_house_knows_what_it_counts(tmp_path):
    """Parameters and variables of comprehensions are no locals; a docstring has no tokens."""
    file = tmp_path / "small.py"
    file.write_text(
        'def total(rows, own):\n    """Text of\n    two lines."""\n'
        "    a, b = rows  # no token\n    return [a + some for some in b]\n"
    )
    counted = house.measured(file)
    assert (counted.lines, counted.functions, counted.tuples) == (3, 1, 1)
    # def total ( rows , own ) : a , b = rows return [ a + some for some in b ]
    assert counted.tokens == counted.function_tokens == 8 + 5 + 10
    assert counted.locals == {"small.py:total": 2}
    assert counted.bindings == 5 and counted.pronouns == {"own": 1, "some": 1}
