"""Summaries of ranks straight from a simulated job: no files, no analysis, the truth at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from simulator.ranks import Job

from nsysalign import frames
from nsysalign.addons.ranks.records import Clock, LabelTimes, RankSummary, SourceResult
from nsysalign.trace.nccl import operation_of

EPOCH = 1_795_229_128_000_000_000


def summary(
    job: Job,
    rank: int,
    *,
    clock: Callable[[np.ndarray], np.ndarray] = lambda t: t,
    session: int = 0,
    wrong: int = 0,
    known: bool = True,
    host: str | None = None,
    skip: int = 0,
    source: str = "",
) -> RankSummary:
    """`clock` distorts the true times; the session began at `session` on it, and says a start that
    is `wrong` by so much.  The first `skip` collectives are missing."""
    world = job.worlds[rank]

    def seen(times: Sequence[int]) -> np.ndarray:
        return clock(np.array(times, dtype=np.int64)) - session

    nccl = [o for o in world.ops if o.name.startswith("nccl")][skip:]
    name = [o.name.partition("(")[0] for o in nccl]
    collectives = pd.DataFrame(
        {
            "start_ns": seen([o.start for o in nccl]),
            "end_ns": seen([o.end for o in nccl]),
            "process": np.int64(world.pid << 24),
            "device": np.int64(world.device),
            "stream": np.array([o.stream for o in nccl], dtype=np.int64),
            "name": pd.Series(name, dtype="str"),
            "operation": pd.Series([operation_of(n) for n in name], dtype="str"),
            "signature": np.array([o.grid << 16 for o in nccl], dtype=np.int64),
        }
    )
    windows = [seen([p.start.t for p in world.pairs]), seen([p.end.t for p in world.pairs])]
    labels = (times("step", np.stack(windows).T),) if len(windows[0]) else ()
    return _rank(
        source or f"rank{rank}", world.pid, world.device, labels, host=host,
        session_start_ns=EPOCH + session + wrong if known else None,
        collectives=frames.check(collectives, frames.COLLECTIVES),
    )  # fmt: skip


def measured(rank: int, elapsed: Sequence[int], label: str = "step") -> RankSummary:
    """A rank without collectives: these times, one after the other."""
    durations = np.array(elapsed, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(durations + 1000)[:-1]]).astype(np.int64)
    windows = np.stack([starts, starts + durations], axis=1)
    return _rank(f"rank{rank}", 100 + rank, 0, (times(label, windows),))


def _rank(source, pid, device, labels, **more) -> RankSummary:
    usual = {"session_start_ns": EPOCH, "host": None, "launcher_rank": None}
    usual["collectives"] = frames.empty(frames.COLLECTIVES)
    return RankSummary(source=source, pid=pid, device=device, labels=labels, **{**usual, **more})


def times(label: str, windows: np.ndarray, **parts: float) -> LabelTimes:
    mean = float(np.diff(windows).mean())
    return LabelTimes(label, windows, parts or {"kernel": mean})


def results(*ranks: RankSummary) -> list[SourceResult]:
    by_source: dict[str, list[RankSummary]] = {}
    for rank in ranks:
        by_source.setdefault(rank.source, []).append(rank)
    return [SourceResult(name, name, ranks=tuple(found)) for name, found in by_source.items()]


def common(clock: Clock, times: np.ndarray) -> np.ndarray:
    """Times of a trace on the common clock, as ranks.json says."""
    drifted = np.rint(clock.drift * (times - clock.origin_ns)).astype(np.int64)
    return times + clock.offset_ns + drifted
