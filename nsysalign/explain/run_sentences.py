"""Sentences about a run as a whole, and what is left of them in three lines of a screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from textwrap import wrap
from typing import Any

import pandas as pd

from nsysalign.causes import DISPLAY
from nsysalign.explain.verdict import CAT, NCCL, WITHOUT_CAT, collectives_ns
from nsysalign.model import OPERATION_KINDS, Evidence
from nsysalign.parts import staging
from nsysalign.text import duration, kernel_name, percent, safe_text

#: What lies between the nodes of one launch of a graph.
BETWEEN_NODES = "between nodes of graphs"
#: A GPU that works for less of a run waits for something that is named.
_NEARLY_ALL = 0.9
#: NCCL's kernels are named in what is said of a run from this share of it on.
NCCL_SHARE = 0.2
#: So many GPUs are named beside the one that a sentence is about.
_MOST_BESIDE = 2
#: A kernel with less of the kernel time is not worth looking at.
_MUCH = 0.1
#: The times of a kernel that ran so often differ much where their mean is so many times their median.
_FEWEST_SPREAD, _SPREAD = 20, 1.5
#: Lines of a sentence about a run, and their columns; what stands in brackets.
_LINES, _COLUMNS = 3, 80
_BRACKETS = re.compile(r" \([^()]*\)")
#: The name of a run where there are several: it stays, as what is said is of that one alone.
_NAME = re.compile(r"^Run \([^()]*\): ")
_TIME = r"[\d.,]+ (?:ns|us|ms|s)"
#: The last of several pauses, with what stands before it.
_LAST_PAUSE = re.compile(
    rf"(\b(?:pauses|gaps): {_TIME} [^;]*?), {_TIME} (?:at {_TIME} )?before (?:(?!, {_TIME} )[^;])*?(?:, …)?(?=;|\.?$)"
)
#: What of a sentence about set-up says less than why the GPU was idle: the call, both sides of the work; no name of a run.
_CALL_OR_SIDES = re.compile(
    rf"(?<!^Run) \([^()]*\)|(?<= first CUDA call) to the last: {_TIME} before it, {_TIME} after it"
)
#: A sentence about idle time that does not say why.
_NO_CAUSE = re.compile(r"ran nothing (?:of this process )?for [^;:]*\.$")
#: Totals that follow from others.
_TOTAL = rf"(?:; without (?:it|them) the GPU idles for|; the rest of the run takes) {_TIME}"
#: The sentences that a cut is about: that on set-up, that on the run, and that on the run only behind one on set-up.
_SET_UP, _RUN, _RUN_BEHIND = range(3)


def _by_one_call(match: re.Match[str]) -> str:
    """Return "607 of 890 ms are cudaFree before ..." for "608 of 890 ms are CUDA calls before ... (cudaFree 607 ms)"; the
    same text where the call is less than nearly all of them."""
    in_calls, whole, _, before, call, longest = match.groups()
    if _number(longest) < _NEARLY_ALL * _number(in_calls):
        return match[0]
    return f"{longest} of {whole} are {call} before {before}"


def _number(text: str) -> float:
    return float(text.replace(",", ""))


#: What is left out or said shorter where three lines have no room, in this order: (in which sentence, what, what
#: stands there instead).
_CUTS: tuple[tuple[int, str, str | Callable[[re.Match[str]], str]], ...] = (
    (_RUN, r" \(when code is compiled, loaded or set up\)| \(no CUDA call took half of it\)", ""),
    (_RUN, rf"{_TOTAL}, of which", ";"),
    (_RUN, _TOTAL, ""),
    (_RUN, "; how long the page faults themselves took is not in the trace", ""),
    (_RUN, rf"({_TIME}) of that is one pause: \1 ", r"\1 of that is one pause "),
    (_RUN, r" \(of [\d,]+ such kernels the one that runs longest: [^)]*\)", ""),
    (_SET_UP, rf"; the GPU works for {_TIME}", ""),
    (_SET_UP, ": set-up", ""),
    (_SET_UP, r"\bpass in CUDA calls", "are CUDA calls"),
    (
        _SET_UP,
        r"([\d.,]+) of ([\d.,]+ (\w+)) are CUDA calls before (.+?) \((\w+) ([\d.,]+) \3\)",
        _by_one_call,
    ),
    (_RUN_BEHIND, r"(?i)\bbetween its first and its last work (?=the GPU ran nothing)", "then "),
    (_RUN, " between the first and the last work of the GPU", ""),
    (_RUN, rf", the CPU's own code before and between them {_TIME}", ""),
    (
        _RUN,
        r", and the GPU has [\d,]+ multiprocessors|, one after the other| to and from the GPU",
        "",
    ),
    (_RUN, rf" at {_TIME} before ", " before "),
    (_RUN, r"\bwaited for (.+?) to run for the first time", r"waited for the first run of \1"),
    # "that launch nothing" stays: in all CUDA calls the CPU was longer
    (_RUN, "inside (CUDA calls that launch nothing), most of it in", r"in \1, mostly"),
    (_RUN, r"\b(?:\w+::)+(?=\w)", ""),
    (_SET_UP, rf", {_TIME} of them in CUDA calls", ""),
    (_SET_UP, r"^Run \(process (\d+)[^()]*\)", r"Process \1"),
    (_SET_UP, r"^Run \((GPU \d+)\)", r"\1"),
    (_RUN, r" \([^()]* in the range [^()]*\)", ""),
    (_RUN, rf" of {_TIME} take\b", " take"),
)


def nccl_clause(ns: int) -> str:
    """What NCCL's kernels take of a run."""
    return f"NCCL's kernels, which also wait for other ranks, ran for {duration(ns)}"


