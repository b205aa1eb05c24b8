"""What a first screen says: a verdict per label, one sentence, its proof, what to change.

    row of a label --> columns (ns) --> verdict word --> the label with the largest saving leads

The rules of the words and their reasons: docs/lab/verdicts.md.  Every number is of one real interval,
whose parts add up.  All texts are `safe_text`; labels are as the trace has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsysalign.intervals import union
from nsysalign.parts import COLUMN_OF, COLUMNS, DISPLAY
from nsysalign.text import bytes_text, duration, percent, plural, safe_text, short_name

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
#: A saving below this share of what was measured leads no screen.
LEADS = 0.005
#: As many pieces of an interval are kept for its picture; more are not seen.
_MOST_PIECES = 1_000
_IDLE = ("launch", "CPU", "sync", "rest")


@dataclass(frozen=True)
class LabelVerdict:
    """A label in one line."""

    label: str
    kind: str
    verdict: str
    words: str  # the verdict in words, at most 24 letters
    count: int
    elapsed_ns: int
    columns_ns: dict[str, int]  # by `parts.COLUMNS`; they add up to elapsed_ns
    saving_ns: int  # over its intervals, at most
    saving: float  # the same as a share of all that was measured
    site: str
    library: bool
    interval: int


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
    error_ns: int
    columns_ns: dict[str, int]
    pieces: tuple[Piece, ...]
    launch: str  # the call that ended its longest idle time, '' for none
    launch_ns: int  # when that call began


@dataclass(frozen=True)
class Fix:
    purpose: str  # measure the GPU only | measure it right | make it faster
    sentence: str
    code: tuple[str, ...]


@dataclass(frozen=True)
class First:
    """All that a first screen says; `Answer.screen`."""

    verdict: str
    sentence: str  # at most two sentences
    proof: Proof | None
    fixes: tuple[Fix, ...]
    labels: tuple[LabelVerdict, ...]  # the largest saving first; wrong timings, libraries last
    wrong: tuple[str, ...]  # labels whose timing is not what is meant
    unplaced: str  # how many intervals have no place, and why; '' for none
    warnings: int  # labels whose verdict has the sign "!"
    notes: int  # findings that are remarks
    remarks: tuple[str, ...]
    trust: str


def first_screen(
    analysis: Analysis,
    rows: Sequence[LabelRow],
    runs: Sequence[LabelRow],
    findings: Sequence[Finding],
    cold: np.ndarray,
    trust: str,
) -> First:
    """`rows`: one per label; `runs`: of the run as a whole, for where nothing was timed; `cold`:
    which intervals are first calls."""
    by_label: dict[str, list[Finding]] = {}
    for finding in findings:
        by_label.setdefault(finding.label, []).append(finding)
    measured = sum(row.spent.total_ns for row in rows if not row.library) or 1
    labels = sorted(
        (_verdict(analysis, row, by_label.get(row.label, []), measured) for row in rows),
        key=lambda v: (
            v.library, v.verdict == WRONG, -v.saving_ns if v.saving >= LEADS else 0, -v.elapsed_ns * v.count,
        ),
    )  # fmt: skip
    own = [verdict for verdict in labels if not verdict.library] or labels
    wrong = [verdict for verdict in own if verdict.verdict == WRONG]
    right = [verdict for verdict in own if verdict.verdict != WRONG]
    lead, row = None, None
    if wrong and not (right and right[0].saving >= LEADS):
        lead = wrong[0]
    elif right:
        lead = right[0]
    if lead is not None:
        row = next(row for row in rows if row.label == lead.label)
    elif runs:
        row = max(runs, key=lambda run: run.elapsed_ns)
        lead = _verdict(analysis, row, by_label.get(row.label, []), max(row.elapsed_ns, 1))
    told = by_label.get(lead.label, []) if lead else []
    proof = _proof(analysis, row) if row is not None else None
    if lead is None or proof is None:
        sentence, word = "Nothing was measured.", CANNOT_TELL
    else:
        sentence, word = _sentence(analysis, row, lead, proof, told), lead.verdict
    if not rows and (severe := [f for f in findings if f.severity in ("error", "warning")]):
        sentence, told = severe[0].title, severe[:1]
    notes = sum(finding.severity == "info" for finding in findings)
    return First(
        verdict=word,
        sentence=sentence,
        proof=proof,
        fixes=_fixes(told, word),
        labels=tuple(labels),
        wrong=tuple(verdict.label for verdict in wrong),
        unplaced=_unplaced(analysis),
        warnings=sum(SIGNS[verdict.verdict] == "!" for verdict in labels),
        notes=notes,
        remarks=_first_calls(analysis, cold, findings) + _second_run(analysis),
        trust=trust,
    )


def columns_of(row: LabelRow) -> dict[str, int]:
    """The parts of a row by column of the screen; kernels of a host timer that ran while the CPU
    did something else are not among them."""
    sums = dict.fromkeys(COLUMNS, 0)
    for cause, ns in row.parts_ns.items():
        sums[COLUMN_OF[cause]] += ns
    return sums


def _shown(row: LabelRow) -> dict[str, int]:
    """The columns of a row as they are printed.  GPU and CPU overlap in a host timer: what is
    neither a kernel of its own nor waiting is the CPU's."""
    sums = columns_of(row)
    kernels = gpu_time(row)
    if row.kind != "host" or kernels <= sums["kernel"]:
        return sums
    waiting = min(sums["waiting"], row.elapsed_ns - kernels)
    others = row.elapsed_ns - kernels - waiting
    return dict.fromkeys(COLUMNS, 0) | {"kernel": kernels, "waiting": waiting, "CPU": others}


