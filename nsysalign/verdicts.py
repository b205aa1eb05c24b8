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

from nsysalign.explain.finding import NO_WORK
from nsysalign.intervals import union
from nsysalign.model import OTHER_STREAMS
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
    library: bool


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
    says = [f for f in findings if f.severity == "warning" and f.label in {r.label for r in runs}]
    wrong = [verdict for verdict in own if verdict.verdict == WRONG]
    right = [verdict for verdict in own if verdict.verdict != WRONG]
    lead, row = None, None
    if own:
        telling = (v for v in right if _tells(analysis, v.label))
        right_one = next(telling, right[0]) if right else None
        lead = right_one if right_one and (not wrong or right_one.saving >= LEADS) else wrong[0]
        row = next(row for row in rows if row.label == lead.label)
    if runs and (not own or max((f.loss_ns for f in says), default=0) > max(lead.saving_ns, 0)):
        row = max(runs, key=lambda run: run.elapsed_ns)
        lead = _verdict(analysis, row, by_label.get(row.label, []), max(row.elapsed_ns, 1))
    nothing = (note for note in analysis.notes if note.startswith(NO_WORK))
    sentence, proof, about = next(nothing, "Nothing was measured."), None, []
    if lead and row:
        proof, about = _proof(analysis, row), by_label.get(lead.label, [])
        sentence = _sentence(analysis, row, lead, proof, about)
    if row is None or row.kind == "run":
        severe = says if rows else [f for f in findings if f.severity in ("error", "warning")]
        if severe and severe[0].rule == "set-up":
            sentence = f"{severe[0].title} {severe[1].title if severe[1:] else sentence}"
        elif severe:
            sentence = severe[0].title
        about = severe[:1]
    word = lead.verdict if lead else CANNOT_TELL
    reasons = analysis.unaligned["reason"]
    unplaced = ""
    if len(reasons):
        most = safe_text(reasons.value_counts().index[0])
        unplaced = f"{plural(len(reasons), 'interval')} could not be placed: {most}"
    return First(
        verdict=word,
        sentence=sentence,
        proof=proof,
        fixes=_fixes(about),
        labels=tuple(labels),
        wrong=tuple(verdict.label for verdict in wrong),
        unplaced=unplaced,
        warnings=sum(SIGNS[verdict.verdict] == "!" for verdict in labels),
        notes=sum(finding.severity == "info" for finding in findings),
        remarks=_remarks(analysis, cold, findings),
        trust=trust,
    )


def _tells(analysis: Analysis, label: str) -> bool:
    """Whether the typical interval of a label shows something: not where most of its time is counted
    twice, as its intervals overlap; nor where none of its streams did anything while others worked."""
    own = analysis.intervals[analysis.intervals["label"] == label]
    if not own["kernel_only_upper_ns"].any() and all(
        not OTHER_STREAMS.isdisjoint(f) for f in own["flags"]
    ):
        return False
    once = 0
    for _, of_stream in own.groupby(["pid", "end_stream"]):
        begin, end = union(of_stream["start_ns"].to_numpy(), of_stream["end_ns"].to_numpy())
        once += int((end - begin).sum())
    return 2 * once >= own["elapsed_ns"].sum()


def gpu_time(row: LabelRow) -> int:
    """Kernels and graphs, ns; of a host timer what it issued and ran before its second timer call."""
    return max(row.kernel_ns, min(row.meanwhile_ns or 0, row.elapsed_ns))


def _columns(row: LabelRow) -> dict[str, int]:
    """The parts of a row by column of the screen; kernels of a host timer that ran while the CPU
    did something else are not among them."""
    sums = dict.fromkeys(COLUMNS, 0)
    for cause, ns in row.parts_ns.items():
        sums[COLUMN_OF[cause]] += ns
    return sums


