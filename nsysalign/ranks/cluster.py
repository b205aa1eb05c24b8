"""Traces on the disks of a Dask cluster's machines: each is analysed on its own machine, and only its summary is transferred.

    here                          a worker of each machine
    paths ----------------------> what lies there under these paths
    sources, each with its hosts <----
    a job per trace ------------> one of the trace's own hosts analyses it and writes its pages there
    summaries <------------------

Where machines share a file system every worker sees the same files: then any of them may have any job, and all results
lie in one folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsysalign import __version__
from nsysalign.errors import NsysAlignError, TraceError, UsageError
from nsysalign.ranks.results import Source
from nsysalign.ranks.sources import find, numbered

if TYPE_CHECKING:
    from nsysalign.ranks.spread import Cluster

#: What identifies a file on all machines that share it: size, modification time (ns), inode.
Identity = tuple[int, int, int]


@dataclass(frozen=True)
class Seen:
    """What a machine sees under the given paths."""

    version: str
    sources: tuple[tuple[Source, Identity], ...]
    error: str  # why there are none
    shared: bool  # whether it sees the folder of the results


@dataclass(frozen=True)
class Place:
    """Where a trace is analysed: on any of these hosts (none: on any at all), into `folder` on the host's own disk (None:
    into the folder of the results, which it sees)."""

    hosts: tuple[str, ...] = ()
    folder: Path | None = None


#: On any worker, into the folder of the results.
ANYWHERE = Place()


def look(paths: Sequence[Path], logs: Sequence[Path], mark: Path) -> Seen:
    """What this machine sees.  `mark` is a file that has just been created in the folder of the results."""
    there = [path for path in paths if path.exists()]
    try:
        sources = find(there, [log for log in logs if log.exists()]) if there else ()
    except NsysAlignError as error:
        return Seen(__version__, (), error.message, mark.exists())
    known = tuple((source, _identity(source.trace)) for source in sources)
    return Seen(__version__, known, "" if known else "nothing lies under these paths", mark.exists())


def _identity(path: Path) -> Identity:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def placed(
    cluster: Cluster, paths: Sequence[Path], logs: Sequence[Path], output: Path
) -> list[tuple[Source, Place]]:
    """Every trace that a machine of the cluster sees under these absolute paths, once, with its place.

    Raises TraceError if no machine sees any, UsageError if a machine has no nsysalign, or another version.
    """
    mark = output / f".{secrets.token_hex(8)}"
    mark.touch()
    try:
        seen = cluster.ask(look, paths, logs, mark)
    finally:
        mark.unlink()
    _refuse_unlike(seen)
    if not any(s.sources for s in seen.values()):
        said = "; ".join(f"{host}: {s.error}" for host, s in sorted(seen.items()))
        raise TraceError(
            f"no machine of the cluster sees a trace under these paths ({said})",
            "give the paths that the traces have on the workers' machines",
        )
    return _merged(seen, output.with_name(f"{output.name}-{mark.name[1:]}"))


def _refuse_unlike(seen: Mapping[str, Seen]) -> None:
    others = sorted({s.version for s in seen.values()} - {__version__})
    if others:
        raise UsageError(
            f"the cluster's workers have nsysalign {', '.join(others)}, this is {__version__}",
            "install one version on all machines",
        )


def _merged(seen: Mapping[str, Seen], private: Path) -> list[tuple[Source, Place]]:
    """One source for a file that several machines share; names that several files have are numbered."""
    hosts: dict[tuple[Path, Identity], list[str]] = {}
    sources: dict[tuple[Path, Identity], Source] = {}
    for host, what in sorted(seen.items()):
        for source, identity in what.sources:
            hosts.setdefault((source.trace, identity), []).append(host)
            sources.setdefault((source.trace, identity), source)
    names = numbered(source.name for source in sources.values())
    found = []
    for (key, source), name in zip(sources.items(), names, strict=True):
        shared = tuple(host for host in hosts[key] if seen[host].shared)
        mine = shared or tuple(hosts[key])
        everywhere = set(mine) == set(seen)  # including machines that join the cluster later
        place = Place(() if everywhere and shared else mine, None if shared else private)
        found.append((replace(source, name=name), place))
    return found
