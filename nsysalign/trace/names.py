"""Names from files that may come from anyone: without paths, short enough for tables, pages and
terminals."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from nsysalign.paths import without_paths

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
