"""What slices of a trace without an event log must know of each other.

    calls     |....... a ...............|..... b ........|         a launches what runs late, and records a start
    stream            [ a's ]     [ a's |  ]   [ a's ] [ b's ]     in b it still runs, and there is the end

An NVTX range is answered by the slice in which it begins, and so is a pair of records.  A range may hold a launch that runs
so late that its slice did not read that far, and pairing goes by all records of a stream.  So slices pair the records that
they see, and say what they saw at their edges: those that missed something are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign.align.inferred import PAIRED, Marks, Pairs, marked_together, pairs_of
from nsysalign.model import ORIGIN, UNSURE, Alignment, Trace
from nsysalign.trace.index import FOREVER


@dataclass(frozen=True)
class Edges:
    """Of one slice.  `numbers`: process -> least and greatest number (correlation id) of the calls made in it; `late`: process,
    correlation and start_ns of operations that begin in it and were issued before it; `marks` of the records in it; `pairs`
    (PAIRED) that begin in it, as far as the slice knows; `doubtful`: threads of which it saw a record, but no work before or after
    it, which says on which stream it is."""

    numbers: dict[int, tuple[int, int]]
    late: pd.DataFrame
    marks: Marks
    pairs: pd.DataFrame
    doubtful: frozenset[int]


def edges(trace: Trace, alignment: Alignment, slice_: tuple[int, int], read: tuple[int, int]) -> Edges:
    """Of a slice [begin, end), whose own windows are those of the alignment, and around which this much was `read`."""
    begin, end = slice_
    calls, operations, windows = trace.calls, trace.operations, alignment.windows
    made, number = calls["start_ns"].to_numpy(), calls["correlation"].to_numpy()
    here = calls.loc[(made >= begin) & (made < end) & (number > 0), ["process", "correlation"]]
    numbers = here.groupby("process")["correlation"].agg(["min", "max"])
    start, call = operations["start_ns"].to_numpy(), operations["call"].to_numpy()
    late = (start >= begin) & (start < end) & ((call < 0) | (np.append(made, 0)[call] < begin))
    pairs = windows[(windows["origin"] == ORIGIN["records"]).to_numpy()]
    unsure = np.array([UNSURE in remarks for remarks in pairs["remarks"].tolist()], dtype=bool)
    columns = (pairs[c].to_numpy() for c in ("thread", "start_lane", "open_ns", "close_ns"))
    return Edges(
        {int(process): (int(low), int(high)) for process, low, high in numbers.itertuples()},
        operations.loc[late, ["process", "correlation", "start_ns"]],
        alignment.marks,
        _sorted(pd.DataFrame(dict(zip(PAIRED, (*columns, unsure), strict=True)))),
        _doubtful(trace, alignment, slice_, read),
    )


def _doubtful(
    trace: Trace, alignment: Alignment, slice_: tuple[int, int], read: tuple[int, int]
) -> frozenset[int]:
    calls, records = trace.calls, alignment.records
    call = trace.operations["call"].to_numpy()
    issuing = call[call >= 0]
    issued = pd.Series(calls["start_ns"].to_numpy()[issuing]).groupby(calls["thread"].to_numpy()[issuing])
    at, thread = records["call_start_ns"].to_numpy(), records["thread"].to_numpy()
    mine = (at >= slice_[0]) & (at < slice_[1])
    first, last = (bound.reindex(thread[mine]).to_numpy() for bound in (issued.min(), issued.max()))
    # nothing at all is NaN, which is neither before nor after
    doubt = ~(first < at[mine]) & (read[0] > -FOREVER) | ~(last > at[mine]) & (read[1] < FOREVER)
    return frozenset(thread[mine][doubt].tolist())


def cut_short(every: Sequence[Edges], read_until: Sequence[int]) -> list[int]:
    """The slices whose calls issued operations that begin after what the slices read, or whose records lie too close to the
    edge of it."""
    issuing = {thread for one in every for thread, _ in one.marks.issued}
    late = pd.concat([e.late for e in every], ignore_index=True)
    process, number, start = (late[c].to_numpy() for c in ("process", "correlation", "start_ns"))
    found = []
    for n, (one, until) in enumerate(zip(every, read_until, strict=True)):
        hidden = start > until
        if one.doubtful & issuing or any(
            (hidden & (process == mine) & (number >= low) & (number <= high)).any()
            for mine, (low, high) in one.numbers.items()
        ):
            found.append(n)
    return found


def paired(every: Sequence[Edges], slices: Sequence[tuple[int, int]]) -> tuple[Pairs, list[pd.DataFrame]]:
    """The pairs of all records, and those (PAIRED) that begin in each slice."""
    marks = marked_together([e.marks for e in every])
    pairs = pairs_of(marks)
    table = _sorted(pairs.table(marks.records))
    opened = table["open_ns"].to_numpy()
    return pairs, [table[(opened >= begin) & (opened < end)].reset_index(drop=True) for begin, end in slices]


def _sorted(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs.sort_values(["thread", "lane", "open_ns"], ignore_index=True)
