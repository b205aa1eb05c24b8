"""Google's "Trace Event Format", as strictly as its importers ever were (catapult's and
Perfetto's)."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

#: phase -> (keys that it must have, keys that it may have); the format's document, sections "Event
#: Phases".
PHASES = {
    "M": ({"ph", "name", "pid", "tid", "args"}, set()),
    "X": ({"ph", "name", "pid", "tid", "ts", "dur"}, {"cat", "args", "cname"}),
    "i": ({"ph", "name", "pid", "tid", "ts", "s"}, {"cat", "args"}),
    "C": ({"ph", "name", "pid", "ts", "args"}, {"cat", "tid", "id"}),
    "s": ({"ph", "name", "cat", "id", "pid", "tid", "ts"}, {"args"}),
    "f": ({"ph", "name", "cat", "id", "pid", "tid", "ts"}, {"args", "bp"}),
}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def check(document: Any) -> None:
    """AssertionError names the first event that the format does not allow."""
    assert isinstance(document, dict) and isinstance(document["traceEvents"], list)
    assert document.get("displayTimeUnit", "ms") in ("ms", "ns")
    slices, flows, named = defaultdict(list), defaultdict(list), set()
    for event in document["traceEvents"]:
        _event(event)
        place = (event["pid"], event.get("tid"))
        if event["ph"] == "X":
            slices[place].append((_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])))
        elif event["ph"] in "sf":
            flows[event["cat"], event["name"], event["id"]].append(event)
        elif event["name"] == "thread_name":
            assert place not in named, f"two names: {event}"
            named.add(place)
    for place, items in slices.items():
        assert place in named, f"a track without a name: {place}"
        _nests(items)
    starts = defaultdict(set, {place: {a for a, _ in items} for place, items in slices.items()})
    for key, (start, end) in flows.items():  # exactly one of each, in this order
        assert (start["ph"], end["ph"]) == ("s", "f") and _ns(start["ts"]) <= _ns(end["ts"]), key
        for event in (start, end):
            # stricter than the format, which asks for a slice around it: ours begin with a slice
            assert _ns(event["ts"]) in starts[event["pid"], event["tid"]], (
                f"bound to no slice: {event}"
            )


def _event(event: Any) -> None:
    assert isinstance(event, dict) and event.get("ph") in PHASES, event
    needed, allowed = PHASES[event["ph"]]
    assert needed <= event.keys() <= needed | allowed, event
    assert (
        isinstance(event["name"], str)
        and isinstance(event["pid"], int)
        and isinstance(event.get("tid", 0), int)
    )
    for key in ("ts", "dur"):
        value = event.get(key, 0)
        assert isinstance(value, (int, float)) and math.isfinite(value) and value >= 0, event
        assert abs(value * 1000 - round(value * 1000)) < 1e-3, f"not whole nanoseconds: {event}"
    if event["ph"] == "M":
        argument, kind = METADATA[event["name"]]
        assert event["args"].keys() == {argument} and isinstance(event["args"][argument], kind), (
            event
        )
    if event["ph"] == "C":
        assert event["args"] and all(isinstance(v, (int, float)) for v in event["args"].values()), (
            event
        )
    if event["ph"] == "i":
        assert event["s"] in ("g", "p", "t"), event
    assert isinstance(event.get("args", {}), dict) and event.get("bp", "e") == "e", event


def _nests(items: list[tuple[int, int]]) -> None:
    stack: list[int] = []
    for start, end in sorted(items, key=lambda item: (item[0], -item[1])):
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], f"slices that overlap without nesting, at {start}"
        stack.append(end)


def _ns(value: float) -> int:
    return round(value * 1000)
