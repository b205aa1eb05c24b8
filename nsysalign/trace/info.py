"""What an export says of itself: versions, GPUs, what nsys lost, which calls failed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nsysalign.model import CALL, ENQUEUEING_CALLS, SYNC_CALLS, TraceInfo
from nsysalign.paths import without_paths
from nsysalign.trace import schema
from nsysalign.trace.sqlite import Source, opened

#: Errors that say nothing of the work: not ready yet, already enabled, the program's end.
_NO_FAILURES = (4, 600, 704, 709)
_LOST = ("have been collected", "dropped", "lost", "incompatible", "permission")
_GPUS = "TARGET_INFO_GPU"


def trace_info(source: Source, more: Sequence[str]) -> TraceInfo:
    """What the export says of itself; `more`: notes on what was read."""
    meta: dict[str, str] = {}
    for table in reversed(schema.META_TABLES):
        rows = source.rows(table, "name", "value")
        meta |= {str(name): str(value) for name, value in rows if value is not None}
    version = meta.get("EXPORT_SCHEMA_VERSION")
    messages = source.rows("DIAGNOSTIC_EVENT", "severity", "text")
    kept = {_plain(text)[:200] for severity, text in messages if kept_diagnostic(severity, text)}
    notes = [*sorted(kept), *more]
    if tuple(int(n) for n in re.findall(r"\d{1,9}", version or "")[:2]) > schema.NEWEST:
        newest = ".".join(map(str, schema.NEWEST))
        notes.append(
            f"schema {str(version)[:40]} is newer than {newest}, the newest that this nsysalign knows: what was renamed since is "
            "not seen"
        )
    absent = {table: cost for table, cost in schema.COST.items() if not source.has(table)}
    if version is None:  # what exports before 2022.4 cannot have was not switched off
        before = schema.NOT_BEFORE_2022_4
        absent |= {table: cost for table, cost in before.items() if table in absent}
    if schema.KERNEL.name in absent and source.has(schema.RUNTIME.name):
        absent[schema.KERNEL.name] = schema.CALLS_WITHOUT_KERNELS
    environment = source.rows("TARGET_INFO_SYSTEM_ENV", "name", "value")
    epochs = [t for (t,) in source.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
    return TraceInfo(
        path=source.path.name,
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=version,
        devices=_devices(source),
        driver_version=next((str(v) for k, v in environment if k == "NvDriverVersion"), None),
        session_start_utc_ns=next((t for t in epochs if _number(t)), None),
        missing=tuple(f"{table}: {cost}" for table, cost in absent.items()),
        notes=tuple(notes),
        failed_calls=_failed(source),
    )


def kept_diagnostic(severity: object, text: object) -> bool:
    """Whether a row of DIAGNOSTIC_EVENT says that something was lost."""
    return (
        isinstance(severity, int) and severity >= 2 and any(w in str(text).lower() for w in _LOST)
    )


def cuda_messages(source: Source) -> list[str]:
    """At most four warnings of nsys that have to do with CUDA."""
    texts = [
        _plain(text)[:160]
        for severity, text in source.rows("DIAGNOSTIC_EVENT", "severity", "text")
        if isinstance(severity, int)
        and severity >= 2
        and re.search(r"cuda|cupti|driver", str(text), re.IGNORECASE)
    ]
    return list(dict.fromkeys(texts[:4]))


def _plain(text: object) -> str:
    return " ".join(without_paths(str(text)).split())


def _number(value: object) -> int:
    return value if type(value) is int and 0 < value < 1 << 62 else 0


def _devices(source: Source) -> tuple[str, ...]:
    """Names of the GPUs on which the program had a context; of all in the machine if the export
    does not say which."""
    by_device = source.rows(_GPUS, "cuDevice", "name")
    if len(dict(by_device)) < len(by_device):  # some exports say 0 of every GPU
        by_device = []
    elif not by_device:  # exports before cuDevice
        by_device = source.rows(_GPUS, "id", "name")
    names = {number: str(name) for number, name in by_device if name is not None}
    contexts = source.read(schema.CONTEXT)
    used = sorted({*contexts["device"].tolist()})
    if used and all(device in names for device in used):
        return tuple(names[device] for device in used)
    # of a laptop, its display adapters stand there as well, without multiprocessors
    size = dict(source.rows(_GPUS, "name", "smCount"))
    everything = [name for (name,) in source.rows(_GPUS, "name") if name is not None]
    listed = sorted(str(name) for name in everything if size.get(name) != 0)
    return tuple(listed[:1] if len(set(listed)) == 1 and len(used) == 1 else listed)


def _failed(source: Source) -> tuple[tuple[str, int, int], ...]:
    """Calls that issue work or wait for it and returned an error: (name, code, count)."""
    table = schema.RUNTIME.name
    if not source.has(table, "nameId", "returnValue"):
        return ()
    wanted = {CALL[kind] for kind in (*ENQUEUEING_CALLS, *SYNC_CALLS)}
    rows = source.connection.execute(
        f'select nameId, returnValue, count(*) from "{table}" where returnValue != 0 group by 1, 2'
    ).fetchall()
    names = source.strings() if rows else {}
    return tuple(
        (plain, code, count)
        for name, code, count in rows
        if isinstance(code, int) and code not in _NO_FAILURES
        for plain in [schema.api_name(str(names.get(name, "")))]
        if schema.call_kind(plain) in wanted
    )


class Limits(NamedTuple):
    """Of one GPU; 0 is unknown.  `memory_rate`: bytes per second, NVML's figure, which copies do
    not reach."""

    l2_bytes: int
    memory_rate: int


def _by_device(path: Path, *names: str) -> dict[Any, tuple[int, ...]]:
    """CUDA device -> whole numbers of its GPU, 0 for what the export does not say; {} if it does
    not say which GPU is which (some say 0 of every one)."""
    with opened(path) as source:
        there = [name for name in names if source.has(_GPUS, name)]
        rows = source.rows(_GPUS, "cuDevice", *there)
    known = [(device, dict(zip(there, values, strict=True))) for device, *values in rows]
    found = {
        device: tuple(_number(values.get(name)) for name in names)
        for device, values in known
        if isinstance(device, int)
    }
    return found if len(found) == len(rows) else {}


def read_limits(path: Path) -> dict[int, Limits]:
    """CUDA device -> its limits.  Raises TraceError as for any export."""
    return {device: Limits(*both) for device, both in _by_device(path, *schema.GPU_LIMITS).items()}


def multiprocessors(path: Path) -> Mapping[int, int]:
    """CUDA device -> how many multiprocessors it has, 0 if the export does not say.  Raises
    TraceError as for any export."""
    with opened(path) as source:
        sizes = {_number(size) for (size,) in source.rows(_GPUS, "smCount")} - {0}
    alike = sizes.pop() if len(sizes) == 1 else 0
    known = {device: size for device, (size,) in _by_device(path, "smCount").items()}
    return defaultdict(lambda: alike, known)
