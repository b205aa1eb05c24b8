"""`compare(a, b)`: two analyses, label by label."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from nsysalign.causes import CAUSES
from nsysalign.compare.bootstrap import change
from nsysalign.explain.case import shown_groups
from nsysalign.explain.finding import SEVERITIES
from nsysalign.explain.sentences import kind_names
from nsysalign.explain.verdict import WRONG
from nsysalign.label import Group, Label, pace_words
from nsysalign.model import Analysis
from nsysalign.parts import parts_matrix

#: Fewer runs on a side say nothing about a difference.
FEWEST_RUNS = 5
#: Differences below this are due to the event clock: it ticks every 32 ns, and a pair has two ends.
RESOLUTION_NS = 64
#: Clocks that differ by more than this are not the same conditions.
CLOCK_SHARE = 0.03
#: Why a change is unclear.
REASONS = {
    "too few": f"fewer than {FEWEST_RUNS} intervals on a side, or so few that the bounds are wider "
    "than the time itself",
    "varies": "the intervals vary too much to tell; more of them would help",
    "small": "there is a change, but it may be too small to matter",
    "wrong timing": "what was timed is not what is meant, so that its change tells nothing",
}


@dataclass(frozen=True)
class Change:
    """A time before and after, and bounds that contain the true change with the stated
    confidence."""

    before_ns: float
    after_ns: float
    change_ns: float
    low_ns: float
    high_ns: float

    @property
    def clear(self) -> bool:
        """The bounds exclude zero."""
        return self.low_ns > 0 or self.high_ns < 0


class Comparable(NamedTuple):
    """Intervals of a label that are compared with their like: of one kind of work at one pace, without first calls.

    name:    '' where the label has one
    work:    what its largest group issued, equal for the same work in any analysis
    numbers: of its intervals
    typical: the number of the one that its largest group shows
    typical_ns: how long that one took
    """

    name: str
    work: tuple[Any, ...]
    numbers: np.ndarray
    typical: int
    typical_ns: int


@dataclass(frozen=True)
class LabelChange:
    label: str
    label_after: str  # another one if its lines moved: it is the same code
    work: str  # which of the label's kinds of work and paces, '' where it has one of each
    kind: str
    site: str
    count_before: int
    count_after: int
    typical_before: int  # number of the interval that shows each side
    typical_after: int
    total: Change
    parts: dict[str, Change]  # causes that are not zero on both sides
    kernel_only: Change
    verdict: str  # slower, faster, unclear, same; different: the runs were not recorded alike
    reason: str  # one of REASONS if it is unclear, else ''
    library: bool
    wrong: str = ""  # the sides whose timing is not what is meant: "A", "B", "A and B", '' for none


class WrongTiming(NamedTuple):
    """A timing that is not what is meant, so that its change is no change of it."""

    sides: str  # "A", "B" or "A and B"
    label: str
    sentence: str


@dataclass(frozen=True)
class Comparison:
    before: str  # what the sides are called
    after: str
    labels: tuple[LabelChange, ...]  # in the order of the first analysis
    only_before: tuple[str, ...]  # labels, and kinds of work or slow timings of labels in both
    only_after: tuple[str, ...]
    threshold: float
    confounders: tuple[str, ...]  # differences of the recordings that alone change times
    remarks: tuple[str, ...]  # what else differs
    missing: tuple[str, ...] = ()  # those of `only_before` that the user's own code measured
    same_recording: bool = False  # both are one recording: nothing can have changed
    wrong: tuple[WrongTiming, ...] = ()

    def count(self, verdict: str) -> int:
        return sum(label.verdict == verdict for label in self.labels)


def compare(
    before: Analysis,
    after: Analysis,
    *,
    names: tuple[str, str] = ("A", "B"),
    threshold: float = 0.02,
    anyway: bool = False,
) -> Comparison:
    """Return how two analyses differ, label by label: each kind of work of a label is compared with the same work on the
    other side.

    names: what the sides are called
    threshold: the share of the time below which a change does not matter
    anyway: whether the labels of runs that were recorded differently are judged as well
    """
    times = _times(before), _times(after)
    before_labels = {label.name: label for label in before.grouped}
    after_labels = {label.name: label for label in after.grouped}
    same_code = matching(before, after)  # label before -> label after
    confounders, remarks = _differences(before, after, names)
    only_before = [label for label in before_labels if label not in same_code]
    only_after = [label for label in after_labels if label not in same_code.values()]
    is_library = dict(before.labels[["label", "library"]].itertuples(index=False))
    missing = tuple(label for label in only_before if not is_library[label])
    changes = list[LabelChange]()
    for name, name_after in same_code.items():
        label = before_labels[name]
        # what did the same work, two and two; and what has no like on the other side
        pairs, left_before, left_after = alike(
            comparables(label), comparables(after_labels[name_after])
        )
        only_before += [f"{name} ({unmatched.name})" for unmatched in left_before]
        only_after += [f"{name} ({unmatched.name})" for unmatched in left_after]
        changes += [_label_change(label, name_after, pair, times, threshold) for pair in pairs]
    wrong = _wrong_timings(before, after)
    changes = [_of_wrong_timing(change, _wrong_sides(change, wrong)) for change in changes]
    if confounders and not anyway:
        changes = [_not_judged(change) for change in changes]
    if moved := [
        f"{name_before} is {name_after_move}"
        for name_before, name_after_move in same_code.items()
        if name_before != name_after_move
    ]:
        remarks.append(f"matched by their code, as lines moved (A is B): {', '.join(moved)}")
    return Comparison(
        *names,
        labels=tuple(changes),
        only_before=tuple(only_before),
        only_after=tuple(only_after),
        threshold=threshold,
        confounders=tuple(confounders),
        remarks=tuple(remarks),
        missing=missing,
        same_recording=_same_recording(before, after),
        wrong=wrong,
    )


def _same_recording(before: Analysis, after: Analysis) -> bool:
    """Return whether both have the same intervals at the same times: two runs never do."""
    columns = ["name", "pid", "start_ns", "elapsed_ns"]
    same_start = before.trace.session_start_utc_ns == after.trace.session_start_utc_ns
    times_before = before.intervals[columns].reset_index(drop=True)
    times_after = after.intervals[columns].reset_index(drop=True)
    return same_start and len(times_before) > 0 and times_before.equals(times_after)


def _wrong_timings(before: Analysis, after: Analysis) -> tuple[WrongTiming, ...]:
    """Return the wrong timings of both sides (one for each label that is not a library's), those of A first."""
    wrong_before = _sentences_on_wrong(before)
    wrong_after = _sentences_on_wrong(after)
    timings = list[WrongTiming]()
    for label, sentence in wrong_before.items():
        sides = "A and B" if wrong_after.get(label) == sentence else "A"
        timings.append(WrongTiming(sides, label, sentence))
    for label, sentence in wrong_after.items():
        if wrong_before.get(label) != sentence:
            timings.append(WrongTiming("B", label, sentence))
    return tuple(timings)


def _sentences_on_wrong(analysis: Analysis) -> dict[str, str]:
    """Return label -> the sentence that says what is wrong with its timings."""
    findings, labels = analysis.findings, analysis.labels
    rows = findings[findings["verdict"] == WRONG]
    rows = rows[~rows["label"].isin(labels.loc[labels["library"].astype(bool), "label"])]
    rows = rows.sort_values("severity", key=lambda s: s.map(SEVERITIES.index), kind="stable")
    rows = rows.drop_duplicates("label")
    return dict(zip(rows["label"].tolist(), rows["title"].tolist(), strict=True))


def _label_change(
    label: Label,
    label_after: str,
    pair: tuple[Comparable, Comparable],
    times: tuple[np.ndarray, np.ndarray],
    threshold: float,
) -> LabelChange:
    """Return how the intervals of a label changed.

    label_after: its name on the other side
    pair: its intervals before and after
    times: of both sides, as `_times` returns them
    """
    before, after = pair
    # the bootstrap's random numbers depend on its name only: other labels do not change its answer
    seed = zlib.crc32((label.name + before.name).encode("utf-8", "replace"))
    before_times = times[0][before.numbers]
    after_times = times[1][after.numbers]
    # a row per column of the times: before, after, their difference, and the bounds of that
    changes = change(before_times, after_times, seed)
    identical = np.array_equal(before_times, after_times)
    if identical:  # to the nanosecond: one recording, twice, and so no change, for certain
        changes[:, 2:] = 0
    total, kernel_only, *causes = [Change(*map(float, values)) for values in changes]
    verdict, reason = judge(total, len(before.numbers), len(after.numbers), threshold)
    if identical:
        verdict = "same"
        reason = ""
    parts = zip(CAUSES, causes, strict=True)
    return LabelChange(
        label=label.name,
        label_after=label_after,
        work=before.name,
        kind=label.kind,
        site=label.site,
        count_before=len(before.numbers),
        count_after=len(after.numbers),
        typical_before=before.typical,
        typical_after=after.typical,
        total=total,
        parts={cause: part for cause, part in parts if part.before_ns or part.after_ns},
        kernel_only=kernel_only,
        verdict=verdict,
        reason=reason,
        library=label.library,
    )


def _wrong_sides(label: LabelChange, wrong: Sequence[WrongTiming]) -> str:
    """Return on which sides a label's timings are not what is meant: "A", "B" or "A and B"; '' for none."""
    return " and ".join(sorted({side for timing in wrong for side in sides_of(timing, label)}))


def sides_of(timing: WrongTiming, label: LabelChange) -> list[str]:
    """Return the sides ("A", "B") on which a wrong timing is that of a label."""
    names = {"A": label.label, "B": label.label_after}
    return [side for side, name in names.items() if side in timing.sides and timing.label == name]


def _of_wrong_timing(label: LabelChange, sides: str) -> LabelChange:
    """A timing that measures something else neither got slower nor faster, whatever its number says.

    sides: on which it does (`_wrong_sides`)
    """
    if sides and label.verdict in ("slower", "faster"):
        return replace(label, verdict="unclear", reason="wrong timing", wrong=sides)
    return replace(label, wrong=sides)


def _not_judged(label: LabelChange) -> LabelChange:
    reason = label.reason if label.reason == "too few" else ""
    return replace(label, verdict="different", reason=reason)


def comparables(label: Label) -> list[Comparable]:
    """Return the sets of a label's intervals that can be compared with their like: one for each kind of work and pace, the
    kind with most time first, of each the fastest pace first."""
    shown = shown_groups(label)
    names: dict[
        int, str
    ] = {}  # number of a kind's first group -> the kind's name; none for a single kind
    if len(label.kinds) > 1:
        names = kind_names(tuple(groups[0] for groups in label.kinds), "")
    out = []
    for kind in label.kinds:
        work = _work(kind[0])
        name = names.get(kind[0].number, "")
        for pace, groups in _paces(kind, shown):
            out.append(
                Comparable(
                    name=", ".join(filter(None, (name, pace))),
                    work=work,
                    numbers=np.sort(np.concatenate([group.intervals for group in groups])),
                    typical=groups[0].typical,
                    typical_ns=groups[0].typical_ns,
                )
            )
    return out


def _paces(kind: Sequence[Group], shown: Collection[Group]) -> Iterator[tuple[str, list[Group]]]:
    """Return (word, groups) for each pace of a kind of work, the fastest first: a group that has a row, then those that
    have none and are nearest to it in length.  The word is '' where there is one pace."""
    with_row = [group for group in kind if group in shown] or [kind[0]]
    with_row.sort(key=lambda group: group.typical_ns)
    members = {group.number: [group] for group in with_row}
    for group in kind:
        if group not in with_row:
            nearest = min(with_row, key=lambda row: abs(row.typical_ns - group.typical_ns))
            members[nearest.number].append(group)
    words = pace_words([group.role for group in with_row])
    return zip(words, members.values(), strict=True)


def alike(
    before: list[Comparable], after: list[Comparable]
) -> tuple[list[tuple[Comparable, Comparable]], list[Comparable], list[Comparable]]:
    """Return (pairs that did the same work at the same pace, what is left before, what is left after), for one label on
    both sides.

    before, after: what of the label can be compared (`comparables`)

    before: 64 blocks, 128 blocks; after: 64 blocks, 256 blocks:
        one pair (64 blocks); 128 blocks is left before, 256 blocks after

    Where the sides have no kind of work in common, they are compared all the same, because the code is the same: pace by
    pace if each side has one kind of work, else as a whole.
    """
    if not {timed.work for timed in before} & {timed.work for timed in after}:
        one_kind_each = all(len({timed.work for timed in side}) == 1 for side in (before, after))
        before, after = (
            [timed._replace(work=()) for timed in side] if one_kind_each else [_as_one(side)]
            for side in (before, after)
        )
    pairs = []
    for work in dict.fromkeys(timed.work for timed in before):
        pairs += _same_pace(
            [timed for timed in before if timed.work == work],
            [timed for timed in after if timed.work == work],
        )
    left_before = [a for a in before if all(a is not paired for paired, _ in pairs)]
    left_after = [b for b in after if all(b is not paired for _, paired in pairs)]
    return pairs, left_before, left_after


def _same_pace(
    before: Sequence[Comparable], after: Sequence[Comparable]
) -> list[tuple[Comparable, Comparable]]:
    """Return pairs of the paces of one kind of work: the fastest with the fastest, and so on.  Where one side has fewer,
    each of its paces is paired with one that it is near in length.

    14 us, 35 us before; 15 us after:    (14, 15); 35 is left
    """
    before = sorted(before, key=lambda timed: timed.typical_ns)
    after = sorted(after, key=lambda timed: timed.typical_ns)
    fewer = min(len(before), len(after))

    def apart(pairs: Sequence[tuple[Comparable, Comparable]]) -> float:
        """Return how far apart the lengths of these pairs are: by their ratios, added up."""
        return sum(abs(np.log(max(a.typical_ns, 1) / max(b.typical_ns, 1))) for a, b in pairs)

    candidates = [
        list(zip(of_before, of_after, strict=True))
        for of_before in combinations(before, fewer)
        for of_after in combinations(after, fewer)
    ]
    return min(candidates, key=apart)


def _as_one(side: list[Comparable]) -> Comparable:
    """Return all timings of a label together."""
    numbers = np.sort(np.concatenate([timed.numbers for timed in side]))
    largest = max(side, key=lambda timed: len(timed.numbers))
    return largest._replace(name="all kinds of work together", work=(), numbers=numbers)


def _work(group: Group) -> tuple[Any, ...]:
    issued = sorted((i.kind, i.name, i.count, i.size, i.blocks) for i in group.work.issued)
    return tuple(issued) or (group.work.operations, group.work.size)


def matching(before: Analysis, after: Analysis) -> dict[str, str]:
    """Return label of `before` -> the label of `after` that it is; labels that only one side has are absent.

    A region is known by its name.  A label made of call sites is known by its code, the text of its
    lines, because lines move; the k-th of several with the same code is the k-th on the other side.
    Where their numbers differ, or the text is not known, names decide; different code is never the
    same label.

        A   bench.py:10  start.record()         B   bench.py:12  start.record()
            bench.py:20  start.record()             bench.py:22  start.record()
    """
    codes_before = _codes(before)
    codes_after = _codes(after)
    pairs: dict[str, str] = {}
    for code in {*codes_before.values()} - {None}:
        labels_before = [label for label, its_code in codes_before.items() if its_code == code]
        labels_after = [label for label, its_code in codes_after.items() if its_code == code]
        if len(labels_before) == len(labels_after):
            pairs |= dict(zip(labels_before, labels_after, strict=True))
    unmatched = {*codes_after} - {*pairs.values()}
    for label, code in codes_before.items():
        may_be_same = None in (code, codes_after.get(label)) or code == codes_after[label]
        if label not in pairs and label in unmatched and may_be_same:
            pairs[label] = label
    # in the order of the first analysis
    return {label: pairs[label] for label in before.labels["label"] if label in pairs}


def _codes(analysis: Analysis) -> dict[str, tuple | None]:
    """Return label -> what it is known by when its lines move: (kind, name without numbers of lines, text of the start's
    line, text of the end's line); in the order of their lines.  None for a label that is not made of call sites, or of
    which the text is not known."""
    text = dict(analysis.source_lines[["site", "text"]].itertuples(index=False))
    codes: list[tuple[int, str, tuple | None]] = []
    for label, kind, site in analysis.labels[["label", "kind", "site"]].itertuples(index=False):
        file, _, line = site.rpartition(":")
        place = re.search(re.escape(site.rpartition("/")[2]) + r"(?:-(\d+))?(?!\d)", label)
        if not (site in text and place and line.isdigit()):
            codes.append((0, label, None))
            continue
        end = text.get(f"{file}:{place[1]}", "") if place[1] else ""
        name = re.sub(r":\d+(-\d+)?", ":", label)
        codes.append((int(line), label, (kind, name, text[site], end)))
    return {label: code for _, label, code in sorted(codes, key=lambda code: code[:2])}


def _times(analysis: Analysis) -> np.ndarray:
    """Return a row per interval, by its number, int64 ns: measured time, kernel-only time, then the causes in the
    order of CAUSES."""
    measured = analysis.intervals[["elapsed_ns", "kernel_only_ns"]].to_numpy(np.int64)
    return np.hstack([measured, parts_matrix(analysis)])


def judge(total: Change, before_count: int, after_count: int, threshold: float) -> tuple[str, str]:
    """Return (verdict, reason) of a label's change: slower, faster, same, or unclear with one of REASONS.

    before_count, after_count: how many intervals each side has
    threshold: the share of the time below which a change does not matter

    A change counts if its bounds exclude zero and it is larger than what matters; "same" is said only if the bounds
    exclude any change that matters.

              -matters      0      +matters
        ---------|----------+---------|----------
                 |     <--------->    |               same
                 |          |    <--------*------->   slower
                 |   <------------*-------->          cannot say
    """
    matters = max(threshold * total.before_ns, RESOLUTION_NS)
    if min(before_count, after_count) < FEWEST_RUNS:
        return "unclear", "too few"
    if -matters < total.low_ns and total.high_ns < matters:
        return "same", ""
    if total.low_ns > 0 and total.change_ns >= matters:
        return "slower", ""
    if total.high_ns < 0 and total.change_ns <= -matters:
        return "faster", ""
    if total.clear and abs(total.change_ns) < matters:
        return "unclear", "small"
    # no time falls by more than all of it: bounds that allow that are of too few intervals
    return "unclear", "too few" if total.low_ns < -total.before_ns else "varies"


def _traits(analysis: Analysis) -> dict[str, str]:
    """Under which conditions a run was recorded, '' for what is unknown."""
    return {
        "GPU": ", ".join(dict.fromkeys(analysis.trace.devices)),
        "recorder": analysis.trace.by.title,
        "nsys": analysis.trace.nsys_version or "",
        "event tracing": "on" if (analysis.intervals["method"] == "event-trace").any() else "off",
        "driver": analysis.trace.driver_version or "",
        "torch": analysis.known.torch,
    }


def _clock_mhz(analysis: Analysis) -> float:
    """The median SM clock of the samples between the first interval and the last, 0 without any."""
    clocks, intervals = analysis.gpu_clocks, analysis.measured
    near = clocks[
        (clocks["end_ns"] >= intervals["start_ns"].min())
        & (clocks["start_ns"] <= intervals["end_ns"].max())
    ]
    values = near["sm_max_mhz"].repeat(near["samples"])
    return float(values.median()) if len(values) else 0.0


def _differences(
    before: Analysis, after: Analysis, names: tuple[str, str]
) -> tuple[list[str], list[str]]:
    """Return (confounders, remarks): sentences on differences of the recordings that change times by themselves, so that a
    change of time need not be due to the program; and on what else differs.

    names: what the sides are called
    """
    sides = (before, after)
    confounders = []
    remarks = []
    traits_before, traits_after = map(_traits, sides)
    for trait, before_value in traits_before.items():
        after_value = traits_after[trait]
        if before_value == after_value:
            continue
        text = f"{trait} differs: {names[0]} {before_value or 'unknown'}, {names[1]} {after_value or 'unknown'}"
        # a value that is not known on one side (in an old file, for one) shows no difference for certain
        changes_times = before_value and after_value and trait not in ("driver", "torch")
        (confounders if changes_times else remarks).append(text)
    before_mhz, after_mhz = map(_clock_mhz, sides)
    low_mhz, high_mhz = sorted((before_mhz, after_mhz))
    if 0 < low_mhz < (1 - CLOCK_SHARE) * high_mhz:
        confounders.append(
            f"SM clock differs: {names[0]} {before_mhz:.0f} MHz, {names[1]} {after_mhz:.0f} MHz"
        )
    for side, name in zip(sides, names, strict=True):
        disturbed = sum("profiler-disturbed" in flags for flags in side.intervals["flags"])
        if disturbed:
            remarks.append(f"intervals of {name} disturbed by the profiler's own work: {disturbed}")
        if lost := len(side.unaligned):
            remarks.append(
                f"intervals of {name} that could not be placed and are not compared: {lost}"
            )
    return confounders, remarks
