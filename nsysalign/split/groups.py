"""Groups of a label: intervals that did the same kind of work at the same pace, and the ledger of
each, which adds up to what was measured.

    label's intervals   x x X x o o x x x X x o        elapsed times; what each issued
    kinds of work       x x X x     x x x X x          the same operations between the two records
                                o o           o
    first calls         x                              the first ones of a kind, where they are slower
    pace                  x   x     x x x   x          a kind with a slow side: two rows, not one median
                            X             X

The rules are those of `grouped`; what they decide is the tables `groups`, `ledger`, `issued` and
`group_parts`, of which `nsysalign.label` makes the records that everything else reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import group, ragged
from nsysalign.label import FIRST, SLOW, is_even
from nsysalign.model import KIND, OPERATION_KINDS
from nsysalign.split.budget import SplitTrace
from nsysalign.split.issued import Issues, Work, blocks_of, grids_of, issued_in, issues_of, work_of
from nsysalign.split.labels import Ran
from nsysalign.split.pieces import DETAILS
from nsysalign.text import bytes_text, middle, plural, short_name, told_apart

#: Medians so far apart are two paces, or two kinds of ranks; a first call is slower by that.
RATIO = 1.3
#: A first call that runs no new kernel is slower than the others by this.
RATIO_NOTHING_NEW = 2.0
#: Between two paces lies nothing: the faster side's 90 % and the slower side's 10 % quantile.
GAP = 1.15
#: And they are further apart than the spread that faces the cut, to this power, and more for few.
WIDER, WIDER_FEW = 1.5, 12
#: What deviates is at least this share of the label's time, up to twice that where one side is rarer than
#: this, and also with one repetition less; of one or two repetitions it is a quarter of the time.
SHARE, RARE, ALONE = 0.05, 0.2, 0.25
#: Paces are at least so far apart.
APART_NS = 1_000
#: Fewest repetitions of a kind, of first calls of a kind at most, and of which a pace is told.
FEW, FEWEST_PACED = 3, 6
#: Kinds cover this share of the time, or a coarser description is tried.
COVERED = 0.8
#: Kinds alike in number of operations and length by this, or by so little, are one.
ALIKE, ALIKE_NS = 1.1, 500
#: Most repetitions of a sweep.
LONGEST_SWEEP = 64
_AT_ONCE = 1 << 20
#: Grids are read where the time of a label's kernels varies by this.
_VARIED = 0.05
#: Letters of a kernel's name in the name of a kind of work.
_LONGEST = 32
#: What tells the lines of ledgers apart.
_KEY = ["group", "cause", "what", "why", "direction", "memory", "stream"]


class Measured(NamedTuple):
    """The intervals of one label, in time: arrays of equal length.

    elapsed_ns; idle_ns: of that no kernel or graph ran; pid; the others: what each issued
    (`issued.Work`).
    """

    elapsed_ns: np.ndarray
    idle_ns: np.ndarray
    pid: np.ndarray
    content: np.ndarray
    grids: np.ndarray
    names: np.ndarray
    name_bits: np.ndarray
    main: np.ndarray
    operations: np.ndarray
    size: np.ndarray
    new: np.ndarray

    def take(self, index: np.ndarray) -> Measured:
        """Some of them."""
        return Measured(*(column[index] for column in self))


class Part(NamedTuple):
    """A group: positions in a label's intervals, rising; which kind of work it did; which of its kind's
    paces it has, 0 for the fastest; its role; the rank that it is of, or -1."""

    at: np.ndarray
    kind: int = 0
    pace: int = 0
    role: str = ""
    pid: int = -1


class Groups(NamedTuple):
    """The tables, and the group of each interval (-1 for runs)."""

    of_interval: np.ndarray
    groups: pd.DataFrame
    ledger: pd.DataFrame
    issued: pd.DataFrame
    group_parts: pd.DataFrame

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By the names that they have in an analysis."""
        return {name: table for name, table in self._asdict().items() if name != "of_interval"}


# --- which intervals belong together