def _verdict(
    analysis: Analysis, row: LabelRow, findings: Sequence[Finding], measured_ns: int
) -> LabelVerdict:
    """The rules of the words: docs/lab/verdicts.md."""
    whole, parts, kernels = row.elapsed_ns, _columns(row), gpu_time(row)
    cpu = parts["CPU"] + (parts["sync"] if row.kind == "host" else 0)
    late, of = parts["launch"] + cpu, max(whole, 1)
    wrong = next((f.rule for f in findings if f.severity == "error"), "")
    floor = row.parts_ns["event"] + row.parts_ns["launch_latency"] >= 0.7 * whole
    floor = floor or any(f.rule == "event-floor" for f in findings)
    largest = _largest(row)
    if wrong:
        word, text = WRONG, f"wrong: {wrong.replace('-', ' ')}"
    elif whole <= 0:
        word, text = CANNOT_TELL, "cannot tell"
    elif kernels + parts["copy"] < 0.5 * whole and floor:
        word, text = FLOOR, "event cost only"
    elif kernels >= 0.8 * whole:
        what = "graph" if row.parts_ns["graph"] else "kernels"
        word, text = GPU, f"{percent(kernels / of)} {what}{' (!)' if row.flagged else ''}"
    elif parts["copy"] >= 0.5 * whole:
        speed, _ = _copies(analysis, row.interval)
        word, text = COPY, f"copies, {speed or percent(parts['copy'] / of)}"
    elif parts["waiting"] >= 0.4 * whole:
        word, text = WAITING, f"waiting, {percent(parts['waiting'] / of)}"
    elif late >= 0.2 * whole:
        word = LAUNCH if parts["launch"] > cpu else CPU
        text = f"{'launches' if word == LAUNCH else 'CPU'} late, {percent(late / of)}"
        if kernels < 0.3 * whole and late >= 0.5 * whole:
            text = "measures launches" if word == LAUNCH else "measures the CPU"
    elif row.parts_ns["unknown"] >= 0.5 * whole:
        word, text = CANNOT_TELL, "cannot tell"
    else:
        word, text = MIXED, f"{largest[0][1]}, {largest[1][1]}"
    if row.kind == "host" and kernels > parts["kernel"]:
        # GPU and CPU overlap in a host timer: what is neither a kernel nor waiting is the CPU's
        waiting = min(parts["waiting"], whole - kernels)
        others = {"kernel": kernels, "waiting": waiting, "CPU": whole - kernels - waiting}
        parts = dict.fromkeys(COLUMNS, 0) | others
    losses = [f.loss_ns for f in findings if f.rule not in COLD and f.severity != "error"]
    saving = 0 if word == WRONG else max(losses, default=0)
    return LabelVerdict(
        label=row.label,
        kind=row.kind,
        verdict=word,
        words=text,
        count=row.count,
        elapsed_ns=whole,
        columns_ns=parts,
        saving_ns=saving,
        saving=min(saving / measured_ns, 1.0),
        library=row.library,
    )


def _largest(row: LabelRow) -> list[tuple[int, str]]:
    return sorted(((ns, DISPLAY[cause]) for cause, ns in row.parts_ns.items()), reverse=True)


# --- the sentence ---


