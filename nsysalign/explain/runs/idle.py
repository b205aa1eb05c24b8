"""Why did the GPU run nothing between its first and its last work?

What many gaps have in common is said before their causes: first launches, code that is loaded, the
CPU at work between two copies, one pause.  Only what fits is advised.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nsysalign.explain.clauses import MOSTLY, Clause, Cut, until
from nsysalign.explain.facts import (
    ALLOCATES,
    GRAPH_LAUNCH,
    SMALL_NS,
    TYPICAL_SHARE,
    WARN_SHARE,
    Facts,
    nothing_timed_is_seen,
    ran_torch,
)
from nsysalign.explain.finding import IN_GRAPHS, Findings
from nsysalign.explain.preparing import LOADS
from nsysalign.explain.run_sentences import NCCL_SHARE, nccl_clause
from nsysalign.explain.runs.copies import KEEP_ON_GPU, copying, go_both_ways
from nsysalign.explain.runs.gaps import (
    MOST_NAMED,
    NOT_KNOWN,
    Crowd,
    FirstRuns,
    Forking,
    IdleTime,
    RoundTrips,
)
from nsysalign.explain.runs.ranges import InRange
from nsysalign.explain.runs.rounds import evidence_of, in_one_round, in_words, listed
from nsysalign.explain.runs.run import FIRST_LAUNCH, Run
from nsysalign.explain.verdict import CODE_WITHOUT_CAT, WITHOUT_CAT, concatenating_ns
from nsysalign.label import Label
from nsysalign.model import OTHER_STREAMS
from nsysalign.text import kernel_name, of, plural, safe_text, span, times_over

#: First launches, or code that is loaded, explain the idle time from this share of it on; several pauses, or
#: results that the CPU works on, from the second; one pause from the third.
FIRST_SHARE, PAUSES_SHARE, ONE_PAUSE = 0.5, 0.8, 0.5
#: Launched work begins within some microseconds on an idle GPU; on average so much later, something holds it up.
_LATE_NS = 100_000
#: Shorter pauses, and first launches that held up less, are none; nor are copies that took less in all.
LEAST_NS, _FEW_NS = 100_000, 20_000
#: A gap of this share of the longest is named beside it; so many of one kind are counted.
_NEARLY_AS_LONG, _MANY_GAPS = 0.1, 10
#: The median of many gaps stands for all of them if, so many times, it misses what they take by less than this.
_TYPICAL_ERROR = 0.1
#: Code is loaded all along the run where each quarter of its operations has this share of what an even one had.
_AGAIN = 0.25
#: Gaps that are named or counted beside a cause take this share of the idle time.
_MANY = 0.3
#: One of several things is named where it takes this share of them; calls are named, the longest first, until
#: they make the second share of all.
_MOST_OF_IT, _CALLS_SHARE = 0.5, 0.8
#: What is left of the idle time is looked at from this share of the run on.
_LEFT_SHARE = 0.1
#: A GPU that is idle for less than this is told of, not warned about.
_WARN_IDLE = 0.3
#: So many kernels to a copy are next to none.
_NO_KERNELS = 0.01
#: A GPU that hardly works has nothing to overlap.
_HARDLY_WORKS = 0.9
#: A pair or range that was read from the trace and covers less of the run is not all that counts.
_NEXT_TO_NOTHING = 0.02
#: A CPU that is in CUDA calls for less than this is outside of CUDA; from the second share on the calls are named.
_FEW_CALLS, _MANY_CALLS = 0.01, 0.1
#: Calls that make what can be used again.
_MAKES = re.compile(r"Create|Init|Open|Instantiate|Import|EnablePeer|Get|SetLimit")
#: A call that frees memory and takes so long sets a library or the context up.
_FREES, _SETS_UP_NS = re.compile(r"cu(da|Mem)?Free(_v\d+)?$"), 10_000_000
#: One kernel with this share of what passed before all first runs stands for them.
_NEARLY_ALL = 0.95
_OF_A_STREAM = re.compile(r" \(stream \d+\)$")

_IF_COMPILED = (
    "If code is compiled there, warm up before the part that counts, or cache what is compiled"
)
_WARM_UP = (
    "Warm up before the part that counts; cache what is compiled, or load all code when the program starts "
    "(CUDA_MODULE_LOADING=EAGER)"
)
_SAME_SHAPES = (
    "Keep shapes the same (pad, or allocate the largest size once), so that code is used again: new code comes "
    "all along the run, and warming up does not end that"
)
_LOAD_ONCE = "Load each module once and keep it: code comes all along the run, and warming up does not end that"
_PIPELINE = (
    "Let the GPU compute one part while the CPU prepares the next or works on the last (a pipeline of two streams "
    "and pinned buffers), or do what the CPU does there on the GPU"
)
_WORKERS = (
    "Let workers prepare the next batches while the GPU works",
    "DataLoader(..., num_workers=4, pin_memory=True, persistent_workers=True)",
)
_KEEP_WORKERS = (
    "Start the processes once, before the loop: the workers of a DataLoader, if they are that",
    "DataLoader(..., num_workers=N, persistent_workers=True)",
)
_MORE_WORKERS = (
    "Give the DataLoader more workers, or each of them less to do: they are slower than the GPU",
    "DataLoader(..., num_workers=2 * N, prefetch_factor=4, persistent_workers=True)",
)
_PAGE_FAULTS = (
    "; where it uses managed memory, record its page faults as well (nsys profile: --cuda-um-cpu-page-faults=true "
    "--cuda-um-gpu-page-faults=true)"
)
_FEWER_COPIES = "Copy in fewer, larger pieces, from pinned memory"
_ALLOCATE_ONCE = "Allocate once, before the part that counts, and use the memory again"
_MAKE_HANDLES = (
    "A cudaFree that takes so long sets up the context or a library (cublasCreate, cusparseCreate): make its handles "
    "once, before the part that counts"
)
_LOAD_AND_ALLOCATE = (
    "Load the code and allocate before the part that counts (run it once, and use the memory again)"
)


class Cause(NamedTuple):
    """What the CPU did while the device ran nothing: its causes, in words, what to do, where that is known, with its code."""

    causes: tuple[str, ...]
    text: str
    faster: tuple[str, ...] = ()


CAUSES_OF_IDLE = (
    Cause(("host",), "the CPU was outside of CUDA and had not launched the next work"),
    Cause(
        ("api_launch", "launch_latency"),
        "the CPU was inside calls that launch work, or the launched work was on its way",
        (
            "Launch less: fuse the small operations, give each more work, or replay them as a CUDA graph",
            'f = torch.compile(f, mode="reduce-overhead")',
        ),
    ),
    Cause((FIRST_LAUNCH,), "the CPU launched kernels that had not run before"),
    Cause(
        ("sync",),
        "the CPU was inside a synchronisation",
        (
            "Drop the synchronisation between launches: wait only where something depends on it, "
            "and on the GPU rather than on the CPU",
        ),
    ),
    Cause(("api",), "the CPU was inside CUDA calls that launch nothing"),
    Cause(
        ("memcpy",),
        "the CPU staged pageable memory for a copy",
        ("Copy from pinned memory, which needs no staging",),
    ),
    Cause(
        ("unknown",),
        "the trace does not say why",
        ("Record the whole program from its start",),
    ),
)


#: Instead of the launches, where work that was launched begins so much later that no launch explains it.
_BEGINS_LATE = Cause(
    ("launch_latency",), "launched work did not begin, and the trace does not say why"
)


@dataclass
class Explanation:
    """What is said of a run's idle time: its clauses, how much of the time they explain, the evidence, what to do,
    and the gaps that they name."""

    clauses: tuple[Clause, ...]  # () where other findings tell of all of it
    lost_ns: int  # how much it explains
    evidence: dict[str, Any] = field(default_factory=dict)
    faster: tuple[str, ...] = ()
    gaps: list[Any] = field(default_factory=list)
    sure: bool = False  # what to do is known, however little of the run it is
    saves_ns: int | None = None  # how much of what it explains the advice is about, None for all


def whole_run(run: Run) -> Findings:
    """Yield at most two findings on a run of which the program measured less than half, by ranges or not at all:
    that the GPU was idle for much of the time between its first and its last work, and that it copied for
    much of it.
    """
    facts = run.facts
    warm_ups = _warm_ups(facts)
    intervals, measured_ns = _measured_by_program(run, warm_ups)
    if measured_ns > TYPICAL_SHARE * run.elapsed_ns:
        return
    kernels_ns = run.ns("kernel", "graph")
    # where the program's own intervals hold most of the kernels, they are what counts, and the rest is set-up; a pair that
    # covers next to nothing does not say that
    measures_much = measured_ns > _NEXT_TO_NOTHING * run.elapsed_ns
    measures_much = measures_much or (facts.column("kind")[intervals] == "nvtx").any()
    in_intervals_ns = facts.once(intervals, facts.column("kernel_only_ns")[intervals])
    rest_is_set_up = bool(measures_much and in_intervals_ns > TYPICAL_SHARE * kernels_ns > 0)
    of_idle = list(_idle_finding(run, rest_is_set_up, warm_ups))
    yield from of_idle
    if any("copying_ns" in finding.evidence for finding in of_idle):
        return  # it tells of the copies too
    if run.copying_ns > max(WARN_SHARE * run.elapsed_ns, _FEW_NS):
        yield copying(run, kernels_ns)


def _warm_ups(facts: Facts) -> set[str]:
    """Return the names of ranges that were open once, and that warm up for other labels: the first call of a label lies
    in one, and most of its other timings come behind it.

    warm up   [                      ]
    matmul        [ first call ]       [x][x][x]
    """
    start_ns, end_ns = facts.column("start_ns"), facts.column("end_ns")
    # when each label with a first call made it, and when it usually ran
    warmed = [
        (start_ns[label.cold[0].intervals[0]], np.median(start_ns[label.usual.intervals]))
        for label in facts.labels
        if label.cold
    ]
    first_ns, usual_ns = np.array(warmed).reshape(-1, 2).T
    names = set()
    for label in facts.labels:
        begin_ns, stop_ns = start_ns[label.usual.typical], end_ns[label.usual.typical]
        prepares = (begin_ns <= first_ns) & (first_ns < stop_ns) & (usual_ns >= stop_ns)
        if label.kind == "nvtx" and label.count == 1 and prepares.any():
            names.add(label.name)
    return names


def _measured_by_program(run: Run, warm_ups: Collection[str]) -> tuple[np.ndarray, int]:
    """Return (the numbers of the intervals that the program itself measured on the run's device; for how long
    (ns) at least one of them was open).

    Intervals that do not stand for the device are left out: those of a stream that ran nothing while other streams
    did, those of one of several streams of a range, those of a library's ranges, those of labels whose pairs
    were read from the trace and time different things, and those of `warm_ups` (labels).
    """
    facts = run.facts
    flags_of_interval = facts.column("flags")
    others_worked = np.array([not OTHER_STREAMS.isdisjoint(flags) for flags in flags_of_interval])
    ran_nothing = (
        facts.column("kernel_only_upper_ns") == 0
    )  # not even the most that may have run in it
    names = facts.column("label")
    is_one_stream_of_range = np.array([bool(_OF_A_STREAM.search(name)) for name in names])
    counts = (facts.column("pid") == run.row.pid) & (facts.column("device") == run.row.device)
    counts &= ~(others_worked.astype(bool) & ran_nothing)
    counts &= ~is_one_stream_of_range.astype(bool)
    counts &= ~facts.column("library").astype(bool)
    for label in facts.labels:
        if label.name in warm_ups or _times_different_things(facts, label):
            for group in label.groups:
                counts[group.intervals] = False
    measured = np.flatnonzero(counts)
    return measured, facts.once(measured, facts.column("elapsed_ns")[measured])


def _times_different_things(facts: Facts, label: Label) -> bool:
    """Whether a label's pairs were read from the trace and have no usual length: nothing that is said
    of one is true of the others."""
    methods = {str(facts.column("method")[group.typical]) for group in label.groups}
    return methods == {"inferred"} and 2 * label.usual.typical_ns * label.count < label.total_ns


def _idle_finding(run: Run, rest_is_set_up: bool, warm_ups: Collection[str]) -> Findings:
    """Yield at most one finding: how long the GPU ran nothing between its first and its last work, and why.

    rest_is_set_up: whether the program measured by itself what counts, so that the rest of the run is set-up:
        then the finding is information, with no loss and no advice
    warm_ups: labels of ranges that warm up

    Nothing is yielded where little of the run is idle.
    """
    idle_time = run.fact(IdleTime) or IdleTime(run.row.pid, run.row.device)  # nothing known
    explanation = _explain(run, idle_time)
    if explanation is None:
        return
    evidence = dict(explanation.evidence)
    for number, gap in enumerate(explanation.gaps, 1):
        evidence[f"pause_{number}_ns"] = int(gap.ns)
        evidence[f"pause_{number}_at_ns"] = max(int(gap.start_ns) - run.row.start_ns, 0)
    in_range = ()
    within = idle_time.in_ranges
    lies_in_ranges = within.name and 2 * within.ns > run.idle_ns
    if lies_in_ranges:  # in the one that is named lies most of that
        words = f" ({span(within.name_ns)} in the range {safe_text(within.name)})"
        in_range = (Clause(words, {Cut.RANGE: ""}),)
        evidence |= {"idle_in_range_ns": within.name_ns, "range": within.name}
    collectives = ""
    if run.collectives_ns >= NCCL_SHARE * run.elapsed_ns:
        # it stands before the idle time: a narrow table cuts off what stands at a sentence's end
        collectives = f"{nccl_clause(run.collectives_ns)}, and "
        evidence["nccl_ns"] = run.collectives_ns
    # another process may have worked on the same GPU
    is_one_of_many = run.facts.analysis.runs["pid"].nunique() > 1
    # what lies in a range of the program's is part of what it does, whatever it measured; unless it warms up there
    is_set_up = rest_is_set_up and (not lies_in_ranges or within.name in warm_ups)
    idles_little = run.idle_ns < _WARN_IDLE * run.elapsed_ns and not explanation.sure
    saves_ns = explanation.lost_ns if explanation.saves_ns is None else explanation.saves_ns
    copies, evidence_of_copies = _nearly_only_copies(run)
    evidence |= evidence_of_copies
    between = "between its first and its last work "
    # a name takes room
    shorter = {Cut.DETAIL: between} if run.row.label == "run" else {Cut.WORDS: ""}
    ran_nothing = (
        Clause(
            f"{collectives}the GPU ran nothing {'of this process ' * is_one_of_many}for {of(run.idle_ns, run.elapsed_ns)}"
        ),
        *in_range,
        *(until(Cut.CAUSE, Clause("; "), *explanation.clauses) if explanation.clauses else ()),
    )
    yield run.finding(
        (Clause(f"{between}{copies}", shorter), *ran_nothing),
        *(() if is_set_up else _with_concatenating(run, explanation.faster)),
        behind=(Clause(f"{between}{copies}", {Cut.WORDS: "then "}), *ran_nothing),
        loss_ns=0 if is_set_up else saves_ns,
        severity="info" if is_set_up or idles_little else "warning",
        idle_ns=run.idle_ns,
        **evidence,
    )


def _nearly_only_copies(run: Run) -> tuple[str, dict[str, int]]:
    """Return (what the work of a run was, in brackets, evidence) where there is next to no kernel among many copies:
    ("", {}) for any other."""
    ran = run.facts.analysis.kernels
    ran = ran[ran["label"] == run.row.label]
    count_of_kind = ran.groupby("kind", observed=True)["count"].sum()
    kernels = int(count_of_kind.get("kernel", 0))
    copies = int(ran.loc[ran["kernel"].str.startswith("copy "), "count"].sum())
    if copies < _MANY_GAPS or kernels > _NO_KERNELS * copies or "graph" in count_of_kind:
        return "", {}
    to_gpu = ran.loc[ran["kernel"].str.startswith("copy H2D"), "count"].sum()
    up = " to the GPU" if to_gpu == copies else ""
    counted = plural(kernels, "kernel") if kernels else "no kernel"
    return f"({copies:,} copies{up}, {counted}) ", {"copies": copies, "all_kernels": kernels}


def _with_concatenating(run: Run, faster: tuple[str, ...]) -> tuple[str, ...]:
    """Return the advice, and behind it what to do about torch.cat where that is most of what the GPU does and a good part
    of the run: filling idle time does not make it less."""
    ran_ns = concatenating_ns(run.facts.analysis.kernels, run.row.label)
    if ran_ns <= WARN_SHARE * run.elapsed_ns:
        return faster
    text, code = (*faster, "", "")[:2]
    before = f"{text}. " if text else ""
    return (
        f"{before}torch.cat copies for {span(ran_ns)}: {WITHOUT_CAT}",
        code or CODE_WITHOUT_CAT,
    )


def _explain(run: Run, idle_time: IdleTime) -> Explanation | None:
    """Return why the GPU ran nothing; None if little of the run is idle.

    It is what most gaps have in common, else the cause of most idle time.  Where that explains less than WARN_SHARE of
    the run, it is not worth a warning; if the run is idle for most of its time all the same, all its large causes are
    told.
    """
    explanation = _what_gaps_have_in_common(run, idle_time) or _explain_by_cause(run, idle_time)
    if explanation.lost_ns > WARN_SHARE * run.elapsed_ns:
        return explanation
    if run.idle_ns >= TYPICAL_SHARE * run.elapsed_ns:
        return _largest_causes(run, idle_time)
    return None


def _what_gaps_have_in_common(run: Run, idle_time: IdleTime) -> Explanation | None:
    """Return what most of the run's gaps have in common, None if they have nothing in common.

    idle_time: what is known of the idle time of the run's device

    It is the first of these that explains enough of the idle time, the most definite one first: what the trace names
    (a library that sets itself up, calls that load code or launch it for the first time, forks, a DataLoader's next batch), then
    where the gaps lie (before kernels that had not run, one pause, the CPU at work between two copies, two or three
    pauses, code that is loaded for a small part of many gaps).
    """
    # `page_migrations` tells of the time in which the CPU touched managed memory
    to_explain_ns = run.idle_ns - run.touched_ns
    if to_explain_ns <= 0:
        return None
    enough_ns = max(FIRST_SHARE * to_explain_ns, LEAST_NS)
    if idle_time.in_set_up.name_ns >= enough_ns:
        return _explain_set_up(run, idle_time.in_set_up)
    if idle_time.first.ns >= enough_ns:
        return _explain_first_launches(run, idle_time, known=True)
    # calls that load code were seen in these gaps: no least time is needed, as it is against gaps that are long by chance
    if idle_time.load_calls_ns >= FIRST_SHARE * to_explain_ns:
        return _explain_loading(run, idle_time)
    if idle_time.forking.gaps > 1 and idle_time.forking.ns >= enough_ns:
        return _explain_forks(run, idle_time.forking)
    if idle_time.in_data_loader.ns >= enough_ns:
        return _explain_next_batch(idle_time.in_data_loader)
    if idle_time.before_first.ns >= enough_ns:
        return _explain_first_launches(run, idle_time, known=False)
    pauses = _longest_gaps(run)
    pauses_ns = sum(gap.ns for gap in pauses)
    are_pauses_enough = pauses_ns >= max(PAUSES_SHARE * to_explain_ns, LEAST_NS)
    if _is_one_pause(run, pauses):
        # the others are told with it only where together they are nearly all idle time
        return _explain_pauses(run, idle_time, pauses if are_pauses_enough else pauses[:1])
    if idle_time.back and idle_time.back.ns >= PAUSES_SHARE * to_explain_ns:
        return _explain_copies(run, idle_time.back)
    if before_copies := _before_copies(run, idle_time, []):
        return before_copies
    # where the pauses lie explains nothing if the trace does not say what the CPU did in them
    if are_pauses_enough and _main_cause(run).causes != ("unknown",):
        return _explain_pauses(run, idle_time, pauses)
    is_loading_usual = idle_time.loading_count >= _MANY_GAPS
    if is_loading_usual and idle_time.loading_ns >= FIRST_SHARE * to_explain_ns:
        return _explain_loading(run, idle_time)
    return None


def _is_one_pause(run: Run, pauses: list[Any]) -> bool:
    """Return whether the longest pause is most of the idle time, and the trace says what the CPU did in it.

    pauses: rows of `frames.GAPS`, the longest first
    """
    if not pauses or pauses[0].call == NOT_KNOWN:
        return False
    return bool(pauses[0].ns >= max(ONE_PAUSE * run.idle_ns, LEAST_NS))


def _explain_copies(run: Run, back: RoundTrips) -> Explanation:
    """Return what is said of gaps between a copy to the host and one to the device: how long they are, and for how long
    the CPU was outside of CUDA in them; which calls it was in, where these took long."""
    clauses = [
        Clause(
            f"{span(back.ns)} of that lie between a copy to the host and the next one to the device"
        ),
        Clause(f" ({times_over(back.count)})", {Cut.DETAIL: ""}),
    ]
    evidence = {"between_copies_ns": back.ns, "count": back.count}
    if back.in_calls_ns < _FEW_CALLS * back.ns:
        clauses.append(Clause(", the CPU outside of CUDA"))
    else:
        outside_ns = back.ns - back.in_calls_ns
        is_mostly = outside_ns >= MOSTLY * back.ns
        outside = "mostly outside of CUDA" if is_mostly else "outside of CUDA for most of it"
        clauses.append(Clause(f", the CPU {outside}"))
        clauses.append(Clause(f" ({span(outside_ns)})", {Cut.DETAIL: ""}))
        evidence["between_copies_outside_ns"] = outside_ns
    if back.calls and back.in_calls_ns >= _MANY_CALLS * back.ns:
        clauses.append(
            Clause(f"; the rest mostly in {listed(back.calls)}", {Cut.SECOND_CLAUSE: ""})
        )
    faster = (_PIPELINE,) if run.idle_ns < _HARDLY_WORKS * run.elapsed_ns else ()
    return Explanation(tuple(clauses), back.ns, evidence, faster, sure=True)


def _explain_loading(run: Run, idle_time: IdleTime) -> Explanation:
    """Return what is said of gaps in which code was loaded: at the start, so that it can be loaded before; or again and
    again, for kernels that have run before, which cannot be warmed up."""
    evidence = {
        "loading_gaps_ns": idle_time.loading_ns,
        "count": idle_time.loading_count,
        "calls": idle_time.loads,
        "load_calls_ns": idle_time.load_calls_ns,
    }
    again = 4 * idle_time.load_calls_in_least_quarter_ns >= _AGAIN * idle_time.load_calls_ns
    again = again and idle_time.loading_count >= _MANY_GAPS
    clauses = (
        Clause(
            f"{span(idle_time.loading_ns)} of that lie in {plural(idle_time.loading_count, 'gap')} in which code was linked or "
            f"loaded{', all along the run' if again else ''}"
        ),
        Clause(
            f" ({times_over(idle_time.loads)}, for {span(idle_time.load_calls_ns)})",
            {Cut.DETAIL: ""},
        ),
    )
    if not again:
        advice = _advice_to_warm_up(run, known=2 * idle_time.load_calls_ns >= idle_time.loading_ns)
        return Explanation(clauses, idle_time.loading_ns, evidence, advice)
    faster = _SAME_SHAPES if run.facts.torch else _LOAD_ONCE
    return Explanation(clauses, idle_time.loading_ns, evidence, (faster,))


def _explain_next_batch(loader: InRange) -> Explanation:
    """Return what is said of gaps in which the CPU was getting a DataLoader's next batch.

    loader: how long, and the name of torch's range, which says whether workers prepare the batches
    """
    workers = "MultiProcessing" in loader.name
    clauses = (
        Clause(f"for {span(loader.ns)} of that the CPU was getting the next batch"),
        Clause(" (enumerate(DataLoader))", {Cut.DETAIL: ""}),
        Clause(f", {'which its workers prepare' if workers else 'which no worker prepares ahead'}"),
    )
    evidence = {"in_data_loader_ns": loader.ns, "range": loader.name}
    faster = _MORE_WORKERS if workers else _WORKERS
    return Explanation(clauses, loader.ns, evidence, faster, sure=True)


def _explain_forks(run: Run, forking: Forking) -> Explanation:
    """Return what is said of gaps in which the program forks processes: a single one would be a start that nobody can spare."""
    clauses = (
        Clause(f"{span(forking.ns)} of that lie in {forking.gaps:,} gaps in which it forks"),
        Clause(f" ({times_over(forking.forks)} in all)", {Cut.DETAIL: ""}),
        Clause(", as a DataLoader does in each epoch that starts its workers anew"),
    )
    evidence = {"in_gaps_with_forks_ns": forking.ns, "gaps": forking.gaps, "forks": forking.forks}
    faster = _KEEP_WORKERS if run.facts.torch else ()
    return Explanation(clauses, forking.ns, evidence, faster, sure=True)


def _explain_set_up(run: Run, inside: InRange) -> Explanation:
    """Return what is said of gaps in which a library set itself up; without advice, as it happens once, and the program
    calls nothing of what is called in it.

    inside: how long, and the name of the library's range
    """
    calls = run.details[run.details["cause"].isin(("api", "sync")) & (run.details["detail"] != "")]
    ns_of_call = calls.groupby("detail", sort=False, observed=True)["ns"].sum()
    mostly = ""
    # a call counts for so much of the set-up as cannot have passed in idle time outside of it
    elsewhere_ns = run.idle_ns - inside.name_ns
    if len(ns_of_call) and ns_of_call.max() - elsewhere_ns >= MOSTLY * inside.name_ns:
        mostly = f", mostly in {ns_of_call.idxmax()}"
    clauses = (
        Clause(f"for {span(inside.name_ns)} of that the CPU was in {safe_text(inside.name)}"),
        Clause(mostly, {Cut.DETAIL: ""}),
    )
    evidence = {"in_set_up_ns": inside.name_ns, "range": inside.name}
    return Explanation(clauses, inside.name_ns, evidence)


def _explain_first_launches(run: Run, idle_time: IdleTime, *, known: bool) -> Explanation:
    """Return what is said of idle time before kernels that ran for the first time: how long and for how many kernels.

    known: whether calls that load or launch took most of it, so that it is known that they were waited for; else the CPU
        may have compiled their code, or prepared data
    """
    first = idle_time.first if known else idle_time.before_first
    if first.kernel_ns >= _NEARLY_ALL * first.ns:  # the others are next to nothing
        first = first._replace(ns=first.kernel_ns, kernels=1)
    evidence: dict[str, Any] = {"before_first_launches_ns": first.ns, "kernels": first.kernels}
    kernels, alone = plural(first.kernels, "kernel"), ""
    if first.kernels == 1:
        kernels = kernel_name(first.kernel) if first.kernel else kernels
    elif first.kernel_ns >= _MOST_OF_IT * first.ns:
        before = "for" if known else "before"
        alone = f", {span(first.kernel_ns)} of it {before} {kernel_name(first.kernel)}"
        evidence["longest_first_launch_ns"] = first.kernel_ns
    of_one = Clause(alone, {Cut.DETAIL: ""})
    if not known and first.call:
        return _explain_call_before_first(first, kernels)
    if not known:
        passed = Clause(f"{span(first.ns)} of that passed before {kernels} ran for the first time")
        loads = ()
        if first.loads_ns:
            calls = f"; calls that load code take {span(first.loads_ns)} of it"
            loads = (Clause(calls, {Cut.SECOND_CLAUSE: ""}),)
            evidence["load_calls_ns"] = first.loads_ns
        faster = _advice_to_warm_up(run, known=False)
        return Explanation((passed, of_one, *loads), first.ns, evidence, faster)
    rest_ns = run.elapsed_ns - first.ns
    evidence["without_it_ns"] = rest_ns
    crowd, crowd_evidence = _crowd_in_rest(run, idle_time.crowd, run.idle_ns - first.ns)
    clauses = (
        Clause(f"for {span(first.ns)} of that it waited for "),
        Clause(
            f"{kernels} to run for the first time",
            {Cut.WORDS: f"the first run of {_bare(kernels)}"},
        ),
        Clause(" (when code is compiled, loaded or set up)", {Cut.REMARK: ""}),
        of_one,
        Clause(f"; the rest of the run takes {span(rest_ns)}", {Cut.TOTAL: ""}),
        *crowd,
    )
    return Explanation(clauses, first.ns, evidence | crowd_evidence, _advice_to_warm_up(run))


def _explain_call_before_first(first: FirstRuns, kernels: str) -> Explanation:
    """Return what is said of idle time before kernels that ran for the first time where one call took most of it: then
    it is the call that takes the time, and nothing says that code is compiled.

    kernels: in words
    """
    clauses = (
        Clause(f"for {span(first.call_ns)} of that the CPU was in {first.call}"),
        Clause(f" (called {times_over(first.call_count)})", {Cut.DETAIL: ""}),
        Clause(f", before {kernels} ran for the first time", {Cut.RANGE: ""}),
    )
    evidence = {
        "before_first_launches_ns": first.ns,
        "in_call_ns": first.call_ns,
        "calls": first.call_count,
    }
    faster: tuple[str, ...] = ()
    if _FREES.match(first.call):
        sets_up = first.call_ns >= _SETS_UP_NS * first.call_count
        faster = (_MAKE_HANDLES,) if sets_up else (_ALLOCATE_ONCE,)
    elif ALLOCATES.match(first.call):
        faster = (_ALLOCATE_ONCE,)
    return Explanation(clauses, first.call_ns, evidence, faster)


def _advice_to_warm_up(run: Run, *, known: bool = True) -> tuple[str, ...]:
    """Return the advice to warm up; none where a library may have timed the run, which warms up by itself
    (an older recording of torch.utils.benchmark): whether the first launches lie in what was timed is not known then.

    known: whether warming up saves the time; else only where that is spent on compiling
    """
    seen = run.facts.analysis
    is_timed_unseen = nothing_timed_is_seen(seen) and ran_torch(seen)
    return () if is_timed_unseen else (_WARM_UP if known else _IF_COMPILED,)


def _explain_pauses(run: Run, idle_time: IdleTime, pauses: list[Any]) -> Explanation:
    """Return what is said of one to three long pauses: how long they are together, where each lies, and how long the
    GPU idles without them.

    pauses: rows of `frames.GAPS`, the longest first
    """
    lost_ns = sum(gap.ns for gap in pauses)
    count = len(pauses)
    rest_ns = run.idle_ns - lost_ns
    noun, pronoun = ("one pause", "it") if count == 1 else (f"{count} pauses", "them")
    gaps = _gaps_in_words(run, pauses)
    # one pause is as long as all of that
    length = Clause(f": {gaps[0].words}", {Cut.TOTAL: ""} if count == 1 else {})
    rest = _explain_rest(run, idle_time, pauses)
    clauses = (
        Clause(f"{span(lost_ns)} of that is {noun}"),
        length,
        *gaps[1:],
        Clause(f"; without {pronoun} the GPU idles for {span(rest_ns)}", {Cut.TOTAL: ""}),
        *rest.clauses,
    )
    evidence: dict[str, Any] = {
        "pauses_ns": lost_ns,
        "otherwise_idle_ns": rest_ns,
        "pauses": count,
    }
    return Explanation(
        clauses,
        lost_ns + rest.lost_ns,
        evidence | rest.evidence,
        rest.faster,
        pauses,
        saves_ns=rest.lost_ns if rest.faster else None,
    )


def _explain_rest(run: Run, idle_time: IdleTime, pauses: list[Any]) -> Explanation:
    """Return what is said of the run without some pauses: what a run without them would be told of, as far as it is known of
    the rest by itself."""
    paused_ns = sum(gap.ns for gap in pauses)
    rest_ns = run.idle_ns - paused_ns
    clauses, evidence = _crowd_in_rest(run, idle_time.crowd, rest_ns)
    of_crowd = Explanation(clauses, 0, evidence)
    if run.elapsed_ns - paused_ns < _LEFT_SHARE * run.elapsed_ns:
        return of_crowd
    if before_copies := _before_copies(run, idle_time, pauses):
        return before_copies
    rounds = idle_time.rounds
    if rounds.count and _MOST_OF_IT * rest_ns <= rounds.idle_ns <= rest_ns:
        of_which = Clause(
            f", of which {span(rounds.idle_ns)}", {Cut.TOTAL: f"; {span(rounds.idle_ns)}"}
        )
        clauses = until(Cut.SECOND_CLAUSE, of_which, *in_words(rounds, Cut.WORDS))
        return Explanation(clauses, rounds.idle_ns, evidence_of(rounds), (in_one_round(rounds),))
    return of_crowd


def _before_copies(run: Run, idle_time: IdleTime, pauses: list[Any]) -> Explanation | None:
    """Return what is said of a run, but for some pauses, that is mostly copies of data which goes up and comes back, and idle
    time before them; None for any other.

    G    H2D  H2D   K  D2H   D2H    H2D  H2D   K  D2H   D2H         K takes less than the copies

    pauses: rows of `frames.GAPS` that are told already
    """
    paused_ns = sum(gap.ns for gap in pauses)
    before_ns = idle_time.before_copies_ns
    before_ns -= sum(gap.ns for gap in pauses if gap.next.startswith("copy "))
    elapsed_ns = run.elapsed_ns - paused_ns
    kernels_ns = run.ns("kernel", "graph")
    idle_ns = run.idle_ns - paused_ns
    # of a GPU that is hardly idle, `copying` tells
    is_most = before_ns + run.copying_ns >= _MOST_OF_IT * elapsed_ns
    is_most = is_most and idle_ns >= _LEFT_SHARE * elapsed_ns
    is_most_of_idle = before_ns >= _MOST_OF_IT * idle_ns
    copies_much = run.copying_ns > max(WARN_SHARE * elapsed_ns, kernels_ns) and kernels_ns
    if not (is_most and is_most_of_idle and copies_much and go_both_ways(run)):
        return None
    evidence = {
        "before_copies_ns": before_ns,
        "copying_ns": run.copying_ns,
        "kernels_ns": kernels_ns,
    }
    before = f"{span(before_ns)} of that lie before copies"
    if pauses:
        before = f"; {span(before_ns)} lie before other copies"
    clauses = (
        Clause(before),
        Clause(f", which take {span(run.copying_ns)} more"),
        Clause(f"; kernels take {span(kernels_ns)}", {Cut.THIRD_CLAUSE: ""}),
    )
    clauses = until(Cut.SECOND_CLAUSE, *clauses) if pauses else clauses
    # of one step alone, with copies on both sides of its kernels, it is not known whether another would need them
    faster = (KEEP_ON_GPU,) if idle_time.between_kernels >= _MOST_OF_IT else ()
    return Explanation(clauses, before_ns + run.copying_ns, evidence, faster, sure=bool(faster))


def _crowd_in_rest(
    run: Run, crowd: Crowd, rest_ns: int
) -> tuple[tuple[Clause, ...], dict[str, Any]]:
    """Return (clauses, evidence) on the many gaps of one kind that are most of what an explanation leaves of the idle
    time; ((), {}) if they are not, or if little is left.

    rest_ns: how much (ns) is left.  The crowd may take more, since the explanation may tell of gaps of the crowd: then
        it is no part of the rest
    """
    is_most_of_rest = _MOST_OF_IT * rest_ns <= crowd.ns <= rest_ns
    if not _has_many(crowd) or rest_ns < _LEFT_SHARE * run.elapsed_ns or not is_most_of_rest:
        return (), {}
    of_which = Clause(", of which ", {Cut.TOTAL: "; "})  # the total before it is gone
    clauses = until(Cut.SECOND_CLAUSE, of_which, *_crowd_in_words(crowd))
    return clauses, _crowd_evidence(crowd)


def _main_cause(run: Run) -> Cause:
    return max(CAUSES_OF_IDLE, key=lambda cause: run.idle_in(*cause.causes))


def _begins_late(run: Run, cause: Cause, operations: int) -> bool:
    """Return whether the idle time is mostly that of launched work which had not begun, and longer than launches take:
    launching less would not shorten it.

    operations: of the device
    """
    late_ns = run.ns("launch_latency")
    is_most = "launch_latency" in cause.causes and 2 * late_ns > run.idle_in(*cause.causes)
    return is_most and late_ns > _LATE_NS * operations > 0


def _explain_by_cause(run: Run, idle_time: IdleTime) -> Explanation:
    """Return what is said of the cause of most idle time: how long it lasted, the calls that took most of it,
    the gaps that stand out, and what to do about it.

    idle_time: what is known of the idle time of the run's device
    """
    cause = _main_cause(run)
    if _begins_late(run, cause, idle_time.operations):
        cause = _BEGINS_LATE
    kind = cause.causes[0]
    rounds = idle_time.rounds
    are_rounds_most = run.idle_ns > 0 and rounds.idle_ns >= _MOST_OF_IT * run.idle_ns
    # a round is a row of calls: it says nothing of the CPU's own code, of calls that are not known, or of work that
    # begins late
    if kind not in ("host", "unknown", "launch_latency") and are_rounds_most:
        clauses = Clause(f"{span(rounds.idle_ns)} of that"), *in_words(rounds, Cut.DETAIL)
        faster = in_one_round(rounds)
        return Explanation(clauses, rounds.idle_ns, evidence_of(rounds), (faster,))
    lost_ns = run.idle_in(*cause.causes)
    clauses = (Clause(f"for {span(lost_ns)} of that {cause.text}"),)
    explanation = Explanation(clauses, lost_ns, {"idle_for_this_ns": lost_ns}, cause.faster)
    if kind == "unknown" and run.facts.analysis.trace.recorder == "nsys":  # these are its options
        explanation.faster = (cause.faster[0] + _PAGE_FAULTS,)
    if kind in ("api", "sync"):
        _add_calls(explanation, run, cause, idle_time)
    if kind == "api_launch":
        explanation.faster = _advice_on_launches(run, idle_time, cause)
    if kind == FIRST_LAUNCH:
        explanation.faster = _advice_to_warm_up(run)
    _add_gaps(explanation, run, idle_time.crowd.whole())
    return explanation


def _advice_on_launches(run: Run, idle_time: IdleTime, cause: Cause) -> tuple[str, ...]:
    """Return what to do about time in calls that launch kernels or copies: nothing where the operations are not small."""
    if run.ns("graph") or run.details["detail"].str.contains(GRAPH_LAUNCH).any():
        return (IN_GRAPHS,)
    if _nearly_only_copies(run)[0]:
        return (_FEWER_COPIES,)
    mean_ns = run.ns("kernel", "memset") / max(idle_time.operations, 1)
    are_large = idle_time.operations and mean_ns > SMALL_NS
    return () if are_large else cause.faster


def _add_gaps(explanation: Explanation, run: Run, crowd: Crowd) -> None:
    """Add to an explanation the gaps that stand out beside the cause: many of one kind (`crowd`), and the longest
    ones.

    explanation: its clauses, evidence and gaps are extended
    """
    # gaps of about the same length say more
    share = _MANY if _is_median_usual(crowd) else _MOST_OF_IT
    is_crowded = _has_many(crowd) and crowd.ns >= share * run.idle_ns
    if is_crowded:
        explanation.clauses += until(Cut.SECOND_CLAUSE, Clause("; "), *_crowd_in_words(crowd))
        explanation.evidence |= _crowd_evidence(crowd)
    longest = _longest_gaps(run)
    if is_crowded or explanation.faster:  # beside these only a gap that matters by itself
        longest = [gap for gap in longest[:1] if gap.ns >= _MANY * run.idle_ns]
    if longest and sum(gap.ns for gap in longest) >= WARN_SHARE * run.idle_ns:
        gaps = "gaps" if len(longest) > 1 else "gap"
        told = Clause(f"; the longest {gaps}: "), *_gaps_in_words(run, longest)
        explanation.clauses += until(Cut.THIRD_CLAUSE, *told)
        explanation.gaps = longest


def _add_calls(explanation: Explanation, run: Run, cause: Cause, idle_time: IdleTime) -> None:
    """Add to an explanation which calls took most of the idle time of a cause, and what to do about those that launch
    nothing: what loads code or allocates need not be called again and again.

    explanation: its clauses, evidence and advice are extended
    """
    calls = run.details
    calls = calls[calls["cause"].isin(cause.causes) & (calls["detail"] != "")]
    ns_of_call = calls.groupby("detail", sort=False, observed=True)["ns"].sum()
    ns_of_call = ns_of_call.sort_values(ascending=False)
    if not len(ns_of_call):
        return
    share_up_to_call = ns_of_call.cumsum() / max(ns_of_call.sum(), 1)
    # all that stay below the share, and the one that reaches it
    count = int((share_up_to_call < _CALLS_SHARE).sum()) + 1
    names = [str(name) for name in ns_of_call.index[: min(count, MOST_NAMED)]]
    named = " and ".join(names)
    is_mostly = share_up_to_call.iloc[len(names) - 1] >= MOSTLY
    shorter = {Cut.WORDS: f", mostly {named}" if is_mostly else "", Cut.DETAIL: ""}
    explanation.clauses += (Clause(f", most of it in {named}", shorter),)
    # the one that took longest is also the one that was called most often: how often is known of that
    if cause.causes == ("sync",) and names[0] == idle_time.sync_call:
        called = f" (called {times_over(idle_time.sync_count)})"
        explanation.clauses += (Clause(called, {Cut.DETAIL: ""}),)
        explanation.evidence["calls"] = idle_time.sync_count
    if cause.causes != ("api",):  # what to do about a synchronisation does not depend on its name
        return
    loads = [name for name in names if LOADS.match(name)]
    allocates = [name for name in names if ALLOCATES.match(name)]
    remaining = [name for name in names if name not in (*loads, *allocates)]
    if not all(map(_MAKES.search, remaining)):
        return  # what polls, ends or asks need not be what can be called once
    if remaining:  # a call of another kind
        explanation.faster = (f"Call {' and '.join(names)} once, before the part that counts",)
    elif loads and allocates:
        explanation.faster = (_LOAD_AND_ALLOCATE,)
    elif loads:
        explanation.faster = _advice_to_warm_up(run)
    else:
        explanation.faster, explanation.sure = (_ALLOCATE_ONCE,), True


def _largest_causes(run: Run, idle_time: IdleTime) -> Explanation:
    """Return the three largest causes of the idle time, with their numbers."""
    sums = [(run.idle_in(*cause.causes), cause.text) for cause in CAUSES_OF_IDLE]
    sums.sort(key=lambda row: -row[0])
    sums = [(ns, text) for ns, text in sums[:MOST_NAMED] if ns]
    texts = [f"for {span(ns)} {text}" for ns, text in sums]
    evidence = {f"idle_{number}_ns": ns for number, (ns, _) in enumerate(sums, 1)}
    if idle_time.sync_count >= _MANY_GAPS:
        texts.append(f"{idle_time.sync_call} was called {times_over(idle_time.sync_count)}")
        evidence["calls"] = idle_time.sync_count
    cuts = (Cut.SECOND_CLAUSE, Cut.THIRD_CLAUSE, Cut.FOURTH_CLAUSE)
    later = [Clause(f"; {text}", {cut: ""}) for text, cut in zip(texts[1:], cuts, strict=False)]
    return Explanation((*map(Clause, texts[:1]), *later), 0, evidence)


# --- gaps ---


def _longest_gaps(run: Run) -> list[Any]:
    """Return the longest gaps of the run (rows of `frames.GAPS`), those that are nearly as long as the
    first; not those in which the CPU touched managed memory."""
    table = run.facts.analysis.gaps
    table = table[table["interval"] == run.row.interval]
    gaps = sorted(table.itertuples(index=False), key=lambda gap: -gap.ns)
    gaps = [gap for gap in gaps if not run.touched_ns or gap.next != "page migration D2H"]
    return [gap for gap in gaps[:MOST_NAMED] if gap.ns >= _NEARLY_AS_LONG * gaps[0].ns]


def _gaps_in_words(run: Run, gaps: list[Any]) -> tuple[Clause, ...]:
    """Return gaps in words; the first clause is how long the first one is."""
    first, *later = gaps
    cuts = (Cut.SECOND_PAUSE, Cut.THIRD_PAUSE)[: len(later)]
    clauses = _gap_in_words(run, first)
    for gap, cut in zip(later, cuts, strict=True):
        clauses += until(cut, Clause(", "), *_gap_in_words(run, gap))
    # where one is left out, this says so
    return (*clauses, Clause("", {cuts[-1]: ", …"})) if later else clauses


def _gap_in_words(run: Run, gap: Any) -> tuple[Clause, ...]:
    """Return a gap in words: "0.70 s at 1.2 s before copy H2D pinned (the CPU outside of CUDA)": how long it is, when it
    began since the run's first work, what ended it, and what the CPU did.

    gap: a row of `frames.GAPS`
    """
    did, cut = "the CPU outside of CUDA", Cut.DETAIL
    if gap.call == NOT_KNOWN:
        did = NOT_KNOWN
    elif 2 * gap.call_ns >= gap.ns:
        did = f"the CPU in {gap.call}"
    elif gap.call and gap.call_ns > 0.02 * gap.ns:
        did, cut = "no CUDA call took half of it", Cut.REMARK
    since = span(max(int(gap.start_ns) - run.row.start_ns, 0))
    return (
        Clause(span(int(gap.ns))),
        Clause(f" at {since}", {Cut.PLACE: ""}),
        Clause(" before "),
        _named(kernel_name(gap.next)),
        Clause(f" ({did})", {cut: ""}),
    )


def _has_many(crowd: Crowd) -> bool:
    return crowd.count >= _MANY_GAPS


def _crowd_in_words(crowd: Crowd) -> tuple[Clause, ...]:
    """Return many gaps of one kind in words: "23,915 gaps of some 21 us before add of 2.8 us take 0.50 s", with the medians
    where these stand for all of them."""
    before = kernel_name(crowd.before) if crowd.before else "other work"
    take = Clause(f" take {span(crowd.ns)}")
    if not _stands_for_all(crowd):
        return Clause(f"{crowd.count:,} gaps before "), _named(before), take
    gaps = Clause(f"{crowd.count:,} gaps of some {span(crowd.gap_ns)} before ")
    return gaps, _named(before), Clause(f" of {span(crowd.runs_ns)}", {Cut.RANGE: ""}), take


def _named(kernel: str) -> Clause:
    return Clause(kernel, {Cut.WORDS: _bare(kernel)})


def _bare(kernel: str) -> str:
    """Return the name of a kernel, or what is said of several, without a namespace."""
    return kernel.rpartition("::")[2]


def _is_median_usual(crowd: Crowd) -> bool:
    """Return whether the median gap tells how long they are all together."""
    return 0.5 * crowd.ns <= crowd.count * crowd.gap_ns <= 2 * crowd.ns


def _stands_for_all(crowd: Crowd) -> bool:
    """Return whether so many gaps of the median length take about as long as all of them: a reader multiplies."""
    return abs(crowd.count * crowd.gap_ns - crowd.ns) <= _TYPICAL_ERROR * crowd.ns


def _crowd_evidence(crowd: Crowd) -> dict[str, Any]:
    evidence = {"gaps": crowd.count, "gaps_ns": crowd.ns, "before": crowd.before}
    if _stands_for_all(crowd):
        evidence |= {"gap_ns": crowd.gap_ns, "operation_ns": crowd.runs_ns}
    return evidence
