"""One label as findings read it: the group that leads, its sums, and its typical interval.

Numbers that a sentence prints are noted in the finding's evidence while they are printed, so that
each can be checked again.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSES
from nsysalign.explain.facts import (
    ALLOCATES,
    BUS_BYTES_PER_NS,
    SMALL_NS,
    Facts,
    Segment,
    Stretch,
    of_torch,
)
from nsysalign.explain.preparing import (
    CODE,
    GRAPH,
    LOAD_NS,
    LOADS,
    MAKES,
    compiler_of,
    earliest,
    is_of_compiler,
    loading_share,
    prepared,
    searches,
    tells_apart,
    times_compiled,
    tries_for_xla,
    tries_kernels,
)
from nsysalign.explain.runs.threads import LaunchesOfThreads
from nsysalign.explain.same_kernel import Elsewhere
from nsysalign.explain.verdict import (
    GPU,
    GPU_SHARE,
    MANY_LAUNCHES,
    MIXED,
    Sums,
    sums_of,
    typical_of,
    word_of,
    works_beside,
)
from nsysalign.label import (
    ALIKE,
    FIRST,
    FREES,
    KEEPS,
    SLOW,
    Entry,
    Group,
    Issued,
    Label,
)
from nsysalign.model import NO_THREAD, OPERATION_KINDS, OTHER_STREAMS, OTHER_THREAD, OTHERS_WORKED
from nsysalign.split.groups import WorkOfIntervals
from nsysalign.text import duration, percent, plural, safe_text, subject

_SITE = re.compile(r"^(?P<caller>.+):(?P<line>\d+) \((?P=caller):(?P<lines>\d+(?:-\d+)?)\)$")
#: A group has a row of its own from this share of the label's time on (first calls apart), or of its
#: repetitions.
ROW_SHARE, ROW_REPETITIONS = 0.05, 0.2
#: Of so few repetitions each group has one.
FEW_REPETITIONS = 8
#: What is kept between the timings of a copy back that `.item()` makes, in bytes.
ITEM_BYTES = 4_096


def spoken(label: str) -> str:
    """A label as sentences name it: without folders, a common file name once."""
    name = safe_text(subject(label))
    if place := _SITE.match(name):
        return f"{place['caller']}:{place['line']} › {place['lines']}"
    return name


def beside(site: str, label: str) -> str:
    """Return how a sentence about a label with this call site names another label: without the file's name where both
    are of one file."""
    return spoken(label).removeprefix(f"{site.partition(':')[0]}:")


def call_site(label: str) -> tuple[str, str]:
    """(line of the caller, lines that it calls) of a label whose pair of lines has several callers;
    ('', '') of others."""
    place = _SITE.match(safe_text(subject(label)))
    return (place["line"], f"{place['caller']}:{place['lines']}") if place else ("", "")


def shown_groups(label: Label) -> tuple[Group, ...]:
    """The groups of a label that have a row each: at least one."""
    steady, whole = label.steady, label.steady_ns
    count = sum(group.count for group in steady)
    large = tuple(
        group
        for group in steady
        if group.total_ns >= ROW_SHARE * whole
        or group.count >= ROW_REPETITIONS * count
        or count <= FEW_REPETITIONS
    )
    return large or steady[:1]


@dataclass
class Numbers:
    """Texts of numbers, and the numbers themselves, by their name."""

    evidence: dict[str, Any] = field(default_factory=dict)

    def time(self, name: str, ns: float) -> str:
        self.evidence[f"{name}_ns"] = int(ns)
        return duration(ns)

    def share(self, name: str, part: float, whole: float) -> str:
        self.evidence[f"{name}_share"] = part / max(whole, 1)
        return percent(part / max(whole, 1))

    def count(self, name: str, count: int, noun: str = "") -> str:
        self.evidence[name] = int(count)
        return plural(int(count), noun) if noun else f"{count:,}"


#: One piece of the CPU's own time from this length on is work of its own.
LONG_PIECE_NS = 1_000_000
#: So many timings are looked at for where it lies, at least so many of which have one, and so many operations in each.
TIMINGS_LOOKED_AT, FEWEST_LOOKED_AT, MOST_LOOKED_AT = 12, 4, 5_000
#: So many operations are launched one by one, whatever the CPU does between two of them.
VERY_MANY = 100
#: Timings hardly wait where others wait so many times as often.
FEWER_WAITS = 10
#: Waits are a cause where the CPU's and the GPU's work leave at least this share of the time: without them it is
#: shorter by no more than that, and by what reading back costs.
LEFT_FOR_WAITS = 0.15
#: Kernels of one shape differ by at most this ratio in how long they run.
ONE_SHAPE = 1.5
#: A wait for so many operations holds up all launching, and a result that is read back for so many.
OFTEN, OFTEN_READ = 10, 50
#: Timings that take so many times as long as the usual ones are of another sort.
MANY_TIMES = 5
#: Kernels of a library that are this share of the operations; between two operators of torch's the CPU
#: takes longer than this while it is recorded (6 us and more; a library's own loop 2).
OF_LIBRARY, LEAST_OPERATOR_NS = 0.9, 4_000
#: From so long outside CUDA for each operation on, the CPU does something of the program's own: torch's operators
#: take 5 to 25 us while they are recorded, so that half of it and more is no operator's.
OWN_CODE_NS = 50_000
#: Timings of which this share has a property all have it.
NEARLY_ALL = 0.9
#: One piece of the CPU's time that is so much of the GPU's idle time may be one function.
GOOD_PART = 1 / 3
#: Allocating, and loading code, is named where so many timings do it, and from this share of their time on.
FEWEST_REPEATED, ALLOCATING_SHARE = 3, 0.05
LOADING_SHARE = 0.05
#: A timing that prepares for others does so for at least this share of the CPU's time.
PREPARING_SHARE = 0.2
#: What loads code in such a part of its timings never warms up; it loads the same again if it does so that many times
#: for each of its kernels.
NEVER_WARM, LOADED_AGAIN = 0.2, 3
#: Calls that a kernel, or a size of it, needs before its first launch.
FIRST_USE = re.compile(rf"{LOADS.pattern}|^cu(da)?(Kernel|Func)SetAttribute")
#: The range that XLA opens around each start of a program that it compiled.
PROGRAM_OF_XLA = "XlaModule:#"
#: The same kernels with the same blocks differ by at most this ratio in how long they run.
SAME_KERNELS = 1.1
#: torch's kernels that copy (`x.contiguous()`) or convert (`x.half()`), and from which share of the kernel time on that
#: is worth a word.
COPIES, MUCH_COPYING = re.compile(r"\w_copy_kernel_cuda\b"), 0.3
#: No launch call takes less.
LEAST_LAUNCH_NS = 500


def _loading_call(segments: list[Segment], longest: int) -> str:
    """The first call behind a long piece outside CUDA that loads code before anything is launched, '' for none.

    longest: the position of the piece, -1 for none
    """
    if longest < 0 or segments[longest].ns < LONG_PIECE_NS:
        return ""
    for piece in segments[longest + 1 :]:
        if piece.cause in ("api_launch", "sync"):
            break
        if piece.cause == "api" and LOADS.match(piece.text):
            return piece.text
    return ""


@dataclass(frozen=True)
class Case:
    """A label, one of its groups, and what belongs to both.

    typical: nanoseconds per cause of the group's typical interval, which add up to its time.
    """

    facts: Facts
    label: Label
    group: Group
    sums: Sums
    typical: dict[str, int]

    @classmethod
    def of(cls, facts: Facts, label: Label, group: Group, matrix: np.ndarray) -> Case:
        """`matrix`: nanoseconds per interval and cause."""
        typical = dict(zip(CAUSES, matrix[group.typical].tolist(), strict=True))
        sums = sums_of(group, label.kind, facts.intervals)
        return cls(facts, label, group, sums, typical)

    @cached_property
    def one(self) -> Sums:
        """The sums of its typical interval."""
        worked, earlier = (
            int(self.facts.column(name)[self.group.typical])
            for name in ("gpu_busy_ns", "gpu_earlier_ns")
        )
        return typical_of(self.sums, self.typical, self.kernels_ns, worked, earlier)

    @property
    def word(self) -> str:
        return word_of(self.one, self.group.elsewhere)

    @property
    def on_host(self) -> bool:
        """Timed by a clock of the CPU: GPU work and CPU time overlap."""
        return self.label.kind == "host"

    def ns(self, *causes: str) -> int:
        """Nanoseconds of the typical interval."""
        return sum(self.typical[cause] for cause in causes)

    @cached_property
    def kernels_ns(self) -> int:
        """How long kernels and whole graphs ran in the typical interval."""
        seen = self.ns("kernel", "graph")
        if not self.on_host:
            return seen
        ran = int(self.facts.column("kernel_only_upper_ns")[self.group.typical])
        outside = int(self.facts.column("kernel_outside_ns")[self.group.typical])
        return max(seen, min(max(ran - outside, 0), self.group.typical_ns))

    @property
    def others_worked(self) -> bool:
        """While its own stream was idle, most of the time."""
        return self.facts.flagged(self.group.intervals, OTHERS_WORKED) > 0.5

    @property
    def others_ran(self) -> bool:
        """Whether other streams worked while that of its typical interval was idle, whoever launched that."""
        return self.facts.flagged(np.array([self.group.typical]), *OTHER_STREAMS) > 0

    @cached_property
    def inside(self) -> pd.DataFrame:
        """The timings that lie in the typical one, on the same thread, that one among them: rows of `frames.INTERVALS`."""
        intervals = self.facts.intervals
        typical = intervals.iloc[self.group.typical]
        return intervals[
            (intervals["tid"] == typical["tid"])
            & (intervals["start_ns"] >= typical["start_ns"])
            & (intervals["end_ns"] <= typical["end_ns"])
        ]

    @cached_property
    def first_inside(self) -> pd.DataFrame:
        """First calls that other labels leave out and that lie in its only timing: rows of `frames.INTERVALS`."""
        first = [
            group.intervals
            for label in self.facts.labels
            if label.name != self.label.name and len(label.first) < len(label.groups)
            for group in label.first
        ]
        if not first or not self.on_host or self.group.count > 1:
            return self.inside[:0]
        return self.inside[self.inside["interval"].isin(np.concatenate(first))]

    @cached_property
    def first_inside_ns(self) -> int:
        """For how long the GPU had nothing to do in these."""
        rows = self.first_inside
        idle_ns = (rows["elapsed_ns"] - rows["gpu_busy_ns"]).clip(lower=0)
        return self.facts.once(rows["interval"].to_numpy(), idle_ns.to_numpy()) if len(rows) else 0

    @cached_property
    def others(self) -> dict[int, int]:
        return dict(self.facts.others(self.group.intervals))

    @cached_property
    def waited(self) -> list[Entry]:
        """For what the typical interval waited, the longest first: other intervals of the group, such as
        those of another thread, may have waited for something else."""
        rows = self.facts.details(np.array([self.group.typical]), "queued")
        rows = rows.astype({"detail": object, "operation": object})
        entries = [
            Entry("queued", row.operation, int(row.ns), why=row.detail, stream=int(row.stream))
            for row in rows.itertuples(index=False)
        ]
        return sorted(entries, key=lambda entry: -entry.ns)

    @cached_property
    def stretches(self) -> list[Stretch]:
        return self.facts.stretches(self.group)

    @cached_property
    def before_first_work(self) -> tuple[int, int, str]:
        """Of the typical interval: how long its stream was idle before its first GPU work, after how
        long that was launched, and its name; (0, 0, '') where nothing is known."""
        if not self.stretches or self.stretches[0].before is not None:
            return 0, 0, ""
        first = self.stretches[0]
        if first.then is None:
            return 0, 0, ""
        after, launched, call = 0, 0, ""
        for piece in first.pieces:  # the last one is that of the work: others are for other streams
            if piece.cause == "api_launch" and piece.text:
                launched, call = after, piece.text
            after += piece.ns
        return after, launched, call

    @cached_property
    def idle_ns(self) -> int:
        """For how long the GPU (of an event pair its stream) had nothing to do in the typical interval, and waited for
        nothing that is named."""
        if self.on_host:
            return max(self.one.late, 0)
        return self.ns("host", "api", "api_launch", "sync", "profiler", "launch_latency")

    @cached_property
    def _outside(self) -> tuple[list[int], int]:
        """Of the typical interval: (the lengths (ns) of the pieces in which no thread of the program gave work to the
        GPU and the timing thread was outside CUDA, how many launches of other threads cut these pieces).

        timing thread   [call)            outside            [call)
        autograd's             [launch) [launch) [launch)              pieces: up to, between and after these launches
        """
        pieces_ns, cuts = list[int](), 0
        launches_ns = self._launches_of_others()
        at_ns = int(self.facts.column("start_ns")[self.group.typical])
        for piece in self.facts.segments(self.group):
            begin_ns, at_ns = at_ns, at_ns + piece.ns
            if piece.cause != "host" or self._is_in_first_call(begin_ns):
                continue
            first, last = np.searchsorted(launches_ns, (begin_ns, at_ns))
            edges = [begin_ns, *launches_ns[first:last].tolist(), at_ns]
            pieces_ns += np.diff(edges).tolist()
            cuts += int(last - first)
        return pieces_ns, cuts

    def _is_in_first_call(self, at_ns: int) -> bool:
        rows = self.first_inside
        return bool(((rows["start_ns"] <= at_ns) & (at_ns < rows["end_ns"])).any())

    @property
    def _launches(self) -> LaunchesOfThreads | None:
        """When the threads of its process gave work to the GPU.  Of an event pair, whose idle time is about whichever
        thread launches next, this is not asked."""
        known = self.facts.analysis.of_runs_by(LaunchesOfThreads) if self.on_host else []
        pid = self.facts.column("pid")[self.group.typical]
        return next((record for record in known if record.pid == pid), None)

    def _launches_of_others(self) -> np.ndarray:
        """When (ns, rising) other threads of its process gave work to the GPU."""
        if record := self._launches:
            return record.start_ns[record.tid != self.facts.column("tid")[self.group.typical]]
        return np.empty(0, np.int64)

    @property
    def by_untimed(self) -> bool:
        """Whether the program times one thread of torch's: others that launch are torch's, as autograd's is."""
        rows = self.facts.intervals[
            self.facts.column("pid") == self.facts.column("pid")[self.group.typical]
        ]
        timing = {*rows["tid"].tolist()}
        return self.facts.torch and len(timing) == 1

    @property
    def launched_by_others(self) -> int:
        """How many operations other threads launched while the CPU of the typical interval was outside CUDA."""
        return self._outside[1]

    @property
    def longest_piece_ns(self) -> int:
        """The longest time in one piece that the CPU was outside CUDA, in the typical interval."""
        return max(self._outside[0], default=0)

    @property
    def _long_pieces(self) -> list[int]:
        return [ns for ns in self._outside[0] if ns >= LONG_PIECE_NS]

    @property
    def long_piece_count(self) -> int:
        """How many such pieces take a millisecond and more."""
        return len(self._long_pieces)

    @property
    def long_pieces_ns(self) -> int:
        """How long these are together."""
        return sum(self._long_pieces)

    @property
    def in_long_pieces(self) -> bool:
        """Whether such pieces are most of the time in which the CPU was outside CUDA, and no one of them is the reason: it
        computes between its launches, or waits for another thread or process."""
        return not self.in_one_piece and 2 * self.long_pieces_ns >= self.ns("host") > 0

    @property
    def in_one_piece(self) -> bool:
        """Whether one long piece is a good part of the time in which the GPU had nothing to do: one function may be the
        reason."""
        longest_ns = self.longest_piece_ns
        return longest_ns >= LONG_PIECE_NS and longest_ns >= GOOD_PART * self.idle_ns

    @cached_property
    def is_held_up_anywhere(self) -> bool:
        """Whether the longest piece outside CUDA lies before different operations in different timings of the group: no
        function of the program's comes before all of these, as another thread that holds Python's interpreter does."""
        if self.on_host or self.operations > MOST_LOOKED_AT:
            return False
        behind = Counter[str]()
        for segments in self.facts.segments_of_some(self.group, TIMINGS_LOOKED_AT):
            pieces = [number for number, piece in enumerate(segments) if piece.cause == "host"]
            longest = max(pieces, key=lambda number: segments[number].ns, default=-1)
            if longest >= 0 and segments[longest].ns >= LONG_PIECE_NS:
                then = (p.text for p in segments[longest:] if p.cause in OPERATION_KINDS)
                behind[next(then, "")] += 1
        return behind.total() >= FEWEST_LOOKED_AT and 2 * max(behind.values()) <= behind.total()

    @cached_property
    def loads_behind(self) -> str:
        """The call that loads code right behind the longest piece outside CUDA, before the next launch, in most timings of the
        group; '' where there is none."""
        if self.group.role == FIRST or self.operations > MOST_LOOKED_AT:
            return ""
        calls = Counter[str]()
        for segments in self.facts.segments_of_some(self.group, TIMINGS_LOOKED_AT):
            pieces = [number for number, piece in enumerate(segments) if piece.cause == "host"]
            longest = max(pieces, key=lambda number: segments[number].ns, default=-1)
            calls[_loading_call(segments, longest)] += 1
        name, count = calls.most_common(1)[0]
        return name if 2 * count > calls.total() else ""

    @cached_property
    def allocations(self) -> dict[str, int]:
        """The calls that allocate and free memory in the typical interval, by name, and how many of each; empty unless
        most timings of the group make such calls, again and again, and spend a part of their time in them that
        matters."""
        group = self.group
        if group.count < FEWEST_REPEATED or group.role == FIRST:
            return {}
        spent_ns = sum(e.ns for e in group.of_cause("api") if ALLOCATES.match(e.what))
        if spent_ns < ALLOCATING_SHARE * group.total_ns or 2 * self.allocating_count < group.count:
            return {}
        calls = dict.fromkeys((piece.text, piece.ref) for piece in self._allocating)
        names = [name for name, _ in calls]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    @property
    def _allocating(self) -> list[Segment]:
        pieces = self.facts.segments(self.group)
        return [p for p in pieces if p.cause == "api" and ALLOCATES.match(p.text)]

    @property
    def allocating_ns(self) -> int:
        """How long the typical interval allocates and frees."""
        return sum(piece.ns for piece in self._allocating)

    @cached_property
    def memory_kinds(self) -> tuple[Group, Group] | None:
        """(timings of the label that give memory back to the driver, those that do not and do about as much); of each the
        group with most timings.  None where its kinds of timings do not differ in that."""
        freeing, keeping = (
            [g for g in self.label.steady if word in g.work.name.split(", ")]
            for word in (FREES, KEEPS)
        )
        if not freeing:
            return None
        calling = max(freeing, key=lambda group: group.count)
        low, high = calling.work.fewest_operations, calling.work.most_operations
        alike = [g for g in keeping if low <= ALIKE * g.work.operations <= ALIKE**2 * high]
        without = max(alike, key=lambda group: group.count, default=calling)
        return (calling, without) if ALIKE * without.typical_ns <= calling.typical_ns else None

    @staticmethod
    def memory_calls(group: Group) -> list[str]:
        """The calls of a group that allocate and free memory, as far as they take time of it, by name."""
        return sorted({e.what for e in group.of_cause("api") if ALLOCATES.match(e.what)})

    @cached_property
    def allocating_count(self) -> int:
        """How many timings of the group spend a hundredth of their time and more on it."""
        rows = self.facts.details(self.group.intervals, "api")
        rows = rows[rows["detail"].astype(str).str.match(ALLOCATES)]
        spent_ns = rows.groupby("interval")["ns"].sum()
        elapsed_ns = self.facts.column("elapsed_ns")[spent_ns.index.to_numpy(dtype=np.int64)]
        return int((100 * spent_ns.to_numpy() >= elapsed_ns).sum())

    @property
    def own_code(self) -> bool:
        """Whether most of the typical interval is code of the program's own between its launches.  Where another thread
        makes most of these, as autograd's does, the timing one may wait for it."""
        host_ns, by_others = self.ns("host"), self.launched_by_others
        is_long = 2 * host_ns >= self.group.typical_ns and host_ns >= OWN_CODE_NS * self.operations
        return is_long and 2 * by_others <= self.operations

    @cached_property
    def thread_count(self) -> int:
        """How many threads of one Python program the label timed at once; 1 where they took turns."""
        rows = self.facts.intervals.iloc[np.concatenate([g.intervals for g in self.label.steady])]
        threads = rows.groupby("pid")["tid"].nunique()
        return int(threads.max()) if self.label.overlapping and self.facts.python else 1

    @property
    def off_cpu(self) -> str:
        """Why the timing thread did not run for most of the CPU's time outside CUDA: OTHER_THREAD or NO_THREAD; '' where it
        did, where that is not known, and where another thread launched meanwhile, as autograd's does."""
        entries = self.group.of_cause("host")  # the longest first
        if not entries or 2 * entries[0].ns < self.group.ns("host"):
            return ""
        is_long = self.in_one_piece or self.in_long_pieces
        launched = self.launched_by_others >= MANY_LAUNCHES and not is_long
        name = entries[0].what
        return name if name in (OTHER_THREAD, NO_THREAD) and not launched else ""

    @property
    def held_by_copy(self) -> bool:
        """Whether most of its launch time passes in the call of a copy from or to pageable memory, which returns
        when the copy is done."""
        entries = self.group.of_cause("api_launch")  # the longest first
        if not entries or "Memcpy" not in entries[0].what:
            return False
        copies = self.group.work.of_kind("memcpy")
        is_pageable = any("pageable" in copy.name for copy in copies)
        return is_pageable and 2 * entries[0].ns > self.group.ns("api_launch")

    @property
    def one_by_one_ns(self) -> int:
        """What launching very many operations costs, each of which runs for less than its launch
        takes, with the CPU's own code between them: all but its long pieces.  0 for other work, and where
        what the CPU did has a name."""
        launching = self.ns("api_launch")
        named = self.group.of_cause("host")[:1]
        named = named and named[0].what and 2 * named[0].ns >= self.group.ns("host")
        if self.operations < VERY_MANY or self.one.busy > launching or self.on_host or named:
            return 0
        if self.own_code:
            return 0
        between = self.ns("host") - self.long_pieces_ns
        return between + launching + self.ns("launch_latency")

    @property
    def waits_often(self) -> bool:
        """Whether the CPU waits for the GPU so often that it hardly ever launches ahead, and that matters: the same work with
        hardly a wait takes clearly less."""
        operations_of_wait = OFTEN_READ if self.copies_back else OFTEN
        often = 0 < self.operations <= operations_of_wait * self.group.work.waits
        return often and (self._twin_ns == 0 or self.left_for_waits)

    @property
    def _without_waits_ns(self) -> int:
        """How long the typical interval takes at least without its waits: as long as the CPU's own work, and the GPU's, or as the
        label's timings of about as much work that hardly wait.

        CPU   [work)wait[work)wait[work)      the waits are the cause
        CPU   [work---------)wait[work--)     the work is: it takes nearly as long without the wait
        """
        working_ns = self.ns("host", "api", "api_launch", "profiler")
        typical_ns = self.group.typical_ns
        return min(max(working_ns, self.one.worked), self._twin_ns or typical_ns, typical_ns)

    @cached_property
    def _twin_ns(self) -> int:
        """What the label's timings of about as much work, of very many operations, take that hardly wait; 0 for none."""
        work = self.group.work
        alike = (
            g for g in self.label.steady if 2 * g.work.operations >= work.operations >= VERY_MANY
        )
        twins = (g.typical_ns for g in alike if FEWER_WAITS * g.work.waits <= work.waits)
        return min(twins, default=0) if work.waits else 0

    @property
    def left_for_waits(self) -> bool:
        """Whether the typical interval would be clearly shorter without its waits."""
        typical_ns = self.group.typical_ns
        return typical_ns - self._without_waits_ns >= LEFT_FOR_WAITS * typical_ns

    @property
    def launches_first(self) -> bool:
        """Whether its launches take longer than its waits: what is left without these is more of the CPU's than they cost.
        Few operations may be launched ahead once nothing waits."""
        if not self.group.work.waits:
            return True
        ahead = self.operations < VERY_MANY and self.waits_often and self.left_for_waits
        least_ns, worked_ns = self._without_waits_ns, max(self.one.worked, self.one.busy)
        return not ahead and least_ns - worked_ns > self.group.typical_ns - least_ns

    @property
    def has_one_shape(self) -> bool:
        """Whether the GPU works about as long in nearly all timings of its group: their shapes do not differ."""
        ran_ns = self.facts.column("kernel_only_upper_ns")[self.group.intervals]
        low_ns, high_ns = np.quantile(ran_ns, (0.1, 0.9))
        return bool(high_ns <= ONE_SHAPE * low_ns)

    @property
    def of_library(self) -> Issued | None:
        """The kernel that a library launches most often, where it launches very many itself, one after the other:
        nearly all are of no operator of torch's, and between two of them there is no time for one."""
        kernels = self.group.work.of_kind("kernel")
        count = sum(kernel.count for kernel in kernels)
        foreign = [kernel for kernel in kernels if not of_torch(kernel.name)]
        # what it copies and fills is its own as well
        nearly_all = sum(kernel.count for kernel in foreign) >= OF_LIBRARY * count
        nearly_all = nearly_all and 2 * count >= self.operations
        between_ns = self.ns("host") / max(self.operations, 1)
        if count < VERY_MANY or not nearly_all or between_ns >= LEAST_OPERATOR_NS:
            return None
        return max(foreign, key=lambda kernel: kernel.count)

    @cached_property
    def _preparing(self) -> tuple[int, int, int]:
        """Of the typical interval: (how long (ns) the CPU loads code or makes graphs, with what it does before and after
        that between two launches, as who compiles first and then loads; how long the CPU works; in how many such
        stretches code is loaded).

        [host, load, api)[launch)[host)[launch)[host)[launch) ... 300 times: the first stretch alone
        """
        preparing_ns = whole_ns = stretch_ns = count = 0
        prepares = False
        for piece in self.facts.segments(self.group):
            if piece.cause not in ("host", "api", "profiler", "api_launch"):
                continue
            whole_ns += piece.ns
            if piece.cause == "api_launch":
                stretch_ns, prepares = 0, False
                continue
            stretch_ns += piece.ns
            if prepares:
                preparing_ns += piece.ns
            elif piece.cause == "api" and MAKES.match(piece.text):
                preparing_ns += stretch_ns
                prepares = True
                count += bool(LOADS.match(piece.text))
        return preparing_ns, whole_ns, count

    @property
    def is_preparing(self) -> bool:
        """Whether a good part of the CPU's time in the typical interval prepares for others: loads code, or makes a graph."""
        if is_of_compiler(self.label.name):
            return True
        preparing_ns, whole_ns, _ = self._preparing
        if not whole_ns:  # too many operations to be looked at
            return loading_share(self.group) >= LOADING_SHARE
        return preparing_ns >= PREPARING_SHARE * whole_ns

    @property
    def loads_inside(self) -> int:
        """How often code is loaded in the typical interval, where that is many times as often as it has kernels: it is
        loaded in each round of a loop, and no first call; else 0."""
        count = 0 if is_of_compiler(self.label.name) else self._preparing[2]
        kernels = {kernel.name for kernel in self.group.work.of_kind("kernel")}
        return count if count >= LOADED_AGAIN * len(kernels) > 0 else 0

    @cached_property
    def first_ones(self) -> int:
        """How many of the label's first timings prepare for the others: its first calls and this group, where
        these are the earliest and something is prepared in both; 0 for none."""
        if self.group.role == FIRST or self.label.overlapping or not self.prepares:
            return 0
        # what is captured for a graph is launched before the graph is made: its part is not known
        if GRAPH not in self.prepares and (not self.is_preparing or self.loads_inside):
            return 0
        groups = [*(g for g in self.label.groups if g.role == FIRST), self.group]
        if sum(group.count for group in groups) == self.label.count:
            return 0  # nothing is behind them
        return earliest(self.label, groups, self.facts.column("start_ns"))

    @cached_property
    def prepares(self) -> dict[str, int]:
        """What the timings of its group prepare, and how many (`preparing.prepared`)."""
        return prepared(self.group, self.facts.details)

    @cached_property
    def compiler(self) -> str:
        """Who compiles in several timings of the label, in those of its group, too; '' for nobody."""
        return compiler_of(self.group) if times_compiled(self.label, self.group) > 1 else ""

    @property
    def made(self) -> dict[str, int]:
        """The same as `prepares`, of what may make its timings longer than the label's others: who compiles also loads
        code, and a graph that all of them record makes none longer."""
        if self.compiler:
            return {f"{self.compiler} compiles": self.group.count}
        if self.loads_inside and self.group.count == 1:
            return {f"{CODE} {self.loads_inside:,} times": 1}
        tells = {CODE: self.is_preparing, GRAPH: tells_apart(self.label)}
        return {text: count for text, count in self.prepares.items() if tells[text]}

    @cached_property
    def searches(self) -> bool:
        """Whether a library tries many ways to do the same in its timings, in those of a few or in all of them."""
        return searches(self.label, self.group) or (self.in_all and self.label.kind != "event")

    @cached_property
    def search_ns(self) -> int:
        """How much longer the searches of its label take than as many usual timings, that of a first call among them; 0
        where the timings of its group do not search, or the usual ones do."""
        label = self.label
        if label.overlapping or not searches(label, self.group):
            return 0
        groups = [group for group in label.groups if searches(label, group)]
        return sum(group.total_ns - group.count * label.usual.typical_ns for group in groups)

    @cached_property
    def loads_again(self) -> int:
        """In how many timings of its group code is loaded, where that is so in most of them, takes a part of their time
        that matters, and these are not the first ones; else 0: each of them runs what is new to the program."""
        group = self.group
        is_late = group.role != FIRST and group.count >= FEWEST_REPEATED and not self.first_ones
        has_a_name = bool(self.compiler) or self.searches
        if not is_late or has_a_name or loading_share(group) < LOADING_SHARE:
            return 0
        return self.prepares.get(CODE, 0)

    @cached_property
    def loads_in(self) -> int:
        """In how many timings of the label code is loaded, where it never warms up: in a fifth and more of them, of which
        those of this group are not the first ones; else 0."""
        is_late = self.group.role != FIRST and not self.first_ones
        if not is_late or self.label.count < FEWEST_REPEATED or not self.group.of_cause("api"):
            return 0
        numbers = np.concatenate([group.intervals for group in self.label.groups])
        rows = self.facts.details(numbers, "api")
        rows = rows[rows["detail"].astype(str).str.match(LOADS)]
        count = int((rows.groupby("interval")["ns"].sum() >= LOAD_NS).sum())
        return count if count >= max(NEVER_WARM * self.label.count, FEWEST_REPEATED) else 0

    @property
    def loads_the_same(self) -> bool:
        """Whether it is known that code is loaded again that was loaded before: many times as often as the label has
        kernels."""
        table = self.facts.analysis.kernels
        rows = table[(table["label"] == self.label.name) & (table["kind"] == "kernel")]
        return 0 < LOADED_AGAIN * rows["kernel"].nunique() <= self.loads_in

    @property
    def loads_unchanged(self) -> bool:
        """Whether code is loaded in most timings of its group, all of which run the same kernels with as many blocks for the
        same time: then their sizes do not differ."""
        kernels = self.group.work.of_kind("kernel")
        known = bool(kernels) and all(kernel.blocks > 0 for kernel in kernels)
        is_late = self.group.role != FIRST and self.group.count >= FEWEST_REPEATED
        if not known or not is_late or self.compiler or CODE not in self.prepares:
            return False
        ran_ns = self.facts.column("kernel_only_upper_ns")[self.group.intervals]
        return 0 < int(ran_ns.max()) <= SAME_KERNELS * int(ran_ns.min())

    @cached_property
    def compiling(self) -> list[Group]:
        """The groups of the label in which the compiler of its group compiles."""
        alike = self.compiler and [g for g in self.label.groups if compiler_of(g) == self.compiler]
        return alike or []

    @cached_property
    def first_of_size(self) -> tuple[int, int, int]:
        """(how many timings of its group, and of all others so slow, are the first ones of their size, what such a timing takes, what later ones of
        the same sizes take (ns)); zeros unless nearly all of them are, of sizes that come again and are then done in
        half the time, and each prepares its kernels for their first launch.

        A size is the same operations with the same grids and as many bytes, timed by the same lines.

        n = 16    n = 24    n = 16    n = 24
        44 ms     44 ms     1.1 ms    1.1 ms       both of 44 ms are the first of their size
        """
        zeros = (0, 0, 0)
        known = self.facts.analysis.of_runs_by(WorkOfIntervals)
        slow = self._as_slow
        if not known or len(slow) < FEWEST_REPEATED or not self.on_host:
            return zeros
        numbers = np.concatenate(
            [g.intervals for label in self._of_its_lines() for g in label.groups]
        )
        numbers = numbers[np.argsort(self.facts.column("start_ns")[numbers], kind="stable")]
        key, elapsed_ns = known[0].key[numbers], self.facts.column("elapsed_ns")[numbers]
        is_first = (key != 0) & ~pd.Series(key).duplicated().to_numpy()
        first = np.flatnonzero(is_first & np.isin(numbers, slow))
        later = np.flatnonzero(~is_first & np.isin(key, key[first]))
        again = first[np.isin(key[first], key[later])]
        if len(first) < NEARLY_ALL * len(slow) or len(again) < FEWEST_REPEATED:
            return zeros
        takes_ns, later_ns = (int(np.median(elapsed_ns[rows])) for rows in (again, later))
        prepares = self.facts.details(numbers[first], "api")
        prepares = prepares[prepares["detail"].astype(str).str.match(FIRST_USE)]
        count = int((prepares.groupby("interval")["ns"].sum() >= LOAD_NS).sum())
        if (
            2 * len(again) < len(first)
            or 2 * later_ns > takes_ns
            or count < NEARLY_ALL * len(first)
        ):
            return zeros
        return len(first), takes_ns, later_ns

    @property
    def _as_slow(self) -> np.ndarray:
        """The timings of its group, and, if these take many times as long as the usual ones, of all groups that do."""
        least_ns = MANY_TIMES * self.label.usual.typical_ns
        groups = [group for group in self.label.steady if group.typical_ns >= least_ns]
        groups = groups if self.group in groups else [self.group]
        return np.concatenate([group.intervals for group in groups])

    def _of_its_lines(self) -> list[Label]:
        """The labels that time the same lines, from whichever caller; at least its own."""
        _, lines = call_site(self.label.name)
        labels = [
            label for label in self.facts.labels if lines and call_site(label.name)[1] == lines
        ]
        return labels or [self.label]

    @cached_property
    def programs(self) -> int:
        """How many programs that XLA compiled are started in the typical interval of a host timer, by its ranges; 0 where
        the trace has none."""
        if not self.on_host:
            return 0
        rows = self.facts.analysis.intervals
        typical = self.facts.intervals.iloc[self.group.typical]
        inside = (rows["start_ns"] >= typical["start_ns"]) & (rows["end_ns"] <= typical["end_ns"])
        of_process = rows[inside & (rows["pid"] == typical["pid"]) & (rows["kind"] == "nvtx")]
        return int(of_process["label"].astype(str).str.match(PROGRAM_OF_XLA).sum())

    @property
    def compiles_shapes(self) -> bool:
        """Whether the work differs between the timings that compile: in kernels or blocks, or XLA tries kernels in each,
        which it does once for a shape."""
        kinds = {self._kernels_of(group) for group in self.compiling}
        known = all(group.work.of_kind("kernel") for group in self.compiling)
        return (known and len(kinds) > 1) or (
            bool(kinds) and all(map(tries_for_xla, self.compiling))
        )

    @property
    def compiles_the_same(self) -> bool:
        """Whether the timings that compile run the same kernels, with the same blocks as far as the trace says, for the
        same time."""
        kinds = {self._kernels_of(group) for group in self.compiling}
        known = [i for g in self.compiling for i in g.work.of_kind("kernel") if i.blocks >= 0]
        if len(kinds) != 1 or not known or self.compiles_shapes:
            return False
        numbers = np.concatenate([group.intervals for group in self.compiling])
        ran_ns = self.facts.column("kernel_only_upper_ns")[numbers]
        return 0 < int(ran_ns.max()) <= SAME_KERNELS * int(ran_ns.min())

    @staticmethod
    def _kernels_of(group: Group) -> tuple[tuple[str, int, int], ...]:
        """What a timing of a group runs: (name, how often, blocks) of its kernels, sorted."""
        return tuple(sorted((i.name, i.count, i.blocks) for i in group.work.of_kind("kernel")))

    @property
    def in_all(self) -> bool:
        """Whether cuDNN's search is in all timings of its group, and no pair of events of the program's own."""
        rows, typical = self.facts.intervals, self.facts.intervals.iloc[self.group.typical]
        is_inside = (rows["start_ns"] >= typical["start_ns"]) & (
            rows["end_ns"] <= typical["end_ns"]
        )
        return tries_kernels(self.group) and not (is_inside & (rows["kind"] == "event")).any()

    @property
    def issued_elsewhere(self) -> bool:
        """Another thread than the timing one launched its work, such as autograd's: what the
        timing thread was in says nothing of the launching."""
        least_ns = LEAST_LAUNCH_NS * self.operations
        return self.on_host and self.operations > 0 and self.ns("api_launch") < least_ns

    @property
    def operations(self) -> int:
        """How many the typical interval issued, or ran on its stream."""
        ran = int(self.facts.column("operations")[self.group.typical])
        return self.group.work.operations or ran

    @property
    def copies_back(self) -> int:
        """How many results of a few bytes are copied to the host in a typical interval."""
        small = [i for i in self.group.work.of_kind("memcpy") if "D2H" in i.name]
        return sum(i.count for i in small if i.size <= ITEM_BYTES * i.count)

    @property
    def graphs(self) -> bool:
        return self.group.work.graphs > 0 or self.ns("graph") > 0

    @property
    def on_purpose(self) -> bool:
        """What it waited for was launched inside it, on another stream."""
        return 2 * sum(self.others.values()) >= self.sums.waiting > 0

    def avoidable(self) -> dict[str, int]:
        """Return, by what took it, how long (ns) the intervals of the group need not have lasted: a dict with the keys
        cpu, calls, sync, launches, copies and waiting.

        All of a group's time counts but kernels, graphs, copies on the device, the shortest idle times that are
        possible, first calls inside that are left out, and waiting on purpose.  No value is more than the time in which the GPU did not work for it; what
        the CPU takes is not more than the time in which the GPU did not work at all; of a slow group none is more
        than the excess over the label's usual time.
        """
        sums = self.sums
        parts = {
            "cpu": sums.cpu + sums.profiler,
            "calls": sums.calls,
            "sync": sums.sync,
            "launches": sums.launches + sums.latency,
            "copies": sums.copies - self.pinned_copies_ns,
            "waiting": 0 if self.on_purpose else sums.waiting + sums.collectives,
        }
        # of a host timer kernels ran beside what the CPU did, earlier ones as well
        if self.on_host:
            of_the_cpu = ("cpu", "calls", "sync", "launches")
            late_ns = max(sums.late - self.first_inside_ns, 0)
            parts |= {name: min(parts[name], late_ns) for name in of_the_cpu}
        # the shortest idle times that are possible
        floor_ns = 0 if self.on_host else sums.floor
        most_ns = max(sums.whole - sums.busy - floor_ns - self.first_inside_ns, 0)
        if self.group.role == SLOW:
            usual_ns = sums.count * self.label.usual.typical_ns
            most_ns = min(most_ns, max(sums.whole - usual_ns, 0))
        return {name: min(ns, most_ns) for name, ns in parts.items()}

    @property
    def pinned_copies_ns(self) -> int:
        """How long its copies of pageable memory take at least where that is pinned: at the speed of the run's own pinned
        copies, else at that of the bus.  No pinning saves that."""
        least_ns = 0.0
        for entry in self.group.of_cause("memcpy"):
            if entry.memory == "pageable" and entry.size:
                rate = self.facts.pinned_rate(entry.direction) or BUS_BYTES_PER_NS
                least_ns += min(entry.size / rate, entry.ns)
        return min(int(least_ns), self.sums.copies)

    @property
    def small(self) -> bool:
        """Its operations run for a short time each."""
        return self.one.busy <= SMALL_NS * max(self.operations, 1)

    @property
    def loss_ns(self) -> int:
        """The largest of these, or what its kernels take that they need not, or searches; 0 where the GPU works enough, or where
        others did meanwhile."""
        if self.others_worked and not self.sums.gpu:
            return 0
        return max(*self.avoidable().values(), self.unneeded_ns, self.search_ns)

    @property
    def quicker_elsewhere(self) -> Elsewhere | None:
        """Where the kernel is far quicker that takes most of it; None if that is not so, or not known."""
        return self.facts.quicker_elsewhere.get(self.group.number) if self.word == GPU else None

    @property
    def slower_kernel_ns(self) -> int:
        """How much longer its timings take than with that kernel as quick as elsewhere."""
        quick = self.quicker_elsewhere
        if quick is None:
            return 0
        return min(self.group.count * quick.excess_ns, self.group.ns("kernel"))

    @cached_property
    def copying_share(self) -> float:
        """How much of its kernel time (0 to 1) goes into torch's kernels that copy or convert, where that is a good part and
        something else is computed, too; else 0.  What of a host timer ran beside the CPU is not known: then it is more."""
        pieces = self.facts.segments(self.group) if self.word in (GPU, MIXED) else []
        copying_ns = sum(p.ns for p in pieces if p.cause == "kernel" and COPIES.search(p.text))
        share = copying_ns / max(self.kernels_ns, 1)
        return share if MUCH_COPYING <= share < NEARLY_ALL else 0.0

    @property
    def unneeded_ns(self) -> int:
        """What its kernels take that they need not: as they are quicker elsewhere, or copy and convert."""
        copying_ns = int(self.copying_share * self.kernels_ns) * self.group.count
        return max(self.slower_kernel_ns, min(copying_ns, self.group.total_ns))

    @property
    def late(self) -> bool:
        """Over a fifth of its typical interval is not GPU work, and would not be without recording."""
        busy = self.one.share(self.one.busy) + self.group.elsewhere >= GPU_SHARE
        return not busy and not self.late_by_recording and not self.beside_other_work

    @property
    def beside_other_work(self) -> bool:
        """Whether the GPU works nearly all the time, though not on what the timer waits for."""
        return works_beside(self.one)

    @property
    def late_by_recording(self) -> bool:
        """Whether its GPU waits for the CPU because its launches are recorded, and for nothing else."""
        return self.word == MIXED and self.one.late_by_recording
