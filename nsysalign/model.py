"""The records passed between the stages, and the terms they use.

Every stage takes the previous record and returns a new one; nothing is edited in place.  All times
are int64 nanoseconds on the trace's clock, half-open. Tables are pandas DataFrames whose columns are
declared in `nsysalign.frames`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nsysalign import frames, registry
from nsysalign.label import Label, labels_of

if TYPE_CHECKING:
    import pandas as pd


#: Operation kinds, by the integer code of `operations.kind`.
OPERATION_KINDS: tuple[str, ...] = ("kernel", "graph", "memcpy", "memset")

#: API call kinds, by the integer code of `calls.kind`.
CALL_KINDS: tuple[str, ...] = (
    "launch",
    "graph_launch",
    "memcpy",
    "memset",
    "sync_device",
    "sync_stream",
    "sync_event",
    "record",
    "query_event",
    "query_stream",
    "wait_event",
    "host_function",
    "stream_memory_op",
    "other",
)
#: Calls that wait for the device; that put an operation on a stream; that put anything on one.
SYNC_CALLS = ("sync_device", "sync_stream", "sync_event")
ISSUING_CALLS = ("launch", "graph_launch", "memcpy", "memset")
ENQUEUEING_CALLS = (*ISSUING_CALLS, "host_function", "stream_memory_op")
CALL: Mapping[str, int] = {name: code for code, name in enumerate(CALL_KINDS)}
KIND: Mapping[str, int] = {name: code for code, name in enumerate(OPERATION_KINDS)}

#: Why a GPU's clock is not higher: NVML's bits nvmlClocksEventReason*, and those of them that slow
#: it down.
CLOCK_REASONS: Mapping[int, str] = {
    0x01: "idle",
    0x02: "applications' clocks setting",
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}
SLOWED_BITS = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
#: Launches that fit in one stream's queue before the host blocks, rounded down (1,021 measured
#: twice).
LAUNCH_QUEUE = 1_000
#: Streams of one range, of one process and device, or beside one interval, that have rows of their
#: own: of more, those that worked longest.
MOST_STREAMS = 32
#: Threads of a warp.
WARP = 32
#: Errors of a kernel, or of the GPU, after which every call of the process returns the same (driver_types.h).
LASTING_ERRORS = (214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719)

#: What a window was made of, in the order in which windows come: a pair that elapsed_time compared,
#: a host timer of the log, two readings of a clock, a region; without a log two records of the
#: trace, or an NVTX range; the run as a whole; two readings of a clock that are not seen to be
#: subtracted.
ORIGINS: tuple[str, ...] = ("pair", "host", "timer", "region", "records", "range", "run", "stage")
ORIGIN: Mapping[str, int] = {name: code for code, name in enumerate(ORIGINS)}
#: How notes begin that are about host timers: a first screen has them.
HOST_TIMERS = "host timers: "
#: How the note begins that says at which clock nearly all timings ran: a first screen has it, too.
LOW_CLOCK = "the GPU ran at "
#: How the note begins that says which ranges are left where rows were lost; there, too.
LOST_ROWS = "rows were lost: "

#: `copyKind` of pages of managed memory that migrate: to the device, to the host, between devices
#: (CUpti_ActivityMemcpyKind is continued by nsys: ENUM_CUDA_MEMCPY_OPER).
MIGRATIONS = (11, 12, 13)

#: `kind` of the rows of ranges that are garbage collections of the log (NVTX's kinds are positive).
PAUSE = -1
#: The same of those that are stretches of the log in which a thread hardly ran.
OFF_CPU = -2
#: The same of those in which a process was forked.
FORK = -3
#: What idle time of such a stretch is called: others of the process ran meanwhile, or none of them did.
OTHER_THREAD, NO_THREAD = "another thread of the process", "waiting outside CUDA"

#: Kinds of `ranges`: opened and closed on one thread (NVTX push/pop, annotations of torch.profiler), or
#: anywhere (NVTX start/end).  Operators and Python frames, which only torch.profiler records, name what
#: the host did and are no intervals.
PUSH_POP, START_END, OPERATOR_RANGE, FRAME_RANGE = 59, 60, 101, 102
PROGRAM_RANGES = (PUSH_POP, START_END)

#: How the names of the tool's own NVTX ranges begin: no interval, and in no table.
OURS = "nsysalign:"
#: CUPTI's streamId of the legacy default stream of the first context.
DEFAULT_STREAM = 7
#: Flag of intervals during whose idle time other streams of the device were mostly executing.
OTHERS_WORKED = "other-streams-worked"
#: The same where they executed during more than a hundredth of that time, but not most of it.
OTHERS_RAN = "other-streams-ran"
OTHER_STREAMS = {OTHERS_WORKED, OTHERS_RAN}

#: nsys packs hardware, VM, process and thread into 64 bits; ids of processes and threads have 24
#: each.
_ID_BITS = 0xFFFFFF
#: Where the process id begins.
PID_SHIFT = 24


def pid_of(process: Any) -> Any:
    """Process id inside a globalPid or globalTid."""
    return (process >> PID_SHIFT) & _ID_BITS


def tid_of(thread: Any) -> Any:
    """Linux thread id (24 bits) inside a globalTid."""
    return thread & _ID_BITS


def process_of(thread: Any) -> Any:
    """The globalPid inside a globalTid."""
    return thread & ~_ID_BITS


def thread_of(process: Any, tid: Any) -> Any:
    """The globalTid of a process's thread (Linux thread id)."""
    return process | (tid & _ID_BITS)


