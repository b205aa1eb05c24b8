"""The recordings of tests/data and the demo's, as files."""

from __future__ import annotations

import lzma
import tarfile
from importlib.resources import files
from pathlib import Path

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


def untar(packed: Path, folder: Path) -> None:
    """Unpack a run directory.  Pythons before 3.11.4 know no filter, those from 3.12 on ask for one."""
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(packed) as archive:
        archive.extractall(folder, **safely)
