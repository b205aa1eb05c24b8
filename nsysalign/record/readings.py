"""Raw readings of the host's clocks -> `clock_site`, `clock_reading` and `host` lines of the event
log.

A site says where a clock was read and, if the source tells, which sites' values are subtracted
there.  Times are CLOCK_MONOTONIC nanoseconds; a reading of time.time() also carries its own value.
Regions with CUDA event records inside already have their intervals; the others become `host` lines
marked implicit, and what they contain decides whether they count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nsysalign.probe.slots import (
    CLOCK_BITS,
    CLOCKS,
    CONTEXT_BITS,
    MONOTONIC_CLOCKS,
    READING,
    REGION_ENTERED,
    REGION_LEFT,
)
from nsysalign.record.clockuse import Key, Source, Use

_CONTEXT, _CLOCK = (1 << CONTEXT_BITS) - 1, (1 << CLOCK_BITS) - 1
_LONGEST = 2 << 20  # a source file larger than this is data, not a benchmark


@dataclass(frozen=True)
class _Place:
    """Where a reading's value reaches code that uses it: a frame of its context, and the use.

    Variables are texts, one per variable of the program: `bench.py:8:t0`, an attribute
    `bench.py:.start`."""

    depth: int
    use: Use | None  # None: the source does not tell
    stores: frozenset[str] = frozenset()
    subtracts: frozenset[str] = frozenset()


def clock_lines(
    path: Path,
    contexts: Mapping[int, Mapping[str, Any]],
    threads: Mapping[int, int],
    strings: Mapping[int, str],
    regions_with_records: set[tuple[int, int]],
    shorten: Any,
) -> Iterator[dict[str, Any]]:
    """The lines of one process's readings.  `shorten(file)` turns a file's name into the form used
    in logs."""
    if not path.is_file() or path.is_symlink():
        return
    readings = list(_readings(path.read_bytes(), threads, strings))
    used = {line["site"] for line in readings if line["type"] == "clock_reading"}
    yield from _sites({n: c for n, c in contexts.items() if n in used}, shorten)
    for line in readings:
        if line["type"] == "clock_reading" or line.pop("key") not in regions_with_records:
            yield line


def _readings(
    data: bytes, threads: Mapping[int, int], strings: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    """Slots that were finished, in order; regions when they end."""
    open_regions: dict[int, list[tuple[int, int, int]]] = {}
    usable = len(data) - len(data) % READING.size
    for value, word, third in READING.iter_unpack(data[:usable]):
        if word == 0:
            continue
        context, clock = word & _CONTEXT, word >> CONTEXT_BITS & _CLOCK
        tid = threads.get(word >> (CONTEXT_BITS + CLOCK_BITS), -1)
        stack = open_regions.setdefault(tid, [])
        if clock == REGION_ENTERED:
            stack.append((context, third, value))
        elif clock == REGION_LEFT:
            if stack and stack[-1][:2] == (context, third) and context in strings:
                *key, began = stack.pop()
                name = f"{strings[context]}#{third}"
                yield {"type": "host", "key": tuple(key), "region": name, "t0_ns": began, "t1_ns": value, "tid": tid, "implicit": True}  # fmt: skip
        elif 1 <= clock <= len(CLOCKS):
            name = CLOCKS[clock - 1]
            line = {"type": "clock_reading", "site": context, "clock": name, "t_ns": value}
            line["tid"] = tid
            if clock > MONOTONIC_CLOCKS:
                line["value_ns"] = third
            if stack and stack[-1][0] in strings:
                line["region"] = f"{strings[stack[-1][0]]}#{stack[-1][1]}"
            yield line


def _sites(contexts: Mapping[int, Mapping[str, Any]], shorten: Any) -> Iterator[dict[str, Any]]:
    places = {number: _place(context["frames"], shorten) for number, context in contexts.items()}
    stored = frozenset().union(*(p.stores for p in places.values()))
    subtracted = frozenset().union(*(p.subtracts for p in places.values()))
    for number, context in sorted(contexts.items()):
        frames, place = context["frames"], places[number]
        line: dict[str, Any] = {"type": "clock_site", "number": number}
        shown = [f"{shorten(f[0])}:{f[1]}" for f in frames[place.depth :]]
        if shown:
            line["site"] = shown[0]
        if shown[1:]:
            line["callers"] = shown[1:]
        if frames:
            file, _, _, function, first, at, *coroutine = frames[place.depth]
            line |= {"function": f"{shorten(file)}:{first}:{function}", "position": at}
            if any(coroutine):
                line["interleaved"] = True
        if place.use is not None:
            from_others = place.subtracts & stored
            texts = {"stores": sorted(place.stores), "subtracts": sorted(from_others)}
            line |= {k: v for k, v in texts.items() if v}
            line["use"] = _word(place.use, bool(from_others), bool(place.stores & subtracted))
        yield line


def _word(use: Use, subtracts: bool, subtracted: bool) -> str:
    """How the readings of a site are used.  `subtracts`: others from it; `subtracted`: it from
    others."""
    if subtracts:
        return "difference"
    if use.kept or use.minus:  # minus: what is subtracted comes from an unknown place
        return "kept"
    if use.compared:
        return "compared"
    if subtracted:
        return "start"
    return "kept" if use.stored else "unused"


def _place(frames: list[list], shorten: Any) -> _Place:
    """Follow helpers that return their reading, or take what they subtract from it, to the frame
    that calls them."""
    for depth, (file, line, column, *_) in enumerate(frames):
        source = _source(file)
        use = source.use(line, column) if source else None
        if use is None:
            return _Place(depth, None)
        passed = _passed(source, use, frames[depth + 1 : depth + 2])
        if use.minus or not use.returned:
            minus = use.minus - set(passed)
            subtracts = {_text(file, key, shorten) for key in minus} | {
                _text(frames[depth + 1][0], key, shorten) for key in passed.values()
            }
            stores = frozenset(_text(file, key, shorten) for key in use.stored)
            return _Place(depth + bool(passed and not minus), use, stores, frozenset(subtracts))
    return _Place(max(len(frames) - 1, 0), None)


def _passed(source: Source, use: Use, caller: list[list]) -> dict[Key, Key]:
    """The caller's arguments for those subtracted values that are parameters."""
    above = _source(caller[0][0]) if caller else None
    if above is None:
        return {}
    known = {key: p for key in use.minus if (p := source.parameter(key)) is not None}
    found = {key: above.argument(caller[0][1], caller[0][2], p) for key, p in known.items()}
    return {key: argument for key, argument in found.items() if argument is not None}


def _text(file: str, key: Key, shorten: Any) -> str:
    """A variable as text.  Of a subscript only a digest: the brackets may contain anything."""
    kind, scope, text = key
    if kind == "attribute":
        return f"{shorten(file)}:.{text}"
    if kind == "subscript":
        text = f"[{hashlib.blake2s(text.encode(), digest_size=6).hexdigest()}]"
    return f"{shorten(file)}:{scope}:{text}"


@cache
def _source(file: str) -> Source | None:
    """The parsed file, None if it cannot be read."""
    try:
        path = Path(file)
        if file.startswith("<") or not path.is_file() or path.stat().st_size > _LONGEST:
            return None
        return Source(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
