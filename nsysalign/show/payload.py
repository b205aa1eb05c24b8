"""Everything the page shows, as plain data: the page's script only draws it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np

from nsysalign import examples, registry
from nsysalign.explain.finding import NOT_CONFIRMED
from nsysalign.model import CAUSE_MEANING, CAUSES, Analysis
from nsysalign.parts import parts_matrix
from nsysalign.show import answers, baseline
from nsysalign.show.clock_chart import page_clocks, run_starts, summary
from nsysalign.show.overview import RUN, headline, of_devices
from nsysalign.show.pack import packed
from nsysalign.show.palette import LOOKS
from nsysalign.show.rows import LabelRow, counted, label_rows, placed_within_ns, unaligned_reasons
from nsysalign.show.timeline_rows import Timelines, timelines
from nsysalign.show.verdict import (
    Card,
    Entry,
    Spent,
    Verdict,
    advices,
    cards,
    cold,
    largest_loss,
    spent,
    verdicts,
)
from nsysalign.store.objects import to_json
from nsysalign.text import duration, plural, safe_text

#: The page may hold this much of runs, clocks and timelines, besides its own text, style and
#: script: below 2 MB in total.
MAX_BYTES = 1_650_000
#: Timelines get what the runs leave, but at least this much.
LEAST_TIMELINES = 300_000
_CUPTI = "CUPTI_ACTIVITY_KIND_"
#: Above this many intervals the page keeps elapsed and kernel time of each, but not the other
#: parts.
MAX_FULL_INTERVALS = 40_000
#: File names of traces in a run directory: the directory has the name.
_PLAIN_NAMES = ("trace.sqlite", "trace.nsys-rep")
#: Labels without a finding that are described if nothing was found at all.
MOST_READINGS = 3
#: Kernels of one label that the page lists.
MOST_KERNELS = 40


def payload(
    analysis: Analysis, focus: int | None = None, run: str = "", first: str = ""
) -> dict[str, Any]:
    """The page's data: plain objects, integer nanoseconds, foreign text without control characters.

    `focus` is the number of the interval that the page opens with; `run` is the run's name if the
    trace's own says nothing; `first` a label that is spoken of first.
    """
    every = label_rows(analysis)
    rows = [row for row in every if row.kind != RUN]
    roles = examples.roles(analysis)
    said = [
        v for v in verdicts(analysis, every) if v.rule or any(v.label == row.label for row in rows)
    ]
    matrix = parts_matrix(analysis)
    found = spent(analysis, every, matrix)
    shown = cards(said, found, first) or [_reading(v, found[v.label]) for v in said[:MOST_READINGS]]
    # By priority: the requested one, those that cards point at, the medians, the slowest, the
    # first.
    wholes = of_devices(analysis).sort_values("elapsed_ns", ascending=False, kind="stable")
    wanted = [focus] if focus is not None else []
    wanted += wholes["interval"].tolist()
    wanted += [entry.finding.interval for card in shown for entry in card.entries]
    wanted += [v.interval for v in said] + [
        roles[row.label][role] for role in range(3) for row in rows
    ]
    clocks = page_clocks(analysis)
    present = [
        cause for cause, any_ns in zip(CAUSES, matrix.any(axis=0), strict=True) if any_ns
    ] or ["kernel"]
    first = int(analysis.intervals["start_ns"].min()) if len(analysis.intervals) else 0
    origin = clocks["origin"] if clocks else first
    runs = _runs(analysis, rows, matrix, present, origin)
    warm = _warm(analysis, found)
    rest = MAX_BYTES - len(to_json([runs, clocks]))
    held = timelines(analysis, wanted, max(LEAST_TIMELINES, rest))
    return {
        "title": _title(analysis, run),
        "headline": headline(analysis, rows, matrix, largest_loss(shown)),
        "environment": _environment(analysis),
        "notes": _notes(analysis),
        "causes": cause_looks(present),
        "cards": [_card(card) for card in shown],
        "silent": _silent(said, shown),
        "unconfirmed": _unconfirmed(shown),
        "focus": focus,
        "labels": [
            _label(row, roles[row.label]._asdict(), found[row.label], warm.get(row.label, {}))
            for row in rows
        ],
        "predicted": _predicted(analysis, rows),
        "measured": _measured(analysis),
        "runs": runs,
        "kernels": _kernels(analysis),
        **{section.key: draw(analysis) for section, draw in registry.sections()},
        "source": {
            safe_text(site): safe_text(text)
            for site, text in analysis.source_lines.itertuples(index=False)
        },
        "host": _host(analysis, rows, found),
        "answers": answers.page_tables(analysis),
        "baseline": baseline.page_table(analysis),
        "unaligned": [
            {"reason": safe_text(reason), "count": count, "names": [safe_text(n) for n in names]}
            for reason, count, names in unaligned_reasons(analysis)
        ],
        "timelines": held.intervals,
        "wholes": [
            {
                "number": int(run.interval),
                "name": safe_text(run.label),
                "elapsed": int(run.elapsed_ns),
                "start": (int(run.start_ns) - origin) / 1e3,
            }
            for run in wholes.itertuples(index=False)
            if str(run.interval) in held.intervals
        ],
        "strings": held.strings,
        "clocks": clocks,
        "holds": _holds(analysis, held),
    }


def _reading(v: Verdict, mine: Spent) -> Card:
    """A label without a finding as a card."""
    return Card("", v.severity, 0, (Entry(v, mine.count, mine.total_ns, ()),))


def _card(card: Card) -> dict[str, Any]:
    return {
        "rule": safe_text(card.rule),
        "severity": card.severity,
        "lost": card.loss_ns,
        "library": card.library,
        "entries": [
            {
                **_finding(entry.finding),
                "count": entry.count,
                "cold": entry.cold,
                "total": entry.total_ns,
                "lost": entry.finding.loss_ns,
                "others": [_finding(v) for v in entry.others],
            }
            for entry in card.entries
        ],
    }


def _finding(v: Verdict) -> dict[str, Any]:
    return {
        "severity": v.severity,
        "rule": safe_text(v.rule),
        "label": safe_text(v.label),
        "title": safe_text(v.title),
        "explanation": safe_text(v.explanation),
        "advice": [[head, sentence, list(code)] for head, sentence, code in advices(v)],
        "site": safe_text(v.site),
        "interval": v.interval,
        "confirmation": ""
        if v.confirmation.startswith(NOT_CONFIRMED)
        else safe_text(v.confirmation),
        "evidence": [[safe_text(k), safe_text(t)] for k, t in v.evidence],
    }


def _unconfirmed(shown: list[Card]) -> str:
    """A sentence for all findings that no re-run tested, with the command for the costliest that
    can be tested; '' for none."""
    open_ones = [
        entry.finding.confirmation
        for card in sorted(shown, key=lambda card: -card.loss_ns)
        for entry in card.entries
        if entry.finding.confirmation.startswith(NOT_CONFIRMED)
    ]
    return safe_text(
        next((text for text in open_ones if text != NOT_CONFIRMED), "".join(open_ones[:1]))
    )


def _silent(said: list[Verdict], shown: list[Card]) -> list[str]:
    """Labels that no card mentions."""
    spoken = {entry.finding.label for card in shown for entry in card.entries}
    return list(dict.fromkeys(safe_text(v.label) for v in said if v.label not in spoken))


def _predicted(analysis: Analysis, rows: list[LabelRow]) -> dict[str, dict[str, Any]]:
    """By label, of the interval in its row: what it would have measured without nsys, its bounds
    and its budget, or why that is unknown."""
    parts: dict[int, dict[str, int]] = {}
    for part in analysis.unprofiled_parts.itertuples(index=False):
        parts.setdefault(int(part.interval), {})[str(part.cause)] = int(part.ns)
    return {
        safe_text(row.label): {"reason": safe_text(row.no_prediction)}
        if row.unprofiled_ns is None
        else {"ns": row.unprofiled_ns, "parts": parts.get(row.interval, {})}
        for row in rows
        if row.unprofiled_ns or row.no_prediction
    }


def _measured(analysis: Analysis) -> dict[str, list[float]]:
    """Label -> [under nsys, without it] in two runs, each the mean of the middle half of its
    intervals."""
    both = analysis.baseline.dropna(subset=["profiled_ns", "baseline_ns"])
    return {
        safe_text(label): [with_ns, without_ns]
        for label, with_ns, without_ns in both[["label", "profiled_ns", "baseline_ns"]].itertuples(
            index=False
        )
    }


def _host(analysis: Analysis, rows: list[LabelRow], found: Mapping[str, Spent]) -> dict[str, str]:
    """Label -> what the host did in its gaps, if waiting for it matters."""
    said = answers.host_sentences(analysis, found)
    return {
        safe_text(row.label): said[row.label]
        for row in rows
        if row.label in said and answers.host_matters(row)
    }


def _kernels(analysis: Analysis) -> dict[str, Any]:
    """Kernels by label, the most costly first, in columns; `kernel` and `label` are numbers into
    `names`."""
    costly = analysis.kernels.sort_values("total_ns", ascending=False, kind="stable")
    rows = answers.plain_rows(costly.groupby("label", sort=False).head(MOST_KERNELS))
    names = list(dict.fromkeys(row[key] for row in rows for key in ("label", "kernel")))
    number = {name: n for n, name in enumerate(names)}
    columns = {key: [row[key] for row in rows] for key in analysis.kernels.columns}
    columns["share"] = [round(share, 5) for share in columns["share"]]
    return columns | {
        "names": names,
        **{key: [number[name] for name in columns[key]] for key in ("label", "kernel")},
    }


def cause_looks(present: Collection[str]) -> list[dict[str, Any]]:
    """Every cause with its look and meaning; `present`: those that legends and tables show."""
    return [
        {
            **LOOKS[cause]._asdict(),
            "name": cause,
            "meaning": CAUSE_MEANING[cause],
            "present": cause in present,
        }
        for cause in CAUSES
    ]


def _title(analysis: Analysis, run: str) -> str:
    """The run's name and when it was recorded: "train-001, 21 Nov 2026 22:25 UTC"."""
    path = safe_text(analysis.trace.path).replace("\\", "/").rstrip("/").split("/")
    name = path[-1].removesuffix(".sqlite")
    if path[-1] in _PLAIN_NAMES:
        name = path[-2] if len(path) > 1 else safe_text(run) or name
    start = analysis.trace.session_start_utc_ns
    if not start:
        return name or "analysis"
    when = datetime.fromtimestamp(start / 1e9, timezone.utc)
    return f"{name or 'analysis'}, {when.day} {when:%b %Y %H:%M} UTC"


