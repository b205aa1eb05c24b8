"""Event logs that unpack to gigabytes, or whose line is as long as the file."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
from test_eventlog import PAIR, record

from nsysalign import untrusted as lines
from nsysalign.errors import EventLogError
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.redaction import redact_lines
from nsysalign.trace.samples import read_clock_samples

START = "".join(json.dumps(line) + "\n" for line in PAIR)


@pytest.mark.parametrize("filling", [" " * 9_999 + "\n", " "], ids=["lines", "one line"])
def test_a_log_that_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path, filling):
    """30 MB of blanks in 30 KB."""
    bomb, out = tmp_path / "events-1.jsonl.gz", tmp_path / "shared.jsonl"
    bomb.write_bytes(gzip.compress((START + filling * (30_000_000 // len(filling))).encode()))
    tracemalloc.start()
    for reader in (lambda: read_event_logs([bomb]), lambda: redact_lines(bomb, out)):
        with pytest.raises(EventLogError, match=r"unpacks to more than \d+ MB") as error:
            reader()
        assert "gunzip" in error.value.next_step
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12_000_000
    assert list(tmp_path.iterdir()) == [bomb], "nothing is left half-written"
    (said,) = read_clock_samples(bomb)[1]
    assert "unpacks to more" in said or "no clock samples" in said


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_line_as_long_as_a_file_is_passed_over(tmp_path, packed, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1_000)
    whole = START + '{"type":"note","text":"' + "x" * 5_300 + '"}\n' + json.dumps(record(9)) + "\n"
    log = tmp_path / ("events-7.jsonl" + ".gz" * packed)
    log.write_bytes(gzip.compress(whole.encode()) if packed else whole.encode())
    read = read_event_logs([log])
    assert read.records["seq"].tolist() == [0, 1, 9], "what follows it is read"
    assert read.notes == (f"{log.name}: 1 lines could not be used (cut or malformed)",)
    redact_lines(log, tmp_path / "shared.jsonl")
    shared = (tmp_path / "shared.jsonl").read_text()
    assert "xxx" not in shared and shared.count("\n") == len(PAIR) + 2, "line for line"


def test_lines_about_the_limit_keep_their_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1_000)
    path = tmp_path / "a"
    for length in (999, 1_000, 1_001, 2_000, 2_001):
        for end, rest in (("\n", ["b\n"]), ("", [])):
            line = "a" * (length - len(end)) + end
            path.write_text(line + "".join(rest))
            short = length < 1_000 or (length == 1_000 and end)
            assert list(lines.lines_of(path)) == [line if short else lines.UNUSABLE, *rest]


def test_a_file_of_one_line_is_no_event_log(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1_000)
    monkeypatch.setattr(lines, "LONGEST_HOLE", 100_000)
    log = tmp_path / "events-7.jsonl"
    log.write_text(START + "\0" * 200_000)
    with pytest.raises(EventLogError, match="a line of more than"):
        read_event_logs([log])
