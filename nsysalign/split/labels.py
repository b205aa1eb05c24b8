"""Names, labels and their statistics: intervals measured by the same code share a label."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, zip_longest

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.text import REPETITION

_REPETITION = re.compile(REPETITION)
#: torch's emit_nvtx numbers every operator: the same operator gets one label.
_TORCH_NUMBERS = re.compile(r",? ?\b(op_id|seq|sequence number) ?= ?\d+|, op_ids? = \[[^]]*\]")
#: A number that is a part of a name by itself: `blocks.3.attn`, `step 12`, `layers[4]`; not
#: `conv1`, not `(stream 7)`.
_NUMBERED = re.compile(r"(?:(?<=[./_: \-\[])|^)\d{1,9}(?=[./_: \-\]]|$)")
#: At least this many names that differ only in such numbers, counted from 0 or 1 without a gap, get
#: one label.
_FEWEST_NUMBERED = 4
#: A name that is JSON, or a Python dictionary, and its fields with text, a number or a flat list.
_JSON = re.compile(r"(\{.*?)((?: \(stream \d+\))?)", re.DOTALL)
_MOST_FIELDS = 32  # that are tried
_MOST_CALLERS = 99  # more than a log names
_FIELD = re.compile(
    r"""["'](\w+)["']\s*:\s*(?:"([^"]*)"|'([^']*)'|(\[[^]\[{}]*\]|[^\s,"'{}\[\]]+))"""
)


def plain_region(text: str) -> str:
    """A region's name without its repetition and torch's numbers of operators."""
    return _TORCH_NUMBERS.sub("", _REPETITION.sub("", text)).strip() or text


def grouped(names: Iterable[str]) -> dict[str, str]:
    """The common name of numbered names (`blocks.0` ... `blocks.31`, `step 1` ... `step 100`):
    `blocks.*`.  Only if the numbers count from 0 or 1 without a gap: `batch_64` and `batch_128`
    name different things.
    """
    families: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name in dict.fromkeys(names):
        numbers = tuple(int(n) for n in _NUMBERED.findall(name))
        if numbers:
            families.setdefault(_NUMBERED.sub("*", name), []).append((name, numbers))
    out: dict[str, str] = {}
    for family, members in families.items():
        columns = [
            sorted(set(column)) for column in zip(*(numbers for _, numbers in members), strict=True)
        ]
        counted = all(
            len(c) == 1 or (c[0] in (0, 1) and c[-1] - c[0] + 1 == len(c)) for c in columns
        )
        if len(members) >= _FEWEST_NUMBERED and counted:
            out |= dict.fromkeys((name for name, _ in members), family)
    return out


def common(names: Iterable[str]) -> dict[str, str]:
    """Name -> label, of names that have another one."""
    names = list(names)
    return by_field(names) | grouped(names)


def by_field(names: Iterable[str]) -> dict[str, str]:
    """Names that are JSON -> the fields in which they differ, as few as tell them apart:
    `{"mod": "nn", "op": "conv2d", "shape": [64, 3], ...}` is `conv2d shape=[64, 3]`.  A name stays
    as it is where its fields tell it from no other."""
    every = list(dict.fromkeys(names))
    parsed = {name: json for name in every if (json := _JSON.fullmatch(name))}
    fields = {name: _fields(json[1]) for name, json in parsed.items()}
    texts, different = dict.fromkeys(parsed, ""), 1
    for field in list(dict.fromkeys(chain(*fields.values())))[:_MOST_FIELDS]:
        longer = {name: f"{text} {fields[name].get(field, '')}" for name, text in texts.items()}
        if len(set(longer.values())) > different:
            texts, different = longer, len(set(longer.values()))
    short = {n: " ".join(text.split()) + parsed[n][2] for n, text in texts.items() if text.strip()}
    count = Counter([*short.values(), *(name for name in every if name not in short)])
    return {name: text for name, text in short.items() if count[text] == 1}


def _fields(json: str) -> dict[tuple[str, int], str]:
    """(key, how many of that name came before) -> a text as it is, others as `key=value`."""
    seen: Counter[str] = Counter()
    out = {}
    for key, double, single, plain in _FIELD.findall(json):
        out[key, seen[key]] = f"{key}={plain}" if plain else double or single
        seen[key] += 1
    return out


def name_intervals(windows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """(unique names, labels) of all windows.

    A label is the region's name without its repetition, or else is made from the call sites:
    `bench.py:14-17` for a pair recorded in lines 14 and 17.  Where one pair of sites has several
    callers (a Timer class), the first caller that differs names the label.  Host timers are
    labelled separately, so that the other labels do not depend on them; one that would share a
    label gets the suffix `(host)`, and the run as a whole `(all)`.  Numbered NVTX ranges share a
    label, and names that are JSON are short (`common`).
    """
    region, kinds = windows["region"].tolist(), windows["kind"].to_numpy(dtype=object)
    host, run = kinds == "host", kinds == "run"
    labels = np.full(len(windows), "", dtype=object)
    others: set[str] = set()
    for which, mark in ((~host & ~run, ""), (host, " (host)"), (run, " (all)")):
        found = _labels(windows[which])
        for place, label in zip(np.flatnonzero(which).tolist(), found, strict=True):
            taken = bool(mark) and label in others
            labels[place] = sys.intern(label + mark) if taken else label
            if taken and region[place]:
                region[place] = _REPETITION.sub(rf"{mark}#\1", region[place])
        others |= set(found)
    # two processes (ranks) measure the same label; names stay unique across them
    count: Counter[str] = Counter()
    names: dict[str, None] = {}
    for text, label in zip(region, labels.tolist(), strict=True):
        wanted = text if _REPETITION.search(text) and text not in names else None
        while wanted is None or wanted in names:
            wanted = f"{label}#{count[label]}"
            count[label] += 1
        names[wanted] = None
    # blocks.7#0 keeps its name in the label blocks.*
    ranges, known = kinds == "nvtx", set(labels.tolist())
    same = {n: label for n, label in common(labels[ranges]).items() if label not in known}
    labels[ranges] = [same.get(label, label) for label in labels[ranges]]
    return list(names), labels.tolist()


def _labels(windows: pd.DataFrame) -> list[str]:
    short = _short_files(windows)
    sites_of = cache(lambda start, end: _sites(short(start), short(end)))
    shortened = cache(lambda calls: tuple(map(short, calls)))
    # walked through twice: rows as objects take much memory
    columns = [windows[c].tolist() for c in ("region", "site", "end_site", "callers", "kind")]
    labels = dict.fromkeys(zip(*columns, strict=True), "")
    groups: dict[str, set[tuple[str, ...]]] = {}
    for text, start, end, calls, _ in labels:
        if not text:
            groups.setdefault(sites_of(start, end), set()).add(shortened(tuple(calls)))
    differs = {}  # the depth of the first caller that differs
    for site, several in groups.items():
        depths = enumerate(zip_longest(*several, fillvalue=""))
        differs[site] = next((n for n, calls in depths if len(set(calls)) > 1), _MOST_CALLERS)
    for row in labels:
        text, start, end, calls, kind = row
        site = "" if text else sites_of(start, end)
        label = plain_region(text) if text else site or f"{kind} interval"
        if not text and len(calls) > differs[site]:
            label = f"{shortened(tuple(calls))[differs[site]]} ({site})"
        labels[row] = sys.intern(label)  # one text per label, not per interval
    return [labels[row] for row in zip(*columns, strict=True)]


def _short_files(windows: pd.DataFrame) -> Callable[[str], str]:
    """Sites without their folders, if the file name alone is unambiguous."""
    sites = {s for column in ("site", "end_site") for s in windows[column].unique()}
    sites |= {s for calls in windows["callers"].unique() for s in calls}
    files = {s.rpartition(":")[0] for s in sites if ":" in s}
    count = Counter(file.rpartition("/")[2] for file in files)

    def short(site: str) -> str:
        name = site.rpartition("/")[2]
        return name if count[name.rpartition(":")[0]] == 1 else site

    return short


def _sites(start: str, end: str) -> str:
    file, _, line = start.rpartition(":")
    other, _, end_line = end.rpartition(":")
    if not end or end == start or not start:
        return start or end
    return f"{file}:{line}-{end_line}" if file == other else f"{start}-{end}"


def label_table(intervals: pd.DataFrame) -> pd.DataFrame:
    """One row per label, in order of first appearance.  `row` is the interval with the lower-median
    elapsed time."""
    if intervals.empty:
        return frames.empty(frames.LABELS)
    ordered = intervals.sort_values(["label", "elapsed_ns", "interval"], kind="stable")
    groups = ordered.groupby("label", sort=False)
    middle = groups.cumcount() == (groups["label"].transform("size") - 1) // 2
    rows = ordered[middle].set_index("label")[["kind", "name", "interval", "site"]]
    rows = rows.rename(columns={"name": "row", "interval": "row_interval"})
    elapsed = groups["elapsed_ns"]
    out = elapsed.agg(["size", "median", "mean", "std", "min", "max"]).add_suffix("_ns")
    out = out.rename(columns={"size_ns": "count"}).join(rows)
    out = out.assign(
        p05_ns=elapsed.quantile(0.05),
        p95_ns=elapsed.quantile(0.95),
        library=groups["library"].all(),
    )
    first = groups["interval"].min()
    return frames.check(out.loc[first.sort_values().index].reset_index(), frames.LABELS)
