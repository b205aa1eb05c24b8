"""A trace of torch.profiler (Kineto's Chrome trace, JSON) as the tables that `read` knows.

The names that Kineto uses are here and nowhere else, as nsys's are in `schema`.  What such a trace lacks
is said once, in `info`; what it has more than an export of nsys are operators and Python frames, which
are ranges of kinds of their own: they name what the host did, and are no intervals.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.errors import TraceError
from nsysalign.frames import narrow
from nsysalign.intervals import any_open, group
from nsysalign.model import FRAME_RANGE, OPERATOR_RANGE, PUSH_POP, Gpu, TraceInfo
from nsysalign.text import span
from nsysalign.trace import schema
from nsysalign.trace.chrome import ChromeTrace
from nsysalign.trace.schema import Table

Columns = dict[str, np.ndarray]
#: Categories of Kineto, before torch 1.13 and since.
_OLD = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime", "Operator": "cpu_op"}  # fmt: skip
_COPY = {"HtoD": 1, "DtoH": 2, "HtoA": 3, "AtoH": 4, "AtoA": 5, "AtoD": 6, "DtoA": 7, "DtoD": 8, "HtoH": 9, "PtoP": 10}  # fmt: skip
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4, "Device Static": 5, "Managed Static": 6}  # fmt: skip
_DIRECTION = re.compile(r"\b([HDAP]to[HDAP])\b")
_MEMORIES = re.compile(r"\(([\w ]+?) *-> *([\w ]+?)\)")
#: CUPTI's number of the default stream of torch's context; streams that torch makes do not wait for it.
_DEFAULT_STREAM, _LEGACY, _NON_BLOCKING = 7, 3, 2
#: Ids of processes and threads have so many bits; what has more is a handle.
_ID_BITS = 24
_FIRST_MADE_UP = 0xF00000
#: Times count from some 1,000 s before the first event of the file, a round time, so that they are small.
_ROUND_NS = 1_000_000_000_000
#: Later than 2001 by a clock that counts from 1970.
_SINCE_1970_NS = 1_000_000_000_000_000_000
#: What of `overhead` is the profiler's own; the rest (loading of code) is CUDA's.
_OWN_WORK = re.compile(r"Buffer|Instrumentation|Resource|CUPTI|Profil", re.IGNORECASE)
#: Python frames of packages that no user wrote; names in <> are built in.
_NOT_OWN = re.compile(
    r"<|nn\.Module|(?:.*/)?(?:site|dist)-packages/|(?:torch\w*|triton|numpy|tqdm|pandas|PIL|cupy|lib/python[\d.]*|python[\d.]*"
    r"|importlib|multiprocessing|concurrent|asyncio|threading|contextlib|functools|runpy|typing|random|logging|json|queue"
    r"|collections|socket|selectors|subprocess|copy|re|os|abc|enum|warnings|weakref|inspect|traceback|tempfile|pickle)"
    r"(?:/|\.py\()|frozen "
)
#: Operators in traces of torch before 1.12, which call annotations so, too.
_OPERATOR = re.compile(r"::|Backward\d*$|^\W*$")
#: Operators and annotations have numbers without holes, but for threads that were not recorded: of a whole
#: trace at least this share is there.  Of fewer rows nothing is told.
_NUMBERED_SHARE, _NUMBERED = 0.25, 100
#: From so much on, and of this share of the launches, work that begins before its launch shows clocks
#: that differ, and no rounding.
_CLOCK_NS, _EARLY_SHARE = 1_000, 0.05
#: Tables of the GPU's own rows.
_WORK = ("kernel", "copy", "set")
_SHAPE = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "dynamic_shared_bytes",
)  # fmt: skip
_OF_WORK = ("start_ns", "length_ns", "device", "context", "stream", "correlation", "graph_node")
_OF_RANGE = ("start_ns", "length_ns", "pid", "tid", "name_id", "external")
#: The rows that are kept of the file's events, by table: what each of their columns is, -1 where the file
#: does not say.  `external` is the number of the operator or annotation that a row is, or is a part of.
_ROWS = {
    "kernel": (*_OF_WORK, "name_id", *_SHAPE),
    "copy": (*_OF_WORK, "bytes", "copy_kind", "src_kind", "dst_kind"),
    "set": (*_OF_WORK, "bytes"),
    "call": ("start_ns", "length_ns", "pid", "tid", "correlation", "name_id", "external"),
    "annotation": _OF_RANGE,
    "operator": _OF_RANGE,
    "frame": _OF_RANGE,
    "wait": (
        "start_ns", "length_ns", "device", "context", "stream", "correlation", "event", "record_correlation",
        "record_stream",
    ),
    "overhead": ("start_ns", "length_ns", "tid", "name_id"),
}  # fmt: skip
#: A step that the profiler itself marks says no more of the host than that the program ran.
_STEP = "ProfilerStep"
_NUMBER = re.compile(r"cbid|INVALID|Unknown")
_AMD = re.compile(r"hip[A-Z]|hsa_")
#: What Chrome traces of others hold, by category or key: who made them.
_OTHERS = {"mtia": "MTIA", "xpu": "an Intel GPU (XPU)", "npu": "an Ascend NPU", "privateuse1": "another accelerator"}  # fmt: skip


class KinetoSource:
    """The tables of a trace, by the names that nsys gives them (`trace.sqlite.Source` for exports)."""

    def __init__(self, path: Path, wanted: Callable[[str], bool] | None = None) -> None:
        """Reads the whole file.  `wanted`: of kernels, by name; then nothing else is kept.  Raises
        TraceError, which says what the file is instead."""
        self.path, self.wanted = path, wanted
        self.trace = ChromeTrace(path)
        self.names: dict[str, int] = {}
        self.lost: Counter[str] = Counter()
        self.origin_ns: int | None = None  # of the times in the file
        self._tables: dict[str, Columns] = {}
        self._whole_us, self._no_events = True, 0
        self._moved_by_ns = 0  # so far the host's times were moved back, at most
        self.thinned = ""  # how much of it is missing, in words
        self._first: Any = None  # time of the first event, whatever it is
        self._categories: Counter[str] = Counter()
        self._read()

    # --- the interface of a source

    def has(self, table: str, *columns: str) -> bool:
        """Whether it has rows of the table."""
        return table in self._tables or (table == "StringIds" and bool(self.names))

    def column(self, table: Table, name: str) -> str | None:
        """The column's name, None where there is no such table."""
        return name if table.name in self._tables else None

    def columns_of(self, table: Table, where: str = "") -> Columns:
        """As `Source.columns_of`, of all rows, whatever `where` says."""
        columns = self._tables.get(table.name, {})
        count = len(next(iter(columns.values()))) if columns else 0
        out: Columns = {"row": np.arange(count)}
        for field in table.fields:
            default = -1 if field.default is None else field.default
            values = columns.get(field.name, np.broadcast_to(np.int64(default), count))
            out[field.name] = narrow(values, field.name)
        return out

    def read(self, table: Table, where: str = "") -> pd.DataFrame:
        """The same as int64 columns of a table."""
        return pd.DataFrame(self.columns_of(table, where)).astype("int64")

    def texts(self, table: Table, column: str) -> dict[int, str]:
        """No row carries its text."""
        return {}

    def strings(self) -> dict[int, str]:
        """Number -> name."""
        return {number: name for name, number in self.names.items()}

    def shapes(self, rows: np.ndarray) -> np.ndarray:
        """As `read._shapes`."""
        columns = self.columns_of(schema.KERNEL_SHAPE)
        names = [field.name for field in schema.KERNEL_SHAPE.fields]
        return np.stack([columns[name][rows] for name in names], axis=1).astype(np.int64)

    # --- from the file

    def _read(self) -> None:
        """Read all events of the file, and make the tables of those that are known."""
        rows: dict[str, list[tuple]] = defaultdict(list)
        parts: dict[str, list[Columns]] = defaultdict(list)
        adders = self._adders()
        for events in self.trace.events():
            for event in events:
                if type(event) is not dict:
                    self._no_events += 1
                    self._categories[""] += 1
                    continue
                category = event.get("cat")
                category = category if type(category) is str else ""
                lasts = event.get("ph") == "X"  # it has a begin and a length
                if self._first is None and lasts:
                    self._first = event.get("ts")
                add = adders.get(category)
                if add is None or not lasts:
                    self._categories[category] += 1
                    continue
                arguments = event.get("args")
                if type(arguments) is not dict:
                    arguments = {}
                name = event.get("name")
                if event.get("ts") is None or type(name) is not str:
                    self.lost["events without a name or a time"] += 1
                    continue
                add(rows, event, arguments, name)
            # a batch of events at a time: arrays take less memory than tuples
            for table, tuples in rows.items():
                parts[table].append(_arrays(table, tuples))
            rows.clear()
        self._finish({table: _stacked(batches) for table, batches in parts.items()})

    def _adders(self) -> dict[str, Callable[[dict, dict, dict, str], None]]:
        """Return category -> the method that adds an event of it to the rows of a table (`_ROWS`)."""
        call = self._call
        if self.wanted is not None:
            # of which process a kernel is, its call says
            adders = {"kernel": self._kernel, "cuda_runtime": call, "cuda_driver": call}
        else:
            adders = {
                "kernel": self._kernel, "gpu_memcpy": self._copy, "gpu_memset": self._set,
                "cuda_runtime": call, "cuda_driver": call, "cpu_op": self._range,
                "user_annotation": self._range, "python_function": self._frame, "cuda_sync": self._wait,
                "overhead": self._overhead,
            }  # fmt: skip
        return adders | {old: adders[new] for old, new in _OLD.items() if new in adders}

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names) + 1)

    def _where(self, event: dict, arguments: dict) -> tuple:
        """Return the columns `_OF_WORK` of an operation."""
        return (
            event["ts"], event.get("dur", 0), _number(arguments.get("device", event.get("pid")), 0),
            _number(arguments.get("context", 1), 1), _number(arguments.get("stream", event.get("tid"))),
            _number(arguments.get("correlation", arguments.get("correlation id", -1))),
            _number(arguments.get("graph node id", -1)) or -1,
        )  # fmt: skip

    def _kernel(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        if self.wanted is not None and not self.wanted(name):
            return
        shape = []
        for key in ("grid", "block"):
            size = arguments.get(key)
            shape += (
                [_number(n, 0) for n in size] if type(size) is list and len(size) == 3 else [0] * 3
            )
        rows["kernel"].append(
            (*self._where(event, arguments), self._name(name), *shape,
             _number(arguments.get("registers per thread", -1)), _number(arguments.get("shared memory", -1)))
        )  # fmt: skip

    def _copy(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        way, kinds = _DIRECTION.search(name), _MEMORIES.search(name)
        self.lost["copies without a direction"] += way is None
        rows["copy"].append(
            (*self._where(event, arguments), _number(arguments.get("bytes", 0), 0),
             _COPY.get(way[1], -1) if way else -1,
             *(_MEMORY.get(kind, -1) for kind in (kinds.groups() if kinds else ("", ""))))
        )  # fmt: skip

    def _set(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        size = _number(arguments.get("bytes", 0), 0)
        rows["set"].append((*self._where(event, arguments), size))

    def _call(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        self.lost["CUDA calls that are known by number only"] += bool(_NUMBER.match(name))
        rows["call"].append(
            (event["ts"], event.get("dur", 0), _number(event.get("pid")), _number(event.get("tid")),
             _number(arguments.get("correlation", arguments.get("correlation id", -1))),
             self._name(name), _number(arguments.get("External id", arguments.get("external id", -1))))
        )  # fmt: skip

    def _range(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        named = event["cat"] == "user_annotation" or (
            event["cat"] == "Operator" and not _OPERATOR.search(name)
        )
        table = "annotation" if named else "operator"
        external = _number(arguments.get("External id", arguments.get("external id", -1)))
        rows[table].append(
            (event["ts"], event.get("dur", 0), _number(event.get("pid")), _number(event.get("tid")),
             self._name(name), external)
        )  # fmt: skip

    def _frame(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        if not _NOT_OWN.match(name):
            row = (
                event["ts"],
                event.get("dur", 0),
                _number(event.get("pid")),
                _number(event.get("tid")),
            )
            rows["frame"].append((*row, self._name(name), -1))

    def _wait(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        rows["wait"].append(
            (event["ts"], event.get("dur", 0), _number(arguments.get("device", event.get("pid")), 0),
             _number(arguments.get("context", 1), 1), _number(arguments.get("stream", -1)),
             _number(arguments.get("correlation", -1)),
             _number(arguments.get("wait_on_cuda_event_id", -1)) if "vent" in name else -1,
             _number(arguments.get("wait_on_cuda_event_record_corr_id", -1)),
             _number(arguments.get("wait_on_stream", -1)))
        )  # fmt: skip

    def _overhead(self, rows: dict, event: dict, arguments: dict, name: str) -> None:
        if _OWN_WORK.search(name):
            rows["overhead"].append(
                (event["ts"], event.get("dur", 0), _number(event.get("tid")), self._name(name))
            )

    # --- to tables

    def _finish(self, rows: dict[str, Columns]) -> None:
        """Make the tables of all rows.  Raises TraceError if the file holds nothing of CUDA's.

        rows: by table, the columns `_ROWS`; times as they are in the file, in ns
        """
        self._refuse_others(rows)
        self._drop_samples(rows)
        self._count_from_origin(rows)
        self._fit_clocks(rows)
        process = self._processes(rows)
        thread = self._threads(rows)
        streams_of = [  # of each kind of work, where each operation ran
            np.stack([process[table], *(rows[table][c] for c in ("context", "device", "stream"))], axis=1)
            for table in _WORK
            if table in rows
        ]  # fmt: skip
        tables = {
            schema.KERNEL.name: _work_table(rows, process, "kernel"),
            schema.MEMCPY.name: _work_table(rows, process, "copy"),
            schema.MEMSET.name: _work_table(rows, process, "set"),
            schema.RUNTIME.name: _call_table(rows, thread),
            schema.NVTX.name: self._ranges(rows, thread),
            schema.OVERHEAD.name: _overhead_table(rows, thread),
            schema.SYNCHRONIZATION.name: _synchronisations(rows, process),
            schema.CUDA_EVENT.name: _events_waited_for(rows, process),
            schema.CONTEXT.name: _contexts(streams_of),
            schema.STREAM.name: _streams(streams_of),
        }
        self._tables = {name: columns for name, columns in tables.items() if columns}

    def _count_from_origin(self, rows: dict[str, Columns]) -> None:
        """Let times count from an origin some 1,000 s before the first event, and put `end_ns` in the place of
        `length_ns`; both times are -1 where the file has none."""
        base_ns = _number(self.trace.about.get("baseTimeNanoseconds", 0), 0)
        first_ns = int(nanoseconds([self._first])[0])
        origin = (first_ns // _ROUND_NS - 1) * _ROUND_NS if first_ns > 0 else 0
        self.origin_ns = origin + base_ns
        self._whole_us = not any(
            (rows[table]["start_ns"] % 1000).any() for table in (*_WORK, "call") if table in rows
        )
        for table, columns in rows.items():
            start, length = columns["start_ns"], columns.pop("length_ns")
            absent = start <= 0 if origin else np.zeros(len(start), bool)
            if table in _WORK:
                self.lost["GPU rows without a time"] += int(absent.sum())
            columns["start_ns"] = np.where(absent, -1, start - origin)
            columns["end_ns"] = np.where(absent, -1, start - origin + np.maximum(length, 0))

    def _refuse_others(self, rows: Mapping[str, Columns]) -> None:
        """Raise a TraceError, which says what the file is, if it is no trace of torch.profiler on NVIDIA's GPUs."""
        about, name = self.trace.about, self.path.name
        called = {*rows["call"]["name_id"].tolist()} if "call" in rows else set()
        amd = any(_AMD.match(text) for text, number in self.names.items() if number in called)
        if amd or "roctracer_version" in about or any(str(key).startswith("hip_") for key in about):
            raise TraceError(
                f"{name}: a trace of torch.profiler on an AMD GPU (ROCm): its calls and kernels are not CUDA's",
                "for AMD's GPUs there is TraceLens; nsysalign reads traces of NVIDIA's",
            )
        if self.wanted is not None or rows.keys() & {"kernel", "copy", "set", "call"}:
            return
        other = next((who for key, who in _OTHERS.items() for c in self._categories if key in c.lower()), "")  # fmt: skip
        if other:
            raise TraceError(
                f"{name}: a trace of torch.profiler of {other}, and holds no CUDA calls, kernels or copies",
                "nsysalign reads traces of NVIDIA's GPUs",
            )
        if rows:
            return
        most = [f"{category or 'no category'} ({count:,})" for category, count in self._categories.most_common(4)]  # fmt: skip
        if self._no_events == sum(self._categories.values()) and most:
            what, most = "JSON, and no trace: a list of something else than events", []
        elif "schemaVersion" in about or "deviceProperties" in about:
            what = "a trace of torch.profiler without CPU or GPU work"
        else:
            what = "a Chrome trace of another program"
        held = f"; its events: {', '.join(most)}" if most else ""
        raise TraceError(
            f"{name}: {what}{held}",
            "name a trace of torch.profiler (export_chrome_trace), a .sqlite or .nsys-rep of nsys, or a run directory",
        )

    def _drop_samples(self, rows: dict[str, Columns]) -> None:
        """Of a trace whose rows were thinned out keep the GPU's rows alone, and let no call have launched them:
        what is left of calls and ranges would be taken for all that the host did.

        Operators and annotations have rising numbers: if 2,000 different ones lie between 1 and 100,000, most rows
        were taken out.
        """
        of_ranges = [
            rows[table]["external"] for table in ("operator", "annotation") if table in rows
        ]
        numbers = np.unique(np.concatenate([np.empty(0, np.int64), *of_ranges]))
        numbers = numbers[numbers > 0]
        if len(numbers) < _NUMBERED or rows.keys().isdisjoint(_WORK):
            return
        numbered = int(numbers[-1] - numbers[0]) + 1
        if len(numbers) >= _NUMBERED_SHARE * numbered:
            return
        self.thinned = f"rows were taken out of this trace: {len(numbers):,} of some {numbered:,} operators are in it"
        for table in rows.keys() - {*_WORK, "call"}:
            del rows[table]
        if "call" in rows:
            # the call that launched an operation is not the one before it that is left
            calls = rows["call"]
            calls["correlation"] = np.full(len(calls["correlation"]), -1)

    def _fit_clocks(self, rows: dict[str, Columns]) -> None:
        """Move the host's times back where the GPU's work begins before the calls that launched it, by so
        much that none does: the two clocks are read apart, and one may run ahead.

        host     [launch a]     [launch b]     [launch c]            calls, as written
        GPU    a             b            c                          ahead by more and more
        host [launch a]  [launch b]  [launch c]                      as they are taken
        """
        if "call" not in rows:
            return
        launched_ns, ahead_ns = _ahead(rows)
        is_early = ahead_ns > _CLOCK_NS
        if is_early.sum() < _EARLY_SHARE * max(len(ahead_ns), 1) or not is_early.any():
            return
        # the clocks drift apart: each launch is moved by as much as the farthest one until there, and not
        # behind the place of the launch before
        farthest_ns = np.maximum.accumulate(np.maximum(ahead_ns, 0))
        moved_ns = np.maximum.accumulate(launched_ns - farthest_ns)
        for table in rows.keys() - set(_WORK):
            for column in ("start_ns", "end_ns"):
                rows[table][column] = _moved(rows[table][column], launched_ns, moved_ns)
        self._moved_by_ns = int(ahead_ns.max())

    def _processes(self, rows: Mapping[str, Columns]) -> dict[str, np.ndarray]:
        """Return, by table of work and of waits, the globalPid of each row, which it does not say: that of the call
        with its correlation id.  Raises TraceError if calls of several processes have the same ids."""
        if "call" not in rows:
            calls = {"pid": np.array([1]), "correlation": np.array([-1])}
        else:
            calls = rows["call"]
        order = np.lexsort((calls["pid"], calls["correlation"]))
        correlation, pid = calls["correlation"][order], calls["pid"][order]
        pids = np.unique(pid)
        shared = (correlation[1:] == correlation[:-1]) & (pid[1:] != pid[:-1])
        shared &= correlation[1:] > 0
        out = {}
        for table in (*_WORK, "wait"):
            if table not in rows:
                continue
            if shared.any():
                raise TraceError(
                    f"{self.path.name}: holds {len(pids)} processes whose calls have the same numbers: which of them issued a kernel "
                    "cannot be told",
                    "give each process's own trace: nsysalign analyze RANK0.json RANK1.json",
                )
            wanted = rows[table]["correlation"]
            call = np.searchsorted(correlation, wanted).clip(max=len(correlation) - 1)
            of_row = np.where(correlation[call] == wanted, pid[call], pids[0])
            out[table] = np.where(_is_id(of_row), of_row, 1) << _ID_BITS
        return out

    def _threads(self, rows: Mapping[str, Columns]) -> dict[str, np.ndarray]:
        """Return, by table of the host's rows, the globalTid of each row: process << 24 | thread."""
        thread_of_handle = self._threads_of_handles(rows)
        out = {}
        for table in ("call", "annotation", "operator", "frame"):
            if table not in rows:
                continue
            pid, tid = rows[table]["pid"], rows[table]["tid"].copy()
            for handle, thread in thread_of_handle.items():
                tid[tid == handle] = thread
            tid = np.where(_is_id(tid), tid, tid & ((1 << _ID_BITS) - 1))
            out[table] = (np.where(_is_id(pid), pid, 1) << _ID_BITS) | tid
        return out

    def _threads_of_handles(self, rows: Mapping[str, Columns]) -> dict[int, int]:
        """Return handle -> number of the thread, for the handles that calls have where Kineto does not know a thread.

        The operator of which such calls are parts tells the thread; without one it is a thread by itself, with a
        number that is made up.
        """
        if "call" not in rows:
            return {}
        tid, external = rows["call"]["tid"], rows["call"]["external"]
        ranges = [rows[table] for table in ("operator", "annotation") if table in rows]
        out, made_up = dict[int, int](), 0
        for handle in np.unique(tid[~_is_id(tid)]).tolist():
            parts_of = np.unique(external[(tid == handle) & (external > 0)])
            threads = {
                thread
                for columns in ranges
                for thread in np.unique(columns["tid"][np.isin(columns["external"], parts_of)]).tolist()
                if _is_id(thread)
            }  # fmt: skip
            if len(threads) == 1:
                out[handle] = threads.pop()
                continue
            out[handle] = _FIRST_MADE_UP + made_up
            made_up += 1
            count = int((tid == handle).sum())
            self.lost["CUDA calls of threads that are known by a handle only"] += count
        return out

    def _ranges(self, rows: Mapping[str, Columns], thread: Mapping[str, np.ndarray]) -> Columns:
        """Return `schema.NVTX`: annotations; frames of the program's own Python code; and the outermost operators
        where neither says what a thread did.

        thread: by table, the globalTid of each row
        """
        parts = list[Columns]()
        for table, kind in (("annotation", PUSH_POP), ("frame", FRAME_RANGE)):
            if table in rows:
                parts.append(_range_table(rows[table], thread[table], kind))
        if "operator" in rows:
            operators = _range_table(rows["operator"], thread["operator"], OPERATOR_RANGE)
            outermost = _outermost(*(operators[c] for c in ("thread", "start_ns", "end_ns")))
            operators = _taken(operators, outermost)
            if parts:
                told = self._told(_stacked(parts))
                inside = any_open(
                    told["thread"], told["start_ns"], told["end_ns"], operators["thread"], operators["start_ns"]
                )  # fmt: skip
                operators = _taken(operators, ~inside)
            parts.append(operators)
        if not parts:
            return {}
        ranges = _stacked(parts)
        return _taken(ranges, ranges["start_ns"] >= 0)

    def _told(self, ranges: Columns) -> Columns:
        """Return the ranges that say what a thread did: those with a time, but for the profiler's own steps."""
        steps = [number for name, number in self.names.items() if name.startswith(_STEP)]
        is_step = np.isin(ranges["text_id"], steps)
        return _taken(ranges, ~is_step & (ranges["start_ns"] >= 0))

    # --- about it

    def info(self, calls: pd.DataFrame, names: Mapping[int, str], more: Sequence[str]) -> TraceInfo:
        """What the trace says of itself, and what such a trace lacks."""
        about = self.trace.about
        missing = [
            "elapsed_time: what pairs of CUDA events measured is in no trace of torch.profiler (nsysalign run logs it)"
        ]
        if schema.SYNCHRONIZATION.name not in self._tables:
            missing.append("waits: what a wait waited for is taken from the order of the calls")
        notes = [f"{count:,} {what}" for what, count in self._counts() if count]
        if self._moved_by_ns:
            notes.append(
                f"its clocks differ: work began by up to {span(self._moved_by_ns)} before the call that launched it; the CPU's times "
                "were moved back by so much"
            )
        if self._whole_us and schema.RUNTIME.name in self._tables:
            notes.append("times are whole microseconds, as this version of torch.profiler writes them: shorter gaps are rounded")  # fmt: skip
        runtime = about.get("cuda_runtime_version")
        cuda = f"CUDA {runtime // 1000}.{runtime % 1000 // 10}" if type(runtime) is int else ""
        driver = about.get("cuda_driver_version")
        start = self.origin_ns or 0
        return TraceInfo(
            path=self.path.name,
            nsys_version=cuda or None,
            schema_version=str(about["schemaVersion"])[:20] if "schemaVersion" in about else None,
            devices=self._devices(),
            driver_version=f"CUDA {driver // 1000}.{driver % 1000 // 10}"
            if type(driver) is int
            else None,
            session_start_utc_ns=start if _SINCE_1970_NS < start < 1 << 62 else None,
            missing=tuple(missing),
            notes=(*notes, *more),
            recorder="kineto",
            thinned=self.thinned,
        )

    def _counts(self) -> Iterator[tuple[str, int]]:
        """Yield (what was lost or is missing, how often)."""
        yield from self.lost.items()
        if self.thinned or schema.RUNTIME.name not in self._tables:
            return
        calls = self._tables[schema.RUNTIME.name]["correlation"]
        without_call = 0
        for table in (schema.KERNEL, schema.MEMCPY, schema.MEMSET):
            if operations := self._tables.get(table.name):
                without_call += int((~np.isin(operations["correlation"], calls)).sum())
        yield "operations whose launch is not in the trace", without_call

    def gpus(self) -> dict[int, Gpu]:
        """CUDA device -> its GPU."""
        gpus: dict[int, Gpu] = defaultdict(lambda: Gpu(0, 0, 0))
        for device, row in self._properties().items():
            count = row.get("numSms")
            gpus[device] = Gpu(count if type(count) is int and count > 0 else 0, 0, 0)
        return gpus

    def _properties(self) -> dict[int, dict]:
        listed = self.trace.about.get("deviceProperties")
        rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
        return {row["id"]: row for row in rows if type(row.get("id")) is int}

    def _devices(self) -> tuple[str, ...]:
        """Names of the GPUs that worked; of all if the trace does not say which."""
        names = {d: str(row["name"]) for d, row in self._properties().items() if row.get("name")}
        used = np.unique(self._tables.get(schema.CONTEXT.name, {}).get("device", ())).tolist()
        return tuple(names[d] for d in used if d in names) or tuple(dict.fromkeys(names.values()))

    def rank(self) -> int | None:
        """Its number among the ranks of a job."""
        job = self.trace.about.get("distributedInfo")
        rank = job.get("rank") if isinstance(job, dict) else None
        return rank if type(rank) is int and 0 <= rank < 1 << 20 else None

    def host(self) -> str | None:
        """A digest that tells machines apart without naming them."""
        name = self.trace.about.get("host_name")
        if not isinstance(name, str) or not name or name.startswith("localhost"):
            return None
        return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]


def _number(value: Any, default: int = -1) -> int:
    """A whole number of 62 bits, from whatever stands there."""
    if type(value) is int:
        return value if -1 << 62 < value < 1 << 62 else default
    if type(value) is str:
        digits = re.search(r"-?\d{1,18}", value)
        return int(digits[0]) if digits else default
    if type(value) is float and abs(value) < 1 << 53:
        return int(value)
    return default


def _arrays(table: str, rows: list[tuple]) -> Columns:
    """Return rows of a table as columns; the first two are times (microseconds), and become nanoseconds."""
    start_us, length_us, *others = zip(*rows, strict=True)
    start_name, length_name, *names = _ROWS[table]
    columns = {start_name: nanoseconds(start_us), length_name: nanoseconds(length_us)}
    for name, values in zip(names, others, strict=True):
        columns[name] = narrow(np.array(values, np.int64))
    return columns


def _stacked(parts: Sequence[Columns]) -> Columns:
    """Return the rows of at least one part, one part after the other, as int64."""
    return {
        name: np.concatenate([part[name] for part in parts]).astype(np.int64, copy=False)
        for name in parts[0]
    }


def _taken(columns: Columns, index: np.ndarray) -> Columns:
    """Return the rows that a mask or positions name."""
    return {name: values[index] for name, values in columns.items()}


def _is_id(number: Any) -> Any:
    """Return whether each number can be the id of a process or thread; if not, it is a handle."""
    return (number > 0) & (number < 1 << _ID_BITS)


def _work_table(
    rows: Mapping[str, Columns], process: Mapping[str, np.ndarray], table: str
) -> Columns:
    """Return the table of one kind of work, {} if there is none."""
    return rows[table] | {"process": process[table]} if table in rows else {}


def _call_table(rows: Mapping[str, Columns], thread: Mapping[str, np.ndarray]) -> Columns:
    """Return `schema.RUNTIME`, {} if there are no calls."""
    if "call" not in rows:
        return {}
    columns = {
        name: rows["call"][name] for name in ("start_ns", "end_ns", "correlation", "name_id")
    }
    return columns | {"thread": thread["call"]}


def _range_table(rows: Columns, thread: np.ndarray, kind: int) -> Columns:
    """Return rows of annotations, frames or operators as ranges of one kind."""
    return {
        "start_ns": rows["start_ns"],
        "end_ns": rows["end_ns"],
        "thread": thread,
        "text_id": rows["name_id"],
        "kind": np.broadcast_to(kind, len(thread)),
    }


def _overhead_table(rows: Mapping[str, Columns], thread: Mapping[str, np.ndarray]) -> Columns:
    """Return `schema.OVERHEAD`.  Its rows do not say on which thread the profiler worked: {} if several made calls."""
    callers = np.unique(thread.get("call", []))
    if "overhead" not in rows or len(callers) != 1:
        return {}
    overhead = rows["overhead"]
    return overhead | {"thread": np.broadcast_to(callers[0], len(overhead["start_ns"]))}


def _synchronisations(rows: Mapping[str, Columns], process: Mapping[str, np.ndarray]) -> Columns:
    """Return `schema.SYNCHRONIZATION`.  `event_sync` is the call that recorded the event: which of its records was
    waited for."""
    if "wait" not in rows:
        return {}
    waits = rows["wait"]
    record = np.where(waits["event"] >= 0, waits["record_correlation"], -1)
    return waits | {"process": process["wait"], "event_sync": record}


def _events_waited_for(rows: Mapping[str, Columns], process: Mapping[str, np.ndarray]) -> Columns:
    """Return `schema.CUDA_EVENT`: the records of events that waits name, each once."""
    if "wait" not in rows:
        return {}
    waits = rows["wait"] | {"process": process["wait"]}
    record = np.where(waits["record_correlation"] > 0, waits["record_correlation"], -1)
    _, first = np.unique(record, return_index=True)  # the first wait for each record
    first = first[(record[first] > 0) & (waits["record_stream"][first] >= 0)]
    if not len(first):
        return {}
    waits = _taken(waits, first)
    return {
        "process": waits["process"], "device": waits["device"], "context": waits["context"],
        "stream": waits["record_stream"], "correlation": waits["record_correlation"],
        "event": waits["event"], "event_sync": waits["record_correlation"],
        "timestamp_ns": np.full(len(first), -1),
    }  # fmt: skip


def _contexts(streams_of: Sequence[np.ndarray]) -> Columns:
    """Return `schema.CONTEXT`: each context in which something ran, once.

    streams_of: for each kind of work an array (operations, 4): globalPid, context, device, stream
    """
    contexts = dict.fromkeys(
        tuple(row) for part in streams_of for row in np.unique(part[:, :3], axis=0).tolist()
    )
    if not contexts:
        return {}
    process, context, device = np.array(list(contexts), np.int64).T
    return {"pid": process >> _ID_BITS, "context": context, "device": device}


def _streams(streams_of: Sequence[np.ndarray]) -> Columns:
    """Return `schema.STREAM`: each stream on which something ran, once, and whether it is the default stream.

    streams_of: as in `_contexts`
    """
    streams = {
        tuple(row) for part in streams_of for row in np.unique(part[:, [0, 1, 3]], axis=0).tolist()
    }
    if not streams:
        return {}
    process, context, stream = np.array(sorted(streams), np.int64).T
    flag = np.where(stream == _DEFAULT_STREAM, _LEGACY, _NON_BLOCKING)
    return {"pid": process >> _ID_BITS, "context": context, "stream": stream, "flag": flag}


def nanoseconds(values: Sequence[Any]) -> np.ndarray:
    """Times in microseconds, as numbers or (to the last digit) as text, in whole nanoseconds; 0 for what
    is no number."""
    if not any(type(value) is str for value in values):
        try:
            array = np.array(values)
        except (OverflowError, ValueError):
            array = np.array([], object)
        if array.dtype.kind == "i" and len(array):
            return np.clip(array, -(1 << 52), 1 << 52) * 1000
        if array.dtype.kind == "f":
            array = np.clip(np.nan_to_num(array), -(2.0**52), 2.0**52)
            whole = np.floor(array)
            return whole.astype(np.int64) * 1000 + np.rint((array - whole) * 1000).astype(np.int64)
    return np.array([_nanoseconds(value) for value in values], np.int64)


def _nanoseconds(value: Any) -> int:
    if type(value) is str and (found := re.fullmatch(r"(-?)(\d{1,16})(?:\.(\d*))?", value.strip())):
        sign, whole, part = found.groups()
        digits = ((part or "") + "0000")[:4]
        ns = int(whole) * 1000 + int(digits[:3]) + (digits[3] >= "5")
        return -ns if sign else ns
    if type(value) is int:  # of any number of digits, which a float cannot hold
        return min(max(value, -(1 << 52)), 1 << 52) * 1000
    try:
        return round(min(max(float(value), -(2.0**52)), 2.0**52) * 1000)
    except (TypeError, ValueError):
        return 0


def _ahead(rows: Mapping[str, Columns]) -> tuple[np.ndarray, np.ndarray]:
    """Return (when each call began that launched something, by time; how long before that the first work that it
    launched began), in ns.

    A call at 100 ns, its kernel at 90 ns: 100, 10.  As it should be, the kernel begins later: negative.
    """
    calls = rows["call"]
    work = [rows[table] for table in _WORK if table in rows]
    work_start = np.concatenate([calls["start_ns"][:0], *(w["start_ns"] for w in work)])
    issuer = np.concatenate([calls["start_ns"][:0], *(w["correlation"] for w in work)])
    by_issuer = np.lexsort((work_start, issuer))
    issuer, first = np.unique(issuer[by_issuer], return_index=True)
    first_start = work_start[by_issuer][first]  # of the work of each issuer
    is_launch = (calls["correlation"] > 0) & (calls["start_ns"] >= 0)
    launches = np.flatnonzero(is_launch & np.isin(calls["correlation"], issuer))
    launches = launches[np.argsort(calls["start_ns"][launches], kind="stable")]
    began = first_start[np.searchsorted(issuer, calls["correlation"][launches])]
    has_time = began >= 0
    launched = calls["start_ns"][launches][has_time]
    return launched, launched - began[has_time]


def _moved(time: np.ndarray, at: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Times moved as those `at` are moved `to`, and in between by what lies on the line; those of no
    time (negative) stay."""
    shift = np.interp(time, at, at - to)
    return np.where(time < 0, time, time - np.rint(shift).astype(np.int64))


def _outermost(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, per range, whether it lies in no other one of its thread."""
    out = np.zeros(len(start), bool)
    by_start = np.lexsort((-end, start))  # of those that begin together the longest first
    for rows in group(thread[by_start], by_start).values():
        latest_end = np.maximum.accumulate(end[rows])
        begins_outside = np.append(True, start[rows[1:]] >= latest_end[:-1])
        out[rows[begins_outside]] = True
    return out
