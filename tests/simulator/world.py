"""What happened, in plain records: the truth that the simulator (or a hand-drawn case) knows.

One `World` is one process.  `export.write` turns worlds into an nsys-schema SQLite file and event
logs, `oracle` into budgets.  All times are integer nanoseconds on the trace's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LEGACY, BLOCKING, NON_BLOCKING = 3, 1, 2  # TARGET_INFO_CUDA_STREAM.flag
H2D, D2H, D2D = 1, 2, 8  # CUDA_MEMCPY_KIND
PAGEABLE, PINNED, DEVICE = 0, 1, 2  # CUDA_MEMORY_KIND

#: API name per kind of call, where the caller does not choose one.
API_NAMES = {
    "launch": "cudaLaunchKernel_v7000",
    "graph_launch": "cudaGraphLaunch_v10000",
    "memcpy": "cudaMemcpyAsync_v3020",
    "memset": "cudaMemsetAsync_v3020",
    "sync_device": "cudaDeviceSynchronize_v3020",
    "sync_stream": "cudaStreamSynchronize_v3020",
    "sync_event": "cudaEventSynchronize_v3020",
    "record": "cudaEventRecordWithFlags_v11010",
    "query_event": "cudaEventQuery_v3020",
    "query_stream": "cudaStreamQuery_v3020",
    "wait_event": "cudaStreamWaitEvent_v3020",
    "host_function": "cudaLaunchHostFunc_v10000",
    "other": "cudaMalloc_v3020",
}


@dataclass(eq=False)
class Call:
    kind: str
    start: int
    end: int
    thread: int
    name: str = ""
    stream: int = -1  # stream of a stream synchronisation or wait
    event: int = -1  # event object of a record, wait or event synchronisation
    record: Record | None = None  # the record that a wait or an event synchronisation is about
    nested: tuple[tuple[str, int, int], ...] = ()  # driver calls inside: name, start, end
    correlation: int = -1

    @property
    def api(self) -> str:
        return self.name or API_NAMES[self.kind]


@dataclass(eq=False)
class Op:
    kind: str  # kernel, graph, memcpy, memset
    start: int
    end: int
    stream: int
    call: Call | None
    name: str = "kernel"
    bytes: int = 0
    copy_kind: int = -1
    src_kind: int = -1
    dst_kind: int = -1
    graph_node: int = 0
    grid: int = 1
    block: int = 32

    @property
    def pageable(self) -> bool:
        kinds = self.copy_kind in (H2D, D2H) and PAGEABLE in (self.src_kind, self.dst_kind)
        return self.kind == "memcpy" and kinds


@dataclass(eq=False)
class Record:
    t: int  # the true GPU time
    stream: int
    call: Call
    event: int = 1  # the event object
    seq: int = -1  # number in the log, -1: made by code the probe does not see
    region: str = ""
    sync_id: int = -1


@dataclass(eq=False)
class Wait:
    stream: int
    call: Call
    record: Record
    seq: int = -1


@dataclass(eq=False)
class HostFunction:
    stream: int
    call: Call
    start: int
    end: int


@dataclass(eq=False)
class Range:
    text: str
    start: int
    end: int
    thread: int


@dataclass(eq=False)
class Overhead:
    start: int
    end: int
    thread: int


@dataclass(eq=False)
class Pair:
    start: Record
    end: Record
    ms: float | None  # what elapsed_time returned, None where it raised
    name: str = ""
    asked: int = -1  # when elapsed_time was called, -1 unknown

    @property
    def elapsed_ns(self) -> int:
        return round(self.ms * 1e6)

    @property
    def window(self) -> tuple[int, int]:
        return self.start.t, self.start.t + self.elapsed_ns


@dataclass(eq=False)
class HostInterval:
    name: str
    start: int
    end: int
    thread: int


@dataclass(eq=False)
class Reading:
    site: str  # a key of World.clock_sites
    t: int
    thread: int
    region: str = ""


@dataclass(eq=False)
class World:
    pid: int = 500
    device: int = 0
    context: int = 1
    streams: dict[int, int] = field(default_factory=lambda: {7: LEGACY})
    latency: dict[str, int] = field(default_factory=dict)  # rule 7's L per kind, or else 2,000
    calls: list[Call] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    host_functions: list[HostFunction] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    host_intervals: list[HostInterval] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    clock_sites: dict[str, dict] = field(default_factory=dict)  # what their lines in the log say
    end: int = 0  # of the session
    sequence: int = 0

    # --- drawing by hand: every method adds one thing at given times and returns it

    def call(self, kind: str, start: int, end: int, thread: int = 0, **more) -> Call:
        call = Call(kind, start, end, thread or self.pid, correlation=len(self.calls) + 1, **more)
        self.calls.append(call)
        return call

    def op(self, kind: str, start: int, end: int, call: Call | None, stream: int = 7, **more) -> Op:
        op = Op(kind, start, end, stream, call, **more)
        self.ops.append(op)
        return op

    def kernel(self, start: int, end: int, call: Call | None, stream: int = 7, **more) -> Op:
        return self.op("kernel", start, end, call, stream, **more)

    def copy(
        self, start: int, end: int, call: Call | None, stream: int = 7, *, pageable: bool,
        kind: int = H2D, nbytes: int = 4096,
    ) -> Op:  # fmt: skip
        host = PAGEABLE if pageable else PINNED
        src, dst = {H2D: (host, DEVICE), D2H: (DEVICE, host)}.get(kind, (DEVICE, DEVICE))
        kinds = {"copy_kind": kind, "src_kind": src, "dst_kind": dst}
        return self.op("memcpy", start, end, call, stream, bytes=nbytes, **kinds)

    def record(
        self, t: int, start: int, end: int, stream: int = 7, thread: int = 0, event: int | None = None,
        logged: bool = True, region: str = "",
    ) -> Record:  # fmt: skip
        call = self.call("record", start, end, thread)
        number = call.correlation if event is None else event
        record = Record(t, stream, call, number, -1, region, call.correlation)
        call.event, call.record = record.event, record
        if logged:
            record.seq = self._next()
        self.records.append(record)
        return record

    def wait(
        self,
        record: Record,
        start: int,
        end: int,
        stream: int,
        thread: int = 0,
        logged: bool = True,
    ) -> Wait:
        about = {"stream": stream, "event": record.event, "record": record}
        call = self.call("wait_event", start, end, thread, **about)
        wait = Wait(stream, call, record, self._next() if logged else -1)
        self.waits.append(wait)
        return wait

    def sync(
        self,
        start: int,
        end: int,
        thread: int = 0,
        *,
        stream: int = -1,
        record: Record | None = None,
    ) -> Call:
        kind = "sync_event" if record else "sync_stream" if stream >= 0 else "sync_device"
        event = record.event if record else -1
        return self.call(kind, start, end, thread, stream=stream, event=event, record=record)

    def pair(self, start: Record, end: Record, name: str = "case#0") -> Pair:
        pair = Pair(start, end, milliseconds(end.t - start.t), name)
        start.region = end.region = name
        self.pairs.append(pair)
        return pair

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence - 1


def milliseconds(ns: int) -> float:
    """What elapsed_time returns: float32 milliseconds, as a Python float."""
    import numpy as np

    return float(np.float32(ns / 1e6))
