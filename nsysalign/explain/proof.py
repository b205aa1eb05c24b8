"""The picture that proves a sentence: one interval, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.causes import COLUMN_OF, COLUMNS
from nsysalign.text import safe_text

#: As many pieces of an interval are kept for its picture; more are not seen.
_MOST_PIECES = 1_000
_IDLE = ("launch", "CPU", "sync", "rest")
_BUSY = ("kernel", "copy", "waiting")


class Piece(NamedTuple):
    """Touching pieces of an interval, ns since its begin."""

    start_ns: int
    end_ns: int
    column: str
    what: str


@dataclass(frozen=True)
class Proof:
    """The interval that shows what the sentence says."""

    label: str
    interval: int
    name: str
    kind: str
    elapsed_ns: int
    pieces: tuple[Piece, ...]
    launch: str  # the call that ended its longest idle time, '' for none
    launch_ns: int  # when that call began
    #: How long the GPU worked in it, and other streams for it, in part after it.
    busy_ns: tuple[int, int] = (0, 0)

    def gpu_in(self, ns: int) -> str:
        """Whether the GPU was "idle" or "busy" in most of a stretch of so long in which the CPU is drawn;
        '' where that is not known: beside a host timer's CPU, or on other streams, it may work."""
        inside, beside = self.busy_ns
        drawn = sum(p.end_ns - p.start_ns for p in self.pieces if p.column in _BUSY)
        hidden = max(inside - drawn, 0) + beside
        if 2 * hidden <= ns:
            return "idle"
        return "busy" if 2 * (self.elapsed_ns - inside) <= ns else ""


def proof_of(
    label: str,
    interval: int,
    name: str,
    kind: str,
    elapsed_ns: int,
    table: pd.DataFrame,
    busy_ns: tuple[int, int] = (0, 0),
) -> Proof:
    """`table`: the interval's segments (`frames.SEGMENTS`); `busy_ns`: as the record has it.  Neighbours of one column are joined, and
    named by the longest; of very many only the largest part of each thousandth is kept."""
    table = table.sort_values("start_ns", kind="stable")
    start, end = (table[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    columns, details = table["cause"].map(COLUMN_OF).tolist(), table["detail"].tolist()
    first = int(start[0]) if len(start) else 0
    start, end = start - first, end - first
    if len(start) > 20 * _MOST_PIECES:
        edges = np.linspace(0, end[-1], _MOST_PIECES + 1).astype(np.int64)
        numbers = np.array([COLUMNS.index(column) for column in columns])
        columns = [COLUMNS[number] for number in dominant(start, end, numbers, edges)]
        start, end, details = edges[:-1], edges[1:], [""] * _MOST_PIECES
    every = zip(start.tolist(), end.tolist(), columns, details, strict=True)
    segments = [Piece(*one) for one in every if one[1] > one[0]]
    pieces = []
    for column, touching in groupby(segments, key=lambda piece: piece.column):
        same = [*touching]
        named = max(same, key=lambda piece: piece.end_ns - piece.start_ns)
        pieces.append(Piece(same[0].start_ns, same[-1].end_ns, column, safe_text(named.what)))
    longest_ns, launches = 0, list[Piece]()
    for idle, touching in groupby(segments, key=lambda piece: piece.column in _IDLE):
        same = [*touching]
        if idle and same[-1].end_ns - same[0].start_ns > longest_ns:
            longest_ns = same[-1].end_ns - same[0].start_ns
            launches = [piece for piece in same if piece.column == "launch" and piece.what]
    # A stream's idle time ends with the launch of its own next operation, the last one in it.
    # A host timer's calls go on while the GPU works: its GPU waits for the first of them only.
    ending = 0 if kind == "host" else -1
    launch = launches[ending] if launches else Piece(0, 0, "launch", "")
    return Proof(
        label,
        interval,
        name,
        kind,
        elapsed_ns,
        tuple(pieces),
        safe_text(launch.what),
        launch.start_ns,
        busy_ns,
    )


def dominant(
    start: np.ndarray, end: np.ndarray, column: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Between each two edges the column with the most time, as its number."""
    times = np.concatenate([start[:1], end])
    inside = []
    for number in range(len(COLUMNS)):
        length = np.where(column == number, end - start, 0)
        total = np.concatenate([[0], np.cumsum(length)])
        inside.append(np.diff(np.interp(edges, times, total)))
    return np.array(inside).argmax(axis=0)
