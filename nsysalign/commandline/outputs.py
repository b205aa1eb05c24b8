"""Output files and folders, checked before the work, not after it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console


def refuse_unwritable(file: str | Path) -> None:
    """Raises OutputError if a file of that name cannot be written."""
    path = Path(file)
    folder = path.parent
    if path.is_dir():
        raise OutputError(f"{path}: is a folder, not a file", "choose a file in it")
    if not folder.is_dir():
        raise OutputError(
            f"{path}: cannot be written (there is no folder {folder})", f"mkdir -p {folder}"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputError(
            f"{path}: cannot be written (permission denied)", "choose a file elsewhere"
        )


def deliver(document: str | Path, target: str | None) -> None:
    """A document, as text or as the file that holds it, to stdout ("-"), to a file, or nowhere."""
    if target == "-":
        text = document if isinstance(document, str) else document.read_text("utf-8")
        click.echo(text.removesuffix("\n"))
    elif target and isinstance(document, Path):
        shutil.copyfile(document, target)
    elif target:
        Path(target).write_text(f"{document}\n", encoding="utf-8")


def console() -> Console:
    """Where tables are printed."""
    from rich.console import Console

    return Console(highlight=False)


def folder_for(path: Path) -> Path:
    """The folder, created if necessary.  Raises OutputError if nothing can be written in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be made ({error.strerror})", "choose another folder: -o DIR"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path}: cannot be written (permission denied)", "choose another folder: -o DIR"
        )
    return path
