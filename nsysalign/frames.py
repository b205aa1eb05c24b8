"""The data dictionary: the columns of every DataFrame, declared once: name, dtype, unit and
meaning.

`check(frame, SPEC)` is called at each stage's exit: it selects the columns by name, in this order,
and converts them to the declared dtype, so that readers can rely on this file.  Times are int64
nanoseconds on the trace's clock.  -1 stands for "none" in integer reference columns, nullable
columns use pandas' Int64.

A table is a paragraph: `name: meaning`, then a line per column with its dtype and meaning (deeper
indented lines continue it).  Other lines say more about it:

    like TABLE: columns           these are as in a table above
    key: columns                  they identify a row, in the stored form as well
    link: column -> TABLE         holds keys of that table
    words: column = words         holds nothing else; `words: column = CAUSES`: no other causes
    dict: column                  holds mappings from texts; other columns of objects hold tuples of texts
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from nsysalign.causes import CAUSES

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


class Column(NamedTuple):
    name: str
    dtype: str
    meaning: str


@dataclass(frozen=True, eq=False)
class Spec:
    """A table.  key: the columns that identify a row.  links: by column, the table of whose rows it
    holds the keys.  words: by column, all that it can hold.  dicts: columns of mappings from texts."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dicts: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]


#: Texts of which most rows have one of their own.
_NAMES = ("name", "label")
#: So many are put into order once: one word for all rows, the causes of a label.
_FEW = 16
#: What a column holds where there is nothing to say.
_NONE = {"int8": -1, "int64": -1, "Int64": None, "bool": False, "str": "", "object": ()}
_NARROWER = {"int64": ("int8", "int16", "int32"), "str": ("category",)}


def check(frame: pd.DataFrame, spec: Spec, *, narrow: bool = False) -> pd.DataFrame:
    """Select and convert the declared columns.  Raises KeyError, which names a missing one.

    `narrow`: for tables of millions of rows, whose int64 columns may be held in fewer bits if every
    value fits (never times), and texts as categories.  A table without rows has the declared types.
    """
    import pandas as pd

    dtypes = dict(zip(frame.columns, frame.dtypes, strict=True))
    if missing := [c for c in spec.names if c not in dtypes]:
        raise KeyError(f"{spec.name}: missing columns {missing}")
    converted = {}
    for name, declared, _ in spec.columns:
        if dtypes[name] != _dtype(declared):
            small = narrow and len(frame) and dtypes[name].name in _NARROWER.get(declared, ())
            if not small or name.endswith("_ns"):
                converted[name] = frame[name].astype(_dtype(declared))
    if not converted and [*dtypes] == spec.names:
        return frame.copy(deep=False)  # as declared: most are
    columns = {name: converted[name] if name in converted else frame[name] for name in spec.names}
    return pd.DataFrame(columns, index=frame.index, copy=False)


@cache
def _dtype(declared: str) -> Any:
    """pandas looks through all its types for a name."""
    import pandas as pd

    return pd.api.types.pandas_dtype(declared)


def narrow(values: np.ndarray, name: str = "") -> np.ndarray:
    """A column in little memory: one process, one stream, names by number need far less than nsys
    declares.  One value only: a view with stride 0, read-only; else int32 where that holds them,
    never of times (`name`)."""
    import numpy as np

    if not len(values):
        return values
    low, high = values.min(), values.max()
    if low == high:
        value = np.int64(low) if values.dtype.itemsize > 1 else low
        return np.broadcast_to(value, len(values))
    if values.dtype.itemsize == 1:
        return values
    fits = not name.endswith("_ns") and low >= -1 << 31 and high < 1 << 31
    return values.astype(np.int32 if fits else np.int64, copy=False)


