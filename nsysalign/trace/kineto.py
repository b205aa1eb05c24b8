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
        own = self._tables.get(table.name, {})
        count = len(next(iter(own.values()))) if own else 0
        found: Columns = {"row": np.arange(count)}
        for field in table.fields:
            default = -1 if field.default is None else field.default
            values = own.get(field.name, np.broadcast_to(np.int64(default), count))
            found[field.name] = narrow(values, field.name)
        return found

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
        rows: dict[str, list[tuple]] = defaultdict(list)
        parts: dict[str, list[list[np.ndarray]]] = defaultdict(list)
        adders = {
            "kernel": self._kernel, "gpu_memcpy": self._copy, "gpu_memset": self._set,
            "cuda_runtime": self._call, "cuda_driver": self._call, "cpu_op": self._range,
            "user_annotation": self._range, "python_function": self._frame, "cuda_sync": self._wait,
            "overhead": self._overhead,
        }  # fmt: skip
        if self.wanted is not None:  # calls say of which process a kernel is
            adders = {"kernel": self._kernel} | dict.fromkeys(
                ("cuda_runtime", "cuda_driver"), self._call
            )
        adders |= {old: adders[new] for old, new in _OLD.items() if new in adders}
        for events in self.trace.events():
            for event in events:
                category = event.get("cat") if type(event) is dict else None
                self._no_events += type(event) is not dict
                add = adders.get(category) if type(category) is str else None
                if self._first is None and type(event) is dict and event.get("ph") == "X":
                    self._first = event.get("ts")
                if add is None or event.get("ph") != "X":
                    self._categories[category if type(category) is str else ""] += 1
                    continue
                arguments = event.get("args")
                if type(arguments) is not dict:
                    arguments = {}
                name, time = event.get("name"), event.get("ts")
                if time is None or type(name) is not str:
                    self.lost["events without a name or a time"] += 1
                    continue
                add(rows, event, arguments, name)
            for table, some in rows.items():
                parts[table].append(_arrays(some))
            rows.clear()
        self._finish({table: _joined(some) for table, some in parts.items()})

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names) + 1)

    def _where(self, event: dict, arguments: dict) -> tuple:
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

    def _finish(self, found: dict[str, list[np.ndarray]]) -> None:
        about = self.trace.about
        self._refuse_others(found)
        self._drop_samples(found)
        base = _number(about.get("baseTimeNanoseconds", 0), 0)
        first = int(nanoseconds([self._first])[0])
        origin = (first // _ROUND_NS - 1) * _ROUND_NS if first > 0 else 0
        self.origin_ns = origin + base
        for table in (*_WORK, "call"):
            if table in found:
                self._whole_us = self._whole_us and not (found[table][0] % 1000).any()
        for table, columns in found.items():
            start, length = columns[0], columns[1]
            absent = start <= 0 if origin else np.zeros(len(start), bool)
            self.lost["GPU rows without a time"] += int(absent.sum()) if table in _WORK else 0  # fmt: skip
            columns[0] = np.where(absent, -1, start - origin)
            columns[1] = np.where(absent, -1, start - origin + np.maximum(length, 0))
        self._fit_clocks(found)
        process = self._processes(found)
        tables = {
            schema.KERNEL.name: self._work(found, process, "kernel", "name_id", *_SHAPE),
            schema.MEMCPY.name: self._work(found, process, "copy", "bytes", "copy_kind", "src_kind", "dst_kind"),
            schema.MEMSET.name: self._work(found, process, "set", "bytes"),
        }  # fmt: skip
        threads = self._threads(found)
        if "call" in found:
            start, end, _, _, correlation, name_id, _ = found["call"]
            tables[schema.RUNTIME.name] = {
                "start_ns": start, "end_ns": end, "thread": threads["call"], "correlation": correlation,
                "name_id": name_id,
            }  # fmt: skip
        tables[schema.NVTX.name] = self._ranges(found, threads)
        if "overhead" in found and len(callers := np.unique(threads.get("call", []))) == 1:
            start, end, _, name_id = found["overhead"]
            tables[schema.OVERHEAD.name] = {
                "start_ns": start, "end_ns": end, "thread": np.broadcast_to(callers[0], len(start)),
                "name_id": name_id,
            }  # fmt: skip
        self._waits(found, process, tables)
        contexts = {
            (int(p), int(c), int(d)): None
            for name in _WORK
            if name in found
            for p, c, d in np.unique(np.stack([process[name], found[name][3], found[name][2]], 1), axis=0)
        }  # fmt: skip
        if contexts:
            pid, context, device = np.array(list(contexts), np.int64).T
            tables[schema.CONTEXT.name] = {
                "pid": pid >> _ID_BITS,
                "context": context,
                "device": device,
            }
            streams = {
                (int(p) >> _ID_BITS, int(c), int(s))
                for name in _WORK
                if name in found
                for p, c, s in np.unique(np.stack([process[name], found[name][3], found[name][4]], 1), axis=0)
            }  # fmt: skip
            pid, context, stream = np.array(sorted(streams), np.int64).T
            flag = np.where(stream == _DEFAULT_STREAM, _LEGACY, _NON_BLOCKING)
            tables[schema.STREAM.name] = {
                "pid": pid,
                "context": context,
                "stream": stream,
                "flag": flag,
            }
        self._tables = {name: columns for name, columns in tables.items() if columns}

    def _refuse_others(self, found: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Traces that are not of torch.profiler on NVIDIA's GPUs."""
        about, name = self.trace.about, self.path.name
        called = {*found["call"][5].tolist()} if "call" in found else set()
        amd = any(_AMD.match(text) for text, number in self.names.items() if number in called)
        if amd or "roctracer_version" in about or any(str(key).startswith("hip_") for key in about):
            raise TraceError(
                f"{name}: a trace of torch.profiler on an AMD GPU (ROCm): its calls and kernels are not CUDA's",
                "for AMD's GPUs there is TraceLens; nsysalign reads traces of NVIDIA's",
            )
        if self.wanted is not None or found.keys() & {"kernel", "copy", "set", "call"}:
            return
        other = next((who for key, who in _OTHERS.items() for c in self._categories if key in c.lower()), "")  # fmt: skip
        if other:
            raise TraceError(
                f"{name}: a trace of torch.profiler of {other}, and holds no CUDA calls, kernels or copies",
                "nsysalign reads traces of NVIDIA's GPUs",
            )
        if found:
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

    def _drop_samples(self, found: dict[str, list[np.ndarray]]) -> None:
        """Of a trace whose rows were thinned out only the GPU's rows are kept, and no call launched them:
        what is left of calls and ranges would be taken for all that the host did."""
        columns = [found[table][5] for table in ("operator", "annotation") if table in found]
        numbers = np.unique(np.concatenate(columns or [np.empty(0, np.int64)]))
        numbers = numbers[numbers > 0]
        if len(numbers) < _NUMBERED or found.keys().isdisjoint(_WORK):
            return
        numbered = int(numbers[-1] - numbers[0]) + 1
        if len(numbers) >= _NUMBERED_SHARE * numbered:
            return
        self.thinned = f"rows were taken out of this trace: {len(numbers):,} of some {numbered:,} operators are in it"
        for table in found.keys() - {*_WORK, "call"}:
            del found[table]
        if "call" in found:
            # the call that launched an operation is not the one before it that is left
            found["call"][4] = np.full(len(found["call"][4]), -1)

    def _fit_clocks(self, found: dict[str, list[np.ndarray]]) -> None:
        """Moves the host's times back where the GPU's work begins before the calls that launched it, by so
        much that none does: the two clocks are read apart, and one may run ahead.

        host     [launch a]     [launch b]     [launch c]            calls, as written
        GPU    a             b            c                          ahead by more and more
        host [launch a]  [launch b]  [launch c]                      as they are taken
        """
        if "call" not in found:
            return
        launched, ahead = _ahead(found)
        early = ahead > _CLOCK_NS
        if early.sum() < _EARLY_SHARE * max(len(ahead), 1) or not early.any():
            return
        # the clocks drift apart: from one launch to the next by as much as the farthest until there
        taken = np.maximum.accumulate(launched - np.maximum.accumulate(np.maximum(ahead, 0)))
        for table in found.keys() - set(_WORK):
            for column in (0, 1):
                found[table][column] = _moved(found[table][column], launched, taken)
        self._moved_by_ns = int(ahead.max())

    def _processes(self, found: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
        """By table of work: the globalPid of each row, which it does not say: that of the call with its
        correlation id."""
        call = found.get("call")
        pids = np.unique(call[2]) if call is not None else np.array([1])
        out = {}
        for table in (*_WORK, "wait"):
            if table not in found:
                continue
            columns = found[table]
            if len(pids) == 1 or call is None:
                out[table] = np.full(len(columns[0]), self._pid(int(pids[0])) << _ID_BITS, np.int64)
                continue
            order = np.lexsort((call[2], call[4]))
            ids, owner = call[4][order], call[2][order]
            same = (ids[1:] == ids[:-1]) & (owner[1:] != owner[:-1]) & (ids[1:] > 0)
            if same.any():
                raise TraceError(
                    f"{self.path.name}: holds {len(pids)} processes whose calls have the same numbers: which of them issued a kernel "
                    "cannot be told",
                    "give each process's own trace: nsysalign analyze RANK0.json RANK1.json",
                )
            place = np.searchsorted(ids, columns[5]).clip(max=len(ids) - 1)
            pid = np.where(ids[place] == columns[5], owner[place], pids[0])
            out[table] = np.array([self._pid(int(p)) for p in pid], np.int64) << _ID_BITS
        return out

    def _pid(self, pid: int) -> int:
        return pid if 0 < pid < 1 << _ID_BITS else 1

    def _threads(self, found: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
        """By table: the globalTid of each row.  Where Kineto does not know a thread, it writes a handle:
        the operator of which the call is a part tells whose that is; else it is a thread by itself."""
        made_up: dict[int, int] = {}
        known: dict[int, int] = {}
        if "call" in found:
            tid, external = found["call"][3], found["call"][6]
            handles = np.unique(tid[(tid <= 0) | (tid >= 1 << _ID_BITS)])
            wheres = [found[t] for t in ("operator", "annotation") if t in found]
            for handle in handles.tolist():
                ids = np.unique(external[(tid == handle) & (external > 0)])
                owners = np.concatenate(
                    [np.unique(w[3][np.isin(w[5], ids) & (w[3] > 0)]) for w in wheres]
                    or [np.empty(0, np.int64)]
                )
                owners = np.unique(owners[owners < 1 << _ID_BITS])
                if len(owners) == 1:
                    known[handle] = int(owners[0])
                else:
                    made_up[handle] = _FIRST_MADE_UP + len(made_up)
                    count = int((tid == handle).sum())
                    self.lost["CUDA calls of threads that are known by a handle only"] += count
        out = {}
        for table in ("call", "annotation", "operator", "frame"):
            if table not in found:
                continue
            pid, tid = found[table][2], found[table][3].copy()
            for handle, number in {**known, **made_up}.items():
                tid[tid == handle] = number
            odd = (tid <= 0) | (tid >= 1 << _ID_BITS)
            tid[odd] &= (1 << _ID_BITS) - 1
            pids = np.where((pid > 0) & (pid < 1 << _ID_BITS), pid, 1)
            out[table] = (pids << _ID_BITS) | tid
        return out

    def _work(
        self, found: Mapping[str, Sequence[np.ndarray]], process: Mapping[str, np.ndarray], table: str, *more: str
    ) -> Columns:  # fmt: skip
        if table not in found:
            return {}
        names = ("start_ns", "end_ns", "device", "context", "stream", "correlation", "graph_node")
        columns = dict(zip((*names, *more), found[table], strict=True))
        return columns | {"process": process[table]}

    def _ranges(
        self, found: Mapping[str, Sequence[np.ndarray]], threads: Mapping[str, np.ndarray]
    ) -> Columns:
        """Annotations; frames of the program's own Python code; and the outermost operators where
        neither says what a thread did."""
        parts: list[tuple[np.ndarray, ...]] = []
        say: list[tuple[np.ndarray, ...]] = []
        steps = [number for name, number in self.names.items() if name.startswith(_STEP)]
        for table, kind in (("annotation", PUSH_POP), ("frame", FRAME_RANGE)):
            if table in found:
                start, end, _, _, name_id, _ = found[table]
                rows = (start, end, threads[table], name_id, np.broadcast_to(kind, len(start)))
                parts.append(rows)
                says = ~np.isin(name_id, steps)
                says &= start >= 0
                say.append((threads[table][says], start[says], end[says]))
        if "operator" in found:
            start, end, _, _, name_id, _ = found["operator"]
            thread = threads["operator"]
            outermost = _outermost(thread, start, end)
            if say:
                opener, opened_ns, closed_ns = (np.concatenate(c) for c in zip(*say, strict=True))
                some = np.flatnonzero(outermost)
                inside = any_open(opener, opened_ns, closed_ns, thread[some], start[some])
                outermost[some[inside]] = False
            kept = [column[outermost] for column in (start, end, thread, name_id)]
            parts.append((*kept, np.broadcast_to(OPERATOR_RANGE, len(kept[0]))))
        if not parts:
            return {}
        start, end, thread, name_id, kinds = (np.concatenate(c) for c in zip(*parts, strict=True))
        there = start >= 0
        return {
            "start_ns": start[there], "end_ns": end[there], "thread": thread[there],
            "text_id": name_id[there], "kind": kinds[there],
        }  # fmt: skip

    def _waits(
        self, found: Mapping[str, Sequence[np.ndarray]], process: Mapping[str, np.ndarray], tables: dict[str, Columns]
    ) -> None:  # fmt: skip
        if "wait" not in found:
            return
        start, end, device, context, stream, correlation, event, record, waited_for = found["wait"]
        tables[schema.SYNCHRONIZATION.name] = {
            "start_ns": start, "end_ns": end, "process": process["wait"], "context": context,
            "stream": stream, "event": event, "event_sync": np.where(event >= 0, record, -1),
            "correlation": correlation,
        }  # fmt: skip
        # a wait names the call that recorded its event
        _, first = np.unique(np.where(record > 0, record, -1), return_index=True)
        first = first[(record[first] > 0) & (waited_for[first] >= 0)]
        if len(first):
            tables[schema.CUDA_EVENT.name] = {
                "process": process["wait"][first], "device": device[first], "context": context[first],
                "stream": waited_for[first], "correlation": record[first], "event": event[first],
                "event_sync": record[first], "timestamp_ns": np.full(len(first), -1),
            }  # fmt: skip

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
        yield from self.lost.items()
        if self.thinned:
            return
        without = sum(
            int(
                (
                    ~np.isin(own["correlation"], self._tables[schema.RUNTIME.name]["correlation"])
                ).sum()
            )
            for table in (schema.KERNEL, schema.MEMCPY, schema.MEMSET)
            if (own := self._tables.get(table.name)) and schema.RUNTIME.name in self._tables
        )
        yield "operations whose launch is not in the trace", without

    def gpus(self) -> dict[int, Gpu]:
        """CUDA device -> its GPU."""
        found: dict[int, Gpu] = defaultdict(lambda: Gpu(0, 0, 0))
        for device, row in self._properties().items():
            count = row.get("numSms")
            found[device] = Gpu(count if type(count) is int and count > 0 else 0, 0, 0)
        return found

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


_SHAPE = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "dynamic_shared_bytes",
)  # fmt: skip


def _number(value: Any, default: int = -1) -> int:
    """A whole number of 62 bits, from whatever stands there."""
    if type(value) is int:
        return value if -1 << 62 < value < 1 << 62 else default
    if type(value) is str:
        found = re.search(r"-?\d{1,18}", value)
        return int(found[0]) if found else default
    if type(value) is float and abs(value) < 1 << 53:
        return int(value)
    return default


def _arrays(rows: list[tuple]) -> list[np.ndarray]:
    """Columns of some rows; the first two are times (microseconds), and become nanoseconds."""
    start, length, *others = zip(*rows, strict=True)
    return [
        nanoseconds(start),
        nanoseconds(length),
        *(narrow(np.array(c, np.int64)) for c in others),
    ]


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    out = []
    for number in range(len(parts[0])):
        out.append(np.concatenate([part[number] for part in parts]).astype(np.int64, copy=False))
    return out


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


def _ahead(found: Mapping[str, Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(when each call began that launched something, by time; how long before that the first it launched
    began: negative as it should be), in nanoseconds."""
    call_start, correlation = found["call"][0], found["call"][4]
    rows = [found[table] for table in _WORK if table in found]
    start, issuer = (np.concatenate([row[n] for row in rows] or [call_start[:0]]) for n in (0, 5))
    by_issuer = np.lexsort((start, issuer))
    issuer, first = np.unique(issuer[by_issuer], return_index=True)
    start = start[by_issuer][first]
    known = np.flatnonzero((correlation > 0) & (call_start >= 0) & np.isin(correlation, issuer))
    known = known[np.argsort(call_start[known], kind="stable")]
    began = start[np.searchsorted(issuer, correlation[known])]
    there = began >= 0
    launched = call_start[known][there]
    return launched, launched - began[there]


def _moved(time: np.ndarray, at: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Times moved as those `at` are moved `to`, and in between by what lies on the line; those of no
    time (negative) stay."""
    shift = np.interp(time, at, at - to)
    return np.where(time < 0, time, time - np.rint(shift).astype(np.int64))


def _outermost(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Bool: which ranges lie in no other of their thread."""
    order = np.lexsort((-end, start))
    out = np.zeros(len(start), bool)
    for rows in group(thread[order], order).values():
        before = np.maximum.accumulate(end[rows])
        first = np.append(True, start[rows[1:]] >= before[:-1])
        out[rows[first]] = True
    return out
