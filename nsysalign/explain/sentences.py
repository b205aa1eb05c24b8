"""All sentences about labels: what a number consists of, in one or two of them.

    h2d_t1 measured 228 us; its kernels take 24.7 us.         a label of one group: its typical interval
    The GPU sat idle: the kernel was launched 153 us after start.record().

    b01.py:23-26: 600 timings, 1.65 s; 48 % of it is 5     a label of several groups: sums, the group
    of them, 150 ms each: CPU outside CUDA 99 %.           that matters, then the others

A number beside a number is of the same thing: parts of one interval beside its length, shares of a
sum beside the sum.  `Numbers` notes each number that is printed, for the finding's evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.case import (
    COPIES,
    FEWEST_REPEATED,
    ITEM_BYTES,
    MANY_TIMES,
    NEARLY_ALL,
    VERY_MANY,
    Case,
    Growth,
    Numbers,
    beside,
    spoken,
)
from nsysalign.explain.clauses import MOSTLY
from nsysalign.explain.preparing import (
    CODE,
    GRAPH,
    LOADS,
    compiled,
    compiler_of,
    earliest,
    loading_share,
    loads_code,
    prepared,
    records_graph,
    searches,
    times_compiled,
    tries_kernels,
)
from nsysalign.explain.same_kernel import Elsewhere
from nsysalign.explain.validity import (
    SPREAD,
    SPREAD_SAMPLES,
    converts_to,
    largest_kernel,
    largest_of_host_timer,
    launched_in,
    list_share,
)
from nsysalign.explain.verdict import (
    COPY,
    CPU,
    FLOOR,
    GPU,
    GPU_SHARE,
    LAUNCH,
    MANY_LAUNCHES,
    MIXED,
    WAITING,
    Sums,
    sums_of,
    together,
    word_of,
    works_beside,
)
from nsysalign.label import ALIKE, FIRST, MEMORY, Entry, Group, Label
from nsysalign.model import OTHER_THREAD
from nsysalign.place.pauses import GARBAGE_COLLECTION
from nsysalign.text import (
    bytes_text,
    duration,
    kernel_name,
    middle,
    ordinal,
    percent,
    plural,
    safe_text,
    times_over,
)

#: Where a label's clock starts.
_BEGIN = {"event": "start.record()", "host": "the first clock reading", "nvtx": "its begin"}
#: What the first GPU work is called, by its cause.
_WORK = {"kernel": "kernel", "graph": "graph", "memcpy": "copy"}
#: From this share of the idle time on, what lies before the first GPU work is the story.
_BEFORE_FIRST = 0.6
#: So much garbage collection is named, which the program can do without.
GARBAGE_SHARE = 0.05
#: A part from this share of a group on is named.
_NAMED = 0.1
#: Shares of the time of one timing and of all of them that differ by less say the same.
_UNLIKE_ALL = 0.1
#: Of so many different kernels it is said which of them make the difference.
_LEAST_TOLD = 2
#: A part of it that misses all of it by less than this is all of it.
_ROUNDING = 0.05
#: A verdict in words has so many letters, and a call in it so many, beside its share.
_WORDS, _CALL_LETTERS = 24, 16
#: A label of several groups is told in about so many letters: three lines.
_LETTERS = 215
#: A typical timing stands for a group's total that it misses by less than this share.
_TYPICAL_ERROR = 0.1
#: No one length is that of most timings of which the longer ones take so many times as long as the shorter ones.
_DIFFER = 2
#: The first version of Python that has builds without its lock.
_FREE_THREADED = (3, 13)
#: From so many kinds of timings on, what all of them have in common is said once.
_SEVERAL = 3
#: Kernels' names in sentences have at most so many letters.
_KERNEL_LETTERS = 48

#: torch's index_put with accumulate, which the backward of x[i] is, and index_add where it must be deterministic.
ADDS_DUPLICATES = re.compile(r"\bindexing_backward_kernel")
#: torch.cuda._sleep.
_DELAY = "spin_kernel"
#: Letters of a kernel's name where it tells kinds of timings apart.
_KIND_LETTERS = 24
_BLOCKS = re.compile(r"[\d,]+ blocks?")
_BYTES = re.compile(r"[\d.,]+ [kMG]?B")


# --- one group ---


def of_one_group(case: Case, cause: str, numbers: Numbers, *, first: bool = False) -> str:
    """Return sentences on one group of a label, by its typical interval: how long it takes, and why.

    cause: what takes most of the avoidable time (`Case.avoidable`), "" for nothing
    numbers: each number that the sentences print is noted in its evidence
    first: whether it is a first call that was timed

    The order: what happens once; then by the verdict word, which says what the time is; where it says only that the GPU
    was late, by the cause.

    h2d_t1 measured 228 us: 98 % kernels.                            GPU
    h2d_t1 measured 228 us; 97 % of it is copying: ...               COPY
    h2d_t1 measured 228 us; its kernels take 24.7 us. The GPU ...    late
    """
    word = case.word
    reads = _reads(case, numbers)
    if first:
        outside = numbers.time("typical_outside_cuda", case.ns("host"))
        return (
            f"{reads}; {_takes(case, numbers)}. It is a first call: the CPU sets up, loads or compiles code, "
            f"{outside} outside CUDA and {_in_calls(case, numbers)}."
        )
    if word == GPU and case.one.share(case.one.busy) < GPU_SHARE:
        return f"{reads}{_works_elsewhere(case, numbers)}"
    if word == GPU:
        return f"{reads}{_works(case, numbers)}"
    if case.beside_other_work:  # a MIXED one: the GPU works, though not on what the timer waits for
        return f"{reads}; {_takes(case, numbers)}."
    if word == MIXED and not cause:
        return f"{reads}: {_largest(case, numbers)}.{_recording(case, numbers)}"
    if word == COPY:
        return f"{reads}; {_copies(case, numbers)}"
    if word == WAITING and case.ns("queued"):
        waited = numbers.time("waiting", case.ns("queued"))
        return f"{reads}; for {waited} of it its work was launched and waited{_waited_for(case, numbers)}"
    if word == WAITING:
        unexplained = numbers.time("unexplained", case.one.waiting)
        takes = _takes(case, numbers)
        return f"{reads}; {takes}. For {unexplained} of it its end waited, and the trace does not say for what."
    text = f"{reads}; {_takes(case, numbers)}."
    if word == FLOOR:
        pair = " and the event pair's own cost" if case.label.kind == "event" else ""
        return f"{text} The rest is launch latency{pair}."
    if not case.group.typical_ns or not cause:
        return text
    return f"{text} {why(case, cause, numbers)}"


def of_threads(case: Case, numbers: Numbers) -> str:
    """A sentence on the other threads of a Python program that hold up the CPU, '' where nothing shows them."""
    if case.thread_count > 1:
        count = numbers.count("threads", case.thread_count, "thread")
        python = case.facts.analysis.known.python
        unless = "" if _has_lock(python) else ", unless it is free-threaded"
        return f" {count} of the program are timed at once, and only one of them runs Python at a time{unless}."
    entry = case.typical_host
    if not entry or not case.off_cpu or entry.what != case.off_cpu:
        return ""
    hardly_ran = "Its thread hardly ran meanwhile"
    if not _is_all_outside(case, entry):  # it ran for the rest
        hardly_ran = f"For {numbers.time('off_cpu', entry.ns)} of that its thread hardly ran"
    if case.off_cpu == OTHER_THREAD:
        holds = "" if case.in_one_piece else ": one may hold Python's interpreter"
        return f" {hardly_ran}, and others of the process did{holds}."
    return f" {hardly_ran}, nor did others of the process: it waited outside of CUDA."


def _is_all_outside(case: Case, entry: Entry) -> bool:
    """Whether an entry is nearly all of the typical interval's time outside CUDA: then that goes by its name."""
    return entry.ns >= NEARLY_ALL * case.ns("host")


def _has_lock(python: str) -> bool:
    """Whether a version of Python ("3.12.3") lets one thread at a time run in any of its builds."""
    version = tuple(map(int, re.findall(r"\d+", python)[:2]))
    return bool(version) and version < _FREE_THREADED


def of_regular(case: Case, numbers: Numbers) -> str:
    """A sentence on slow timings that come at one distance, and on timings that each fork processes, with a space before
    it; '' where neither is so."""
    regular = case.regular
    forks = ""
    if case.forks:
        numbers.evidence["forked"] = case.forks
        forks = f"forks {times_over(case.forks)}, as a DataLoader does that starts its workers anew"
    if regular.distance:
        numbers.evidence["distance"] = regular.distance
        first = ", from the first on," if regular.is_from_first else ""
        text = f" Every {ordinal(regular.distance)} timing{first} is such a slow one"
        return f"{text}: it {forks}." if forks else f"{text}."
    if not forks:
        return ""
    count = numbers.count("group_timings", case.group.count)
    return f" {f'Each of the {count}' if case.group.count > 1 else 'It'} {forks}."


def of_pieces(case: Case, numbers: Numbers, *, of_groups: bool) -> str:
    """Return a sentence on what the CPU's time outside CUDA is made of, with a space before it; '' where one piece is the
    reason, or nothing is known of its pieces.

    of_groups: whether the sentence before is about several groups

    The first that holds: "12 pieces of a millisecond and more outside CUDA take 40.1 ms, the longest 5.20 ms.",
    "Meanwhile another thread launched 300 of its 310 operations, as autograd does in loss.backward().",
    "The CPU spends 9.10 us outside CUDA for each of its 310 operations."
    """
    host_ns = case.ns("host")
    if case.in_one_piece or not host_ns:
        return ""
    in_one = f" In one of {numbers.time('typical', case.group.typical_ns)}"
    if case.in_long_pieces:
        pieces = numbers.count("long_pieces", case.long_piece_count, "piece")
        longest = numbers.time("longest_piece", case.longest_piece_ns)
        # where other threads launch meanwhile, as autograd's does, pieces end there
        outside = "outside CUDA, without a launch," if case.launched_by_others else "outside CUDA"
        if of_groups:
            return f"{in_one} the CPU was {outside} in {pieces} of a millisecond and more, the longest {longest}."
        together = numbers.time("long_pieces", case.long_pieces_ns)
        text = f" {pieces} of a millisecond and more {outside}"
        if case.long_piece_count == 1:
            return f"{text} takes {longest}."
        return f"{text} take {together}, the longest {longest}."
    operations = numbers.count("operations", case.operations, "operation")
    if case.launched_by_others >= MANY_LAUNCHES:
        when = in_one if of_groups else " Meanwhile"
        return f"{when} {_of_other_threads(case, operations, numbers)}."
    if case.operations >= VERY_MANY and 2 * host_ns >= case.idle_ns:
        each_takes = numbers.time("outside_per_operation", host_ns / case.operations)
        if of_groups:
            return (
                f"{in_one} the CPU was outside CUDA for {each_takes} for each of its {operations}."
            )
        return f" The CPU spends {each_takes} outside CUDA for each of its {operations}."
    return ""


