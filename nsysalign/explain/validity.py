"""Facts that make a number mean something else: few and sure, each with its reason.

An error: what was timed is not what is meant.  A doubt: the number is real, but clocks, caches or
what stands inside make it another one than it seems.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.case import (
    FEWEST_REPEATED,
    MANY_TIMES,
    NEARLY_ALL,
    ROW_REPETITIONS,
    Case,
    Numbers,
    beside,
    spoken,
)
from nsysalign.explain.clauses import MOSTLY
from nsysalign.explain.clocks import (
    CLOCK_SAMPLES,
    CLOCK_SHARE,
    AtHigherClock,
    IntervalClocks,
    causes_in_words,
    held_down,
    in_mhz,
    interval_clocks,
    low_clock,
    quicker_at_higher_clocks,
    range_of_clocks,
)
from nsysalign.explain.facts import TYPICAL_SHARE, WARN_SHARE, Facts, Stretch
from nsysalign.explain.runs.caches import FILLS
from nsysalign.explain.verdict import CPU, DOUBTFUL, FLOOR, GPU, MIXED, WRONG
from nsysalign.intervals import covered_ns
from nsysalign.label import Group, Issued, Label
from nsysalign.model import LAUNCH_QUEUE, SLOWED_BITS
from nsysalign.text import kernel_name, of

#: Pairs of events with nothing between them that measure more than this are no floor.
FLOOR_AT_MOST_NS = 50_000
#: Less work on other streams is none.
LEAST_WORK_NS = 1_000
#: Kernels at two SM clocks are different from this share on.
CLOCK_SAY_SHARE = 0.02
#: A kernel that waits for memory follows the SM clock in part only: by this share of what the clock does; and so much
#: do single kernels and clocks correlate.
FOLLOWS_CLOCK, CORRELATED = 0.3, 0.5
#: So many intervals are needed to compare one label's kernels with another's.
CACHE_SAMPLES = 5
#: Kernels take about the same time if half of them differ by no more than this share; a cold L2 makes them longer by more
#: than the first factor, and by less than the second: more is another size of the same kernel.  By up to the third if the
#: trace shows that something as large as the L2 is written before the timings of one label, and not before the other's.
CACHE_SCATTER, LEAST_COLD, MOST_COLD, MOST_AFTER_FILL = 0.06, 1.08, 1.6, 4
#: So many launches in a row, to one elsewhere, find what those before used in the L2, whatever lies before the first.
IN_A_ROW = 10
#: torch.cuda._sleep: it runs for as long as it is asked to.
_DELAYS = re.compile("spin_kernel")
#: A group of so many intervals is no number but a range if its 10 and 90 % quantiles are so far apart: as a ratio, and
#: as a time, below which clocks differ.
SPREAD, SPREAD_NS, SPREAD_SAMPLES = 1.5, 5_000, 10
#: A timing takes as long as the one before if it differs by this share at most; so many do where work changes in steps.
_SAME_STEP, _MOST_IN_STEPS = 0.05, 0.8
#: A kernel that runs for longer also outlasts a launch call that does not wait for it; so many of them
#: tell, where behind this share of all kernels the call is still open.
_OUTLASTS_A_LAUNCH, _LEAST_BLOCKED, _NEARLY_ALL_BLOCKED = 20_000, 5, 0.8
#: Timings overlap where so many are open at a time, on average.
_OVERLAP = 1.5
#: Launch calls that wait take so many times as long.
_BLOCKED = 4
#: Why work waits, where it waits for another stream to get so far.
_WAITS_FOR_A_STREAM = ("dependency", "dependency-inferred", "default-stream-order")
#: torch's kernel of `zero_` and `fill_`: an L2 flush.
_FILL = "FillFunctor"
#: Of so many operations a fill is one step of the work; from this share of the GPU's work on, fills are what is timed.
_MANY_OPERATIONS, _ONLY_FILLS = 10, 0.98


@dataclass(frozen=True)
class Reason:
    """Why a number means something else.

    verdict: wrong, doubtful, or a word of `verdict.VERDICTS` that it stands for.  words: at most 24
    letters.  text: what follows the label's name in a sentence.  excess_ns: how much of the case's
    group it accounts for, where it makes the number only a longer one; None where it makes it
    another one.
    """

    rule: str
    verdict: str
    words: str
    text: str
    evidence: dict[str, Any] = field(default_factory=dict)
    excess_ns: int | None = None


def reason(case: Case) -> Reason | None:
    """Return the first reason that holds for at least half of the label's steady intervals, None if none does: first what was
    not timed at all, then what makes the time another one, at last of what it is only a part.
    """
    questions = (
        _nothing_inside,
        _ended_later,
        _two_streams,
        _launch_blocking,
        _fill_inside,
        _overlapping,
    )
    return next(filter(None, (ask(case) for ask in questions)), None)


class _Steady(NamedTuple):
    """How many of a label's steady intervals have a property, and how many there are.

    is_typical: whether at least half of them have it, and some of the case's group do
    """

    with_it: int
    count: int
    is_typical: bool

    @classmethod
    def of(cls, case: Case, in_group: Callable[[Group], int]) -> _Steady:
        """`in_group`: in how many intervals of a group it is so."""
        with_it = sum(in_group(group) for group in case.label.steady)
        count = sum(group.count for group in case.label.steady)
        return cls(with_it, count, with_it >= TYPICAL_SHARE * count and in_group(case.group) > 0)

    def often(self, numbers: Numbers, name: str) -> str:
        """Return "12 of 15", noted under this name and as the number of steady timings."""
        with_it = numbers.count(name, self.with_it)
        return f"{with_it} of {numbers.count('steady_timings', self.count)}"


def _nothing_inside(case: Case) -> Reason | None:
    """Return the reason that no work was issued between the two readings and none ran, None if that is not so.

    It is an empty event pair that measures its own cost, or a timing of another process's work, or CPU time without GPU
    work; all else is a wrong timing.
    """
    empty = _Steady.of(case, lambda group: group.empty)
    if not empty.is_typical:
        return None
    if case.label.kind == "event" and (case.others or _mostly_works(case.label)):
        return None
    if case.group.ns("api_launch"):  # what was launched has no row: the recorder dropped it
        return None
    numbers = Numbers()
    times = numbers.time("typical", case.group.typical_ns)
    often = empty.often(numbers, "without_work")
    if case.label.kind == "event" and case.group.typical_ns < FLOOR_AT_MOST_NS:
        text = f"contains no GPU work: {times} is what an event pair itself costs here"
        return Reason("event-floor", FLOOR, "event cost only", text, numbers.evidence)
    if _is_of_another_process(case):
        text = f"gives the GPU no work ({often} timings); another process of the run does"
        return Reason("no-gpu-work-inside", MIXED, "another process works", text, numbers.evidence)
    # a wait inside means the GPU's work; one before the first reading may be anybody's, and is not asked for
    waits_inside = case.facts.flagged(case.group.intervals, "synchronised-after") >= TYPICAL_SHARE
    busy_ns = case.facts.column("gpu_busy_ns")[case.group.intervals]
    if case.on_host and waits_inside and np.mean(busy_ns > 0) >= TYPICAL_SHARE:
        return None  # it measures a wait for work that was launched before
    if _shares_marks(case):  # what lies between two others is meant
        text = f"spans {times} without GPU work between marks that other timings share ({often} timings)"
        return Reason("no-gpu-work-inside", CPU, "no GPU work", text, numbers.evidence)
    if case.on_host and not waits_inside:
        if empty.with_it == empty.count:
            words = "nothing of the GPU"
            text = (
                f"measures nothing of the GPU: {times} of CPU time, no GPU work in {often} timings"
            )
            return Reason("no-gpu-work-inside", CPU, words, text, numbers.evidence)
        if _mostly_works(case.label):
            return None
        text = f"measures nothing of the GPU in {often} timings: {times} of CPU time"
        how_often = "mostly" if empty.with_it >= MOSTLY * empty.count else "often"
        words = f"{how_often} no GPU work"
        return Reason("no-gpu-work-inside", CPU, words, text, numbers.evidence)
    text = f"measures nothing: no GPU work in {often} timings"
    return Reason("nothing-inside", WRONG, "wrong: nothing inside", text, numbers.evidence)


def _mostly_works(label: Label) -> bool:
    """Whether timings with work take most of a label's time: then they are its story, and not those without any."""
    empty_ns = sum(group.total_ns for group in label.steady if group.empty == group.count)
    return 2 * empty_ns < label.steady_ns