def grouped(m: Measured) -> list[Part]:
    """The groups of one label: kinds of work, of each its first calls, then paces of the rest."""
    ranks = list(dict.fromkeys(m.pid.tolist()))
    if len(ranks) > 1:
        each = [np.flatnonzero(m.pid == pid) for pid in ranks]
        # all of a rank are longer, not the one in the middle of two paces that all ranks have
        quartiles = np.array([np.quantile(m.elapsed_ns[at], [0.25, 0.5, 0.75]) for at in each])
        slowest, fastest = quartiles[[quartiles[:, 1].argmax(), quartiles[:, 1].argmin()]]
        if (slowest > RATIO * fastest).all():
            return [
                part._replace(at=at[part.at], pid=pid)
                for at, pid in zip(each, ranks, strict=True)
                for part in grouped(m.take(at))
            ]
    out, total = list[Part](), m.elapsed_ns.sum()
    found = [(at, _first_of(m, at, total)) for at in kinds(m)]
    rest = total - sum(m.elapsed_ns[first].sum() for _, first in found)
    for kind, (at, first) in enumerate(found):
        if len(first):
            out.append(Part(np.sort(first), kind, role=FIRST))
        others = np.setdiff1d(at, first)
        if not len(others):
            continue
        for pace, side in enumerate(paces(m.elapsed_ns, others, rest)):
            slow = pace > 0 and len(side) < RARE * len(others)
            out.append(Part(np.sort(side), kind, pace, SLOW if slow else ""))
    return out


def kinds(m: Measured) -> list[np.ndarray]:
    """Positions of each kind of work: by the finest description whose kinds of some weight cover most
    of the time.  If every repetition is a kind of its own, nothing is a kind, unless each of them
    runs another kernel: a sweep."""
    count = len(m.elapsed_ns)
    same = (column[0] == column for column in (m.content, m.grids, m.size))
    if count == 1 or all(column.all() for column in same):
        return [np.arange(count)]
    capped = np.minimum(m.elapsed_ns, 3 * np.median(m.elapsed_ns))  # no single one outweighs all
    sizes = np.unique(m.main, return_inverse=True, return_counts=True)
    once = sizes[2][sizes[1]] == 1
    if count <= LONGEST_SWEEP and capped[once].sum() > COVERED * capped.sum():
        return _without_twins(m, _alike(m.main))
    descriptions: Sequence[tuple[np.ndarray, ...]] = (
        (m.content, m.size, m.grids),
        (m.content, m.size),
        (m.content,),
        (m.names, m.operations),
        (m.operations,),
        (np.round(np.log2(m.operations + 1)),),
    )
    for description in descriptions:
        lots = _alike(*description)
        weights = [capped[lot].sum() for lot in lots if len(lot) >= FEW]
        covered = sum(weight for weight in weights if weight >= SHARE * capped.sum())
        if covered >= COVERED * capped.sum():
            return _without_twins(m, lots)
    return _without_twins(m, lots) if count >= 5 and len(lots) <= 12 else [np.arange(count)]


def _alike(*columns: np.ndarray) -> list[np.ndarray]:
    """Positions of the rows that have the same values, in the order of their first."""
    table = pd.DataFrame(dict(enumerate(columns)))
    return list(table.groupby(list(table), sort=False).indices.values())


