"""Facts that make a number mean something else: few and sure, each with its reason.

An error: what was timed is not what is meant.  A doubt: the number is real, but clocks, caches or
what stands inside make it another one than it seems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.case import Case, Numbers, beside, spoken
from nsysalign.explain.clocks import IntervalClocks
from nsysalign.explain.facts import TYPICAL_SHARE, WARN_SHARE, Facts, Stretch
from nsysalign.explain.verdict import CPU, DOUBTFUL, FLOOR, GPU, MIXED, WRONG
from nsysalign.intervals import union
from nsysalign.model import CLOCK_REASONS, LAUNCH_QUEUE, SLOWED_BITS
from nsysalign.text import kernel_name

#: Pairs of events with nothing between them that measure more than this are no floor.
FLOOR_AT_MOST_NS = 50_000
#: Less work on other streams is none.
LEAST_WORK_NS = 1_000
#: Two SM clocks, and kernels at them, are different from these shares on.
CLOCK_SHARE, CLOCK_SAY_SHARE = 0.03, 0.02
#: A clock that was held down by less changes no conclusion: cards under load are at their power
#: cap, a few percent below their highest clock.
SLOWED_SHARE = 0.1
#: So many intervals are needed to compare clocks, or one label's kernels with another's.
CLOCK_SAMPLES, CACHE_SAMPLES = 8, 5
#: A group whose 10 and 90 % quantiles are further apart than this, and of so many intervals, is no
#: number but a range.
SPREAD, SPREAD_SAMPLES = 1.5, 10
#: A kernel that runs for longer also outlasts a launch call that does not wait for it; so many of them
#: tell.
_OUTLASTS_A_LAUNCH, _LEAST_BLOCKED = 20_000, 5
#: Timings overlap where so many are open at a time, on average.
_DEEP = 1.5
#: Launch calls that wait take so many times as long; about so many launches may wait.
_BLOCKED, _QUEUE = 4, LAUNCH_QUEUE
#: torch's kernel of `zero_` and `fill_`: an L2 flush.
_FILL = "FillFunctor"


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
    """The first reason that holds for at least half of the label's steady intervals."""
    for ask in (
        _nothing_inside,
        _ended_later,
        _two_streams,
        _launch_blocking,
        _fill_inside,
        _overlapping,
    ):
        if found := ask(case):
            return found
    return None


def _steady(case: Case, name: str) -> tuple[int, int]:
    """How many of the label's steady intervals have it, and how many there are."""
    groups = case.label.steady
    return sum(getattr(g, name) for g in groups), sum(g.count for g in groups)