def _environment(analysis: Analysis) -> list[list[str]]:
    info = analysis.trace
    within = placed_within_ns(analysis)
    intervals = analysis.measured
    methods = intervals["method"].value_counts()
    strip = [
        ("GPU", ", ".join(dict.fromkeys(info.devices)) or "not named"),
        ("driver", info.driver_version or ""),
        ("nsys", info.nsys_version or "unknown version"),
        ("torch", analysis.collected_with("torch")),
        ("SM clock", summary(analysis)),
        ("measured", counted(analysis) if len(intervals) else ""),
        ("events placed within", duration(within) if within is not None else ""),
        ("placed by", ", ".join(f"{method} ({count:,})" for method, count in methods.items())),
        ("not placed", f"{len(analysis.unaligned):,}" if len(analysis.unaligned) else ""),
        (
            "missing from the trace",
            ", ".join(m.split(":")[0].removeprefix(_CUPTI) for m in info.missing),
        ),
    ]
    return [[key, safe_text(value)] for key, value in strip if value]


def _notes(analysis: Analysis) -> list[str]:
    notes = [safe_text(note) for note in (*analysis.trace.notes, *analysis.notes)]
    if analysis.trace.missing:
        notes.append("Not in the trace: " + ", ".join(safe_text(m) for m in analysis.trace.missing))
    return list(dict.fromkeys(notes))


