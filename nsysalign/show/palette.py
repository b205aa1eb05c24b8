"""One fixed look per cause: colour, pattern, short name; the same in terminal, tables and timeline.

The colours start from Okabe and Ito's set, which people with any colour blindness can tell apart;
thirteen causes are more than any palette can carry, so every pair that could be confused differs in
its pattern, and every wide enough piece carries its name. Related causes are neighbours in hue:
green computes, blue moves memory, yellow and orange launch, the rest waits. Source:
https://jfly.uni- koeln.de/color/ (Okabe, Ito: Color Universal Design).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nsysalign.model import SYNC_CALLS


class Look(NamedTuple):
    short: str  # column head and label of a piece; at most eight letters
    colour: str  # fill
    ink: str  # text on the fill: at least 4.5:1
    pattern: str  # its shape: one of x . / \\ - | +, '' for solid
    terminal: str  # style of rich


LOOKS: Mapping[str, Look] = {
    "kernel": Look("kernel", "#009E73", "#000000", "", "green"),
    "graph": Look("graph", "#8FD3BC", "#000000", "x", "green"),
    "memcpy": Look("memcpy", "#0072B2", "#FFFFFF", "", "blue"),
    "memset": Look("memset", "#56B4E9", "#000000", ".", "cyan"),
    "api_launch": Look("launch", "#E69F00", "#000000", "/", "yellow"),
    "launch_latency": Look("latency", "#F0E442", "#000000", ".", "yellow"),
    "queued": Look("queued", "#CC79A7", "#000000", "-", "magenta"),
    "sync": Look("sync", "#7B3F98", "#FFFFFF", "|", "magenta"),
    "api": Look("api", "#B08D57", "#000000", "\\", "yellow"),
    "event": Look("event", "#9AA0A6", "#000000", "", "white"),
    "profiler": Look("profiler", "#5F6368", "#FFFFFF", "x", "white"),
    "host": Look("host", "#D55E00", "#000000", "", "red"),
    "unknown": Look("unknown", "#D7DADF", "#000000", "+", "white"),
}

#: The cause whose colour a host call of each kind has in the timeline: the cause it would explain.
CALL_LOOK: Mapping[str, str] = {
    **dict.fromkeys(("launch", "graph_launch"), "api_launch"),
    "memcpy": "memcpy",
    "memset": "memset",
    **dict.fromkeys(SYNC_CALLS, "sync"),
    **dict.fromkeys(("record", "query_event", "query_stream"), "event"),
    **dict.fromkeys(("wait_event", "stream_memory_op"), "queued"),
    "host_function": "host",
    "other": "api",
}
