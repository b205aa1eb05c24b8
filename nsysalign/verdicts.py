"""A label in one word and one sentence: its proof, and what to change.

    row of a label --> columns (ns) --> verdict word --> sentence, proof, fixes

The rules of the words and their reasons: docs/lab/verdicts.md.  Every number is of one real interval,
whose parts add up.  All texts are `safe_text`; labels are as the trace has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.parts import COLUMN_OF, COLUMNS, DISPLAY, known_as
from nsysalign.text import bytes_text, duration, percent, safe_text, short_name

if TYPE_CHECKING:
    from nsysalign.answer import Finding, LabelRow
    from nsysalign.model import Analysis

WRONG, CPU, LAUNCH, COPY, WAITING, MIXED, GPU, FLOOR, CANNOT_TELL = VERDICTS = (
    "wrong", "cpu_bound", "launch_bound", "copy_bound", "waiting", "mixed", "gpu_bound", "floor", "cannot_tell",
)  # fmt: skip
SIGNS: Mapping[str, str] = dict.fromkeys(VERDICTS, "!") | {
    WRONG: "✖", MIXED: "·", GPU: "✓", FLOOR: "·", CANNOT_TELL: "?",
}  # fmt: skip
#: Rules about the first intervals of a label only.
COLD = ("module-load", "warm-up")
#: As many pieces of an interval are kept for its picture; more are not seen.
_MOST_PIECES = 1_000
_IDLE = ("launch", "CPU", "sync", "rest")
_PURPOSE = {
    "To measure GPU time only": "measure the GPU only",
    "To measure it right": "measure it right",
    "To make it faster": "make it faster",
}


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


@dataclass(frozen=True)
class Fix:
    purpose: str  # measure the GPU only | measure it right | make it faster
    sentence: str
    code: tuple[str, ...]


def columns_of(row: LabelRow) -> dict[str, int]:
    """The parts of a row by column of the screen; kernels of a host timer that ran while the CPU
    did something else are not among them."""
    sums = dict.fromkeys(COLUMNS, 0)
    for cause, ns in row.parts_ns.items():
        sums[COLUMN_OF[cause]] += ns
    return sums


def shown_columns(row: LabelRow) -> dict[str, int]:
    """The columns of a row as they are printed.  GPU and CPU overlap in a host timer: what is
    neither a kernel of its own nor waiting is the CPU's."""
    sums = columns_of(row)
    if row.kind != "host" or row.gpu_ns <= sums["kernel"]:
        return sums
    waiting = min(sums["waiting"], row.elapsed_ns - row.gpu_ns)
    others = row.elapsed_ns - row.gpu_ns - waiting
    return dict.fromkeys(COLUMNS, 0) | {"kernel": row.gpu_ns, "waiting": waiting, "CPU": others}


