"""What the kinds of work of a label are called: the fewest words by which all of them differ.

"64 blocks" and "128 blocks"      "graph 1" and "536 operations"      "frees memory" and "keeps memory"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.intervals import group
from nsysalign.label import FREES, KEEPS
from nsysalign.split.issued import Work
from nsysalign.split.paces import FEW, RARE
from nsysalign.text import bytes_text, middle, plural, short_name, told_apart

#: What the name of a kind of work says where it copies nothing; letters of a kernel's name in it, at most.
_NO_COPIES = "no copies"
_BUSY_BEFORE, _IDLE_BEFORE = "GPU busy before", "GPU idle before"
_LONGEST = 32
#: A kind whose timings have more different operations that run longest is not told by one of them.
_FEW_MAINS = 2
#: Sizes of copies up to this ratio do not tell kinds apart.
_SIZES_ALIKE = 1.01


class _Kind(NamedTuple):
    """What tells a kind of work from the others of its label: what its typical interval issues, and what is so in most of
    its intervals."""

    #: Bytes that are copied.
    size: int
    operations: int
    #: Blocks of all kernels' grids, 0 if they are not known.
    blocks: int
    #: Which graph of the run it launches, from 1 on, 0 for none or an unknown one.
    graph: int
    #: The name of the operation that runs longest.
    main: str
    #: How many different operations run longest in the intervals of the kind.
    main_count: int
    #: Whether most begin while earlier work runs.
    is_behind: bool
    #: As `_memory_words` returns it.
    memory: str = ""


def names_of_kinds(
    table: pd.DataFrame,
    of_interval: np.ndarray,
    work: Work,
    names: Sequence[str],
    issued: pd.DataFrame,
) -> list[str]:
    """Return, per group, the name of its kind of work, '' where its label has only one kind.

    table: `frames.GROUPS`
    of_interval: per interval, its group, -1 for none
    work:  what each interval issued
    names: the names of operations, by number
    issued: `frames.ISSUED`
    """
    copied = issued[issued["kind"] == "memcpy"].groupby("group")["bytes"].sum()
    copied = copied.reindex(table["group"], fill_value=0)
    members_of = group(of_interval, np.arange(len(of_interval)))
    graph = _numbered(work.graph[table["typical"]], table["typical"].to_numpy())
    graph_of_group = dict(zip(table["group"].tolist(), graph.tolist(), strict=True))
    out = [""] * len(table)
    for _, rows in table.groupby(["label", "pid"], sort=False):
        if rows["kind"].nunique() == 1:
            continue
        kinds_of_label = _kinds_by_number(rows, members_of, work, names, copied, graph_of_group)
        differing = _names_that_differ(list(kinds_of_label.values()))
        name_of = dict(zip(kinds_of_label, differing, strict=True))
        for number, kind in zip(rows["group"].tolist(), rows["kind"].tolist(), strict=True):
            out[number] = name_of[kind]
    return out


def _kinds_by_number(
    rows: pd.DataFrame,
    members_of: dict[int, np.ndarray],
    work: Work,
    names: Sequence[str],
    copied: pd.Series,
    graph_of_group: dict[int, int],
) -> dict[int, _Kind]:
    """Return the number of each kind of a label -> the kind.

    rows:       the label's rows of `frames.GROUPS`, the group with most time first; its typical interval is the kind's
    members_of: group -> its intervals
    copied:     by group, how many bytes its typical interval copies
    graph_of_group: group -> the number by which its graph is called
    """
    groups_of_kind = {int(kind): of_kind for kind, of_kind in rows.groupby("kind", sort=False)}
    members = [
        np.concatenate([members_of[number] for number in of_kind["group"].tolist()])
        for of_kind in groups_of_kind.values()
    ]
    typical = np.array([of_kind["typical"].iloc[0] for of_kind in groups_of_kind.values()])
    main = main_names(typical, work, names)
    memory = _memory_words(work, members)
    return {
        number: _Kind(
            size=int(copied[groups_of_kind[number]["group"].iloc[0]]),
            operations=int(work.operations[typical[n]]),
            blocks=int(work.blocks[typical[n]]),
            graph=graph_of_group[groups_of_kind[number]["group"].iloc[0]],
            main=main[n],
            main_count=len(np.unique(work.main[members[n]])),
            is_behind=bool(2 * work.behind[members[n]].sum() > len(members[n])),
            memory=memory[n],
        )
        for n, number in enumerate(groups_of_kind)
    }


def _memory_words(work: Work, kinds_of_work: Sequence[np.ndarray]) -> list[str]:
    """Return, per kind of work, whether its intervals give memory back to the driver; '' for all where a kind does both,
    or where those that do or do not are too few (`_by_memory`).

    kinds_of_work: of each kind its intervals
    """
    frees = [bool(work.frees[members].all()) for members in kinds_of_work]
    is_clear = all(
        all_free or not work.frees[members].any()
        for all_free, members in zip(frees, kinds_of_work, strict=True)
    )
    counts = [0, 0]
    for all_free, members in zip(frees, kinds_of_work, strict=True):
        counts[all_free] += len(members)
    if not is_clear or min(counts) < max(FEW, RARE * sum(counts)):
        return [""] * len(kinds_of_work)
    return [FREES if all_free else KEEPS for all_free in frees]


def _names_that_differ(kinds_of_work: Sequence[_Kind]) -> list[str]:
    """Return names for the kinds of work of a label: the fewest words by which all of them differ.

    What kinds do with the driver's memory is always named where they differ in it; whether they begin behind earlier
    work is named where nothing else tells two kinds apart.

    Two kinds with 3 operations each, of 64 and 128 blocks, are called "64 blocks" and "128 blocks".
    """
    memory = [kind.memory for kind in kinds_of_work]
    if any(memory):
        if len(set(memory)) == len(memory):
            return memory
        without = _names_that_differ([kind._replace(memory="") for kind in kinds_of_work])
        return [f"{words}, {name}" for words, name in zip(memory, without, strict=True)]
    names = [""] * len(kinds_of_work)
    columns = _columns_of_words(kinds_of_work)
    for number in range(1, len(columns) + 1):
        for chosen in combinations(columns, number):
            names = [", ".join(filter(None, words)) for words in zip(*chosen, strict=True)]
            if len(set(names)) == len(names) and all(names):
                return _without_no_copies(names)
    # all words together do not tell the kinds apart: only their lengths do, or those of some of them
    if len(set(names)) == 1:
        return [""] * len(names)
    return [f"{name or 'work'} ({number})" for number, name in enumerate(names, 1)]


def _columns_of_words(kinds_of_work: Sequence[_Kind]) -> list[list[str]]:
    """Return what can be said of these kinds, a text per kind in each column; without columns that say the same of all.

    The columns come in the order in which their words stand in a name, and are tried: what a reader knows of his program
    first, its graphs and how much it launches.
    """
    short = {kind.main: middle(short_name(kind.main), _LONGEST) for kind in kinds_of_work}
    short = told_apart(short, _LONGEST)
    launched = [
        f"graph {kind.graph}" if kind.graph else plural(kind.operations, "operation")
        for kind in kinds_of_work
    ]
    size = _sizes_in_words([kind.size for kind in kinds_of_work])
    blocks = [plural(kind.blocks, "block") if kind.blocks > 0 else "" for kind in kinds_of_work]
    main = [
        f"{short[kind.main]} and {kind.main_count - 1} more"
        if kind.main_count > 1
        else short[kind.main]
        for kind in kinds_of_work
    ]
    # the last resort, for kinds that are alike in all of these; it comes first, as it is then all that differs
    words_of_kinds = list(zip(launched, size, blocks, main, strict=True))
    count_of_words = Counter(words_of_kinds)
    backlog = [
        (_BUSY_BEFORE if kind.is_behind else _IDLE_BEFORE) if count_of_words[words] > 1 else ""
        for kind, words in zip(kinds_of_work, words_of_kinds, strict=True)
    ]
    # what takes its time comes before what it copies, where that is one kernel or two in all timings of a kind
    by_kernel = all(kind.main_count <= _FEW_MAINS for kind in kinds_of_work)
    described = (main, size, blocks) if by_kernel else (size, blocks, main)
    columns = [backlog, launched, *described]
    return [words for words in columns if len(set(words)) > 1]


def _sizes_in_words(sizes: Sequence[int]) -> list[str]:
    """Return how much each kind copies, in words; the same ones for sizes between which no gap of more than _SIZES_ALIKE
    lies: some flags more that are read back make no other work of 48 MB.
    """
    words = {0: _NO_COPIES}
    before = 0
    for size in sorted(set(sizes) - {0}):
        words[size] = words[before] if 0 < size <= _SIZES_ALIKE * before else bytes_text(size)
        before = size
    return [words[size] for size in sizes]


def _without_no_copies(names: list[str]) -> list[str]:
    """Return these names without `, no copies` at their ends, which says little, where they differ all the same.

    "3 operations, no copies" and "5 operations, no copies":      "3 operations" and "5 operations"
    """
    shorter = [name.removesuffix(f", {_NO_COPIES}") for name in names]
    return shorter if len(set(shorter)) == len(names) else names


def _numbered(graph: np.ndarray, interval: np.ndarray) -> np.ndarray:
    """Return the number by which each group's graph is called: 1, 2, 3, ... in the order in which they first occur, 0 for
    none: a graph has one number in all labels.

    graph:    per group, a number that is equal for equal graphs (`Work.graph`)
    interval: per group, its typical interval
    """
    launching = np.flatnonzero(graph)
    in_order = launching[np.argsort(interval[launching], kind="stable")]
    out = np.zeros(len(graph), np.int64)
    out[in_order] = pd.factorize(graph[in_order])[0] + 1
    return out


def main_names(typical: np.ndarray, work: Work, names: Sequence[str]) -> list[str]:
    """Return, per group, the name of the operation that runs longest of what its typical interval issues."""
    return [str(names[number]) if number >= 0 else "" for number in work.main[typical].tolist()]
