"""Reading event logs of every shape: any program may write one, and any program may be killed while
it does."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tiny_export import EPOCH, tiny

import nsysalign
from nsysalign import frames
from nsysalign.errors import EventLogError
from nsysalign.model import EventLog
from nsysalign.store import document
from nsysalign.trace.eventlog import read_event_logs

HEADER = {"type": "header", "format": "nsysalign-events", "version": 1, "pid": 7}
BIG = 10**400


def record(seq: int, **more: object) -> dict:
    return {"type": "record", "seq": seq, "t0_ns": 10 * seq, "t1_ns": 10 * seq + 5, **more}


def elapsed(start: object = 0, end: object = 1, ms: object = 0.5, **more: object) -> dict:
    return {"type": "elapsed", "start": start, "end": end, "ms": ms, **more}


PAIR = [HEADER, record(0), record(1), elapsed()]


@pytest.fixture
def read(tmp_path):
    """`read(lines)`: the log that these lines (dicts, or text as it stands) make."""

    def run(lines: list, *, end: str = "\n", start: str = "") -> EventLog:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path = tmp_path / "events-7.jsonl"
        path.write_bytes((start + end.join(texts) + end).encode("utf-8", "surrogatepass"))
        return read_event_logs([path])

    return run


def test_a_pair(read):
    log = read(PAIR)
    assert log.records["t0_ns"].tolist() == [0, 10] and log.elapsed["ms"].tolist() == [0.5]
    assert log.notes == () and log.headers[0]["pid"] == 7
    for spec in frames.LOG_SPECS:
        assert list(getattr(log, spec.name).columns) == spec.names


def test_calibration_pairs_are_not_the_programs(read):
    pair = {"start": 0, "end": 1, "ms": 0.25}
    # `old`: as written before there was a type for them
    old, new = elapsed(**pair, calibration=True), {"type": "calibration", **pair}
    log = read([HEADER, record(0, calibration=True), record(1), new, old, elapsed()])
    assert log.elapsed["calibration"].tolist() == [True, True, False]
    assert log.elapsed["ms"].tolist() == [0.25, 0.25, 0.5]
    assert log.records["calibration"].tolist() == [True, False]


def test_a_cut_last_line_is_normal(read):
    for cut in range(1, 50, 7):
        log = read([*PAIR, json.dumps(record(2))[:-cut]])
        assert len(log.records) == 2 and len(log.elapsed) == 1
        assert log.notes == ("events-7.jsonl: 1 lines could not be used (cut or malformed)",)


def test_every_header_starts_a_process(read):
    log = read([*PAIR, {**HEADER, "pid": 8}, record(0), record(1)])
    assert [h["pid"] for h in log.headers] == [7, 8]
    assert log.records["process"].tolist() == [0, 0, 1, 1]
    assert log.elapsed["process"].tolist() == [0]


def test_files_are_merged_and_a_file_named_twice_counts_once(read, tmp_path):
    """A folder stands for its logs."""
    alone = read(PAIR)
    assert read_event_logs([tmp_path]).records.equals(alone.records)
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PAIR))
    first, other = tmp_path / "events-7.jsonl", tmp_path / "other.jsonl"
    log = read_event_logs([first, other, Path(tmp_path / "." / "events-7.jsonl")])
    assert len(log.headers) == 2 and log.records["process"].tolist() == [0, 0, 1, 1]
    assert read_event_logs([]).headers == ()


def test_what_is_no_time_is_said_per_pair(read):
    for ms in ("NaN", "null", "true", '"0.5"', "1e300", str(BIG)):
        line = f'{{"type":"elapsed","start":0,"end":1,"ms":{ms}}}'
        log = read([HEADER, record(0), record(1), line])
        (error,) = log.elapsed["error"]
        assert math.isnan(log.elapsed["ms"][0]) and error.startswith("elapsed_time gave ")
        assert len(error) < 80
    log = read([HEADER, record(0), elapsed(0, None, None, error="not ready")])
    assert log.elapsed["error"].tolist() == ["not ready"], "the program's own"
    assert log.elapsed["end"].tolist() == [-1]


def test_a_record_without_a_time_is_left_out(read):
    for value in (None, "12", 1.5, True, [], {}, BIG, 1 << 63, -(1 << 63), 1 << 62):
        log = read([HEADER, record(0), record(1) | {"t0_ns": value}, record(2)])
        assert log.records["seq"].tolist() == [0, 2] and len(log.notes) == 1, value


def test_other_keys_may_hold_anything(read):
    numbers = ["tid", "device", "stream_handle", "stream_id"]
    for value in (None, "text", BIG, 1.5, float("nan"), [None, 3], {"a": 1}):
        keys = dict.fromkeys([*numbers, "region", "site", "callers"], value)
        log = read([HEADER, record(0, **keys)])
        assert log.notes == () and log.records[numbers].values.tolist() == [[-1] * 4]
        text = value if value == "text" else ""
        assert log.records[["region", "site"]].values.tolist() == [[text, text]]
        assert log.records["callers"][0] == (("None", "3") if isinstance(value, list) else ())


def test_clock_sites_and_readings(read):
    site = {
        "type": "clock_site", "number": 3, "site": "a.py:4", "callers": ["b.py:9"], "function": "a.py:1:f", "position": 20,
        "use": "difference", "stores": ["a.py:1:t"], "subtracts": ["a.py:.t0"],
    }  # fmt: skip
    reading = {"type": "clock_reading", "site": 3, "clock": "time", "t_ns": 70, "value_ns": 1_795}
    bare = [{"type": "clock_site", "number": 4}, {"type": "clock_reading", "site": 9, "t_ns": 80}]
    bad = [{"type": "clock_site"}, {"type": "clock_reading", "site": 3}]
    log = read([HEADER, site, reading, *bare, *bad])
    assert log.clock_sites.values.tolist() == [
        [0, 3, "a.py:4", ("b.py:9",), "a.py:1:f", 20, "difference", ("a.py:1:t",), ("a.py:.t0",), False],
        [0, 4, "", (), "", -1, "", (), (), False],
    ]  # fmt: skip
    readings = [[0, 3, "time", 70, 1_795, -1, ""], [0, 9, "", 80, 80, -1, ""]]
    assert log.clock_readings.values.tolist() == readings
    assert log.notes == ("events-7.jsonl: 2 lines could not be used (cut or malformed)",)


def test_what_is_not_known_is_passed_over(read):
    extra = [{"type": "weather", "t0_ns": "rain"}, {"type": ["record"]}, {"no": "type"}, "", "  "]
    header = {**HEADER, "version": 9, "mood": "good"}
    lines = [header, *extra, record(0, colour="red"), record(1), elapsed(weight=3)]
    log = read(lines, start="\ufeff", end="\r\n")  # of other systems
    assert len(log.records) == 2 and len(log.elapsed) == 1
    assert len(log.notes) == 1 and "version 9 is newer" in log.notes[0]


def test_bytes_that_are_no_text_are_replaced(read, tmp_path):
    read([*PAIR, record(2, region="REGION")])
    path = tmp_path / "events-7.jsonl"
    path.write_bytes(path.read_bytes().replace(b"REGION", b"\xff\xfe\xc3"))
    assert set(read_event_logs([path]).records["region"][2]) == {"\ufffd"}


@pytest.mark.parametrize("raw", [False, True], ids=["escaped", "raw"])
def test_lone_surrogates_reach_neither_tables_nor_files(export, log, tmp_path, raw):
    """JSON can spell half a character (a file name that is not UTF-8 makes one); pandas and UTF-8
    cannot hold it."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0] |= {"device_name": "GPU \ud83d", "torch": ["\udcff"], "\udc80": 1}
    lines[1] |= {"region": "half \ud83d#0", "site": "\udcff.py:3", "callers": ["a\udcff.py:1"]}
    lines.append({"type": "note", "text": "a note \ud83d"})
    text = "".join(json.dumps(line, ensure_ascii=not raw) + "\n" for line in lines)
    log.write_bytes(text.encode("utf-8", "surrogatepass"))
    read = read_event_logs([log])
    assert read.records["region"][0].startswith("half \ufffd")
    assert read.notes[0].startswith("a note \ufffd")
    assert b"".join(document.pieces(nsysalign.analyze(export(tiny()), [log])))