def _warm(analysis: Analysis, found: dict[str, Spent]) -> dict[str, dict[str, float]]:
    """Statistics of the warm intervals of every label that has cold ones, which would dominate
    mean, deviation and tail."""
    groups = analysis.intervals.groupby("label", sort=False).indices
    elapsed, is_cold = analysis.intervals["elapsed_ns"].to_numpy(), cold(analysis)
    said = {}
    for label, mine in found.items():
        if not mine.cold:
            continue
        at = groups[label]
        ns = elapsed[at[~is_cold[at]]]
        p05, p95 = (float(p) for p in np.percentile(ns, [5, 95]))
        std = float(ns.std(ddof=1)) if len(ns) > 1 else None
        said[label] = {
            "median": float(np.median(ns)),
            "std": std,
            "p05": p05,
            "p95": p95,
        }
        said[label] |= {"min": int(ns.min()), "max": int(ns.max())}
    return said


def _label(
    row: LabelRow, roles: dict[str, int], mine: Spent, warm: dict[str, Any]
) -> dict[str, Any]:
    """`warm` replaces the statistics of all intervals if the first one is counted separately."""
    std = None if np.isnan(row.std_ns) else row.std_ns
    return {
        "label": safe_text(row.label),
        "count": row.count,
        "site": safe_text(row.site),
        "callers": [safe_text(c) for c in row.callers],
        "elapsed": row.elapsed_ns,
        "error": row.error_ns,
        "parts": row.parts_ns,
        "ran": row.meanwhile_ns or row.kernel_ns,
        "median": row.median_ns,
        "std": std,
        "min": row.min_ns,
        "max": row.max_ns,
        "p05": row.p05_ns,
        "p95": row.p95_ns,
        "library": row.library,
        "findings": [safe_text(f) for f in row.findings],
        "flagged": row.flagged,
        "roles": roles,
        "cold": mine.cold,
        "cold_ns": mine.cold_ns,
        "total": mine.total_ns + mine.cold_ns,
        "idle": mine.idle_ns + mine.cold_idle_ns,
        **warm,
    }