def of_thinned(ran_ns: int) -> str:
    """What is known of the run of a trace of which rows were taken out."""
    return f"What is left of its GPU work ran for {duration(ran_ns)}."


def between_nodes_ns(kernels: pd.DataFrame, label: str, graph_ns: int) -> int:
    """How much of what a run spent in CUDA graphs lies between their nodes: all but the graphs that are
    one row each.  kernels: `frames.KERNELS`."""
    graphs = kernels[(kernels["label"] == label) & (kernels["kind"] == "graph")]
    return max(graph_ns - int(graphs["total_ns"].sum()), 0)


def of_run(analysis: Evidence, label: str, interval: int, parts: Mapping[str, int]) -> str:
    """Return sentences on a run as a whole: how long it takes, for how long the GPU worked in it, the three largest
    reasons for its idle time, and its largest kernel.  The reasons are left out if it worked nearly all the time,
    the kernel if it worked for less than half of it.

    label, interval: the run's label and the number of its interval
    parts: the run's ns by cause
    """
    whole_ns = max(sum(parts.values()), 1)
    details = analysis.details[analysis.details["interval"] == interval]
    between_ns = between_nodes_ns(analysis.kernels, label, parts["graph"])
    staged_ns = int(staging(details)["ns"].sum())
    # while the CPU stages a copy, and between the nodes of a graph, the GPU does nothing
    worked_ns = sum(parts[cause] for cause in OPERATION_KINDS) - staged_ns - between_ns
    if analysis.trace.thinned:
        return of_thinned(worked_ns)
    text = f"From its first to its last GPU work the run takes {duration(whole_ns)}"
    mine, beside = _side_by_side(analysis.runs, label)
    if side_by_side := _on_several_gpus(analysis.runs, label):
        count, least_ns = side_by_side
        text += f"; each of {count} GPUs worked for {duration(least_ns)} of it or more ({percent(least_ns / whole_ns)})."
    elif mine:
        shares = [f"{mine} worked for {percent(worked_ns / whole_ns)} of it"]
        shares += [f"{name} for {percent(share)}" for name, share in beside]
        text = f"Run: its GPU work spans {duration(whole_ns)}; {', '.join(shares)}."
    else:
        text += (
            f"; the GPU worked for {duration(worked_ns)} of it ({percent(worked_ns / whole_ns)})."
        )
    nccl_ns = collectives_ns(analysis.kernels, label)
    if nccl_ns >= NCCL_SHARE * whole_ns:
        text += f" {nccl_clause(nccl_ns)}."
    if worked_ns < _NEARLY_ALL * whole_ns:
        idle = [(ns, DISPLAY[c]) for c, ns in parts.items() if c not in OPERATION_KINDS]
        idle = nlargest(3, [*idle, (between_ns, BETWEEN_NODES)])
        named = [f"{name} {percent(ns / whole_ns)}" for ns, name in idle if ns >= 0.01 * whole_ns]
        text += f" While {mine or 'it'} ran nothing: {', '.join(named)}." if named else ""
    kernels = analysis.kernels
    rows = kernels[(kernels["label"] == label) & (kernels["kind"] == "kernel")]
    if 2 * worked_ns < whole_ns or rows.empty:
        return text
    largest = rows.sort_values("total_ns", ascending=False).iloc[0]
    share = largest["total_ns"] / max(rows["total_ns"].sum(), 1)
    kernel_time = f"the kernel time of {mine}" if mine else "its kernel time"
    if share < _MUCH:
        return f"{text} No kernel is more than {percent(share)} of {kernel_time}."
    text += f" {kernel_name(safe_text(largest['kernel']))} is {percent(share)} of {kernel_time}{_spread(largest)}"
    if CAT.search(largest["kernel"]):
        return f"{text}: torch.cat copies. {WITHOUT_CAT.capitalize()}."
    # ncu replays a kernel alone: a collective would wait for ever
    return f"{text}." if NCCL.search(largest["kernel"]) else f"{text}: look at it with ncu."


