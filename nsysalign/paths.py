"""What may leave the machine: no home directories, no absolute paths."""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from pathlib import PurePosixPath, PureWindowsPath

#: An absolute path inside a text: `/a/b`, `~/a/b`, `C:\\a\\b`.  Not `and/or`, not `/layer0`, not a
#: web address.
_ABSOLUTE = re.compile(
    r"""(?<![\w.:/~\\-])(?:~?/+(?:[^\s/:'"<>|,;()]+/+)+|[A-Za-z]:[\\/]+(?:[^\s/\\:'"<>|,;()]+[\\/]+)+)"""
)


#: Folders whose subfolders are named after users.
HOMES = frozenset({"home", "homes", "users", "user", "u", "people", "staff", "students", "scratch", "fsx", "fsw", "lustre", "nfs"})  # fmt: skip

#: The same between quotes, where a name may contain spaces.
_QUOTED = re.compile(
    r"""(?<=['"])(?:~?/+(?:[^/'"]+/+)+|[A-Za-z]:[\\/]+(?:[^\\/'"]+[\\/]+)+)(?=[^\\/'"]*['"])"""
)


def without_paths(text: str) -> str:
    """The text with every absolute path cut to its last part."""
    return _ABSOLUTE.sub("", _QUOTED.sub("", text))


@lru_cache(maxsize=1 << 12)  # a log names the same few places again and again
def short_path(file: str) -> str:
    """A file's name for others: unchanged if relative, else its folder's name and its own.  The
    folder's name is left out if it may be a user's: below a folder of home directories
    (`/mnt/home/me/x.py`), second from the root (`/fsx/me/x.py`), or the name of the current user.
    """
    if not file.startswith(("/", "\\")) and file[1:2] != ":":
        return file
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