def lean(columns: Mapping[str, Any], spec: Spec, count: int) -> pd.DataFrame:
    """Return a table of `count` rows from arrays and single values, in little memory (`check`): of a million
    intervals most have one process, thread and stream, and few call sites.

    columns: by name, an array or one value for all rows; columns that are not given hold the value for "none"
    """
    import numpy as np
    import pandas as pd

    out = {}
    for name, dtype, _ in spec.columns:
        if name in columns:
            values = columns[name]
        elif dtype in ("int8", "int64", "bool") or (dtype == "str" and name not in _NAMES):
            values = _NONE[dtype]  # one value for all rows
        else:
            values = pd.Series([_NONE[dtype]] * count, dtype=dtype)
        if dtype in ("int8", "int64", "bool"):
            values = np.asarray(values, dtype=dtype)
            # a copy: a view of one column of another table would hold all of it
            values = np.broadcast_to(values, count) if not values.ndim else values
            narrowed = narrow(values, name)
            values = values.copy() if narrowed is values and any(values.strides) else narrowed
        elif dtype == "str" and isinstance(values, str):
            values = texts(np.zeros(count, np.int8), [values])
        elif dtype == "str" and name not in _NAMES:
            codes, words = pd.factorize(np.asarray(values, dtype=object))
            values = texts(codes, list(words))
        out[name] = values
    return check(pd.DataFrame(out, index=range(count), copy=False), spec, narrow=True)


def taken(frame: pd.DataFrame, mask: np.ndarray) -> pd.DataFrame:
    """The rows that a mask selects, numbered anew; a column of one value still takes no memory."""
    import numpy as np
    import pandas as pd

    if mask.all():
        return frame.reset_index(drop=True)
    out, rows = {}, np.flatnonzero(mask)
    for name in frame.columns:
        values = frame[name].array
        if isinstance(values, pd.arrays.NumpyExtensionArray):
            values = values.to_numpy()
            if not any(values.strides):
                out[name] = np.broadcast_to(values[0], len(rows))
                continue
        out[name] = values[rows]
    return pd.DataFrame(out, index=range(len(rows)), copy=False)


def texts(codes: np.ndarray, words: Sequence[str]) -> pd.Categorical:
    """A column of few texts, given by their positions in `words`; it sorts as texts do."""
    import pandas as pd

    ordered = _ordered(tuple(words)) if len(words) <= _FEW else _ordered.__wrapped__(tuple(words))
    return pd.Categorical.from_codes(ordered.place[codes], dtype=ordered.dtype)


class _Ordered(NamedTuple):
    """dtype: a category for each of some words, in order.  place: of each word, its place among them."""

    place: np.ndarray
    dtype: pd.CategoricalDtype


@lru_cache(maxsize=256)
def _ordered(words: tuple[str, ...]) -> _Ordered:
    import numpy as np
    import pandas as pd

    in_order = sorted({*words})
    place = {word: number for number, word in enumerate(in_order)}
    smallest = np.min_scalar_type(-max(len(in_order), 1))
    dtype = pd.CategoricalDtype(pd.Index(in_order, dtype="str"))
    return _Ordered(np.array([place[word] for word in words], smallest), dtype)


def of_rows(rows: Sequence[tuple], spec: Spec) -> pd.DataFrame:
    """A table from tuples in the order of the declared columns."""
    import pandas as pd

    if not rows:
        return empty(spec)
    return check(pd.DataFrame(list(rows), columns=spec.names), spec)


def rows_of(frame: pd.DataFrame, *names: str) -> Iterator[Any]:
    """Rows as named tuples: of these columns, or of all.  `DataFrame.itertuples` makes a class each time,
    which takes longer than some hundred rows."""
    columns = names or tuple(frame.columns)
    lists = (frame[name].tolist() for name in columns)
    return map(_row(columns)._make, zip(*lists, strict=True))


@cache
def _row(columns: tuple[str, ...]) -> Any:
    return namedtuple("Row", columns, rename=True)


@cache
def _empty(spec: Spec) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype, _ in spec.columns})


def empty(spec: Spec) -> pd.DataFrame:
    """A table with the declared columns and no rows, the caller's own."""
    return _empty(spec).copy()


_declared: dict[str, Spec] = {}


def specs(text: str) -> tuple[Spec, ...]:
    """The tables of some paragraphs; `like` refers to tables declared before."""
    tables = []
    for paragraph in text.strip().split("\n\n"):
        title, *lines = re.sub(r"\n {5,}", " ", paragraph).split("\n")
        name, _, meaning = title.partition(": ")
        _declared[name] = _spec(name, meaning, [line.strip() for line in lines])
        tables.append(_declared[name])
    return tuple(tables)


