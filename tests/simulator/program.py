"""The small language of simulated programs: each host thread is a list of these instructions.

    Program({1: [Record("a"), Launch(20_000), Record("b"), Sync(), Elapsed("a", "b", "x#0")]})

Times are nanoseconds.  Streams are CUPTI ids (7 is the default stream), events are names of event
objects, which can be recorded again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .world import H2D, LEGACY


@dataclass(frozen=True)
class Launch:
    ns: int  # execution time
    stream: int = 7
    cost: int = 4_000  # how long the API call takes
    latency: int | None = None  # end of the call -> start of the kernel; negative: inside the call
    pdl: bool = False  # may start before the previous kernel of its stream ends
    name: str = "kernel"
    grid: int = 1
    by: int | None = None  # another thread makes the call, and this one waits for it


@dataclass(frozen=True)
class Copy:
    ns: int
    stream: int = 7
    pageable: bool = False
    direction: int = H2D
    before: int = 20_000  # pageable: host staging inside the call before the copy starts
    after: int = 5_000  # pageable: the rest of the call after the copy ended
    cost: int = 5_000  # pinned: the call
    nbytes: int = 65_536


@dataclass(frozen=True)
class Memset:
    ns: int
    stream: int = 7
    cost: int = 4_000
    nbytes: int = 4_096


@dataclass(frozen=True)
class GraphLaunch:
    nodes: Sequence[tuple[int, int]]  # offset and duration of each kernel; branches may overlap
    stream: int = 7
    cost: int = 6_000
    whole: bool = True  # nsys shows one row, else one row per node


@dataclass(frozen=True)
class Record:
    event: str
    stream: int = 7
    cost: int = 3_000
    logged: bool = True  # False: made by a library the probe does not see


@dataclass(frozen=True)
class Wait:
    event: str
    stream: int
    cost: int = 1_500
    logged: bool = True


@dataclass(frozen=True)
class HostFunction:
    ns: int
    stream: int = 7
    cost: int = 3_000


@dataclass(frozen=True)
class Sync:
    stream: int | None = None  # neither: the device
    event: str | None = None
    cost: int = 2_000  # least
    back: int = 3_000  # the last work ends -> the call returns


@dataclass(frozen=True)
class Api:
    ns: int
    name: str = "cudaMalloc_v3020"
    kind: str = "other"
    nested: bool = False  # a driver call inside has a row of its own


@dataclass(frozen=True)
class Sleep:
    ns: int


@dataclass(frozen=True)
class Push:
    text: str


@dataclass(frozen=True)
class Pop:
    pass


@dataclass(frozen=True)
class Profiler:
    ns: int  # PROFILER_OVERHEAD on this thread


@dataclass(frozen=True)
class Elapsed:
    start: str
    end: str
    name: str


@dataclass(frozen=True)
class HostStart:
    name: str


@dataclass(frozen=True)
class HostStop:
    name: str


@dataclass(frozen=True)
class Read:
    """The program reads a host clock at a site of Program.clock_sites."""

    site: str
    region: str = ""


@dataclass(frozen=True)
class Timing:
    """The simulated machine, by default an H200."""

    launch_latency: int = 2_000  # end of the call -> start, device idle
    copy_latency: int = 2_000
    op_to_op: int = 900  # end of an operation -> start of the next one of its stream
    op_to_record: int = 2_200
    call_to_record: int = 5_500  # start of the record call -> record, stream idle
    record_to_record: int = 1_300
    record_to_op: int = 1_500
    wait_to_op: int = 1_000  # the awaited record -> what waited for it
    queue_depth: int = 1_021  # entries of one stream that may be unfinished
    contention: bool = False  # one kernel at a time on the device, one copy per direction
    tick: int = 32  # event times are multiples of it
    tick_phase: int = 0
    between_calls: int = 300  # Python between two calls
    probe: int = 350  # the probe's own time before and after a record call
    clock_error: int = 0  # elapsed_time's clock against the timestamps', at most this much per pair


@dataclass(frozen=True)
class Program:
    threads: Mapping[int, Sequence[object]]
    streams: Mapping[int, int] = field(default_factory=lambda: {7: LEGACY})  # id -> flag
    timing: Timing = field(default_factory=Timing)
    begin: int = 1_000_000_000
    clock_sites: Mapping[str, dict] = field(default_factory=dict)
    pid: int = 500
    device: int = 0
