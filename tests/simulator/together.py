"""One process that works on several devices or in several contexts: worlds of one process id,
written as one."""

from __future__ import annotations

import json
from pathlib import Path

from . import export
from .eventlog import log_lines
from .style import Style
from .world import World

_APART = 10_000  # more calls and records than any program here makes


def renumbered(world: World, number: int) -> World:
    """The same with call, event and record numbers of its own, as one process gives them."""
    world.context = number + 1
    for call in world.calls:
        call.correlation += _APART * number
        call.event += _APART * number if call.event >= 0 else 0
    for record in world.records:
        record.event += _APART * number
        record.sync_id += _APART * number
    for numbered in (*world.records, *world.waits):
        numbered.seq += _APART * number if numbered.seq >= 0 else 0
    return world


def write(
    worlds: list[World], folder: Path, style: Style, drop: tuple[str, ...] = ()
) -> tuple[Path, list[Path]]:
    """-> (trace, [log]); `drop` takes keys away from the log's records."""
    worlds = [renumbered(world, number) for number, world in enumerate(worlds)]
    trace, (log, *_) = export.write(worlds, folder, style)
    head, *lines = [line for world in worlds for line in log_lines(world, style)]
    lines = [{k: v for k, v in x.items() if k not in drop} for x in lines if x["type"] != "header"]
    log.write_text("".join(json.dumps(line) + "\n" for line in [head, *lines]))
    return trace, [log]
