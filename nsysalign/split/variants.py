"""What each window did, as numbers: how many operations, bytes and blocks, which names; and labels
split by it.

    for n in (64, 128, 256):                   one call site, three questions: bench.py:14-17 is one label,
        for _ in range(20): time(f, n)         64 blocks, 128 blocks, 256 blocks are its variants

A repetition for which a library chose another kernel of the same cost is not a different question,
nor is a first one that set something up: a variant occurs several times, and other kernel names
count only if their time differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import KIND, Alignment, Trace
from nsysalign.split.describe import operation_names
from nsysalign.split.kernels import Ran, inside
from nsysalign.split.labels import label_table
from nsysalign.text import told_apart

#: Columns of `of_windows`.
COLUMNS = ("work_count", "work_bytes", "work_names", "work_main")
#: Grids are read for at most this many kernels, and for labels whose kernel time varies this much.
_MOST_GRIDS, _SPREAD = 200_000, 0.05
#: A variant occurs at least this often, and in this share of the label; the rest is `other`, as
#: long as it is rare.
_FEWEST, _SHARE, _MOST_OTHER = 3, 0.02, 0.25
#: If there are more variants, they are not kinds of work but depend on the data.
_MOST_VARIANTS = 24
#: Kernels with other names that take equally long are the same work.
_SAME_TIME = 0.1
OTHER = "other"
#: Letters of a kernel's name in the name of a variant.
_LONGEST = 32


def of_windows(ran: Ran) -> pd.DataFrame:
    """COLUMNS of every window (0 and '' for runs): operations that begin in it on its stream; for
    host windows, those issued in it.  And `work_longest_ns`, the duration of the one that
    `work_main` names."""
    trace, windows, operations = ran.trace, ran.alignment.windows, ran.trace.operations
    count, moved, names, most = (np.zeros(len(windows), np.int64) for _ in range(4))
    main = np.full(len(windows), "", dtype=object)
    code, example = ran.codes
    texts = operation_names(trace, example) if len(example) else np.empty(0, object)
    digest = np.array([_digest(str(text)) for text in texts], dtype=np.int64)
    size = operations["bytes"].to_numpy()
    took = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    for which, op, _ in inside(ran, runs=False):
        first = np.flatnonzero(np.diff(which, prepend=-1))
        at = which[first]
        count[at] = np.diff(np.append(first, len(which)))
        moved[at] = np.add.reduceat(size[op], first)
        with np.errstate(over="ignore"):
            names[at] = np.add.reduceat(digest[code[op]], first)
        most[at] = np.maximum.reduceat(took[op], first)
        longest = np.flatnonzero(took[op] == np.repeat(most[at], count[at]))
        owner, place = np.unique(which[longest], return_index=True)
        main[owner] = texts[code[op[longest[place]]]]
    table = pd.DataFrame(
        dict(zip(COLUMNS, (count, moved, names, main), strict=True)) | {"work_longest_ns": most}
    )
    return table.astype({"work_main": "str"})


def _digest(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=8).digest(),
        "little",
        signed=True,
    )


def blocks(trace: Trace, alignment: Alignment) -> np.ndarray:
    """Blocks of the grids of all kernels in each window, -1 if the trace does not say or there are
    too many kernels."""
    windows, operations = alignment.windows, trace.operations
    out = np.full(len(windows), -1, np.int64)
    if trace.shapes is None:
        return out
    lots = [(which, op) for which, op, _ in inside(Ran(trace, alignment), runs=False)]
    kernel, row = operations["kind"].to_numpy() == KIND["kernel"], operations["row"].to_numpy()
    rows = (
        np.unique(np.concatenate([row[op[kernel[op]]] for _, op in lots]))
        if lots
        else np.empty(0, np.int64)
    )
    if len(rows) > _MOST_GRIDS:
        return out
    grid = np.asarray(trace.shapes(rows))[:, :3].prod(axis=1)
    for which, op in lots:
        out[which] = 0
        mine = kernel[op]
        np.add.at(out, which[mine], grid[np.searchsorted(rows, row[op[mine]])])
    return out


def variant_table(
    rows: pd.DataFrame, intervals: pd.DataFrame, blocks_of: Callable[[np.ndarray], np.ndarray]
) -> pd.DataFrame:
    """`frames.VARIANTS`: labels whose intervals did different work.  `rows`: what each interval did
    (`of_windows`), and its kernel_only_ns, parallel to `intervals`; `blocks_of`: the blocks of
    intervals by number, -1 if unknown."""
    often, sizes = _candidates(rows, intervals)
    found = np.full(len(rows), -1, np.int64)
    asked = (
        np.sort(np.concatenate([often[label] for label in sizes]))
        if sizes
        else np.empty(0, np.int64)
    )
    if len(asked):
        found[asked] = blocks_of(asked)
    tables = []
    numbers = [found, *(rows[c].to_numpy() for c in ("work_count", "work_bytes", "work_names"))]
    for label, at in often.items():
        differs = any((column[at] != column[at[0]]).any() for column in numbers)
        texts = _variants(rows.iloc[at], found[at]) if differs else None
        if texts is None:
            continue
        mine = intervals.iloc[at]
        table = label_table(mine.assign(label=texts)).rename(columns={"label": "variant"})
        members = mine.groupby(np.asarray(texts, dtype=object))["interval"].agg(
            lambda n: tuple(n.tolist())
        )
        table["intervals"] = members.reindex(table["variant"]).to_numpy()
        tables.append(table.assign(label=label))
    whole = pd.concat(tables, ignore_index=True) if tables else frames.empty(frames.VARIANTS)
    return frames.check(whole, frames.VARIANTS)


def _candidates(
    rows: pd.DataFrame, intervals: pd.DataFrame
) -> tuple[dict[str, np.ndarray], list[str]]:
    """(labels that occur often enough and may have done several kinds of work -> rows; those whose
    kernel times the grids may explain).  There may be thousands of labels: all are processed
    together."""
    label = intervals["label"].where(intervals["kind"] != "run")
    count = label.groupby(label).transform("size")
    at = np.flatnonzero((count >= 2 * _FEWEST).to_numpy())
    if not len(at):
        return {}, []
    work, name = rows.iloc[at], label.iloc[at].to_numpy()
    groups = work.groupby(name, sort=False)
    several = (groups[["work_count", "work_bytes", "work_names"]].nunique() > 1).any(axis=1)
    low, high = (groups["kernel_only_ns"].quantile(q) for q in (0.1, 0.9))
    spread = (high - low) > _SPREAD * high
    chosen = several | spread
    places = {key: at[inside] for key, inside in groups.indices.items() if chosen[key]}
    # in the order in which labels are listed
    order = sorted(places, key=lambda key: places[key][0])
    return {key: places[key] for key in order}, [key for key in order if spread[key]]


def _variants(rows: pd.DataFrame, blocks: np.ndarray) -> list[str] | None:
    """The name of each interval's kind of work in a label, None if all did the same."""
    same = (rows[["work_count", "work_bytes", "work_names"]].nunique() == 1).all() and (
        blocks == blocks[0]
    ).all()
    if len(rows) < 2 * _FEWEST or same:
        return None
    columns = ["work_count", "work_bytes", "work_names", "work_main", "kernel_only_ns"]
    work = rows[columns].reset_index(drop=True)
    key = ["work_count", "work_bytes", "class", "blocks"]
    work["class"] = _classes(work)
    # kernels with other names have other grids: their blocks cannot be compared
    alike = work.groupby(key[:3])["work_names"].transform("nunique") == 1
    work["blocks"] = np.where(alike & (blocks >= 0).all(), blocks, -1)
    number = work.groupby(key, sort=False).ngroup().to_numpy()
    size = np.bincount(number)
    kept = np.flatnonzero(size >= max(_FEWEST, _SHARE * len(work)))
    others = len(work) - size[kept].sum()
    if not 2 <= len(kept) <= _MOST_VARIANTS or others > _MOST_OTHER * len(work):
        return None
    first = work.iloc[[int(np.flatnonzero(number == n)[0]) for n in kept]]
    texts = dict(zip(kept.tolist(), _named(first), strict=True))
    return [texts.get(n, OTHER) for n in number.tolist()]


