"""Everything the page shows, as plain data: the page's script only draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import registry
from nsysalign.answer import (
    VIEWS,
    Answer,
    Findings,
    Fix,
    LabelRow,
    Row,
    cold_intervals,
    of_devices,
)
from nsysalign.answer import answer as answer_of
from nsysalign.causes import CAUSE_TABLE, CAUSES, COLUMN_FILLS, COLUMNS, DISPLAY
from nsysalign.explain.verdict import GPU, SIGNS
from nsysalign.label import Label
from nsysalign.model import CLOCK_REASONS, Analysis
from nsysalign.parts import parts_matrix, roles
from nsysalign.show import baseline
from nsysalign.show.beside import beside
from nsysalign.show.timeline_rows import MAX_NAME, Timelines, packed, timelines
from nsysalign.split.timeline import MOST_KINDS
from nsysalign.store.objects import to_json
from nsysalign.text import duration, middle, plural, safe_text

if TYPE_CHECKING:
    import pandas as pd

#: The page may hold this much of runs, clocks and timelines, besides its own text, style and
#: script: below 2 MB in total. Timelines get what the runs leave, but at least this much.
MAX_BYTES, LEAST_TIMELINES = 1_650_000, 300_000
#: Every interval of a label with at most this many can be opened, and this many of the page.
MOST_OPENED, MOST_PICTURES = 300, 5_000
#: Above this many intervals the page keeps elapsed and kernel time of each, but not the other
#: parts.
MAX_FULL_INTERVALS = 40_000
#: Kernels of one label; rows of the tables of ranges, kinds of work and what the CPU did; gaps.
MOST_KERNELS, MOST_ROWS, MOST_GAPS = 40, 150, 20
#: Kernels that can be found by their names, those that took most time.
MOST_NAMES = 400
#: Stretches of one GPU's clock that the page draws; more are joined with their neighbours.
MOST_DRAWN = 2_000
_OF_RUNS = ["name", "elapsed_ns", "kernel_only_ns", "error_ns", "interval", "device", "start_ns"]
#: File names of traces in a run directory: the directory has the name.
_PLAIN_NAMES = ("trace.sqlite", "trace.nsys-rep")


def payload(
    analysis: Analysis, answer: Answer | None = None, focus: int | None = None, run: str = ""
) -> dict[str, Any]:
    """Return the page's data: plain objects with integer nanoseconds, and texts without control characters.

    answer: the answer of the analysis; None if the caller has not made it
    focus: the number of the interval that the page opens with; None for no certain one
    run: the name of the run, which is used if the path of the trace does not name it

    Everything but the timelines is made first, because the timelines get the room that is left.
    """
    answer = answer or answer_of(analysis)
    clocks = page_clocks(analysis)
    fixes = fixes_of_labels(answer)
    intervals = analysis.intervals
    first_start = int(intervals["start_ns"].min()) if len(intervals) else 0
    origin = clocks["origin"] if clocks else first_start
    matrix = parts_matrix(analysis)
    saved_by = _savings_in_words(analysis, matrix)
    labels = _labels_for_page(analysis, answer, fixes, saved_by)
    # the causes that legends show; kernels where nothing was measured, so that they are not empty
    present = [cause for cause, ns in zip(CAUSES, matrix.T, strict=True) if ns.any()] or ["kernel"]
    columns = _intervals_of_labels(analysis, answer, matrix, present, origin)
    # of all but the timelines only these two grow with the trace: the others are small
    room = MAX_BYTES - len(to_json([columns, clocks]))
    numbers = _wanted_timelines(analysis, answer, focus)
    page_timelines = timelines(analysis, numbers, max(LEAST_TIMELINES, room))
    data = {
        "title": title(analysis, run),
        "about": gpu_and_recorder(analysis),
        "recorder": analysis.trace.by.title,
        "screen": _first_screen(answer, fixes),
        "headline": {
            "text": answer.headline.text,
            "elapsed": answer.headline.elapsed_ns,
            "parts": answer.headline.parts_ns,
        },
        "environment": [*answer.about.items()],
        "notes": answer.notes,
        "causes": cause_looks(present),
        "columns": COLUMNS,
        # findings in groups
        "cards": [_card(group, saved_by) for group in answer.groups],
        "next": answer.next,
        "focus": focus,
        "labels": labels,
        "runs": columns,  # per label, its intervals ("runs" of its code) in columns
        "kernels": _kernel_columns(analysis),
        # what the search finds
        "everything": _kernels_to_find(analysis, [row.label for row in answer.labels]),
        "source": answer.source,
        "answers": _tables(analysis),  # the tables of ranges, of gaps and of what the CPU did
        "baseline": baseline.page_table(analysis),
        "unaligned": [vars(unplaced) for unplaced in answer.unplaced],
        "wholes": _whole_runs(analysis, answer, fixes, page_timelines, origin),  # runs of devices
        "clocks": clocks,
        "holds": _sentences_on_timelines(analysis, page_timelines),  # sentences
    }
    of_addons = {section.key: draw(analysis) for section, draw in registry.sections()}
    return (
        plain_texts(data)
        | of_addons
        | {"timelines": page_timelines.intervals, "strings": page_timelines.strings}
    )


def _card(group: Findings, saved_by: Mapping[tuple[str, int], str]) -> dict[str, Any]:
    """Return a group of findings as the page draws it.

    saved_by: as `_savings_in_words` returns it
    """
    findings = [
        asdict(finding)
        | {
            "advice": [*map(fix_as_data, finding.advice)],
            "loss_ns": finding.saving_ns,
            "saved_by": saved_by.get((finding.label, finding.saving_ns), ""),
        }
        for finding in group.findings
    ]
    loss = {"lost": group.findings[0].saving_ns, "library": group.library}
    return asdict(group) | loss | {"findings": findings}


#: Causes whose time one change would save together (`explain.case.Case.avoidable`).
_SAVED_TOGETHER = (
    ("host", "profiler"),
    ("api",),
    ("sync",),
    ("api_launch", "launch_latency"),
    ("memcpy",),
    ("queued",),
)


def _savings_in_words(analysis: Analysis, matrix: np.ndarray) -> dict[tuple[str, int], str]:
    """Return (label, what could be saved in ns) -> from which times of the label's intervals that is added up, in words;
    nothing for a saving that is no such sum.

    matrix: (intervals, causes), ns of each cause in each interval

    19 intervals of a group, in which the CPU takes 36.1 ms: "CPU 36.1 ms, added up over 19 repetitions of 80.9 ms in all".
    Of copies those of pageable memory are saved but for what pinned ones would take: "copy 155 ms, ..., less 5.24 ms that
    pinned copies would take".
    """
    elapsed = analysis.intervals["elapsed_ns"].to_numpy()
    positions_of_group = analysis.intervals.groupby("group", sort=False).indices
    texts = {}
    for finding in analysis.findings.itertuples(index=False):
        if finding.loss_ns <= 0 or finding.group not in positions_of_group:
            continue
        positions = positions_of_group[finding.group]
        over = f"added up over {plural(len(positions), 'repetition')} of {duration(int(elapsed[positions].sum()))} in all"
        for causes in _SAVED_TOGETHER:
            ns_of = {cause: int(matrix[positions, CAUSES.index(cause)].sum()) for cause in causes}
            names = " and ".join(DISPLAY[cause] for cause, ns in ns_of.items() if ns)
            left_ns = sum(ns_of.values()) - finding.loss_ns
            text = f"{names} {duration(sum(ns_of.values()))}, {over}"
            if left_ns > 0 and causes == ("memcpy",) and finding.rule == "copy-inside":
                text += f", less {duration(left_ns)} that pinned copies would take"
            elif left_ns:
                continue
            texts[safe_text(finding.label), finding.loss_ns] = text
    return texts


def _first_screen(answer: Answer, fixes: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what stands at the top of the page: the sentence, its fixes, and what is wrong.

    fixes: label -> its fixes, as `fixes_of_labels` returns them
    """
    proof = answer.proof
    return {
        "sentence": answer.sentence,
        "file": answer.file,
        "fixes": fixes_of_sentence(answer, fixes),
        "label": proof.label if proof else "",
        "interval": proof.interval if proof else None,
        "remarks": [text for text in (*answer.remarks, answer.lost) if text],
        "wrong": [vars(wrong) | {"sentence": wrong.sentence} for wrong in answer.wrong],
        "warnings": sum(SIGNS[row.verdict] == "!" for row in answer.labels),
        "right": sum(row.verdict == GPU for row in answer.labels),
    }