def partly_empty(case: Case) -> Reason | None:
    """Return the reason that a good part of a label's timings launch nothing and are over at once, beside others that work:
    a mean of all is of neither, and a benchmark whose calls keep a result is no faster.  None if that is not so.

    Of a clock of the CPU only timings count that wait for the GPU: they are meant to time it.
    """
    label, facts = case.label, case.facts
    empty = [group for group in label.steady if group.empty == group.count]
    working = [group for group in label.steady if group not in empty]
    if label.kind == "nvtx" or not empty or not working or _shares_marks(case):
        return None
    count = sum(group.count for group in empty)
    timings = sum(group.count for group in label.steady)
    longest = max(empty, key=lambda group: group.typical_ns)
    low_ns, high_ns = min(g.low_ns for g in working), max(g.high_ns for g in working)
    is_quick = longest.typical_ns < min(FLOOR_AT_MOST_NS, low_ns / MANY_TIMES)
    numbers_of_empty = np.concatenate([group.intervals for group in empty])
    waits = facts.flagged(numbers_of_empty, "synchronised-after") >= TYPICAL_SHARE
    is_part = FEWEST_REPEATED <= count >= ROW_REPETITIONS * timings
    if not (is_part and is_quick and (waits or not case.on_host)):
        return None
    numbers = Numbers()
    often = f"{numbers.count('without_work', count)} of {numbers.count('steady_timings', timings)}"
    takes = numbers.time("empty_typical", longest.typical_ns)
    limits = numbers.times("least_other", low_ns, "most_other", high_ns)
    text = (
        f"launches nothing in {often} timings, {takes} each: is that meant, or does a call return what an earlier one "
        f"computed? Most of the others take {limits}"
    )
    return Reason("nothing-inside", DOUBTFUL, f"{count:,} launch nothing", text, numbers.evidence)


def _is_of_another_process(case: Case) -> bool:
    """Whether the process that timed it gave no GPU any work in all its life, and others of the run did."""
    runs = case.facts.analysis.runs["pid"]
    return len(runs) > 0 and case.facts.column("pid")[case.group.typical] not in set(runs)


def _shares_marks(case: Case) -> bool:
    """Whether most timings of a group begin where another timing ends, or end where another one begins: marks round the
    phases of a loop, some of which are the CPU's.

    marks      A             B           C
    timings    [ next batch  )[ forward  )         no GPU work in the first one: that is what it is for
    """
    rows = case.facts.intervals
    begin, end = (
        ("start_record", "end_record") if case.label.kind == "event" else ("start_ns", "end_ns")
    )
    mine = rows.iloc[case.group.intervals]
    alike = rows[rows["pid"].isin(mine["pid"]) & (rows["kind"] == case.label.kind)]
    shared = mine[begin].isin(alike[end]) | mine[end].isin(alike[begin])
    return bool(shared.mean() >= TYPICAL_SHARE)


def _ended_later(case: Case) -> Reason | None:
    """Return the reason that the second reading does not wait for the work that was issued inside: most of it ended later,
    or (`_not_ordered`) might have; None if that is not so.
    """
    if case.label.kind == "nvtx":
        return None
    if case.on_host and (early := _too_early(case)):
        return early
    later = _Steady.of(case, lambda group: group.late)
    if not later.is_typical:
        return _not_ordered(case)
    numbers = Numbers()
    often = later.often(numbers, "ended_later")
    waiting_ns = _waiting_ns(case.label) if case.on_host else 0
    if 2 * waiting_ns >= case.label.steady_ns > 0:
        numbers.time("waited", waiting_ns)
        numbers.time("steady_total", case.label.steady_ns)
        waited = of(waiting_ns, case.label.steady_ns)
        text = f"waits for earlier work for {waited}, and not for its own, which ended later ({often} timings)"
        # a phase of a loop that waits for other phases takes their time
        excess_ns = case.loss_ns if _shares_marks(case) else None
        words = "waits for earlier work"
        return Reason("enqueue-only", DOUBTFUL, words, text, numbers.evidence, excess_ns)
    if not _is_meant(case):
        return None
    if case.on_host and (timed := _timed_by_events(case)):
        where = beside(case.label.site, timed)
        text = (
            f"measures only launching: the events of {where} time the same work ({often} timings)"
        )
        return Reason("enqueue-only", MIXED, "launching alone", text, numbers.evidence)
    if case.on_host:
        text = f"measures only launching: work ended later ({often} timings)"
        if later.with_it < later.count:  # the others mean what they say
            text = f"measures only launching in {often} timings: work ended later"
            text += _others_wait(case, numbers)
        text += _full_queue(case, numbers)
        return Reason("enqueue-only", WRONG, "wrong: enqueue only", text, numbers.evidence)
    stream = next(iter(case.others), None)  # the busiest
    where = "" if stream is None else f" on stream {numbers.count('working_stream', stream)}"
    text = f"does not wait for its work{where} ({often} timings)"
    return Reason("wrong-stream", WRONG, "wrong: wrong stream", text, numbers.evidence)