def _spec(name: str, meaning: str, lines: Sequence[str]) -> Spec:
    """Return the table that the lines of a paragraph below its title declare.

    key: interval                       the columns by which a row is known
    link: interval -> intervals         a column whose values are among those of another table
    words: kind = event host nvtx run   the only values of a column (CAUSES: the names of causes)
    dict: detail                        a column of dictionaries
    like parts: interval cause          columns as another table declares them, with their links and words
    ns   int64   nanoseconds inside it  any other line: name, dtype and meaning of a column
    """
    columns: list[Column] = []
    key: tuple[str, ...] = ()
    links: dict[str, str] = {}
    words: dict[str, tuple[str, ...]] = {}
    dicts: set[str] = set()
    for line in lines:
        begin, _, text = line.partition(": ")
        if begin == "key":
            key = tuple(text.split())
        elif begin == "link":
            column, _, links[column] = text.partition(" -> ")
        elif begin == "words":
            column, _, values = text.partition(" = ")
            words[column] = CAUSES if values == "CAUSES" else tuple(values.split())
        elif begin == "dict":
            dicts.add(text)
        elif begin.startswith("like "):
            model = _declared[begin.removeprefix("like ")]
            names = text.split()
            columns += [next(c for c in model.columns if c.name == name) for name in names]
            links |= {name: model.links[name] for name in names if name in model.links}
            words |= {name: model.words[name] for name in names if name in model.words}
        else:
            columns.append(Column(*line.split(maxsplit=2)))
    return Spec(name, meaning, tuple(columns), key, links, words, frozenset(dicts))


def _internal(text: str) -> tuple[Spec, ...]:
    """Tables that no user sees: `name: meaning`, then dtypes, each followed by its columns."""
    tables = []
    for paragraph in text.strip().split("\n\n"):
        title, columns = paragraph.split("\n", 1)
        name, _, meaning = title.partition(": ")
        groups = [group.split() for group in columns.split(";")]
        made = (Column(column, dtype, "") for dtype, *names in groups for column in names)
        tables.append(Spec(name, meaning, tuple(made)))
    return tuple(tables)


# --- on the way: tables that pass between the stages
# --------------------------------------------------------------------- process and thread are
# nsys's globalPid and globalTid; row is a rowid of nsys's table, name_id a key into Trace.names,
# call a position in `calls`, correlation CUPTI's id; nested: how many rows above a call the
# outermost one of its thread stands in which it lies, 0 for an outermost one.  In tables of the log, process numbers its
# headers; t0_ns and t1_ns are CLOCK_MONOTONIC just before and after a call.  Codes:
# model.OPERATION_KINDS, CALL_KINDS, ORIGINS.

(
    OPERATIONS,
    CALLS,
    SYNCS,
    EVENT_ROWS,
    RANGES,
    MARKS,
    STREAMS,
    UNTRACED,
    OVERHEAD,
    OS_CALLS,
) = _internal("""
operations: one row per kernel, copy, memset or whole-graph execution, sorted by start_ns
    int8 kind; int64 start_ns end_ns process device context stream correlation name_id bytes
        copy_kind src_kind dst_kind graph_node row call

calls: one row per CUDA API call (runtime and driver), sorted by start_ns
    int64 start_ns end_ns thread process name_id; int8 kind; int64 nested return_value row

syncs: one row per synchronisation record of an API call, sorted by call
    int64 call process context stream event event_sync

event_rows: one row per CUDA event record that CUPTI reported; call: -1 for none
    int64 process device context stream call event event_sync timestamp_ns

ranges: NVTX push/pop and start/end ranges
    int64 start_ns end_ns thread process; str text; int64 kind row

marks: the probe's clock marks, seen from the trace
    int64 trace_ns payload process

streams: streams the profiler knows
    int64 process context stream flag device

untraced: stretches in which the recorder was not in the process, or of no use
    int64 start_ns end_ns process plain

overhead: the profiler's own work
    int64 start_ns end_ns thread process name_id row

os_calls: calls of the OS runtime, MPI, cuDNN and cuBLAS (only with -t osrt, mpi, cudnn, cublas)
    int64 start_ns end_ns thread name_id
""")

