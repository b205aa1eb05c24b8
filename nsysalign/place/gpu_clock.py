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
    new = _changes(placed)
    notes = []
    if shared and len(np.unique(samples["device"].to_numpy())) > 1:
        notes.append(
            "several processes used a device of the same number: if each was given a GPU of its own "
            "(CUDA_VISIBLE_DEVICES per process), the clocks shown with them may be another GPU's"
        )
    if (count := int(new.sum())) > MOST:
        notes.append(
            f"the clocks changed {count:,} times: the table gpu_clocks joins neighbouring samples to {MOST:,} rows "
            "with the least and the highest SM clock of each"
        )
        device, number = placed["device"].to_numpy(), np.cumsum(new) - 1
        number -= number[np.searchsorted(device, device)]  # among those of its device
        joined = number // (-(-count // MOST) + 1)
        new[1:] = (np.diff(joined) != 0) | (np.diff(device) != 0)
    return frames.check(_stretches(placed, new), frames.GPU_CLOCKS), notes


def _changes(placed: pd.DataFrame) -> np.ndarray:
    """Bool, per sample: a stretch begins."""
    t = placed["t_ns"].to_numpy()
    new = np.append(True, np.diff(t) > _GAP_NS)
    for column in ("device", "sm_mhz", "mem_mhz", "reasons"):
        new[1:] |= np.diff(placed[column].to_numpy()) != 0
    first = np.flatnonzero(new)
    since = t - np.repeat(t[first], np.diff(np.append(first, len(t))))
    new[1:] |= np.diff(since // _LONGEST_NS) != 0  # cut what does not change, too
    return new


def _stretches(placed: pd.DataFrame, new: np.ndarray) -> pd.DataFrame:
    """One row per stretch (int64 throughout: -1, unknown, is below every value)."""
    begin = np.flatnonzero(new)
    end = np.append(begin[1:], len(placed)) - 1
    values = {c: placed[c].to_numpy() for c in placed}
    reasons = np.bitwise_or.reduceat(np.maximum(values["reasons"], 0), begin)
    unknown = np.minimum.reduceat(values["reasons"], begin) < 0
    columns = {
        "device": values["device"][begin],
        "start_ns": values["t_ns"][begin],
        "end_ns": values["t_ns"][end],
        "samples": end - begin + 1,
        "sm_min_mhz": np.minimum.reduceat(values["sm_mhz"], begin),
        "sm_max_mhz": np.maximum.reduceat(values["sm_mhz"], begin),
        "reasons": np.where(unknown, -1, reasons),
    }
    most = ("mem_mhz", "power_mw", "temperature_c")
    return pd.DataFrame(columns | {c: np.maximum.reduceat(values[c], begin) for c in most})