def _too_early(case: Case) -> Reason | None:
    """Return the reason that a host timing ends before a good part of its own work, of which another part ran in it; None
    where that is not so, or hardly any of it ran inside."""
    facts = case.facts
    early = _Steady.of(case, lambda group: int(too_early(facts.intervals, group.intervals).sum()))
    ran_ns, outside_ns = (
        facts.column(name)[case.group.intervals]
        for name in ("kernel_only_upper_ns", "kernel_outside_ns")
    )
    part_inside = 1 - outside_ns.sum() / max(ran_ns.sum(), 1)
    intervals = np.concatenate([group.intervals for group in case.label.steady])
    # earlier work in some of them may make up for it
    missing_ns = _missing_ns(facts.intervals, intervals).sum()
    is_missing = missing_ns >= WARN_SHARE * (case.label.steady_ns + missing_ns)
    if not early.is_typical or not is_missing or part_inside < WARN_SHARE:
        return None
    numbers = Numbers()
    typical = facts.intervals.iloc[case.group.typical]
    later_ns, whole_ns = typical["kernel_outside_ns"], typical["kernel_only_upper_ns"]
    numbers.time("ran_later", later_ns)
    numbers.time("launched", whole_ns)
    text = f"ends before its work: {of(later_ns, whole_ns)} of kernels ran later"
    often = early.often(numbers, "ended_early")
    if early.with_it < early.count:
        text += f" ({often} timings)"
    return Reason("enqueue-only", WRONG, "wrong: ends early", text, numbers.evidence)


def too_early(intervals: pd.DataFrame, numbers: np.ndarray) -> np.ndarray:
    """Return which of these host timings (bool) would be longer by WARN_SHARE of their true length and more, had they waited
    for what they launched.  In a loop that is always one step ahead, earlier work runs inside instead.

    timing    [ launches K1 K2 K3 )                12 ms
    GPU        [K1      ][K2      ][K3      ]      22 ms: 10 of them are missing
    """
    missing_ns = _missing_ns(intervals, numbers)
    elapsed_ns = intervals["elapsed_ns"].to_numpy()[numbers]
    return missing_ns >= WARN_SHARE * np.maximum(elapsed_ns + missing_ns, 1)


def _missing_ns(intervals: pd.DataFrame, numbers: np.ndarray) -> np.ndarray:
    """Return how long kernels that each of these host timings launched ran after it, less the earlier work that ran in it."""
    outside_ns, earlier_ns = (
        intervals[name].to_numpy()[numbers] for name in ("kernel_outside_ns", "gpu_earlier_ns")
    )
    return outside_ns - earlier_ns


def _timed_by_events(case: Case) -> str:
    """Return the label of event pairs around a host timing, '' for none: each holds one of its timings and the same work,
    so that the program reads both times, and means this one to be that of launching.

    41  start.record()
    42  t = clock()             42-44: how long the call takes to return
    43  x = upload()            41-45: how long the copy takes
    44  issue.append(clock() - t)
    45  end.record()
    """
    intervals = case.facts.intervals
    typical = intervals.iloc[case.group.typical]
    for label in case.facts.labels:
        around = intervals.iloc[label.usual.typical]
        is_alike = label.kind == "event" and label.count == case.label.count and not label.library
        issued = set(label.usual.work.issued)
        same_work = issued and issued == set(case.group.work.issued) and not label.usual.late
        if is_alike and same_work and _encloses(around, typical):
            return label.name
    return ""


def _encloses(around: Any, inside: Any) -> bool:
    """Whether the lines of an interval stand round those of another one, in one file and called from the same line."""
    lines = [interval[name] for interval in (around, inside) for name in ("site", "end_site")]
    files, numbers = zip(*((site.rpartition(":")[::2]) for site in lines), strict=True)
    if len(set(files)) > 1 or not all(number.isdecimal() for number in numbers):
        return False
    first, last, begin, end = map(int, numbers)
    called = around["callers"][:1] == inside["callers"][:1]
    return called and first <= begin <= end <= last


def _waiting_ns(label: Label) -> int:
    """How long the CPU waits in a label's timings of which the work ends later: for what was launched before.  A loop that
    reads the loss of the step before takes as long as the GPU's steps, and so does a step of the optimizer that reads
    whether the gradients are finite."""
    waiting = (group for group in label.steady if group.work.waits > 0)
    return sum(group.ns("sync", "queued") for group in waiting)


def _others_wait(case: Case, numbers: Numbers) -> str:
    """A clause on the kind of timings of which none ended too early, where they mostly wait for the work of another label;
    '' where they do not, and where there is none."""
    waiting = max(case.label.steady, key=lambda group: group.count - group.late)
    if waiting.late:
        return ""  # some of them are among those that are wrong
    label, ns = launched_in(case.facts, waiting.intervals)
    if not label or 2 * ns < waiting.total_ns:
        return ""
    count = numbers.count("waiting_timings", waiting.count)
    worked = numbers.time("launched_in_another", ns)
    whole = numbers.time("waiting_total", waiting.total_ns)
    numbers.evidence["launched_in"] = label
    return f"; {worked} of the {whole} that {count} others take is work launched in {beside(case.label.site, label)}"


