"""One label as findings read it: the group that leads, its sums, and its typical interval.

Numbers that a sentence prints are noted in the finding's evidence while they are printed, so that
each can be checked again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

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
    intervals_that_call,
    is_of_compiler,
    loading_share,
    loads_code,
    prepared,
    searches,
    tells_apart,
    times_compiled,
    tries_for_xla,
    tries_kernels,
)
from nsysalign.explain.runs.caches import AfterFill
from nsysalign.explain.runs.forks import Forks
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
    GIVES_BACK,
    KEEPS,
    SLOW,
    TAKES,
    Entry,
    Group,
    Issued,
    Label,
)
from nsysalign.model import NO_THREAD, OPERATION_KINDS, OTHER_THREAD, OTHERS_WORKED
from nsysalign.split.captures import CapturedLaunches
from nsysalign.split.groups import WorkOfIntervals
from nsysalign.text import duration, percent, plural, safe_text, subject

_SITE = re.compile(r"^(?P<caller>.+):(?P<line>\d+) \((?P=caller):(?P<lines>\d+(?:-\d+)?)\)$")
#: A group has a row of its own from this share of the label's time on (first calls apart), or of its
#: repetitions.
ROW_SHARE, ROW_REPETITIONS = 0.05, 0.2
#: Of so few repetitions each group has one.
FEW_REPETITIONS = 8
#: A copy to the host of no more bytes than this reads a result, as `.item()` does.
ITEM_BYTES = 4_096


def spoken(label: str) -> str:
    """Return a label as sentences name it: without folders, a common file name once."""
    name = safe_text(subject(label))
    if place := _SITE.match(name):
        return f"{place['caller']}:{place['line']} › {place['lines']}"
    return name


def beside(site: str, label: str) -> str:
    """Return how a sentence about a label with this call site names another label: without the file's name where both
    are of one file."""
    return spoken(label).removeprefix(f"{site.partition(':')[0]}:")


def call_site(label: str) -> tuple[str, str]:
    """Return (line of the caller, lines that it calls) of a label whose pair of lines has several callers; ("", "") of
    others.
    """
    place = _SITE.match(safe_text(subject(label)))
    return (place["line"], f"{place['caller']}:{place['lines']}") if place else ("", "")


def shown_groups(label: Label) -> tuple[Group, ...]:
    """Return the groups of a label that have a row each, at least one: those that are large, in time or in number."""
    steady = label.steady
    count = sum(group.count for group in steady)
    if count <= FEW_REPETITIONS:
        return steady
    least_ns, least_count = ROW_SHARE * label.steady_ns, ROW_REPETITIONS * count
    large = (g for g in steady if g.total_ns >= least_ns or g.count >= least_count)
    return tuple(large) or steady[:1]


@dataclass
class Numbers:
    """The numbers of a sentence: each method returns one as text, and notes the number itself by its name as evidence."""

    evidence: dict[str, Any] = field(default_factory=dict)

    def time(self, name: str, ns: float) -> str:
        self.evidence[f"{name}_ns"] = int(ns)
        return duration(ns)

    def share(self, name: str, part: float, whole: float) -> str:
        self.evidence[f"{name}_share"] = part / max(whole, 1)
        return percent(part / max(whole, 1))

    def times(self, shortest: str, shortest_ns: float, longest: str, longest_ns: float) -> str:
        """From which time to which some reach, "1.21 ms to 4.12 ms"; one time where both read alike."""
        text = self.time(shortest, shortest_ns)
        if text == duration(longest_ns):
            return text
        return f"{text} to {self.time(longest, longest_ns)}"

    def count(self, name: str, count: int, noun: str = "") -> str:
        self.evidence[name] = int(count)
        return plural(int(count), noun) if noun else f"{count:,}"


#: What the CPU does outside CUDA for so long without a break is more than what lies between two launches.
LONG_PIECE_NS = 1_000_000
#: Where such a piece lies is looked up in so many timings of at most so many operations; so many must have one.
TIMINGS_LOOKED_AT, MOST_LOOKED_AT, FEWEST_LOOKED_AT = 12, 5_000, 4
#: What follows a long piece is looked up among so many segments.
LOOKED_AT_BEHIND = 10
#: From so many operations on it is their number that costs time, whatever the CPU does between two of them.
VERY_MANY = 100
#: Timings hardly wait where others wait so many times as often.
FEWER_WAITS = 10
#: Waits are a cause where the CPU's and the GPU's work leave at least this share of the time: without them it is
#: shorter by no more than that, and by what reading back costs.
LEFT_FOR_WAITS = 0.15
#: Kernels of one shape differ by at most this ratio in how long they run.
ONE_SHAPE = 1.5
#: The CPU hardly launches ahead if it waits at least once for so many operations; if it reads results back, by which
#: it decides what to launch, at least once for so many.
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
#: ... and what is less than this share of it makes none of it.
HARDLY = 0.1
#: The time of each launch is said of a graph that replays so many.
MANY_CAPTURED = 10
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
COPIES, MUCH_COPYING = re.compile(r"\w_copy_kernel_cuda\b|\bCatArrayBatchedCopy"), 0.3
#: A first call takes so many times as long as later ones.
FAR_QUICKER = 3
#: No launch call takes less.
LEAST_LAUNCH_NS = 500
#: Slow timings are regular where there are so many at one distance, of at least so many timings.
FEWEST_REGULAR, LEAST_DISTANCE = 3, 3
#: Timings that get longer as the run goes on are of so many kinds, and so many, and more.
KINDS_THAT_GROW, TIMINGS_THAT_GROW = 4, 9


def _loading_call(segments: list[Segment]) -> str:
    """The first call of these segments that loads code before anything is launched, '' for none."""
    for segment in segments:
        if segment.cause in ("api_launch", "sync"):
            break
        if segment.cause == "api" and LOADS.match(segment.text):
            return segment.text
    return ""


def _begins_with_copy(segments: list[Segment]) -> bool:
    """Whether these segments begin with a copy of pageable memory to the GPU, or with the CPU's part of it."""
    for segment in segments:
        if "H2D" in segment.text or not segment.text.startswith("staging"):
            return "H2D pageable" in segment.text
    return False