def _labels_for_page(
    analysis: Analysis,
    answer: Answer,
    fixes: Mapping[str, list[dict[str, Any]]],
    saved_by: Mapping[tuple[str, int], str],
) -> list[dict[str, Any]]:
    """Return what the page shows of each label besides its intervals, in the order of the answer.

    fixes: label -> its fixes, as `fixes_of_labels` returns them
    saved_by: as `_savings_in_words` returns it
    """
    cold = cold_intervals(analysis)
    elapsed = analysis.intervals["elapsed_ns"].to_numpy()
    positions_of = analysis.intervals.groupby("label", sort=False).indices
    label_of_name = {label.name: label for label in analysis.grouped}
    roles_of = roles(analysis)
    extremes_of = _extremes(analysis)
    reasons = {wrong.label: wrong.reason for wrong in answer.wrong}
    told = _parts_told(analysis)
    savings = _savings_of_labels(answer)
    any_predicted = any(row.unprofiled_ns for row in answer.labels)
    labels = []
    for row in answer.labels:
        positions = positions_of[row.label]
        warm = positions[~cold[positions]]  # those that are no first calls
        kinds = _kind_of_group(row, label_of_name[row.label])
        about = _about_label(row, elapsed[warm if len(warm) else positions])
        about |= {
            "roles": {"median": roles_of[row.label].median, "first": roles_of[row.label].first}
            | extremes_of[row.label],
            "fixes": fixes.get(row.label, []),
            "saving": savings.get(row.label, 0),
            "saved_by": saved_by.get((row.label, savings.get(row.label, 0)), ""),
            "told": told.get(row.label, {}),
            "reason": reasons.get(row.label, ""),
            "kinds": [*dict.fromkeys(kinds.values())],  # each once, in the order of its groups
            "predicted": _prediction(row, any_predicted),
        }
        labels.append(about)
    return labels


