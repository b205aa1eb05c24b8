"""Where the time of an analysis goes: CPU seconds of each stage of one process, threads included.

    python scripts/bench_stages.py TRACE.sqlite LOG

A long trace is read, placed and split slice by slice: its rows are sums over the slices.  Importing is not in it
(`python -X importtime -m nsysalign analyze ...`).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import tempfile
import time
from pathlib import Path

#: What is timed: module, function, and what it is called.
STAGES = (
    ("nsysalign.engine", "read_event_logs", "the event log"),
    ("nsysalign.engine", "read_trace", "reading"),
    ("nsysalign.engine", "survey", "the survey"),
    ("nsysalign.slices.one", "read_trace", "reading"),
    ("nsysalign.slices.one", "align", "placing"),
    ("nsysalign.slices.one", "attribute", "splitting"),
    ("nsysalign.slices.one", "partial_result", "tables of what ran"),
    ("nsysalign.engine", "explained", "explaining"),
    ("nsysalign.store.document", "write", "analysis.json"),
    ("nsysalign.store.database", "write", "analysis.db"),
    ("nsysalign.report.html", "write", "the page"),
)


def timed(spent: dict[str, float], module: str, name: str, stage: str) -> None:
    """Let a function say how long it took."""
    home = importlib.import_module(module)
    function = getattr(home, name)

    @functools.wraps(function)
    def counted(*arguments, **named):
        begin = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[stage] = spent.get(stage, 0.0) + time.process_time() - begin

    setattr(home, name, counted)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("events", type=Path)
    a = parser.parse_args()
    from nsysalign import analyze
    from nsysalign.commandline.present import store
    from nsysalign.effort import look_for_garbage_less_often

    look_for_garbage_less_often()
    spent: dict[str, float] = {}
    for stage in STAGES:
        timed(spent, *stage)
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        store(analyze(a.trace, [a.events]), Path(out))
    whole = time.process_time() - begin
    for stage, seconds in [*spent.items(), ("everything", whole)]:
        print(f"{seconds:8.2f}  {stage}")


if __name__ == "__main__":
    main()