def launched_in(facts: Facts, numbers: np.ndarray) -> tuple[str, int]:
    """Return (label, ns): in which timings most of the earlier work was launched that ran in these host timings, and how
    long it ran; ('', 0) where that is not known.

    timing    [ A launches K )[ B launches L, waits  )       K is what ran in A's place after A, up to the end of B's
    GPU            ...KKKKKKKKKKKKKKKKKKKKKKKKKKKLL          wait: what was launched behind it is done as well
    """
    columns = ["pid", "tid", "label", "end_ns", "kernel_outside_ns"]
    hosts = facts.intervals.loc[facts.intervals["kind"] == "host", columns]
    timings = facts.intervals.iloc[numbers].sort_values("start_ns", kind="stable")
    pairs = pd.merge_asof(
        timings, hosts.sort_values("end_ns", kind="stable"), left_on="start_ns", right_on="end_ns",
        by=["pid", "tid"], suffixes=("", "_before"),
    )  # fmt: skip
    since_ns = pairs["start_ns"] - pairs["end_ns_before"]
    ran_ns = np.minimum(pairs["kernel_outside_ns_before"] - since_ns, pairs["gpu_earlier_ns"])
    done = (pairs["operations"] > 0) & (pairs["kernel_outside_ns"] == 0)
    ns_of_label = ran_ns[done].clip(lower=0).groupby(pairs["label_before"]).sum()
    if ns_of_label.empty or 2 * ns_of_label.max() <= timings["gpu_earlier_ns"].sum():
        return "", 0
    return str(ns_of_label.idxmax()), int(ns_of_label.max())


def _full_queue(case: Case, numbers: Numbers) -> str:
    """A clause on launch calls that suddenly take as long as the work, '' where there are none: so many launches wait
    that each one more waits until one of them has run.

    launching      [1)[2)[3)  ...   [1,025        )[1,026        )
    GPU              [1     ...                 ...[2            )

    So it is if the label's slowest timings (1,025, 1,026) do the same work as its fastest ones (1, 2, 3), the launch call
    takes most of their time and far longer, and they last as long as their work runs.
    """
    groups = case.label.steady
    slow = max(groups, key=lambda group: group.typical_ns)
    fast = min(groups, key=lambda group: group.typical_ns)
    is_same_work = slow.kind == fast.kind and slow.pid == fast.pid
    mostly_launches = 2 * slow.ns("api_launch") >= slow.total_ns
    if not is_same_work or slow is fast or not mostly_launches or case.label.count <= LAUNCH_QUEUE:
        return ""
    slow_launch_ns = slow.ns("api_launch") / slow.count
    usual_launch_ns = max(fast.ns("api_launch") / fast.count, 1)
    work_ns = np.median(case.facts.column("kernel_only_upper_ns")[slow.intervals])
    last_as_long = abs(slow.typical_ns - work_ns) <= WARN_SHARE * work_ns
    if slow_launch_ns < _BLOCKED * usual_launch_ns or not last_as_long:
        return ""
    # before the first quick launch nothing waits: that was a first call
    start_ns = case.facts.column("start_ns")
    behind = start_ns[slow.intervals] > start_ns[fast.intervals].min()
    blocked = numbers.count("blocked_timings", int(behind.sum()))
    typical = numbers.time("blocked", slow.typical_ns)
    return f". In {blocked} of them the queue was full: the launch waits until a kernel has run, {typical} each"


def _is_meant(case: Case) -> bool:
    """Whether what ended later is what was timed: a batch that is fetched, or gradients that are reduced, while
    something else is timed are not.  Of a host timer half of what it ran ended later; of events their stream ran nothing."""
    if case.on_host:
        ran = case.facts.column("kernel_only_upper_ns")[case.group.intervals]
        outside = case.facts.column("kernel_outside_ns")[case.group.intervals]
        return not ran.any() or 2 * outside.sum() >= ran.sum()
    return not case.sums.busy + case.sums.copies + case.sums.collectives


def _not_ordered(case: Case) -> Reason | None:
    """Return the reason that the timed stream ran nothing, and that its end record does not wait for the streams
    which did the work: none of these in at least half of the intervals.  None if that is not so.

    The work ended before the record all the same, but only by luck.  Of a pair that was read from the trace it is not known
    whether it was meant to time that work.
    """
    facts, intervals = case.facts, case.group.intervals
    inferred = facts.column("method")[case.group.typical] == "inferred"
    if case.label.kind != "event" or inferred or case.sums.gpu or case.sums.copies:
        return None
    table = facts.analysis.other_streams
    table = table[table["interval"].isin(intervals) & (table["ns"] >= LEAST_WORK_NS)]
    if "ordered" not in table or table.empty:
        return None
    not_ordered = int((~table.groupby("interval")["ordered"].any()).sum())
    if not_ordered < TYPICAL_SHARE * case.group.count:
        return None
    numbers = Numbers()
    stream = numbers.count("working_stream", next(iter(case.others)))
    often = f"{numbers.count('not_ordered', not_ordered)} of {numbers.count('group_timings', case.group.count)}"
    text = f"does not wait for its work on stream {stream} ({often} timings)"
    return Reason("wrong-stream", WRONG, "wrong: wrong stream", text, numbers.evidence)


def _two_streams(case: Case) -> Reason | None:
    """Return the reason that start and end are recorded on different streams that no wait joins; None if that is not
    so.  The time between them is not the duration of the work on either stream.

    One wait in any of the intervals is enough to join them: waits in the others may have left no trace, as they were over at
    once.  Of waits on the GPU only those for the start's stream count.
    """
    two_streams = _Steady.of(case, lambda group: group.two_streams)
    if case.label.kind != "event" or not two_streams.is_typical:
        return None
    facts, intervals = case.facts, case.group.intervals
    first = int(facts.column("start_stream")[case.group.typical])
    last = int(facts.column("end_stream")[case.group.typical])
    waits = facts.details(intervals, "queued")
    for_other_stream = waits["detail"].isin(_WAITS_FOR_A_STREAM)
    calls = facts.details(intervals, "api")["detail"].astype(str)
    if (for_other_stream & (waits["stream"] == first)).any():
        return None
    if calls.str.contains("StreamWaitEvent").any():
        return None
    numbers = Numbers()
    text = (
        f"starts on stream {numbers.count('start_stream', first)} and ends on stream {numbers.count('end_stream', last)}, "
        f"and no wait joins them: {numbers.time('typical', case.group.typical_ns)} is a distance between two queues"
    )
    return Reason("different-streams", DOUBTFUL, "two streams, no wait", text, numbers.evidence)


