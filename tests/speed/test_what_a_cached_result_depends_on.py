"""A cached result is believed if its inputs, its options, its files and this program are what they were: one by one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nsysalign.commands import cache
from nsysalign.commands.cache import Cache

FILES = (
    "cli.py",
    "report/templates/report.html",
    "report/templates/report.css",
    "report/templates/report.js",
)


def question(inputs, output, names=(), options=None) -> Cache:
    return Cache({"trace": inputs[:1], "events": inputs[1:]}, output, names, options)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A stand-in for the installed program: its folder."""
    root = tmp_path / "nsysalign"
    for name in ("commands/cache.py", *FILES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("first")
    monkeypatch.setattr(cache, "__file__", str(root / "commands" / "cache.py"))
    return root


@pytest.fixture
def results(tmp_path, program):
    """(an output directory with results that are kept, fresh() of a new cache for the same question)."""
    trace, output = tmp_path / "trace.sqlite", tmp_path / "out"
    output.mkdir()
    trace.write_text("rows")
    for name in ("analysis.json", "report.html"):
        (output / name).write_text("answer")

    def again(options=("x",), inputs=(trace,), names=("analysis.json", "report.html")) -> Cache:
        return question(inputs, output, names, options)

    again().keep()
    assert again().fresh()
    return output, again


def test_nothing_is_fresh_before_it_was_kept(tmp_path, program):
    assert question([], tmp_path).fresh() is False


@pytest.mark.parametrize("name", FILES)
def test_a_new_version_of_this_program_answers_anew(program, results, name):
    _, again = results
    (program / name).write_text("other")  # as long as before
    os.utime(program / name, ns=(5, 5))
    assert not again().fresh()


def test_so_does_one_with_a_longer_file_of_the_same_time(program, results):
    _, again = results
    stat = (program / "cli.py").stat()
    (program / "cli.py").write_text("first and more")
    os.utime(program / "cli.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not again().fresh()


def test_so_does_one_with_a_module_more_or_less_but_not_with_a_compiled_one(program, results):
    _, again = results
    (program / "__pycache__").mkdir()
    (program / "__pycache__" / "cli.pyc").write_text("compiled")
    assert again().fresh()
    (program / "more.py").write_text("")
    assert not again().fresh()
    (program / "more.py").unlink()
    assert again().fresh()
    (program / "cli.py").rename(program / "main.py")
    assert not again().fresh()


def test_other_inputs_and_options_are_other_questions(tmp_path, results):
    _, again = results
    log = tmp_path / "events.jsonl"
    log.write_text("{}\n")
    assert not again(options=("y",)).fresh()
    assert not again(inputs=(tmp_path / "trace.sqlite", log)).fresh()
    moved = tmp_path / "other.sqlite"
    moved.write_text("rows")
    assert not again(inputs=(moved,)).fresh(), "the name is in the results"
    (tmp_path / "trace.sqlite").unlink()
    assert not again().fresh(), "an input that is gone is not the one that was there"


def test_why_not_is_noted(tmp_path, results):
    output, again = results
    changed = again(options=("y",))
    assert not changed.fresh() and "has changed" in changed.note
    (output / "report.html").write_text("edited")
    edited = again()
    assert not edited.fresh() and edited.note == "a result is not what was written"
    again().keep()
    kept = json.loads((output / cache.NAME).read_text())
    for text in ("{", "[]", json.dumps(kept | {"format": 0}), json.dumps(kept | {"key": 7}), json.dumps(kept | {"results": []}),
                 json.dumps(kept | {"printed": {"a": 1}}), json.dumps({k: kept[k] for k in ("format", "key")})):  # fmt: skip
        (output / cache.NAME).write_text(text)
        assert not again().fresh(), text
        again().keep()
        assert again().fresh()


def test_a_result_more_than_was_kept_is_not_there(results):
    _, again = results
    assert not again(names=("analysis.json", "report.html", "analysis.db")).fresh()


def test_an_input_that_changes_meanwhile_keeps_nothing(tmp_path, results):
    output, again = results
    (output / cache.NAME).unlink()
    slow = again()
    assert not slow.fresh()
    (tmp_path / "trace.sqlite").write_text("more rows")
    slow.keep()
    assert not (output / cache.NAME).exists()


def test_printed_text_is_remembered_for_the_same_terminal_only(tmp_path, program, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.sqlite").write_text("rows")

    def one(output: str, columns: str) -> Cache:
        monkeypatch.setenv("COLUMNS", columns)
        return question([tmp_path / "trace.sqlite"], Path(output))

    (tmp_path / "out").mkdir()
    one("out", "80").keep("narrow")
    wide = one("out", "120")
    assert wide.fresh() and wide.printed() is None
    wide.keep("wide")
    for columns, text in (("80", "narrow"), ("120", "wide")):
        found = one("out", columns)
        assert found.fresh() and found.printed() == text
    absolute = question([tmp_path / "trace.sqlite"], tmp_path / "out")
    assert absolute.fresh()
    absolute.keep("with a path in it")
    assert "with a path in it" not in (tmp_path / "out" / cache.NAME).read_text()


def test_a_folder_that_cannot_be_written_costs_only_the_next_run(tmp_path, program):
    (tmp_path / "out").write_text("a file")
    gone = question([], tmp_path / "out" / "below")
    gone.keep()
    assert gone.note.startswith("not kept: ")
