"""Secrets, planted where nsys puts the real ones, and a search that finds them however they were
written."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from tiny_export import write_lines

TESTS = Path(__file__).parents[1]


def spellings(secret: str) -> set[bytes]:
    """A secret as it may stand in a file: plain, UTF-16, in JSON, in base64 at each of the three
    offsets."""
    raw = secret.encode()
    escaped = json.dumps(secret)[1:-1].encode()
    hard = "".join(f"\\u{ord(c):04x}" for c in secret).encode()
    found = {raw, secret.encode("utf-16-le"), escaped, escaped.replace(b"/", b"\\/"), hard}
    for shift in range(3):
        # only the characters that depend on nothing but the secret
        code = base64.b64encode(b"\0" * shift + raw)
        found.add(code[(0, 2, 3)[shift] : len(code) - 4].rstrip(b"="))
    return found


def leaks(folder: Path, secrets: dict[str, str]) -> list[str]:
    """`file: which secret` for every file below a folder (raw bytes, and unpacked where it is
    gzip)."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data += gzip.decompress(data)
        for what, secret in secrets.items():
            if any(form in data for form in spellings(secret)):
                found.append(f"{path.relative_to(folder)}: {what}")
    return found


@pytest.fixture(scope="session", autouse=True)
def search_that_works(tmp_path_factory) -> None:
    """The search itself finds what there is to find."""
    folder, secret = tmp_path_factory.mktemp("search"), "/home/al/s3cr3t"
    (folder / "a").write_text(json.dumps({"a": secret}))
    (folder / "b").write_bytes(base64.b64encode(b"xy" + secret.encode() + b"z"))
    (folder / "c.gz").write_bytes(gzip.compress(secret.encode()))
    (folder / "d").write_text("".join(f"\\u{ord(c):04x}" for c in secret))
    (folder / "e").write_text("/home/al/other")
    assert [line[0] for line in leaks(folder, {"it": secret})] == ["a", "b", "c", "d"]


@pytest.fixture
def log(tmp_path) -> Path:
    """Two records, 170 us apart, and their elapsed_time."""
    return write_lines(tmp_path / "events-7.jsonl")
