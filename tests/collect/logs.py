"""Event logs as they are: `fakegpu` reads them in a process of its own after each export, and imports nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path


def read_log(path: Path) -> list[dict]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.splitlines()]