def gpu_time(row: LabelRow) -> int:
    """Kernels and graphs, ns; of a host timer what it issued and ran before its second timer call."""
    return max(row.kernel_ns, min(row.meanwhile_ns or 0, row.elapsed_ns))


def word_of(row: LabelRow, rules: Sequence[str] = (), error: bool = False) -> str:
    """The verdict of a row; `rules`: of the findings about it, `error`: one of them is an error."""
    whole, parts, kernels = row.elapsed_ns, columns_of(row), gpu_time(row)
    if error:
        return WRONG
    if whole <= 0:
        return CANNOT_TELL
    own_cost = row.parts_ns["event"] + row.parts_ns["launch_latency"]
    floor = own_cost >= 0.7 * whole or "event-floor" in rules
    if kernels + parts["copy"] < 0.5 * whole and floor:
        return FLOOR
    if kernels >= 0.8 * whole:
        return GPU
    if parts["copy"] >= 0.5 * whole:
        return COPY
    if parts["waiting"] >= 0.4 * whole:
        return WAITING
    cpu = parts["CPU"] + (parts["sync"] if row.kind == "host" else 0)
    if parts["launch"] + cpu >= 0.2 * whole:
        return LAUNCH if parts["launch"] > cpu else CPU
    return CANNOT_TELL if row.parts_ns["unknown"] >= 0.5 * whole else MIXED


def _verdict(
    analysis: Analysis, row: LabelRow, findings: Sequence[Finding], measured_ns: int
) -> LabelVerdict:
    error = any(finding.severity == "error" for finding in findings)
    word = word_of(row, [finding.rule for finding in findings], error)
    losses = [f.loss_ns for f in findings if f.rule not in COLD and f.severity != "error"]
    saving = 0 if word == WRONG else max(losses, default=0)
    return LabelVerdict(
        label=row.label,
        kind=row.kind,
        verdict=word,
        words=_words(analysis, row, word, findings),
        count=row.count,
        elapsed_ns=row.elapsed_ns,
        columns_ns=_shown(row),
        saving_ns=saving,
        saving=min(saving / measured_ns, 1.0),
        site=row.site,
        library=row.library,
        interval=row.interval,
    )


def _words(analysis: Analysis, row: LabelRow, word: str, findings: Sequence[Finding]) -> str:
    """The verdict in a few words with its number."""
    whole, parts = max(row.elapsed_ns, 1), columns_of(row)
    kernels = percent(gpu_time(row) / whole)
    limited = parts["launch"] + parts["CPU"] + (parts["sync"] if row.kind == "host" else 0)
    if word in (CPU, LAUNCH):
        if gpu_time(row) < 0.3 * whole and limited >= 0.5 * whole:
            return "measures the CPU" if word == CPU else "measures launches"
        return f"{'CPU late' if word == CPU else 'launches late'}, {percent(limited / whole)}"
    if word == COPY:
        speed = _copy(analysis, row.interval)
        return f"copies, {speed or percent(parts['copy'] / whole)}"
    if word == WAITING:
        return f"waiting, {percent(parts['waiting'] / whole)}"
    if word == GPU:
        whats = "kernels" if not row.parts_ns["graph"] else "graph"
        return f"{kernels} {whats}" + (" (!)" if row.flagged else "")
    if word == WRONG:
        rule = next(f.rule for f in findings if f.severity == "error")
        return f"wrong: {rule.replace('-', ' ')}"
    if word == MIXED:
        first, second = _largest(row)[:2]
        return f"{first[1]}, {second[1]}"
    return "event cost only" if word == FLOOR else "cannot tell"


