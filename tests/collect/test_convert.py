"""Raw files of processes that died in the middle of a write, and the shortening of paths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysalign.collect.convert import convert, shorten
from nsysalign.collect.probe.layout import CHUNK_BYTES, ELAPSED, RECORD, SLOT, SLOT_SIZE


def _slot(
    kind: int, again: int | None = None, *, context: int = 1, region: int = 0, a: int = 0, b: int = 7
) -> bytes:
    return SLOT.pack(
        kind, 0, 0, context, region, 4, 10, 20, a, b, 1.5, 99, 0, 0, kind if again is None else again
    )


def test_slots_are_64_bytes_and_chunks_fit_every_page_size():
    assert SLOT_SIZE == 64 and CHUNK_BYTES % 65536 == 0


def test_torn_slots_and_texts_are_left_out(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    slots = [
        _slot(RECORD),
        _slot(RECORD, 0),
        _slot(RECORD, context=9, region=9),
        _slot(ELAPSED, a=0, b=1),
        bytes(64),
    ]
    (raw / "12-0.rec").write_bytes(b"".join(slots) + b"\1\0half")
    texts = [
        {"header": {"pid": 12, "nvtx": "none", "device_name": None}, "first_seq": 0},
        {"ctx": 1, "frames": [[str(tmp_path / "x.py"), 3], ["/usr/local/lib/y/z.py", 8]], "library": True},
    ]
    data = b"\n".join(json.dumps(t).encode() for t in texts) + b'\n{"str": 9, "te'
    (raw / "12-0.txt").write_bytes(data + bytes(100))
    (path,) = convert(raw, tmp_path, tmp_path)
    header, first, third, elapsed = map(json.loads, path.read_text().splitlines())
    assert path.name == "events-12.jsonl" and header == {
        "type": "header", "format": "nsysalign-events", "version": 1, "pid": 12, "nvtx": "none"
    }  # fmt: skip
    assert first == {
        "type": "record", "seq": 0, "tid": 99, "device": 0, "stream_handle": 0, "stream_id": 7, "t0_ns": 10,
        "t1_ns": 20, "site": "x.py:3", "callers": ["y/z.py:8"], "library": True,
    }  # fmt: skip
    assert third["seq"] == 2 and "site" not in third and "region" not in third
    assert (elapsed["start"], elapsed["end"], elapsed["ms"]) == (0, None, 1.5), "the torn record is unknown"


def test_a_process_without_texts_still_converts(tmp_path):
    (tmp_path / "7-0.rec").write_bytes(_slot(RECORD))
    (path,) = convert(tmp_path, tmp_path, tmp_path)
    assert [json.loads(x)["type"] for x in path.read_text().splitlines()] == ["header", "record"]


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/work/a/b.py", "a/b.py"),
        ("/work/b.py", "b.py"),
        ("/workshop/b.py", "workshop/b.py"),
        ("/usr/lib/python3/x/y.py", "x/y.py"),
        ("/home/someone/b.py", "b.py"),
        ("/b.py", "b.py"),
        ("<stdin>", "<stdin>"),
    ],
)
def test_paths_are_shortened(file, short):
    assert shorten(file, Path("/work")) == short