class Judge:
    """Words, sentence and proof of rows; the tables of their intervals are looked up once."""

    def __init__(self, analysis: Analysis, rows: Sequence[LabelRow]) -> None:
        numbers = [row.interval for row in rows]
        self._analysis = analysis

        def of_rows(table: pd.DataFrame) -> dict[int, pd.DataFrame]:
            return dict(
                iter(table[table["interval"].isin(numbers)].groupby("interval", sort=False))
            )

        self._details, self._others = of_rows(analysis.details), of_rows(analysis.other_streams)
        starts = analysis.intervals.set_index("interval")["start_ns"]
        self._starts = starts.reindex(numbers).to_dict()
        table = analysis.segments[analysis.segments["interval"].isin(numbers)]
        table = table.sort_values(["interval", "start_ns"], kind="stable")
        columns = np.array([COLUMNS.index(column) for column in COLUMN_OF.values()])
        #: start, end, number of the column, detail; `_places`: the rows of an interval
        self._segments = (
            *(table[name].to_numpy(np.int64) for name in ("start_ns", "end_ns")),
            columns[known_as(table["cause"], tuple(COLUMN_OF))],
            table["detail"].tolist(),
        )
        own, begin = np.unique(table["interval"].to_numpy(), return_index=True)
        ends = [*begin[1:].tolist(), len(table)]
        self._places = dict(zip(own.tolist(), map(slice, begin.tolist(), ends), strict=True))

    @cached_property
    def _kernels(self) -> dict[str, pd.DataFrame]:
        ran = self._analysis.kernels
        return dict(iter(ran[ran["kind"].isin(["kernel", "graph"])].groupby("label", sort=False)))

    def verdict(self, row: LabelRow, findings: Sequence[Finding]) -> tuple[str, str]:
        """The verdict of a row, and the same in words with its number, at most 24 letters."""
        whole, parts, kernels = row.elapsed_ns, columns_of(row), row.gpu_ns
        cpu = parts["CPU"] + (parts["sync"] if row.kind == "host" else 0)
        late, of = parts["launch"] + cpu, max(whole, 1)
        wrong = next((f.rule for f in findings if f.severity == "error"), "")
        floor = row.parts_ns["event"] + row.parts_ns["launch_latency"] >= 0.7 * whole
        floor = floor or any(f.rule == "event-floor" for f in findings)
        if wrong:
            return WRONG, f"wrong: {wrong.replace('-', ' ')}"
        if whole <= 0:
            return CANNOT_TELL, "cannot tell"
        if kernels + parts["copy"] < 0.5 * whole and floor:
            return FLOOR, "event cost only"
        if kernels >= 0.8 * whole:
            what = "graph" if row.parts_ns["graph"] else "kernels"
            return GPU, f"{percent(kernels / of)} {what}{' (!)' if row.flagged else ''}"
        if parts["copy"] >= 0.5 * whole:
            return COPY, f"copies, {self._bandwidth(row) or percent(parts['copy'] / of)}"
        if parts["waiting"] >= 0.4 * whole:
            return WAITING, f"waiting, {percent(parts['waiting'] / of)}"
        if late >= 0.2 * whole:
            word, what = (LAUNCH, "launches") if parts["launch"] > cpu else (CPU, "CPU")
            if kernels < 0.3 * whole and late >= 0.5 * whole:
                return word, "measures launches" if word == LAUNCH else "measures the CPU"
            return word, f"{what} late, {percent(late / of)}"
        if row.parts_ns["unknown"] >= 0.5 * whole:
            return CANNOT_TELL, "cannot tell"
        (_, first), (_, second) = _largest(row)[:2]
        return MIXED, f"{first}, {second}"

    def sentence(self, row: LabelRow, word: str, proof: Proof, findings: Sequence[Finding]) -> str:
        """At most two sentences: the number and its cause."""
        whole, parts, kernels = max(row.elapsed_ns, 1), shown_columns(row), row.gpu_ns
        verb = "spans" if row.kind == "nvtx" else "reads"
        reads = f"{safe_text(row.label)} {verb} {duration(row.elapsed_ns)}"
        if row.kind == "run":
            reads = f"From its first to its last GPU work the run takes {duration(row.elapsed_ns)}"
        if word == WRONG:
            return next(f.title for f in findings if f.severity == "error")
        if word == CANNOT_TELL:
            unknown = percent(row.parts_ns["unknown"] / whole)
            return f"{reads}. The trace does not say what ran in {unknown} of it."
        if word == MIXED:
            (one, first), (two, second) = _largest(row)[:2]
            most = self._top_kernel(row) if row.kind == "run" else ""
            return f"{reads}: {first} {percent(one / whole)}, {second} {percent(two / whole)}. {most}".strip()
        if word == COPY:
            speed = self._bandwidth(row)
            copied = self._copied(row) + (f" at {speed}" if speed else "")
            return f"{reads}; {percent(parts['copy'] / whole)} of it are copies. {copied}."
        if word == WAITING:
            waited = f"for {duration(parts['waiting'])} of it its work was launched and waited"
            return f"{reads}; {waited}. {self._waited_for(row)}"
        share = f"kernels ran for {duration(kernels)} of it ({percent(kernels / whole)})"
        if word == GPU:
            graph = " (a CUDA graph)" if row.parts_ns["graph"] else ""
            said = (
                f"{reads}; {share}."
                if row.kind == "host"
                else f"{reads}: {percent(kernels / whole)} kernels{graph}."
            )
            warned = [f for f in findings if f.severity == "warning"]
            return f"{said} {warned[0].title if warned else self._top_kernel(row)}".strip()
        if row.kind == "run":
            busy = kernels + parts["copy"]
            worked = f"the GPU worked for {duration(busy)} of it ({percent(busy / whole)})"
            return f"{reads}; {worked}. {self._top_kernel(row)}".strip()
        others_ns = (
            int(self._others[row.interval]["ns"].max()) if row.interval in self._others else 0
        )
        takes = "no kernel runs in it"
        if kernels:
            alone = sum(piece.column == "kernel" for piece in proof.pieces) == 1
            takes = f"its {'kernel takes' if alone and word != FLOOR else 'kernels take'} {duration(kernels)}"
        elif others_ns:
            takes = f"its stream runs no kernel; others work, the busiest for {duration(others_ns)}"
        if word == FLOOR:
            return f"{reads}; {takes}. The rest is launch latency and the event pair's own cost."
        takes = share if row.kind == "host" and kernels else takes
        return (
            f"{reads}; {takes}. {_why(row, word, proof, 'Its stream' if others_ns else 'The GPU')}"
        )

    def proof(self, row: LabelRow) -> Proof:
        """The row's interval with its pieces, neighbours of one column joined."""
        pieces: tuple[Piece, ...] = ()
        launch, launch_ns = "", 0
        if place := self._places.get(row.interval):
            start, end, column, details = (values[place] for values in self._segments)
            start, end = start - self._starts[row.interval], end - self._starts[row.interval]
            pieces = _pieces(start, end, column, details)
            launch, launch_ns = _ended_by(start, end, column, details)
        return Proof(
            row.label, row.interval, row.name, row.kind, row.elapsed_ns, pieces, launch, launch_ns
        )

    def _top_kernel(self, row: LabelRow) -> str:
        """The kernel that takes most of a label's GPU time."""
        rows = self._kernels.get(row.label)
        total = 0 if rows is None else int(rows["total_ns"].sum())
        if not total or rows.loc[rows["total_ns"].idxmax(), "kind"] != "kernel":
            return ""
        top = rows.loc[rows["total_ns"].idxmax()]
        name = short_name(safe_text(top["kernel"]))
        name = name if len(name) <= 48 else name[:47] + "…"
        share = percent(int(top["total_ns"]) / total)
        return f"{name} is {share} of its kernel time: look at it with ncu."

    def _largest_detail(self, row: LabelRow, cause: str, known: str = "ns") -> pd.Series | None:
        """The longest detail of a cause whose column `known` is above zero."""
        table = self._details.get(row.interval)
        if table is None:
            return None
        table = table[(table["cause"] == cause) & (table[known] > 0)]
        return table.sort_values("ns", ascending=False).iloc[0] if len(table) else None

    def _bandwidth(self, row: LabelRow) -> str:
        copy = self._largest_detail(row, "memcpy", "bandwidth_gb_s")
        return "" if copy is None else f"{copy['bandwidth_gb_s']:.3g} GB/s"

    def _copied(self, row: LabelRow) -> str:
        copy = self._largest_detail(row, "memcpy", "bytes")
        if copy is None:
            return "Setting memory takes most of it"
        memory = f" ({safe_text(copy['memory'])} memory)" if copy["memory"] else ""
        size, way = bytes_text(int(copy["bytes"])), safe_text(copy["direction"])
        return f"The largest part: {size} {way}{memory}"

    def _waited_for(self, row: LabelRow) -> str:
        wait = self._largest_detail(row, "queued")
        if wait is None:
            return "What it waited for is not in the trace."
        stream = f"stream {int(wait['stream'])}" if wait["stream"] >= 0 else "other work"
        return {
            "dependency": f"It waited for an event of {stream}.",
            "contention": f"{stream.capitalize()} kept the GPU busy.",
            "full-queue": "The launch queue was full.",
        }.get(wait["detail"], f"It waited behind {stream}.")