def _spread(kernel: pd.Series[Any]) -> str:
    """Return in brackets how far apart the times of a kernel lie, '' where they do not, or it ran few times."""
    mean_ns = kernel["total_ns"] / max(kernel["count"], 1)
    if kernel["count"] < _FEWEST_SPREAD or mean_ns < _SPREAD * kernel["median_ns"]:
        return ""
    median = duration(kernel["median_ns"])
    return f" (half of {kernel['count']:,} take {median} or less, the mean is {duration(mean_ns)})"


def _side_by_side(runs: pd.DataFrame, label: str) -> tuple[str, list[tuple[str, float]]]:
    """Return (the GPU of a run, by its name; the names of those that worked beside it, and for which share of their own
    run), at most _MOST_BESIDE of them; ("", []) where there is one GPU alone, or where the run is that of a stream.
    """
    devices = runs.drop_duplicates(["pid", "device"])
    mine = devices[devices["label"] == label]
    if len(devices) < 2 or mine.empty:
        return "", []

    def name(run: pd.Series) -> str:
        return (
            f"GPU {run.device}" if devices["device"].is_unique else f"the GPU of process {run.pid}"
        )

    run = mine.iloc[0]
    allowed_ns = (1 - _NEARLY_ALL) * run.elapsed_ns
    begins_with_it = (devices["start_ns"] - run.start_ns).abs() <= allowed_ns
    lasts_as_long = (devices["elapsed_ns"] - run.elapsed_ns).abs() <= allowed_ns
    beside = devices[begins_with_it & lasts_as_long & (devices["label"] != label)]
    shares = [(name(row), row.gpu_busy_ns / row.elapsed_ns) for _, row in beside.iterrows()]
    return name(run), shares[:_MOST_BESIDE]


