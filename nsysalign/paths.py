"""What may leave the machine, and be shown: no home directories, no absolute paths, no name as long as
a book."""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache, lru_cache
from pathlib import PurePosixPath, PureWindowsPath


def _folders(but: str) -> str:
    """A pattern of how an absolute path begins, and its folders: `/a/b/`, `~me/a/`, `file:///a/b/`,
    `C:\\a\\b\\`.  `but`: characters that no folder's name has."""
    unix = rf"(?:file:|~)?/+(?:[^/{but}]+/+)+|~[\w.-]+/+(?:[^/{but}]+/+)*"
    windows = rf"(?:file:/+)?[A-Za-z]:[\\/]+(?:[^/\\{but}]+[\\/]+)+"
    return f"(?:{unix}|{windows})"


#: An absolute path inside a text, but for its last part.  Not `and/or`, not `/layer0`, not a web
#: address.
_ABSOLUTE = re.compile(r"(?<![\w.:/~\\-])" + _folders(r"""\s:'"<>|,;()"""))
#: The same between quotes, where a name may contain spaces.
_QUOTED = re.compile(r"""(?<=['"])""" + _folders("'\"") + r"""(?=[^\\/'"]*['"])""")
#: The same as a part of an address: `%2Fa%2Fb%2F`.
_ESCAPED = re.compile(
    r"(?<![\w.%/-])(?:file:)?(?:%2F[^\s%/]*(?:%(?!2F)[^\s%/]*)*)+%2F", re.IGNORECASE
)
#: Folders whose subfolders are named after users.
HOMES = frozenset({"home", "homes", "users", "user", "u", "people", "staff", "students", "scratch", "fsx", "fsw", "lustre", "nfs"})  # fmt: skip


def without_paths(text: str) -> str:
    """The text with every absolute path cut to its last part."""
    if "/" not in text and "\\" not in text and "%" not in text:
        return text
    return _ESCAPED.sub("", _ABSOLUTE.sub("", _QUOTED.sub("", text)))


@lru_cache(maxsize=1 << 12)  # a log names the same few places again and again
def short_path(file: str) -> str:
    """A file's name for others: unchanged if relative, else its folder's name and its own.  The
    folder's name is left out if it may be a user's: below a folder of home directories
    (`/mnt/home/me/x.py`), second from the root (`/fsx/me/x.py`), or the name of the current user.
    """
    if not file.startswith(("/", "\\")) and file[1:2] != ":":
        return without_paths(file)
    path = PureWindowsPath(file) if re.match(r"[A-Za-z]:[\\/]|\\\\", file) else PurePosixPath(file)
    if not path.is_absolute():
        return file
    parts = path.parts
    if len(parts) in (1, 2, 4) or parts[-3].lower() in HOMES or parts[-2] in _own_names():
        return parts[-1]
    return "/".join(parts[-2:])


@cache
def _own_names() -> frozenset[str]:
    """Names that the user's own folder may have."""
    given = (os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME"))
    return frozenset({"root", os.path.basename(os.path.expanduser("~")), *given})


LONGEST_NAME = 1_000
_REPETITION = re.compile(r"#\d{1,15}\Z")


def shortened(name: str) -> str:
    """A name of at most LONGEST_NAME characters: a longer one keeps its beginning and its
    repetition number, with a digest in between that distinguishes it from others."""
    if len(name) <= LONGEST_NAME:
        return name
    found = _REPETITION.search(name, len(name) - 16)
    stem, number = (name[: found.start()], found[0]) if found else (name, "")
    digest = hashlib.blake2s(stem.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{stem[: LONGEST_NAME - 40]}… {digest}{number}"


@lru_cache(maxsize=1 << 16)  # names repeat by the thousand
def presentable(name: str) -> str:
    """The same without absolute paths: what ranges, regions and kernels are called in every
    output."""
    return shortened(without_paths(name))
