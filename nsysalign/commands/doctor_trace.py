"""What the doctor says about a trace: what works, what is missing, what that costs, and the one
command that helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from nsysalign.errors import NsysAlignError

if TYPE_CHECKING:
    from nsysalign.model import Trace


OK, MISSING, WARNING = "ok", "missing", "warning"
_FROM_THE_START = "record from the program's start: nsysalign run SCRIPT.py"


class Row(NamedTuple):
    """One thing that was checked.  `cost` and `fix` are empty if all is well."""

    what: str
    state: str  # ok, warning or missing
    found: str
    cost: str = ""
    fix: str = ""


def look_at_trace(trace: Path, nsys: str | None = None) -> list[Row]:
    """An export, a report or a run directory.  A report without an export is exported for the
    check, and the export deleted afterwards."""
    from nsysalign.commandline.assembly import exported, is_export_of, trace_of
    from nsysalign.rundir import REPORT_SUFFIXES, RunDirectory
    from nsysalign.trace.read import read_trace

    with TemporaryDirectory(prefix="nsysalign-") as folder:
        try:
            path = trace_of(RunDirectory(trace)) if trace.is_dir() else trace
            rows, beside = [], path
            if path.suffix in REPORT_SUFFIXES:
                report, beside = path, path.with_suffix(".sqlite")
                again = f"nsysalign analyze {trace}"
                if not beside.exists():
                    found = f"{report.name} is not exported yet: exported for this check"
                    rows.append(Row("export", WARNING, found, "each check takes that long", again))
                    path = exported(report, Path(folder), nsys=nsys)
                elif is_export_of(beside, report):
                    rows.append(Row("export", OK, f"{beside.name} is as new as {report.name}"))
                    path = beside
                else:
                    found = f"{beside.name} is older than {report.name}"
                    cost = "it may be of another run; analyze makes a new one"
                    rows.append(Row("export", WARNING, found, cost, again))
                    path = beside
            read = read_trace(path)
        except NsysAlignError as error:
            step = error.next_step or ""
            return [Row("trace", MISSING, error.message, "nothing can be analysed", step)]
        return [
            *rows,
            *_tables(read),
            *_losses(read),
            _logs(beside, read, trace.is_dir()),
            _private(path, trace),
        ]


def _tables(trace: Trace) -> Iterator[Row]:
    """What the export's tables hold."""
    from nsysalign.model import CALL, KIND

    info, operations, rows = trace.info, trace.operations, trace.event_rows
    found = (
        f"{info.schema_version or 'not named (before 2022.4)'}, nsys "
        f"{info.nsys_version or 'unknown'}"
    )
    if any("is newer than" in note for note in info.notes):
        cost = "whatever was renamed since is not read"
        yield Row("schema", WARNING, found, cost, "pip install -U nsysalign")
    else:
        yield Row("schema", OK, found)

    records = int((trace.calls["kind"] == CALL["record"]).sum())
    found = f"{len(trace.calls)} rows, {records} event records"
    cost = "no event interval can be placed"
    yield (
        Row("runtime", OK, found)
        if records
        else Row("runtime", WARNING, found, cost, _FROM_THE_START)
    )

    lost = int((operations["call"] < 0).sum())
    found = f"{len(operations)} operations"
    if operations.empty:
        fix = "nsys profile -t cuda,nvtx, and let the script use the GPU"
        yield Row("kernel", WARNING, "no work on a GPU", "every window is idle", fix)
    elif lost:
        cost = "idle time before these is `unknown`"
        yield Row("kernel", WARNING, f"{found}, {lost} without their launch", cost, _FROM_THE_START)
    else:
        yield Row("kernel", OK, found)

    timed = int((rows["timestamp_ns"] > 0).sum())
    if len(rows) and timed == len(rows):
        exact = "GPU timestamps: exact, but event tracing makes short intervals longer"
        yield Row("events", OK, f"{timed} {exact}")
    else:
        some = f"{timed} of {len(rows)} records have a GPU timestamp"
        cost = "events are placed by bounds, usually within 2 us"
        cost += "" if len(rows) else "; the stream of each is inferred"
        fix = "nsysalign run --accurate SCRIPT.py (nsys 2024.6 or newer)"
        yield Row(
            "events", WARNING, some if len(rows) else "no GPU timestamps of records", cost, fix
        )

    waits = int((trace.calls["kind"] == CALL["wait_event"]).sum())
    if not waits or (trace.syncs["event_sync"] >= 0).any():
        yield Row("waits", OK, f"{waits} waits of streams for events")
    else:
        cost = "the event log says it; otherwise it is inferred from the order"
        fix = "record with nsysalign run, or nsys 2025.1 and newer"
        yield Row("waits", WARNING, f"{waits} waits, none says for which record", cost, fix)

    if len(trace.ranges):
        yield Row("nvtx", OK, f"{len(trace.ranges)} ranges")
    elif any("incompatible" in note.lower() for note in info.notes):
        found, cost = (
            "none: the nvtx package does not fit this nsys",
            "no ranges: host time cannot be named",
        )
        yield Row("nvtx", WARNING, found, cost, "pip install nvtx==0.2.11")
    else:
        fix = "nsys profile -t cuda,nvtx, or: with nsysalign.region(...)"
        yield Row("nvtx", WARNING, "no ranges", "host time cannot be named", fix)

    whole = int((operations["kind"] == KIND["graph"]).sum())
    if info.schema_version is None and (operations["graph_node"] < 0).all():
        yield Row("graphs", OK, "unknown: exports before 2022.4 do not tell graphs from other work")
    elif whole:
        cost = "kernels inside cannot be told apart, so kernel time is an upper bound"
        fix = "nsysalign run --graph-trace node SCRIPT.py"
        yield Row(
            "graphs", WARNING, f"{whole} executions of CUDA graphs as one row each", cost, fix
        )
    else:
        yield Row("graphs", OK, "none, or traced node by node")


