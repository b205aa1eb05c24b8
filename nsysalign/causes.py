"""The causes that a nanosecond of an interval can have: each is a row here, with all that is said and shown
of it.

Which cause a nanosecond has is decided in `split`: calls of the host in `split/busy.py`, other idle time in
`split/gaps.py`, host timers in `split/host_timers.py`.

The colours start from Okabe and Ito's set, which people with any colour blindness can tell apart; thirteen
causes are more than any palette can carry, so every pair that could be confused differs in its pattern, and
every piece that is wide enough carries its name.  Related causes are neighbours in hue: green computes, blue
moves memory, yellow and orange launch, the rest waits.  Source: https://jfly.uni-koeln.de/color/ (Okabe, Ito:
Color Universal Design).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Cause(NamedTuple):
    """A cause.

    column: of the first screen, in which it is counted (COLUMNS).
    meaning: for legends, hover texts and documentation.
    colour, ink: the fill of its pieces, and the text on it, with a contrast of at least 4.5:1.
    pattern: what distinguishes it beside the colour, one of x . / \\ - | +, '' for none.
    terminal: its style in the terminal, as rich names styles.
    words: what it is called in tables, sentences and pictures, '' for its name.
    """

    column: str
    meaning: str
    colour: str
    terminal: str
    ink: str = "#000000"
    pattern: str = ""
    words: str = ""


#: In the order in which tables and charts show them.
CAUSE_TABLE: Mapping[str, Cause] = {
    "kernel": Cause(
        column="kernels",
        meaning="a kernel executes on the interval's stream",
        colour="#009E73",
        terminal="green",
    ),
    "graph": Cause(
        column="kernels",
        meaning="a CUDA graph executes on the stream: traced as one row (gaps and copies inside are not visible), or between its nodes",
        words="CUDA graph",
        colour="#8FD3BC",
        pattern="x",
        terminal="green",
    ),
    "memcpy": Cause(
        column="copies",
        meaning="a copy executes on the stream, or the host stages pageable memory for one",
        words="copy",
        colour="#0072B2",
        ink="#FFFFFF",
        terminal="blue",
    ),
    "memset": Cause(
        column="copies",
        meaning="a memset executes on the stream",
        colour="#56B4E9",
        pattern=".",
        terminal="cyan",
    ),
    "api_launch": Cause(
        column="launch",
        meaning="the stream is idle and the host is inside the call that issues the next operation",
        words="launch",
        colour="#E69F00",
        pattern="/",
        terminal="yellow",
    ),
    "launch_latency": Cause(
        column="rest",
        meaning="the stream is idle: the next operation is issued and on its way to the GPU",
        words="launch latency",
        colour="#F0E442",
        pattern=".",
        terminal="yellow",
    ),
    "queued": Cause(
        column="waiting",
        meaning="the next operation is issued but waits behind other work (dependency, contention, full queue)",
        words="waiting",
        colour="#CC79A7",
        pattern="-",
        terminal="magenta",
    ),
    "sync": Cause(
        column="sync",
        meaning="the stream is idle and the host waits in a synchronisation call",
        colour="#7B3F98",
        ink="#FFFFFF",
        pattern="|",
        terminal="magenta",
    ),
    "api": Cause(
        column="calls",
        meaning="the stream is idle and the host is inside a CUDA call that launches nothing (allocation, module load, ...)",
        words="calls",
        colour="#B08D57",
        pattern="\\",
        terminal="yellow",
    ),
    "event": Cause(
        column="rest",
        meaning="the stream is idle and the next thing is the event record itself",
        words="event overhead",
        colour="#9AA0A6",
        terminal="white",
    ),
    "profiler": Cause(
        column="profiler",
        meaning="the stream is idle and the profiler, or the tool's own calibration, holds up the issuing thread",
        colour="#5F6368",
        ink="#FFFFFF",
        pattern="x",
        terminal="white",
    ),
    "host": Cause(
        column="CPU",
        meaning="the stream is idle and the host is outside of CUDA: it has not begun to issue the next operation",
        words="CPU",
        colour="#D55E00",
        terminal="red",
    ),
    "unknown": Cause(
        column="rest",
        meaning="the trace cannot say",
        colour="#D7DADF",
        pattern="+",
        terminal="white",
    ),
}  # fmt: skip
CAUSES = tuple(CAUSE_TABLE)
#: Their codes in arrays: positions in CAUSES.
CAUSE: Mapping[str, int] = {name: code for code, name in enumerate(CAUSES)}
DISPLAY: Mapping[str, str] = {name: cause.words or name for name, cause in CAUSE_TABLE.items()}
COLUMN_OF: Mapping[str, str] = {name: cause.column for name, cause in CAUSE_TABLE.items()}


class Fill(NamedTuple):
    """How a column's time is drawn in the terminal: a letter, and a style of rich."""

    letter: str
    style: str


#: The columns of the first screen, from left to right.  A column of one cause has the cause's name, so that
#: a word means the same sum on every screen; the others are named in the plural.
COLUMN_FILLS: Mapping[str, Fill] = {
    "kernels": Fill("█", "green"),
    "copies": Fill("▓", "blue"),
    "launch": Fill("▒", "yellow"),
    "calls": Fill("▚", "yellow"),
    "sync": Fill("╌", "magenta"),
    "waiting": Fill("·", "magenta"),
    "CPU": Fill("░", "red"),
    "profiler": Fill("╳", "white"),
    "rest": Fill(" ", "white"),
}
COLUMNS = tuple(COLUMN_FILLS)

#: Which causes are the host's, by what is asked: a delay before the start event hides them; they end
#: sooner when the host is faster (the profiler's own work is apart); a host that has run ahead has
#: none of them; a row of `details` names the call or range behind each.
HIDDEN_BY_DELAY = ("host", "api_launch", "api", "launch_latency", "event", "profiler")
SHORTER_WITH_HOST = ("host", "api_launch", "api", "event", "sync", "launch_latency")
NONE_IF_AHEAD = ("host", "api_launch", "api", "sync", "profiler")
WITH_A_NAME = ("api", "sync", "api_launch", "host", "event", "profiler")

#: The cause that a host call of each kind (`model.CALL_KINDS`) would explain: it has its colour in a timeline.
CAUSE_OF_CALL: Mapping[str, str] = {
    "launch": "api_launch",
    "graph_launch": "api_launch",
    "memcpy": "memcpy",
    "memset": "memset",
    "sync_device": "sync",
    "sync_stream": "sync",
    "sync_event": "sync",
    "record": "event",
    "query_event": "event",
    "query_stream": "event",
    "wait_event": "queued",
    "host_function": "host",
    "stream_memory_op": "queued",
    "other": "api",
}