class Gpu(NamedTuple):
    """What a trace says of one; 0 is unknown.  `memory_rate`: bytes per second, NVML's figure, which
    copies do not reach."""

    multiprocessors: int
    l2_bytes: int
    memory_rate: int


class Recorder(NamedTuple):
    """What made a trace, in the words of sentences about it: its name ("under nsys", "without nsys"), what
    its file and the program's ranges in it are called, and what records a whole program with its CUDA
    calls."""

    title: str
    file: str
    ranges: str
    whole: str


#: By `TraceInfo.recorder`.  Nothing that is said of a trace may name another recorder than its own.
RECORDERS: Mapping[str, Recorder] = {
    "nsys": Recorder("nsys", "export", "NVTX ranges", "nsys profile -t cuda,nvtx ..."),
    "cupti": Recorder(
        "the recorder", "recording", "NVTX ranges", "nsysalign run --recorder cupti SCRIPT.py"
    ),
    "kineto": Recorder(
        "torch.profiler",
        "trace",
        "annotations",
        "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    ),
}


@dataclass(frozen=True)
class TraceInfo:
    """What is known about a trace as a whole; never contains environment, host or user names."""

    path: str
    nsys_version: str | None
    schema_version: str | None
    devices: tuple[str, ...]
    driver_version: str | None
    session_start_utc_ns: int | None
    missing: tuple[str, ...] = ()  # tables and columns the analysis could have used
    notes: tuple[str, ...] = ()  # what the profiler said about losses, in plain words
    #: Launches, copies and synchronisations that failed, and all calls after a kernel that broke its context: name,
    #: CUDA's error code, how often; in the order in which they first failed.
    failed_calls: tuple[tuple[str, int, int], ...] = ()
    reasons: tuple[str, ...] = ()  # why there is no GPU work in it, as nsys recorded it
    recorder: str = "nsys"  # what made it, a key of RECORDERS
    thinned: str = ""  # rows were taken out of it on purpose: how many are left, in words

    @property
    def by(self) -> Recorder:
        """What made it, in words."""
        return RECORDERS[self.recorder]

    @property
    def monotonic(self) -> bool:
        """Whether its clock is CLOCK_MONOTONIC, as the event log's."""
        return self.recorder == "cupti"


@dataclass(frozen=True)
class Trace:
    """An nsys export or a recording of CUPTI's, normalised.  Columns: `frames.OPERATIONS`, `frames.CALLS`, ..."""

    info: TraceInfo
    operations: pd.DataFrame
    calls: pd.DataFrame
    syncs: pd.DataFrame
    event_rows: pd.DataFrame
    ranges: pd.DataFrame
    marks: pd.DataFrame
    streams: pd.DataFrame
    overhead: pd.DataFrame
    os_calls: pd.DataFrame
    names: Mapping[int, str]
    #: When nothing was traced (`plain`), or nothing of use: of a recorder that works in turns.
    untraced: pd.DataFrame = field(default_factory=lambda: _no_rows("UNTRACED"))
    #: Grid and block of kernels by rowid, (kernels, 6): read from the file on demand, for those
    #: that are drawn.
    shapes: Callable[[Any], Any] | None = None
    #: The number of the graph that whole-graph executions ran, by rowid, -1 where the trace does not say:
    #: read from the file on demand.
    graphs: Callable[[Any], Any] | None = None
    gpus: Mapping[int, Gpu] = field(default_factory=dict)  # by CUDA device

    @property
    def program_ranges(self) -> Any:
        """Bool, per range: the program opened it; it is no operator and no Python frame."""
        return self.ranges["kind"].isin(PROGRAM_RANGES).to_numpy(dtype=bool)

    @property
    def outermost(self) -> Any:
        """Bool, per call: it lies in no other."""
        return self.calls["nested"].to_numpy() == 0


@dataclass(frozen=True)
class EventLog:
    """One or many event logs (docs/design.md, section 5), merged.  `process` numbers the headers,
    from 0."""

    headers: tuple[Mapping[str, Any], ...]
    records: pd.DataFrame
    waits: pd.DataFrame
    elapsed: pd.DataFrame
    references: pd.DataFrame
    distances: pd.DataFrame
    hosts: pd.DataFrame
    clock_sites: pd.DataFrame
    clock_readings: pd.DataFrame
    clocks: pd.DataFrame
    marked: pd.DataFrame
    collections: pd.DataFrame
    off_cpu: pd.DataFrame
    forks: pd.DataFrame
    source_lines: pd.DataFrame
    notes: tuple[str, ...] = ()

    @classmethod
    def empty(cls) -> EventLog:
        """One that holds nothing."""
        return cls((), *(frames.empty(spec) for spec in frames.LOG_SPECS))

    @property
    def has_timings(self) -> bool:
        """Whether the log says what the intervals are: the program compared events, or wrote a host line.  Neither events
        that only order streams (`wait_stream`) nor a region without events (an implicit host line) say that; then intervals
        are taken from the trace."""
        of_program = ~self.elapsed["calibration"].astype(bool)
        return bool(of_program.any()) or not self.hosts["implicit"].all()

    @property
    def compared(self) -> pd.DataFrame:
        """Rows of `elapsed` that the program asked for and was told."""
        calibration = self.elapsed["calibration"].astype(bool)
        return self.elapsed[(self.elapsed["error"] == "") & ~calibration]


@dataclass(frozen=True)
class Alignment:
    """Records and intervals on the trace's clock.  Columns: `frames.PLACED_RECORDS`,
    `frames.WINDOWS`, ..."""

    records: pd.DataFrame
    lanes: pd.DataFrame
    operation_lane: Any  # int64 array: lane of every operation
    #: Columns call, lane, record (position in records, -1 unknown), inferred.
    wait_calls: pd.DataFrame
    windows: pd.DataFrame
    unaligned: pd.DataFrame
    notes: tuple[str, ...] = ()
    clock_maps: Mapping[int, Any] = field(default_factory=dict)  # log process -> ClockMap
    processes: Mapping[int, int] = field(default_factory=dict)  # log process -> globalPid
    clock: Any = None  # the event clocks of the log, if it has references
    busy: Any = None  # bool array: the lanes on which work ran
    stream_sets: Mapping[int, Any] = field(default_factory=dict)  # lane -> those it stands for
    logged: bool = False  # whether the log says what was measured: then ranges are no windows


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known beside the tables.  `calls_without_work`: CUDA calls of a trace without GPU work,
    `issuing_without_work`: those of them that should have made some.  `torch`, `python`: the versions that the probe's processes named, '' for none.
    `torch_is_alone`: they imported torch, and no other library for GPUs.
    `in_turns`: the recorder left the process in turns, and `baseline` is of what ran meanwhile;
    `left_out`: intervals that hold a switch.  `exit_status`: of the script, 0 where it is not known.
    `managed_allocations`: calls that allocated managed memory."""

    calls_without_work: int = 0
    issuing_without_work: int = 0
    torch: str = ""
    python: str = ""
    torch_is_alone: bool = False
    in_turns: bool = False
    left_out: int = 0
    exit_status: int = 0
    managed_allocations: int = 0


_Self = TypeVar("_Self", bound="Evidence")
_Record = TypeVar("_Record")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What rules read.  Columns: `frames.INTERVALS`, `frames.PARTS`, ..."""

    trace: TraceInfo
    intervals: pd.DataFrame
    parts: pd.DataFrame
    details: pd.DataFrame
    other_streams: pd.DataFrame
    labels: pd.DataFrame
    unaligned: pd.DataFrame
    notes: tuple[str, ...] = ()
    known: Known = field(default_factory=Known)
    #: Records about runs, each made in the file of the question that asks for it (`explain.runs`);
    #: not stored.
    of_runs: tuple[Any, ...] = ()
    #: What ran, by label; the longest idle stretches of each run.
    kernels: pd.DataFrame = field(default_factory=lambda: _no_rows("KERNELS"))
    gaps: pd.DataFrame = field(default_factory=lambda: _no_rows("GAPS"))
    #: What all intervals of a label consist of: `grouped` makes records of these.
    groups: pd.DataFrame = field(default_factory=lambda: _no_rows("GROUPS"))
    ledger: pd.DataFrame = field(default_factory=lambda: _no_rows("LEDGER"))
    issued: pd.DataFrame = field(default_factory=lambda: _no_rows("ISSUED"))
    group_parts: pd.DataFrame = field(default_factory=lambda: _no_rows("GROUP_PARTS"))
    #: NVTX ranges on the host.
    host_ranges: pd.DataFrame = field(default_factory=lambda: _no_rows("HOST_RANGES"))
    gpu_clocks: pd.DataFrame = field(default_factory=lambda: _no_rows("GPU_CLOCKS"))
    #: The source lines of call sites, if the run was recorded with them.
    source_lines: pd.DataFrame = field(default_factory=lambda: _no_rows("SOURCE_LINES"))
    #: Only for a run with --baseline; empty otherwise.
    baseline: pd.DataFrame = field(default_factory=lambda: _no_rows("BASELINE"))
    #: Declared tables that have no field here, those of add-ons among them; they are attributes, too:
    #: `a.marks`.
    extra: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    def __getattr__(self, name: str) -> pd.DataFrame:
        """A declared table that has no field, without rows where nothing filled it."""
        if name in self.__dict__.get("extra", ()):
            return self.extra[name]
        if not name.startswith("_"):
            for spec in registry.specs():
                if spec.name == name:
                    return frames.empty(spec)
        raise AttributeError(f"an analysis has no table or attribute {name!r}")

    def with_tables(self: _Self, tables: Mapping[str, pd.DataFrame]) -> _Self:
        """The same analysis with other tables, those of add-ons among them."""
        fields = self.as_fields(tables)
        return replace(self, **fields | {"extra": {**self.extra, **fields["extra"]}})

    @classmethod
    def as_fields(cls, tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
        """Tables by the field that holds them: those without a field of their own are `extra`."""
        names = {field.name for field in dataclasses.fields(cls)}
        extra = {name: table for name, table in tables.items() if name not in names}
        return {name: table for name, table in tables.items() if name in names} | {"extra": extra}

    def of_runs_by(self, kind: type[_Record]) -> list[_Record]:
        """The records about runs of this kind."""
        return [record for record in self.of_runs if isinstance(record, kind)]

    @property
    def fields(self) -> dict[str, Any]:
        """Its fields by name, without what is worked out from them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def grouped(self) -> tuple[Label, ...]:
        """Its labels with their groups and ledgers, in the order of the table `labels`: made once."""
        return labels_of(self)

    @property
    def measured(self) -> pd.DataFrame:
        """The intervals measured by the program or given by a range: all but those of the run as a
        whole, which come last.  A view, where they do."""
        measured = (self.intervals["kind"] != "run").to_numpy()
        count = int(measured.sum())
        first = self.intervals.iloc[:count]
        return first if measured[:count].all() else self.intervals[measured]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The intervals of the run as a whole."""
        return self.intervals[self.intervals["kind"] == "run"]


class Diagnosis(NamedTuple):
    """What rules say: `frames.FINDINGS`, by weight; per interval a tuple of the rules with a finding
    about it; remarks, and what could not be checked."""

    findings: pd.DataFrame
    of_intervals: pd.Series
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Analysis(Evidence):
    """The result (docs/design.md, section 6)."""

    findings: pd.DataFrame
    segments: pd.DataFrame
    timeline: pd.DataFrame
    #: What the host did while streams waited for it.
    host_activity: pd.DataFrame = field(default_factory=lambda: _no_rows("HOST_ACTIVITY"))
    #: Predictions: for the interval in each label's row, and for more if there is a baseline.
    unprofiled: pd.DataFrame = field(default_factory=lambda: _no_rows("UNPROFILED"))
    unprofiled_parts: pd.DataFrame = field(default_factory=lambda: _no_rows("UNPROFILED_PARTS"))


def _no_rows(spec: str) -> pd.DataFrame:
    return frames.empty(getattr(frames, spec))
