"""Whether a path is a measurement: asked by commands that take analyses too, so nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path

from nsysalign import untrusted

FILE, FORMAT = "measure.json", "nsysalign-measure"


def is_measure(path: Path) -> bool:
    """Whether this is a measurement: a folder with measure.json, or such a file."""
    if path.is_dir():
        return (path / FILE).is_file()
    if path.suffix != ".json":
        return False
    try:
        with untrusted.open_regular(path) as file:
            return f'"{FORMAT}"'.encode() in file.read(200)
    except OSError:
        return False