def _nothing_inside(case: Case) -> Reason | None:
    """Return the reason that no work was issued between the two readings and none ran, None if that is not so.

    By kind it is: an empty event pair (its own cost), CPU time without GPU work, or a wrong timing.
    """
    empty, count = _steady(case, "empty")
    if not count or empty < TYPICAL_SHARE * count or not case.group.empty:
        return None
    if case.label.kind == "event" and case.others:
        return None
    if case.group.ns("api_launch"):  # what was launched has no row: the recorder dropped it
        return None
    numbers = Numbers()
    times = numbers.time("typical", case.group.typical_ns)
    often = f"{numbers.count('without_work', empty)} of {numbers.count('steady_timings', count)}"
    if case.label.kind == "event" and case.group.typical_ns < FLOOR_AT_MOST_NS:
        text = f"contains no GPU work: {times} is what an event pair itself costs here"
        return Reason("event-floor", FLOOR, "event cost only", text, numbers.evidence)
    if _is_of_another_process(case):
        text = f"gives the GPU no work ({often} timings); another process of the run does"
        return Reason("no-gpu-work-inside", MIXED, "another process works", text, numbers.evidence)
    # who waits for the GPU inside means its work; before it anything may have waited
    waits = case.facts.flagged(case.group.intervals, "synchronised-after")
    busy_ns = case.facts.column("gpu_busy_ns")[case.group.intervals]
    if case.on_host and waits >= TYPICAL_SHARE and np.mean(busy_ns > 0) >= TYPICAL_SHARE:
        return None  # it measures a wait for work that was launched before
    if _shares_marks(case):  # what lies between two others is meant
        text = f"spans {times} without GPU work between marks that other timings share ({often} timings)"
        return Reason("no-gpu-work-inside", CPU, "no GPU work", text, numbers.evidence)
    if case.on_host and waits < TYPICAL_SHARE:
        # some do work on the GPU: the kind of timings that takes most of the time is the story
        empty_ns = sum(group.total_ns for group in case.label.steady if group.empty == group.count)
        if empty < count and 2 * empty_ns < case.label.steady_ns:
            return None
        place = f" in {often} timings" if empty < count else ""
        words = "mostly no GPU work" if empty < count else "nothing of the GPU"
        text = f"measures nothing of the GPU{place}: {times} of CPU time"
        text += "" if place else f", no GPU work in {often} timings"
        return Reason("no-gpu-work-inside", CPU, words, text, numbers.evidence)
    text = f"measures nothing: no GPU work in {often} timings"
    return Reason("nothing-inside", WRONG, "wrong: nothing inside", text, numbers.evidence)


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
    """Return the reason that most of the work which was issued inside ended after the second reading, None if that
    is not so: the reading does not wait for the work.
    """
    late, count = _steady(case, "late")
    if case.label.kind == "nvtx" or not count:
        return None
    if late < TYPICAL_SHARE * count or not case.group.late:
        return _not_ordered(case)
    if not _escaped(case):
        return None
    numbers = Numbers()
    often = f"{numbers.count('ended_later', late)} of {numbers.count('steady_timings', count)}"
    if case.on_host and _waits_for_earlier(case):
        text = f"waits for earlier work, and not for its own, which ended later ({often} timings)"
        return Reason("enqueue-only", DOUBTFUL, "waits for earlier work", text, numbers.evidence)
    if case.on_host:
        text = f"measures only launching: work ended later ({often} timings)"
        if late < count:  # the others mean what they say
            text = f"measures only launching in {often} timings: work ended later"
            text += _others_wait(case, numbers)
        text += _full_queue(case, numbers)
        return Reason("enqueue-only", WRONG, "wrong: enqueue only", text, numbers.evidence)
    streams = list(case.others)
    on = f" on stream {numbers.count('working_stream', streams[0])}" if len(streams) else ""
    text = f"does not wait for its work{on} ({often} timings)"
    return Reason("wrong-stream", WRONG, "wrong: wrong stream", text, numbers.evidence)


def _waits_for_earlier(case: Case) -> bool:
    """Whether the CPU waits for the GPU inside for half of the time and more, though not for what it launches there: a loop
    that reads the loss of the step before takes as long as the GPU's steps."""
    return case.group.work.waits > 0 and 2 * case.group.ns("sync", "queued") >= case.group.total_ns