def _on_several_gpus(runs: pd.DataFrame, label: str) -> tuple[int, int] | None:
    """How many GPUs worked side by side with that of a run, each for nearly all of it, and for how long
    at least; None where there is one, or one of them did less.  runs: of processes on devices."""
    count = runs["device"].nunique()
    if count < 2:
        return None
    devices = runs.drop_duplicates(["pid", "device"])
    mine = devices[devices["label"] == label]
    if mine.empty:
        return None
    begin, whole = mine[["start_ns", "elapsed_ns"]].iloc[0]
    apart = (devices["start_ns"] - begin).abs().max()
    least = int(devices["gpu_busy_ns"].min())
    if apart > (1 - _NEARLY_ALL) * whole or least < _NEARLY_ALL * whole:
        return None
    return count, min(least, int(whole))


def in_three_lines(text: str, behind: str = "") -> str:
    """A sentence about a run, behind one about its set-up or alone, with as much of both as three
    lines of 80 columns have room for.  What says least is dropped first: totals that follow from others,
    words, where pauses lie, then all but the largest pause; the first cause stays.

    text: the sentence about the run
    behind: the one about its set-up, which stands before it, '' for none
    """
    set_up, run = behind, text
    pairs = [(set_up, run)]  # both, ever shorter
    for sentence, pattern, instead in _CUTS:
        if sentence == _SET_UP:
            set_up = re.sub(pattern, instead, set_up)
        elif set_up or sentence == _RUN:
            run = re.sub(pattern, instead, run)
            run = run[:1].upper() + run[1:]
        pairs.append((set_up, run))
    shorter = list(_shorter(run))
    with_cause = [cut for cut in shorter if says_why(cut)]
    # why the GPU was idle says more than which call sets up, and how long before and after the work
    brief = _CALL_OR_SIDES.sub("", set_up)
    # "from the first CUDA call to the last" has lost its end
    brief = brief.replace("from the first CUDA call.", "since the first CUDA call.")
    pairs += [(set_up, cut) for cut in with_cause]
    pairs += [(brief, cut) for cut in with_cause]
    pairs += [(set_up, cut) for cut in shorter]
    texts = (f"{head} {cut}".strip() for head, cut in pairs if _fits(head, cut))
    return next(texts, set_up or run)


def without_name(text: str) -> str:
    """Return a sentence about a run that was named before without its name."""
    text = _NAME.sub("", text)
    return text[:1].upper() + text[1:]


def says_why(text: str) -> bool:
    """Whether a sentence about a run, as short as it is, still says why the GPU was idle, if that is what it is about."""
    return _NO_CAUSE.search(text) is None


def if_room(text: str, behind: str) -> str:
    """Behind a sentence about set-up how long the GPU worked, where three lines have room for it:
    without its share it says nothing."""
    return f"{behind} {text}" if _fits(behind, text) else behind


def _shorter(text: str) -> Iterator[str]:
    """A sentence with ever less behind its first cause: without its last pauses, its last clauses
    and sentences, then its brackets, at last its first clause alone.  The name of its run stays."""
    named = _NAME.match(text)
    name = named[0] if named else ""
    text = text.removeprefix(name)
    while (cut := _LAST_PAUSE.sub(r"\1, …", text).replace("….", "…")) != text:
        text = cut
        yield name + text
    for whole in (text, _BRACKETS.sub("", text)):
        sentences = re.split(r"(?<=\.) (?=[A-Z])", whole)
        for count in range(len(sentences), 1, -1):
            yield name + " ".join(sentences[:count])
        clauses = sentences[0].split("; ")
        for count in range(len(clauses), 1, -1):
            yield f"{name}{'; '.join(clauses[:count]).removesuffix('.')}."
    yield f"{name}{clauses[0].removesuffix('.')}."
    yield f"{name}{clauses[0].partition(': ')[0].removesuffix('.')}."


def _fits(behind: str, text: str) -> bool:
    """Whether three lines have room for both: the first sentence has lines of its own, as on a
    screen."""
    head, stop, tail = f"{behind} {text}".strip().partition(". ")
    return len(wrap(head + stop, _COLUMNS)) + len(wrap(tail, _COLUMNS)) <= _LINES
