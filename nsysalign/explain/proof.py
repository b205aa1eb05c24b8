"""The picture that proves a sentence: one interval, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.causes import COLUMN_OF, COLUMNS
from nsysalign.text import safe_text

#: An interval of very many segments is cut into so many pieces for its picture: more are not seen.
_MOST_PIECES = 1_000
#: Of up to so many segments touching ones become few pieces by themselves, and keep their names.
_MOST_SEGMENTS = 20 * _MOST_PIECES
#: So much of a stretch is not seen in its picture.
_SLIGHT = 0.1
_IDLE = ("launch", "calls", "CPU", "profiler", "sync", "rest")
_BUSY = ("kernels", "copies", "waiting")


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
    launch_ns: int  # when that call began, ns since the interval's begin; 0 for none
    #: How long the GPU worked in it, and other streams for it, in part after it.
    busy_ns: tuple[int, int] = (0, 0)

    def gpu_in(self, ns: int) -> str:
        """Whether the GPU was "idle" or "busy" in nearly all of a stretch of so long in which the CPU is drawn;
        '' where it was both, or that is not known: beside a host timer's CPU, or on other streams, it may work."""
        inside, beside = self.busy_ns
        drawn = sum(p.end_ns - p.start_ns for p in self.pieces if p.column in _BUSY)
        hidden = max(inside - drawn, 0) + beside
        if hidden <= _SLIGHT * ns:
            return "idle"
        return "busy" if self.elapsed_ns - inside <= _SLIGHT * ns else ""


def proof_of(
    label: str,
    interval: int,
    name: str,
    kind: str,
    elapsed_ns: int,
    table: pd.DataFrame,
    busy_ns: tuple[int, int] = (0, 0),
) -> Proof:
    """Return the picture of one interval, which proves what is said of its label.

    label, interval, name, kind, elapsed_ns, busy_ns: as in `Proof`
    table: the segments of the interval (`frames.SEGMENTS`), in any order

    Segments that follow each other in one column become one piece, named by the longest of them.
    """
    segments = _segments(table)
    pieces = []
    for column, touching in groupby(segments, key=lambda segment: segment.column):
        members = [*touching]
        longest = max(members, key=_length_ns)
        text = safe_text(longest.what)
        pieces.append(Piece(members[0].start_ns, members[-1].end_ns, column, text))
    launch = _launch_that_ends_longest_idle(segments, kind)
    return Proof(
        label=label,
        interval=interval,
        name=name,
        kind=kind,
        elapsed_ns=elapsed_ns,
        pieces=tuple(pieces),
        launch=safe_text(launch.what) if launch else "",
        launch_ns=launch.start_ns if launch else 0,
        busy_ns=busy_ns,
    )


def _segments(table: pd.DataFrame) -> list[Piece]:
    """Return the segments of an interval in the order of time, each as a piece with its column.

    table: `frames.SEGMENTS` of the interval, in any order

    Of very many segments the interval is cut into _MOST_PIECES equal pieces without names, each with the
    column that takes most of it.
    """
    table = table.sort_values("start_ns", kind="stable")
    begin_ns = int(table["start_ns"].iloc[0]) if len(table) else 0
    start = table["start_ns"].to_numpy(np.int64) - begin_ns
    end = table["end_ns"].to_numpy(np.int64) - begin_ns
    columns = table["cause"].map(COLUMN_OF).tolist()
    names = table["detail"].tolist()
    if len(start) > _MOST_SEGMENTS:
        edges = np.linspace(0, end[-1], _MOST_PIECES + 1).astype(np.int64)
        numbers = np.array([COLUMNS.index(column) for column in columns])
        columns = [COLUMNS[number] for number in dominant(start, end, numbers, edges)]
        start = edges[:-1]
        end = edges[1:]
        names = [""] * _MOST_PIECES
    rows = zip(start.tolist(), end.tolist(), columns, names, strict=True)
    segments = [Piece(*row) for row in rows]
    return [segment for segment in segments if segment.end_ns > segment.start_ns]


def _length_ns(piece: Piece) -> int:
    return piece.end_ns - piece.start_ns


def _launch_that_ends_longest_idle(segments: list[Piece], kind: str) -> Piece | None:
    """Return the launch call that ended the longest idle time of an interval; None if no launch call with a name
    lies in that idle time.

    segments: in the order of time
    kind: the kind of the interval

    event, nvtx   kernels | CPU  launch A | CPU  launch B | kernels       the last one: its operation comes next
    host          sync    | CPU  launch A | CPU  launch B | sync          the first one: the GPU worked behind it
    """
    longest_ns = 0
    launches = list[Piece]()
    for is_idle, touching in groupby(segments, key=lambda segment: segment.column in _IDLE):
        members = [*touching]
        length_ns = members[-1].end_ns - members[0].start_ns
        if is_idle and length_ns > longest_ns:
            longest_ns = length_ns
            launches = [piece for piece in members if piece.column == "launch" and piece.what]
    if not launches:
        return None
    return launches[0] if kind == "host" else launches[-1]


def dominant(
    start: np.ndarray, end: np.ndarray, column: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Return, for each cell between two neighbouring edges, the number of the column with the most time.

    start, end, column, edges: as in `ns_in_cells`
    """
    return ns_in_cells(start, end, column, edges).argmax(axis=0)


def ns_in_cells(
    start: np.ndarray, end: np.ndarray, column: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Return how long (ns) each column lasts in each cell between two neighbouring edges, as (columns, cells).

    start, end, column: per segment, its times (ns) and the number of its column; the segments are sorted
        by time, and each begins where the one before it ended
    edges: rising times (ns); n edges make n - 1 cells
    """
    times = np.append(start[:1], end)
    ns_of_columns = []
    for number in range(len(COLUMNS)):
        length = np.where(column == number, end - start, 0)
        up_to_time = np.append(0, np.cumsum(length))  # of this column
        up_to_edge = np.interp(edges, times, up_to_time)
        ns_of_columns.append(np.diff(up_to_edge))
    return np.array(ns_of_columns)