def _largest(row: LabelRow) -> list[tuple[int, str]]:
    parts = sorted(((ns, DISPLAY[cause]) for cause, ns in row.parts_ns.items()), reverse=True)
    return parts


# --- the sentence ---


def _sentence(
    analysis: Analysis, row: LabelRow, lead: LabelVerdict, proof: Proof, findings: Sequence[Finding]
) -> str:
    """At most two sentences: the number and its cause."""
    whole, parts, kernels = max(row.elapsed_ns, 1), lead.columns_ns, gpu_time(row)
    verb = {"nvtx": "spans"}.get(row.kind, "reads")
    reads = f"{safe_text(row.label)} {verb} {duration(row.elapsed_ns)}"
    if row.kind == "run":
        reads = f"From its first to its last GPU work the run takes {duration(row.elapsed_ns)}"
    if lead.verdict == WRONG:
        return next(f.title for f in findings if f.severity == "error")
    if lead.verdict == CANNOT_TELL:
        return f"{reads}. The trace does not say what ran in {percent(row.parts_ns['unknown'] / whole)} of it."
    others_ns = _on_other_streams(analysis, row.interval)
    idler = "Its stream" if others_ns else "The GPU"
    none = "no kernel runs in it"
    if others_ns:
        none = f"its stream runs no kernel; others work, the busiest for {duration(others_ns)}"
    if lead.verdict == FLOOR:
        takes = f"its kernels take {duration(kernels)}" if kernels else none
        return f"{reads}; {takes}. The rest is launch latency and the event pair's own cost."
    if lead.verdict == MIXED:
        (one, first), (two, second) = _largest(row)[:2]
        return f"{reads}: {first} {percent(one / whole)}, {second} {percent(two / whole)}."
    if lead.verdict == COPY:
        speed = _copy(analysis, row.interval)
        copied = _copied(analysis, row.interval)
        return f"{reads}; {percent(parts['copy'] / whole)} of it are copies. {copied}{f' at {speed}' if speed else ''}."
    if lead.verdict == WAITING:
        behind = _waited_for(analysis, row.interval)
        return f"{reads}; for {duration(parts['waiting'])} of it its work was launched and waited. {behind}"
    if lead.verdict == GPU:
        graph = " (a CUDA graph)" if row.parts_ns["graph"] else ""
        if row.kind == "host":
            said = (
                f"{reads}; kernels ran for {duration(kernels)} of it ({percent(kernels / whole)})."
            )
        else:
            said = f"{reads}: {percent(kernels / whole)} kernels{graph}."
        warned = [f for f in findings if f.severity == "warning"]
        return f"{said} {warned[0].title if warned else _top_kernel(analysis, row.label)}".strip()
    if row.kind == "run":
        busy = f"the GPU worked for {duration(kernels + parts['copy'])} of it ({percent((kernels + parts['copy']) / whole)})"
        return f"{reads}; {busy}. {_top_kernel(analysis, row.label)}".strip()
    if row.kind == "host" and kernels:
        return f"{reads}; kernels ran for {duration(kernels)} of it ({percent(kernels / whole)}). {_why(row, lead, proof, idler)}"
    takes = f"its kernels take {duration(kernels)}" if kernels else none
    if sum(piece.column == "kernel" for piece in proof.pieces) == 1:
        takes = f"its kernel takes {duration(kernels)}"
    return f"{reads}; {takes}. {_why(row, lead, proof, idler)}"


def _on_other_streams(analysis: Analysis, interval: int) -> int:
    """How long the busiest other stream ran what was launched inside an interval."""
    others = analysis.other_streams
    spent = others.loc[others["interval"] == interval, "ns"]
    return int(spent.max()) if len(spent) else 0


