"""One call by every clock: what each way of timing it prints, and what the differences are.

    host timer + sync > event pair > event pair behind a delay > do_bench > do_bench_cudagraph
    > graph replay > span of kernels (nsys) > sum of kernels (nsys)

Each row is one way: the time in which its kernels ran, and what else is in it.  What else that is
has been measured by something other than the row (`parts_of`), so a difference between two rows has
names, what they are known to take, and a rest that nothing explains.  The differences and the last
row add up to the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nsysalign.addons.measure.profile import Profile
from nsysalign.addons.measure.statistics import Estimate
from nsysalign.text import duration

#: mode or what nsys says -> (its name, what it contains beside the time in which kernels ran).
ROWS = {
    "latency": ("host timer + synchronise", {"return", "launch", "records", "gaps"}),
    "event": ("event pair, idle GPU", {"launch", "records", "gaps"}),
    "device": ("event pair behind a delay", {"records", "gaps"}),
    "do_bench": ("triton do_bench", {"unhidden", "records", "gaps"}),
    "do_bench_cudagraph": ("triton do_bench_cudagraph", {"in graph"}),
    "graph": ("CUDA graph, event pair", {"graph", "in graph"}),
    "span": ("span of its kernels, nsys", {"gaps"}),
    "sum": ("sum of its kernels, nsys", set()),
}
CAUSES = {
    "return": "the way to the GPU and back",
    "launch": "waits for launches",
    "records": "the event records",
    "unhidden": "launches that triton's flush does not hide",
    "graph": "the graph's launch and the event records",
    "in graph": "gaps inside a graph",
    "gaps": "gaps between kernels",
}
#: Which row answers which question, best first.
QUESTIONS = (
    ("how long one caller waits", ("latency",)),
    ("what most benchmarks print", ("event",)),
    ("the kernels in a model that keeps the GPU busy", ("device", "do_bench_cudagraph", "sum")),
    ("inside a CUDA graph", ("do_bench_cudagraph", "graph")),
)
#: What triton's do_bench overwrites before each call.
TRITON_BYTES = 256 << 20
#: An event pair on an idle GPU this much longer than behind a delay: the host launches until the
#: end, so that a synchronisation finds the work done.
LAUNCH_BOUND = 1.2
#: The host paces a pair that reads no more than this many times what the host needs for it.
PACED = 1.15
#: A graph's row in the trace that is less than this share of its operations does not cover them.
COVERED = 0.5
#: Rows whose SM clocks differ by less than this share ran at the same.
ANOTHER_CLOCK = 0.01
#: A profiled sum this much above the timed device time contradicts it.
CONTRADICTS, CONTRADICTS_NS = 0.02, 1_000


class Rung(NamedTuple):
    """One way of timing the call.  `next_ns`: the difference to the next row; `cause`: its words;
    `known_ns`: what those causes take by other measurements, NaN where one of them has none; `mhz`:
    the median SM clock, NaN where unknown; `clock_ns`: what another clock in the next row adds to
    the difference if the call's kernels follow the clock: nothing, if they wait for memory."""

    way: str
    name: str
    value_ns: float
    next_ns: float = math.nan
    cause: str = ""
    known_ns: float = math.nan
    mhz: float = math.nan
    clock_ns: float = 0.0


def rungs(
    modes: Mapping[str, Estimate],
    l2: str,
    profile: Profile | None,
    facts: Mapping[str, float],
    mhz: Mapping[str, float],
) -> list[Rung]:
    """The rows of one batch with a warm or a cold L2, in order; [] if nothing was measured so.
    `modes`: what was timed so; `facts`: what the worker measured beside it (`Modes.facts`); `mhz`:
    the SM clock by mode."""
    # triton prints the mean
    values = {m: e.mean_ns if m.startswith("do_bench") else e.value_ns for m, e in modes.items()}
    gpu = profile.gpu_ns.get(l2, {}) if profile else {}
    parts = parts_of(values, l2, gpu, profile.empty_kernel_ns if profile else math.nan, facts)
    if "sum" in gpu:
        values["sum"] = gpu["sum"]
    if parts["gaps"] > 0:  # else it is one kernel, or nobody knows
        values["span"] = gpu["queued"]
    ways = [way for way in ROWS if way in values]
    of_profile = profile.mhz.get(l2, math.nan) if profile else math.nan
    clock = {way: mhz.get(way, of_profile if way in ("span", "sum") else math.nan) for way in ways}
    out = []
    for way, following in zip(ways, [*ways, None][1:], strict=True):
        rung = Rung(way, ROWS[way][0], values[way], mhz=clock[way])
        if following:
            gone, new = (ROWS[a][1] - ROWS[b][1] for a, b in ((way, following), (following, way)))
            told = [
                f"{word} {' and '.join(names)}"
                for word, causes in (("without", gone), ("plus", new))
                if (names := [CAUSES[c] for c in CAUSES if c in causes and parts[c] != 0])
            ]
            known = sum(parts[c] for c in gone) - sum(parts[c] for c in new)
            ns = values[way] - values[following]
            cause = ", ".join(told) or "nothing that should differ"
            faster = clock[following] / clock[way] - 1
            if abs(faster) >= ANOTHER_CLOCK:
                rung = rung._replace(clock_ns=faster * gpu.get("sum", values[following]))
            rung = rung._replace(next_ns=ns, cause=cause, known_ns=known)
        out.append(rung)
    return out