def _of_other_threads(case: Case, operations: str, numbers: Numbers) -> str:
    """A clause on what other threads launch while this one is outside CUDA: "another thread launched 300 of its 310
    operations, as autograd does in loss.backward()", "8 other threads launched all of its 47,600 operations".

    operations: how many operations the typical interval has, in words
    """
    threads = case.threads_that_launch
    threads_text = "another thread"
    if threads > 1:
        threads_text = numbers.count("threads_that_launch", threads, "other thread")
    launches = case.launched_by_others
    # the only thread that the program times is not autograd's
    as_autograd = (
        ", as autograd does in loss.backward()" if case.by_untimed and threads == 1 else ""
    )
    if launches <= case.operations:
        launched = numbers.count("launched_by_others", launches)
        return f"{threads_text} launched {launched} of its {operations}{as_autograd}"
    if not case.ns("api_launch"):  # nobody else did; some calls give the GPU nothing
        return f"{threads_text} launched all of its {operations}{as_autograd}"
    # other work than what is timed
    return f"{threads_text} launched {numbers.count('launched_by_others', launches)} times{as_autograd}"


def of_first_inside(case: Case, numbers: Numbers) -> str:
    """A sentence on the first calls inside its only timing that other labels leave out, '' where they matter little."""
    if case.first_inside_ns < _NAMED * case.group.typical_ns:
        return ""
    idle = numbers.time("idle_in_first_calls", case.first_inside_ns)
    labels = case.first_inside["label"].unique().tolist()
    places = ", ".join(beside(case.label.site, label) for label in labels[:_SEVERAL])
    calls = "the first call" if len(case.first_inside) == 1 else "first calls"
    return f" In {calls} of {places} the GPU had nothing to do for {idle}."


def of_compiled_inside(case: Case, numbers: Numbers) -> str:
    """A sentence on timings inside its typical one in which somebody compiles, '' for less than two."""
    if not case.compiled_inside:
        return ""
    return f" In {numbers.count('compiled_inside', case.compiled_inside)} timings inside it code is compiled."


def of_waits(case: Case, numbers: Numbers, *, begins: bool) -> str:
    """A sentence on waits beside the CPU's own time, which is longer; '' where it waits rarely.

    begins: whether no sentence before it is about a typical timing, though several kinds are told of
    """
    if not case.waits_often:
        return ""
    waits = case.group.work.waits
    times = "once" if waits == 1 else f"{numbers.count('waits', waits)} times"
    if begins:
        typical = numbers.time("typical", case.group.typical_ns)
        return f" In one of {typical} the CPU also waits for the GPU {times}."
    return f" It also waits for the GPU {times}."


def of_search(case: Case, numbers: Numbers) -> str:
    """A sentence on timings in each of which a library searches for the fastest way."""
    operations = numbers.count("operations", case.operations)
    waits = numbers.count("waits", case.group.work.waits)
    count = numbers.count("group_timings", case.group.count, "timing")
    each = f"each of its {count}" if case.group.count > 1 else "it"
    return f" In {each} a library searches for the fastest way ({operations} operations, {waits} waits), as cuDNN does for a new shape."


def of_compiler(case: Case, numbers: Numbers) -> str:
    """A sentence on timings in each of which somebody compiles: of all of its label, where that is so, the first ones, too."""
    in_all = times_compiled(case.label, case.group) == case.label.count
    timings = case.label.count if in_all else case.group.count
    count = numbers.count("group_timings", timings, "timing")
    return f" {case.compiler} compiles in each of its {count}."


def of_garbage(case: Case, numbers: Numbers) -> str:
    """A sentence on Python's garbage collection in its timings, with a space before it; '' where that takes little of them."""
    if not collects_garbage(case.group):
        return ""
    took = numbers.time("garbage", garbage_ns(case.group))
    total = numbers.time("group_total", case.group.total_ns)
    timings = f" of {case.group.count:,} timings" if case.group.count > 1 else ""
    return f" Garbage collection takes {took} of the {total}{timings}."


def collects_garbage(group: Group) -> bool:
    """Whether Python's garbage collection takes a part of a group's time that is worth a word."""
    return garbage_ns(group) >= GARBAGE_SHARE * max(group.total_ns, 1)


def garbage_ns(group: Group) -> int:
    """How long Python collects garbage in all timings of a group."""
    return sum(e.ns for e in group.of_cause("host") if e.what == GARBAGE_COLLECTION)


def of_loading(case: Case, numbers: Numbers) -> str:
    """A sentence on timings in each of which code is loaded."""
    count = case.loads_again
    timings = numbers.count("group_timings", case.group.count, "timing")
    often = f"each of its {timings}"
    if count < case.group.count:
        often = f"{numbers.count('prepare', count)} of its {timings}"
    share = numbers.share("loading", loading_share(case.group), 1)
    if case.loads_the_same:
        return f" In {often} code is loaded ({share} of their time), again and again for the same kernels."
    return f" In {often} code is loaded ({share} of their time)."


def of_allocations(case: Case, numbers: Numbers) -> str:
    """A sentence on memory that is allocated and freed again in most timings, or in turns in one; '' where that is not so."""
    if not case.allocations:
        return ""
    calls = " and ".join(
        f"{numbers.count(f'{name}_calls', count)} {safe_text(name)}"
        for name, count in case.allocations.items()
    )
    took = numbers.time("allocating", case.allocating_ns)
    count, of_count = case.allocating_count, case.group.count
    timings = numbers.count("group_timings", of_count)
    again = f"each of the {timings} timings"
    if count < of_count:
        again = f"{numbers.count('allocating_timings', count)} of the {timings} timings"
    one = sum(case.allocations.values()) == 1
    take, come = ("takes", "comes") if one else ("take", "come")
    if of_count < FEWEST_REPEATED:
        share = numbers.share("allocating", case.allocating_ns, case.group.typical_ns)
        whole = numbers.time("typical", case.group.typical_ns)
        # how often is not told: other threads, as autograd's, may take memory again, too
        return f" {calls} take {took} of the {whole} ({share}), in turns: memory is given back and taken again."
    return f" {calls} {take} {took} of it, and {come} again in {again}."


def of_first_sizes(case: Case, numbers: Numbers) -> str:
    """A sentence on timings that are the first ones of their size, where later ones of the same sizes are done far sooner;
    '' for others."""
    count, takes_ns, later_ns = case.first_of_size
    if not count:
        return ""
    first = numbers.count("first_of_size", count)
    takes = numbers.time("first_of_size", takes_ns)
    later = numbers.time("same_size_later", later_ns)
    return f" {first} timings are the first of their size and take {takes}; later ones of the same sizes take {later}."


def of_memory(case: Case, numbers: Numbers) -> str:
    """A sentence on a label whose kinds of timings differ in whether they give memory back to the driver: how long both
    take, and the calls; '' for others."""
    if case.memory_kinds is None:
        return ""
    calling, without = case.memory_kinds
    calls = ", ".join(map(safe_text, case.memory_calls(calling)))
    count = numbers.count("memory_timings", calling.count)
    takes = numbers.time("memory_timings", calling.typical_ns)
    by = f" ({calls})" if calls else ""
    others = numbers.count("other_timings", without.count)
    less = numbers.time("other_timings", without.typical_ns)
    return f" {count} timings of {takes} give memory back to the driver and take it again{by}; {others} that keep it take {less}."


def of_typical_that_misleads(case: Case, numbers: Numbers) -> str:
    """A sentence on timings of about one length that are GPU work to different shares: the typical one is, most of
    the others are less."""
    share = numbers.share("all_busy", case.sums.busy, case.sums.whole)
    typical = numbers.share("typical_gpu", case.one.busy, case.group.typical_ns)
    count = numbers.count("group_timings", case.group.count)
    return f"{_reads(case, numbers)}: over its {count} timings {share} of the time is GPU work, in this one {typical}."


def _reads(case: Case, numbers: Numbers) -> str:
    time = numbers.time("typical", case.group.typical_ns)
    if case.label.kind == "nvtx":
        return f"{spoken(case.label.name)}: its GPU work spans {time}"
    return f"{spoken(case.label.name)} measured {time}"


def of_ranges(case: Case, shown: Sequence[Group], numbers: Numbers) -> str:
    """A sentence on the group whose ranges last longest beside their work on the GPU, with a space before it: a thread that
    waits in its range for its work waits from the range's start to its end.  '' where they last about as long as the work.

    thread   [ CPU    launch   wait       ]   47.7 ms, of which kernels are 38 %
    GPU                  [KKK   KKKKK  KK]    35.4 ms, 52 %
    """
    lasting_ns = {group.number: case.lasting_ns(group) for group in shown}
    group = max(shown, key=lambda g: lasting_ns[g.number] / g.total_ns)
    whole_ns = lasting_ns[group.number]
    if whole_ns <= ALIKE * group.total_ns:
        return ""
    lasts = numbers.time("longer_range", whole_ns / group.count)
    share = numbers.share("longer_range_kernels", group.ns("kernel", "graph"), whole_ns)
    of_group = f" of {duration(group.total_ns / group.count)}" if shown[1:] else ""
    mean = " on average" if group.count > 1 else ""
    return f" The range{of_group} itself lasts {lasts}{mean} (kernels {share})."


