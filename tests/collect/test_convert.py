"""Raw files of processes that died in the middle of a write, and the shortening of paths."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysalign.errors import EventLogError
from nsysalign.paths import without_paths
from nsysalign.probe import slots
from nsysalign.probe.slots import ELAPSED, READING, RECORD, REGION_ENTERED, REGION_LEFT, SLOT
from nsysalign.record.convert import convert
from nsysalign.rundir import event_logs
from nsysalign.trace.eventlog import read_event_logs


def _slot(kind: int, again: int | None = None, *, a: int = 0, b: int = 7, **more: int) -> bytes:
    context, region = more.get("context", 1), more.get("region", 0)
    last = kind if again is None else again
    return SLOT.pack(kind, 0, 0, context, region, 4, 10, 20, a, b, 1.5, 99, last)


def test_torn_slots_and_texts_are_left_out(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    torn, unknown = _slot(RECORD, 0), _slot(RECORD, context=9, region=9)
    rows = [_slot(RECORD), torn, unknown, _slot(ELAPSED, a=0, b=1), bytes(64)]
    (raw / "12-0.rec").write_bytes(b"".join(rows) + b"\1\0half")
    frames = [[str(tmp_path / "x.py"), 3], ["/usr/local/lib/y/z.py", 8]]
    texts = [
        {"header": {"pid": 12, "nvtx": "none", "device_name": None}, "first_seq": 0},
        {"ctx": 1, "frames": frames, "library": True},
    ]
    data = b"\n".join(json.dumps(t).encode() for t in texts) + b'\n{"str": 9, "te'
    (raw / "12-0.txt").write_bytes(data + bytes(100))
    (path,) = convert(raw, tmp_path, tmp_path)
    header, first, third, elapsed = map(json.loads, path.read_text().splitlines())
    assert path.name == "events-12.jsonl" and header == {
        "type": "header", "format": "nsysalign-events", "version": 2, "pid": 12, "nvtx": "none"
    }  # fmt: skip
    assert first == {
        "type": "record", "seq": 0, "tid": 99, "device": 0, "stream_handle": 0, "stream_id": 7, "t0_ns": 10,
        "t1_ns": 20, "site": "x.py:3", "callers": ["y/z.py:8"], "library": True,
    }  # fmt: skip
    assert third["seq"] == 2 and "site" not in third and "region" not in third
    pair = elapsed["start"], elapsed["end"], elapsed["ms"]
    assert pair == (0, None, 1.5), "the torn record is unknown"


def _reading(clock: int, context: int, t_ns: int, third: int = 0) -> bytes:
    return READING.pack(t_ns, (70 << 4 | clock) << 24 | context, third)


def test_clock_readings_that_were_finished_become_lines(tmp_path):
    source = tmp_path / "x.py"
    source.write_text("import time\nt = time.time()\nprint(time.time() - t)\n")
    (tmp_path / "7-0.rec").write_bytes(_slot(RECORD, region=1))
    texts = [
        {"clk": 1, "frames": [[str(source), 2, 4, "<module>", 1, 30, False]]},
        {"clk": 2, "frames": [[str(source), 3, 6, "<module>", 1, 50, False]]},
        {"clk": 9, "frames": [["/home/someone/never_read.py", 3, 6, "<module>", 1, 50, False]]},
        {"str": 1, "text": "with events"}, {"str": 2, "text": "/home/me/plain"},
        {"silenced": 2, "readings": 32_672},
    ]  # fmt: skip
    (tmp_path / "7-0.txt").write_text("\n".join(map(json.dumps, texts)) + "\n")
    readings = [
        _reading(5, 1, 1_000, 1_795_229_128_500_000_000),
        bytes(READING.size),  # never finished
        _reading(REGION_ENTERED, 1, 2_000, 4), _reading(REGION_ENTERED, 2, 2_100, 0),
        _reading(6, 2, 2_200, 1_795_229_130_000_000_001),
        _reading(REGION_LEFT, 2, 2_300, 0), _reading(REGION_LEFT, 1, 2_400, 4),
        _reading(REGION_LEFT, 1, 2_500, 5),  # its begin is not there
        _reading(2, 1, 3_000, 1_000),
        _reading(13, 1, 5),  # a clock of a later version
    ]  # fmt: skip
    (tmp_path / "7-0.clk").write_bytes(b"".join(readings) + b"torn")
    (path,) = convert(tmp_path, tmp_path, tmp_path)
    _, _, *lines = map(json.loads, path.read_text().splitlines())
    assert lines == [
        {"type": "clock_site", "number": 1, "site": "x.py:2", "function": "x.py:1:<module>", "position": 30,
         "stores": ["x.py:0:t"], "use": "compared"},
        {"type": "clock_site", "number": 2, "site": "x.py:3", "function": "x.py:1:<module>", "position": 50,
         "subtracts": ["x.py:0:t"], "use": "difference"},
        {"type": "clock_reading", "site": 1, "clock": "time", "t_ns": 1_000, "tid": 70, "value_ns": 1_795_229_128_500_000_000},
        {"type": "clock_reading", "site": 2, "clock": "time_ns", "t_ns": 2_200, "tid": 70,
         "value_ns": 1_795_229_130_000_000_001, "region": "plain#0"},
        {"type": "host", "region": "plain#0", "t0_ns": 2_100, "t1_ns": 2_300, "tid": 70, "implicit": True},
        {"type": "clock_reading", "site": 1, "clock": "perf_counter_ns", "t_ns": 3_000, "tid": 70},
        {"type": "note", "text": "x.py:3 read the clock more than about 32,672 times: its later readings are not in the log"},
    ]  # fmt: skip
    assert "someone" not in path.read_text()


def test_a_long_log_is_packed_and_read_as_any_other(tmp_path, monkeypatch):
    """200 bytes a record at most; one that was cut is read as far as it goes."""
    monkeypatch.setattr("nsysalign.record.convert.PACKED_FROM", 64 * 8000 - 3 * slots.CHUNK_BYTES)
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [_slot(RECORD) if i % 3 < 2 else _slot(ELAPSED, a=i - 2, b=i - 1) for i in range(9000)]
    frames = [["/home/me/project/train.py", 31], ["/home/me/project/main.py", 8]]
    for pid, count in ((12, 9000), (13, 30)):
        (raw / f"{pid}-0.rec").write_bytes(b"".join(rows[:count]))
        texts = {"header": {"pid": 12}, "first_seq": 0}, {"ctx": 1, "frames": frames}
        (raw / f"{pid}-0.txt").write_text("".join(json.dumps(text) + "\n" for text in texts))
    logs = convert(raw, tmp_path, Path("/home/me/project"))
    assert [p.name for p in logs] == ["events-12.jsonl.gz", "events-13.jsonl"]
    assert logs == event_logs(tmp_path) and convert(raw, tmp_path, tmp_path, anew=False) == []
    log = read_event_logs(logs)
    assert (len(log.records), len(log.elapsed), log.notes) == (6020, 3010, ())
    assert set(log.records["site"]) == {"train.py:31"}
    assert logs[0].stat().st_size < 100 * 6000
    whole = logs[0].read_bytes()
    path = tmp_path / "damaged.jsonl.gz"
    for data in (whole[:-20_000], whole[:30_000] + b"\xff" * 9000):
        path.write_bytes(data)
        part = read_event_logs([path])
        assert 1000 < len(part.records) < 6000 and "lines could not be used" in part.notes[0]
    (tmp_path / "short.gz").write_bytes(logs[0].read_bytes()[:15])
    with pytest.raises(EventLogError):
        read_event_logs([tmp_path / "short.gz"])


def test_lines_of_code_are_those_of_the_places_and_of_the_file_that_ran(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    texts = {
        "x.py": "import torch\n  start.record()  # /home/me/\u00e9\n" + "y" * 500,
        "new.py": "secret\n", "site-packages/z.py": "z\n",
    }  # fmt: skip
    (tmp_path / "site-packages").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\n")
    frames = [[str(tmp_path / "x.py"), line] for line in (2, 3, 9)] + [["<stdin>", 1]]
    others = ("new.py", "binary.py", "gone.py", "site-packages/z.py")
    frames += [[str(tmp_path / name), 1] for name in others]
    (raw / "12-0.rec").write_bytes(_slot(RECORD))
    began = (tmp_path / "binary.py").stat().st_mtime_ns + 1
    os.utime(tmp_path / "new.py", ns=(began + 1, began + 1))
    lines = [
        {"header": {"clock": {"realtime_ns": began}}, "first_seq": 0},
        {"ctx": 1, "frames": frames},
        {
            "clk": 1,
            "frames": [[*frames[0][:1], 1, 0, "<module>", 1, 30, False]],
        },  # readings say more
    ]
    (raw / "12-0.txt").write_text("\n".join(map(json.dumps, lines)))
    (path,) = convert(raw, tmp_path, tmp_path, source=True)
    lines = [x for x in map(json.loads, path.read_text().splitlines()) if x["type"] == "source"]
    assert [(x["site"], x["text"]) for x in lines] == [
        ("x.py:2", "start.record()  # \u00e9"),
        ("x.py:3", "y" * 199 + "\u2026"),
        ("x.py:1", "import torch"),
    ]
    (path,) = convert(raw, tmp_path, tmp_path)  # raw files that somebody sent may name any file
    assert '"source"' not in path.read_text()


@given(st.text("/ab.~'\" :\\%2F;C-w", max_size=14))
def test_a_region_is_called_the_same_in_the_log_and_in_the_trace(text):
    assert without_paths(without_paths(text)) == without_paths(text)


def test_links_among_the_raw_files_are_not_followed(tmp_path):
    raw, secret = tmp_path / "raw", tmp_path / "secret"
    raw.mkdir()
    secret.write_text(json.dumps({"note": {"text": "secret"}}) + "\n" + " " * 64)
    (raw / "7-0.rec").write_bytes(bytes(64))
    for name in ("7-0.txt", "7-0.clk", "8-0.rec"):
        (raw / name).symlink_to(secret)
    (log,) = convert(raw, tmp_path, tmp_path)
    assert log.name == "events-7.jsonl" and "secret" not in log.read_text()
