"""What may leave the machine, and be shown: no home directories, no absolute paths, no name as long as
a book."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import PurePosixPath, PureWindowsPath

#: Folders whose subfolders are named after users.
HOMES = frozenset({"home", "homes", "users", "user", "u", "people", "staff", "students", "scratch", "fsx", "fsw", "lustre", "nfs"})  # fmt: skip
#: Of these, those that are named so for no other reason.
_SURELY_HOMES = frozenset({"home", "homes", "users", "user", "people", "staff", "students"})
#: With which absolute paths begin that stand right behind a bracket, or a letter of another script.
_ROOTS = "|".join(sorted({*HOMES, "data", "export", "gpfs", "media", "mnt", "opt", "private", "root", "srv", "storage", "tmp", "usr", "var", "work", "workspace"}))  # fmt: skip
#: Words that are names of users or machines, and say nothing of either.
_COMMON = frozenset({"", "admin", "app", "container", "docker", "home", "host", "local", "localhost", "nobody", "root", "runner", "test", "ubuntu", "user", "users", "work"})  # fmt: skip


def _path(no_part: str, part: str) -> str:
    """A pattern of absolute paths: groups `folders` and `last`.  `no_part`: characters that no part's
    name has; `part`: those that end the last one, too."""
    name = rf"[^/\\{no_part}]+"
    begins = (
        rf"(?:file:|~)?/+(?:[^/{no_part}]+/+)+",  # /a/b/  ~/a/  file:///a/b/
        rf"~[\w.-]*/+(?:[^/{no_part}]+/+)*",  # ~me/a/
        rf"\$\{{?\w+\}}?[\\/]+(?:{name}[\\/]+)*",  # $HOME/a/  ${{HOME}}/
        rf"%\w+%[\\/]+(?:{name}[\\/]+)*",  # %USERPROFILE%\a\
        rf"(?:file:/+)?[A-Za-z]:[\\/]+(?:{name}[\\/]+)+",  # C:\a\
        rf"\\{{2,8}}(?:{name}[\\/]+)+",  # \\server\share\
    )
    return rf"(?P<folders>{'|'.join(begins)})(?P<last>[^/\\{no_part}{part}]*)"


_UNQUOTED = r"""\s:'"<>|,;()"""
#: An absolute path inside a text.  Not `and/or`, not `/layer0`, no division.
_ABSOLUTE = re.compile(r"(?<![\w.:/~\\)\]}-])" + _path(_UNQUOTED, r"\]\}"))
#: The same behind a colon: `ckpt:/a/b`, the second of `/a/b:/c/d`.
_SECOND = re.compile(r"(?<=:)(?!//\w)" + _path(_UNQUOTED, r"\]\}"))
#: The same between quotes, where a name may contain spaces.
_QUOTED = re.compile(r"""(?<=['"])""" + _path("'\"", "") + r"""(?=['"])""")
#: The same behind any other character, if it begins as such paths do; `-I/a/b`.
_GLUED = re.compile(
    rf"(?:(?<=[^\x00-\x7f)\]}}~.\\-])(?<![A-Za-z0-9_])(?=/{{1,4}}(?:{_ROOTS})/)"
    r"|(?=/{1,4}(?:home|homes|Users|export/home)/[^/\s])|(?<=(?<![\w-])-[A-Z]))" + _path(_UNQUOTED, r"\]\}")
)  # fmt: skip
#: An address with its scheme; the name of a user on a machine, before a path.
_ADDRESS = re.compile(
    r"""(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20})://(?P<host>[^\s/?#'"<>|,;()]*)(?P<path>/[^\s?#'"<>|,;()]*)?"""
    r"""(?P<more>[?#][^\s'"<>|,;()]*)?"""
)
_LOGIN = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w.-]{1,255}:(?=[/~])")
_OF_THE_WEB = frozenset({"http", "https", "ws", "wss", "ftp", "ftps"})
#: A file rather than a folder that is called like a user.
_FILE = re.compile(r"\.(?:py|cu|cuh|c|cc|cpp|h|hpp|so|json|jsonl|txt|log|sqlite|db|nsys-rep|qdrep|pt|pth|bin|ckpt|ya?ml|toml|csv|np[yz]|safetensors|html|gz|xz|sh)\Z")  # fmt: skip
#: A slash or a backslash as it is written in addresses, in JSON, and in HTML.
_WRITTEN = re.compile(
    r"%(?:25)*(?P<percent>2F|5C|3A)|\\u00(?P<json>2f|5c|3a)|\\x(?P<hex>2f|5c|3a)|&#(?:x(?P<html>2f|5c|3a)|(?P<number>47|92|58));|(?P<slash>(?<!\\)\\{1,8}/)",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[/\\%@$&]")


def without_paths(text: str) -> str:
    """The text with every absolute path cut to its last part; addresses have no user, no password and
    no query.  The user's own name, and the machine's, are replaced."""
    if _MARKS.search(text):
        plain = _cut(text)
        # a path that is written in another way; other texts that only look so stay as they are
        decoded = _WRITTEN.sub(_as_character, text)
        if decoded != text and (cut := _cut(decoded)) != decoded:
            plain = cut
        text = plain
    return _without_words(text, _words_of_this_machine())


def _cut(text: str) -> str:
    users = set[str]()

    def shortened_path(path: re.Match[str]) -> str:
        return _last_part(re.split(r"[\\/]+", path["folders"]), path["last"], users)

    def shortened_address(address: re.Match[str]) -> str:
        scheme, path = address["scheme"].lower(), address["path"] or ""
        if scheme == "file":
            return address[0]  # a path
        *folders, last = path.split("/")
        of_user = any(part.lower() in HOMES or part.startswith("~") for part in folders)
        if scheme in _OF_THE_WEB and not of_user:
            return f"{address['scheme']}://{address['host'].rpartition('@')[2]}{path}"
        return f"{address['scheme']}:{_last_part(folders, last, users)}"

    text = _ADDRESS.sub(shortened_address, text)
    text = _LOGIN.sub("", text)
    for pattern in (_QUOTED, _ABSOLUTE, _SECOND, _GLUED):
        text = pattern.sub(shortened_path, text)
    return _without_words(text, dict.fromkeys(users, "USER"))


def _last_part(folders: list[str], last: str, users: set[str]) -> str:
    """What stays of a path: `~` for a user's own folder.  Names of users are added to `users`."""
    names = [name for name in folders if name]
    for home, user in pairwise([*names, last]):
        if home.lower() in _SURELY_HOMES and not _FILE.search(user):
            users.add(user)
    home = bool(names) and names[-1].lower() in HOMES and bool(last)
    return "~" if home and not _FILE.search(last) else last


def _as_character(written: re.Match[str]) -> str:
    if written["slash"]:
        return "/"
    if written["number"]:
        return chr(int(written["number"]))
    kind = written.lastgroup or ""
    return chr(int(written[kind], 16))


def _without_words(text: str, words: Mapping[str, str]) -> str:
    """The text with other words for some; not in C++ names (`alice::kernel`)."""
    for word, instead in words.items():
        if len(word) > 2 and word.lower() not in _COMMON and word in text:
            text = re.sub(rf"(?<![\w:]){re.escape(word)}(?!\w|::)", instead, text)
    return text


@cache
def _words_of_this_machine() -> dict[str, str]:
    """Its name, and the user's: what stands for each."""
    host = socket.gethostname()
    words = dict.fromkeys((host, host.partition(".")[0]), "HOST")
    return words | dict.fromkeys(_own_names(), "USER")


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
        return without_paths(file)
    parts = path.parts
    if len(parts) > 2 and parts[-2].lower() in HOMES and not _FILE.search(parts[-1]):
        return "~"
    if len(parts) in (1, 2, 4) or parts[-3].lower() in HOMES or parts[-2] in _own_names():
        return parts[-1]
    return "/".join(parts[-2:])


@cache
def _own_names() -> frozenset[str]:
    """Names that the user's own folder may have."""
    names = (os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME"))
    return frozenset({"root", os.path.basename(os.path.expanduser("~")), *names})


LONGEST_NAME = 1_000
_REPETITION = re.compile(r"#\d{1,15}\Z")


def shortened(name: str) -> str:
    """A name of at most LONGEST_NAME characters: a longer one keeps its beginning and its
    repetition number, with a digest in between that distinguishes it from others."""
    if len(name) <= LONGEST_NAME:
        return name
    repetition = _REPETITION.search(name, len(name) - 16)
    stem, number = (name[: repetition.start()], repetition[0]) if repetition else (name, "")
    digest = hashlib.blake2s(stem.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{stem[: LONGEST_NAME - 40]}… {digest}{number}"


@lru_cache(maxsize=1 << 16)  # names repeat by the thousand
def presentable(name: str) -> str:
    """The same without absolute paths: what ranges, regions and kernels are called in every
    output."""
    return shortened(without_paths(name))