def _works(case: Case, numbers: Numbers) -> str:
    """Return how much of a GPU-bound time is work of the GPU, and which kernel takes most of it:
    ": 98 % kernels. sort is 81 % of its kernel time: look at it with ncu.", "; kernels ran for 1.2 ms of it (98 %)."
    """
    kernels_ns = case.kernels_ns  # of graphs as well
    what = "a CUDA graph" if case.ns("graph") > case.ns("kernel") else "kernels"
    share = numbers.share("typical_gpu", kernels_ns, case.group.typical_ns)
    beside = _on_device(case, numbers)
    if kernels_ns < _NAMED * case.group.typical_ns and beside:
        return f": {beside.removeprefix(', ')}."
    if case.on_host:
        ran = numbers.time("typical_gpu", kernels_ns)
        text = f"; {what} ran for {ran} of it ({share})."
    else:
        if copies_pageable(case):
            copied = numbers.share("typical_copies", case.ns("memcpy"), case.group.typical_ns)
            beside += f", {copied} copies of pageable memory"
        text = f": {share} {what}{_captured(case, numbers)}{beside}."
    name, part = largest_kernel(case)
    at_least = ""
    # pieces of a host timer are what its CPU did: a kernel that ran meanwhile has none
    if case.ns("kernel") < kernels_ns:
        part *= case.ns("kernel") / kernels_ns
        at_least = "at least "
        if part < 0.5:  # another one may take more
            name, part = largest_of_host_timer(case)
            at_least = ""
    if not name or case.ns("graph"):
        return text
    if share_of_lists := list_share(case):
        share = numbers.share("kernels_of_lists", share_of_lists, 1)
        return f"{text} Kernels of torch's for lists of tensors, as an optimizer's, are {share} of its kernel time."
    if len(name) > _KERNEL_LETTERS:
        name = name[: _KERNEL_LETTERS - 1] + "…"
    largest = at_least + numbers.share("largest_kernel", part, 1)
    if _DELAY in name:  # is as long as it was asked to be
        return f"{text} {safe_text(name)} is {largest} of its kernel time: it delays the GPU on purpose."
    if case.quicker_elsewhere:  # its code is not the reason
        return text
    if dtype := converts_to(name):
        return f"{text} {largest} of its kernel time converts to {dtype} ({safe_text(name)})."
    if ADDS_DUPLICATES.search(name):
        return f"{text} {safe_text(name)} is {largest} of its kernel time: the backward of x[i], or a deterministic index_add_, adds duplicates of an index one after the other."
    if COPIES.search(name) and case.copying_share:  # what to do is said below
        return f"{text} {safe_text(name)}, which copies, is {largest} of its kernel time."
    return f"{text} {safe_text(name)} is {largest} of its kernel time: look at it with ncu."


def _captured(case: Case, numbers: Numbers) -> str:
    """How long each launch takes that a graph replays: " (3.30 us for each of 713 launches that it replays)"."""
    if not case.captured_launches or case.ns("graph") <= case.ns("kernel"):
        return ""
    each = numbers.time("replayed_launch", case.ns("graph") / case.captured_launches)
    count = numbers.count("replayed_launches", case.captured_launches)
    return f" ({each} for each of the {count} launches that it replays)"


def of_slower_kernel(case: Case, numbers: Numbers) -> str:
    """Sentences on a kernel that is far quicker elsewhere in the run: how long it takes here and there, and why, as far
    as the recording knows."""
    quick = case.quicker_elsewhere
    assert quick is not None
    takes = numbers.time("kernel_launch", quick.ns)
    elsewhere = numbers.time("kernel_elsewhere", quick.elsewhere_ns)
    numbers.evidence["elsewhere"] = quick.label
    place = f"in {beside(case.label.site, quick.label)}"
    if quick.label == case.label.name:
        place = "in others of its timings"
    text = f"{safe_text(kernel_name(quick.kernel))} takes {takes} in it; the same kernel with as many blocks takes {elsewhere} {place}."
    if allocated := case.facts.analysis.known.managed_allocations:
        calls = numbers.count("managed_allocations", allocated, "call")
        return f"{text} The run allocates managed memory ({calls}): a kernel that touches pages which are not on the GPU waits while they move."
    return f"{text} Why is not in the recording."


def slower_words(quick: Elsewhere) -> str:
    """The verdict in words of timings whose kernel is far quicker elsewhere."""
    return f"kernel {quick.factor:,.0f} x as long"


def _on_device(case: Case, numbers: Numbers) -> str:
    """What work on the device beside kernels is a part of it that is named: ", 98 % copies on the device"."""
    text, whole_ns = "", case.group.typical_ns
    for what, ns in (
        ("copies on the device", case.one.copies_on_device),
        ("memsets", case.one.memset),
    ):
        if ns >= _NAMED * whole_ns:
            text += f", {numbers.share(what.replace(' ', '_'), ns, whole_ns)} {what}"
    return text


def of_copies_for_graphs(case: Case, numbers: Numbers) -> str:
    """A sentence on the copies on the device that come with each graph launch, with a space before it; '' without such."""
    if not case.copies_for_graphs:
        return ""
    graphs, copied = case.group.work.graphs, case.copied_on_device
    each = f"Each of its {numbers.count('graph_launches', graphs)} graph launches comes"
    copies = numbers.count("copies_for_each", case.copies_for_graphs)
    noun = "copies" if case.copies_for_graphs > 1 else "copy"
    size = bytes_text(sum(i.size for i in copied) / graphs)
    takes = numbers.time("copies_for_each", sum(i.ns for i in copied) / graphs)
    begins = each if graphs > 1 else "Its graph launch comes"
    return f" {begins} with {copies} {noun} on the device: {size}, {takes}."


def copies_pageable(case: Case) -> bool:
    """Whether copies of pageable memory are a part of it that is named."""
    entries = case.group.of_cause("memcpy")
    pageable = bool(entries) and all(entry.memory == "pageable" for entry in entries)
    return pageable and case.ns("memcpy") >= _NAMED * case.group.typical_ns and not case.on_host


def _works_elsewhere(case: Case, numbers: Numbers) -> str:
    """That its end waits for what it launched itself: that is what is timed."""
    streams = sorted(case.others)[:3]
    named = " and ".join(numbers.count(f"working_stream_{n}", s) for n, s in enumerate(streams))
    what = f"stream{'s' if streams[1:] else ''} {named}"
    share = numbers.share("gpu_elsewhere", case.group.elsewhere + case.one.share(case.one.busy), 1)
    return f": {share} kernels, most of them what it launched itself on {what} and waits for."


def _takes(case: Case, numbers: Numbers) -> str:
    """Return how long the GPU worked in the typical interval: "its kernels take 24.7 us", "the GPU ran kernels for 1.20 ms
    of it (31 %)"; of a host timer beside earlier work, for how long it worked on anything; without kernels, that."""
    kernels_ns = case.kernels_ns
    if case.on_host and case.one.share(case.one.earlier) >= _NAMED:
        worked = numbers.time("typical_worked", case.one.worked)
        share = numbers.share("typical_worked", case.one.worked, case.group.typical_ns)
        earlier = numbers.time("typical_earlier", case.one.earlier)
        label, _ = launched_in(case.facts, case.group.intervals)
        where = f"in {beside(case.label.site, label)}" if label else "before"
        return f"the GPU worked for {worked} of it ({share}), {earlier} of that on work that was launched {where}"
    if not kernels_ns and case.others:
        busiest = next(iter(case.others))
        return f"its stream runs no kernel; stream {numbers.count('working_stream', busiest)} works"
    if not kernels_ns:
        works_beside_it = case.on_host and case.one.worked
        return f"no kernel{' of its own' if works_beside_it else ''} runs in it"
    ran = numbers.time("typical_gpu", kernels_ns)
    if case.on_host:
        share = numbers.share("typical_gpu", kernels_ns, case.group.typical_ns)
        graphs = case.group.work.graphs if not case.group.work.of_kind("kernel") else 0
        kernels = "its kernels" if case.one.earlier else "kernels"  # others' ran there, too
        what = {0: kernels, 1: "a CUDA graph"}.get(graphs, "CUDA graphs")
        return f"the GPU ran {what} for {ran} of it ({share})"
    if case.ns("graph") and case.ns(
        "kernel"
    ):  # of kernels beside the graph, or of its nodes, which have rows
        return f"its kernels and CUDA graphs take {ran}"
    if case.ns("graph"):
        return f"its CUDA graph takes {ran}"
    return f"its {'kernel takes' if case.operations == 1 else 'kernels take'} {ran}"


def _largest(case: Case, numbers: Numbers) -> str:
    """The two largest parts of the typical interval."""
    shares_ns = {
        "kernels": case.kernels_ns,
        "copies": case.ns("memcpy", "memset"),
        "launch latency and events": case.ns("launch_latency", "event"),
        "launch calls": case.ns("api_launch"),
        "CPU": case.ns("host"),
        "other CUDA calls": case.ns("api"),
        "profiler": case.ns("profiler"),
        "waiting": case.ns("queued"),
        "synchronising": case.ns("sync"),
        "not in the trace": case.ns("unknown"),
    }
    texts = [
        f"{name} {numbers.share(name.replace(' ', '_'), ns, case.group.typical_ns)}"
        for name, ns in nlargest(2, shares_ns.items(), key=lambda part: part[1])
        if ns
    ]
    return ", ".join(texts)


def _recording(case: Case, numbers: Numbers) -> str:
    """What recording costs of it, where the GPU waits for the CPU because of that."""
    if not case.late_by_recording:
        return ""
    cost = numbers.time("recording", case.one.recording)
    launches = numbers.count("operations", case.operations)
    return f" Recording its {launches} operations may cost {cost} of it."


def why(case: Case, cause: str, numbers: Numbers) -> str:
    """Return a sentence on why the GPU did not work in the typical interval: for how long it was idle, and what the
    CPU did meanwhile.

    cause: what takes most of the avoidable time, one of the keys of `Case.avoidable`
    numbers: each number that the sentence prints is noted in its evidence
    """
    idler = "Its stream" if case.others or case.sums.others_ran else "The GPU"
    idle_ns = case.idle_ns
    idle = numbers.time("typical_idle", idle_ns)
    was_idle = f"{idler} was idle for {idle} of it"
    had_nothing = (
        f"The GPU had nothing to do for {idle} of it"  # of a host timer: it may have been ahead
    )
    if cause == "copies":
        copies = _copies(case, numbers)
        return copies[:1].upper() + copies[1:]
    if cause == "waiting" and case.sums.collectives and not case.ns("queued"):
        return "NCCL's kernels also wait for other ranks."
    if cause == "waiting":
        return also_waited(case, numbers)
    if cause == "sync" and case.group.work.waits:
        return f"{_waits(case, numbers)} {was_idle}."
    if cause == "sync":
        synchronised = numbers.time("typical_sync", case.ns("sync"))
        return f"{was_idle}; the CPU synchronised for {synchronised}."
    if cause == "calls":
        inside = numbers.time("typical_calls", case.ns("api"))
        return f"{was_idle}: the CPU was in other CUDA calls for {inside}{_mostly_in(case, 'api')}."
    if cause == "launches":
        return f"{had_nothing if case.on_host else was_idle}: {_launches(case, numbers)}."
    # what is left is the CPU's own time
    wait = case.before_first_work
    is_most = wait.idle_ns >= _BEFORE_FIRST * idle_ns
    if is_most and wait.launched_ns and not case.on_host:
        begin = _BEGIN.get(case.label.kind, "its begin")
        first = _WORK.get(case.stretches[0].then.cause, "work")
        after = numbers.time("launched_after", wait.launched_ns)
        return f"{idler} sat idle: its first {first} was launched {after} after {begin}{_in_what(case, numbers)}."
    outside_ns = case.ns("host")
    outside = f"the CPU was outside CUDA for {numbers.time('typical_outside_cuda', outside_ns)}{_in_what(case, numbers)}"
    if not case.on_host:
        return f"{was_idle}: {outside}."
    if 2 * outside_ns < idle_ns:
        return f"{had_nothing}{_in_what(case, numbers)}."
    beside = ", partly while the GPU ran" if case.one.share(case.one.worked) > 0.05 else ""
    return f"{had_nothing}; {outside}{beside}."