def _savings_of_labels(answer: Answer) -> dict[str, int]:
    """Return label -> the largest saving (ns) of its findings that advise something; of a wrong timing none."""
    savings: dict[str, int] = {}
    for group in answer.groups:
        for finding in group.findings:
            savings[finding.label] = max(savings.get(finding.label, 0), finding.saving_ns)
    return {row.label: min(row.saving_ns, savings.get(row.label, 0)) for row in answer.labels}


def _parts_told(analysis: Analysis) -> dict[str, dict[str, Any]]:
    """Return label -> which parts a time in its sentence adds up, and the interval of which it tells: of launching many
    operations one by one, because the sum beside it has the launch calls alone under "launch"."""
    parts = analysis.parts.set_index(["interval", "cause"])["ns"].to_dict()
    told = {}
    for finding in analysis.findings.itertuples(index=False):
        ns = finding.evidence.get("one_by_one_ns") if finding.verdict else None
        if not ns:
            continue
        causes = ("host", "api_launch", "launch_latency")
        left_ns = sum(parts.get((finding.interval, cause), 0) for cause in causes) - ns
        less = f", less {duration(left_ns)} in long pieces of CPU" if left_ns else ""
        names = " + ".join(DISPLAY[cause] for cause in causes)
        text = f"One by one, {duration(ns)} in the sentence: {names}{less}."
        told.setdefault(finding.label, {"interval": int(finding.interval), "text": text})
    return told


def _extremes(analysis: Analysis) -> dict[str, dict[str, int]]:
    """Return label -> the numbers of its fastest and slowest interval; first calls, which load code, count only where
    there are no others."""
    intervals = analysis.intervals
    elapsed_ns = dict(
        zip(intervals["interval"].tolist(), intervals["elapsed_ns"].tolist(), strict=True)
    )
    extremes = {}
    for label in analysis.grouped:
        groups = label.steady or label.groups
        numbers = [number for group in groups for number in group.intervals.tolist()]
        fastest, slowest = (choose(numbers, key=elapsed_ns.__getitem__) for choose in (min, max))
        extremes[label.name] = {"fastest": fastest, "slowest": slowest}
    return extremes


