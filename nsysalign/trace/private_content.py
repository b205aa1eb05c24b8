"""Private data in an export."""

from __future__ import annotations

from pathlib import Path

from nsysalign.trace.sqlite import Source, open_readonly

#: table -> what is in it.  nsys 2024.2 writes all of them; META_DATA_EXPORT names the host and the user as well.
PRIVATE_TABLES = {
    "META_DATA_CAPTURE": "the command line and environment",
    "ProcessStreams": "the program's output",
    "ANALYSIS_FILE": "log files",
    "PROCESSES": "all processes of the machine",
    "ThreadNames": "thread names",
}


def private_content(path: Path) -> list[str]:
    """What should be redacted from an export, in words; [] if it can be shared.  Raises TraceError if it is unreadable."""
    with open_readonly(path) as connection:
        source = Source(connection)
        found = [what for table, what in PRIVATE_TABLES.items() if table in source.tables]
        environment = {str(name) for name, _ in source.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")}
        about = {str(name) for name, _ in source.pairs("META_DATA_EXPORT", "name", "value")}
    if "DeviceEnvironment" in environment and "the command line and environment" not in found:
        found.insert(0, "the environment")
    if {"EXPORT_HOST", "EXPORT_USER"} & about:
        found.append("host and user name")
    return found