def _launch_blocking(case: Case) -> Reason | None:
    """Return the reason that CUDA_LAUNCH_BLOCKING=1 is set, if it shows: every launch call returns
    only when its kernel has ended.

    host    [ launch k -------------) host [ launch k+1 -------
    GPU             [kernel k )                   [kernel k+1
                               ^ the rest of launch k, then host, then launch k+1: two launch calls
                               in one gap

    Only long kernels show it: a short kernel also ends before a slow launch call returns (beside a
    thread that holds the interpreter, each launch begins with cold caches and takes 60 us).
    """
    if case.on_host or case.operations < 2 or not case.ns("api_launch"):
        return None
    # without the gap before the end event, in which nothing is launched
    gaps = [
        gap for gap in case.stretches if gap.before and gap.before.cause == "kernel" and gap.then
    ]
    blocked = [gap for gap in gaps if _two_launch_calls(gap)]
    long_kernels = sum(gap.before.ns >= _OUTLASTS_A_LAUNCH for gap in blocked)
    # with the setting it is so behind every kernel, short ones as well: one that is not shows that it is not set
    if long_kernels < _LEAST_BLOCKED or len(blocked) < _NEARLY_ALL_BLOCKED * len(gaps):
        return None
    numbers = Numbers()
    after = numbers.count("kernels_followed_by_their_own_launch_call", len(blocked))
    text = (
        f"seems to run with CUDA_LAUNCH_BLOCKING: after {after} of {numbers.count('gaps_between_kernels', len(gaps))} "
        "kernels the CPU was still inside the call that had launched them"
    )
    return Reason("launch-blocking", DOUBTFUL, "launch calls block", text, numbers.evidence)


def _two_launch_calls(gap: Stretch) -> bool:
    """Whether a gap holds the rest of one launch call and then another one."""
    launches = {piece.ref for piece in gap.pieces if piece.cause == "api_launch"}
    return gap.pieces[0].cause == "api_launch" and len(launches) > 1


def _fill_inside(case: Case) -> Reason | None:
    """Return the reason that a constant is written inside the timing, beside other kernels: an L2 flush that belongs before
    it; None if that is not so.  Among many operations it is part of the work, and where it is all of it, it is meant.
    """
    if case.on_host or not 2 <= case.operations < _MANY_OPERATIONS:
        return None
    kernels = case.group.of_cause("kernel")
    filling_ns = sum(e.ns for e in kernels if _FILL in e.what) + case.group.ns("memset")
    ran_ns = case.group.ns("kernel", "memset")
    if not WARN_SHARE * case.sums.whole < filling_ns < _ONLY_FILLS * ran_ns:
        return None
    numbers = Numbers()
    share = numbers.share("filling", filling_ns, case.sums.whole)
    text = f"contains a fill: {share} of its time goes into writing a constant (zeroing, or a flush of the L2)"
    return Reason("fill-inside", DOUBTFUL, f"{share} a fill inside", text, numbers.evidence)


def _overlapping(case: Case) -> Reason | None:
    """Return the reason that the timings of a label overlap on one stream, None if they do not.

    Most of what runs in one of them runs in others, too.  A stream runs one piece of work after the other, so that
    together they had no more than the time in which at least one of them was open.

    timing 1   [ A1 | B1 | C1 | A2 )              shared out it is span / count each
    timing 2        [ B1 | C1 | A2 | B2 )
    """
    label, facts = case.label, case.facts
    if label.kind != "event" or not label.overlapping or case.word != GPU:
        return None
    timings = facts.intervals.iloc[np.concatenate([group.intervals for group in label.steady])]
    one_stream = (timings["start_stream"] == timings["end_stream"]).all()
    if not one_stream or len(timings.groupby(["pid", "device", "end_stream"])) > 1:
        return None
    span_ns = covered_ns(timings["start_ns"].to_numpy(), timings["end_ns"].to_numpy())
    count = len(timings)
    at_a_time = label.steady_ns / span_ns
    # the typical timing must be too long as well, and not only a few long ones
    if min(at_a_time, case.group.typical_ns * count / span_ns) < _OVERLAP:
        return None
    numbers = Numbers()
    numbers.evidence["timings_at_a_time"] = at_a_time
    text = (
        f"measured {numbers.time('typical', case.group.typical_ns)}; its {numbers.count('steady_timings', count, 'timing')} overlap, "
        f"{at_a_time:.1f} at a time, on one stream: most of what runs in one of them runs in others, too; shared out each takes "
        f"{numbers.time('shared_out', span_ns / count)}"
    )
    return Reason(
        "overlapping", MIXED, f"overlap, {at_a_time:.1f} at a time", text, numbers.evidence
    )


# --- clocks, caches, spread: what makes the number another one ---


class ClocksOfRun(NamedTuple):
    """What the samples of the GPUs' clocks say about a run.

    clocks: about each interval
    nearly_all: as in `clocks.LowClock`
    quicker: as `clocks.quicker_at_higher_clocks` returns it
    """

    clocks: IntervalClocks
    nearly_all: bool
    quicker: Mapping[int, AtHigherClock]


def clocks_of_run(facts: Facts) -> ClocksOfRun:
    """Return what the samples of the GPUs' clocks say about a run."""
    clocks = interval_clocks(facts)
    quicker = quicker_at_higher_clocks(facts, clocks)
    return ClocksOfRun(clocks, low_clock(facts, clocks).nearly_all, quicker)


def spread(case: Case) -> Reason | None:
    """Return the reason that the timings of a group differ so much that no one number stands for them, though they are of
    one kind of work and one pace; None if that is not so.
    """
    group = case.group
    range_ns = group.high_ns - group.low_ns
    is_wide = group.high_ns >= SPREAD * group.low_ns and range_ns >= SPREAD_NS
    if group.count < SPREAD_SAMPLES or not is_wide:
        return None
    numbers = Numbers()
    low, high = numbers.time("low", group.low_ns), numbers.time("high", group.high_ns)
    count = numbers.count("group_timings", group.count)
    if _in_steps(case):
        text = (
            f"takes {low} to {high}, in steps: most of its {count} timings take as long as the one before. "
            "No one number stands for all: its work, or its pace, changes during the run"
        )
        return Reason("high-variance", MIXED, f"{low} to {high}", text, numbers.evidence)
    text = f"varies: most of its {count} timings lie between {low} and {high}"
    ran_ns = case.facts.column("kernel_only_ns")[group.intervals]
    low_ran_ns, high_ran_ns = np.quantile(ran_ns, (0.1, 0.9))
    if not case.on_host and 2 * (high_ran_ns - low_ran_ns) >= range_ns:
        fastest = numbers.time("kernels_low", low_ran_ns)
        text += f", as do its kernels ({fastest} to {numbers.time('kernels_high', high_ran_ns)})"
    return Reason("high-variance", DOUBTFUL, f"{low} to {high}", text, numbers.evidence)


