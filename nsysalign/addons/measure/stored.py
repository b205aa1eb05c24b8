"""A measurement on disk: what `report`, `diff` and `redact` need to know of it."""

from __future__ import annotations

from pathlib import Path

from nsysalign.untrusted import open_regular

#: Its file, and the format that the file names in its first bytes.
MEASUREMENT, FORMAT = "measure.json", "nsysalign-measure"


def holds(path: Path) -> bool:
    """Whether this is a measurement: a folder with measure.json, or such a file."""
    if path.is_dir():
        return (path / MEASUREMENT).is_file()
    if path.suffix != ".json":
        return False
    try:
        with open_regular(path) as file:
            return f'"{FORMAT}"'.encode() in file.read(200)
    except OSError:
        return False


def report(path: Path, output: Path | None) -> Path:
    """Write the page of a measurement, with numbers computed again from the samples."""
    from nsysalign.addons.measure import page
    from nsysalign.addons.measure.result import load

    measure = load(path)
    target = output or measure.folder / "measure.html"
    page.write(measure, target)
    return target
