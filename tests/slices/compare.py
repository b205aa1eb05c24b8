"""Whether two portions say the same."""

from __future__ import annotations

import numpy as np


def same(one, other, *, hosts_ns: int = 0) -> None:
    """Two portions are equal to the nanosecond; windows of host timers may lie up to `hosts_ns` apart."""
    rows, others = one.rows, other.rows
    assert len(rows) == len(others)
    host = (rows["kind"] == "host").to_numpy() & (hosts_ns > 0)
    for column in rows.columns:
        a, b = rows[column], others[column]
        assert a[~host].equals(b[~host]), column
        if column in ("start_ns", "end_ns") and hosts_ns:
            assert (np.abs(a[host] - b[host]) <= hosts_ns).all(), column
    for part in ("total", "low", "high"):
        assert np.array_equal(getattr(one, part)[~host], getattr(other, part)[~host]), part
    if not hosts_ns:
        for table in ("details", "other_streams"):
            assert getattr(one, table).equals(getattr(other, table)), table
    assert one.unaligned.equals(other.unaligned)
    assert set(one.notes) == set(other.notes)
    assert one.alone == other.alone