def _in_steps(case: Case) -> bool:
    """Whether most timings of a group that spreads take as long as the one before: it spreads because its work, or its
    pace, changes from time to time, and not by chance.

    2.5 2.5 2.5 2.5 5.9 5.9 5.9 5.9 9.4 9.4 9.4 ms
    """
    in_order = case.facts.in_order(case.group.intervals)
    elapsed_ns = case.facts.column("elapsed_ns")[in_order].astype(float)
    change = np.abs(np.diff(elapsed_ns)) / elapsed_ns[:-1]
    return bool((change <= _SAME_STEP).mean() >= _MOST_IN_STEPS)


class _Clocked(NamedTuple):
    """The timings of a case's kind of work in which kernels ran and the clock of the GPU is known: arrays with a
    value per timing.

    kernel_ns: how long kernels ran in it
    sm_mhz:    the mean SM clock
    reasons:   bits of `model.SLOWED_BITS`: why the GPU ran slower than requested, 0 if it did not
    """

    kernel_ns: np.ndarray
    sm_mhz: np.ndarray
    reasons: np.ndarray


def slowed(case: Case, of_run: ClocksOfRun) -> Reason | None:
    """Return the reason that the clock of the GPU changed the measured time, if it did; None if not.

    of_run: what the clock samples say about the run

    There are two such reasons: the GPU could not run as fast as requested (power, heat, hardware) in half of the
    intervals or more, and the same kernels take less elsewhere in the run; or its clock differed between intervals and
    the kernels' times follow it.  Where it was slowed down in nearly all timings of the run, only those are compared
    with each other.
    """
    group, clocks = case.group, of_run.clocks
    same_work = [g for g in case.label.steady if (g.kind, g.pid) == (group.kind, group.pid)]
    intervals = np.sort(np.concatenate([g.intervals for g in same_work]))
    kernel_ns = case.facts.column("kernel_only_upper_ns")[intervals].astype(float)
    known = clocks.known[intervals] & (kernel_ns > 0)
    intervals = intervals[known]
    if len(intervals) < CLOCK_SAMPLES:
        return None
    reasons = clocks.reasons[intervals] & SLOWED_BITS
    timings = _Clocked(kernel_ns[known], clocks.sm_mhz[intervals], reasons)
    if of_run.nearly_all:
        timings = _Clocked(*(values[reasons > 0] for values in timings))
    reason = None if of_run.nearly_all else _throttled(case, intervals, of_run)
    # if the largest kernel is not the same in all of them, time and clock (by the power it draws) both depend on which it is
    if reason is None and all(g.work.mains == 1 for g in same_work):
        reason = _two_clocks(timings)
    return reason


def _throttled(case: Case, intervals: np.ndarray, of_run: ClocksOfRun) -> Reason | None:
    """Return the reason that the GPU was held down in at least half of the timings, kernels are a good part of their time,
    and the same kernels took less at a higher clock in other timings of the run.  None if that is not so.

    intervals: the timings of the case's kind of work of which the clock is known
    """
    quicker = of_run.quicker.get(case.group.number)
    highest_mhz = int(case.facts.analysis.gpu_clocks["sm_max_mhz"].max())
    is_slowed = held_down(of_run.clocks, highest_mhz)[intervals]
    enough = quicker and quicker.here_ns >= WARN_SHARE * case.group.typical_ns
    if not quicker or not enough or is_slowed.mean() < TYPICAL_SHARE:
        return None
    slowed = intervals[is_slowed]
    at_clocks = range_of_clocks(of_run.clocks.sm_mhz[slowed])
    numbers = Numbers({"least_clock_mhz": at_clocks[0], "most_clock_mhz": at_clocks[-1]})
    numbers.evidence["other_clock_mhz"] = quicker.mhz
    often = f"{numbers.count('slowed_timings', len(slowed))} of {numbers.count('clocked_timings', len(intervals))}"
    takes = numbers.time("kernel_here", quicker.here_ns)
    at_other = numbers.time("kernel_there", quicker.ns)
    where = "" if quicker.label == case.label.name else f" in {spoken(quicker.label)}"
    text = (
        f"ran on a GPU that was slowed down in {often} timings ({causes_in_words(of_run.clocks.reasons[slowed])}), at "
        f"{in_mhz(at_clocks)} MHz: its kernels take {takes}, the same ones {at_other} at {quicker.mhz:.0f} MHz{where}"
    )
    lost_ns = int(len(slowed) * (quicker.here_ns - quicker.ns))
    words = f"slowed to {in_mhz(at_clocks, '-')} MHz"
    return Reason("throttled", DOUBTFUL, words, text, numbers.evidence, lost_ns)


def _two_clocks(timings: _Clocked) -> Reason | None:
    """Return the reason that the clock differed between timings and the kernels' times follow it: 1,980 MHz and
    100 us in some of them, 1,755 MHz and 112 us in the others.  None if that is not so.
    """
    kernel_ns, sm_mhz = timings.kernel_ns, timings.sm_mhz
    # a single sample may be higher than any clock that kernels ran at: not the highest of all
    is_fast = sm_mhz >= (1 - CLOCK_SHARE) * np.percentile(sm_mhz, 95)
    fast_count, slow_count = int(is_fast.sum()), int((~is_fast).sum())
    if min(fast_count, slow_count) < 2:
        return None
    fast_mhz, slow_mhz = float(np.median(sm_mhz[is_fast])), float(np.median(sm_mhz[~is_fast]))
    fast_ns, slow_ns = float(np.median(kernel_ns[is_fast])), float(np.median(kernel_ns[~is_fast]))
    longer = slow_ns / max(fast_ns, 1) - 1  # by which share kernels take longer at the low clock
    by_clock = fast_mhz / max(slow_mhz, 1) - 1  # the same of a kernel that only computes
    if longer < FOLLOWS_CLOCK * by_clock or slow_ns < (1 + CLOCK_SAY_SHARE) * fast_ns:
        return None
    # two medians may differ by chance: single timings must be the longer the lower their clock is, too
    period = 1 / np.maximum(sm_mhz, 1)
    correlation = float(np.corrcoef(kernel_ns, period)[0, 1]) if kernel_ns.std() else 0.0
    if correlation < CORRELATED:
        return None
    numbers = Numbers()
    slow_timings = numbers.count("at_the_low_clock", slow_count)
    often = f"{slow_timings} of {numbers.count('clocked_timings', len(sm_mhz))}"
    numbers.evidence |= {"low_clock_mhz": slow_mhz, "high_clock_mhz": fast_mhz}
    text = (
        f"ran at two clocks: in {often} timings at about {slow_mhz:.0f} instead of {fast_mhz:.0f} MHz; kernels took "
        f"{numbers.time('kernel_at_the_low_clock', slow_ns)} there, {numbers.time('kernel_at_the_high_clock', fast_ns)} in the others"
    )
    words = f"clock {slow_mhz:.0f}-{fast_mhz:.0f} MHz"
    lost_ns = int(slow_count * (slow_ns - fast_ns))
    return Reason("clock-changed", DOUBTFUL, words, text, numbers.evidence, lost_ns)


