"""The run as a whole, in sentences: how long it took, how long the GPU worked and on what, and what the rest was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysalign.model import CAUSES, Analysis
from nsysalign.parts import parts_matrix
from nsysalign.report.palette import LOOKS
from nsysalign.report.rows import LabelRow
from nsysalign.shorten import told_apart
from nsysalign.text import duration, percent, plural, safe_text

if TYPE_CHECKING:
    import pandas as pd


WORK = ("kernel", "graph", "memcpy", "memset")
#: Letters of a kernel's name in a line.
LONGEST = 40
#: Devices with a sentence, kernels and gaps that a terminal lists.
MOST_SENTENCES, MOST_KERNELS, MOST_GAPS = 4, 5, 3


def run_rows(analysis: Analysis) -> list[LabelRow]:
    """One row per run, devices and streams, as tables of labels have them."""
    runs = analysis.runs
    matrix = parts_matrix(analysis)[len(analysis.intervals) - len(runs) :]
    return [
        LabelRow(
            label=str(r.label),
            kind="run",
            count=1,
            site="",
            interval=int(r.interval),
            name=str(r.name),
            elapsed_ns=int(r.elapsed_ns),
            error_ns=0,
            kernel_only_ns=int(r.kernel_only_ns),
            kernel_only_upper_ns=int(r.kernel_only_upper_ns),
            parts_ns=dict(zip(CAUSES, parts, strict=True)),
            median_ns=float(r.elapsed_ns),
            mean_ns=float(r.elapsed_ns),
            std_ns=float("nan"),
            min_ns=int(r.elapsed_ns),
            max_ns=int(r.elapsed_ns),
            p05_ns=float(r.elapsed_ns),
            p95_ns=float(r.elapsed_ns),
            library=False,
            findings=(),
            flagged=False,
            callers=(),
        )
        for r, parts in zip(runs.itertuples(index=False, name="Run"), matrix.tolist(), strict=True)
    ]


def of_devices(analysis: Analysis) -> pd.DataFrame:
    """The runs of whole devices: each process's first one on a device (streams come behind it)."""
    return analysis.runs.drop_duplicates(["pid", "device"])


def sentences(analysis: Analysis) -> list[str]:
    """A sentence per process and device, the one with the most work first."""
    devices = set(of_devices(analysis)["interval"].tolist())
    rows = sorted((r for r in run_rows(analysis) if r.interval in devices), key=lambda r: -_work(r))
    out = [_sentence(row) for row in rows[:MOST_SENTENCES]]
    if len(rows) > MOST_SENTENCES:
        out.append(f"… and {plural(len(rows) - MOST_SENTENCES, 'more run')} in the report")
    return out


def _work(row: LabelRow) -> int:
    return sum(row.parts_ns[c] for c in WORK)


def _sentence(row: LabelRow) -> str:
    work, whole = _work(row), row.elapsed_ns
    did = _listed({c: row.parts_ns[c] for c in WORK}, 4)
    rest = _listed({c: ns for c, ns in row.parts_ns.items() if c not in WORK}, 3)
    text = f"{safe_text(row.label)}: {duration(whole)} from the first GPU work to the last; the GPU was busy for "
    text += f"{duration(work)} ({percent(work / max(whole, 1))}): {did}."
    return f"{text} Idle: {rest}." if rest else text


def _listed(parts: dict[str, int], most: int) -> str:
    largest = sorted((item for item in parts.items() if item[1] > 0), key=lambda item: -item[1])[:most]
    return ", ".join(f"{LOOKS[c].short} {duration(ns)}" for c, ns in largest)


def kernel_lines(analysis: Analysis) -> list[str]:
    """The most expensive kernels of the longest run: share, total, count, median, idle time before, name."""
    devices = of_devices(analysis)
    if devices.empty or analysis.kernels.empty:
        return []
    label = devices.sort_values("elapsed_ns")["label"].iloc[-1]
    rows = analysis.kernels[analysis.kernels["label"] == label]
    names = [safe_text(name) for name in rows["kernel"].head(MOST_KERNELS)]
    short = told_apart({n: n if len(n) <= LONGEST else n[: LONGEST - 1] + "…" for n in names}, LONGEST)
    lines = [
        f"{percent(k.share):>5}  {duration(k.total_ns):>8}  {k.count:>8,} x {duration(k.median_ns):>8}  "
        f"idle before {duration(k.idle_before_ns):>8}  {short[safe_text(k.kernel)]}"
        for k in rows.head(MOST_KERNELS).itertuples(index=False)
    ]
    return lines + (
        [f"       … {len(rows) - MOST_KERNELS:,} more in the report"] if len(rows) > MOST_KERNELS else []
    )


def gap_lines(analysis: Analysis) -> list[str]:
    """The longest idle times of whole devices."""
    mine = analysis.gaps[analysis.gaps["interval"].isin(of_devices(analysis)["interval"])]
    return [
        f"idle for {duration(g.ns)} before {safe_text(g.next)}: "
        + (
            f"{duration(g.call_ns)} of it in {safe_text(g.call)}"
            if g.call
            else "the host was not in a CUDA call"
        )
        for g in mine.nlargest(MOST_GAPS, "ns").itertuples(index=False)
    ]