def _intervals_of_labels(
    analysis: Analysis, answer: Answer, matrix: np.ndarray, present: list[str], origin: int
) -> list[dict[str, Any]]:
    """Return the intervals of each label in columns, in the order of the answer's labels.

    matrix, present, origin: as in `_interval_columns`
    """
    positions_of = analysis.intervals.groupby("label", sort=False).indices
    label_of_name = {label.name: label for label in analysis.grouped}
    of_labels = []
    for row in answer.labels:
        positions = positions_of[row.label]
        kinds = _kind_of_group(row, label_of_name[row.label])
        columns = _interval_columns(analysis, row.label, positions, matrix, present, origin)
        of_labels.append(columns | {"kind": _kind_of_each(analysis, positions, kinds)})
    return of_labels


def _wanted_timelines(analysis: Analysis, answer: Answer, focus: int | None) -> list[int]:
    """Return the numbers of the intervals whose timelines the page needs, the most important first.

    These are the requested one, the one that proves the sentence, whole runs (the longest first), those of
    findings, the median of each label, the typical one of each of its kinds (at most MOST_KINDS), its slowest,
    fastest and first, and all intervals of labels that have few.

    focus: the number of the requested interval, None for none
    """
    roles_of = roles(analysis)
    extremes_of = _extremes(analysis)
    extremes = [extremes_of[row.label] for row in answer.labels]
    findings = [finding for group in answer.groups for finding in group.findings]
    with_few = [row.label for row in answer.labels if row.count <= MOST_OPENED]
    of_short_labels = analysis.measured[analysis.measured["label"].isin(with_few)]
    return [
        *([focus] if focus is not None else []),
        *([answer.proof.interval] if answer.proof else []),
        *_runs_of_devices(analysis)["interval"].tolist(),
        *(finding.interval for finding in findings),
        *(roles_of[row.label].median for row in answer.labels),
        *(group.interval for row in answer.labels for group in row.groups[:MOST_KINDS]),
        *(of_label["slowest"] for of_label in extremes),
        *(of_label["fastest"] for of_label in extremes),
        *(roles_of[row.label].first for row in answer.labels),
        *of_short_labels["interval"].head(MOST_PICTURES).tolist(),
    ]


def _runs_of_devices(analysis: Analysis) -> pd.DataFrame:
    """Return the runs of whole devices (`frames.INTERVALS`), the longest first."""
    return of_devices(analysis).sort_values("elapsed_ns", ascending=False, kind="stable")


def _whole_runs(
    analysis: Analysis,
    answer: Answer,
    fixes: Mapping[str, list[dict[str, Any]]],
    held: Timelines,
    origin: int,
) -> list[dict[str, Any]]:
    """Return what the page shows of the runs of whole devices, the longest first: those whose timeline it
    holds.

    fixes: run -> its fixes, as `fixes_of_labels` returns them
    held: the timelines that the page holds
    origin: the time from which starts count (ns)
    """
    row_of_interval = {row.interval: row for row in answer.runs}
    return [
        {
            "number": int(run.interval),
            "name": run.label,
            "elapsed": int(run.elapsed_ns),
            "start": (int(run.start_ns) - origin) / 1e3,
            "parts": row_of_interval[int(run.interval)].parts_ns,
            "sentence": row_of_interval[int(run.interval)].sentence,
            "fixes": fixes.get(run.label, []),
        }
        for run in _runs_of_devices(analysis).itertuples(index=False)
        if str(run.interval) in held.intervals
    ]


def plain_texts(value: Any) -> Any:
    """Return the value with every text in it made plain: one line without control characters."""
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, Mapping):
        return {safe_text(key): plain_texts(item) for key, item in value.items()}
    return [*map(plain_texts, value)] if isinstance(value, (list, tuple)) else value