def _largest(row: LabelRow) -> list[tuple[int, str]]:
    return sorted(((ns, DISPLAY[cause]) for cause, ns in row.parts_ns.items()), reverse=True)


def _why(row: LabelRow, word: str, proof: Proof, idler: str) -> str:
    """Of a label that the CPU limits: what its stream waited for; `idler`: what was idle then."""
    parts, api_ns = shown_columns(row), row.parts_ns["api"]
    idle = parts["launch"] + parts["CPU"]
    if word == LAUNCH:
        calls = {piece.what for piece in proof.pieces if piece.column == "launch"}
        name = f" ({calls.pop()})" if len(calls) == 1 else ""
        return f"{idler} was idle for {duration(parts['launch'])} of it in launch calls{name}."
    if api_ns >= 0.5 * idle:
        spent: dict[str, int] = {}
        for piece in proof.pieces:
            if piece.column == "CPU" and piece.what:
                spent[piece.what] = spent.get(piece.what, 0) + piece.end_ns - piece.start_ns
        most = max(spent, key=spent.__getitem__, default="other CUDA calls")
        return f"{idler} was idle for {duration(api_ns)} of it in other CUDA calls, most in {most}."
    until_gpu = next((p.start_ns for p in proof.pieces if p.column in ("kernel", "copy")), 0)
    if proof.launch and until_gpu >= 0.6 * idle and proof.launch_ns < until_gpu:
        begin = {"event": "start.record()", "host": "the first timer call"}.get(
            row.kind, "its begin"
        )
        launched = f"the kernel was launched {duration(proof.launch_ns)} after {begin}"
        return f"{idler} sat idle: {launched}."
    return f"{idler} was idle for {duration(idle)} of it: the CPU had not launched yet."