def cold_caches(cases: list[Case], clocks: IntervalClocks) -> Iterator[tuple[str, Reason]]:
    """Yield (label, reason) for each label whose kernels take longer than the same kernels in another label, and longer than
    a lower clock would explain.

    cases: the leading case of each label

    Compared are labels of one kind of work, whose kernels run alone and take about the same time in all intervals.
    The usual cause is a cold L2 cache in one label and a warm one in the other.

    fill [k]  fill [k]          cold: each launch finds the L2 full of something else
    [k][k][k][k]  [ graph ]     warm: launched, or replayed, in a row, all but the first find what the one before used
    """
    ran_by_kernels: dict[tuple[Issued, ...], list[_Ran]] = {}
    for case in cases:
        if ran := _ran_alone(case):
            ran_by_kernels.setdefault(ran.kernels, []).append(ran)
    only = _only_kernel(cases)
    graphs = [graph for case in cases if (graph := _replayed(case))]
    for kernels, same_kernels in ran_by_kernels.items():
        comparable = same_kernels
        if [kernel.name for kernel in kernels] == [only]:
            comparable = same_kernels + graphs
        quickest = min(comparable, key=lambda ran: ran.median_ns)
        for ran in same_kernels:
            alike = [quick for quick in same_kernels if quick.launches == ran.launches]
            for warm in (quickest, min(alike, key=lambda quick: quick.median_ns)):
                if _is_colder(ran, warm, clocks):
                    yield ran.case.label.name, _cold(ran, warm)
                    break


class _Ran(NamedTuple):
    """How long the kernels of a label's leading case ran.

    kernels:    what they are, those of one launch where all launches of a timing are alike
    launch_ns:  ns per timing, and for each launch where these are alike
    median_ns:  the median of these
    launches:   how many alike launches a timing has, 1 where they differ
    is_graph:   whether a graph replays them, so that it is not known which kernels they are
    after_fill: as `Case.after_fill`
    """

    case: Case
    kernels: tuple[Issued, ...]
    launch_ns: np.ndarray
    median_ns: float
    launches: int
    is_graph: bool
    after_fill: bool | None


def _ran_alone(case: Case) -> _Ran | None:
    """Return how long the kernels of a case ran that has one kind of timings, where they ran alone and for about the same
    time in all of these; None for others, and where they take as long as they are asked to (torch.cuda._sleep)."""
    group = case.group
    alone = not case.others and not group.ns("queued", "graph")
    if case.on_host or not alone or group.count < CACHE_SAMPLES or len(case.label.steady) > 1:
        return None
    kernel_ns = case.facts.column("kernel_only_ns")[group.intervals].astype(float)
    low_ns, median_ns, high_ns = np.percentile(kernel_ns, [25, 50, 75])
    kernels = group.work.of_kind("kernel")
    if not median_ns or high_ns - low_ns > CACHE_SCATTER * median_ns:
        return None
    if any(_DELAYS.search(kernel.name) for kernel in kernels):
        return None
    launches = kernels[0].count if len(kernels) == 1 else 1
    if launches > 1 and kernels[0].blocks % launches == 0:
        blocks = kernels[0].blocks // launches
        kernels = (replace(kernels[0], count=1, blocks=blocks),)
    else:  # of other grids, or not known
        launches = 1
    return _Ran(
        case, kernels, kernel_ns / launches, median_ns / launches, launches,
        is_graph=False, after_fill=case.after_fill,
    )  # fmt: skip


def _replayed(case: Case) -> _Ran | None:
    """Return how long each launch takes that the graph of a case replays, on average with the gaps between them, where the
    trace has graphs as a whole; None where their number is not known, or something else ran."""
    group, launches = case.group, case.captured_launches
    ran_ns = case.ns("graph")
    is_alone = not case.others and not group.ns("queued", "kernel", "memcpy", "memset")
    is_steady = group.high_ns - group.low_ns <= CACHE_SCATTER * group.typical_ns
    if not launches or not ran_ns or case.on_host or not is_alone or not is_steady:
        return None
    launch_ns = ran_ns / launches
    return _Ran(
        case, (), np.array([launch_ns]), launch_ns, launches,
        is_graph=True, after_fill=case.after_fill,
    )  # fmt: skip


def _only_kernel(cases: list[Case]) -> str:
    """Return the name of the only kernel that the program runs beside fills and delays; "" where there are several."""
    issued = (kernel for case in cases for kernel in case.group.work.of_kind("kernel"))
    names = {kernel.name for kernel in issued}
    for case in cases[:1]:
        table = case.facts.analysis.kernels
        names |= {*table.loc[table["kind"] == "kernel", "kernel"].astype(str)}
    names = {name for name in names if not (FILLS.search(name) or _DELAYS.search(name))}
    return names.pop() if len(names) == 1 else ""


def _is_colder(ran: _Ran, warm: _Ran, clocks: IntervalClocks) -> bool:
    """Return whether the kernels of a case take longer than the same ones of another case, by as much as a cold L2 may
    cost.  Where they are launched in a row there, and not here, there must be a fill before these timings."""
    is_after_fill = _is_after_fill(ran, warm)
    if warm.launches != ran.launches and not is_after_fill:
        return False
    factor = ran.median_ns / max(warm.median_ns, 1)
    nearly_all_longer = np.percentile(ran.launch_ns, 5) > np.percentile(warm.launch_ns, 95)
    largest_factor = MOST_AFTER_FILL if is_after_fill else MOST_COLD
    least_factor = LEAST_COLD * _by_clock(ran, warm, clocks)
    return bool(least_factor < factor < largest_factor and nearly_all_longer)


def _is_after_fill(ran: _Ran, warm: _Ran) -> bool:
    """Return whether something as large as the L2 is written before the timings of a case, and not before those of another
    one, or before the first launch of many alone."""
    is_warm = warm.after_fill is False or warm.launches >= IN_A_ROW * ran.launches
    return bool(ran.after_fill) and is_warm