def _why(row: LabelRow, lead: LabelVerdict, proof: Proof, idler: str) -> str:
    """Of a label that the CPU limits: what its stream waited for; `idler`: what was idle then."""
    parts = lead.columns_ns
    idle = parts["launch"] + parts["CPU"]
    if lead.verdict == LAUNCH:
        calls = {piece.what for piece in proof.pieces if piece.column == "launch"}
        name = f" ({calls.pop()})" if len(calls) == 1 else ""
        return f"{idler} was idle for {duration(parts['launch'])} of it in launch calls{name}."
    if row.parts_ns["api"] >= 0.5 * idle:
        calls: dict[str, int] = {}
        for piece in proof.pieces:
            if piece.column == "CPU" and piece.what:
                calls[piece.what] = calls.get(piece.what, 0) + piece.end_ns - piece.start_ns
        named = max(calls, key=calls.__getitem__, default="other CUDA calls")
        return f"{idler} was idle for {duration(row.parts_ns['api'])} of it in other CUDA calls, most in {named}."
    begin = {"event": "start.record()", "host": "the first timer call"}.get(row.kind, "its begin")
    until_gpu = next((p.start_ns for p in proof.pieces if p.column in ("kernel", "copy")), 0)
    if proof.launch and until_gpu >= 0.6 * idle and proof.launch_ns < until_gpu:
        return (
            f"{idler} sat idle: the kernel was launched {duration(proof.launch_ns)} after {begin}."
        )
    return f"{idler} was idle for {duration(idle)} of it: the CPU had not launched yet."


def _top_kernel(analysis: Analysis, label: str) -> str:
    """The kernel that takes most of a label's GPU time."""
    rows = analysis.kernels[(analysis.kernels["label"] == label)]
    rows = rows[rows["kind"].isin(["kernel", "graph"])]
    total = int(rows["total_ns"].sum())
    if not total:
        return ""
    top = rows.loc[rows["total_ns"].idxmax()]
    if top["kind"] != "kernel":
        return ""
    name = short_name(safe_text(top["kernel"]))
    name = name if len(name) <= 48 else name[:47] + "…"
    share = percent(int(top["total_ns"]) / total)
    return f"{name} is {share} of its kernel time: look at it with ncu."


def _details(analysis: Analysis, interval: int, cause: str) -> pd.DataFrame:
    table = analysis.details
    rows = table[(table["interval"] == interval) & (table["cause"] == cause)]
    return rows.sort_values("ns", ascending=False)


def _copy(analysis: Analysis, interval: int) -> str:
    rows = _details(analysis, interval, "memcpy")
    rows = rows[rows["bandwidth_gb_s"] > 0]
    return f"{rows['bandwidth_gb_s'].iloc[0]:.3g} GB/s" if len(rows) else ""


def _copied(analysis: Analysis, interval: int) -> str:
    rows = _details(analysis, interval, "memcpy")
    rows = rows[rows["bytes"] > 0]
    if rows.empty:
        return "Setting memory takes most of it"
    row = rows.iloc[0]
    memory = f" ({safe_text(row['memory'])} memory)" if row["memory"] else ""
    return (
        f"The largest part: {bytes_text(int(row['bytes']))} {safe_text(row['direction'])}{memory}"
    )


def _waited_for(analysis: Analysis, interval: int) -> str:
    rows = _details(analysis, interval, "queued")
    if rows.empty:
        return "What it waited for is not in the trace."
    row = rows.iloc[0]
    stream = f"stream {int(row['stream'])}" if row["stream"] >= 0 else "other work"
    return {
        "dependency": f"It waited for an event of {stream}.",
        "contention": f"{stream.capitalize()} kept the GPU busy.",
        "full-queue": "The launch queue was full.",
    }.get(row["detail"], f"It waited behind {stream}.")


def _unplaced(analysis: Analysis) -> str:
    reasons = analysis.unaligned["reason"]
    if not len(reasons):
        return ""
    most = safe_text(reasons.value_counts().index[0])
    return f"{plural(len(reasons), 'interval')} could not be placed: {most}"