def _classes(work: pd.DataFrame) -> np.ndarray:
    """A number per interval: equal for kernels with the same names, and for others that take
    equally long."""
    out = np.zeros(len(work), np.int64)
    for at in work.groupby(["work_count", "work_bytes"]).indices.values():
        mine = work.iloc[at]
        median = mine.groupby("work_names")["kernel_only_ns"].median().sort_values()
        apart = median.to_numpy()[1:] > (1 + _SAME_TIME) * np.maximum(median.to_numpy()[:-1], 1)
        number = pd.Series(np.append(0, np.cumsum(apart)), index=median.index)
        out[at] = number.reindex(mine["work_names"]).to_numpy()
    return out


def _named(first: pd.DataFrame) -> list[str]:
    """Names for kinds of work, given one interval of each: the fewest words in which all of them
    differ."""
    words = {
        "bytes": [_bytes(n) for n in first["work_bytes"].tolist()],
        "count": [f"{n:,} operation{'s' * (n != 1)}" for n in first["work_count"].tolist()],
        "blocks": [
            f"{n:,} block{'s' * (n != 1)}" if n > 0 else "" for n in first["blocks"].tolist()
        ],
        "main": _kernels([str(text) for text in first["work_main"]]),
    }
    words = {name: texts for name, texts in words.items() if len(set(texts)) > 1}
    for count in range(1, len(words) + 1):
        for chosen in combinations(words, count):
            names = [
                ", ".join(filter(None, parts))
                for parts in zip(*(words[c] for c in chosen), strict=True)
            ]
            if len(set(names)) == len(names) and all(names):
                return names
    names = [", ".join(filter(None, parts)) for parts in zip(*words.values(), strict=True)] or [
        ""
    ] * len(first)
    return [f"{name or 'work'} ({number})" for number, name in enumerate(names, 1)]


def _bytes(count: int) -> str:
    if not count:
        return "no copies"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _kernels(names: list[str]) -> list[str]:
    """Short names of kernels: without arguments, templates and namespaces; if these are equal, the
    part that differs."""
    plain = {
        n: n.partition("(")[0].partition("<")[0].rpartition("::")[2].strip() or n for n in names
    }
    short = {
        n: text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"
        for n, text in plain.items()
    }
    found = told_apart(short, _LONGEST)
    return [found[name] for name in names]
