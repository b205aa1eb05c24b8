"""A dump of marks to share: its numbers, and only the names that occur in a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsysalign.files import replacing
from nsysalign.marks import dump, layout
from nsysalign.marks.layout import name_hash

_KINDS = 4  # an id is a name's hash times this, plus the kind of mark


def redact_dump(path: Path, out: Path, rename: Callable[[str], str] | None = None) -> None:
    """Write what the analysis reads of a dump to `out`, whole or not at all; an existing file is replaced.  Names that no
    record has are left out.  `rename` gives the others new names, and the records the new hashes, so that names cannot be
    guessed.  Raises MarksError if the file is not a dump.
    """
    shared = dump.parts(path)
    shared = replace(
        shared,
        fixed=shared.fixed.copy(),
        counts=shared.counts.copy(),
        counters=shared.counters.copy(),
        body=shared.body.copy(),
    )
    regions = list(shared.regions())
    ids = [shared.counters["id"]]
    for chunks, strays in regions:
        chunks["head"]["unused"] = strays["unused"] = 0
        ids += [chunks["marks"]["id"], strays["id"]]
    shared.counters["unused"] = 0
    shared.counts[1:16] = 0
    layout.HEADER.pack_into(shared.fixed, 0, *layout.HEADER.unpack_from(shared.fixed))
    shared.fixed[layout.LINE :].view(dump.SM_LINE)["unused"] = 0

    used = np.unique(np.concatenate([np.unique(table // _KINDS) for table in ids]))
    names = {n: name for n, name in shared.about["names"].items() if n in used}
    if rename is not None:
        names, hashes = _renamed(used.tolist(), names, rename)
        for table in ids:
            table[...] = hashes[np.searchsorted(used, table // _KINDS)] * _KINDS + table % _KINDS
    about = json.dumps({**shared.about, "names": sorted(names.values())}).encode()
    about += b" " * (-(24 + len(about)) % layout.LINE)
    with replacing(out) as partial, open(partial, "wb") as file:
        file.write(
            layout.FILE_MAGIC + np.array([layout.FILE_VERSION, len(about)], "<u4").tobytes() + about
        )
        for table in (shared.fixed, shared.counts, shared.counters, shared.body):
            file.write(np.ascontiguousarray(table).data)


def _renamed(
    used: list[int], names: dict[int, str], rename: Callable[[str], str]
) -> tuple[dict[int, str], np.ndarray]:
    """(hash -> new name, new hash of each hash in use).  Numbers of __prof_trigger and marks without
    a name keep theirs; no two get the same."""
    kept = {n for n in used if n == 0 or n >= layout.TRIGGER}
    called: dict[int, str] = {}
    new = []
    for number in used:
        if number in kept:
            new.append(number)
            continue
        name = rename(names.get(number, f"{number:#010x}"))
        while name_hash(name) in called:
            name += "'"
        new.append(name_hash(name))
        called[new[-1]] = name
    return called, np.array(new, dtype=np.uint32)
