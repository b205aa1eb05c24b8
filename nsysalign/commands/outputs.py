"""Output files and folders, checked before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from nsysalign.errors import OutputError


def refuse_unwritable(file: str | Path) -> None:
    """Raises OutputError if a file of that name cannot be written."""
    path = Path(file)
    folder = path.parent
    if path.is_dir():
        raise OutputError(f"{path}: is a folder, not a file", "choose a file in it")
    if not folder.is_dir():
        raise OutputError(f"{path}: cannot be written (there is no folder {folder})", f"mkdir -p {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputError(f"{path}: cannot be written (permission denied)", "choose a file elsewhere")


def folder_for(path: Path) -> Path:
    """The folder, created if necessary.  Raises OutputError if nothing can be written in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be made ({error.strerror})", "choose another folder: -o DIR"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written (permission denied)", "choose another folder: -o DIR")
    return path