def _fixes(findings: Sequence[Finding], word: str) -> tuple[Fix, ...]:
    """What to change, of the finding about the label that costs most: one to measure, one to make
    it faster."""
    order = ("error", "warning", "info", "reading")
    of_word = [f for f in findings if f.rule not in COLD and f.severity != "info"] or [
        f for f in findings if f.rule not in COLD and f.loss_ns
    ]
    fixes: dict[str, Fix] = {}
    for finding in sorted(of_word, key=lambda f: (order.index(f.severity), -f.loss_ns)):
        for head, sentence, code in finding.advice:
            purpose = _PURPOSE.get(head, head)
            kind = purpose.partition(" ")[0]
            fixes.setdefault(kind, Fix(purpose, sentence, code))
    return tuple(fixes.values())[:2]


_PURPOSE = {
    "To measure GPU time only": "measure the GPU only",
    "To measure it right": "measure it right",
    "To make it faster": "make it faster",
}


def _first_calls(
    analysis: Analysis, cold: np.ndarray, findings: Sequence[Finding]
) -> tuple[str, ...]:
    """What happened once, in a line: the time in which a first call was open, however nested."""
    own = analysis.intervals[cold & ~analysis.intervals["library"].to_numpy(dtype=bool)]
    begin, end = union(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    once = int((end - begin).sum())
    loading = sum(f.loss_ns for f in findings if f.rule == "module-load" and not f.library)
    if not once:
        return ()
    loads = f" ({duration(loading)} loading CUDA modules)" if loading else ""
    return (f"first calls: {duration(once)} once{loads}",)


def _second_run(analysis: Analysis) -> tuple[str, ...]:
    count = len(analysis.baseline)
    return (f"{plural(count, 'label')} also timed without nsys: -v",) if count else ()


# --- the proof ---


def _proof(analysis: Analysis, row: LabelRow) -> Proof:
    """The row's interval with its pieces, neighbours of one column joined."""
    position = int((analysis.intervals["interval"] == row.interval).to_numpy().argmax())
    origin = int(analysis.intervals["start_ns"].iloc[position])
    table = analysis.segments[analysis.segments["interval"] == row.interval]
    table = table.sort_values("start_ns", kind="stable")
    start = table["start_ns"].to_numpy() - origin
    end = table["end_ns"].to_numpy() - origin
    column = np.array([COLUMNS.index(COLUMN_OF[c]) for c in table["cause"]], np.int64)
    details = table["detail"].tolist()
    launch, launch_ns = "", 0
    idle = np.isin(column, [COLUMNS.index(name) for name in _IDLE])
    if len(start):
        begins = np.flatnonzero(np.r_[True, idle[1:] != idle[:-1]])
        ends = np.r_[begins[1:], len(start)] - 1
        long = np.where(idle[begins], end[ends] - start[begins], -1)
        one = int(long.argmax())
        for place in range(int(ends[one]), int(begins[one]) - 1, -1):
            if long[one] > 0 and COLUMNS[column[place]] == "launch":
                launch, launch_ns = safe_text(details[place]), int(start[place])
                break
    return Proof(
        label=row.label,
        interval=row.interval,
        name=row.name,
        kind=row.kind,
        elapsed_ns=row.elapsed_ns,
        error_ns=row.error_ns,
        columns_ns=_shown(row),
        pieces=_pieces(start, end, column, details),
        launch=launch,
        launch_ns=launch_ns,
    )


def _pieces(
    start: np.ndarray, end: np.ndarray, column: np.ndarray, details: Sequence[str]
) -> tuple[Piece, ...]:
    """Pieces named by the longest that is in them; of very many only the largest part of each
    thousandth is kept."""
    if not len(start):
        return ()
    if len(start) > 20 * _MOST_PIECES:
        edges = np.linspace(start[0], end[-1], _MOST_PIECES + 1).astype(np.int64)
        column = dominant(start, end, column, edges)
        start, end, details = edges[:-1], edges[1:], [""] * _MOST_PIECES
    pieces: list[Piece] = []
    longest = 0
    for begin, stop, number, detail in zip(
        start.tolist(), end.tolist(), column.tolist(), details, strict=True
    ):
        name, what = COLUMNS[number], safe_text(detail)
        if pieces and pieces[-1].column == name:
            if stop - begin > longest:
                longest = stop - begin
                pieces[-1] = pieces[-1]._replace(what=what)
            pieces[-1] = pieces[-1]._replace(end_ns=stop)
        elif stop > begin:
            longest = stop - begin
            pieces.append(Piece(begin, stop, name, what))
    return tuple(pieces)


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
