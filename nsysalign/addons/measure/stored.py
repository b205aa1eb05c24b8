"""A measurement on disk: what `report`, `diff` and `redact` need to know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def diff(options: dict[str, Any]) -> tuple[set[str], bool]:
    """Compare two measurements as `nsysalign diff` does; `options` are that command's.  Returns
    the verdicts, and whether B lacks a batch of A."""
    from nsysalign.addons.measure import merge, page, terminal
    from nsysalign.addons.measure.result import load
    from nsysalign.commandline.outputs import console, deliver
    from nsysalign.paths import short_path
    from nsysalign.store.objects import to_json

    before, after, output = options["before"], options["after"], options["output"]
    threshold = options["threshold"] / 100
    a, b = load(before), load(after)
    both = merge.merged(a, b, (short_path(str(before)), short_path(str(after))))
    found = both.changes(threshold)
    if output:
        page.write(both, output)
    if options["json_out"]:
        deliver(to_json(merge.document(both, found, threshold)), options["json_out"])
    if not options["quiet"] and options["json_out"] != "-":
        terminal.render_changes(both, found, console(), str(output) if output else "")
    missing = {p.batch for p in a.points} - {p.batch for p in b.points}
    return {c.verdict for c in found}, bool(missing)
