"""Output files and folders, checked before the work, not after it; and the terminal."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.errors import AnalysisError, OutputError
from nsysalign.files import replacing

if TYPE_CHECKING:
    from rich.console import Console

#: Documents of a run, a measurement or a comparison of ranks, and what lies beside them in its
#: folder.
_OF_A_RUN = ("analysis.db", "answer.json", "measure.json", "ranks.json", "confirm.json")
_BESIDE = ("analysis.db", "trace.sqlite", "ranks.json", "run.json")
#: How our pages and documents begin.
_OURS = re.compile(
    rb'\s*\{\s*"format":\s*"nsysalign-(analysis|answer|diff|measure|measure-diff|ranks|confirm)"'
    rb'|\{"displayTimeUnit":"ns","otherData":\{"producer":"nsysalign"\}'
    rb"|<!DOCTYPE html>(?s:.{1,2000})<title>[^<]*nsysalign[^<]*</title>"
)


def refuse_overwriting(path: Path) -> None:
    """Raises OutputError if a file is there that may not be replaced: an input, one of a run,
    anything not made by us.  Links may be: what they lead to is never touched."""
    if path.is_symlink() or not path.is_file() or not path.stat().st_size:
        return
    from nsysalign.untrusted import contents, opened, tables

    head = b""
    with suppress(OSError, zlib.error):
        head = contents(path, 4096)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 4096)
    ours = bool(_OURS.match(head))
    if head.startswith(b"SQLite format 3"):
        with suppress(AnalysisError), opened(path, AnalysisError, expected="", again="") as db:
            ours = {"documentation", "intervals", "meta"} <= tables(db)[0].keys()
    if not ours:
        raise OutputError(
            f"{path}: is there already and was not made by nsysalign; it is never written over",
            "choose another name, or remove it",
        )


def refuse_unwritable(file: str | Path) -> None:
    """Raises OutputError if a file of that name, given by the user, cannot or must not be
    written."""
    path = Path(file)
    folder = path.parent
    wrong = ""
    if path.is_dir():
        wrong, instead = "is a folder, not a file", "choose a file in it"
    elif not folder.is_dir():
        wrong, instead = f"cannot be written (there is no folder {folder})", f"mkdir -p {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        wrong, instead = "cannot be written (permission denied)", "choose a file elsewhere"
    elif path.is_file() and path.name in _OF_A_RUN and any((folder / n).exists() for n in _BESIDE):
        wrong, instead = "belongs to a run, and is never written over", "choose another name"
    if wrong:
        raise OutputError(f"{path}: {wrong}", instead)
    refuse_overwriting(path)


def folder_for(path: Path) -> Path:
    """The folder, created if necessary.  Raises OutputError if nothing can be written in it."""
    why = "permission denied"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = str(error.strerror)
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written ({why})", "choose another folder: -o DIR")
    return path


def deliver(document: str | Iterable[bytes], target: str | None) -> None:
    """A document, as text or in pieces (a long one), to stdout ("-"), to a file, or nowhere; it ends
    with one line end, whether the text has its own or not."""
    if not target:
        return
    if isinstance(document, str):
        document = [document.removesuffix("\n").encode()]
    if target == "-":
        for piece in document:
            click.echo(piece, nl=False)
        click.echo()
        return
    replaceable = Path(target).is_file() or not Path(target).exists()  # no pipe, no /dev/stdout
    with (
        replacing(target) if replaceable else nullcontext(Path(target)) as path,
        path.open("wb") as file,
    ):
        file.writelines(document)
        file.write(b"\n")


def console() -> Console:
    """Where tables are printed."""
    from rich.console import Console

    return Console(highlight=False)


class ProgressLine:
    """`with ProgressLine(quiet) as tell: tell("reading the trace", 40)`: one line on stderr, on a
    terminal only, that disappears when the block ends.  While the profiled script runs there is
    none: the terminal belongs to the script."""

    def __init__(self, quiet: bool) -> None:
        self._show, self._drawn = not quiet and sys.stderr.isatty(), 0

    def __enter__(self) -> ProgressLine:
        return self

    def __call__(self, step: str, percent: int) -> None:
        if self._show:
            self._draw(f"{step} {percent} %")

    def _draw(self, line: str) -> None:
        sys.stderr.write(f"\r{line.ljust(self._drawn)}\r{line}")
        sys.stderr.flush()
        self._drawn = len(line)

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            self._draw("")
