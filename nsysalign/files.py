"""Writes result files, which appear whole or not at all, and makes safe file names."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` if the block succeeds, and is removed if not."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The same folder, because os.replace is atomic only within one file system.
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes the file private; a report is as readable as any other file its owner
        # writes.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8; the file appears whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, compressed if the name ends in .gz; the file appears whole or not at
    all."""
    # a lone surrogate (from a file name that is not UTF-8) is written as in JSON: \udcff
    form = {"mode": "wt", "encoding": "utf-8", "errors": "backslashreplace"}
    if path.suffix == ".gz":  # level 1 takes a tenth of the time that making the lines takes
        form["compresslevel"] = 1
    opener = gzip.open if path.suffix == ".gz" else open
    with replacing(path) as temporary, opener(temporary, **form) as file:
        file.writelines(f"{line}\n" for line in lines)


#: Names that Windows gives to devices.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def file_name(text: str, longest: int = 80) -> str:
    """A label as part of a file name: letters, digits, dot, dash and underscore; never a path, a
    device or an option.

    A changed name gets a digest of the whole label, so that two labels never share a file.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:longest].strip("._-")
    plain = "label" if not plain or _RESERVED.match(plain) else plain
    if plain == text:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain}_{digest}"
