"""How an export looks; none of it may change a result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How an export looks; none of it may change a result."""

    event_rows: str = "timestamps"  # timestamps, untimed (the stream is known), none
    shift: int = 0  # added to every time, taken off utcEpochNs
    utc_epoch: int = 1_795_229_128_000_000_000
    monotonic: int = 41_000_000_000  # monotonic clock minus trace clock
    clock_lines: bool = True  # with trace_ns
    clock_error: int = 0  # the realtime clock against the trace's, up to 10 us in reality
    shuffle: int | None = None  # seed that permutes the rows of every table
    rename: str = ""  # put before every kernel and region name
    stream_id_shift: int = 1  # cuStreamGetId's answer minus CUPTI's, for created streams
