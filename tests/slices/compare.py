"""Whether two portions say the same."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.model import CAUSES


def same(one, other, *, hosts_ns: int = 0) -> None:
    """Two portions are equal to the nanosecond; windows of host timers may lie up to `hosts_ns` apart.  Of the run as a whole
    `other` may call unknown what `one` explains, and nothing else."""
    rows, others = one.rows, other.rows
    assert len(rows) == len(others)
    host = (rows["kind"] == "host").to_numpy() & (hosts_ns > 0)
    run = (rows["kind"] == "run").to_numpy()
    # whether it was put together; what lies long before a window, and flags are decided by only if it is near
    for column in rows.columns.drop(["part", "launched_ns", "waited_ns"]):
        a, b = rows[column], others[column]
        assert a[~host].equals(b[~host]), column
        if column in ("start_ns", "end_ns") and hosts_ns:
            assert (np.abs(a[host] - b[host]) <= hosts_ns).all(), column
    for part in ("total", "low", "high"):
        assert np.array_equal(
            getattr(one, part)[~host & ~run], getattr(other, part)[~host & ~run]
        ), part
    less = one.total[run] - other.total[run]
    assert (np.delete(less, CAUSES.index("unknown"), axis=1) >= 0).all() and (
        less.sum(axis=1) == 0
    ).all()
    if not hosts_ns:
        for table in ("details", "other_streams"):
            a, b = (
                t[~run[t["interval"]]].reset_index(drop=True)
                for t in (getattr(one, table), getattr(other, table))
            )
            pd.testing.assert_frame_equal(a, b, obj=table)
    assert one.unaligned.equals(other.unaligned)
    assert set(one.notes) == set(other.notes)
    assert one.alone == other.alone