def _about_label(row: LabelRow, elapsed: np.ndarray) -> dict[str, Any]:
    """Return what the page shows of a label besides its intervals.

    row: the label in the answer
    elapsed: the lengths of its intervals (ns), without cold ones if there are others: those would dominate
        deviation and tail
    """
    names = ("label", "short", "words", "sentence", "count", "site", "callers", "library", "flagged",
             "findings", "host")  # fmt: skip
    return {name: getattr(row, name) for name in names} | {
        "sign": SIGNS[row.verdict],
        "groups": [_about_group(group) for group in row.groups],
        "elapsed": row.elapsed_ns,
        "error": row.error_ns,
        "parts": row.parts_ns,
        "kind": row.kind,
        "beside": row.beside_ns,
        "median": float(np.median(elapsed)),
        "std": float(elapsed.std(ddof=1)) if len(elapsed) > 1 else None,
        "min": int(elapsed.min()),
        "max": int(elapsed.max()),
        "p95": float(np.percentile(elapsed, 95)),
        "cold": row.cold.count,
        "cold_ns": row.cold.total_ns,
        "total": row.warm.total_ns + row.cold.total_ns,
        "idle": row.warm.idle_ns + row.cold.idle_ns,
    }


def fix_as_data(fix: Fix) -> dict[str, Any]:
    """Return what to change as plain data, its code as lines."""
    return vars(fix) | {"code": fix.code.splitlines()}


def fixes_of_labels(answer: Answer) -> dict[str, list[dict[str, Any]]]:
    """Return label or run -> the fixes of the finding whose title is its sentence."""
    findings = [finding for group in answer.groups for finding in group.findings]
    sentence_of = {row.label: row.sentence for row in (*answer.labels, *answer.runs)}
    return {
        finding.label: [*map(fix_as_data, finding.advice)]
        for finding in reversed(findings)  # of several for a label the first one stays
        if sentence_of.get(finding.label) == finding.title
    }


