"""A label in one word and one sentence: its proof, and what to change.

    row of a label --> columns (ns) --> verdict word --> sentence, proof, fixes

The rules of the words and their reasons: docs/lab/verdicts.md.  Every number is of one real interval,
whose parts add up.  All texts are `safe_text`; labels are as the trace has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsysalign.model import OPERATION_KINDS
from nsysalign.parts import COLUMN_OF, COLUMNS, DISPLAY, staging
from nsysalign.text import bytes_text, duration, percent, safe_text, short_name

if TYPE_CHECKING:
    import pandas as pd

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
_STREAM = re.compile(r" \(stream \d+\)$")
_BEGIN = {"event": "start.record()", "host": "the first timer call"}


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


class Judge:
    """Words, sentence and proof of rows, from the tables of an analysis."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        kernels = analysis.kernels[analysis.kernels["kind"].isin(["kernel", "graph"])]
        self._kernel_ns = kernels.groupby("label")["total_ns"].sum()
        self._top = kernels.drop_duplicates("label").set_index(
            "label"
        )  # the most expensive is first
        ranges = analysis.host_ranges  # how long the CPU was in them, their median
        self._ranges = dict(zip(ranges["label"], ranges["median_ns"], strict=True))

    def _of(self, name: str, row: LabelRow) -> pd.DataFrame:
        """What a table, which is sorted by interval, holds of the row's."""
        table = getattr(self._analysis, name)
        numbers = [row.interval, row.interval + 1]
        return table.iloc[slice(*np.searchsorted(table["interval"].to_numpy(), numbers))]

    def verdict(self, row: LabelRow, findings: Sequence[Finding]) -> tuple[str, str]:
        """The verdict of a row, and the same in words with its number, at most 24 letters."""
        whole, parts, kernels = row.elapsed_ns, columns_of(row), row.gpu_ns
        cpu = parts["CPU"] + (parts["sync"] if row.kind == "host" else 0)
        late, of = parts["launch"] + cpu, max(whole, 1)
        floor = row.parts_ns["event"] + row.parts_ns["launch_latency"] >= 0.7 * whole
        floor = floor or any(f.rule == "event-floor" for f in findings)
        for wrong in (f.rule for f in findings if f.severity == "error"):
            return WRONG, f"wrong: {wrong.replace('-', ' ')}"
        if whole <= 0 or self._analysis.known.issuing_without_work:
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
        return MIXED, ", ".join(part for _, part in _largest(row))

    def sentence(self, row: LabelRow, findings: Sequence[Finding]) -> str:
        """At most two sentences: the number and its cause."""
        word, whole, parts, kernels = (
            row.verdict,
            max(row.elapsed_ns, 1),
            row.columns_ns,
            row.gpu_ns,
        )
        reads = f"{safe_text(row.label)} reads {duration(row.elapsed_ns)}"
        if row.kind == "nvtx":
            reads = f"{safe_text(row.label)}: its GPU work spans {duration(row.elapsed_ns)}"
            inside_ns = self._ranges.get(_STREAM.sub("", row.label), 0)
            if inside_ns > 1.5 * row.elapsed_ns:
                reads += f" of the {duration(inside_ns)} that the CPU was in the range"
        if row.kind == "run":
            reads = f"From its first to its last GPU work the run takes {duration(row.elapsed_ns)}"
        share = f"kernels ran for {duration(kernels)} of it ({percent(kernels / whole)})"
        if word == WRONG:
            return next(f.title for f in findings if f.severity == "error")
        if word == CANNOT_TELL and self._analysis.known.issuing_without_work:
            return f"{reads}. The trace holds no row of the GPU's work."
        if word == CANNOT_TELL:
            unknown = percent(row.parts_ns["unknown"] / whole)
            return f"{reads}. The trace does not say what ran in {unknown} of it."
        if word == MIXED:
            largest = [f"{part} {percent(ns / whole)}" for ns, part in _largest(row)]
            most = self._top_kernel(row) if row.kind == "run" else ""
            return f"{reads}: {', '.join(largest)}. {most}".strip()
        if word == COPY:
            return (
                f"{reads}; {percent(parts['copy'] / whole)} of it are copies. {self._copied(row)}."
            )
        if word == WAITING:
            waited = f"for {duration(parts['waiting'])} of it its work was launched and waited"
            return f"{reads}; {waited}{self._waited_for(row, parts['waiting'])}"
        if word == GPU:
            graph = " (a CUDA graph)" if row.parts_ns["graph"] else ""
            said = f"{reads}: {percent(kernels / whole)} kernels{graph}."
            said = f"{reads}; {share}." if row.kind == "host" else said
            warned = (f.title for f in findings if f.severity == "warning")
            return f"{said} {next(warned, '') or self._top_kernel(row)}".strip()
        if row.kind == "run":
            return f"{reads}; {self._busy(row, kernels + parts['copy'])}"
        proof, others_ns = self.proof(row), self._of("other_streams", row)["ns"].max()
        idler, takes = "The GPU", "no kernel runs in it"
        if others_ns > 0:
            idler = "Its stream"
            takes = f"its stream runs no kernel; others work, the busiest for {duration(others_ns)}"
        if kernels:
            alone = sum(piece.column == "kernel" for piece in proof.pieces) == 1
            verb = "kernel takes" if alone and word != FLOOR else "kernels take"
            takes = f"its {verb} {duration(kernels)}"
        if word == FLOOR:
            return f"{reads}; {takes}. The rest is launch latency and the event pair's own cost."
        takes = share if row.kind == "host" and kernels else takes
        return f"{reads}; {takes}. {_why(row, proof, idler)}"

    def proof(self, row: LabelRow) -> Proof:
        """The row's interval with its pieces: neighbours of one column are joined, and named by the
        longest; of very many only the largest part of each thousandth is kept."""
        table = self._of("segments", row).sort_values("start_ns", kind="stable")
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
        pieces, launches, longest_ns = [], list[Piece](), 0
        for column, touching in groupby(segments, key=lambda piece: piece.column):
            same = [*touching]
            named = max(same, key=lambda piece: piece.end_ns - piece.start_ns)
            pieces.append(Piece(same[0].start_ns, same[-1].end_ns, column, safe_text(named.what)))
        for idle, touching in groupby(segments, key=lambda piece: piece.column in _IDLE):
            same = [*touching]
            if idle and same[-1].end_ns - same[0].start_ns > longest_ns:
                longest_ns = same[-1].end_ns - same[0].start_ns
                launches = [piece for piece in same if piece.column == "launch" and piece.what]
        # A stream's idle time ends with the launch of its own next operation, the last one in it.
        # A host timer's calls go on while the GPU works: its GPU waits for the first of them only.
        ending = 0 if row.kind == "host" else -1
        launch = launches[ending] if launches else Piece(0, 0, "launch", "")
        return Proof(
            row.label, row.interval, row.name, row.kind, row.elapsed_ns, tuple(pieces),
            launch=safe_text(launch.what), launch_ns=launch.start_ns,
        )  # fmt: skip

    def _top_kernel(self, row: LabelRow) -> str:
        """The kernel that takes most of a label's GPU time."""
        top = self._top.loc[row.label] if row.label in self._top.index else None
        if top is None or top["kind"] != "kernel":
            return ""
        kernel, ns, whole = top["kernel"], top["total_ns"], self._kernel_ns[row.label]
        ran = self._kernels_in(row)
        if len(ran) and kernel not in ran.index:  # it is named beside that interval's time
            kernel, ns, whole = ran.idxmax(), ran.max(), ran.sum()
        name = short_name(safe_text(kernel))
        name = name if len(name) <= 48 else name[:47] + "…"
        return f"{name} is {percent(ns / max(whole, 1))} of its kernel time: look at it with ncu."

    def _kernels_in(self, row: LabelRow) -> pd.Series:
        """Nanoseconds of the kernels in the interval of a label's row, by name; of runs and host timers
        none."""
        segments = self._of("segments", row)
        ran = segments[(segments["cause"] == "kernel") & (row.kind in ("event", "nvtx"))]
        return (ran["end_ns"] - ran["start_ns"]).groupby(ran["detail"]).sum()

    def _busy(self, row: LabelRow, busy: int) -> str:
        """How long the GPU worked in a run, and with what; of one that did little, why it did not."""
        busy -= int(staging(self._of("details", row))["ns"].sum())
        whole = max(row.elapsed_ns, 1)
        worked = f"the GPU worked for {duration(busy)} of it ({percent(busy / whole)})."
        if 2 * busy >= whole:
            return f"{worked} {self._top_kernel(row)}".strip()
        rest = [(ns, c) for c, ns in row.parts_ns.items() if c not in OPERATION_KINDS and ns]
        named = [f"{DISPLAY[c]} {percent(ns / whole)}" for ns, c in sorted(rest)[:-4:-1]]
        return f"{worked} While it ran nothing: {', '.join(named)}."

    def _largest_detail(self, row: LabelRow, cause: str, known: str = "ns") -> pd.Series | None:
        """The longest detail of a cause whose column `known` is above zero."""
        table = self._of("details", row)
        table = table[(table["cause"] == cause) & (table[known] > 0)]
        return table.sort_values("ns", ascending=False).iloc[0] if len(table) else None

    def _bandwidth(self, row: LabelRow) -> str:
        copy = self._largest_detail(row, "memcpy", "bandwidth_gb_s")
        speed = 0 if copy is None else copy["bandwidth_gb_s"]
        return f"{speed:,.0f} GB/s" if speed >= 1_000 else f"{speed:.3g} GB/s" if speed else ""

    def _copied(self, row: LabelRow) -> str:
        copied, speed = "Setting memory takes most of it", self._bandwidth(row)
        if (copy := self._largest_detail(row, "memcpy", "bytes")) is not None:
            copied = (
                f"The largest part: {bytes_text(int(copy['bytes']))} {safe_text(copy['direction'])}"
            )
            copied += f" ({safe_text(copy['memory'])} memory)" if copy["memory"] else ""
        return f"{copied} at {speed}" if speed else copied

    def _waited_for(self, row: LabelRow, ns: int) -> str:
        others, wait = self._of("other_streams", row), self._largest_detail(row, "queued")
        if wait is None:
            return ". What it waited for is not in the trace."
        if wait["detail"] == "full-queue":
            return ". The launch queue was full."
        stream = f"stream {int(wait['stream'])}" if wait["stream"] >= 0 else "other work"
        if wait["detail"] == "contention":
            return f". {stream.capitalize()} kept the GPU busy."
        if 2 * others["ns"].sum() >= ns:
            busiest = others.loc[others["ns"].idxmax()]
            ran = f"stream {busiest['stream']} for {duration(int(busiest['ns']))}"
            return f" while other streams did what was launched in it, {ran}."
        event = wait["detail"] == "dependency"
        return f". It waited {'for an event of' if event else 'behind'} {stream}."


def _largest(row: LabelRow) -> list[tuple[int, str]]:
    """The two largest parts of a row."""
    return sorted(((ns, DISPLAY[cause]) for cause, ns in row.parts_ns.items()), reverse=True)[:2]


def _why(row: LabelRow, proof: Proof, idler: str) -> str:
    """Of a label that the CPU limits: what its stream waited for; `idler`: what was idle then."""
    parts, api_ns = row.columns_ns, row.parts_ns["api"]
    idle = parts["launch"] + parts["CPU"]
    if row.verdict == LAUNCH:
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
        begin = _BEGIN.get(row.kind, "its begin")
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
        for fix in finding.advice:
            found.setdefault(fix.purpose.partition(" ")[0], fix)
    return tuple(found.values())[:2]


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
