"""What an export says of itself: versions, GPUs, what nsys lost, which calls failed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nsysalign.model import CALL, ENQUEUEING_CALLS, LASTING_ERRORS, SYNC_CALLS, Gpu, TraceInfo
from nsysalign.paths import without_paths
from nsysalign.trace import schema
from nsysalign.trace.sqlite import RECORDED_BY, Source

if TYPE_CHECKING:
    from nsysalign.trace.cupti import Recording

#: Errors that say nothing of the work: not ready yet, already enabled; the program's end, where a call before succeeded.
_NO_FAILURES, _ENDS = (600, 704), (4, 709)
_LOST = re.compile(
    "have been collected|dropped|lost|incompatible|permission|^recorder: ", re.IGNORECASE
)
#: What nsys writes where it got nothing, or not all, of the GPU's work: what says most comes first.
_REASONS = (
    re.compile(
        r"tracing data was not collected|CUPTI activity records|ERR_NVGPUCTRPERM|permission",
        re.IGNORECASE,
    ),
    re.compile(
        r"driver version .* is not supported|Failed to connect to the application", re.IGNORECASE
    ),
    re.compile(r"CUDA (events|profiling) (collected|might)|No CUDA events", re.IGNORECASE),
)
_GPUS = "TARGET_INFO_GPU"


def trace_info(
    source: Source | Recording, calls: pd.DataFrame, names: Mapping[int, str], notes: Sequence[str]
) -> TraceInfo:
    """Return what an export says of itself: which versions and GPUs it is of, which tables are missing and what cannot be
    known without them, what nsys lost and why, and which CUDA calls failed.

    calls: `frames.CALLS`
    names: number -> name, as in `name_id` of the calls
    notes: notes on what was read
    """
    meta = _meta(source)
    version, product = meta.get("EXPORT_SCHEMA_VERSION"), meta.get("EXPORT_PRODUCT_VERSION")
    by_recorder = product is not None and product.startswith(RECORDED_BY)  # nsysalign's own
    losses = sorted({text[:200] for text in _warnings(source) if _LOST.search(text)})
    environment = dict(source.rows("TARGET_INFO_SYSTEM_ENV", "name", "value"))
    driver = environment.get("NvDriverVersion")
    epochs = [t for (t,) in source.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
    return TraceInfo(
        path=source.path.name,
        nsys_version=f"(CUPTI {product.removeprefix(RECORDED_BY)})"
        if product and by_recorder
        else product,
        schema_version=version,
        devices=_devices(source),
        driver_version=None if driver is None else str(driver),
        session_start_utc_ns=next((t for t in epochs if _number(t)), None),
        recorder="cupti" if by_recorder else "nsys",
        missing=tuple(f"{table}: {cost}" for table, cost in _absent(source, version).items()),
        notes=(*losses, *notes, *_notes_on_schema(version)),
        failed_calls=_failed(calls, names),
        reasons=_reasons(source),
    )


def _meta(source: Source | Recording) -> dict[str, str]:
    """Return what the tables of metadata say, name -> value; of a name in several of them the first one counts."""
    meta: dict[str, str] = {}
    for table in reversed(schema.META_TABLES):
        rows = source.rows(table, "name", "value")
        meta |= {str(name): str(value) for name, value in rows if value is not None}
    return meta


def _absent(source: Source | Recording, version: str | None) -> dict[str, str]:
    """Return each table that the export does not have -> what cannot be known without it, in words.

    version: the version of its schema, None for exports before 2022.4
    """
    absent = {table: cost for table, cost in schema.COST.items() if not source.has(table)}
    if version is None:  # what these cannot have was not switched off
        before = schema.NOT_BEFORE_2022_4
        absent |= {table: cost for table, cost in before.items() if table in absent}
    if schema.KERNEL.name in absent and source.has(schema.RUNTIME.name):
        absent[schema.KERNEL.name] = schema.CALLS_WITHOUT_KERNELS
    return absent


def _notes_on_schema(version: str | None) -> list[str]:
    """Return a note if the schema is newer than any that is known here."""
    numbers = tuple(int(number) for number in re.findall(r"\d{1,9}", version or "")[:2])
    if numbers <= schema.NEWEST:
        return []
    newest = ".".join(map(str, schema.NEWEST))
    return [
        f"schema {str(version)[:40]} is newer than {newest}, the newest that this nsysalign knows: what was renamed since is "
        "not seen"
    ]


def kept_diagnostic(severity: object, text: object) -> bool:
    """Whether a row of DIAGNOSTIC_EVENT says that something was lost."""
    return isinstance(severity, int) and severity >= 2 and bool(_LOST.search(str(text)))


def cuda_messages(source: Source | Recording) -> list[str]:
    """At most four warnings of nsys that have to do with CUDA, as sentences: reasons first."""
    about = re.compile(r"cuda|cupti|driver", re.IGNORECASE)
    messages = [t[:160] for t in _warnings(source) if about.search(t)]
    reasons = _reasons(source)
    texts = [*reasons, *(t for t in dict.fromkeys(messages) if not t.startswith(reasons))][:4]
    return [text if text.endswith((".", "?", "!", "…")) else f"{text}." for text in texts]


def _reasons(source: Source | Recording) -> tuple[str, ...]:
    """Why nsys got no GPU work, or not all of it, as far as it recorded that."""
    texts = [text.removesuffix(" Does the process use CUDA?")[:160] for text in _warnings(source)]
    matches = [text for reason in _REASONS for text in texts if reason.search(text)]
    return tuple(dict.fromkeys(matches))


def _warnings(source: Source | Recording) -> list[str]:
    """nsys's own, in one line each."""
    rows = source.rows("DIAGNOSTIC_EVENT", "severity", "text")
    texts = (text for severity, text in rows if isinstance(severity, int) and severity >= 2)
    return [" ".join(without_paths(str(text)).split()) for text in texts]


