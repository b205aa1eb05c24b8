"""What is said of runs, the work of a process on a device from its first to its last: one file per
question, with what must be known for it (a record, made in one pass over the trace), its thresholds
and its sentence.

    failed    calls that failed                  set_up   what passes before and after the GPU's work
    records   records that were lost             gaps     one pass over the gaps ...
    no_work   calls without any work             idle     ... and why the GPU was idle
    ranges    ranges of the program              copies   it copied
    pages     managed memory that moved          blocks   launches too small for it
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from nsysalign import frames
from nsysalign.explain.runs.blocks import small_launches
from nsysalign.explain.runs.gaps import idle_times
from nsysalign.explain.runs.no_work import calls_without_work
from nsysalign.explain.runs.pages import page_migrations_of
from nsysalign.explain.runs.records import lost_records_of
from nsysalign.explain.runs.set_up import set_ups
from nsysalign.split.labels import Ran


def facts_of_runs(ran: Ran) -> tuple[tuple[Any, ...], pd.DataFrame]:
    """The records that the rules about runs read (`Evidence.of_runs`), and `frames.GAPS`."""
    trace = ran.trace
    idle, gaps = idle_times(ran)
    records = (
        *idle,
        *page_migrations_of(trace),
        *small_launches(trace, trace.gpus),
        *set_ups(trace),
        *lost_records_of(trace),
        *calls_without_work(trace),
    )
    return records, frames.of_rows(gaps, frames.GAPS)