def test_what_is_no_event_log_is_said(read):
    for lines, said in (
        ([], "is empty"),
        (["", "  "], "is empty"),
        ([record(0), HEADER], "no header before line 1"),
        (["not json"], "line 1 is not JSON"),
        (["[1, 2]"], "line 1 is not JSON"),
        (['{"type":"header","format":"nsysali'], "line 1 is not JSON"),
        (["[" * 100_000], "line 1 is not JSON"),
        (["", "not json"], "is empty"),
        ([{**HEADER, "format": "other"}], "format 'other', expected 'nsysalign-events'"),
        ([{"type": "header"}], "format None"),
    ):
        with pytest.raises(EventLogError, match=said) as error:
            read(lines)
        assert error.value.next_step


def test_a_log_of_another_run_is_refused_although_the_process_id_is_the_same(tmp_path, log, export):
    trace, other = export(tiny()), tmp_path / "other.jsonl"
    for shift_s, said in (
        (3_600, "process 7 belongs to another run: its records lie 3600 s after the trace ends"),
        (-86_400 * 3, "belongs to another run: its records lie .* before the trace begins"),
        (5, None),  # the clock was set between the two
    ):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        lines[0]["clock"]["realtime_ns"] += shift_s * 10**9
        del lines[0]["clock"]["trace_ns"]
        other.write_text("".join(json.dumps(line) + "\n" for line in lines))
        if said is None:
            nsysalign.analyze(trace, [other])
            continue
        with pytest.raises(EventLogError, match=said) as error:
            nsysalign.analyze(trace, [other])
        assert "of the run that made this trace" in error.value.next_step
    other.write_text(other.read_text().replace(str(EPOCH + 5 * 10**9), str(EPOCH + 3_600 * 10**9)))
    both = nsysalign.analyze(trace, [log, other])
    assert len(both.measured) == 1 and len(both.unaligned) == 1
    assert any("belongs to another run" in note for note in both.notes)


def test_what_was_lost_with_a_killed_process_is_said_by_name(export, log):
    """Its rows had not been written; the log, in mapped memory, survived."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    records = [line for line in lines if line["type"] == "record"]
    later = [
        r | {"seq": r["seq"] + 50, "t0_ns": r["t0_ns"] + 10**9, "t1_ns": r["t1_ns"] + 10**9}
        for r in records
    ]
    pair = {"type": "elapsed", "start": later[0]["seq"], "end": later[-1]["seq"], "ms": 0.1}
    for ended, said in (
        ("killed", "was killed, crashed or executed"),
        ("signal", "record call is not in the trace"),
    ):
        told = [*lines, *later, pair, {"type": "end", "how": ended, "signal": 9}]
        log.write_text("".join(json.dumps(line) + "\n" for line in told))
        unaligned = nsysalign.analyze(export(tiny()), [log]).unaligned
        assert unaligned["reason"].str.contains(said).sum() == 1, ended