def _without_twins(m: Measured, lots: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Kinds of about as many operations that are about as long become one: another kernel of the same
    cost is the same work, and so is all of a series in small steps, wherever one would cut it."""
    medians = [float(np.median(m.elapsed_ns[lot])) for lot in lots]
    out = list[np.ndarray]()
    last = list[tuple[float, int]]()  # of each of these the longest so far: its length, operations
    for number in np.argsort(medians, kind="stable").tolist():
        lot, median, count = lots[number], medians[number], int(m.operations[lots[number][0]])
        twin = next((n for n, other in enumerate(last) if _alike_work(*other, median, count)), -1)
        if twin < 0:
            out.append(lot)
            last.append((median, count))
        else:
            out[twin] = np.concatenate([out[twin], lot])
            last[twin] = (median, count)
    return [np.sort(lot) for lot in out]


def _alike_work(shorter_ns: float, count: int, longer_ns: float, other: int) -> bool:
    same_length = longer_ns < max(ALIKE * shorter_ns, shorter_ns + ALIKE_NS)
    return same_length and abs(count - other) <= (ALIKE - 1) * max(count, other)


def _first_of(m: Measured, at: np.ndarray, total: int) -> np.ndarray:
    """First calls of a kind; a kind of one interval is one if it is long and mostly idle."""
    if len(at) > 1 or len(m.elapsed_ns) < 3:
        return first_calls(m, at, total)
    only = int(at[0])
    early = m.new[only] or only == 0
    excess = m.elapsed_ns[only] - np.median(m.elapsed_ns)
    idle = m.idle_ns[only] > 0.5 * m.elapsed_ns[only]
    others = np.delete(np.arange(len(m.elapsed_ns)), only)
    first = early and idle and excess > SHARE * total and _runs_what_they_run(m, only, others)
    return at if first else at[:0]


def _runs_what_they_run(m: Measured, number: int, others: np.ndarray) -> bool:
    """Whether an interval issued all that is in each of some others, and they have anything in common: it
    is the first of these, whatever it did besides.  Names share bits: a doubt speaks for it."""
    named = m.name_bits[others[m.name_bits[others] != 0]]
    if not len(named) or not m.name_bits[number]:  # nothing is known, as of graphs
        return True
    common = np.bitwise_and.reduce(named)
    return bool(common and m.name_bits[number] & common == common)


def first_calls(m: Measured, at: np.ndarray, total: int) -> np.ndarray:
    """Of a kind (`at`) the first ones in time, up to one that is none, and those that run a kernel new to
    their process: each slower than all others but one by RATIO (by 2 where no kernel is new), its
    excess SHARE of what is left of `total` and mostly no kernels."""
    earliest = min(max(1, (len(at) + 5) // 10), FEW)  # 20 repetitions and 19 alike
    out = list[int]()
    for number in at[:earliest].tolist():
        if _is_first(m, at, number, out, total):
            out.append(number)
        elif not m.new[number]:
            break
    later = at[earliest:]
    for number in later[m.new[later]].tolist():
        if _is_first(m, at, number, out, total):
            out.append(number)
    return np.array(out, dtype=np.int64)


def _is_first(m: Measured, at: np.ndarray, number: int, known: list[int], total: int) -> bool:
    """Whether one of a kind is a first call, besides those that are known."""
    rest = at[~np.isin(at, [*known, number])]
    if not len(rest):
        return False
    slowest = np.sort(m.elapsed_ns[rest])[-2 if len(rest) > 2 else -1]
    ratio = RATIO if m.new[number] else RATIO_NOTHING_NEW
    excess = m.elapsed_ns[number] - np.median(m.elapsed_ns[rest])
    idle = m.idle_ns[number] - np.median(m.idle_ns[rest])
    left = total - m.elapsed_ns[known].sum()
    slow = m.elapsed_ns[number] > ratio * slowest and excess >= SHARE * left
    return bool(slow and idle >= 0.5 * excess and _runs_what_they_run(m, number, rest))


def paces(elapsed_ns: np.ndarray, at: np.ndarray, total: int) -> list[np.ndarray]:
    """A kind's intervals by length, the fastest pace first: cut wherever two sides are apart, with
    nothing between them that noise would explain, and what deviates is SHARE of `total`."""
    at = at[np.argsort(elapsed_ns[at], kind="stable")]
    x, n = np.maximum(elapsed_ns[at], 1).astype(float), len(at)
    if n < FEWEST_PACED:
        return [at] if is_even(n, x[(n - 1) // 2], x.sum()) else _listed(at, x)
    c = np.arange(1, n)  # a cut lies before the c-th

    def length(place: np.ndarray) -> np.ndarray:
        """At these places among the sorted ones, between two of them in proportion: one interval more or
        less moves it by little."""
        return np.interp(place, np.arange(n), x)

    sums = np.cumsum(x)[:-1]
    low, high = (
        length(c - 1 - np.maximum(c / 10 - 0.5, 0)),
        length(c + np.maximum((n - c) / 10 - 0.5, 0)),
    )
    faster, slower = length((c - 1) / 2), length((c + n - 1) / 2)
    # what deviates: the rarer side from the other one's median
    excess = np.minimum(x.sum() - sums - (n - c) * faster, c * slower - sums)
    # how much each side spreads where it faces the cut: from its 60 % quantile on
    near = length(np.maximum(np.minimum(0.6 * (c - 1) - 0.5, c - 4), 0))
    far = length(np.minimum(np.maximum(c + 0.4 * (n - c - 1) + 0.5, c + 3), n - 1))
    spread = np.maximum(
        np.where(c >= RARE * n, low / near, 1), np.where(n - c >= RARE * n, far / high, 1)
    )
    apart = (slower / faster >= RATIO) & (slower - faster >= APART_NS)
    empty = (high / low >= GAP) & (high / low > spread ** (WIDER + WIDER_FEW / n))
    good = apart & empty & (excess >= _least_share(np.minimum(c, n - c), n) * total)
    if not good.any():
        return [at]
    # the emptiest gap that explains most
    gaps = np.log(high / low) + np.log(x[c] / x[c - 1])
    score = np.where(good, gaps + np.log(np.maximum(excess, 1)), -np.inf)
    cut = int(c[np.argmax(score)])
    sides = at[:cut], at[cut:]  # a rare one is not cut again: it would have a row per interval
    return [
        pace
        for side in sides
        for pace in (paces(elapsed_ns, side, total) if len(side) >= RARE * n else [side])
    ]


def _least_share(smaller: np.ndarray, count: int) -> np.ndarray:
    """Which share of the time what deviates has to be, by how many of `count` the smaller side has."""
    rare = np.clip(RARE * count / smaller, 1, 2)
    with_one_less = smaller / np.maximum(smaller - 1, 1)
    return np.where(smaller < FEW, ALONE, SHARE * rare * with_one_less)


def labels_around(windows: pd.DataFrame, labels: pd.Series) -> dict[str, str]:
    """Label -> label of the ranges that directly enclose each of its own and issued nothing else.

    step     [            ]      [            ]
    forward    [  a  b  ]          [  a  b  ]        step is around forward: the same work, one row
    """
    ranges = windows["kind"] == "nvtx"
    columns = ["end_lane", "start_ns", "end_ns", "thread", "open_ns", "close_ns"]
    nested = windows.loc[ranges, columns].assign(label=labels[ranges])
    span = columns[:3]  # first start and last end of the work on a stream
    nested = nested.sort_values([*span, "open_ns", "close_ns"], ascending=[True] * 4 + [False])
    before = nested.groupby(span)[["label", "thread", "close_ns"]].shift()
    around = before["label"].where(
        (before["thread"] == nested["thread"]) & (before["close_ns"] >= nested["close_ns"]), ""
    )
    out = {}
    for label, names in around.groupby(nested["label"]):
        name = str(names.iloc[0])
        if name not in ("", label) and (names == name).all():
            out[str(label)] = name
    return out


def _listed(at: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """Too few to tell paces of, but far from alike: cut wherever one is longer by RATIO than the next
    shorter one.  `x`: their lengths, rising."""
    apart = (x[1:] >= RATIO * x[:-1]) & (x[1:] - x[:-1] >= APART_NS)
    return np.split(at, np.flatnonzero(apart) + 1)


# --- the tables


def groups_of(split: SplitTrace, ran: Ran, intervals: pd.DataFrame) -> Groups:
    """All groups of an analysis.  `intervals`: of the windows, in their order."""
    if (intervals["kind"] == "run").all():
        specs = (frames.GROUPS, frames.LEDGER, frames.ISSUED, frames.GROUP_PARTS)
        return Groups(np.full(len(intervals), -1), *map(frames.empty, specs))
    issues = issues_of(ran, split.alignment)
    work = work_of(split.trace, split.alignment, issues)
    varied = np.flatnonzero(_work_varies(intervals, work.busy_ns))
    grids, blocks = grids_of(split.trace, split.alignment, issues, varied)
    work = work._replace(grids=grids, blocks=blocks)
    of_interval, table = group_table(intervals, split.parts, work)
    table = table.assign(work=_names_of_kinds(table, work, issues.names))
    parts = _parts(split.parts, of_interval, len(table))
    named = [_details(split.details, of_interval), _kernels(split, ran, of_interval)]
    ledger = _ledger(pd.concat(named, ignore_index=True), parts)
    return Groups(of_interval, table, ledger, _issued(split, issues, table), parts)


def without_trace(intervals: pd.DataFrame, parts: pd.DataFrame, details: pd.DataFrame) -> Groups:
    """The same where only these tables are there: intervals with equally many operations did the same
    work, and kernels have no names.  `intervals`: numbered from 0 without a gap."""
    operations, nothing = intervals["operations"].to_numpy(), np.zeros(len(intervals), np.int64)
    work = Work(
        operations=operations, graphs=nothing, size=nothing, content=operations, names=nothing,
        name_bits=nothing, grids=nothing, blocks=nothing, main=nothing - 1, busy_ns=nothing, waits=nothing, late=nothing.astype(bool), new=nothing.astype(bool),
    )  # fmt: skip
    of_interval, table = group_table(intervals, parts, work)
    of_groups = _parts(parts, of_interval, len(table))
    ledger = _ledger(_details(details, of_interval), of_groups)
    return Groups(of_interval, table, ledger, frames.empty(frames.ISSUED), of_groups)


def group_table(
    intervals: pd.DataFrame, parts: pd.DataFrame, work: Work
) -> tuple[np.ndarray, pd.DataFrame]:
    """(the group of each interval, -1 for runs; `frames.GROUPS`).  One pass over the labels; what each
    needs of its intervals are slices of arrays, so that there may be a million of them."""
    names = ("elapsed_ns", "pid", "start_ns")
    elapsed, pid, start = (intervals[name].to_numpy() for name in names)
    busy = parts[parts["cause"].isin(("kernel", "graph"))]
    idle = elapsed.copy()
    np.subtract.at(idle, busy["interval"].to_numpy(), busy["ns"].to_numpy())
    empty = (work.operations == 0) & (intervals["operations"].to_numpy() == 0)
    two_streams = (intervals["start_stream"] != intervals["end_stream"]).to_numpy()
    of_interval = np.full(len(intervals), -1, np.int64)
    rows = list[dict[str, Any]]()
    for label, unordered in _of_labels(intervals).items():
        numbers = unordered[np.argsort(start[unordered], kind="stable")]
        issued = (getattr(work, name)[numbers] for name in Measured._fields[3:])
        found = grouped(Measured(elapsed[numbers], idle[numbers], pid[numbers], *issued))
        for part in sorted(found, key=lambda p: -elapsed[numbers[p.at]].sum()):
            mine = np.sort(numbers[part.at])
            of_interval[mine] = len(rows)
            rows.append({
                "group": len(rows), "label": label, "kind": part.kind, "pace": part.pace,
                "role": part.role, "work": "", "pid": part.pid, "count": len(mine),
                **_lengths(elapsed, mine, part.role), **_usual_work(work, mine),
                "late": int(work.late[mine].sum()), "empty": int(empty[mine].sum()),
                "two_streams": int(two_streams[mine].sum()),
            })  # fmt: skip
    if not rows:
        return of_interval, frames.empty(frames.GROUPS)
    return of_interval, frames.check(pd.DataFrame(rows), frames.GROUPS)


def _lengths(elapsed_ns: np.ndarray, numbers: np.ndarray, role: str) -> dict[str, int]:
    """The columns of a group that say how long its intervals (rising numbers) are."""
    times = elapsed_ns[numbers]
    typical = int(numbers[np.argsort(times, kind="stable")[(len(times) - 1) // 2]])
    ends = (0, 1) if role == FIRST else (0.1, 0.9)
    low, high = (int(np.quantile(times, end)) for end in ends)
    return {
        "total_ns": int(times.sum()),
        "typical": typical,
        "typical_ns": int(elapsed_ns[typical]),
        "low_ns": low,
        "high_ns": high,
    }


def _usual_work(work: Work, numbers: np.ndarray) -> dict[str, int]:
    """The columns of a group that say what its intervals issue: medians."""
    columns = {
        "operations": work.operations,
        "graphs": work.graphs,
        "bytes": work.size,
        "waits": work.waits,
    }
    return {name: int(np.median(column[numbers])) for name, column in columns.items()}


def _work_varies(intervals: pd.DataFrame, busy_ns: np.ndarray) -> np.ndarray:
    """Bool, per interval: what its label issues ran long for one interval and short for another, as
    work of other sizes does."""
    measured = (intervals["kind"] != "run").to_numpy()
    code, _ = pd.factorize(intervals["label"])
    busy = pd.Series(busy_ns).groupby(code)
    low, high = (busy.quantile(q).to_numpy()[code] for q in (0.1, 0.9))
    return measured & (high - low > _VARIED * high)


def _names_of_kinds(table: pd.DataFrame, work: Work, names: Sequence[str]) -> list[str]:
    """For each group the name of its kind of work, '' where its label has one kind."""
    out = [""] * len(table)
    for _, rows in table.groupby(["label", "pid"], sort=False):
        first = rows.drop_duplicates("kind")
        if len(first) == 1:
            continue
        typical = first["typical"].to_numpy()
        main = [str(names[n]) if n >= 0 else "" for n in work.main[typical].tolist()]
        columns = (work.size[typical], work.operations[typical], work.blocks[typical], main)
        told = dict(zip(first["kind"], _told_apart(*columns), strict=True))
        for place, kind in zip(rows["group"].tolist(), rows["kind"].tolist(), strict=True):
            out[place] = told[kind]
    return out


def _told_apart(
    size: np.ndarray, count: np.ndarray, blocks: np.ndarray, main: list[str]
) -> list[str]:
    """Names for kinds of work, given one interval of each: the fewest words in which all of them
    differ."""
    apart = told_apart({n: middle(short_name(n), _LONGEST) for n in main}, _LONGEST)
    words = {
        "size": [bytes_text(n) if n else "no copies" for n in size.tolist()],
        "count": [plural(n, "operation") for n in count.tolist()],
        "blocks": [plural(n, "block") if n > 0 else "" for n in blocks.tolist()],
        "main": [apart[name] for name in main],
    }
    words = {name: texts for name, texts in words.items() if len(set(texts)) > 1}
    names = [""] * len(main)
    for number in range(1, len(words) + 1):
        for chosen in combinations(words, number):
            columns = zip(*(words[column] for column in chosen), strict=True)
            names = [", ".join(filter(None, texts)) for texts in columns]
            if len(set(names)) == len(names) and all(names):
                return names
    # all words together do not tell them apart
    return [f"{name or 'work'} ({number})" for number, name in enumerate(names, 1)]


def _of_labels(intervals: pd.DataFrame) -> dict[str, np.ndarray]:
    """Positions of the intervals of each label, but for runs."""
    measured = np.flatnonzero((intervals["kind"] != "run").to_numpy())
    code, labels = pd.factorize(intervals["label"].iloc[measured])
    return {str(labels[number]): rows for number, rows in group(code, measured).items()}


def _parts(parts: pd.DataFrame, of_interval: np.ndarray, count: int) -> pd.DataFrame:
    """`frames.GROUP_PARTS`: sums of `parts`."""
    group_of = of_interval[parts["interval"].to_numpy()]
    causes = parts["cause"].astype("category").cat
    some = np.flatnonzero(group_of >= 0)
    key = group_of[some] * len(causes.categories) + causes.codes.to_numpy()[some]
    sums = {}
    for column in ("ns", "lower_ns", "upper_ns"):
        sums[column] = np.zeros(count * len(causes.categories), np.int64)
        np.add.at(sums[column], key, parts[column].to_numpy()[some])
    kept = np.flatnonzero(sums["upper_ns"])
    number, cause = np.divmod(kept, max(len(causes.categories), 1))
    table = {"group": number, "cause": causes.categories.to_numpy(dtype=object)[cause]}
    table |= {column: total[kept] for column, total in sums.items()}
    return frames.check(pd.DataFrame(table), frames.GROUP_PARTS)


def _details(details: pd.DataFrame, of_interval: np.ndarray) -> pd.DataFrame:
    """Sums of `details` by group and name (`_KEY`, ns, bytes)."""
    details = details.assign(group=of_interval[details["interval"].to_numpy()])
    key = ["group", "cause", "detail", "operation", "direction", "memory", "stream"]
    sums = details[details["group"] >= 0].groupby(key, observed=True)[["ns", "bytes"]].sum()
    sums = sums.reset_index().astype(dict.fromkeys(key[1:6], object))
    reason = sums["detail"].isin(DETAILS)
    sums["why"] = sums["detail"].where(reason & (sums["detail"] != "copy"), "")
    sums["what"] = sums["detail"].where(~reason | (sums["detail"] == "copy"), sums["operation"])
    sums.loc[sums["cause"] == "memcpy", "what"] = "copy"
    return sums[[*_KEY, "ns", "bytes"]]


def _ledger(named: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """`frames.LEDGER`: what has a name, and of each cause the rest."""
    done = named.groupby(["group", "cause"])["ns"].sum()
    rest = parts.set_index(["group", "cause"])["ns"].sub(done, fill_value=0).astype(np.int64)
    if (rest < 0).any():
        raise AssertionError(f"more is named than was measured: {rest[rest < 0].head(1).to_dict()}")
    rest = (
        rest[rest > 0]
        .reset_index()
        .assign(what="", why="", direction="", memory="", stream=-1, bytes=0)
    )
    whole = pd.concat([named, rest], ignore_index=True).groupby(_KEY, as_index=False).sum()
    whole = whole[whole["ns"] > 0].sort_values(
        ["group", "ns"], ascending=[True, False], kind="stable"
    )
    return frames.check(whole.reset_index(drop=True), frames.LEDGER)


def _kernels(split: SplitTrace, ran: Ran, of_interval: np.ndarray) -> pd.DataFrame:
    """Nanoseconds of kernels by group and name: union of execution on the end record's stream, or
    while a host timer waited for them."""
    windows, streams = split.alignment.windows, split.explainer.streams
    kind, lane, start, end = (
        windows[c].to_numpy() for c in ("kind", "end_lane", "start_ns", "end_ns")
    )
    on_stream = np.flatnonzero((of_interval >= 0) & (kind != "host") & (end > start))
    keys, sums = list[np.ndarray](), list[np.ndarray]()
    is_kernel = split.trace.operations["kind"].to_numpy() == KIND["kernel"]

    def add(window: np.ndarray, operation: np.ndarray, ns: np.ndarray) -> None:
        kernels = np.flatnonzero(is_kernel[operation])
        key = of_interval[window[kernels]] * len(ran.names) + ran.name[operation[kernels]]
        row, values = pd.factorize(key)
        keys.append(values)
        sums.append(np.zeros(len(values), np.int64))
        np.add.at(sums[-1], row, ns[kernels])

    for number, mine in group(lane[on_stream], on_stream).items():
        blocks = streams.blocks(number)
        first = np.searchsorted(blocks.end, start[mine], side="right")
        count = np.maximum(np.searchsorted(blocks.start, end[mine]) - first, 0)
        lot = np.cumsum(count) // _AT_ONCE
        for some in np.split(np.arange(len(mine)), np.flatnonzero(np.diff(lot)) + 1):
            owner, block = ragged(first[some], count[some])
            window = mine[some[owner]]
            begin = np.maximum(blocks.start[block], start[window])
            add(window, blocks.ref[block], np.minimum(blocks.end[block], end[window]) - begin)
    window, operation, ns = split.waited_for
    add(window, operation, ns)
    columns = ["group", "cause", "what", "ns"]
    of, name = np.divmod(np.concatenate(keys), max(len(ran.names), 1))
    table = pd.DataFrame({"group": of, "what": ran.names["kernel"].to_numpy()[name]})
    table = table.assign(cause="kernel", ns=np.concatenate(sums))[columns]
    whole = table.groupby(columns[:3], as_index=False).sum()
    return whole.assign(why="", direction="", memory="", stream=-1, bytes=0)


def _issued(split: SplitTrace, issues: Issues, groups: pd.DataFrame) -> pd.DataFrame:
    """`frames.ISSUED` of the typical interval of each group."""
    typical, tables = groups["typical"].to_numpy(), list[pd.DataFrame]()
    row = split.trace.operations["row"].to_numpy()
    for window, issue in issued_in(split.alignment, issues, typical):
        name = issues.name[issue]
        kernels = np.flatnonzero(issues.kinds[name] == KIND["kernel"])
        blocks = np.zeros(len(name), np.int64)
        blocks[kernels] = blocks_of(split.trace, row[issues.first[issue[kernels]]])
        each = {"window": window, "name": name, "bytes": issues.size[issue], "blocks": blocks}
        sums = pd.DataFrame(each).groupby(["window", "name"], sort=False)
        count = sums.size().rename("count")
        tables.append(sums[["bytes", "blocks"]].sum().join(count).reset_index())
    if not tables:
        return frames.empty(frames.ISSUED)
    whole = pd.concat(tables, ignore_index=True)
    kind = issues.kinds[whole["name"]]
    group_of = pd.Series(groups["group"].to_numpy(), index=typical)
    whole = whole.assign(
        group=group_of[whole["window"]].to_numpy(),
        kind=np.array(OPERATION_KINDS, dtype=object)[kind],
        name=np.array(issues.names, dtype=object)[whole["name"]],
        blocks=np.where(whole["blocks"] > 0, whole["blocks"], -1),
    )
    whole = whole.sort_values(["group", "count"], ascending=[True, False], kind="stable")
    return frames.check(whole.reset_index(drop=True), frames.ISSUED)