def _by_clock(slow: _Ran, quick: _Ran, clocks: IntervalClocks) -> float:
    """Return how many times as long kernels take at a lower clock of the first of two cases; 1 where its clock is not known
    to be lower."""
    timings = [ran.case.group.intervals for ran in (slow, quick)]
    if not all(clocks.known[numbers].all() for numbers in timings):
        return 1.0
    slow_mhz, quick_mhz = (float(np.median(clocks.sm_mhz[numbers])) for numbers in timings)
    return max(quick_mhz / max(slow_mhz, 1), 1.0)


def _cold(cold: _Ran, warm: _Ran) -> Reason:
    """Return the reason that the kernels of a label take longer than the same kernels of another one."""
    numbers = Numbers()
    slower = numbers.share("slower", cold.median_ns - warm.median_ns, warm.median_ns)
    because = "a cold L2, if shapes and clocks are the same"
    words = f"cold L2? {slower} slower"
    if _is_after_fill(cold, warm):
        because = "each of its timings comes after a fill or copy as large as the L2, which is cold here and warm there"
        words = words if warm.is_graph else f"cold L2: {slower} slower"
    together = cold.launches if cold.launches == warm.launches else 1
    cold_text = numbers.time("kernel_here", together * cold.median_ns)
    warm_text = numbers.time("kernel_there", together * warm.median_ns)
    if warm.launches > cold.launches:
        warm_text += f" for each of {numbers.count('in_a_row', warm.launches)} launches in a row"
    where = spoken(warm.case.label.name)
    text = f"runs the same kernels as {where}, {slower} slower ({cold_text} against {warm_text}): {because}"
    if warm.is_graph:
        text = (
            f"runs the only kernel of the run; if the graph of {where} replays that one, it is {slower} slower here ({cold_text} against "
            f"{warm_text}): {because}"
        )
    # no doubt: who flushes the L2 before each timing means it
    lost_ns = int(cold.case.group.count * (cold.median_ns - warm.median_ns) * cold.launches)
    return Reason("cold-l2", MIXED, words, text, numbers.evidence, lost_ns)


# --- pairs that have no result ---

#: Rule, what the reason of an unplaced pair says, verdict in words, what follows the label's name.
_NO_RESULT = (
    (
        "no-result",
        re.compile(r"elapsed_time failed.*(?:not ready|notready|completed|\b600\b)", re.I),
        "wrong: no result",
        "has no result: elapsed_time was asked before the end had completed",
    ),
    (
        "no-result",
        re.compile(r"negative elapsed_time|recorded (?:again|since)", re.I),
        "wrong: no result",
        "compares the wrong records: {why}",
    ),
    (
        "captured-events",
        re.compile(r"\bcaptured\b", re.I),
        "wrong: captured events",
        "has no result: its events were captured into a CUDA graph",
    ),
)
_SWAPPED = "its end was recorded before its start"
_ANOTHER = "an event was recorded again since, or was not seen"


def without_result(facts: Facts) -> Iterator[tuple[str, str, Reason]]:
    """Yield (label, site, reason) for event pairs that have no result.

    elapsed_time was called before the work was done, an event was recorded again, or events were
    captured into a graph.
    """
    table = facts.analysis.unaligned
    for rule, pattern, words, text in _NO_RESULT:
        rows = table[table["reason"].str.contains(pattern)]
        for label, pairs in rows.groupby("label", sort=False):
            numbers = Numbers()
            why = _SWAPPED if "negative" in pairs["reason"].iloc[0] else _ANOTHER
            count = numbers.count("pairs", len(pairs), "pair")
            sentence = f"{text.format(why=why)} ({count})"
            reason = Reason(rule, WRONG, words, sentence, numbers.evidence)
            yield str(label), str(pairs["site"].iloc[0]), reason


#: torch's kernels that only convert to another type, as `largest_kernel` names them: float16_copy_kernel_cuda,
#: bfloat16tofloat32_copy_kernel_cuda.
_CONVERTS = re.compile(r"^(?:b?float\d+to)?(b?float\d+)_copy_kernel_cuda$")


def converts_to(kernel: str) -> str:
    """Return the type to which a kernel of torch's converts, "" for one that does something else."""
    name = _CONVERTS.match(kernel)
    return name[1] if name else ""


def largest_kernel(case: Case) -> tuple[str, float]:
    """Return (the kernel with most of the typical interval's kernel time, shortened, its share of that time from 0 to 1);
    ("", 0) where that is not known, or graphs ran for longer than kernels.
    """
    ns_of_name = Counter[str]()
    for piece in case.facts.segments(case.group):
        if piece.cause == "kernel" and piece.text:
            ns_of_name[piece.text] += piece.ns
    if not ns_of_name or case.ns("graph") > case.ns("kernel"):
        return "", 0.0
    name, ns = ns_of_name.most_common(1)[0]
    return kernel_name(name), ns / max(case.ns("kernel", "graph"), 1)


#: torch's kernels that compute on lists of tensors, as optimizers do.
_OF_LISTS = re.compile(r"\bmulti_tensor_apply_kernel\b")


def list_share(case: Case) -> float:
    """How much of the time of the kernels that the typical timing launched (0 to 1) goes into torch's for lists of tensors,
    where that is most of it; else 0."""
    kernels = case.group.work.of_kind("kernel")
    lists_ns = sum(kernel.ns for kernel in kernels if _OF_LISTS.search(kernel.name))
    total_ns = sum(kernel.ns for kernel in kernels)
    return lists_ns / total_ns if 2 * lists_ns > total_ns else 0.0


def largest_of_host_timer(case: Case) -> tuple[str, float]:
    """Return the same of all kernels that the typical timing of a host timer launched: its pieces have those alone during
    which the CPU waited.  ("", 0) where others than these ran in it, or graphs.
    """
    ns_of_name = Counter[str]()
    for kernel in case.group.work.of_kind("kernel"):
        ns_of_name[kernel_name(kernel.name)] += kernel.ns
    total_ns = sum(ns_of_name.values())
    is_all = abs(total_ns - case.kernels_ns) <= (1 - NEARLY_ALL) * case.kernels_ns
    if not total_ns or not is_all or case.graphs:
        return "", 0.0
    name, ns = ns_of_name.most_common(1)[0]
    return name, ns / total_ns