def warmed_up_by(facts: Facts, label: Label) -> str:
    """Return the label that times the same lines, called from another line, behind each timing of this one, which takes far
    longer at least once; '' for none.  Who calls the lines once before means to leave that call out.

    line 73   generate(prompt)           [3.6 s ]         [0.7 s]
    line 74   ms = generate(prompt)              [0.2 s]          [1.1 s]
    """
    _, lines = call_site(label.name)
    if not lines:
        return ""
    start_ns, elapsed_ns = facts.column("start_ns"), facts.column("elapsed_ns")
    calls = facts.in_order(_members(label))
    for sibling in facts.labels:
        if sibling.name == label.name or call_site(sibling.name)[1] != lines:
            continue
        timed = facts.in_order(_members(sibling))
        if len(calls) == 1:
            usual = sibling.usual
            is_before = start_ns[usual.typical] > start_ns[calls[0]]
            if is_before and FAR_QUICKER * usual.typical_ns < elapsed_ns[calls[0]]:
                return sibling.name
        elif len(calls) == len(timed):
            in_turn = np.stack([calls, timed], axis=1).ravel()
            quicker = FAR_QUICKER * elapsed_ns[timed] < elapsed_ns[calls]
            if (np.diff(start_ns[in_turn]) > 0).all() and quicker.any():
                return sibling.name
    return ""


def starts_in_warm_up(facts: Facts) -> np.ndarray:
    """Return, per interval, whether it begins in a timing of another label that is a warm-up (bool)."""
    start_ns, elapsed_ns = facts.column("start_ns"), facts.column("elapsed_ns")
    warm_ups = [_members(label) for label in facts.labels if warmed_up_by(facts, label)]
    begins = np.zeros(len(start_ns), bool)
    for number in np.concatenate(warm_ups).tolist() if warm_ups else []:
        end_ns = start_ns[number] + elapsed_ns[number]
        begins |= (start_ns > start_ns[number]) & (start_ns < end_ns)
    return begins


def _members(label: Label) -> np.ndarray:
    """Return the numbers of the timings of a label."""
    return np.concatenate([group.intervals for group in label.groups])


class FirstWork(NamedTuple):
    """The wait for the first GPU work of an interval (ns).

    idle_ns:     how long its stream was idle before it
    launched_ns: how long after the interval's begin the call began that launched it; 0: not known
    """

    idle_ns: int
    launched_ns: int


class OfFirstSizes(NamedTuple):
    """Timings that are the first ones of their size.

    timings:  how many
    takes_ns: what such a timing takes, if its size comes again
    later_ns: what later ones of the same sizes take
    """

    timings: int
    takes_ns: int
    later_ns: int


class Regular(NamedTuple):
    """Slow timings of a label that come at one distance.

    distance: 24: each is the 24th timing behind the one before; 0: they do not
    is_from_first: whether they begin with the label's first timing, as where each is the first of a pass
    """

    distance: int
    is_from_first: bool


class Growth(NamedTuple):
    """How a label's timings get longer as the run goes on, ns: the median of the first third of them and of the last,
    and how long the kernels of each third ran (medians)."""

    first_ns: int
    last_ns: int
    first_kernels_ns: int
    last_kernels_ns: int


class _Outside(NamedTuple):
    """When the timing thread of an interval was outside CUDA, and no thread of the program gave work to the GPU.

    pieces_ns: how long each piece of this time is
    launches:  how many launches of other threads lie between these pieces
    threads:   how many threads these are of
    """

    pieces_ns: list[int]
    launches: int
    threads: int


class _Preparing(NamedTuple):
    """What an interval prepares for others.

    ns:     how long the CPU loads code or makes graphs, with what it does before and after that between two launches
    cpu_ns: how long it works in all
    loads:  in how many stretches between two launches code is loaded
    """

    ns: int
    cpu_ns: int
    loads: int