LOG_SPECS = (
    RECORDS, WAITS, ELAPSED, REFERENCES, DISTANCES, HOSTS, CLOCK_SITES, CLOCK_READINGS, CLOCKS, MARKED,
    COLLECTIONS, OFF_CPU, FORKS,
) = _internal("""
records: Event.record() calls the probe saw, in file order
    int64 process seq tid device stream_handle stream_id t0_ns t1_ns; str region site; object
        callers; bool library captured calibration

waits: Stream waits on an event the probe saw
    int64 process seq record tid stream_handle stream_id t0_ns t1_ns

elapsed: Event.elapsed_time() calls the probe saw
    int64 process start end; float64 ms; str error region site; int64 t1_ns; bool calibration;
        int64 reference; float64 start_ms end_ms

references: reference events of the probe: all distances to one are on one clock
    int64 process id device t0_ns t1_ns previous; float64 ms; int64 record

distances: further distances that the probe measured: of two records, or from an older reference
    int64 process start end; float64 ms; int64 reference; float64 start_ms end_ms

hosts: pairs of host timestamps around a region
    int64 process; str region; int64 t0_ns t1_ns tid; str site; bool implicit

clock_sites: places at which the program read a clock of the host
    int64 process number; str site; object callers; str function; int64 position; str use;
        object stores subtracts; bool interleaved

clock_readings: readings of the host's clocks, in the order of each thread
    int64 process site; str clock; int64 t_ns value_ns tid; str region

clocks: clock readings
    int64 process monotonic_ns realtime_ns trace_ns

marked: the probe's clock marks, seen from the process: the mark fell between the two readings
    int64 process payload before_ns after_ns

collections: pauses of Python's garbage collector
    int64 process t0_ns t1_ns generation collected

off_cpu: stretches in which a thread hardly ran: its CPU time, and that of all threads of its process
    int64 process tid t0_ns t1_ns thread_ns process_ns

forks: processes that the program forked
    int64 process tid t0_ns t1_ns
""")  # fmt: skip

(SOURCE_LINES,) = specs("""
source_lines: the lines of the program that call sites name, as they were when it ran; none after
        redaction
    site  str  call site: file:line
    text  str  that line
""")
LOG_SPECS = (*LOG_SPECS, SOURCE_LINES)

(CLOCK_SAMPLES, PLACED_RECORDS, LANES, UNPLACED, WINDOWS) = _internal("""
clock_samples: what the runner read through NVML, one row per GPU and round; -1 is unknown
    int64 monotonic_ns realtime_ns device sm_mhz mem_mhz reasons

placed_records: every record of the log, matched to its API call and stream
    int64 seq process call device lane stream timestamp_ns lower_ns upper_ns t_ns; str problem

lanes: streams as the analysis numbers them
    int64 process device context stream flag

unplaced: what was measured and has no such place
    str name reason site; int8 origin; int64 source

windows: one row per interval with a place on the trace's clock
    str kind; int64 log_process process thread end_thread start end start_lane end_lane open_ns
        close_ns close_end_ns elapsed_ns start_ns end_ns start_lower_ns start_upper_ns error_ns;
        str method; Int64 clock_residual_ns; str region site end_site; object callers; bool
        library; object remarks; int8 origin; int64 source
""")


# --- analysis
# --------------------------------------------------------------------------------------------------