def fixes_of_sentence(
    answer: Answer, fixes: Mapping[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the fixes that the page shows with the answer's sentence: those of what it is about alone.  Those of wrong
    timings and of a second cause, which a terminal lists behind them, stand with their own labels and cards.

    fixes: label -> its fixes, as `fixes_of_labels` returns them
    """
    label = answer.proof.label if answer.proof else ""
    sentences = {row.label: row.sentence for row in (*answer.labels, *answer.runs)}
    if label in fixes and sentences[label] == answer.sentence:
        return fixes[label]
    # those of others begin with the names of their labels, so that they are no finding's own
    in_cards = {
        fix for group in answer.groups for finding in group.findings for fix in finding.advice
    }
    return [fix_as_data(fix) for fix in answer.fixes if fix in in_cards]


def _kind_of_group(row: LabelRow, label: Label) -> dict[int, str]:
    """Return number of the group -> the name of this kind of repetitions.  Groups that have a row of their own
    come first, then later calls, first calls and the others, which are too few for a row.

    row: the label in the answer
    label: the label with all its groups
    """
    rows = {group.interval: group.name for group in row.groups}
    steady = {group.number for group in label.steady}
    names = {}
    for group in label.groups:
        if group.number not in steady:
            names[group.number] = "first calls"
        elif row.groups:
            names[group.number] = rows.get(group.typical, "others")
        else:
            names[group.number] = "later calls"
    order = [*rows.values(), "later calls", "first calls", "others"]
    return dict(sorted(names.items(), key=lambda item: order.index(item[1])))


def _kind_of_each(
    analysis: Analysis, positions: np.ndarray, kinds: Mapping[int, str]
) -> str | list[int] | None:
    """Return, for each interval of a label in the order of time, the position of its kind in the label's list
    of kinds; None if the label has only one kind.

    positions: the label's rows in `analysis.intervals`
    kinds: number of the group -> the name of its kind
    """
    names = [*dict.fromkeys(kinds.values())]
    if len(names) < 2:
        return None
    starts = analysis.intervals["start_ns"].to_numpy()
    order = positions[np.argsort(starts[positions], kind="stable")]
    groups = analysis.intervals["group"].to_numpy()[order].tolist()
    return packed(np.array([names.index(kinds[group]) for group in groups]))


def _about_group(group: Row) -> dict[str, Any]:
    """Return what the page shows of a group: a row beneath its label."""
    names = ("name", "count", "interval", "words")
    return {name: getattr(group, name) for name in names} | {
        "sign": SIGNS[group.verdict],
        "total": group.total_ns,
        "elapsed": group.elapsed_ns,
        "parts": group.parts_ns,
        "beside": group.beside_ns,
    }


def _interval_columns(
    analysis: Analysis,
    label: str,
    positions: np.ndarray,
    matrix: np.ndarray,
    present: list[str],
    origin: int,
) -> dict[str, Any]:
    """Return every interval of a label in columns, in the order of time, for the page's plots and tables.

    positions: the label's rows in `analysis.intervals`
    matrix: (intervals, causes), ns of each cause in each interval
    present: the causes that occur in the analysis
    origin: the time from which starts count (ns)
    """
    starts = analysis.intervals["start_ns"].to_numpy()
    order = positions[np.argsort(starts[positions], kind="stable")]
    rows = analysis.intervals[_OF_RUNS].iloc[order]
    parts = {}
    causes = present if len(analysis.intervals) <= MAX_FULL_INTERVALS else []
    for cause in causes:
        values = matrix[order, CAUSES.index(cause)]
        if values.any():
            parts[cause] = packed(values)
    errors = rows["error_ns"].to_numpy()  # often the same for all
    names = rows["name"].tolist()
    # the page makes such names itself
    are_numbered = names == [f"{label}#{number}" for number in range(len(names))]
    return {
        "names": None if are_numbered else names,
        "elapsed": packed(rows["elapsed_ns"]),
        # how long kernels alone ran: parts have it, unless they are left out because there are too many intervals
        "kernel": None if "kernel" in parts else packed(rows["kernel_only_ns"]),
        "error": int(errors[0]) if errors.min() == errors.max() else packed(errors),
        "interval": packed(rows["interval"]),
        "device": int(rows["device"].iloc[0]),  # of a label on several the first
        "start": packed((rows["start_ns"].to_numpy() - origin) // 1_000),
        "parts": parts,
        "beside": _ns_beside(analysis, order, matrix) if causes else None,
    }


def _ns_beside(analysis: Analysis, order: np.ndarray, matrix: np.ndarray) -> str | list[int] | None:
    """Return how long kernels ran beside each interval of a label, None if they did beside none.

    order: the label's rows in `analysis.intervals`
    matrix: as in `_interval_columns`
    """
    own_ns = matrix[order][:, [CAUSES.index("kernel"), CAUSES.index("graph")]].sum(axis=1)
    ns = beside(analysis, analysis.intervals.iloc[order], own_ns)
    return packed(ns) if ns.any() else None


def _tables(analysis: Analysis) -> dict[str, Any]:
    """Return the first MOST_ROWS rows of the tables of ranges, of gaps (the longest idle times of whole runs)
    and of what the CPU did; under "more", how many rows of each were left out."""
    labels = analysis.runs.set_index("interval")["label"]
    gaps = analysis.gaps[analysis.gaps["interval"].isin(of_devices(analysis)["interval"])]
    gaps = gaps.assign(run=labels.reindex(gaps["interval"]).to_numpy()).nlargest(MOST_GAPS, "ns")
    host = analysis.host_activity
    host = host[(host["view"] != "all") & (host["name"] != "")]
    host = host.assign(view=host["view"].map(VIEWS).fillna(""))
    tables = {
        "host": host[["label", "view", "name", "place", "within", "share", "samples", "ns"]],
        "ranges": analysis.host_ranges,
        "gaps": gaps[["run", "ns", "next", "call", "call_ns"]],
    }
    rows = {name: table.head(MOST_ROWS).to_dict("records") for name, table in tables.items()}
    return rows | {"more": {name: max(0, len(t) - MOST_ROWS) for name, t in tables.items()}}


def _prediction(row: LabelRow, any_predicted: bool) -> dict[str, Any] | None:
    """Return what the interval in a row would have measured without nsys: its length and bounds, or why they
    are not known, as numbers, as a cell of a table and as a sentence.  None if nothing was predicted.

    any_predicted: whether it is known for any label; if not, no sentence says that it is not known
    """
    if not (row.unprofiled_ns or row.no_prediction):
        return None
    text = f"Without nsys: no prediction ({row.no_prediction})." if any_predicted else ""
    if row.unprofiled_ns:
        text = "Without nsys: {} predicted ({} to {}).".format(*map(duration, row.unprofiled_ns))
    return {
        "ns": row.unprofiled_ns,
        "reason": row.no_prediction,
        "cell": row.without_nsys(),
        "said": text,
    }


def _kernel_columns(analysis: Analysis) -> dict[str, Any]:
    """Return the MOST_KERNELS most costly kernels of each label in columns, the most costly first.  `kernel` and
    `label` are positions in `names`."""
    costly = analysis.kernels.sort_values("total_ns", ascending=False, kind="stable")
    rows = costly.groupby("label", sort=False).head(MOST_KERNELS).to_dict("records")
    names = list(dict.fromkeys(row[key] for row in rows for key in ("label", "kernel")))
    number = {name: n for n, name in enumerate(names)}
    columns = {key: [row[key] for row in rows] for key in analysis.kernels.columns}
    columns["share"] = [round(share, 5) for share in columns["share"]]
    texts = {key: [number[name] for name in columns[key]] for key in ("label", "kernel")}
    return columns | texts | {"names": names}


def _kernels_to_find(analysis: Analysis, labels: Sequence[str]) -> dict[str, Any]:
    """Return what the page's "Find" searches: the MOST_NAMES kernels and copies that took most time, a list
    entry for each in "names", "count" (how often it ran in the run) and "labels" (number of each label in
    which it ran, and how often in it).  "left" is how many more there are.

    labels: the labels in the order of the page; a label's number is its position here

    `analysis.kernels` has a row for each kernel of each label.  The labels of whole devices contain all
    others, so that only they are counted, lest a kernel count twice; without them every label is counted.
    """
    number_of_label = {label: number for number, label in enumerate(labels)}
    device_labels = set(of_devices(analysis)["label"])
    total_ns: Counter[str] = Counter()
    count: Counter[str] = Counter()
    labels_of_kernel: dict[str, Counter[int]] = {}
    columns = analysis.kernels[["label", "kernel", "count", "total_ns"]]
    for label, kernel, repetitions, ns in columns.itertuples(index=False):
        in_labels = labels_of_kernel.setdefault(kernel, Counter())
        if label in number_of_label:
            in_labels[number_of_label[label]] += int(repetitions)
        if label in device_labels or not device_labels:
            count[kernel] += int(repetitions)
            total_ns[kernel] += int(ns)
    kernels = sorted(labels_of_kernel, key=lambda kernel: -total_ns[kernel])
    shown = kernels[:MOST_NAMES]
    return {
        "names": [middle(safe_text(kernel), MAX_NAME) for kernel in shown],
        "count": [count[kernel] for kernel in shown],
        "labels": [sorted(labels_of_kernel[kernel].items()) for kernel in shown],
        "left": len(kernels) - len(shown),
    }


def cause_looks(present: Collection[str]) -> list[dict[str, Any]]:
    """Return every cause with its look and meaning.

    present: the causes that legends and tables show
    """
    return [
        {
            "name": name,
            "short": DISPLAY[name],
            "meaning": cause.meaning,
            "column": cause.column,
            "fill": COLUMN_FILLS[cause.column].letter,
            "colour": cause.colour,
            "ink": cause.ink,
            "pattern": cause.pattern,
            "present": name in present,
        }
        for name, cause in CAUSE_TABLE.items()
    ]


def title(analysis: Analysis, run: str) -> str:
    """Return the run's name and when it was recorded: "train-001, 21 Nov 2026 22:25 UTC".

    run: the name to use if the path of the trace has none
    """
    path = analysis.trace.path.replace("\\", "/").rstrip("/").split("/")
    name = path[-1].removesuffix(".sqlite")
    if path[-1] in _PLAIN_NAMES:
        name = path[-2] if len(path) > 1 else run or name
    start = analysis.trace.session_start_utc_ns
    if not start:
        return name or "analysis"
    when = datetime.fromtimestamp(start / 1e9, timezone.utc)
    return f"{name or 'analysis'}, {when.day} {when:%b %Y %H:%M} UTC"


def gpu_and_recorder(analysis: Analysis) -> str:
    """Return on which GPU and by which tool a run was recorded: "H200, nsys 2024.2.3.38"."""
    trace = analysis.trace
    names = [name.removeprefix("NVIDIA ") for name in dict.fromkeys(trace.devices)]
    version = trace.nsys_version or ""
    if trace.recorder == "cupti":  # its version is "(CUPTI 13.0.1)"
        by = version.strip("()") or "CUPTI"
    else:
        by = f"{trace.by.title} {version}".strip()
    return ", ".join([*(names or ["unknown GPU"]), by])


def _sentences_on_timelines(analysis: Analysis, held: Timelines) -> list[str]:
    """Return sentences on what the page holds and does not hold, so that nothing is dropped silently; none for
    an analysis in which nothing was measured.

    held: the timelines that the page holds
    """
    count = len(analysis.measured)
    if not count:
        return []
    runs = sum(str(number) in held.intervals for number in analysis.runs["interval"].tolist())
    and_runs = " and of the run as a whole" if runs else ""
    sentences = [
        f"This page holds the timeline of {len(held.intervals) - runs:,} of "
        f"{plural(count, 'interval')}{and_runs}: the median, the slowest, the fastest and the first of each label, a typical "
        "one of each of its kinds, and those of the findings. For another one: nsysalign report RUN --interval NAME."
    ]
    if held.left_out:
        without_room = plural(held.left_out, "more timeline")
        sentences.append(f"{without_room} did not fit; they are in analysis.db.")
    if len(analysis.intervals) > MAX_FULL_INTERVALS:
        sentences.append("Of the parts it holds kernel time; the others are in analysis.db.")
    return sentences


def page_clocks(analysis: Analysis) -> dict[str, Any] | None:
    """Return the clock samples of each GPU in columns, with times in microseconds since the first sample, and
    what each bit of `why` means; None without samples."""
    table = analysis.gpu_clocks
    if not len(table):
        return None
    origin = int(table["start_ns"].min())
    devices = [_clock_columns(*rows, origin) for rows in table.groupby("device", sort=True)]
    reasons = np.maximum(table["reasons"].to_numpy(), 0)  # -1: not known
    bits_in_use = int(np.bitwise_or.reduce(reasons))
    bits = [1 << position for position in range(63) if bits_in_use & (1 << position)]
    why = {str(bit): CLOCK_REASONS.get(bit, f"reason {bit:#x}") for bit in bits}
    return {"origin": origin, "devices": devices, "why": why}


def _clock_columns(device: int, rows: pd.DataFrame, origin: int) -> dict[str, Any]:
    """Return the clock samples of one GPU in columns that the page draws: in "x" and "end" the times of each stretch
    (microseconds since `origin`), in "low" and "high" its clocks (MHz), in "why" the bits that say why the clock was
    held down.

    rows: of `frames.GPU_CLOCKS`, sorted by start; so many neighbours are joined to one stretch ("joined") that at
        most MOST_DRAWN are left
    origin: the time from which times count (ns)
    """
    size = math.ceil(len(rows) / MOST_DRAWN)
    begin = np.arange(0, len(rows), size)
    column = {name: rows[name].to_numpy() for name in rows.columns}
    return {
        "device": int(device),
        "joined": size,
        "samples": int(column["samples"].sum()),
        "x": ((np.minimum.reduceat(column["start_ns"], begin) - origin) // 1_000).tolist(),
        "end": ((np.maximum.reduceat(column["end_ns"], begin) - origin) // 1_000).tolist(),
        "low": np.minimum.reduceat(column["sm_min_mhz"], begin).tolist(),
        "high": np.maximum.reduceat(column["sm_max_mhz"], begin).tolist(),
        "why": np.bitwise_or.reduceat(np.maximum(column["reasons"], 0), begin).tolist(),
    }