def _waits(case: Case, numbers: Numbers) -> str:
    """Return a sentence on how often the CPU waits for the GPU, and for how many results that it copies back."""
    waits, back = case.group.work.waits, case.copies_back
    often = numbers.count("waits", waits)
    times = "once" if waits == 1 else f"{often} times"
    results = numbers.count("copies_back", back, "result") if back else ""
    if back == waits:
        text = f"The CPU waits {times} for a few bytes from the GPU"
    else:
        copied = f" ({results} of a few bytes copied back)" if back else ""
        text = f"The CPU waits for the GPU {times} in it{copied}"
    return f"{text}, and launches nothing meanwhile."


def _in_what(case: Case, numbers: Numbers) -> str:
    """What the CPU was in while it was outside CUDA, where the recording has one name for most of it: with its time where
    it is not nearly all: " (2.50 s of it garbage collection)"."""
    entry = case.typical_host
    if not entry:
        return ""
    if _is_all_outside(case, entry):
        is_of_many = entry.what == OTHER_THREAD and case.threads_that_launch > 1
        return " (other threads of the process)" if is_of_many else f" ({safe_text(entry.what)})"
    if entry.what == case.off_cpu:  # `of_threads` tells of it
        return ""
    return f" ({numbers.time('outside_in', entry.ns)} of it {safe_text(entry.what)})"


def _in_calls(case: Case, numbers: Numbers) -> str:
    """How long the CPU was in CUDA calls: also in those that launch, which load the code of what they launch."""
    calls = "api", "api_launch"
    return f"{numbers.time('typical_in_calls', case.ns(*calls))} in CUDA calls{_mostly_in(case, *calls)}"


def _mostly_in(case: Case, *causes: str) -> str:
    """The call that takes most of the time of these causes in the typical interval; '' where none takes half."""
    ns_of_call: dict[str, int] = {}
    for piece in case.facts.segments(case.group):
        if piece.cause in causes and piece.text:
            ns_of_call[piece.text] = ns_of_call.get(piece.text, 0) + piece.ns
    name = max(ns_of_call, key=ns_of_call.__getitem__, default="")
    is_most = bool(name) and 2 * ns_of_call[name] >= case.ns(*causes)
    return f", most in {safe_text(name)}" if is_most else ""


#: No launch is on its way for so long, on average.
_LONGEST_WAY_NS = 50_000


def on_its_way(operations: int, launches_ns: int, latency_ns: int) -> bool:
    """Whether work that was launched and had not begun was on its way to the GPU: else it waited for
    what the trace does not show."""
    return latency_ns <= max(launches_ns, _LONGEST_WAY_NS * operations)


def _launches(case: Case, numbers: Numbers) -> str:
    """Return a clause on what launching took of the typical interval.

    The order: what the trace cannot explain, what one call explains, then how many operations are launched one by one.
    """
    operations, latency_ns = case.operations, case.ns("launch_latency")
    if not on_its_way(operations, case.ns("api_launch"), latency_ns):
        late = numbers.time("typical_latency", latency_ns)
        return f"work that was launched had not begun for {late}, and the trace does not say why"
    calls = case.group.of_cause("api_launch")  # the longest first
    if case.held_by_copy:
        held = numbers.time("typical_launching", case.ns("api_launch"))
        return f"launch calls take {held}, most of it {safe_text(calls[0].what)}, which a copy of pageable memory holds up"
    cost_ns = case.ns("api_launch", "launch_latency")
    cost = numbers.time("typical_launching", cost_ns)
    if case.one_by_one_ns and case.ns("host") > cost_ns:
        cost = numbers.time("one_by_one", case.one_by_one_ns)
        return (
            f"launching its {numbers.count('operations', operations)} operations one by one, with the CPU's own code "
            f"between them, costs {cost}"
        )
    if operations >= MANY_LAUNCHES:
        return f"launching its {numbers.count('operations', operations)} operations one by one costs {cost}"
    name = f" ({safe_text(calls[0].what)})" if calls and calls[0].what else ""
    return f"launch calls{name} and their latency take {cost}"


def _copies(case: Case, numbers: Numbers) -> str:
    """Return a clause on the copies of the typical interval: their share of its time; bytes, direction and memory of
    those that take most of it; of one kind their speed, or for how much of the time the CPU stages those of pageable memory.

    numbers: each number that the clause prints is noted in its evidence
    """
    copies_ns, memsets_ns = case.ns("memcpy"), case.ns("memset")
    share = numbers.share("typical_copies", copies_ns + memsets_ns, case.group.typical_ns)
    entries = [e for e in case.group.of_cause("memcpy") if e.size]
    if memsets_ns > copies_ns:
        return f"{share} of it is memsets{' and copies' if copies_ns else ''}."
    if not entries:
        return f"{share} of it is copying{' and memsets' if memsets_ns else ''}."
    largest, *others = sorted(entries, key=lambda e: -e.ns)  # of all timings of the group together
    alike = _alike(case, largest)
    size = _copied(alike)
    numbers.evidence["copied_bytes"] = round(size)
    moved = _moved(largest, size)
    second = next((e for e in others if e.ns >= _NAMED * case.group.ns("memcpy")), None)
    if second:  # the share is of both
        second_size = _copied(_alike(case, second))
        numbers.evidence["other_copied_bytes"] = round(second_size)
        moved += f" and {_moved(second, second_size)}"
    # between pageable memory and the GPU the CPU copies, too: the speed is not the bus's
    staged_ns = sum(e.ns for e in case.group.of_cause("memcpy") if e.why == "staging")
    if staged_ns > 0.1 * case.group.ns("memcpy"):
        staged = numbers.share("staged", staged_ns, case.group.ns("memcpy"))
        how = f", {staged} of that while the CPU stages them"
    elif size <= ITEM_BYTES:  # a flag, not a transfer
        how = ""
    else:
        rate = _rate(alike)
        # a reader divides: the rate is left out where that is not the time that is called copying
        copying_ns = copies_ns + memsets_ns
        error_ns = abs(size / rate - copying_ns)
        fits = not second and error_ns <= _FITS * copying_ns
        if fits:
            numbers.evidence["achieved_GB_per_s"] = rate
        how = f" at {_speed(rate)} GB/s" if fits else ""
    return f"{share} of it is copying: {moved}{how}."


def _moved(copies: Entry, size: float) -> str:
    """What copies of a timing move, so many bytes, and where: "160 MB H2D from pageable memory"."""
    side = {"H2D": "from", "D2H": "to"}.get(copies.direction, "")
    memory = f" {side} {copies.memory} memory" if side and copies.memory else ""
    return f"{bytes_text(size)} {copies.direction}{memory}"


def _alike(case: Case, copies: Entry) -> pd.DataFrame:
    """The copies of the typical interval that are like these of its group; those of all its timings where it has none."""
    for intervals in (np.array([case.group.typical]), case.group.intervals):
        rows = case.facts.details(intervals, "memcpy")
        is_alike = (rows["direction"] == copies.direction) & (rows["memory"] == copies.memory)
        rows = rows[is_alike & (rows["bytes"] > 0)]
        if len(rows):
            break
    return rows


def _copied(rows: pd.DataFrame) -> float:
    """How many bytes copies (of `_alike`) move in an interval."""
    return float(rows["bytes"].sum()) / rows["interval"].nunique()


def _rate(rows: pd.DataFrame) -> float:
    """How many bytes per ns they move while they run: beside kernels their part in its time may be less; NaN where that
    is not known."""
    rows = rows[rows["bandwidth_gb_s"] > 0]
    took_ns = float((rows["bytes"] / rows["bandwidth_gb_s"]).sum())
    return float(rows["bytes"].sum()) / took_ns if took_ns else float("nan")


#: Bytes over their rate are a time, to this share.
_FITS = 0.2


