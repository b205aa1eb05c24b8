"""Recorded runs under nsys with the event log of the same program without it."""

from __future__ import annotations

import lzma
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def unpack(stem: str, folder: Path) -> dict[str, Path]:
    """suffix -> file, of every part of a recording."""
    out = {}
    for path in DATA.glob(f"{stem}.*.xz"):
        suffix = path.name.removeprefix(f"{stem}.").removesuffix(".xz")
        out[suffix] = folder / f"trace.{suffix}"
        out[suffix].write_bytes(lzma.decompress(path.read_bytes()))
    return out
