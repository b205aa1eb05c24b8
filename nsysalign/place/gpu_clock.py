"""Clock samples on the trace's clock, as stretches in which nothing changed.

samples   .  .  .  .  .  .  .  .          1980 1980 1980 1755 1755 1740 1980 1980
stretches [------]  [---]  .  [---]       between two stretches the clock changed, at an unknown time
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from nsysalign import frames
from nsysalign.place.host_clock import ClockMap, by_session_start

#: A stretch ends after this much time without a sample, or when it is this long, because power and
#: temperature drift.
_GAP_NS, _LONGEST_NS = 200_000_000, 1_000_000_000


def place_samples(
    samples: pd.DataFrame,
    maps: Mapping[int, ClockMap],
    session_start_utc_ns: int | None,
    *,
    shared: bool = False,
) -> tuple[pd.DataFrame, list[str]]:
    """Rows of frames.GPU_CLOCKS, by the most accurate map of any process (CLOCK_MONOTONIC is the
    machine's), else by the session's start; notes.  `shared`: several processes worked on a device of
    the same number."""
    if samples.empty:
        return frames.empty(frames.GPU_CLOCKS), []
    clock = min(maps.values(), key=lambda m: m.width_ns, default=None) or by_session_start(
        samples, session_start_utc_ns
    )
    if clock is None:
        return frames.empty(frames.GPU_CLOCKS), [
            "the clock samples could not be used: nothing connects their clock to the trace's"
        ]
    placed = samples.assign(t_ns=clock.to_trace(samples["monotonic_ns"].to_numpy()))
    placed = placed[placed["sm_mhz"] >= 0].sort_values(["device", "t_ns"], ignore_index=True)
    notes = []
    if shared and placed["device"].nunique() > 1:
        notes.append(
            "several processes used a device of the same number: if each was given a GPU of its own "
            "(CUDA_VISIBLE_DEVICES per process), the clocks shown with them may be another GPU's"
        )
    changes = placed[["device", "sm_mhz", "mem_mhz", "reasons"]].diff().ne(0).any(axis=1)
    changes |= placed["t_ns"].diff() > _GAP_NS
    since = placed["t_ns"] - placed.groupby(changes.cumsum())["t_ns"].transform("first")
    changes |= (since // _LONGEST_NS).diff() > 0  # cut what does not change, too
    stretches = placed.groupby(changes.cumsum()).agg(
        device=("device", "first"),
        start_ns=("t_ns", "first"),
        end_ns=("t_ns", "last"),
        samples=("t_ns", "size"),
        sm_min_mhz=("sm_mhz", "min"),
        sm_max_mhz=("sm_mhz", "max"),
        mem_mhz=("mem_mhz", "max"),
        power_mw=("power_mw", "max"),
        temperature_c=("temperature_c", "max"),
        reasons=("reasons", "first"),
    )
    return frames.check(stretches.reset_index(drop=True), frames.GPU_CLOCKS), notes
