"""One call by every clock: what each way of timing it prints, and what is in it (`--clocks`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nsysalign.addons.measure.profile import Profile
from nsysalign.addons.measure.statistics import Estimate
from nsysalign.text import duration

#: mode or what nsys says -> (its name, what it contains beside the time in which kernels ran).
ROWS = {
    "latency": (
        "host timer + synchronise",
        "the first launch's way to the GPU, waits for later launches, the way back",
    ),
    "event": ("event pair, idle GPU", "waits for launches, and the records themselves"),
    "device": ("event pair behind a delay", "the records; the host has launched everything before"),
    "do_bench": (
        "triton do_bench",
        "the records, behind a flush of the L2, and launches longer than the flush; the mean",
    ),
    "do_bench_cudagraph": ("triton do_bench_cudagraph", "gaps inside a graph of calls; the mean"),
    "graph": ("CUDA graph, event pair", "the launch of the graph, and the records"),
    "span": ("span of its kernels, nsys", "gaps between kernels, behind a delay"),
    "sum": ("sum of its kernels, nsys", "nothing: the time in which a kernel or copy ran"),
}
#: Which row answers which question, best first.
QUESTIONS = (
    ("how long one caller waits", ("latency",)),
    ("what most benchmarks print", ("event",)),
    ("the kernels in a model that keeps the GPU busy", ("device", "do_bench_cudagraph", "sum")),
    ("inside a CUDA graph", ("do_bench_cudagraph", "graph")),
)
#: A profiled sum this much above the timed device time contradicts it.
CONTRADICTS, CONTRADICTS_NS = 0.02, 1_000


class Rung(NamedTuple):
    """One way of timing the call; `mhz`: the median SM clock meanwhile, NaN where unknown."""

    way: str
    name: str
    value_ns: float
    contains: str
    mhz: float


def rungs(
    modes: Mapping[str, Estimate], l2: str, profile: Profile | None, mhz: Mapping[str, float]
) -> list[Rung]:
    """The rows of one batch with a warm or a cold L2, in order.  `modes`: what was timed so; `mhz`:
    the SM clock by mode."""
    # triton prints the mean
    values = {m: e.mean_ns if m.startswith("do_bench") else e.value_ns for m, e in modes.items()}
    if profile:
        gpu_ns = profile.gpu_ns.get(l2, {})
        values |= {way: gpu_ns[way] for way in ("span", "sum") if way in gpu_ns}
    nan = float("nan")
    return [
        Rung(way, name, values[way], contains, mhz.get(way, nan))
        for way, (name, contains) in ROWS.items()
        if way in values
    ]


def verdict(warm_rungs: Sequence[Rung], cold_rungs: Sequence[Rung]) -> Iterator[str]:
    """Which row answers which question, and where the profiled pass contradicts the timed one."""
    warm, cold = ({r.way: r.value_ns for r in rows} for rows in (warm_rungs, cold_rungs))
    for question, ways in QUESTIONS:
        if way := next((w for w in ways if w in warm), None):
            text = f"{question}: {duration(warm[way])} ({ROWS[way][0]})"
            if way in cold:
                text += f"; its data not in the L2: {duration(cold[way])}"
            yield text
    for l2, ns in (("warm", warm), ("cold", cold)):
        if not {"device", "sum"} <= ns.keys():
            continue
        timed, traced = ns["device"], ns["sum"]
        if traced > timed + max(CONTRADICTS * timed, CONTRADICTS_NS):
            yield (
                f"{l2} L2: the kernels that nsys saw take {duration(traced)}, longer than the call "
                f"that was timed ({duration(timed)}): its clocks or its caches were others"
            )