def _sentence(
    analysis: Analysis, row: LabelRow, lead: LabelVerdict, proof: Proof, findings: Sequence[Finding]
) -> str:
    """At most two sentences: the number and its cause."""
    whole, parts, kernels = max(row.elapsed_ns, 1), lead.columns_ns, gpu_time(row)
    word, ran = lead.verdict, f"kernels ran for {duration(kernels)} of it"
    reads = f"{safe_text(row.label)} {'spans' if row.kind == 'nvtx' else 'reads'} {duration(row.elapsed_ns)}"
    if row.kind == "run":
        reads = f"From its first to its last GPU work the run takes {duration(row.elapsed_ns)}"
    if word == WRONG:
        return next(f.title for f in findings if f.severity == "error")
    if word == CANNOT_TELL:
        return f"{reads}. The trace does not say what ran in {percent(row.parts_ns['unknown'] / whole)} of it."
    if word == MIXED:
        (one, first), (two, second) = _largest(row)[:2]
        most = _top_kernel(analysis, row.label) if row.kind == "run" else ""
        return f"{reads}: {first} {percent(one / whole)}, {second} {percent(two / whole)}. {most}".strip()
    if word == COPY:
        speed, most = _copies(analysis, row.interval)
        return f"{reads}; {percent(parts['copy'] / whole)} of it are copies. {most}{f' at {speed}' if speed else ''}."
    if word == WAITING:
        behind = _waited_for(analysis, row.interval)
        return f"{reads}; for {duration(parts['waiting'])} of it its work was launched and waited. {behind}"
    if word == GPU:
        graph = " (a CUDA graph)" if row.parts_ns["graph"] else ""
        what = f": {percent(kernels / whole)} kernels{graph}."
        if row.kind == "host":
            what = f"; {ran} ({percent(kernels / whole)})."
        warned = [f.title for f in findings if f.severity == "warning"]
        more = warned[0] if warned else _top_kernel(analysis, row.label)
        return f"{reads}{what} {more}".strip()
    if row.kind == "run" and word != FLOOR:
        busy = kernels + parts["copy"]
        worked = f"the GPU worked for {duration(busy)} of it ({percent(busy / whole)})"
        return f"{reads}; {worked}. {_top_kernel(analysis, row.label)}".strip()
    others = analysis.other_streams
    others_ns = others.loc[others["interval"] == row.interval, "ns"].max() if len(others) else 0
    takes, idler = "no kernel runs in it", "The GPU"
    if others_ns > 0:
        takes = f"its stream runs no kernel; others work, the busiest for {duration(others_ns)}"
        idler = "Its stream"
    if kernels:
        one = sum(piece.column == "kernel" for piece in proof.pieces) == 1 and word != FLOOR
        takes = f"its {'kernel takes' if one else 'kernels take'} {duration(kernels)}"
        if row.kind == "host" and word != FLOOR:
            takes = f"{ran} ({percent(kernels / whole)})"
    if word == FLOOR:
        return f"{reads}; {takes}. The rest is launch latency and the event pair's own cost."
    return f"{reads}; {takes}. {idler} {_why(row, lead, proof)}"


def _why(row: LabelRow, lead: LabelVerdict, proof: Proof) -> str:
    """Of a label that the CPU limits: what its stream waited for."""
    parts = lead.columns_ns
    idle = parts["launch"] + parts["CPU"]
    if lead.verdict == LAUNCH:
        calls = {piece.what for piece in proof.pieces if piece.column == "launch"}
        name = f" ({calls.pop()})" if len(calls) == 1 else ""
        return f"was idle for {duration(parts['launch'])} of it in launch calls{name}."
    if row.parts_ns["api"] >= 0.5 * idle:
        spent: dict[str, int] = {}
        for piece in proof.pieces:
            if piece.column == "CPU" and piece.what:
                spent[piece.what] = spent.get(piece.what, 0) + piece.end_ns - piece.start_ns
        most = max(spent, key=spent.__getitem__, default="other CUDA calls")
        return f"was idle for {duration(row.parts_ns['api'])} of it in other CUDA calls, most in {most}."
    begin = {"event": "start.record()", "host": "the first timer call"}.get(row.kind, "its begin")
    until_gpu = next((p.start_ns for p in proof.pieces if p.column in ("kernel", "copy")), 0)
    if proof.launch and until_gpu >= 0.6 * idle and proof.launch_ns < until_gpu:
        return f"sat idle: the kernel was launched {duration(proof.launch_ns)} after {begin}."
    return f"was idle for {duration(idle)} of it: the CPU had not launched yet."


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
    """Rows of `details`, the longest first."""
    table = analysis.details
    rows = table[(table["interval"] == interval) & (table["cause"] == cause)]
    return rows.sort_values("ns", ascending=False)


