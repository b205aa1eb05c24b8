"""One call by every clock: what each way of timing it prints, and what the differences are.

    host timer + sync > event pair > event pair behind a delay > do_bench > do_bench_cudagraph
    > graph replay > span of kernels (nsys) > sum of kernels (nsys)

Each row is one way; the difference to the next one is named by what the first contains and the
second does not, and the other way round, so the differences and the last row add up to the first.
Where something else has measured that cause, its number stands beside the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nsysalign.measure.profile import Profile
from nsysalign.measure.statistics import Estimate
from nsysalign.text import duration

#: mode or what nsys says -> (its name, what it contains beside the kernels and the gaps between).
ROWS = {
    "latency": ("host timer + synchronise", {"return", "launch"}),
    "event": ("event pair, idle GPU", {"launch", "floor"}),
    "device": ("event pair behind a delay", {"floor"}),
    "do_bench": ("triton do_bench", {"floor", "triton"}),
    "do_bench_cudagraph": ("triton do_bench_cudagraph", {"triton"}),
    "graph": ("CUDA graph, event pair", {"floor", "graph"}),
    "span": ("span of its kernels, nsys", {"launch", "nsys"}),
    "sum": ("sum of its kernels, nsys", {"nsys", "no gaps"}),
}
CAUSES = {
    "return": "the way to the GPU and back",
    "launch": "waits for launches",
    "floor": "the event records themselves",
    "triton": "triton's own loop",
    "graph": "the graph's own launch",
    "nsys": "nsys's own run and clocks",
    "no gaps": "gaps between kernels",
}
#: Which row answers which question, best first.
QUESTIONS = (
    ("how long one caller waits", ("latency",)),
    ("what most benchmarks print", ("event",)),
    ("the kernels in a model that keeps the GPU busy", ("device", "do_bench_cudagraph", "sum")),
    ("inside a CUDA graph", ("do_bench_cudagraph", "graph")),
)
_WAITS = ("api_launch", "launch_latency", "sync", "api", "host", "profiler")
#: A profiled sum this much above the timed device time contradicts it.
CONTRADICTS, CONTRADICTS_NS = 0.02, 1_000


class Rung(NamedTuple):
    """One way of timing the call.  `next_ns`: the difference to the next row; `cause`: its words;
    `known_ns`: what another measurement says of that cause, NaN where none does."""

    way: str
    name: str
    value_ns: float
    next_ns: float = math.nan
    cause: str = ""
    known_ns: float = math.nan


def rungs(
    modes: Mapping[str, Estimate], l2: str, profile: Profile | None, floor_ns: float
) -> list[Rung]:
    """The rows of one batch with a warm or a cold L2, in order; [] if nothing was measured so.
    `modes`: what was timed so; `floor_ns`: what a pair around an empty kernel reads, 0 unknown."""
    # triton prints the mean
    values = {m: e.mean_ns if m.startswith("do_bench") else e.value_ns for m, e in modes.items()}
    gpu = profile.gpu_ns.get(l2, {}) if profile else {}
    values |= {name: gpu[name] for name in ("span", "sum") if name in gpu}
    ways = [way for way in ROWS if way in values]
    out = []
    for way, following in zip(ways, [*ways, None][1:], strict=True):
        rung = Rung(way, ROWS[way][0], values[way])
        if following:
            more, less = (ROWS[a][1] - ROWS[b][1] for a, b in ((way, following), (following, way)))
            gone = [CAUSES[c] for c in CAUSES if c in more or (c == "no gaps" and c in less)]
            new = [CAUSES[c] for c in CAUSES if c in less and c != "no gaps"]
            cause = f"without {' and '.join(gone)}" if gone else ""
            cause += (", " if gone and new else "") + (f"plus {' and '.join(new)}" if new else "")
            known = _known_ns(profile, gpu, floor_ns, way, following)
            ns = values[way] - values[following]
            rung = rung._replace(next_ns=ns, cause=cause, known_ns=known)
        out.append(rung)
    return out


def _known_ns(
    profile: Profile | None, gpu: Mapping[str, float], floor_ns: float, a: str, b: str
) -> float:
    """What else has measured the difference between two rows: the floor of an event pair around an
    empty kernel; waits in the budget without nsys; gaps between kernels in the trace."""
    if (a, b) == ("span", "sum"):
        return float(gpu["gaps"])
    if ROWS[a][1] - ROWS[b][1] == {"floor"}:
        return floor_ns or math.nan
    if (a, b) == ("event", "device") and profile and profile.without_nsys_ns:
        return sum(profile.without_nsys_ns.get(cause, 0.0) for cause in _WAITS)
    return math.nan


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