def _runs(
    analysis: Analysis,
    rows: list[LabelRow],
    matrix: np.ndarray,
    present: list[str],
    origin: int,
) -> list[dict[str, Any]]:
    """Every interval of every label, in time order and in columns, for the plots and tables of
    runs."""
    intervals = analysis.intervals
    # Stable order by start within the label, by positions: groupby.indices needs no copy of the
    # rows.
    groups = intervals.groupby("label", sort=False).indices
    starts = intervals["start_ns"].to_numpy()
    elapsed, kernel = intervals["elapsed_ns"].to_numpy(), intervals["kernel_only_ns"].to_numpy()
    numbers, errors = intervals["interval"].to_numpy(), intervals["error_ns"].to_numpy()
    names, devices = intervals["name"].to_numpy(dtype=object), intervals["device"].to_numpy()
    full = len(intervals) <= MAX_FULL_INTERVALS
    runs = []
    for row in rows:
        at = groups[row.label]
        at = at[np.argsort(starts[at], kind="stable")]
        parts = {}
        for cause in present if full else ():
            values = matrix[at, CAUSES.index(cause)]
            if values.any():
                parts[cause] = packed(values)
        runs.append(
            {
                "names": _repetitions(names[at].tolist(), row.label),
                "elapsed": packed(elapsed[at]),
                "kernel": None if "kernel" in parts else packed(kernel[at]),
                "error": _constant(errors[at]),
                "interval": _constant_step(numbers[at]),
                "device": int(devices[at[0]]),
                "start": run_starts(analysis, at, origin),
                "parts": parts,
            }
        )
    return runs


def _repetitions(names: list[str], label: str) -> list[Any] | dict[str, int]:
    """`label#7` is kept as 7: names would be the largest part of the page."""
    first = _repetition(str(names[0]), label)
    if isinstance(first, int) and names == [f"{label}#{first + k}" for k in range(len(names))]:
        kept = list(
            range(first, first + len(names))
        )  # so it is for the runs of a loop, unless they overlap
    else:
        kept = [_repetition(str(name), label) for name in names]
    small = all(
        isinstance(number, int) and number < 1 << 53 for number in kept
    )  # whole in the page, too
    return _constant_step(np.array(kept)) if small else kept


def _repetition(name: str, label: str) -> int | str:
    head, mark, number = name.rpartition("#")
    return (
        int(number)
        if mark
        and head == label
        and number.isdecimal()
        and len(number) < 100
        and str(int(number)) == number
        else safe_text(name)
    )


def _constant(values: np.ndarray) -> str | list[int] | int:
    return int(values[0]) if len(values) and values.min() == values.max() else packed(values)


def _constant_step(values: np.ndarray) -> list[int] | dict[str, int]:
    """1000, 1010, 1020 as {from, step}: repetitions are counted, and interleaved labels number
    their intervals evenly."""
    steps = np.diff(values)
    if len(values) < 3 or steps.min() != steps.max():
        return values.tolist()
    return {"from": int(values[0]), "step": int(steps[0]), "count": len(values)}


def _holds(analysis: Analysis, held: Timelines) -> list[str]:
    """What the page does not hold, in words: nothing is dropped silently."""
    runs = sum(str(number) in held.intervals for number in analysis.runs["interval"].tolist())
    if not len(analysis.measured):
        return [f"This page holds the timeline of {plural(runs, 'run')}."] if runs else []
    also = " and of the run as a whole" if runs else ""
    said = [
        f"This page holds the timeline of {len(held.intervals) - runs:,} of "
        f"{plural(len(analysis.measured), 'interval')}{also}: the median, the slowest and the first of each label, and "
        "those of the findings. For another one: nsysalign report RUN --interval NAME."
    ]
    if held.left_out:
        said.append(
            f"{plural(held.left_out, 'more timeline')} did not fit; they are in analysis.db."
        )
    if len(analysis.intervals) > MAX_FULL_INTERVALS:
        said.append(
            "It holds the measured time and kernel time of every interval; the other parts are in analysis.db."
        )
    else:
        said.append("It holds the measured time and the parts of every interval.")
    return said