_MAIN_SPECS = (
    INTERVALS, PARTS, SEGMENTS, DETAILS, OTHER_STREAMS, LABELS, GROUPS, LEDGER, ISSUED, GROUP_PARTS,
    KERNELS, GAPS, HOST_RANGES, HOST_ACTIVITY, UNALIGNED, FINDINGS, TIMELINE, GPU_CLOCKS,
) = specs("""
intervals: one row per placed interval
    key: interval
    words: kind = event host nvtx run
    interval              int64   number of the interval, the key of the other tables
    name                  str     unique name: label#repetition
    label                 str     what was measured by the same code
    kind                  str     event, host, nvtx or run (all work of a process on a device or
                                  stream; in no label)
    pid                   int64   process id
    tid                   int64   thread of the start record (event), of the readings (host), of the
                                  range (nvtx)
    start_record          int64   seq of the start record, -1 for other kinds
    end_record            int64   seq of the end record, -1 for other kinds
    device                int64   CUDA device, -1 for host intervals
    start_stream          int64   CUPTI stream id of the start record, -1 for host intervals and ranges
                                  on several streams
    end_stream            int64   CUPTI stream id of the end record, -1 for the same
    elapsed_ns            int64   what was measured: round(ms * 1e6)
    start_ns              int64   window start
    end_ns                int64   window end: start_ns + elapsed_ns
    start_lower_ns  int64  the start cannot be earlier
    start_upper_ns  int64  the start cannot be later
    error_ns              int64   half-width that holds the true start in at least 95 of 100
                                  intervals
    method                str     clock, event-trace, bounds, inferred (event); exact (host, nvtx)
    clock_residual_ns     Int64   distance of the end's own GPU timestamp from end_ns, NA without
                                  timestamps
    kernel_only_ns        int64   union of kernel execution on the end stream inside the window
    kernel_only_upper_ns  int64   the same plus whole-graph executions
    kernel_outside_ns     int64   host intervals: time of kernels and whole-graph executions issued
                                  inside that ran after the end
    gpu_busy_ns           int64   how long anything executed inside the window: on the end stream; of
                                  host intervals on any GPU of the process
    gpu_earlier_ns        int64   host intervals: how long of that nothing executed that was issued
                                  inside, but earlier work; 0 for all others
    operations            int64   operations on the end stream that touch the window
    idle_at_most_ns       Int64   the GPU can have been idle because of the CPU for so long, at most,
                                  by the event log alone; NA where it does not say
    site  str  call site of the start
    end_site  str  call site of the end
    callers               object  tuple of user frames above the site
    library               bool    timed by a library, not by the user's own code
    flags                 object  tuple of remarks: profiler-disturbed; other-streams-worked (while
                                  its own was idle, most of the time), other-streams-ran (more than
                                  1 % of it); of host intervals synchronised-before,
                                  synchronised-after, idle-before, no-gpu-work (nothing was issued
                                  inside, and nothing executed)
    findings              object  tuple of rule names that concern this interval
    group                 int64   number of its group (table groups), -1 for runs

parts: the budget: one row per interval and cause that is not always zero; ns sums to elapsed_ns
    key: interval cause
    link: interval -> intervals
    words: cause = CAUSES
    interval  int64  number of the interval
    cause     str    one of causes.CAUSES
    ns        int64  nanoseconds of this cause
    lower_ns  int64  least over the error bar of the window's place
    upper_ns  int64  most over the error bar of the window's place

segments: the window in order: touching pieces with one cause each
    link: interval -> intervals
    words: cause = CAUSES
    interval  int64  number of the interval
    start_ns  int64  begin
    end_ns    int64  end
    cause     str    one of causes.CAUSES
    ref_kind  str    kernel, graph, memcpy, memset (nsys tables), api (RUNTIME), nvtx, overhead,
                     event or ''
    ref_id    int64  rowid in that nsys table, seq of the record for event, -1 for none
    detail    str    what it was, in words

details: parts broken down further
    like parts: interval cause
    detail          str      dependency, contention, full-queue, staging, copy, call name, range
                             name...
    ns              int64    nanoseconds inside the window
    direction       str      H2D, D2H, D2D, P2P for copies, '' otherwise
    memory          str      pageable, pinned, device, managed for the host side of copies, ''
                             otherwise
    bytes           int64    bytes moved by the copies or memsets that execute, 0 otherwise
    stream          int64    the stream that was waited for (of more than 32 those waited for longest),
                             -1 otherwise
    operation       str      the operation that was waited for, '' where that is not known
    bandwidth_gb_s  float64  bytes over the whole duration of those copies or memsets, NaN otherwise

other_streams: work launched inside the interval that ran on other streams, of more than 32 those that
        worked longest; not part of the budget
    key: interval stream
    link: interval -> intervals
    interval  int64  number of the interval
    stream    int64  CUPTI stream id
    ns        int64  union of its execution
    ordered   bool   event intervals: the end record is ordered behind it (by waits, the order of the
                     legacy default stream, or because it had ended before the record's call), or may
                     be, as its stream waits for something that the trace does not tell

labels: one row per label; the budget shown is that of one real interval (`row`)
    key: label
    like intervals: label kind
    words: kind = event host nvtx
    count         int64    intervals placed
    row           str      name of the interval with the lower-median elapsed time
    row_interval  int64    its number
    site          str      call site
    median_ns     float64  median of elapsed_ns
    mean_ns       float64  mean
    std_ns        float64  sample standard deviation, NaN for one
    min_ns        int64    least
    max_ns        int64    most
    p05_ns        float64  5th percentile
    p95_ns        float64  95th percentile
    library       bool     timed by a library
    total_ns      int64    sum of elapsed_ns; no stretch of time where intervals overlap
    span_ns       int64    how long at least one of its intervals lasted
    overlapping   bool     intervals of one process overlap
    inside        str      label whose ranges hold its own and the same operations, '' for none

groups: intervals of a label that did the same kind of work at the same pace
    key: group
    group        int64  number of the group, the key of ledger, issued and group_parts
    like labels: label
    kind         int64  which of the label's kinds of work (of its process, where ranks are kinds)
    pace         int64  which pace of that kind, 0 for the fastest and for first calls
    role         str    first (first calls), slow (a slower pace that is rare) or ''
    work         str    in what its work differs from that of the label's other kinds, '' for one kind
    pid          int64  process where ranks are kinds of their own, else -1
    count        int64  intervals
    total_ns     int64  sum of their elapsed_ns
    typical      int64  interval with the lower-median elapsed time
    typical_ns   int64  its elapsed_ns
    low_ns       int64  10 % quantile of elapsed_ns (first calls: the least)
    high_ns      int64  90 % quantile of elapsed_ns (first calls: the most)
    operations   int64  how many were issued between the two records (lower median: that of one of them)
    fewest_operations  int64  10 % quantile of the same, that of one of them
    most_operations  int64  90 % quantile of the same, that of one of them
    graphs       int64  median of graph launches among them
    bytes        int64  median of the bytes of their copies
    waits        int64  median of synchronisations between the first and the last of them
    main         str    kernel, copy or graph that ran longest of what the typical one issued, '' for none
    mains        int64  how many different ones ran longest in its intervals
    late         int64  intervals of which over half of the issued work ended after the second reading
    empty        int64  intervals in which nothing was issued and nothing ran
    two_streams  int64  intervals that begin on one stream and end on another
    elsewhere_ns int64  of the typical one: how long other streams ran kernels that it launched and its
                        end waits for, while its own ran nothing

ledger: what a group's time consists of; of each group ns adds up to groups.total_ns
    link: group -> groups
    words: cause = CAUSES
    group      int64  number of the group
    cause      str    one of causes.CAUSES
    what       str    the best name that the recording has: kernel, call, range, operation that was
                      waited for; '' for none
    ns         int64  nanoseconds over all intervals of the group
    why        str    how it came about: dependency, contention, full-queue, staging, ... (as in
                      details), '' where the cause says it
    like details: direction memory bytes stream

issued: what the typical interval of a group issued between its two records
    link: group -> groups
    group   int64  number of the group
    kind    str    kernel, graph, memcpy or memset
    name    str    name of the kernel; direction and host memory of copies
    count   int64  how many
    bytes   int64  bytes of copies and memsets, 0 otherwise
    blocks  int64  blocks of the grids of the kernels, -1 where the trace does not say
    ns      int64  how long they ran, added up, whenever that was

group_parts: the budget of a group: sums of parts over its intervals
    key: group cause
    link: group -> groups
    words: cause = CAUSES
    group     int64  number of the group
    cause     str    one of causes.CAUSES
    ns        int64  nanoseconds of this cause; of each group they add up to groups.total_ns
    lower_ns  int64  least over the error bars of the windows' places
    upper_ns  int64  most over the error bars of the windows' places

kernels: what ran, by label and name: kernels, graphs, copies and memsets; of labels and of the run
        as a whole
    label           str      the label, of a run: that of its interval
    kernel          str      name of the kernel; direction and host memory of copies
    kind            str      kernel, graph, memcpy or memset
    count           int64    how many begin in the label's intervals (host intervals: are issued)
    total_ns        int64    sum of their durations
    median_ns       int64    lower median of their durations
    share           float64  total_ns over the sum of the label's measured times; more than 1 where
                             work overlaps; of a run, for how long one of them ran
    idle_before_ns  int64    how long the stream (of a run: the device) was idle just before them,
                             within the interval; 0 of host intervals

gaps: the longest idle stretches of each device
    interval  int64  number of the run's interval
    start_ns  int64  begin
    ns        int64  how long nothing of the run's process executed on its device (or stream)
    next      str    the operation that ended it
    call      str    the call, by name, in which the issuing thread was for most of it, '' where it
                     was outside of CUDA
    call_ns   int64  how long it was in calls of that name

host_ranges: NVTX ranges on the host (each with all ranges inside it), the longest first; of traces
        without an event log
    label       str    name of the range: the label of its intervals, where it has any (these may
                       add the stream)
    count       int64  ranges
    with_work   int64  of these issued work to a GPU
    host_ns     int64  sum of their durations on the host
    median_ns   int64  lower median of their durations
    max_ns      int64  the longest
    launch_ns   int64  of host_ns, on the range's thread: in calls that launch kernels and graphs
    copy_ns     int64  in calls that copy or set memory, waiting included
    sync_ns     int64  in synchronisation calls
    other_ns    int64  in other CUDA calls
    outside_ns  int64  outside of CUDA: the five add up to host_ns
    gpu_ns      int64  sum of the spans of their work on the GPU, first start to last end on any
                       stream

host_activity: what the host did while streams waited for it (cause host), by label: three views of
        the same time, never to be added up
    label    str      label of the intervals
    view     str      all: the label's host gaps; python: sampled stacks; range: innermost NVTX
                      ranges; os: calls of the OS runtime
    name     str      function, range or call, the twelve largest of a view; '' for all
    place    str      python: file:line of the function's line with most samples
    within   str      python: the library function that was running inside it most often, '' for
                      none
    samples  int64    python and all: samples taken in the gaps, on the thread that was waited for
    count    int64    all: gaps; range: pieces of gaps; os: calls
    ns       int64    nanoseconds of the gaps; 0 for python, whose samples are no durations
    share    float64  of the label's samples (python), or of the nanoseconds of its gaps

unaligned: what was measured but could not be placed
    name    str  name of the interval
    label   str  its label
    reason  str  why
    site    str  call site, '' unknown

findings: diagnoses
    words: severity = error warning info
    dict: evidence
    rule      str     name of the rule
    severity  str     error, warning or info
    label     str     the label it concerns
    title     str     one line
    evidence  object  numbers, as a dict
    advice    str     what to change to measure the GPU's time alone, or to measure right; code
                      follows after three spaces
    faster    str     what to change to make the program faster, '' where the finding is about the
                      measurement only
    site      str     call site
    loss_ns   int64   what would go away over the run if the advice were followed, at most; 0:
                      nothing, or nothing known
    interval  int64   the interval that shows it, and whose numbers it quotes where it is about one;
                      -1 for none
    verdict   str     of the one finding of a label: its verdict (explain.verdict.VERDICTS), else ''
    words     str     the same in words with its number, at most 24 letters
    group     int64   the group that it is about (table groups), -1 for none
    shorter   object  of a run: tuple of the title, ever shorter, for screens with little room: one text
                      after each explain.clauses.Cut, the full one first; else ()
    behind    object  of a run: the same for where it stands behind the sentence about its set-up

timeline: what ran around the chosen intervals and in the run as a whole, for drawing: host calls,
        ranges, operations; in the run, neighbours that do not fit are one row named "37 operations"
    link: interval -> intervals
    dict: detail
    interval   int64   number of the interval whose picture it belongs to
    lane_kind  str     host (API calls), nvtx (ranges), stream (operations), event (records and the
                       waits they release, on their stream), omitted (a count of what did not fit)
    lane       str     thread or stream, in words
    kind       str     kind of call or operation
    name       str     name of the call, range or kernel
    like segments: start_ns end_ns
    ref_kind   str     as in segments
    ref_id     int64   as in segments
    link       int64   an arrow from: operations and records their API call (rowid), waits the
                       record that released them (seq), -1 for none
    detail     object  dict for hovering: bytes, grid, bandwidth...

gpu_clocks: stretches (of at most a second) of samples in which a GPU's clocks and reasons stayed
        the same; changes happen between two of them, at an unknown time; -1 is unknown
    device         int64  CUDA device
    start_ns       int64  first sample, on the trace's clock
    end_ns         int64  last sample, the same as start_ns for a single one
    samples        int64  how many
    sm_min_mhz     int64  SM clock
    sm_max_mhz     int64  the same
    mem_mhz        int64  memory clock
    reasons        int64  NVML's bits (nvmlClocksEventReason*): why the clock is not higher
""")  # fmt: skip