def parts_of(
    timed: Mapping[str, float],
    l2: str,
    gpu: Mapping[str, float],
    empty_kernel_ns: float,
    facts: Mapping[str, float],
) -> dict[str, float]:
    """Cause -> ns, NaN where nothing has measured it.

    return     an empty kernel (or one of 50 us, where the GPU is what the call waits for): host
               timer less event pair
    launch     the event pair alone (below), less records, kernels and gaps
    records    a pair around an empty kernel behind a delay, less that kernel in the trace
    unhidden   the event pair on an idle GPU, less the flush that hides launches
    graph      the pair around a replay alone, less the graph in the trace
    in graph   the graph in the trace, less the sum of its kernels on a stream
    gaps       the kernels behind a delay in the trace: span less sum

    A pair alone is what the host needed from record to record, by its own clock, where that paces
    it.  Elsewhere it is the less of what the profile predicts without nsys and of what it measured
    with nsys, the wait scaled by how much faster the timed host was.  A graph of copies has a row
    in the trace that does not cover them: unknown.
    """
    nan = math.nan
    event, device = timed.get("event", nan), timed.get("device", nan)
    total, graph = gpu.get("sum", nan), gpu.get("graph", nan)
    graph = graph if graph > COVERED * total else nan
    gaps = gpu.get("queued", nan) - total
    records = facts.get("empty_kernel_ns", nan) - empty_kernel_ns
    unhidden = event - facts.get("flush_ns_per_byte", nan) * TRITON_BYTES - device
    returns = "return_short_ns" if event > LAUNCH_BOUND * device else "return_long_ns"

    def alone(mode: str, profiled: str, busy_ns: float) -> float:
        paced_ns = facts.get(f"{mode}_{l2}_paced_ns", nan)
        if timed.get(mode, nan) <= PACED * paced_ns:
            return paced_ns
        faster = facts.get(f"{mode}_{l2}_host_ns", nan) / gpu.get(f"{profiled}_host", nan)
        scaled = busy_ns + (gpu.get(f"{profiled}_read", nan) - busy_ns) * faster
        known = [ns for ns in (scaled, gpu.get(profiled, nan)) if ns == ns]
        return min(known, default=nan)

    busy = records + total + gaps
    return {
        "return": facts.get(returns, nan),
        "launch": alone("event", "event", busy) - busy,
        "records": records,
        "unhidden": 0.0 if unhidden < 0 else unhidden,
        "graph": alone("graph", "replay", graph) - graph,
        "in graph": graph - total,
        "gaps": gaps,
    }


def verdict(warm_rungs: Sequence[Rung], cold_rungs: Sequence[Rung]) -> Iterator[str]:
    """Which row answers which question, and where the profiled pass contradicts the timed one."""
    warm, cold = ({r.way: r for r in rows} for rows in (warm_rungs, cold_rungs))
    for question, ways in QUESTIONS:
        if way := next((w for w in ways if w in warm), None):
            text = f"{question}: {duration(warm[way].value_ns)} ({warm[way].name})"
            if way in cold:
                text += f"; its data not in the L2: {duration(cold[way].value_ns)}"
            yield text
    for l2, at in (("warm", warm), ("cold", cold)):
        if not {"device", "sum"} <= at.keys():
            continue
        timed, traced = at["device"].value_ns, at["sum"].value_ns
        if traced > timed + max(CONTRADICTS * timed, CONTRADICTS_NS):
            yield (
                f"{l2} L2: the kernels that nsys saw take {duration(traced)}, longer than the call "
                f"that was timed ({duration(timed)}): its clocks or its caches were others"
            )