def _others_wait(case: Case, numbers: Numbers) -> str:
    """A clause on the timings that do wait, where that is mostly for the work of another label; '' where it is not."""
    waiting = max(case.label.steady, key=lambda group: group.count - group.late)
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

    launching      [1)[2)[3)        [1,025        )[1,026        )       in the slower timings the call takes most of
    GPU              [1     ...                 ...[2            )       the time, and they last as long as their work
    """
    groups = case.label.steady
    slow = max(groups, key=lambda group: group.typical_ns)
    fast = min(groups, key=lambda group: group.typical_ns)
    kind_of_work = slow.kind == fast.kind and slow.pid == fast.pid
    if not kind_of_work or slow is fast or slow.share("api_launch") < 0.5:
        return ""
    launching_ns = slow.ns("api_launch") / slow.count
    usual_ns = max(fast.ns("api_launch") / fast.count, 1)
    work_ns = np.median(case.facts.column("kernel_only_upper_ns")[slow.intervals])
    last_as_long = abs(slow.typical_ns - work_ns) <= WARN_SHARE * work_ns
    if launching_ns < _BLOCKED * usual_ns or not last_as_long or case.label.count <= _QUEUE:
        return ""
    blocked = numbers.count("blocked_timings", slow.count)
    typical = numbers.time("blocked", slow.typical_ns)
    return f". In {blocked} of them the queue was full: the launch waits until a kernel has run, {typical} each"


def _escaped(case: Case) -> bool:
    """Whether what ended later is the work: a batch that is fetched, or gradients that are reduced,
    while something else is timed are not."""
    if case.on_host:
        ran = case.facts.column("kernel_only_upper_ns")[case.group.intervals]
        outside = case.facts.column("kernel_outside_ns")[case.group.intervals]
        return not ran.any() or 2 * outside.sum() >= ran.sum()
    return not case.sums.busy + case.sums.copies + case.sums.collectives


def _not_ordered(case: Case) -> Reason | None:
    """Return the reason that the timed stream ran nothing, and that its end record does not wait for the streams
    which did the work; None if that is not so.  That the work ended before the record was luck.
    """
    facts, intervals = case.facts, case.group.intervals
    inferred = facts.column("method")[case.group.typical] == "inferred"
    if case.label.kind != "event" or inferred or case.sums.gpu or case.sums.copies:
        return None
    table = facts.analysis.other_streams
    table = table[table["interval"].isin(intervals) & (table["ns"] >= LEAST_WORK_NS)]
    if "ordered" not in table or table.empty:
        return None
    apart = table.groupby("interval")["ordered"].max().eq(False)
    if apart.sum() < TYPICAL_SHARE * case.group.count:
        return None
    numbers = Numbers()
    stream = numbers.count("working_stream", next(iter(case.others)))
    often = f"{numbers.count('not_ordered', int(apart.sum()))} of {numbers.count('group_timings', case.group.count)}"
    text = f"does not wait for its work on stream {stream} ({often} timings)"
    return Reason("wrong-stream", WRONG, "wrong: wrong stream", text, numbers.evidence)


def _two_streams(case: Case) -> Reason | None:
    """Return the reason that start and end are recorded on different streams that no wait joins; None if that is not
    so.  The time between them is not the duration of the work on either stream.
    """
    apart, count = _steady(case, "two_streams")
    if (
        case.label.kind != "event"
        or not count
        or apart < TYPICAL_SHARE * count
        or not case.group.two_streams
    ):
        return None
    facts, intervals = case.facts, case.group.intervals
    first = int(facts.column("start_stream")[case.group.typical])
    last = int(facts.column("end_stream")[case.group.typical])
    waits = facts.details(intervals, "queued")
    ordered = waits["detail"].isin(["dependency", "dependency-inferred", "default-stream-order"])
    calls = facts.details(intervals, "api")["detail"].astype(str)
    if (ordered & (waits["stream"] == first)).any() or calls.str.contains("StreamWaitEvent").any():
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
    gaps = [  # the last one before the end event launches nothing
        gap for gap in case.stretches if gap.before and gap.before.cause == "kernel" and gap.then
    ]
    blocked = [gap for gap in gaps if _two_launch_calls(gap)]
    long = sum(gap.before.ns >= _OUTLASTS_A_LAUNCH for gap in blocked)
    if long < _LEAST_BLOCKED or len(blocked) < 0.8 * len(gaps):
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
    """A constant is written inside the timing, between other kernels: an L2 flush that belongs
    before it."""
    if case.on_host or not 2 <= case.operations < 10:
        return None
    kernels = case.group.of_cause("kernel")
    filled = sum(e.ns for e in kernels if _FILL in e.what) + case.group.ns("memset")
    ran = case.group.ns("kernel", "memset")
    if not WARN_SHARE * case.sums.whole < filled < 0.98 * ran:
        return None
    numbers = Numbers()
    share = numbers.share("filling", filled, case.sums.whole)
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
    begin, end = union(timings["start_ns"].to_numpy(), timings["end_ns"].to_numpy())
    span_ns, count = int((end - begin).sum()), len(timings)
    if case.group.typical_ns * count < _DEEP * span_ns or label.steady_ns < _DEEP * span_ns:
        return None
    numbers = Numbers()
    numbers.evidence["timings_at_a_time"] = deep = label.steady_ns / span_ns
    text = (
        f"measured {numbers.time('typical', case.group.typical_ns)}; its {numbers.count('steady_timings', count, 'timing')} overlap, "
        f"{deep:.1f} at a time, on one stream: most of what runs in one of them runs in others, too; shared out each takes "
        f"{numbers.time('shared_out', span_ns / count)}"
    )
    return Reason("overlapping", MIXED, f"overlap, {deep:.1f} at a time", text, numbers.evidence)


# --- clocks, caches, spread: what makes the number another one ---


def spread(case: Case) -> Reason | None:
    """One kind of work, one pace, and yet no one number."""
    group = case.group
    if (
        group.count < SPREAD_SAMPLES
        or group.high_ns < SPREAD * group.low_ns
        or group.high_ns - group.low_ns < 5_000
    ):
        return None
    numbers = Numbers()
    low, high = numbers.time("low", group.low_ns), numbers.time("high", group.high_ns)
    text = f"varies: most of its {numbers.count('group_timings', group.count)} timings lie between {low} and {high}"
    ran_ns = np.quantile(case.facts.column("kernel_only_ns")[group.intervals], (0.1, 0.9))
    if not case.on_host and 2 * (ran_ns[1] - ran_ns[0]) >= group.high_ns - group.low_ns:
        fastest = numbers.time("kernels_low", ran_ns[0])
        text += f", as do its kernels ({fastest} to {numbers.time('kernels_high', ran_ns[1])})"
    return Reason("high-variance", DOUBTFUL, f"{low} to {high}", text, numbers.evidence)


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


def slowed(case: Case, clocks: IntervalClocks) -> Reason | None:
    """Return the reason that the clock of the GPU changed the measured time, if it did; None if not.

    clocks: what the clock samples say about each interval

    There are two such reasons: the GPU could not run as fast as requested (power, heat, hardware) in half of the
    intervals or more, or its clock differed between intervals and the kernels' times follow it.
    """
    group = case.group
    same_work = [g for g in case.label.steady if (g.kind, g.pid) == (group.kind, group.pid)]
    numbers = np.sort(np.concatenate([g.intervals for g in same_work]))
    kernel_ns = case.facts.column("kernel_only_upper_ns")[numbers].astype(float)
    known = clocks.known[numbers] & (kernel_ns > 0)
    numbers = numbers[known]
    if len(numbers) < CLOCK_SAMPLES:
        return None
    reasons = clocks.reasons[numbers] & SLOWED_BITS
    timings = _Clocked(kernel_ns[known], clocks.sm_mhz[numbers], reasons)
    reason = _throttled(case, timings)
    # another kernel draws other power: its time and its clock differ together, and neither by the other
    if reason is None and all(g.work.mains == 1 for g in same_work):
        reason = _two_clocks(timings)
    return reason


def _throttled(case: Case, timings: _Clocked) -> Reason | None:
    """Return the reason that the GPU was slowed down in at least half of the timings, and that it matters: the
    clock was a tenth below the run's highest one, and kernels are a fifth of the time.  None if that is not so.
    """
    is_slowed = timings.reasons > 0
    count = len(is_slowed)
    if is_slowed.sum() < TYPICAL_SHARE * count:
        return None
    slowed_mhz = float(np.median(timings.sm_mhz[is_slowed]))
    highest_mhz = int(case.facts.analysis.gpu_clocks["sm_max_mhz"].max())
    kernel_share = np.median(timings.kernel_ns / np.maximum(case.group.typical_ns, 1))
    if slowed_mhz > (1 - SLOWED_SHARE) * highest_mhz or kernel_share < WARN_SHARE:
        return None
    causes = [text for bit, text in CLOCK_REASONS.items() if (timings.reasons & bit).any()]
    numbers = Numbers({"sm_clock_mhz": slowed_mhz, "highest_sm_clock_mhz": highest_mhz})
    slowed_count = numbers.count("slowed_timings", int(is_slowed.sum()))
    often = f"{slowed_count} of {numbers.count('clocked_timings', count)}"
    text = (
        f"ran on a GPU that was slowed down in {often} timings ({', '.join(causes)}), to {slowed_mhz:.0f} MHz; "
        f"the highest SM clock of the run is {highest_mhz} MHz"
    )
    # at the highest clock the kernels would have taken so much less
    lost_ns = int(timings.kernel_ns[is_slowed].sum() * (1 - slowed_mhz / highest_mhz))
    words = f"slowed to {slowed_mhz:.0f} MHz"
    return Reason("throttled", DOUBTFUL, words, text, numbers.evidence, lost_ns)


def _two_clocks(timings: _Clocked) -> Reason | None:
    """Return the reason that the clock differed between timings and the kernels' times follow it: 1,980 MHz and
    100 us in some of them, 1,755 MHz and 112 us in the others.  None if that is not so.
    """
    kernel_ns, sm_mhz = timings.kernel_ns, timings.sm_mhz
    is_fast = sm_mhz >= (1 - CLOCK_SHARE) * np.percentile(sm_mhz, 95)
    fast_count, slow_count = int(is_fast.sum()), int((~is_fast).sum())
    if min(fast_count, slow_count) < 2:
        return None
    fast_mhz, slow_mhz = float(np.median(sm_mhz[is_fast])), float(np.median(sm_mhz[~is_fast]))
    fast_ns, slow_ns = float(np.median(kernel_ns[is_fast])), float(np.median(kernel_ns[~is_fast]))
    longer = slow_ns / max(fast_ns, 1) - 1  # by which share kernels take longer at the low clock
    # a kernel that waits for memory follows the SM clock in part only
    follows = longer >= 0.3 * (fast_mhz / max(slow_mhz, 1) - 1)
    period = 1 / np.maximum(sm_mhz, 1)
    correlation = float(np.corrcoef(kernel_ns, period)[0, 1]) if kernel_ns.std() else 0.0
    if not follows or slow_ns < (1 + CLOCK_SAY_SHARE) * fast_ns or correlation < 0.5:
        return None
    numbers = Numbers()
    slow_timings = numbers.count("at_the_low_clock", slow_count)
    often = f"{slow_timings} of {numbers.count('clocked_timings', len(sm_mhz))}"
    numbers.evidence |= {"low_clock_mhz": slow_mhz, "high_clock_mhz": fast_mhz}
    text = (
        f"ran at two clocks: in {often} timings the SM clock was {slow_mhz:.0f} instead of {fast_mhz:.0f} MHz, and kernels took "
        f"{numbers.time('kernel_at_the_low_clock', slow_ns)} there, {numbers.time('kernel_at_the_high_clock', fast_ns)} in the others"
    )
    words = f"clock {slow_mhz:.0f}-{fast_mhz:.0f} MHz"
    lost_ns = int(slow_count * (slow_ns - fast_ns))
    return Reason("clock-changed", DOUBTFUL, words, text, numbers.evidence, lost_ns)


def cold_caches(cases: list[Case]) -> Iterator[tuple[str, Reason]]:
    """Yield (label, reason) for each label whose kernels take longer than the same kernels in another label.

    cases: the leading case of each label

    Compared are labels of one kind of work, whose kernels run alone and take about the same time in all intervals.
    The usual cause is a cold L2 cache in one label and a warm one in the other.
    """
    alike: dict[tuple[Any, ...], list[_Kernels]] = {}  # what is issued -> the labels that issue it
    for case in cases:
        group = case.group
        alone = not case.others and not group.ns("queued", "graph")
        if case.on_host or not alone or group.count < CACHE_SAMPLES or len(case.label.steady) > 1:
            continue
        kernel_ns = case.facts.column("kernel_only_ns")[group.intervals].astype(float)
        low_ns, median_ns, high_ns = np.percentile(kernel_ns, [25, 50, 75])
        if not median_ns or high_ns - low_ns > 0.06 * median_ns:
            continue
        kernels = group.work.of_kind("kernel")
        # the length of torch.cuda._sleep is the requested one
        if not any("spin_kernel" in kernel.name for kernel in kernels):
            alike.setdefault(kernels, []).append(_Kernels(case, kernel_ns, float(median_ns)))
    for labels in alike.values():
        warm = min(labels, key=lambda label: label.median_ns)
        for label in labels:
            factor = label.median_ns / max(warm.median_ns, 1)
            # nearly all of its timings are longer than nearly all of the warm ones
            apart = np.percentile(label.ns, 5) > np.percentile(warm.ns, 95)
            if 1.08 < factor < 1.6 and apart:
                yield label.case.label.name, _cold(label, warm)


class _Kernels(NamedTuple):
    """How long the kernels of a label's leading case ran: ns per timing, and their median."""

    case: Case
    ns: np.ndarray
    median_ns: float


def _cold(label: _Kernels, warm: _Kernels) -> Reason:
    """Return the reason that the kernels of a label take longer than the same kernels of another one."""
    numbers = Numbers()
    slower = numbers.share("slower", label.median_ns - warm.median_ns, warm.median_ns)
    text = (
        f"runs the same kernels as {spoken(warm.case.label.name)}, {slower} slower "
        f"({numbers.time('kernel_here', label.median_ns)} against {numbers.time('kernel_there', warm.median_ns)}): a cold L2, "
        "if shapes and clocks are the same"
    )
    words = f"cold L2? {slower} slower"
    # no doubt: who flushes the L2 before each timing means it
    lost_ns = int(label.case.group.count * (label.median_ns - warm.median_ns))
    return Reason("cold-l2", MIXED, words, text, numbers.evidence, lost_ns)


# --- pairs that have no result ---

#: Rule, what the reason of an unplaced pair says, severity, what follows the label's name.
_NO_RESULT = (
    (
        "no-result",
        re.compile(r"elapsed_time failed.*(?:not ready|notready|completed|\b600\b)", re.I),
        "has no result: elapsed_time was asked before the end had completed",
    ),
    (
        "no-result",
        re.compile(r"negative elapsed_time|recorded (?:again|since)", re.I),
        "compares the wrong records: {why}",
    ),
    (
        "captured-events",
        re.compile(r"\bcaptured\b", re.I),
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
    for rule, pattern, text in _NO_RESULT:
        rows = table[table["reason"].str.contains(pattern)]
        for label, pairs in rows.groupby("label", sort=False):
            numbers = Numbers()
            why = _SWAPPED if "negative" in pairs["reason"].iloc[0] else _ANOTHER
            often = f" ({numbers.count('pairs', len(pairs), 'pair')})"
            words = "wrong: captured events" if rule == "captured-events" else "wrong: no result"
            yield (
                str(label),
                str(pairs["site"].iloc[0]),
                Reason(rule, WRONG, words, text.format(why=why) + often, numbers.evidence),
            )


#: torch's kernels that only convert to another type, as `largest_kernel` names them: float16_copy_kernel_cuda,
#: bfloat16tofloat32_copy_kernel_cuda.
_CONVERTS = re.compile(r"^(?:b?float\d+to)?(b?float\d+)_copy_kernel_cuda$")


def converts_to(kernel: str) -> str:
    """The type to which a kernel of torch's converts, '' where it does something else."""
    found = _CONVERTS.match(kernel)
    return found[1] if found else ""


def largest_kernel(case: Case) -> tuple[str, float]:
    """The kernel with most of the typical interval's kernel time, shortened, and its share; ('', 0)
    where that is not known: never one that did not run in it."""
    sums: dict[str, int] = {}
    for piece in case.facts.segments(case.group):
        if piece.cause == "kernel" and piece.text:
            sums[piece.text] = sums.get(piece.text, 0) + piece.ns
    whole = case.ns("kernel", "graph")
    if not sums or case.ns("graph") > case.ns("kernel"):
        return "", 0.0
    name = max(sums, key=sums.__getitem__)
    return kernel_name(name), sums[name] / max(whole, 1)