# --- predictions, and the run without nsys: only a run with --baseline fills BASELINE
# ----------------------------------

BASELINE_SPECS = (BASELINE, UNPROFILED, UNPROFILED_PARTS) = specs("""
baseline: one row per label of a run with --baseline: profiled and unprofiled side by side (midmeans
        of the intervals)
    key: label
    label               str      what was measured by the same code
    kind                str      event or host
    site                str      call site
    profiled_count      int64    intervals in the profiled run, 0: measured without nsys only
    baseline_count      int64    intervals in the run without nsys, 0: measured under nsys only
    profiled_ns         float64  measured under nsys: mean of the middle half, NaN for none
    baseline_ns         float64  measured without nsys: the same, NaN for none
    low_ns              float64  profiled_ns - baseline_ns is more than this (95 %), NaN for fewer
                                 than 5 intervals on a side
    high_ns             float64  and less than this
    inflation           float64  profiled_ns / baseline_ns, NaN for none
    predicted_ns        float64  baseline_ns as predicted from the profiled run alone, NaN where it
                                 cannot be
    predicted_lower_ns  float64  lower end of the prediction's error bar
    predicted_upper_ns  float64  upper end of the prediction's error bar
    predicted_from      int64    intervals replayed for it
    error               float64  predicted_ns / baseline_ns - 1, NaN where one is missing
    remark              str      what to know about this row: different counts, why there is no
                                 prediction
    profiled_verdict    str      what the log alone proves under nsys: gpu_bound, cpu_bound,
                                 cannot_tell; '' for none
    baseline_verdict    str      and without nsys

unprofiled: what an interval would have measured without nsys, predicted from the profiled trace
        alone; at most 32 per label
    key: interval
    link: interval -> intervals
    interval      int64  number of the interval
    predicted_ns  Int64  the prediction, NA where there is none
    lower_ns      Int64  lower end of its error bar
    upper_ns      Int64  upper end of its error bar
    reason        str    why there is no prediction, '' where there is one

unprofiled_parts: the budget scaled back to the prediction; ns sums to unprofiled.predicted_ns
    key: interval cause
    like parts: interval cause ns
""")

