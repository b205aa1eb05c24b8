"""A second analysis takes what lies there if, and only if, it is what would be written again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from nsysalign import engine
from nsysalign.cli import cli
from nsysalign.commands import cache

RESULTS = ("analysis.json", "analysis.db", "analysis.metadata.json", "report.html")


def call(trace, events, *more, width="100"):
    arguments = ["analyze", str(trace), "--events", str(events), *more]
    result = CliRunner(env={"COLUMNS": width, "NO_COLOR": "1"}).invoke(cli, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def analysed(recording, monkeypatch):
    """(trace, events, output directory, what was printed, list that grows with every analysis)."""
    trace, events = recording("truth_linears")
    times, real = [], engine.analyze_inputs
    monkeypatch.setattr(engine, "analyze_inputs", lambda *a, **k: times.append(1) or real(*a, **k))
    printed = call(trace, events)
    assert times == [1]
    return trace, events, trace.parent / "trace.nsysalign", printed, times


def test_the_second_time_nothing_is_analysed(analysed):
    trace, events, output, printed, times = analysed
    before = {name: (output / name).read_bytes() for name in RESULTS}
    assert call(trace, events) == printed
    assert call(trace, events, "-q") == ""
    assert json.loads(call(trace, events, "--json", "-")) == json.loads(before["analysis.json"])
    call(trace, events, "-q", "--json", str(output.parent / "copy.json"))
    assert (output.parent / "copy.json").read_bytes() == before["analysis.json"]
    narrow = call(trace, events, width="80")  # printed again from what is stored, and remembered
    lines = [
        line for line in narrow.splitlines() if not line.startswith("report: ")
    ]  # the page's path
    assert narrow != printed and max(map(len, lines)) <= 80
    assert call(trace, events, width="80") == narrow
    assert times == [1] and {name: (output / name).read_bytes() for name in RESULTS} == before
    call(trace, events, "--no-cache")
    assert times == [1, 1]


def _same_size_and_time(path, change) -> None:
    stat, data = path.stat(), bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def _last_byte(data: bytearray) -> None:
    data[-1] ^= 1


@pytest.mark.parametrize(
    "name", ["trace.sqlite", "trace.events.jsonl", "trace.nsysalign/analysis.json"]
)
def test_a_changed_byte_is_noticed_whatever_size_and_time_say(analysed, name):
    trace, events, _, _, times = analysed
    _same_size_and_time(trace.parent / name, _last_byte)
    call(trace, events)
    assert times == [1, 1]


def test_options_and_this_program_are_part_of_it(analysed, monkeypatch):
    trace, events, _, _, times = analysed
    call(trace, events, "--all-segments")
    assert times == [1, 1]
    monkeypatch.setattr(cache, "__version__", "0.0.0")
    call(trace, events, "--all-segments")
    assert times == [1, 1, 1]


@pytest.mark.parametrize("text", ["{", '{"format": 1, "key": "x", "results": {}, "printed": {"a": 1}}'])  # fmt: skip
def test_a_damaged_or_absent_cache_costs_only_time(analysed, text):
    trace, events, output, printed, times = analysed
    (output / cache.NAME).write_text(text)
    assert call(trace, events) == printed
    (output / cache.NAME).unlink()
    assert call(trace, events) == printed
    assert times == [1, 1, 1]
    assert call(trace, events) == printed
    assert times == [1, 1, 1]


def test_nothing_is_kept_of_a_trace_that_changes_meanwhile(recording, monkeypatch):
    trace, events = recording("truth_linears")
    real = engine.analyze_inputs

    def slow(*a, **k):
        result = real(*a, **k)
        os.utime(trace)
        return result

    monkeypatch.setattr(engine, "analyze_inputs", slow)
    call(trace, events)
    assert not (trace.parent / "trace.nsysalign" / cache.NAME).exists()


def test_two_processes_at_once_leave_a_good_cache(recording, monkeypatch):
    trace, events = recording("truth_linears")
    command = [sys.executable, "-m", "nsysalign", "analyze", str(trace), "--events", str(events)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    said = [p.communicate() for p in both]
    assert [p.returncode for p in both] == [0, 0] and said[0] == said[1]
    monkeypatch.setattr(engine, "analyze_inputs", lambda *a, **k: pytest.fail("analysed again"))
    assert "60 intervals" in call(trace, events)
    assert sorted(p.name for p in (trace.parent / "trace.nsysalign").iterdir()) == sorted(
        [*RESULTS, cache.NAME]
    )
