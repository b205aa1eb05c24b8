"""What a run without nsys proves, in a terminal: a sentence, a line per label, what to run next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from nsysalign.explain.verdict import SIGNS
from nsysalign.show.screen import shortened
from nsysalign.show.table import Column, draw, text
from nsysalign.text import duration, percent, plural, safe_text
from nsysalign.unprofiled_run import CPU_BOUND, GPU_BOUND, Pace, UnprofiledRun

MOST_LABELS = 12


def render(run: UnprofiledRun, console: Console, next_command: str) -> None:
    """Print what a run without nsys proves, in about 24 lines: sentences, a table of the MOST_LABELS labels with most
    time, what the numbers rest on, and what to run next.

    next_command: the command that the last line names
    """
    labels = by_weight(run.labels, run.paces)
    for line in sentences(run):
        console.print(Text(safe_text(line)))
    if len(labels):
        console.print()
        _print_table(labels.head(MOST_LABELS), console)
    if len(labels) > MOST_LABELS:
        console.print(
            Text(
                f"{plural(len(labels) - MOST_LABELS, 'more label')} in Python: nsysalign.load(RUN_DIR).labels",
                "dim",
            )
        )
    console.print()
    for note in (*run.conditions, *run.notes[:3]):
        console.print(Text(f"note: {safe_text(note)}", "dim"))
    console.print(Text(trust(run), "dim"))
    console.print(Text("next: ", "bold") + Text(next_command))


def sentences(run: UnprofiledRun) -> list[str]:
    """Return two sentences: who limits one label, and that a run without nsys has no breakdown.

    The label is the one with most time among those that the CPU can have slowed down and has slowed down
    (`cpu_bound`), or among all if there is none of these.
    """
    without = "Recorded without nsys: this says who limits a timing, not where its time went."
    if run.labels.empty:
        timers = " What host timers measure needs the trace." if run.host_timers else ""
        no_pair = f"No pair of CUDA events was compared, so nothing is known about the GPU.{timers}"
        return [no_pair, without]
    labels = by_weight(run.labels, run.paces)
    limited = labels[labels["verdict"] == CPU_BOUND]
    label = (limited if len(limited) else labels).iloc[0]
    return [sentence(label, [p for p in run.paces if p.label == label["label"]]), without]


def sentence(label: pd.Series, paces: Sequence[Pace] = ()) -> str:
    """Return who limits the timings of a label (GPU, CPU, or that nobody can tell), as far as a log without a trace can
    prove it.

    label: a row of `frames.TIMED_LABELS`
    paces: its paces, which are groups of repetitions of about the same length; if there are several, the sentence
        first says which share of the label's time the longest one takes
    """
    reads = f"{label['label']} measured {duration(label['steady_median_ns'])}"
    if len(paces) > 1:
        reads = f"{_shares(paces)} The usual one measured {duration(label['steady_median_ns'])}"
    in_most = f"in {label['holds_in']:,} of {label['steady']:,} intervals"
    if label["verdict"] == GPU_BOUND:
        cost = label["idle_at_most_ns"]
        at_most = "nothing" if cost == 0 else f"at most {duration(cost)}"
        return f"{reads} and is GPU-bound: the CPU can have cost {at_most} of it ({in_most})."
    if label["verdict"] == CPU_BOUND:
        return (
            f"{reads}, and the GPU had drained at its end: the CPU was late, or a call inside waited for the GPU "
            f"({in_most})."
        )
    if pd.isna(label["idle_at_most_ns"]):
        return f"{reads}; nothing is proven of it: no reference event reaches its events."
    share = percent(label["idle_at_most_ns"] / max(label["steady_median_ns"], 1))
    return (
        f"{reads}; who limits it cannot be told: the CPU can have cost {duration(label['idle_at_most_ns'])} of it "
        f"({share}) or nothing."
    )


def _shares(paces: Sequence[Pace]) -> str:
    """Return a sentence on a label with several paces: how many timings it has, how long they took together, and which
    share of that went to the pace that took most.
    """
    total = sum(pace.total_ns for pace in paces)
    longest = max(paces, key=lambda pace: pace.total_ns)
    shorter = [f"{p.count:,} x {duration(p.typical_ns)}" for p in paces if p is not longest]
    share = "one" if longest.count == 1 else f"{longest.count:,} of them"
    return (
        f"{paces[0].label}: {sum(p.count for p in paces):,} timings, {duration(total)}; {percent(longest.total_ns / total)} "
        f"of it is {share}, {duration(longest.typical_ns)} each. The others: {', '.join(shorter)}."
    )


def words(label: pd.Series) -> str:
    """The verdict of a label in a few words."""
    if label["verdict"] == GPU_BOUND:
        return "GPU-bound"
    if label["verdict"] == CPU_BOUND:
        return "GPU had drained"
    return "cannot tell" if pd.notna(label["idle_at_most_ns"]) else "cannot tell: no reference"


def by_weight(labels: pd.DataFrame, paces: Sequence[Pace]) -> pd.DataFrame:
    """Return labels in another order: the program's own before those of libraries, and among these the ones first whose
    repetitions (without the first one) took most time.

    labels: `frames.TIMED_LABELS`
    paces: of all labels
    """
    total = dict.fromkeys(labels["label"], 0)
    for pace in paces:
        total[pace.label] += pace.total_ns
    return labels.iloc[np.lexsort((-labels["label"].map(total), labels["library"]))]


def _print_table(labels: pd.DataFrame, console: Console) -> None:
    """Print a row for each label: its verdict, how often it was timed, its median and first time, and how long the CPU can
    have kept the GPU idle in it.

    labels: `frames.TIMED_LABELS`
    """
    rows = [label for _, label in labels.iterrows()]
    idle = [
        "-" if pd.isna(row["idle_at_most_ns"]) else duration(row["idle_at_most_ns"]) for row in rows
    ]
    room = max(console.width - 52, 18)  # beside the numbers and the verdict, which is never cut
    columns = [
        Column("", [SIGNS[row["verdict"]] for row in rows], left=True),
        text("label", [shortened(safe_text(row["label"]), room) for row in rows]),
        Column("n", [f"{row['count']:,}" for row in rows], leaves=0.2),
        Column("median", [duration(row["steady_median_ns"]) for row in rows]),
        Column("first", [duration(row["first_ns"]) for row in rows], leaves=0.1),
        Column("CPU at most", idle, leaves=1.0),
        Column("", [words(row) for row in rows], left=True),
    ]
    draw(columns, console)


def trust(run: UnprofiledRun) -> str:
    """What the numbers rest on, in a line."""
    known = [run.device or "no GPU named", "not profiled"]
    if run.floor_ns is not None:
        known.append(f"an empty event pair measures {duration(run.floor_ns)}")
    if run.sm_mhz is not None:
        low, high = run.sm_mhz
        known.append(
            f"SM clock {low:,} MHz" if low == high else f"SM clock {low:,} to {high:,} MHz"
        )
    return ", ".join(known)