def fixes(findings: Sequence[Finding]) -> tuple[Fix, ...]:
    """What to change, of the findings about a label, the one that costs most first: one to measure,
    one to make it faster."""
    order = ("error", "warning", "info")
    lasting = [f for f in findings if f.rule not in COLD]
    serious = [f for f in lasting if f.severity != "info"] or [f for f in lasting if f.loss_ns]
    found: dict[str, Fix] = {}
    for finding in sorted(serious, key=lambda f: (order.index(f.severity), -f.loss_ns)):
        for head, sentence, code in finding.advice:
            purpose = _PURPOSE.get(head, head)
            found.setdefault(purpose.partition(" ")[0], Fix(purpose, sentence, code))
    return tuple(found.values())[:2]


# --- the pieces of an interval ---


def _ended_by(
    start: np.ndarray, end: np.ndarray, column: np.ndarray, details: Sequence[str]
) -> tuple[str, int]:
    """The last launch call in the longest idle time, and when it began; ('', 0) for none."""
    idle = np.isin(column, [COLUMNS.index(name) for name in _IDLE])
    begins = np.flatnonzero(np.r_[True, idle[1:] != idle[:-1]])
    ends = np.r_[begins[1:], len(start)] - 1
    length = np.where(idle[begins], end[ends] - start[begins], -1)
    longest = int(length.argmax())
    inside = np.arange(begins[longest], ends[longest] + 1)
    launches = inside[column[inside] == COLUMNS.index("launch")]
    if length[longest] <= 0 or not len(launches):
        return "", 0
    return safe_text(details[launches[-1]]), int(start[launches[-1]])


def _pieces(
    start: np.ndarray, end: np.ndarray, column: np.ndarray, details: Sequence[str]
) -> tuple[Piece, ...]:
    """Pieces named by the longest that is in them; of very many only the largest part of each
    thousandth is kept."""
    if len(start) > 20 * _MOST_PIECES:
        edges = np.linspace(start[0], end[-1], _MOST_PIECES + 1).astype(np.int64)
        column = dominant(start, end, column, edges)
        start, end, details = edges[:-1], edges[1:], [""] * _MOST_PIECES
    some = np.flatnonzero(end > start)
    if not len(some):
        return ()
    start, end, column = start[some], end[some], column[some]
    begins = np.flatnonzero(np.r_[True, column[1:] != column[:-1]])
    piece = np.searchsorted(begins, np.arange(len(start)), side="right")
    # by piece, then length: the last of each piece is its longest, the first of equally long ones
    order = np.lexsort((-np.arange(len(start)), end - start, piece))
    ends = np.r_[begins[1:], len(start)] - 1
    return tuple(
        Piece(int(start[a]), int(end[b]), COLUMNS[column[a]], safe_text(details[some[order[b]]]))
        for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
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
