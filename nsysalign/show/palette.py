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
from nsysalign.parts import DISPLAY


class Look(NamedTuple):
    short: str  # column head and label of a piece
    colour: str  # fill
    ink: str  # text on the fill: at least 4.5:1
    pattern: str  # its shape: one of x . / \\ - | +, '' for solid
    terminal: str  # style of rich


LOOKS: Mapping[str, Look] = {
    cause: Look(DISPLAY[cause], *look)
    for cause, look in {
        "kernel": ("#009E73", "#000000", "", "green"),
        "graph": ("#8FD3BC", "#000000", "x", "green"),
        "memcpy": ("#0072B2", "#FFFFFF", "", "blue"),
        "memset": ("#56B4E9", "#000000", ".", "cyan"),
        "api_launch": ("#E69F00", "#000000", "/", "yellow"),
        "launch_latency": ("#F0E442", "#000000", ".", "yellow"),
        "queued": ("#CC79A7", "#000000", "-", "magenta"),
        "sync": ("#7B3F98", "#FFFFFF", "|", "magenta"),
        "api": ("#B08D57", "#000000", "\\", "yellow"),
        "event": ("#9AA0A6", "#000000", "", "white"),
        "profiler": ("#5F6368", "#FFFFFF", "x", "white"),
        "host": ("#D55E00", "#000000", "", "red"),
        "unknown": ("#D7DADF", "#000000", "+", "white"),
    }.items()
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