def _losses(trace: Trace) -> Iterator[Row]:
    texts = [
        n for n in trace.info.notes if "is newer than" not in n and "incompatible" not in n.lower()
    ]
    for text in texts:
        cost = "what was lost is `unknown`, or an interval without a place"
        fix = (
            "record less and let the script finish; to stop it, use nsysalign run --timeout rather "
            "than kill"
        )
        yield Row("losses", WARNING, text, cost, fix)
    if not texts and trace.info.schema_version:
        yield Row("losses", OK, "the profiler reports none")
    elif not texts:
        found = "unknown: exports before 2022.4 carry no diagnostics"
        yield Row("losses", WARNING, found, "rows may have been lost unnoticed")


def _logs(path: Path, trace: Trace, is_run: bool) -> Row:
    from nsysalign.place.match import match_processes
    from nsysalign.rundir import event_logs
    from nsysalign.trace.eventlog import read_event_logs

    what, logs = "event logs", event_logs(path.parent)
    if not logs:
        cost = "no elapsed_time values: only NVTX ranges and inferred pairs"
        return Row(
            what,
            WARNING,
            "none beside the trace",
            cost,
            "record with nsysalign run, or pass --events FILE",
        )
    try:
        log = read_event_logs(logs)
        problems = match_processes(trace, log)[1]
    except NsysAlignError as error:
        state = MISSING if is_run else WARNING
        return Row(what, state, error.message, "no elapsed_time values", error.next_step or "")
    problems += [n for n in log.notes if re.search(r"could not|newer", n)]
    pairs = int((~log.elapsed["calibration"]).sum())
    found = f"{len(logs)} beside the trace, {pairs} elapsed_time calls"
    if not problems:
        return Row(what, OK, found)
    cost = "the affected pairs are listed without a place on the timeline"
    found = f"{found}; {'; '.join(problems)}"[:400]
    return Row(what, WARNING, found, cost, "record again: nsysalign run SCRIPT.py")


def _private(path: Path, given: Path) -> Row:
    from nsysalign.trace.redaction import private_content

    found = private_content(path)
    if not found:
        return Row("private", OK, "no environment, host or user names in the export")
    found, cost = (
        f"the export carries {', '.join(found)}",
        "it should not be shared (reports can be)",
    )
    return Row("private", WARNING, found, cost, f"nsysalign redact {given} OUT")
