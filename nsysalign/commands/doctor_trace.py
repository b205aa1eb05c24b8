"""What the doctor says about a trace: what works, what is missing, what that costs, and the one command that helps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from nsysalign.errors import NsysAlignError

if TYPE_CHECKING:
    from nsysalign.model import EventLog, Trace


OK, MISSING, WARNING = "ok", "missing", "warning"


@dataclass(frozen=True)
class Row:
    """One thing that was checked.  `cost` and `fix` are empty if all is well."""

    what: str
    state: str  # ok, warning or missing
    found: str
    cost: str = ""
    fix: str = ""


def look_at_trace(trace: Path, nsys: str | None = None) -> list[Row]:
    """An export, a report or a run directory.  A report without an export is exported for the check, and the export deleted
    afterwards."""
    with TemporaryDirectory(prefix="nsysalign-") as folder:
        return _look(trace, Path(folder), nsys)


def _look(trace: Path, folder: Path, nsys: str | None) -> list[Row]:
    from nsysalign.commandline.assembly import exported, trace_of
    from nsysalign.rundir import REPORT_SUFFIXES, RunDirectory
    from nsysalign.trace.read import read_trace

    try:
        path = trace_of(RunDirectory(trace)) if trace.is_dir() else trace
        rows = []
        if path.suffix in REPORT_SUFFIXES:
            rows.append(_export(path, trace))
            beside, report = path.with_suffix(".sqlite"), path
            path = beside if beside.exists() else exported(report, folder, nsys=nsys)
        else:
            beside = path
        read = read_trace(path)
    except NsysAlignError as error:
        return [
            Row("trace", MISSING, error.message, "nothing can be analysed", error.next_step or "")
        ]
    return [
        *rows,
        _schema(read),
        _calls(read),
        _work(read),
        _timestamps(read),
        _waits(read),
        _ranges(read),
        _graphs(read),
        *_losses(read),
        *_logs(beside, read, trace.is_dir()),
        _private(path, trace),
    ]


def _export(report: Path, given: Path) -> Row:
    from nsysalign.commandline.assembly import is_export_of

    beside = report.with_suffix(".sqlite")
    if not beside.exists():
        return Row(
            "export",
            WARNING,
            f"{report.name} is not exported yet: exported for this check",
            "each check takes that long",
            f"nsysalign analyze {given}",
        )
    if not is_export_of(beside, report):
        return Row(
            "export", WARNING, f"{beside.name} is older than {report.name}",
            "it may be of another run; analyze makes a new one", f"nsysalign analyze {given}",
        )  # fmt: skip
    return Row("export", OK, f"{beside.name} is as new as {report.name}")


def _schema(trace: Trace) -> Row:
    info = trace.info
    found = f"{info.schema_version or 'not named (before 2022.4)'}, nsys {info.nsys_version or 'unknown'}"
    newer = next((note for note in info.notes if "is newer than" in note), None)
    if newer:
        return Row(
            "schema",
            WARNING,
            found,
            "whatever was renamed since is not read",
            "pip install -U nsysalign",
        )
    return Row("schema", OK, found)


def _calls(trace: Trace) -> Row:
    from nsysalign.model import CALL

    records = int((trace.calls["kind"] == CALL["record"]).sum())
    found = f"{len(trace.calls)} rows, {records} event records"
    if records:
        return Row("runtime", OK, found)
    return Row(
        "runtime",
        WARNING,
        found,
        "no event interval can be placed",
        "record from the program's start: nsysalign run SCRIPT.py",
    )


def _work(trace: Trace) -> Row:
    operations = trace.operations
    if operations.empty:
        return Row(
            "kernel",
            WARNING,
            "no work on a GPU",
            "every window is idle",
            "nsys profile -t cuda,nvtx, and let the script use the GPU",
        )
    lost = int((operations["call"] < 0).sum())
    found = f"{len(operations)} operations"
    if lost:
        return Row(
            "kernel", WARNING, f"{found}, {lost} without their launch",
            "idle time before these is `unknown`", "record from the program's start: nsysalign run SCRIPT.py",
        )  # fmt: skip
    return Row("kernel", OK, found)


def _timestamps(trace: Trace) -> Row:
    rows = trace.event_rows
    timed = int((rows["timestamp_ns"] > 0).sum())
    if len(rows) and timed == len(rows):
        return Row(
            "events",
            OK,
            f"{timed} GPU timestamps: exact, but event tracing makes short intervals longer",
        )
    found = (
        f"{timed} of {len(rows)} records have a GPU timestamp"
        if len(rows)
        else "no GPU timestamps of records"
    )
    cost = "events are placed by bounds, usually within 2 us"
    if rows.empty:
        cost += "; the stream of each is inferred"
    return Row(
        "events", WARNING, found, cost, "nsysalign run --accurate SCRIPT.py (nsys 2024.6 or newer)"
    )


def _waits(trace: Trace) -> Row:
    from nsysalign.model import CALL

    waits = int((trace.calls["kind"] == CALL["wait_event"]).sum())
    if not waits or (trace.syncs["event_sync"] >= 0).any():
        return Row("waits", OK, f"{waits} waits of streams for events")
    return Row(
        "waits", WARNING, f"{waits} waits, none says for which record",
        "the event log says it; otherwise it is inferred from the order", "record with nsysalign run, or nsys 2025.1 and newer",
    )  # fmt: skip


def _ranges(trace: Trace) -> Row:
    if len(trace.ranges):
        return Row("nvtx", OK, f"{len(trace.ranges)} ranges")
    if any("incompatible" in note.lower() for note in trace.info.notes):
        return Row(
            "nvtx",
            WARNING,
            "none: the nvtx package does not fit this nsys",
            "no ranges: host time cannot be named",
            "pip install nvtx==0.2.11",
        )
    return Row(
        "nvtx",
        WARNING,
        "no ranges",
        "host time cannot be named",
        "nsys profile -t cuda,nvtx, or: with nsysalign.region(...)",
    )


def _graphs(trace: Trace) -> Row:
    from nsysalign.model import KIND

    if trace.info.schema_version is None and (trace.operations["graph_node"] < 0).all():
        return Row(
            "graphs", OK, "unknown: exports before 2022.4 do not tell graphs from other work"
        )
    whole = int((trace.operations["kind"] == KIND["graph"]).sum())
    if whole:
        return Row(
            "graphs", WARNING, f"{whole} executions of CUDA graphs as one row each",
            "kernels inside cannot be told apart, so kernel time is an upper bound", "nsysalign run --graph-trace node SCRIPT.py",
        )  # fmt: skip
    return Row("graphs", OK, "none, or traced node by node")


def _losses(trace: Trace) -> list[Row]:
    lost = [
        n for n in trace.info.notes if "is newer than" not in n and "incompatible" not in n.lower()
    ]
    return [
        Row(
            "losses",
            WARNING,
            text,
            "what was lost is `unknown`, or an interval without a place",
            "record less and let the script finish; to stop it, use nsysalign run --timeout rather than kill",
        )
        for text in lost
    ] or [
        Row("losses", OK, "the profiler reports none")
        if trace.info.schema_version
        else Row(
            "losses",
            WARNING,
            "unknown: exports before 2022.4 carry no diagnostics",
            "rows may have been lost unnoticed",
        )
    ]


def _logs(path: Path, trace: Trace | None, is_run: bool) -> list[Row]:
    from nsysalign.rundir import event_logs
    from nsysalign.trace.eventlog import read_event_logs

    logs = event_logs(path.parent)
    if not logs:
        return [
            Row("event logs", WARNING, "none beside the trace", "no elapsed_time values: only NVTX ranges and inferred pairs",
                "record with nsysalign run, or pass --events FILE")
        ]  # fmt: skip
    try:
        log = read_event_logs(logs)
        said = _of_this_run(trace, log) if trace is not None else []
    except NsysAlignError as error:
        return [
            Row(
                "event logs",
                MISSING if is_run else WARNING,
                error.message,
                "no elapsed_time values",
                error.next_step or "",
            )
        ]
    said += [n for n in log.notes if re.search(r"could not|newer", n)]
    pairs = int((~log.elapsed["calibration"]).sum())
    found = f"{len(logs)} beside the trace, {pairs} elapsed_time calls"
    if not said:
        return [Row("event logs", OK, found)]
    return [
        Row(
            "event logs",
            WARNING,
            f"{found}; {'; '.join(said)}"[:400],
            "the affected pairs are listed without a place on the timeline",
            "record again: nsysalign run SCRIPT.py",
        )
    ]


def _of_this_run(trace: Trace, log: EventLog) -> list[str]:
    from nsysalign.place.match import match_processes

    return match_processes(trace, log)[1]


def _private(path: Path, given: Path) -> Row:
    from nsysalign.trace.redaction import private_content

    found = private_content(path)
    if not found:
        return Row("private", OK, "no environment, host or user names in the export")
    return Row(
        "private",
        WARNING,
        f"the export carries {', '.join(found)}",
        "it should not be shared (reports can be)",
        f"nsysalign redact {given} OUT",
    )
