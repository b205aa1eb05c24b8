"""Runs a program on simulated CUDA streams and returns the world it made.

Threads take turns by the time of their next instruction, so calls are issued in the order of their
starts. Streams work in that order, therefore the time of a piece of GPU work follows from what was
issued before it: no event queue is needed, and a call that blocks knows at once when it returns.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from . import program as p
from . import world as w
from .world import BLOCKING, LEGACY, Op, World


@dataclass
class Stream:
    flag: int
    free: int = 0  # the last entry is done
    last: str = ""  # kind of the last entry: op, record, ''
    last_start: int = 0
    behind: list[int] = field(default_factory=list)  # awaited times for the next entry
    done: list[int] = field(default_factory=list)  # when each entry left the queue


@dataclass
class Thread:
    tid: int
    now: int
    todo: list
    open: list = field(default_factory=list)  # pushed ranges


def run(program: p.Program) -> World:
    return _Machine(program).run()


class _Machine:
    def __init__(self, program: p.Program):
        self.t = program.timing
        self.world = World(pid=program.pid, device=program.device, streams=dict(program.streams))
        self.world.clock_sites = dict(program.clock_sites)
        self.world.latency = dict.fromkeys(("kernel", "graph", "memset"), self.t.launch_latency)
        self.world.latency["memcpy"] = self.t.copy_latency
        self.streams = {i: Stream(flag) for i, flag in program.streams.items()}
        todo = program.threads.items()
        self.threads = [Thread(tid, program.begin, list(steps)) for tid, steps in todo]
        self.events: dict[str, w.Record] = {}
        self.host: dict[str, tuple[int, int]] = {}
        self.jitter = random.Random(1)
        self.starts: set[int] = set()

    def run(self) -> World:
        while busy := [t for t in self.threads if t.todo]:
            thread = min(busy, key=self._next_call)
            thread.now, step = self._next_call(thread), thread.todo.pop(0)
            while thread.now in self.starts:  # two calls never start at once: the order is clear
                thread.now += 1
            self.starts.add(thread.now)
            getattr(self, "_" + type(step).__name__.lower())(thread, step)
            thread.now += self.t.between_calls
        latest = [t.now for t in self.threads] + [s.free for s in self.streams.values()]
        self.world.end = max(latest) + 1_000_000
        for thread in self.threads:
            while thread.open:
                self._pop(thread, None)
        return self.world

    def _next_call(self, thread: Thread) -> int:
        """When the next instruction's API call starts: a logged record begins with the probe's own
        work."""
        step = thread.todo[0]
        return thread.now + (self.t.probe if isinstance(step, p.Record) and step.logged else 0)

    # --- the GPU

    def _ready(self, stream: int, idle: int, after: tuple[int, int], pdl: bool = False) -> int:
        """The earliest start of the next entry of a stream: `idle` if nothing is before it; `after`
        an operation, and a record."""
        s = self.streams[stream]
        at = idle
        if s.last:
            overlap = pdl and s.last == "op" and not s.behind
            at = max(at, s.last_start + 500 if overlap else s.free + after[s.last == "record"])
        for other in self.streams.values():  # a barrier of legacy and blocking streams, both ways
            if {s.flag, other.flag} == {LEGACY, BLOCKING} and other.last:
                at = max(at, other.free + self.t.wait_to_op)
        at = max([at] + [t + self.t.wait_to_op for t in s.behind])
        s.behind.clear()
        return at

    def _enter(self, stream: int, kind: str, start: int, end: int) -> None:
        s = self.streams[stream]
        s.last, s.last_start, s.free = kind, start, max(end, s.free)
        s.done.append(s.free)

    @property
    def _after(self) -> tuple[int, int]:
        """How long after an operation, and after a record, the next operation starts."""
        return self.t.op_to_op, self.t.record_to_op

    def _room(self, stream: int, called: int) -> int:
        """When the queue of the stream has room for one more entry."""
        done = self.streams[stream].done
        return max(called, done[-self.t.queue_depth]) if len(done) >= self.t.queue_depth else called

    def _issue(self, thread: Thread, stream: int, kind: str, cost: int, by: int | None = None):
        room = self._room(stream, thread.now)
        made = self.world.call(kind, thread.now, room + cost, by or thread.tid)
        thread.now = made.end
        return made

    def _contended(self, start: int, ns: int, rivals: list[Op]) -> int:
        """The first moment from `start` on at which `ns` fit between the rivals."""
        if self.t.contention:
            for r in sorted(rivals, key=lambda o: o.start):
                if r.start < start + ns and start < r.end:
                    start = r.end
        return start

    # --- instructions

    def _launch(self, thread: Thread, i: p.Launch) -> None:
        call = self._issue(thread, i.stream, "launch", i.cost, i.by)
        latency = self.t.launch_latency if i.latency is None else max(i.latency, 500 - i.cost)
        at = self._ready(i.stream, call.end + latency, self._after, i.pdl)
        rivals = [o for o in self.world.ops if o.kind == "kernel" and o.stream != i.stream]
        at = self._contended(at, i.ns, rivals)
        end = max(at + i.ns, self.streams[i.stream].free if i.pdl else 0)
        self.world.kernel(at, end, call, i.stream, name=i.name, grid=i.grid)
        self._enter(i.stream, "op", at, end)

    def _copy(self, thread: Thread, i: p.Copy) -> None:
        called, room = thread.now, self._room(i.stream, thread.now)
        idle = room + i.before if i.pageable else room + i.cost + self.t.copy_latency
        at = self._ready(i.stream, idle, self._after)
        at = self._contended(at, i.ns, [o for o in self.world.ops if o.copy_kind == i.direction])
        done = at + i.ns + i.after if i.pageable else room + i.cost
        call = self.world.call("memcpy", called, done, thread.tid)
        self.world.copy(
            at, at + i.ns, call, i.stream, pageable=i.pageable, kind=i.direction, nbytes=i.nbytes
        )
        self._enter(i.stream, "op", at, at + i.ns)
        thread.now = call.end

    def _memset(self, thread: Thread, i: p.Memset) -> None:
        call = self._issue(thread, i.stream, "memset", i.cost)
        at = self._ready(i.stream, call.end + self.t.launch_latency, self._after)
        self.world.op("memset", at, at + i.ns, call, i.stream, bytes=i.nbytes)
        self._enter(i.stream, "op", at, at + i.ns)

    def _graphlaunch(self, thread: Thread, i: p.GraphLaunch) -> None:
        call = self._issue(thread, i.stream, "graph_launch", i.cost)
        at = self._ready(i.stream, call.end + self.t.launch_latency, self._after)
        end = at + max(start + ns for start, ns in i.nodes)
        if i.whole:
            self.world.op("graph", at, end, call, i.stream)
        else:
            for number, (start, ns) in enumerate(i.nodes, 1):
                self.world.kernel(at + start, at + start + ns, call, i.stream, graph_node=number)
        self._enter(i.stream, "op", at, end)

    def _record(self, thread: Thread, i: p.Record) -> None:
        called = thread.now
        event = self.events[i.event].event if i.event in self.events else 100 + len(self.events)
        end = self._room(i.stream, called) + i.cost
        after = self.t.op_to_record, self.t.record_to_record
        at = self._ready(i.stream, called + self.t.call_to_record, after)
        at += (self.t.tick_phase - at) % self.t.tick
        self.events[i.event] = self.world.record(
            at, called, end, i.stream, thread.tid, event, i.logged
        )
        self._enter(i.stream, "record", at, at)
        thread.now = end + (self.t.probe if i.logged else 0)

    def _wait(self, thread: Thread, i: p.Wait) -> None:
        record = self.events[i.event]
        self.world.wait(record, thread.now, thread.now + i.cost, i.stream, thread.tid, i.logged)
        if record.stream != i.stream:
            self.streams[i.stream].behind.append(record.t)
        thread.now += i.cost

    def _hostfunction(self, thread: Thread, i: p.HostFunction) -> None:
        call = self._issue(thread, i.stream, "host_function", i.cost)
        at = self._ready(i.stream, call.end + 5_000, (5_000, 5_000))
        self.world.host_functions.append(w.HostFunction(i.stream, call, at, at + i.ns))
        self._enter(i.stream, "op", at, at + i.ns)

    def _sync(self, thread: Thread, i: p.Sync) -> None:
        record = self.events[i.event] if i.event else None
        stream = -1 if i.stream is None else i.stream
        frees = [s.free for n, s in self.streams.items() if stream in (-1, n)]
        done = record.t if record else max(frees)
        end = max(thread.now + i.cost, done + i.back)
        self.world.sync(thread.now, end, thread.tid, stream=stream, record=record)
        thread.now = end

    def _api(self, thread: Thread, i: p.Api) -> None:
        times = thread.now, thread.now + i.ns
        inner = (("cuMemAlloc_v2", times[0] + i.ns // 4, times[0] + i.ns // 2),) if i.nested else ()
        self.world.call(i.kind, *times, thread.tid, name=i.name, nested=inner)
        thread.now += i.ns

    def _sleep(self, thread: Thread, i: p.Sleep) -> None:
        thread.now += i.ns

    def _profiler(self, thread: Thread, i: p.Profiler) -> None:
        self.world.overheads.append(w.Overhead(thread.now, thread.now + i.ns, thread.tid))
        thread.now += i.ns

    def _push(self, thread: Thread, i: p.Push) -> None:
        thread.open.append(w.Range(i.text, thread.now, -1, thread.tid))
        self.world.ranges.append(thread.open[-1])

    def _pop(self, thread: Thread, i: p.Pop | None) -> None:
        if thread.open:
            thread.open.pop().end = thread.now

    def _elapsed(self, thread: Thread, i: p.Elapsed) -> None:
        start, end = self.events[i.start], self.events[i.end]
        ready = max(start.t, end.t) <= thread.now
        error = self.jitter.randint(-self.t.clock_error, self.t.clock_error)
        ms = w.milliseconds(end.t - start.t + error) if ready else None
        self.world.pairs.append(w.Pair(start, end, ms, i.name, thread.now))
        start.region = start.region or i.name
        end.region = end.region or i.name
        thread.now += 1_000

    def _hoststart(self, thread: Thread, i: p.HostStart) -> None:
        self.host[i.name] = (thread.now, thread.tid)

    def _hoststop(self, thread: Thread, i: p.HostStop) -> None:
        start, tid = self.host.pop(i.name)
        self.world.host_intervals.append(w.HostInterval(i.name, start, thread.now, tid))

    def _read(self, thread: Thread, i: p.Read) -> None:
        self.world.readings.append(w.Reading(i.site, thread.now, thread.tid, i.region))
