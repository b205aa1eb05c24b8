"""A measurement on disk: what `report`, `diff` and `redact` need to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysalign.errors import UsageError
from nsysalign.untrusted import open_regular

if TYPE_CHECKING:
    from nsysalign.addons.measure.result import Measure

#: Its file, and the format that the file names in its first bytes.
MEASUREMENT, FORMAT = "measure.json", "nsysalign-measure"
DIFF_FORMAT, DIFF_VERSION = "nsysalign-measure-diff", 1
#: What must be equal for a change to be due to the code.
MACHINE = (("device", "GPU"), ("torch", "torch"), ("cuda", "CUDA"))


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
    from nsysalign.addons.measure import page, terminal
    from nsysalign.addons.measure.result import load
    from nsysalign.commandline.outputs import console, deliver
    from nsysalign.paths import short_path
    from nsysalign.store.objects import to_json

    before, after, output = options["before"], options["after"], options["output"]
    threshold = options["threshold"] / 100
    a, b = load(before), load(after)
    both = merged(a, b, (short_path(str(before)), short_path(str(after))))
    changes = both.changes(threshold)
    if output:
        page.write(both, output)
    if options["json_out"]:
        sides = {"before": both.targets[0], "after": both.targets[1], "threshold": threshold}
        rows = {"remarks": list(both.notes), "changes": [c._asdict() for c in changes]}
        document = {"format": DIFF_FORMAT, "version": DIFF_VERSION, **sides, **rows}
        deliver(to_json(document), options["json_out"])
    if not options["quiet"] and options["json_out"] != "-":
        terminal.render_changes(both, changes, console(), str(output) if output else "")
    missing = {p.batch for p in a.points} - {p.batch for p in b.points}
    return {c.verdict for c in changes}, bool(missing)


def merged(a: Measure, b: Measure, names: tuple[str, str]) -> Measure:
    """A measurement whose first target is `a`'s and whose second is `b`'s.  UsageError where one of
    them has two."""
    for side, name in ((a, names[0]), (b, names[1])):
        if len(side.targets) != 1:
            raise UsageError(
                f"{name} compares two functions already", "name measurements of one function each"
            )
    shift = 1 + max((r.number for r in a.runs), default=0)
    modes = list(dict.fromkeys([*a.options["modes"], *b.options["modes"]]))
    return replace(
        a,
        targets=tuple(f"{n} ({m.targets[0]})" for n, m in zip(names, (a, b), strict=True)),
        options={**a.options, "modes": modes},
        runs=(*a.runs, *(replace(r, number=r.number + shift, target=1) for r in b.runs)),
        blocks=(*a.blocks, *(replace(x, run=x.run + shift) for x in b.blocks)),
        profiles=(*a.profiles, *(replace(p, target=1) for p in b.profiles)),
        search={},
        notes=(*_remarks(a, b), *(f"A: {n}" for n in a.notes), *(f"B: {n}" for n in b.notes)),
        complete=a.complete and b.complete,
    )


def _remarks(a: Measure, b: Measure) -> Iterator[str]:
    """What differs apart from the code."""
    for key, name in MACHINE:
        sides = [str(m.environment.get(key, "")) or "unknown" for m in (a, b)]
        if sides[0] != sides[1]:
            yield f"{name} differs: {sides[0]} and {sides[1]}"
    if only := {p.batch for p in a.points} ^ {p.batch for p in b.points}:
        yield f"{len(only)} batch sizes were measured in one of them only, and are not compared"
