"""Everything the page shows, as plain data: the page's script only draws it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import examples, registry
from nsysalign.answer import (
    VIEWS,
    Answer,
    Entry,
    Finding,
    Group,
    LabelRow,
    answer,
    cold_intervals,
    of_devices,
)
from nsysalign.model import CAUSE_MEANING, CAUSES, Analysis
from nsysalign.parts import DISPLAY, parts_matrix
from nsysalign.show import baseline
from nsysalign.show.clock_chart import page_clocks
from nsysalign.show.pack import packed
from nsysalign.show.palette import LOOKS
from nsysalign.show.timeline_rows import Timelines, timelines
from nsysalign.store.objects import to_json
from nsysalign.text import duration, plural, safe_text
from nsysalign.verdicts import GPU, SIGNS

if TYPE_CHECKING:
    import pandas as pd

#: The page may hold this much of runs, clocks and timelines, besides its own text, style and
#: script: below 2 MB in total.
MAX_BYTES = 1_650_000
#: Timelines get what the runs leave, but at least this much.
LEAST_TIMELINES = 300_000
#: Every interval of a label with at most this many can be opened, and this many of the page.
MOST_OPENED, MOST_PICTURES = 300, 5_000
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
#: Rows of the tables of ranges, kinds of work and what the host did.
MOST_ROWS, MOST_GAPS = 150, 20


def payload(
    analysis: Analysis, said: Answer | None = None, focus: int | None = None, run: str = ""
) -> dict[str, Any]:
    """The page's data: plain objects, integer nanoseconds, foreign text without control characters.

    `said`: the analysis' answer, if the caller has it; `focus` is the number of the interval that
    the page opens with; `run` is the run's name if the trace's own says nothing.
    """
    said = said or answer(analysis)
    rows, matrix, roles = said.labels, parts_matrix(analysis), examples.roles(analysis)
    spent = {row.label: row.spent for row in rows}
    groups = said.groups or tuple(
        Group("", v.severity, (Entry(v, spent[v.label].count, spent[v.label].total_ns),))
        for v in said.readings[:MOST_READINGS]
    )
    # By priority: the requested one, those that cards point at, the medians, the slowest, the
    # first.
    wholes = of_devices(analysis).sort_values("elapsed_ns", ascending=False, kind="stable")
    wanted = [focus] if focus is not None else []
    wanted += [said.screen.proof.interval] if said.screen.proof else []
    wanted += wholes["interval"].tolist()
    wanted += [entry.finding.interval for group in groups for entry in group.entries]
    wanted += [finding.interval for finding in (*said.findings, *said.readings)]
    wanted += [roles[row.label][role] for role in range(3) for row in rows]
    few = {row.label for row in rows if row.count <= MOST_OPENED}
    every = analysis.measured[analysis.measured["label"].isin(few)]["interval"]
    wanted += every.head(MOST_PICTURES).tolist()
    clocks = page_clocks(analysis)
    present = [
        cause for cause, any_ns in zip(CAUSES, matrix.any(axis=0), strict=True) if any_ns
    ] or ["kernel"]
    first = int(analysis.intervals["start_ns"].min()) if len(analysis.intervals) else 0
    origin = clocks["origin"] if clocks else first
    runs = _runs(analysis, rows, matrix, present, origin)
    warm, measured = _warm(analysis, rows), _measured(analysis)
    rest = MAX_BYTES - len(to_json([runs, clocks]))
    held = timelines(analysis, wanted, max(LEAST_TIMELINES, rest))
    parts_of_run = {row.interval: row.parts_ns for row in said.runs}
    spoken = {entry.finding.label for group in groups for entry in group.entries}
    silent = [v.label for v in (*said.findings, *said.readings) if v.label not in spoken]
    return {
        "title": _title(analysis, run),
        "screen": _screen(said),
        "headline": _headline(said),
        "environment": _environment(analysis, said),
        "notes": said.notes,
        "causes": cause_looks(present),
        "cards": [_card(group) for group in groups],
        "silent": list(dict.fromkeys(map(safe_text, silent))),
        "next": said.next,
        "focus": focus,
        "labels": [
            _label(row, roles[row.label]._asdict(), warm.get(row.label, {})) for row in rows
        ],
        "predicted": _predicted(analysis, rows, measured),
        "measured": measured,
        "runs": runs,
        "kernels": _kernels(analysis),
        **{section.key: draw(analysis) for section, draw in registry.sections()},
        "source": said.source,
        "host": {safe_text(row.label): row.host for row in rows if row.host},
        "answers": _answers(analysis, said),
        "baseline": baseline.page_table(analysis),
        "unaligned": [vars(unplaced) for unplaced in said.unplaced],
        "timelines": held.intervals,
        "wholes": [
            {
                "number": int(run.interval),
                "name": safe_text(run.label),
                "elapsed": int(run.elapsed_ns),
                "start": (int(run.start_ns) - origin) / 1e3,
                "parts": parts_of_run[int(run.interval)],
            }
            for run in wholes.itertuples(index=False)
            if str(run.interval) in held.intervals
        ],
        "strings": held.strings,
        "clocks": clocks,
        "holds": _holds(analysis, held),
    }


def _screen(said: Answer) -> dict[str, Any]:
    """What the first screen says, and how many labels have each sign."""
    first, spoken = said.screen, {finding.label for finding in said.findings}
    rows = [
        {
            "label": safe_text(verdict.label),
            "sign": SIGNS[verdict.verdict],
            "words": safe_text(verdict.words),
            "saving": verdict.saving_ns,
            "finding": verdict.label in spoken,
        }
        for verdict in first.labels
    ]
    return {
        "sentence": safe_text(first.sentence),
        "fixes": [vars(fix) for fix in first.fixes],
        "rows": rows,
        "label": safe_text(first.proof.label) if first.proof else "",
        "interval": first.proof.interval if first.proof else None,
        "wrong": len(first.wrong),
        "warnings": first.warnings,
        "right": sum(verdict.verdict == GPU for verdict in first.labels),
        "remarks": [safe_text(text) for text in (*first.remarks, first.unplaced) if text],
    }


def _headline(said: Answer) -> dict[str, Any]:
    return {
        "text": said.headline.text,
        "untimed": said.headline.untimed,
        "parts": said.headline.parts_ns,
        "elapsed": said.headline.elapsed_ns,
        "of": said.headline.of,
    }


def _card(group: Group) -> dict[str, Any]:
    return {
        "rule": group.rule,
        "severity": group.severity,
        "lost": group.loss_ns,
        "library": group.library,
        "entries": [
            {
                **_finding(entry.finding),
                "count": entry.count,
                "cold": entry.cold,
                "total": entry.total_ns,
                "lost": entry.finding.loss_ns,
                "others": [_finding(finding) for finding in entry.others],
            }
            for entry in group.entries
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    names = ("severity", "rule", "title", "explanation", "advice", "site", "interval")
    names += ("confirmation", "evidence")
    return {name: getattr(finding, name) for name in names} | {"label": safe_text(finding.label)}


def _answers(analysis: Analysis, said: Answer) -> dict[str, Any]:
    """The tables of ranges, gaps, kinds of work, and of what the host did."""
    labels = analysis.runs.set_index("interval")["label"]
    gaps = analysis.gaps[analysis.gaps["interval"].isin(of_devices(analysis)["interval"])]
    gaps = gaps.assign(run=labels.reindex(gaps["interval"]).to_numpy()).nlargest(MOST_GAPS, "ns")
    host = analysis.host_activity
    host = host[(host["view"] != "all") & (host["name"] != "")]
    host = host.assign(view=host["view"].map(VIEWS).fillna(""))
    variants = ["label", "variant", "count", "row_interval", "median_ns", "min_ns", "max_ns"]
    tables = {
        "host": host[["label", "view", "name", "place", "within", "share", "samples", "ns"]],
        "ranges": analysis.host_ranges,
        "gaps": gaps[["run", "ns", "next", "call", "call_ns"]],
        "variants": analysis.variants[variants],
    }
    rows = {name: _plain_rows(table.head(MOST_ROWS)) for name, table in tables.items()}
    shown = {row.interval: row for row in said.rows}
    for row in rows["variants"]:
        of_work = shown.get(row["row_interval"])
        known = of_work is not None and (of_work.unprofiled_ns or of_work.no_prediction)
        row["without"] = of_work.without_nsys() if known else "-"
        row["why"] = safe_text(of_work.no_prediction) if known else ""
    return rows | {"more": {name: max(0, len(t) - MOST_ROWS) for name, t in tables.items()}}


def _plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as the page's data, with foreign text made plain."""
    return [
        {name: safe_text(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]


def _predicted(
    analysis: Analysis, rows: Sequence[LabelRow], measured: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Any]]:
    """By label, of the interval in its row: what it would have measured without nsys, its bounds
    and its breakdown, or why that is unknown; as a cell and as a sentence."""
    parts: dict[int, dict[str, int]] = {}
    for part in analysis.unprofiled_parts.itertuples(index=False):
        parts.setdefault(int(part.interval), {})[str(part.cause)] = int(part.ns)
    any_known = any(row.unprofiled_ns for row in rows)
    found = {}
    for row in rows:
        words, both = [], measured.get(safe_text(row.label))
        if row.unprofiled_ns:
            ns, low, high = map(duration, row.unprofiled_ns)
            words.append(f"{ns} predicted ({low} to {high})")
        if both:
            under, without = map(duration, both)
            words.append(f"{without} measured ({under} under nsys; means of the middle half)")
        if not words and row.no_prediction and any_known:
            words.append(f"no prediction ({safe_text(row.no_prediction)})")
        if row.unprofiled_ns or row.no_prediction or words:
            known = row.unprofiled_ns or row.no_prediction
            found[safe_text(row.label)] = {
                "ns": row.unprofiled_ns,
                "parts": parts.get(row.interval, {}) if row.unprofiled_ns else {},
                "reason": safe_text(row.no_prediction),
                "cell": safe_text(row.without_nsys()) if known else "?",
                "said": f"Without nsys: {'; '.join(words)}." if words else "",
            }
    return found


def _measured(analysis: Analysis) -> dict[str, list[float]]:
    """Label -> [under nsys, without it] in two runs, each the mean of the middle half of its
    intervals."""
    columns = ["label", "profiled_ns", "baseline_ns"]
    both = analysis.baseline.dropna(subset=columns)[columns].itertuples(index=False)
    return {safe_text(label): times for label, *times in both}


def _kernels(analysis: Analysis) -> dict[str, Any]:
    """Kernels by label, the most costly first, in columns; `kernel` and `label` are numbers into
    `names`."""
    costly = analysis.kernels.sort_values("total_ns", ascending=False, kind="stable")
    rows = _plain_rows(costly.groupby("label", sort=False).head(MOST_KERNELS))
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
            "short": DISPLAY[cause],
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


def _environment(analysis: Analysis, said: Answer) -> list[list[str]]:
    trust, info = said.trust, analysis.trace
    within, intervals = trust.placed_within_ns, analysis.measured
    methods = intervals["method"].value_counts()
    missing = (m.split(":")[0].removeprefix(_CUPTI) for m in info.missing)
    strip = {
        "GPU": trust.gpu or "not named",
        "driver": trust.driver,
        "nsys": trust.nsys or "unknown version",
        "torch": trust.torch,
        "SM clock": trust.clock or "not sampled",
        "measured": trust.measured if len(intervals) else "",
        "timestamp uncertainty": duration(within) if within is not None else "",
        "placed by": ", ".join(f"{method} ({count:,})" for method, count in methods.items()),
        "not placed": f"{len(analysis.unaligned):,}" if len(analysis.unaligned) else "",
        "missing from the trace": ", ".join(missing),
    }
    return [[key, safe_text(value)] for key, value in strip.items() if value]


def _warm(analysis: Analysis, rows: Sequence[LabelRow]) -> dict[str, dict[str, Any]]:
    """Statistics of the warm intervals of every label that has cold ones, which would dominate
    mean, deviation and tail."""
    groups = analysis.intervals.groupby("label", sort=False).indices
    elapsed, cold = analysis.intervals["elapsed_ns"].to_numpy(), cold_intervals(analysis)
    found = {}
    for row in rows:
        if not row.spent.cold:
            continue
        positions = groups[row.label]
        ns = elapsed[positions[~cold[positions]]]
        p05, p95 = (float(p) for p in np.percentile(ns, [5, 95]))
        std = float(ns.std(ddof=1)) if len(ns) > 1 else None
        found[row.label] = {"median": float(np.median(ns)), "std": std, "p05": p05, "p95": p95}
        found[row.label] |= {"min": int(ns.min()), "max": int(ns.max())}
    return found


def _label(row: LabelRow, roles: dict[str, int], warm: dict[str, Any]) -> dict[str, Any]:
    """`warm` replaces the statistics of all intervals if the first one is counted separately."""
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
        "std": None if np.isnan(row.std_ns) else row.std_ns,
        "min": row.min_ns,
        "max": row.max_ns,
        "p05": row.p05_ns,
        "p95": row.p95_ns,
        "library": row.library,
        "findings": [safe_text(rule) for rule in row.findings],
        "flagged": row.flagged,
        "roles": roles,
        "cold": row.spent.cold,
        "cold_ns": row.spent.cold_ns,
        "total": row.spent.total_ns + row.spent.cold_ns,
        "idle": row.spent.idle_ns + row.spent.cold_idle_ns,
        **warm,
    }


def _runs(
    analysis: Analysis,
    rows: Sequence[LabelRow],
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
                "start": packed((starts[at] - origin) // 1_000),
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