#: Add-ons have more (`registry.specs`).
ANALYSIS_SPECS = (*_MAIN_SPECS, SOURCE_LINES, *BASELINE_SPECS)

(LAUNCHES, COLLECTIVES) = _internal("""
launches: kernel rows with their grid ids, sorted by start_ns
    int64 row start_ns end_ns pid device stream; str name; int64 grid_id blocks
        registers local_bytes

collectives: NCCL's kernels, sorted by start_ns: where the ranks of one job meet
    int64 start_ns end_ns process device stream; str name operation; int64 signature
""")

(TIMED, TIMED_LABELS) = specs("""
timed: one row per compared pair of a run without nsys
    like intervals: interval name label kind pid tid device elapsed_ns site end_site callers library idle_at_most_ns
    start_lag_ns     Int64  how far the GPU was behind the CPU at the start record, at least
    end_lag_ns       Int64  the same at the end record
    verdict          str    gpu_bound, cpu_bound (the GPU had caught up at the end) or cannot_tell

timed_labels: one row per label of a run without nsys
    like labels: label kind count row row_interval site median_ns mean_ns std_ns min_ns max_ns p05_ns p95_ns library
    first_ns          int64    its first repetition, which is apart: it loads, compiles, allocates
    steady            int64    the others at its usual pace, or the one that there is
    steady_median_ns  float64  their median
    verdict           str      the word that holds in at least 80 % of them, else cannot_tell
    holds_in          int64    in how many it holds
    idle_at_most_ns   Int64    median of what the CPU can have cost, NA: not known
    end_lag_ns        Int64    median of how far the GPU was behind at the end record
""")
