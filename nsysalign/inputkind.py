"""What a file is: decided by what it holds, never by its name alone; and what to do with it."""

from __future__ import annotations

import json
import re
import zlib
from contextlib import suppress
from enum import Enum
from pathlib import Path

from nsysalign.errors import NsysAlignError, TraceError
from nsysalign.untrusted import contents, opened, tables

#: How much of a file says what it is.
_HEAD = 1 << 16
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")  # the latter until 2021.3
_RECORD = "record the program with nsys: nsysalign run SCRIPT.py"


class InputKind(Enum):
    """(in words, what to do with it where a trace is wanted)."""

    RUN = "a run directory", ""
    UNPROFILED = "a run without nsys", "what its event log proves: nsysalign analyze {}"
    STORED = "a stored analysis without its trace", "what is stored: nsysalign show {}"
    FOLDER = "a folder without a trace", "name the trace: nsysalign analyze FILE"
    EXPORT = "an nsys export", ""
    REPORT = "an nsys report", ""
    TORCH_PROFILER = "a trace of torch.profiler", ""
    DAMAGED_REPORT = "no nsys report, or a damaged one (it does not begin as one)", "copy it again from where it was recorded, or record again"  # fmt: skip
    CUT_REPORT = "an nsys report whose end is missing", "copy it again from where it was recorded"
    STREAM = "nsys's raw recording, not yet a report", "nsysalign analyze the folder that it lies in"  # fmt: skip
    NCU = "a report of Nsight Compute, which replays kernels one by one and has no timeline", _RECORD  # fmt: skip
    PERFETTO = "a Perfetto trace", _RECORD
    CHROME = "a Chrome trace of another program", _RECORD
    AMD = "a trace of an AMD GPU", "nsysalign reads traces of NVIDIA's GPUs only"
    SNAPSHOT = "a memory snapshot of torch, which has no times of kernels", _RECORD
    EXECUTION = "an execution trace of torch (ExecutionTraceObserver), which has no times of kernels", _RECORD  # fmt: skip
    PICKLE = "a Python pickle, which is never opened", _RECORD
    EVENT_LOG = (
        "an event log: it says what was measured, and belongs to a trace, which says when",
        "nsysalign analyze TRACE.sqlite --events {}",
    )
    OURS = "an output of nsysalign, for other programs", "of a stored analysis: nsysalign report RUN"  # fmt: skip
    HTML = "a page (HTML)", "name the trace that it was made from"
    ARCHIVE = "an archive", "unpack it, and name the trace in it"
    DAMAGED_GZIP = "a damaged gzip file", "copy it again from where it was recorded"
    POINTER = "a pointer of Git LFS, and the file that it stands for is not here", "git lfs pull"
    PROGRAM = "a program, and analyze reads what was recorded of one", "nsysalign run {}"
    EMPTY = "an empty file", "record or copy it again"
    JSON = "JSON, and no trace", _RECORD
    TEXT = "a text, and no trace", _RECORD
    UNKNOWN = "no trace of nsys", "nsysalign analyze TRACE.sqlite | TRACE.nsys-rep | RUN_DIR"


#: What nsys itself is asked about first: older ones wrote other headers.
DOUBTFUL = {InputKind.DAMAGED_REPORT, InputKind.CUT_REPORT}
_MAGIC = {
    b"NVR\0": InputKind.NCU,
    b"NVIDIA Tegra Profiler Report": InputKind.REPORT,
    b"PK\3\4": InputKind.ARCHIVE,
    b"\xfd7zXZ": InputKind.ARCHIVE,
    b"BZh": InputKind.ARCHIVE,
    b"\x28\xb5\x2f\xfd": InputKind.ARCHIVE,
    b"7z\xbc\xaf": InputKind.ARCHIVE,
}
#: How a report ends, and how pickles of protocols 2 to 5 begin.
_END, _PICKLES = b"[END]", tuple(bytes([0x80, n]) for n in range(2, 6))
#: Tables of our analyses, and of rocprofv3's.
_OF_ANALYSIS = {"documentation", "intervals", "meta"}


def kind_of_file(path: Path) -> InputKind:
    """Reads the first 64 KB at most, of SQLite the names of tables.  Raises TraceError if it cannot be
    read."""
    try:
        head = contents(path, _HEAD)
    except OSError as error:
        raise TraceError(
            f"{path.name}: cannot be read ({error.strerror})", "check its permissions"
        ) from error
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD)
        except zlib.error:
            return InputKind.DAMAGED_GZIP
    return _of_bytes(path, head)


