"""Whether a change of the code changed a number: every table of every recording, kept and compared.

    python scripts/same_numbers.py keep BEFORE tests/data ../shared/data      on one commit
    python scripts/same_numbers.py keep AFTER tests/data ../shared/data       on the other
    python scripts/same_numbers.py compare BEFORE AFTER

A recording is NAME.sqlite[.xz] with NAME.events.jsonl[.xz] and NAME.baseline.jsonl[.xz] where they
are, or a run directory, packed (.tar.xz) or not.  `compare` names the first rows of each table that differ,
and ends with 1 if there are any.
"""

from __future__ import annotations

import dataclasses
import lzma
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import nsysalign.engine  # noqa: F401  in the order in which modules find each other

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from recordings import untar


def recordings(folder: Path) -> Iterator[Path]:
    """Exports and run directories, packed or not, anywhere below a folder, by name."""
    ends = ("sqlite", "sqlite.xz", "tar.xz", "cupti")
    yield from sorted(p for end in ends for p in folder.rglob(f"*.{end}"))


def inputs(
    recording: Path, room: Path
) -> Iterator[tuple[str, Path, list[Path], list[Path], Path | None]]:
    """(name, trace, logs, logs without nsys, clock samples) of what a recording holds, unpacked
    into `room`."""
    if recording.name.endswith(".tar.xz"):
        untar(recording, room)
        for trace in sorted(room.rglob("*.sqlite")):
            yield f"{recording.name}:{trace.relative_to(room)}", *_of_run(trace)
        return
    if recording.name in ("trace.sqlite", "trace.cupti"):
        run = recording.parent  # of programs that each have a folder, all are called "run"
        yield f"{run.parent.name}-{run.name}:{recording.name}", *_of_run(recording)
        return
    stem = recording.name.removesuffix(".xz").removesuffix(".sqlite")

    def beside(what: str) -> list[Path]:
        found = (recording.with_name(f"{stem}.{what}.jsonl{end}") for end in ("", ".xz"))
        return [_unpacked(p, room) for p in found if p.exists()][:1]

    yield recording.name, _unpacked(recording, room), beside("events"), beside("baseline"), None


def _of_run(trace: Path) -> tuple[Path, list[Path], list[Path], Path | None]:
    home = trace.parent
    logs = sorted([*home.glob("events-*.jsonl"), *home.glob("events-*.jsonl.gz")])
    baseline = sorted((home / "baseline").glob("events-*.jsonl*"))
    clocks = home / "clocks.jsonl"
    return trace, logs, baseline, clocks if clocks.exists() else None


def _unpacked(path: Path, room: Path) -> Path:
    if path.suffix != ".xz":
        return path
    target = room / path.stem
    with lzma.open(path) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)
    return target


def numbers(
    trace: Path, logs: list[Path], baseline: list[Path], clocks: Path | None
) -> dict[str, Any]:
    """Everything in an analysis, by the name of its field: tables, and else text, as its class may have changed."""
    import nsysalign

    analysis = nsysalign.analyze(trace, logs, baseline=baseline if logs else (), clocks=clocks)
    analysis = dataclasses.replace(analysis, trace=dataclasses.replace(analysis.trace, path=""))
    found = {f.name: getattr(analysis, f.name) for f in dataclasses.fields(analysis)}
    return {n: v if isinstance(v, pd.DataFrame) else repr(v) for n, v in found.items()}


def keep(out: Path, folders: list[Path]) -> None:
    """One pickle per recording: made and read by this script alone."""
    out.mkdir(parents=True, exist_ok=True)
    for folder, recording in ((f, r) for f in folders for r in recordings(f)):
        with tempfile.TemporaryDirectory() as room:
            for name, *what in inputs(recording, Path(room)):
                try:
                    found = numbers(*what)
                except Exception as error:  # what cannot be analysed is to fail in the same words
                    found = {"error": repr(error), "trace": None}
                key = f"{folder.name}-{recording.parent.name}-{name}".replace("/", "_")
                (out / f"{key}.pickle").write_bytes(pickle.dumps(found))
                print(key, len(found.get("intervals", ())), found.get("error", ""), flush=True)


def differences(before: Any, after: Any) -> list[str]:
    """What differs between two values of one field, in words."""
    if not isinstance(before, pd.DataFrame) or not isinstance(after, pd.DataFrame):
        same = repr(before) == repr(after)
        return [] if same else [f"{str(before)[:300]} -> {str(after)[:300]}"]
    if list(before.columns) != list(after.columns):
        return [f"columns {list(before.columns)} -> {list(after.columns)}"]
    if len(before) != len(after):
        return [f"{len(before)} rows -> {len(after)}"]
    said = []
    for column in before.columns:
        pairs = enumerate(zip(before[column].tolist(), after[column].tolist(), strict=True))
        if changed := [(n, a, b) for n, (a, b) in pairs if repr(a) != repr(b)]:
            n, a, b = changed[0]
            of = f"{len(changed)} of {len(before)} rows"
            said.append(f"{column}: {of}, first {n}: {a!r} -> {b!r}")
    return said


def compare(before: Path, after: Path) -> int:
    """Print what differs; the number of differences."""
    names = sorted({p.name for p in [*before.glob("*.pickle"), *after.glob("*.pickle")]})
    found = 0
    for name in names:
        if not ((before / name).exists() and (after / name).exists()):
            print(f"{name}: only in {before if (before / name).exists() else after}")
            found += 1
            continue
        old, new = (pickle.loads((folder / name).read_bytes()) for folder in (before, after))
        for field in sorted({*old, *new}):
            for line in differences(old.get(field), new.get(field)):
                print(f"{name}: {field}: {line}")
                found += 1
    print(f"{len(names)} recordings, {found} differences")
    return found


if __name__ == "__main__":
    command, *paths = sys.argv[1:] or ["help"]
    if command == "keep" and len(paths) > 1:
        keep(Path(paths[0]), [Path(folder) for folder in paths[1:]])
    elif command == "compare" and len(paths) == 2:
        sys.exit(1 if compare(*map(Path, paths)) else 0)
    else:
        sys.exit(__doc__)