def _speed(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1_000 else f"{rate:.3g}"


def also_waited(case: Case, numbers: Numbers) -> str:
    """Of a timing that is about something else: for how long it waited, and for what."""
    waited = numbers.time("waiting", case.ns("queued"))
    return f"For {waited} of it work was launched and waited{_waited_for(case, numbers)}"


def _waited_for(case: Case, numbers: Numbers) -> str:
    """Return what was waited for, with its stream and kernel if the trace says so."""
    if not case.waited:
        return _behind_others(case, numbers)
    largest = case.waited[0]
    stream = "another stream"
    if largest.stream >= 0:
        stream = f"stream {numbers.count('stream_waited_for', largest.stream)}"
    kernel = f" ({kernel_name(safe_text(largest.what))})" if largest.what else ""
    if largest.why == "full-queue":
        return ": the launch queue was full."
    if largest.why == "earlier-work":
        return " for earlier work, which was launched before the first clock reading."
    if largest.why == "contention":
        return f": {stream} kept the GPU busy{kernel}."
    if case.on_purpose:
        return _behind_others(case, numbers)
    return f" for work of {stream}{kernel} that was launched before."


def _behind_others(case: Case, numbers: Numbers) -> str:
    at_once = case.facts.others(np.array([case.group.typical])) or case.others
    busiest = next(iter(at_once), None)
    if busiest is None:
        return "; the trace does not say for what."
    stream = numbers.count("stream_waited_for", busiest)
    name = case.waited[0].what if case.waited else ""
    kernel = f" ({kernel_name(safe_text(name))})" if name else ""
    return f" for what it launched itself on stream {stream}{kernel}: that is what is timed."


# --- several groups ---


def of_several_groups(
    label: Label, lead: Case, shown: tuple[Group, ...], sums: dict[int, Sums], numbers: Numbers
) -> str:
    """Return sentences on a label that has several kinds of timings: how many timings there are and what they take
    together, then what leads in it: the calls that prepare for the others, the slow ones, a cause that all share, or
    else one group and its share, with the others behind it.

    lead: the case of the group that leads
    shown: the groups that have a row each, the one that leads among them
    sums: number of a group -> what its typical interval spent its time on
    numbers: each number that the sentences print is noted in its evidence
    """
    # its first calls and the leading group prepare, and there are timings behind them
    if lead.first_ones > lead.group.count and len(label.groups) > 2:
        return _of_preparing_calls(lead, shown, sums, numbers)
    told = _told_groups(label, lead.group)
    scope = "steady" if told == label.steady else "all"
    timings = numbers.count(f"{scope}_timings", sum(g.count for g in told), "timing")
    total = numbers.time(f"{scope}_total", sum(g.total_ns for g in told))
    together = " that overlap" if label.overlapping else f", {total}"
    text = f"{spoken(label.name)}: {timings}{together}; "
    slow = _many_times_as_long(label) or _that_record_graphs(lead)
    if lead.group in slow:
        return text + _of_slow_kinds(lead, slow, numbers)
    if shared := _of_one_cause(label, shown, sums, numbers):
        return text + shared
    names = kind_names(shown)
    numbers.evidence |= {f"group_{n}_work": name for n, name in names.items() if name}
    searching = [group for group in shown if lead.searches and tries_kernels(group)]
    if len(searching) > 1 and lead.group in searching:
        text += _of_searching_kinds(lead, searching, numbers)
        others = _others(searching, shown, sums, numbers, names)
        return f"{text} The others: {', '.join(others[:2])}." if others else text
    if lead.late_one:  # what it makes says more than its operations, or what the others are
        text += _of_lead(lead, sums[lead.group.number], "", numbers)
        return text + _left([group for group in told if group is not lead.group], numbers)
    if lead.growth:
        return text + _of_growth(lead, lead.growth, numbers)
    text += _of_lead(lead, sums[lead.group.number], names[lead.group.number], numbers)
    return text + _of_others(lead, shown, sums, names, numbers, _LETTERS - len(text))


def _of_growth(lead: Case, growth: Growth, numbers: Numbers) -> str:
    """Return a sentence on timings that get longer as the run goes on: from what to what, and whether kernels make the
    difference."""
    first = numbers.time("first_third", growth.first_ns)
    last = numbers.time("last_third", growth.last_ns)
    text = f"they get longer as the run goes on: {first} in the first third of them, {last} in the last (medians)"
    more_ns = growth.last_kernels_ns - growth.first_kernels_ns
    if more_ns < MOSTLY * (growth.last_ns - growth.first_ns):
        return f"{text}."
    first_ran = numbers.time("kernels_of_first_third", growth.first_kernels_ns)
    last_ran = numbers.time("kernels_of_last_third", growth.last_kernels_ns)
    text += f". So do their kernels: {first_ran} and {last_ran}"
    by_length = sorted(lead.label.steady, key=lambda group: group.typical_ns)
    grown = _kernel_differences(by_length[-1], by_length[0])
    if grown and grown[0][1] >= _NAMED * more_ns:
        return f"{text}, most of all {safe_text(grown[0][0])}."
    return f"{text}."


def _told_groups(label: Label, lead: Group) -> tuple[Group, ...]:
    """Return the groups that a label's sentences are about: its first calls only if these lead."""
    return label.groups if lead.role == FIRST else label.steady


def _of_lead(lead: Case, sums: Sums, name: str, numbers: Numbers) -> str:
    """Return a sentence on the group that leads: its share of the label's time, its timings and their length, and
    what most of that is: "48 % of it is 5 of them, 150 ms each: 2 kernels, CPU outside CUDA 99 %."

    sums: what its typical interval spent its time on
    name: what its kind of work is called, with a comma behind it; '' for no name
    """
    label, group = lead.label, lead.group
    length = _length(lead, numbers)
    count = numbers.count("group_timings", group.count)
    if label.overlapping:
        text = f"one takes {length}" if group.count == 1 else f"{count} of them take {length} each"
    else:
        whole_ns = sum(g.total_ns for g in _told_groups(label, group))
        share = _share(numbers, "group", group.total_ns, whole_ns)
        each = f"one of {length}" if group.count == 1 else f"{count} of them, {length} each"
        if lead.late_one:
            each = f"timing {numbers.count('late_one', lead.late_one)}, {length}"
        text = f"{share} of it is {each}"
    if lead.searches:
        return f"{text}, {_search(lead, numbers)}."
    made = "".join(
        f", {what} in {_in_how_many(often, group.count, numbers)}"
        for what, often in lead.made.items()
    )
    return f"{text}: {name}{describe(group, sums, numbers)}{made}."


def _of_others(
    lead: Case,
    shown: Sequence[Group],
    sums: Mapping[int, Sums],
    names: Mapping[int, str],
    numbers: Numbers,
    letters: int,
) -> str:
    """Return a sentence on the groups beside the one that leads, with a space before it: each that has a row, as many
    as there is room for, and how many timings are left; '' if there are no others.

    names: number of a group -> what its kind of work is called
    letters: how many letters there is room for
    """
    group = lead.group
    told = _told_groups(lead.label, group)
    # the same work at another pace comes first: it tells what it takes where nothing holds it up
    same_work = [g for g in shown if (g.pid, g.kind) == (group.pid, group.kind)]
    ordered = same_work + [g for g in shown if g not in same_work]
    texts = _others([group], ordered, sums, numbers, names)
    if not texts:
        return _left([g for g in told if g is not group], numbers)
    fits = 1
    while fits < len(texts) and len(", ".join(texts[: fits + 1])) < letters:
        fits += 1
    named = [group, *[g for g in ordered if g is not group][:fits]]
    text = f" The others: {', '.join(texts[:fits])}{_and_more(told, named, numbers)}."
    by_length = sorted(named, key=lambda g: g.typical_ns)
    return text + _difference(by_length[-1], by_length[0], sums, numbers)


def _difference(longer: Group, shorter: Group, sums: Mapping[int, Sums], numbers: Numbers) -> str:
    """Return a sentence on what makes the difference between two groups of a label, with a space before it; '' where
    neither one kernel nor kernels, copies or waiting as a whole are most of it.

    sums: number of a group -> what its typical interval spent its time on

    2.73 ms, kernels 2.04, of that sort 0.34     1.60 ms, kernels 1.04:      "The 1.13 ms between 1.60 and 2.73 ms are
    mostly kernels (994 us), of these sort 337 us."
    """
    difference_ns = longer.typical_ns - shorter.typical_ns
    if longer.typical_ns < ALIKE * shorter.typical_ns:
        return ""
    if any(group.work.mains > 1 and not _is_of_one_length(group) for group in (longer, shorter)):
        return ""  # others of the group are of other work, and of another length
    shorter_parts = _differing(sums[shorter.number])
    more_ns = {
        part: ns - shorter_parts[part] for part, ns in _differing(sums[longer.number]).items()
    }
    part = max(more_ns, key=more_ns.__getitem__)
    # with others that are shorter by as much, or that overlap, they would not add up
    if not MOSTLY * difference_ns <= more_ns[part] <= (1 + _ROUNDING) * difference_ns:
        return ""
    kernels: list[tuple[str, int]] = []
    if part == _KERNELS:
        differing = _kernel_differences(longer, shorter)
        kernels = [k for k in differing if _NAMED * difference_ns <= k[1] <= difference_ns][:2]
        # more of the same, or other kernels: their names stand beside the lengths
        if len(differing) < _LEAST_TOLD or not kernels:
            return ""
    difference = numbers.time("difference", difference_ns)
    text = f" The {difference} between {duration(shorter.typical_ns)} and {duration(longer.typical_ns)} are"
    if kernels and kernels[0][1] >= MOSTLY * difference_ns:
        name, ns = kernels[0]
        return f"{text} mostly {safe_text(name)} ({numbers.time('kernel_1_difference', ns)})."
    of_these = " and ".join(
        f"{safe_text(name)} {numbers.time(f'kernel_{number}_difference', ns)}"
        for number, (name, ns) in enumerate(kernels, 1)
    )
    of_these = f", of these {of_these}" if of_these else ""
    if more_ns[part] >= (1 - _ROUNDING) * difference_ns:
        return f"{text} {part}{of_these}."
    return f"{text} mostly {part} ({numbers.time('part_difference', more_ns[part])}){of_these}."


def _differing(sums: Sums) -> dict[str, int]:
    """Parts of an interval that may make it longer than another one, by their names; what the CPU does is no such
    part: it is told of each group."""
    return {
        _KERNELS: sums.gpu,
        "copies": sums.copies + sums.copies_on_device,
        "synchronising": sums.sync,
        "waiting": sums.waiting,
    }


def _kernel_differences(longer: Group, shorter: Group) -> list[tuple[str, int]]:
    """Return (name, ns) of kernels: for how much longer they run in the typical interval of one group than of the other,
    the largest first; kernels of one name together."""
    more: dict[str, int] = {}
    for group, sign in ((longer, 1), (shorter, -1)):
        for kernel in group.work.of_kind("kernel"):
            name = kernel_name(kernel.name)
            more[name] = more.get(name, 0) + sign * kernel.ns
    return sorted(more.items(), key=lambda item: -item[1])


def _of_one_cause(
    label: Label, shown: tuple[Group, ...], sums: Mapping[int, Sums], numbers: Numbers
) -> str:
    """A clause on _SEVERAL and more kinds of timings that all spend most of their time on the same: "CPU outside CUDA 98
    to 99 %: 91 x 1.95 ms (graph 2), ..."; '' where these are fewer, or do not.  GPU work is no such cause, nor is what
    some of them make for others: it is told of each.

    label: whose groups these are
    shown, sums, numbers: as in `of_several_groups`
    """
    parts = [_largest_part(group, sums[group.number], numbers) for group in shown]
    name, went_to = parts[0].name, parts[0].went_to
    alike = all((part.name, part.went_to) == (name, went_to) for part in parts)
    if len(shown) < _SEVERAL or not alike or name in (_KERNELS, _OF_GRAPH, _NO_WORK):
        return ""
    if any(searches(label, group) or loads_code(group) or records_graph(group) for group in shown):
        return ""
    sums_of_shown = [sums[group.number] for group in shown]
    shares = [one.share(part.ns) for one, part in zip(sums_of_shown, parts, strict=True)]
    text = f"{name} {_reach(shares, 'cause', numbers)}"
    text += f" ({safe_text(went_to)})" if went_to else ""
    if sums_of_shown[0].beside and not all(map(_is_all_gpu_work, parts, sums_of_shown)):
        worked = [one.share(one.worked) for one in sums_of_shown]
        earlier = _ON_EARLIER if all(map(_mostly_earlier, sums_of_shown)) else ""
        text += f", the GPU at work for {_reach(worked, 'gpu', numbers)}{earlier}"
    names = kind_names(shown, "")
    numbers.evidence |= {f"group_{n}_work": work for n, work in names.items() if work}
    # told apart by their work, then by their length
    of_work = {number: f" ({work})" if work else "" for number, work in names.items()}
    timings = [f"{_times(group, numbers)}{of_work[group.number]}" for group in shown]
    for group in shown:
        _note(group, numbers)
    return f"{text}: {', '.join(timings)}{_and_more(label.steady, shown, numbers)}."


def _note(group: Group, numbers: Numbers) -> None:
    """Note how many timings a group has, and how long they take."""
    numbers.count(f"group_{group.number}_timings", group.count)
    numbers.time(f"group_{group.number}_typical", group.typical_ns)


def _reach(shares: Sequence[float], name: str, numbers: Numbers) -> str:
    """From which share to which some numbers reach: "98 to 99 %"."""
    low = numbers.share(f"least_{name}", min(shares), 1)
    high = numbers.share(f"most_{name}", max(shares), 1)
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def _length(case: Case, numbers: Numbers) -> str:
    """How long each timing of a group takes: "1.22 ms", or "0.99 to 4.12 ms" where the typical one, so many times, is
    not what they take together, or most of them differ."""
    group = case.group
    elapsed_ns = case.facts.column("elapsed_ns")[group.intervals]
    # of few timings one that differs is a good part
    alike = group.count >= SPREAD_SAMPLES or elapsed_ns.max() <= ALIKE * elapsed_ns.min()
    if _has_one_length(group) and alike:
        return numbers.time("typical", group.typical_ns)
    shortest = numbers.time("shortest", elapsed_ns.min())
    return f"{shortest} to {numbers.time('longest', elapsed_ns.max())}"


def _has_one_length(group: Group) -> bool:
    """Whether the same holds, and most of its timings differ by little."""
    return _is_of_one_length(group) and group.high_ns <= SPREAD * group.low_ns


def _is_of_one_length(group: Group) -> bool:
    """Whether the typical timing, so many times, is about what a group's timings take together."""
    error_ns = abs(group.count * group.typical_ns - group.total_ns)
    return error_ns <= _TYPICAL_ERROR * group.total_ns


def _and_more(told: Sequence[Group], named: Sequence[Group], numbers: Numbers) -> str:
    """How many timings are in groups that a label's sentences are about and do not name: " and 3 more", '' for none."""
    left = sum(group.count for group in told if group not in named)
    return f" and {numbers.count('more_timings', left)} more" if left else ""


def _left(groups: Sequence[Group], numbers: Numbers) -> str:
    """The groups of a label that are too small for a row each: how many timings, and what they take together."""
    if not groups:
        return ""
    timings = sum(g.count for g in groups)
    count = numbers.count("more_timings", timings)
    total = numbers.time("more_total", sum(g.total_ns for g in groups))
    takes = "other takes" if timings == 1 else f"other {count} take"
    return f" The {takes} {total}."


def _of_preparing_calls(
    lead: Case, shown: tuple[Group, ...], sums: dict[int, Sums], numbers: Numbers
) -> str:
    """Return sentences on a label whose first timings all prepare for the later ones: how many of them do, their share
    of all its time, and what they prepare; then what the later ones take.

    lead: the case of a group of such timings, which stand directly behind its first calls (`Case.first_ones`)
    """
    label = lead.label
    preparing = [g for g in label.groups if g.role == FIRST] + [lead.group]
    took_ns = sum(g.total_ns for g in preparing)
    outside_ns = sum(g.ns("host") for g in preparing)
    timings = numbers.count("all_timings", label.count, "timing")
    total = numbers.time("all_total", label.total_ns)
    share = _share(numbers, "first_ones", took_ns, label.total_ns)
    count = numbers.count("first_ones", lead.first_ones)
    longest = numbers.time("first_ones_longest", max(g.high_ns for g in preparing))
    text = f"{spoken(label.name)}: {timings}, {total}; {share} of it are the first {count}, up to {longest}"
    # loading is a CUDA call: where the CPU is outside CUDA most of the time, it compiles
    compiles = 2 * outside_ns >= took_ns
    if compiles:
        text += f", {numbers.share('first_ones_outside', outside_ns, took_ns)} outside CUDA"
    prepared_texts = {what for g in preparing for what in prepared(g, lead.facts.details)}
    prepares = []
    if CODE in prepared_texts:
        prepares.append(_code_prepared(lead, preparing, numbers, compiles=compiles))
    if GRAPH in prepared_texts:  # the verb is there already
        prepares.append("a graph recorded" if prepares else GRAPH)
    text += f": {', '.join(prepares)}." if prepares else "."
    others = _others(preparing, shown, sums, numbers)[:2]  # with more the sentence had no end
    return f"{text} The others: {', '.join(others)}." if others else text


def _code_prepared(
    lead: Case, preparing: Sequence[Group], numbers: Numbers, *, compiles: bool
) -> str:
    """Return what is known of the code that a label's first timings prepare: who compiles, how long loading takes if little
    of their time is that, else that it is compiled or loaded.

    compiles: whether the CPU is outside CUDA most of the time
    """
    if lead.compiler and all(compiler_of(g) == lead.compiler for g in preparing):
        return f"{lead.compiler} compiles"
    if not compiles:
        return CODE
    loads_ns = sum(loading_share(g) * g.total_ns for g in preparing)
    usual_ns = lead.first_ones * lead.label.usual.typical_ns
    excess_ns = sum(g.total_ns for g in preparing) - usual_ns
    if loads_ns < _NAMED * excess_ns:  # a loader's workers may start in them
        return f"{CODE} for {numbers.time('first_ones_loading', loads_ns)} of it"
    return "code is compiled or loaded"


def _others(
    named: Sequence[Group],
    shown: Sequence[Group],
    sums: Mapping[int, Sums],
    numbers: Numbers,
    names: Mapping[int, str] | None = None,
) -> list[str]:
    """Return a text for each group that is shown and not named yet: "100 x 35.4 us (2 kernels, launching 31 %)".
    The numbers of all that are shown are noted.

    names: number of a group -> what its kind is called, in front of what it spends its time on
    """
    texts = []
    for group in shown:
        if group not in named:
            timings = _times(group, numbers)
            name = names[group.number] if names and not _is_empty(group) else ""
            part = describe(group, sums[group.number], numbers, brief=True)
            texts.append(f"{timings} ({name}{part})")
    for group in shown:
        _note(group, numbers)
    return texts


def _times(group: Group, numbers: Numbers) -> str:
    """How many timings a group has and how long they take: "100 x 35.4 us", "13 of mostly 539 us to 1.15 ms" """
    if group.high_ns > _DIFFER * group.low_ns:
        low = numbers.time(f"group_{group.number}_low", group.low_ns)
        high = numbers.time(f"group_{group.number}_high", group.high_ns)
        return f"{group.count:,} of mostly {low} to {high}"
    return f"{group.count:,} x {duration(group.typical_ns)}"


def _in_how_many(count: int, of_count: int, numbers: Numbers) -> str:
    if count == of_count:
        return "it" if count == 1 else "each"
    return f"{numbers.count('prepare', count)} of them"


def _many_times_as_long(label: Label) -> list[Group]:
    """Groups whose timings take many times as long as the usual ones and together most of the label's
    time, by their length: one fact, where there are several and few timings in them."""
    usual = label.usual
    slow = [g for g in label.steady if g.typical_ns >= MANY_TIMES * usual.typical_ns]
    rare = 2 * sum(g.count for g in slow) < sum(g.count for g in label.steady)
    costly = 2 * sum(g.total_ns for g in slow) >= label.steady_ns
    kind_count = len({g.kind for g in slow})
    # where one is nearly all of it, the others say nothing
    is_one = max((g.total_ns for g in slow), default=0) >= NEARLY_ALL * sum(
        g.total_ns for g in slow
    )
    if kind_count < 2 or is_one or not rare or not costly or label.overlapping:
        return []
    return sorted(slow, key=lambda g: g.typical_ns)


def _that_record_graphs(lead: Case) -> list[Group]:
    """Groups of a label whose timings each record a CUDA graph and take many times as long as the usual ones, which replay
    one: one fact, where there are several."""
    label = lead.label
    long = [g for g in label.steady if g.typical_ns >= MANY_TIMES * label.usual.typical_ns]
    groups = [g for g in long if prepared(g, lead.facts.details).get(GRAPH) == g.count]
    return groups if len(groups) > 1 and not label.overlapping else []


def _of_slow_kinds(lead: Case, slow: list[Group], numbers: Numbers) -> str:
    """Return how many timings are slow ones, from what to what they take, and what most of their time is: what all of
    them make, if that is known; then what the other timings take.

    lead: the case of the group that leads, one of the slow ones
    """
    label, usual = lead.label, lead.label.usual
    elapsed_ns = lead.facts.column("elapsed_ns")
    took_ns = sum(g.total_ns for g in slow)
    share = _share(numbers, "slow", took_ns, label.steady_ns)
    which = _which(lead, slow, numbers.count("slow_timings", sum(g.count for g in slow)))
    low = numbers.time("least_slow", min(int(elapsed_ns[g.intervals].min()) for g in slow))
    high = numbers.time("most_slow", max(int(elapsed_ns[g.intervals].max()) for g in slow))
    of_slow = together([sums_of(g, label.kind, lead.facts.intervals) for g in slow])
    described = describe(lead.group, of_slow, numbers)
    if all(searches(label, group) for group in slow):
        what = _search(lead, numbers)
    elif lead.compiler and all(compiler_of(group) == lead.compiler for group in slow):
        what = f"in each of which {lead.compiler} compiles: {described}"
    elif all(map(records_graph, slow)):
        what = f"in each of which {GRAPH}: {described}"
    else:
        what = f"of different work{_mostly(lead, slow)}: {described}"
    others = [g for g in label.steady if g not in slow]
    usually = numbers.time(f"group_{usual.number}_typical", usual.typical_ns)
    # no one time is that of most
    if 2 * usual.count < sum(g.count for g in others) or not _has_one_length(usual):
        others_ns = elapsed_ns[np.concatenate([g.intervals for g in others])]
        low_other = numbers.time("least_other", int(others_ns.min()))
        rest = f"The others take {low_other} to {numbers.time('most_other', int(others_ns.max()))}."
    elif lead.compiler == "torch.compile" and not compiled(usual):
        rest = f"Most of the others take {usually}, with no kernel of torch.compile's."
    else:
        rest = f"Most of the others take {usually}."
    return f"{share} of it is {which}, {low} to {high} each, {what}. {rest}"


def _of_searching_kinds(lead: Case, searching: Sequence[Group], numbers: Numbers) -> str:
    """Return how many timings a library searches in, several kinds of them, and from what to what they take.

    searching: their groups, that of the leading case among them
    """
    told = _told_groups(lead.label, lead.group)
    took_ns, whole_ns = (sum(g.total_ns for g in groups) for groups in (searching, told))
    elapsed_ns = lead.facts.column("elapsed_ns")[np.concatenate([g.intervals for g in searching])]
    low = numbers.time("least_searching", int(elapsed_ns.min()))
    high = numbers.time("most_searching", int(elapsed_ns.max()))
    fewest = numbers.count("fewest_operations", min(g.work.fewest_operations for g in searching))
    largest = numbers.count("most_operations", max(g.work.most_operations for g in searching))
    tries = f"{fewest} to {largest} operations"
    if set(told) == set(searching):
        return f"all of them search for the fastest way, {low} to {high} each ({tries})."
    share = _share(numbers, "searching", took_ns, whole_ns)
    count = numbers.count("searching_timings", sum(g.count for g in searching))
    return f"{share} of it is {count} of them, {low} to {high} each, in a search for the fastest way ({tries})."


def _mostly(lead: Case, slow: Sequence[Group]) -> str:
    """Return the main kernel of most of a label's slow timings' time and how much they launch, where other timings of
    the label have other main kernels: one helper times several things.

    ", mostly larft_T_32 with 2,310 to 36,870 operations"
    """
    kernel = _kernel_of_all(lead.group)
    alike = [group for group in slow if _kernel_of_all(group) == kernel]
    is_most = sum(g.total_ns for g in alike) > MOSTLY * sum(g.total_ns for g in slow)
    others = {_main_kernel(group) for group in lead.label.steady} - {"", kernel}
    if not kernel or not is_most or not others:
        return ""
    fewest = min(g.work.fewest_operations for g in alike)
    largest = max(g.work.most_operations for g in alike)
    first = f"{fewest:,} to " if largest > fewest else ""
    return f", mostly {safe_text(kernel)} with {first}{plural(largest, 'operation')}"


def _search(lead: Case, numbers: Numbers) -> str:
    """What a group does that tries many ways to do the same."""
    operations = numbers.count("operations", lead.operations)
    waits = numbers.count("waits", lead.group.work.waits)
    if lead.group is lead.label.usual:
        return f"in a search for the fastest way ({operations} operations, {waits} waits)"
    usually = numbers.count("usual_operations", lead.label.usual.work.operations)
    return f"in a search for the fastest way ({operations} operations instead of {usually}, {waits} waits)"


def _which(lead: Case, groups: list[Group], count: str) -> str:
    """ "the first 6" of a label's timings, where they are, else "6 of them"."""
    first = earliest(lead.label, groups, lead.facts.column("start_ns"))
    return f"the first {count}" if first else f"{count} of them"


def kind_names(groups: tuple[Group, ...], end: str = ", ") -> dict[int, str]:
    """Return number of a group -> by what a reader tells the kinds of timings of one label apart; '' where only their time
    differs.

    end: what follows a name; a comma where a description stands behind it, which names copies itself (`describe`)

    By the words of their work that not all of them share ("64 MB copied"), or how much they issue ("2 kernels"), or
    their kernels ("sort"), with what they do with memory before it.
    """
    is_described = bool(end)
    words_of_kind = [group.work.name.split(", ") for group in groups]
    # graphs that are new, and memory that was freed for them, tell nothing
    if any(map(records_graph, groups)):
        words_of_kind = [[] for _ in groups]
    shared = set.intersection(*map(set, words_of_kind)) if len(groups) > 1 else set()
    all_differ = len({group.work.operations for group in groups}) == len(groups) > 1
    kernels_differ = len({_main_kernel(group) for group in groups} - {""}) > 1
    names = dict[int, str]()
    of_memory = dict[int, str]()
    kernel_of_kind = dict[int, str]()  # of kinds that only blocks tell apart
    for group, words_of_group in zip(groups, words_of_kind, strict=True):
        telling = [word for word in words_of_group if word not in shared]
        of_memory[group.number] = ", ".join(word for word in telling if word in MEMORY)
        name = ", ".join(word for word in telling if word not in MEMORY)
        if not name or "operation" in name or all_differ:
            name = _work(group)
            if is_described and kernels_differ and (kernel := _kernel_of_all(group)):
                name = f"{kernel}, {name}"
        elif _BYTES.fullmatch(name):
            name = f"{name} copied"
        elif _BLOCKS.fullmatch(name):  # which libraries choose: their user does not know them
            name = _kernel_of_all(group) if _main_kernel(group) else _largest_kernel(group)
            kernel_of_kind[group.kind] = name
        names[group.number] = "" if is_described and name.startswith("copy ") else name
    kernels = set(kernel_of_kind.values()) - {""}
    if len(kernels) < len(kernel_of_kind):  # no kernel's name tells them apart
        names |= {group.number: "" for group in groups if group.kind in kernel_of_kind}
    if len(set(names.values())) == 1:
        names = dict.fromkeys(names, "")
    for number, memory in of_memory.items():
        names[number] = ", ".join(filter(None, (memory, names[number])))
    return {number: f"{safe_text(name)}{end}" if name else "" for number, name in names.items()}


def _main_kernel(group: Group) -> str:
    """The kernel that runs longest of what a group issued, in few letters; '' where that is no kernel."""
    kernels = {kernel.name for kernel in group.work.of_kind("kernel")}
    main = group.work.main
    return few_letters(main) if main in kernels else ""


def _kernel_of_all(group: Group) -> str:
    """The same where it is the kernel that runs longest in each timing of the group; else ''."""
    return _main_kernel(group) if group.work.mains <= 1 else ""


def _largest_kernel(group: Group) -> str:
    """The kernel of most blocks of what a group issued, in few letters; '' for none."""
    kernels = group.work.of_kind("kernel")
    largest = max(kernels, key=lambda kernel: kernel.blocks, default=None)
    return few_letters(largest.name) if largest else ""


def few_letters(kernel: str) -> str:
    """A kernel's name in few letters, without brackets where shortening left one of them alone."""
    name = middle(kernel_name(kernel), _KIND_LETTERS)
    return name if name.count("(") == name.count(")") else name.replace("(", "").replace(")", "")


def _work(group: Group) -> str:
    """What a group issued, in two or three words: "2 kernels", "pinned H2D copy", "no GPU work"."""
    work = group.work
    if work.varies:
        noun = "kernel" if all(one.kind == "kernel" for one in work.issued) else "operation"
        return f"{work.fewest_operations:,} to {plural(work.most_operations, noun)}"
    if not work.operations:
        return "no GPU work"
    if work.operations == 1 and (copies := work.of_kind("memcpy")):
        return " ".join(reversed(copies[0].name.split()))
    if work.graphs and work.graphs == work.operations:
        return plural(work.graphs, "graph")
    kernels = sum(i.count for i in work.of_kind("kernel"))
    if kernels == work.operations:
        return plural(kernels, "kernel")
    copies = sum(i.count for i in work.of_kind("memcpy"))
    if kernels and copies and kernels + copies == work.operations:
        return f"{plural(kernels, 'kernel')} and {copies:,} {'copy' if copies == 1 else 'copies'}"
    return plural(work.operations, "operation")


def _share(numbers: Numbers, name: str, part: int, whole: int) -> str:
    """A share as `Numbers` has it, but "nearly all" for what is nearly 100 %."""
    text = numbers.share(name, part, whole)
    return "nearly all" if text == "100 %" and part < whole else text


def _is_empty(group: Group) -> bool:
    return group.empty == group.count


def describe(group: Group, sums: Sums, numbers: Numbers, *, brief: bool = False) -> str:
    """Return in a few words what most of a group's time is, with its share: "97 % kernels", "CPU outside CUDA
    99 % (garbage collection)".  The second largest part is added if it takes a quarter or more; of a host timer instead
    for how long the GPU was at work, as what the CPU did beside it does not add up with that.

    sums: what its typical interval spent its time on
    numbers: each number that the words hold is noted in its evidence
    brief: whether only the largest part is named
    """
    largest = _largest_part(group, sums, numbers)
    if largest.name == _NO_WORK:
        return _NO_WORK
    if largest.name == _ELSEWHERE:
        return f"{_ELSEWHERE} {numbers.share('gpu_elsewhere', largest.ns, sums.whole)}"

    def share(part: str, ns: int) -> str:
        return numbers.share(f"group_{group.number}_{part.replace(' ', '_')}", ns, sums.whole)

    text = f"{largest.name} {share(largest.name, largest.ns)}"
    text += f" ({safe_text(largest.went_to)})" if largest.went_to else ""
    if brief:
        return text
    if sums.beside and not largest.went_to.startswith(GARBAGE_COLLECTION + " "):
        if _is_all_gpu_work(largest, sums) or sums.share(sums.worked) < 0.01:
            return text
        earlier = _ON_EARLIER if _mostly_earlier(sums) else ""
        return f"{text}, the GPU at work for {share('worked', sums.worked)}{earlier}"
    parts = _parts_of(sums)
    del parts[_KERNELS if largest.name == _OF_GRAPH else largest.name]
    second, second_ns = max(parts.items(), key=lambda item: item[1], default=("", 0))
    return f"{text}, {second} {share(second, second_ns)}" if sums.share(second_ns) >= 0.25 else text


#: What most of a group's time is called, if it is work of the GPU; the last two are what it works on nearly all the time
#: of a host timer that does not wait for it (`works_beside`).
_KERNELS, _OF_GRAPH, _ELSEWHERE = "kernels", "a CUDA graph", "kernels on several streams"
_EARLIER_WORK, _GPU_WORK, _COPIES = "earlier work", "GPU work", "copies"
#: ... and if the GPU has none.
_NO_WORK = "no GPU work in it"
#: Behind how long the GPU worked, where that was mostly earlier work.
_ON_EARLIER = ", mostly on earlier work"


def _is_all_gpu_work(part: _Part, sums: Sums) -> bool:
    """Whether the GPU worked on nothing but this part of a group's time; copies are work of the GPU, too, or the CPU stages
    them."""
    if part.name == _COPIES:
        return sums.worked <= part.ns
    return part.name in (_KERNELS, _OF_GRAPH, _EARLIER_WORK, _GPU_WORK)


def _mostly_earlier(sums: Sums) -> bool:
    """Whether most of what ran beside a host timer was launched before it."""
    return sums.earlier > MOSTLY * sums.worked


def _parts_of(sums: Sums) -> dict[str, int]:
    """Return what a group's time is, by what it is called, in ns: all its parts, unless one of them is the story.

    Kernels that ran beside what the CPU of a host timer did are no part of its time, unless they are more than any part.
    """
    if sums.share(sums.gpu) >= GPU_SHARE:
        return {_KERNELS: sums.gpu}
    if works_beside(sums):
        if _mostly_earlier(sums):
            return {_EARLIER_WORK: sums.earlier}
        return {_GPU_WORK: sums.worked}
    launching_ns = sums.launches + sums.latency
    by_latency = sums.latency >= _NAMED * launching_ns  # which a row has under "rest"
    parts = {
        _KERNELS: sums.gpu,
        "NCCL's kernels": sums.collectives,
        _COPIES: sums.copies + sums.copies_on_device,
        "memsets": sums.memset,
        "CPU outside CUDA": sums.cpu,
        "other CUDA calls": sums.calls,
        "profiler": sums.profiler,
        "launching and latency" if by_latency else "launching": launching_ns,
        "synchronising": sums.sync,
        "waiting": sums.waiting,
        "event and launch latency": sums.floor,
    }
    if sums.beside and max(parts.values()) > sums.gpu:
        del parts[_KERNELS]
    return parts


class _Part(NamedTuple):
    """What most of a group's time is: what it is called, ns, and what it went to, '' where that is not known."""

    name: str
    ns: int
    went_to: str = ""


def _largest_part(group: Group, sums: Sums, numbers: Numbers) -> _Part:
    """Return what most of a group's time is: a part of `_parts_of`, or one of the names beside that."""
    if _is_empty(group):
        return _Part(_NO_WORK, sums.whole)
    if group.elsewhere and sums.share(sums.busy) + group.elsewhere >= GPU_SHARE:
        share = sums.share(sums.busy) + group.elsewhere
        return _Part(_ELSEWHERE, int(share * sums.whole))
    name, ns = max(_parts_of(sums).items(), key=lambda item: item[1])
    went_to = _name_of_part(group, name, numbers)
    if name == _KERNELS and group.ns("graph") > group.ns("kernel"):
        name = _OF_GRAPH
    return _Part(name, ns, went_to)


#: Part of a group's time -> the cause whose ledger names it.
_CAUSE_OF_PART = {
    "CPU outside CUDA": "host",
    "other CUDA calls": "api",
    "waiting": "queued",
    _COPIES: "memcpy",
}


def _name_of_part(group: Group, part: str, numbers: Numbers) -> str:
    """Return what a part of a group's time went to: "garbage collection", "pinned H2D", "stream 13"; '' if its ledger
    does not say, or names several things of which none is most of it."""
    entries = group.of_cause(_CAUSE_OF_PART.get(part, ""))
    if not entries:
        return ""
    largest = entries[0]
    if part == _COPIES:
        least_ns = _NAMED * group.ns("memcpy")
        copies = [largest, *(e for e in entries[1:] if e.size and e.ns >= least_ns)]
        return " and ".join(" ".join(filter(None, (e.memory, e.direction))) for e in copies[:2])
    if part == "waiting" and largest.stream >= 0:
        return f"stream {numbers.count(f'group_{group.number}_stream', largest.stream)}"
    all_ns = sum(entry.ns for entry in entries)
    if (
        part == "CPU outside CUDA"
        and collects_garbage(group)
        and garbage_ns(group) < MOSTLY * all_ns
    ):
        share = numbers.share(f"group_{group.number}_garbage", garbage_ns(group), group.total_ns)
        return f"{GARBAGE_COLLECTION} {share}"
    if not largest.what or largest.ns < MOSTLY * all_ns:
        return ""
    return largest.what if largest.ns >= NEARLY_ALL * all_ns else f"mostly {largest.what}"


def first_calls(label: Label) -> str:
    """What the first calls of a label took, as a closing clause; '' for none."""
    groups = [g for g in label.groups if g.role == FIRST]
    if not groups or len(groups) == len(label.groups):
        return ""
    count, total = sum(g.count for g in groups), sum(g.total_ns for g in groups)
    which = "The first call" if count == 1 else f"{plural(count, 'first call')}"
    return f"{which} took {duration(total)}{loaded(groups)}."


def loaded(groups: Sequence[Group]) -> str:
    """Of first calls what took most of their time in CUDA calls, in brackets."""
    calls: dict[str, int] = {}
    for group in groups:
        for entry in group.of_cause("api"):
            what = "loading code" if LOADS.match(entry.what) else entry.what
            calls[what] = calls.get(what, 0) + entry.ns
    name = max(calls, key=calls.__getitem__, default="")
    total = sum(g.total_ns for g in groups)
    if not name or calls[name] < _NAMED * total:
        return ""
    return f" ({safe_text(name)} {duration(calls[name])})"


# --- words of a row ---


def _idle_words(sums: Sums, of_all: Sums | None) -> str:
    """Which share of the time the GPU had nothing to do: "GPU idle 34 %"; who kept it waiting is in the columns beside it.
    Where the typical interval, which a row shows, is not like all of them together, it is the share of these.

    sums, of_all: as in `words`
    """
    idler = "stream" if sums.others_ran and not sums.beside else "GPU"
    if of_all:
        return f"{idler} idle {percent(of_all.share(of_all.idle))}"
    idle = sums.share(sums.idle)
    if abs(sums.idle_in_all - idle) >= _UNLIKE_ALL:
        return f"{idler} idle {percent(sums.idle_in_all)} in all"
    return f"{idler} idle {percent(idle)}"


def words(group: Group, sums: Sums, cause: str = "", of_all: Sums | None = None) -> str:
    """Return the verdict of a group with its number, in at most 24 letters: "97 % kernels", "GPU idle 34 %".

    sums: what its typical interval spent its time on
    cause: what takes most of the avoidable time (`Case.avoidable`), "" for nothing
    of_all: for the row of a label with several groups, what the timings of all of them spent their time on: its shares of
        idle time, copies and waiting are of these

    The order: what the GPU does or waits for, by the verdict word; then waits and calls that have a name of their own;
    then idle time without one; what is mixed at last.
    """
    word = word_of(sums, group.elsewhere)
    if _is_empty(group):
        return "no GPU work"
    if word == GPU and sums.share(sums.busy) < GPU_SHARE:
        where = "on other streams" if group.elsewhere > sums.share(sums.busy) else "kernels"
        return f"{percent(sums.share(sums.busy) + group.elsewhere)} {where}"
    if word == GPU and sums.busy - sums.gpu > 0.05 * sums.whole:
        return f"{percent(sums.share(sums.busy))} GPU work"
    if word == GPU:
        what = "graph" if group.ns("graph") > group.ns("kernel") else "kernels"
        return f"{percent(sums.share(sums.gpu))} {what}"
    if word == COPY:
        copies = sums.copies + sums.copies_on_device
        name = "copies" if copies >= sums.memset else "memsets"
        shown = of_all or sums
        part_ns = shown.copies + shown.copies_on_device + shown.memset
        return f"{name}, {percent(shown.share(part_ns))}"
    if word == WAITING:
        shown = of_all or sums
        return f"waiting, {percent(shown.share(shown.waiting))}"
    if cause == "sync" and not group.work.waits:
        return f"synchronising, {percent(sums.share(sums.sync))}"
    if cause == "sync":
        return plural(group.work.waits, "wait") + " inside"
    if word == FLOOR:
        return "event cost only"
    entries = group.of_cause("api")
    calls_most = sums.calls >= max(sums.cpu, sums.launches + sums.latency)
    if cause == "calls" and calls_most and entries and len(entries[0].what) <= _CALL_LETTERS:
        return f"{entries[0].what}, {percent(entries[0].ns / max(group.total_ns, 1))}"
    operations = group.work.operations * group.count
    if word == LAUNCH and not on_its_way(operations, sums.launches, sums.latency):
        return f"unexplained wait, {percent(sums.share(sums.late))}"
    if word in (CPU, LAUNCH):
        return _idle_words(sums, of_all)
    if works_beside(sums) and _mostly_earlier(sums):
        return f"earlier work, {percent(sums.share(sums.earlier))}"
    if works_beside(sums):
        return f"{percent(sums.share(sums.worked))} GPU work"
    return _mixed_words(sums) if word == MIXED else "cannot tell"


def _mixed_words(sums: Sums) -> str:
    """The two largest parts of a time that is mostly nothing, or one where there is no room: "kernels 41 %, CPU 33 %"."""
    parts = {
        "kernels": sums.gpu,
        "NCCL": sums.collectives,
        "copies": sums.copies,
        "launches": sums.launches + sums.latency,
        "CPU": sums.cpu,
        "calls": sums.calls,
        "profiler": sums.profiler,
        "waiting": sums.waiting,
        "latency": sums.floor,
        "rest": sums.unknown,
    }
    largest = nlargest(2, parts.items(), key=lambda part: part[1])
    shares = [f"{name} {percent(sums.share(ns))}" for name, ns in largest if ns]
    text = ", ".join(shares)
    return text if len(text) <= _WORDS else shares[0]
