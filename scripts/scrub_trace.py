"""Copy a recorded run for the tests: the tables that are read, whole, without environment, host or
user names.

    python scripts/scrub_trace.py TRACE.sqlite EVENTS.jsonl OUT_STEM [BASELINE_EVENTS.jsonl]

Writes OUT_STEM.sqlite.xz, OUT_STEM.events.jsonl.xz and OUT_STEM.baseline.jsonl.xz.
"""

from __future__ import annotations

import lzma
import sqlite3
import sys
import tempfile
from pathlib import Path

from make_demo import write

ALWAYS = [(-(1 << 62), 1 << 62)]


def main() -> None:
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    trace, events, stem, *baseline = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "trace.sqlite"
        write(sqlite3.connect(f"file:{trace}?mode=ro", uri=True), copy, ALWAYS)
        target = sqlite3.connect(copy)
        with target:
            target.execute(
                "delete from META_DATA_EXPORT where name not like 'EXPORT_SCHEMA%' and name not like 'EXPORT_PRODUCT%'"
            )
        target.execute("vacuum")
        target.close()
        parts = {".sqlite": copy.read_bytes(), ".events.jsonl": events.read_bytes()}
        if baseline:
            parts[".baseline.jsonl"] = baseline[0].read_bytes()
    for suffix, data in parts.items():
        path = stem.with_name(stem.name + suffix + ".xz")
        path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