@dataclass(frozen=True)
class Case:
    """A label, one of its groups, and what is asked about both.

    facts:   the analysis that they are of
    sums:    what the group's intervals spent their time on, added up (ns)
    typical: nanoseconds by cause of the group's typical interval, which add up to its time

    What says "its" without more is of the group; numbers are of its typical interval where they say so.
    """

    facts: Facts
    label: Label
    group: Group
    sums: Sums
    typical: dict[str, int]

    @classmethod
    def of(cls, facts: Facts, label: Label, group: Group, matrix: np.ndarray) -> Case:
        """`matrix`: nanoseconds by cause, int64 (intervals, causes)."""
        typical = dict(zip(CAUSES, matrix[group.typical].tolist(), strict=True))
        sums = sums_of(group, label.kind, facts.intervals)
        return cls(facts, label, group, sums, typical)

    @cached_property
    def one(self) -> Sums:
        """What its typical interval spent its time on (ns)."""
        worked, earlier = (
            int(self.facts.column(name)[self.group.typical])
            for name in ("gpu_busy_ns", "gpu_earlier_ns")
        )
        return typical_of(self.sums, self.typical, self.kernels_ns, worked, earlier)

    def lasting_ns(self, group: Group) -> int:
        """How long the NVTX ranges of a group lasted on their threads, added up, where each ends behind its work on the GPU; 0
        for others, and where that is not known."""
        known = self.facts.analysis.of_runs_by(WorkOfIntervals)
        range_ns = known[0].range_ns[group.intervals] if known else np.zeros(1, np.int64)
        return int(range_ns.sum()) if range_ns.all() else 0

    @property
    def word(self) -> str:
        """The verdict word of its typical interval."""
        return word_of(self.one, self.group.elsewhere)

    @property
    def on_host(self) -> bool:
        """Whether it is timed by a clock of the CPU: then GPU work and CPU time may overlap."""
        return self.label.kind == "host"

    def ns(self, *causes: str) -> int:
        """Nanoseconds of these causes together in the typical interval."""
        return sum(self.typical[cause] for cause in causes)

    @cached_property
    def kernels_ns(self) -> int:
        """How long (ns) kernels and whole graphs ran in the typical interval; of a host timer also beside what the CPU did,
        which is no part of its time, as far as it launched them."""
        in_parts_ns = self.ns("kernel", "graph")
        if not self.on_host:
            return in_parts_ns
        ran_ns, outside_ns = (
            int(self.facts.column(name)[self.group.typical])
            for name in ("kernel_only_upper_ns", "kernel_outside_ns")
        )
        return max(in_parts_ns, min(ran_ns - outside_ns, self.group.typical_ns))

    @property
    def others_worked(self) -> bool:
        """Whether other streams worked for most of the time in which its own was idle, in most of its intervals."""
        return self.facts.flagged(self.group.intervals, OTHERS_WORKED) > 0.5

    @property
    def _inside_of_any_thread(self) -> pd.DataFrame:
        """The timings that lie in the typical one, that one among them: rows of `frames.INTERVALS`."""
        intervals = self.facts.intervals
        typical = intervals.iloc[self.group.typical]
        begins_inside = intervals["start_ns"] >= typical["start_ns"]
        return intervals[begins_inside & (intervals["end_ns"] <= typical["end_ns"])]

    @cached_property
    def inside(self) -> pd.DataFrame:
        """Those of them that are on its thread."""
        timings = self._inside_of_any_thread
        return timings[timings["tid"] == self.facts.column("tid")[self.group.typical]]

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
            return self.facts.intervals[:0]
        return self.inside[self.inside["interval"].isin(np.concatenate(first))]

    @cached_property
    def first_inside_ns(self) -> int:
        """For how long the GPU had nothing to do in these."""
        rows = self.first_inside
        if rows.empty:
            return 0
        idle_ns = (rows["elapsed_ns"] - rows["gpu_busy_ns"]).clip(lower=0)
        return self.facts.once(rows["interval"].to_numpy(), idle_ns.to_numpy())

    @cached_property
    def others(self) -> dict[int, int]:
        """stream -> how long (ns) it worked on what the group's intervals launched there; their own streams are left out."""
        return dict(self.facts.others(self.group.intervals))

    @cached_property
    def waited(self) -> list[Entry]:
        """For what the typical interval waited, the longest first.  The group's ledger is not asked: other intervals, such as
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
        """The idle stretches of the typical interval, in the order of time."""
        return self.facts.stretches(self.group)

    @cached_property
    def before_first_work(self) -> FirstWork:
        """The wait of the typical interval for its first GPU work; zeros if it did not wait, or nothing ran."""
        first = self.stretches[0] if self.stretches else None
        if first is None or first.before is not None or first.then is None:
            return FirstWork(0, 0)
        idle_ns = launched_ns = 0
        for piece in first.pieces:
            # the last launch is that of the work: those before it are for other streams
            if piece.cause == "api_launch" and piece.text:
                launched_ns = idle_ns
            idle_ns += piece.ns
        return FirstWork(idle_ns, launched_ns)

    @cached_property
    def idle_ns(self) -> int:
        """For how long the GPU (of an event pair its stream) had nothing to do in the typical interval, and waited for
        nothing that is named."""
        if self.on_host:
            return self.one.late
        return self.ns("host", "api", "api_launch", "sync", "profiler", "launch_latency")

    @cached_property
    def _outside(self) -> _Outside:
        """The same of the typical interval; `host` segments are when its thread was outside CUDA.

        timing thread   [call)            outside            [call)
        autograd's             [launch) [launch) [launch)              pieces: up to, between and after these launches
        """
        pieces_ns: list[int] = []
        launches, threads = 0, set[int]()
        launched_at_ns, tid = self._launches_of_others()
        first = self.first_inside  # what is set up in these is told as their own
        begun_ns, ended_ns = (sorted(first[name].tolist()) for name in ("start_ns", "end_ns"))
        cuts_ns = np.unique(np.concatenate([launched_at_ns, first["start_ns"], first["end_ns"]]))
        end_ns = int(self.facts.column("start_ns")[self.group.typical])
        for segment in self.facts.segments(self.group):
            begin_ns = end_ns
            end_ns += segment.ns
            if segment.cause != "host":
                continue
            inside = cuts_ns[slice(*np.searchsorted(cuts_ns, (begin_ns, end_ns)))]
            for low_ns, high_ns in pairwise([begin_ns, *inside.tolist(), end_ns]):
                if bisect_right(begun_ns, low_ns) > bisect_right(ended_ns, low_ns):
                    continue  # in a first call
                pieces_ns.append(high_ns - low_ns)
                first_one, end = np.searchsorted(launched_at_ns, (low_ns, high_ns)).tolist()
                launches += end - first_one
                threads.update(tid[first_one:end].tolist())
        return _Outside(pieces_ns, launches, len(threads))

    def _launches_of_others(self) -> tuple[np.ndarray, np.ndarray]:
        """Return when (ns, rising) other threads of its process gave work to the GPU, and which.  Of an event pair, whose idle time is
        about whichever thread launches next, this is not asked."""
        pid, tid = (self.facts.column(name)[self.group.typical] for name in ("pid", "tid"))
        for record in self.facts.analysis.of_runs_by(LaunchesOfThreads) if self.on_host else []:
            if record.pid == pid:
                is_other = record.tid != tid
                return record.start_ns[is_other], record.tid[is_other]
        return np.empty(0, np.int64), np.empty(0, np.int32)

    @property
    def by_untimed(self) -> bool:
        """Whether another thread that launches is one of torch's own, as autograd's is: the program uses torch and times on
        one thread alone.  Ranges of a library, as CUB's are, lie on autograd's thread, too."""
        pid = self.facts.column("pid")
        of_program = (pid == pid[self.group.typical]) & ~self.facts.column("library").astype(bool)
        return self.facts.torch and len(set(self.facts.column("tid")[of_program])) == 1

    @property
    def launched_by_others(self) -> int:
        """How often other threads launched while the typical interval's thread was outside CUDA: calls, of which some give
        the GPU no operation, as those of no bytes."""
        return self._outside.launches

    @property
    def threads_that_launch(self) -> int:
        """How many other threads did."""
        return self._outside.threads

    @property
    def longest_piece_ns(self) -> int:
        """The longest time in one piece that the typical interval's thread was outside CUDA, and nothing was launched."""
        return max(self._outside.pieces_ns, default=0)

    @property
    def _long_pieces_ns(self) -> list[int]:
        """The lengths of such pieces, of those that take a millisecond and more."""
        return [ns for ns in self._outside.pieces_ns if ns >= LONG_PIECE_NS]

    @property
    def long_piece_count(self) -> int:
        """How many these are."""
        return len(self._long_pieces_ns)

    @property
    def long_pieces_ns(self) -> int:
        """How long these are together."""
        return sum(self._long_pieces_ns)

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
    def _behind_longest(self) -> list[list[Segment] | None]:
        """What follows the longest piece outside CUDA, in each timing of the group that is looked at; None where that piece is
        not a long one."""
        behind: list[list[Segment] | None] = []
        for segments in self.facts.segments_of_some(self.group, TIMINGS_LOOKED_AT):
            outside = [place for place, segment in enumerate(segments) if segment.cause == "host"]
            longest = max(outside, key=lambda place: segments[place].ns, default=-1)
            is_long = longest >= 0 and segments[longest].ns >= LONG_PIECE_NS
            behind.append(segments[longest + 1 :] if is_long else None)
        return behind

    @cached_property
    def is_held_up_anywhere(self) -> bool:
        """Whether the longest piece outside CUDA lies before different operations in different timings of the group: no
        function of the program's comes before all of these, as another thread that holds Python's interpreter does."""
        if self.on_host or self.operations > MOST_LOOKED_AT:
            return False
        timings_by_operation = Counter[str]()  # the operation behind the longest piece
        for behind in self._behind_longest:
            if behind is not None:
                operations = (s.text for s in behind if s.cause in OPERATION_KINDS)
                timings_by_operation[next(operations, "")] += 1
        count = timings_by_operation.total()
        return count >= FEWEST_LOOKED_AT and 2 * max(timings_by_operation.values()) <= count

    @cached_property
    def loads_behind(self) -> str:
        """The call that loads code right behind the longest piece outside CUDA, before the next launch, in most timings of the
        group; '' where there is none."""
        if self.group.role == FIRST or self.operations > MOST_LOOKED_AT:
            return ""
        calls = Counter(_loading_call(behind or []) for behind in self._behind_longest)
        name, count = calls.most_common(1)[0]
        return name if 2 * count > calls.total() else ""

    @cached_property
    def _long_stretches(self) -> list[tuple[int, list[Segment]]]:
        """The long pieces outside CUDA of the typical interval: how long (ns) each is, and what follows it."""
        segments = self.facts.segments(self.group)
        return [
            (segment.ns, segments[place + 1 : place + 1 + LOOKED_AT_BEHIND])
            for place, segment in enumerate(segments)
            if segment.cause == "host" and segment.ns >= LONG_PIECE_NS
        ]

    @property
    def loads_behind_pieces(self) -> int:
        """Behind how many of these code is loaded before the next launch, where that is so of most of their time; else 0."""
        loading_ns = [ns for ns, behind in self._long_stretches if _loading_call(behind)]
        return len(loading_ns) if 2 * sum(loading_ns) > self.ns("host") else 0

    @property
    def copies_behind_pieces(self) -> bool:
        """Whether most of the CPU's time outside CUDA is such pieces right before copies of pageable memory to the GPU."""
        copying_ns = (ns for ns, behind in self._long_stretches if _begins_with_copy(behind))
        return 2 * sum(copying_ns) > self.ns("host")

    @cached_property
    def allocations(self) -> dict[str, int]:
        """The calls that allocate and free memory in the typical interval, by name, and how many of each; empty unless
        most timings of the group make such calls, or its only one does in turns, and spend a part of their time in them
        that matters.  What a library searches, a compiler or the recording of a graph allocates is part of that."""
        group = self.group
        if group.role == FIRST or self.makes:
            return {}
        spent_ns = sum(e.ns for e in group.of_cause("api") if ALLOCATES.match(e.what))
        if spent_ns < ALLOCATING_SHARE * group.total_ns or 2 * self.allocating_count < group.count:
            return {}
        if group.count < FEWEST_REPEATED and self.allocating_turns < FEWEST_REPEATED:
            return {}
        calls = dict.fromkeys((piece.text, piece.ref) for piece in self._allocating)
        counts = Counter(name for name, _ in calls)
        fewest = 1 if group.count >= FEWEST_REPEATED else FEWEST_REPEATED
        return {name: count for name, count in counts.items() if count >= fewest}

    @cached_property
    def allocating_turns(self) -> int:
        """How often the typical interval takes memory again behind calls that gave some back to the driver.

        [malloc][malloc][free][malloc][free][free][malloc]      2
        """
        calls = [
            p.text for p in self._allocating if GIVES_BACK.match(p.text) or TAKES.match(p.text)
        ]
        return sum(
            bool(GIVES_BACK.match(call) and TAKES.match(then)) for call, then in pairwise(calls)
        )

    @property
    def makes(self) -> bool:
        """Whether it makes something for other timings, or in each: a library searches, somebody compiles, or a graph is
        recorded, which torch frees memory for."""
        return self.searches or bool(self.compiler) or GRAPH in self.prepares

    @property
    def _allocating(self) -> list[Segment]:
        """The pieces of the typical interval in which it allocates and frees memory."""
        pieces = self.facts.segments(self.group)
        return [p for p in pieces if p.cause == "api" and ALLOCATES.match(p.text)]

    @property
    def allocating_ns(self) -> int:
        """How long the typical interval allocates and frees."""
        return sum(piece.ns for piece in self._allocating)

    @cached_property
    def memory_kinds(self) -> tuple[Group, Group] | None:
        """(timings of the label that give memory back to the driver, those that do not and do about as much); of each the
        group with most timings.  None where its kinds of timings do not differ in that, or what they make does it."""
        freeing, keeping = (
            [g for g in self.label.steady if word in g.work.name.split(", ")]
            for word in (FREES, KEEPS)
        )
        if not freeing or self.makes:
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
        host_ns = self.ns("host")
        is_most = 2 * host_ns >= self.group.typical_ns
        is_long = host_ns >= OWN_CODE_NS * self.operations
        return is_most and is_long and 2 * self.launched_by_others <= self.operations

    @cached_property
    def thread_count(self) -> int:
        """How many threads of one Python program the label timed at once; 1 where they took turns."""
        if not self.label.overlapping or not self.facts.python:
            return 1
        rows = self.facts.intervals.iloc[np.concatenate([g.intervals for g in self.label.steady])]
        return int(rows.groupby("pid")["tid"].nunique().max())

    @cached_property
    def regular(self) -> Regular:
        """At which distance its label's slow timings come, this group's and longer ones; a distance of 0 where they are not
        regular, or it is not slow."""
        usual, label = self.label.usual, self.label
        of_one_thread = self.facts.intervals.iloc[_members(label)][["pid", "tid"]]
        is_slow = self.group.low_ns >= ALIKE * usual.typical_ns
        if not is_slow or label.overlapping or len(of_one_thread.drop_duplicates()) > 1:
            return Regular(0, is_from_first=False)
        timings = self.facts.in_order(_members(label))
        limit_ns = (self.group.low_ns + usual.typical_ns) / 2
        places = np.flatnonzero(self.facts.column("elapsed_ns")[timings] >= limit_ns)
        distances = np.diff(np.append(places, len(timings)))
        distance = int(distances[0]) if len(places) >= FEWEST_REGULAR else 0
        are_alike = (distances[:-1] == distance).all() and distances[-1] <= distance
        if distance < LEAST_DISTANCE or not are_alike or places[0] > distance:
            return Regular(0, is_from_first=False)
        # the very first one may be a first call, of another length
        return Regular(distance, is_from_first=places[0] % distance == 0)

    @cached_property
    def growth(self) -> Growth | None:
        """How the steady timings of its label get longer, None where they do not, or are of a few kinds only.

        Nearly all of the last third take longer than nearly all of the first, and the middle third lies between.

        90 98 89 | 95 102 104 | 126 138 146 ms      from 90 to 138 ms
        """
        label = self.label
        timings = np.concatenate([group.intervals for group in label.steady])
        are_few = len(label.steady) < KINDS_THAT_GROW or len(timings) < TIMINGS_THAT_GROW
        if are_few or label.overlapping:
            return None
        thirds = np.array_split(self.facts.in_order(timings), 3)
        elapsed_ns = [self.facts.column("elapsed_ns")[third] for third in thirds]
        first_ns, middle_ns, last_ns = (int(np.median(third)) for third in elapsed_ns)
        are_apart = np.quantile(elapsed_ns[0], 0.9) < np.quantile(elapsed_ns[-1], 0.1)
        is_between = first_ns < middle_ns < last_ns
        if not (are_apart and is_between and last_ns >= ALIKE * first_ns):
            return None
        kernels_ns = [self.facts.column("kernel_only_ns")[third] for third in thirds]
        return Growth(
            first_ns=first_ns,
            last_ns=last_ns,
            first_kernels_ns=int(np.median(kernels_ns[0])),
            last_kernels_ns=int(np.median(kernels_ns[-1])),
        )

    @cached_property
    def forks(self) -> int:
        """How many processes its typical timing forks, where nearly all timings of its group do so, and hardly any of the
        label's other kinds; else 0."""
        unlike = [g.intervals for g in self.label.steady if g is not self.group]
        forked_by_unlike = self._forked(np.concatenate(unlike)) if unlike else np.zeros(1)
        forked = self._forked(self.group.intervals)
        if (forked > 0).mean() < NEARLY_ALL or (forked_by_unlike > 0).mean() > HARDLY:
            return 0
        return int(self._forked(np.array([self.group.typical]))[0])

    def _forked(self, timings: np.ndarray) -> np.ndarray:
        """Return how many processes each of these timings forks."""
        forked = np.zeros(len(timings), np.int64)
        pid, start_ns, end_ns = (
            self.facts.column(name)[timings] for name in ("pid", "start_ns", "end_ns")
        )
        for record in self.facts.analysis.of_runs_by(Forks):
            begin, end = (np.searchsorted(record.start_ns, at) for at in (start_ns, end_ns))
            forked += np.where(pid == record.pid, end - begin, 0)
        return forked

    @cached_property
    def typical_host(self) -> Entry | None:
        """What the group's threads were in for most of the time that they were outside CUDA, and for how long that of its
        typical interval was; None where nothing that is named takes half, of the group or of that interval."""
        longest = next(iter(self.group.of_cause("host")), None)
        if longest is None or not longest.what or 2 * longest.ns < self.group.ns("host"):
            return None
        rows = self.facts.details(np.array([self.group.typical]), "host")
        typical_ns = int(rows.loc[rows["detail"].astype(str) == longest.what, "ns"].sum())
        return replace(longest, ns=typical_ns) if 2 * typical_ns >= self.ns("host") else None

    @property
    def off_cpu(self) -> str:
        """Why the timing thread did not run for most of the CPU's time outside CUDA: OTHER_THREAD or NO_THREAD; '' where it
        did, where that is not known, and where another thread launched meanwhile, as autograd's does."""
        longest = next(iter(self.group.of_cause("host")), None)
        if longest is None or longest.what not in (OTHER_THREAD, NO_THREAD):
            return ""
        is_most = 2 * longest.ns >= self.group.ns("host")
        is_long = self.in_one_piece or self.in_long_pieces
        others_launch = self.launched_by_others >= MANY_LAUNCHES and not is_long
        return longest.what if is_most and not others_launch else ""

    @property
    def held_by_copy(self) -> bool:
        """Whether most of its launch time passes in the call of a copy from or to pageable memory, which returns
        when the copy is done."""
        longest = next(iter(self.group.of_cause("api_launch")), None)
        if longest is None or "Memcpy" not in longest.what:
            return False
        copies = self.group.work.of_kind("memcpy")
        is_pageable = any("pageable" in copy.name for copy in copies)
        return is_pageable and 2 * longest.ns > self.group.ns("api_launch")

    @property
    def one_by_one_ns(self) -> int:
        """How long (ns) the typical interval takes to launch very many operations one by one, with what the CPU does
        between two of them: all of its time outside CUDA but the long pieces.

        0 for a host timer, where the GPU works longer than the launch calls last, and where the CPU does something else:
        code of the program's own, or what has a name.
        """
        launching_ns = self.ns("api_launch")
        if self.on_host or self.operations < VERY_MANY or self.one.busy > launching_ns:
            return 0
        longest = next(iter(self.group.of_cause("host")), None)
        has_a_name = longest and longest.what and 2 * longest.ns >= self.group.ns("host")
        if has_a_name or self.own_code:
            return 0
        between_ns = self.ns("host") - self.long_pieces_ns
        return between_ns + launching_ns + self.ns("launch_latency")

    @property
    def waits_often(self) -> bool:
        """Whether the CPU waits for the GPU so often that it hardly ever launches ahead.  If the label's timings show what the
        same work takes with hardly a wait, that must be clearly less."""
        operations_of_wait = OFTEN_READ if self.copies_back else OFTEN
        often = 0 < self.operations <= operations_of_wait * self.group.work.waits
        return often and (self._twin_ns == 0 or self.left_for_waits)

    @property
    def waits_beside_calls(self) -> bool:
        """Whether it waits for the GPU, which is hardly idle meanwhile, but is for a good part while the CPU is in calls that
        launch nothing, as those that allocate: then the waits are for kernels that run, and do not make it idle."""
        is_hardly_waiting = self.ns("sync") < HARDLY * self.idle_ns
        is_calling = self.ns("api") >= GOOD_PART * self.idle_ns
        return self.group.work.waits > 0 and is_hardly_waiting and is_calling and not self.on_host

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
        if not work.waits or work.operations < VERY_MANY:
            return 0
        as_much = (g for g in self.label.steady if 2 * g.work.operations >= work.operations)
        twins = (g.typical_ns for g in as_much if FEWER_WAITS * g.work.waits <= work.waits)
        return min(twins, default=0)

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
        launching_ns = self._without_waits_ns - max(self.one.worked, self.one.busy)
        return not ahead and launching_ns > self.group.typical_ns - self._without_waits_ns

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
        nearly_all_kernels = sum(kernel.count for kernel in foreign) >= OF_LIBRARY * count
        # of the other operations a library copies and fills as well
        half_of_operations = 2 * count >= self.operations
        no_time_between = self.ns("host") / max(self.operations, 1) < LEAST_OPERATOR_NS
        if count >= VERY_MANY and nearly_all_kernels and half_of_operations and no_time_between:
            return max(foreign, key=lambda kernel: kernel.count)
        return None

    @cached_property
    def _preparing(self) -> _Preparing:
        """What the typical interval prepares for others.  A stretch between two launches counts as a whole from its first
        such call on, and what lies before that, too: who compiles works first, and then loads.

        [host, load, api)[launch)[host)[launch)[host)[launch) ... 300 times: the first stretch alone
        """
        preparing_ns = cpu_ns = stretch_ns = loads = 0
        prepares = False  # whether the stretch so far does
        for piece in self.facts.segments(self.group):
            if piece.cause not in ("host", "api", "profiler", "api_launch"):
                continue
            cpu_ns += piece.ns
            if piece.cause == "api_launch":
                stretch_ns, prepares = 0, False
                continue
            stretch_ns += piece.ns
            if prepares:
                preparing_ns += piece.ns
            elif piece.cause == "api" and MAKES.match(piece.text):
                preparing_ns += stretch_ns
                prepares = True
                loads += bool(LOADS.match(piece.text))
        return _Preparing(preparing_ns, cpu_ns, loads)

    @property
    def is_preparing(self) -> bool:
        """Whether a good part of the CPU's time in the typical interval prepares for others: loads code, or makes a graph."""
        if is_of_compiler(self.label.name):
            return True
        if not self._preparing.cpu_ns:  # too many operations to be looked at
            return loading_share(self.group) >= LOADING_SHARE
        return self._preparing.ns >= PREPARING_SHARE * self._preparing.cpu_ns

    @property
    def loads_inside(self) -> int:
        """How often code is loaded in the typical interval, where that is many times as often as it has kernels: it is
        loaded in each round of a loop, and no first call; else 0."""
        count = 0 if is_of_compiler(self.label.name) else self._preparing.loads
        kernels = {kernel.name for kernel in self.group.work.of_kind("kernel")}
        return count if count >= LOADED_AGAIN * len(kernels) > 0 else 0

    @cached_property
    def first_ones(self) -> int:
        """How many of the label's first timings prepare for the others: its first calls and those of this group, if these
        are the earliest and prepare something; else 0."""
        if self.group.role == FIRST or self.label.overlapping or not self.prepares:
            return 0
        # A graph's part is not asked for: what is captured for it is launched before the graph is made.
        if GRAPH not in self.prepares and (not self.is_preparing or self.loads_inside):
            return 0
        groups = [*self.label.first, self.group]
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

    @cached_property
    def compiled_inside(self) -> int:
        """How many timings of other labels, in which somebody compiles, lie in the typical one, where these are several:
        what comes so often is no first call; else 0."""
        compiling = [
            group.intervals
            for label in self.facts.labels
            if label.name != self.label.name and self.on_host and label.kind == "host"
            for group in label.groups
            if times_compiled(label, group) > 1
        ]
        if not compiling:
            return 0
        count = int(self.inside["interval"].isin(np.concatenate(compiling)).sum())
        return count if count > 1 else 0

    @property
    def made(self) -> dict[str, int]:
        """What of `prepares` may make its timings longer than the label's others: a graph that all of them record makes none
        longer, and who compiles also loads code, which is no second thing."""
        # of one late timing the compiler is named as well, which no other one has
        if compiler := self.compiler or (compiler_of(self.group) if self.late_one else ""):
            return {f"{compiler} compiles": self.group.count}
        if self.loads_inside and self.group.count == 1:
            return {f"{CODE} {self.loads_inside:,} times": 1}
        tells = {CODE: self.is_preparing, GRAPH: tells_apart(self.label)}
        return {text: count for text, count in self.prepares.items() if tells[text]}

    @cached_property
    def searches(self) -> bool:
        """Whether a library tries many ways to do the same in its timings: this group alone does, unlike the label's usual
        one, or all of them do, as where each has a shape that is new to cuDNN."""
        if searches(self.label, self.group):
            return True
        if self.label.kind == "event" or not tries_kernels(self.group):
            return False
        # a program that times kernels with events of its own looks like such a search
        return not self._inside_of_any_thread["kind"].eq("event").any()

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
        has_a_name = bool(self.compiler) or self.searches
        if group.count < FEWEST_REPEATED or self._is_first or has_a_name:
            return 0
        if loading_share(group) < LOADING_SHARE:
            return 0
        return self.prepares.get(CODE, 0)

    @cached_property
    def is_tried_first(self) -> bool:
        """Whether all timings of its label are warm-ups (`warmed_up_by`)."""
        return bool(warmed_up_by(self.facts, self.label))

    @property
    def _is_first(self) -> bool:
        """Whether its timings are first calls, or prepare for the others."""
        return self.group.role == FIRST or self.first_ones > 0

    @cached_property
    def late_one(self) -> int:
        """Which of the label's timings its group is (200: the 200th), where it is a single slow one that runs what is new to the
        program behind many others; else 0: no warm-up of the others would have helped."""
        if self.group.count > 1 or self.group.role != SLOW or self.label.overlapping:
            return 0
        numbers = np.concatenate([group.intervals for group in self.label.groups])
        start_ns = self.facts.column("start_ns")
        number = 1 + int((start_ns[numbers] < start_ns[self.group.typical]).sum())
        return number if number > FEWEST_LOOKED_AT and loads_code(self.group) else 0

    @cached_property
    def late_inside(self) -> bool:
        """Whether most of its typical timing passes in such a timing of another label: then it is no first call."""
        late = [
            group.typical
            for label in self.facts.labels
            if label.name != self.label.name
            for group in label.steady
            if group.count == 1 and group.role == SLOW and loads_code(group)
        ]
        # a range may end with its work, before the clock is read
        start_ns, elapsed_ns = (self.facts.column(name) for name in ("start_ns", "elapsed_ns"))
        typical = self.group.typical
        begins_ns, ends_ns = start_ns[typical], start_ns[typical] + elapsed_ns[typical]
        within = (elapsed_ns[n] for n in late if begins_ns <= start_ns[n] < ends_ns)
        return 2 * int(max(within, default=0)) > self.group.typical_ns

    @cached_property
    def loads_in(self) -> int:
        """In how many timings of the label code is loaded, where it never warms up: in a fifth and more of them, of which
        those of this group are not the first ones; else 0."""
        if self._is_first or self.label.count < FEWEST_REPEATED or not self.group.of_cause("api"):
            return 0
        numbers = np.concatenate([group.intervals for group in self.label.groups])
        count = intervals_that_call(self.facts.details(numbers, "api"), LOADS, LOAD_NS)
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
        blocks_are_known = bool(kernels) and all(kernel.blocks > 0 for kernel in kernels)
        comes_again = self.group.role != FIRST and self.group.count >= FEWEST_REPEATED
        if not blocks_are_known or not comes_again or self.compiler or CODE not in self.prepares:
            return False
        return self._run_as_long(self.group.intervals)

    def _run_as_long(self, numbers: np.ndarray) -> bool:
        """Return whether kernels run for the same time in all these intervals."""
        ran_ns = self.facts.column("kernel_only_upper_ns")[numbers]
        return 0 < int(ran_ns.max()) <= SAME_KERNELS * int(ran_ns.min())

    @cached_property
    def compiling(self) -> list[Group]:
        """The groups of the label in which the compiler of its group compiles."""
        if not self.compiler:
            return []
        return [group for group in self.label.groups if compiler_of(group) == self.compiler]

    @cached_property
    def first_of_size(self) -> OfFirstSizes:
        """The timings of its group, and of all others so slow, that are the first ones of their size; zeros unless nearly
        all of these timings are, of sizes that mostly come again and are then done in half the time, and nearly each
        prepares its kernels for their first launch.

        A size is the same operations with the same grids and as many bytes, timed by the same lines.

        n = 16    n = 24    n = 16    n = 24
        44 ms     44 ms     1.1 ms    1.1 ms       both of 44 ms are the first of their size
        """
        unknown = OfFirstSizes(0, 0, 0)
        known = self.facts.analysis.of_runs_by(WorkOfIntervals)
        slow = self._as_slow
        if not known or len(slow) < FEWEST_REPEATED or not self.on_host:
            return unknown
        numbers = np.concatenate(
            [g.intervals for label in self._of_its_lines() for g in label.groups]
        )
        numbers = self.facts.in_order(numbers)
        key = known[0].key[numbers]  # one for each size; 0: not known
        elapsed_ns = self.facts.column("elapsed_ns")[numbers]
        is_first = (key != 0) & ~pd.Series(key).duplicated().to_numpy()
        first = np.flatnonzero(is_first & np.isin(numbers, slow))
        later = np.flatnonzero(~is_first & np.isin(key, key[first]))
        again = first[np.isin(key[first], key[later])]
        if len(first) < NEARLY_ALL * len(slow) or len(again) < FEWEST_REPEATED:
            return unknown
        takes_ns, later_ns = (int(np.median(elapsed_ns[rows])) for rows in (again, later))
        calls = self.facts.details(numbers[first], "api")
        prepare_kernels = intervals_that_call(calls, FIRST_USE, LOAD_NS) >= NEARLY_ALL * len(first)
        come_again = 2 * len(again) >= len(first)
        if not prepare_kernels or not come_again or 2 * later_ns > takes_ns:
            return unknown
        return OfFirstSizes(len(first), takes_ns, later_ns)

    @property
    def _as_slow(self) -> np.ndarray:
        """The timings of its group, and, if these take many times as long as the usual ones, of all groups that do."""
        least_ns = MANY_TIMES * self.label.usual.typical_ns
        slow = [group for group in self.label.steady if group.typical_ns >= least_ns]
        alike = slow if self.group in slow else [self.group]
        return np.concatenate([group.intervals for group in alike])

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
        inside = self._inside_of_any_thread
        of_process = inside["pid"] == self.facts.column("pid")[self.group.typical]
        ranges = inside.loc[of_process & (inside["kind"] == "nvtx"), "label"]
        return int(ranges.astype(str).str.match(PROGRAM_OF_XLA).sum())

    @property
    def compiles_shapes(self) -> bool:
        """Whether the work differs between the timings that compile: in kernels or blocks, or XLA tries kernels in each,
        which it does once for a shape."""
        compiling = self.compiling
        kinds = {self._kernels_of(group) for group in compiling}
        known = all(group.work.of_kind("kernel") for group in compiling)
        each_tries = bool(compiling) and all(map(tries_for_xla, compiling))
        return each_tries or (known and len(kinds) > 1)

    @property
    def compiles_the_same(self) -> bool:
        """Whether the timings that compile run the same kernels for the same time, with the same blocks as far as the trace
        says; those in which XLA tries kernels do not count where it need not in the others, as it remembers a shape."""
        compiling = [group for group in self.compiling if not tries_for_xla(group)]
        kernels = [i for group in compiling for i in group.work.of_kind("kernel")]
        kinds = {self._kernels_of(group) for group in compiling}
        shapes_are_known = len(compiling) < len(self.compiling) or any(
            k.blocks >= 0 for k in kernels
        )
        are_most = 2 * sum(g.count for g in compiling) >= sum(g.count for g in self.compiling)
        if len(kinds) != 1 or not shapes_are_known or not are_most:
            return False
        return self._run_as_long(np.concatenate([group.intervals for group in compiling]))

    @staticmethod
    def _kernels_of(group: Group) -> tuple[tuple[str, int, int], ...]:
        """What a timing of a group runs: (name, how often, blocks) of its kernels, sorted."""
        return tuple(sorted((i.name, i.count, i.blocks) for i in group.work.of_kind("kernel")))

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
    def after_fill(self) -> bool | None:
        """Whether its timings come after a fill or copy as large as the L2; None if only some do, or that is not known."""
        known = self.facts.analysis.of_runs_by(AfterFill)
        share = known[0].of_interval[self.group.intervals].mean() if known else 0.5
        return None if 1 - NEARLY_ALL < share < NEARLY_ALL else bool(share >= NEARLY_ALL)

    @property
    def captured_launches(self) -> int:
        """How many launches the only graph of a typical interval replays, where that is known and many; else 0."""
        known = self.facts.analysis.of_runs_by(CapturedLaunches)
        count = known[0].of_interval.get(self.group.typical, 0) if known else 0
        return count if self.group.work.graphs == 1 and count >= MANY_CAPTURED else 0

    @cached_property
    def copies_for_graphs(self) -> int:
        """How many copies on the device come with each of its graph launches, where all of them have equally many and these
        are a good part of its time; else 0."""
        graphs = self.group.work.graphs
        count = sum(copies.count for copies in self.copied_on_device)
        is_much = self.one.share(self.one.copies_on_device) >= MUCH_COPYING
        return count // graphs if graphs and is_much and count % graphs == 0 else 0

    @property
    def copied_on_device(self) -> list[Issued]:
        """The copies on the device that a typical interval issues."""
        return [copies for copies in self.group.work.of_kind("memcpy") if "D2D" in copies.name]

    @property
    def on_purpose(self) -> bool:
        """Whether it waited mostly for what was launched inside it, on another stream: then it means to."""
        return 2 * sum(self.others.values()) >= self.sums.waiting > 0

    def avoidable(self) -> dict[str, int]:
        """Return, by cause, how long (ns) the intervals of the group need not have lasted: a dict with the keys cpu, calls,
        sync, launches, copies and waiting.

        All of a group's time counts but kernels, graphs, copies on the device, what pinned copies would take, the
        shortest idle times that are possible, first calls inside that are left out, and waiting on purpose.
        """
        sums = self.sums
        avoidable_ns = {
            "cpu": sums.cpu + sums.profiler,
            "calls": sums.calls,
            "sync": sums.sync,
            "launches": sums.launches + sums.latency,
            "copies": sums.copies - self.pinned_copies_ns,
            "waiting": 0 if self.on_purpose else sums.waiting + sums.collectives,
        }
        if self.on_host:
            # the GPU may have worked while the CPU did: without that only the rest of the time is saved
            late_ns = max(sums.late - self.first_inside_ns, 0)
            for cause in ("cpu", "calls", "sync", "launches"):
                avoidable_ns[cause] = min(avoidable_ns[cause], late_ns)
        # nothing saves the GPU's own work, nor what a pair of events costs; a host timer has no such pair
        floor_ns = 0 if self.on_host else sums.floor
        most_ns = max(sums.whole - sums.busy - floor_ns - self.first_inside_ns, 0)
        if self.group.role == SLOW or (self.group.role == FIRST and self.label.cold):
            # it may become as quick as the label's usual timings
            usual_ns = sums.count * self.label.usual.typical_ns
            most_ns = min(most_ns, max(sums.whole - usual_ns, 0))
        return {cause: min(ns, most_ns) for cause, ns in avoidable_ns.items()}

    @property
    def pinned_copies_ns(self) -> int:
        """How long its copies of pageable memory would take if that were pinned: at the speed of the run's own pinned
        copies, else at that of the bus.  Pinning does not save that."""
        pinned_ns = 0.0
        for entry in self.group.of_cause("memcpy"):
            if entry.memory == "pageable" and entry.size:
                bytes_per_ns = self.facts.pinned_rate(entry.direction) or BUS_BYTES_PER_NS
                pinned_ns += min(entry.size / bytes_per_ns, entry.ns)
        return min(int(pinned_ns), self.sums.copies)

    @property
    def small(self) -> bool:
        """Whether its operations run for a short time each."""
        return self.one.busy <= SMALL_NS * max(self.operations, 1)

    @cached_property
    def loss_ns(self) -> int:
        """How long (ns) its intervals need not have lasted for one reason: the largest of `avoidable`, what its kernels
        take that they need not, or searches; 0 where its stream ran no kernel because other streams worked."""
        if self.others_worked and not self.sums.gpu:
            return 0
        return max(*self.avoidable().values(), self.unneeded_ns, self.search_ns)

    @property
    def quicker_elsewhere(self) -> Elsewhere | None:
        """Where the kernel is far quicker that takes most of it; None if that is not so, or not known."""
        return self.facts.quicker_elsewhere.get(self.group.number) if self.word == GPU else None

    @cached_property
    def copying_share(self) -> float:
        """How much of its kernel time (0 to 1) goes into torch's kernels that copy or convert, where that is a good part and
        something else is computed, too; else 0.  What of a host timer ran beside the CPU is not known: then it is more."""
        if self.word not in (GPU, MIXED):
            return 0.0
        kernels = (p for p in self.facts.segments(self.group) if p.cause == "kernel")
        copying_ns = sum(kernel.ns for kernel in kernels if COPIES.search(kernel.text))
        share = copying_ns / max(self.kernels_ns, 1)
        return share if MUCH_COPYING <= share < NEARLY_ALL else 0.0

    @property
    def unneeded_ns(self) -> int:
        """How long (ns) its kernels run that need not: as one of them is quicker elsewhere, or as they copy and convert."""
        quick = self.quicker_elsewhere
        slower_ns = self.group.count * quick.excess_ns if quick else 0
        copying_ns = int(self.copying_share * self.kernels_ns) * self.group.count
        return max(min(slower_ns, self.group.ns("kernel")), min(copying_ns, self.group.total_ns))

    @property
    def late(self) -> bool:
        """Whether over a fifth of its typical interval is not GPU work, and would not be without recording."""
        works_enough = self.one.share(self.one.busy) + self.group.elsewhere >= GPU_SHARE
        return not (works_enough or self.late_by_recording or self.beside_other_work)

    @property
    def beside_other_work(self) -> bool:
        """Whether the GPU works nearly all the time, though not on what the timer waits for."""
        return works_beside(self.one)

    @property
    def late_by_recording(self) -> bool:
        """Whether its GPU waits for the CPU because its launches are recorded, and for nothing else."""
        return self.word == MIXED and self.one.late_by_recording
