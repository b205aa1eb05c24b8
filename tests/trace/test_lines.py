"""Event logs that unpack to gigabytes, or whose line is as long as the file."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
from test_eventlog import PAIR, record

from nsysalign.errors import EventLogError
from nsysalign.trace import lines
from nsysalign.trace.clock_samples import read_clock_samples
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.redaction import redact_log

START = "".join(json.dumps(line) + "\n" for line in PAIR)


def test_a_log_that_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path):
    """30 MB of blank lines in 30 KB, and the same without a line's end."""
    for number, filling in enumerate((" " * 99 + "\n", " ")):
        bomb, out = tmp_path / f"events-{number}.jsonl.gz", tmp_path / f"shared-{number}.jsonl"
        bomb.write_bytes(gzip.compress((START + filling * (30_000_000 // len(filling))).encode()))
        tracemalloc.start()
        for reader in (lambda: read_event_logs([bomb]), lambda: redact_log(bomb, out)):  # noqa: B023
            with pytest.raises(EventLogError, match=r"unpacks to more than \d+ MB") as error:
                reader()
            assert "gunzip" in error.value.next_step
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12_000_000
        assert [p.name for p in tmp_path.iterdir() if "shared" in p.name] == [], (
            "nothing is left half-written"
        )
        assert (
            "unpacks to more" in read_clock_samples(bomb)[1][0]
            or "no clock samples" in read_clock_samples(bomb)[1][0]
        )


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_line_as_long_as_a_file_is_passed_over(tmp_path, packed, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1_000)
    whole = START + '{"type":"note","text":"' + "x" * 5_300 + '"}\n' + json.dumps(record(9)) + "\n"
    log = tmp_path / ("events-7.jsonl" + ".gz" * packed)
    log.write_bytes(gzip.compress(whole.encode()) if packed else whole.encode())
    read = read_event_logs([log])
    assert read.records["seq"].tolist() == [0, 1, 9], "what follows it is read"
    assert read.notes == (f"{log.name}: 1 lines could not be used (cut or malformed)",)
    redact_log(log, tmp_path / "shared.jsonl")
    assert "xxx" not in (tmp_path / "shared.jsonl").read_text()
    assert len((tmp_path / "shared.jsonl").read_text().splitlines()) == len(PAIR) + 2, (
        "line for line"
    )


@pytest.mark.parametrize("length", [999, 1_000, 1_001, 2_000, 2_001])
def test_lines_about_the_limit_keep_their_ends(tmp_path, monkeypatch, length):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1_000)
    path = tmp_path / "a"
    for end, rest in (("\n", ["b\n"]), ("", [])):
        path.write_text("a" * (length - len(end)) + end + "".join(rest))
        kept = (
            ["a" * (length - len(end)) + end]
            if length < 1_000 or (length == 1_000 and end)
            else [lines.UNUSABLE]
        )
        assert list(lines.lines_of(path)) == kept + rest


def test_a_file_of_one_line_is_no_event_log(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1_000)
    monkeypatch.setattr(lines, "LONGEST_HOLE", 100_000)
    log = tmp_path / "events-7.jsonl"
    log.write_text(START + "\0" * 200_000)
    with pytest.raises(EventLogError, match="a line of more than"):
        read_event_logs([log])
