"""Clock samples on the trace's clock, as stretches in which nothing changed.

samples   .  .  .  .  .  .  .  .          1980 1980 1980 1755 1755 1740 1980 1980
stretches [------]  [---]  .  [---]       between two stretches the clock changed, at an unknown time
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.place.host_clock import ClockMap, by_session_start

#: Stretches kept per analysis; if there are more, neighbours are joined into one with a minimum and
#: a maximum.
MOST = 20_000
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
    """Rows of frames.GPU_CLOCKS, and notes.

    CLOCK_MONOTONIC is the machine's, so the most accurate map of any process of the run is used;
    without one, the session's start time.  `shared`: several processes of the trace worked on a
    device of the same number.
    """
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
    if placed.empty:
        return frames.empty(frames.GPU_CLOCKS), []
    table = _stretches(placed)
    notes = []
    if shared and len(np.unique(samples["device"].to_numpy())) > 1:
        notes.append(
            "several processes used a device of the same number: if each was given a GPU of its own "
            "(CUDA_VISIBLE_DEVICES per process), the clocks shown with them may be another GPU's"
        )
    if len(table) > MOST:
        notes.append(
            f"the clocks changed {len(table):,} times: the table gpu_clocks joins neighbouring samples to {MOST:,} rows "
            "with the least and the highest SM clock of each"
        )
        table = _joined(table)
    return frames.check(table, frames.GPU_CLOCKS), notes


def _stretches(placed: pd.DataFrame) -> pd.DataFrame:
    t, device = placed["t_ns"].to_numpy(), placed["device"].to_numpy()
    new = np.ones(len(t), dtype=bool)
    new[1:] = (device[1:] != device[:-1]) | (np.diff(t) > _GAP_NS)
    for column in ("sm_mhz", "mem_mhz", "reasons"):
        values = placed[column].to_numpy()
        new[1:] |= values[1:] != values[:-1]
    first = np.flatnonzero(new)
    length = np.diff(np.append(first, len(t)))
    since = t - np.repeat(
        t[first], length
    )  # cut stretches without change into pieces of at most _LONGEST_NS
    piece = since // _LONGEST_NS
    new[1:] |= piece[1:] != piece[:-1]
    return _grouped(
        placed,
        np.cumsum(new) - 1,
        placed["sm_mhz"],
        placed["sm_mhz"],
        t,
        t,
        np.ones(len(t), np.int64),
    )


def _joined(table: pd.DataFrame) -> pd.DataFrame:
    size = -(-len(table) // MOST) + 1
    device = table["device"].to_numpy()
    first = np.searchsorted(device, device)  # sorted by device: where the rows of each begin
    group = (np.arange(len(table)) - first) // size
    changes = np.ones(len(table), dtype=bool)
    changes[1:] = (np.diff(group) != 0) | (np.diff(device) != 0)
    return _grouped(
        table,
        np.cumsum(changes) - 1,
        table["sm_min_mhz"],
        table["sm_max_mhz"],
        table["start_ns"].to_numpy(),
        table["end_ns"].to_numpy(),
        table["samples"].to_numpy(),
    )


def _grouped(source, group, least, most, start, end, samples) -> pd.DataFrame:
    """One row per group of neighbours (int64 throughout: -1, unknown, is below every value)."""
    begin = np.flatnonzero(np.diff(group, prepend=-1))
    columns = {
        "device": source["device"].to_numpy()[begin],
        "start_ns": np.minimum.reduceat(start, begin),
        "end_ns": np.maximum.reduceat(end, begin),
        "samples": np.add.reduceat(samples, begin),
        "sm_min_mhz": np.minimum.reduceat(least.to_numpy(), begin),
        "sm_max_mhz": np.maximum.reduceat(most.to_numpy(), begin),
    }
    for name in ("mem_mhz", "power_mw", "temperature_c"):
        columns[name] = np.maximum.reduceat(source[name].to_numpy(), begin)
    reasons = source["reasons"].to_numpy()
    every = np.bitwise_or.reduceat(np.maximum(reasons, 0), begin)
    columns["reasons"] = np.where(np.minimum.reduceat(reasons, begin) < 0, -1, every)
    return pd.DataFrame(columns)
