"""The true budget: section 4's table, instant by instant, rule by rule, in plain Python.

Deliberately slow and stupid, and sharing no code with nsysalign: every time that occurs anywhere is
a breakpoint, and for the first instant of each piece between two breakpoints the rules are tried in
order.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass

from .world import BLOCKING, D2H, LEGACY, Call, Op, Record, World

SYNC = ("sync_device", "sync_stream", "sync_event")
ISSUE = ("launch", "graph_launch", "memcpy", "memset")
EVENT = ("record", "query_event")
NODE_GAP_NS = 10_000  # between nodes of a graph
ORDER = ("kernel", "graph", "memcpy", "memset")


@dataclass(frozen=True)
class Piece:
    start: int
    end: int
    cause: str
    detail: str = ""


def event_budget(
    world: World, start: int, end: int, stream: int, end_record: Record | None
) -> list[Piece]:
    """The pieces of `[start, end)` for kind event, or nvtx where there is no end record."""
    return _scan(world, start, end, lambda at: _cause(world, at, stream, end_record))


def host_budget(world: World, start: int, end: int, thread: int) -> list[Piece]:
    """The pieces of a pair of host timestamps of `thread`."""
    return _scan(world, start, end, lambda at: _host_cause(world, at, start, thread))


def parts(pieces: list[Piece]) -> dict[str, int]:
    out: dict[str, int] = {}
    for piece in pieces:
        out[piece.cause] = out.get(piece.cause, 0) + piece.end - piece.start
    return out


def latency_of(world: World, kind: str) -> int:
    return world.latency.get(kind, 2_000)


def _scan(world: World, start: int, end: int, cause) -> list[Piece]:
    times = {start, end}
    for thing in (*world.calls, *world.ops, *world.overheads, *world.host_functions):
        times |= {thing.start, thing.end}
    times |= {r.t for r in world.records}
    for latency in {latency_of(world, kind) for kind in ORDER}:  # where rule 7 may begin
        times |= {thing.end + latency for thing in (*world.calls, *world.ops)}
    times |= {op.end + NODE_GAP_NS for op in world.ops}
    marks = sorted(t for t in times if start <= t <= end)
    out: list[Piece] = []
    for a, b in itertools.pairwise(marks):
        what, detail = cause(a)
        if out and (out[-1].cause, out[-1].detail) == (what, detail):
            out[-1] = Piece(out[-1].start, b, what, detail)
        else:
            out.append(Piece(a, b, what, detail))
    return out


def _running(ops: list[Op], at: int) -> list[Op]:
    return [o for o in ops if o.start <= at < o.end]


def _inside(thing, at: int) -> bool:
    return thing.start <= at < thing.end


def _cause(world: World, at: int, stream: int, end_record: Record | None) -> tuple[str, str]:
    mine = [o for o in world.ops if o.stream == stream]
    for kind in ORDER:  # rules 1-4
        if any(o.kind == kind for o in _running(mine, at)):
            return kind, "copy" if kind == "memcpy" else ""

    ahead = [o for o in mine if o.start > at]
    if end_record is not None:
        ahead = [o for o in ahead if _issued(o) < end_record.call.start]
    n: Op | Record | None = min(ahead, key=lambda o: o.start) if ahead else end_record
    past = [o for o in mine if o.end <= at]
    p = max(past, key=lambda o: (o.end, o.start)) if past else None
    if n is None or n.call is None:
        return "unknown", "no API row"  # rule 16
    a0, a1 = n.call.start, n.call.end

    if isinstance(n, Op) and n.pageable and a0 <= at < a1:  # rule 6 before 5
        blocked = _behind(world, at, stream, n, p)
        return blocked if blocked and blocked[0] == "queued" else ("memcpy", "staging")
    if p and p.pageable and p.call and _inside(p.call, at):
        return "memcpy", "staging"

    if at >= a1:
        blocked = _behind(world, at, stream, n, p)  # rule 6
        if blocked:
            return blocked
        if isinstance(n, Op):
            since = (max(a1, p.end) if p else a1) + latency_of(world, n.kind)
            if p and p.call is n.call and n.call.kind == "graph_launch":
                since = max(since, p.end + NODE_GAP_NS)
            if at >= since and _contended(world, at, stream, n):  # rule 7
                return "queued", "contention"
        if p and isinstance(n, Op) and p.call is n.call and n.call.kind == "graph_launch":
            return ("graph" if at < p.end + NODE_GAP_NS else "unknown"), ""
        return ("launch_latency" if isinstance(n, Op) else "event"), ""  # rule 8
    if a0 <= at:
        return ("api_launch" if isinstance(n, Op) else "event"), ""  # rule 9
    return _host_side(world, at, n.call.thread)


def _issued(op: Op) -> int:
    return op.call.start if op.call else op.start


def _behind(world: World, at: int, stream: int, n: Op | Record, p: Op | None):
    """Rule 6: other work that N is ordered behind and that is not done."""
    since = _issued(p) if p else -1
    for w in world.waits:
        if w.stream == stream and since < w.call.start < n.call.start and w.record.t > at:
            return "queued", "dependency"
    flag = world.streams.get(stream, 2)
    barrier = {LEGACY: BLOCKING, BLOCKING: LEGACY}.get(flag)
    for o in world.ops:
        ordered = world.streams.get(o.stream) == barrier and _issued(o) < n.call.start
        if ordered and o.stream != stream and o.end > at:
            return "queued", "dependency"
    for f in world.host_functions:
        if f.stream == stream and since < f.call.start < n.call.start:
            return "unknown", "host function"
    return None


def _contended(world: World, at: int, stream: int, n: Op) -> bool:
    others = [o for o in _running(world.ops, at) if o.stream != stream]
    if n.kind in ("kernel", "graph"):
        return any(o.kind == "kernel" for o in others)
    return n.kind == "memcpy" and any(
        o.kind == "memcpy" and o.copy_kind == n.copy_kind for o in others
    )


def _host_side(world: World, at: int, thread: int) -> tuple[str, str]:
    """Rules 10-15: what the thread that will issue N does."""
    call = next((c for c in world.calls if c.thread == thread and _inside(c, at)), None)
    if call:
        for kinds, cause in ((SYNC, "sync"), (ISSUE, "api_launch"), (EVENT, "event")):
            if call.kind in kinds:
                return cause, ""
        return "api", ""
    if any(o.thread == thread and _inside(o, at) for o in world.overheads):
        return "profiler", ""
    return "host", ""


# --- kind host

FULL = 1_000  # unfinished operations of the stream


def _host_cause(world: World, at: int, begin: int, thread: int) -> tuple[str, str]:
    call = next((c for c in world.calls if c.thread == thread and _inside(c, at)), None)
    if call is None:  # the table says host; that the profiler held the thread up is known, so said
        held = any(o.thread == thread and _inside(o, at) for o in world.overheads)
        return "profiler" if held else "host", ""
    own = [o for o in world.ops if o.call is call]
    if call.kind in ("launch", "graph_launch", "memset"):
        return ("queued", "full queue") if _full(world, call, own) else ("api_launch", "")
    if call.kind != "memcpy" and call.kind not in SYNC:
        return "api", ""
    waited = _waited_for(world, call, own)
    running = _running(waited, at)
    inside = [o.kind for o in running if _issued(o) >= begin]
    if inside:
        return min(inside, key=ORDER.index), ""
    if running:
        return "queued", ""
    if call.kind == "memcpy":
        staging = any(o.pageable and (o.copy_kind != D2H or at >= o.start) for o in own)
        return ("memcpy", "staging") if staging else ("api_launch", "")
    return "sync", ""


def _waited_for(world: World, call: Call, own: list[Op]) -> list[Op]:
    before = [o for o in world.ops if o.call and o.call.start < call.start]
    if call.kind == "sync_device":
        return before
    if call.kind == "sync_stream":
        return [o for o in before if o.stream == call.stream]
    if call.kind == "sync_event":
        r = call.record
        return [o for o in before if o.stream == r.stream and o.call.start < r.call.start]
    if any(o.pageable for o in own):
        flags = {world.streams.get(c.stream) for c in own}
        barriers = {{LEGACY: BLOCKING, BLOCKING: LEGACY}.get(f, -1) for f in flags}
        streams = {c.stream for c in own}
        ordered = [
            o for o in before if o.stream in streams or world.streams.get(o.stream) in barriers
        ]
        back = [o for o in own if o.copy_kind == D2H and o.stream not in world.streams]
        perhaps = [
            o
            for o in before
            if world.streams.get(o.stream) == LEGACY and any(o.end <= copy.start for copy in back)
        ]
        return own + ordered + perhaps
    return []


def _full(world: World, call: Call, own: list[Op]) -> bool:
    lengths = sorted(c.end - c.start for c in world.calls if c.api == call.api)
    if call.end - call.start <= 10 * lengths[len(lengths) // 2]:
        return False
    queue = [o for o in world.ops if own and o.stream == own[0].stream and _issued(o) < call.start]
    return len(queue) - bisect_right(sorted(o.end for o in queue), call.start) >= FULL


def union(ops: list[Op], start: int, end: int) -> int:
    """Nanoseconds of `[start, end)` that the operations cover together."""
    total, reached = 0, start
    for o in sorted(ops, key=lambda o: o.start):
        a, b = max(o.start, reached), min(o.end, end)
        if b > a:
            total, reached = total + b - a, b
    return total