def _number(value: object) -> int:
    return value if type(value) is int and 0 < value < 1 << 62 else 0


def _devices(source: Source | Recording) -> tuple[str, ...]:
    """Names of the GPUs on which the program had a context; of all in the machine if the export
    does not say which."""
    # exports before cuDevice have the other; some say 0 of every GPU
    rows = source.rows(_GPUS, "cuDevice", "name") or source.rows(_GPUS, "id", "name")
    names = {number: str(name) for number, name in rows if name is not None}
    used = sorted({*source.read(schema.CONTEXT)["device"].tolist()})
    if used and len(dict(rows)) == len(rows) and all(device in names for device in used):
        return tuple(names[device] for device in used)
    # of a laptop, its display adapters stand there as well, without multiprocessors
    size = dict(source.rows(_GPUS, "name", "smCount"))
    gpus = [name for (name,) in source.rows(_GPUS, "name") if name is not None]
    listed = sorted(str(name) for name in gpus if size.get(name) != 0)
    return tuple(listed[:1] if len(set(listed)) == 1 and len(used) == 1 else listed)


def _failed(calls: pd.DataFrame, names: Mapping[int, str]) -> tuple[tuple[str, int, int], ...]:
    """Return the calls that failed: those that issue work or wait for it and returned an error, and all that returned one
    which lasts.  A tuple (name, code, count) for each name and code, in the order in which they first failed."""
    working_kinds = [CALL[kind] for kind in (*ENQUEUEING_CALLS, *SYNC_CALLS)]
    code = calls["return_value"].to_numpy()
    no_failures = (0, *_NO_FAILURES, *(_ENDS if (code == 0).any() else ()))
    counts_if_failed = np.isin(calls["kind"].to_numpy(), working_kinds)
    counts_if_failed |= np.isin(code, LASTING_ERRORS)
    has_failed = ~np.isin(code, no_failures) & counts_if_failed
    if not has_failed.any():
        return ()
    failed = calls[has_failed].sort_values("start_ns", kind="stable")
    counts = failed.groupby(["name_id", "return_value"], sort=False).size()
    rows = ((*map(int, ids), int(count)) for ids, count in counts.items())
    return tuple((names.get(name, ""), code, count) for name, code, count in rows)


def gpus(source: Source | Recording) -> dict[int, Gpu]:
    """CUDA device -> its GPU; of devices that the export does not tell apart (some say 0 of every one),
    multiprocessors if all have as many."""
    columns = [c for c in ("smCount", *schema.GPU_LIMITS) if source.has(_GPUS, c)]
    rows = source.rows(_GPUS, "cuDevice", *columns)
    sizes = {_number(size) for (size,) in source.rows(_GPUS, "smCount")} - {0}
    alike = sizes.pop() if len(sizes) == 1 else 0
    known_gpus: dict[int, Gpu] = defaultdict(lambda: Gpu(alike, 0, 0))
    if len({device for device, *_ in rows}) == len(rows):
        for device, *values in rows:
            known = dict(zip(columns, map(_number, values), strict=True))
            known_gpus[device] = Gpu(*(known.get(c, 0) for c in ("smCount", *schema.GPU_LIMITS)))
    return known_gpus
