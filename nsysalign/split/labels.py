"""Names, labels and their statistics: intervals measured by the same code share a label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain

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
    region = windows["region"].tolist()
    kinds = windows["kind"].to_numpy(dtype=object)
    labels = [""] * len(windows)
    others: set[str] = set()
    for mask, mark in (
        (~np.isin(kinds, ["host", "run"]), ""),
        (kinds == "host", " (host)"),
        (kinds == "run", " (all)"),
    ):
        found = _labels(windows[mask])
        for at, label in zip(np.flatnonzero(mask).tolist(), found, strict=True):
            taken = bool(mark) and label in others
            labels[at] = label + mark if taken else label
            if taken and region[at]:
                region[at] = _REPETITION.sub(rf"{mark}#\1", region[at])
        others |= set(found)
    single = list(labels)  # blocks.7#0 keeps its name in the label blocks.*
    same = common(label for label, kind in zip(labels, kinds, strict=True) if kind == "nvtx")
    known = set(labels)
    same = {name: label for name, label in same.items() if label not in known}
    if same:
        labels = [
            same.get(label, label) if kind == "nvtx" else label
            for label, kind in zip(labels, kinds, strict=True)
        ]
    # two processes (ranks) measure the same label; names stay unique across them
    count: dict[str, int] = {}
    names: list[str] = []
    used: set[str] = set()
    for text, label in zip(region, single, strict=True):
        wanted = text if _REPETITION.search(text) and text not in used else None
        while wanted is None or wanted in used:
            wanted = f"{label}#{count.get(label, 0)}"
            count[label] = count.get(label, 0) + 1
        used.add(wanted)
        names.append(wanted)
    return names, labels


def _labels(windows: pd.DataFrame) -> list[str]:
    region = windows["region"].tolist()
    callers = windows["callers"].tolist()
    short = _short_files(windows)
    # few lines of code, many intervals: each text is processed once
    (start, starts), (end, ends) = (pd.factorize(windows[c]) for c in ("site", "end_site"))
    pair = cache(lambda a, b: _sites(short(starts[a]), short(ends[b])))
    sites = list(map(pair, start.tolist(), end.tolist()))
    shortened = cache(lambda calls: tuple(short(c) for c in calls))
    callers = [shortened(tuple(calls)) for calls in callers]
    level = _first_difference(sites, callers, region)
    same: dict[str, str] = {}  # one text per label, not per interval
    labels = []
    for text, site, calls, deep, kind in zip(
        region, sites, callers, level, windows["kind"].array, strict=True
    ):
        if text:
            label = plain_region(text)
            labels.append(same.setdefault(label, label))
        elif deep >= 0 and len(calls) > deep:
            labels.append(f"{calls[deep]} ({site})")
        else:
            labels.append(site or f"{kind} interval")
    return labels


def _short_files(windows: pd.DataFrame) -> Callable[[str], str]:
    """Sites without their folders, if the file name alone is unambiguous."""
    sites = {s for column in ("site", "end_site") for s in windows[column].unique()}
    sites |= {s for calls in windows["callers"].unique() for s in calls}
    files = {s.rpartition(":")[0] for s in sites if ":" in s}
    by_name: dict[str, set[str]] = {}
    for file in files:
        by_name.setdefault(file.rpartition("/")[2], set()).add(file)

    def short(site: str) -> str:
        name = site.rpartition("/")[2]
        return name if len(by_name.get(name.rpartition(":")[0], ())) == 1 else site

    return short


def _sites(start: str, end: str) -> str:
    file, _, line = start.rpartition(":")
    other, _, end_line = end.rpartition(":")
    if not end or end == start or not start:
        return start or end
    return f"{file}:{line}-{end_line}" if file == other else f"{start}-{end}"


def _first_difference(
    sites: list[str], callers: list[tuple[str, ...]], region: list[str]
) -> list[int]:
    """Per interval: the depth of the first caller that differs among intervals of the same sites,
    -1 if none does."""
    groups: dict[str, set[tuple[str, ...]]] = {}
    for site, calls in {
        (s, c) for s, c, text in zip(sites, callers, region, strict=True) if not text
    }:
        groups.setdefault(site, set()).add(calls)
    depth = {}
    for site, variants in groups.items():
        longest = max((len(v) for v in variants), default=0)
        depth[site] = next(
            (d for d in range(longest) if len({v[d] if d < len(v) else "" for v in variants}) > 1),
            -1,
        )
    return [-1 if text else depth[site] for site, text in zip(sites, region, strict=True)]


def label_table(intervals: pd.DataFrame) -> pd.DataFrame:
    """One row per label, in order of first appearance.  `row` is the interval with the lower-median
    elapsed time."""
    if intervals.empty:
        return frames.empty(frames.LABELS)
    needed = ["label", "elapsed_ns", "interval", "kind", "name", "site", "library"]
    ordered = intervals[needed].sort_values(needed[:3], kind="stable")
    groups = ordered.groupby("label", sort=False)
    count = groups["elapsed_ns"].size()
    begin = np.cumsum(count.to_numpy()) - count.to_numpy()
    middle = begin + (count.to_numpy() - 1) // 2
    e = groups["elapsed_ns"]
    out = pd.DataFrame(
        {
            "label": count.index,
            "kind": ordered["kind"].to_numpy()[middle],
            "count": count.to_numpy(),
            "row": ordered["name"].to_numpy()[middle],
            "row_interval": ordered["interval"].to_numpy()[middle],
            "site": ordered["site"].to_numpy()[middle],
            "median_ns": e.median().to_numpy(),
            "mean_ns": e.mean().to_numpy(),
            "std_ns": e.std(ddof=1).to_numpy(),
            "min_ns": e.min().to_numpy(),
            "max_ns": e.max().to_numpy(),
            "p05_ns": e.quantile(0.05).to_numpy(),
            "p95_ns": e.quantile(0.95).to_numpy(),
            "library": groups["library"].all().to_numpy(),
        }
    )
    first = intervals.groupby("label", sort=False)["interval"].min()
    order = np.argsort(first.reindex(out["label"]).to_numpy(), kind="stable")
    return frames.check(out.iloc[order].reset_index(drop=True), frames.LABELS)
