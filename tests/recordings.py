"""The recordings of tests/data and the demo's, as files, and the analyses of them."""

from __future__ import annotations

import fcntl
import lzma
import pickle
import tarfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nsysalign.model import Analysis

DATA = Path(__file__).parent / "data"
#: For the fixture `puzzle`, always in this order.
PUZZLES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("puzzles/*.tar.xz"))


def unpack(
    name: str, folder: Path, trace: str = "trace.sqlite", log: str = "events-1.jsonl"
) -> tuple[Path, Path]:
    """(trace, event log) of `demo` or of a recording of tests/data."""
    source = files("nsysalign.demo") if name == "demo" else DATA
    for suffix, target in (("sqlite", trace), ("events.jsonl", log)):
        packed = source.joinpath(f"{name}.{suffix}.xz").read_bytes()
        (folder / target).write_bytes(lzma.decompress(packed))
    return folder / trace, folder / log


def unpack_cupti(name: str, folder: Path) -> Path:
    """A run directory with a recording of our recorder."""
    folder.mkdir(exist_ok=True)
    for end, file in (("cupti", "trace.cupti"), ("events.jsonl", "events-1.jsonl")):
        packed = DATA / "recorder" / f"{name}.{end}.xz"
        if packed.exists():
            (folder / file).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


def untar(packed: Path, folder: Path) -> None:
    """Unpack a run directory.  Pythons before 3.11.4 know no filter, those from 3.12 on ask for one."""
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(packed) as archive:
        archive.extractall(folder, **safely)


class Recorded(NamedTuple):
    """A recording that is analysed, with the segments of all intervals. Who writes to its files unpacks their own."""

    folder: Path
    trace: Path
    logs: list[Path]
    analysis: Analysis


def analysed(name: str, room: Path, *, baseline: bool = False) -> Recorded:
    """A puzzle, a recording of tests/data, one of our recorder or the demo, analysed once for all processes
    that share `room`."""
    folder = room / f"{name}{'-with-baseline' * baseline}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = folder / "analysis.pickle"
        if not kept.exists():
            unfinished = folder / "unfinished"
            unfinished.write_bytes(pickle.dumps(_analysis(name, folder / "run", baseline)))
            unfinished.rename(kept)
    run = folder / "run"
    (trace,) = (path for path in run.glob("trace.*") if path.suffix in (".sqlite", ".cupti"))
    analysis = pickle.loads(kept.read_bytes())  # anew each time: no test sees what another changed
    return Recorded(run, trace, sorted(run.glob("events*.jsonl")), analysis)


def _analysis(name: str, folder: Path, baseline: bool) -> Analysis:
    from nsysalign.engine import analyze

    folder.mkdir(exist_ok=True)
    puzzle = DATA / "puzzles" / f"{name}.tar.xz"
    if puzzle.is_file():
        untar(puzzle, folder)
        return analyze(folder, all_segments=True)
    if (DATA / "recorder" / f"{name}.cupti.xz").is_file():
        return analyze(unpack_cupti(name, folder), all_segments=True)
    trace, log = unpack(name, folder)
    beside = folder / "without-nsys.jsonl"
    if baseline:
        beside.write_bytes(lzma.decompress((DATA / f"{name}.baseline.jsonl.xz").read_bytes()))
    return analyze(trace, events=[log], baseline=[beside] * baseline, all_segments=True)