def _of_bytes(path: Path, head: bytes) -> InputKind:
    if not head:
        return InputKind.EMPTY
    if head.startswith(b"SQLite format 3\0"):
        return _of_tables(path)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return _whole(path) if kind is InputKind.REPORT else kind
    if head.startswith(_PICKLES):
        torch = b"device_traces" in head or b"segments" in head
        return InputKind.SNAPSHOT if torch else InputKind.PICKLE
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith((b"{", b"[")):
        return _of_json(text)
    if re.match(rb"<(!DOCTYPE\s+html|html)\b", text, re.IGNORECASE):
        return InputKind.HTML
    if head.startswith(b"version https://git-lfs"):
        return InputKind.POINTER
    if path.name.endswith(REPORT_SUFFIXES):
        return InputKind.DAMAGED_REPORT
    if path.suffix == ".qdstrm":
        return InputKind.STREAM
    if path.suffix == ".py":
        return InputKind.PROGRAM
    if head[0] == 0x0A and (b"\0" in head or path.suffix in (".pftrace", ".perfetto-trace")):
        return InputKind.PERFETTO  # field 1 of its message: a packet
    if b"KernelName" in head or b"hipLaunchKernel" in head or b"Agent_Id" in head:
        return InputKind.AMD  # rocprof's CSV
    return InputKind.UNKNOWN if b"\0" in head else InputKind.TEXT


def _whole(path: Path) -> InputKind:
    with suppress(OSError), path.open("rb") as file:
        file.seek(-min(64, path.stat().st_size), 2)
        if _END not in file.read():
            return InputKind.CUT_REPORT
    return InputKind.REPORT


def _of_tables(path: Path) -> InputKind:
    """Of a file that cannot be read now its reader says why."""
    with suppress(NsysAlignError):
        with opened(path, TraceError, expected="an nsys export", again="") as db:
            names = tables(db)[0].keys()
        if names >= _OF_ANALYSIS:
            return InputKind.STORED
        if any(name.startswith("rocpd_") for name in names):
            return InputKind.AMD
    return InputKind.EXPORT


def _of_json(text: bytes) -> InputKind:
    first = text.partition(b"\n")[0]
    with suppress(ValueError, RecursionError):
        line = json.loads(first)
        if isinstance(line, dict) and line.get("format") in (
            "nsysalign-events",
            "nsysalign-clocks",
        ):
            return InputKind.EVENT_LOG
    if re.match(rb'\{\s*"type":\s*"(header|record|elapsed|host|note)"', text):
        return InputKind.EVENT_LOG
    if b'"producer":"nsysalign"' in text or re.match(rb'\{\s*"format":\s*"nsysalign-', text):
        return InputKind.OURS
    if b'"device_traces"' in text or re.match(rb'\{\s*"segments"\s*:', text):
        return InputKind.SNAPSHOT
    if re.search(rb'"schema"\s*:\s*"[^"]*chakra', text):
        return InputKind.EXECUTION
    if b"rocprof" in text.lower() or b"hipLaunchKernel" in text or b'"rocm' in text.lower():
        return InputKind.AMD
    if b'"traceEvents"' in text or re.match(rb'\[\s*\{[^{}]*"ph"\s*:', text):
        torch = re.search(
            rb'"deviceProperties"|"(record_shapes|profile_memory|with_stack|cupti_version|cuda_runtime_version)"'
            rb'|"cat"\s*:\s*"(cpu_op|cuda_runtime|kernel|gpu_memcpy|Operator|Kernel|Runtime)"',
            text,
        )
        return InputKind.TORCH_PROFILER if torch else InputKind.CHROME
    begun = re.match(rb'\{\s*"(schemaVersion|deviceProperties)"\s*:', text)
    return (
        InputKind.TORCH_PROFILER if begun else InputKind.JSON
    )  # its events come later, or were cut off


def damaged(path: Path) -> TraceError | None:
    """What is wrong with a report that nsys could not export, as far as its bytes show."""
    kind = kind_of_file(path)
    words, instead = kind.value
    return TraceError(f"{path.name} is {words}", instead) if kind in DOUBTFUL else None