def _copies(analysis: Analysis, interval: int) -> tuple[str, str]:
    """How fast the longest copy of an interval is, '' for unknown, and which it is."""
    rows = _details(analysis, interval, "memcpy")
    fast, moved = rows[rows["bandwidth_gb_s"] > 0], rows[rows["bytes"] > 0]
    speed = f"{fast['bandwidth_gb_s'].iloc[0]:.3g} GB/s" if len(fast) else ""
    if moved.empty:
        return speed, "Setting memory takes most of it"
    row = moved.iloc[0]
    memory = f" ({safe_text(row['memory'])} memory)" if row["memory"] else ""
    what = f"{bytes_text(int(row['bytes']))} {safe_text(row['direction'])}{memory}"
    return speed, f"The largest part: {what}"


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


def _fixes(findings: Sequence[Finding]) -> tuple[Fix, ...]:
    """What to change, of the finding about the label that costs most: one to measure, one to make
    it faster."""
    order = ("error", "warning", "info", "reading")
    findings = [f for f in findings if f.rule not in COLD]
    findings = [f for f in findings if f.severity != "info"] or [f for f in findings if f.loss_ns]
    fixes: dict[str, Fix] = {}
    for finding in sorted(findings, key=lambda f: (order.index(f.severity), -f.loss_ns)):
        for heading, sentence, code in finding.advice:
            purpose = _PURPOSE.get(heading, heading)
            fixes.setdefault(purpose.partition(" ")[0], Fix(purpose, sentence, code))
    return tuple(fixes.values())[:2]


_PURPOSE = {
    "To measure GPU time only": "measure the GPU only",
    "To measure it right": "measure it right",
    "To make it faster": "make it faster",
}


def _remarks(analysis: Analysis, cold: np.ndarray, findings: Sequence[Finding]) -> tuple[str, ...]:
    """What happened once, in a line: the time in which a first call was open, however nested; and
    whether there is a run without nsys."""
    remarks = []
    own = analysis.intervals[cold & ~analysis.intervals["library"].to_numpy(dtype=bool)]
    begin, end = union(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    if once := int((end - begin).sum()):
        loading = sum(f.loss_ns for f in findings if f.rule == "module-load" and not f.library)
        loads = f" ({duration(loading)} loading CUDA modules)" if loading else ""
        remarks.append(f"first calls: {duration(once)} once{loads}")
    if count := len(analysis.baseline):
        remarks.append(f"{plural(count, 'label')} also timed without nsys: -v")
    return tuple(remarks)


# --- the proof ---


def _proof(analysis: Analysis, row: LabelRow) -> Proof:
    """The row's interval with its pieces, neighbours of one column joined and named by the longest
    that is in them."""
    intervals, table = analysis.intervals, analysis.segments
    origin = int(intervals.loc[intervals["interval"] == row.interval, "start_ns"].iloc[0])
    table = table[table["interval"] == row.interval].sort_values("start_ns", kind="stable")
    columns = (table[c].tolist() for c in ("start_ns", "end_ns", "cause", "detail"))
    pieces: list[Piece] = []
    idle: list[list[Piece]] = [[]]  # stretches without work, piece by piece
    longest = 0
    for start, end, cause, detail in zip(*columns, strict=True):
        piece = Piece(start - origin, end - origin, COLUMN_OF[cause], safe_text(detail))
        if piece.column in _IDLE:
            idle[-1].append(piece)
        elif idle[-1]:
            idle.append([])
        if pieces and pieces[-1].column == piece.column:
            what = piece.what if end - start > longest else pieces[-1].what
            piece = Piece(pieces[-1].start_ns, piece.end_ns, piece.column, what)
            longest = max(longest, end - start)
            pieces.pop()
        elif end > start:
            longest = end - start
        else:
            continue
        pieces.append(piece)
    stretch = max(idle, key=lambda s: s[-1].end_ns - s[0].start_ns if s else 0)
    launched = next((p for p in reversed(stretch) if p.column == "launch"), None)
    return Proof(
        label=row.label,
        interval=row.interval,
        name=row.name,
        kind=row.kind,
        elapsed_ns=row.elapsed_ns,
        pieces=tuple(pieces),
        launch=launched.what if launched else "",
        launch_ns=launched.start_ns if launched else 0,
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
